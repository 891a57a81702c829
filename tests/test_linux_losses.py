"""The chain of a Linux kernel after a loss while the window limits the sender, and against captures at high load."""

import csv
from pathlib import Path as File

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.chain.linux.detection import detection_wait, mean_detection_wait
from tcpdelay.chain.linux.open_transitions import open_window
from tcpdelay.chain.linux.parameters import linux_parameters
from tcpdelay.chain.linux.recoveries import detection_in_round, last_ack, sacks_before
from tcpdelay.chain.linux.windows import window_before
from tcpdelay.models.predict import predict_delay
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

CAPTURES = File(__file__).parents[1] / "validation" / "results" / "high-load.csv"
RENO = Stack.linux(congestion_control="reno")
SPACINGS = st.sampled_from([0.0, 0.5, 1.0, 2.5])


def parameters(size=1448, rtt=0.1, loss=0.01, stack=RENO):
    return linux_parameters(Flow(size, 0.01), Path(rtt, loss), stack)


@pytest.mark.parametrize(
    ("size", "full"),
    [(174, False), (724, False), (1303, False), (1304, True), (1448, True), (1449, False), (2896, False)],
)
def test_segments_are_full_from_nine_tenths_on(size, full):
    assert parameters(size).full_segments is full


def test_the_window_of_bbr_does_not_limit_full_segments():
    assert not parameters(stack=Stack.linux(congestion_control="bbr")).full_segments


@given(st.integers(0, 4), SPACINGS, st.sampled_from([0.5, 1.0, 4.0, 10.0]))
def testsacks_before_the_detection_are_those_that_arrive_earlier(close, near, far):
    wait = detection_wait(parameters(), close, near, far)
    arrivals = np.cumsum([near if place < close else far for place in range(3)])
    # SACKs that come at the due time come one after another, so that each of the first two releases a segment.
    earlier = sum(1 for time in arrivals[:2] if time < wait - 1e-9 or time == 0)
    assert sacks_before(wait, close, near, far) == sacks_before.py_func(wait, close, near, far) == earlier


@given(st.integers(1, 12), st.integers(0, 12), SPACINGS, st.sampled_from([0.5, 1.0, 4.0]))
def test_detection_is_the_mean_over_the_places_of_the_lost_segment(run, others, near, far):
    p, window = parameters(), run + others
    for in_run, places in ((True, range(run)), (False, range(run, window))):
        waits, sacks = [], []
        for place in places:
            # Segments that leave close behind the lost one: the rest of the run, or the next round's run.
            close = run - 1 - place if in_run else (run + 1 if place == window - 1 else 0)
            wait = detection_wait(p, close, near, far)
            waits.append(mean_detection_wait(p, wait, near if close else far))
            sacks.append(sacks_before(wait, close, near, far))
        if waits:
            found = detection_in_round(p, in_run, window, run, near, far)
            assert found == pytest.approx((np.mean(waits), np.mean(sacks)))
            assert found == detection_in_round.py_func(p, in_run, window, run, near, far)


def test_the_last_ack_before_the_detection_has_the_clock_of_the_window_before():
    p = parameters()
    o = open_window(p)
    for reduced in range(2, 12):
        expected = p.load / window_before(p, reduced) if reduced < o.needed else 0.0
        assert last_ack(p, o, reduced) == pytest.approx(max(expected, 1.0) if expected else 0.0)
    assert last_ack(parameters(1000), o, 3) == 0.0


def test_a_loss_in_the_run_is_detected_at_once():
    p = parameters()
    # Three segments of the run follow the first of four: the third SACK comes at the due time.
    assert detection_wait(p, 3, 0.0, 1.0) == 0
    wait, sacks = detection_in_round(p, True, 40, 30, 0.0, 1.0)
    assert wait < detection_wait(p, 0, 1.0, 1.0)
    assert sacks > 1.8


def flows_at_high_load():
    """Return every third carried flow up to a utilization of 0.7, and the limits of its p95 [s]."""
    with CAPTURES.open() as file:
        rows = [row for row in csv.DictReader(file) if row["carried"] == "True" and float(row["utilization"]) < 0.7]
    for row in rows[::3]:
        interval = float(row["capture"].split("-")[2].removesuffix("ms")) / 1e3
        if interval <= 0.1:
            stack = Stack.linux(congestion_control=row["congestion_control"], hz=250)
            path = Path(float(row["rtt"]), float(row["loss"]))
            yield Flow(1448, interval), path, stack, float(row["p95_low"]), float(row["p95_high"])


def test_high_load_is_within_a_few_percent_of_captures():
    beyond = []
    for flow, path, stack, low, high in flows_at_high_load():
        predicted = predict_delay(flow, path, stack, method="chain").quantile(0.95)
        beyond.append(max(predicted / high - 1, 1 - predicted / low, 0.0))
    assert len(beyond) >= 8
    # Without the ACK clock through recoveries, the mean of these flows is 5 %.
    assert np.mean(beyond) < 0.03
