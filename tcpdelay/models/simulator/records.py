"""The simulator's state: the rules that it follows, a record per connection, the segments under way, and the timers.

Times are whole microseconds, as in the kernel, positions in the stream bytes, windows segments. Names follow the
kernel's `struct tcp_sock` where the kernel has the field.

Random numbers come from a NumPy generator, whose C function compiled code calls by its address. A generator as an
argument would be counted as a reference at each call, which takes longer than most kernels here.
"""

from __future__ import annotations

import ctypes
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic
from numpy.typing import NDArray

from tcpdelay.models import tcp
from tcpdelay.models.compilation import kernel, records
from tcpdelay.scenario.fields import declarations, require_flag
from tcpdelay.scenario.path import Path


@dataclass(frozen=True, slots=True)
class Rules:
    """The kernel's rules, all followed unless set to False.

    Parameters
    ----------
    rack : bool
        Time tells what is lost (RFC 8985). Without: three SACKed segments beyond it (RFC 6675), and a lost
        retransmission is left to the timeout (sysctl net.ipv4.tcp_recovery = 0).
    reordering_window : bool
        RACK waits a quarter of the smallest RTT for reordered segments while fewer than three are SACKed.
    retransmissions_found_lost_by_rack : bool
        RACK finds lost retransmissions too; without, they are left to the timeout.
    proportional_reduction : bool
        A recovery sends in proportion to what is delivered (RFC 6937); without, as far as the reduced window goes.
    application_limited_rule : bool
        Only a window that binds may grow (`tcp_is_cwnd_limited`).
    coalescing : bool
        Writes fill up segments while they wait; without, no segment holds bytes of two writes.
    ticks : bool
        Timers fire at ticks of the kernel's clock and its wheel; without, exactly when they are due.
    tail_loss_probe : bool
        A probe is sent when acknowledgements stay away (RFC 8985).
    f_rto : bool
        A timeout may turn out to be spurious (RFC 5682).
    collapsing : bool
        A retransmission takes in the small segments behind it that are lost as well (`tcp_retrans_try_collapse`).

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
    """Return the addresses of the function that draws a uniform number, and of its argument, the generator's state.

    They are valid as long as the generator is.
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
    return float(ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)(int(function))(int(argument)))


_call: Any = _call_in_python if config.DISABLE_JIT else intrinsic(_type_call)  # type: ignore[attr-defined]


@kernel()
def uniform(next_double: int, state: int) -> float:
    """Return the generator's next number, evenly distributed from 0 to below 1: what `Generator.random` would return.

    Examples
    --------
    >>> random, twin = np.random.default_rng(1), np.random.default_rng(1)
    >>> uniform(*generator_addresses(random)) == twin.random()
    True
    """
    return float(_call(next_double, state))


OPEN, DISORDER, CWR, RECOVERY, LOSS = range(5)
"""States of congestion avoidance (linux/tcp.h, enum tcp_ca_state)."""
NO_TIMER, RETRANSMISSION_TIMER, PROBE_TIMER, REORDERING_TIMER = range(4)
SACKED, MARKED_LOST, RETRANSMITTED, EVER_RETRANSMITTED, COLLAPSED = 1, 2, 4, 8, 16
"""Flags of a segment in the retransmission queue (net/tcp.h, TCPCB_*); a collapsed one is part of the one before."""
NEVER = 1 << 62
RING = 1 << 12
"""Segments and acknowledgements under way that there is room for."""

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
PATH_RATES = tuple(name for name, declared in declarations(Path).items() if declared.kind in ("fraction", "number"))
"""Fields of a path that a connection's record holds as they are: probabilities and lengths of bursts."""
CONNECTION = np.dtype(
    [(name, np.float64) for name in PATH_RATES]
    + [(name, np.int64) for names in _GROUPS.values() for name in names.split()]
)
"""A connection: the scenario, then sender, receiver and what has been counted."""
SEGMENT = np.dtype([(name, np.int64) for name in ("start", "end", "sent", "gone", "delivered", "state", "received")])
"""A segment from its first transmission until it is acknowledged.

`state` holds the flags of the retransmission queue, `gone` is the time at which the last copy left the network,
`delivered` the number of segments delivered when that copy was sent, and `received` the place in the order of arrivals,
from one on.
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
`tcpdelay.models.simulator.records`.
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
        self.record: Any = records(1, WIRE)[0]
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


wheel_expiry = kernel()(tcp.wheel_expiry)
_to_ticks = kernel()(tcp.to_ticks)


@kernel()
def ticks_now(c: Any) -> int:
    """Return the tick that has begun last, `jiffies`."""
    return ticks_at(c, c.now)


@kernel()
def ticks_at(c: Any, time: int) -> int:
    """Return the tick that has begun last at a time [us]."""
    return int((time + c.tick_phase) // c.tick)


@kernel()
def to_ticks(c: Any, duration: int) -> int:
    """Return a duration [us] in ticks, rounded up (`usecs_to_jiffies`)."""
    return int(_to_ticks(duration, c.tick))


@kernel()
def fires_at(c: Any, now: int, ticks: int) -> int:
    """Return when a timer fires [us] that is set for `ticks` after the tick `now`."""
    return int((wheel_expiry(now, ticks) if c.ticks else now + ticks) * c.tick - c.tick_phase)


@kernel()
def set_timer(c: Any, kind: int, ticks: int) -> None:
    """Let the connection's timer fire after a number of ticks; it has but one, of changing kind."""
    c.timer_kind = kind
    c.timer_at = fires_at(c, ticks_now(c), min(ticks, tcp.RTO_MAX // c.tick))


@kernel()
def clear_timer(c: Any) -> None:
    """Stop the connection's timer."""
    c.timer_kind = NO_TIMER
    c.timer_at = NEVER
