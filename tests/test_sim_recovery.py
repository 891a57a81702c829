"""Loss recovery and acknowledgements in the simulator, event by event."""

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.compiling.record_types import record_type
from tcpdelay.sim.engine import TCP, new_connection
from tcpdelay.sim.records import (
    COLLAPSED,
    DISORDER,
    EVER_RETRANSMITTED,
    LOSS,
    MARKED_LOST,
    OPEN,
    PROBE_TIMER,
    RECOVERY,
    RETRANSMISSION_TIMER,
    RETRANSMITTED,
    RING,
    SACKED,
    Acknowledgement,
    Rules,
)
from tcpdelay.sim.simulation import simulate
from tcpdelay.sim.tcp.acknowledgement import on_acknowledgement, update_estimate
from tcpdelay.sim.tcp.constants import NEVER
from tcpdelay.sim.tcp.receiver import EVERYTHING, NO_SEGMENT, arrive, on_receiver_timer
from tcpdelay.sim.tcp.sender import on_timer, send_new

# The tail loss probe: RTT 100 ms, packets of 100 B, timeout 300 ms, ticks of 1 us

SIZE, RTT, ONE_WAY = 100, 100_000, 50_000
START = 10_000_000


class Sender:
    """A sender that is told what happens; nothing that it sends arrives by itself."""

    def __init__(self, size=SIZE, host_delay=0, **rules):
        flow, path = td.Flow(size, 0.1, write_jitter=0), td.Path(rtt=0.1, loss=0.0)
        rules = Rules(ticks=False, **rules)
        self.size = size
        self.c, self.wire = new_connection(flow, path, td.Stack.linux(), seed=1, rules=rules)
        self.c.deferred = 1
        self.c.host_delay = host_delay
        self.c.now = START
        self.c.min_rtt = RTT
        for _ in range(100):
            update_estimate(self.c, RTT)
        assert self.c.rto == 300_000

    @property
    def timer(self):
        """What the timer is for, and when it fires [ms]."""
        return int(self.c.timer_kind), int(self.c.timer_at - START) / 1000

    @property
    def sent(self):
        return int(self.c.segments_sent)

    def flags(self, number):
        return int(self.wire.record.segments[number % RING]["state"])

    def at(self, milliseconds):
        self.c.now = START + round(milliseconds * 1000)

    def write(self, milliseconds):
        self.at(milliseconds)
        self.c.written += self.size
        self.c.packets_written += 1
        send_new(self.c, self.wire.record, False)

    def lose(self, number):
        """Let the copy that has just been sent be lost as it leaves."""
        self.wire.record.segments[number % RING].gone = self.c.now

    def fire(self):
        self.c.now = self.c.timer_at
        on_timer(self.c, self.wire.record)

    def acknowledge(self, milliseconds, packets, reported=-1, duplicate=-1, echo=0.0):
        """Acknowledge so many packets cumulatively, and one by a SACK or a D-SACK."""
        self.at(milliseconds)
        (answer,) = np.zeros(1, record_type(Acknowledgement)).view(np.recarray)
        answer.acknowledged = packets * self.size
        answer.segment, answer.duplicate = max(reported, duplicate, 0), duplicate
        answer.echo = START + round(echo * 1000)
        on_acknowledgement(self.c, self.wire.record, answer)


@pytest.fixture
def lone():
    """A sender whose only packet was lost, and has been sent again by a probe."""
    sender = Sender()
    sender.write(0)
    sender.lose(0)
    # 2 RTT + 200 ms are longer than the timeout (tcp_schedule_loss_probe).
    assert sender.timer == (PROBE_TIMER, 300)
    sender.fire()
    assert sender.sent == 2
    return sender


def test_a_probe_is_no_retransmission_under_way(lone):
    # tcp_send_loss_probe calls __tcp_retransmit_skb, which counts it neither in retrans_out nor for undoing.
    assert lone.flags(0) == EVER_RETRANSMITTED
    assert (lone.c.retrans_out, lone.c.retrans_stamp, lone.c.undo_retrans) == (0, 0, -1)
    assert (lone.c.probes, lone.c.segments_retransmitted) == (1, 1)
    assert lone.timer == (RETRANSMISSION_TIMER, 600)


def test_the_timeout_after_a_probe_sends_the_head_once_more(lone):
    lone.lose(0)
    lone.fire()
    assert (lone.sent, lone.c.ca_state, lone.c.timeouts) == (3, LOSS, 1)
    assert lone.flags(0) == MARKED_LOST | RETRANSMITTED | EVER_RETRANSMITTED
    # That and the probe may be reported by D-SACKs (tcp_init_undo).
    assert lone.c.undo_retrans == 2
    assert lone.timer == (RETRANSMISSION_TIMER, 1200)


def test_the_window_is_reduced_by_what_is_acknowledged_beyond_a_probe(lone):
    window = lone.c.snd_cwnd
    lone.acknowledge(400, 1, echo=300)
    assert (lone.c.snd_cwnd, lone.c.ca_state) == (window, OPEN)
    assert lone.c.tlp_high_seq == SIZE
    lone.write(410)
    lone.acknowledge(510, 2, reported=1, echo=410)
    assert lone.c.snd_ssthresh == lone.c.snd_cwnd == window * 717 // 1024
    assert (lone.c.ca_state, lone.c.tlp_high_seq) == (OPEN, 0)


def test_no_reduction_if_both_copies_arrived(lone):
    window = lone.c.snd_cwnd
    lone.acknowledge(310, 1, echo=0)
    lone.acknowledge(400, 1, duplicate=0, echo=0)
    assert lone.c.tlp_high_seq == 0
    lone.write(410)
    lone.acknowledge(510, 2, reported=1, echo=410)
    assert lone.c.snd_cwnd == window


def test_one_probe_until_the_last_is_understood(lone):
    lone.acknowledge(400, 1, echo=300)
    lone.write(410)
    lone.lose(1)
    assert lone.timer == (PROBE_TIMER, 710)
    lone.fire()
    assert (lone.sent, lone.c.probes) == (3, 1)
    # The timeout is counted from the packet's sending, so it is due.
    assert lone.timer[0] == RETRANSMISSION_TIMER
    assert lone.timer[1] == pytest.approx(710, abs=0.01)


def test_what_has_not_left_the_host_is_not_sent_again_by_a_probe():
    # skb_still_in_host_queue: the network's delay is spent in a queue of the sender's.
    sender = Sender(host_delay=ONE_WAY)
    sender.write(0)
    sender.lose(0)
    sender.write(290)
    assert sender.timer == (PROBE_TIMER, 300)
    sender.fire()
    assert (sender.sent, sender.c.probes, sender.c.tlp_high_seq) == (2, 0, 0)
    assert sender.timer[1] == pytest.approx(300, abs=0.01)
    sender.fire()
    assert (sender.sent, sender.c.ca_state, sender.c.timeouts) == (3, LOSS, 1)
    # The successor shows that not all was lost: the timeout is taken back (RFC 5682), and with it the mark of the head.
    window = sender.c.prior_cwnd
    sender.acknowledge(390, 0, reported=1, echo=0)
    assert (sender.c.ca_state, sender.c.undone, sender.c.snd_cwnd) == (DISORDER, 1, window)
    assert sender.flags(0) == RETRANSMITTED | EVER_RETRANSMITTED
    assert sender.flags(1) == SACKED


@pytest.mark.parametrize(("host_delay", "written"), [(ONE_WAY, 249), (0, 290)])
def test_what_has_left_the_host_is_sent_again(host_delay, written):
    sender = Sender(host_delay=host_delay)
    sender.write(0)
    sender.lose(0)
    sender.write(written)
    sender.fire()
    assert (sender.sent, sender.c.probes) == (3, 1)
    assert (sender.flags(0), sender.flags(1)) == (0, EVER_RETRANSMITTED)
    # The SACK of the original comes too early for the copy, so RACK learns nothing; the D-SACK tells reordering.
    sender.acknowledge(written + 100, 0, reported=1, echo=0)
    assert sender.c.ca_state == DISORDER
    assert sender.c.reord_seen == 0
    sender.acknowledge(400, 0, duplicate=1, echo=0)
    assert (sender.c.ca_state, sender.c.reord_seen) == (DISORDER, 1)
    assert sender.timer == (RETRANSMISSION_TIMER, 600)


def test_a_sack_leaves_a_retransmission_under_way_that_is_not_taken_for_lost():
    sender = Sender()
    sender.write(0)
    sender.write(1)
    segment = sender.wire.record.segments[1]
    segment["state"] |= RETRANSMITTED | EVER_RETRANSMITTED
    sender.c.retrans_out = 1
    sender.acknowledge(101, 0, reported=1, echo=0)
    assert sender.flags(1) == RETRANSMITTED | EVER_RETRANSMITTED | SACKED
    assert sender.c.retrans_out == 1
    sender.acknowledge(120, 2, reported=0, echo=0)
    assert sender.c.retrans_out == 0


def test_a_d_sack_undoes_even_when_nothing_is_under_way():
    # tcp_ack, no_queue: the retransmission was needless, and the window comes back.
    sender = Sender()
    for time in (0, 1, 2, 3):
        sender.write(time)
    window = sender.c.snd_cwnd
    for number in (1, 2, 3):
        sender.acknowledge(100 + number, 0, reported=number, echo=0)
    assert (sender.c.ca_state, sender.c.segments_retransmitted) == (RECOVERY, 1)
    sender.acknowledge(130, 4, reported=0, echo=103)
    assert sender.c.packets_out == 0
    assert sender.c.snd_cwnd < window
    sender.acknowledge(203, 4, duplicate=0, echo=103)
    assert (sender.c.snd_cwnd, sender.c.undone) == (window, 1)


# The receiver: which segments it acknowledges when, by the kernel's rules for delayed ACKs

DELAYED, AT_ONCE = td.Stack.linux(delayed_ack=True), td.Stack.linux()


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
    TCP.advance(connection, wire, 20_000)
    assert connection.recoveries > 100
    assert connection.reord_seen == 0


# Jitter that reorders: what Linux 6.1 and 7.3 do (net/ipv4/tcp_input.c)

MSS = 1448
QUICK_ACKS = 16  # TCP_MAX_QUICKACKS


class FullSegmentReceiver(Receiver):
    """A receiver of full segments, of which any copy may arrive at any time."""

    def __init__(self, delayed_ack=False):
        super().__init__(td.Stack.linux(delayed_ack=delayed_ack), MSS, [MSS] * 100)

    def take(self, time, number, sent, following=None):
        """Let a copy that was sent at a time [ms] arrive; return segments acknowledged, reported and reported twice."""
        before = int(self.c.next_ack)
        arrive(
            self.c,
            self.wire.record,
            number,
            following or number + 1,
            START + round(sent * 1000),
            START + round(time * 1000),
        )
        assert self.c.next_ack == before + 1
        answer = self.wire.record.acknowledgements[before]
        return int(answer["acknowledged"]) // MSS, int(answer["segment"]), int(answer["duplicate"])


def window_limited(size=MSS, writes=10):
    """Return a sender of writes of one size, a millisecond apart, whose window of ten segments limits it."""
    sender = Sender(size, coalescing=False)
    for number in range(writes):
        sender.write(number)
    return sender


@pytest.mark.parametrize("delayed_ack", [False, True])
def test_originals_behind_a_retransmission_that_has_filled_a_hole_are_discarded(delayed_ack):
    # tcp_paws_discard: without the rule segment 3 is accepted, and 4 segments are acknowledged at 155 ms.
    receiver = FullSegmentReceiver(delayed_ack)
    assert receiver.take(50, 0, sent=0)[0] == 1
    assert receiver.take(70, 2, sent=20) == (1, 2, NO_SEGMENT)
    assert receiver.take(150, 1, sent=100)[0] == 3
    # tcp_send_dupack: a pure duplicate ACK, as the segment is beyond what is in order.
    assert receiver.take(155, 3, sent=40) == (3, EVERYTHING, NO_SEGMENT)
    assert receiver.c.paws_discards == 1
    assert receiver.take(250, 3, sent=200)[0] == 4


@pytest.mark.parametrize(("sent", "taken"), [(99.0, True), (98.9, False)])
def test_a_timestamp_may_be_one_millisecond_old(sent, taken):
    # TCP_PAWS_WINDOW: the time stamps count milliseconds.
    receiver = FullSegmentReceiver()
    receiver.take(150, 0, sent=100)
    assert (receiver.take(151, 1, sent)[0] == 2) is taken


def test_a_late_original_of_what_is_in_order_is_reported_by_a_d_sack():
    receiver = FullSegmentReceiver()
    receiver.take(50, 0, sent=0)
    receiver.take(150, 1, sent=100)
    assert receiver.take(151, 1, sent=10) == (2, EVERYTHING, 1)
    # tcp_enter_quickack_mode: the D-SACK is the first of the ACKs that are not delayed.
    assert receiver.c.quick == QUICK_ACKS - 1


def test_a_needless_copy_of_the_last_segment_makes_earlier_transmissions_old():
    # tcp_sequence lets the copy pass, as it ends at rcv_wup, and tcp_replace_ts_recent takes its time stamp.
    receiver = FullSegmentReceiver()
    receiver.take(50, 0, sent=0)
    assert receiver.take(150, 0, sent=100) == (1, 0, 0)
    assert receiver.take(151, 1, sent=20)[0] == 1
    # A copy of an older segment ends before rcv_wup: it is answered, but its time stamp does not count.
    receiver = FullSegmentReceiver()
    receiver.take(50, 0, sent=0)
    receiver.take(51, 1, sent=1)
    assert receiver.take(150, 0, sent=100) == (2, 0, 0)
    assert receiver.take(151, 2, sent=20)[0] == 3


def test_a_retransmission_with_old_and_new_data_is_reported_by_a_d_sack():
    # tcp_data_queue, "Partial packet": two collapsed segments arrive after the original of the first of them.
    receiver = FullSegmentReceiver()
    receiver.take(50, 0, sent=0)
    assert receiver.take(150, 0, sent=100, following=2) == (2, 0, 0)
    # tcp_ofo_queue, tcp_dsack_extend: the original of the second waits out of order.
    receiver = FullSegmentReceiver()
    receiver.take(50, 1, sent=0)
    assert receiver.take(150, 0, sent=100, following=2) == (2, 0, 1)


def test_duplicates_are_acknowledged_at_once_and_so_are_the_next_segments():
    receiver = FullSegmentReceiver()
    receiver.take(50, 0, sent=0)
    receiver.take(51, 0, sent=0)
    # tcp_in_quickack_mode: no SACK is compressed.
    for number in range(2, 10):
        assert receiver.take(60 + number / 10, number, sent=10) == (1, number, NO_SEGMENT)


@pytest.mark.parametrize(("size", "distance", "window"), [(MSS, 5, 11), (100, 3, 10)])
def test_sacks_let_the_window_grow_where_much_is_reordered(size, distance, window):
    # tcp_may_raise_cwnd; the distance is counted in full segments (tcp_check_sack_reordering).
    sender = window_limited(size)
    assert (sender.c.snd_cwnd, sender.c.is_cwnd_limited) == (10, 1)
    sender.acknowledge(105, 0, reported=5)
    assert (sender.c.ca_state, sender.c.snd_cwnd, sender.c.reord_seen) == (DISORDER, 10, 0)
    sender.acknowledge(106, 0, reported=1)
    assert (sender.c.reord_seen, sender.c.reordering_distance) == (1, distance)
    assert (sender.c.ca_state, sender.c.snd_cwnd) == (DISORDER, window)


@pytest.mark.parametrize("waiting", [False, True])
def test_an_ack_shows_that_the_window_limits_only_where_data_wait(waiting):
    # tcp_push_pending_frames: without unsent data, tcp_write_xmit and therefore tcp_cwnd_validate are not called.
    sender = window_limited()
    sender.c.snd_cwnd, sender.c.is_cwnd_limited, sender.c.cwnd_usage_seq = 5, 0, 0
    if waiting:
        sender.c.written += MSS
        sender.c.packets_written += 1
    sender.acknowledge(100, 2)
    assert (sender.sent, sender.c.is_cwnd_limited) == (10, waiting)


def test_a_timeout_after_many_sacks_takes_the_distance_back():
    # tcp_enter_loss
    sender = window_limited()
    for number in (9, 1, 2):
        sender.acknowledge(100, 0, reported=number)
    assert sender.c.reordering_distance == 9
    sender.c.timer_kind = RETRANSMISSION_TIMER
    sender.fire()
    assert (sender.c.ca_state, sender.c.reordering_distance) == (LOSS, 3)


def test_a_late_original_in_recovery_is_reordering_though_nothing_stays_sacked():
    # tcp_try_undo_partial, TCPTSReorder
    sender = window_limited()
    for number in (1, 2, 3):
        sender.acknowledge(103, 0, reported=number)
    assert (sender.c.ca_state, sender.c.segments_retransmitted, sender.c.reord_seen) == (RECOVERY, 1, 0)
    sender.acknowledge(110, 4, reported=3, echo=0)
    assert (sender.c.sacked_out, sender.c.reord_seen) == (0, 1)


def test_a_reduction_undone_by_d_sacks_keeps_the_longer_wait_for_a_recovery_more():
    # tcp_try_undo_dsack
    sender = window_limited()
    for number in (1, 2, 3):
        sender.acknowledge(103, 0, reported=number)
    sender.acknowledge(130, 4, reported=3, echo=103)
    sender.acknowledge(203, 4, reported=3, duplicate=0, echo=103)
    assert (sender.c.undone, sender.c.reo_wnd_persist) == (1, 1)


@pytest.mark.parametrize(("host_delay", "collapsed"), [(0, True), (ONE_WAY, False)])
def test_what_has_left_the_host_is_collapsed_into_a_retransmission(host_delay, collapsed):
    # tcp_can_collapse, skb_cloned: only a device of the host holds a copy, not the network.
    sender = window_limited(size=100, writes=2)
    sender.c.host_delay = host_delay
    segments = sender.wire.record.segments
    segments[0].gone = START
    segments[1].sent = START + 290_000
    segments[1].gone = segments[1].sent + ONE_WAY
    sender.c.timer_kind = RETRANSMISSION_TIMER
    sender.at(300)
    on_timer(sender.c, sender.wire.record)
    assert (sender.c.timeouts, sender.c.segments_retransmitted) == (1, 1)
    assert bool(segments[1 % RING].state & COLLAPSED) is collapsed
    assert segments[0].end == (200 if collapsed else 100)


def test_a_loaded_path_with_jitter_is_as_slow_as_in_the_captures():
    # 1002 B every 6.3 ms: a capture's p95 is 65.4 ms (validation/jitter-captures). Without PAWS it is 52.
    path = td.Path(0.028, 0.00429, jitter=0.0276)
    found = simulate(td.Flow(1002, 0.0063, write_jitter=0), path, td.Stack.linux(kernel="6.1"), packets=200_000)
    assert 0.060 < found.quantile(0.95) < 0.080
    assert found.counts["paws_discards"] > 0.2 * found.counts["segments_retransmitted"]
