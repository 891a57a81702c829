"""Packet assembly of the classic sender: a reference sender in plain Python, bytes counted, and the published chain."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.models.predict import predict_delay
from tcpdelay.sim.literature import classic
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.simulation import prepare, simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate, Transfers
from tcpdelay.sim.network.stacks import Classic, TimeLined
from tcpdelay.sim.records import NEVER, RING

FAST = Bottleneck(1e12, 60_000)
PATH = SharedPath(0.05)
MS = 1000


class Traced:
    """A flow of constant rate, advanced event by event; `segments` has when each was sent first, its start and end."""

    def __init__(self, stack, size, interval, packets, path=PATH, seed=0, lost=None, **options):
        source = ConstantRate(
            flow=td.Flow(size, interval, write_jitter=0),
            path=path,
            stack=stack,
            stop=(packets - 0.5) * interval,
            **options,
        )
        self.network = prepare([source], FAST, seed, 0.0, 1e5)
        self.flow, self.wire = self.network.flows[0], self.network.wires[0]
        self.sender, self.samples = self.network.connections[0], self.network.samples[0]
        if lost is not None:
            self.flow.until_loss = lost + 1
        self.segments, self.delays = [], []

    def step(self):
        """Let one event happen; return the numbers of the segments that the receiver has got by it."""
        sender, before, answered = self.sender, self.sender.snd_max, self.sender.next_ack
        classic.step(self.flow, sender, self.wire, self.network.link[0], self.samples)
        for number in range(before, sender.snd_max):
            segment = self.wire.segments[number % RING]
            self.segments.append((int(sender.now), int(segment.start), int(segment.end)))
        self.delays += self.samples.keys[: self.samples.used].tolist()
        self.samples.used = 0
        return [int(self.wire.acknowledgements[n % RING].segment) for n in range(answered, sender.next_ack)]

    def run(self):
        """Let all events happen."""
        while classic.next_time(self.flow, self.sender, self.wire) < NEVER:
            self.step()
        return self


def reference_segments(size, interval, packets, mss, window, round_trip):
    """Return time, start and end of each segment that a sender with a constant window sends on a lossless path.

    An ACK releases a segment, and a write before an ACK of the same instant belongs to it.
    """
    segments, answers, written, sent = [], deque(), 0, 0
    writes = deque(n * interval for n in range(packets))
    while writes or answers:
        if writes and (not answers or writes[0] <= answers[0]):
            now = writes.popleft()
            written += size
        else:
            now = answers.popleft()
        while sent < written and len(answers) < window:
            segments.append((now, sent, min(sent + mss, written)))
            sent = segments[-1][2]
            answers.append(now + round_trip)
    return segments


def test_four_segments_a_round_trip_carry_ten_packets():
    # A window of four, a round trip of ten intervals: 0 to 3 leave at once. The first ACK finds seven packets that have
    # been written meanwhile, and each of the next three ACKs one.
    traced = Traced(Classic(mss=1000, receiver_window=4, initial_window=4), 100, 0.010, 30).run()
    times = [0, 10, 20, 30, 100, 110, 120, 130, 200, 210, 220, 230]
    sizes = [100] * 4 + [700, 100, 100, 100] + [700, 100, 100, 100]
    assert [segment[0] for segment in traced.segments[:12]] == [time * MS for time in times]
    assert [end - start for _, start, end in traced.segments[:12]] == sizes


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(20, 3000),
    mss=st.integers(100, 1500),
    window=st.integers(1, 10),
    interval=st.integers(1, 60),
    delay=st.integers(1, 200),
)
def test_on_a_lossless_path_the_segments_are_those_of_a_reference_sender(size, mss, window, interval, delay):
    stack = Classic(mss=mss, receiver_window=window, initial_window=window, rto_min=100)
    traced = Traced(stack, size, interval / 1000, 60, SharedPath(delay / 1000)).run()
    expected = reference_segments(size, interval * MS, 60, mss, window, 2 * delay * MS)
    assert traced.segments == expected
    assert traced.flow.segments_sent == len(expected)
    # A packet is read when the segment with its last byte arrives.
    ends = np.array([end for _, _, end in expected])
    last = np.searchsorted(ends, size * np.arange(1, 61))
    written = interval * MS * np.arange(60)
    assert traced.delays == (np.array([time for time, _, _ in expected])[last] + delay * MS - written).tolist()


@settings(deadline=None, max_examples=30)
@given(size=st.integers(1, 1460), interval=st.integers(20, 100))
def test_while_the_window_is_open_each_write_is_a_segment(size, interval):
    # Five packets a round trip at most, and a window of ten.
    stack = Classic(initial_window=10, receiver_window=10)
    traced = Traced(stack, size, interval / 1000, 50).run()
    assert [(start, end) for _, start, end in traced.segments] == [(size * n, size * (n + 1)) for n in range(50)]
    assert traced.delays == [50 * MS] * 50


@settings(deadline=None, max_examples=60)
@given(
    stack=st.builds(
        Classic,
        recovery=st.sampled_from(["reno", "newreno", "sack"]),
        mss=st.integers(100, 1500),
        receiver_window=st.integers(1, 40),
        limited_transmit=st.booleans(),
        ack_delay=st.sampled_from([0.0, 0.2]),
        tick=st.just(0.01),
        rto_min=st.just(0.2),
    ),
    size=st.integers(20, 3000),
    interval=st.integers(1, 60),
    loss=st.sampled_from([0.0, 0.02, 0.2]),
    seed=st.integers(0, 1000),
)
def test_every_byte_arrives_once_and_in_order(stack, size, interval, loss, seed):
    traced = Traced(stack, size, interval / 1000, 100, SharedPath(0.03, loss=loss), seed).run()
    # The segments divide the stream, and what has been read is all of it.
    bounds = [0, *(end for _, _, end in traced.segments)]
    assert [start for _, start, _ in traced.segments] == bounds[:-1]
    assert bounds[-1] == 100 * size == traced.sender.written == traced.sender.acknowledged_to == traced.sender.read_to
    assert all(0 < end - start <= stack.mss for _, start, end in traced.segments)
    # A segment that is not full has no bytes waiting behind it.
    for time, _, end in (segment for segment in traced.segments if segment[2] - segment[1] < stack.mss):
        assert end == size * min(time // (interval * MS) + 1, 100)
    assert traced.flow.delivered == len(traced.delays) == 100
    assert min(traced.delays) >= 30 * MS
    # In order: no packet is read before the one in front of it.
    read = np.arange(100) * interval * MS + np.array(traced.delays)
    assert (np.diff(read) >= 0).all()


@pytest.mark.parametrize("recovery", ["reno", "newreno", "sack"])
def test_a_retransmission_has_the_bounds_of_the_first_transmission(recovery):
    traced = Traced(Classic(recovery=recovery, initial_window=10), 100, 0.010, 60, lost=20)
    bounds = {}
    while classic.next_time(traced.flow, traced.sender, traced.wire) < NEVER:
        for number in traced.step():
            segment = traced.wire.segments[number % RING]
            assert bounds.setdefault(number, (segment.start, segment.end)) == (segment.start, segment.end)
    assert traced.sender.segments_retransmitted >= 1
    assert bounds[20] == (2000, 2100)


def test_a_packet_larger_than_a_segment_is_read_with_its_last_segment():
    traced = Traced(Classic(mss=1000, initial_window=3), 2500, 1.0, 2).run()
    assert [end - start for _, start, end in traced.segments] == [1000, 1000, 500] * 2
    assert traced.delays == [50 * MS] * 2


def test_each_piece_of_a_packet_is_a_segment_while_the_window_is_open():
    # 174 bytes in four pieces are two of 44 bytes and two of 43. Of the next packet one piece has room; the bytes of
    # the others leave together.
    source = ConstantRate(
        flow=td.Flow(174, 0.010), path=SharedPath(0.05), stack=Classic(initial_window=5), pieces=4, stop=0.015
    )
    network = prepare([source], FAST, 0, 0.0, 10.0)
    network.advance(5.0)
    segments = network.wires[0].segments
    assert (segments["end"] - segments["start"])[:6].tolist() == [44, 44, 43, 43, 44, 130]
    assert network.flows[0].segments_sent == 6


def test_a_video_is_carried_in_full_segments():
    video = td.Video(1e6, 30)
    source = ConstantRate(flow=video, path=SharedPath(0.05, loss=0.01), stack=Classic.of_2008(recovery="sack"))
    flow = simulate_network([source], FAST, duration=60, seed=1).flows[0]
    assert flow.offered == flow.delivered + flow.unfinished
    assert flow.delays.values.min() >= 0.05
    assert flow.throughput == pytest.approx(1e6, rel=0.1)


def test_small_packets_that_wait_need_fewer_segments_and_less_time():
    # The published model: a small packet of a backlogged flow travels with others in a full segment. At 2 % loss its
    # chain has a 95th percentile of 190 ms with 174 B and of 310 ms with 1448 B.
    flows = {}
    for size in (174, 1448):
        source = ConstantRate(
            flow=td.Flow(size, 0.020),
            path=SharedPath(0.05, loss=0.02),
            stack=Classic.of_2008(limited_transmit=False, tick=0.01),
        )
        flows[size] = simulate_network([source], FAST, duration=4000, warm_up=20, seed=1).flows[0]
    chain = predict_delay(td.Flow(174, 0.020), td.Path(rtt=0.1, loss=0.02), td.Stack.newreno_2008())
    assert flows[174].p95_interval.value == pytest.approx(chain.quantile(0.95), rel=0.05)
    assert flows[174].delays.mean == pytest.approx(chain.mean, rel=0.05)
    assert flows[174].segments_sent < 0.95 * flows[174].offered < flows[1448].segments_sent
    assert flows[1448].p95_interval.value > 2 * flows[174].p95_interval.value


def test_of_a_segment_of_two_sections_only_live_bytes_are_sent_again():
    # A window of one segment. Packet 0 leaves alone; packets 1 to 3 and a third of packet 4 leave at its ACK, and are
    # lost. When the timeout comes, packets 0 to 3 are obsolete.
    stack = TimeLined(mss=1000, receiver_window=1, initial_window=1, deadline=0.3, tick=0.001, rto_min=0.27)
    traced = Traced(stack, 300, 0.020, 6, lost=1)
    traced.sender.srtt = traced.sender.rttvar = 0
    classic.update_estimate(traced.sender, 100)
    traced.sender.rto = 270
    arrived = []
    while classic.next_time(traced.flow, traced.sender, traced.wire) < NEVER:
        for number in traced.step():
            segment = traced.wire.segments[number % RING]
            arrived.append((number, int(segment.start), int(segment.end)))
    assert traced.segments[1][1:] == (300, 1300)
    assert arrived[1] == (1, 1200, 1300)
    # The rest of packet 4, and packet 5, expire before the next ACK; no later segment says so to the receiver.
    assert (traced.flow.lost, traced.flow.delivered, traced.flow.packets_written) == (3, 1, 6)


def test_a_forged_segment_costs_every_packet_with_a_byte_in_it():
    # A window of three and ten packets of 300 B a round trip: the first segment of a round trip is full.
    stack = Classic(mss=1000, receiver_window=3, initial_window=3, tick=0.01, rto_min=0.2)
    traced = Traced(stack, 300, 0.010, 60, lost=6, forging=True).run()
    start, end = traced.segments[6][1:]
    cut = (end - 1) // 300 - start // 300 + 1
    assert traced.flow.lost == cut > 1
    assert traced.flow.delivered == 60 - cut


@pytest.mark.parametrize("kind", [Bulk, Transfers])
def test_a_forging_receiver_reads_bulk_data_and_files(kind):
    path = SharedPath(0.03, loss=0.01)
    waiting, forging = (
        simulate_network(
            [kind(path=path, stack=Classic.of_2008(recovery="sack"), forging=forging)], FAST, duration=300, seed=1
        ).flows[0]
        for forging in (False, True)
    )
    assert waiting.lost == 0 < forging.lost
    assert forging.offered == forging.delivered + forging.lost + forging.unfinished
    if kind is Bulk:
        assert forging.lost / forging.offered == pytest.approx(forging.segments_lost / forging.segments_sent, rel=0.3)
        assert forging.receiver_delay < waiting.receiver_delay


def test_packets_of_a_few_bytes_are_refused():
    with pytest.raises(ValueError, match=r"packet_size must be at least 23 bytes with this window, got 22"):
        simulate_network(
            [ConstantRate(flow=td.Flow(22, 0.02, write_jitter=0), path=SharedPath(0.05), stack=Classic.of_2008())],
            FAST,
            duration=1,
        )
