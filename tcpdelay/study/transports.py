"""A comparison of transports and heuristics on one path: the delays of a flow, and the throughput of other flows."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tcpdelay.accuracy.validity import ValidityWarning
from tcpdelay.ask import unknown_fields
from tcpdelay.budget import MOST_SECONDS
from tcpdelay.declare import InvalidValueError, declarations, is_number
from tcpdelay.delays import DelayDistribution
from tcpdelay.drawing import drawn
from tcpdelay.models.heuristics import parallel_delay, split_delay
from tcpdelay.models.predict import predict_delay
from tcpdelay.quality.experience import Call, call_experience
from tcpdelay.scenario.path import LossBursts, Path, PathPreset, checked_path
from tcpdelay.scenario.scenario import APPLICATIONS, Application, Target, checked_arguments, source_of, target_of
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.source import Source as MessageSource
from tcpdelay.scenario.stack import Delivery, Linux, Stack, StackName, checked_linux
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.linux import MinBuf
from tcpdelay.sim.network.result import FlowResult, NetworkResult
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import ConstantRate, Source, checked_sources
from tcpdelay.sim.network.stacks import Classic, Scp, TimeLined, Udp
from tcpdelay.sim.network.transport import TCP_HEADER, TIMESTAMPS, UDP_HEADER
from tcpdelay.sim.simulation import segments_per_message
from tcpdelay.statistics import Interval, difference_interval
from tcpdelay.units import format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUIC_WAYS: tuple[tuple[str, Delivery, str], ...] = (
    ("quic-stream", "stream", "all packets on one stream"),
    ("quic-streams", "stream_per_message", "each packet on a stream of its own"),
    ("quic-datagram", "datagram", "each packet in datagram frames, without retransmissions"),
)
"""Names, deliveries and descriptions of the ways to carry the flow over QUIC."""
OF_2008 = "with the settings of a stack of 2008"
"""Settings of the published transports: the published timers of half a second would hide all other differences."""
SHORTEST_DEADLINE = 0.001


@dataclass(frozen=True)
class Contender:
    """One way to carry the flow."""

    name: str  # A short name, such as "split-2"
    title: str  # A description in a few words
    source: Source  # The source that the simulator simulates
    predict: Callable[[], DelayDistribution] | None = None  # Distribution of delays from a chain or a closed form


PATH_FIELDS = frozenset(
    {"rtt", "loss", "loss_pattern", "one_way_delay", "loss_burst", "bad_time", "bad_loss", "bottleneck"}
)
"""Fields of a path that the simulator of shared links takes into account."""


def shared_path(path: Path) -> SharedPath:
    """Return the same path for the simulator of shared links."""
    for refused in unknown_fields(path, PATH_FIELDS, "in a comparison"):
        raise refused
    if path.loss_pattern != "random":
        raise InvalidValueError(
            "loss_pattern",
            path.loss_pattern,
            "be 'random' in a comparison",
            "a link with a queue has losses of its own",
        )
    return SharedPath(
        access_delay=path.forward_delay,
        return_delay=path.rtt - path.forward_delay,
        loss=path.loss,
        **{name: getattr(path, name) for name in declarations(LossBursts)},
    )


def contenders(flow: MessageSource, path: Path, stack: Linux, target: Target, parity: int = 0) -> Iterator[Contender]:
    """Yield all ways to carry a flow, plain TCP of the kernel first and datagrams last.

    The kernel's TCP, QUIC and datagrams carry any source, all other contenders only a `Flow`. Packets are lost before
    they reach a shared link. Transports with a deadline use the target's limit. `parity` is the number of parity
    datagrams per packet of a further contender over UDP, 0 to 255; with 0, there is no such contender.
    """
    carry = partial(ConstantRate, flow=flow, path=shared_path(path))

    yield Contender(
        "tcp",
        f"TCP of a Linux kernel, {stack.congestion_control}, one write per packet",
        carry(stack=stack),
        partial(predict_delay, flow, path, stack, method="chain"),
    )
    if stack.congestion_control != "bbr":
        bbr = replace(stack, congestion_control="bbr")
        yield Contender(
            "tcp-bbr",
            "TCP of a Linux kernel, bbr, one write per packet",
            carry(stack=bbr),
            partial(predict_delay, flow, path, bbr, method="chain"),
        )
    if isinstance(flow, Flow):
        yield from _by_the_application(carry, flow, path, stack, target)
        yield from _published(carry, path, target, stack.mss)
        if flow.packet_size <= stack.mss:
            yield Contender(
                "scp",
                "SCP, a congestion window over datagrams, without retransmissions (Cen et al. 1998)",
                carry(stack=Scp()),
            )
    for name, delivery, title in QUIC_WAYS:
        yield Contender(name, f"QUIC by RFC 9002, {title}", carry(stack=Stack.quic(delivery=delivery)))
    payload = stack.mss + TCP_HEADER + TIMESTAMPS - UDP_HEADER
    datagrams = {"udp": "datagrams without retransmissions; a packet is lost if any of its datagrams is"}
    if parity:
        datagrams[f"udp-parity-{parity}"] = (
            f"datagrams without retransmissions, and {parity} parity datagram{'s' if parity > 1 else ''} for each "
            f"packet (forward error correction); a packet is lost if more than {parity} of all these datagrams are"
        )
    for (name, title), added in zip(datagrams.items(), (0, parity), strict=False):
        yield Contender(
            name,
            title,
            carry(stack=Udp(largest_payload=payload, parity=added)),
            lambda: DelayDistribution(np.array([path.forward_delay]), np.ones(1), path.forward_delay),
        )


def _by_the_application(
    carry: Callable[..., ConstantRate], flow: Flow, path: Path, stack: Linux, target: Target
) -> Iterator[Contender]:
    """Yield what an application can do with packets of one size on top of the kernel's TCP."""
    for pieces in (2, 4):
        yield Contender(
            f"split-{pieces}",
            f"TCP of a Linux kernel, each packet in {pieces} writes",
            carry(stack=stack, pieces=pieces),
            partial(split_delay, flow, path, stack, pieces),
        )
    yield Contender(
        "par-2-blind",
        "TCP of a Linux kernel, two connections that take turns",
        carry(stack=stack, connections=2),
        partial(parallel_delay, flow, path, stack, 2),
    )
    for connections in (2, 5):
        yield Contender(
            f"par-{connections}",
            f"TCP of a Linux kernel, {connections} connections, each packet over the least busy connection",
            carry(stack=stack, connections=connections, scheduling="intelligent"),
        )
    yield Contender(
        "discard",
        "TCP of a Linux kernel; the sender discards packets that would probably arrive later than "
        f"{format_time(target.limit)}",
        carry(stack=stack, discard_after=target.limit),
    )
    for extra in (0, 3):
        yield Contender(
            f"min-buf-1-{extra}",
            f"TCP of a Linux kernel with a send buffer of one window and {extra} more packets; the sender discards a "
            "packet that finds no room (Goel et al. 2002)",
            carry(stack=stack, min_buf=MinBuf(1, extra)),
        )


def _published(carry: Callable[..., ConstantRate], path: Path, target: Target, mss: int) -> Iterator[Contender]:
    """Yield the variants of TCP of the literature."""
    sack = Classic.of_2008(recovery="sack", mss=mss)
    yield Contender("sack", f"TCP as published, SACK, {OF_2008}", carry(stack=sack))
    yield Contender(
        "tcp-rc",
        f"TCP as published, SACK, with a receiver that replaces late packets (McCreary et al. 2005), {OF_2008}",
        carry(stack=sack, forging=True),
    )
    deadline = max(target.limit - path.forward_delay, SHORTEST_DEADLINE)
    yield Contender(
        "time-lined",
        f"TCP Reno that abandons packets after {format_time(deadline)} (Mukherjee 2000), {OF_2008}",
        carry(stack=TimeLined.of_2008(mss=mss, deadline=deadline)),
    )


PACKETS = 1_000_000
"""Packets of a `Flow`, or segments of another source, that each contender carries by default. They are fewer where the
simulation of a shared link would take too long."""
LINK_PACKETS = 2_000_000
"""Largest number of full packets that a shared link can send in the time simulated."""
FULL_PACKET = 1500
"""Bytes of a full packet."""
FEWEST_PACKETS, FEWEST_ROUND_TRIPS = 100, 10
"""Shortest simulation: fewer packets give no quantiles."""
RANKED_DIGITS = 3
"""Significant digits of the figures by which contenders are ranked."""
STAGES = (16, 4, 1)
"""Parts of the default duration after which a contender may end: its rank and its verdict are settled."""
FEWEST_JUDGED = 10_000
"""Fewest packets after which a rank or a verdict can be settled."""
SETTLED_ERROR = 0.05
"""Relative statistical error with which contenders that do not differ have one rank."""
SETTLED_PART = 0.015
"""The same as a part of the share that the target allows."""
RULE_OF_THREE = 3.0
"""Packets: with none among n, the share is below 3 / n with 95 % confidence (Hanley and Lippman-Hand 1983)."""
WARM_UP = 0.05
"""Share of the time simulated, at its beginning, that is left out."""
UNLIMITED = Bottleneck(rate=1e12, capacity=60_000)


@dataclass(frozen=True)
class Carried:
    """The result of one contender."""

    contender: Contender
    result: FlowResult
    others: float  # Throughput of all other sources together [bit/s]
    predicted: DelayDistribution | None  # From a chain or a closed form; None without either
    duration: float  # Time simulated [s]


@dataclass(frozen=True)
class Comparison:
    """All contenders on one path.

    Attributes
    ----------
    flow, path, stack, target
        The scenario.
    application : Application or None
        The application that sends the flow, if known.
    link : Bottleneck or None
        The shared link, if there is one.
    others : tuple of Source
        The other sources on the link.
    undisturbed : float
        Throughput of the other sources without the flow [bit/s]; 0 without other sources.
    duration : float
        Longest time simulated for a contender [s]; each of the `rows` has its own.
    seed : int
        Seed of all random numbers.
    rows : tuple of Carried
        The contenders, in their order.
    path_preset : PathPreset or None
        The preset from which the path was made, if known.
    mean_jitter : float
        Part of the path's round-trip time that stands for the mean of its jitter [s].
    """

    flow: MessageSource
    path: Path
    stack: Linux
    target: Target
    link: Bottleneck | None
    others: tuple[Source, ...]
    undisturbed: float
    duration: float
    seed: int
    rows: tuple[Carried, ...]
    application: Application | None = None
    path_preset: PathPreset | None = None
    mean_jitter: float = 0.0

    def unsettled(self, row: Carried) -> bool:
        """Return whether the delays or the late packets of a contender depend on the length of the simulation.

        They do not if it is certain that the backlog grows for ever.
        """
        result = row.result
        settled = result.settled and not math.isnan(result.late_error(self.target.limit))
        return result.sustainable and not settled

    def missed(self, row: Carried) -> float:
        """Return the share of the packets that are lost or later than the limit.

        It is 1 if the backlog grows for ever, and NaN if the delays depend on the length of the simulation.
        """
        if not row.result.sustainable:
            return 1.0
        return math.nan if self.unsettled(row) else row.result.late_fraction(self.target.limit)

    def missed_error(self, row: Carried) -> float:
        """Return half the 95 % interval of `missed`: its statistical error. NaN if the delays have not settled."""
        if not row.result.sustainable:
            return 0.0
        return math.nan if self.unsettled(row) else row.result.late_error(self.target.limit)

    def meets(self, row: Carried) -> bool:
        """Return whether a contender is known to meet the target; a lost packet is a late packet."""
        return self.target.allows(self.missed(row))

    def undecided(self, row: Carried) -> bool:
        """Return whether the statistical error leaves open if a contender meets the target."""
        if self.unsettled(row):
            return False
        missed, error = self.missed(row), self.missed_error(row)
        return self.target.allows(missed - error) != self.target.allows(missed + error)

    def none_on_time(self, row: Carried) -> bool:
        """Return whether a contender is known to have no packet on time, in three digits of the share."""
        return _ranked_digits(self.missed(row)) == 1

    def call(self, row: Carried) -> Call | None:
        """Return the ratings of a call over a contender; a lost packet is a late packet.

        None if the application is not a call of constant rate, or if the delays depend on the length of the simulation.
        """
        if self.unsettled(row) or not isinstance(self.flow, Flow):
            return None
        delays = row.result.all_delays if row.result.sustainable else None
        never = DelayDistribution.unsustainable(self.path.forward_delay)
        return call_experience(self.application, self.flow, self.target, never if delays is None else delays)

    def ranked(self) -> list[tuple[int | None, Carried]]:
        """Return the contenders with their ranks, those with the fewest lost or late packets first.

        Contenders that have no packet on time are ranked by the share of the packets that arrive at all, and then by
        the 95th percentile of their delays. A contender has the rank of the best contender from which it does not
        differ: by no more than the statistical error of the difference of their shares, or in three digits. Contenders
        whose share is not known, because their delays have not settled, come last and have no rank.
        """
        ranked: list[tuple[int | None, Carried]] = []
        rank, best = 0, None
        for place, row in enumerate(sorted((row for row in self.rows if not self.unsettled(row)), key=self._order), 1):
            if best is None or self._differ(best, row):
                rank, best = place, row
            ranked.append((rank, row))
        return ranked + [(None, row) for row in self.rows if self.unsettled(row)]

    def _differ(self, row: Carried, other: Carried) -> bool:
        """Return whether two contenders differ in what ranks them, by more than their statistical errors.

        The same packets are lost for all contenders, which rather brings their shares together: the error of the
        difference is that of independent shares at most.
        """
        errors = math.hypot(self.missed_error(row), self.missed_error(other))
        apart = abs(self.missed(row) - self.missed(other)) > errors
        none_on_time = self.none_on_time(row) and self.none_on_time(other)
        return self._order(row) != self._order(other) and (apart or none_on_time)

    def is_settled(self, row: Carried) -> bool:
        """Return whether a longer simulation of a contender would change neither its rank nor its verdict.

        Its interval is then disjoint from those of all others and from the allowed share. Where it overlaps with
        another, it is narrow, or would overlap after the longest simulation too: the two share a rank.
        """
        if not row.result.sustainable:
            return True
        if self.unsettled(row) or row.result.offered < FEWEST_JUDGED:
            return False
        if self.none_on_time(row):
            return row.result.p95_interval.relative_half_width <= SETTLED_ERROR
        missed, error = self.missed(row), self._cautious_error(row)
        if self.target.allows(missed - error) != self.target.allows(missed + error):
            return False
        if error <= max(SETTLED_ERROR * missed, SETTLED_PART * (1 - self.target.quantile)):
            return True
        # Errors fall with the square root of the time. Where the longest simulation would probably not tell two
        # contenders apart either, it is not worth its time.
        shorter = math.sqrt(row.duration / self.duration)
        others = (other for other in self.rows if other is not row and not self.unsettled(other))
        return not any(
            shorter < abs(missed - self.missed(other)) / math.hypot(error, self._cautious_error(other)) <= 1
            for other in others
        )

    def _cautious_error(self, row: Carried) -> float:
        """Return the statistical error of the share that is missed; it is not 0 because no packet was late so far."""
        return max(self.missed_error(row), RULE_OF_THREE / row.result.offered)

    def _order(self, row: Carried) -> tuple[float, ...]:
        """Return the figures that rank a contender, the smallest first."""
        result = row.result
        if not self.none_on_time(row):
            return (_ranked_digits(self.missed(row)),)
        p95 = result.p95_interval.value if result.sustainable and result.delivered else math.inf
        return 1.0, -_ranked_digits(result.throughput / self.flow.mean_bitrate), _ranked_digits(p95)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the delays of all contenders into the given axes, by default the current axes of pyplot."""
        axes: Axes = drawn("transports.plot_comparison", self, ax)
        return axes

    def _repr_html_(self) -> str:
        """Return all contenders as a table for notebooks."""
        return str(drawn("transports.table_html", self))

    def p95_difference(self, row: Carried) -> Interval:
        """Return the 95th percentile of a contender's delays less that of plain TCP [s], with its 95 % interval.

        Delays are those of packets that arrive. All values are NaN unless the delays of both have settled. The same
        packets are lost for both, which rather brings their delays together: the interval is that of independent
        simulations, and wide enough.
        """
        return difference_interval(self._settled_p95(row), self._settled_p95(self.rows[0]))

    def p95_ratio(self, row: Carried) -> Interval:
        """Return the 95th percentile of a contender's delays divided by that of plain TCP; see `p95_difference`."""
        own, plain = self._settled_p95(row), self._settled_p95(self.rows[0])
        low, high = np.exp(difference_interval(Interval(*np.log(own)), Interval(*np.log(plain)))[1:])
        return Interval(own.value / plain.value, float(low), float(high))

    def _settled_p95(self, row: Carried) -> Interval:
        settled = row.result.sustainable and row.result.delivered and not self.unsettled(row)
        return row.result.p95_interval if settled else Interval(math.nan, math.nan, math.nan)

    def taken(self, row: Carried) -> float:
        """Return the throughput that a contender takes from the other sources [bit/s]; NaN without other sources."""
        return self.undisturbed - row.others if self.others else math.nan


def _ranked_digits(figure: float) -> float:
    """Return a figure with the digits that are compared."""
    return float(f"{figure:.{RANKED_DIGITS}g}")


@checked_arguments
def compare(
    flow: MessageSource | str,
    path: Path,
    stack: Stack | StackName | None = None,
    target: Target | None = None,
    *,
    link: Bottleneck | None = None,
    others: Sequence[Source] = (),
    duration: float | None = None,
    seed: int = 0,
    parity: int = 0,
    ways: Collection[str] | None = None,
    application: Application | None = None,
    path_preset: PathPreset | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    max_seconds: float = MOST_SECONDS,
) -> Comparison:
    """Simulate every contender on one path, each in a simulation of its own, with the same random losses.

    Parameters
    ----------
    flow : Source or str
        A `Flow` or any other source, or the name of an application in `tcpdelay.scenario.scenario`; all contenders
        send the same packets or messages. Ways that are defined for packets of one size are left out with a source that
        is no `Flow`.
    path : Path
        The path. Its losses are random or in bursts. Packets are lost before they reach the link.
    stack : Stack or "linux", optional
        The kernel's TCP, `Stack.linux(...)`; `Stack.linux()` by default.
    target : Target, optional
        The demand on the delay; by default that of the application, or 95 % within 0.2 s.
    link : Bottleneck, optional
        A shared link on the way; by default a link without queueing delay. With "codel", "fq_codel", "pie" or "cake",
        the transports of the literature are left out: they cannot send over these queues.
    others : sequence of Source
        The other sources on the link.
    duration : float, optional
        Time to simulate [s], up to 1e7, for at least 100 packets and ten round trips. By default the time of a million
        packets of a `Flow`, or of a million segments of another source, or less with a fast link or if a trace ends.
        Without other sources, a contender then ends after a sixteenth or a quarter of this time if its verdict and its
        rank are settled. The rank is settled if its interval is narrower than 5 % of its share or 1.5 % of the allowed
        share, or overlaps only with those from which the whole time would probably not distinguish it.
    seed : int
        Seed of all random numbers, 0 or more; the same seed gives the same result.
    parity : int
        Parity datagrams per packet of a further contender over UDP, 0 to 255; with 0, there is no such contender.
    ways : collection of str, optional
        Names of the contenders to simulate beside plain TCP, such as ``{"quic-streams", "udp"}``; by default all.
    application : Application, optional
        The application that sends the flow; if it is a call, the call is rated. By default that of the flow's name.
    path_preset : PathPreset, optional
        The preset from which the path was made; the comparison names it.
    on_progress : callable, optional
        Called after each simulation with the number of simulations done and the number of all simulations.
    max_seconds : float
        Processor time that the simulation of a contender may take, as for `simulate_network`.

    Returns
    -------
    Comparison
        All contenders.

    Raises
    ------
    ValueError
        If a value is out of its range, the stack is not that of Linux, a way is not known for this flow, or others come
        without a link.
    TooLargeError
        If a simulation needs more than `max_seconds`; a ValueError.

    Examples
    --------
    >>> from tcpdelay.scenario.stack import Stack
    >>> found = compare(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), duration=60)
    >>> found.rows[0].contender.name, found.rows[-1].result.delivered_fraction < 1
    ('tcp', True)
    """
    others = checked_sources("others", others)
    if others and link is None:
        raise ValueError("others need a link that they share with the flow")
    if application is None and isinstance(flow, str):
        application = APPLICATIONS.get(flow)
    target, path, stack = target_of(flow, target), checked_path(path), checked_linux(stack)
    flow = source_of(flow)
    parity = declarations(Udp)["parity"].require("parity", parity)
    entered = tuple(contenders(flow, path, stack, target, parity))
    if link is not None and link.managed:
        entered = tuple(each for each in entered if each.source.transport.deliver is not None)
    if ways is not None:
        entered = _chosen(entered, ways)
    stages: Sequence[int] = (1,)
    if duration is None:
        duration = default_duration(flow, link, stack)
        # What a contender takes from others is compared with a simulation of the others alone, which is as long.
        stages = STAGES if not others and flow.message_count is None else stages
    shortest = FEWEST_PACKETS * flow.mean_interval + FEWEST_ROUND_TRIPS * path.rtt
    if not is_number(duration) or 0 < duration < shortest:
        raise InvalidValueError("duration", duration, f"be at least {shortest:g} s, for {FEWEST_PACKETS} packets")
    asked = Comparison(
        flow, path, stack, target, link, tuple(others), 0.0, duration, seed, (), application, path_preset
    )
    return _until_settled(asked, entered, stages, max_seconds, on_progress)


def _until_settled(
    comparison: Comparison,
    entered: Sequence[Contender],
    stages: Sequence[int],
    max_seconds: float,
    on_progress: Callable[[int, int], None] | None,
) -> Comparison:
    """Return the comparison with each contender simulated for the first part of the duration that settles it."""
    link, others = comparison.link, comparison.others
    alone = [others] if others else []
    predicted = [_predicted(each, each is entered[0]) if link is None else None for each in entered]
    rows: dict[int, Carried] = {}
    simulate = partial(simulate_network, bottleneck=link or UNLIMITED, seed=comparison.seed, max_seconds=max_seconds)
    unsettled = [*range(len(entered))]
    before, total = 0, len(stages) * len(entered) + len(alone)

    def report(done: int) -> None:
        if on_progress is not None:
            on_progress(before + done, total)

    for stage, part in enumerate(stages):
        sources = [(entered[place].source, *others) for place in unsettled] + alone
        before = (stage + 1) * len(entered) - len(unsettled)
        duration = comparison.duration / part
        timed = partial(simulate, duration=duration, warm_up=WARM_UP * duration)
        results = _in_threads([partial(timed, each) for each in sources], report)
        for place, result in zip(unsettled, results, strict=False):
            found = result.flows
            rows[place] = Carried(entered[place], found[0], _throughput(found[1:]), predicted[place], duration)
        undisturbed = _throughput(results[-1].flows) if others else 0.0
        comparison = replace(comparison, rows=tuple(rows[place] for place in sorted(rows)), undisturbed=undisturbed)
        unsettled = [place for place, row in enumerate(comparison.rows) if not comparison.is_settled(row)]
        if not unsettled:
            break
    if before + len(results) < total:
        report(total - before)
    return replace(comparison, duration=max(row.duration for row in comparison.rows))


def _chosen(entered: Sequence[Contender], ways: Collection[str]) -> tuple[Contender, ...]:
    """Return plain TCP and the contenders that are named, in their order."""
    names = [contender.name for contender in entered]
    for way in [ways] if isinstance(ways, str) or not isinstance(ways, Collection) else ways:
        if way not in names:
            raise InvalidValueError("ways", way, f"be one of {', '.join(names)}")
    return tuple(contender for contender in entered if contender is entered[0] or contender.name in ways)


def default_duration(flow: MessageSource, link: Bottleneck | None, stack: Linux) -> float:
    """Return the time [s] for which a comparison simulates by default.

    >>> default_duration(Flow(174, 0.020), None, Linux())
    20000.0
    """
    packets = PACKETS if isinstance(flow, Flow) else PACKETS // segments_per_message(flow, stack)
    if flow.message_count is not None:
        packets = min(packets, flow.message_count)
    duration = packets * flow.mean_interval
    return duration if link is None else min(duration, 8 * FULL_PACKET * LINK_PACKETS / link.rate)


def _predicted(contender: Contender, warn: bool) -> DelayDistribution | None:
    """Return the prediction of a contender, if there is one; with `warn`, outside its range it issues a warning."""
    if contender.predict is None:
        return None
    # The values are within their ranges, so that only a chain refuses one.
    with warnings.catch_warnings(), suppress(InvalidValueError):
        if not warn:
            warnings.simplefilter("ignore", ValidityWarning)
        return contender.predict()
    return None


def _throughput(flows: Sequence[FlowResult]) -> float:
    return sum(flow.throughput for flow in flows)


def _in_threads(work: Sequence[Callable[[], NetworkResult]], on_done: Callable[[int], None]) -> list[NetworkResult]:
    """Return the results in the order of the work; compiled code runs without Python's lock."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = [pool.submit(simulate) for simulate in work]
        for done, _ in enumerate(as_completed(futures), 1):
            on_done(done)
    return [future.result() for future in futures]
