"""The state of a simulated connection: its rules, record, segments and ACKs in transit, and timers.

As in the kernel, times are whole microseconds, positions in the stream are bytes, and windows are segments. A field
that the kernel has too has its name in the kernel's `struct tcp_sock`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tcpdelay.compiling.compilation import kernel, records
from tcpdelay.compiling.random_numbers import generator_addresses
from tcpdelay.compiling.record_types import Array, Record, record_type
from tcpdelay.declare import require_flag
from tcpdelay.sim.path import PathState, Transit, TransitRing
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.constants import NEVER


@dataclass(frozen=True, slots=True)
class Rules:
    """The kernel's rules. The simulation follows each of them unless it is set to False.

    Parameters
    ----------
    rack : bool
        RACK detects losses by time (RFC 8985). Without it, a segment is lost when three segments beyond it are SACKed
        (RFC 6675), and only the timeout repairs a lost retransmission (sysctl net.ipv4.tcp_recovery = 0, before Linux
        6.17).
    reordering_window : bool
        While fewer than three segments are SACKed, RACK waits a quarter of the smallest RTT for reordered segments.
    retransmissions_found_lost_by_rack : bool
        RACK detects lost retransmissions too. Without this rule only the timeout repairs them.
    proportional_reduction : bool
        A recovery sends in proportion to the delivered segments (RFC 6937). Without this rule it sends as much as the
        reduced window allows.
    application_limited_rule : bool
        The window grows only while it limits the sender (`tcp_is_cwnd_limited`).
    coalescing : bool
        Writes that wait in the send buffer share segments. Without this rule no segment holds bytes of two writes.
    ticks : bool
        Timers fire at ticks of the kernel's clock and timer wheel. Without this rule they fire exactly when due.
    tail_loss_probe : bool
        The sender sends a tail loss probe when no ACK arrives (RFC 8985).
    f_rto : bool
        The sender detects spurious timeouts (RFC 5682).
    collapsing : bool
        A retransmission includes the small lost segments that follow it (`tcp_retrans_try_collapse`).

    Raises
    ------
    ValueError
        If a value is neither True nor False.

    Examples
    --------
    >>> Rules(rack=False).switches()["rack"]
    0
    """

    rack: bool = True
    reordering_window: bool = True
    retransmissions_found_lost_by_rack: bool = True
    proportional_reduction: bool = True
    application_limited_rule: bool = True
    coalescing: bool = True
    ticks: bool = True
    tail_loss_probe: bool = True
    f_rto: bool = True
    collapsing: bool = True

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            require_flag(name, value)

    def switches(self) -> dict[str, int]:
        """Return the rules as fields of a connection: 1 if followed, else 0."""
        return {name: int(value) for name, value in asdict(self).items()}


OPEN, DISORDER, CWR, RECOVERY, LOSS = range(5)
"""States of congestion avoidance (linux/tcp.h, enum tcp_ca_state)."""
NO_TIMER, RETRANSMISSION_TIMER, PROBE_TIMER, REORDERING_TIMER = range(4)
SACKED, MARKED_LOST, RETRANSMITTED, EVER_RETRANSMITTED, COLLAPSED, FOUND_LOST = 1, 2, 4, 8, 16, 32
"""Flags of a segment in the retransmission queue (net/tcp.h, TCPCB_*); a collapsed segment is part of another."""
RING = 1 << 12
"""Capacity of the rings of segments and ACKs in transit."""
MASK = RING - 1
"""Number n of a ring is at index `n & MASK`."""
MESSAGES = 1 << 20
"""Number of messages between write and read that are kept."""
MOST_EVENTS = 100_000
"""Largest number of events in a packet trace."""
KEPT = 1 << 17
"""Number of packets whose delays are kept."""


class CongestionState(Record):
    """What BBR reads of a connection of TCP or QUIC, besides its own state.

    A connection of TCP declares these fields also under their subjects, which gives them their places there.
    """

    control: int
    tick: int
    tick_phase: int
    snd_cwnd: int
    snd_ssthresh: int
    ca_state: int
    packets_out: int
    sacked_out: int
    lost_out: int
    retrans_out: int
    delivered: int
    lost: int
    srtt: int
    min_rtt: int
    now: int
    mss: int


class BbrState(Record):
    """What BBR keeps of a connection."""

    # Pacing
    pacing_rate: int
    tcp_wstamp_ns: int
    pacing_at: int
    # Delivery rate
    first_tx_mstamp: int
    delivered_mstamp: int
    app_limited: int
    # Rate sample
    rs_prior_delivered: int
    rs_prior_mstamp: int
    rs_prior_in_flight: int
    rs_last_end_seq: int
    rs_app_limited: int
    rs_interval: int
    rs_delivered: int
    rs_acked: int
    rs_losses: int
    rs_rtt: int
    rs_ack_delayed: int
    # BBR
    bbr_mode: int
    bbr_pacing_gain: int
    bbr_cwnd_gain: int
    bbr_prior_cwnd: int
    bbr_prev_ca_state: int
    bbr_packet_conservation: int
    bbr_idle_restart: int
    bbr_has_seen_rtt: int
    bbr_full_bw: int
    bbr_full_bw_cnt: int
    bbr_full_bw_reached: int
    bbr_cycle_idx: int
    bbr_cycle_mstamp: int
    # BBR's rounds
    bbr_rtt_cnt: int
    bbr_round_start: int
    bbr_next_rtt_delivered: int
    # BBR's bandwidth
    bbr_bw: int
    bbr_bw2: int
    bbr_bw3: int
    bbr_bw_round: int
    bbr_bw2_round: int
    bbr_bw3_round: int
    # BBR's round-trip time
    bbr_min_rtt: int
    bbr_min_rtt_stamp: int
    bbr_probe_rtt_done_stamp: int
    bbr_probe_rtt_round_done: int
    # BBR's aggregation
    bbr_extra_acked: int
    bbr_earlier_extra_acked: int
    bbr_extra_acked_rounds: int
    bbr_ack_epoch_mstamp: int
    bbr_ack_epoch_acked: int
    # BBR's policer
    bbr_lt_bw: int
    bbr_lt_use_bw: int
    bbr_lt_is_sampling: int
    bbr_lt_rtt_cnt: int
    bbr_lt_last_stamp: int
    bbr_lt_last_delivered: int
    bbr_lt_last_lost: int


class BbrConnection(BbrState, CongestionState):
    """A connection of TCP or QUIC, as BBR sees it."""


class Settings(Record):
    """The scenario of a connection of TCP, besides its path."""

    ack_loss: float
    packet_size: int
    interval: int
    mss: int
    tick: int
    tick_phase: int
    rto_min: int
    rto_max: int
    control: int  # Number of the congestion control
    window_validation: int
    delayed_ack: int
    delack_max: int
    compression_delay: int
    exact_ties: int
    leaping: int
    deferred: int
    tracing: int
    host_delay: int
    scheduled: int


class SenderState(Record):
    """The state of a sender of TCP."""

    # Application
    now: int
    next_write: int
    packets_written: int
    written: int
    packets_read: int
    packets_sent: int
    messages_known: int
    answered: int  # Whether each message waits until the message before it is read
    last_read: int
    # Send buffer
    # Its size [bytes], or 0 for no limit; only the messages of a `WriteSchedule` heed it
    send_buffer: int
    drops_when_full: int
    write_blocked: int
    bytes_dropped: int
    # Stream
    snd_una: int
    snd_nxt: int
    first_segment: int
    next_segment: int
    # Window
    snd_cwnd: int
    snd_ssthresh: int
    snd_cwnd_cnt: int
    is_cwnd_limited: int
    max_packets_out: int
    cwnd_usage_seq: int
    snd_cwnd_used: int
    snd_cwnd_stamp: int
    last_send: int
    # Scoreboard
    ca_state: int
    high_seq: int
    packets_out: int
    sacked_out: int
    lost_out: int
    retrans_out: int
    delivered: int
    lost: int
    prior_cwnd: int
    prior_ssthresh: int
    prr_delivered: int
    prr_out: int
    highest_sacked: int
    # Undo
    undo_marker: int
    undo_retrans: int
    retrans_stamp: int
    # RACK
    rack_mstamp: int
    rack_end_seq: int
    rack_rtt: int
    rack_advanced: int
    # Reordering
    reord: int
    reord_seen: int
    reordering_distance: int
    dsack_dups: int
    delivered_at_sending: int
    rack_dsack_seen: int
    rack_last_delivered: int
    reo_wnd_steps: int
    reo_wnd_persist: int
    # Estimator
    srtt: int
    mdev: int
    mdev_max: int
    rttvar: int
    rtt_seq: int
    min_rtt: int
    rto: int
    retransmits: int
    # Timer
    timer_kind: int
    timer_at: int
    tlp_high_seq: int
    tlp_retrans: int
    frto: int
    # Marks
    ce_state: int
    ack_now: int
    cwr_segment: int


class ReceiverState(Record):
    """The state of ACKs in transit and of a receiver of TCP, and counts of events."""

    # Acknowledgements
    first_ack: int
    next_ack: int
    last_ack_arrival: int
    # Receiver
    rcv_nxt: int
    rcv_segment: int
    arrivals: int
    out_of_order: int
    rcv_wup: int
    ts_recent: int
    unreported: int
    receiver_timer: int
    delayed_ack_at: int
    delayed_ack_timeout: int
    read_at: int
    merging_at: int
    compressed_at: int
    compressed_rcv_nxt: int
    dup_ack_counter: int
    rcv_mss: int
    last_seg_size: int
    pushed: int
    quick: int
    ato: int
    lrcvtime: int
    receiver_rto: int
    rcv_room: int
    # Counts
    segments_sent: int
    segments_lost: int
    segments_retransmitted: int
    recoveries: int
    timeouts: int
    probes: int
    reordering_timeouts: int
    undone: int
    paws_discards: int
    acks_sent: int
    acks_lost: int
    skipped: int
    events: int


class Connection(PathState, Settings, Rules, SenderState, BbrConnection, ReceiverState):
    """A connection of TCP: the path, the scenario, the state of sender and receiver, and counts of events."""


class Segment(Record):
    """A segment from its first transmission until it is acknowledged."""

    start: int
    end: int
    sent: int  # Time of the last transmission
    gone: int  # Time at which this copy left the network
    delivered: int  # Count of delivered segments when this copy was sent
    state: int  # Flags of the retransmission queue
    received: int  # Rank in the order of arrival, from 1, or 0 before it arrives


class Snapshot(Record):
    """The state of delivery when a segment was sent last: the start of its rate sample (`struct tcp_skb_cb`, tx)."""

    first_tx_mstamp: int
    delivered_mstamp: int
    delivered: int
    app_limited: int


class Acknowledgement(Record):
    """An ACK."""

    arrival: int  # Time at which it reaches the sender
    acknowledged: int  # End of the stream that it acknowledges
    segment: int  # Number of the segment that it reports
    arrivals: int  # Count of segments that have arrived
    duplicate: int  # Number of a segment that has arrived twice
    echo: int  # Echoed timestamp


class Event(Record):
    """An event of the packet trace."""

    time: int
    kind: int
    start: int
    end: int
    cwnd: int
    in_flight: int


class WrittenMessage(Record):
    """A message of a source."""

    written: int  # Time of its write [us]
    end: int  # Position in the stream at which it ends [bytes]
    held: int  # How much the send buffer holds when it has taken the message [bytes]


class WireRecord(TransitRing):
    """The segments and ACKs in transit, the delays, the messages, and the packet trace of a connection.

    All are in one record, because compiled code would count references to separate arrays.
    """

    segments: Annotated[Array[Segment], RING]
    snapshots: Annotated[Array[Snapshot], RING]  # Only BBR uses this ring
    acknowledgements: Annotated[Array[Acknowledgement], RING]
    transit: Annotated[Array[Transit], RING]  # Used only where arrivals are deferred
    # By packet, at its number modulo `KEPT`: the time from write to read, and from write to first transmission [us],
    # and `held` of its message
    delays: Annotated[Array[int], (3, KEPT)]
    messages: Annotated[Array[WrittenMessage], MESSAGES]  # Ring of a source whose rate is not constant
    events: Annotated[Array[Event], MOST_EVENTS]


WIRE = record_type(WireRecord)
Rings = TypeVar("Rings", bound=Record)


class Wire(Generic[Rings]):
    """The record of a connection's segments and delays, of type `kind`, and the generator that draws its losses."""

    def __init__(self, random: np.random.Generator, kind: np.dtype[np.void]) -> None:
        self.random = random
        self.record: Rings = records(1, kind)[0]
        self.record["next_double"], self.record["random_state"] = generator_addresses(random)
        self.messages: NDArray[np.void] = self.record["messages"].view(np.ndarray)

    @property
    def delays(self) -> NDArray[np.int64]:
        """The record's delays [us] and its bytes in the send buffer, shape (3, KEPT)."""
        return np.asarray(self.record["delays"])

    def delays_of(self, first: int, packets: int) -> NDArray[np.int64]:
        """Return a copy of the `delays` of packets from number `first` on, shape (3, packets)."""
        return np.take(self.delays, np.arange(first, first + packets), axis=1, mode="wrap")


@kernel()
def in_flight(c: CongestionState) -> int:
    """Return the sender's estimate of the number of segments in the network (`tcp_packets_in_flight`)."""
    return int(c.packets_out - c.sacked_out - c.lost_out + c.retrans_out)


@kernel()
def in_reduction(c: CongestionState) -> bool:
    """Return whether a proportional reduction of the window is in progress (`tcp_in_cwnd_reduction`)."""
    return bool(c.ca_state == CWR or c.ca_state == RECOVERY)


wheel_expiry = kernel()(tcp.wheel_expiry)
_to_ticks = kernel()(tcp.to_ticks)


@kernel()
def ticks_now(c: CongestionState) -> int:
    """Return the current tick (`jiffies`)."""
    return ticks_at(c, c.now)


@kernel()
def ticks_at(c: CongestionState, time: int) -> int:
    """Return the tick at a time [us]."""
    return int((time + c.tick_phase) // c.tick)


@kernel()
def to_ticks(c: CongestionState, duration: int) -> int:
    """Return a duration [us] in ticks, rounded up (`usecs_to_jiffies`)."""
    return int(_to_ticks(duration, c.tick))


@kernel()
def fires_at(c: Connection, now: int, ticks: int) -> int:
    """Return the time [us] at which a timer fires that is set for `ticks` after the tick `now`."""
    return int((wheel_expiry(now, ticks) if c.ticks else now + ticks) * c.tick - c.tick_phase)


@kernel()
def set_timer(c: Connection, kind: int, ticks: int) -> None:
    """Set the sender's timer, which has one kind at a time, to fire after a number of ticks."""
    c.timer_kind = kind
    c.timer_at = fires_at(c, ticks_now(c), min(ticks, c.rto_max))


@kernel()
def clear_timer(c: Connection) -> None:
    """Stop the sender's timer."""
    c.timer_kind = NO_TIMER
    c.timer_at = NEVER
