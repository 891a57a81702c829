"""Jitter that reorders, event by event: what Linux 6.1 and 7.3 do (net/ipv4/tcp_input.c)."""

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.compiling.record_types import record_type
from tcpdelay.sim.engine import new_connection
from tcpdelay.sim.records import (
    COLLAPSED,
    DISORDER,
    LOSS,
    RECOVERY,
    RING,
    Acknowledgement,
    Rules,
)
from tcpdelay.sim.simulation import simulate
from tcpdelay.sim.tcp.acknowledgement import on_acknowledgement, update_estimate
from tcpdelay.sim.tcp.receiver import EVERYTHING, NO_SEGMENT, arrive
from tcpdelay.sim.tcp.sender import on_timer, send_new

MSS, RTT, ONE_WAY = 1448, 100_000, 50_000
START = 10_000_000
QUICK_ACKS = 16  # TCP_MAX_QUICKACKS


class Receiver:
    """A receiver of full segments, of which any copy may arrive at any time."""

    def __init__(self, delayed_ack=False):
        stack = td.Stack.linux(delayed_ack=delayed_ack)
        self.c, self.wire = new_connection(
            td.Flow(MSS, 0.02, write_jitter=0), td.Path(rtt=0.1, loss=0.0), stack, 0, exact_ties=True
        )
        for number in range(100):
            segment = self.wire.record.segments[number]
            segment.start, segment.end = number * MSS, (number + 1) * MSS
        self.c.next_segment = self.c.packets_written = 100
        self.c.snd_nxt = self.c.written = 100 * MSS

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


class Sender:
    """A sender of writes of one size, whose window of ten segments limits it; nothing that it sends arrives."""

    def __init__(self, size=MSS, writes=10):
        rules = Rules(ticks=False, coalescing=False)
        self.size = size
        self.c, self.wire = new_connection(
            td.Flow(size, 0.001, write_jitter=0), td.Path(rtt=0.1, loss=0.0), td.Stack.linux(), seed=1, rules=rules
        )
        self.c.deferred = 1
        self.c.min_rtt = RTT
        for _ in range(100):
            update_estimate(self.c, RTT)
        for number in range(writes):
            self.c.now = START + 1000 * number
            self.c.written += size
            self.c.packets_written += 1
            send_new(self.c, self.wire.record, False)

    def acknowledge(self, milliseconds, segments, reported=-1, duplicate=-1, echo=0.0):
        """Acknowledge so many segments cumulatively, and one by a SACK or a D-SACK."""
        self.c.now = START + round(1000 * milliseconds)
        (answer,) = np.zeros(1, record_type(Acknowledgement)).view(np.recarray)
        answer.acknowledged, answer.segment, answer.duplicate = segments * self.size, max(reported, 0), duplicate
        answer.echo = START + round(echo * 1000)
        on_acknowledgement(self.c, self.wire.record, answer)


@pytest.mark.parametrize("delayed_ack", [False, True])
def test_originals_behind_a_retransmission_that_has_filled_a_hole_are_discarded(delayed_ack):
    # tcp_paws_discard: without the rule segment 3 is accepted, and 4 segments are acknowledged at 155 ms.
    receiver = Receiver(delayed_ack)
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
    receiver = Receiver()
    receiver.take(150, 0, sent=100)
    assert (receiver.take(151, 1, sent)[0] == 2) is taken


def test_a_late_original_of_what_is_in_order_is_reported_by_a_d_sack():
    receiver = Receiver()
    receiver.take(50, 0, sent=0)
    receiver.take(150, 1, sent=100)
    assert receiver.take(151, 1, sent=10) == (2, EVERYTHING, 1)
    # tcp_enter_quickack_mode: the D-SACK is the first of the ACKs that are not delayed.
    assert receiver.c.quick == QUICK_ACKS - 1


def test_a_needless_copy_of_the_last_segment_makes_earlier_transmissions_old():
    # tcp_sequence lets the copy pass, as it ends at rcv_wup, and tcp_replace_ts_recent takes its time stamp.
    receiver = Receiver()
    receiver.take(50, 0, sent=0)
    assert receiver.take(150, 0, sent=100) == (1, 0, 0)
    assert receiver.take(151, 1, sent=20)[0] == 1
    # A copy of an older segment ends before rcv_wup: it is answered, but its time stamp does not count.
    receiver = Receiver()
    receiver.take(50, 0, sent=0)
    receiver.take(51, 1, sent=1)
    assert receiver.take(150, 0, sent=100) == (2, 0, 0)
    assert receiver.take(151, 2, sent=20)[0] == 3


def test_a_retransmission_with_old_and_new_data_is_reported_by_a_d_sack():
    # tcp_data_queue, "Partial packet": two collapsed segments arrive after the original of the first of them.
    receiver = Receiver()
    receiver.take(50, 0, sent=0)
    assert receiver.take(150, 0, sent=100, following=2) == (2, 0, 0)
    # tcp_ofo_queue, tcp_dsack_extend: the original of the second waits out of order.
    receiver = Receiver()
    receiver.take(50, 1, sent=0)
    assert receiver.take(150, 0, sent=100, following=2) == (2, 0, 1)


def test_duplicates_are_acknowledged_at_once_and_so_are_the_next_segments():
    receiver = Receiver()
    receiver.take(50, 0, sent=0)
    receiver.take(51, 0, sent=0)
    # tcp_in_quickack_mode: no SACK is compressed.
    for number in range(2, 10):
        assert receiver.take(60 + number / 10, number, sent=10) == (1, number, NO_SEGMENT)


@pytest.mark.parametrize(("size", "distance", "window"), [(MSS, 5, 11), (100, 3, 10)])
def test_sacks_let_the_window_grow_where_much_is_reordered(size, distance, window):
    # tcp_may_raise_cwnd; the distance is counted in full segments (tcp_check_sack_reordering).
    sender = Sender(size)
    assert (sender.c.snd_cwnd, sender.c.is_cwnd_limited) == (10, 1)
    sender.acknowledge(105, 0, reported=5)
    assert (sender.c.ca_state, sender.c.snd_cwnd, sender.c.reord_seen) == (DISORDER, 10, 0)
    sender.acknowledge(106, 0, reported=1)
    assert (sender.c.reord_seen, sender.c.reordering_distance) == (1, distance)
    assert (sender.c.ca_state, sender.c.snd_cwnd) == (DISORDER, window)


def test_a_timeout_after_many_sacks_takes_the_distance_back():
    # tcp_enter_loss
    sender = Sender()
    for number in (9, 1, 2):
        sender.acknowledge(100, 0, reported=number)
    assert sender.c.reordering_distance == 9
    sender.c.timer_kind = 1
    sender.c.now = sender.c.timer_at
    on_timer(sender.c, sender.wire.record)
    assert (sender.c.ca_state, sender.c.reordering_distance) == (LOSS, 3)


def test_a_late_original_in_recovery_is_reordering_though_nothing_stays_sacked():
    # tcp_try_undo_partial, TCPTSReorder
    sender = Sender()
    for number in (1, 2, 3):
        sender.acknowledge(103, 0, reported=number)
    assert (sender.c.ca_state, sender.c.segments_retransmitted, sender.c.reord_seen) == (RECOVERY, 1, 0)
    sender.acknowledge(110, 4, reported=3, echo=0)
    assert (sender.c.sacked_out, sender.c.reord_seen) == (0, 1)


def test_a_reduction_undone_by_d_sacks_keeps_the_longer_wait_for_a_recovery_more():
    # tcp_try_undo_dsack
    sender = Sender()
    for number in (1, 2, 3):
        sender.acknowledge(103, 0, reported=number)
    sender.acknowledge(130, 4, reported=3, echo=103)
    sender.acknowledge(203, 4, reported=3, duplicate=0, echo=103)
    assert (sender.c.undone, sender.c.reo_wnd_persist) == (1, 1)


@pytest.mark.parametrize(("host_delay", "collapsed"), [(0, True), (ONE_WAY, False)])
def test_what_has_left_the_host_is_collapsed_into_a_retransmission(host_delay, collapsed):
    # tcp_can_collapse, skb_cloned: only a device of the host holds a copy, not the network.
    sender = Sender(size=100, writes=2)
    sender.c.host_delay = host_delay
    segments = sender.wire.record.segments
    segments[0].gone = START
    segments[1].sent = START + 290_000
    segments[1].gone = segments[1].sent + ONE_WAY
    sender.c.timer_kind = 1
    sender.c.now = START + 300_000
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
