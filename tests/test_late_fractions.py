"""Late fractions of tables: distributions that are moved between two round-trip times, and what is kept of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.questions.region.question import question
from tcpdelay.questions.tables.interpolation import QUANTILES, STEPS, _moved, _steps_at_limit, empty_nodes
from tcpdelay.questions.tables.surface import Surface

VOIP = question("voip", None, None, None)
distributions = st.lists(
    st.tuples(st.integers(-40, 40), st.integers(1, 9)), min_size=1, max_size=12, unique_by=lambda atom: atom[0]
)


def spread(atoms):
    """Return delays beyond the limit, ascending, and the shares that arrive within each, in single precision."""
    delay, weight = np.array(sorted(atoms), float).T
    return delay / 1024, (np.cumsum(weight) / weight.sum()).astype(np.float32)


def quantile(share, delay, reached):
    return delay[np.minimum(np.searchsorted(reached, share), delay.size - 1)]


@given(distributions, distributions, st.integers(0, 16))
def test_the_delay_of_each_share_is_moved(left, right, sixteenths):
    way = sixteenths / 16
    nodes = empty_nodes(2)
    ends = [spread(left), spread(right)]
    for place, (delay, reached) in enumerate(ends):
        nodes.delay[place, QUANTILES, : delay.size], nodes.reached[place, QUANTILES, : delay.size] = delay, reached
    shares = np.union1d(ends[0][1], ends[1][1])
    moved = (1 - way) * quantile(shares, *ends[0]) + way * quantile(shares, *ends[1])
    on_time = shares[moved <= 0]
    assert _moved(nodes, 0, 1, way) == pytest.approx(1 - on_time.max(initial=0.0), abs=1e-7)


@given(st.lists(st.tuples(st.floats(-0.2, 2.0), st.floats(1e-9, 1.0)), min_size=1, max_size=400))
def test_the_late_fraction_at_the_limit_is_kept_and_is_fine_around_it(atoms):
    delay, weight = np.array(sorted(atoms)).T
    reached = np.cumsum(weight) / weight.sum()
    steps = _steps_at_limit(delay, reached)
    assert steps.delay.size <= STEPS
    assert steps.reached[-1] == pytest.approx(1)
    assert np.all(np.diff(steps.delay) >= 0)
    assert np.all(np.diff(steps.reached) > 0)

    def late(at, known, arrived):
        return 1 - np.append(0.0, arrived)[np.searchsorted(known, at, side="right")]

    exact, kept = late(0.0, delay, reached), late(0.0, steps.delay, steps.reached)
    assert kept == pytest.approx(exact, abs=1e-12)
    others, kept = late(delay, delay, reached), late(delay, steps.delay, steps.reached)
    # A packet may count as on time with those joined to it, never as late.
    assert np.all(kept <= others + 1e-12)
    distance = np.abs(np.log((kept + 0.005) / (exact + 0.005)))
    assert np.all(np.log((others + 0.005) / (kept + 0.005)) <= 0.015 + 0.4 * distance)


def test_late_fractions_are_those_of_the_threshold_asked_for():
    """Around 390 ms hardly any packet but a lost one is late; a few milliseconds on, nearly every one is."""
    box = ((0.384, 0.394), (0.004, 0.006))
    rng = np.random.default_rng(7)
    surface = Surface(VOIP)
    surface.answer(*(np.exp(rng.uniform(*np.log(ends), 4000)) for ends in box))
    rtt, loss = (np.exp(rng.uniform(*np.log(ends), 150)) for ends in box)
    answers = surface.answer(rtt, loss)
    assert answers.solved < 30
    limit, errors = VOIP.target.limit, []
    for place, late in enumerate(answers.columns[4]):
        exact = td.predict_delay(rtt=rtt[place], loss=loss[place], packet_size=174, interval=0.02)
        low, high = exact.late_fraction(limit + 0.00125), exact.late_fraction(limit - 0.00125)
        errors.append(max(low - late, late - high, 0.0) / exact.late_fraction(limit))
    # Cells are tested at points: some rows lie where none of them was.
    assert np.quantile(errors, 0.9) <= 0.05
    assert max(errors) <= 0.15
