"""The state of a simulated QUIC connection: a record of both ends, and the rings of packets, streams and messages.

Times are whole microseconds. A position counts the bytes of all messages in the order of their writes, so that a range
of positions is a part of a message, or of several on one stream. A stream has the number of its first message.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.quic.implementations import QuicRules
from tcpdelay.sim.records import BBR_GROUPS, JITTER_FIELDS, JITTER_TABLE, LOSS_FIELDS, SNAPSHOT, TRANSIT

FRAMES = 16
"""Most frames of a packet: one of a stream for each message of 64 bytes or more."""
PACKETS, KEPT = 1 << 14, 1 << 17
"""How many packets and ACKs in transit a connection keeps, and how many messages with their streams and delays."""
IN_FLIGHT, ACKNOWLEDGED, LOST = range(3)
"""States of a sent packet."""
ONE_STREAM, GROUPS, DATAGRAMS = range(3)
"""How messages travel; each on a stream of its own is a group of one."""
NONE = -1
"""No piece."""
NEVER_ARRIVES = -1
"""Rank of a packet that the path drops."""
NEVER_READ = 1 << 40
"""Delay of a datagram that is lost [us]; a million of them can be added."""

_FLOATS = (
    *LOSS_FIELDS,
    *JITTER_FIELDS,
    *("ack_loss", "reordering", "loss_factor", "pacing_gain", "smoothed_rtt", "rtt_variation", "latest_rtt"),
    *("congestion_window", "slow_start_threshold", "window_before_loss", "cubic_k", "estimated_window"),
    *("tokens", "token_limit", "packet_time"),
)
_GROUPS = {
    "scenario": "packet_size interval mss one_way_delay jitter tabled in_order rtt correlated byte_queue until_loss "
    "state_time in_burst loss_round_end rest_lost scheduled delivery group cubic datagram_payload max_ack_delay",
    "rules": " ".join(rule.name for rule in fields(QuicRules) if rule.name not in _FLOATS),
    "application": "now next_write packets_written written packets_read messages_known",
    "sender": "next_packet first_packet first_uncrossed in_flight eliciting last_sent waiting active_first "
    "active_next free_piece pieces_used",
    "recovery": "smallest_rtt loss_time probe_count largest_acknowledged recovery_start counted "
    "application_limited epoch last_acknowledged acknowledged_sent",
    "pacer": "tokens_at",
    **BBR_GROUPS,
    "bbr's view of the connection": "bbr tick tick_phase snd_cwnd snd_ssthresh ca_state packets_out sacked_out "
    "lost_out retrans_out delivered lost srtt min_rtt segments_sent",
    "path": "first_transit next_transit last_arrival",
    "receiver": "received largest_received largest_received_at unacknowledged ack_due receiver_timer ranges "
    "completions",
    "acknowledgements": "first_ack next_ack",
    "counts": "packets_sent packets_lost declared_lost spurious_losses reductions probe_timeouts acks_sent "
    "acks_lost failed",
}
CONNECTION = np.dtype(
    [(name, np.float64) for name in _FLOATS]
    + [(name, np.int64) for names in _GROUPS.values() for name in names.split()]
)
"""A connection: the scenario, the implementation's rules, the state of both ends, and counts.

A field that the record of a TCP connection has too (`sim.records.CONNECTION`) has the same name and
meaning in both, because the kernels of the path and of the writes work on either. `waiting` is the number of bytes that
wait to be sent, new or lost; `eliciting` the number of packets in flight. `completions` counts the entries of the list
`completed`. `received` counts the packets that have arrived; a packet's rank in this order tells which ACK reports it.
"""
PACKET = np.dtype(
    [
        *((name, np.int64) for name in ("sent", "length", "state", "rank", "frames")),
        *((name, np.int64) for name in SNAPSHOT.names or ()),
        ("start", np.int64, FRAMES),
        ("end", np.int64, FRAMES),
        ("stream", np.int64, FRAMES),
    ]
)
"""A sent packet: its frames are ranges of positions, each of a stream. `rank` is 0 before it arrives. For BBR it also
has the state of delivery when it was sent."""
STREAM = np.dtype([(name, np.int64) for name in ("unsent", "end", "lost", "active", "unread", "untransmitted", "last")])
"""A stream: the position of its first unsent byte and of its end, its first lost piece, whether it waits to send, its
first message that is not read, its first whose end was never sent, and its last message."""
PIECE = np.dtype([(name, np.int64) for name in ("start", "end", "following")])
"""A lost range of a stream. The ranges of a stream form a list, in the order of positions."""
ACKNOWLEDGEMENT = np.dtype([(name, np.int64) for name in ("arrival", "rank", "largest", "delay")])
"""An ACK: its arrival at the sender, the rank of the last packet that it reports, the largest number among these, and
how long it was delayed after the arrival of this one."""
WRITTEN_MESSAGE = np.dtype([(name, np.int64) for name in ("written", "end", "held", "begins_group", "missing", "done")])
"""A message: the fields that `WriteSchedule` fills, whether it begins a group, its bytes that have not arrived (of
datagrams), and whether its delay is known."""


def wire_type(packets: int, messages: int) -> np.dtype[Any]:
    """Return the type of the rings of a connection: of its packets, its messages and their streams, its lost pieces.

    `delays` has the time of each message from its write to its read, and to the first transmission of its last byte
    [us]. `completed` lists the messages whose delays have become known since the list was emptied.
    """
    return np.dtype(
        [
            ("packets", PACKET, packets),
            ("acknowledgements", ACKNOWLEDGEMENT, packets),
            ("transit", TRANSIT, packets),
            ("streams", STREAM, messages),
            ("active", np.int64, messages),
            ("pieces", PIECE, packets),
            ("range_start", np.int64, packets // 2),
            ("range_end", np.int64, packets // 2),
            ("messages", WRITTEN_MESSAGE, messages),
            ("delays", np.int64, (2, messages)),
            ("completed", np.int64, messages),
            JITTER_TABLE,
            ("next_double", np.int64),
            ("random_state", np.int64),
        ]
    )


@kernel()
def packet_record(wire: Any, number: int) -> Any:
    """Return the record of the packet with a number."""
    return wire.packets[number & (wire.packets.shape[0] - 1)]


@kernel()
def stream_record(wire: Any, number: int) -> Any:
    """Return the record of the stream with a number."""
    return wire.streams[number & (wire.streams.shape[0] - 1)]


@kernel()
def is_backlogged(c: Any, wire: Any) -> bool:
    """Return whether more waits than a connection can keep: messages, packets in flight, or gaps at the receiver."""
    return bool(c.failed or c.packets_written - c.packets_read >= wire.messages.shape[0] // 2)
