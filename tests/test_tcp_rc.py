"""The forging receiver of TCP-RC: packet scripts, worked out by hand, and what holds for any scenario."""

import numpy as np
import pytest

import tcpdelay as td
from flow_counts import FAST, with_one_loss
from tcpdelay.compiling.record_types import record_type
from tcpdelay.sim.engine import new_connection
from tcpdelay.sim.literature import classic
from tcpdelay.sim.network.bottleneck import SharedPath
from tcpdelay.sim.network.simulation import prepare, simulate_network
from tcpdelay.sim.network.sources import ConstantRate
from tcpdelay.sim.network.stacks import Classic
from tcpdelay.sim.records import Acknowledgement
from tcpdelay.sim.tcp.acknowledgement import on_acknowledgement
from tcpdelay.sim.tcp.constants import NEVER
from tcpdelay.sim.tcp.sender import send_new

MS = 1000
INTERVAL = 10 * MS
ONE_WAY = 30 * MS
SIZE = 200
"""Bytes of a packet, which is a segment while the window is open."""


class Receiver:
    """The receiver's half of a connection: a packet every 10 ms is sent, and the test says which arrive and when."""

    def __init__(self, recovery="newreno", sent=100):
        source = ConstantRate(
            flow=td.Flow(SIZE, INTERVAL / 1e6, write_jitter=0),
            path=SharedPath(ONE_WAY / 1e6),
            stack=Classic(recovery=recovery),
            forging=True,
        )
        self.network = prepare([source], FAST, 0, 0.0, 100.0)
        self.flow, self.wire = self.network.flows[0], self.network.wires[0]
        self.connection, self.samples = self.network.connections[0], self.network.samples[0]
        self.connection.snd_max = self.connection.snd_nxt = sent
        self.connection.written = self.connection.assembled = SIZE * sent
        for number in range(sent):
            segment = self.wire.segments[number]
            segment.sent, segment.start, segment.end = number * INTERVAL, SIZE * number, SIZE * (number + 1)

    def arrive(self, number, time=None):
        """Let a packet arrive, by default one way after it was written; return what acknowledgements leave."""
        before = self.connection.next_ack
        time = number * INTERVAL + ONE_WAY if time is None else time
        classic.receive(self.flow, self.connection, self.wire, self.samples, number, time)
        return self.acknowledgements(before)

    def wait(self):
        """Let the forging timer expire; return what acknowledgements leave."""
        before = self.connection.next_ack
        classic.forge_missing(self.flow, self.connection, self.wire, self.samples)
        return self.acknowledgements(before)

    def acknowledgements(self, first):
        answers = self.wire.acknowledgements[first : self.connection.next_ack]
        return [(int(answer.arrival) - ONE_WAY, int(answer.acknowledged)) for answer in answers]

    @property
    def delays(self):
        """Delays [ms] of what has been read."""
        return (self.samples.keys[: self.samples.used] / MS).tolist()


def receiver_of(count, **options):
    receiver = Receiver(**options)
    for number in range(count):
        assert receiver.arrive(number) == [(number * INTERVAL + ONE_WAY, number + 1)]
    return receiver


def test_the_timer_waits_three_gaps_from_the_first_packet_that_overtakes():
    receiver = receiver_of(10)
    assert receiver.connection.forge_at == NEVER
    receiver.arrive(11)
    assert receiver.connection.mean_gap == pytest.approx(INTERVAL * (1 + 1 / 16))
    expected = 11 * INTERVAL + ONE_WAY + round(3 * INTERVAL * (1 + 1 / 16))
    assert receiver.connection.forge_at == expected
    receiver.arrive(12)
    receiver.arrive(13)
    assert receiver.connection.forge_at == expected


def test_a_copy_in_time_stops_the_timer():
    receiver = receiver_of(10)
    receiver.arrive(11)
    time = receiver.connection.forge_at
    # Even at the very instant: the timer comes after it.
    assert receiver.arrive(10, time) == [(time, 12)]
    assert receiver.connection.forge_at == NEVER
    assert receiver.flow.lost == 0
    assert receiver.delays == [30] * 10 + [(time - 10 * INTERVAL) / MS, (time - 11 * INTERVAL) / MS]


@pytest.mark.parametrize("overtaking", [1, 2, 3, 4, 6])
def test_the_sender_gets_four_acknowledgements_that_ask_for_a_missing_packet(overtaking):
    # McCreary et al. 2005, section 2.2: four in all. The first is the one of the packet before it.
    receiver = receiver_of(10)
    start = 11 * INTERVAL + ONE_WAY
    # All within a millisecond, before the timer.
    duplicates = [receiver.arrive(11 + n, start + 100 * n) for n in range(overtaking)]
    assert duplicates == [[(start + 100 * n, 10)] for n in range(overtaking)]
    time = receiver.connection.forge_at
    # The last one acknowledges the forged packet and what has overtaken it.
    assert receiver.wait() == [(time, 10)] * max(3 - overtaking, 0) + [(time, 11 + overtaking)]
    assert receiver.flow.lost == 1
    assert receiver.connection.rcv_nxt == 11 + overtaking
    # What has overtaken is read at the instant of the forgery.
    assert receiver.delays[10:] == [(time - (11 + n) * INTERVAL) / MS for n in range(overtaking)]
    assert receiver.connection.forge_at == NEVER


def test_the_late_copy_is_dropped():
    receiver = receiver_of(10)
    receiver.arrive(11)
    time = receiver.connection.forge_at
    receiver.wait()
    # It is no news, so its acknowledgement says where the receiver is.
    assert receiver.arrive(10, time + 50) == [(time + 50, 12)]
    assert (receiver.flow.lost, len(receiver.delays)) == (1, 11)
    assert receiver.arrive(12, time + 60) == [(time + 60, 13)]
    assert receiver.flow.packets_read == 13


def test_an_arrival_after_the_timer_is_read_at_once():
    receiver = receiver_of(10)
    receiver.arrive(11)
    time = receiver.connection.forge_at
    later = time + 1
    assert receiver.arrive(12, later) == [(time, 10)] * 2 + [(time, 12), (later, 13)]
    assert receiver.delays[-1] == (later - 12 * INTERVAL) / MS


def test_of_two_neighbours_each_is_declared_missing():
    receiver = receiver_of(10)
    receiver.arrive(12)
    first = receiver.connection.forge_at
    assert receiver.wait() == [(first, 10)] * 2 + [(first, 11)]
    # The second was overtaken by the same packet, so its time is up too.
    assert receiver.connection.forge_at == first
    assert receiver.wait() == [(first, 11)] * 3 + [(first, 13)]
    assert receiver.flow.lost == 2
    assert receiver.connection.forge_at == NEVER


def test_each_gap_has_its_own_timer():
    receiver = receiver_of(10)
    for number in (11, 13):
        receiver.arrive(number)
    receiver.wait()
    second = 13 * INTERVAL + ONE_WAY + round(3 * receiver.connection.mean_gap)
    assert receiver.connection.forge_at == second
    assert receiver.connection.rcv_nxt == 12


def after_a_loss(forging, recovery="newreno"):
    stack = Classic(recovery=recovery, receiver_window=60)
    network = with_one_loss(stack, interval=0.010, one_way=0.030, forging=forging)
    network.advance(11.0)
    return network


@pytest.mark.parametrize("recovery", ["reno", "sack"])
def test_the_sender_repairs_and_halves_all_the_same(recovery):
    forged, waiting = (after_a_loss(forging, recovery=recovery) for forging in (True, False))
    for network in (forged, waiting):
        connection = network.connections[0]
        assert (connection.recoveries, connection.segments_retransmitted, connection.timeouts) == (1, 1, 0)
        assert connection.acknowledged_to == 100 * SIZE
    assert forged.connections[0].ssthresh == waiting.connections[0].ssthresh
    assert (forged.flows[0].lost, forged.flows[0].delivered) == (1, 99)
    assert (waiting.flows[0].lost, waiting.flows[0].delivered) == (0, 100)
    # The packet behind the lost one waits for the timer: three gaps, whose mean one of 20 ms has raised.
    assert forged.samples[0].keys[40:99].max() == pytest.approx(ONE_WAY + 3 * INTERVAL * (1 + 1 / 16), rel=0.02)
    # Without forging for the repair: three more packets, a round trip and one way.
    assert waiting.samples[0].keys[40:100].max() == 30 * MS + 60 * MS + ONE_WAY


def test_newreno_takes_what_follows_a_forgery_for_further_losses():
    # Each packet under way at the repair is acknowledged by itself: to RFC 6582 a partial acknowledgement.
    assert after_a_loss(False, recovery="newreno").connections[0].segments_retransmitted == 1
    assert after_a_loss(True, recovery="newreno").connections[0].segments_retransmitted > 3


@pytest.mark.parametrize("recovery", ["reno", "sack"])
def test_forging_bounds_the_delay_and_costs_the_lost_packets(recovery):
    stack = Classic(recovery=recovery, tick=0.01, rto_min=0.2)
    path = SharedPath(0.030, loss=0.02)
    waiting, forging = (
        simulate_network(
            [ConstantRate(flow=td.Flow(500, 0.020), path=path, stack=stack, forging=forging)],
            FAST,
            duration=1000,
            warm_up=10,
            seed=1,
        ).flows[0]
        for forging in (False, True)
    )
    assert forging.lost / forging.offered == pytest.approx(0.02, rel=0.1)
    assert forging.delays.quantile(0.5) == pytest.approx(0.030)
    assert forging.delays.mean - 0.030 < 0.6 * (waiting.delays.mean - 0.030)
    assert forging.receiver_delay < 0.5 * waiting.receiver_delay
    assert forging.timeouts < waiting.timeouts


@pytest.mark.parametrize("stack", [td.Stack.linux(), Classic(ack_delay=0.2)])
def test_other_receivers_do_not_forge(stack):
    with pytest.raises(ValueError, match="forging must"):
        ConstantRate(flow=td.Flow(200, 0.01), path=SharedPath(0.03), stack=stack, forging=True)


def test_without_losses_nothing_changes():
    values = []
    for forging in (False, True):
        source = ConstantRate(flow=td.Flow(200, 0.01), path=SharedPath(0.03), stack=Classic(), forging=forging)
        flow = simulate_network([source], FAST, duration=20).flows[0]
        values.append((flow.delivered, flow.lost, flow.delays.values))
    assert values[0][:2] == values[1][:2] == (2000, 0)
    np.testing.assert_array_equal(values[0][2], values[1][2])


def kernel_after(answers):
    """Return a kernel's sender after answers: time [ms], packets acknowledged, packet reported, echo [ms]."""
    connection, wire = new_connection(
        td.Flow(1000, 0.010, write_jitter=0), td.Path(rtt=0.060, loss=0.0), td.Stack.linux("reno"), 1
    )
    connection.coalescing = 0
    connection.snd_cwnd = connection.snd_ssthresh = 20
    record = np.zeros(1, record_type(Acknowledgement)).view(np.recarray)[0]
    record.duplicate = -1
    writes = [(number * 10, None) for number in range(25)]
    for time, answer in sorted([*writes, *((answer[0], answer) for answer in answers)], key=lambda event: event[0]):
        connection.now = time * MS
        if answer is None:
            connection.packets_written += 1
            connection.written += 1000
            send_new(connection, wire.record, False)
        else:
            _, acknowledged, record.segment, echo = answer
            record.arrival, record.acknowledged, record.echo = time * MS, acknowledged * 1000, echo * MS
            on_acknowledgement(connection, wire.record, record)
    return connection


def test_a_kernel_sender_would_take_the_halving_back():
    # Packet 10 is lost, and four SACKs follow: the sender repairs it and halves its window, reduced packet by packet.
    answers = [(60 + 10 * n, n + 1, n, 10 * n) for n in range(10)]
    answers += [(60 + 10 * n, 10, n, 90) for n in range(11, 15)]
    halved = kernel_after(answers)
    assert (halved.segments_retransmitted, halved.snd_ssthresh, halved.undone) == (1, 7, 0)
    # Then packets go on as if it had come. The echoed timestamp is older than the repair: the original, to the kernel.
    restored = kernel_after([*answers, (210, 16, 15, 150)])
    assert (restored.undone, restored.snd_ssthresh) == (1, 20)
    assert restored.snd_cwnd > 14
