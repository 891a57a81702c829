"""Largest bitrate, packet rate, loss and round-trip time: both sides of each edge, checked by the prediction."""

import itertools
import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.accuracy.errors import expected_error
from tcpdelay.ask import solved_once
from tcpdelay.chain.chains import LinuxChain
from tcpdelay.models.predict import carries
from tcpdelay.scenario.scenario import APPLICATIONS, Scenario
from tcpdelay.study.margins import margins
from tcpdelay.study.search import bitrate_axis, bracket

VOIP, LINUX, PATH = APPLICATIONS["voip"].flow, td.Stack.linux(), td.Path(rtt=0.100, loss=0.02)
TARGET = td.Target(0.2)
QUESTIONS = {
    "bitrate": td.largest_bitrate,
    "packet rate": td.largest_packet_rate,
    "loss": td.largest_loss,
    "rtt": td.largest_rtt,
}


def predicted(scenario, target, stack=LINUX):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", td.ValidityWarning)
        return td.predict_delay(*scenario, stack, method="chain").quantile(target.quantile)


def value_of(quantity, flow, path):
    return {"bitrate": flow.bitrate, "packet rate": flow.packet_rate, "loss": path.loss, "rtt": path.rtt}[quantity]


@pytest.mark.parametrize("quantity", QUESTIONS)
@pytest.mark.parametrize(
    ("name", "stack"),
    [("voip", LINUX), ("game", LINUX), ("voice-agent", td.Stack.newreno_2008(backlog_bound="grow"))],
    ids=["voip", "game", "2008"],
)
def test_the_prediction_agrees_on_both_sides(quantity, name, stack):
    flow, target = APPLICATIONS[name].flow, APPLICATIONS[name].target
    edge = QUESTIONS[quantity](flow, td.Path(rtt=0.060, loss=0.01), stack, target)
    assert edge.quantity == quantity
    assert edge.limited_by == "delay"
    assert value_of(quantity, *edge.at) == pytest.approx(edge.value, rel=1e-9)
    assert value_of(quantity, *edge.beyond) == pytest.approx(edge.fails, rel=1e-9)
    assert edge.delay == predicted(edge.at, target, stack) <= target.limit
    assert edge.delay_beyond == predicted(edge.beyond, target, stack) > target.limit
    with_stack = (*edge.at, stack)
    assert edge.expected_error == expected_error(*with_stack)
    assert 0 < edge.tolerance == edge.fails / edge.value - 1 <= 0.011


@pytest.mark.parametrize("grow", ["segments", "size", "rate"])
def test_a_bitrate_grows_as_it_is_told(grow):
    flow = td.Flow(174, 0.020)
    path = td.Path(rtt=0.060, loss=0.005)
    found = td.largest_bitrate(flow, path, LINUX, TARGET, grow).at[0]
    if grow == "segments":
        assert (found.packet_size, found.interval < flow.interval) == (1448, True)
    elif grow == "size":
        assert (found.packet_size > 1448, found.interval) == (True, flow.interval)
    else:
        assert (found.packet_size, found.interval < flow.interval) == (174, True)


def test_what_is_asked_for_does_not_count_if_it_is_given():
    others = {
        "bitrate": (td.Flow(40, 0.020), PATH),
        "packet rate": (td.Flow(174, 0.060), PATH),
        "loss": (VOIP, td.Path(rtt=0.100, loss=0.3)),
        "rtt": (VOIP, td.Path(rtt=0.300, loss=0.02)),
    }
    for quantity, (flow, path) in others.items():
        solve = QUESTIONS[quantity]
        assert solve(flow, path, LINUX, TARGET).value == solve(VOIP, PATH, LINUX, TARGET).value, quantity


def test_a_chain_near_the_edge_is_solved_once(monkeypatch):
    asked, answer = [], LinuxChain.answer

    def counted(self, scenario, requested):
        asked.append((scenario, requested.precision))
        return answer(self, scenario, requested)

    monkeypatch.setattr(LinuxChain, "answer", counted)
    found = td.largest_loss(VOIP, PATH, target=TARGET, method="chain")
    for _, path in (found.at, found.beyond):
        assert [precision for scenario, precision in asked if scenario.path == path] == ["exact"]


def test_margins_and_answers_agree():
    loss, rtt, bitrate = margins(Scenario(VOIP, PATH, LINUX), TARGET)
    for margin in (loss, rtt, bitrate):
        answer = QUESTIONS[margin.quantity](VOIP, PATH, LINUX, TARGET)
        assert answer.value == pytest.approx(margin.edge, rel=0.015)


@settings(max_examples=8)
@given(limit=st.floats(0.08, 0.4), more=st.floats(1.05, 2.0))
def test_a_more_patient_target_bears_no_less(limit, more):
    for solve in (td.largest_loss, td.largest_rtt):
        with solved_once():
            found = [_value_or_zero(solve, td.Target(bound)) for bound in (limit, limit * more)]
        assert found[0] <= found[1] * 1.011


@settings(max_examples=8)
@given(quantile=st.floats(0.5, 0.95), nearer=st.floats(0.1, 0.9))
def test_a_larger_quantile_bears_no_more(quantile, nearer):
    larger = quantile + nearer * (0.999 - quantile)
    for solve in (td.largest_loss, td.largest_rtt):
        with solved_once():
            found = [_value_or_zero(solve, td.Target(0.2, share)) for share in (quantile, larger)]
        assert found[0] * 1.011 >= found[1]


def _value_or_zero(solve, target):
    try:
        # Where the chain refuses larger values, "auto" simulates, with an error of its own.
        return solve(VOIP, PATH, LINUX, target, method="chain").value
    except ValueError:
        return 0.0


@given(edge=st.floats(0.011, 99.0), start=st.floats(0.01, 100.0))
def test_a_bracket_holds_the_edge(edge, start):
    found = bracket(lambda value: -1.0 if value <= edge else 1.0, start, 0.01, 100.0)
    assert found.inside <= edge < found.outside <= found.inside * 1.01


def test_a_bracket_ends_where_the_search_does():
    assert bracket(lambda value: -1.0, 1.0, 0.1, 10.0).outside is None
    nothing = bracket(lambda value: 1.0, 1.0, 0.1, 10.0)
    assert (nothing.inside, nothing.outside) == (None, 0.1)


def test_the_end_of_the_search_is_said():
    edge = td.largest_rtt(VOIP, td.Path(rtt=0.020, loss=0), LINUX, td.Target(5.0, 0.5))
    assert (edge.limited_by, edge.fails, edge.tolerance, edge.delay_beyond) == ("range", None, 0.0, None)
    assert (edge.value, edge.delay) == (4.0, 2.0)


@pytest.mark.parametrize("packet_size", [724, 1448])
def test_capacity_is_named_where_tcp_carries_no_more(packet_size):
    # So patient a target asks for little more than that TCP carries the flow.
    target = td.Target(60.0, 0.5)
    edge = td.largest_loss(td.Flow(packet_size, 0.020), td.Path(rtt=0.100, loss=0), LINUX, target)
    carried = carries(Scenario(*edge.beyond, LINUX))
    assert edge.limited_by == ("delay" if carried else "capacity")
    assert edge.delay == predicted(edge.at, target) < 60
    assert edge.delay_beyond == predicted(edge.beyond, target) > 60
    assert carried == (edge.delay_beyond < math.inf)


def test_the_longest_round_trip_keeps_the_share_of_the_one_way_delay():
    path = td.Path(rtt=0.100, loss=0.02, one_way_delay=0.030)
    found = td.largest_rtt(VOIP, path, LINUX, TARGET).at[1]
    assert found.one_way_delay == pytest.approx(0.3 * found.rtt)


@pytest.mark.parametrize(
    ("quantity", "path", "target", "message"),
    [
        (
            "loss",
            td.Path(rtt=1.0, loss=0),
            TARGET,
            "no loss meets the target: at best, with < 0.001 %, 95 %",
        ),
        (
            "rtt",
            td.Path(rtt=0.1, loss=0.05),
            td.Target(0.010, 0.99),
            "no rtt meets the target: at best, with 64 ms",
        ),
        (
            "bitrate",
            td.Path(rtt=0.3, loss=0.02),
            td.Target(0.1),
            "no bitrate meets the target: at best, with 400",
        ),
        ("packet rate", td.Path(rtt=0.3, loss=0.02), td.Target(0.1), "no packet rate meets the target: at best"),
    ],
)
def test_no_answer_is_one_line_with_the_best(quantity, path, target, message):
    with pytest.raises(ValueError, match=message) as refused:
        QUESTIONS[quantity](VOIP, path, LINUX, target)
    assert "\n" not in str(refused.value)


def test_bad_arguments():
    with pytest.raises(ValueError, match="grow must be one of 'segments', 'size', 'rate', got 'up'"):
        td.largest_bitrate(VOIP, PATH, LINUX, TARGET, "up")
    with pytest.raises(ValueError, match="stack must come from one of the profiles"):
        td.largest_loss(VOIP, PATH, "linus", TARGET)
    with pytest.raises(ValueError, match="reordering must be 0 in the chain"):
        td.largest_rtt(VOIP, td.Path(rtt=0.1, loss=0.01, reordering=0.01), LINUX, TARGET, method="chain")


def test_what_has_not_been_checked_is_noted():
    assert td.largest_loss(VOIP, td.Path(rtt=0.1, loss=0), LINUX, TARGET).notes == ()
    far = td.largest_loss(VOIP, td.Path(rtt=0.45, loss=0), LINUX, td.Target(0.5))
    assert any("rtt 0.45 s" in note for note in far.notes)


def test_the_frontier_is_the_edge_at_each_round_trip_time():
    seen = []
    found = td.loss_rtt_frontier(VOIP, PATH, LINUX, TARGET, (0.1, 0.2, 0.5), lambda *done: seen.append(done))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert found.losses[:2] == tuple(
        td.largest_loss(VOIP, td.Path(rtt=rtt, loss=0), LINUX, TARGET).value for rtt in (0.1, 0.2)
    )
    assert (found.edges[2], found.losses[2]) == (None, 0.0)
    usual = td.loss_rtt_frontier(VOIP, PATH, LINUX, TARGET)
    assert len(usual.rtts) == 12
    assert all(first < second for first, second in itertools.pairwise(usual.rtts))
    with pytest.raises(ValueError, match="no loss meets the target"):
        td.loss_rtt_frontier(VOIP, PATH, LINUX, TARGET, (0.5,))
    with pytest.raises(ValueError, match="rtts must hold"):
        td.loss_rtt_frontier(VOIP, PATH, LINUX, TARGET, ())


def test_the_margin_of_the_bitrate_of_frames_is_that_of_larger_frames():
    frames, path, target = td.Flow(8348, 1 / 30), td.Path(0.060, 0.005), td.Target(5.0, 0.999)
    *_, bitrate = margins(Scenario(frames, path), target)
    larger = td.largest_bitrate(frames, path, td.Stack.linux(), target, grow="size")
    faster = td.largest_bitrate(frames, path, td.Stack.linux(), target, grow="segments")
    assert bitrate.edge == larger.value == faster.value
    assert faster.at[0].interval == frames.interval


QUIET_PATH = td.Path(rtt=0.060, loss=0.01)
SOURCES = {
    "video": td.Video(300_000, key_ratio=6),
    "speech": td.Speech(174, 0.020),
    "messages": td.Messages(20, td.LognormalSizes(1000)),
    "trace": td.Trace([0.04 * n for n in range(8000)], [4000 if n % 10 == 0 else 600 for n in range(8000)]),
}


def simulated(source, path, packets):
    return td.simulate(source, path, packets=packets).quantile(0.95)


@pytest.mark.parametrize(("solve", "kind"), [(td.largest_loss, "speech"), (td.largest_bitrate, "trace")])
def test_the_simulation_agrees_on_both_sides_of_the_edge_of_any_source(solve, kind):
    source = SOURCES[kind]
    edge = solve(source, QUIET_PATH, target=TARGET)
    packets = 6000 if kind == "trace" else 200_000
    assert (edge.method, edge.limited_by) == ("simulation", "delay")
    assert edge.delay == simulated(*edge.at, packets) <= 0.2 < edge.delay_beyond
    assert edge.delay_beyond == simulated(*edge.beyond, packets)
    assert edge.value < edge.fails <= 1.011 * edge.value
    assert edge.certain <= edge.value
    # At higher rates, simulations of a short trace have not settled: none of them certainly misses the target.
    assert edge.fails <= (math.inf if edge.impossible is None else edge.impossible)
    assert type(edge.at[0]) is type(source)


@pytest.mark.parametrize("ask", [td.largest_loss, td.largest_rtt, td.largest_bitrate])
def test_the_chain_of_speech_does_not_search(ask):
    with pytest.raises(ValueError, match=r"^source must be a Flow, which has a constant rate, in this question, got"):
        ask(SOURCES["speech"], QUIET_PATH, target=TARGET, method="chain")


@pytest.mark.parametrize("kind", SOURCES)
def test_the_axis_of_the_bitrate_scales_a_source(kind):
    source = SOURCES[kind]
    axis = bitrate_axis(source, QUIET_PATH, LINUX)
    for value in (axis.lowest, source.mean_bitrate, axis.highest):
        scaled, path = axis.place(value)
        assert (type(scaled), path) == (type(source), QUIET_PATH)
        assert scaled.message_rate == source.message_rate
    assert axis.lowest < source.mean_bitrate < axis.highest <= 200 * 8 * 1448 / 0.060
    rates = [axis.place(factor * source.mean_bitrate)[0].mean_bitrate for factor in (1, 3)]
    assert rates[1] / rates[0] == pytest.approx(3, rel=0.02)


def test_a_video_of_many_small_frames_is_not_scaled_below_one_byte_a_frame():
    video = td.Video(1e6, key_interval=0.1, key_ratio=1000)
    assert bitrate_axis(video, QUIET_PATH, LINUX).place(bitrate_axis(video, QUIET_PATH, LINUX).lowest)


def test_the_smallest_buffer_of_speech_has_the_share_of_late_packets():
    found = td.playout_for_late_fraction(SOURCES["speech"], QUIET_PATH, None, 0.02)
    delays = td.simulate(SOURCES["speech"], QUIET_PATH, quantile=0.98)
    assert found.method == "simulation"
    assert (found.value, found.flow) == (delays.quantile(0.98), SOURCES["speech"])
    assert found.late_fraction <= 0.02 < found.late_beyond


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda video: td.largest_packet_rate(video, PATH),
            "flow must be a Flow, which has a constant rate, got Video",
        ),
        (lambda video: td.largest_bitrate(video, PATH, grow="rate"), "grow must be 'segments' or 'size' unless"),
        (
            lambda video: td.largest_bitrate(td.Trace([0.0], [9]), PATH),
            "source must have a message later than the time 0",
        ),
        (lambda video: td.largest_loss(td.Trace([0.0, 1.0], [9, 9]), PATH), "source must have at least 3000 messages"),
        (lambda video: td.largest_loss(video, PATH, method="chain"), "source must be a Flow"),
        (lambda video: td.playout_for_call(video, PATH), "flow must be a Flow"),
        (lambda video: td.sensitivities(video, PATH), "flow must be a Flow"),
        (lambda video: td.best_split(video, PATH), "flow must be a Flow"),
        (lambda video: td.best_connections(video, PATH), "flow must be a Flow"),
    ],
)
def test_questions_without_a_meaning_for_a_source_refuse_in_one_line(ask, message):
    with pytest.raises(ValueError, match=f"^{message}") as error:
        ask(td.Video(300_000))
    assert "\n" not in str(error.value)
