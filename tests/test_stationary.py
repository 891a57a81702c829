"""The pieces of the solver: elimination, acceleration, the chain of phases, the drift of the backlog."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from chain_structure import profile_of, rows_within
from tcpdelay.chain.delay_model import DelayModel, budget_for
from tcpdelay.chain.published import start_phase
from tcpdelay.chain.solver.aggregation import bin_flows, gth_solve
from tcpdelay.chain.solver.state_space import (
    PHASE,
    TRANSITION,
    compressed_rows,
    list_states,
    number_states,
    rows_with_tail,
)
from tcpdelay.chain.solver.stationary import from_start, solve_by_sweeps, solve_within
from tcpdelay.chain.solver.sweeps import backlogs_beyond, extrapolate, new_history, remember, sweep
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack


def gth_in_numpy(matrix):
    """The published algorithm, a line a step."""
    a = matrix.copy()
    for last in range(len(a) - 1, 0, -1):
        a[:last, last] /= a[last, :last].sum()
        a[:last, :last] += np.outer(a[:last, last], a[last, :last])
    x = np.ones(len(a))
    for state in range(1, len(a)):
        x[state] = x[:state] @ a[:state, state]
    return x / x.sum()


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_compiled_elimination_is_the_plain_one(states, seed):
    matrix = np.random.default_rng(seed).random((states, states)) ** 6 + 1e-9
    matrix /= matrix.sum(axis=1, keepdims=True)
    probability = gth_solve(matrix)
    assert np.allclose(probability, gth_in_numpy(matrix), rtol=1e-12, atol=0)
    assert np.abs(probability @ matrix - probability).max() < 1e-14


def test_elimination_keeps_the_digits_of_rare_states():
    # Nearly decomposable: the ratio of the two probabilities is that of the two rates, 1e-12 apart.
    matrix = np.array([[1 - 1e-18, 1e-18], [1e-6, 1 - 1e-6]])
    probability = gth_solve(matrix)
    assert probability[1] / probability[0] == pytest.approx(1e-12, rel=1e-12)


@pytest.mark.parametrize("shape", [(2, 3), (4,), (6000, 6000)])
def test_elimination_refuses_what_it_cannot_do(shape):
    with pytest.raises(ValueError, match="matrix must"):
        gth_solve(np.broadcast_to(0.1, shape))


def test_extrapolation_solves_a_linear_iteration_in_a_few_steps():
    # A contraction with four modes is solved exactly once four steps are remembered.
    rates = np.array([0.99, 0.9, 0.5, 0.1])
    offset = np.array([1.0, 2.0, 3.0, 4.0])
    iterate, history, stored = 0.9 * offset / (1 - rates), new_history(4), -1
    for _ in range(8):
        stored = remember(history, stored, iterate, rates * iterate + offset)
        extrapolate(history, stored, iterate)
    assert iterate == pytest.approx(offset / (1 - rates), rel=1e-7)


def structure(flow, path, stack):
    model = DelayModel(flow, path, stack)
    profile = profile_of(flow, path, stack)
    return model, *profile.structure, rows_within(profile, 16 * profile.load), start_phase(profile.load)


@pytest.mark.parametrize(
    ("flow", "path"),
    [(Flow(174, 0.020), Path(0.1, 0.02)), (Flow(15_000, 0.020), Path(0.1, 0.3)), (Flow(1448, 0.05), Path(0.3, 0.05))],
)
def test_a_sweep_moves_probability_as_the_matrix_does(flow, path):
    model, phases, transitions, rows, start = structure(flow, path, Stack.newreno_2008())
    inflow, visits = np.zeros(rows["offset"][-1]), np.zeros(rows["offset"][-1])
    inflow[rows["offset"][start] - rows["low"][start]] = 1.0
    for _ in range(3):
        before = inflow.copy()
        sweep(phases, transitions, rows, backlogs_beyond(rows), inflow, visits)
        number = number_states(phases, transitions, rows, start)
        reachable = number >= 0
        # What is visited comes from what came in and from the visits before; what is left flows back.
        expected = visits[reachable] @ model.transition_matrix + before[reachable] - inflow[reachable]
        assert np.abs(visits[reachable] - expected).max() <= 1e-12 * visits.max()
        assert visits[~reachable].sum() == 0
        assert inflow.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("width", [1, 7, 40, 1000])
@pytest.mark.parametrize(
    ("flow", "path", "stack"),
    [
        (Flow(1448, 0.05), Path(0.3, 0.05), Stack.newreno_2008()),
        # Backlogs that shrink by several packets at once, and rows that begin above an empty backlog.
        (Flow(500, 0.02), Path(0.2, 0.03), Stack.linux("reno")),
    ],
)
def test_flows_between_bins_are_the_sums_of_those_between_states(flow, path, stack, width):
    profile = profile_of(flow, path, stack)
    phases, transitions = profile.structure[0], profile.structure[1].copy()
    rows = rows_within(profile, 90)
    # A phase may empty any backlog, or fill it.
    transitions["shift"][::50], transitions["shift"][25::50] = -(2**40), 2**40
    visits = np.random.default_rng(3).random(rows["offset"][-1])
    expected = np.zeros((90 // width + 1, 90 // width + 1))
    for phase in range(phases.size - 1):
        first, cells = rows["low"][phase], visits[rows["offset"][phase] : rows["offset"][phase + 1]]
        for event in range(phases["first_transition"][phase], phases["first_transition"][phase + 1]):
            before = first + np.arange(cells.size)
            after = np.clip(before + transitions["shift"][event], 0, 90)
            np.add.at(expected, (before // width, after // width), transitions["probability"][event] * cells)
    found = bin_flows(phases, transitions, rows, visits, width)
    assert np.abs(found - expected).max() <= 1e-12 * expected.max()


@pytest.mark.parametrize("shifts", [(-3, -2), (-1, 0), (2, 3)])
@pytest.mark.parametrize("ratio", [0.0, 0.8])
def test_several_events_may_lead_back_to_their_phase(shifts, ratio):
    # BBR's full rounds: the packets of an RTT are rarely a whole number.
    phases, transitions = np.zeros(3, PHASE), np.zeros(6, TRANSITION)
    phases["first_transition"] = [0, 3, 6]
    transitions["target"] = transitions["target_when_empty"] = [0, 0, 1, 0, 0, 0]
    transitions["shift"] = [*shifts, 1, -9, -1, 5]
    transitions["probability"] = [0.5, 0.3, 0.2, 0.4, 0.3, 0.3]
    transitions["duration"] = 1.0
    rows = rows_with_tail(phases, transitions, 0, 12, ratio)
    inflow, visits = from_start(rows, 0), np.zeros(rows["offset"][-1])
    beyond = backlogs_beyond(rows)
    for _ in range(5):
        before = inflow.copy()
        sweep(phases, transitions, rows, beyond, inflow, visits)
        assert inflow.sum() == pytest.approx(before.sum(), rel=1e-14)
    if ratio == 0:
        number = number_states(phases, transitions, rows, 0)
        entries = compressed_rows(phases, transitions, rows, number, *list_states(phases, rows, number))
        reached = number >= 0
        matrix = scipy.sparse.csr_array(entries, shape=2 * (reached.sum(),))
        expected = visits[reached] @ matrix + before[reached] - inflow[reached]
        np.testing.assert_allclose(visits[reached], expected, rtol=1e-12, atol=1e-12)


def test_sweeps_that_are_cut_short_say_so():
    _, phases, transitions, rows, start = structure(Flow(1448, 0.020), Path(0.2, 0.02), Stack.newreno_2008())
    short = solve_by_sweeps(phases, transitions, rows, start, 5)
    assert short.sweeps == 5
    assert short.residual > 1e-6
    assert solve_by_sweeps(phases, transitions, rows, start, 1000).residual <= 1e-13


def test_a_state_that_is_never_left_raises_no_exception_within_a_kernel():
    # BBR's recoveries never end here, to rounding. Numba keeps the arrays of kernels that raise: 90 MB in some cases.
    flow, path = Flow(46, 0.00147), Path(1.6, 0.0522)
    stack = Stack.linux("bbr", delayed_ack=True, hz=300)
    profile = profile_of(flow, path, stack)
    rows = rows_within(profile, 1000)
    with pytest.raises(ArithmeticError, match="never leaves one of its states"):
        solve_within(budget_for(100.0, None), *profile.structure, rows, profile.start, from_start(rows, profile.start))
    model = DelayModel(flow, path, stack)
    assert model.backlog_drift == np.inf
    assert model.capacity == 0
    assert not model.delay_distribution().sustainable
    assert model.lateness(60.0, 0.5) == 1


def test_drift_is_that_of_a_backlog_that_never_ends():
    """Simulate the phases of an endless backlog and measure its growth."""
    model, phases, transitions, _, _ = structure(Flow(1448, 0.020), Path(0.100, 0.05), Stack.newreno_2008())
    random = np.random.default_rng(1)
    phase, packets, time, batches = start_phase(model.load) - 1, 0.0, 0.0, []
    for step in range(1, 60_001):
        events = slice(phases["first_transition"][phase], phases["first_transition"][phase + 1])
        chances = transitions["probability"][events]
        event = events.start + random.choice(chances.size, p=chances / chances.sum())
        packets += transitions["shift"][event]
        time += transitions["duration"][event]
        phase = transitions["target"][event]
        if step % 2000 == 0:
            batches.append(packets / time)
            packets = time = 0.0
    error = np.std(batches, ddof=1) / np.sqrt(len(batches))
    assert abs(np.mean(batches) - model.backlog_drift) < 4 * error + 0.01
    assert error < 0.05 * abs(model.backlog_drift) + 0.2
