"""Edges that are searched by simulations: their ranges, and what they do not depend on."""

from dataclasses import replace

import tcpdelay as td
from tcpdelay.ask import NotSettledError, Requested
from tcpdelay.models.predict import predict
from tcpdelay.scenario.scenario import APPLICATIONS, Scenario
from tcpdelay.sim.simulation import Simulator
from tcpdelay.statistics import Interval
from tcpdelay.study.largest import largest_or_none
from tcpdelay.study.search import bitrate_axis, loss_axis

VOIP, LINUX, PATH = APPLICATIONS["voip"].flow, td.Stack.linux(), td.Path(rtt=0.100, loss=0.02)
TARGET = td.Target(0.2)


def test_a_prediction_agrees_at_both_ends_of_the_range_of_a_simulated_edge():
    flow, path = td.Flow(1050, 0.060), td.Path(rtt=0.012, loss=0.00453, loss_burst=2)
    quic = td.Stack.quic(delivery="stream_per_message")
    edge = td.largest_bitrate(flow, path, quic, TARGET)
    assert edge.method == "simulation"
    for end, meets in ((edge.certain, True), (edge.impossible, False)):
        at = Scenario(*bitrate_axis(flow, path, quic).place(end), quic)
        answer = predict(at, Requested(target=TARGET, precision="decision", max_seconds=3.0))
        assert answer.answered
        assert answer.meets(TARGET) == meets
    # The short simulations of the search find that more is certain than longer ones confirm.
    assert edge.certain < 0.97 * edge.value


def test_a_simulated_edge_does_not_depend_on_the_bitrate_before():
    path, target = td.Path(rtt=0.060, loss=0.01), td.Target(0.3)
    low, high = (td.largest_bitrate(td.Video(bitrate), path, target=target) for bitrate in (5e5, 4e6))
    assert low.method == "simulation"
    assert (low.value, low.certain, low.impossible) == (high.value, high.certain, high.impossible)


class DecidesEarly(Simulator):
    """A simulator whose decisions settle, and whose delays do not."""

    def answer(self, scenario, requested):
        answer = super().answer(scenario, requested)
        if requested.precision == "decision":
            return answer
        refusal = NotSettledError(1000, Interval(1.0, 0.999, 1.05))
        return replace(answer, status="not settled", refusal=refusal, distribution=None)


def test_an_edge_needs_no_settled_delay_beside_a_settled_decision():
    axis, model = loss_axis(VOIP, PATH), DecidesEarly(20_000)
    edge = largest_or_none(axis, LINUX, TARGET, model)
    assert edge.value == largest_or_none(axis, LINUX, TARGET, Simulator(20_000)).value
    assert 0 < edge.delay <= TARGET.limit
