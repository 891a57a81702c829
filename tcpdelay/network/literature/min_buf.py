"""MIN_BUF: a send buffer that holds little more than the congestion window, so that data waits in the application."""

from __future__ import annotations

from tcpdelay.network.send_buffer import SendBufferLimit
from tcpdelay.scenario.fields import described


@described
class MinBuf(SendBufferLimit):
    """A send buffer that follows the congestion window: MIN_BUF(A, B) of Goel et al.

    Parameters
    ----------
    multiple : int
        A, the congestion windows of packets that the send buffer holds, 1 to 4.
    extra : int
        B, the packets that it holds beyond them, 0 to 1000, but at most one window.

    Raises
    ------
    InvalidValueError
        If a value is out of its range; a ValueError.

    References
    ----------
    Goel, Krasic, Li, Walpole, "Supporting Low-Latency TCP-Based Media Streams", IWQoS 2002. Sections 3 and 4 give the
    limit A cwnd + min(B, cwnd) + sacked_out.

    Examples
    --------
    >>> MinBuf(1, 3).limit(cwnd=10), MinBuf(1, 3).limit(cwnd=2), MinBuf(2, 0).limit(cwnd=10, sacked_out=4)
    (13, 4, 24)
    """
