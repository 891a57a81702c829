"""Whether TCP carries a flow and a target is met: one decision, in delays, capacity and targets."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tcpdelay as td
from chain_structure import profile_of, solved_rows
from tcpdelay.accuracy.throughput import connection_utilization, largest_rule_of_thumb_rate
from tcpdelay.ask import Requested, solved_once
from tcpdelay.chain import engine as chain
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.chain.engine import budget_for
from tcpdelay.chain.linux.delays import bins_with_tail
from tcpdelay.chain.linux.departures import add, new_bins
from tcpdelay.chain.published import spread_lattice
from tcpdelay.chain.solver.aggregation import (
    SINGLE_BACKLOGS,
    aggregate,
    bin_flows,
    geometric_groups,
    tail_decay,
    tail_errors,
)
from tcpdelay.chain.solver.state_space import PHASE, TRANSITION, rows_with_tail
from tcpdelay.chain.solver.stationary import MAX_SWEEPS, solve_by_sweeps
from tcpdelay.chain.solver.sweeps import backlogs_beyond, sweep
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import capacity, carries, predict, simulator
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, application
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

# Whether TCP carries a flow, and the backlogs beyond the bound

CUBIC_PATHS = [(990, interval, Path(0.199, 0.00213)) for interval in (0.0046, 0.0052, 0.0064)]
CUBIC_PATHS += [(1136, interval, Path(0.245, 0.00286)) for interval in (0.0066, 0.0093)]


@pytest.mark.parametrize(("packet_size", "interval", "path"), CUBIC_PATHS)
def test_what_the_capacity_exceeds_is_carried(packet_size, interval, path):
    # Each needs backlogs of more than three million states; captures of Linux 6.1 carry them.
    scenario = Scenario(Flow(packet_size, interval), path)
    assert capacity(scenario) > 1.2 * scenario.flow.packet_rate
    answer = predict(scenario, method="chain")
    assert answer.sustainable
    assert path.rtt / 2 < answer.mean < 20
    assert np.isfinite(answer.require().quantile(0.99999))


def drawn(number):
    """Return a random scenario of 10 to 60 packets per round-trip time."""
    random = np.random.default_rng([number, 7])
    rtt = 0.02 * 20 ** random.random()
    interval, loss = rtt / random.uniform(10, 60), 2e-4 * 500 ** random.random()
    flow = Flow(int(random.integers(60, 1449)), float(f"{interval:.4g}"))
    control = ("cubic", "reno", "bbr")[number % 3]
    return Scenario(flow, Path(float(f"{rtt:.4g}"), float(f"{loss:.4g}")), Stack.linux(control))


def test_the_chain_never_contradicts_its_capacity():
    # The delays of all 2000 scenarios of validation/carried.py take minutes.
    said = set()
    for number in range(2000):
        scenario = drawn(number)
        carried = carries(scenario)
        model = DelayModel(scenario.flow, scenario.path, scenario.stack)
        assert model.carried == carried
        said.add(carried)
        if number % 40 == 0:
            answer = predict(scenario, method="chain")
            assert answer.answered
            assert answer.sustainable == carried == bool(np.isfinite(answer.mean))
    assert said == {True, False}


def walk(*steps):
    """Return two phases in turn, each with the same steps of a random walk and their probabilities."""
    phases, transitions = np.zeros(3, PHASE), np.zeros(2 * len(steps), TRANSITION)
    phases["first_transition"] = [0, len(steps), 2 * len(steps)]
    for event, (phase, (shift, probability)) in enumerate(itertools.product((0, 1), steps)):
        transitions[event]["target"] = transitions[event]["target_when_empty"] = 1 - phase
        transitions[event]["shift"], transitions[event]["probability"] = shift, probability
    transitions["duration"] = 1.0
    return phases, transitions


@pytest.mark.parametrize("bound", [1, 2, 5, 30])
@pytest.mark.parametrize("up", [0.2, 0.45, 0.499])
def test_one_cell_stands_for_all_larger_backlogs_of_a_random_walk(up, bound):
    phases, transitions = walk((1, up), (-1, 1 - up))
    ratio = up / (1 - up)
    assert tail_decay(phases, transitions, 0) == pytest.approx(ratio, rel=1e-6)
    rows = rows_with_tail(phases, transitions, 0, bound, ratio)
    found = solve_by_sweeps(phases, transitions, rows, 0, MAX_SWEEPS).probability
    both = found[: bound + 1] + found[bound + 1 :]
    expected = (1 - ratio) * ratio ** np.arange(bound + 1.0)
    expected[bound] = ratio**bound
    np.testing.assert_allclose(both, expected, rtol=1e-6, atol=1e-12)
    assert max(tail_errors(phases, rows, found)) < 1e-4


@pytest.mark.parametrize("bound", [1, 3, 7, 20])
def test_long_steps_leave_the_cell_at_the_bound_as_they_leave_single_backlogs(bound):
    phases, transitions = walk((2, 0.3), (1, 0.15), (-1, 0.3), (-3, 0.2), (-9, 0.05))
    ratio, backlogs = 0.8, 400
    rows = rows_with_tail(phases, transitions, 0, bound, ratio)
    visits = np.random.default_rng(5).random(rows["offset"][-1])
    single = np.zeros((2, backlogs))
    for phase in (0, 1):
        row = visits[rows["offset"][phase] : rows["offset"][phase + 1]]
        single[phase, :bound] = row[:-1]
        single[phase, bound:] = row[-1] * (1 - ratio) * ratio ** np.arange(backlogs - bound)
    after, width = np.zeros((2, bound + 1)), 4
    flows = np.zeros((bound // width + 1, bound // width + 1))
    for phase, event in ((event // 5, event) for event in range(10)):
        moved = np.clip(np.arange(backlogs) + transitions["shift"][event], 0, bound)
        chances = single[phase] * transitions["probability"][event]
        np.add.at(after[1 - phase], moved, chances)
        np.add.at(flows, (np.minimum(np.arange(backlogs), bound) // width, moved // width), chances)
    np.testing.assert_allclose(bin_flows(phases, transitions, rows, visits, width), flows, rtol=1e-9)
    # Without inflow to the second phase, a sweep carries what is in the first phase to the second and back.
    inflow, found = np.zeros(visits.size), np.zeros(visits.size)
    inflow[: bound + 1] = visits[: bound + 1]
    sweep(phases, transitions, rows, backlogs_beyond(rows), inflow, found)
    np.testing.assert_allclose(found[bound + 1 :], after[1], rtol=1e-9)
    assert inflow.sum() == pytest.approx(visits[: bound + 1].sum(), rel=1e-12)


def test_phases_that_are_entered_only_when_empty_count_the_backlogs_beyond():
    phases, transitions = walk((1, 0.4), (-9, 0.6))
    transitions["target_when_empty"] = [1, 0, 0, 1]
    rows = rows_with_tail(phases, transitions, 0, 4, 0.8)
    visits = np.random.default_rng(6).random(rows["offset"][-1])
    moves = aggregate(phases, transitions, rows, visits)
    # Of the first phase, a backlog of at most nine packets is empty after the second step, and the phase stays.
    row = visits[:5]
    stays = 0.6 * (row[:4].sum() + row[4] * (1 - 0.8**6)) / row.sum()
    assert moves.leaving[0] == pytest.approx(1 - stays, rel=1e-12)


@given(st.integers(0, 10_000), st.floats(0.01, 0.999999))
def test_groups_of_backlogs_keep_the_mean(first, ratio):
    means, shares = geometric_groups(first, ratio)
    assert shares.sum() == pytest.approx(1, rel=1e-9)
    assert means @ shares == pytest.approx(first + ratio / (1 - ratio), rel=1e-6)
    assert (np.diff(means) > 0).all()
    assert means.size < 40_000


def test_delays_of_backlogs_beyond_the_bound_are_longer_by_a_slot_each():
    ratio, beyond, within = 0.999, new_bins(40), new_bins(40)
    add(beyond, 12.25, 3.0, 1.0)
    add(within, 1.0, 0.5, 0.25)
    values, weights = bins_with_tail(within, beyond, 0.5, ratio)
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    assert values[0] == 1.5
    assert weights[0] == pytest.approx(1 / 3)
    assert values @ weights == pytest.approx((1.5 + 2 * (15.25 + ratio / (1 - ratio))) / 3, rel=1e-9)
    for longer in (0, 10, SINGLE_BACKLOGS - 1):
        assert weights[values > 15.3 + longer].sum() == pytest.approx(2 / 3 * ratio ** (longer + 1), rel=1e-9)


def test_a_lattice_of_backlogs_beyond_the_bound_keeps_its_mean():
    below, beyond = np.array([0.5, 0.25, 0.0]), np.array([0.0, 0.0, 0.25])
    found = spread_lattice(below, beyond, 0.99)
    assert found.sum() == pytest.approx(1, rel=1e-9)
    assert found @ np.arange(found.size) == pytest.approx(0.25 + 0.25 * (2 + 99), rel=1e-9)
    assert found[2:5] == pytest.approx(0.25 * 0.01 * 0.99 ** np.arange(3.0), rel=1e-9)


@pytest.mark.parametrize(
    ("flow", "path", "stack"),
    [
        (Flow(1200, 0.020), Path(0.150, 0.020), Stack.linux()),
        (Flow(1448, 0.004634), Path(0.0301, 0.02), Stack.linux()),
        (Flow(1200, 0.020), Path(0.150, 0.021), Stack.newreno_2008(backlog_bound="grow")),
    ],
)
def test_delays_with_a_tail_are_those_of_single_backlogs(flow, path, stack):
    model, profile = DelayModel(flow, path, stack, budget_for(100.0, None)), profile_of(flow, path, stack)
    found = model.delay_distribution()
    # Nothing is cut off where one cell stands for all larger backlogs.
    assert found.truncated_mass == 0
    rows, solution = solved_rows(profile)
    assert rows["bound"][0] > profile.first_bound
    expected = DelayDistribution(*profile.delays(rows, solution.probability), path.forward_delay)
    assert found.mean == pytest.approx(expected.mean, rel=1e-3)
    assert found.quantile(0.95) == pytest.approx(expected.quantile(0.95), rel=2e-3)
    assert found.quantile(0.9999) == pytest.approx(expected.quantile(0.9999), rel=1e-2)
    parts, alike = model.delay_parts, profile.mean_parts(rows, solution.probability)
    # How much of the backlogs follows timeouts is a rough figure, as rare states are left out.
    assert parts.backlog + parts.timeouts == pytest.approx(alike[0] + alike[2], rel=2e-3)
    assert parts.head_of_line == pytest.approx(alike[1], rel=5e-3)
    assert path.forward_delay + parts.backlog + parts.timeouts + parts.head_of_line == pytest.approx(found.mean)
    time = profile.backlogged_time(rows, solution.probability)
    assert model.backlogged_time_fraction == pytest.approx(time, rel=1e-3)


def test_the_bound_doubles_where_backlogs_beyond_it_are_not_geometric(monkeypatch):
    flow, path, means = Flow(1136, 0.0093), Path(0.245, 0.00286), []
    for largest in (1.0, 0.005, 1e-4):
        monkeypatch.setattr(chain, "LARGEST_TAIL_ERROR", largest)
        model = DelayModel(flow, path, Stack.linux(), budget_for(100.0, None))
        means.append(model.delay_distribution().mean)
    rough, usual, exact = means
    assert abs(usual / exact - 1) < 1e-3 < 0.01 < abs(rough / exact - 1)


def test_nothing_stands_for_a_backlog_that_the_bound_holds():
    found = DelayModel(Flow(174, 0.020), Path(0.100, 0.02), Stack.linux()).delay_distribution()
    assert 0 < found.truncated_mass < 1e-6


# Whether a target is met is the same with and without the whole distribution

STACKS = [td.Stack.newreno_2008(backlog_bound="grow"), td.Stack.linux(), td.Stack.linux("reno")]


def decided(scenario, target):
    return predict(scenario, Requested(precision="decision", target=target), "chain").meets(target)


@settings(max_examples=20, deadline=None)
@given(
    stack=st.sampled_from(STACKS),
    packet_size=st.sampled_from([174, 724, 1448]),
    rtt=st.floats(0.01, 0.2),
    loss=st.floats(0.002, 0.08),
    utilization=st.floats(0.5, 0.9),
    probability=st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]),
    beyond=st.sampled_from([-1e-3, -1e-6, -1e-10, 0.0, 1e-10, 1e-6, 1e-3]),
)
def test_a_decision_agrees_with_the_prediction_at_a_quantile(
    stack, packet_size, rtt, loss, utilization, probability, beyond
):
    path = td.Path(rtt=rtt, loss=loss)
    interval = 8 * packet_size / largest_rule_of_thumb_rate(path, stack, utilization)
    assume(1e-3 < interval < 1 and rtt / interval < 12)
    scenario = Scenario(td.Flow(packet_size, interval), path, stack)
    assert connection_utilization(scenario.flow, path, stack) == pytest.approx(utilization)
    delays = predict(scenario, method="chain").require()
    quantile = delays.quantile(probability)
    if quantile == np.inf:
        assert not decided(scenario, td.Target(60.0, probability))
        return
    for target in (
        td.Target(quantile * (1 + beyond), probability),
        # The share of late packets at a delay that occurs, and shares slightly smaller and larger.
        td.Target(quantile, min(max((1 - delays.late_fraction(quantile)) * (1 + beyond), 0.01), 0.9999)),
    ):
        assert decided(scenario, target) == delays.meets(target)


@pytest.mark.parametrize(
    ("flow", "path", "probability"),
    [
        (td.Flow(863, 0.0095), td.Path(rtt=0.0229, loss=0.13), 0.95),
        (td.Flow(416, 0.0029), td.Path(rtt=0.0106, loss=0.14), 0.99),
        (td.Flow(2121, 0.021), td.Path(rtt=0.0256, loss=0.12), 0.95),
        # The limit lies far beyond the first bounds; long timeouts make the tail that the first bound does not show.
        (td.Flow(328, 0.0063), td.Path(rtt=0.0369, loss=0.13), 0.9999),
        (td.Flow(60, 0.0042), td.Path(rtt=0.0181, loss=0.14), 0.9999),
        # With one bound, delays near the limit are delays at the bound.
        (td.Flow(1110, 0.005639046922802856), td.Path(rtt=0.1552655657742001, loss=0.0014311936979418717), 0.9999),
    ],
)
def test_a_decision_agrees_where_a_backlog_decays_slowly(flow, path, probability):
    for stack in STACKS[1:]:
        scenario = Scenario(flow, path, stack)
        delays = predict(scenario, method="chain").require()
        for share in (0.98, 0.99, 0.999, 1.001, 1.02):
            target = td.Target(delays.quantile(probability) * share, probability)
            assert decided(scenario, target) == delays.meets(target)


@pytest.mark.parametrize("loss", [0.3, 0.35, 0.36])
def test_a_decision_promises_nothing_that_is_too_large_to_predict(monkeypatch, loss):
    monkeypatch.setattr(chain, "MOST_CELLS", 20_000)
    scenario, target = Scenario(td.Flow(174, 0.020), td.Path(rtt=0.100, loss=loss)), td.Target(60.0, 0.5)
    assert decided(scenario, target) == predict(scenario, method="chain").meets(target)


def test_answers_are_remembered_only_within_their_context():
    scenario = Scenario(td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02))
    with solved_once():
        exact = predict(scenario, method="chain")
        with solved_once():
            assert predict(scenario, method="chain") is exact
        quick = predict(scenario, Requested(precision="decision", target=td.Target(0.2)), "chain")
        assert quick.lateness == exact.require().late_fraction(0.2)
        assert quick.expected_error == exact.expected_error
        figures = predict(scenario, Requested(quantiles=(0.5, 0.95), late_after=(0.2,)), "chain")
        assert figures.quantiles.tolist() == exact.require().quantile([0.5, 0.95]).tolist()
        parts = predict(scenario, Requested(parts=True), "chain")
        assert parts.parts is not None
    assert predict(scenario, method="chain") is not exact


def test_capacity_is_where_a_flow_is_no_longer_carried():
    path = td.Path(rtt=0.100, loss=0.02)
    assert carries(Scenario(td.Flow(174, 0.020), path))
    assert carries(Scenario(td.Flow(1448, 0.005), path)) is False
    assert carries(Scenario(td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02, reordering=0.01))) is None


def test_a_backlog_far_beyond_the_first_bound_is_decided_as_it_is_predicted():
    # Its states would be more than three million.
    flow, path = application("live-video").at_constant_rate.flow, td.Path(rtt=0.130, loss=0.001)
    alone = td.DelayModel(flow, path, td.Stack.linux()).delay_distribution().late_fraction(5.0)
    assert 1e-5 < alone < 1e-3
    assert td.DelayModel(flow, path, td.Stack.linux()).lateness(5.0, 0.999) == pytest.approx(alone, rel=1e-9)
    assert td.DelayModel(flow, path, td.Stack.linux()).lateness(0.4, 0.999) > 0.001


PACKETS = 100_000


@pytest.mark.parametrize("limit", [0.1, 0.14, 0.3])
def test_a_simulation_ends_as_soon_as_it_decides(limit):
    flow, path, target = td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02), td.Target(limit)
    whole = td.simulate(flow, path, packets=PACKETS)
    quick = td.simulate(flow, path, packets=PACKETS, decided=target)
    assert quick.settled
    assert quick.meets(target) == whole.meets(target)
    near = abs(whole.late_fraction(limit) - 0.05) < 0.005
    assert (quick.packets < PACKETS) != near
    assert not near or np.array_equal(quick.values, whole.values)


def test_few_allowed_packets_are_not_decided_early():
    flow, path, rare = td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.001), td.Target(0.5, 0.999)
    assert td.simulate(flow, path, packets=PACKETS, decided=rare).packets == PACKETS


def test_a_scenario_is_simulated_once(monkeypatch):
    made = []
    simulate = td.simulate

    def counted(*scenario, decided, on_progress, **options):
        made.append((*scenario, *options.values(), decided))
        return simulate(*scenario, decided=decided, on_progress=on_progress, **options)

    monkeypatch.setattr("tcpdelay.sim.simulation.simulate", counted)
    scenario, target = Scenario(td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02, reordering=0.01)), td.Target(0.2)
    with solved_once():
        answer = predict(scenario, Requested(packets=20_000), "simulation")
        again = predict(scenario, Requested(target=target), simulator(20_000, because="of this test"))
        decided = predict(scenario, Requested(precision="decision", target=target), simulator(20_000))
    assert len(made) == 1
    assert (answer.simulated_because, again.simulated_because) == ("", "of this test")
    assert decided.lateness == answer.require().late_fraction(0.2)
    made.clear()
    monkeypatch.setattr("tcpdelay.models.predict.COMPARED_PACKETS", 20_000)
    monkeypatch.setattr("tcpdelay.sim.simulation.MOST_PACKETS", 20_000)
    td.guideline(scenario.flow, scenario.path, target=target)
    whole = [call[:-1] for call in made if call[-1] is None]
    assert len(whole) == len(set(whole)) > 5
