"""A surface of predictions for one flow, TCP and target, refined where rows fall, to a stated error.

Surfaces in the user's cache, so that the next table of the same flow, TCP and target begins where the last ended.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tcpdelay import __version__
from tcpdelay.processors import processors
from tcpdelay.questions.region.cells import MOST_THREADS
from tcpdelay.questions.region.question import Question
from tcpdelay.questions.tables.interpolation import (
    ACROSS,
    ANSWERED,
    BEYOND,
    COARSEST,
    COLUMNS,
    DEEPEST,
    ENDLESS,
    IN_FOUR,
    LATE,
    MEAN,
    PROBABILITIES,
    REFUSED,
    TALL,
    TRUSTED,
    UNTESTED,
    UPWARDS,
    WIDE,
    Cells,
    Errors,
    Nodes,
    answer_rows,
    empty_nodes,
    judge_cell,
    lattice_place,
    scenario_at,
    solve_into,
)

STATED = Errors(0.01, 1.0, 0.02, 0.1, 0.05, 0.0005)
"""The errors that are promised."""
SHARE_AT_PROBES = 0.6
"""Share of them that is left to a cell's probes, as errors in between may be larger."""
WORTH_TESTING = 14
"""Rows from which on a cell is tested, or split: so many chains are about what that costs."""
SETTLED_VERDICT = 9
"""Halvings up to which every probe of a cell must be on the right side of the target; a cell is then 1.4 % of a
round-trip time or loss wide."""
WORTH_PREPARING = 1e-4
"""Share of a region that may be left when a surface is prepared."""
SMALLEST = DEEPEST - 2
"""Halvings down to the smallest cells, whose inner probes still lie on the lattice."""
_CORNERS = np.array([(0, 0), (4, 0), (0, 4), (4, 4)])
_FIRST_PROBES = np.array([(2, 2), (0, 2), (4, 2), (2, 0), (2, 4)])
_PROBES = (_FIRST_PROBES, np.concatenate([_FIRST_PROBES, [(1, 1), (3, 1), (1, 3), (3, 3)]]))
"""Where a cell is looked at, in quarters of it: first at the corners of its parts, then inside these as well."""
_DIRECTIONS = {
    IN_FOUR: np.array([(0, 0), (1, 0), (0, 1), (1, 1)]),
    ACROSS: np.array([(0, 0), (1, 0)]),
    UPWARDS: np.array([(0, 0), (0, 1)]),
}
"""Where the parts of a cell lie, in halves of it, by how it is split."""
SCATTERED = 64
"""Points at which a cell is looked at for rows whose mixture is not certain, other ones at each step."""
_SCATTER = (0.7548776662466927, 0.5698402909980532)
"""Steps between them in parts of a cell: any stretch of the sequence is even (R2 of M. Roberts)."""

SHARE_ROUNDING = 1e-9
"""Rounding of a late fraction that is just what is allowed."""
ROWS_AT_A_TIME = 65_536
SIMILAR_SIZE = 4
CELLS_AT_A_TIME = 512
"""Cells that are refined in one step of preparing a surface: those up to so many times smaller than the largest."""
CHAINS_AT_A_TIME = 8
"""What a thread works at before it takes up more."""
MOST_SOLVED_ROWS = 100_000
KEY_SHIFT = 32
OnProgress: TypeAlias = Callable[[int, int], None] | None
OnPrepared: TypeAlias = Callable[[float, int], None] | None
Result = TypeVar("Result")


class Answers(NamedTuple):
    """Predictions for rows.

    Attributes
    ----------
    columns : ndarray, shape (columns, n)
        `COLUMNS`: delays [s] and the late fraction; NaN where the chain is too large, or nothing is wanted.
    works, sustainable : ndarray of bool, shape (n,)
        Whether the target is met, and whether TCP can carry the flow.
    solved : int
        Rows that no cell could answer.
    """

    columns: NDArray[np.float64]
    works: NDArray[np.bool_]
    sustainable: NDArray[np.bool_]
    solved: int


class SolvedRow(NamedTuple):
    """What `Answers` holds of one row."""

    columns: NDArray[np.float64]
    works: bool
    sustainable: bool


class _Left(NamedTuple):
    """Rows that have no answer yet: their places, and the cells they lie in or `BEYOND`."""

    rows: NDArray[np.int64]
    cells: NDArray[np.int32]


class Surface:
    """Predictions over round-trip time and loss, in cells that are tested and split where rows fall.

    Parameters
    ----------
    asked : Question
        Flow, TCP and target.

    Attributes
    ----------
    nodes : Nodes
        The chains solved so far at points of the lattice.
    node_at : dict
        The rows of `nodes` by lattice point.
    cells : Cells
        The cells, the largest ones first.
    whole : bool
        False while the surface changes: one that an interrupt has left so is of no use.

    Examples
    --------
    >>> from tcpdelay.questions.region.question import question
    >>> surface = Surface(question("voip", None, None, None))
    >>> answers = surface.answer(np.array([0.100]), np.array([0.02]))
    >>> answers.columns[:, 0].round(3).tolist(), bool(answers.works[0])
    ([0.05, 0.14, 0.18, 0.063, 0.005], True)
    """

    def __init__(self, asked: Question) -> None:
        self.asked = asked
        roots = 4**COARSEST
        self.nodes = empty_nodes(0)
        self.node_at: dict[int, int] = {}
        self.whole = True
        self.cells = _fresh_cells(roots)
        side = 2**COARSEST
        line, column = np.divmod(np.arange(roots), side)
        # Lower left corner on the lattice, halvings across and up, and rows that were left to be solved.
        self.origin = np.stack([column, line], axis=1) * 2 ** (DEEPEST - COARSEST)
        self.depth = np.full((roots, 2), COARSEST, np.int8)
        self.rows_left = np.zeros(roots, np.int64)
        # Rows that had to be solved one by one: measured values are rounded, and come again.
        self.solved_rows: dict[tuple[float, float], SolvedRow] = {}

    def answer(self, rtt: NDArray[np.float64], loss: NDArray[np.float64], on_progress: OnProgress = None) -> Answers:
        """Return the predictions for rows, after the refinement that pays for so many of them.

        Parameters
        ----------
        rtt, loss : ndarray, shape (n,)
            Round-trip times [s], 1e-6 to 60, and losses, 0 to below 1; NaN in rows that nothing is wanted of.
        on_progress : callable, optional
            Called with the number of chains solved, and to be solved, in a step of the work.

        Returns
        -------
        Answers
            The predictions.
        """
        columns = np.full((len(COLUMNS), rtt.size), np.nan)
        left = self._refined(rtt, loss, columns, WORTH_TESTING, on_progress)
        works = columns[LATE] <= 1 - self.asked.target.quantile + SHARE_ROUNDING
        sustainable = np.isfinite(columns[MEAN])
        self._solve_rows(rtt, loss, left.rows, Answers(columns, works, sustainable, 0), on_progress)
        return Answers(columns, works, sustainable, left.rows.size)

    def prepare(
        self,
        rtt: tuple[float, float],
        loss: tuple[float, float],
        left: float = WORTH_PREPARING,
        on_prepared: OnPrepared = None,
    ) -> float:
        """Refine the surface over a whole region, before there are rows; return the share that is left.

        Parameters
        ----------
        rtt, loss : tuple of float
            The region: round-trip times [s], 1e-4 to 2, and losses, 0 to 0.5, from and to.
        left : float
            Share of the region, in the logarithms of both, that may be left to be solved row by row, 0 to 1.
        on_prepared : callable, optional
            Called with the share that is left, and the number of chains solved so far.

        Examples
        --------
        >>> from tcpdelay.questions.region.question import question
        >>> surface = Surface(question("voip", None, None, None))
        >>> surface.prepare((0.02, 0.021), (0.001, 0.0011), left=0.1)
        0.0
        """
        low, high = (np.array(lattice_place(*corner)) for corner in zip(rtt, loss, strict=True))
        step = 0
        while True:
            cells = np.flatnonzero((self.cells.first_part < 0) & (self.cells.state != ENDLESS)).astype(np.int32)
            ends = self.origin[cells] + self._size(cells)
            inside = np.minimum(high, ends) - np.maximum(low, self.origin[cells])
            share = np.prod(np.maximum(inside, 0.0), axis=1) / np.prod(high - low) * self._doubtful(cells, step)
            cells, share = cells[share > 0], share[share > 0]
            total = float(share.sum())
            if total <= left:
                return total
            # The largest are worth most chains. A step of the work is short enough for an interrupt to lose little.
            share[(self.depth[cells] >= SMALLEST).any(axis=1) & (self.cells.state[cells] != UNTESTED)] = 0.0
            largest = share >= max(share.max() / SIMILAR_SIZE, np.sort(share)[-CELLS_AT_A_TIME:][0])
            report = None if on_prepared is None else partial(self._report, on_prepared, total)
            if not self._refine(cells, largest & (share > 0), report):
                return total
            step += 1

    def _report(self, on_prepared: Callable[[float, int], None], left: float, done: int, of: int) -> None:
        """Say how far preparing is, while `done` of so many chains are solved that are not in the surface yet."""
        on_prepared(left, len(self.node_at) + done)

    def _doubtful(self, cells: NDArray[np.int32], step: int) -> NDArray[np.float64]:
        """Return which share of each cell has no answer: all of it, or where the mixture is not certain."""
        trusted = self.cells.state[cells] == TRUSTED
        doubtful = np.where(trusted, 0.0, 1.0)
        mixed = np.flatnonzero(trusted & self.cells.mixed[cells].any(axis=1))
        places = (np.arange(step * SCATTERED, (step + 1) * SCATTERED)[:, np.newaxis] + 0.5) * _SCATTER % 1
        points = self.origin[cells[mixed], np.newaxis] + self._size(cells[mixed])[:, np.newaxis] * places
        rtt, loss = scenario_at(points[..., 0].ravel(), points[..., 1].ravel())
        left = self._look_up(rtt, loss, np.empty((len(COLUMNS), rtt.size)), np.arange(rtt.size)).rows
        doubtful[mixed] = np.bincount(left // SCATTERED, minlength=mixed.size) / SCATTERED
        return doubtful

    def _refined(
        self,
        rtt: NDArray[np.float64],
        loss: NDArray[np.float64],
        columns: NDArray[np.float64],
        worth: int,
        on_progress: OnProgress,
    ) -> _Left:
        """Fill in what cells can answer, refining them as long as that pays; return the rest."""
        left = self._look_up(rtt, loss, columns, np.arange(rtt.size))
        while left.rows.size:
            cells, counts = np.unique(left.cells[left.cells != BEYOND], return_counts=True)
            if not self._refine(cells, self.rows_left[cells] + counts >= worth, on_progress):
                self.rows_left[cells] += counts
                break
            left = self._look_up(rtt, loss, columns, left.rows)
        return left

    def _look_up(
        self,
        rtt: NDArray[np.float64],
        loss: NDArray[np.float64],
        columns: NDArray[np.float64],
        rows: NDArray[np.int64],
    ) -> _Left:
        """Fill in what cells can answer of `rows`, in several threads; return the rest."""
        interval = self.asked.flow.interval
        everything = rows.size == rtt.size

        def look_up(part: NDArray[np.int64]) -> NDArray[np.int32]:
            cell_of, answers = np.empty(part.size, np.int32), np.full((len(COLUMNS), part.size), np.nan)
            chosen = slice(part[0], part[-1] + 1) if everything else part
            answer_rows(self.cells, self.nodes, rtt[chosen], loss[chosen], interval, answers, cell_of)
            columns[:, chosen] = answers
            return cell_of

        parts = [part for part in np.array_split(rows, -(-rows.size // ROWS_AT_A_TIME) or 1) if part.size]
        cell_of = np.concatenate([np.empty(0, np.int32), *in_threads(look_up, parts)])
        left = cell_of != ANSWERED
        return _Left(rows[left], cell_of[left])

    def _refine(self, cells: NDArray[np.int32], worth: NDArray[np.bool_], on_progress: OnProgress) -> bool:
        """Test those cells, and split those that have failed, that are worth it; return whether there are any."""
        untested = self.cells.state[cells] == UNTESTED
        small = (self.depth[cells] >= SMALLEST).any(axis=1)
        tested, split = cells[worth & untested], cells[worth & ~untested & ~small]
        self._test(tested, on_progress)
        self._split(split)
        return bool(tested.size or split.size)

    def _size(self, cells: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the widths and heights of cells on the lattice, shape (cells, 2)."""
        size: NDArray[np.int64] = 2 ** (DEEPEST - self.depth[cells].astype(np.int64))
        return size

    def _points(self, cells: NDArray[np.int32], quarters: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lattice points of cells, shape (cells, points, 2), that lie at as many quarters of them."""
        points: NDArray[np.int64] = self.origin[cells, np.newaxis] + self._size(cells)[:, np.newaxis] // 4 * quarters
        return points

    def _test(self, cells: NDArray[np.int32], on_progress: OnProgress) -> None:
        """Find out what cells are good for: at some probes all of them, at more those which pass."""
        corners = self._solved_at(self._points(cells, _CORNERS), on_progress)
        self.cells.corners[cells] = corners
        passed, found = np.arange(cells.size), np.full(cells.size, UNTESTED, np.int8)
        for quarters in _PROBES:
            points = self._points(cells[passed], quarters)
            probes = self._solved_at(points, on_progress)
            networks = scenario_at(points[..., 0], points[..., 1])[0] / 2
            parts = [part for part in np.array_split(np.arange(passed.size), MOST_THREADS) if part.size]
            work = partial(self._judge, cells[passed], probes, quarters / 4, networks)
            states = np.concatenate([np.empty(0, np.int8), *in_threads(work, parts)])
            found[passed] = states
            passed = passed[states < REFUSED]
        # Not before all probes are known: an interrupt on the way leaves the cells untested.
        self.cells.state[cells] = found

    def _judge(
        self,
        cells: NDArray[np.int32],
        probes: NDArray[np.int32],
        places: NDArray[np.float64],
        networks: NDArray[np.float64],
        part: NDArray[np.int64],
    ) -> NDArray[np.int8]:
        """Return what a part of the cells is good for by its probes, and note which quantiles are to be mixed."""
        errors = Errors(*(SHARE_AT_PROBES * error for error in STATED))
        allowed_late = 1 - self.asked.target.quantile + SHARE_ROUNDING
        interval = self.asked.flow.interval
        states = np.empty(part.size, np.int8)
        for place, number in enumerate(part.tolist()):
            cell = cells[number]
            across, up = self.depth[cell].tolist()
            states[place] = judge_cell(
                self.nodes, self.cells.corners[cell], probes[number], places, networks[number], (across, up), interval,
                errors, allowed_late, min(across, up) < SETTLED_VERDICT, self.cells.mixed[cell],
            )  # fmt: skip
        return states

    def _solved_at(self, points: NDArray[np.int64], on_progress: OnProgress) -> NDArray[np.int32]:
        """Return the nodes at lattice points, solving what has not been before."""
        keys = (points[..., 1] << KEY_SHIFT) | points[..., 0]
        wanted = [key for key in np.unique(keys).tolist() if key not in self.node_at]
        scenarios = [scenario_at(key & (2**KEY_SHIFT - 1), key >> KEY_SHIFT) for key in wanted]
        first = len(self.nodes.answer)
        solved = solve_scenarios(self.asked, scenarios, on_progress)
        self.whole = False
        self.nodes = Nodes(*(np.concatenate([old, new]) for old, new in zip(self.nodes, solved, strict=True)))
        self.node_at.update(zip(wanted, range(first, first + len(wanted)), strict=True))
        self.whole = True
        nodes = [self.node_at[key] for key in keys.ravel().tolist()]
        return np.array(nodes, np.int32).reshape(keys.shape)

    def _split(self, cells: NDArray[np.int32]) -> None:
        """Split cells into parts that have not been tested: two where it is known in which direction, or else four."""
        self.whole = False
        states = self.cells.state[cells]
        for split, chosen in (
            (ACROSS, cells[states == WIDE]),
            (UPWARDS, cells[states == TALL]),
            (IN_FOUR, cells[(states != WIDE) & (states != TALL)]),
        ):
            directions = _DIRECTIONS[split]
            parts = len(directions)
            self.cells.split[chosen] = split
            self.cells.first_part[chosen] = len(self.cells.state) + parts * np.arange(chosen.size)
            halved = directions.any(axis=0)
            origins = self.origin[chosen, np.newaxis] + self._size(chosen)[:, np.newaxis] // 2 * directions
            self.origin = np.concatenate([self.origin, origins.reshape(-1, 2)])
            self.depth = np.concatenate(
                [self.depth, np.repeat(self.depth[chosen] + halved, parts, axis=0).astype(np.int8)]
            )
            self.rows_left = np.concatenate([self.rows_left, np.zeros(parts * chosen.size, np.int64)])
            fresh = _fresh_cells(parts * chosen.size)
            self.cells = Cells(*(np.concatenate([old, new]) for old, new in zip(self.cells, fresh, strict=True)))
        self.whole = True

    def _solve_rows(
        self,
        rtt: NDArray[np.float64],
        loss: NDArray[np.float64],
        rows: NDArray[np.int64],
        answers: Answers,
        on_progress: OnProgress,
    ) -> None:
        """Fill in the answers of `rows` by solving the chain, once for rows that are alike."""
        scenarios = list(zip(rtt[rows].tolist(), loss[rows].tolist(), strict=True))
        wanted = [scenario for scenario in dict.fromkeys(scenarios) if scenario not in self.solved_rows]
        if len(self.solved_rows) + len(wanted) > MOST_SOLVED_ROWS:
            self.solved_rows.clear()
            wanted = list(dict.fromkeys(scenarios))
        solved = solve_scenarios(self.asked, wanted, on_progress)
        for place, scenario in enumerate(wanted):
            columns = solved.answer[place]
            columns[:LATE] += scenario[0] / 2
            self.solved_rows[scenario] = SolvedRow(columns, bool(solved.works[place]), bool(solved.sustainable[place]))
        for row, scenario in zip(rows.tolist(), scenarios, strict=True):
            answers.columns[:, row], answers.works[row], answers.sustainable[row] = self.solved_rows[scenario]


def _fresh_cells(count: int) -> Cells:
    return Cells(
        np.full(count, -1, np.int32),
        np.zeros(count, np.int8),
        np.full(count, UNTESTED, np.int8),
        np.zeros((count, len(PROBABILITIES) + 1), np.bool_),
        np.zeros((count, 4), np.int32),
    )


def solve_scenarios(asked: Question, scenarios: list[tuple[float, float]], on_progress: OnProgress = None) -> Nodes:
    """Solve the chain for round-trip times [s] and losses, in several threads.

    Examples
    --------
    >>> from tcpdelay.questions.region.question import question
    >>> solve_scenarios(question("voip", None, None, None), [(0.1, 0.0), (0.1, 0.02)]).works.tolist()
    [True, True]
    """
    nodes = empty_nodes(len(scenarios))
    if not scenarios:
        return nodes

    def solve(part: NDArray[np.int64]) -> int:
        for place in part.tolist():
            solve_into(nodes, place, asked, *scenarios[place])
        return part.size

    # Neighbours may take long together: each part has scenarios from all over.
    count = max(len(scenarios) // CHAINS_AT_A_TIME, 1)
    parts = [np.arange(first, len(scenarios), count) for first in range(count)]
    done = 0
    for size in in_threads(solve, parts):
        done += size
        if on_progress is not None:
            on_progress(done, len(scenarios))
    return nodes


def in_threads(work: Callable[[NDArray[np.int64]], Result], parts: list[NDArray[np.int64]]) -> Iterator[Result]:
    """Yield what `work` returns for each part, in their order; an interrupt leaves out those that have not begun.

    Always in other threads: Numba does not bear an interrupt while it takes apart the arguments of a kernel.

    Examples
    --------
    >>> list(in_threads(lambda part: int(part.sum()), [np.array([1, 2]), np.array([3])]))
    [3, 3]
    """
    with ThreadPoolExecutor(min(processors(), MOST_THREADS)) as pool:
        try:
            for future in [pool.submit(work, part) for part in parts]:
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_REFINEMENT = ("interpolation.py", "surface.py")


def surface_path(asked: Question) -> Path:
    """Return where the surface of a question is kept, or would be.

    That is `tcpdelay/surfaces` in `$XDG_CACHE_HOME` or `~/.cache`. The name changes with the question, the promised
    errors, and the source of the chain and of the refinement.

    Examples
    --------
    >>> from tcpdelay.questions.region.question import question
    >>> voip, opus = (surface_path(question(name, None, None, None)) for name in ("voip", "opus"))
    >>> voip.suffix, voip == opus
    ('.npz', False)
    """
    # The XDG base directory specification ignores a relative path.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (base if base.is_absolute() else Path.home() / ".cache") / "tcpdelay" / "surfaces"
    key = repr((asked, STATED, SHARE_AT_PROBES, __version__, _source_digest()))
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"


@cache
def _source_digest() -> str:
    """Return a digest of what surfaces depend on."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    sources = [*(package / "models").rglob("*.py"), *(package / "questions" / "tables" / name for name in _REFINEMENT)]
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def load_surface(asked: Question) -> Surface:
    """Return the surface of a question as far as it has been kept, or a new one.

    Examples
    --------
    >>> from tcpdelay.questions.region.question import question
    >>> load_surface(question("voip", None, 0.123, 0.9)).asked.target.limit
    0.123
    """
    surface = Surface(asked)
    # A file that cannot be read is as good as none.
    with (
        suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile),
        surface_path(asked).open("rb") as file,
        np.load(file) as kept,
    ):
        nodes = Nodes(*(kept[f"nodes_{name}"] for name in Nodes._fields))
        cells = Cells(*(kept[f"cells_{name}"] for name in Cells._fields))
        keys, places = kept["keys"], kept["places"]
        origin, depth, rows = kept["origin"], kept["depth"], kept["rows_left"]
        surface.nodes, surface.cells, surface.origin, surface.depth, surface.rows_left = (
            nodes, cells, origin, depth, rows,
        )  # fmt: skip
        surface.node_at = dict(zip(keys.tolist(), places.tolist(), strict=True))
    return surface


def save_surface(surface: Surface) -> bool:
    """Keep a surface for later, whole or not at all; return whether that was possible.

    Examples
    --------
    >>> from tcpdelay.questions.region.question import question
    >>> save_surface(Surface(question("voip", None, 0.123, 0.9)))
    True
    """
    if not surface.whole:
        return False
    path = surface_path(surface.asked)
    temporary = path.with_name(f".{secrets.token_hex(8)}.npz")
    arrays: dict[str, Any] = {f"nodes_{name}": array for name, array in zip(Nodes._fields, surface.nodes, strict=True)}
    arrays |= {f"cells_{name}": array for name, array in zip(Cells._fields, surface.cells, strict=True)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            np.savez(
                temporary,
                keys=np.fromiter(surface.node_at, np.int64, len(surface.node_at)),
                places=np.fromiter(surface.node_at.values(), np.int64, len(surface.node_at)),
                origin=surface.origin,
                depth=surface.depth,
                rows_left=surface.rows_left,
                **arrays,
            )
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError:
        return False
    return True
