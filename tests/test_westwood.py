"""Westwood+: against packet traces of Linux and the statements of tcp_westwood.c; and the models that have it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.compiling.compilation import interpreted
from tcpdelay.models.predict import predict
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.sim.congestion import of_tcp as control
from tcpdelay.sim.engine import new_connection, process_next
from tcpdelay.sim.path import ALWAYS
from tcpdelay.sim.records import ticks_now
from tcpdelay.sim.tcp.acknowledgement import update_estimate
from tcpdelay.sim.tcp.constants import NEVER
from tcpdelay.sim.tcp.window import SENT, SENT_AGAIN

WESTWOOD = td.Stack.linux("westwood")
PATH = td.Path(rtt=0.100, loss=0.0)
MSS, TICK = 1448, 4000
FIRST_RECEIVE_WINDOW, RECEIVE_BUFFER = 65_535, 4 << 20


def connection(size=MSS, kernel="7.3"):
    stack = td.Stack.linux("westwood", kernel=kernel)
    c, wire = new_connection(td.Flow(size, 0.020, write_jitter=0), PATH, stack, seed=1, exact_ties=True)
    return c, wire.record


@pytest.mark.parametrize(("size", "handshake", "phase"), [(1448, -942_922, 3938), (174, -956_251, 1270)])
def test_the_transmissions_are_those_of_the_kernel(size, handshake, phase):
    # Packet traces of Linux 6.1, packets every 20 ms on a path of 100 ms, in virtual time: time [us], first byte, size,
    # and whether the path drops it. Bandwidth and smallest RTT of each recovery decide how many packets leave after it.
    traces = pd.read_csv(Path(__file__).with_name("westwood_transmissions.csv"))
    real = traces[traces["packet_size"] == size].reset_index()
    lost = np.flatnonzero(real["lost"])
    c, wire = connection(size, "6.1")
    c.tick_phase += phase - c.tick_phase % c.tick
    # A separate host delayed the packets, and the receiver compresses SACKs only after two megabytes. Its window grows.
    c.host_delay, c.quick, c.rcv_room = 0, len(real), RECEIVE_BUFFER - FIRST_RECEIVE_WINDOW
    c.tracing, c.leaping, c.min_rtt = 1, 0, 100_000
    update_estimate(c, 100_000)
    # The state begins with the ACK of the handshake.
    c.westwood_rtt_win_sx = (handshake + 100_000 + c.tick_phase) // c.tick
    with interpreted():
        while c.segments_sent < len(real):
            later = lost[lost >= c.segments_sent]
            c.until_loss = int(later[0] - c.segments_sent + 1) if later.size else ALWAYS
            process_next(c, wire, NEVER)
    events = wire.events[: c.events]
    sent = events[np.isin(events["kind"], (SENT, SENT_AGAIN))][: len(real)]
    np.testing.assert_array_equal(sent["start"], real["start"])
    np.testing.assert_array_equal(sent["end"] - sent["start"], real["size"])
    np.testing.assert_allclose(sent["time"], real["time"], atol=20)
    assert lost.size > 12
    assert c.recoveries > 10


class Kernel:
    """The statements of net/ipv4/tcp_westwood.c of Linux 6.1, on whole numbers."""

    def __init__(self, jiffies, snd_una):
        self.bk = self.bw_ns_est = self.bw_est = self.accounted = 0
        self.reset_rtt_min = self.first_ack = True
        self.rtt_min = self.rtt = 20 * 250
        self.rtt_win_sx, self.snd_una = jiffies, snd_una

    def pkts_acked(self, rtt_us):
        self.rtt = -(-rtt_us // TICK)

    def in_ack_event(self, jiffies, snd_una, slow):
        delta = jiffies - self.rtt_win_sx
        if self.first_ack:
            self.snd_una, self.first_ack = snd_una, False
        if self.rtt and delta > max(self.rtt, 250 // 20):
            sample = self.bk // delta
            if self.bw_ns_est == 0 and self.bw_est == 0:
                self.bw_ns_est = self.bw_est = sample
            else:
                self.bw_ns_est = (7 * self.bw_ns_est + sample) >> 3
                self.bw_est = (7 * self.bw_est + self.bw_ns_est) >> 3
            self.bk, self.rtt_win_sx = 0, jiffies
        cumul_ack = snd_una - self.snd_una
        if slow:
            if not cumul_ack:
                self.accounted += MSS
                cumul_ack = MSS
            if cumul_ack > MSS:
                if self.accounted >= cumul_ack:
                    self.accounted -= cumul_ack
                    cumul_ack = MSS
                else:
                    cumul_ack -= self.accounted
                    self.accounted = 0
        self.bk += cumul_ack
        self.snd_una = snd_una
        self.rtt_min = self.rtt if self.reset_rtt_min else min(self.rtt, self.rtt_min)
        self.reset_rtt_min = False

    def bw_rttmin(self):
        return max(self.bw_est * self.rtt_min // MSS, 2)


ACKS = st.tuples(
    st.integers(0, 40_000),  # Time since the ACK before [us]
    st.sampled_from([0, 174, MSS, MSS, MSS, 3 * MSS, 12 * MSS]),  # Bytes acknowledged
    st.booleans(),  # Whether it also reports data beyond
    st.integers(1, 400_000),  # Round-trip time [us]
    st.sampled_from(["nothing"] * 6 + ["end of a reduction", "timeout", "another timeout"]),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(ACKS, min_size=1, max_size=200))
def test_the_state_is_that_of_the_kernel(acks):
    c, wire = connection()
    ours = [f"westwood_{name}" for name in ("bk", "bw_ns_est", "bw_est", "accounted", "rtt_min", "rtt", "rtt_win_sx")]
    kernel = Kernel(int(ticks_now(c)), 0)
    for wait, acknowledged, beyond, rtt, then in acks:
        c.now += wait
        c.snd_una += acknowledged
        control.on_rtt(c, rtt)
        kernel.pkts_acked(rtt)
        predicted = bool(acknowledged) and not beyond
        control.on_arrival(c, predicted)
        kernel.in_ack_event(int(ticks_now(c)), int(c.snd_una), not predicted)
        assert [c[name] for name in ours] == [vars(kernel)[name.removeprefix("westwood_")] for name in ours]
        threshold = int(c.snd_ssthresh)
        if then == "end of a reduction":
            control.on_reduction_end(c)
            assert c.snd_cwnd == c.snd_ssthresh == kernel.bw_rttmin()
        elif then != "nothing":
            control.on_timeout(c, wire, then == "timeout")
            kernel.reset_rtt_min |= then == "timeout"
            assert c.snd_ssthresh == (kernel.bw_rttmin() if then == "timeout" else threshold)


def test_a_recovery_leaves_the_window_that_the_bandwidth_fills():
    # Ten segments in each 104 ms: samples of 14 480 B in 26 ticks, so 556 B a tick, and 556 * 25 / 1448 segments in the
    # smallest RTT of 25 ticks. The first sample lacks a segment. A filter rounds down: (7 * 549 + 556) >> 3 is 549, so
    # the first one stays at 549, and the second one at 542. Reno would leave half of the window.
    c, _ = connection()
    c.snd_cwnd = 40
    for _ in range(200):
        control.on_rtt(c, 100_000)
        for _ in range(10):
            c.snd_una += MSS
            control.on_arrival(c, True)
        c.now += 104_000
    assert (c.westwood_bw_ns_est, c.westwood_bw_est) == (549, 542)
    assert control.on_loss(c) == 20
    control.on_reduction_end(c)
    assert c.snd_cwnd == c.snd_ssthresh == 9


def test_it_carries_more_than_reno():
    flow, path = td.Flow(1200, 0.010, write_jitter=0), td.Path(rtt=0.100, loss=0.02)
    reno, westwood = (
        td.simulate(flow, path, td.Stack.linux(name), packets=20_000, seed=1) for name in ("reno", "westwood")
    )
    assert not reno.settled
    assert westwood.settled
    assert westwood.mean < reno.mean / 5
    assert westwood.expected_error is None


def test_the_chain_refuses_it_and_auto_simulates():
    scenario = Scenario(td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02), WESTWOOD)
    with pytest.raises(ValueError, match="be cubic, reno or bbr in the chain, got 'westwood'"):
        predict(scenario, method="chain").require()
    speech = Scenario(td.Speech(174, 0.020), td.Path(rtt=0.100, loss=0.02), WESTWOOD)
    with pytest.raises(ValueError, match=r"congestion_control must be cubic or reno in the chain of speech"):
        predict(speech, method="chain").require()
    found = td.predict_delay(scenario.source, scenario.path, WESTWOOD, method="auto")
    assert found.method == "simulation"
    assert found.expected_error is None
