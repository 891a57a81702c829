"""The published chain and its classic sender: against plain formulations, printed sums, and their invariants."""

import itertools
from collections import deque

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tcpdelay as td
from chain_structure import assert_solution
from flow_counts import FAST, PATH
from published_chain import published_chain
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.chain.published import NEWRENO, RENO, SACK, loss_events, timeout_share_correlated
from tcpdelay.chain.solver.aggregation import gth_solve
from tcpdelay.models.predict import predict_delay
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.literature import classic
from tcpdelay.sim.network.bottleneck import SharedPath
from tcpdelay.sim.network.simulation import prepare, simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate, Transfers
from tcpdelay.sim.network.stacks import Classic, TimeLined
from tcpdelay.sim.records import RING
from tcpdelay.sim.tcp.constants import NEVER

AGREEMENT = 1e-9
LARGEST_TWIN = 1500

losses = st.one_of(
    st.sampled_from([0.0, 1e-5, 0.001, 0.01, 0.02, 0.05, 0.1]), st.floats(1e-5, 0.4).map(lambda p: round(p, 5))
)
intervals = st.one_of(
    st.sampled_from([0.005, 0.010, 0.020, 0.030, 0.060]), st.integers(50, 1000).map(lambda n: n / 10_000)
)
loads = st.integers(1, 9 * 4).map(lambda quarters: quarters / 4)


@st.composite
def scenarios(draw):
    interval = draw(intervals)
    # Quarters of a packet put many loads exactly on a rounding tie.
    rtt = round(draw(loads) * interval, 6)
    flow = Flow(draw(st.one_of(st.sampled_from([74, 160, 174, 724, 1448]), st.integers(20, 4000))), interval)
    path = Path(
        rtt,
        draw(losses),
        draw(st.sampled_from(["random", "correlated"])),
        draw(st.sampled_from(["packets", "bytes"])),
        draw(st.sampled_from([None, round(rtt / 4, 6)])),
    )
    stack = Stack.newreno_2008(
        draw(st.sampled_from(["newreno", "sack", "reno"])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([None, 0.2, 1.0, 3.0])),
        draw(st.sampled_from([536, 1448, 1460])),
    )
    assume(path.loss * flow.packet_size < stack.mss)
    return flow, path, stack


@settings(max_examples=250)
@given(scenarios())
def test_two_formulations_agree_on_every_statistic(scenario):
    flow, path, stack = scenario
    twin = published_chain(flow, path, stack)
    assume(len(twin.states) <= LARGEST_TWIN)
    try:
        twin_values, _ = twin.delays
    except ValueError:
        # Packets larger than any window: nothing is ever delivered.
        assert not DelayModel(flow, path, stack).delay_distribution().sustainable
        return
    model = DelayModel(flow, path, stack)
    probability = {tuple(s): p for s, p in zip(model.states.tolist(), model.stationary_distribution, strict=True)}
    assert probability.keys() == set(twin.states)
    assert max(abs(probability[s] - p) for s, p in zip(twin.states, twin.stationary, strict=True)) < AGREEMENT

    delays = model.delay_distribution()
    assert delays.mean == pytest.approx(twin.mean, rel=AGREEMENT)
    assert delays.std == pytest.approx(twin.std, rel=AGREEMENT, abs=1e-12)
    assert model.backlogged_time_fraction == pytest.approx(twin.backlogged_time_fraction, rel=AGREEMENT, abs=1e-12)
    for share in (0.05, 0.5, 0.9, 0.95, 0.99, 0.999):
        assert delays.quantile(share) == pytest.approx(twin.quantile(share), rel=AGREEMENT)
    for limit in np.append(twin_values[:-1] + np.diff(twin_values) / 2, 0.2 + np.pi / 1e4):
        assert delays.late_fraction(limit) == pytest.approx(twin.late_fraction(limit), abs=AGREEMENT)


@settings(max_examples=100)
@given(scenarios())
def test_invariants(scenario):
    assert_solution(DelayModel(*scenario), 1e-14)


@pytest.mark.parametrize(
    ("flow", "path", "options"),
    [
        (Flow(174, 0.020), Path(0.100, 0.02), {}),
        (Flow(1448, 0.020), Path(0.100, 0.01), {"limited_transmit": True}),
        (Flow(1448, 0.020), Path(0.140, 0.03), {}),
        (Flow(174, 0.020), Path(0.300, 0.05), {"variant": "reno"}),
        (Flow(724, 0.020), Path(0.160, 0.001, "correlated"), {"window_validation": True}),
    ],
)
def test_elimination_without_subtraction_agrees(flow, path, options):
    model = DelayModel(flow, path, Stack.newreno_2008(**options))
    assert len(model.states) <= 3000
    exact = gth_solve(model.transition_matrix.toarray())
    assert np.abs(model.stationary_distribution - exact).max() <= 1e-10


def test_voip_states_are_those_of_the_text():
    model = DelayModel(Flow(174, 0.020), Path(0.100, 0.02), Stack.newreno_2008())
    states = set(map(tuple, model.states.tolist()))
    assert model.load == 5
    assert (5, 0, 0) in states
    assert (4, 3, 1) in states  # fast recovery from application limited: floor((r + 3) / 2), backlog 3
    assert (0, 20, 1) in states  # timeout: T0 f = 4 RTT f = 20 packets written meanwhile
    assert (0, 60, 2) in states  # and 2 T0 f more at the second
    assert max(w for w, _, _ in states) <= 8 * 5
    assert max(b for _, b, _ in states) <= 16 * 5


def test_without_loss_nothing_waits():
    model = DelayModel(Flow(174, 0.020), Path(0.100, 0.0, one_way_delay=0.03), Stack.newreno_2008())
    assert model.states.tolist() == [(5, 0, 0)]
    delays = model.delay_distribution()
    assert (delays.mean, delays.std, delays.late_fraction(0.03)) == (0.03, 0.0, 0.0)
    assert model.backlogged_time_fraction == 0.0


def test_overload_depends_on_the_published_bound_and_says_so():
    flow, path = Flow(1448, 0.020), Path(0.200, 0.05)
    published = DelayModel(flow, path, Stack.newreno_2008())
    assert published.backlog_drift > 0
    cut = published.delay_distribution()
    assert not cut.sustainable
    assert cut.truncated_mass > 0.1
    assert np.isfinite(cut.quantile(0.95))
    grown = DelayModel(flow, path, Stack.newreno_2008(backlog_bound="grow"))
    assert grown.delay_distribution().quantile(0.5) == np.inf
    assert grown.backlogged_time_fraction == 1.0
    with pytest.raises(ValueError, match="no finite bound"):
        _ = grown.states


def test_growing_bound_leaves_nothing_that_depends_on_it():
    flow, path = Flow(1448, 0.020), Path(0.200, 0.012)
    published = DelayModel(flow, path, Stack.newreno_2008()).delay_distribution()
    grown = DelayModel(flow, path, Stack.newreno_2008(backlog_bound="grow"))
    delays = grown.delay_distribution()
    assert published.truncated_mass > 1e-6 > delays.truncated_mass
    assert delays.sustainable
    assert delays.mean > published.mean
    assert grown.states["b"].max() > 16 * grown.load


@pytest.mark.parametrize(
    ("flow", "path"),
    [
        (Flow(1448, 0.020), Path(0.200, 0.0195)),
        (Flow(1448, 0.00463), Path(0.100, 0.004)),
        (Flow(174, 0.020), Path(0.300, 0.1)),
    ],
)
def test_chains_near_saturation_are_solved(flow, path):
    model = DelayModel(flow, path, Stack.newreno_2008(backlog_bound="grow"))
    delays = model.delay_distribution()
    assert delays.sustainable
    assert delays.truncated_mass < 1e-6
    assert len(model.states) > 80_000
    assert_solution(model, 1e-13)


@pytest.mark.parametrize("limit", [0.15, 0.2, 0.5, 1.0, 5.0])
def test_meeting_a_target_is_what_the_quantile_says(limit):
    for loss in (0.001, 0.01, 0.0195, 0.03):
        for quantile in (0.5, 0.95, 0.999):
            model = DelayModel(Flow(1448, 0.020), Path(0.200, loss), Stack.newreno_2008(backlog_bound="grow"))
            assert model.meets(limit, quantile) == (model.delay_distribution().quantile(quantile) <= limit)


@pytest.mark.parametrize("packet_size", [174, 724, 1448])
def test_more_loss_never_helps(packet_size):
    means = [
        DelayModel(Flow(packet_size, 0.020), Path(0.100, loss), Stack.newreno_2008(backlog_bound="grow"))
        .delay_distribution()
        .mean
        for loss in np.geomspace(1e-4, 0.1, 25)
    ]
    assert means == sorted(means)


def test_memory_is_bounded_and_the_need_is_told():
    with pytest.raises(ValueError, match=r"needs about .* GiB for 1e\+08 packets per round-trip time"):
        DelayModel(Flow(174, 1e-7), Path(10.0, 0.01), Stack.newreno_2008())
    with pytest.raises(ValueError, match=r"needs about .* GiB"):
        DelayModel(Flow(1448, 1e-5), Path(0.4, 0.01), Stack.newreno_2008()).delay_distribution()


def test_byte_bottleneck_that_drops_every_packet_is_refused():
    with pytest.raises(ValueError, match="packet_size must be below mss / loss"):
        DelayModel(Flow(15_000, 0.020), Path(0.1, 0.1, bottleneck="bytes"), Stack.newreno_2008())


def test_direct_solution_takes_over_where_the_sweeps_do_not_converge(monkeypatch):
    scenario = Flow(724, 0.020), Path(0.100, 0.02), Stack.newreno_2008()
    expected = DelayModel(*scenario).delay_distribution()
    monkeypatch.setattr("tcpdelay.chain.engine.MAX_SWEEPS", 3)
    model = DelayModel(*scenario)
    assert model.residual <= 1e-13
    delays = model.delay_distribution()
    assert delays.mean == pytest.approx(expected.mean, rel=1e-10)
    assert delays.quantile(0.99) == expected.quantile(0.99)


# Probabilities of the loss events against their printed sums, by hand and by enumeration of all loss patterns


@pytest.mark.parametrize("one_packet", [False, True])
@pytest.mark.parametrize("window", [1, 2, 3, 4, 7, 11])
@pytest.mark.parametrize("variant", [NEWRENO, SACK, RENO])
def test_every_pattern_of_losses_is_counted(window, variant, one_packet):
    p = 0.07
    repaired = 0.0
    for pattern in itertools.product([0, 1], repeat=window):
        if one_packet and not pattern[0]:
            continue
        losses = sum(pattern)
        if losses == 0 or losses > window - 3:
            continue
        if variant == RENO and (losses > 2 or (losses == 2 and window < 10)):
            continue
        repaired += p**losses * (1 - p) ** (window - losses) * (1 - p) ** losses
    events = loss_events(window, p, one_packet, variant, False, False)
    assert events.fast_retransmit[window] == pytest.approx(repaired, rel=1e-12, abs=1e-16)
    assert events.success[window] == pytest.approx(1 - p if one_packet else (1 - p) ** window, rel=1e-14)


@given(
    st.floats(1e-9, 0.99),
    st.integers(1, 400),
    st.booleans(),
    st.sampled_from([NEWRENO, SACK, RENO]),
    st.booleans(),
    st.booleans(),
)
def test_events_are_probabilities(loss, window, one_packet, variant, correlated, limited_transmit):
    events = loss_events(window, loss, one_packet, variant, correlated, limited_transmit)
    for event in events:
        assert np.all((event[1:] >= 0) & (event[1:] <= 1))
    total = events.success + events.fast_retransmit + events.timeout
    assert np.abs(total[1:] - 1).max() <= 1e-15 * 8
    if not limited_transmit:
        assert np.all(events.fast_retransmit[1:4] == 0)


@given(st.floats(1e-6, 0.5), st.integers(4, 200))
def test_limited_transmit_only_spares_timeouts(loss, window):
    without = loss_events(window, loss, False, NEWRENO, False, False).timeout[window]
    with_it = loss_events(window, loss, False, NEWRENO, False, True).timeout[window]
    assert with_it <= without


def test_small_losses_keep_their_digits():
    # w = 4, one loss is repaired unless its retransmission is lost; two or more losses are not: P_TO = 4 p^2 + 6 p^2.
    p = 1e-9
    events = loss_events(4, p, False, NEWRENO, False, False)
    assert events.timeout[4] == pytest.approx(10 * p**2, rel=1e-7)


def test_drop_tail_share_is_that_of_padhye():
    # Q(w) of Padhye et al. 1998, equation 24, is near 3 / w for small p.
    assert timeout_share_correlated(30, 1e-7, False) == pytest.approx(3 / 30, rel=1e-5)
    assert timeout_share_correlated(3, 0.1, False) == 1.0
    # By hand for p = 1/2, w = 4: 7/8 (1 + 1/8 * 1/2) / (15/16).
    assert timeout_share_correlated(4, 0.5, False) == pytest.approx(7 / 8 * 17 / 16 / (15 / 16), rel=1e-14)


def test_limited_transmit_after_drop_tail_losses_by_hand():
    # p = 1/2, w = 2: one of the two arrives with probability 1/3, and then three segments one after the other.
    assert timeout_share_correlated(2, 0.5, True) == pytest.approx(1 - 1 / 3 / 8, rel=1e-14)
    # Without further losses only the loss of a whole round ends in a timeout, one of w places of the first loss.
    assert timeout_share_correlated(5, 1e-9, True) == pytest.approx(1 / 5, rel=1e-6)


@given(st.floats(1e-6, 0.5), st.integers(2, 200))
def test_larger_windows_are_safer_after_drop_tail_losses(loss, window):
    for limited_transmit in (False, True):
        smaller, larger = (timeout_share_correlated(w, loss, limited_transmit) for w in (window, window + 1))
        assert larger <= smaller + 1e-15
    assert timeout_share_correlated(window, loss, True) < timeout_share_correlated(window, loss, False)


def arrivals(draws, segments, loss):
    """Draw how many of the segments of a round arrive, for each entry of `segments`: none after the first loss."""
    before_first_loss = draws.geometric(loss, segments.size) - 1
    return np.minimum(before_first_loss, segments)


@pytest.mark.parametrize("limited_transmit", [False, True])
@pytest.mark.parametrize(
    ("window", "loss"), [(2, 0.1), (3, 0.02), (4, 0.02), (5, 0.02), (5, 0.3), (10, 0.02), (30, 0.1)]
)
def test_drop_tail_share_in_drawn_rounds(window, loss, limited_transmit):
    draws = np.random.default_rng(window)
    first = arrivals(draws, np.full(4_000_000 if loss < 0.1 else 1_000_000, window), loss)
    released = first[first < window]
    duplicates = arrivals(draws, released, loss)
    if limited_transmit:
        # A duplicate ACK releases a segment while there are fewer than three; each may be lost by itself.
        sent = np.zeros_like(duplicates)
        while np.any(waiting := (duplicates < 3) & (sent < np.minimum(duplicates, 2))):
            sent[waiting] += 1
            duplicates[waiting] += draws.random(np.count_nonzero(waiting)) >= loss
    drawn = np.mean(duplicates < 3)
    error = np.sqrt(drawn * (1 - drawn) / released.size)
    assert timeout_share_correlated(window, loss, limited_transmit) == pytest.approx(drawn, abs=4 * error)


# Packet assembly of the classic sender: a reference sender in plain Python, bytes counted, and the chain

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
