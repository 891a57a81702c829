"""Answers for one flow, TCP stack and target, remembered at the points of a lattice of round-trip times and losses.

A row of a table gets the answer for the nearest path of the lattice. Round-trip time and loss of this path differ from
the row by `TOLERANCE` at most. Each path is solved when a row first needs it. The user's cache keeps its answer for
later tables.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock
from numpy.typing import NDArray
from platformdirs import user_cache_path

from tcpdelay import __version__
from tcpdelay.accuracy.validity import validated_range
from tcpdelay.ask import Answer, Requested
from tcpdelay.declare import InvalidValueError, bounds, is_number
from tcpdelay.models.predict import DOUBTS, AnsweredBy, doubt_about, predict, supports
from tcpdelay.models.verdict import late_range
from tcpdelay.scenario.path import Path as NetworkPath
from tcpdelay.scenario.scenario import Scenario, Target, checked_arguments, constant_rate
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import KnownStack, Linux, Quic, Stack, StackName
from tcpdelay.store import error_in_words, written_durably
from tcpdelay.study.execution import work_out
from tcpdelay.study.grid import ORDINARY_PATH, Grid, GridWork, Question, Variables, blank_row, question
from tcpdelay.units import format_duration

ORDINARY = Flow(174, 0.020), ORDINARY_PATH
"""A flow and a path that all chains know."""
TOLERANCE = 0.005
"""Largest difference between a row's path and the path of its answer, as a fraction of the round-trip time and of the
loss plus `SMALLEST_LOSS`."""
SMALLEST_LOSS = 1e-5
PROBABILITIES = (0.5, 0.95, 0.99)
COLUMNS: tuple[str, ...] = ("p50", "p95", "p99", "mean", "late", "late_low", "late_high")
EXACT_ROWS = 1000
"""Number of first rows of a flow that get the answer for exactly their path: the lattice would save few chains."""
PATH_MESSAGES = 50_000
"""Number of messages in the simulation of a path, for a source that is no `Flow`."""
FEW_SIMULATED = 10
"""Largest number of paths of a table that are simulated where `predict` does not take the chain's answer; each takes
some seconds."""
FEW_PATHS, TRIED_PATHS = 200, 8
"""Largest table that is simulated without an estimate of the time, and number of paths that the estimate tries."""
LONGEST_TIME = 3600.0
"""Longest estimated processor time of the simulations of a table [s]; tables that would take longer are refused."""
SECONDS_PER_MESSAGE = 1e-6
"""Time in which a message of a source is drawn and counted, beside the time of its events [s], roughly."""
SOLVED_AT_A_TIME = 4096
"""Paths that are solved before their answers are remembered: an interrupt loses fewer answers than this."""
_STEP = 2 * np.log1p(TOLERANCE)
_SHORTEST_RTT, _LONGEST_RTT = bounds(NetworkPath, "rtt")
_RTTS = int(np.log(_LONGEST_RTT / _SHORTEST_RTT) / _STEP) + 1
_LOSSES = int(np.log1p(1 / SMALLEST_LOSS) / _STEP) + 1
_LOSSLESS = _LOSSES
"""Column of the lattice without loss; the losses of the other columns grow in steps."""
PLACES = _RTTS * (_LOSSES + 1)
"""Number of paths of the lattice."""

OnProgress: TypeAlias = Callable[[int, int], None] | None
_FLAGS = ("works", "sustainable", "simulated")
ANSWER = np.dtype(
    [
        *((name, np.float64) for name in (*COLUMNS, "quantile")),
        *((name, np.bool_) for name in _FLAGS),
        ("remark", np.int8),
    ]
)
"""The answer for a path: `COLUMNS` [s, the late fraction, and the range that the expected error allows], NaN if there
is none; the delay of the target's quantile [s]; whether the target is met; whether TCP can carry the flow; whether
`predict` has simulated this path; and if not, though it would, the number of the reason in `remarks`."""
FEWER_MESSAGES = len(DOUBTS)
Answers: TypeAlias = Mapping[str, NDArray[Any]]
"""The columns of `ANSWER`, for several paths or rows."""
NO_ANSWERS: Answers = {name: np.empty(0, ANSWER[name]) for name in ANSWER.names or ()}


def remarks(transport: str) -> tuple[str, ...]:
    """Return why rows do not have the figures of `predict`, which simulates, by the number of the remark."""
    by_chain = (f"by the chain; predict simulates, as {doubt.format(transport)}" for doubt in DOUBTS[1:])
    return "", *by_chain, f"of at most {PATH_MESSAGES} messages; predict simulates more"


def place_of(rtt: NDArray[np.float64], loss: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of the lattice point nearest to each path."""
    row = np.minimum(np.log(rtt / _SHORTEST_RTT) / _STEP, _RTTS - 1).astype(np.int64)
    column = np.minimum(np.log1p(loss / SMALLEST_LOSS) / _STEP, _LOSSES - 1).astype(np.int64)
    place: NDArray[np.int64] = row * (_LOSSES + 1) + np.where(loss == 0, _LOSSLESS, column)
    return place


def row_of(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of each lattice point: a row has one round-trip time."""
    return places // (_LOSSES + 1)


def by_loss(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return numbers in the order of the round-trip times, and for each of them in the order of the losses."""
    row, column = np.divmod(places, _LOSSES + 1)
    return row * (_LOSSES + 1) + np.where(column == _LOSSLESS, 0, column + 1)


def places_between(rtt: tuple[float, float], loss: tuple[float, float]) -> NDArray[np.int64]:
    """Return the lattice points of a region, beginning with short round-trip times and low losses, which cost least."""
    (low_row, high_row), (low, high) = np.divmod(place_of(np.array(rtt), np.array(loss)), _LOSSES + 1)
    columns = np.arange(0 if low == _LOSSLESS else low, high + 1)
    if low == _LOSSLESS:
        columns = np.append(_LOSSLESS, columns)
    rows = np.arange(low_row, high_row + 1)
    cost = np.add.outer(rows - low_row, np.arange(columns.size))
    places: NDArray[np.int64] = np.add.outer(rows * (_LOSSES + 1), columns).ravel()[np.argsort(cost, axis=None)]
    return places


def path_at(place: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return round-trip times [s] and losses of lattice points."""
    row, column = np.divmod(place, _LOSSES + 1)
    # The middle of a step, in the logarithm: the ends of the step differ from it by half a step.
    rtt = np.minimum(_SHORTEST_RTT * np.exp((row + 0.5) * _STEP), _LONGEST_RTT)
    loss = np.minimum(SMALLEST_LOSS * np.expm1((column + 0.5) * _STEP), np.nextafter(1, 0))
    return rtt, np.where(column == _LOSSLESS, 0.0, loss)


def taken(answers: Answers, numbers: NDArray[np.integer[Any]]) -> Answers:
    """Return the answers with these numbers, counted from 0."""
    return {name: column.take(numbers) for name, column in answers.items()}


def joined(answers: Answers, more: Answers) -> Answers:
    """Return answers, followed by more answers."""
    return {name: np.concatenate([column, more[name]]) for name, column in answers.items()}


class Lattice:
    """Remembered answers for one question.

    A path whose answer would take more than the question allows has no answer, nor have the rows nearest to this path.
    """

    def __init__(self, asked: Question) -> None:
        self.asked = asked
        self.solved = 0  # Chains solved so far in this process
        self.simulations = 0  # Paths so far that are simulated as `predict` does
        self._known = NO_ANSWERS
        # Number of the answer for each place, from 1. An array of zeros takes no memory until it is written to.
        self._index = np.zeros(PLACES, np.int32)
        self._exact: dict[tuple[float, float], int] = {}
        self._exact_answers = NO_ANSWERS
        self._exact_rows = 0

    @property
    def size(self) -> int:
        """Number of paths of the lattice whose answers are remembered."""
        return int(np.count_nonzero(self._index))

    def answer(
        self,
        rtt: NDArray[np.float64],
        loss: NDArray[np.float64],
        on_progress: OnProgress = None,
        few: int = 0,
        exact: bool | None = None,
    ) -> Answers:
        """Return the predictions for rows, and solve the chains that are not known yet.

        The first `EXACT_ROWS` rows get the answer for exactly their path, unless a call has more rows. All other rows
        get the answer for the nearest path of the lattice. `on_progress` is called with the number of chains solved,
        and to be solved. If `predict` simulates at most `few` of the exact paths, they are simulated. `exact` decides
        in place of the number of rows.
        """
        if exact is None:
            exact = self.is_exact_for(rtt.size)
            self._exact_rows += rtt.size if exact else 0
        if exact:
            return self._answer_exactly(rtt, loss, on_progress, few)
        return self.nearest(place_of(rtt, loss), on_progress)

    def nearest(self, places: NDArray[np.int64], on_progress: OnProgress = None) -> Answers:
        """Return the answers at places."""
        # In random order, so that the time of some chains tells how long the other chains take.
        missing = np.random.default_rng(0).permutation(self.missing(places))
        self._refuse_hopeless(*path_at(missing))
        self.solve(missing, on_progress)
        return self.known(places)

    def is_exact_for(self, rows: int) -> bool:
        """Return whether so many further rows get the answer for exactly their path."""
        return self._exact_rows + rows <= EXACT_ROWS

    def is_known(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which places have an answer that is remembered."""
        return self._index[places] > 0

    def known(self, places: NDArray[np.int64]) -> Answers:
        """Return the answers of places that are known."""
        return taken(self._known, self._index[places] - 1)

    def missing(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the different places whose answers are not known yet."""
        return np.unique(places[~self.is_known(places)])

    def solve(self, places: NDArray[np.int64], on_progress: OnProgress = None) -> None:
        """Solve the chains of places that are not known yet; after an interrupt, the solved chains are kept."""
        for first in range(0, places.size, SOLVED_AT_A_TIME):
            part = places[first : first + SOLVED_AT_A_TIME]
            report = None if on_progress is None else partial(_report, on_progress, first, places.size)
            self.remember(part, self._solved(*path_at(part), report))

    def remember(self, places: NDArray[np.int64], answers: Answers) -> None:
        """Add answers at places that are not known yet."""
        # Answers first: after an interrupt between these lines, they only take memory.
        self._known = joined(self._known, answers)
        end = self._known["works"].size
        self._index[places] = np.arange(end - places.size + 1, end + 1)

    def remembered(self) -> tuple[NDArray[np.int64], Answers]:
        """Return all known places, and their answers."""
        places = np.flatnonzero(self._index)
        return places, self.known(places)

    @property
    def simulated(self) -> bool:
        """Whether the answers are simulated."""
        return self.asked.simulated

    def _refuse_hopeless(self, rtt: NDArray[np.float64], loss: NDArray[np.float64]) -> None:
        """Raise ValueError if the simulations of all paths would take too long, by the work that a few paths take."""
        if not self.simulated or rtt.size <= FEW_PATHS:
            return
        from tcpdelay.sim.simulation import simulate

        flow, packets, seconds = self.asked.flow, self._messages(), 0.0
        for place in np.linspace(0, rtt.size - 1, TRIED_PATHS).astype(np.int64).tolist():
            path = NetworkPath(float(rtt[place]), float(loss[place]))
            seconds += simulate(flow, path, self.asked.stack, packets=packets).work_seconds
        expected = (seconds / TRIED_PATHS + SECONDS_PER_MESSAGE * packets) * rtt.size
        if expected > LONGEST_TIME:
            raise ValueError(
                f"the table has {rtt.size} different paths, whose simulations would take about "
                f"{format_duration(expected)}, and at most {format_duration(LONGEST_TIME)} are allowed: "
                "give fewer or rounded paths, or a Flow, which the chain answers"
            )

    def _answer_exactly(
        self, rtt: NDArray[np.float64], loss: NDArray[np.float64], on_progress: OnProgress, few: int
    ) -> Answers:
        paths = list(zip(rtt.tolist(), loss.tolist(), strict=True))
        new = [path for path in dict.fromkeys(paths) if path not in self._exact]
        if new:
            new_rtt, new_loss = np.array(new).T
            self._refuse_hopeless(new_rtt, new_loss)
            solved = self._predicted(new_rtt, new_loss, on_progress, few)
            self._exact.update(zip(new, range(len(self._exact), len(self._exact) + len(new)), strict=True))
            self._exact_answers = joined(self._exact_answers, solved)
        return taken(self._exact_answers, np.array([self._exact[path] for path in paths], np.int64))

    def _predicted(
        self, rtt: NDArray[np.float64], loss: NDArray[np.float64], on_progress: OnProgress, few: int
    ) -> Answers:
        """Return the answers for paths: those of `predict` for the paths that it simulates, if they are few."""
        found = np.zeros(rtt.size, ANSWER)
        left = np.arange(rtt.size)
        if not self.simulated or rtt.size > few:
            for name, column in self._solved(rtt, loss, on_progress).items():
                found[name] = column
            left = np.flatnonzero(np.isnan(found["p50"]) | (found["remark"] > 0))
        for done, place in enumerate(left.tolist() if left.size <= few else ()):
            if on_progress is not None:
                on_progress(done, left.size)
            self._predict(found[place], _scenario(self.asked, rtt, loss, {"path": place}))
        return {name: np.ascontiguousarray(found[name]) for name in NO_ANSWERS}

    def _predict(self, row: Any, scenario: Scenario) -> None:
        """Write the answer of `predict` to a row, which is blank without an answer."""
        answer = predict(scenario, self._requested)
        blank_row(row)
        if answer.answered:
            _fill(self.asked.target, row, answer, {})
            row["remark"] = 0
        row["simulated"] = answer.status != "unsupported" and answer.method == "simulation"
        self.simulations += answer.method == "simulation"

    @property
    def _requested(self) -> Requested:
        """What is asked about each path."""
        asked, target = self.asked, self.asked.target
        return Requested(
            (*PROBABILITIES, target.quantile),
            (target.limit,),
            target=target,
            max_seconds=asked.max_seconds,
            max_memory=asked.max_memory,
        )

    def _messages(self) -> int:
        """Return the number of messages of the simulation of a path."""
        from tcpdelay.sim.simulation import packets_within

        asked = self.asked
        assert isinstance(asked.stack, Linux | Quic)
        return min(PATH_MESSAGES, packets_within(asked.max_seconds, asked.flow, asked.stack))

    def _solved(self, rtt: NDArray[np.float64], loss: NDArray[np.float64], on_progress: OnProgress) -> Answers:
        """Return the answers for paths."""
        requested = self._requested
        grid = Grid({"path": tuple(range(rtt.size))}, partial(_scenario, self.asked, rtt, loss))
        method: AnsweredBy = "chain"
        if self.simulated:
            requested, method = replace(requested, packets=self._messages()), "simulation"
        work = GridWork(grid, requested, method, Variables(ANSWER, partial(_fill, self.asked.target), {}))
        self.solved += rtt.size
        found = work_out(work, on_progress=on_progress).values
        return {name: found[name] for name in NO_ANSWERS}


def require_simulator(source: Source | None, stack: KnownStack) -> None:
    """Raise `UnsupportedError` if the simulator refuses a TCP stack or a source on an ordinary path."""
    assert source is not None
    for refused in supports(Scenario(source, ORDINARY[1], stack), "simulation").refused:
        raise refused


def require_chain(stack: KnownStack) -> None:
    """Raise `UnsupportedError` if the chain, which answers tables of paths, refuses a TCP stack."""
    for refused in supports(Scenario(*ORDINARY, stack)).refused:
        raise refused


def _report(on_progress: Callable[[int, int], None], before: int, total: int, done: int, of: int) -> None:
    on_progress(before + done, total)


def _scenario(
    asked: Question, rtt: NDArray[np.float64], loss: NDArray[np.float64], values: Mapping[str, Any]
) -> Scenario:
    path = NetworkPath(float(rtt[values["path"]]), float(loss[values["path"]]))
    return Scenario(asked.flow, path, asked.stack, asked.target)


def _fill(target: Target, row: Any, answer: Answer, values: Mapping[str, Any]) -> None:
    """Write an answer to a row."""
    row["p50"], row["p95"], row["p99"], row["quantile"] = answer.quantiles.tolist()
    row["mean"], row["late"] = answer.mean, answer.late_fractions[0]
    row["late_low"], row["late_high"] = late_range(answer, target.latest)
    row["works"] = answer.meets(target)
    row["sustainable"] = answer.sustainable
    row["remark"] = doubt_about(answer) if answer.method == "chain" else FEWER_MESSAGES


def lattice_path(asked: Question) -> Path:
    """Return the file in the user's cache for the lattice of a question; the file need not exist.

    Its name depends on the question, the tolerance, and the source code of the models.
    """
    key = repr((asked, TOLERANCE, SMALLEST_LOSS, ANSWER, __version__, _source_digest()))
    return user_cache_path("tcpdelay") / "answers" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.parquet"


@cache
def _source_digest() -> str:
    """Return a digest of the source code that answers depend on."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for folder in ("accuracy", "chain", "models", "sim", "study/tables"):
        for source in sorted((package / folder).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def load_lattice(asked: Question) -> Lattice:
    """Return the lattice of a question, with the answers from the cache."""
    lattice = Lattice(asked)
    load_answers(lattice)
    return lattice


def load_answers(lattice: Lattice) -> None:
    """Add the answers from the cache to an empty lattice."""
    lattice.remember(*_kept(lattice_path(lattice.asked)))


def _kept(file: Path) -> tuple[NDArray[np.int64], Answers]:
    """Return the places and answers in a file; no places if the file is missing or damaged."""
    try:
        table = pq.read_table(file, page_checksum_verification=True, memory_map=False)
        places = table.column("place").to_numpy()
        answers = {name: table.column(name).to_numpy() for name in NO_ANSWERS}
        if not np.all((places >= 0) & (places < PLACES)):
            raise ValueError("no places of the lattice")
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return np.empty(0, np.int64), NO_ANSWERS
    return places, answers


def save_lattice(lattice: Lattice) -> bool:
    """Write the answers of a lattice to the cache, beside answers of other processes; return whether that succeeded."""
    try:
        _write_lattice(lattice)
    except OSError:
        return False
    return True


def _write_lattice(lattice: Lattice) -> None:
    file = lattice_path(lattice.asked)
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        places, answers = _kept(file)
        new = np.isin(places, lattice.missing(places))
        lattice.remember(places[new], taken(answers, np.flatnonzero(new)))
        places, answers = lattice.remembered()
        with written_durably(file) as unfinished:
            pq.write_table(
                pa.table({"place": places, **answers}), unfinished, write_page_checksum=True, write_statistics=False
            )


SAVED_EVERY = 30.0
"""Time after which new answers are written to the cache [s]."""
PREPARED_AT_A_TIME = 512
WORTH_PREPARING = 1e-4
"""Default share of a region that may stay unsolved."""
SMALLEST_RTT, LARGEST_RTT, LARGEST_LOSS = 1e-4, 2.0, 0.5
"""Largest region that may be prepared: round-trip times [s], and losses from 0."""


class Prepared(NamedTuple):
    """Result of `prepare_surface`."""

    left: float  # Share of the region, in the logarithms of round-trip time and loss, that is not solved yet
    chains: int  # Number of paths whose answers are known
    path: str  # The file of the answers


@checked_arguments
def prepare_surface(
    flow: Flow | str,
    stack: Stack | StackName | None = None,
    *,
    limit: float | None = None,
    quantile: float | None = None,
    target: Target | None = None,
    rtt: tuple[float, float] | None = None,
    loss: tuple[float, float] | None = None,
    left: float = WORTH_PREPARING,
    on_progress: Callable[[float, int], None] | None = None,
) -> Prepared:
    """Solve the chains of all paths of a region in advance, so that a table needs no chains later.

    The answers go to the user's cache. `predict_many` and `tcpdelay batch` read them for the same flow, TCP stack and
    target, unless they are given a budget of their own. Paths that were solved before are not solved again. After an
    interrupt, all solved paths are kept.

    Parameters
    ----------
    flow : Flow or str
        Packet size and interval, or the name of an application in `tcpdelay.scenario.scenario`, which also sets the
        default target.
    stack : Stack or {"linux", "newreno_2008", "quic"}, optional
        The transport, or its name on the command line; by default the TCP of a current Linux kernel.
    limit : float, optional
        Latest useful arrival [s], above 0; by default the application's, or 0.2 s.
    quantile : float, optional
        Share of the packets that must arrive by then, above 0 and below 1; by default the application's, or 0.95.
    target : Target, optional
        Limit and quantile together, in place of the two arguments before.
    rtt, loss : tuple of float, optional
        Smallest and largest round-trip time [s], within 1e-4 to 2, and loss, within 0 to 0.5; by default the range in
        which the model has been checked.
    left : float
        Share of the region, in the logarithms of both, that may stay unsolved, above 0 and below 1. The paths with the
        longest round-trip times and highest losses are solved last.
    on_progress : callable, optional
        Called with the unsolved share, and the number of paths whose answers are known.

    Returns
    -------
    Prepared
        The unsolved share, the number of known paths, and their file.

    Raises
    ------
    ValueError
        If an argument lies outside its range, or the source is no `Flow`.
    OSError
        If the answers cannot be written to the cache.

    Examples
    --------
    >>> prepare_surface("voip", rtt=(0.02, 0.021), loss=(0.001, 0.0011), left=0.1).left
    0.0
    """
    asked = question(flow, stack, limit, quantile, target=target)
    constant_rate(asked.flow)
    require_chain(asked.stack)
    known = validated_range(asked.stack)
    rtt = known.rtt if rtt is None else _checked("rtt", rtt, SMALLEST_RTT, LARGEST_RTT, " s")
    loss = known.loss if loss is None else _checked("loss", loss, 0.0, LARGEST_LOSS)
    if not (is_number(left) and 0 < left < 1):
        raise InvalidValueError("left", left, "lie above 0 and below 1")
    lattice, path = load_lattice(asked), lattice_path(asked)

    def keep() -> None:
        try:
            _write_lattice(lattice)
        except OSError as error:
            raise OSError(f"{path}: cannot be written: {error_in_words(error)}") from error

    # First of all, as answers that cannot be kept are useless.
    keep()
    saved = time.monotonic()
    places = places_between(rtt, loss)
    missing = places[~np.isin(places, lattice.remembered()[0], assume_unique=True)]
    spare = int(left * places.size)
    try:
        while missing.size > spare:
            part, missing = np.split(missing, [PREPARED_AT_A_TIME])
            lattice.solve(part)
            if on_progress is not None:
                on_progress(missing.size / places.size, lattice.size)
            if time.monotonic() - saved > SAVED_EVERY:
                keep()
                saved = time.monotonic()
    except BaseException:
        save_lattice(lattice)
        raise
    keep()
    return Prepared(missing.size / places.size, lattice.size, str(path))


def _checked(name: str, given: Any, lowest: float, highest: float, unit: str = "") -> tuple[float, float]:
    """Return the two ends of a range."""
    ends = list(given) if np.iterable(given) else [given]
    if len(ends) == 2 and all(map(is_number, ends)) and lowest <= ends[0] < ends[1] <= highest:
        return float(ends[0]), float(ends[1])
    raise InvalidValueError(name, given, f"be a range, from low to high, within {lowest:g} to {highest:g}{unit}")
