"""What a sender learns from the ACKs of originals that arrive after an outage, beside their retransmissions."""

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.sim.engine import new_connection
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.link_trace import LinkTrace
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import Bulk
from tcpdelay.sim.records import EVER_RETRANSMITTED, FOUND_LOST, MARKED_LOST, OPEN, RETRANSMITTED
from tcpdelay.sim.tcp.acknowledgement import take_cumulative
from tcpdelay.sim.tcp.constants import MILLISECOND, SECOND
from tcpdelay.sim.tcp.recovery import detect_losses, undo_reduction
from tcpdelay.sim.tcp.sender import retransmit_lost
from tcpdelay.sim.tcp.window import forget_cubic, forget_rounds, grow_window, note_rtt

MSS, RTT = 1448, 50 * MILLISECOND


def flight(segments=4, control="cubic"):
    """Return a connection with a flight that was sent at 1 s; it is 5 s now."""
    c, rings = new_connection(
        td.Flow(MSS, 0.02, write_jitter=0), td.Path(rtt=0.05, loss=0.0), td.Stack.linux(control), seed=1
    )
    wire = rings.record
    c.now, c.min_rtt, c.rack_rtt, c.snd_cwnd = 5 * SECOND, RTT, RTT, 20
    for number in range(segments):
        segment = wire.segments[number]
        segment.start, segment.end, segment.sent = number * MSS, (number + 1) * MSS, SECOND
    c.next_segment = c.packets_out = segments
    c.snd_nxt = c.written = segments * MSS
    return c, wire


@pytest.mark.parametrize(("echoed", "learns"), [(SECOND, False), (4 * SECOND, True)])
def test_rack_learns_nothing_from_a_retransmission_whose_original_is_acknowledged(echoed, learns):
    # tcp_skb_spurious_retrans (net/ipv4/tcp_input.c). Otherwise all segments that were sent before the retransmission
    # would be overdue, though their originals arrive next.
    c, wire = flight()
    wire.segments[0].sent, wire.segments[0].state = 4 * SECOND, EVER_RETRANSMITTED | RETRANSMITTED
    c.retrans_out, c.snd_una = 1, MSS
    take_cumulative(c, wire, 0, echoed)
    assert c.packets_out == 3
    assert bool(c.rack_mstamp == 4 * SECOND) is learns
    detect_losses(c, wire)
    assert c.lost_out == (3 if learns else 0)


def test_rack_looks_at_a_segment_once_after_each_transmission():
    # tcp_rack_detect_loss takes a segment off its list (tcp_tsorted_anchor); a transmission puts it on again.
    c, wire = flight()
    c.rack_mstamp = 4 * SECOND
    detect_losses(c, wire)
    assert c.lost_out == 4
    c.prior_ssthresh, c.prior_cwnd, c.undo_marker = 10, 20, 1
    undo_reduction(c, wire, True)
    detect_losses(c, wire)
    assert c.lost_out == 0
    first = wire.segments[0]
    first.state |= MARKED_LOST
    c.lost_out = 1
    retransmit_lost(c, wire)
    assert first.state & RETRANSMITTED
    assert not first.state & FOUND_LOST


def test_a_retransmission_that_is_lost_after_an_undone_timeout_waits_for_the_next_timeout():
    # tcp_mark_skb_lost: without the mark of a loss, which the undo has removed, the retransmission stays outstanding.
    c, wire = flight()
    head = wire.segments[0]
    head.state, head.sent, c.retrans_out = EVER_RETRANSMITTED | RETRANSMITTED, 2 * SECOND, 1
    c.rack_mstamp = 4 * SECOND
    for _ in range(2):
        detect_losses(c, wire)
        assert head.state & (MARKED_LOST | RETRANSMITTED) == MARKED_LOST | RETRANSMITTED
    c.ca_state = OPEN
    retransmit_lost(c, wire)
    assert head.sent == 2 * SECOND


def test_after_a_timeout_cubic_takes_the_delay_of_the_outage_for_that_of_the_path():
    # bictcp_reset forgets delay_min, and cubictcp_acked takes no sample in the first second of an epoch: the window
    # grows by a segment per two ACKs, as if the epoch were as old as the outage was long.
    windows = {}
    for delay in (8 * SECOND, RTT):
        c, _ = flight(control="cubic")
        c.snd_ssthresh, c.is_cwnd_limited = 10, 1
        forget_cubic(c)
        forget_rounds(c)
        note_rtt(c, delay)
        grow_window(c, 1)
        for step in range(20):
            c.now += 10 * MILLISECOND
            note_rtt(c, RTT)
            grow_window(c, 1)
            assert c.cubic_delay_min == delay, step
        windows[delay] = int(c.snd_cwnd)
    assert windows[8 * SECOND] == pytest.approx(20 + 10, abs=1)
    assert windows[RTT] <= 20 + 2


def test_a_fade_without_drops_costs_the_retransmissions_of_its_timeouts_only():
    # All data arrive in the end. A transfer sends its oldest segment again at each timeout, and nothing else.
    opportunities = [*range(1, 12_000, 4), *range(15_000, 30_001, 4)]
    trace = LinkTrace.of_opportunities(opportunities)
    path = SharedPath(access_delay=0.025)
    link = Bottleneck(rate=trace.mean_rate, capacity=1000, trace=trace)
    bulk = Bulk(path=path, stack=td.Stack.linux("bbr"))
    (flow,) = simulate_network([bulk], link, duration=29.0, seed=1).flows
    assert np.isfinite(flow.throughput)
    assert 1 <= flow.retransmissions <= 10
