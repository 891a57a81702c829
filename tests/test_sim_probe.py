"""The tail loss probe, event by event: RTT 100 ms, packets of 100 B, timeout 300 ms, ticks of 1 us."""

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.compiling.record_types import record_type
from tcpdelay.sim.engine import new_connection
from tcpdelay.sim.records import (
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
from tcpdelay.sim.tcp.acknowledgement import on_acknowledgement, update_estimate
from tcpdelay.sim.tcp.sender import on_timer, send_new

SIZE, RTT, ONE_WAY = 100, 100_000, 50_000
START = 10_000_000


class Sender:
    """A sender that is told what happens; nothing that it sends arrives by itself."""

    def __init__(self, host_delay=0):
        flow, path = td.Flow(SIZE, 0.1, write_jitter=0), td.Path(rtt=0.1, loss=0.0)
        self.c, self.wire = new_connection(flow, path, td.Stack.linux(), seed=1, rules=Rules(ticks=False))
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
        self.c.written += SIZE
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
        answer.acknowledged, answer.segment, answer.duplicate = packets * SIZE, max(reported, duplicate, 0), duplicate
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
    sender = Sender(host_delay)
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
