"""How much a source may write ahead of the network: MIN_BUF, and Linux's limit of what is not sent yet.

References
----------
Goel, Krasic, Li, Walpole, "Supporting Low-Latency TCP-Based Media Streams", IWQoS 2002.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.network.bottleneck import check_range

LARGEST_MULTIPLE, LARGEST_EXTRA = 4, 1000


@kernel()
def packets_admitted(multiple: int, extra: int, cwnd: int, sacked_out: int) -> int:
    """Return the packets that a send buffer tuned by MIN_BUF holds at most, as `MinBuf.limit` explains."""
    return int(multiple * cwnd + min(extra, cwnd) + sacked_out)


@dataclass(frozen=True, slots=True)
class MinBuf:
    """A send buffer that follows the congestion window: MIN_BUF(A, B) of Goel et al.

    Parameters
    ----------
    multiple : int
        A: windows of packets that the buffer takes, 1 to 4.
    extra : int
        B: packets beyond them, but never more than another window, 0 to 1000.

    Raises
    ------
    ValueError
        If a value is out of its range.

    Examples
    --------
    >>> MinBuf(1, 3).limit(cwnd=10), MinBuf(1, 3).limit(cwnd=2), MinBuf(2, 0).limit(cwnd=10, sacked_out=4)
    (13, 4, 24)
    """

    multiple: int = 1
    extra: int = 0

    def __post_init__(self) -> None:
        check_range("multiple", self.multiple, 1, LARGEST_MULTIPLE, "windows")
        check_range("extra", self.extra, 0, LARGEST_EXTRA, "packets")

    def limit(self, cwnd: int, sacked_out: int = 0) -> int:
        """Return how many packets may stand in the buffer, those that are not acknowledged yet included.

        Parameters
        ----------
        cwnd : int
            Congestion window [packets], 0 or more.
        sacked_out : int
            Packets that have arrived but are not acknowledged cumulatively, 0 or more: they have left the network, so
            the window lets as many others follow.

        Returns
        -------
        int
            A cwnd + min(B, cwnd) + sacked_out (Goel et al., sections 3 and 4).

        Examples
        --------
        >>> MinBuf(1, 0).limit(cwnd=7)
        7
        """
        return int(packets_admitted(self.multiple, self.extra, cwnd, sacked_out))


def check_min_buf(value: object) -> None:
    """Raise a ValueError unless the value is a `MinBuf` or None."""
    if value is not None and not isinstance(value, MinBuf):
        raise ValueError(f"min_buf must be a MinBuf, got {value!r}")


@kernel()
def is_blocked(flow: Any, held: int, more: int, cwnd: int, sacked_out: int) -> bool:
    """Whether a send buffer that follows the window, and holds some segments, has no room for so many more."""
    if flow.min_buf_multiple == 0:
        return False
    return bool(held + more > packets_admitted(flow.min_buf_multiple, flow.min_buf_extra, cwnd, sacked_out))


@kernel()
def classic_admits(flow: Any, s: Any, sacked_out: int) -> bool:
    """Whether the buffer of a classic sender takes a packet more, given those that SACKs have reported.

    Without SACK the sender itself opens its window by what duplicate acknowledgements report.
    """
    held = s.written + 1 - s.snd_una
    if held * s.segment_size > flow.send_buffer:
        return False
    if flow.min_buf_multiple == 0:
        return True
    return bool(held <= packets_admitted(flow.min_buf_multiple, flow.min_buf_extra, int(s.cwnd), sacked_out))


@kernel()
def linux_admits(flow: Any, c: Any, room: int) -> bool:
    """Whether a Linux sender takes a message more, given the size of its send buffer [bytes].

    `poll` reports room while what is free of the buffer is at least half of what is not (`__sk_stream_is_writeable`),
    and with TCP_NOTSENT_LOWAT less than half of the limit is unsent (`__tcp_stream_memory_free`).
    """
    held = c.written - c.snd_una
    if flow.min_buf_multiple:
        limit = packets_admitted(flow.min_buf_multiple, flow.min_buf_extra, c.snd_cwnd, c.sacked_out)
        return bool(held + flow.message <= limit * c.mss)
    if flow.notsent_lowat and 2 * (c.written - c.snd_nxt) >= flow.notsent_lowat:
        return False
    return bool(2 * (room - held) >= held)
