"""The simulator's state: one record per connection, and the segments and acknowledgements under way.

Times are whole microseconds, as in the kernel, positions in the stream bytes, windows segments. Names follow the
kernel's `struct tcp_sock` where the field is the kernel's own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

OPEN, DISORDER, CWR, RECOVERY, LOSS = range(5)
"""States of congestion avoidance (linux/tcp.h, enum tcp_ca_state)."""
NO_TIMER, RETRANSMISSION_TIMER, PROBE_TIMER, REORDERING_TIMER = range(4)
SACKED, MARKED_LOST, RETRANSMITTED, EVER_RETRANSMITTED, COLLAPSED = 1, 2, 4, 8, 16
"""Flags of a segment in the retransmission queue (net/tcp.h, TCPCB_*); a collapsed one is part of the one before."""
NEVER = 1 << 62
RING = 1 << 12
"""Segments and acknowledgements under way that there is room for."""
INFINITE_SSTHRESH = 0x7FFFFFFF

_GROUPS = {
    "scenario": "packet_size interval mss one_way_delay rtt tick tick_phase rto_min cubic window_validation "
    "reordering_window proportional_reduction leaping",
    "application": "now next_write packets_written written packets_read packets_sent",
    "stream": "snd_una snd_nxt first_segment next_segment",
    "window": "snd_cwnd snd_ssthresh snd_cwnd_cnt is_cwnd_limited max_packets_out cwnd_usage_seq snd_cwnd_used "
    "snd_cwnd_stamp last_send",
    "scoreboard": "ca_state high_seq packets_out sacked_out lost_out retrans_out delivered lost "
    "prior_cwnd prr_delivered prr_out undo_marker",
    "rack": "rack_mstamp rack_end_seq rack_rtt rack_advanced",
    "estimator": "srtt mdev mdev_max rttvar rtt_seq min_rtt rto retransmits",
    "timer": "timer_kind timer_at tlp_high_seq frto",
    "cubic": "cubic_cnt cubic_last_max cubic_last_cwnd cubic_last_time cubic_origin cubic_k cubic_epoch "
    "cubic_ack_cnt cubic_tcp_cwnd",
    "path": "rcv_nxt rcv_segment first_ack next_ack until_loss in_burst",
    "counts": "segments_sent segments_lost segments_retransmitted recoveries timeouts probes reordering_timeouts "
    "skipped",
}
CONNECTION = np.dtype(
    [("loss", np.float64), ("loss_burst", np.float64)]
    + [(name, np.int64) for names in _GROUPS.values() for name in names.split()]
)
"""A connection: the scenario, then sender, receiver and what has been counted."""
SEGMENT = np.dtype([(name, np.int64) for name in ("start", "end", "sent", "gone", "flags", "received")])
"""A segment from its first transmission until it is acknowledged; `gone` is when its last copy left the network."""
ACKNOWLEDGEMENT = np.dtype([(name, np.int64) for name in ("arrival", "acknowledged", "segment")])
"""An acknowledgement: when it reaches the sender, up to where it acknowledges, and the segment that it answers."""


class Wire(NamedTuple):
    """What the compiled functions need beside the connection.

    Attributes
    ----------
    segments, acknowledgements : record arrays, shape (RING,)
        Rings of what is under way; number n stands at n modulo `RING`.
    delays : int64 array, shape (2, n)
        Of each packet, at its number modulo n: from write to read, and from write to first transmission [us].
    random : Generator
        Where losses are drawn from.
    """

    segments: NDArray[np.void]
    acknowledgements: NDArray[np.void]
    delays: NDArray[np.int64]
    random: np.random.Generator
