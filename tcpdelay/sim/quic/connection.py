"""A simulated QUIC connection: the rules of its implementation, as data, and the records of its state.

Times are whole microseconds. A position counts the bytes of all messages in the order of their writes, so that a range
of positions is a part of a message, or of several on one stream. A stream has the number of its first message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.record_types import Array, Record, record_type
from tcpdelay.scenario.stack import QUIC_PACKETS, QuicImplementation, QuicPacket
from tcpdelay.sim.path import PathState, Transit, TransitRing
from tcpdelay.sim.records import BbrConnection, Snapshot, WrittenMessage
from tcpdelay.sim.tcp.constants import SECOND

# What differs between implementations: RFC 9002 by the letter, aioquic, quic-go and quinn.

WHOLE, PARTIAL, OVERSHOOT, FULL = range(4)
"""What a nearly full congestion window allows: a packet that fits, a packet cut to fit, one whole packet more, or a
packet of any size only if a full packet fits."""
ALWAYS, UNLESS_LIMITED, NEAR_WINDOW = range(3)
"""When the congestion window grows: at each ACK; unless the application limits the sender; if the flight is near it."""
BY_BYTES, BY_DATAGRAMS, BY_PACKETS = range(3)
"""How the window grows in congestion avoidance: with each acknowledged byte (RFC 9002, B.5), or by a whole datagram
when a window of bytes, or as many packets as the window has, have been acknowledged."""
PACKET_TOKENS, BYTE_TOKENS = range(2)
"""What the pacer counts: packets, whatever their size, or bytes."""


@dataclass(frozen=True)
class QuicRules(QuicPacket):
    """The rules and constants of an implementation; times in microseconds, sizes in bytes of UDP payload."""

    initial_window: int = 10  # Congestion window at the start [packets] (RFC 9002, 7.2)
    smallest_window: int = 2  # Smallest congestion window [packets] (RFC 9002, 7.2)
    loss_factor: float = 0.5  # Factor of the window at a loss (RFC 9002, 7.3.2)
    grows: int = UNLESS_LIMITED  # When the window grows: `ALWAYS`, `UNLESS_LIMITED` (RFC 9002, 7.8) or `NEAR_WINDOW`
    # `BY_BYTES`, `BY_DATAGRAMS` or `BY_PACKETS`; with `BY_PACKETS` the size of packets does not count in slow start
    # either. With whole datagrams, an ACK of a full packet allows exactly one full packet.
    growth: int = BY_BYTES
    # Whether the window grows with the packets of an ACK before the losses that this ACK shows reduce it
    grows_first: bool = False
    window_rule: int = WHOLE  # `WHOLE` (RFC 9002, 7), `PARTIAL`, `OVERSHOOT` or `FULL`
    pacer: int = BYTE_TOKENS  # `PACKET_TOKENS` or `BYTE_TOKENS`
    pacing_gain: float = 1.25  # Pacing rate relative to window / smoothed RTT (RFC 9002, 7.7)
    pacing_burst: int = 10  # Most packets of a burst
    pacing_pause: int = 0  # Shortest pause of the pacer [us]
    probes: int = 1  # Packets that each probe timeout sends (RFC 9002, 6.2.4)
    # Whether a probe carries the oldest data in flight, which count as lost; else it is a PING unless data wait
    probes_with_data: bool = True
    # Whether a probe timeout skips a packet number, so that the probe is acknowledged at once
    skips_at_probe: bool = False
    persistent_congestion: bool = True  # Whether long losses reduce the window to the smallest (RFC 9002, 7.6)
    # Whether the delay of the ACK is taken off the latest RTT too, by which packets are lost, and not only off the
    # sample for the smoothed RTT
    adjusts_latest: bool = False
    # Whether the RTT variation is the distance from the smallest RTT, and not from the smoothed RTT
    variation_from_smallest: bool = False
    ack_every: int = 2  # Number of packets that are acknowledged at once (RFC 9000, 13.2.2)
    acks_gaps: bool = True  # Whether a packet beside a gap is acknowledged at once (RFC 9000, 13.2.1)
    ack_delay: int | None = None  # Longest delay of an ACK [us]; by default `max_ack_delay` of the stack
    # What the receiver adds to `max_ack_delay` when it announces this delay to the sender [us]
    ack_granularity: int = 0
    # Whether the end of a stream is answered at once, with a new limit of streams and with an ACK
    acks_stream_ends: bool = False
    acks_together: bool = False  # Whether packets that arrive at the same instant are acknowledged by one ACK
    datagrams_per_packet: int = 16  # Most DATAGRAM frames of a packet
    lost_first: bool = True  # Whether a stream with lost data is served before the others
    # Longest write that the library takes at once [bytes]. A longer one returns when most of its data have been sent,
    # so that the end of a stream per message follows the last data in a packet of its own.
    buffered_write: int = 1 << 40

    def message_packets(self, size: int, datagrams: bool) -> tuple[int, int]:
        """Return how many packets with data and without data a message of a size [bytes] has, if it leaves at once.

        >>> IMPLEMENTATIONS["quic-go"].message_packets(3000, datagrams=False)
        (3, 1)
        """
        return math.ceil(size / self.payload), int(not datagrams and size > self.buffered_write)

    def settings(self, max_ack_delay: float) -> dict[str, float]:
        """Return the rules by the names of a connection's fields; `max_ack_delay` [s] is a setting of `Stack.quic`."""
        longest = round(max_ack_delay * SECOND)
        ack_delay = longest if self.ack_delay is None else self.ack_delay
        return {**asdict(self), "ack_delay": ack_delay, "max_ack_delay": longest + self.ack_granularity}


IMPLEMENTATIONS: Mapping[QuicImplementation, QuicRules] = {
    "rfc9002": QuicRules(**vars(QUIC_PACKETS["rfc9002"])),
    # quic/recovery.py, quic/connection.py and quic/congestion/reno.py of aioquic 1.7: the window also grows while the
    # application limits the sender, by a datagram per window of bytes (`_congestion_stash`; no loss resets it), the
    # pacer counts packets, and each ACK waits for a millisecond.
    "aioquic": QuicRules(
        **vars(QUIC_PACKETS["aioquic"]),
        grows=ALWAYS,
        growth=BY_DATAGRAMS,
        grows_first=True,
        window_rule=PARTIAL,
        pacer=PACKET_TOKENS,
        pacing_gain=1.0,
        pacing_burst=16,
        adjusts_latest=True,
        variation_from_smallest=True,
        ack_every=1 << 30,
        acks_gaps=False,
        ack_delay=1_000,
    ),
    # internal/ackhandler and internal/congestion of quic-go 0.59: Reno with a factor of 0.7, two probes, and the limit
    # of streams that the receiver raises, with an ACK, at the end of each stream (streams_map_incoming.go). It also
    # announces the granularity of its timers (internal/protocol/params.go, MaxAckDelayInclGranularity), processes all
    # packets that wait to be read before it sends an ACK (connection.go, handlePackets), and keeps a copy of writes up
    # to the size of a buffer (send_stream.go, canBufferStreamFrame, with MaxPacketBufferSize).
    "quic-go": QuicRules(
        **vars(QUIC_PACKETS["quic-go"]),
        initial_window=32,
        loss_factor=0.7,
        grows=NEAR_WINDOW,
        growth=BY_PACKETS,
        window_rule=OVERSHOOT,
        pacing_pause=1_000,
        probes=2,
        skips_at_probe=True,
        persistent_congestion=False,
        adjusts_latest=True,
        ack_granularity=1_000,
        acks_stream_ends=True,
        acks_together=True,
        datagrams_per_packet=1,
        lost_first=False,
        buffered_write=1452,
    ),
    # quinn-proto 0.11.14 with quinn 0.11.9: the ACK lets the window grow before its losses reduce it
    # (src/connection/mod.rs, on_ack_received), a packet of any size needs room for a full one (poll_transmit), a probe
    # is a PING unless data wait (src/connection/spaces.rs, maybe_queue_probe), and the driver takes all packets that
    # wait to be read before it sends. The initial window is 12 000 bytes.
    "quinn": QuicRules(
        **vars(QUIC_PACKETS["quinn"]),
        initial_window=8,
        growth=BY_DATAGRAMS,
        grows_first=True,
        window_rule=FULL,
        probes=2,
        probes_with_data=False,
        acks_together=True,
        lost_first=False,
    ),
}
"""The rules by implementation."""


# The state: a record of both ends, and the rings of packets, streams and messages.

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


class Settings(Record):
    """The scenario of a connection besides its path, and what is no whole number."""

    ack_loss: float
    loss_factor: float
    pacing_gain: float
    smoothed_rtt: float
    rtt_variation: float
    latest_rtt: float
    congestion_window: float
    slow_start_threshold: float
    window_before_loss: float  # By fast convergence it may be smaller than it was
    window_at_loss: float  # As it was, for CUBIC by the letter of RFC 9438
    cubic_k: float
    estimated_window: float
    tokens: float
    token_limit: float
    packet_time: float
    packet_size: int
    interval: int
    scheduled: int
    delivery: int
    group: int
    datagram_payload: int
    max_ack_delay: int


class SenderState(Record):
    """The state of a sender."""

    # Application
    now: int
    next_write: int
    packets_written: int
    written: int
    packets_read: int
    messages_known: int
    # Sender
    next_packet: int
    first_packet: int
    first_uncrossed: int
    in_flight: int
    eliciting: int  # Packets in flight
    last_sent: int
    waiting: int  # Bytes that wait to be sent, new or lost
    active_first: int
    active_next: int
    free_piece: int
    pieces_used: int
    # Recovery
    smallest_rtt: int
    loss_time: int
    probe_count: int
    largest_acknowledged: int
    recovery_start: int
    counted: int
    application_limited: int
    epoch: int
    last_acknowledged: int
    acknowledged_sent: int
    # Pacer
    tokens_at: int


class ReceiverState(Record):
    """The state of a receiver, and counts."""

    segments_sent: int  # For BBR
    # Receiver
    # Packets that have arrived; the rank of a packet in this order tells which ACK reports it
    received: int
    largest_received: int
    largest_received_at: int
    unacknowledged: int
    ack_due: int
    receiver_timer: int
    ranges: int
    completions: int  # Entries of the list `completed`
    # Acknowledgements
    first_ack: int
    next_ack: int
    # Counts
    packets_sent: int
    packets_lost: int
    declared_lost: int
    spurious_losses: int
    reductions: int
    probe_timeouts: int
    acks_sent: int
    acks_lost: int
    failed: int


class Connection(PathState, Settings, QuicRules, SenderState, BbrConnection, ReceiverState):
    """A connection: the path, the scenario, the implementation's rules, the state of both ends, and counts.

    A field that a connection of TCP has too (`tcpdelay.sim.records.Connection`) has the same name and meaning in both,
    because the kernels of the path and of the writes work on either.
    """

    ack_delay: int


class Transmission(Record):
    """A sent packet."""

    sent: int
    length: int
    state: int
    rank: int  # 0 before it arrives
    frames: int


class Packet(Transmission, Snapshot):
    """A sent packet with its frames, which are ranges of positions, each of a stream, and for BBR a snapshot."""

    start: Annotated[Array[int], FRAMES]
    end: Annotated[Array[int], FRAMES]
    stream: Annotated[Array[int], FRAMES]


class Stream(Record):
    """A stream."""

    unsent: int  # Position of its first unsent byte
    end: int  # Position of its end
    lost: int  # Its first lost piece
    active: int  # Whether it waits to send
    unread: int  # Its first message that is not read
    untransmitted: int  # Its first message whose end was never sent
    last: int  # Its last message


class Piece(Record):
    """A lost range of a stream. The ranges of a stream form a list, in the order of positions."""

    start: int
    end: int
    following: int


class Acknowledgement(Record):
    """An ACK."""

    arrival: int  # Its arrival at the sender
    rank: int  # Rank of the last packet that it reports
    largest: int  # Largest number among the packets that it reports
    delay: int  # How long it was delayed after the arrival of this packet


class Message(WrittenMessage):
    """A message, with more fields than those that `WriteSchedule` fills."""

    begins_group: int  # Whether it begins a group
    missing: int  # Its bytes that have not arrived (of datagrams)
    done: int  # Whether its delay is known


class WireRecord(TransitRing):
    """The rings of a connection: of its packets, its messages and their streams, its lost pieces."""

    packets: Annotated[Array[Packet], PACKETS]
    acknowledgements: Annotated[Array[Acknowledgement], PACKETS]
    transit: Annotated[Array[Transit], PACKETS]
    streams: Annotated[Array[Stream], KEPT]
    active: Annotated[Array[int], KEPT]
    pieces: Annotated[Array[Piece], PACKETS]
    range_start: Annotated[Array[int], PACKETS // 2]
    range_end: Annotated[Array[int], PACKETS // 2]
    messages: Annotated[Array[Message], KEPT]
    # Time of each message from its write to its read, and to the first transmission of its last byte [us]
    delays: Annotated[Array[int], (2, KEPT)]
    completed: Annotated[Array[int], KEPT]  # Messages whose delays have become known since the list was emptied


CONNECTION = record_type(Connection)
WIRE = record_type(WireRecord)


@kernel()
def packet_record(wire: WireRecord, number: int) -> Packet:
    """Return the record of the packet with a number."""
    return wire.packets[number & (wire.packets.shape[0] - 1)]


@kernel()
def stream_record(wire: WireRecord, number: int) -> Stream:
    """Return the record of the stream with a number."""
    return wire.streams[number & (wire.streams.shape[0] - 1)]


@kernel()
def is_backlogged(c: Connection, wire: WireRecord) -> bool:
    """Return whether more waits than a connection can keep: messages, packets in flight, or gaps at the receiver."""
    return bool(c.failed or c.packets_written - c.packets_read >= wire.messages.shape[0] // 2)
