"""The findings on any source: delays, verdict, margins, and recommendations; the request for them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_jsonable_python

from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.advice.recommendation import Effect, Place, Recommendation, Rule, Situation, Status
from tcpdelay.advice.rules import APPLICATION_RULES, QUIC_RULES, TCP_RULES
from tcpdelay.ask import WHOLE_DISTRIBUTION, Answer, Model, NotSettledError, Requested, settled_record
from tcpdelay.delays import UNKNOWN_ERROR, DelayDistribution, DelayParts, ExpectedError
from tcpdelay.models.predict import (
    COMPARED_PACKETS,
    AnsweredBy,
    capacity,
    packets_to_count,
    predict,
    simulator,
    supports,
)
from tcpdelay.models.verdict import Judgement, Verdict, late_range, relative_error, verdict_of
from tcpdelay.scenario.path import Path, PathPreset
from tcpdelay.scenario.scenario import REPORTED_QUANTILES, Application, Scenario, Target
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Delivery, KnownStack, Linux, Quic, Stack
from tcpdelay.statistics import Interval
from tcpdelay.study.margins import Margin, margins
from tcpdelay.study.search import bracket, most_loss
from tcpdelay.units import quantile_name

if TYPE_CHECKING:
    from tcpdelay.capture.estimate import PathEstimate
    from tcpdelay.sim.simulation import Simulation


# The target's quantile of the delay as a function of the loss, around a scenario.

POINTS, FEW_POINTS = 30, 12
"""Number of losses on the curve: usually, and where a point takes long: in a simulation, or with a long limit."""
LONG_LIMIT = 200
"""Number of the flow's intervals from which a limit counts as long."""
NEAR_EDGE = 0.8
"""Loss, relative to the edge, at which the curve of a long limit ends: near saturation, one point takes a second."""
LOWEST = 1e-5
"""Smallest loss of a curve."""
USUAL_LOSS = 0.01
"""Centre of the curve if neither the scenario nor its margin has a loss above 0."""
BELOW, ABOVE = 6.0, 4.0
"""Factors by which the curve extends below and above the scenario's loss and its edge."""
CEILING = 4.0
"""Multiple of the limit at which the curve ends."""
SMALLEST_RESERVE = 0.05
"""Smallest difference of capacity and packet rate, relative to the packet rate, at which a point is computed."""
CRITICAL_TOLERANCE = 0.001
"""Relative tolerance of the critical loss."""


@dataclass(frozen=True)
class LossCurve:
    """The target's quantile of the delay as a function of the loss."""

    loss: NDArray[np.float64]  # Losses [fraction], ascending, above 0
    quantile: NDArray[np.float64]  # The target's quantile at each loss [s], finite
    # lowest, highest: Range of losses around the scenario; the curve may end below `highest`.
    lowest: float
    highest: float
    critical: float | None  # Smallest loss at which TCP cannot carry the flow; None if it is not within the range


def loss_curve(
    scenario: Scenario,
    target: Target,
    margin: Margin,
    model: AnsweredBy | Model = "chain",
    judged: Answer | None = None,
) -> LossCurve:
    """Return the target's quantile at losses around a scenario, whose own answer may be given.

    The curve ends where the quantile is four times the limit, or where TCP is close to its capacity.
    """
    here, edge = scenario.path.loss, margin.edge
    anchors = [loss for loss in (here, edge) if loss] or [USUAL_LOSS]
    lowest = max(LOWEST, min(anchors) / BELOW)
    highest = max(min(most_loss(scenario.path), max(anchors) * ABOVE), max(anchors))
    source = scenario.source
    limit_is_long = isinstance(source, Flow) and target.limit >= LONG_LIMIT * source.interval
    few = limit_is_long or model != "chain"
    points = np.geomspace(lowest, highest, FEW_POINTS if few else POINTS)
    if few:
        # A point takes long, so none is close to a loss that is on the curve anyway.
        half_step = math.sqrt(points[1] / points[0])
        points = points[[all(max(loss / at, at / loss) > half_step for at in anchors) for loss in points]]
    requested = {*points.tolist(), *anchors}
    if limit_is_long and edge is not None and not margin.at_least:
        requested = {loss for loss in requested if loss <= NEAR_EDGE * edge or loss == here}
    losses: list[float] = []
    quantiles: list[float] = []
    rate = source.message_rate
    for loss in sorted(requested):
        changed = _at(scenario, loss)
        # The capacity is NaN if the chain does not know it. Then the comparison is false, and the curve ends.
        if model == "chain" and not capacity(changed) - rate >= SMALLEST_RESERVE * rate:
            break
        known = judged if loss == here and judged is not None and judged.answered else None
        answer = predict(changed, method=model) if known is None else known
        delay = answer.require().quantile(target.quantile) if answer.answered else math.inf
        # Close to its capacity the chain may be too large for the backlog, although TCP carries the flow.
        if delay == math.inf:
            break
        losses.append(loss)
        quantiles.append(delay)
        if quantiles[-1] > CEILING * target.limit:
            break
    critical = _critical_loss(scenario, losses[-1] if losses else lowest, highest) if model == "chain" else None
    return LossCurve(np.array(losses), np.array(quantiles), lowest, highest, critical)


def _at(scenario: Scenario, loss: float) -> Scenario:
    """Return the scenario with another loss."""
    return replace(scenario, path=replace(scenario.path, loss=loss))


def _critical_loss(scenario: Scenario, carried: float, highest: float) -> float | None:
    """Return the smallest loss between `carried` and `highest` at which TCP cannot carry the flow; None if unknown."""

    def excess(loss: float) -> float | None:
        largest = capacity(_at(scenario, loss))
        return None if math.isnan(largest) else 1 - largest / scenario.source.message_rate

    distance = excess(highest)
    if distance is None or distance < 0 or carried == highest:
        return None
    return bracket(excess, highest, carried, highest, CRITICAL_TOLERANCE).outside


# The predictions at the ends of the confidence intervals of a measured path.

LARGEST_LOSS = 0.999
"""Largest loss of an alternative prediction; the end of a confidence interval may be 1, which a path does not allow."""


@dataclass(frozen=True)
class Alternative:
    """The prediction at another round-trip time [s] and loss that are within the confidence intervals."""

    label: str
    rtt: float
    loss: float
    quantile: float  # The target's quantile of the delay [s]; NaN without an answer, which does not meet the target
    meets_target: bool


def measured_ends(path: Path, estimate: PathEstimate | None) -> dict[str, Path]:
    """Return the paths at both ends of the measured confidence intervals; none if the path was not measured."""
    if estimate is None:
        return {}
    ends = zip(estimate.rtt_interval or (path.rtt, path.rtt), estimate.loss_interval, strict=True)
    best, worst = (replace(path, rtt=rtt, loss=min(loss, LARGEST_LOSS), one_way_delay=None) for rtt, loss in ends)
    return {"best case of the 95 % interval": best, "worst case of the 95 % interval": worst}


def ends_of_kind(path: Path, preset: PathPreset | None) -> dict[str, Path]:
    """Return the best and the worst path of a preset's kind; what differs from the preset in `path` stays as it is."""
    if preset is None:
        return {}
    ends = []
    for end in (0, 1):
        changes: dict[str, Any] = {
            name: values[end] for name, values in preset.ranges.items() if getattr(path, name) == preset.values[name]
        }
        if path.one_way_delay is not None:
            changes["one_way_delay"] = path.one_way_delay + changes.get("rtt", path.rtt) - path.rtt
        ends.append(replace(path, **changes))
    return {f"best path of the kind {preset.name}": ends[0], f"worst path of the kind {preset.name}": ends[1]}


def alternatives_at_ends(
    scenario: Scenario,
    target: Target,
    ends: Mapping[str, Path],
    model: AnsweredBy | Model,
    requested: Requested = WHOLE_DISTRIBUTION,
) -> tuple[Alternative, ...]:
    """Return the predictions for the paths at the ends of what is known about the path."""
    result = []
    for label, path in ends.items():
        answer = predict(replace(scenario, path=path), requested, model)
        quantile = answer.require().quantile(target.quantile) if answer.answered else math.nan
        result.append(Alternative(label, path.rtt, path.loss, quantile, answer.meets(target)))
    return tuple(result)


def over_kind(
    scenario: Scenario, target: Target, preset: PathPreset | None, model: AnsweredBy | Model
) -> tuple[Alternative, ...]:
    """Return the predictions for the best and the worst path of a preset's kind; none without a preset."""
    return alternatives_at_ends(scenario, target, ends_of_kind(scenario.path, preset), model)


def agreed_verdict(judgement: Judgement, works: bool, alternatives: tuple[Alternative, ...]) -> Verdict:
    """Return the verdict on a measured path: that on the estimate, if the ends of the intervals agree with it."""
    agreed = all(alternative.meets_target == works for alternative in alternatives)
    return judgement.verdict if agreed else "uncertain"


# The request for a guideline: scenario, target and model.


@dataclass(frozen=True)
class GuidelineRequest:
    """A scenario, the demand on its delay, and the model that judges whether the demand is met."""

    scenario: Scenario
    target: Target  # The demand on the delay
    estimate: PathEstimate | None = None  # The measurement from which the path was made
    application: Application | None = None  # The application that sends the messages
    method: AnsweredBy = "auto"  # The model of the verdict and the delays
    # Function that a simulation calls with the number of packets simulated and the largest number of packets.
    on_progress: Callable[[int, int], None] | None = None
    # Function called with the number of margins found and the number of all margins.
    on_margin: Callable[[int, int], None] | None = None
    path_preset: PathPreset | None = None  # The preset from which the path was made


# The recommendations for one scenario: the guideline's rules, applied to it and ordered by their effect.

RULES = (*TCP_RULES, *APPLICATION_RULES)
"""All rules for a flow over TCP; those that TCP follows come first."""
MOST_TO_DO = 5
"""Largest number of recommendations with the place "do"; a longer list is not read."""
SMALLEST_GAIN = 0.01
"""Smallest gain, as a share of the delay without the rule; the margins of a report are as precise."""
FOLLOWED: dict[Status, str] = {
    "default": "the default of a current Linux",
    "built in": "built into Linux",
    "gone": "no longer exists in Linux",
}
"""Why a Linux follows a rule of this status."""
PLACES: tuple[Place, ...] = ("do", "little gain", "already so", "not computed")
"""Places in the order of a report."""


def _place(rule: Rule, situation: Situation, applies: bool, effect: Effect | None) -> tuple[Place, str | None]:
    """Return the place of a rule in the report, and why it is there if the effect does not say so."""
    if not applies:
        return "little gain", f"only for {rule.condition}"
    if rule.followed(situation):
        of_linux = FOLLOWED.get(rule.status) if isinstance(situation.stack, Linux) else None
        return "already so", of_linux or "so in this scenario"
    if effect is None:
        return "not computed", "the model has no answer for the changed flow"
    if effect.reason is not None:
        return "not computed" if effect.basis == "unknown" else "little gain", effect.reason
    if effect.quantity == "quantile" and not _is_gain(effect, situation.delay):
        return "little gain", "within the errors of the simulations" if 0 < effect.gain <= effect.error else None
    return "do", None


def _is_gain(effect: Effect, delay: float) -> bool:
    """Return whether a gain is more than its error, and than a negligible part of the present `delay` [s]."""
    return effect.gain == math.inf or effect.gain > max(SMALLEST_GAIN * delay, effect.error)


def recommendation(rule: Rule, situation: Situation) -> Recommendation:
    """Return the recommendation of one rule in a situation; the effect is computed only if the rule holds."""
    applies = rule.holds(situation)
    settings = rule.settings.filled_in(math.ceil(situation.load), situation.whole_packets, situation.lower_rate)
    effect = rule.effect(situation) if applies else None
    place, why = _place(rule, situation, applies, effect)
    return Recommendation(
        key=rule.key,
        level=rule.level,
        title=rule.title,
        reason=rule.reason if rule.finding is None else f"{rule.reason} {rule.finding(situation)}",
        condition=rule.condition,
        applies=applies,
        place=place,
        why=why,
        status=rule.status,
        setting=settings.linux,
        macos=settings.macos,
        windows=settings.windows,
        browser=settings.browser,
        evidence=rule.evidence,
        effect=effect,
    )


def _rank(found: Recommendation, target: Target) -> tuple[bool, bool, float, float]:
    """Return a key that sorts recommendations by their effect, the largest first.

    Effects that hold only under a condition come last. Before them, effects that meet the target come first.
    """
    effect = found.effect
    if effect is None:
        return True, True, 0.0, math.inf
    after = math.inf if effect.with_rule is None or effect.quantity != "quantile" else effect.with_rule
    return effect.provided is not None, not target.is_met_by(after), -effect.gain, after


def recommendations(situation: Situation) -> list[Recommendation]:
    """Return the recommendations of all rules in a situation, in the order of the report."""
    constant_rate = isinstance(situation.source, Flow)
    rules = QUIC_RULES if isinstance(situation.stack, Quic) else RULES
    found = [recommendation(rule, situation) for rule in rules if constant_rate or rule.any_source]
    helpful = sorted((each for each in found if each.place == "do"), key=lambda each: _rank(each, situation.target))
    less = f"less than the {MOST_TO_DO} above"
    moved = [replace(each, place="little gain", why=less) for each in helpful[MOST_TO_DO:]]
    others = [*moved, *(each for each in found if each.place != "do")]
    return [*helpful[:MOST_TO_DO], *sorted(others, key=lambda each: PLACES.index(each.place))]


# The findings on any source: delays, the verdict whether they meet the target, margins, and recommendations.

NO_PARTS = DelayParts(math.nan, math.nan, math.nan, math.nan)
"""Parts of the mean delay where there are no delays."""


@dataclass(frozen=True)
class CapturedDelays:
    """The 95th percentile of the delays of a capture, and what chance makes of it on the measured path."""

    p95: float  # In the capture [s]
    by_chance: Interval  # In simulations as long as the capture: median, lowest and highest [s]
    messages: int  # Number of messages in the capture


@dataclass(frozen=True, kw_only=True)
class JudgedDelays:
    """The findings of a report that do not depend on the kind of source: predicted delays, and the verdict on them."""

    # path, stack, target: The scenario without its source, and the demand on the delay.
    path: Path
    stack: KnownStack
    target: Target
    works: bool  # Whether the prediction meets the target
    # The answer of the chain or of a simulation, from which the verdict and the delays follow. It has no delays if
    # the simulation has not settled, and the chain has no answer either.
    answer: Answer
    # Smallest and largest share of late packets that the expected error of the prediction allows.
    late_range: tuple[float, float]
    parts: DelayParts  # Parts of the mean delay [s]; NaN without delays
    utilization: float  # The mean bitrate divided by the rate of a long TCP transfer on the path
    # Whether the target is met; "uncertain" if the expected error of the prediction reaches across the limit, or if
    # the target is met in one part of the measured path's confidence interval and missed in another part.
    verdict: Verdict
    # The margins of loss, round-trip time and bitrate; without the bitrate if the source cannot be scaled.
    margins: tuple[Margin, ...]
    # The rules that apply to this kind of source, in the order of the report: first what to do, beginning with the
    # largest effect.
    recommendations: tuple[Recommendation, ...]
    # The predictions at the ends of the measured path's confidence intervals, then for the best and the worst path of
    # the preset's kind; empty if the path was neither measured nor a preset.
    alternatives: tuple[Alternative, ...]
    # The target's quantile of the delay without a change [s], by the model that computes the effects of changes. NaN
    # if the simulation has not settled.
    unchanged: float
    expected_error: ExpectedError  # The probable error of the prediction
    notes: tuple[str, ...]  # Limits of the numbers that the reader should know
    ignored: Mapping[str, str]  # Fields of the scenario that the model ignores, and the values that it assumes
    loss_curve: LossCurve  # The target's quantile against the loss
    # Why the chain has no answer, so that all figures are simulated; empty if the chain has an answer.
    simulated_because: str
    # Whether another transport would help; None over QUIC, over the TCP of 2008, and without delays.
    transports: TransportComparison | None = None
    estimate: PathEstimate | None = None  # The measurement from which the path was made
    path_preset: PathPreset | None = None  # The preset from which the path was made
    captured: CapturedDelays | None = None  # The delays of the capture from which path and source were made

    messages: ClassVar[str] = "packets"
    """The word for what arrives."""
    recorded: ClassVar[tuple[str, ...]]
    """Names of the fields that `to_dict` returns, in the order of its keys."""

    @classmethod
    def of(
        cls, request: GuidelineRequest, judgement: Judgement, answer: Answer, model: AnsweredBy | Model, **others: Any
    ) -> Self:
        """Compute the fields of this class from the verdict and its answer, and return the findings.

        Effects of changes start from `answer`. Margins and delays at other losses are those of `model`.
        """
        judged = judgement.answer
        scenario, target, estimate = request.scenario, request.target, request.estimate
        utilization = connection_utilization(scenario.source, scenario.path, scenario.stack)
        works, certain = judged.meets(target), judgement.verdict != "uncertain"
        method: AnsweredBy = "chain" if request.method == "chain" else "auto"
        edges = margins(scenario, target, method, request.on_margin)
        found = tuple(margin.agreeing(works, certain) for margin in edges)
        bitrate = next((margin for margin in found if margin.quantity == "bitrate"), None)
        simulated = model != "chain" and answer.answered
        # Less precise than the answer, as there are many changes: an effect counts beyond the errors of both.
        compared = simulator(COMPARED_PACKETS, request.on_progress) if simulated else model
        situation = Situation(answer, target, utilization, bitrate, request.application, compared, judged)
        alternatives = alternatives_at_ends(scenario, target, measured_ends(scenario.path, estimate), model)
        verdict = agreed_verdict(judgement, works, alternatives)
        alternatives += over_kind(scenario, target, request.path_preset, compared)
        return cls(
            path=scenario.path,
            stack=scenario.stack,
            target=target,
            works=works,
            answer=judged,
            late_range=late_range(judgement.answer, target.latest),
            parts=answer.parts or NO_PARTS,
            utilization=utilization,
            verdict=verdict,
            margins=found,
            recommendations=tuple(recommendations(situation)),
            alternatives=alternatives,
            unchanged=situation.delay,
            expected_error=judged.expected_error or UNKNOWN_ERROR,
            ignored=judged.ignored,
            loss_curve=loss_curve(scenario, target, found[0], model, judged),
            estimate=estimate,
            path_preset=request.path_preset,
            transports=other_transports(scenario, target, judged, verdict),
            **others,
        )

    @property
    def settled(self) -> bool:
        """Whether the expected error of the prediction stays on one side of the limit."""
        fewest, most = (self.target.allows(share) for share in self.late_range)
        return fewest == most

    @property
    def distribution(self) -> DelayDistribution:
        """The predicted delays."""
        return self.answer.require()

    @property
    def endless(self) -> bool:
        """Whether the delay grows for as long as the source sends, or is not known.

        Lost datagrams have infinite delays too, so that the mean delay alone does not say it.
        """
        return (math.isinf(self.mean) and not self.answer.sustainable) or math.isnan(self.mean)

    @property
    def tells_timeouts(self) -> bool:
        """Whether the parts of the delay have timeouts of their own: a simulation counts their backlog as backlog.

        The chain of QUIC has no such part either: its probe timeouts belong to repairs.
        """
        return not (self.simulated_because or isinstance(self.stack, Quic))

    @property
    def by_kind(self) -> Mapping[str, DelayDistribution]:
        """Delays of each kind of message; empty if there is only one kind, or if delays are infinite or unknown."""
        found: Mapping[str, DelayDistribution] = getattr(self.answer.distribution, "by_kind", {})
        return found

    def quantile_of(self, share: float) -> float:
        """Return the delay [s] within which a share of the packets arrives; NaN if the simulation has not settled."""
        return self.distribution.quantile(share) if self.answer.answered else math.nan

    def late_after(self, delay: float) -> float:
        """Return the share of packets later than a delay [s]; NaN if the simulation has not settled."""
        return self.distribution.late_fraction(delay) if self.answer.answered else math.nan

    @property
    def mean(self) -> float:
        """Mean delay [s]; NaN if the simulation has not settled."""
        return self.distribution.mean if self.answer.answered else math.nan

    @property
    def jitter(self) -> float:
        """Standard deviation of the delay [s]; NaN if the simulation has not settled."""
        return self.distribution.jitter if self.answer.answered else math.nan

    @property
    def quantile(self) -> float:
        """The target's quantile of the delay [s]; NaN if the simulation has not settled."""
        return self.quantile_of(self.target.quantile)

    @property
    def late_fraction(self) -> float:
        """Share of the packets that arrive later than the target's limit; NaN if the simulation has not settled."""
        return self.late_after(self.target.limit)

    def delay_record(self) -> dict[str, Any]:
        """Return the figures of the delay by name, in seconds and fractions."""
        answer, refusal = self.answer, self.answer.refusal
        return {
            "mean": self.mean,
            "jitter": self.jitter,
            **{quantile_name(q): self.quantile_of(q) for q in REPORTED_QUANTILES},
            "target_quantile": self.quantile,
            "late_fraction": self.late_fraction,
            "method": answer.method,
            "sustainable": answer.sustainable if answer.answered else None,
            **settled_record(refusal if isinstance(refusal, NotSettledError) else None),
        }

    def other_entries(self) -> dict[str, Any]:
        """Return the entries of `to_dict` that take the place of fields or come in addition to them."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain numbers, strings, lists and dictionaries.

        Infinite delays, delays of a simulation that has not settled, and quantiles of too few messages become None.
        """
        record = {name: getattr(self, name) for name in self.recorded}
        record |= {"delay": self.delay_record(), **self.other_entries(), "estimate": self.estimate}
        record |= {"path_preset": self.path_preset, "captured": self.captured}
        plain: dict[str, Any] = to_jsonable_python(record, inf_nan_mode="null", fallback=np.ndarray.tolist)
        return plain

    def to_json(self) -> str:
        """Return the findings as JSON: delays in seconds, rates in bit/s, shares as fractions."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)


# Whether a change of transport would help a flow over TCP, from quick simulations of QUIC on the same path.

SIMULATED = 100_000
"""Packets of QUIC in each simulation; it takes some tenths of a second."""
FEWEST_SIMULATED = 5000
"""Fewest messages of a simulation."""
SMALLEST_SAVING = 0.01
"""Smallest saving that counts, as a share of the delay over TCP."""
OVER_QUIC: dict[str, dict[str, Any]] = {
    "QUIC streams": {"delivery": "stream_per_message"},
    "QUIC streams, BBR": {"delivery": "stream_per_message", "congestion_control": "bbr"},
    "QUIC datagrams": {"delivery": "datagram"},
}
"""The transports over QUIC that are compared with TCP, by name: settings of `tcpdelay.Stack.quic`.

One stream for all messages delays them much as TCP does. BBR is there because the rules advise it for TCP."""


@dataclass(frozen=True)
class OtherTransport:
    """The delays over another transport."""

    name: str  # The transport in words
    delivery: Delivery  # Delivery of `tcpdelay.Stack.quic`
    # The target's quantile of the delay [s] with its 95 % interval. Lost datagrams have an infinite delay.
    quantile: Interval
    late_fraction: float  # Share of the messages that are late or lost
    verdict: Verdict  # Whether the target is met
    # Whether this transport meets a target that TCP misses, or saves more than the errors of both delays and more than
    # 1 % of the delay.
    helps: bool


@dataclass(frozen=True)
class TransportComparison:
    """TCP and other transports on one path."""

    # The target's quantile of the delay over TCP [s], with the range that its expected error allows.
    quantile: Interval
    late_fraction: float  # Share of the messages that are late over TCP
    verdict: Verdict  # Whether TCP meets the target
    others: tuple[OtherTransport, ...]  # The other transports that the simulator has an answer for
    refusal: str = ""  # Why the simulator has no answer for one of them; empty if it has


def other_transports(
    scenario: Scenario, target: Target, answer: Answer, verdict: Verdict
) -> TransportComparison | None:
    """Simulate the messages of a scenario over QUIC, and return whether this helps."""
    if not isinstance(scenario.stack, Linux) or answer.distribution is None:
        return None
    delays, share = answer.distribution, target.quantile
    own = delays.quantile(share)
    error = relative_error(scenario.stack, answer.expected_error)
    within = Interval(own, own * max(1 - error, 0.0), own * (1 + error))
    found: list[OtherTransport] = []
    unsettled: list[str] = []
    refusal = ""
    for name, settings in OVER_QUIC.items():
        over_quic = Scenario(scenario.source, scenario.path, Stack.quic(**settings))
        refused = supports(over_quic, "simulation").refused
        if refused:
            fields = ", ".join(error.name.replace("_", " ") for error in refused)
            refusal = f"the simulator of QUIC does not model this scenario ({fields})"
            return TransportComparison(within, delays.late_fraction(target.limit), verdict, (), refusal)
        requested = Requested(packets=_messages(over_quic), target=target)
        simulated = predict(over_quic, requested, "simulation")
        if simulated.distribution is None:
            unsettled.append(name)
            refusal = f"not settled, because the load is close to what QUIC carries: {', '.join(unsettled)}"
            continue
        quantile = cast("Simulation", simulated.distribution).quantile_interval
        met = verdict_of(simulated, target)
        helps = (met == "works" and verdict == "fails") or _saves(within, quantile)
        late = simulated.distribution.late_fraction(target.limit)
        found.append(OtherTransport(name, settings["delivery"], quantile, late, met, helps))
    return TransportComparison(within, delays.late_fraction(target.limit), verdict, tuple(found), refusal)


def _messages(scenario: Scenario) -> int:
    """Return the number of messages to simulate: fewer if they are large, so that the time is about the same."""
    if not isinstance(scenario.source, Flow):
        return packets_to_count(scenario, SIMULATED)
    return max(int(SIMULATED / max(scenario.flow.packet_size / scenario.stack.mss, 1)), FEWEST_SIMULATED)


def _saves(own: Interval, other: Interval) -> bool:
    """Return whether another delay is shorter by more than the errors of both, and by more than a negligible part."""
    if math.isinf(own.value):
        return math.isfinite(other.value)
    return other.high < own.low and own.value - other.value > SMALLEST_SAVING * own.value
