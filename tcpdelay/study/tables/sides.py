"""Verdicts on the rows of a table, from chains near the edges of what works alone.

At one round-trip time the delay of a quantile grows with the loss, to a relative `SAME_QUANTILE`, and the rate that TCP
carries falls. So two solved paths of the lattice bound the delay of the paths between them, and the expected error of
each path is looked up in no time. Only where these bounds leave the verdict open, a path is solved: the middle one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.errors import WRONG_CALL, expected_error_map
from tcpdelay.models.verdict import longer_limit
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, NewReno2008
from tcpdelay.study.grid import Question
from tcpdelay.study.tables.lattice import (
    ANSWER,
    NO_ANSWERS,
    PLACES,
    Answers,
    Lattice,
    OnProgress,
    by_loss,
    joined,
    path_at,
    row_of,
    taken,
)

SAME_QUANTILE = 1e-4
"""Relative difference below which two quantiles do not show which of two losses is larger."""
OPEN, WORKS, FAILS, UNCERTAIN, UNANSWERED = range(5)
"""Verdicts on a path that is not solved, by number."""


def has_sides(asked: Question) -> bool:
    """Return whether the verdicts of a question have edges that the chains of TCP know."""
    linux = isinstance(asked.stack, Linux) and asked.stack.congestion_control != "bbr"
    return isinstance(asked.flow, Flow) and not asked.simulated and (linux or isinstance(asked.stack, NewReno2008))


class Verdicts(Lattice):
    """A lattice that solves no more paths than verdicts need.

    The other paths have a range of late packets that gives their verdict, and delays of 0 in place of the unknown ones.
    """

    def __init__(self, asked: Question) -> None:
        super().__init__(asked)
        self._sides = np.zeros(PLACES, np.int8)

    def nearest(self, places: NDArray[np.int64], on_progress: OnProgress = None) -> Answers:
        """Return the answers at places; `on_progress` gets the chains solved, and to be solved as far as is known."""
        if (new := np.unique(places[(self._sides[places] == OPEN) & ~self.is_known(places)])).size:
            self._decide(new, on_progress)
        found, known = taken(_STAND_INS, self._sides[places]), self.is_known(places)
        for name, column in self.known(places[known]).items():
            found[name][known] = column
        # Remarks are about the figures of a row.
        return {**found, "remark": np.zeros_like(found["remark"])}

    def _decide(self, places: NDArray[np.int64], on_progress: OnProgress) -> None:
        """Find the verdict of places that are not known, or solve them: in each gap between solved ones the middle."""
        places = places[np.argsort(by_loss(places))]
        limits, solved = _Limits.of(self.asked, places), 0
        while places.size:
            known, answers = self.remembered()
            order = np.argsort(by_loss(known))
            known, around = known[order], joined(taken(answers, order), _BOUNDS)
            behind = np.searchsorted(by_loss(known), by_loss(places))
            row, rows = row_of(places), np.append(row_of(known), -1)
            before = np.where(rows[behind - 1] == row, behind - 1, known.size)
            after = np.where(rows[behind] == row, behind, known.size + 1)
            sides = _sides(around, before, after, limits)
            self._sides[places] = sides
            left = sides == OPEN
            gaps = (row * (known.size + 1) + behind)[left]
            _, first, count = np.unique(gaps, return_index=True, return_counts=True)
            middle = np.flatnonzero(left)[first + count // 2]
            self._solve(places[middle], solved, on_progress)
            solved += middle.size
            left[middle] = False
            places, limits = places[left], limits.taken(left)

    def _solve(self, places: NDArray[np.int64], before: int, on_progress: OnProgress) -> None:
        """Solve chains in random order, so that the time of some tells that of the others."""

        def report(done: int, total: int) -> None:
            if on_progress is not None:
                on_progress(before + done, before + total)

        self.solve(np.random.default_rng(0).permutation(places), report)


def _answers(ranges: list[tuple[float, float]], carried: bool, quantile: float) -> Answers:
    """Return answers with these ranges of late packets, and no figures where the range is NaN."""
    found = np.zeros(len(ranges), ANSWER)
    found["sustainable"], found["quantile"] = carried, quantile
    found["late_low"], found["late_high"] = np.array(ranges).T
    found["p50"] = found["late"] = np.where(np.isnan(found["late_low"]), np.nan, 0.0)
    return {name: np.ascontiguousarray(found[name]) for name in NO_ANSWERS}


_UNKNOWN = np.nan, np.nan
_STAND_INS = _answers([_UNKNOWN, (0, 0), (1, 1), (0, 1), _UNKNOWN], True, 0.0)
"""Answers that stand for the verdicts, by their numbers."""
_BOUNDS = joined(_answers([(0, 0)], True, 0.0), _answers([(1, 1)], False, np.inf))
"""What is known before, and behind, a place of whose row no path is solved there."""


class _Limits(NamedTuple):
    """What the delays of each place are compared with."""

    too_far: NDArray[np.bool_]  # Whether the network alone takes longer than the limit
    soonest: NDArray[np.float64]  # Quantile up to which the flow works for certain, if TCP carries it for certain [s]
    latest: NDArray[np.float64]  # Quantile from which on it fails for certain then [s]
    error: NDArray[np.float64]  # Expected error then
    not_carried: NDArray[np.float64]  # Expected error where TCP does not carry the flow

    def taken(self, which: NDArray[np.bool_]) -> _Limits:
        """Return the limits of some of the places."""
        errors = self.error[which], self.not_carried[which]
        return _Limits(self.too_far[which], self.soonest[which], self.latest[which], *errors)

    @classmethod
    def of(cls, asked: Question, places: NDArray[np.int64]) -> _Limits:
        """Return the limits of places that are in order of their rows."""
        (rtts, losses), latest = path_at(places), asked.target.latest
        errors, alone = np.zeros((2, places.size)), np.empty(places.size)
        assert isinstance(asked.flow, Flow)
        starts = np.flatnonzero(np.diff(row_of(places), prepend=-1))
        for row in np.split(np.arange(places.size), starts[1:]):
            rtt, of_row = rtts[row[:1]], (1, row.size)
            # However wrong a chain is, no packet arrives earlier than the network lets it.
            alone[row] = Path(float(rtt[0]), 0.0).forward_delay
            if isinstance(asked.stack, Linux):
                for error, carried in zip(errors, (True, False), strict=True):
                    carries = np.full(of_row, carried)
                    found = expected_error_map(
                        asked.flow, rtt, losses[row], asked.stack, carries, asked.target.quantile
                    )
                    error[row] = np.nan_to_num(found[0, :, 2])
        longer = np.array([longer_limit(latest, error) for error in errors[0].tolist()])
        return cls(alone > latest, latest * (1 - errors[0]), longer, *errors)


def _sides(answers: Answers, before: NDArray[np.int64], after: NDArray[np.int64], limits: _Limits) -> NDArray[np.int64]:
    """Return the verdict on each place that the known ones before and after it leave no doubt about, or `OPEN`."""
    unanswered, carried = np.isnan(answers["late"]), answers["sustainable"]
    anything = (answers["late_low"] == 0) & (answers["late_high"] == 1)
    # The capacity falls with the loss: a flow that is carried for certain behind a place is so at the place.
    clear = (carried & ~anything & ~unanswered)[after]
    shortest = answers["quantile"][before] * (1 - SAME_QUANTILE)
    longest = answers["quantile"][after] * (1 + SAME_QUANTILE)
    fails = clear & (shortest > limits.latest) & (limits.error < WRONG_CALL)
    fails |= (~carried & ~anything & ~unanswered)[before] & (limits.not_carried < WRONG_CALL)
    uncertain = clear & (limits.error >= WRONG_CALL)
    uncertain |= clear & (shortest > limits.soonest) & (longest <= limits.latest)
    # With an error of less than a wrong call, it is the capacity that leaves everything possible.
    near = carried & anything
    uncertain |= near[before] & near[after] & (limits.error < WRONG_CALL)
    verdicts = {
        FAILS: limits.too_far | fails,
        UNANSWERED: unanswered[before] & unanswered[after],
        WORKS: clear & (longest <= limits.soonest),
        UNCERTAIN: uncertain,
    }
    return np.select(list(verdicts.values()), list(verdicts), OPEN)
