"""The chain of QUIC behind the door to the models: predictions, expected errors, questions and the command line."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.accuracy.errors import LARGEST_TOOTH, SIMULATOR_ERROR, WRONG_CALL, is_near_capacity, no_less_than_teeth
from tcpdelay.accuracy.validity import QUIC_CHAIN_RANGE, QUIC_RANGE, ValidityWarning, beyond_validation, validated_range
from tcpdelay.ask import Requested
from tcpdelay.chain.quic.message_chain import ERRORS, error_group, largest_rate, quic_delays
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import capacity, carries, predict, quic_chain, supports
from tcpdelay.models.verdict import judge
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.sim.simulation import simulate

CALL, PATH, TARGET = td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02), td.Target(0.200)
STREAMS = td.Stack.quic("quic-go", delivery="stream_per_message")
DATAGRAMS = td.Stack.quic("quic-go", delivery="datagram")
BUSY = td.Flow(4220, 0.0214), td.Path(rtt=0.0344, loss=0.0412)
"""With quic-go, messages wait for the window for 22 % of the round-trip time in the mean."""
FULL = td.Flow(1130, 0.020), td.Path(rtt=0.0972, loss=0.0042)
VOICE_OPTIONS = ["--rtt", "100ms", "--loss", "2%", "--app", "voip"]
QUIC_OPTIONS = ["--stack", "quic", "--implementation", "quic-go", "--delivery", "stream_per_message"]


@pytest.mark.parametrize("implementation", ["rfc9002", "aioquic", "quic-go"])
def test_the_chain_predicts_what_the_simulator_measures(implementation):
    scenario = Scenario(CALL, PATH, td.Stack.quic(implementation, delivery="stream_per_message"))
    chain = predict(scenario, Requested((0.95, 0.99), parts=True), "chain")
    simulated = predict(scenario, Requested((0.95, 0.99), parts=True, packets=100_000), "simulation")
    assert (chain.method, simulated.method) == ("chain", "simulation")
    assert chain.quantiles == pytest.approx(simulated.quantiles, rel=0.02)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.01)
    assert chain.parts.head_of_line == pytest.approx(simulated.parts.head_of_line, rel=0.05)


def test_the_parts_of_the_mean_delay_are_the_mean_delay():
    answer = predict(Scenario(*BUSY, STREAMS), Requested(parts=True), "chain")
    parts = answer.parts
    assert parts.network + parts.backlog + parts.head_of_line + parts.timeouts == pytest.approx(answer.mean)
    assert parts.backlog > 0.05 * BUSY[1].rtt
    assert 0 < answer.backlogged_time_fraction < 1


def test_auto_asks_the_chain_where_its_error_is_small():
    answer = predict(Scenario(CALL, PATH, STREAMS))
    assert (answer.method, answer.status, answer.simulated_because) == ("chain", "exact", "")
    assert answer.expected_error == ERRORS["one-way delay", 0.95]
    assert answer.expected_error.mean < 0.01


@pytest.mark.parametrize(
    ("flow", "path", "stack", "because"),
    [
        (*BUSY, STREAMS, "the chain's expected error is 10 % or more"),
        (CALL, td.Path(rtt=0.4, loss=0.02), STREAMS, "the chain is not checked here: rtt 0.4 s lies outside"),
        (td.Flow(174, 0.2), PATH, STREAMS, "the chain is not checked here: interval 0.2 s lies outside"),
        (CALL, td.Path(rtt=0.1, loss=0.2), STREAMS, "the chain is not checked here: loss 0.2 lies outside"),
        (CALL, td.Path(rtt=0.1, loss=0.3), STREAMS, "the chain does not model this scenario (loss)"),
        (CALL, PATH, td.Stack.quic("quic-go"), "the chain does not model this scenario (delivery)"),
        (
            CALL,
            PATH,
            td.Stack.quic("quinn", delivery="datagram"),
            "the chain does not model this scenario (implementation)",
        ),
        (
            CALL,
            PATH,
            td.Stack.quic(congestion_control="cubic", delivery="datagram"),
            "the chain does not model this scenario (congestion control)",
        ),
    ],
)
def test_auto_says_why_it_simulates(flow, path, stack, because):
    answer = predict(Scenario(flow, path, stack), Requested(packets=20_000))
    assert answer.method == "simulation"
    assert answer.simulated_because.startswith(because)


def test_near_the_capacity_the_chain_may_be_wrong_about_it():
    flow, path = FULL[0], td.Path(rtt=0.2, loss=0.0042)
    rate = largest_rate(flow, path, STREAMS)
    near = Scenario(td.Flow(flow.packet_size, 1 / (0.97 * rate)), path, STREAMS)
    assert is_near_capacity(capacity(near) / near.flow.packet_rate)
    assert predict(near, method="chain").expected_error.p90 >= WRONG_CALL
    because = predict(near, Requested(packets=5000)).simulated_because
    assert because == "the chain may be wrong about whether QUIC carries the flow"


@pytest.mark.parametrize("implementation", ["aioquic", "quic-go"])
def test_the_simulator_carries_nine_tenths_of_the_capacity_and_not_eleven(implementation):
    # `validation/quic_chain.py` does so in 144 random scenarios.
    flow, path = FULL
    stack = td.Stack.quic(implementation, delivery="stream_per_message")
    rate = capacity(Scenario(flow, path, stack))
    below, above = (
        simulate(td.Flow(flow.packet_size, 1 / (share * rate)), path, stack, packets=600_000, seed=0)
        for share in (0.9, 1.1)
    )
    assert below.sustainable
    assert not above.sustainable


def test_the_capacity_depends_on_the_path_and_not_on_the_interval():
    flow, path = FULL
    assert largest_rate(td.Flow(flow.packet_size, 0.1), path, STREAMS) == pytest.approx(
        largest_rate(flow, path, STREAMS), rel=0.01
    )
    # The square-root law: four times the loss halves the rate of a window that grows by a packet per round trip.
    halved = largest_rate(flow, td.Path(rtt=path.rtt, loss=4 * path.loss), STREAMS) / largest_rate(*FULL, STREAMS)
    assert halved == pytest.approx(0.5, rel=0.1)
    assert capacity(Scenario(flow, td.Path(rtt=0.1, loss=0), STREAMS)) == math.inf
    assert math.isnan(capacity(Scenario(CALL, PATH, td.Stack.quic())))
    assert carries(Scenario(CALL, PATH, td.Stack.quic())) is None


def test_a_flow_far_beyond_the_capacity_is_certainly_not_carried():
    answer = predict(Scenario(td.Flow(1200, 0.005), td.Path(rtt=0.2, loss=0.05), STREAMS))
    assert (answer.method, answer.status) == ("chain", "not carried")
    assert answer.expected_error.p90 == 0


def test_expected_errors_grow_from_the_path_to_a_wait():
    found = quic_delays(CALL, PATH, STREAMS)
    assert [error_group(found, share) for share in (0.95, 0.99)] == ["one-way delay", "later"]
    assert error_group(quic_delays(*BUSY, STREAMS), 0.95) == "waiting"
    for quantile in (0.95, 0.99):
        errors = [ERRORS[group, quantile].mean for group in ("one-way delay", "later", "waiting")]
        assert errors == sorted(errors)


def test_at_the_edge_of_a_tooth_a_quantile_may_move_by_the_tooth():
    # Of single packets, 4.9 % are lost and come a repair later: p95 is the path's, and nearly the repair's.
    error = predict(Scenario(CALL, td.Path(rtt=0.1, loss=0.049), STREAMS), method="chain").expected_error
    found = quic_delays(CALL, td.Path(rtt=0.1, loss=0.049), STREAMS)
    assert found.quantile(0.96) / found.quantile(0.95) > 3
    # Less than the error of a flow that may not be carried.
    assert error.p90 == LARGEST_TOOTH < WRONG_CALL
    assert error.mean == LARGEST_TOOTH / 2
    datagrams = DelayDistribution(np.array([0.05, np.inf]), np.array([0.951, 0.049]), 0.05)
    assert no_less_than_teeth(SIMULATOR_ERROR, datagrams, 0.95).p90 == LARGEST_TOOTH
    assert no_less_than_teeth(SIMULATOR_ERROR, datagrams, 0.99) == SIMULATOR_ERROR


def test_lost_datagrams_are_late_and_no_backlog():
    answer = predict(Scenario(CALL, PATH, DATAGRAMS), Requested(parts=True), "chain")
    assert answer.sustainable
    assert answer.require().late_fraction(10.0) == pytest.approx(0.02)
    assert answer.parts.head_of_line == 0
    judged = judge(Scenario(CALL, td.Path(rtt=0.100, loss=0.08), DATAGRAMS), TARGET, "chain")
    assert judged.verdict == "fails"


def test_the_chain_and_the_simulator_have_ranges_of_their_own():
    path = td.Path(rtt=0.01, loss=0.02)
    assert beyond_validation(CALL, path, STREAMS) == []
    assert beyond_validation(CALL, path, STREAMS, "simulation")[0].startswith("rtt 0.01 s lies outside")
    assert validated_range(STREAMS) is QUIC_CHAIN_RANGE
    assert validated_range(STREAMS, method="simulation") is QUIC_RANGE
    with pytest.warns(ValidityWarning, match="loss 0.12 lies outside the validated range of 0.0001 to 0.1"):
        td.predict_delay(CALL, td.Path(rtt=0.1, loss=0.12), STREAMS, method="chain")


def test_what_the_chain_refuses_is_named_with_what_models_it():
    with pytest.raises(ValueError, match="delivery must be 'stream_per_message' or 'datagram' in the chain of QUIC"):
        td.predict_delay(CALL, PATH, td.Stack.quic(), method="chain")
    with pytest.raises(ValueError, match="simulate takes it into account, and so does the method 'auto'"):
        td.guideline(CALL, PATH, td.Stack.quic(), method="chain")
    assert supports(Scenario(CALL, PATH, td.Stack.linux()), quic_chain()).refused[0].name == "stack"


def test_a_region_is_the_chain_with_its_errors():
    region = td.working_region(CALL, STREAMS, rtt=[0.1, 0.3], loss=[0, 0.02, 0.04], codec=None)
    assert set(region.accuracy.values.ravel()) == {0}
    expected = td.predict_delay(CALL, PATH, STREAMS, method="chain")
    assert region.p99.sel(rtt=0.1, loss=0.02).item() == expected.quantile(0.99)
    assert region.expected_error_mean.sel(rtt=0.1, loss=0.02).item() == expected.expected_error.mean
    assert region.p95.sel(rtt=0.3, loss=0).item() == 0.15


def test_the_largest_loss_and_its_boundary_are_the_share_that_may_be_late():
    # At an RTT of 160 ms every message that is lost is later than 200 ms, and no other; the target allows 5 %.
    edge = td.largest_loss(CALL, td.Path(rtt=0.160, loss=0.02), STREAMS, TARGET)
    assert edge.method == "chain"
    assert edge.value == pytest.approx(0.05, rel=0.01)
    boundary = td.working_boundary(CALL, STREAMS, rtt=[0.160])
    assert boundary.method == "chain"
    assert boundary.works_up_to[0] == pytest.approx(0.05, rel=0.01)
    # At the edge of a tooth, nothing is certain.
    assert edge.certain < 0.96 * edge.value
    assert edge.impossible > 1.04 * edge.value


def test_a_table_may_have_packet_sizes():
    table = {
        "rtt_ms": [100, 20, 100],
        "loss": [0.02, 0.001, 0.4],
        "packet_size": [174, 900, 174],
        "interval": 3 * [0.02],
    }
    with pytest.warns(ValidityWarning, match="1 of 3 rows"):
        found = td.predict_many(table, stack=STREAMS, cached=False)
    assert found["p99"][:2] == pytest.approx(
        [td.predict_delay(CALL, PATH, STREAMS, method="chain").quantile(0.99), 0.01]
    )
    assert found["reason"][2] == "the chain is too large to compute, or does not model this loss or packet size"


def test_a_report_is_the_chain_without_a_part_of_timeouts():
    found = td.guideline(CALL, PATH, STREAMS, target=TARGET)
    assert found.answer.method == "chain"
    assert not found.tells_timeouts
    text = found.to_markdown()
    assert "Timeouts" not in text
    assert "all figures are simulated" not in text
    assert "simulations of random scenarios, validation/quic_chain.py" in text


def test_a_sweep_takes_the_chain():
    stack = {"profile": "quic", "implementation": "quic-go", "delivery": "stream_per_message"}
    found = td.sweep(
        {
            "flow": {"packet_size": 174, "interval": "20ms"},
            "stack": stack,
            "path": {"loss": 0.02},
            "grid": {"rtt": [0.1]},
        }
    )
    assert found.delay.values[0, -1] == pytest.approx(
        td.predict_delay(CALL, PATH, STREAMS, method="chain").quantile(0.99)
    )
    assert found.validated.item()


def test_the_command_line_takes_the_chain(run):
    status, printed, errors = run("predict", *VOICE_OPTIONS, *QUIC_OPTIONS, "--format", "json")
    assert (status, errors) == (0, "")
    found = json.loads(printed)
    assert (found["method"], found["simulated_because"]) == ("chain", None)
    assert found["p99"] == pytest.approx(td.predict_delay(CALL, PATH, STREAMS, method="chain").quantile(0.99))


def test_the_command_line_says_what_the_chain_refuses(run):
    status, printed, errors = run("predict", *VOICE_OPTIONS, "--stack", "quic", "--method", "chain")
    assert (status, printed) == (2, "")
    assert errors == (
        "tcpdelay predict: --delivery: must be 'stream_per_message' or 'datagram' in the chain of QUIC, got 'stream'; "
        "--method simulation or auto models it\n"
    )
