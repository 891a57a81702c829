"""What every model offers: which fields of a scenario it knows, its answer, and what TCP could carry at most.

A model is anything with the methods of `Model`; `tcpdelay.predict` takes a user's own beside the built-in ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import CUMULATION_NOISE, DelayDistribution, ExpectedError
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.target import Target

Status = Literal["exact", "bound", "estimated", "not carried", "too large", "unsupported"]
"""What an answer's figures are.

"exact": those of the model, to rounding. "bound": lower bounds of delays that miss the target for certain. "estimated":
simulated, with a statistical error. "not carried": the backlog grows for as long as the flow sends, and delays are
infinite. "too large": the model has no room for the scenario. "unsupported": it refuses a field.
"""
Precision = Literal["exact", "bound", "decision"]


class UnsupportedError(InvalidValueError):
    """A model refuses the value of a field."""


class TooLargeError(ValueError):
    """A scenario needs more memory than a model may take."""


@dataclass(frozen=True)
class Support:
    """What a model does with the fields of a scenario.

    Parameters
    ----------
    honoured : frozenset of str
        Fields that the model takes into account, whatever their value.
    ignored : mapping of str to str
        Fields that it does not, and what it assumes in place of the given value; those with that value are left out.
    refused : tuple of UnsupportedError
        Fields whose value it refuses, with the reason.
    """

    honoured: frozenset[str]
    ignored: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[UnsupportedError, ...] = ()


@dataclass(frozen=True)
class Requested:
    """What is asked of a model.

    Parameters
    ----------
    quantiles : tuple of float
        Probabilities of the quantiles, 0 to 1.
    late_after : tuple of float
        Delays [s] of the late fractions.
    precision : {"exact", "bound", "decision"}
        "exact": all figures. "bound": where `target` is missed for certain, lower bounds of the delays will do, which
        near saturation saves nearly all of the work. "decision": nothing but `Answer.lateness` counts, as far as it
        takes to compare it with what `target` allows.
    target : Target, optional
        The demand that "bound" and "decision" are about.
    distribution : bool
        Whether the whole distribution is needed, or only the figures above.
    parts : bool
        Whether the parts of the mean delay are needed.
    packets, seed, on_progress
        For a model that simulates, as in `tcpdelay.simulate`.
    """

    quantiles: tuple[float, ...] = ()
    late_after: tuple[float, ...] = ()
    precision: Precision = "exact"
    target: Target | None = None
    distribution: bool = True
    parts: bool = False
    packets: int | None = None
    seed: int = 0
    on_progress: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        if self.precision != "exact" and self.target is None:
            raise InvalidValueError("target", None, f"be given with precision {self.precision!r}")


WHOLE_DISTRIBUTION = Requested()


@dataclass(frozen=True)
class DelayParts:
    """Where the mean delay comes from [s].

    Parameters
    ----------
    network : float
        The one-way delay of the path.
    backlog : float
        Waiting in the send buffer while the window is too small.
    head_of_line : float
        Waiting at the receiver for a retransmission.
    timeouts : float
        Waiting in the send buffer because of a retransmission timeout, until that backlog is gone.
    """

    network: float
    backlog: float
    head_of_line: float
    timeouts: float


_NOTHING: NDArray[np.float64] = np.empty(0)


@dataclass(frozen=True)
class Answer:
    """What a model answers.

    Parameters
    ----------
    scenario : Scenario
        What was asked about.
    requested : Requested
        What was asked for.
    method : str
        Name of the model: "chain", "simulation" or a user's own.
    status : str
        What the figures are.
    quantiles, late_fractions : ndarray
        The requested delays [s] and shares; infinite and 1 where TCP cannot carry the flow.
    mean : float
        Mean delay [s].
    sustainable : bool
        Whether TCP can carry the flow.
    truncated_mass : float
        Probability that the model's backlog is at its bound.
    distribution : DelayDistribution, optional
        The whole distribution, if requested.
    lateness : float
        For precision "decision", the share of packets later than the target's limit, to be compared with what the
        target allows; 1 where the flow is not carried or the model has no room for it.
    parts : DelayParts, optional
        Parts of the mean delay, if requested and known.
    backlogged_time_fraction : float
        Share of time with packets waiting in the send buffer; NaN unless the parts were requested.
    ignored : mapping of str to str
        Fields that the model ignored, and what it assumed.
    refusal : ValueError, optional
        Why there is no answer, for "too large" and "unsupported".
    """

    scenario: Scenario
    requested: Requested
    method: str
    status: Status
    quantiles: NDArray[np.float64] = field(default_factory=lambda: _NOTHING)
    late_fractions: NDArray[np.float64] = field(default_factory=lambda: _NOTHING)
    mean: float = np.nan
    sustainable: bool = False
    truncated_mass: float = 0.0
    distribution: DelayDistribution | None = None
    lateness: float = np.nan
    parts: DelayParts | None = None
    backlogged_time_fraction: float = np.nan
    ignored: Mapping[str, str] = field(default_factory=dict)
    refusal: ValueError | None = None

    @property
    def answered(self) -> bool:
        """Whether the model has an answer."""
        return self.refusal is None

    @property
    def expected_error(self) -> ExpectedError | None:
        """How far the answer is probably off; None where that is not known."""
        return None if self.distribution is None else self.distribution.expected_error

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
        """Return whether the target is met; False where there is no answer: what is not computed is not promised.

        Raises
        ------
        InvalidValueError
            If neither the distribution nor the target's quantile was requested.
        """
        if self.refusal is not None:
            return False
        if self.requested.precision == "decision":
            return self.lateness <= 1 - target.quantile + CUMULATION_NOISE
        if self.distribution is not None:
            return self.distribution.meets(target)
        if target.quantile not in self.requested.quantiles:
            raise InvalidValueError("target", target, "be one whose quantile was requested")
        return target.is_met_by(float(self.quantiles[self.requested.quantiles.index(target.quantile)]))


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
        """Return the answer; a scenario that is refused or too large is one with that status."""
        ...

    def capacity(self, scenario: Scenario) -> float:
        """Return the packet rate [1/s] that TCP carries at most for packets written like these; infinite without loss.

        Raises
        ------
        ValueError
            If the model refuses the scenario or has no room for it.
        """
        ...
