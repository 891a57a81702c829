"""The receiver: which segments it acknowledges when, by the kernel's rules for delayed ACKs."""

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.sim.engine import advance, new_connection
from tcpdelay.sim.records import NEVER
from tcpdelay.sim.simulation import simulate
from tcpdelay.sim.tcp.receiver import EVERYTHING, NO_SEGMENT, arrive, on_receiver_timer

DELAYED, AT_ONCE = td.Stack.linux(delayed_ack=True), td.Stack.linux()
ONE_WAY = 50_000


class Receiver:
    """A receiver to which segments of given sizes are on their way; all writes end at multiples of the packet size."""

    def __init__(self, stack, packet_size, sizes):
        self.c, wire = new_connection(
            td.Flow(packet_size, 0.02, write_jitter=0), td.Path(rtt=0.1, loss=0.0), stack, 0, exact_ties=True
        )
        self.wire = wire
        ends = np.cumsum(sizes)
        for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
            segment = wire.record.segments[number]
            segment.start, segment.end = end - size, end
        self.c.next_segment = len(sizes)
        self.c.snd_nxt = self.c.written = ends[-1]
        self.c.packets_written = ends[-1] // packet_size
        self.now = 10**9

    def take(self, *numbers, after=0):
        """Let segments arrive at one instant, and return the ACKs that leave then."""
        self.now += after
        before = int(self.c.next_ack)
        for number in numbers:
            arrive(self.c, self.wire.record, number, number + 1, self.now - ONE_WAY, self.now)
        if self.c.receiver_timer == self.now:
            on_receiver_timer(self.c, self.wire.record)
        acks = self.wire.record.acknowledgements[before : self.c.next_ack]
        assert np.all(acks["arrival"] == self.now + ONE_WAY)
        return acks["acknowledged"].tolist()


LARGE = 5000 * 1448
"""A packet that no segment below is the end of."""


def settled(packet_size, sizes):
    """Return a receiver that is past the segments acknowledged quickly at the beginning."""
    first = min(packet_size, 1448)
    receiver = Receiver(DELAYED, packet_size, [first] * 16 + sizes)
    for number in range(16):
        assert receiver.take(number, after=20_000) == [first * (number + 1)]
    assert receiver.c.quick == 0
    return receiver


def test_what_ends_a_write_is_acknowledged_as_it_is_read():
    receiver = settled(174, [174] * 10)
    for number in range(16, 26):
        assert receiver.take(number, after=20_000) == [174 * (number + 1)]


def test_full_segments_within_a_write_are_acknowledged_in_pairs():
    receiver = settled(LARGE, [1448] * 10)
    for number in range(16, 26, 2):
        assert receiver.take(number, after=1000) == []
        assert receiver.take(number + 1, after=1000) == [(number + 2) * 1448]


def test_a_lone_full_segment_is_acknowledged_after_40_ms_in_ticks():
    receiver = settled(LARGE, [1448])
    assert receiver.take(16, after=1000) == []
    delay = receiver.c.delayed_ack_at - receiver.now
    assert 40_000 < delay <= 40_000 + 4000
    before = int(receiver.c.next_ack)
    on_receiver_timer(receiver.c, receiver.wire.record)
    assert receiver.c.next_ack == before + 1
    assert receiver.c.receiver_timer == NEVER
    # A delay that ran out is a sign of longer gaps.
    assert receiver.c.ato == 20


def test_what_comes_at_one_instant_is_read_at_once():
    receiver = settled(1448, [1448] * 5)
    assert receiver.take(16, 17, 18, 19, after=20_000) == [20 * 1448]


def test_a_hole_and_its_filling_are_acknowledged_at_once():
    receiver = settled(1448, [1448] * 8)
    below = 16 * 1448
    for number in (17, 18, 19):
        assert receiver.take(number, after=5000) == [below]
    # From the fourth on SACKs wait 1 ms for each other, and on Linux 7.3 the timer may be 10 us late.
    assert receiver.take(20, after=5000) == []
    assert receiver.c.compressed_at == receiver.now + 1010
    assert receiver.take(21, after=500) == []
    on_receiver_timer(receiver.c, receiver.wire.record)
    assert receiver.take(16, after=5000) == [22 * 1448]


def test_what_arrives_twice_is_reported_and_makes_the_receiver_quick():
    receiver = settled(1448, [1448] * 4)
    receiver.take(16, after=20_000)
    assert receiver.take(16, after=20_000) == [17 * 1448]
    assert receiver.wire.record.acknowledgements[receiver.c.next_ack - 1]["duplicate"] == 16
    assert receiver.c.quick == 15
    receiver.take(17, after=20_000)
    assert receiver.wire.record.acknowledgements[receiver.c.next_ack - 1]["duplicate"] == NO_SEGMENT


def test_the_size_of_full_segments_is_found_out():
    receiver = settled(724, [724] * 2)
    # Sizes below 536 bytes are not believed if they end writes.
    assert receiver.c.rcv_mss == 724
    assert settled(174, [174]).c.rcv_mss == 536


def test_without_delayed_acks_each_read_is_acknowledged_at_once():
    receiver = Receiver(AT_ONCE, 1448, [1448] * 40)
    assert [receiver.take(number, after=1000) for number in range(20)] == [[1448 * n] for n in range(1, 21)]
    # The application reads the segments of one instant at once.
    assert receiver.take(*range(20, 25), after=1000) == [25 * 1448]
    # A segment out of order is acknowledged with the segments before it; from the fourth SACK on, SACKs wait.
    assert receiver.take(25, 27, after=1000) == [26 * 1448]
    assert receiver.take(28, 29, after=1000) == [26 * 1448] * 2
    assert receiver.take(30, after=1000) == []


@pytest.mark.parametrize("stack", [AT_ONCE, DELAYED])
def test_an_acknowledgement_reports_the_segments_whose_sack_waits(stack):
    receiver = Receiver(stack, 1448, [1448] * 40)
    for number in range(20):
        receiver.take(number, after=1000)
    # Two segments are missing, 20 and 22. The SACK of 26, the fourth, waits when 20 arrives.
    for number in (21, 23, 24, 25, 26):
        receiver.take(number, after=1000)
    assert receiver.take(20, after=100) == [22 * 1448]
    answer = receiver.wire.record.acknowledgements[receiver.c.next_ack - 1]
    assert (answer["segment"], answer["arrivals"]) == (EVERYTHING, 26)
    assert receiver.c.compressed_at == NEVER


@pytest.mark.parametrize(("size", "interval", "rtt", "loss", "low", "high"), [
    # Shares of the captures: small packets below the window are acknowledged one by one, ...
    (174, 0.020, 0.1, 0.02, 0.995, 1.0),
    # ... the bursts after a loss are read, and acknowledged, at once: 0.92 to 0.93 and 0.97 to 0.98.
    (1448, 0.020, 0.1, 0.01, 0.91, 0.94),
    (174, 0.020, 0.3, 0.02, 0.97, 0.985),
])  # fmt: skip
def test_delayed_acks_save_as_many_as_in_the_captures(size, interval, rtt, loss, low, high):
    counts = simulate(
        td.Flow(size, interval, write_jitter=0), td.Path(rtt=rtt, loss=loss), DELAYED, packets=100_000
    ).counts
    assert low <= counts["acks_sent"] / (counts["segments_sent"] - counts["segments_lost"]) <= high


@pytest.mark.parametrize("stack", [AT_ONCE, DELAYED])
def test_a_packet_of_several_segments_is_acknowledged_once(stack):
    counts = simulate(td.Flow(4 * 1448, 0.2, write_jitter=0), td.Path(rtt=0.1, loss=0.0), stack, packets=2000).counts
    assert counts["acks_sent"] == pytest.approx(counts["segments_sent"] / 4, rel=0.01)


@pytest.mark.parametrize("stack", [AT_ONCE, DELAYED])
@pytest.mark.parametrize(("size", "interval", "rtt"), [(1448, 0.005, 0.1), (3000, 0.02, 0.1), (8877, 0.05, 0.03)])
def test_a_path_that_keeps_the_order_shows_no_reordering(size, interval, rtt, stack):
    """An ACK often acknowledges the segments before a hole and SACKs the segment after it (`prior_fack` in tcp_ack)."""
    connection, wire = new_connection(td.Flow(size, interval, write_jitter=0), td.Path(rtt, 0.01), stack, seed=1)
    advance(connection, wire, 20_000)
    assert connection.recoveries > 100
    assert connection.reord_seen == 0
