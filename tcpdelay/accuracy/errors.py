"""The expected error of a prediction: its error in similar scenarios, looked up in tables."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path as FilePath

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.throughput import connection_utilization, utilization_map
from tcpdelay.compiling.compilation import interpreted_first, kernel
from tcpdelay.declare import InvalidValueError
from tcpdelay.delays import USUAL_QUANTILE, DelayDistribution, ExpectedError, Spread
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownTcp, Linux, NewReno2008, Quic, Stack, checked_profile
from tcpdelay.statistics import Interval
from tcpdelay.units import format_fraction, quantile_name

# A table of the errors of a chain in many scenarios, in which similar scenarios are looked up.

NEIGHBOURS = 25
"""Scenarios that give an expected error: enough for a 90 % quantile, and few enough to be similar."""
FEATURES = ("rtt", "loss", "utilization", "packets_per_rtt")
"""The quantities that make scenarios similar, each on a logarithmic scale."""
FLAGS = ("cubic", "carried")
QUANTILES = (0.95, 0.99, 0.999)
"""Quantiles of the delay whose errors a table may hold."""
REACHED = 1e-9
"""Tolerance of the comparison of a cumulative weight with a share."""
WRONG_CALL = 1.0
"""Error of a prediction that is wrong about whether TCP carries the flow."""
SIMULATIONS = "simulations of scenarios like this one"
SIMULATED_CALLS = f"{SIMULATIONS}, where being wrong about whether TCP carries the flow counts as 100 %"


@dataclass(frozen=True)
class ErrorTable:
    """Errors of a chain in many scenarios."""

    # The scenarios' `FEATURES`: round-trip time [s], loss, utilization and packets per round-trip time, all above 0.
    features: NDArray[np.float64]
    # cubic, carried: Whether the congestion control is CUBIC, and whether the chain says that TCP carries the flow.
    cubic: NDArray[np.bool_]
    carried: NDArray[np.bool_]
    # Relative errors of quantiles of the delay by their probabilities, with their signs. Their size is `WRONG_CALL`
    # where chain and simulator disagree on whether TCP carries the flow, and 0 where both say that TCP does not.
    quantiles: Mapping[float, NDArray[np.float64]]
    mean: NDArray[np.float64]  # Relative errors of the mean delay

    @classmethod
    def read(cls, file: FilePath) -> ErrorTable:
        """Return the table that `to_csv` wrote into a file."""
        try:
            names = file.read_text().partition("\n")[0].split(",")
            columns = dict(zip(names, np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2).T, strict=True))
            features = np.column_stack([columns[name] for name in FEATURES])
            cubic, carried = (columns[name] == 1 for name in FLAGS)
            held = {quantile: quantile_name(quantile) for quantile in QUANTILES}
            quantiles = {quantile: columns[name] for quantile, name in held.items() if name in names}
            return cls(features, cubic, carried, quantiles, columns["mean"])
        except (KeyError, ValueError) as error:
            raise ValueError(f"{file}: holds no table of errors: {error}") from None

    def to_csv(self) -> str:
        """Return the table as CSV, with three digits, and errors to 1e-5."""
        errors = np.round(np.column_stack([*self.quantiles.values(), self.mean]), 5)
        table = np.column_stack([self.features, self.cubic, self.carried, errors])
        names = (*FEATURES, *FLAGS, *map(quantile_name, self.quantiles), "mean")
        text = io.StringIO()
        np.savetxt(text, table, "%.3g", ",", header=",".join(names), comments="")
        return text.getvalue()

    @cached_property
    def _range(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """The smallest and the largest value of each feature, and the standard deviation of its logarithm."""
        spread = np.maximum(np.log(self.features).std(axis=0), 1e-9)
        return self.features.min(axis=0), self.features.max(axis=0), spread

    def _place(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithms of features in standard deviations; values outside the range are moved to its edge."""
        low, high, spread = self._range
        return np.log(np.clip(features, low, high)) / spread

    @cached_property
    def _groups(self) -> dict[tuple[bool, bool], tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """The rows with one congestion control and one statement of the chain, and their places, a column each."""
        groups = {}
        for cubic, carried in product((False, True), repeat=2):
            rows = np.flatnonzero((self.cubic == cubic) & (self.carried == carried))
            groups[cubic, carried] = rows, np.ascontiguousarray(self._place(self.features[rows]).T)
        return groups

    def known_quantile(self, quantile: float) -> float:
        """Return the lowest quantile with known errors that is not below `quantile`, or the highest one."""
        return min((known for known in self.quantiles if known >= quantile), default=max(self.quantiles))

    def expected(
        self, features: NDArray[np.float64], cubic: bool, carried: bool, quantile: float = USUAL_QUANTILE
    ) -> ExpectedError:
        """Return the error in the most similar scenarios of the same congestion control and statement of the chain."""
        alike, places = self._groups[bool(cubic), bool(carried)]
        if not alike.size:
            return ExpectedError(np.nan, np.nan, np.nan, Spread(np.nan, np.nan, np.nan), 0, SIMULATIONS)
        known = self.known_quantile(quantile)
        at, sizes = self._place(features)[None], np.abs([self.quantiles[known][alike], self.mean[alike]])
        # A first prediction waits for no compilation.
        (found, of_mean), counted = interpreted_first(partial(_nearby_errors, places, at, sizes), _nearby_errors)
        source = SIMULATIONS if carried else SIMULATED_CALLS
        median, mean, p90 = found[0].tolist()
        return ExpectedError(median, mean, p90, Spread(*of_mean[0].tolist()), int(counted[0]), source, known)

    def expected_of_many(
        self, features: NDArray[np.float64], cubic: bool, carried: bool, quantile: float = USUAL_QUANTILE
    ) -> NDArray[np.float64]:
        """Return the error of a quantile, as `expected` gives it, of many scenarios at once."""
        alike, places = self._groups[bool(cubic), bool(carried)]
        if not alike.size:
            return np.full((features.shape[0], 3), np.nan)
        sizes = np.abs(self.quantiles[self.known_quantile(quantile)][alike])[None]
        found: NDArray[np.float64] = _nearby_errors(places, self._place(features), sizes)[0][0]
        return found


@kernel()
def _nearby_errors(
    places: NDArray[np.float64], asked: NDArray[np.float64], sizes: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return median, mean and 90 % quantile of each row of `sizes` near each place in `asked`, and how many count.

    `places` has a column for each scenario. The nearest ones count with the tricube weights of local regression; the
    largest distance sets the scale, so that its weight is 0.
    """
    found, counted = np.empty((sizes.shape[0], asked.shape[0], 3)), np.zeros(asked.shape[0], np.int64)
    most = min(NEIGHBOURS + 1, places.shape[1])
    nearest, distances, weights = np.empty(most, np.int64), np.empty(most), np.empty(most)
    for row in range(asked.shape[0]):
        _find_nearest(places, asked[row], nearest, distances)
        for i in range(most):
            near = 1.0 - (distances[i] / distances[-1]) ** 3 if distances[-1] > 0.0 else 0.0
            weights[i] = near**3
            counted[row] += weights[i] > 0.0
        if counted[row] == 0:
            weights[:], counted[row] = 1.0, most
        for kind in range(sizes.shape[0]):
            _weigh(sizes[kind], nearest, weights, found[kind, row])
    return found, counted


@kernel()
def _find_nearest(
    places: NDArray[np.float64],
    asked: NDArray[np.float64],
    nearest: NDArray[np.int64],
    distances: NDArray[np.float64],
) -> None:
    """Write the numbers of the nearest scenarios, as many as there is room for, and their distances, ascending."""
    held = 0
    for scenario in range(places.shape[1]):
        square = 0.0
        for feature in range(asked.size):
            square += (places[feature, scenario] - asked[feature]) ** 2
        if held == distances.size and square >= distances[held - 1]:
            continue
        held = min(held + 1, distances.size)
        place = held - 1
        while place > 0 and distances[place - 1] > square:
            distances[place], nearest[place] = distances[place - 1], nearest[place - 1]
            place -= 1
        distances[place], nearest[place] = square, scenario
    for place in range(held):
        distances[place] = math.sqrt(distances[place])


@kernel()
def _weigh(
    sizes: NDArray[np.float64], chosen: NDArray[np.int64], weights: NDArray[np.float64], found: NDArray[np.float64]
) -> None:
    """Write weighted median, mean and 90 % quantile of the chosen sizes, with a tolerance for rounding."""
    whole = mean = 0.0
    for i in range(chosen.size):
        whole += weights[i]
        mean += weights[i] * sizes[chosen[i]]
    found[0], found[1], found[2] = math.inf, mean / whole, math.inf
    for i in range(chosen.size):
        size, reached = sizes[chosen[i]], REACHED * whole
        for j in range(chosen.size):
            if sizes[chosen[j]] <= size:
                reached += weights[j]
        if reached >= 0.5 * whole:
            found[0] = min(found[0], size)
        if reached >= 0.9 * whole:
            found[2] = min(found[2], size)


# The expected error of a prediction: its error in similar scenarios.

TABLES = {1.0: "linux-errors.csv", 1.5: "linux-errors-burst1.5.csv", 2.0: "linux-errors-burst2.csv"}
"""Files with the errors of the chain of `Stack.linux`, by the longest mean burst of losses [segments] they apply to.

`validation/error_map.py score` writes the first file, `validation/bursts.py` the other two.
"""
CORRELATED_TABLE = "linux-errors-correlated.csv"
"""File with the errors of the chain of `Stack.linux` with correlated losses.

`validation/drop_tail_patterns.py` writes it.
"""
SPEECH_TABLE, VIDEO_TABLE = "linux-errors-speech.csv", "linux-errors-video.csv"
"""Files with the errors of the chains of speech and video, from `validation/speech.py` and `validation/video.py`."""
JITTER_TABLE = "linux-errors-jitter.csv"
"""File with the errors of the chain of `Stack.linux` with jitter; `validation/jitter.py` writes it."""
BBR_TABLE = "linux-errors-bbr.csv"
"""File with the errors of the chain of BBR; `validation/bbr_chain.py` writes it."""
SIMULATED_RATE_ERROR = 0.047
"""If packets always wait to be sent, Linux 6.1 sends up to this share more packets a second than the simulator.

`validation/near_capacity.py` compares both rates on eight paths.
"""
CAPACITY_ERROR = 0.075 + SIMULATED_RATE_ERROR
"""Error of the largest rate that the chain says TCP carries.

Nine of ten are within 7.5 % of a simulation (`validation/capacity.py`). The simulation itself may be too slow.
"""
LARGEST_CAPACITY_ERROR = 0.215 + SIMULATED_RATE_ERROR
"""Error by which that rate is too small at most: the largest of `validation/capacity.py`, and the simulation's own."""
SHARE_ERROR = 0.05
"""Relative error of a share of late messages.

Where it would move p95 by 5 % or more, half of the p95 of the chains of sources were so wrong.
"""
LARGEST_TOOTH = 0.99
"""Largest error from a tooth: from `WRONG_CALL` on, an error would say that TCP may not carry the flow."""
SIMULATED_BURSTS = "simulations of losses in bursts in scenarios like this one"
SIMULATED_JITTER = "simulations of jitter in scenarios like this one"
SIMULATED_CORRELATED = "simulations of correlated losses in scenarios like this one"
STUDENT_95 = 2.09
"""Half width of a 95 % interval in standard errors: Student's quantile for 20 batches."""
NORMAL_MEDIAN, NORMAL_MEAN, NORMAL_P90 = 0.674, 0.798, 1.645
"""Median, mean and 90 % quantile of the size of the error of an estimate, in standard errors."""


PUBLISHED_ERROR = ExpectedError(
    median=0.67,
    mean=1.54,
    p90=4.28,
    mean_delay=Spread(0.27, 0.59, 1.60),
    cases=432,
    source="captures of Linux 6.1 under random losses, predictions being too high as a rule",
)

BEYOND_CAPACITY = ExpectedError(
    median=0.0,
    mean=0.0,
    p90=0.0,
    mean_delay=Spread(0.0, 0.0, 0.0),
    cases=250,
    source="simulations of the largest rate that TCP carries",
)
"""The chain's error if a flow's rate is far above the rate that TCP carries: the delay is infinite."""

# The simulator's error in captures, without their sampling errors (`model_spread`).

SIMULATOR_ERROR = ExpectedError(
    median=0.0001,
    mean=0.0101,
    p90=0.0262,
    mean_delay=Spread(0.0019, 0.0084, 0.0085),
    cases=432,
    source="captures of Linux 6.1 under random losses",
)
"""The error in captures of constant rates (`validation/results/scores.csv`).

In captures of other sources, of jitter, lost ACKs and losses in time it is not larger beyond chance
(`validation/results/auto.csv`).
"""

BBR_ERROR = ExpectedError(
    median=0.0002,
    mean=0.0202,
    p90=0.0425,
    mean_delay=Spread(0.0032, 0.0097, 0.0187),
    cases=41,
    source="captures of BBR in Linux 6.1, 20 minutes each",
)
"""The error in captures of BBR; `validation/bbr.py` computes these figures."""

QUIC_ERROR = ExpectedError(
    median=0.0001,
    mean=0.0170,
    p90=0.0170,
    mean_delay=Spread(0.0006, 0.0050, 0.0103),
    cases=191,
    source="captures of aioquic and quic-go, 2 to 20 minutes each",
)
"""The error in captures of QUIC, below 0.9 of what Reno over TCP carries (`validation/results/quic.csv`)."""

BACKLOG_ERRORS = (
    (1.0, ExpectedError(0.097, 0.146, 0.302, Spread(0.061, 0.113, 0.230), 53, "captures of Linux 6.1 with backlogs")),
    (4.0, ExpectedError(0.357, 0.317, 0.541, Spread(0.315, 0.313, 0.514), 33, "captures near TCP's capacity")),
)
"""The simulator's error in captures, by the shortest mean delay beyond the network's own, in round-trip times.

Near the capacity, a small error of the rate makes a large error of the delay. `backlog_errors` in
`validation/near_capacity.py` computes these figures.
"""


def expected_error_map(
    flow: Flow,
    rtt: NDArray[np.float64],
    loss: NDArray[np.float64],
    stack: KnownTcp,
    carried: NDArray[np.bool_],
    quantile: float = USUAL_QUANTILE,
) -> NDArray[np.float64]:
    """Return `expected_error` of a quantile of the delay at each round-trip time and loss."""
    if isinstance(stack, NewReno2008):
        return np.broadcast_to(_figures(PUBLISHED_ERROR), (*carried.shape, 3))
    utilizations = utilization_map(flow, rtt, loss, stack)
    rtts, losses = np.broadcast_arrays(rtt[:, None], loss)
    features = np.stack([rtts, losses, utilizations, rtts / flow.interval], axis=-1)
    found = np.empty((*carried.shape, 3))
    cubic = stack.congestion_control == "cubic"
    expected = linux_table(bbr=stack.congestion_control == "bbr").expected_of_many
    found[~carried] = expected(features[~carried], cubic, False, quantile)
    captured = _figures(captured_error(stack))
    found[carried] = np.hypot(expected(features[carried], cubic, True, quantile), captured)
    return found


def _figures(spread: Spread) -> NDArray[np.float64]:
    """Return median, mean and 90 % quantile as an array."""
    return np.array([spread.median, spread.mean, spread.p90])


def features_of(flow: Flow, path: Path, stack: Linux) -> NDArray[np.float64]:
    """Return the `FEATURES` of a scenario."""
    rtt = path.mean_rtt
    return np.array([rtt, path.loss, connection_utilization(flow, path, stack), rtt / flow.interval])


def linux_table_file(burst: float = 1.0, bbr: bool = False, correlated: bool = False) -> FilePath:
    """Return the file with the errors of the chain of `Stack.linux` for a mean burst of losses [segments], or of BBR.

    It is the table of the next longer burst, or the last one. Correlated losses have a table of their own.
    """
    known = next((longest for longest in sorted(TABLES) if burst <= longest), max(TABLES))
    name = BBR_TABLE if bbr else CORRELATED_TABLE if correlated else TABLES[known]
    return FilePath(__file__).parent / "data" / name


@cache
def linux_table(burst: float = 1.0, bbr: bool = False, correlated: bool = False) -> ErrorTable:
    """Return the errors in `linux_table_file`; the file is read once."""
    return ErrorTable.read(linux_table_file(burst, bbr, correlated))


def captured_error(stack: Linux | Quic) -> ExpectedError:
    """Return the simulator's error in captures with a congestion control of TCP, or of QUIC."""
    if isinstance(stack, Quic):
        return QUIC_ERROR
    return BBR_ERROR if stack.congestion_control == "bbr" else SIMULATOR_ERROR


def simulator_error(
    statistical: ExpectedError, added: float, captured: ExpectedError = SIMULATOR_ERROR
) -> ExpectedError:
    """Return the expected error of a simulation: the error in captures like it, and the statistical error.

    The error in captures with such a mean delay beyond the network's own (`added`, in round-trip times) counts too, if
    it is larger. The error in captures and the statistical error are independent: their squares add up.

    >>> exact = ExpectedError(0.01, 0.01, 0.02, Spread(0.01, 0.01, 0.02), 0, "the statistical error")
    >>> [round(simulator_error(exact, added).p90, 3) for added in (0.1, 2, 10)]
    [0.033, 0.303, 0.541]
    """
    found = captured
    for known in [known for shortest, known in BACKLOG_ERRORS if added >= shortest][-1:]:
        found = _no_less(known, captured)
    total = _combined(found, statistical, _together)
    source = f"{found.source}, and {statistical.source}"
    return replace(total, source=source, quantile=statistical.quantile, sampling=statistical.p90)


def _together(first: Spread, second: Spread) -> Spread:
    """Return the spread of the sum of two independent errors, figure by figure."""
    return Spread(*(math.hypot(getattr(first, name), getattr(second, name)) for name in ("median", "mean", "p90")))


def is_near_capacity(share: float) -> bool:
    """Return whether the chain may be wrong about whether TCP carries a flow."""
    return abs(share - 1) < CAPACITY_ERROR


def is_beyond_capacity(share: float) -> bool:
    """Return whether a flow's rate is above any rate that TCP may carry, so that the chain is not wrong about it."""
    return share * (1 + LARGEST_CAPACITY_ERROR) < 1


def expected_error(
    flow: Flow,
    path: Path,
    stack: Stack,
    carried: bool = True,
    capacity: float = math.nan,
    quantile: float = USUAL_QUANTILE,
) -> ExpectedError:
    """Return the expected error of a chain's prediction."""
    stack = checked_profile(stack)
    if isinstance(stack, Quic):
        raise InvalidValueError("stack", stack, "be a TCP, whose chain has an expected error")
    if isinstance(stack, NewReno2008):
        return PUBLISHED_ERROR
    correlated = path.loss_pattern == "correlated"
    independent = path.loss_burst == 1 and not correlated
    if independent and is_beyond_capacity(capacity / flow.packet_rate):
        return BEYOND_CAPACITY
    scenario = features_of(flow, path, stack), stack.congestion_control == "cubic", carried, quantile
    bbr = stack.congestion_control == "bbr"
    found = linux_table(path.loss_burst, bbr, correlated).expected(*scenario)
    # BBR adapts the rate that it carries to the flow's.
    if not bbr and is_near_capacity(capacity / flow.packet_rate):
        found = replace(found, p90=max(found.p90, WRONG_CALL))
    if not carried:
        return found
    if path.jitter > 0:
        found = _no_less(replace(found, source=SIMULATED_JITTER), _named_table(JITTER_TABLE).expected(*scenario))
    elif not independent:
        source = SIMULATED_CORRELATED if correlated else SIMULATED_BURSTS
        found = _no_less(replace(found, source=source), linux_table().expected(*scenario))
    return _combined(found, captured_error(stack), _together)


@cache
def _named_table(name: str) -> ErrorTable:
    return ErrorTable.read(table_file(name))


def table_file(name: str) -> FilePath:
    """Return the file with the errors of a chain, by its name."""
    return linux_table_file().with_name(name)


def source_error(table: str, flow: Flow, path: Path, stack: Linux, quantile: float = USUAL_QUANTILE) -> ExpectedError:
    """Return the expected error of the chain of a source that is no constant rate."""
    cubic = stack.congestion_control == "cubic"
    found = _named_table(table).expected(features_of(flow, path, stack), cubic, True, quantile)
    return _combined(found, captured_error(stack), _together)


def no_less_than_teeth(found: ExpectedError, delays: DelayDistribution, quantile: float) -> ExpectedError:
    """Return the expected error of a quantile of delays that are a comb, where it is at the edge of a step.

    There, a small error of the share of late messages moves the quantile by a whole step. So the error is at least half
    of this distance in the mean, and the distance in nine of ten, but no more than 99 %.
    """
    late = (1 - quantile) * np.array([1 - SHARE_ERROR, 1 + SHARE_ERROR])
    at, beside = delays.quantile(quantile), delays.quantile(1 - late)
    if math.isinf(at):
        moved = 0.0 if np.isinf(beside).all() else LARGEST_TOOTH
    else:
        moved = min(float(np.abs(beside / at - 1).max()), LARGEST_TOOTH)
    return replace(found, mean=max(found.mean, moved / 2), p90=max(found.p90, moved))


def _no_less(found: ExpectedError, least: ExpectedError) -> ExpectedError:
    """Return the larger of two expected errors, figure by figure."""
    return _combined(found, least, _at_least)


def _combined(found: ExpectedError, other: ExpectedError, spread: Callable[[Spread, Spread], Spread]) -> ExpectedError:
    """Return an expected error with the spreads that a function makes of its own and of another one's."""
    return replace(found, **vars(spread(found, other)), mean_delay=spread(found.mean_delay, other.mean_delay))


def _at_least(found: Spread, least: Spread) -> Spread:
    """Return the larger of two spreads, figure by figure; NaN where `found` is."""
    return Spread(max(found.median, least.median), max(found.mean, least.mean), max(found.p90, least.p90))


def statistical_error(quantile: Interval, mean: Interval, packets: int, probability: float = 0.95) -> ExpectedError:
    """Return the expected error of an estimate from its 95 % intervals."""

    def normal(interval: Interval) -> Spread:
        error = interval.relative_half_width / STUDENT_95
        return Spread(NORMAL_MEDIAN * error, NORMAL_MEAN * error, NORMAL_P90 * error)

    found, words = normal(quantile), f"the statistical error of {packets} simulated packets"
    return ExpectedError(**vars(found), mean_delay=normal(mean), cases=0, source=words, quantile=probability)


def in_words(error: ExpectedError, of: float | str | None = None) -> str:
    """Describe an expected error in words."""
    if math.isnan(error.median):
        return "not known"
    median, mean, p90, sampling = (
        format_fraction(float(f"{share:.2g}")) for share in (error.median, error.mean, error.p90, error.sampling)
    )
    basis = f"{error.cases} {error.source}" if error.cases else error.source
    basis += f" (up to {sampling} in nine of ten)" if error.sampling > 0 else ""
    other = "" if of is None or of == error.quantile else f", not {of if isinstance(of, str) else quantile_name(of)},"
    measured = f"{quantile_name(error.quantile)}{other}"
    return f"{measured} {median} off in the median, {mean} in the mean, up to {p90} in nine of ten: {basis}"
