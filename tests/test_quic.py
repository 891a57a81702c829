"""The simulator of QUIC: constants of RFC 9002, invariants of every delivery, its plain-Python twin, and qlogs."""

from __future__ import annotations

import json
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quic_traces
import tcpdelay as td
from tcpdelay.accuracy.errors import QUIC_ERROR
from tcpdelay.sim.congestion.cubic_rfc9438 import on_ack as cubic_ack
from tcpdelay.sim.congestion.of_quic import on_ack, on_persistent_congestion, on_send, reduce
from tcpdelay.sim.network.sources import ConstantRate
from tcpdelay.sim.quic import sender
from tcpdelay.sim.quic.connection import IMPLEMENTATIONS, NEVER_READ
from tcpdelay.sim.quic.engine import QUIC, new_connection
from tcpdelay.sim.quic.sender import on_timer, probe_timeout, timer_at, update_rtt, write
from tcpdelay.sim.simulation import simulate
from tcpdelay.sim.tcp.constants import SECOND
from tcpdelay.study.transports import UNLIMITED

MS = 1000
DELIVERIES = ("stream", "stream_per_message", "stream_per_group", "datagram")
FLOW = td.Flow(174, 0.020, write_jitter=0)


PATH = td.Path(rtt=0.100, loss=0.02)


def connection(path=PATH, source=FLOW, seed=1, **stack):
    return new_connection(source, path, td.Stack.quic(**stack), seed)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_probe_timeout_follows_rfc_9002(implementation):
    # RFC 9002, 6.2.1: PTO = smoothed_rtt + max(4 * rttvar, kGranularity) + max_ack_delay; 5.3: the first sample R gives
    # smoothed_rtt = R and rttvar = R / 2. The handshake of a path of 59.999 ms measures 60 ms.
    c, _ = connection(td.Path(rtt=0.059999, loss=0.02), implementation=implementation)
    announced = 26 if implementation == "quic-go" else 25
    assert probe_timeout(c) == (60 + 4 * 30 + announced) * MS
    c.eliciting, c.last_sent, c.probe_count = 1, 5 * MS, 2
    assert timer_at(c) == 5 * MS + 4 * probe_timeout(c)


def test_rtt_estimate_is_that_of_rfc_9002():
    # 5.3, by hand: min_rtt 60, sample 100 acknowledged 10 ms late: adjusted 90; rttvar 3/4 * 30 + 1/4 * |60 - 90|.
    c, _ = connection(td.Path(rtt=0.059999, loss=0.02))
    update_rtt(c, 100 * MS, 10 * MS)
    assert c.rtt_variation == 30 * MS
    assert c.smoothed_rtt == (7 * 60 + 90) / 8 * MS
    assert c.latest_rtt == 100 * MS


@pytest.mark.parametrize(("implementation", "factor"), [("rfc9002", 0.5), ("aioquic", 0.5), ("quic-go", 0.7)])
def test_a_loss_reduces_the_window_once_per_flight(implementation, factor):
    c, wire = connection(implementation=implementation)
    first = float(c.congestion_window)
    c.now = 100 * MS
    reduce(c, 50 * MS)
    assert c.congestion_window == pytest.approx(factor * first)
    reduce(c, 99 * MS)
    assert c.congestion_window == pytest.approx(factor * first)
    c.now = 300 * MS
    reduce(c, 150 * MS)
    assert c.congestion_window == pytest.approx(factor**2 * first)
    on_persistent_congestion(c, wire.record)
    assert c.congestion_window == 2 * IMPLEMENTATIONS[implementation].datagram_size


@pytest.mark.parametrize(
    ("implementation", "grown", "kept"), [("rfc9002", 9 * 1200 * 1200 / 12_000, 0), ("aioquic", 0, 9 * 1200)]
)
def test_the_window_of_aioquic_grows_by_whole_datagrams(implementation, grown, kept):
    c, _ = connection(implementation=implementation)
    c.slow_start_threshold = 0
    for _ in range(9):
        on_ack(c, MS, 1200, 0)
    assert c.congestion_window == pytest.approx(12_000 + grown, rel=0.01)
    c.now = 100 * MS
    reduce(c, 50 * MS)
    # reno.py: a loss does not reset the bytes that have been counted, of which the smaller window needs less.
    assert c.counted == kept
    if kept:
        on_ack(c, 101 * MS, 1200, 0)
        assert c.congestion_window == 6000 + 1200
        assert c.counted == 9 * 1200 + 1200 - 6000


def test_the_window_of_aioquic_grows_before_the_losses_of_an_ack_reduce_it():
    windows = {}
    for implementation in ("rfc9002", "aioquic"):
        c, wire = connection(
            td.Path(rtt=0.1001, loss=0.0), td.Flow(1000, 0.020, write_jitter=0), implementation=implementation
        )
        c.until_loss = 3
        QUIC.advance(c, wire, 8)
        windows[implementation] = c.congestion_window / c.loss_factor
    # Slow start: the packets before the lost one, and for aioquic also the packet of the ACK that shows the loss.
    assert c.reductions == 1
    assert windows["aioquic"] >= windows["rfc9002"] + 1000


@pytest.mark.parametrize("form", ["rfc9002", "quinn"])
def test_only_the_cubic_of_quinn_counts_time_without_data(form):
    # RFC 8312, 4.2: W_est(t) = 0.7 W_max + 0.3 * 3 / 1.7 * t / RTT, so 4.2 + 0.53 * 40 packets a second after a loss
    # with a window of 6. RFC 9438, 4.2: the time in which the application limits the sender is no part of t.
    c, _ = connection(td.Path(rtt=0.024999, loss=0.0), implementation=form, congestion_control="cubic")
    full = int(c.datagram_size)
    c.congestion_window, c.now = 6.0 * full, 100 * MS
    reduce(c, 50 * MS)
    assert c.congestion_window == pytest.approx(0.7 * 6 * full)
    for elapsed in range(0, 1000, 2):
        c.now, c.application_limited = (100 + elapsed) * MS, 1
        on_ack(c, 101 * MS, full, 0)
    assert c.congestion_window == pytest.approx(0.7 * 6 * full)
    c.application_limited = 0
    for acks in range(1, 22):
        on_ack(c, 101 * MS, full, 0)
        if form == "quinn":
            # No ACK lets the window grow by more than a datagram (congestion/cubic.rs, on_ack).
            assert c.congestion_window == pytest.approx((4.2 + acks) * full)
    assert (c.congestion_window > 25 * full) == (form == "quinn")
    for _ in range(100):
        on_ack(c, 101 * MS, full, 0)
    assert c.congestion_window < (4.2 + 0.53 * 40 + 1) * full


def test_quinn_reduces_the_window_twice_if_it_has_not_grown_back():
    # cubic.rs of quinn-proto 0.11.14: 0.7 of W_max, which fast convergence has reduced to 0.85 of the window.
    c, _ = connection(implementation="quinn", congestion_control="cubic")
    c.congestion_window = 20.0 * c.datagram_size
    for loss, packets in ((100, 14.0), (200, 14 * 0.85 * 0.7), (300, 14 * (0.85 * 0.7) ** 2)):
        c.now = loss * MS
        reduce(c, (loss - 1) * MS)
        assert c.congestion_window == pytest.approx(packets * c.datagram_size)


def test_cubic_grows_as_reno_up_to_the_window_before_the_loss():
    # RFC 9438, 4.3: alpha is 9/17 until W_est reaches cwnd_prior, here 50 packets; 4.7 reduces W_max to 42.5.
    c, _ = connection(congestion_control="cubic")
    full = c.datagram_size
    c.window_before_loss, c.congestion_window, c.now = 100.0 * full, 50.0 * full, 100 * MS
    reduce(c, 99 * MS)
    assert c.window_before_loss == pytest.approx(42.5 * full)
    for estimated, alpha in ((45.0, 9 / 17), (50.0, 1.0)):
        c.epoch, c.estimated_window, c.congestion_window = 100 * MS, estimated, 35.0 * full
        cubic_ack(c, 101 * MS, full, 35 * full)
        assert c.estimated_window == pytest.approx(estimated + alpha / 35)


@pytest.mark.parametrize(("implementation", "sent"), [("rfc9002", 1), ("quinn", 0)])
def test_quinn_sends_a_small_packet_only_where_a_full_one_fits(implementation, sent):
    # src/connection/mod.rs, poll_transmit: in_flight + segment_size >= window blocks a packet of any size.
    c, wire = connection(td.Path(rtt=0.1, loss=0.0), implementation=implementation)
    c.congestion_window = float(c.datagram_size)
    write(c, wire.record)
    assert c.packets_sent == sent


@pytest.mark.parametrize(("implementation", "probes", "lost"), [("rfc9002", 1, 1), ("quinn", 2, 0)])
def test_probes_of_quinn_carry_no_data_again(implementation, probes, lost):
    # spaces.rs, maybe_queue_probe: a PING unless data wait; two of them (mod.rs, on_loss_detection_timeout).
    c, wire = connection(td.Path(rtt=0.1, loss=0.0), implementation=implementation)
    write(c, wire.record)
    c.now = timer_at(c)
    on_timer(c, wire.record)
    assert (c.packets_sent, c.declared_lost) == (1 + probes, lost)


def one_loss(lost, interval=0.020, **options):
    """Return the delays of twenty messages of which the packet with a number is lost [ms]."""
    c, wire = connection(td.Path(rtt=0.1001, loss=0.0), td.Flow(20, interval, write_jitter=0), **options)
    c.until_loss = lost + 1
    QUIC.advance(c, wire, 40)
    return wire.delays_of(0, 20)[0] / MS


@pytest.mark.parametrize(
    ("implementation", "delivery", "size", "packets"),
    [
        ("quic-go", "stream_per_message", 1452, 2),
        ("quic-go", "stream_per_message", 1453, 3),
        ("quic-go", "stream_per_message", 3000, 4),
        ("quic-go", "stream", 3000, 3),
        ("quic-go", "stream_per_group", 3000, 3),
        ("quic-go", "datagram", 3000, 3),
        ("aioquic", "stream_per_message", 3000, 3),
    ],
)
def test_the_end_of_a_long_stream_of_quic_go_is_a_packet_of_its_own(implementation, delivery, size, packets):
    # send_stream.go of quic-go: a write of more than 1452 bytes (MaxPacketBufferSize) waits until its data are sent.
    path = td.Path(rtt=0.1001, loss=0.0)
    c, wire = connection(path, td.Flow(size, 0.1, write_jitter=0), implementation=implementation, delivery=delivery)
    QUIC.advance(c, wire, 20)
    assert c.packets_sent == packets * c.packets_written
    # The loss of the last data of the first message is found by the packet of the end, or else by the next message.
    c, wire = connection(path, td.Flow(size, 0.1, write_jitter=0), implementation=implementation, delivery=delivery)
    c.until_loss = 3
    QUIC.advance(c, wire, 20)
    if packets == 4:
        assert wire.delays_of(0, 1)[0][0] / MS == pytest.approx(50 + 9 / 8 * 100, abs=0.5)


@pytest.mark.parametrize(
    ("interval", "found_after"),
    [
        # The receiver acknowledges the next packet at once, beside the gap. Its ACK comes 20 ms and an RTT after the
        # loss, when 9/8 of an RTT has passed already (RFC 9002, 6.1.2).
        (0.020, 20 + 100.1),
        # That ACK comes earlier, and so sets a timer for 9/8 of an RTT.
        (0.005, 9 / 8 * 100.1),
        # The ACK of the third packet after the lost one comes before this timer (RFC 9002, 6.1.1).
        (0.003, 3 * 3 + 100.1),
    ],
)
def test_a_loss_is_found_by_time_or_by_packets(interval, found_after):
    delays = one_loss(10, interval, implementation="rfc9002", delivery="stream_per_message")
    assert delays[10] == pytest.approx(50.05 + found_after, abs=0.01)
    assert (np.delete(delays, 10) == 50.05).all()


def test_on_one_stream_later_messages_wait_for_the_lost_one():
    delays = one_loss(10, implementation="rfc9002", delivery="stream")
    read = np.arange(20) * 20 + delays
    assert (delays[:10] == 50.05).all()
    waited = read[10]
    assert read[11:18] == pytest.approx(np.maximum(np.arange(11, 18) * 20 + 50.05, waited))


def test_a_lone_message_waits_for_the_probe_timeout():
    # PTO: 60 ms + 1 ms + 25 ms after the packet, in which time the RTT has not varied; the probe arrives 30 ms later.
    lone = td.Flow(100, 1.0, write_jitter=0)
    path = td.Path(rtt=0.060, loss=0.05)
    delays = simulate(lone, path, td.Stack.quic(delivery="stream_per_message"), packets=2000, seed=3)
    assert delays.quantile(0.5) == pytest.approx(0.030)
    assert delays.quantile(0.97) == pytest.approx(0.116, abs=1e-4)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_message_is_counted_once(implementation, delivery):
    found = simulate(
        FLOW, td.Path(rtt=0.080, loss=0.03), td.Stack.quic(implementation, delivery=delivery), packets=20_000, seed=2
    )
    assert found.packets == 20_000
    assert found.weights.sum() == pytest.approx(1)
    assert found.quantile(0.0) >= 0.040
    lost = found.weights[np.isinf(found.values)].sum()
    if delivery == "datagram":
        # Each message is one datagram, lost with 3 %: four standard errors.
        assert lost == pytest.approx(0.03, abs=4 * np.sqrt(0.03 * 0.97 / 20_000))
    else:
        assert lost == 0
    assert found.counts["declared_lost"] >= found.counts["packets_lost"] - 10


@settings(max_examples=25, deadline=None)
@given(
    implementation=st.sampled_from(sorted(IMPLEMENTATIONS)),
    delivery=st.sampled_from(DELIVERIES),
    size=st.integers(1, 5000),
    interval=st.floats(0.002, 3.0),
    rtt=st.floats(1e-4, 1.0),
    loss=st.floats(0.0, 0.5),
    ack_loss=st.floats(0.0, 0.3),
    jitter=st.sampled_from([0.0, 0.001, 0.050]),
    reordering=st.sampled_from([0.0, 0.3]),
)
def test_invariants_of_any_scenario(implementation, delivery, size, interval, rtt, loss, ack_loss, jitter, reordering):
    path = td.Path(rtt=rtt, loss=loss, ack_loss=ack_loss, jitter=jitter, reordering=reordering)
    c, wire = new_connection(
        td.Flow(size, interval, write_jitter=0), path, td.Stack.quic(implementation, delivery=delivery), 5
    )
    QUIC.advance(c, wire, 300)
    read = int(c.packets_read)
    delays = wire.delays_of(0, read)
    known = delays[0] < NEVER_READ
    assert (delays[0][known] >= c.one_way_delay).all()
    assert (delays[1] >= 0).all()
    assert (delays[0][known] >= delays[1][known] + c.one_way_delay).all()
    if delivery == "stream":
        reads = np.arange(read) * int(c.interval) + delays[0]
        assert (np.diff(reads) >= 0).all()
    if delivery != "datagram":
        assert known.all()
    assert c.in_flight >= 0
    assert c.eliciting >= 0
    assert c.waiting >= 0
    assert c.packets_sent >= c.packets_lost + c.received


@pytest.mark.parametrize("jitter", [0.010, 0.050])
def test_datagrams_take_the_delay_of_the_path(jitter):
    # Each packet takes a delay of its own, uniform from 30 ms on, and none waits for another: closed form. Those that
    # others overtake by more than the thresholds count as lost, and arrive nevertheless.
    path = td.Path(rtt=0.060, loss=0.02, jitter=jitter)
    found = simulate(FLOW, path, td.Stack.quic("quic-go", delivery="datagram"), packets=50_000, seed=3)
    lost = found.weights[np.isinf(found.values)].sum()
    assert lost == pytest.approx(0.02, abs=4 * np.sqrt(0.02 * 0.98 / 50_000))
    for share in (0.0, 0.25, 0.5, 0.9):
        assert found.quantile(share * (1 - lost)) == pytest.approx(0.030 + share * jitter, abs=0.02 * jitter)
    assert (found.counts["spurious_losses"] > 1000) == (jitter > FLOW.interval)
    assert found.counts["declared_lost"] - found.counts["spurious_losses"] == pytest.approx(
        found.counts["packets_lost"], abs=10
    )


@pytest.mark.parametrize(
    ("interval", "spurious"),
    [
        # The next packet overtakes, and its ACK shows the gap 1/8 of the RTT, 12.5 ms, later at the earliest: the
        # overtaken packet, whose own ACK follows at once, is lost (RFC 9002, 6.1.2).
        (0.020, True),
        # That ACK comes earlier, and the timer that it sets is stopped by the next one.
        (0.005, False),
    ],
)
def test_an_overtaken_packet_is_lost_by_the_time_threshold(interval, spurious):
    path = td.Path(rtt=0.100, loss=0.0, reordering=0.01)
    stack = td.Stack.quic("rfc9002", delivery="stream_per_message")
    found = simulate(td.Flow(20, interval, write_jitter=0), path, stack, packets=20_000, seed=1)
    overtaken = found.late_fraction(0.050 + interval / 2) * 20_000
    assert overtaken == pytest.approx(200, abs=60)
    assert found.quantile(1.0) < 0.051 + 2 * interval
    assert found.counts["packets_lost"] == 0
    assert found.counts["spurious_losses"] == found.counts["declared_lost"]
    assert found.counts["spurious_losses"] == (pytest.approx(overtaken, abs=20) if spurious else 0)


@pytest.mark.parametrize(("implementation", "acks"), [("rfc9002", 2), ("quic-go", 1)])
def test_quic_go_acknowledges_what_arrives_at_one_instant_together(implementation, acks):
    # Four packets per message, which leave together, and arrive so: RFC 9000, 13.2.2, acknowledges every second one.
    # quic-go reads all that have arrived before it sends an ACK (connection.go, handlePackets).
    stack = td.Stack.quic(implementation)
    found = simulate(td.Flow(4200, 0.100, write_jitter=0), td.Path(rtt=0.050, loss=0.0), stack, packets=2000, seed=1)
    assert found.counts["packets_sent"] / found.counts["acks_sent"] == pytest.approx(4 / acks, rel=0.01)


@pytest.mark.parametrize(("jitter", "spurious"), [(0.003, False), (0.0045, True)])
def test_a_packet_that_three_overtake_is_lost_by_the_packet_threshold(jitter, spurious):
    # A packet every millisecond: with 3 ms of jitter, two later ones overtake at most (RFC 9002, 6.1.1). Both are far
    # below 1/8 of the RTT.
    path = td.Path(rtt=0.200, loss=0.0, jitter=jitter)
    found = simulate(td.Flow(20, 0.001, write_jitter=0), path, td.Stack.quic(delivery="datagram"), packets=5000, seed=1)
    assert (found.counts["spurious_losses"] > 0) == spurious


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 15)), min_size=1, max_size=40))
def test_ranges_of_the_receiver_are_the_union(frames):
    c, wire = connection()
    held = np.zeros(100, bool)
    for start, size in frames:
        held[start : start + size] = True
        index = sender.insert_range(c, wire.record, start, start + size)
        assert wire.record.range_start[index] <= start
        assert wire.record.range_end[index] >= start + size
    edges = np.flatnonzero(np.diff(np.concatenate([[False], held, [False]]).astype(int)))
    count = int(c.ranges)
    assert wire.record.range_start[:count].tolist() == edges[::2].tolist()
    assert wire.record.range_end[:count].tolist() == edges[1::2].tolist()


def test_a_stream_per_message_is_never_slower_than_one_stream():
    path = td.Path(rtt=0.100, loss=0.02)
    late = {}
    for delivery in DELIVERIES[:3]:
        found = simulate(FLOW, path, td.Stack.quic(delivery=delivery), packets=50_000, seed=4)
        late[delivery] = found.late_fraction(0.060)
    assert late["stream_per_message"] < late["stream_per_group"] < late["stream"]


def test_groups_of_a_video_begin_with_its_key_frames():
    from tcpdelay.scenario.media import Video

    found = {
        delivery: simulate(
            Video(200_000), td.Path(rtt=0.060, loss=0.01), td.Stack.quic(delivery=delivery), packets=20_000
        )
        for delivery in DELIVERIES[:3]
    }
    p99 = [found[delivery].quantile(0.99) for delivery in ("stream_per_message", "stream_per_group", "stream")]
    assert p99[0] <= p99[1] <= p99[2]
    assert set(found["stream"].by_kind) == {"key frame", "other frame"}


def test_cubic_carries_more_than_newreno_on_a_long_path():
    flow, path = td.Flow(1100, 0.004, write_jitter=0), td.Path(rtt=0.150, loss=0.0005)
    reno, cubic = (
        simulate(flow, path, td.Stack.quic(congestion_control=control), packets=20_000, seed=1)
        for control in ("newreno", "cubic")
    )
    assert cubic.counts["reductions"] > 0
    assert cubic.mean < reno.mean


@pytest.mark.parametrize("seed", range(4))
def test_cubic_of_aioquic_has_the_window_of_its_own_class(seed):
    cubic = pytest.importorskip("aioquic.quic.congestion.cubic", reason="the extra quic is not installed")
    theirs = cubic.CubicCongestionControl(max_datagram_size=1200)
    c, wire = connection(implementation="aioquic", congestion_control="cubic")
    # aioquic acknowledges the packets of the handshake before there is data.
    c.now = c.acknowledged_sent = theirs.last_ack = MS
    draw, flight, restarts = np.random.default_rng(seed), deque(), 0
    for _ in range(4000):
        c.now += int(draw.integers(1, 30 * MS)) if draw.random() < 0.998 else 3 * SECOND
        while draw.random() < 0.7:
            packet = SimpleNamespace(sent_bytes=int(draw.integers(80, 1201)), sent_time=c.now / SECOND)
            before = theirs.congestion_window
            theirs.on_packet_sent(packet=packet)
            restarts += theirs.congestion_window != before
            c.in_flight += packet.sent_bytes
            on_send(c, wire.record, wire.record.packets[0])
            flight.append(packet)
        while flight and draw.random() < 0.7:
            packet, c.latest_rtt = flight.popleft(), float(draw.integers(20 * MS, 200 * MS))
            theirs.rtt = c.latest_rtt / SECOND
            c.in_flight -= packet.sent_bytes
            if draw.random() < 0.03:
                theirs.on_packets_lost(now=c.now / SECOND, packets=[packet])
                reduce(c, round(packet.sent_time * SECOND))
            else:
                theirs.on_packet_acked(now=c.now / SECOND, packet=packet)
                on_ack(c, round(packet.sent_time * SECOND), packet.sent_bytes, c.in_flight)
            # aioquic cuts windows to whole bytes more often.
            assert c.congestion_window == pytest.approx(theirs.congestion_window, abs=12)
            assert c.in_flight == theirs.bytes_in_flight
    assert c.reductions > 50
    assert restarts > 0


def test_bbr_carries_a_flow_with_losses_that_newreno_does_not_carry():
    flow, path = td.Flow(1100, 0.004, write_jitter=0), td.Path(rtt=0.150, loss=0.02)
    reno, bbr = (
        simulate(flow, path, td.Stack.quic(congestion_control=control), packets=40_000, seed=1)
        for control in ("newreno", "bbr")
    )
    assert (reno.sustainable, reno.quantile(0.5)) == (False, np.inf)
    assert bbr.sustainable
    assert bbr.counts["reductions"] > 100
    # The kernel of BBR is that of TCP, whose loss detection differs.
    over_tcp = simulate(flow, path, td.Stack.linux("bbr"), packets=40_000, seed=1)
    assert bbr.mean == pytest.approx(over_tcp.mean, rel=0.1)


def test_bbr_estimates_the_bandwidth_of_the_flow_and_the_delay_of_the_path():
    c, wire = connection(td.Path(rtt=0.1001, loss=0.0), td.Flow(1000, 0.005, write_jitter=0), congestion_control="bbr")
    QUIC.advance(c, wire, 4000)
    # 200 packets per second, or more: startup has carried a backlog at once, and the path has no bottleneck.
    assert c.bbr_bw / 2**24 * SECOND > 190
    assert c.bbr_min_rtt / MS == pytest.approx(100, abs=0.2)
    assert c.bbr_rtt_cnt == pytest.approx(4000 * 5 / 105, rel=0.2)
    assert c.congestion_window == c.snd_cwnd * c.datagram_size
    # Two bandwidth-delay products or more.
    assert c.snd_cwnd >= 2 * 0.1 * 190


def test_bbr_paces_a_burst_at_its_rate():
    # Forty packets, for which the window has room: they leave at the pacing rate, and not at once.
    c, wire = connection(td.Path(rtt=0.1001, loss=0.0), td.Flow(46_000, 0.5, write_jitter=0), congestion_control="bbr")
    QUIC.advance(c, wire, 20)
    waited = wire.delays_of(0, 20)[1][-1] / SECOND
    assert c.snd_cwnd > 40
    assert waited == pytest.approx(46_000 / c.pacing_rate, rel=0.05)


def test_persistent_congestion_restarts_bbr_with_the_smallest_window():
    c, wire = connection(congestion_control="bbr")
    c.now = SECOND
    reduce(c, 1)
    assert c.congestion_window == 12_000
    on_persistent_congestion(c, wire.record)
    assert (c.snd_cwnd, c.bbr_prior_cwnd) == (2, 10)
    # Acknowledgements of packets that were sent before do not end it.
    assert c.recovery_start == SECOND


def test_time_in_which_the_application_limits_the_window_is_no_part_of_an_epoch():
    c, _ = connection(congestion_control="cubic")
    c.slow_start_threshold = c.congestion_window
    c.now, c.last_acknowledged, c.application_limited = 100 * MS, 40 * MS, 1
    on_ack(c, 50 * MS, 200, 1000)
    assert c.epoch == 0
    c.epoch = 70 * MS
    for _ in range(3):
        on_ack(c, 50 * MS, 200, 1000)
    assert c.epoch == 100 * MS
    c.now = 160 * MS
    for _ in range(3):
        on_ack(c, 50 * MS, 200, 1000)
    assert c.epoch == 160 * MS


def test_a_shared_link_without_other_flows_gives_the_delays_of_one_connection():
    source, stack = td.Video(500_000), td.Stack.quic("quic-go", delivery="stream_per_message")
    path = td.SharedPath(access_delay=0.05, return_delay=0.05, loss=0.01)
    shared = td.simulate_network(
        [ConstantRate(flow=source, path=path, stack=stack)], UNLIMITED, duration=2000, warm_up=20, seed=2
    ).flows[0]
    alone = simulate(source, td.Path(rtt=0.100, loss=0.01), stack, packets=60_000, seed=1)
    assert shared.lost == 0
    assert shared.delays.mean == pytest.approx(alone.mean, rel=0.02)
    assert shared.delays.quantile(0.95) == pytest.approx(alone.quantile(0.95), rel=0.1)


def test_no_error_is_known_before_captures_are_compared():
    assert simulate(FLOW, td.Path(rtt=0.1, loss=0.02), td.Stack.quic(), packets=20_000).expected_error is None
    for implementation in ("aioquic", "quic-go"):
        found = simulate(FLOW, td.Path(rtt=0.1, loss=0.02), td.Stack.quic(implementation), packets=20_000)
        assert found.expected_error.p90 >= QUIC_ERROR.p90
    # Near the capacity, captures and simulations differ.
    near = simulate(
        td.Flow(1200, 0.0177, write_jitter=0), td.Path(rtt=0.1, loss=0.02), td.Stack.quic("quic-go"), packets=20_000
    )
    assert near.sustainable
    assert near.settled
    assert near.expected_error is None
    assert simulate(FLOW, td.Path(rtt=0.1, loss=0.02), packets=20_000).expected_error is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trace": True}, "trace is for Stack.linux"),
        ({"exact_ties": True}, "exact_ties is for Stack.linux"),
        ({"tick_offset": 0.001}, "tick_offset is for Stack.linux"),
    ],
)
def test_settings_of_a_kernel_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate(FLOW, td.Path(rtt=0.1, loss=0.02), td.Stack.quic(), packets=2000, **arguments)


def test_each_implementation_names_its_congestion_controls():
    with pytest.raises(ValueError, match="congestion_control must be 'newreno' with quic-go, got 'cubic'"):
        td.Stack.quic("quic-go", "cubic")
    with pytest.raises(ValueError, match="congestion_control must be 'newreno' or 'cubic' with aioquic, got 'bbr'"):
        td.Stack.quic("aioquic", "bbr")


# The replay of a qlog in the simulator's loss detection

RTT, INTERVAL = 60.0, 20.0
PACKETS, LOST = range(10), 4


@pytest.fixture
def log(tmp_path):
    """A log in quic-go's form: a packet every 20 ms, of which one is lost; each ACK comes after a round-trip time."""
    estimates = {"min_rtt": RTT, "latest_rtt": RTT, "smoothed_rtt": RTT, "rtt_variance": RTT / 2}
    events = [(0.0, "recovery:metrics_updated", estimates)]
    for number in PACKETS:
        header = {"packet_type": "1RTT", "packet_number": number}
        frame = {"frame_type": "stream", "length": 174}
        sent = {"header": header, "raw": {"length": 201}, "frames": [frame]}
        events.append((1 + INTERVAL * number, "transport:packet_sent", sent))
        if number != LOST:
            ranges = [[LOST + 1, number], [0, LOST - 1]] if number > LOST else [[0, number]]
            ack = {"frame_type": "ack", "acked_ranges": ranges}
            received = {"header": header, "frames": [ack]}
            events.append((1 + INTERVAL * number + RTT, "transport:packet_received", received))
    found = {"header": {"packet_type": "1RTT", "packet_number": LOST}, "trigger": "time_threshold"}
    events.append((1 + INTERVAL * (LOST + 1) + RTT, "recovery:packet_lost", found))
    events.sort(key=lambda event: event[0])
    texts = [{}, *({"time": time, "name": name, "data": data} for time, name, data in events)]
    file = tmp_path / "quic-go-stream-174B-20ms.flow0.sender.qlog"
    file.write_text("".join(f"\x1e{json.dumps(text)}\n" for text in texts))
    return file


def test_the_simulator_finds_the_loss_of_a_log_at_the_same_time(log):
    trace = quic_traces.read_trace(log, "quic-go")
    ((when, number, elapsed, _),) = trace.losses
    assert (number, elapsed) == (LOST, INTERVAL + RTT)
    assert list(trace.simulated) == [LOST]
    assert trace.simulated[LOST][0] == pytest.approx(when)
    assert trace.simulated[LOST][1] == pytest.approx(RTT)


def test_the_page_counts_the_losses_that_both_find(log):
    page = quic_traces.report(log.parent)
    assert "1 losses, of which the simulator finds 1, and 0 more; largest difference" in page
    assert "| packet threshold | K_PACKET_THRESHOLD = 3 | packetThreshold = 3 | 3 |" in page


def test_the_rtt_is_sampled_if_the_largest_packet_is_newly_acknowledged():
    # RFC 9002, 5.1: the first packet is overtaken by the second, whose ACK gives a sample of 70 ms; the ACK of both,
    # 80 ms after the first was sent, gives none.
    replay = quic_traces.Replay("rfc9002", dict.fromkeys(quic_traces.ESTIMATES, RTT))
    replay.begin(0)
    for number in range(2):
        replay.send(number, 5.0 * number, 201)
    replay.acknowledge([[1, 1]], 0.0, 75.0)
    sampled = replay.estimate
    assert sampled == pytest.approx(7 / 8 * RTT + 70 / 8)
    replay.acknowledge([[0, 1]], 0.0, 80.0)
    assert replay.estimate == sampled
    assert not replay.lost
