"""Byte counting and window validation of the classic sender: scripts worked out by hand, an ACK at a time."""

import pytest

import tcpdelay as td
from tcpdelay.sim.literature import classic
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.simulation import prepare
from tcpdelay.sim.network.sources import ConstantRate
from tcpdelay.sim.network.stacks import Classic

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
