"""Send buffers whose limit follows the congestion window."""

from __future__ import annotations

from typing import Annotated, Any

from tcpdelay.models.compilation import kernel
from tcpdelay.scenario.fields import InvalidValueError, Quantity, described

LARGEST_MULTIPLE, LARGEST_EXTRA = 4, 1000


@kernel()
def packets_allowed(multiple: int, extra: int, cwnd: int, sacked_out: int) -> int:
    """Return the largest number of packets in a send buffer that follows the window; see `SendBufferLimit.limit`."""
    return int(multiple * cwnd + min(extra, cwnd) + sacked_out)


@kernel()
def has_room(flow: Any, held: int, cwnd: int, sacked_out: int) -> bool:
    """Return whether the limit of a flow's send buffer, if any, allows a segment beside the `held` segments.

    The source may write a message as soon as one segment fits. The rest of a message of several segments follows while
    the buffer drains; with room for the whole message as a condition, a window smaller than a message would block the
    source for ever.
    """
    if flow.buffer_windows == 0:
        return True
    return bool(held < packets_allowed(flow.buffer_windows, flow.buffer_extra, cwnd, sacked_out))


@described
class SendBufferLimit:
    """A limit of the send buffer that follows the congestion window.

    Parameters
    ----------
    multiple : int
        Congestion windows that the send buffer holds, 1 to 4.
    extra : int
        Packets that it holds beyond them, 0 to 1000, but at most one window.

    Raises
    ------
    InvalidValueError
        If a value is out of its range; a ValueError.

    Examples
    --------
    >>> SendBufferLimit(1, 3).limit(cwnd=10), SendBufferLimit(1, 3).limit(cwnd=2)
    (13, 4)
    """

    multiple: Annotated[
        int,
        Quantity(
            kind="count",
            meaning="Congestion windows that the send buffer holds.",
            low=1,
            high=LARGEST_MULTIPLE,
            unit="windows",
            example="1",
        ),
    ] = 1
    extra: Annotated[
        int,
        Quantity(
            kind="count",
            meaning="Packets that the send buffer holds beyond these windows.",
            low=0,
            high=LARGEST_EXTRA,
            unit="packets",
            example="3",
        ),
    ] = 0

    def limit(self, cwnd: int, sacked_out: int = 0) -> int:
        """Return the largest number of packets in the send buffer, including packets sent but not acknowledged.

        Parameters
        ----------
        cwnd : int
            Congestion window [packets], 0 or more.
        sacked_out : int
            Packets that have arrived but are not acknowledged cumulatively, 0 or more. They have left the network, so
            the window allows as many further packets.

        Returns
        -------
        int
            multiple * cwnd + min(extra, cwnd) + sacked_out.

        Examples
        --------
        >>> SendBufferLimit(1, 0).limit(cwnd=7), SendBufferLimit(2, 0).limit(cwnd=10, sacked_out=4)
        (7, 24)
        """
        return int(packets_allowed(self.multiple, self.extra, cwnd, sacked_out))


def require_limit(value: object) -> None:
    """Raise InvalidValueError unless the argument `min_buf` is a send-buffer limit or None."""
    if value is not None and not isinstance(value, SendBufferLimit):
        raise InvalidValueError("min_buf", value, "be a MinBuf")
