"""The chain of QUIC with a stream per message: closed forms, invariants, the simulator, predictions and commands."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.accuracy.errors import LARGEST_TOOTH, SIMULATOR_ERROR, WRONG_CALL, is_near_capacity, no_less_than_teeth
from tcpdelay.accuracy.validity import QUIC_CHAIN_RANGE, QUIC_RANGE, ValidityWarning, beyond_validation, validated_range
from tcpdelay.ask import Requested, UnsupportedError
from tcpdelay.budget import TooLargeError
from tcpdelay.chain.quic_chain import (
    ERRORS,
    OPEN,
    RECOVERING,
    QuicChain,
    error_group,
    grown,
    held,
    largest_rate,
    loss_recovery,
    message_repairs,
    served,
    usable,
    window_chain,
    window_levels,
    window_parameters,
)
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import capacity, carries, predict
from tcpdelay.models.verdict import judge
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.sim.quic.connection import IMPLEMENTATIONS
from tcpdelay.sim.simulation import simulate

FLOW, PATH = td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02)
KNOWN = ("rfc9002", "aioquic", "quic-go")
"""The implementations that the chain knows."""
TIE = 1e-6
"""The simulator's round-trip time is longer by this [s]."""


def stack(implementation="rfc9002", delivery="stream_per_message", **settings):
    return td.Stack.quic(implementation=implementation, delivery=delivery, **settings)


def quic_delays(flow, path, quic, max_seconds=10.0, max_memory=None):
    """Return the delays of the chain."""
    requested = Requested(max_seconds=max_seconds, max_memory=max_memory)
    return predict(Scenario(flow, path, quic), requested, "chain").require()


def parameters(implementation, flow=FLOW, path=PATH):
    return window_parameters(IMPLEMENTATIONS[implementation], flow, path, 0.025, False, 0.12)


@pytest.mark.parametrize("implementation", KNOWN)
@pytest.mark.parametrize("delivery", ["stream_per_message", "datagram"])
def test_without_loss_every_message_takes_the_one_way_delay(implementation, delivery):
    found = quic_delays(FLOW, td.Path(rtt=0.1, loss=0, one_way_delay=0.03), stack(implementation, delivery))
    assert found.values.tolist() == [0.03]


@pytest.mark.parametrize(("implementation", "announced"), [("rfc9002", 25), ("aioquic", 25), ("quic-go", 26)])
def test_a_probe_finds_the_loss_of_a_sparse_flow(implementation, announced):
    # RFC 9002, 6.2.1: PTO = smoothed_rtt + max(4 * 0, kGranularity) + max_ack_delay, in ms 20 + 1 + 25; the second is
    # twice as long. quic-go sends two probes, so that one of four probe timeouts fails with half of the packets lost.
    timeout, lost = 0.020 + 0.001 + announced / 1000 + TIE, 0.1
    found = quic_delays(td.Flow(174, 0.5), td.Path(rtt=0.020, loss=lost), stack(implementation))
    failed = lost ** IMPLEMENTATIONS[implementation].probes
    assert found.values[:3] == pytest.approx([0.010, 0.010 + timeout, 0.010 + 3 * timeout], abs=1e-6)
    assert found.weights[:3] == pytest.approx([1 - lost, lost * (1 - failed), lost * failed * (1 - failed)])


def test_the_next_packet_shows_a_loss_after_nine_eighths_of_the_round_trip():
    # RFC 9002, 6.1.2: after a packet every 5 ms the timer of 9/8 * 100 ms decides; after one every 30 ms the ACK of the
    # next packet; after one every 1 ms the third packet (6.1.1).
    rules = IMPLEMENTATIONS["rfc9002"]
    for interval, expected in ((0.005, 0.1125), (0.030, 0.130), (0.001, 0.103)):
        late, share = message_repairs(loss_recovery(rules, td.Path(rtt=0.1, loss=1e-4), interval, (1, 0), 0.025))
        assert late[np.argsort(share)[-2]] == pytest.approx(expected, abs=2e-6)


def test_a_message_is_complete_with_its_last_packet():
    # Four packets: three follow the first, so that the threshold of packets shows its loss after a round trip; the
    # second and third wait for the timer, and the last for the next message.
    recovery = loss_recovery(IMPLEMENTATIONS["rfc9002"], td.Path(rtt=0.1, loss=0.01), 0.2, (4, 0), 0.025)
    late, share = message_repairs(recovery)
    assert share[0] == pytest.approx(0.99**4)
    first = share[np.isclose(late, 0.1, atol=2e-6)].sum()
    assert first == pytest.approx(0.01 * 0.99**4, rel=1e-6)
    probes = share[np.isclose(late, 0.126, atol=2e-6)].sum()
    assert probes == pytest.approx(0.01 * 0.99, rel=0.02)


def test_a_lost_datagram_never_arrives():
    found = quic_delays(td.Flow(3000, 0.05), td.Path(rtt=0.05, loss=0.05), stack(delivery="datagram"))
    assert found.late_fraction(100.0 * found.one_way_delay) == pytest.approx(1 - 0.95**3, abs=0.02)
    assert found.worst == np.inf
    assert found.weights[-1] == pytest.approx(1 - 0.95**3)


def test_windows_allow_what_the_rules_say():
    # RFC 9002, 7: a whole packet that fits, acknowledged in pairs; aioquic cuts a packet to fit; quic-go overshoots.
    assert usable(parameters("rfc9002"), 5.5 * 1200) == 4 * 1200
    assert usable(parameters("aioquic"), 5500.0) == 5500
    assert usable(parameters("quic-go"), 5.5 * 1280) == 6 * 1280
    # 7.3.3: a packet per round trip; 7.8: none while the application limits the sender.
    p = parameters("rfc9002", path=td.Path(rtt=0.1, loss=0))
    assert grown(p, 4800.0, True) == pytest.approx(1200)
    assert grown(p, 4800.0, False) == 0
    assert grown(parameters("aioquic"), 4800.0, False) > 0


def test_what_is_in_flight_for_longer_fills_the_window():
    # RFC 9002, 6.1.2: of four packets spread over a round trip, a lost one is found by the next, after 5/4 round trips;
    # of twenty, after 9/8.
    p = parameters("aioquic", path=td.Path(rtt=0.1, loss=0.1))
    assert served(p, 4800.0) == pytest.approx(4800 / (1 + 0.1 / 4))
    assert served(p, 24_000.0) == pytest.approx(24_000 / (1 + 0.1 / 8))
    # RFC 9000, 13.2.2: every second packet is acknowledged, the other one waits for a quarter of the round trip.
    rules, path = IMPLEMENTATIONS["quic-go"], td.Path(rtt=0.1, loss=0)
    datagrams = window_parameters(rules, FLOW, path, 0.025, True, 0.12)
    assert served(datagrams, 4 * 1280.0) == pytest.approx(4 * 1280 / (1 + 0.5 / 4))
    # The end of a stream is acknowledged at once, and every full packet has one.
    assert served(window_parameters(rules, FLOW, path, 0.025, False, 0.12), 4 * 1280.0) == 4 * 1280


def test_a_window_that_grows_by_packets_is_half_a_packet_below_its_line():
    p = parameters("quic-go")
    levels = window_levels(p, IMPLEMENTATIONS["quic-go"])
    assert held(p, levels, 5, OPEN) == levels[5] - 640
    assert held(p, levels, 5, RECOVERING) == levels[5]
    assert held(p, levels, 0, OPEN) == levels[0] == 2 * 1280
    assert held(parameters("rfc9002"), levels, 5, OPEN) == levels[5]


@given(
    size=st.integers(50, 5000),
    interval=st.floats(0.005, 0.1),
    rtt=st.floats(0.005, 0.15),
    loss=st.floats(1e-3, 0.05),
    implementation=st.sampled_from(KNOWN),
)
@settings(max_examples=25, deadline=None)
def test_delays_are_a_distribution_and_grow_with_the_loss(size, interval, rtt, loss, implementation):
    flow = td.Flow(size, interval)
    p = window_parameters(IMPLEMENTATIONS[implementation], flow, td.Path(rtt=rtt, loss=loss), 0.025, False, 1.2 * rtt)
    phases, transitions = window_chain(p, window_levels(p, IMPLEMENTATIONS[implementation]))
    sums = np.add.reduceat(transitions["probability"], phases["first_transition"][:-1])
    assert sums == pytest.approx(np.ones(sums.size))
    try:
        found = [
            quic_delays(flow, td.Path(rtt=rtt, loss=share * loss), stack(implementation), 2.0, 2e8)
            for share in (0.3, 1.0)
        ]
    except TooLargeError:
        return
    for one in found:
        assert one.weights.sum() == pytest.approx(1)
        assert one.values[0] >= rtt / 2
        assert one.truncated_mass < 1e-6
    if found[1].sustainable:
        assert found[0].sustainable
        assert found[0].mean <= found[1].mean * (1 + 1e-9)
        assert found[0].late_fraction(rtt) <= found[1].late_fraction(rtt) + 1e-9


# Two packets: with rfc9002, a retransmission shifts the pairs of packets that are acknowledged, which is not modelled.
PAIRED = (td.Flow(1500, 0.030), td.Path(rtt=0.0096, loss=0.045))
FAR = [(FLOW, PATH), (td.Flow(300, 0.080), td.Path(rtt=0.030, loss=0.08))]


@pytest.mark.parametrize(
    ("implementation", "flow", "path"),
    [
        *((implementation, *case) for implementation in KNOWN for case in FAR),
        *((implementation, *PAIRED) for implementation in ("aioquic", "quic-go")),
    ],
)
def test_far_from_the_capacity_the_chain_is_the_simulator(implementation, flow, path):
    simulated = simulate(flow, path, stack(implementation), packets=60_000, seed=1)
    found = quic_delays(flow, path, stack(implementation))
    delays = np.array([1.01, 1.5, 3.0]) * path.rtt + path.forward_delay
    assert found.late_fraction(delays) == pytest.approx(simulated.late_fraction(delays), abs=0.006)
    assert found.mean == pytest.approx(simulated.mean, rel=0.03)


def test_near_the_capacity_the_chain_is_close_to_the_simulator():
    # Both values have a tenth of statistical and systematic error: `validation/results/quic-chain.md`.
    flow, path = td.Flow(8912, 0.0271), td.Path(rtt=0.0425, loss=0.00229)
    simulated = simulate(flow, path, stack("aioquic"), packets=300_000, seed=1)
    found = quic_delays(flow, path, stack("aioquic"))
    assert found.mean == pytest.approx(simulated.mean, rel=0.1)
    assert found.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=0.25)


def test_where_messages_wait_the_expected_error_is_larger():
    near = quic_delays(td.Flow(8912, 0.0271), td.Path(rtt=0.0425, loss=0.00229), stack("aioquic"))
    far = quic_delays(FLOW, PATH, stack("aioquic"))
    assert near.expected_error.mean > 0.1 > far.expected_error.mean
    assert far.expected_error_of(0.99).quantile == 0.99


@pytest.mark.parametrize(
    ("flow", "path", "settings", "name"),
    [
        (FLOW, PATH, {"delivery": "stream"}, "delivery"),
        (FLOW, PATH, {"congestion_control": "cubic"}, "congestion_control"),
        (FLOW, td.Path(rtt=0.1, loss=0.01, loss_burst=2.0), {}, "loss_burst"),
        (FLOW, td.Path(rtt=0.1, loss=0.01, ack_loss=0.01), {}, "ack_loss"),
        (td.Flow(50_000, 0.1), PATH, {}, "packet_size"),
        (td.Video(1_000_000), PATH, {}, "source"),
    ],
)
def test_what_the_chain_does_not_model_is_refused(flow, path, settings, name):
    with pytest.raises(UnsupportedError) as refused:
        quic_delays(flow, path, stack(**settings))
    assert refused.value.name == name


# Predictions, expected errors, questions and the command line

TARGET = td.Target(0.200)
STREAMS = td.Stack.quic("quic-go", delivery="stream_per_message")
DATAGRAMS = td.Stack.quic("quic-go", delivery="datagram")
BUSY = td.Flow(4220, 0.0214), td.Path(rtt=0.0344, loss=0.0412)
"""With quic-go, messages wait for the window for 22 % of the round-trip time in the mean."""
FULL = td.Flow(1130, 0.020), td.Path(rtt=0.0972, loss=0.0042)
VOICE_OPTIONS = ["--rtt", "100ms", "--loss", "2%", "--app", "voip"]
QUIC_OPTIONS = ["--stack", "quic", "--implementation", "quic-go", "--delivery", "stream_per_message"]


@pytest.mark.parametrize("implementation", ["rfc9002", "aioquic", "quic-go"])
def test_the_chain_predicts_what_the_simulator_measures(implementation):
    scenario = Scenario(FLOW, PATH, td.Stack.quic(implementation, delivery="stream_per_message"))
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
    answer = predict(Scenario(FLOW, PATH, STREAMS))
    assert (answer.method, answer.status, answer.simulated_because) == ("chain", "exact", "")
    assert answer.expected_error == ERRORS["one-way delay", 0.95]
    assert answer.expected_error.mean < 0.01


@pytest.mark.parametrize(
    ("flow", "path", "stack", "because"),
    [
        (*BUSY, STREAMS, "the chain's expected error is 10 % or more"),
        (FLOW, td.Path(rtt=0.4, loss=0.02), STREAMS, "the chain is not checked here: rtt 0.4 s lies outside"),
        (td.Flow(174, 0.2), PATH, STREAMS, "the chain is not checked here: interval 0.2 s lies outside"),
        (FLOW, td.Path(rtt=0.1, loss=0.2), STREAMS, "the chain is not checked here: loss 0.2 lies outside"),
        (
            FLOW,
            td.Path(rtt=0.1, loss=0.3),
            STREAMS,
            "the chain does not model this scenario (loss must be at most 0.25)",
        ),
        (FLOW, PATH, td.Stack.quic("quic-go"), "the chain does not model this scenario (delivery)"),
        (
            FLOW,
            PATH,
            td.Stack.quic("quinn", delivery="datagram"),
            "the chain does not model this scenario (implementation)",
        ),
        (
            FLOW,
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
    assert math.isnan(capacity(Scenario(FLOW, PATH, td.Stack.quic())))
    assert carries(Scenario(FLOW, PATH, td.Stack.quic())) is None


def test_a_flow_far_beyond_the_capacity_is_certainly_not_carried():
    answer = predict(Scenario(td.Flow(1200, 0.005), td.Path(rtt=0.2, loss=0.05), STREAMS))
    assert (answer.method, answer.status) == ("chain", "not carried")
    assert answer.expected_error.p90 == 0


def test_expected_errors_grow_from_the_path_to_a_wait():
    found = quic_delays(FLOW, PATH, STREAMS)
    assert [error_group(found, share) for share in (0.95, 0.99)] == ["one-way delay", "later"]
    assert error_group(quic_delays(*BUSY, STREAMS), 0.95) == "waiting"
    for quantile in (0.95, 0.99):
        errors = [ERRORS[group, quantile].mean for group in ("one-way delay", "later", "waiting")]
        assert errors == sorted(errors)


def test_at_the_edge_of_a_tooth_a_quantile_may_move_by_the_tooth():
    # Of single packets, 4.9 % are lost and come a repair later: p95 is the path's, and nearly the repair's.
    error = predict(Scenario(FLOW, td.Path(rtt=0.1, loss=0.049), STREAMS), method="chain").expected_error
    found = quic_delays(FLOW, td.Path(rtt=0.1, loss=0.049), STREAMS)
    assert found.quantile(0.96) / found.quantile(0.95) > 3
    # Less than the error of a flow that may not be carried.
    assert error.p90 == LARGEST_TOOTH < WRONG_CALL
    assert error.mean == LARGEST_TOOTH / 2
    datagrams = DelayDistribution(np.array([0.05, np.inf]), np.array([0.951, 0.049]), 0.05)
    assert no_less_than_teeth(SIMULATOR_ERROR, datagrams, 0.95).p90 == LARGEST_TOOTH
    assert no_less_than_teeth(SIMULATOR_ERROR, datagrams, 0.99) == SIMULATOR_ERROR


def test_lost_datagrams_are_late_and_no_backlog():
    answer = predict(Scenario(FLOW, PATH, DATAGRAMS), Requested(parts=True), "chain")
    assert answer.sustainable
    assert answer.require().late_fraction(10.0) == pytest.approx(0.02)
    assert answer.parts.head_of_line == 0
    judged = judge(Scenario(FLOW, td.Path(rtt=0.100, loss=0.08), DATAGRAMS), TARGET, "chain")
    assert judged.verdict == "fails"


def test_the_chain_and_the_simulator_have_ranges_of_their_own():
    path = td.Path(rtt=0.01, loss=0.02)
    assert beyond_validation(FLOW, path, STREAMS) == []
    assert beyond_validation(FLOW, path, STREAMS, "simulation")[0].startswith("rtt 0.01 s lies outside")
    assert validated_range(STREAMS) is QUIC_CHAIN_RANGE
    assert validated_range(STREAMS, method="simulation") is QUIC_RANGE
    with pytest.warns(ValidityWarning, match="loss 0.12 lies outside the validated range of 0.0001 to 0.1"):
        td.predict_delay(FLOW, td.Path(rtt=0.1, loss=0.12), STREAMS, method="chain")


def test_what_the_chain_refuses_is_named_with_what_models_it():
    with pytest.raises(ValueError, match="simulate takes it into account, and so does the method 'auto'"):
        td.guideline(FLOW, PATH, td.Stack.quic(), method="chain")
    assert QuicChain().supports(Scenario(FLOW, PATH, td.Stack.linux())).refused[0].name == "stack"


@pytest.fixture(scope="module")
def predicted():
    return td.predict_delay(FLOW, PATH, STREAMS, method="chain")


def test_a_region_is_the_chain_with_its_errors(predicted):
    region = td.working_region(FLOW, STREAMS, rtt=[0.1, 0.3], loss=[0, 0.02, 0.04], codec=None)
    assert set(region.accuracy.values.ravel()) == {0}
    assert region.p99.sel(rtt=0.1, loss=0.02).item() == predicted.quantile(0.99)
    assert region.expected_error_mean.sel(rtt=0.1, loss=0.02).item() == predicted.expected_error.mean
    assert region.p95.sel(rtt=0.3, loss=0).item() == 0.15


def test_the_largest_loss_and_its_boundary_are_the_share_that_may_be_late():
    # At an RTT of 160 ms every message that is lost is later than 200 ms, and no other; the target allows 5 %.
    edge = td.largest_loss(FLOW, td.Path(rtt=0.160, loss=0.02), STREAMS, TARGET)
    assert edge.method == "chain"
    assert edge.value == pytest.approx(0.05, rel=0.01)
    boundary = td.working_boundary(FLOW, STREAMS, rtt=[0.160])
    assert boundary.method == "chain"
    assert boundary.works_up_to[0] == pytest.approx(0.05, rel=0.01)
    # At the edge of a tooth, nothing is certain.
    assert edge.certain < 0.96 * edge.value
    assert edge.impossible > 1.04 * edge.value


def test_a_table_may_have_packet_sizes(predicted):
    table = {
        "rtt_ms": [100, 20, 100],
        "loss": [0.02, 0.001, 0.4],
        "packet_size": [174, 900, 174],
        "interval": 3 * [0.02],
    }
    with pytest.warns(ValidityWarning, match="1 of 3 rows"):
        found = td.predict_many(table, stack=STREAMS, cached=False)
    assert found["p99"][:2] == pytest.approx([predicted.quantile(0.99), 0.01])
    # The chain does not model this loss: a few such rows are simulated.
    with pytest.warns(ValidityWarning, match="loss 0.4 lies outside"):
        simulated = td.predict_delay(td.Flow(174, 0.020), td.Path(0.1, 0.4), STREAMS, method="auto")
    assert simulated.method == "simulation"
    assert (found["p99"][2], found["reason"][2]) == (simulated.quantile(0.99), None)


def test_a_report_is_the_chain_without_a_part_of_timeouts():
    found = td.guideline(FLOW, PATH, STREAMS, target=TARGET)
    assert found.answer.method == "chain"
    assert not found.tells_timeouts
    text = found.to_markdown()
    assert "Timeouts" not in text
    assert "all figures are simulated" not in text
    assert "simulations of random scenarios, validation/quic_chain.py" in text


def test_a_sweep_takes_the_chain(predicted):
    asked = {
        "flow": {"packet_size": 174, "interval": "20ms"},
        "stack": {"profile": "quic", "implementation": "quic-go", "delivery": "stream_per_message"},
        "path": {"loss": 0.02},
        "grid": {"rtt": [0.1]},
    }
    found = td.sweep(asked)
    assert found.delay.values[0, -1] == pytest.approx(predicted.quantile(0.99))
    assert found.validated.item()


def test_the_command_line_takes_the_chain(run, predicted):
    status, printed, errors = run("predict", *VOICE_OPTIONS, *QUIC_OPTIONS, "--format", "json")
    assert (status, errors) == (0, "")
    found = json.loads(printed)
    assert (found["method"], found["simulated_because"]) == ("chain", None)
    assert found["p99"] == pytest.approx(predicted.quantile(0.99))


def test_the_command_line_says_what_the_chain_refuses(refused):
    errors = refused("predict", *VOICE_OPTIONS, "--stack", "quic", "--method", "chain")
    assert errors == (
        "tcpdelay predict: --delivery: must be 'stream_per_message' or 'datagram' in the chain of QUIC, got 'stream'; "
        "--method simulation or auto models it\n"
    )
