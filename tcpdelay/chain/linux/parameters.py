"""The scenario in the units of the chain: data in packets, time in packet intervals, and the first timeout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from tcpdelay.ask import SIMULATED, UnsupportedError, refused_lateness, unknown_fields
from tcpdelay.chain.solver.stationary import NEGLIGIBLE_LOSS
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import TYPICAL_WRITE_JITTER, Flow
from tcpdelay.scenario.stack import LOSS_BASED_CONTROLS, Linux
from tcpdelay.sim.tcp import constants as tcp

# The first retransmission timeout of a Linux kernel, and the flows whose timers fire before their next packet.

MOST_PHASES = 64
"""Largest number of ticks at which a packet may be written. The wheel rounds timers of up to two seconds alike after
as many ticks of 4 ms."""
MICROSECOND = 1e-6
"""Smallest difference between a measured round-trip time and the path's [s]."""
LARGEST_LOSS = 0.2
"""Largest loss at which the sequences of losses of a sparse flow are few enough."""


def timeout_ticks(path: Path, stack: Linux) -> int:
    """Return the first RTO in ticks (`tcp_set_rto`), with its minimum in ticks, rounded up (`tcp_rto_min_us`)."""
    tick = round(tcp.SECOND / stack.hz)
    least = tcp.to_ticks(round(stack.rto_min * tcp.SECOND), tick) * tick
    return tcp.to_ticks(round((path.rtt + MICROSECOND) * tcp.SECOND) + least, tick)


def times_out_before_next(flow: Flow, path: Path, stack: Linux) -> bool:
    """Return whether the timer of a lost packet always fires before the next packet is written.

    >>> [times_out_before_next(Flow(174, interval), Path(0.1, 0.02), Linux()) for interval in (0.2, 0.4)]
    [False, True]
    """
    ticks = timeout_ticks(path, stack)
    return _latest_expiry(ticks) <= (flow.interval - flow.write_jitter) * stack.hz


@lru_cache(maxsize=4096)
def _latest_expiry(ticks: int) -> int:
    """Return after how many ticks a timer of `ticks` ticks fires at the latest."""
    return max(tcp.wheel_expiry(now, ticks) - now for now in range(MOST_PHASES))


def is_sparse(flow: Flow, path: Path, stack: Linux) -> bool:
    """Return whether the delays of a flow are the sum over the sequences of losses of single packets."""
    in_range = flow.packet_size <= stack.mss and 0 < path.loss <= LARGEST_LOSS
    return in_range and times_out_before_next(flow, path, stack)


# The scenario in the units of the chain: data in packets, time in packet intervals ("slots").

SAME_TIME = 1e-9
"""Two times [slots or s], or two counts, that differ by less are equal; the difference is rounding."""
SMALLEST_WINDOW = 2
"""Smallest congestion window of the chain [segments]."""
TIMER_SLACK = tcp.TIMER_SLACK / tcp.SECOND
"""Time that the kernel adds to RACK's timer [s] (TCP_TIMEOUT_MIN_US)."""
MEAN_TICK = 0.5
"""Mean time from a moment to the next tick of the kernel's clock [ticks]."""
WINDOW_PER_FLIGHT = 3
"""Largest window of the chain, as a multiple of the smallest window that lets every packet leave at once."""
WINDOW_PER_ROOT_LOSS = 4.5
"""Largest window of the chain [segments], times the square root of the loss: larger windows meet a loss too soon."""
FASTER = tcp.BBR_PROBING_GAINS[0] / tcp.BBR_GAIN
"""BBR's pacing gain in the first phase of its gain cycle (`bbr_update_gains`)."""
PACED = 1 - tcp.BBR_PACING_MARGIN / 100
"""BBR's pacing rate with a gain of 1, relative to the bandwidth (`bbr_rate_bytes_per_sec`)."""
RATE_WITH_BACKLOG = FASTER * PACED
"""BBR's pacing rate with a backlog, relative to the flow's rate."""
SPARE_WINDOWS = 3
"""Segments by which the largest window exceeds the flight, that is the segments in flight without a backlog."""
CHECKED_TIMEOUTS = 6
"""Number of consecutive timeouts up to which the chain agrees with the simulator, with independent losses."""
LARGEST_SHARE_BEYOND = 5e-4
"""Largest share of time that further consecutive timeouts may take.

Above this share they determine the largest delays, and the chain's p95 is up to three times too small. Below it, p95
differed by at most 13 % in six simulations, and p99 by at most 37 % (`tests/test_consecutive_timeouts.py` has four).
"""
LARGEST_BURST_BACKOFF = 9
"""Largest number of consecutive timeouts in the chain, with loss bursts: the last timeout is about two minutes."""
LONGEST_TIMEOUT = Linux().rto_max
"""Longest timeout of a kernel whose settings were not changed [s]."""
NEGLIGIBLE_BACKOFF = 1e-6
"""Approximate probability per packet below which the chain leaves out a further timeout."""
LARGEST_BURST = 2
"""Largest mean loss burst at which the chain has been compared with the simulator [segments]."""
LARGEST_LOSS_WITH_BBR = 0.15
"""Largest loss of the chain with BBR. If a fifth is lost, BBR looks for a policer (`bbr_lt_bw_sampling`)."""
LARGEST_OUTAGE = 0.02
"""Largest share of packets that losses of whole windows may delay.

Above this share, consecutive timeouts determine the largest delays. Even a simulation of a million packets does not
show these delays reliably.
"""
SMALLEST_LIMITED_WINDOW = math.sqrt(2 / 3)
"""Smallest window of a flow that only losses limit, times the root of the loss (Mathis et al., SIGCOMM CCR 1997)."""
NEGLIGIBLE_BURST = 1e-3
"""Share of loss bursts that may be longer than the longest burst with a phase of its own."""
MOST_FOLLOWED = 12
"""Largest number of consecutive losses with a phase of its own."""
MOST_GROUPS_OPEN, MOST_GROUPS_IN_ROUND = 12, 6
"""Largest number of groups of losses of a round, in an open window and in a window that limits the sender."""
TIES_PER_SLOT = 64
"""An RTT that differs only by rounding from a multiple of 1/64 slot is set to it: packet counts change there."""
FULL_SEGMENT = 0.9
"""Share of a segment that a packet fills at least so that segments count as full."""


class LinuxParameters(NamedTuple):
    """The parameters of the chain for one scenario."""

    load: float  # Packets written per round-trip time. The same number is the round-trip time in slots.
    # Number of packets that fit into a full segment; below 1 if a packet is larger than a segment
    packets_per_segment: float
    segments_per_packet: int  # Number of segments of a packet that leaves as soon as it is written
    # Whether each packet fills a segment, so that each ACK releases a full segment while there is a backlog. False for
    # packets of several segments, the last of which is seldom full; with BBR, whose window does not limit the sender;
    # and with `rest_lost`, whose losses leave other ACK clocks.
    full_segments: bool
    loss: float  # Probability that a full segment is lost if the segment before it was not lost
    mean_loss: float  # Probability that a segment is lost
    next_loss: float  # Probability that a segment is lost if the segment before it was lost
    repeated_loss: float  # Probability that a retransmission is lost
    # Largest number of consecutive losses with a phase of its own; 0 if losses are independent. With `rest_lost`, the
    # number of groups of consecutive losses.
    followed_losses: int
    rest_lost: bool  # Whether the rest of a round is lost with its first lost segment
    probe_slack: float  # Time that the tail loss probe waits in addition to two round-trip times [slots]
    loss_of_one_packet: float  # Probability that a segment with a single packet, or with a part of a packet, is lost
    cubic: bool  # Whether the congestion control is CUBIC
    bbr: bool  # Whether the congestion control is BBR; if neither, it is Reno
    # Rate at which segments leave in a recovery after its first round, relative to the flow's rate. With BBR this is
    # the pacing rate; with CUBIC and Reno it is 1, one segment per ACK (PRR).
    pacing: float
    reordering_wait: float  # RACK's reordering window: a quarter of the round-trip time [slots]
    timer: float  # Time from the due time of an ACK until RACK's timer fires [slots]
    timeout: float  # First retransmission timeout [slots]
    # Number of timeouts in a row that have phases of their own. The last one repeats itself if it is the longest.
    backoffs: int
    longest_timeout: float  # Maximum retransmission timeout [slots]
    flight: int  # Largest number of segments in flight if every packet leaves at once
    largest_window: int  # Largest congestion window of the chain [segments]
    rtt: float  # Round-trip time [s]
    interval: float  # Packet interval [s]
    # Probability that a packet of a talk spurt is followed by another one; 1 for a flow of constant rate
    continuation: float
    write_jitter: float  # Largest lateness of a write [slots]


def packets_per_round_trip(flow: Flow, path: Path) -> float:
    """Return the round-trip time in packet intervals, without the rounding error of decimal inputs.

    >>> 0.29 / 0.02, packets_per_round_trip(Flow(174, 0.02), Path(0.29, 0.0))
    (14.499999999999998, 14.5)
    """
    load = path.rtt / flow.interval
    nearest = round(load * TIES_PER_SLOT) / TIES_PER_SLOT
    return nearest if abs(load - nearest) <= SAME_TIME * load else load


class _Losses(NamedTuple):
    """Probabilities of a loss, and the largest number of consecutive losses with a phase of its own."""

    after_success: float
    after_loss: float
    of_repair: float
    followed: int


def _losses(path: Path, load: float) -> _Losses:
    """Return the probability of a loss after a segment that arrived, after a lost segment, and of a retransmission.

    Loss bursts are Gilbert's (`gilbert_probabilities`). A segment that is sent n segments after the end of a burst is
    lost with the probability P (1 - (r - p)^n), P being the mean loss, p and r those after a success and after a loss.
    """
    if path.loss_pattern == "correlated":
        # The probability of a segment that is not in the lost rest of a round.
        return _Losses(path.loss, path.loss, path.loss, min(math.floor(load) + 1, MOST_GROUPS_OPEN))
    if path.loss_burst == 1:
        return _Losses(path.loss, path.loss, path.loss, 0)
    after_success, leave = tcp.gilbert_probabilities(path.loss, path.loss_burst)
    after_loss = 1 - leave
    # A loss is detected after its burst has ended. Until the retransmission, segments of one round-trip time are sent.
    since = math.floor(load) + 1
    of_repair = path.loss * (1 - (after_loss - after_success) ** since)
    followed = min(math.ceil(math.log(NEGLIGIBLE_BURST) / math.log(after_loss)) + 1, MOST_FOLLOWED)
    return _Losses(after_success, after_loss, of_repair, followed)


PATH_FIELDS = frozenset({"rtt", "loss", "loss_pattern", "bottleneck", "one_way_delay", "loss_burst"})
"""Fields of a path that one chain takes into account. It refuses any other field unless it has its default.

The mean of several chains takes jitter into account as well: see `tcpdelay.chain.linux.delays`.
"""


def linux_refusals(flow: Flow, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
    """Yield an error for each field of the scenario that the chain refuses."""
    if path.jitter > 0:
        hint = "predict_delay(method='chain') takes the mean of several models"
        yield UnsupportedError("jitter", path.jitter, "be 0 in one DelayModel", hint)
    yield from _refused_lateness(flow, path)
    yield from unknown_fields(path, PATH_FIELDS | {"jitter"}, "in the chain", SIMULATED)
    yield from _refused_timeouts(flow, path, stack)
    if path.loss > LARGEST_LOSS and times_out_before_next(flow, path, stack):
        allowed = f"be at most {LARGEST_LOSS:g} in the chain if timers fire before the next packet is written"
        yield UnsupportedError("loss", path.loss, allowed, SIMULATED)
    if (control := stack.congestion_control) == "bbr":
        yield from _refused_with_bbr(flow, path, stack)
    elif control not in LOSS_BASED_CONTROLS:
        yield UnsupportedError("congestion_control", control, "be cubic, reno or bbr in the chain", SIMULATED)
    elif path.loss < NEGLIGIBLE_LOSS:
        return
    elif path.loss_pattern == "correlated":
        yield from _refused_sizes(flow, path, stack, "in the chain with correlated losses")
    elif path.loss_burst > 1:
        yield from _refused_bursts(flow, path, stack)


def _without_lateness(path: Path) -> str:
    """Return what the chain has not been compared with while writes are late; an empty text if there is none."""
    if path.jitter > 0:
        return "jitter"
    if path.loss_burst > 1:
        return "loss bursts"
    return "correlated losses" if path.loss_pattern == "correlated" else ""


def lateness(flow: Flow, path: Path) -> float:
    """Return the largest lateness of a write that the chain assumes [s]: at most the interval."""
    return 0.0 if _without_lateness(path) else min(flow.write_jitter, flow.interval)


def _refused_lateness(flow: Flow, path: Path) -> Iterator[UnsupportedError]:
    """Yield an error if writes are later than usual in a way that the chain has not been compared with."""
    if what := _without_lateness(path):
        yield from refused_lateness(flow, f"in the chain with {what}")
    elif flow.write_jitter > max(flow.interval, TYPICAL_WRITE_JITTER):
        allowed = f"be at most {flow.interval:g} s, the interval, in the chain"
        yield UnsupportedError("write_jitter", flow.write_jitter, allowed, SIMULATED)


def _refused_timeouts(flow: Flow, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
    """Yield an error if a set maximum ends the doubling of the timeout earlier than in the chain."""
    doublings = CHECKED_TIMEOUTS if path.loss_burst == 1 else LARGEST_BURST_BACKOFF
    longest = min((path.rtt + stack.rto_min) * 2**doublings, LONGEST_TIMEOUT)
    if stack.rto_max < longest and path.loss >= NEGLIGIBLE_LOSS and not is_sparse(flow, path, stack):
        allowed = f"be at least {longest:g} s here in the chain, except for sparse flows"
        yield UnsupportedError("rto_max", stack.rto_max, allowed, SIMULATED)


def _refused_with_bbr(flow: Flow, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
    """Yield an error for each field that only the chain of BBR refuses."""
    if path.loss_pattern != "random":
        yield UnsupportedError("loss_pattern", path.loss_pattern, "be 'random' in the chain with BBR", SIMULATED)
    for name, value, limit in (
        ("packet_size", flow.packet_size, stack.mss),
        ("loss_burst", path.loss_burst, 1),
        ("loss", path.loss, LARGEST_LOSS_WITH_BBR),
    ):
        if value > limit:
            yield UnsupportedError(name, value, f"be at most {limit:g} in the chain with BBR", SIMULATED)


def _refused_bursts(flow: Flow, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
    """Yield an error for the first field with which the chain refuses loss bursts."""
    burst = path.loss_burst
    if burst > LARGEST_BURST:
        yield UnsupportedError("loss_burst", burst, f"be at most {LARGEST_BURST:g} in the chain", SIMULATED)
        return
    where = f"in the chain with a loss_burst of {burst:g}"
    for refused in _refused_sizes(flow, path, stack, where):
        yield refused
        return
    if path.bottleneck != "packets":
        yield UnsupportedError("bottleneck", path.bottleneck, f"be 'packets' {where}")
        return
    delayed = _outage_share(flow, path, stack)
    if delayed > LARGEST_OUTAGE:
        allowed = (
            f"be shorter in the chain: losses of whole windows delay {delayed:.1%} of the packets here, "
            f"and at most {LARGEST_OUTAGE:.0%} are allowed"
        )
        yield UnsupportedError("loss_burst", burst, allowed, SIMULATED)


def _refused_sizes(flow: Flow, path: Path, stack: Linux, where: str) -> Iterator[UnsupportedError]:
    """Yield an error if a packet is larger than a segment, or the interval longer than the first timeout."""
    for name, value, unit, limit in (
        ("packet_size", flow.packet_size, " bytes", stack.mss),
        ("interval", flow.interval, " s", path.rtt + stack.rto_min),
    ):
        if value > limit:
            yield UnsupportedError(name, value, f"be at most {limit:g}{unit} {where}", SIMULATED)


def _outage_share(flow: Flow, path: Path, stack: Linux) -> float:
    """Estimate the share of packets that are written while the loss of a whole window is repaired."""
    load = packets_per_round_trip(flow, path)
    loss = _losses(path, load)
    timeout = (path.rtt + stack.rto_min) / flow.interval
    # A small window is lost as a whole most often. With frequent losses the window stays below the load.
    limited = max(SMALLEST_LIMITED_WINDOW / math.sqrt(loss.after_success), SMALLEST_WINDOW) if path.loss else math.inf
    window = min(math.floor(load) + 2, limited)
    doubled = sum((2 * loss.after_loss) ** stage for stage in range(LARGEST_BURST_BACKOFF))
    outages = loss.after_success * float(loss.after_loss ** (window - 1))
    return outages * timeout * (1 + loss.after_loss * doubled)


def _backoffs(path: Path, stack: Linux, loss: _Losses, flight: int) -> int:
    """Return the number of consecutive timeouts with phases of their own: until one is negligible or the longest."""
    in_bursts = loss.followed > 0 and path.loss_pattern != "correlated"
    chance = loss.after_success * loss.after_loss ** (flight + 1) if in_bursts else path.loss**2
    longest, count = path.rtt + stack.rto_min, 1
    while longest < stack.rto_max and chance * loss.after_loss**count > NEGLIGIBLE_BACKOFF:
        if in_bursts and count == LARGEST_BURST_BACKOFF:
            break
        longest, count = 2 * longest, count + 1
    return count


def share_of_later_timeouts(path: Path, stack: Linux, interval: float) -> float:
    """Estimate the share of time in consecutive timeouts beyond those that have been checked.

    A segment and its retransmission are lost in p^2 of the round-trip times, or of the intervals if they are longer.
    Each further timeout follows with the probability p.

    >>> [round(share_of_later_timeouts(Path(0.1, loss), Linux(), 0.02), 5) for loss in (0.1, 0.2, 0.4)]
    [0.0, 0.0008, 0.39091]
    """
    chance, timeout = path.loss ** (2 + CHECKED_TIMEOUTS), (path.rtt + stack.rto_min) * 2.0**CHECKED_TIMEOUTS
    time = 0.0
    while timeout < stack.rto_max and chance > 0:
        time += chance * timeout
        chance, timeout = chance * path.loss, 2 * timeout
    return (time + chance * stack.rto_max / (1 - path.loss)) / max(path.rtt, interval)


def refused_beyond_initial_window(flow: Flow, stack: Linux) -> Iterator[UnsupportedError]:
    """Yield an error if the packets do not fit into the initial window, to which Linux returns (`tcp_cwnd_restart`).

    The chain does not. Neither its delays nor its capacity have been compared with simulations of larger packets.
    """
    largest = tcp.INITIAL_WINDOW * stack.mss
    if flow.packet_size > largest:
        allowed = f"be at most {largest} bytes in the chain, {tcp.INITIAL_WINDOW} segments"
        yield UnsupportedError("packet_size", flow.packet_size, allowed, SIMULATED)


def refusal_if_carried(flow: Flow, path: Path, stack: Linux) -> UnsupportedError | None:
    """Return an error if the chain may say that a flow is not carried, but must not say how long its delays are.

    These are flows whose delays depend on later timeouts than have been checked.

    >>> print(refusal_if_carried(Flow(174, 0.1), Path(0.1, 0.3), Linux()))  # doctest: +ELLIPSIS
    loss must be smaller in the chain: the connection is in its 7th or a later consecutive timeout for 2.8% of the ...
    """
    share = share_of_later_timeouts(path, stack, flow.interval)
    if share <= LARGEST_SHARE_BEYOND or is_sparse(flow, path, stack):
        return None
    allowed = (
        f"be smaller in the chain: the connection is in its {CHECKED_TIMEOUTS + 1}th or a later consecutive timeout "
        f"for {min(share, 1.0):.1%} of the time, and at most {LARGEST_SHARE_BEYOND:.2%} is allowed"
    )
    return UnsupportedError("loss", path.loss, allowed, SIMULATED)


def linux_parameters(flow: Flow, path: Path, stack: Linux) -> LinuxParameters:
    """Return the parameters of the chain; raise an UnsupportedError if it refuses a field of the scenario.

    The RTO is the RTT plus its minimum variance (`tcp_set_rto`, TCP_RTO_MIN; RFC 6298, 2.3), as the RTT is constant.
    RACK's reordering window is RTT / 4; its timer adds TCP_TIMEOUT_MIN_US and rounds up to a tick (`tcp_rack_reo_wnd`,
    `tcp_rack_mark_lost`; RFC 8985, 6.2).
    """
    for refused in linux_refusals(flow, path, stack):
        raise refused
    if path.loss < NEGLIGIBLE_LOSS:
        path = replace(path, loss=0.0)
    load = packets_per_round_trip(flow, path)
    segments = -(-flow.packet_size // stack.mss)
    packets_per_segment = stack.mss / flow.packet_size
    loss = _losses(path, load)
    loss_of_one = loss.after_success
    if path.bottleneck == "bytes":
        loss_of_one *= min(flow.packet_size / stack.mss, 1.0)
    tick = 1 / stack.hz
    wait = path.rtt / tcp.REORDERING_SHARE
    timer = (math.ceil((wait + TIMER_SLACK) / tick - SAME_TIME) + MEAN_TICK) * tick
    flight = (math.floor(load) + 1) * segments
    largest = max(flight + SPARE_WINDOWS, 4)
    bbr = stack.congestion_control == "bbr"
    if bbr:
        largest = max(largest, math.ceil(RATE_WITH_BACKLOG * load))
    elif packets_per_segment < 2 and path.loss > 0:
        by_loss = math.ceil(WINDOW_PER_ROOT_LOSS / math.sqrt(path.loss))
        largest = max(largest, min(WINDOW_PER_FLIGHT * flight, by_loss))
    rest_lost = path.loss_pattern == "correlated"
    return LinuxParameters(
        load=load,
        packets_per_segment=packets_per_segment,
        segments_per_packet=segments,
        full_segments=not (bbr or rest_lost) and FULL_SEGMENT * stack.mss <= flow.packet_size <= stack.mss,
        loss=loss.after_success,
        mean_loss=path.loss,
        next_loss=loss.after_loss,
        repeated_loss=loss.of_repair,
        followed_losses=loss.followed,
        rest_lost=rest_lost,
        probe_slack=(TIMER_SLACK + MEAN_TICK * tick) / flow.interval,
        loss_of_one_packet=loss_of_one,
        cubic=stack.congestion_control == "cubic",
        bbr=bbr,
        pacing=RATE_WITH_BACKLOG if bbr else 1.0,
        reordering_wait=load / tcp.REORDERING_SHARE,
        timer=timer / flow.interval,
        timeout=load + stack.rto_min / flow.interval,
        backoffs=_backoffs(path, stack, loss, flight),
        longest_timeout=stack.rto_max / flow.interval,
        flight=flight,
        largest_window=largest,
        rtt=load * flow.interval,
        interval=flow.interval,
        continuation=1.0,
        write_jitter=lateness(flow, path) / flow.interval,
    )
