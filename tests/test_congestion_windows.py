"""Windows, an ACK at a time: HyStart, DCTCP, byte counting and window validation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.compiling.compilation import records
from tcpdelay.sim.congestion import dctcp
from tcpdelay.sim.congestion.dctcp import MAX_ALPHA
from tcpdelay.sim.congestion.of_tcp import CONNECTION, on_rtt, on_timeout
from tcpdelay.sim.congestion.reno import in_slow_start
from tcpdelay.sim.engine import new_connection
from tcpdelay.sim.literature import classic
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.simulation import prepare
from tcpdelay.sim.network.sources import ConstantRate
from tcpdelay.sim.network.stacks import Classic
from tcpdelay.sim.records import ticks_now
from tcpdelay.sim.tcp.constants import INFINITE_THRESHOLD

# HyStart: a window of 20 segments, RTT 100 ms

START, RTT, MSS = 10_000_000, 100_000, 1448


def started(control):
    """Return a connection with a control, and the record of its segments."""
    c, wire = new_connection(
        td.Flow(MSS, 0.02, write_jitter=0), td.Path(rtt=0.1, loss=0.0), td.Stack.linux(control), seed=1
    )
    return c, wire.record


def connection(window=20, control="cubic"):
    """Return a connection at the beginning of a round."""
    c, _ = started(control)
    c.now, c.snd_cwnd, c.snd_nxt = START, window, window * MSS
    on_rtt(c, RTT)
    c.snd_una = MSS
    on_rtt(c, RTT)
    assert c.snd_ssthresh == INFINITE_THRESHOLD
    return c


def next_round():
    """Return a connection whose second round begins with the next acknowledgement."""
    c = connection()
    c.snd_una, c.snd_nxt = c.hystart_end_seq + 1, 2 * c.hystart_end_seq
    return c


def acknowledge(c, milliseconds, rtt=RTT):
    c.now = START + round(milliseconds * 1000)
    on_rtt(c, rtt)
    return not in_slow_start(c)


def test_a_train_of_half_the_delay_ends_slow_start():
    c = connection()
    # (100 ms + 1 ms) / 2 = 50.5 ms after the round's beginning.
    assert not any(acknowledge(c, time) for time in range(2, 51, 2))
    assert acknowledge(c, 50.501)
    assert (c.snd_ssthresh, c.hystart_found) == (20, 1)


def test_a_gap_of_more_than_two_milliseconds_breaks_the_train():
    c = connection()
    assert not any(acknowledge(c, time) for time in (2, 4, 6.001, 8, 10, 60, 70))


def test_a_rise_of_an_eighth_ends_slow_start_at_the_ninth_sample():
    c = next_round()
    assert not any(acknowledge(c, time, RTT + 12_501) for time in range(100, 180, 10))
    assert acknowledge(c, 180, RTT + 12_501)


def test_one_short_sample_tells_that_there_is_no_queue_yet():
    c = next_round()
    samples = [RTT + 20_000] * 7 + [RTT + 12_500] + [RTT + 20_000] * 7
    assert not any(acknowledge(c, 100 + 10 * number, rtt) for number, rtt in enumerate(samples))


@pytest.mark.parametrize(("window", "control"), [(15, "cubic"), (20, "reno")])
def test_small_windows_and_reno_are_left_alone(window, control):
    c = connection(window, control)
    assert not any(acknowledge(c, time, 2 * RTT) for time in range(2, 100, 2))


def test_samples_of_the_first_second_after_a_reduction_do_not_count():
    c = connection()
    c.cubic_epoch = ticks_now(c)
    assert not any(acknowledge(c, time) for time in range(2, 999, 2))
    c.hystart_last_ack = START + 999_000
    assert acknowledge(c, 1000.5)


def test_a_timeout_begins_anew():
    c, wire = started("cubic")
    c.now = START
    on_rtt(c, RTT)
    c.hystart_found = 1
    on_timeout(c, wire, True)
    assert (c.hystart_found, c.cubic_delay_min, c.hystart_samples) == (0, 0, 0)
    assert c.hystart_round_start == START


# DCTCP: alpha and the window, against the formulas of RFC 8257


def dctcp_connection(window=100):
    """Return a connection with DCTCP at its start."""
    (c,) = records(1, CONNECTION)
    dctcp.start(c)
    c.snd_cwnd = window
    return c


@settings(max_examples=30, deadline=None)
@given(rounds=st.lists(st.tuples(st.integers(1, 200), st.floats(0, 1)), min_size=1, max_size=60))
def test_alpha_is_the_moving_average_of_the_marked_share(rounds):
    c, alpha, delivered = dctcp_connection(), 1.0, 0
    for segments, share in rounds:
        marked = round(share * segments)
        delivered += segments
        c.snd_nxt += 1448 * segments
        dctcp.on_marks(c, c.next_seq, delivered, marked)
        # RFC 8257, 3.3: DCTCP.Alpha = DCTCP.Alpha * (1 - g) + g * M, g = 1/16.
        alpha = alpha * (1 - 1 / 16) + marked / segments / 16
        # The kernel rounds to units of 1/1024 in each round, and the rounding errors of 16 rounds add up.
        assert c.dctcp_alpha / MAX_ALPHA == pytest.approx(alpha, abs=17 / MAX_ALPHA)


def test_alpha_is_updated_once_per_round_trip():
    c = dctcp_connection()
    c.snd_nxt = 10_000
    dctcp.on_marks(c, 0, 10, 0)
    before = c.dctcp_alpha
    for acknowledged in (1448, 5000, 9999):
        dctcp.on_marks(c, acknowledged, 20, 0)
        assert c.dctcp_alpha == before
    dctcp.on_marks(c, 10_000, 30, 0)
    assert c.dctcp_alpha < before


@pytest.mark.parametrize(("alpha", "window"), [(1.0, 50), (0.5, 75), (0.0, 100), (0.25, 88)])
def test_the_window_shrinks_by_half_of_alpha(alpha, window):
    # RFC 8257, 3.3: cwnd = cwnd * (1 - DCTCP.Alpha / 2); after a loss as any TCP (3.5).
    c = dctcp_connection()
    c.dctcp_alpha = round(alpha * MAX_ALPHA)
    assert dctcp.on_loss(c) == window
    dctcp.on_recovery(c)
    assert c.snd_ssthresh == 50
    c.snd_cwnd = 2
    assert dctcp.on_loss(c) == 2


# Byte counting and window validation of the classic sender: scripts worked out by hand

FAST = Bottleneck(1e12, 60_000)
MS = 1000


class Sender:
    """A sender of packets of 365 B, a quarter of the MSS of 1460 B; the test acknowledges."""

    def __init__(self, window=4, ssthresh=64, **stack):
        source = ConstantRate(
            flow=td.Flow(365, 1.0),
            path=SharedPath(0.05),
            stack=Classic(initial_window=window, tick=0.01, rto_min=0.2, **stack),
        )
        self.network = prepare([source], FAST, 0, 0.0, 100.0)
        self.s = self.network.connections[0]
        self.s.ssthresh = ssthresh
        for _ in range(20):
            # The path has been timed: 100 ms, so that the timeout is its minimum.
            classic.update_estimate(self.s, 10)
        assert self.s.rto == 20

    @property
    def outstanding(self):
        return int(self.s.snd_nxt - self.s.snd_una)

    def write(self, time, packets):
        """Write packets one by one; those that the window does not allow are assembled into full segments."""
        self.s.now = time * MS
        for _ in range(packets):
            self.s.written += 365
            self.send()

    def send(self):
        network = self.network
        classic.transmit(network.flows[0], self.s, network.wires[0], network.link[0], network.samples[0])

    def acknowledge(self, time, segments):
        """Acknowledge so many segments more, and return the window."""
        self.s.now, network = time * MS, self.network
        classic.on_new_acknowledgement(
            network.flows[0], self.s, network.wires[0], network.link[0], network.samples[0], self.s.snd_una + segments
        )
        self.send()
        return float(self.s.cwnd)


def test_by_default_every_acknowledgement_opens_the_window():
    sender = Sender()
    sender.write(0, 100)
    assert [sender.acknowledge(100, 1) for _ in range(3)] == [5, 6, 7]


def test_four_packets_of_a_quarter_open_the_window_by_one():
    sender = Sender(byte_counting=True)
    sender.write(0, 100)
    assert [sender.acknowledge(100, 1) for _ in range(4)] == [4.25, 4.5, 4.75, 5]
    assert sender.outstanding == 5


def test_an_acknowledgement_of_many_counts_as_two_full_segments_at_most():
    sender = Sender(window=10, byte_counting=True)
    sender.write(0, 100)
    assert sender.acknowledge(100, 10) == 12
    sender.s.timeouts = 1
    assert sender.acknowledge(200, 10) == 13


def test_beyond_the_threshold_a_window_of_full_segments_opens_it_by_one():
    sender = Sender(ssthresh=4, byte_counting=True)
    sender.write(0, 100)
    assert sender.acknowledge(100, 4) == 4 + 1 / 4
    # The segments that waited for the window are full.
    assert sender.acknowledge(200, 2) == 4.25 + 2 / 4.25


def test_a_window_that_was_not_full_does_not_grow():
    sender = Sender(window_validation=True)
    sender.write(0, 3)
    assert sender.acknowledge(100, 1) == 4
    sender.write(100, 2)
    assert sender.outstanding == 4
    assert [sender.acknowledge(150, 1), sender.acknowledge(150, 1)] == [5, 5]


@pytest.mark.parametrize(
    ("idle", "window"),
    # A timeout is 200 ms. From 8 segments on: 4, 2, and never less than one.
    [(199, 8), (200, 4), (399, 4), (400, 2), (10_000, 1)],
)
def test_the_window_is_halved_for_each_timeout_of_silence(idle, window):
    sender = Sender(window=8, ssthresh=5, window_validation=True)
    sender.write(0, 3)
    assert sender.acknowledge(100, 3) == 8
    sender.write(idle, 20)
    assert sender.s.cwnd == sender.outstanding == window
    # The threshold remembers three quarters of what the window was.
    assert sender.s.ssthresh == (5 if window == 8 else 6)


def test_silence_costs_nothing_without_validation():
    sender = Sender(window=8)
    sender.write(0, 3)
    sender.acknowledge(100, 3)
    sender.write(10_000, 20)
    assert sender.s.cwnd == sender.outstanding == 9


@pytest.mark.parametrize("name", ["byte_counting", "window_validation"])
def test_the_rules_are_true_or_false(name):
    with pytest.raises(ValueError, match=rf"^{name} must be True or False, got 1$"):
        Classic(**{name: 1})
