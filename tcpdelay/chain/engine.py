"""How a chain is solved: within a budget, as far as figures are requested; `Profile` is what each chain declares."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.budget import MOST_MEMORY, SECONDS_PER_UPDATE, SLICE, Budget, TooLargeError
from tcpdelay.chain.solver.aggregation import MAX_SWEEPS as MAX_SWEEPS_OF_PHASES
from tcpdelay.chain.solver.aggregation import (
    backlog_drift,
    decay,
    doublings,
    drift_after,
    tail_decay,
    tail_errors,
    widen,
)
from tcpdelay.chain.solver.state_space import Phases, Rows, Transitions, reachable_rows, rows_with_tail
from tcpdelay.chain.solver.stationary import (
    ACCEPTED_RESIDUAL,
    BYTES_PER_CELL,
    BYTES_PER_PHASE,
    CARRIED,
    LARGEST_CHAIN,
    LEFT,
    MAX_SWEEPS,
    NEGLIGIBLE_TRUNCATION,
    SECONDS_PER_STATE,
    UPDATES_PER_MOVE,
    WORTH_FINISHING,
    NarrowSolution,
    RequestedFigures,
    Solution,
    from_start,
    probability_at_bound,
    solve_directly,
    solve_within,
)
from tcpdelay.compiling.compilation import few_predictions
from tcpdelay.declare import InvalidValueError, is_number
from tcpdelay.delays import DelayDistribution, DelayParts
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Target
from tcpdelay.scenario.source import Flow

DELAYS_WORTH_A_LOOK = 2**24
"""Memory of the delays [bytes] above which it is compared with the allowed memory."""
MOST_CELLS = 3_000_000
"""Cells up to which the bound doubles: until it cuts off next to nothing, where states are listed, or for the tail."""
UNDISTURBED_DELAYS = 0.7
"""Share of the delay at the bound up to which a backlog that is cut off there does not disturb the delays."""
LARGEST_TAIL_ERROR = 0.005
"""Estimated error of the mean backlog, see `tail_errors`, above which the bound doubles.

The mean delay is then within 0.2 % of that with wider bounds in nine of ten (`validation/results/carried.md`).
"""
PHASES_WORTH_A_LOOK = 1_000
"""Phases from which on the drift is looked at first of all: even finding the backlogs of each takes longer."""
PHASES_IN_ONE_CALL = 300
"""Estimated phases up to which a distribution is first tried in one call: a larger chain often needs a wider bound, and
would be made twice."""
SECONDS_OF_SMALL_CHAIN, MEMORY_OF_SMALL_CHAIN = 1.0, 2**28
"""Least time [s] and memory [bytes] with which a small chain is solved in one call, whose cost is not estimated."""
FEWEST_SWEEPS_OF_DRIFT = 500
"""Sweeps over the phases that one call makes at least to find the drift."""
CLEAR = 4.0
"""How many times the estimated error of a share of late packets its difference from the allowed share must exceed."""
NEARLY = 0.01
"""Difference, relative to the allowed share, up to which an estimated share of late packets does not decide."""
SAME_DELAY = 1e-5
"""Relative difference up to which two delays may be the same: bins of delays move a little with the backlog's bound."""


def budget_for(max_seconds: float, max_memory: float | None) -> Budget:
    """Return what a chain may take: this time [s], and this memory [bytes] or the default."""
    return Budget(max_seconds, MOST_MEMORY if max_memory is None else max_memory)


class DelaySummary(NamedTuple):
    """A distribution of delays in a few numbers."""

    quantiles: NDArray[np.float64]  # Delays [s] within which the requested shares arrive
    late_fractions: NDArray[np.float64]  # Shares later than the requested limits
    mean: float  # [s]
    # sustainable, truncated_mass: As of a `DelayDistribution`.
    sustainable: bool
    truncated_mass: float


def summary(distribution: DelayDistribution, figures: RequestedFigures) -> DelaySummary:
    """Return the requested numbers of a distribution."""
    # For no shares and no limits, both calls would take a fifth of the time of a small chain.
    return DelaySummary(
        distribution.quantile(figures.shares) if figures.shares.size else figures.shares,
        distribution.late_fraction(figures.limits) if figures.limits.size else figures.limits,
        distribution.mean,
        distribution.sustainable,
        distribution.truncated_mass,
    )


class MadePhases(NamedTuple):
    """A chain whose phases and transitions are made, of which only the probabilities are requested."""

    structure: tuple[Phases, Transitions]
    start: int  # The phase in which the chain starts
    backlogged: int  # A phase with a backlog
    first_bound: int  # First bound of the backlog
    lossless: bool = False
    grows: bool = True


class Profile(ABC):
    """The chain of one scenario: its parameters, the phases that a kernel puts, and the delays that another finds."""

    load: float  # Packets written per round-trip time
    lossless: bool  # Whether no packet is ever lost
    grows = True  # Whether the bound of the backlog grows until the probability at the bound is negligible
    first_bound: int  # First bound of the backlog [packets]
    least_memory: float  # Minimum memory of the chain [bytes]
    least_seconds: float  # Estimated time in which the phases are made [s]

    def __init__(self, flow: Flow, path: Path) -> None:
        self.flow, self.path = flow, path

    @property
    @abstractmethod
    def structure(self) -> tuple[Phases, Transitions]:
        """Phases and transitions, with durations in seconds."""

    @property
    @abstractmethod
    def kinds(self) -> NDArray[np.str_]:
        """Kind of each phase: a word in lower case, without spaces."""

    @property
    @abstractmethod
    def start(self) -> int:
        """The phase in which the chain starts."""

    @property
    @abstractmethod
    def backlogged(self) -> int:
        """A phase with a backlog."""

    @abstractmethod
    def cost_of_delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float]:
        """Return the estimated time [s] and memory [bytes] that `delays` takes."""

    @abstractmethod
    def delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights, which sum to 1; empty if no packet ever arrives."""

    @abstractmethod
    def mean_parts(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the parts of the mean delay without the one-way delay [s]: backlog, head of line, timeouts."""

    @abstractmethod
    def backlogged_time(self, rows: Rows, probability: NDArray[np.float64]) -> float:
        """Return the share of time with packets in the send buffer."""

    @abstractmethod
    def sum_up(self, figures: RequestedFigures, result: NDArray[np.float64], most_updates: float) -> NarrowSolution:
        """Solve a chain with losses within its first bound, and compute the requested figures, in one compiled call.

        `result` receives the quantiles [s], the late fractions, the mean [s] and the probability at the bound. The
        outcome is LEFT if the chain needs a wider bound, a direct solution, or more than `most_updates`.
        """


class Solver:
    """The stationary distribution of a chain, within a budget, by bounds of the backlog that grow."""

    def __init__(self, profile: Profile | MadePhases, budget: Budget) -> None:
        self._chain, self._budget = profile, budget

    @property
    def _structure(self) -> tuple[Phases, Transitions]:
        return self._chain.structure

    def _rows_within(self, bound: int) -> Rows:
        return reachable_rows(*self._structure, self._chain.start, bound)

    @cached_property
    def backlog_drift(self) -> float:
        """Mean change of a backlog that never runs dry, in packets per second; not negative where TCP cannot keep up.

        The source's rate minus this drift's size is what TCP could carry at most.
        """
        if self._chain.lossless:
            return -np.inf
        phases, transitions = self._structure
        if phases.size <= PHASES_WORTH_A_LOOK:
            return backlog_drift(phases, transitions, self._chain.backlogged)
        inflow = np.zeros(phases.size - 1)
        inflow[self._chain.backlogged] = 1.0
        seconds, done = UPDATES_PER_MOVE * transitions.size * SECONDS_PER_UPDATE, 0
        while True:
            most = min(max(int(SLICE / seconds), FEWEST_SWEEPS_OF_DRIFT), int(self._budget.left() / seconds) + 1)
            drift, sweeps = drift_after(phases, transitions, inflow, min(most, MAX_SWEEPS_OF_PHASES - done))
            self._budget.spend(sweeps * seconds)
            done += sweeps
            if sweeps < most or done >= MAX_SWEEPS_OF_PHASES:
                return drift

    @property
    def carried(self) -> bool:
        """Whether TCP carries the flow: the backlog of a sender that always has packets to send shrinks in the mean.

        This alone decides it, for the delays, for the capacity and for all questions.
        """
        return self.backlog_drift < 0

    @cached_property
    def _narrow(self) -> tuple[Rows, Solution, NDArray[np.float64]]:
        """Rows, solution and last inflow within the first bound of the backlog; rough if too much is cut off there."""
        rows = self._rows_within(self._chain.first_bound)
        self._budget.require_memory(float(rows["offset"][-1]) * BYTES_PER_CELL)
        largest_cut = WORTH_FINISHING if self._chain.grows else np.inf
        inflow = from_start(rows, self._chain.start)
        return rows, self._solve(rows, inflow, largest_cut), inflow

    def _widened(
        self, wider: Rows, rows: Rows, solution: Solution, inflow: NDArray[np.float64], largest_cut: float
    ) -> tuple[Rows, Solution, NDArray[np.float64]]:
        """Return wider rows, their solution and last inflow, from a solution within narrower ones."""
        self._budget.require_memory(float(wider["offset"][-1]) * BYTES_PER_CELL)
        begun = widen(rows, inflow, wider, decay(self._structure[0], rows, solution.probability))
        return wider, self._solve(wider, begun, largest_cut), begun

    def cut(self, rows: Rows, solution: Solution) -> float:
        """Return the probability of the backlogs at the bound, where they are cut off."""
        # In plain Python, kernels return NumPy's numbers.
        return float(probability_at_bound(self._structure[0], rows, solution.probability))

    def listed(self, most_cells: float = np.inf, most_bounds: int = 40) -> tuple[Rows, Solution]:
        """Return rows and solution with single states for all backlogs that matter.

        TooLargeError if there are more than `most_cells`, or after `most_bounds` bounds, each twice the one before.
        """
        (rows, solution, inflow), bound = self._narrow, self._chain.first_bound
        while self._chain.grows and self.cut(rows, solution) >= NEGLIGIBLE_TRUNCATION:
            if bound >= self._chain.first_bound << (most_bounds - 1):
                raise TooLargeError(f"the backlogs may be larger than {bound} packets, the largest bound of this chain")
            bound *= 2
            wider = self._rows_within(bound)
            if wider["offset"][-1] > most_cells:
                raise TooLargeError(f"the chain has more than {most_cells} states: the backlog may be {bound} packets")
            rows, solution, inflow = self._widened(wider, rows, solution, inflow, WORTH_FINISHING)
        return rows, solution

    def _solve(self, rows: Rows, inflow: NDArray[np.float64], largest_cut: float) -> Solution:
        """Solve the chain from `inflow` on; roughly where more than `largest_cut` stands at the bound."""
        try:
            return self._solve_within_budget(rows, inflow, largest_cut)
        except ArithmeticError as error:
            raise TooLargeError(f"no solution was found ({error})") from None

    def _solve_within_budget(self, rows: Rows, inflow: NDArray[np.float64], largest_cut: float) -> Solution:
        """Return the solution; an ArithmeticError where the iteration does not settle."""
        phases, transitions = self._structure
        start = self._chain.start
        if self._chain.lossless:
            # Nothing is ever lost: the chain stays where it starts.
            return Solution(np.ones(1), 0.0, 0)
        iterate = partial(solve_within, self._budget, phases, transitions, rows, start, inflow, largest_cut)
        solution = iterate()
        if solution.residual <= ACCEPTED_RESIDUAL:
            return solution
        if self.cut(rows, solution) > largest_cut:
            return solution
        if rows["ratio"][0] > 0 or solution.probability.size > LARGEST_CHAIN:
            # What has not settled may still move by the residual in each of as many sweeps.
            if solution.residual * MAX_SWEEPS >= NEGLIGIBLE_TRUNCATION:
                # The inflow is that of the last sweep: the iteration goes on from there.
                solution = iterate()
            if solution.residual * MAX_SWEEPS < NEGLIGIBLE_TRUNCATION:
                return solution
            if rows["ratio"][0] > 0:
                raise ArithmeticError("the backlogs near the capacity do not settle")
        self._budget.spend(SECONDS_PER_STATE * min(solution.probability.size, LARGEST_CHAIN))
        return solve_directly(phases, transitions, rows, start)


class SolvedChain(Solver):
    """The delays of a `Profile`, solved when asked, and only as far as the figures take."""

    def __init__(self, profile: Profile, budget: Budget) -> None:
        super().__init__(profile, budget)
        self.flow, self.path = profile.flow, profile.path
        self._profile = profile
        self._budget.load = f"{self.load:.4g} packets per round-trip time"
        # The phases have to fit before they are made; their backlogs are looked at once the drift has spoken.
        self._budget.require_memory(profile.least_memory)
        self._budget.spend(profile.least_seconds)

    @property
    def load(self) -> float:
        """Load r: packets written per round-trip time; a whole number in the published chain."""
        return self._profile.load

    @property
    def known_capacity(self) -> float | None:
        """The `capacity` if it has been computed."""
        return self.capacity if self._profile.lossless or "backlog_drift" in self.__dict__ else None

    @property
    def capacity(self) -> float:
        """Largest packet rate [1/s] that TCP carries for packets written like these; infinite without loss.

        It is 0 where a recovery may never end, see `backlog_drift`.
        """
        return max(self.flow.packet_rate - self.backlog_drift, 0.0)

    @property
    def _is_endless(self) -> bool:
        """Whether the backlog grows for ever, and the stack asks to say so."""
        return self._profile.grows and not self.carried

    @cached_property
    def _listed(self) -> tuple[Rows, Solution]:
        """Rows and solution with single states for all backlogs that matter; a ValueError where there are too many."""
        if self._is_endless:
            raise ValueError(
                "the backlog of this flow has no finite bound: TCP cannot carry it (sustainable is False); "
                "Stack.newreno_2008(backlog_bound='published') cuts the backlog off as published"
            )
        return self.listed(MOST_CELLS)

    @cached_property
    def _solved(self) -> tuple[Rows, Solution] | None:
        """Rows and solution, or None where the backlog grows for ever."""
        if self._is_endless:
            return None
        *_, (rows, solution, _) = self._solutions()
        return rows, solution

    def _solutions(self) -> Iterator[tuple[Rows, Solution, float]]:
        """Yield rows, solution, and the relative error of the probability of large backlogs, the last one precise."""
        (rows, solution, inflow), phases = self._narrow, self._structure[0]
        cut = self.cut(rows, solution)
        if not self._profile.grows or cut < NEGLIGIBLE_TRUNCATION:
            yield rows, solution, 0.0
            return
        bound, factor = self._profile.first_bound, decay(phases, rows, solution.probability)
        if factor < 1 and doublings(cut, factor, bound, NEGLIGIBLE_TRUNCATION) == 1:
            # Twice the bound cuts off next to nothing, and takes less time than single cells for all larger backlogs.
            bound *= 2
            rows, solution, inflow = self._widened(self._rows_within(bound), rows, solution, inflow, WORTH_FINISHING)
            if self.cut(rows, solution) < NEGLIGIBLE_TRUNCATION:
                yield rows, solution, 0.0
                return
        ratio = tail_decay(*self._structure, self._profile.backlogged, factor)
        if ratio == 0:
            # The backlog is bounded by itself.
            yield *self._listed, 0.0
            return
        with_tail = rows_with_tail(*self._structure, self._profile.start, bound, ratio)
        while True:
            rows, solution, inflow = self._widened(with_tail, rows, solution, inflow, np.inf)
            error, error_of_mean = tail_errors(phases, rows, solution.probability)
            yield rows, solution, error
            bound *= 2
            with_tail = rows_with_tail(*self._structure, self._profile.start, bound, ratio)
            if error_of_mean <= LARGEST_TAIL_ERROR or with_tail["offset"][-1] > MOST_CELLS:
                return

    def _distribution(self, rows: Rows, solution: Solution) -> DelayDistribution:
        seconds, memory = self._profile.cost_of_delays(rows, solution.probability)
        if memory > DELAYS_WORTH_A_LOOK:
            self._budget.require_memory(memory)
        self._budget.spend(seconds)
        values, weights = self._profile.delays(rows, solution.probability)
        if values.size == 0:
            # Packets so large that no window ever holds a whole one.
            return DelayDistribution.unsustainable(self.path.forward_delay)
        cut_off = 0.0 if rows["ratio"][0] > 0 else self.cut(rows, solution)
        return DelayDistribution(values, weights, self.path.forward_delay, self.carried, cut_off)

    def _is_undisturbed(self, delay: float, bound: int) -> bool:
        """Return whether a bound of the backlog [packets] does not disturb the probability of a delay [s]."""
        return delay <= self.path.forward_delay + UNDISTURBED_DELAYS * bound * self.flow.interval

    def meets(self, limit: float, quantile: float) -> bool:
        """Return whether a share `quantile` of the packets arrives within `limit` [s]."""
        target = Target(limit, quantile)
        return target.allows(self.lateness(target.latest, quantile))

    def lateness(self, limit: float, quantile: float) -> float:
        """Return the share of packets later than `limit` [s], to be compared with 1 - `quantile`; 1 where not carried.

        It is as precise as that comparison takes: exact where the two nearly agree.
        """
        if not is_number(limit) or not limit >= 0:
            raise InvalidValueError("limit", limit, "be a number of seconds, 0 or more")
        if (late := self._lateness_in_narrow(limit, quantile)) is not None:
            return late
        if self._is_endless:
            return 1.0
        if "_solved" in self.__dict__:
            return self.delay_distribution().late_fraction(limit)
        if (missed := self._missed(limit * (1 + SAME_DELAY), quantile)) is not None:
            return missed.late_fraction(limit)
        late = 1.0
        for rows, solution, error in self._solutions():
            late = self._distribution(rows, solution).late_fraction(limit)
            if abs(late - (1 - quantile)) > CLEAR * error * late:
                break
        return late

    def _lateness_in_narrow(self, limit: float, quantile: float) -> float | None:
        """Return `lateness` of a small chain within the first bound, or None where the bound or a near tie matters."""
        limits = limit * (1 + SAME_DELAY * np.array([0.0, 1.0, -1.0]))
        found = self._narrow_summary(RequestedFigures(np.empty(0), limits, limit, quantile))
        if found is None:
            return None
        late, lowest, highest = found.late_fractions.tolist()
        if found.sustainable and found.truncated_mass >= NEGLIGIBLE_TRUNCATION:
            # A wider bound only lets the backlog grow, as in `_missed`.
            return late if lowest > 1 - quantile else None
        # A share that is too near to the allowed one, at limits that differ by `SAME_DELAY`, does not decide.
        near = abs(late - (1 - quantile)) <= NEARLY * (1 - quantile) + highest - lowest
        return None if near else late

    def distribution_up_to(self, limit: float, quantile: float) -> DelayDistribution:
        """Return the distribution; where a target is missed for certain, only as much of it as it takes to say so.

        The bound of the backlog widens no further once the share `quantile` of the packets does not arrive within
        `limit` [s]: a wider one only lets the backlog grow. Delays are lower bounds then, and `truncated_mass` says how
        much is cut off. Near saturation that saves nearly all of the work.
        """
        missed = self._missed(limit, quantile) if limit < np.inf else None
        return self.delay_distribution() if missed is None else missed

    def _missed(self, limit: float, quantile: float) -> DelayDistribution | None:
        """Return the delays within the first bound if they already miss a target, or None."""
        if not self._profile.grows or self._is_endless or "_solved" in self.__dict__:
            return None
        rows, solution, inflow = self._narrow
        if self.cut(rows, solution) < NEGLIGIBLE_TRUNCATION or not self._is_undisturbed(limit, int(rows["bound"][0])):
            return None
        if solution.residual > ACCEPTED_RESIDUAL:
            solution = self._solve(rows, inflow.copy(), np.inf)
        distribution = self._distribution(rows, solution)
        return distribution if distribution.quantile(quantile) > limit else None

    def summary_up_to(self, figures: RequestedFigures) -> DelaySummary:
        """Return `distribution_up_to` the target in a few numbers, for a small chain in a fraction of its time."""
        found = self._narrow_summary(figures)
        return summary(self.distribution_up_to(figures.limit, figures.share), figures) if found is None else found

    def _narrow_summary(self, figures: RequestedFigures) -> DelaySummary | None:
        """Return `summary_up_to` of a small chain within its first bound; None where that bound does not suffice."""
        found = self._narrow_figures(figures, np.inf)
        if found is None:
            return None
        result, outcome, _, _ = found
        mean, cut = result[-2:].tolist()
        quantiles, late = result[: figures.shares.size], result[figures.shares.size : -2]
        return DelaySummary(quantiles, late, mean, outcome == CARRIED, cut)

    def distribution_alone(self, figures: RequestedFigures) -> DelayDistribution:
        """Return `distribution_up_to` the target, for a small chain in one compiled call: without the solution itself.

        The solution, which parts of the mean delay need, would have to be computed again.
        """
        found = None
        few_phases = self._profile.least_memory <= PHASES_IN_ONE_CALL * BYTES_PER_PHASE
        allowed = self._budget.left() >= SECONDS_OF_SMALL_CHAIN and self._budget.max_memory >= MEMORY_OF_SMALL_CHAIN
        if few_phases and allowed:
            # Where the call is not compiled, single calls of its kernels do the same.
            with few_predictions():
                found = self._narrow_figures(figures, SLICE / SECONDS_PER_UPDATE)
        if found is None:
            return self.distribution_up_to(figures.limit, figures.share)
        result, outcome, values, weights = found
        if values.size == 0:
            return DelayDistribution.unsustainable(self.path.forward_delay)
        return DelayDistribution(values, weights, self.path.forward_delay, outcome == CARRIED, float(result[-1]))

    def _narrow_figures(
        self, figures: RequestedFigures, most_updates: float
    ) -> tuple[NDArray[np.float64], int, NDArray[np.float64], NDArray[np.float64]] | None:
        """Return the figures of a small chain within its first bound, the outcome, the delays and their weights.

        It is None where that bound does not suffice. The figures are those of `Profile.sum_up`.
        """
        small = self._profile.least_memory <= PHASES_WORTH_A_LOOK * BYTES_PER_PHASE
        if not small or self._profile.lossless:
            return None
        if not self._is_undisturbed(figures.limit, self._profile.first_bound):
            figures = figures._replace(limit=np.inf)
        result = np.empty(figures.shares.size + figures.limits.size + 2)
        outcome, values, weights, drift = self._profile.sum_up(figures, result, most_updates)
        if not math.isnan(drift):
            # The cached property need not find it again.
            self.__dict__["backlog_drift"] = drift
        return None if outcome == LEFT else (result, outcome, values, weights)

    @cached_property
    def backlogged_time_fraction(self) -> float:
        """Share of time in which packets wait in the send buffer: 1 where TCP cannot carry the flow."""
        if self._solved is None:
            return 1.0
        rows, solution = self._solved
        return self._profile.backlogged_time(rows, solution.probability)

    @cached_property
    def delay_parts(self) -> DelayParts:
        """Where the mean delay comes from; the parts add up to the mean. Infinite backlog where it is not finite."""
        if self._solved is None:
            return DelayParts(self.path.forward_delay, np.inf, 0.0, 0.0)
        rows, solution = self._solved
        parts = self._profile.mean_parts(rows, solution.probability)
        return DelayParts(self.path.forward_delay, *parts)

    def delay_distribution(self) -> DelayDistribution:
        """Return the distribution of the delay from write to in-order read."""
        if self._solved is None:
            return DelayDistribution.unsustainable(self.path.forward_delay)
        return self._distribution(*self._solved)
