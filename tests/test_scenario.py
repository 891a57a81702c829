"""What Flow, Path and Stack accept, and how they refuse the rest."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.models.predict import predict_delay
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, Target
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Flow(0, 0.02), "packet_size must lie between 1 and"),
        (lambda: Flow(-3, 0.02), "packet_size must lie between 1 and"),
        (lambda: Flow(174.5, 0.02), "packet_size must be a whole number of bytes, got 174.5"),
        (lambda: Flow(True, 0.02), "packet_size must be a number in bytes, got True"),
        (lambda: Flow(174, 61), "20 ms is 0.020"),
        (lambda: Flow(174, math.nan), "interval must be finite"),
        (lambda: Flow(174, "20ms"), "interval must be a number in s, got '20ms'"),
        (lambda: Flow.from_bitrate(0), "bitrate must lie between 0.133333 and 8e.14 bit/s, got 0"),
        (lambda: Flow.from_bitrate(1e15), "bitrate must lie between"),
        (lambda: Path(100, 0.02), "rtt must lie between 1e-06 and 60 s, got 100; .* 100 ms is 0.100"),
        (lambda: Path(0, 0.02), "rtt must lie between"),
        (lambda: Path(math.inf, 0.02), "rtt must be finite"),
        (lambda: Path(0.1, 2), "loss must be a fraction from 0 to below 1, got 2; for 2 % write 0.02"),
        (lambda: Path(0.1, -0.1), "loss must be a fraction"),
        (lambda: Path(0.1, 1.0), "loss must be a fraction"),
        (lambda: Path(0.1, math.nan), "loss must be finite"),
        (lambda: Path(0.1, 0.1, "bursty"), "loss_pattern must be one of 'random', 'correlated', got 'bursty'"),
        (lambda: Path(0.1, 0.1, bottleneck="bits"), "bottleneck must be one of"),
        (lambda: Path(0.1, 0.1, one_way_delay=0.2), "one_way_delay must lie between 0 and 0.1"),
        (lambda: Stack.newreno_2008("tahoe"), "variant must be one of"),
        (lambda: Stack.newreno_2008(mss=10), "mss must lie between 88 and 65495 bytes, got 10"),
        (lambda: Stack.newreno_2008(initial_timeout=0), "initial_timeout must lie between"),
        (lambda: Stack.newreno_2008(limited_transmit=1), "limited_transmit must be True or False, got 1"),
        (lambda: Stack.newreno_2008(backlog_bound="none"), "backlog_bound must be one of"),
        (lambda: DelayModel(Flow(174, 0.02), Path(0.1, 0.02), Stack()), "stack must come from one of the profiles"),
    ],
)
def test_wrong_values_are_named(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("limit", "quantile", "message"),
    [
        ("200ms", 0.95, "limit must be a number of seconds above 0, got '200ms'"),
        (None, 0.95, "limit must be a number of seconds above 0, got None"),
        (True, 0.95, "limit must be a number of seconds above 0, got True"),
        (math.inf, 0.95, "limit must be a number of seconds above 0, got inf"),
        (0.2, "95%", "quantile must lie between 0 and 1, got '95%'"),
        (0.2, 95, "quantile must lie between 0 and 1, got 95"),
    ],
)
def test_what_is_no_target_is_refused(limit, quantile, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Target(limit, quantile)


def test_bitrate_and_packets_are_two_views_of_one_flow():
    flow = Flow.from_bitrate(50e6, 1448)
    assert flow.bitrate == pytest.approx(50e6)
    assert flow.packet_rate == pytest.approx(50e6 / 8 / 1448)


def test_whole_floats_and_numpy_numbers_are_numbers():
    assert Flow(np.int64(174), np.float32(0.5)) == Flow(174.0, 0.5)


anything = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(10**12), 10**12),
    st.sampled_from([0, -1, 1e-9, 1e9, 2.0, 100, None, "100ms", True, float("nan")]),
)
LARGEST_TESTED_LOAD = 40
"""Packets per round-trip time up to which a scenario is solved here: all are answered, but not in a test's time."""


@settings(max_examples=500)
@given(
    st.one_of(st.integers(1, 20_000), anything),
    st.one_of(st.floats(0.001, 0.2), anything),
    st.one_of(st.floats(0.001, 2), anything),
    st.one_of(st.floats(0, 0.999), st.floats(0, 0.1), anything),
    st.sampled_from(["random", "correlated"]),
    st.sampled_from(["packets", "bytes"]),
    st.sampled_from(["published", "grow"]),
)
def test_any_scenario_is_answered_or_refused_in_one_line(
    packet_size, interval, rtt, loss, loss_pattern, bottleneck, backlog_bound
):
    try:
        model = DelayModel(
            Flow(packet_size, interval),
            Path(rtt, loss, loss_pattern, bottleneck),
            Stack.newreno_2008(backlog_bound=backlog_bound),
        )
        if model.load > LARGEST_TESTED_LOAD:
            return
        delays = model.delay_distribution()
    except ValueError as error:
        message = str(error)
    else:
        assert delays.values[0] >= model.path.forward_delay
        return
    assert "\n" not in message
    assert len(message) < 300


def test_a_scenario_needs_a_source_with_a_rate():
    with pytest.raises(ValueError, match=r"^source must have a message later than the time 0, or a period, got Trace"):
        Scenario(td.Trace([0.0, 0.0], [9, 9]), Path(0.1, 0.02))


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (Path(0.1, 0.01), "Path(rtt=0.1, loss=0.01)"),
        (Path(0.1, 0.01, jitter=0.02, in_order=True), "Path(rtt=0.1, loss=0.01, jitter=0.02, in_order=True)"),
        (Stack.linux(), "Linux()"),
        (Stack.linux(hz=1000, congestion_control="reno"), "Linux(congestion_control='reno', hz=1000)"),
        (td.Video(4e6, frame_rate=25), "Video(bitrate=4000000.0, frame_rate=25.0)"),
        (Target(0.2), "Target(limit=0.2)"),
    ],
)
def test_objects_show_the_call_that_makes_them(made, shown):
    assert repr(made) == shown
    assert eval(shown, {"Path": Path, "Linux": Stack.linux, "Video": td.Video, "Target": Target}) == made


QUESTIONS = {
    "predict_delay": lambda stack: td.predict_delay("voip", Path(0.1, 0.02), stack).mean,
    "simulate": lambda stack: td.simulate("voip", Path(0.1, 0.02), stack, packets=1000).mean,
    "guideline": lambda stack: td.guideline("voip", Path(0.05, 0.01), stack).to_json(),
    "largest_rtt": lambda stack: td.largest_rtt("voip", Path(0.1, 0.02), stack=stack),
    "working_region": lambda stack: td.working_region("voip", stack, rtt=0.1, loss=0.02).p95.item(),
    "working_boundary": lambda stack: float(td.working_boundary("voip", stack, rtt=0.1).works_up_to[0]),
    "predict_many": lambda stack: td.predict_many({"rtt": [0.1], "loss": [0.02]}, stack, flow="voip")["mean"][0],
    "playout": lambda stack: td.playout_for_late_fraction("voip", Path(0.1, 0.02), stack, 0.02),
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_a_stack_may_be_given_by_its_name(ask):
    assert ask("linux") == ask(Stack.linux())


def test_a_region_takes_a_target_in_place_of_its_parts():
    asked = {"rtt": [0.05, 0.15], "loss": [0.01, 0.05]}
    target = Target(0.15, 0.99)
    found = td.working_region("voip", target=target, **asked)
    assert found.equals(td.working_region("voip", limit=0.15, quantile=0.99, **asked))
    edge = td.working_boundary("voip", target=target, rtt=0.05)
    assert edge.works_up_to == td.working_boundary("voip", limit=0.15, quantile=0.99, rtt=0.05).works_up_to
    rows = {"rtt": [0.05, 0.15], "loss": [0.01, 0.05]}
    assert list(td.predict_many(rows, flow="voip", target=target)["works"]) == list(np.diag(found.works))
    for ask in (td.working_region, td.working_boundary):
        with pytest.raises(ValueError, match=r"^give either target, or limit and quantile, not both$"):
            ask("voip", target=target, limit=0.2, rtt=0.05)


def test_a_distribution_is_a_table_of_pandas():
    delays = predict_delay("voip", Path(0.1, 0.02))
    table = delays.to_dataframe()
    assert table.columns.tolist() == ["delay", "probability", "cumulative"]
    assert np.average(table.delay, weights=table.probability) == pytest.approx(delays.mean)
    assert table.cumulative.iloc[-1] == pytest.approx(1)
    assert table.delay[table.cumulative >= 0.95].iloc[0] == delays.quantile(0.95)
