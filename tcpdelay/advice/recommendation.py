"""A rule of the guideline, the situation in which it is checked, and its effect."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from tcpdelay.ask import Answer, Model
from tcpdelay.declare import declarations
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.heuristics import joined_delay, piece_of, share_of, striped_delay
from tcpdelay.models.predict import COMPARED_PACKETS, AnsweredBy, predict, simulator, supports
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Application, Scenario, Target
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import KnownStack
from tcpdelay.study.margins import Margin
from tcpdelay.units import format_time

Basis = Literal["chain", "simulation", "bound", "none", "unknown"]


@dataclass(frozen=True)
class Effect:
    """The effect of following a rule."""

    # "chain" and "simulation": the numbers are computed for the scenario by this model. "bound": they bound the delay
    # that is saved. "none": the rule has no effect, for the `reason` or because a current Linux follows it. "unknown":
    # the effect is not computed, for the `reason`.
    basis: Basis
    # without, with_rule: The target's quantile [s], or the late fraction; infinite where TCP cannot carry the flow.
    # `without` is NaN if the simulation of the scenario has not settled.
    without: float | None = None
    with_rule: float | None = None
    saves_up_to: float | None = None  # Largest delay saved per packet [s]
    quantity: Literal["quantile", "late fraction"] = "quantile"  # What `without` and `with_rule` are
    at: float | None = None  # Playout delay [s] at which `with_rule` is the late fraction
    provided: str | None = None  # Condition in words under which the numbers hold, where the scenario leaves it open
    reason: str | None = None  # Why the rule brings no gain here, or why its effect is not computed
    # Statistical error of the difference of both delays [s], which nine of ten do not exceed; 0 for the chain.
    error: float = 0.0

    @property
    def gain(self) -> float:
        """Delay that the rule saves at the target's quantile, or at most [s]; 0 if the effect is not a delay.

        It is infinite where the rule makes the flow one that TCP carries, or a simulation settle.
        """
        if self.saves_up_to is not None:
            return self.saves_up_to
        if self.quantity != "quantile" or self.without is None or self.with_rule is None:
            return 0.0
        if math.isnan(self.without):
            return math.inf if math.isfinite(self.with_rule) else 0.0
        return 0.0 if self.without == self.with_rule else self.without - self.with_rule


NO_EFFECT = Effect("none")
"""Effect of a rule that a current Linux already follows, or that has no effect on a current Linux."""
NOT_SETTLED = Effect("unknown", reason="the simulation of this scenario has not settled")
"""Effect of a rule that depends on the delays of a scenario whose simulation has not settled."""


@dataclass(frozen=True)
class Situation:
    """The input of the rules: the prediction for a scenario, its target, and the margin of its bitrate."""

    answer: Answer  # The prediction with which a change is compared; without delays if a simulation has not settled
    target: Target  # The demand on the delay
    utilization: float = math.nan  # The bitrate divided by the fair rate of TCP; NaN if it is not known
    bitrate: Margin | None = None  # The margin of the bitrate
    application: Application | None = None  # The application that sends the flow, if it is known
    model: AnsweredBy | Model = "chain"  # The model that answered, and answers for the scenario with a change
    judged: Answer | None = None  # The answer of the verdict; `answer` by default

    @property
    def basis(self) -> Literal["chain", "simulation"]:
        """The basis of the effects that are computed."""
        return "chain" if self.model == "chain" else "simulation"

    @property
    def flow(self) -> Flow:
        """The flow."""
        return self.answer.scenario.flow

    @property
    def source(self) -> Source:
        """The source: the flow, or a source whose rate is not constant."""
        return self.answer.scenario.source

    @property
    def path(self) -> Path:
        """The path."""
        return self.answer.scenario.path

    @property
    def stack(self) -> KnownStack:
        """The TCP implementation."""
        return self.answer.scenario.stack

    @property
    def of_verdict(self) -> Answer:
        """The answer of the verdict."""
        return self.judged or self.answer

    @property
    def distribution(self) -> DelayDistribution | None:
        """The delays on which the verdict rests; None if a simulation has not settled."""
        return self.of_verdict.distribution

    @property
    def delay(self) -> float:
        """The target's quantile of the delay [s] by the model of the effects; NaN if a simulation has not settled."""
        return _quantile(self.answer, self.target)

    @property
    def works(self) -> bool:
        """Whether the target is met."""
        return self.of_verdict.meets(self.target)

    @property
    def load(self) -> float:
        """Packets per round-trip time."""
        return (
            self.path.rtt / self.flow.interval
            if isinstance(self.source, Flow)
            else self.path.rtt * self.source.message_rate
        )

    @property
    def small(self) -> bool:
        """Whether packets are smaller than a segment."""
        return self.flow.packet_size < self.stack.mss

    @property
    def whole_packets(self) -> int:
        """Bytes of the whole packets that fit into a segment; the size of a segment if no packet fits."""
        if not isinstance(self.source, Flow):
            return self.stack.mss
        return self.stack.mss // self.flow.packet_size * self.flow.packet_size or self.stack.mss

    @property
    def played_out(self) -> bool:
        """Whether the flow may be speech or video, which a receiver can play out later."""
        return self.application is None or self.application.video or self.application.codec is not None

    @property
    def lower_rate(self) -> str:
        """How this application sends at a lower bitrate."""
        if self.application is None:
            return "a lower rate of the encoder, or smaller or fewer packets"
        if self.application.video:
            return "a lower rate of the video encoder"
        return "smaller or fewer messages" if self.application.codec is None else "a codec with a lower bitrate"

    @property
    def late_now(self) -> float:
        """Predicted share of the packets that arrive later than the limit; NaN if a simulation has not settled."""
        return math.nan if self.distribution is None else self.distribution.late_fraction(self.target.limit)

    def predicted(
        self,
        flow: Source | None = None,
        path: Path | None = None,
        stack: KnownStack | None = None,
        model: Model | None = None,
    ) -> Answer:
        """Return the prediction for the scenario with another flow, path or stack, by default of `self.model`."""
        scenario = Scenario(flow or self.source, path or self.path, stack or self.stack)
        return predict(scenario, method=model or self.model)

    def switch(self, name: str, without: Any, with_rule: Any) -> Effect | None:
        """Return the effect of a setting of the stack: None without such a field, "unknown" if the model ignores it."""
        if name not in declarations(type(self.stack)):
            return None
        if name not in supports(self.answer.scenario, self.model).honoured:
            words = name.replace("_", " ")
            return Effect("unknown", reason=f"the chain does not model {words}; `--method simulation` does")
        before, after = (
            self.answer
            if getattr(self.stack, name) == value
            else self.predicted(stack=replace(self.stack, **{name: value}))
            for value in (without, with_rule)
        )
        return self.effect(before, after)

    def switch_or_simulate(self, name: str, with_rule: Any) -> Effect | None:
        """Return the effect of a setting, simulated where the chain refuses it; None if the simulator refuses it too.

        The delay without the setting is then simulated too.
        """
        scenario = Scenario(self.source, self.path, replace(self.stack, **{name: with_rule}))
        if self.model != "chain" or not supports(scenario, self.model).refused:
            return self.effect(self.answer, predict(scenario, method=self.model))
        model = simulator(COMPARED_PACKETS)
        before = predict(replace(scenario, stack=self.stack), method=model)
        found = self.effect(before, predict(scenario, method=model))
        return None if found is None else replace(found, basis="simulation")

    def change(
        self,
        flow: Source | None = None,
        path: Path | None = None,
        stack: KnownStack | None = None,
        model: Model | None = None,
    ) -> Effect | None:
        """Return the effect of another flow, path or stack; None if the model has no answer for that scenario."""
        return self.effect(self.answer, self.predicted(flow, path, stack, model))

    def split(self, pieces: int) -> Effect | None:
        """Return the effect of writing each packet in `pieces`; None if the model has no answer for that flow."""
        return self.effect(
            self.answer,
            self.predicted(piece_of(self.flow, pieces)),
            lambda delays: joined_delay(delays, self.flow.interval, pieces),
        )

    def spread(self, connections: int) -> Effect | None:
        """Return the effect of sending packets in turn over `connections`; None if the model has no answer for that."""
        return self.effect(
            self.answer,
            self.predicted(share_of(self.flow, connections)),
            lambda delays: striped_delay(delays, self.flow.interval, connections),
        )

    def effect(
        self,
        before: Answer,
        after: Answer,
        combined: Callable[[DelayDistribution], DelayDistribution] = lambda delays: delays,
    ) -> Effect | None:
        """Return the change of the target's quantile; `combined` turns the delays after the change into the flow's."""
        if not after.answered:
            return None
        with_rule = combined(after.require()).quantile(self.target.quantile)
        error = math.hypot(*(_sampling_error(answer, self.target) for answer in (before, after)))
        return Effect(self.basis, _quantile(before, self.target), with_rule, error=error)

    def allowed_after(self, delay: float) -> bool:
        """Return whether no more packets come later than `delay` [s] than the target allows after its limit."""
        return self.distribution is not None and self.target.allows(self.distribution.late_fraction(delay))

    def played_after(self, delay: float) -> Effect:
        """Return the effect of a playout delay [s] on the late fraction.

        It is a gain only for a flow that misses its target, and only if so few packets are late after the longer delay
        as the target allows.
        """
        if self.distribution is None:
            return NOT_SETTLED
        limit = format_time(self.target.limit)
        reason = None
        if self.works:
            reason = f"the target is met with a playout after its limit of {limit}"
        elif delay <= self.target.limit:
            reason = f"{format_time(delay)} is no longer than the limit of {limit}, after which too many packets come"
        elif not self.allowed_after(delay):
            reason = f"more packets than the target allows come after {format_time(delay)}"
        late = self.distribution.late_fraction(delay)
        wait = f"the application can wait longer than the limit of {limit}"
        basis: Basis = "chain" if self.of_verdict.method == "chain" else "simulation"
        return Effect(basis, self.late_now, late, quantity="late fraction", at=delay, provided=wait, reason=reason)

    def saves_at_most(self, delay: float) -> Effect:
        """Return the effect of a rule that saves at most `delay` [s] per packet; none if TCP cannot carry the flow."""
        if self.distribution is None:
            return NOT_SETTLED
        carried = math.isfinite(self.distribution.mean)
        reason = None if carried else "TCP cannot carry the flow, with or without it"
        return Effect("bound", saves_up_to=delay, reason=reason)


def _quantile(answer: Answer, target: Target) -> float:
    """Return the target's quantile of the delay [s]; NaN if a simulation has not settled."""
    return math.nan if answer.distribution is None else answer.distribution.quantile(target.quantile)


def _sampling_error(answer: Answer, target: Target) -> float:
    """Return the statistical error of the target's quantile [s]; 0 for a chain, and where it is not known."""
    known = None if answer.distribution is None else answer.distribution.expected_error_of(target.quantile)
    error = 0.0 if known is None else known.sampling * _quantile(answer, target)
    return error if math.isfinite(error) else 0.0


Level = Literal["tcp", "application"]
Place = Literal["do", "little gain", "already so", "not computed"]
Status = Literal["set", "default", "built in", "gone", "missing", "not a setting"]

NOT_THERE = "cannot be set there"
"""Text for a system that has no such setting."""

NO_EVIDENCE = "none here; it follows from the flow control of TCP (RFC 9293)"
"""Text for a rule whose effect no page, table or capture of the repository shows."""


@dataclass(frozen=True)
class Settings:
    """The setting on each system, or the statement that there is none."""

    # The socket option, sysctl, command or programming interface. Names in braces are replaced by what fits the
    # scenario: `{load}`, packets per round-trip time; `{segment}`, bytes of the whole packets that fit into a segment;
    # `{lower_rate}`, how the application sends at a lower bitrate.
    linux: str
    macos: str = NOT_THERE
    windows: str = NOT_THERE
    browser: str = NOT_THERE

    def filled_in(self, load: int | str, segment: int | str, lower_rate: str = "a lower rate") -> Settings:
        """Return the settings with a scenario's numbers and words, or with letters in their place."""
        return Settings(*(text.format(load=load, segment=segment, lower_rate=lower_rate) for text in self.texts))

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """The four settings: Linux, macOS, Windows, browser."""
        return self.linux, self.macos, self.windows, self.browser


def always(_: Situation) -> bool:
    """Hold in every situation."""
    return True


def never(_: Situation) -> bool:
    """Hold in no situation."""
    return False


def has(name: str, value: bool | str | float) -> Callable[[Situation], bool]:
    """Return a condition that holds for a stack with this value of the field `name`, and for one without the field."""
    return lambda situation: bool(getattr(situation.stack, name, value) == value)


@dataclass(frozen=True)
class Rule:
    """One rule of the guideline."""

    key: str  # Stable name
    level: Level  # Who follows it
    # title, reason: What to do, and why.
    title: str
    reason: str
    condition: str  # When the rule holds, in words
    holds: Callable[[Situation], bool]  # Whether the rule holds in a situation
    effect: Callable[[Situation], Effect | None]  # The effect in a situation; None where none can be computed
    status: Status  # Whether the reader has to set it on a current Linux
    settings: Settings  # The setting on each system
    # Page, table or captures that show the effect, as a path from the repository's root; or `NO_EVIDENCE`.
    evidence: str
    finding: Callable[[Situation], str] | None = None  # A sentence about the situation that follows the reason
    followed: Callable[[Situation], bool] = never  # Whether the scenario follows the rule already
    any_source: bool = False  # Whether the rule applies to every source, not only to a flow of constant rate


@dataclass(frozen=True)
class Recommendation:
    """One rule of the guideline, for one scenario."""

    key: str  # Stable name of the rule
    level: Level  # Who follows it
    # title, reason: What to do, and why.
    title: str
    reason: str
    condition: str  # When the rule holds
    applies: bool  # Whether the rule holds in this scenario
    # Its place in the report. "do": it has a computed effect, or a bound on the effect, that is a gain here. "little
    # gain": little, none, or worse. "already so": the scenario follows the rule. "not computed": the effect is not
    # known.
    place: Place
    why: str | None  # Why it has this place, where the effect does not say so
    status: Status  # Whether the reader has to set it on a current Linux
    setting: str  # The exact setting on Linux, or the text in its place
    # macos, windows, browser: The settings on these systems.
    macos: str
    windows: str
    browser: str
    evidence: str  # The source of the effect, as a path in the repository
    effect: Effect | None = None  # The rule's effect in this scenario, if it can be computed
