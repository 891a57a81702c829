"""The packet trace: it agrees with the counts, and is bounded."""

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.sim.records import MOST_EVENTS
from tcpdelay.sim.simulation import simulate
from tcpdelay.sim.tcp.window import KINDS

FLOW = td.Flow(174, 0.020, write_jitter=0)


def traced(packets=10_000, loss=0.02, **path):
    return simulate(FLOW, td.Path(0.1, loss, **path), packets=packets, seed=1, trace=True)


def test_the_events_follow_each_other_and_cover_the_stream():
    events = traced().events
    assert set(events["kind"]) <= set(KINDS)
    assert np.all(np.diff(events["time"]) >= 0)
    assert np.all(events["in_flight"] >= 0)
    assert np.all(events["cwnd"] > 0)
    sent = events[events["kind"] == "sent"]
    np.testing.assert_array_equal(sent["start"][1:], sent["end"][:-1])
    acknowledged = events[events["kind"] == "acknowledged"]
    np.testing.assert_array_equal(acknowledged["start"][1:], acknowledged["end"][:-1])
    assert sent["end"][-1] >= 10_000 * FLOW.packet_size


def test_each_loss_is_repaired():
    events = traced(jitter=0.005).events
    lost = events[events["kind"] == "lost"]
    again = events[events["kind"] == "retransmitted"]
    assert lost.size > 100
    for loss in lost[:-5]:
        later = again[again["time"] > loss["time"]]
        assert np.any((later["start"] <= loss["start"]) & (loss["start"] < later["end"]))


def test_undisturbed_time_leaves_the_trace_complete():
    events = traced(packets=5000, loss=0.001).events
    sent = events[events["kind"] == "sent"]
    whole = sent[sent["end"] - sent["start"] == FLOW.packet_size]
    assert whole.size > 4500
    on_time = np.isclose(whole["time"], whole["start"] / FLOW.packet_size * FLOW.interval, atol=1e-9)
    assert on_time.mean() > 0.95


def test_a_trace_is_bounded_and_changes_nothing():
    long = traced(packets=100_000)
    assert long.events.size == MOST_EVENTS
    untraced = simulate(FLOW, td.Path(0.1, 0.02), packets=100_000, seed=1)
    assert untraced.events.size == 0
    assert untraced.mean == pytest.approx(long.mean, rel=1e-12)
    assert untraced.counts == long.counts
