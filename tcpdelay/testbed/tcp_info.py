"""The kernel's own account of a connection: the socket option TCP_INFO, and what waits in the send buffer."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import NamedTuple

SIOCOUTQ = 0x5411
LOSS_STATE = 4
"""Value of the congestion avoidance state during a retransmission timeout (linux/tcp.h, TCP_CA_Loss)."""

# struct tcp_info of linux/tcp.h up to tcpi_snd_wnd, as of Linux 5.4 and later.
_LAYOUT = struct.Struct("=8B 24I 4Q 6I 4Q 2I 2Q 4I")
_FIELDS = [
    *("state", "ca_state", "retransmits", "probes", "backoff", "options", "wscale", "app_limited"),
    *("rto", "ato", "snd_mss", "rcv_mss", "unacked", "sacked", "lost", "retrans", "fackets"),
    *("last_data_sent", "last_ack_sent", "last_data_recv", "last_ack_recv"),
    *("pmtu", "rcv_ssthresh", "rtt", "rttvar", "snd_ssthresh", "snd_cwnd", "advmss", "reordering"),
    *("rcv_rtt", "rcv_space", "total_retrans"),
    *("pacing_rate", "max_pacing_rate", "bytes_acked", "bytes_received"),
    *("segs_out", "segs_in", "notsent_bytes", "min_rtt", "data_segs_in", "data_segs_out"),
    *("delivery_rate", "busy_time", "rwnd_limited", "sndbuf_limited", "delivered", "delivered_ce"),
    *("bytes_sent", "bytes_retrans", "dsack_dups", "reord_seen", "rcv_ooopack", "snd_wnd"),
]


class TcpInfo(NamedTuple):
    """The fields of TCP_INFO that a capture keeps; times in us, windows in segments, the rest in counts."""

    ca_state: int
    backoff: int
    snd_cwnd: int
    snd_ssthresh: int
    unacked: int
    rtt: int
    rttvar: int
    rto: int
    total_retrans: int
    reordering: int
    notsent_bytes: int
    delivered: int
    delivery_rate: int
    dsack_dups: int
    reord_seen: int
    data_segs_out: int
    snd_mss: int


_POSITIONS = [_FIELDS.index(field) for field in TcpInfo._fields]


def tcp_info(connection: socket.socket) -> TcpInfo:
    """Return what the kernel knows about a TCP connection.

    Parameters
    ----------
    connection : socket
        A TCP socket, of Linux 5.4 or later.

    Returns
    -------
    TcpInfo
        The connection's state now.

    Examples
    --------
    >>> with socket.create_server(("127.0.0.1", 0)) as listener:
    ...     with socket.create_connection(listener.getsockname()) as connection:
    ...         info = tcp_info(connection)
    >>> info.total_retrans, info.snd_cwnd
    (0, 10)
    """
    values = _LAYOUT.unpack_from(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAYOUT.size))
    return TcpInfo(*[values[position] for position in _POSITIONS])


def unacknowledged_bytes(connection: socket.socket) -> int:
    """Return the bytes in the send buffer that are not acknowledged yet, sent or not (ioctl SIOCOUTQ, tcp(7))."""
    answer = fcntl.ioctl(connection.fileno(), SIOCOUTQ, bytes(4))
    return int.from_bytes(answer, "little")
