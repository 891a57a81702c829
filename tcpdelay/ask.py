"""The interface of a model: the fields of a scenario that it supports, its answer, and the largest rate of TCP.

A model is any object with the methods of `Model`; `tcpdelay.predict` accepts a user's own model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.errors import CAPACITY_ERROR, is_near_capacity
from tcpdelay.budget import MOST_SECONDS, checked_budget
from tcpdelay.declare import InvalidValueError, declarations, documented, meaning, shown
from tcpdelay.delays import (
    USUAL_QUANTILE,
    DelayDistribution,
    DelayParts,
    Ending,
    ExpectedError,
    carried_in_words,
    ended_after,
)
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, Target
from tcpdelay.scenario.source import TYPICAL_WRITE_JITTER, Source
from tcpdelay.statistics import Interval
from tcpdelay.units import format_fraction, format_time, told_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Status = Literal["exact", "bound", "estimated", "not carried", "not settled", "too large", "unsupported"]
"""The kind of an answer's figures.

"exact": the figures of the model, to rounding error. "bound": lower bounds of delays that certainly miss the target.
"estimated": simulated, with a statistical error. "not carried": the backlog grows as long as the flow sends, and
delays are infinite. "not settled": simulated, but the delays depend on the length of the simulation. "too large": the
scenario needs more time or memory than the model may use. "unsupported": the model refuses a field.
"""
Precision = Literal["exact", "bound", "decision"]


class UnsupportedError(InvalidValueError):
    """A model refuses the value of a field."""


SIMULATED = "tcpdelay.simulate takes it into account"
"""Hint of a chain's `UnsupportedError` at the simulator."""
QUIC_SIMULATED = f"{SIMULATED}, and so does the method 'auto'"
"""The same for QUIC, whose chain refuses no stack that the simulator does not know."""


class NotSettledError(ValueError):
    """The delays of a simulation depend on its length, because the load is close to the rate that is carried.

    `carried` and `capacity` are the carried rate relative to the flow's rate, simulated and by the chain; NaN: unknown.

    >>> print(NotSettledError(500_000, Interval(0.83, 0.62, 1.25), capacity=0.75).in_words)
    TCP carries between 62 % and 125 % of this rate; the chain decides: with 75 %, the backlog grows for ever
    """

    def __init__(
        self,
        packets: int,
        carried: Interval,
        capacity: float = np.nan,
        transport: str = "TCP",
        ended_by: Ending = "",
    ) -> None:
        self.packets, self.carried, self.capacity, self.transport = packets, carried, capacity, transport
        self.ended_by = ended_by
        super().__init__(f"not settled after {ended_after(packets, ended_by)}: {self.in_words}")

    @property
    def in_words(self) -> str:
        """What is known of the rate that is carried."""
        words = f"{self.transport} carries {carried_in_words(self.carried)} of this rate"
        if np.isnan(self.capacity):
            return words
        share, _ = told_apart(format_fraction, self.capacity, 1.0)
        if not self.carried.low <= self.capacity <= self.carried.high:
            return f"{words}; the chain does not decide: its {share} lies outside"
        if is_near_capacity(self.capacity):
            return f"{words}; the chain expects {share}, but may be {format_fraction(CAPACITY_ERROR)} wrong"
        follows = f"{self.transport} carries the flow" if self.capacity > 1 else "the backlog grows for ever"
        return f"{words}; the chain decides: with {share}, {follows}"


def settled_record(refusal: NotSettledError | None) -> dict[str, Any]:
    """Return whether a prediction has settled, and if not, the rate that TCP carries relative to the flow's rate.

    This rate is the interval of the simulation, and the figure of the chain; None if it is not known.
    """
    shares = (None, None, None) if refusal is None else (refusal.carried.low, refusal.carried.high, refusal.capacity)
    known = [None if share is None or np.isnan(share) else share for share in shares]
    names = ("carried_low", "carried_high", "carried_by_chain")
    return {"settled": refusal is None} | dict(zip(names, known, strict=True))


def unknown_fields(path: Path, known: frozenset[str], where: str, hint: str = "") -> Iterator[UnsupportedError]:
    """Yield an error for each field of a path that a model does not know and that differs from its default."""
    for name, default in _defaults_except(known):
        value = getattr(path, name)
        # Constant delays keep the order in any case.
        if value != default and not (name == "in_order" and path.jitter == 0):
            yield UnsupportedError(name, value, f"be {shown(default)} {where}", hint)


def refused_lateness(source: Source, where: str, hint: str = SIMULATED) -> Iterator[UnsupportedError]:
    """Yield an error if writes are later than usual, in a chain that knows punctual writes only."""
    if source.write_jitter > TYPICAL_WRITE_JITTER:
        allowed = f"be at most {TYPICAL_WRITE_JITTER:g} s {where}"
        yield UnsupportedError("write_jitter", source.write_jitter, allowed, hint)


def ignored_lateness(source: Source, assumed: float = 0.0) -> dict[str, str]:
    """Return the lateness that a chain assumes as text, if it is not that of the source.

    >>> from tcpdelay.scenario.source import Flow
    >>> ignored_lateness(Flow(174, 0.020)), ignored_lateness(Flow(174, 0.020, write_jitter=0))
    ({'write_jitter': '0 s'}, {})
    """
    return {} if source.write_jitter == assumed else {"write_jitter": _time_in_words(assumed)}


_time_in_words = cache(format_time)  # Formatting takes a tenth of a small prediction.


@cache
def _defaults_except(known: frozenset[str]) -> tuple[tuple[str, object], ...]:
    """Return name and default of the fields of a path that are not `known`."""
    return tuple((name, declared.default) for name, declared in declarations(Path).items() if name not in known)


@documented()
class Support:
    """How a model treats the fields of a scenario."""

    honoured: frozenset[str] = meaning("Fields that the model takes into account, whatever their value.")
    ignored: Mapping[str, str] = meaning(
        "Fields that the model does not take into account, with the value that it assumes. Fields that have the "
        "assumed value are left out.",
        default_factory=dict,
    )
    refused: tuple[UnsupportedError, ...] = meaning(
        "Fields whose value the model refuses, with the reason.", default=()
    )


@documented()
class Requested:
    """A request to a model."""

    quantiles: tuple[float, ...] = meaning("Probabilities of the quantiles, 0 to 1.", default=())
    late_after: tuple[float, ...] = meaning("Delays [s] of the late fractions.", default=())
    precision: Precision = meaning(
        '"exact": all figures. "bound": where `target` is certainly missed, lower bounds of the delays suffice; near '
        'saturation this saves nearly all of the work. "decision": only `Answer.lateness` is needed, and only as '
        "precisely as the comparison with the share of late packets that `target` allows requires.",
        default="exact",
    )
    target: Target | None = meaning('The target of "bound" and "decision".', default=None)
    distribution: bool = meaning("Whether the whole distribution is needed, or only the figures above.", default=True)
    parts: bool = meaning("Whether the parts of the mean delay are needed.", default=False)
    packets: int | None = meaning(
        "Number of packets, for a model that simulates, as in `tcpdelay.simulate`.", default=None
    )
    seed: int = meaning("Seed of the simulation.", default=0)
    on_progress: Callable[[int, int], None] | None = meaning(
        "Called with the progress of the simulation.", default=None
    )
    max_seconds: float = meaning(
        "Processor time that the answer may take [s], 0.01 to 1e6, by the model's own estimate. A chain that needs "
        'more is "too large"; a simulation ends, unless `packets` are given. The time for compiling does not count.',
        default=MOST_SECONDS,
    )
    max_memory: float | None = meaning(
        "Memory that the answer may take [bytes], 2**20 to 2**50; by default 1 GiB.", default=None
    )

    def __post_init__(self) -> None:
        checked_budget(self.max_seconds, self.max_memory)
        if self.precision != "exact" and self.target is None:
            raise InvalidValueError("target", None, f"be given with precision {self.precision!r}")


WHOLE_DISTRIBUTION = Requested()


def assumptions(method: str, ignored: Mapping[str, str]) -> tuple[str, ...]:
    """Return one sentence for each field that a model ignores."""
    hint = "" if method == "simulation" else "; `--method simulation` models it"
    return tuple(
        f"the {method} does not model {name.replace('_', ' ')} and assumes that it is {assumed}{hint}"
        for name, assumed in ignored.items()
    )


_NOTHING: NDArray[np.float64] = np.empty(0)


@documented()
class Answer:
    """The answer of a model."""

    scenario: Scenario = meaning("The scenario.")
    requested: Requested = meaning("The request.")
    method: str = meaning('Name of the model: "chain", "simulation" or a user\'s own.')
    status: Status = meaning("Kind of the figures, a `Status`.")
    quantiles: NDArray[np.float64] = meaning(
        "The requested quantiles of the delay [s]; infinite where TCP cannot carry the flow.",
        default_factory=lambda: _NOTHING,
    )
    late_fractions: NDArray[np.float64] = meaning(
        "The requested shares of late packets; 1 where TCP cannot carry the flow.", default_factory=lambda: _NOTHING
    )
    mean: float = meaning("Mean delay [s].", default=np.nan)
    sustainable: bool = meaning("Whether TCP can carry the flow.", default=False)
    truncated_mass: float = meaning("Probability that the model's backlog is at its bound.", default=0.0)
    distribution: DelayDistribution | None = meaning("The whole distribution, if requested.", default=None)
    lateness: float = meaning(
        'For precision "decision", the share of packets later than the target\'s limit, to be compared with the share '
        "that the target allows; 1 where TCP cannot carry the flow, or the chain would be too large to hold its "
        "backlog.",
        default=np.nan,
    )
    parts: DelayParts | None = meaning("Parts of the mean delay, if requested and known.", default=None)
    backlogged_time_fraction: float = meaning(
        "Share of time with packets waiting in the send buffer; NaN unless the parts were requested.", default=np.nan
    )
    ignored: Mapping[str, str] = meaning(
        "Fields that the model ignored, with the values that it assumed.", default_factory=dict
    )
    refusal: ValueError | None = meaning(
        'Why there is no answer, for "not settled", "too large" and "unsupported".', default=None
    )
    look_up_error: Callable[[float], ExpectedError] | None = meaning(
        "Returns the expected error of the answer.", default=None, repr=False, compare=False
    )
    simulated_because: str = meaning(
        'Why a simulation answers in place of the chain, if the method "auto" chose it.', default=""
    )

    @property
    def answered(self) -> bool:
        """Whether the model has an answer."""
        return self.refusal is None

    @cached_property
    def expected_error(self) -> ExpectedError | None:
        """Expected error of the answer; None where it is unknown.

        The error is looked up at the first access, because the look-up takes as long as an answer.
        """
        quantile = USUAL_QUANTILE if self.requested.target is None else self.requested.target.quantile
        if self.look_up_error is not None:
            return self.look_up_error(quantile)
        return None if self.distribution is None else self.distribution.expected_error_of(quantile)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """One sentence for each field that the model ignored, one on why it is simulated, and one on a clock's end."""
        because = (f"simulated: {self.simulated_because}",) if self.simulated_because else ()
        return (*assumptions(self.method, self.ignored), *because, *self.clock_notes)

    @property
    def clock_notes(self) -> tuple[str, ...]:
        """One sentence if the clock has ended the simulation; empty if not."""
        found = self.distribution
        if found is None or not found.ended_by_clock:
            return ()
        return (f"{found.ended_note}: this machine is far slower than expected, and another run may differ",)

    def restated(self, requested: Requested) -> Answer | None:
        """Return the answer to another request about the same scenario, or None if this answer does not hold it."""
        if requested == self.requested:
            return self
        asked, found = self.requested, self.distribution
        too_large = self.status == "too large" and asked.precision == requested.precision == "exact"
        too_large &= (asked.max_seconds, asked.max_memory) == (requested.max_seconds, requested.max_memory)
        if self.status == "unsupported" or too_large:
            return replace(self, requested=requested)
        if found is None or asked.precision != "exact" or (requested.parts and self.parts is None):
            return None
        length, other = ((each.packets, each.seed, each.packets or each.max_seconds) for each in (asked, requested))
        if self.method == "simulation" and length != other:
            return None
        return replace(self, requested=requested, **requested_figures(found, requested))

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the delays with the parameters of `DelayDistribution.plot`."""
        return self.require().plot(ax, **options)

    def _repr_html_(self) -> str:
        """Return the main figures as a table for notebooks, or as text if the distribution was not requested."""
        if self.distribution is None:
            return f"<pre>{escape(str(self.refusal or self))}</pre>"
        return self.distribution._repr_html_()

    def require(self) -> DelayDistribution:
        """Return the distribution.

        Raises
        ------
        ValueError
            If the model has no answer; the message says why.
        """
        if self.refusal is not None:
            raise self.refusal
        if self.distribution is None:
            raise InvalidValueError("distribution", False, "be requested")
        return self.distribution

    def meets(self, target: Target) -> bool:
        """Return whether the target is met; False where there is no answer.

        Raises
        ------
        InvalidValueError
            If neither the distribution nor the target's quantile was requested.
        """
        if self.refusal is not None:
            return False
        if self.requested.precision == "decision":
            return target.allows(self.lateness)
        if self.distribution is not None:
            return self.distribution.meets(target)
        if target.quantile not in self.requested.quantiles:
            raise InvalidValueError("target", target, "be one whose quantile was requested")
        return target.is_met_by(float(self.quantiles[self.requested.quantiles.index(target.quantile)]))


@dataclass
class _Found:
    """What a command has found so far."""

    answers: dict[Hashable, list[Answer]] = field(default_factory=dict)
    capacities: dict[Hashable, float] = field(default_factory=dict)
    simulations: dict[Hashable, Any] = field(default_factory=dict)


found_so_far: ContextVar[_Found | None] = ContextVar("found_so_far", default=None)
"""The answers, capacities and simulations of the outermost `solved_once`; None outside."""


@contextmanager
def solved_once() -> Iterator[None]:
    """Remember what models answer within this context, so that no scenario is solved or simulated twice.

    Contexts may be nested: the outermost one holds the answers, and forgets them at its end. Answers are remembered
    within one thread.
    """
    if found_so_far.get() is not None:
        yield
        return
    token = found_so_far.set(_Found())
    try:
        yield
    finally:
        found_so_far.reset(token)


class Model(Protocol):
    """A model of the delay of a flow over TCP."""

    @property
    def name(self) -> str:
        """Name that answers carry as their method."""
        ...

    def supports(self, scenario: Scenario) -> Support:
        """Return which fields the model honours, ignores and refuses."""
        ...

    def answer(self, scenario: Scenario, requested: Requested) -> Answer:
        """Return the answer; its status says if there is none."""
        ...

    def capacity(self, scenario: Scenario) -> float:
        """Return the largest packet rate [1/s] that TCP carries for packets written like these; infinite without loss.

        The rate is NaN where it is unknown: the model refuses the scenario, needs too much memory, or only simulates.
        """
        ...


def requested_figures(found: DelayDistribution, requested: Requested) -> dict[str, Any]:
    """Return the figures of an `Answer` that a request asks of a distribution, by name."""
    target = requested.target
    return {
        "quantiles": found.quantile(np.array(requested.quantiles)),
        "late_fractions": found.late_fraction(np.array(requested.late_after)),
        "lateness": np.nan if target is None else found.late_fraction(target.latest),
    }
