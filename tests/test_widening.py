"""Wider bounds of the backlog: where they start from, and what is decided before any is solved."""

import numpy as np
import pytest

from chain_structure import profile_of, rows_within
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.chain.solver.aggregation import UNDISTURBED, decay, doublings, tail_decay, widen
from tcpdelay.chain.solver.state_space import PHASE, TRANSITION, number_states, reachable_rows
from tcpdelay.chain.solver.stationary import MAX_SWEEPS, NEGLIGIBLE_TRUNCATION, from_start, solve_by_sweeps
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

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
