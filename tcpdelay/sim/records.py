"""The simulator's state: one record per connection, and the segments and acknowledgements under way.

Times are whole microseconds, as in the kernel, positions in the stream bytes, windows segments. Names follow the
kernel's `struct tcp_sock` where the field is the kernel's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.sim.uniform import generator_addresses

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
    "delayed_ack jitter exact_ties leaping deferred tracing host_delay",
    "rules": "rack reordering_window retransmissions_found_lost_by_rack proportional_reduction "
    "application_limited_rule coalescing ticks tail_loss_probe f_rto collapsing",
    "application": "now next_write packets_written written packets_read packets_sent",
    "stream": "snd_una snd_nxt first_segment next_segment",
    "window": "snd_cwnd snd_ssthresh snd_cwnd_cnt is_cwnd_limited max_packets_out cwnd_usage_seq snd_cwnd_used "
    "snd_cwnd_stamp last_send",
    "scoreboard": "ca_state high_seq packets_out sacked_out lost_out retrans_out delivered lost "
    "prior_cwnd prior_ssthresh prr_delivered prr_out highest_sacked",
    "undo": "undo_marker undo_retrans retrans_stamp",
    "rack": "rack_mstamp rack_end_seq rack_rtt rack_advanced",
    "reordering": "reord_seen dsack_dups delivered_at_sending rack_dsack_seen rack_last_delivered reo_wnd_steps "
    "reo_wnd_persist",
    "estimator": "srtt mdev mdev_max rttvar rtt_seq min_rtt rto retransmits",
    "timer": "timer_kind timer_at tlp_high_seq tlp_retrans frto",
    "cubic": "cubic_cnt cubic_last_max cubic_last_cwnd cubic_last_time cubic_origin cubic_k cubic_epoch "
    "cubic_ack_cnt cubic_tcp_cwnd",
    "hystart": "hystart_found hystart_delay_min hystart_round_start hystart_last_ack hystart_end_seq hystart_curr_rtt "
    "hystart_samples",
    "path": "first_ack next_ack last_ack_arrival first_transit next_transit until_loss in_burst",
    "receiver": "rcv_nxt rcv_segment arrivals out_of_order rcv_wup ts_recent unreported receiver_timer delayed_ack_at "
    "delayed_ack_timeout read_at compressed_at compressed_rcv_nxt dup_ack_counter rcv_mss last_seg_size pushed quick "
    "ato lrcvtime receiver_rto",
    "counts": "segments_sent segments_lost segments_retransmitted recoveries timeouts probes reordering_timeouts "
    "undone acks_sent acks_lost skipped events",
}
CONNECTION = np.dtype(
    [(name, np.float64) for name in ("loss", "loss_burst", "ack_loss")]
    + [(name, np.int64) for names in _GROUPS.values() for name in names.split()]
)
"""A connection: the scenario, then sender, receiver and what has been counted."""
SEGMENT = np.dtype([(name, np.int64) for name in ("start", "end", "sent", "gone", "delivered", "flags", "received")])
"""A segment from its first transmission until it is acknowledged.

`gone` is when its last copy left the network, `delivered` how many had been delivered when that was sent, `received`
its place in the order of arrivals, from one on.
"""
ACKNOWLEDGEMENT = np.dtype(
    [(name, np.int64) for name in ("arrival", "acknowledged", "segment", "arrivals", "duplicate", "echo")]
)
"""An acknowledgement: when it reaches the sender, up to where it acknowledges, the segment that it reports, how many
had arrived, a segment that arrived twice, and when the segment was sent whose timestamp it echoes."""

TRANSIT = np.dtype([(name, np.int64) for name in ("arrival", "segment", "following", "sent")])
"""A segment in the network: when it arrives, its number, the one after the last that it carries, when it was sent."""
EVENT = np.dtype([(name, np.int64) for name in ("time", "kind", "start", "end", "cwnd", "in_flight")])
"""An event of the packet trace."""
MOST_EVENTS = 100_000
"""Events that a trace holds at most."""
KEPT = 1 << 17
"""Packets whose delays are kept."""
WIRE = np.dtype(
    [
        ("segments", SEGMENT, RING),
        ("acknowledgements", ACKNOWLEDGEMENT, RING),
        ("transit", TRANSIT, RING),
        ("delays", np.int64, (2, KEPT)),
        ("events", EVENT, MOST_EVENTS),
        ("next_double", np.int64),
        ("random_state", np.int64),
    ]
)
"""What the compiled functions need beside the connection, in one record, as they would count references to arrays.

Number n of `segments`, `acknowledgements` and `transit`, rings of what is under way, stands at n modulo `RING`; only
deferred arrivals are in transit. `delays` has of each packet, at its number modulo `KEPT`, the time from write to read
and that from write to first transmission [us]. `events` is the packet trace. The last two are addresses, for
`tcpdelay.sim.uniform`.
"""


class Wire:
    """The record of type `WIRE` of a connection, and the generator that it draws from.

    Parameters
    ----------
    random : Generator
        Where losses are drawn from.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.record: Any = np.zeros(1, WIRE).view(np.recarray)[0]
        self.record.next_double, self.record.random_state = generator_addresses(random)

    @property
    def delays(self) -> NDArray[np.int64]:
        """The record's delays [us], shape (2, KEPT)."""
        return np.asarray(self.record.delays)

    def delays_of(self, first: int, packets: int) -> NDArray[np.int64]:
        """Return a copy of the delays [us] of so many packets from the packet `first` on, shape (2, packets).

        Examples
        --------
        >>> wire = Wire(np.random.default_rng(1))
        >>> wire.delays[0] = np.arange(KEPT)
        >>> wire.delays_of(KEPT - 2, 4)[0]
        array([131070, 131071,      0,      1])
        """
        place = first % KEPT
        ahead = self.delays[:, place : place + packets]
        return np.concatenate((ahead, self.delays[:, : packets - ahead.shape[1]]), axis=1)
