"""The state of a simulated connection: its rules, record, segments and ACKs in transit, timers, and writes.

As in the kernel, times are whole microseconds, positions in the stream are bytes, and windows are segments. A field
that the kernel has too has its name in the kernel's `struct tcp_sock`.

Random numbers come from a NumPy generator. Compiled code calls the generator's C function by its address: a generator
as an argument would need a reference count at each call, which takes longer than most kernels of the simulator.
"""

from __future__ import annotations

import ctypes
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic
from numpy.typing import NDArray

from tcpdelay.compiling.compilation import kernel, records
from tcpdelay.declare import require_flag
from tcpdelay.scenario.jitter import TABLE_SIZE
from tcpdelay.scenario.source import MESSAGE, Source
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.constants import SECOND


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


def generator_addresses(random: np.random.Generator) -> tuple[int, int]:
    """Return the addresses of the C function that draws a uniform number, and of its argument, the generator's state.

    The addresses are valid as long as the generator exists.
    """
    interface = random.bit_generator.ctypes
    return int(ctypes.cast(interface.next_double, ctypes.c_void_p).value or 0), int(interface.state_address)


def _type_call(typing_context: Any, function: Any, argument: Any) -> Any:
    """Call a function of type double (*)(void *)."""

    def generate(context: Any, builder: Any, signature: Any, addresses: Any) -> Any:
        function_type = ir.FunctionType(ir.DoubleType(), [cgutils.voidptr_t])
        function = builder.inttoptr(addresses[0], function_type.as_pointer())
        return builder.call(function, [builder.inttoptr(addresses[1], cgutils.voidptr_t)])

    return types.float64(types.int64, types.int64), generate


def _call_in_python(function: int, argument: int) -> float:
    """Call the function from Python, where NUMBA_DISABLE_JIT=1 is set."""
    return float(ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)(int(function))(int(argument)))


_call: Any = _call_in_python if config.DISABLE_JIT else intrinsic(_type_call)  # type: ignore[attr-defined]


@kernel()
def uniform(next_double: int, state: int) -> float:
    """Return the generator's next number, uniformly distributed from 0 to below 1, as `Generator.random` does."""
    return float(_call(next_double, state))


OPEN, DISORDER, CWR, RECOVERY, LOSS = range(5)
"""States of congestion avoidance (linux/tcp.h, enum tcp_ca_state)."""
NO_TIMER, RETRANSMISSION_TIMER, PROBE_TIMER, REORDERING_TIMER = range(4)
SACKED, MARKED_LOST, RETRANSMITTED, EVER_RETRANSMITTED, COLLAPSED, FOUND_LOST = 1, 2, 4, 8, 16, 32
"""Flags of a segment in the retransmission queue (net/tcp.h, TCPCB_*); a collapsed segment is part of another."""
NEVER = 1 << 62
"""Time of an event that is not scheduled."""
RING = 1 << 12
"""Capacity of the rings of segments and ACKs in transit."""
MASK = RING - 1
"""Number n of a ring is at index `n & MASK`."""

BBR_GROUPS = {
    "pacing": "pacing_rate tcp_wstamp_ns pacing_at",
    "delivery rate": "first_tx_mstamp delivered_mstamp app_limited",
    "rate sample": "rs_prior_delivered rs_prior_mstamp rs_prior_in_flight rs_last_end_seq rs_app_limited rs_interval "
    "rs_delivered rs_acked rs_losses rs_rtt rs_ack_delayed",
    "bbr": "bbr_mode bbr_pacing_gain bbr_cwnd_gain bbr_prior_cwnd bbr_prev_ca_state bbr_packet_conservation "
    "bbr_idle_restart bbr_has_seen_rtt bbr_full_bw bbr_full_bw_cnt bbr_full_bw_reached bbr_cycle_idx bbr_cycle_mstamp",
    "bbr's rounds": "bbr_rtt_cnt bbr_round_start bbr_next_rtt_delivered",
    "bbr's bandwidth": "bbr_bw bbr_bw2 bbr_bw3 bbr_bw_round bbr_bw2_round bbr_bw3_round",
    "bbr's round-trip time": "bbr_min_rtt bbr_min_rtt_stamp bbr_probe_rtt_done_stamp bbr_probe_rtt_round_done",
    "bbr's aggregation": "bbr_extra_acked bbr_earlier_extra_acked bbr_extra_acked_rounds bbr_ack_epoch_mstamp "
    "bbr_ack_epoch_acked",
    "bbr's policer": "bbr_lt_bw bbr_lt_use_bw bbr_lt_is_sampling bbr_lt_rtt_cnt bbr_lt_last_stamp "
    "bbr_lt_last_delivered bbr_lt_last_lost",
}
"""What BBR keeps of a connection, by subject; a connection of QUIC has these fields too."""
_GROUPS = {
    "scenario": "packet_size interval mss one_way_delay rtt tick tick_phase rto_min rto_max cubic window_validation "
    "delayed_ack delack_max compression_delay jitter tabled in_order exact_ties leaping deferred tracing host_delay "
    "bbr scheduled correlated byte_queue",
    "rules": " ".join(rule.name for rule in fields(Rules)),
    "application": "now next_write packets_written written packets_read packets_sent messages_known answered last_read",
    "send buffer": "send_buffer drops_when_full write_blocked bytes_dropped",
    "stream": "snd_una snd_nxt first_segment next_segment",
    "window": "snd_cwnd snd_ssthresh snd_cwnd_cnt is_cwnd_limited max_packets_out cwnd_usage_seq snd_cwnd_used "
    "snd_cwnd_stamp last_send",
    "scoreboard": "ca_state high_seq packets_out sacked_out lost_out retrans_out delivered lost "
    "prior_cwnd prior_ssthresh prr_delivered prr_out highest_sacked",
    "undo": "undo_marker undo_retrans retrans_stamp",
    "rack": "rack_mstamp rack_end_seq rack_rtt rack_advanced",
    "reordering": "reord reord_seen reordering_distance dsack_dups delivered_at_sending rack_dsack_seen "
    "rack_last_delivered reo_wnd_steps reo_wnd_persist",
    "estimator": "srtt mdev mdev_max rttvar rtt_seq min_rtt rto retransmits",
    "timer": "timer_kind timer_at tlp_high_seq tlp_retrans frto",
    "cubic": "cubic_cnt cubic_last_max cubic_last_cwnd cubic_last_time cubic_origin cubic_k cubic_epoch "
    "cubic_ack_cnt cubic_tcp_cwnd",
    "dctcp": "dctcp dctcp_alpha next_seq old_delivered delivered_ce ce_state ack_now cwr_segment",
    "hystart": "hystart_found cubic_delay_min hystart_round_start hystart_last_ack hystart_end_seq hystart_curr_rtt "
    "hystart_samples",
    **BBR_GROUPS,
    "path": "first_ack next_ack last_ack_arrival last_arrival first_transit next_transit until_loss in_burst "
    "state_time loss_round_end rest_lost",
    "receiver": "rcv_nxt rcv_segment arrivals out_of_order rcv_wup ts_recent unreported receiver_timer delayed_ack_at "
    "delayed_ack_timeout read_at merging_at compressed_at compressed_rcv_nxt dup_ack_counter rcv_mss last_seg_size "
    "pushed quick ato lrcvtime receiver_rto rcv_room",
    "counts": "segments_sent segments_lost segments_retransmitted recoveries timeouts probes reordering_timeouts "
    "undone paws_discards acks_sent acks_lost skipped events",
}
LOSS_FIELDS = ("loss", "loss_burst", "bad_time", "bad_loss")
"""Parameters of the losses, named as in `Path`; `bad_time` is in microseconds."""
JITTER_FIELDS = ("jitter_correlation", "jitter_state")
"""Correlation of the jitter, and the state of its normal process."""
JITTER_TABLE = ("jitter_table", np.int16, TABLE_SIZE)
"""Field of a record for the distribution of the jitter, unless it is uniform."""
CONNECTION = np.dtype(
    [(name, np.float64) for name in (*LOSS_FIELDS, "ack_loss", "reordering", *JITTER_FIELDS)]
    + [(name, np.int64) for names in _GROUPS.values() for name in names.split()]
)
"""A connection: the scenario, the state of sender and receiver, and counts of events.

`answered` says whether each message waits until the message before it is read. `send_buffer` is the size of the send
buffer [bytes], or 0 for no limit; only the messages of a `WriteSchedule` heed it.
"""
SEGMENT = np.dtype([(name, np.int64) for name in ("start", "end", "sent", "gone", "delivered", "state", "received")])
"""A segment from its first transmission until it is acknowledged.

`sent` is the time of the last transmission, and `gone` the time at which this copy left the network. `delivered` is the
count of delivered segments when this copy was sent. `state` has the flags of the retransmission queue. `received` is
the segment's rank in the order of arrival, from 1, or 0 before it arrives.
"""
SNAPSHOT = np.dtype([(name, np.int64) for name in ("first_tx_mstamp", "delivered_mstamp", "delivered", "app_limited")])
"""The state of delivery when a segment was sent last: the start of its rate sample (`struct tcp_skb_cb`, tx)."""
ACKNOWLEDGEMENT = np.dtype(
    [(name, np.int64) for name in ("arrival", "acknowledged", "segment", "arrivals", "duplicate", "echo")]
)
"""An ACK.

`arrival` is the time at which it reaches the sender, `acknowledged` the end of the stream that it acknowledges, and
`segment` the number of the segment that it reports. `arrivals` is the count of segments that have arrived, `duplicate`
the number of a segment that has arrived twice, and `echo` the echoed timestamp.
"""
TRANSIT = np.dtype([(name, np.int64) for name in ("arrival", "segment", "following", "sent")])
"""A segment in the network: its time of arrival, its number, the number after the last segment that it carries, and the
time at which it was sent."""
EVENT = np.dtype([(name, np.int64) for name in ("time", "kind", "start", "end", "cwnd", "in_flight")])
"""An event of the packet trace."""
WRITTEN_MESSAGE = np.dtype([(name, np.int64) for name in ("written", "end", "held")])
"""A message of a source: the time of its write [us], the position in the stream at which it ends [bytes], and how much
the send buffer holds when it has taken the message [bytes]."""
MESSAGES = 1 << 20
"""Number of messages between write and read that are kept."""
MOST_EVENTS = 100_000
"""Largest number of events in a packet trace."""
KEPT = 1 << 17
"""Number of packets whose delays are kept."""
WIRE = np.dtype(
    [
        ("segments", SEGMENT, RING),
        ("snapshots", SNAPSHOT, RING),
        ("acknowledgements", ACKNOWLEDGEMENT, RING),
        ("transit", TRANSIT, RING),
        ("delays", np.int64, (3, KEPT)),
        ("messages", WRITTEN_MESSAGE, MESSAGES),
        ("events", EVENT, MOST_EVENTS),
        JITTER_TABLE,
        ("next_double", np.int64),
        ("random_state", np.int64),
    ]
)
"""The segments and ACKs in transit, the delays, the messages, and the packet trace of a connection.

All are in one record, because compiled code would count references to separate arrays. `segments`, `snapshots`,
`acknowledgements` and `transit` are rings; only BBR uses `snapshots`, and `transit` is used only where arrivals are
deferred. `delays` has an entry per packet, at its number modulo `KEPT`: the time from write to read, and from write to
first transmission [us], and `held` of its message. `messages` is a ring of the messages of a source whose rate is not
constant. `events` is the packet trace. `jitter_table` is netem's table of a jitter that is not uniform. `next_double`
and `random_state` are the arguments of `uniform`.
"""


class Wire:
    """The record of a connection's segments and delays, of type `kind`, and the generator that draws its losses."""

    def __init__(self, random: np.random.Generator, kind: np.dtype[Any] = WIRE) -> None:
        self.random = random
        self.record: Any = records(1, kind)[0]
        self.record.next_double, self.record.random_state = generator_addresses(random)
        self.messages: NDArray[np.void] = self.record["messages"].view(np.ndarray)

    @property
    def delays(self) -> NDArray[np.int64]:
        """The record's delays [us] and its bytes in the send buffer, shape (3, KEPT)."""
        return np.asarray(self.record.delays)

    def delays_of(self, first: int, packets: int) -> NDArray[np.int64]:
        """Return a copy of the `delays` of packets from number `first` on, shape (3, packets)."""
        return np.take(self.delays, np.arange(first, first + packets), axis=1, mode="wrap")


@kernel()
def in_flight(c: Any) -> int:
    """Return the sender's estimate of the number of segments in the network (`tcp_packets_in_flight`)."""
    return int(c.packets_out - c.sacked_out - c.lost_out + c.retrans_out)


@kernel()
def in_reduction(c: Any) -> bool:
    """Return whether a proportional reduction of the window is in progress (`tcp_in_cwnd_reduction`)."""
    return bool(c.ca_state == CWR or c.ca_state == RECOVERY)


wheel_expiry = kernel()(tcp.wheel_expiry)
_to_ticks = kernel()(tcp.to_ticks)


@kernel()
def ticks_now(c: Any) -> int:
    """Return the current tick (`jiffies`)."""
    return ticks_at(c, c.now)


@kernel()
def ticks_at(c: Any, time: int) -> int:
    """Return the tick at a time [us]."""
    return int((time + c.tick_phase) // c.tick)


@kernel()
def to_ticks(c: Any, duration: int) -> int:
    """Return a duration [us] in ticks, rounded up (`usecs_to_jiffies`)."""
    return int(_to_ticks(duration, c.tick))


@kernel()
def fires_at(c: Any, now: int, ticks: int) -> int:
    """Return the time [us] at which a timer fires that is set for `ticks` after the tick `now`."""
    return int((wheel_expiry(now, ticks) if c.ticks else now + ticks) * c.tick - c.tick_phase)


@kernel()
def set_timer(c: Any, kind: int, ticks: int) -> None:
    """Set the sender's timer, which has one kind at a time, to fire after a number of ticks."""
    c.timer_kind = kind
    c.timer_at = fires_at(c, ticks_now(c), min(ticks, c.rto_max))


@kernel()
def clear_timer(c: Any) -> None:
    """Stop the sender's timer."""
    c.timer_kind = NO_TIMER
    c.timer_at = NEVER


# The writes of a source: their times, and the ends of their messages in the stream.
#
# The writes of a constant-rate flow follow from interval and size, unless they are late. Those of any other source are
# in a ring, which Python fills while the compiled code reads it, so that memory does not grow with the length of a
# simulation.

_NO_MESSAGES: NDArray[np.void] = np.empty(0, MESSAGE)
WITH_EARLIER = -1
"""In place of a time: the message is written together with the message before it."""


@kernel()
def message_record(wire: Any, number: int) -> Any:
    """Return the record of a message; the ring has a power of two of them."""
    return wire.messages[number & (wire.messages.shape[0] - 1)]


@kernel()
def written_at(c: Any, wire: Any, number: int) -> int:
    """Return the time of a message's write [us]."""
    if c.scheduled:
        return int(message_record(wire, number).written)
    return int(number * c.interval)


@kernel()
def message_end(c: Any, wire: Any, number: int) -> int:
    """Return the position in the stream at which a message ends [bytes]."""
    if c.scheduled:
        return int(message_record(wire, number).end)
    return int((number + 1) * c.packet_size)


@kernel()
def ends_message(c: Any, wire: Any, position: int) -> bool:
    """Return whether a message ends at a position in the stream up to which the receiver has read."""
    if not c.scheduled:
        return bool(position % c.packet_size == 0)
    number = c.packets_read - 1
    while number >= 0 and message_record(wire, number).end > position:
        number -= 1
    return bool(number >= 0 and message_record(wire, number).end == position)


@kernel()
def _has_room(c: Any, end: int) -> bool:
    """Return whether the send buffer takes a message that ends at a position in the stream; if empty, of any size."""
    return bool(c.written == c.snd_una or end - c.snd_una <= c.send_buffer)


@kernel()
def _goes_along(c: Any, wire: Any) -> bool:
    """Return whether the next message is written together with the last."""
    number = c.packets_written
    return bool(number < c.messages_known and message_record(wire, number).written == WITH_EARLIER)


@kernel()
def write_next(c: Any, wire: Any) -> None:
    """Put the message that is due in the send buffer; if it is full, drop the message or let it wait."""
    end = message_end(c, wire, c.packets_written)
    if c.send_buffer:
        end -= c.bytes_dropped
        if not _has_room(c, end):
            if not c.drops_when_full:
                c.next_write, c.write_blocked = NEVER, 1
                return
            c.bytes_dropped += end - c.written
            end = c.written
            _mark_dropped(c, wire)
        message_record(wire, c.packets_written).end = end
    c.written = end
    if c.scheduled:
        message_record(wire, c.packets_written).held = end - c.snd_una
    if c.answered and message_record(wire, c.packets_written).written == WITH_EARLIER:
        message_record(wire, c.packets_written).written = c.now
    c.packets_written += 1
    if c.answered:
        c.next_write = c.now if _goes_along(c, wire) else NEVER
        return
    # A message that is due already has waited for room behind another.
    due = written_at(c, wire, c.packets_written) if c.packets_written < c.messages_known else NEVER
    c.next_write = max(due, c.now)


@kernel()
def write_after_read(c: Any, wire: Any, now: int) -> None:
    """Let the next message be written a pause after the time `now` [us], at which all written messages are read."""
    c.last_read = now
    if c.next_write == NEVER and c.packets_read == c.packets_written and c.packets_written < c.messages_known:
        message = message_record(wire, c.packets_written)
        message.written += now
        c.next_write = message.written


@kernel()
def awaits_more(c: Any, wire: Any) -> bool:
    """Return whether the receiver waits for more writes before it answers."""
    return bool(c.packets_read < c.packets_written or _goes_along(c, wire))


@kernel()
def _mark_dropped(c: Any, wire: Any) -> None:
    """Make the message that is due one without bytes, which is read with the message before, at a negative delay."""
    message_record(wire, c.packets_written).written = NEVER
    if c.packets_read == c.packets_written:
        # The message before has been read.
        wire.delays[0, c.packets_read % wire.delays.shape[1]] = -NEVER
        c.packets_read += 1


@kernel()
def resume_writing(c: Any, wire: Any) -> None:
    """Let the message that waits for room be written now if an ACK has made room."""
    if _has_room(c, message_end(c, wire, c.packets_written)):
        c.next_write, c.write_blocked = c.now, 0


class WriteSchedule:
    """The messages of a source, for the connections of a simulation in turn.

    A connection after the first begins with the messages that the connection before has not written; it writes the
    first of them at the time 0.
    """

    def __init__(self, source: Source, seed: int) -> None:
        self._blocks = source.blocks(seed)
        self._unwritten = _NO_MESSAGES
        self._given: list[NDArray[np.void]] = []
        self._first = self._end = 0
        self._count = NEVER
        self._origin: float | None = 0.0
        self.backlogged = False
        """Whether more messages wait to be read than the ring holds."""

    def begin(self, connection: Any, earlier: Any = None) -> None:
        """Begin with a new connection, in place of an earlier connection if there is one."""
        connection.scheduled, connection.messages_known, connection.next_write = 1, 0, NEVER
        if earlier is not None:
            known = self.numbered(int(earlier.packets_written), int(earlier.messages_known))
            self._unwritten, self._origin = known, None
        self._given, self._first, self._end, self._count = [], 0, 0, NEVER

    def fill(self, connection: Any, wire: Any) -> int:
        """Give a connection that has written all messages it knows the next messages."""
        known = int(connection.messages_known)
        if connection.packets_written < known:
            return self._count
        block = self._unwritten if self._unwritten.size else next(self._blocks, _NO_MESSAGES)
        if not block.size:
            connection.messages_known, self._count = NEVER, known
            return self._count
        ring = wire.messages
        # The receiver may still ask for the end of the last message that it has read.
        if known + block.size > connection.packets_read - 1 + ring.size:
            self._unwritten, self.backlogged = block, True
            return int(connection.packets_read)
        self._unwritten = _NO_MESSAGES
        ends = self._end + np.cumsum(block["size"])
        start = known % ring.size
        before_wrap = ring.size - start
        for name, values in {"written": self._written(block), "end": ends, **self._marks(block)}.items():
            field = ring[name]
            field[start : start + block.size] = values[:before_wrap]
            field[: max(block.size - before_wrap, 0)] = values[before_wrap:]
        self._end = int(ends[-1])
        self._given.append(block)
        connection.messages_known = known + block.size
        connection.next_write = max(self._next_write(connection, ring[start]), connection.now)
        return self._count

    def _marks(self, block: NDArray[np.void]) -> dict[str, NDArray[np.bool_]]:
        """Return further fields of the messages of a block, by name."""
        return {}

    def _written(self, block: NDArray[np.void]) -> NDArray[np.float64]:
        """Return the times of the writes of messages [us]."""
        if self._origin is None:
            self._origin = float(block["time"][0])
        return np.rint((block["time"] - self._origin) * SECOND)

    def _next_write(self, connection: Any, message: Any) -> int:
        """Return the time [us] at which a connection writes its next message, whose record is `message`."""
        return int(message["written"])

    def numbered(self, first: int, following: int) -> NDArray[np.void]:
        """Return the messages from number `first` of the connection to before `following`, and forget earlier ones."""
        known = np.concatenate([_NO_MESSAGES, *self._given])[first - self._first :]
        self._given, self._first = [known], first
        return known[: following - first]


class AnsweredSchedule(WriteSchedule):
    """Messages that each wait until the message before them is read and answered.

    The field `time` of a message is the pause from the read of the message before to its write [s]. A message of kind 1
    is written together with the message before.
    """

    def begin(self, connection: Any, earlier: Any = None) -> None:
        """Begin with a new connection, in place of an earlier connection if there is one."""
        super().begin(connection, earlier)
        connection.answered = 1

    def _written(self, block: NDArray[np.void]) -> NDArray[np.float64]:
        return np.where(block["kind"] == 1, WITH_EARLIER, np.rint(block["time"] * SECOND))

    def _next_write(self, connection: Any, message: Any) -> int:
        if message["written"] == WITH_EARLIER:
            return int(connection.now)
        if connection.packets_read < connection.packets_written:
            return NEVER
        message["written"] += connection.last_read
        return int(message["written"])
