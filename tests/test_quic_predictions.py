"""QUIC behind the door to the models: predictions, verdicts, questions, reports and the command line."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.accuracy.errors import QUIC_ERROR
from tcpdelay.accuracy.validity import ValidityWarning, beyond_validation
from tcpdelay.advice.judged_delays import OtherTransport, TransportComparison, other_transports
from tcpdelay.advice.rules import timeout_playout
from tcpdelay.ask import Requested
from tcpdelay.models.predict import predict
from tcpdelay.models.verdict import judge
from tcpdelay.report.content import change_of_transport, error_of
from tcpdelay.scenario.scenario import FIELDS, Scenario
from tcpdelay.scenario.stack import QUIC_PACKETS
from tcpdelay.sim.quic.connection import IMPLEMENTATIONS
from tcpdelay.sim.simulation import simulate
from tcpdelay.statistics import Interval

CALL, PATH = td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02)
STREAMS = td.Stack.quic("quic-go", delivery="stream_per_message")
DATAGRAMS = td.Stack.quic("quic-go", delivery="datagram")
ONE_STREAM = td.Stack.quic("quic-go")
"""No chain knows one stream for all messages."""
TARGET = td.Target(0.200)
TOO_MUCH = Scenario(td.Flow(60_000, 0.001), td.Path(rtt=1.0, loss=0.01))
"""A scenario with more packets in flight than a simulation holds."""


@pytest.fixture(scope="module")
def quick():
    """Simulate fewer packets for margins than a report does."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tcpdelay.models.predict.COMPARED_PACKETS", 20_000)
        patched.setattr("tcpdelay.sim.simulation.MOST_PACKETS", 20_000)
        yield


@pytest.fixture(scope="module")
def over_tcp():
    return td.guideline(CALL, td.Path(rtt=0.150, loss=0.03), target=TARGET)


@pytest.fixture(scope="module")
def over_quic(quick):
    return td.guideline(CALL, PATH, td.Stack.quic("quic-go"), TARGET)


@pytest.fixture(scope="module")
def in_datagrams(quick):
    return td.guideline(CALL, PATH, DATAGRAMS, TARGET)


@pytest.mark.parametrize(("method", "stack"), [("auto", ONE_STREAM), ("simulation", STREAMS)])
def test_a_prediction_is_the_simulation(method, stack):
    predicted = td.predict_delay(CALL, PATH, stack, method=method, packets=20_000)
    simulated = simulate(CALL, PATH, stack, packets=20_000)
    assert predicted.method == "simulation"
    assert predicted.mean == simulated.mean
    assert predicted.quantile(0.99) == simulated.quantile(0.99)


def test_a_prediction_has_the_error_of_the_captures():
    predicted = td.predict_delay(CALL, PATH, STREAMS, method="simulation", packets=200_000)
    assert predicted.sustainable
    assert predicted.expected_error.source.startswith(QUIC_ERROR.source)
    assert judge(Scenario(CALL, PATH, STREAMS), TARGET, "simulation").verdict == "works"
    assert judge(Scenario(CALL, PATH, STREAMS), td.Target(0.049), "simulation").verdict == "fails"


@pytest.mark.parametrize("setting", [{"ack_loss": 0.2}, {"reordering": 0.02}, {"loss_burst": 5.0}])
def test_paths_without_a_capture_have_no_expected_error_and_a_warning(setting):
    path = td.Path(rtt=0.100, loss=0.02, **setting)
    with pytest.warns(td.ValidityWarning, match="captures of QUIC are"):
        predicted = td.predict_delay(CALL, path, STREAMS, method="simulation", packets=20_000)
    assert predicted.expected_error is None


def test_lost_datagrams_are_no_backlog():
    predicted = td.predict_delay(CALL, PATH, DATAGRAMS, method="simulation", packets=50_000)
    assert predicted.sustainable
    assert math.isinf(predicted.mean)
    # Each packet carries one datagram, which the path loses with a probability of 2 %.
    assert predicted.late_fraction(10.0) == pytest.approx(0.02, abs=4 * math.sqrt(0.02 * 0.98 / 50_000))
    # The error in captures of QUIC is 1.7 %; the delays of a backlog have errors of 10 % and more.
    assert predicted.expected_error.p90 < 0.02
    assert np.isinf(predicted.mean_interval).all()
    assert predicted.expected_error_of(0.95) is not None


def test_a_quantile_beyond_the_losses_fails_for_certain():
    scenario = Scenario(CALL, td.Path(rtt=0.100, loss=0.08), DATAGRAMS)
    judged = judge(scenario, TARGET, "simulation", Requested())
    assert judged.verdict == "fails"
    assert judged.answer.sustainable
    assert judged.answer.expected_error is None


def test_what_the_simulator_refuses_is_named_in_place_of_the_chain():
    answer = predict(Scenario(TOO_MUCH.source, TOO_MUCH.path, STREAMS))
    assert "rtt must span less than" in str(answer.refusal)


@pytest.mark.parametrize(
    ("source", "path", "stack", "words"),
    [
        (
            CALL,
            PATH,
            td.Stack.quic(),
            "implementation rfc9002 lies outside the validated range: only aioquic and quic-go",
        ),
        (CALL, td.Path(rtt=0.3, loss=0.01), STREAMS, "rtt 0.3 s lies outside the validated range of 0.02 to 0.15 s"),
        (CALL, td.Path(rtt=0.1, loss=0.06), STREAMS, "loss 0.06 lies outside the validated range of 0.001 to 0.05"),
        (td.Video(1e6), td.Path(rtt=0.1, loss=0.01), STREAMS, "lies outside the validated range of below 0.9"),
    ],
)
def test_what_lies_outside_the_captures_is_warned_of(source, path, stack, words):
    with pytest.warns(ValidityWarning, match=words):
        td.predict_delay(source, path, stack, method="simulation", packets=5000)


def test_within_the_captures_there_is_no_warning():
    assert beyond_validation(CALL, PATH, STREAMS, "simulation") == []
    assert beyond_validation(td.Video(1e6), td.Path(rtt=0.060, loss=0.01), STREAMS, "simulation") == []
    worst = td.Path(rtt=0.1, loss=0.02, jitter=0.05, ack_loss=0.1, loss_burst=3)
    assert beyond_validation(CALL, worst, STREAMS, "simulation") == []
    longer = td.Path(rtt=0.1, loss=0.02, loss_burst=4)
    (sentence,) = beyond_validation(CALL, longer, STREAMS, "simulation")
    assert sentence == "loss_burst 4 lies outside the validated range: captures of QUIC are of up to 3"


def test_a_full_packet_is_the_segment_of_quic():
    # RFC 9000, 14: a path carries datagrams of 1200 bytes; quic-go 0.59 sends up to 1280.
    assert QUIC_PACKETS["rfc9002"].datagram_size == 1200
    assert td.Stack.quic("quic-go").mss == 1280 - 23 - 8
    for name, rules in IMPLEMENTATIONS.items():
        assert td.Stack.quic(name).mss == rules.payload


def test_the_congestion_control_of_an_option_has_the_words_of_all_stacks():
    assert FIELDS["congestion_control"][1].words == ("cubic", "reno", "bbr", "westwood", "newreno")


def test_a_region_over_one_stream_is_simulated():
    # With exact writes p99 is at a tooth of the comb, whatever the seed.
    exact = replace(CALL, write_jitter=0)
    region = td.working_region(exact, ONE_STREAM, rtt=[0.1], loss=[0.001, 0.02], codec=None, packets=20_000)
    assert set(region.accuracy.values.ravel()) == {4}
    expected = td.predict_delay(exact, PATH, ONE_STREAM, method="auto", packets=20_000)
    assert region.p99.sel(loss=0.02).item() == pytest.approx(expected.quantile(0.99))
    assert region.attrs["title"].endswith("over QUIC")


def test_the_largest_loss_of_a_stream_per_message_is_the_share_that_may_be_late(quick):
    # At an RTT of 160 ms every message that is lost is later than 200 ms, and no other; the target allows 5 %.
    edge = td.largest_loss(CALL, td.Path(rtt=0.160, loss=0.02), STREAMS, TARGET, method="simulation")
    assert edge.method == "simulation"
    assert edge.value == pytest.approx(0.05, rel=0.05)


def test_a_playout_that_hides_a_probe_timeout_hides_most_repairs(over_quic):
    # RFC 9002, 6.2.1: RTT + max(4 rttvar, 1 ms) + max_ack_delay, which quic-go announces as 26 ms.
    assert timeout_playout(PATH, td.Stack.quic("quic-go")) == pytest.approx(0.050 + 0.100 + 0.001 + 0.026)
    assert [buffer.formula for buffer in over_quic.playout] == ["L + RTT + 3/f", "L + PTO"]
    assert over_quic.playout[-1].late_fraction < 0.01


def test_a_report_over_quic_has_no_rules_of_tcp(over_quic):
    assert {rule.key for rule in over_quic.recommendations} == {
        "delivery-per-message",
        "datagrams",
        "max-ack-delay",
        "bitrate",
    }
    first = over_quic.recommendations[0]
    assert (first.key, first.place, first.effect.with_rule) == ("delivery-per-message", "do", 0.05)
    assert over_quic.transports is None
    text = over_quic.to_markdown()
    for word in ("TCP_NODELAY", "sysctl", "SACK", "net.ipv4", "TCP cannot"):
        assert word not in text
    assert "delay over QUIC</title>" in over_quic.to_html()
    assert json.loads(over_quic.to_json())["stack"]["implementation"] == "quic-go"


def test_a_report_on_datagrams_says_what_is_lost(in_datagrams):
    assert in_datagrams.verdict == "works"
    assert not in_datagrams.endless
    sections = {section.key: section for section in in_datagrams.content().sections}
    lost = dict(row[:2] for row in sections["delays"].tables[0].rows)["lost"]
    # 2 % of 20 000 packets, to four standard errors.
    assert float(lost.removesuffix(" %")) == pytest.approx(2.0, abs=0.4)
    assert "playout" not in sections
    assert "nan" not in in_datagrams.to_markdown().lower()
    assert "cannot carry" not in in_datagrams.to_html()


def test_a_report_on_tcp_says_that_quic_would_help(over_tcp):
    assert over_tcp.verdict == "fails"
    compared = over_tcp.transports
    assert [(other.delivery, other.verdict, other.helps) for other in compared.others] == [
        ("stream_per_message", "works", True),
        ("stream_per_message", "works", True),
        ("datagram", "works", True),
    ]
    assert [other.name for other in compared.others] == ["QUIC streams", "QUIC streams, BBR", "QUIC datagrams"]
    # Independent runs of another length give the same quantile.
    single = simulate(CALL, td.Path(rtt=0.150, loss=0.03), td.Stack.quic(delivery="stream_per_message"), packets=50_000)
    assert compared.others[0].quantile.value == pytest.approx(single.quantile(0.95))
    assert "QUIC would help." in over_tcp.to_markdown()
    assert json.loads(over_tcp.to_json())["transports"]["others"][0]["helps"] is True


def test_where_nothing_is_gained_a_change_would_not_help():
    scenario, target = Scenario(CALL, td.Path(rtt=0.020, loss=0.001)), td.Target(0.200)
    compared = other_transports(scenario, target, predict(scenario, method="chain"), "works")
    assert not any(other.helps for other in compared.others)
    assert change_of_transport(compared, target)[0].startswith("QUIC would not help")


def test_a_transport_whose_simulation_has_not_settled_is_named():
    delay = Interval(0.3, 0.2, 0.4)
    other = OtherTransport("QUIC datagrams", "datagram", delay, 1.0, "fails", helps=False)
    refusal = "the simulation of QUIC streams has not settled"
    words, _ = change_of_transport(TransportComparison(delay, 0.5, "fails", (other,), refusal), TARGET)
    assert words.startswith("QUIC datagrams would not help: each neither meets a target that TCP misses")
    assert words.endswith("The simulation of QUIC streams has not settled.")


@pytest.mark.parametrize(("verdict", "said"), [("uncertain", "but may not meet"), ("fails", "but not enough for")])
def test_a_shorter_delay_that_misses_the_target_is_not_said_to_meet_it(verdict, said):
    over_tcp, over_quic = Interval(0.6, 0.5, 0.7), Interval(0.4, 0.39, 0.41)
    other = OtherTransport("QUIC streams, BBR", "stream_per_message", over_quic, 0.2, verdict, helps=True)
    words, _ = change_of_transport(TransportComparison(over_tcp, 0.5, "fails", (other,), ""), TARGET)
    assert words.startswith(
        f"QUIC would shorten the delay, {said} the target. QUIC streams, BBR: p95 is 400 ms, 200 ms "
    )


def test_an_error_that_is_not_known_is_not_printed():
    assert error_of(Interval(0.3, 0.2, 0.35)) == "±100 ms"
    for unknown in (Interval(0.05, 0.05, 0.05), Interval(0.05, math.nan, math.nan), Interval(*3 * [math.inf])):
        assert error_of(unknown) == ""


def test_a_path_that_quic_is_not_simulated_on_is_named():
    compared = other_transports(TOO_MUCH, TARGET, predict(Scenario(CALL, PATH), method="chain"), "works")
    assert compared.others == ()
    (words,) = change_of_transport(compared, TARGET)
    assert words.endswith("is not known: the simulator of QUIC does not model this scenario (rtt).")


@pytest.mark.parametrize("question", [td.best_split, td.best_connections])
def test_what_is_for_tcp_alone_is_refused_in_one_line(question):
    with pytest.raises(ValueError, match="stack must be a TCP in this question, got 'Quic'") as refused:
        question(CALL, PATH, STREAMS)
    assert "\n" not in str(refused.value)


def test_a_loss_beyond_the_chain_is_named_and_not_taken_for_the_capacity():
    path = td.Path(rtt=0.050, loss=0.3)
    with pytest.raises(ValueError, match=r"loss must be at most 0.25 in the chain of QUIC, got 0.3"):
        td.predict_delay(CALL, path, STREAMS, method="chain")
    with pytest.raises(ValueError, match=r"loss must be at most 0.25 in the chain of QUIC, got 0.3"):
        td.largest_rtt(CALL, path, STREAMS, target=td.Target(0.2), method="chain")
    with pytest.warns(ValidityWarning, match="loss 0.3 lies outside"):
        assert td.predict_delay(CALL, path, STREAMS, packets=20_000).method == "simulation"
