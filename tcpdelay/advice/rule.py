"""What the rules look at, and what following one does there.

What a rule of the guideline is.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.chain import DelayModel
from tcpdelay.models.heuristics import parallel_delay, split_delay
from tcpdelay.models.validity import ValidityWarning
from tcpdelay.questions.margins import Margin
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownStack
from tcpdelay.scenario.target import Target

Basis = Literal["chain", "bound", "none"]


@dataclass(frozen=True)
class Effect:
    """What following a rule does.

    Parameters
    ----------
    basis : {"chain", "bound", "none"}
        Whether the numbers come from the chain, are only a bound of the delay saved, or there is no effect on a current
        Linux.
    without, with_rule : float, optional
        The target's quantile [s], or the late fraction, without and with the rule; infinite where TCP cannot carry the
        flow.
    saves_up_to : float, optional
        Largest delay saved per packet [s].
    quantity : {"quantile", "late fraction"}
        What `without` and `with_rule` are.
    at : float, optional
        Playout delay [s] at which `with_rule` is the late fraction.
    provided : str, optional
        What must be so for the numbers to hold, in words, where the scenario does not say it.
    """

    basis: Basis
    without: float | None = None
    with_rule: float | None = None
    saves_up_to: float | None = None
    quantity: Literal["quantile", "late fraction"] = "quantile"
    at: float | None = None
    provided: str | None = None


NO_EFFECT = Effect("none")
"""Of a rule that a current Linux follows anyway, or that makes no difference on it."""


@dataclass(frozen=True)
class Situation:
    """What the rules look at: the scenario, its target, the delays predicted for it, and how far it may go.

    Parameters
    ----------
    flow, path, stack, target
        The scenario, and the demand on its delay.
    distribution : DelayDistribution
        The delays predicted for it.
    utilization : float
        Its bitrate over the fair rate of TCP.
    bitrate : Margin, optional
        How far its bitrate may go.
    """

    flow: Flow
    path: Path
    stack: KnownStack
    target: Target
    distribution: DelayDistribution
    utilization: float = math.nan
    bitrate: Margin | None = None

    @property
    def load(self) -> float:
        """Packets per round-trip time."""
        return self.path.rtt / self.flow.interval

    @property
    def small(self) -> bool:
        """Whether packets are smaller than a segment."""
        return self.flow.packet_size < self.stack.mss

    @property
    def whole_packets(self) -> int:
        """Bytes of the whole packets that fit into a segment; those of a segment where not one does."""
        return self.stack.mss // self.flow.packet_size * self.flow.packet_size or self.stack.mss

    @property
    def quantile_now(self) -> float:
        """The target's quantile as predicted [s]."""
        return self.distribution.quantile(self.target.quantile)

    @property
    def late_now(self) -> float:
        """Share of the packets that come later than the limit."""
        return self.distribution.late_fraction(self.target.limit)

    def quantile(self, flow: Flow | None = None, path: Path | None = None, stack: KnownStack | None = None) -> float:
        """Return the target's quantile [s] with something changed."""
        model = DelayModel(flow or self.flow, path or self.path, stack or self.stack)
        return model.delay_distribution().quantile(self.target.quantile)

    def switch(self, name: str, without: Any, with_rule: Any) -> Effect | None:
        """Return the effect of a setting of the stack, or None where its chain has no such one."""
        if name not in {field.name for field in fields(self.stack)}:
            return None
        try:
            before, after = (
                self.quantile_now
                if getattr(self.stack, name) == value
                else self.quantile(stack=replace(self.stack, **{name: value}))
                for value in (without, with_rule)
            )
            return Effect("chain", before, after)
        except ValueError:
            # The chain is too large, or does not know what is switched.
            return None

    def change(
        self, flow: Flow | None = None, path: Path | None = None, stack: KnownStack | None = None
    ) -> Effect | None:
        """Return the effect of changing something else, or None where no chain can be solved for it."""
        try:
            return Effect("chain", self.quantile_now, self.quantile(flow, path, stack))
        except ValueError:
            return None

    def split(self, pieces: int) -> Effect | None:
        """Return the effect of writing each packet in `pieces`, or None where no chain can be solved for it."""
        return self._heuristic(split_delay, pieces)

    def spread(self, connections: int) -> Effect | None:
        """Return the effect of taking turns on `connections`, or None where no chain can be solved for it."""
        return self._heuristic(parallel_delay, connections)

    def _heuristic(self, delay: Any, number: int) -> Effect | None:
        with warnings.catch_warnings():
            # The report says itself where its model has been checked.
            warnings.simplefilter("ignore", ValidityWarning)
            try:
                changed = delay(self.flow, self.path, self.stack, number)
            except ValueError:
                return None
        return Effect("chain", self.quantile_now, changed.quantile(self.target.quantile))

    def played_after(self, delay: float) -> Effect:
        """Return what a playout delay [s] does to the late fraction."""
        late = self.distribution.late_fraction(delay)
        return Effect("chain", self.late_now, late, quantity="late fraction", at=delay)


Level = Literal["tcp", "application"]
Status = Literal["set", "default", "built in", "gone", "not a setting"]

NOT_THERE = "cannot be set there"
"""What stands where a system has no such setting."""

NO_EVIDENCE = "none here; it follows from the flow control of TCP (RFC 9293)"
"""What stands where nothing in the repository shows a rule."""


@dataclass(frozen=True)
class Settings:
    """How each system is told; where it cannot be, that is said.

    Parameters
    ----------
    linux, macos, windows, browser : str
        The socket option, sysctl, command or programming interface. In braces stand numbers of the scenario:
        `{load}`, packets per round-trip time; `{segment}`, bytes of the whole packets that fit into a segment.
    """

    linux: str
    macos: str = NOT_THERE
    windows: str = NOT_THERE
    browser: str = NOT_THERE

    def filled_in(self, load: int | str, segment: int | str) -> Settings:
        """Return the settings with a scenario's numbers, or with letters that stand for them.

        Examples
        --------
        >>> Settings("ip route change … initcwnd {load}").filled_in(load=12, segment=1392).linux
        'ip route change … initcwnd 12'
        """
        return Settings(*(text.format(load=load, segment=segment) for text in self.texts))

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """The four settings: Linux, macOS, Windows, browser."""
        return self.linux, self.macos, self.windows, self.browser


@dataclass(frozen=True)
class Rule:
    """One rule of the guideline.

    Parameters
    ----------
    key : str
        Stable name.
    level : {"tcp", "application"}
        Who follows it.
    title, reason : str
        What to do, and why.
    condition : str
        When it holds, in words.
    holds : callable
        Whether it holds in a situation.
    effect : callable
        What it does in a situation, computed; None where nothing can be said.
    status : {"set", "default", "built in", "gone", "not a setting"}
        Whether it has to be set on today's Linux.
    settings : Settings
        How each system is told.
    evidence : str
        Page, table or captures in this repository that show it, as a path from its root; or `NO_EVIDENCE`.
    finding : callable, optional
        What else is to be said of a situation, in a sentence.
    """

    key: str
    level: Level
    title: str
    reason: str
    condition: str
    holds: Callable[[Situation], bool]
    effect: Callable[[Situation], Effect | None]
    status: Status
    settings: Settings
    evidence: str
    finding: Callable[[Situation], str] | None = None


def always(_: Situation) -> bool:
    """Hold in every situation."""
    return True


@dataclass(frozen=True)
class Recommendation:
    """One rule of the guideline, for one scenario.

    Parameters
    ----------
    key : str
        Stable name of the rule.
    level : {"tcp", "application"}
        Who follows it.
    title, reason : str
        What to do, and why.
    condition : str
        When the rule holds.
    applies : bool
        Whether it holds here.
    status : {"set", "default", "built in", "gone", "not a setting"}
        Whether it has to be set on today's Linux.
    setting : str
        The exact setting on Linux, or what stands in its place.
    macos, windows, browser : str
        The same there.
    evidence : str
        What shows it, as a path in the repository.
    effect : Effect, optional
        What it does here, where that can be said.
    """

    key: str
    level: Level
    title: str
    reason: str
    condition: str
    applies: bool
    status: Status
    setting: str
    macos: str
    windows: str
    browser: str
    evidence: str
    effect: Effect | None = None
