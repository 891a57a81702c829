"""The scenario in the chain's own units: packets for data, packet intervals ("slots") for time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from tcpdelay.models import tcp
from tcpdelay.models.interface import UnsupportedError, unknown_fields
from tcpdelay.models.solver.profile import NEGLIGIBLE_LOSS
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux

SAME_TIME = 1e-9
"""Two times [slots or s], or two counts, that differ by less are equal; the difference is rounding."""
SMALLEST_WINDOW = 2
"""Smallest congestion window of the chain [segments]."""
TIMER_SLACK = tcp.TIMER_SLACK / tcp.SECOND
"""Time that the kernel adds to RACK's timer [s]."""
MEAN_TICK = 0.5
"""Mean time from a moment to the next tick of the kernel's clock [ticks]."""
WINDOW_PER_FLIGHT = 3
"""Largest window of the chain, in windows that let every packet leave at once."""
WINDOW_PER_ROOT_LOSS = 4.5
"""The same, times the root of the loss: beyond it a window is lost too soon to matter."""
SPARE_WINDOWS = 3
"""Windows above the one that lets every packet leave at once."""
LARGEST_BACKOFF = 6
LARGEST_BURST_BACKOFF = 9
"""Timeouts in a row that are followed at most; with losses in bursts up to the longest ones, of about two minutes."""
NEGLIGIBLE_BACKOFF = 1e-6
"""Probability per packet, roughly, below which a further back-off is left out."""
LARGEST_BURST = 2
"""Mean burst up to which the chain has been compared with the simulator [segments]."""
LARGEST_OUTAGE = 0.02
"""Share of the packets that losses of whole windows may hold up: beyond, the largest delays are those of timeouts in a
row, whose length is as uncertain in a simulation of a million packets."""
SMALLEST_LIMITED_WINDOW = math.sqrt(2 / 3)
"""Smallest window of a flow that only losses limit, times the root of the loss (Mathis et al., SIGCOMM CCR 1997)."""
NEGLIGIBLE_BURST = 1e-3
"""Share of bursts that may be longer than those told apart."""
MOST_FOLLOWED = 12
"""Losses in a row that are told apart at most."""
TIES_PER_SLOT = 64
"""Parts of a slot: at whole numbers of them counts change, so rounding must not move a round-trip time off them."""


class LinuxParameters(NamedTuple):
    """The symbols of the chain, resolved for one scenario.

    Attributes
    ----------
    load : float
        Packets written per round-trip time; the round-trip time in slots.
    packets_per_segment : float
        Packets that a full segment holds; below 1 where packets are larger.
    segments_per_packet : int
        Segments of a packet that leaves at once.
    loss : float
        Probability that a full segment is lost after one that got through.
    mean_loss, next_loss, repeated_loss : float
        The same of any segment, of one after a lost one, and of a retransmission once a loss has been found.
    followed_losses : int
        Losses in a row that are told apart; 0 where losses are independent.
    probe_slack : float
        What the tail loss probe waits beyond two round-trip times [slots].
    loss_of_one_packet : float
        Probability that a segment with one packet, or a part of one, is lost.
    cubic : bool
        Whether the window grows as CUBIC's.
    reordering_wait : float
        What RACK waits for overtaken segments [slots].
    timer : float
        When RACK's timer fires, after the time at which the acknowledgement was due [slots].
    timeout : float
        The first retransmission timeout [slots].
    backoffs : int
        Timeouts in a row that are followed.
    flight : int
        Segments in flight at most if every packet leaves at once.
    largest_window : int
        Largest window of the chain [segments].
    rtt, interval : float
        [s].
    """

    load: float
    packets_per_segment: float
    segments_per_packet: int
    loss: float
    mean_loss: float
    next_loss: float
    repeated_loss: float
    followed_losses: int
    probe_slack: float
    loss_of_one_packet: float
    cubic: bool
    reordering_wait: float
    timer: float
    timeout: float
    backoffs: int
    flight: int
    largest_window: int
    rtt: float
    interval: float


def packets_per_round_trip(flow: Flow, path: Path) -> float:
    """Return the round-trip time in packet intervals, whatever the last bit of decimal inputs says.

    Parameters
    ----------
    flow : Flow
        Its interval [s].
    path : Path
        Its round-trip time [s].

    Returns
    -------
    float
        Their ratio, a whole number of 64ths if it is one but for rounding.

    Examples
    --------
    >>> 0.29 / 0.02, packets_per_round_trip(Flow(174, 0.02), Path(0.29, 0.0))
    (14.499999999999998, 14.5)
    """
    load = path.rtt / flow.interval
    nearest = round(load * TIES_PER_SLOT) / TIES_PER_SLOT
    return nearest if abs(load - nearest) <= SAME_TIME * load else load


class _Losses(NamedTuple):
    after_success: float
    after_loss: float
    of_repair: float
    followed: int


def _losses(path: Path, load: float) -> _Losses:
    """Return the chances of a loss by what happened to the segment before."""
    if path.loss_burst == 1:
        return _Losses(path.loss, path.loss, path.loss, 0)
    after_success, leave = tcp.gilbert_probabilities(path.loss, path.loss_burst)
    after_loss = 1 - leave
    # The burst is over when a later segment tells of it; a round-trip time of others come before the retransmission.
    since = math.floor(load) + 1
    of_repair = path.loss * (1 - (after_loss - after_success) ** since)
    followed = min(math.ceil(math.log(NEGLIGIBLE_BURST) / math.log(after_loss)) + 1, MOST_FOLLOWED)
    return _Losses(after_success, after_loss, of_repair, followed)


PATH_FIELDS = frozenset({"rtt", "loss", "loss_pattern", "bottleneck", "one_way_delay", "loss_burst"})
"""Fields of a path that the chain knows; it refuses all others unless they are at their default."""
SIMULATED = "tcpdelay.simulate takes it into account"


def linux_refusals(flow: Flow, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
    """Yield what the chain refuses of a scenario.

    Examples
    --------
    >>> [refused.name for refused in linux_refusals(Flow(174, 0.02), Path(0.1, 0.02, jitter=0.005), Linux())]
    ['jitter']
    """
    if path.loss_pattern != "random":
        hint = "bursts are loss_burst of Path, and Stack.newreno_2008() knows 'correlated'"
        yield UnsupportedError("loss_pattern", path.loss_pattern, "be 'random' with Stack.linux()", hint)
    yield from unknown_fields(path, PATH_FIELDS, "in the chain", SIMULATED)
    if path.loss_burst > 1 and path.loss >= NEGLIGIBLE_LOSS:
        yield from _refused_bursts(flow, path, stack)


def _refused_bursts(flow: Flow, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
    """Yield why the chain has no answer to losses in bursts, if it has none."""
    burst = path.loss_burst
    if burst > LARGEST_BURST:
        yield UnsupportedError("loss_burst", burst, f"be at most {LARGEST_BURST:g} in the chain", SIMULATED)
        return
    where = f"in the chain with a loss_burst of {burst:g}"
    for name, value, unit, limit in (
        ("packet_size", flow.packet_size, " bytes", stack.mss),
        ("interval", flow.interval, " s", path.rtt + stack.rto_min),
    ):
        if value > limit:
            yield UnsupportedError(name, value, f"be at most {limit:g}{unit} {where}", SIMULATED)
            return
    if path.bottleneck != "packets":
        yield UnsupportedError("bottleneck", path.bottleneck, f"be 'packets' {where}")
        return
    held_up = _outage_share(flow, path, stack)
    if held_up > LARGEST_OUTAGE:
        allowed = (
            f"be shorter in the chain: losses of whole windows hold up {held_up:.1%} of the packets here, "
            f"and at most {LARGEST_OUTAGE:.0%} are allowed"
        )
        yield UnsupportedError("loss_burst", burst, allowed, SIMULATED)


def _outage_share(flow: Flow, path: Path, stack: Linux) -> float:
    """Return which share of the packets is written while losses of whole windows last, roughly."""
    load = packets_per_round_trip(flow, path)
    loss = _losses(path, load)
    timeout = (path.rtt + stack.rto_min) / flow.interval
    # Whole windows are lost where they are smallest, and where losses are frequent they never open.
    limited = max(SMALLEST_LIMITED_WINDOW / math.sqrt(loss.after_success), SMALLEST_WINDOW) if path.loss else math.inf
    window = min(math.floor(load) + 2, limited)
    doubled = sum((2 * loss.after_loss) ** stage for stage in range(LARGEST_BURST_BACKOFF))
    outages = loss.after_success * float(loss.after_loss ** (window - 1))
    return outages * timeout * (1 + loss.after_loss * doubled)


def linux_parameters(flow: Flow, path: Path, stack: Linux) -> LinuxParameters:
    """Return the chain's parameters.

    Raises
    ------
    UnsupportedError
        If the chain refuses a field of the scenario.
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
    if packets_per_segment < 2 and path.loss > 0:
        by_loss = math.ceil(WINDOW_PER_ROOT_LOSS / math.sqrt(path.loss))
        largest = max(largest, min(WINDOW_PER_FLIGHT * flight, by_loss))
    backoffs = 1
    largest_backoff = LARGEST_BACKOFF if loss.followed == 0 else LARGEST_BURST_BACKOFF
    chance = path.loss**2 if loss.followed == 0 else loss.after_success * loss.after_loss ** (flight + 1)
    while backoffs < largest_backoff and chance * loss.after_loss**backoffs > NEGLIGIBLE_BACKOFF:
        backoffs += 1
    return LinuxParameters(
        load=load,
        packets_per_segment=packets_per_segment,
        segments_per_packet=segments,
        loss=loss.after_success,
        mean_loss=path.loss,
        next_loss=loss.after_loss,
        repeated_loss=loss.of_repair,
        followed_losses=loss.followed,
        probe_slack=(TIMER_SLACK + MEAN_TICK * tick) / flow.interval,
        loss_of_one_packet=loss_of_one,
        cubic=stack.congestion_control == "cubic",
        reordering_wait=load / tcp.REORDERING_SHARE,
        timer=timer / flow.interval,
        timeout=load + stack.rto_min / flow.interval,
        backoffs=backoffs,
        flight=flight,
        largest_window=largest,
        rtt=load * flow.interval,
        interval=flow.interval,
    )
