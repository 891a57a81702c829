"""Decisions: whether a target is met is the same with and without the whole distribution."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.accuracy.throughput import connection_utilization, largest_rule_of_thumb_rate
from tcpdelay.ask import Requested, solved_once
from tcpdelay.models.predict import carries, predict, simulator
from tcpdelay.scenario.scenario import Scenario, application

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
    from tcpdelay.chain import delay_model as chain

    monkeypatch.setattr(chain, "LARGEST_CHAIN_WITH_TAIL", 20_000)
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
