"""The solver of chains: its pieces, small chains, bounds of the backlog, and the exported chain solved by SciPy."""

from collections import defaultdict

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from hypothesis import given
from hypothesis import strategies as st

from chain_structure import VOICE, linux_models, profile_of, rows_within
from tcpdelay.ask import Requested
from tcpdelay.chain.delay_model import DelayModel, write_drn
from tcpdelay.chain.engine import budget_for
from tcpdelay.chain.published import start_phase
from tcpdelay.chain.solver.aggregation import UNDISTURBED, bin_flows, decay, doublings, gth_solve, tail_decay, widen
from tcpdelay.chain.solver.state_space import (
    PHASE,
    TRANSITION,
    compressed_rows,
    list_states,
    number_states,
    reachable_rows,
    rows_with_tail,
)
from tcpdelay.chain.solver.stationary import (
    MAX_SWEEPS,
    NEGLIGIBLE_TRUNCATION,
    from_start,
    solve_by_sweeps,
    solve_within,
)
from tcpdelay.chain.solver.sweeps import backlogs_beyond, extrapolate, new_history, remember, sweep
from tcpdelay.models.predict import capacity, predict
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

# The pieces: elimination, acceleration, the chain of phases, the drift of the backlog


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


# A small chain that is solved in one call has the answers of its single steps, which parts of the mean need

STACKS = (
    Stack.linux(),
    Stack.linux(congestion_control="reno"),
    Stack.linux(congestion_control="bbr"),
    Stack.newreno_2008(),
    Stack.newreno_2008(backlog_bound="grow"),
)
SCENARIOS = {
    "voice": (VOICE, Path(rtt=0.1, loss=0.02)),
    "beyond the first bound": (Flow(1200, 0.020), Path(rtt=0.15, loss=0.015)),
    "not carried": (Flow(1448, 0.010), Path(rtt=0.2, loss=0.1)),
    "sparse": (Flow(174, 0.5), Path(rtt=0.05, loss=0.02)),
    "jitter": (VOICE, Path(rtt=0.1, loss=0.02, jitter=0.005)),
}


def answers(flow, path, stack):
    """The answer of one call, and of single steps."""
    scenario = Scenario(flow, path, stack)
    return [predict(scenario, Requested(parts=parts), "chain") for parts in (False, True)]


@pytest.mark.parametrize("stack", STACKS, ids=str)
@pytest.mark.parametrize(("flow", "path"), SCENARIOS.values(), ids=SCENARIOS)
def test_one_call_has_the_delays_of_single_steps(flow, path, stack):
    one, steps = answers(flow, path, stack)
    assert (one.status, one.sustainable, str(one.refusal)) == (steps.status, steps.sustainable, str(steps.refusal))
    if steps.answered:
        for name in ("values", "weights"):
            found, expected = (getattr(each.distribution, name) for each in (one, steps))
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)
        assert one.mean == pytest.approx(steps.mean, rel=1e-12)
        assert one.truncated_mass == pytest.approx(steps.truncated_mass, rel=1e-6, abs=1e-18)
        assert one.expected_error == steps.expected_error


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_one_call_finds_the_capacity(stack):
    path = Path(rtt=0.1, loss=0.02)
    model = DelayModel(VOICE, path, stack)
    predicted = predict(Scenario(VOICE, path, stack), method="chain")
    assert predicted.sustainable == model.carried
    assert model.capacity == pytest.approx(capacity(Scenario(VOICE, path, stack)), rel=1e-12)


# Wider bounds of the backlog: where they start from, and what is decided before any is solved

LINUX = Stack.linux()


def queue(up):
    """Return the one phase and two transitions of a random walk that goes up with probability `up`, and down if not."""
    phases, transitions = np.zeros(2, PHASE), np.zeros(2, TRANSITION)
    phases["first_transition"][1] = 2
    transitions["shift"], transitions["probability"] = [1, -1], [up, 1 - up]
    return phases, transitions


@pytest.mark.parametrize("up", [0.1, 0.3, 0.45])
def test_the_decay_of_a_random_walk_is_the_ratio_of_its_steps(up):
    phases, transitions = queue(up)
    rows = reachable_rows(phases, transitions, 0, 50)
    geometric = (up / (1 - up)) ** np.arange(51)
    assert decay(phases, rows, geometric / geometric.sum()) == pytest.approx(up / (1 - up), rel=1e-12)


@pytest.mark.parametrize("up", [0.1, 0.3, 0.45, 0.4999])
def test_the_tail_of_a_random_walk_follows_from_its_steps(up):
    # Two phases, of which the second follows each step upwards: one event at most leads back to its own phase.
    phases, transitions = np.zeros(3, PHASE), np.zeros(4, TRANSITION)
    phases["first_transition"] = [0, 2, 4]
    transitions["target"] = transitions["target_when_empty"] = [1, 0, 1, 0]
    transitions["shift"], transitions["probability"] = [1, -1, 1, -1], [up, 1 - up, up, 1 - up]
    assert tail_decay(phases, transitions, 0) == pytest.approx(up / (1 - up), rel=1e-5)


@pytest.mark.parametrize(
    ("flow", "path"), [(Flow(1200, 0.020), Path(0.150, 0.015)), (Flow(1448, 0.004634), Path(0.0301, 0.02))]
)
def test_the_tail_of_a_chain_decays_as_its_transitions_say(flow, path):
    model, profile = DelayModel(flow, path, LINUX), profile_of(flow, path, LINUX)
    bound = 8 * profile.first_bound
    rows = rows_within(profile, bound)
    solution = solve_by_sweeps(*profile.structure, rows, profile.start, MAX_SWEEPS)
    assert model.backlog_drift < 0
    measured = decay(profile.structure[0], rows, solution.probability)
    assert tail_decay(*profile.structure, profile.backlogged) == pytest.approx(measured, rel=1e-4)


def test_what_is_wider_goes_on_as_it_decayed():
    phases, transitions = queue(0.3)
    narrow, wide = (reachable_rows(phases, transitions, 0, bound) for bound in (20, 40))
    geometric = 0.7 ** np.arange(41)
    disturbed = np.where(np.arange(21) <= UNDISTURBED * 20, geometric[:21], 5.0)
    np.testing.assert_allclose(widen(narrow, disturbed, wide, 0.7), geometric, rtol=1e-12)


@pytest.mark.parametrize(
    ("cut", "factor", "expected"), [(1e-4, 0.9, 1), (1e-2, 0.99, 4), (0.5, 1.0, 1), (2e-6, 0.5, 1)]
)
def test_the_bound_doubles_until_nothing_is_cut_off(cut, factor, expected):
    number = doublings(cut, factor, 100, 1e-6)
    assert number == expected
    if factor < 1:
        assert cut * factor ** (100 * (2**number - 1)) <= 1e-6


@pytest.mark.parametrize(
    ("flow", "path"),
    [
        (Flow(1200, 0.020), Path(0.150, 0.005)),
        (Flow(1200, 0.020), Path(0.150, 0.015)),
        (Flow(5000, 0.040), Path(0.100, 0.01)),
    ],
)
def test_a_solution_does_not_depend_on_where_it_started(flow, path):
    model = DelayModel(flow, path, LINUX)
    profile = profile_of(flow, path, LINUX)
    bound = int(model.states["b"].max())
    assert bound > profile.first_bound
    rows = rows_within(profile, bound)
    cold = solve_by_sweeps(*profile.structure, rows, profile.start, MAX_SWEEPS)
    assert max(cold.residual, model.residual) <= 1e-13
    reachable = number_states(*profile.structure, rows, profile.start) >= 0
    np.testing.assert_allclose(model.stationary_distribution, cold.probability[reachable], rtol=0, atol=1e-11)
    assert model.delay_distribution().truncated_mass < NEGLIGIBLE_TRUNCATION


def test_a_rough_solution_says_so_and_can_be_finished():
    profile = profile_of(Flow(1200, 0.020), Path(0.150, 0.005), LINUX)
    (phases, transitions), start = profile.structure, profile.start
    rows = rows_within(profile, profile.first_bound)
    inflow = from_start(rows, start)
    rough = solve_by_sweeps(phases, transitions, rows, start, MAX_SWEEPS, inflow, 1e-6)
    assert rough.residual > 1e-13
    finished = solve_by_sweeps(phases, transitions, rows, start, MAX_SWEEPS, inflow)
    exact = solve_by_sweeps(phases, transitions, rows, start, MAX_SWEEPS)
    np.testing.assert_allclose(finished.probability, exact.probability, rtol=0, atol=1e-12)


def test_a_huge_load_is_refused_by_its_drift_not_for_its_memory():
    distribution = DelayModel(Flow(1448, 0.0001), Path(0.100, 0.01), LINUX).delay_distribution()
    assert not distribution.sustainable
    assert np.isinf(distribution.mean)
    with pytest.raises(ValueError, match=r"needs about .* GiB for 1e\+06 packets per round-trip time"):
        DelayModel(Flow(1448, 1e-7), Path(0.100, 0.01), LINUX)


@pytest.mark.parametrize("flow", [Flow(100, 1 / 30), Flow(20, 0.020)])
def test_a_backlog_that_is_bounded_by_itself_has_no_tail(flow):
    profile = profile_of(flow, Path(0.100, 0.02), LINUX)
    assert tail_decay(*profile.structure, profile.backlogged) == 0


# The exported chain, read again by an independent parser and solved by SciPy: it is the chain that was solved

MODELS = {
    "published": DelayModel(VOICE, Path(rtt=0.100, loss=0.02), Stack.newreno_2008()),
    **linux_models(),
}


def read_drn(path):
    """Return header, labels, rewards and transition matrix of a DRN file of a Markov chain."""
    header, _, body = path.read_text().partition("@model\n")
    labels, rewards, entries = [], [], ([], [], [])
    for line in body.splitlines():
        word, *rest = line.split()
        if word == "state":
            number, reward, *names = rest
            assert int(number) == len(labels)
            labels.append(names)
            rewards.append(float(reward.strip("[]")))
        elif word != "action":
            separator, probability = rest
            assert separator == ":"
            for values, value in zip(entries, (len(labels) - 1, int(word), float(probability)), strict=True):
                values.append(value)
    rows, columns, probabilities = entries
    shape = (len(labels), len(labels))
    return header, labels, np.array(rewards), scipy.sparse.coo_array((probabilities, (rows, columns)), shape).tocsr()


def stationary(matrix):
    """Solve the balance equations by SciPy's LU, with the last probability set to 1 and all scaled at the end."""
    balance = (scipy.sparse.eye_array(matrix.shape[0]) - matrix).T.tocsc()
    unscaled = np.append(scipy.sparse.linalg.spsolve(balance[:-1, :-1], -balance[:-1, [-1]].toarray().ravel()), 1.0)
    return unscaled / unscaled.sum()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_the_exported_chain_is_the_chain_that_is_solved(model, tmp_path):
    write_drn(model, tmp_path / "chain.drn")
    header, labels, rewards, matrix = read_drn(tmp_path / "chain.drn")
    states = len(model.states)
    assert header.startswith("@type: DTMC\n")
    assert f"@nr_states\n{states}\n@nr_choices\n{states}\n" in header
    assert np.abs(matrix.sum(axis=1) - 1).max() < 1e-12
    found = stationary(matrix)
    assert np.abs(found - model.stationary_distribution).max() < 1e-9
    of_kind = defaultdict(float)
    for state, (kind, window, backlog) in enumerate(names[-3:] for names in labels):
        assert window == f"window_{model.states[state]['w']}"
        assert backlog == f"backlog_{model.states[state]['b']}"
        of_kind[kind] += found[state]
    assert [state for state, names in enumerate(labels) if "init" in names] == [model.initial_state]
    assert of_kind == pytest.approx({kind: found[model.kinds == kind].sum() for kind in set(model.kinds)})
    assert rewards @ found == pytest.approx(model.step_durations @ model.stationary_distribution, rel=1e-9)


def test_steps_of_the_published_chain_last_as_long_as_published():
    model = MODELS["published"]
    open_steps = model.step_durations[model.kinds == "application_limited"]
    # One packet, lost with 2 %: a success takes an interval, a fast retransmit RTT + 3 intervals, a timeout T0.
    assert np.all(open_steps > 0.98 * 0.020)
    assert np.all(model.step_durations[model.kinds == "recovery"] == pytest.approx(0.100))
    timeouts = model.step_durations[model.kinds == "timeout"]
    # Stage l: RTT with probability 1 - p, else the back-off 2^l T0, T0 being 4 RTT.
    stages = model.states["l"][model.kinds == "timeout"]
    assert timeouts == pytest.approx(0.98 * 0.100 + 0.02 * 2.0**stages * 0.400)


def test_sets_of_states_become_labels(tmp_path):
    model = MODELS["thin flow"]
    sets = {"waiting": model.states["b"] > 0, "nowhere": np.zeros(len(model.states), bool)}
    write_drn(model, tmp_path / "chain.drn", sets)
    _, labels, _, _ = read_drn(tmp_path / "chain.drn")
    assert [state for state, names in enumerate(labels) if "waiting" in names] == np.flatnonzero(
        sets["waiting"]
    ).tolist()
    assert set().union(*labels) == {"init", "waiting"}


def test_a_flow_that_tcp_cannot_carry_is_refused(tmp_path):
    model = DelayModel(Flow(packet_size=1448, interval=0.005), Path(rtt=0.2, loss=0.05), Stack.linux())
    with pytest.raises(ValueError, match="TCP cannot carry it"):
        write_drn(model, tmp_path / "chain.drn")
    assert not list(tmp_path.iterdir())
