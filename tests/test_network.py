"""Flows over a shared link: against the single-flow simulator, closed forms and patterns worked out by hand."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

import tcpdelay as td
from flow_counts import FAST, LINUX, PATH, RTT, assert_counted, counted_delays, shared_paths, with_one_loss
from tcpdelay.accuracy.throughput import padhye_rate, square_root_rate
from tcpdelay.compiling.compilation import records
from tcpdelay.compiling.record_types import record_type
from tcpdelay.sim.batches import DIGITS
from tcpdelay.sim.literature.classic import heed_mark
from tcpdelay.sim.literature.timelined import ClassicConnection
from tcpdelay.sim.network import result as delays_module
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.linux import MinBuf
from tcpdelay.sim.network.result import SlicedDelays
from tcpdelay.sim.network.simulation import prepare, simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate, Source, Transfers, Web
from tcpdelay.sim.network.stacks import Classic, Udp
from tcpdelay.sim.network.transport import DELAY_BITS

VOICE = td.Flow(174, 0.020, write_jitter=0)


def started(sources, bottleneck=FAST, until=100.0):
    return prepare(sources, bottleneck, 0, 0.0, until)


stacks = st.one_of(
    st.builds(td.Stack.linux, congestion_control=st.sampled_from(["reno", "cubic"]), delayed_ack=st.booleans()),
    st.builds(
        Classic,
        recovery=st.sampled_from(["reno", "newreno", "sack"]),
        receiver_window=st.integers(2, 60),
        limited_transmit=st.booleans(),
        ack_delay=st.sampled_from([0.0, 0.2]),
        tick=st.sampled_from([0.01, 0.5]),
    ),
)
common = {
    "path": shared_paths,
    "start": st.floats(0.0, 12.0),
    "ecn": st.booleans(),
}
flows = st.builds(td.Flow, st.integers(40, 1400), st.floats(0.005, 0.2), write_jitter=st.sampled_from([0.0, 0.001]))
forging_receivers = st.builds(
    Classic,
    recovery=st.sampled_from(["reno", "newreno", "sack"]),
    receiver_window=st.integers(1, 40),
    limited_transmit=st.booleans(),
    tick=st.just(0.01),
    rto_min=st.just(0.2),
)
min_bufs = st.builds(MinBuf, st.integers(1, 4), st.integers(0, 30))
sources = st.one_of(
    st.builds(ConstantRate, flow=flows, stack=st.one_of(stacks, st.just(Udp())), **common),
    st.builds(ConstantRate, flow=flows, stack=forging_receivers, forging=st.just(True), **common),
    st.builds(Bulk, stack=stacks, min_buf=st.none() | min_bufs, **common),
    st.builds(Transfers, stack=stacks, **common),
    st.builds(Web, stack=stacks, **common),
)
links = st.builds(
    Bottleneck,
    rate=st.sampled_from([2e5, 2e6, 2e7]),
    capacity=st.integers(2, 60),
    discipline=st.sampled_from(["drop-tail", "red", "dred"]),
    bandwidth_delay_product=st.just(8.0),
)


# Segments that take in later ones when they are sent again.
COLLAPSING = ConstantRate(
    flow=td.Flow(40, 0.125, write_jitter=0),
    path=SharedPath(0.0, loss=0.1, loss_burst=3),
    stack=td.Stack.linux(congestion_control="reno"),
)


@settings(deadline=None, max_examples=120)
@example([COLLAPSING], Bottleneck(2e5, 2), 0)
@given(st.lists(sources, min_size=1, max_size=5), links, st.integers(0, 1000))
def test_every_packet_is_counted_once(sources, link, seed):
    warm_up, duration = 3.0, 15.0
    result = simulate_network(sources, link, duration=duration, warm_up=warm_up, seed=seed)
    for source, flow in zip(sources, result.flows, strict=True):
        assert_counted(flow, source.path)
        if source.forging:
            # What was never lost is never forged, as nothing is overtaken. A segment has bytes of so many packets.
            packets = 2 + source.stack.mss // source.flow.packet_size
            assert flow.lost <= packets * (flow.segments_lost + flow.segments_dropped)
        else:
            assert flow.lost == 0 or isinstance(source.stack, Udp)
        if isinstance(source, ConstantRate):
            interval = round(source.flow.interval * 1e6) / 1e6
            writes = round(source.start * 1e6) / 1e6 + np.arange(math.ceil(16 / interval)) * interval
            assert abs(flow.offered - np.sum((writes >= warm_up) & (writes < duration))) <= 1
    queue = result.queue
    assert 0 <= queue.utilization <= 1 + 1e-9
    assert 0 <= queue.mean_length <= link.capacity + 1e-9
    assert queue.dropped + queue.marked <= queue.offered
    # The link carries what is read, and headers beside.
    assert sum(flow.throughput for flow in result.flows) * (duration - warm_up) <= link.rate * (duration - warm_up + 2)


@settings(deadline=None, max_examples=10)
@given(st.lists(sources, min_size=1, max_size=4), links, st.integers(0, 1000))
def test_one_seed_gives_one_result(sources, link, seed):
    first, second = (simulate_network(sources, link, duration=8.0, seed=seed) for _ in range(2))
    assert repr(first.queue) == repr(second.queue)
    for one, other in zip(first.flows, second.flows, strict=True):
        assert one.segments_sent == other.segments_sent
        assert (one.delays is None) == (other.delays is None)
        if one.delays is not None:
            np.testing.assert_array_equal(one.delays.values, other.delays.values)
            np.testing.assert_array_equal(one.delays.weights, other.delays.weights)


def test_another_seed_gives_another_result():
    web = [Web(path=PATH, stack=LINUX)] * 3
    means = {simulate_network(web, Bottleneck(1e6, 30), duration=60, seed=seed).queue.mean_sojourn for seed in range(3)}
    assert len(means) == 3


@pytest.mark.parametrize(
    "stack",
    [
        td.Stack.linux(congestion_control="reno", delayed_ack=True),
        td.Stack.linux(congestion_control="cubic", delayed_ack=True),
        Classic(recovery="newreno", receiver_window=500),
        Classic(recovery="sack", receiver_window=500),
    ],
)
@pytest.mark.parametrize("discipline", ["drop-tail", "red"])
def test_bulk_flows_fill_the_link_and_share_it(stack, discipline):
    # Without the jitter the phases of the flows would hand out the drops.
    path = SharedPath(0.02, return_jitter=0.002)
    sources = [Bulk(path=path, stack=stack, start=0.1 * number) for number in range(5)]
    link = Bottleneck(10e6, 100, discipline=discipline, min_th=10, max_th=40, max_p=0.1)
    result = simulate_network(sources, link, duration=1000, warm_up=50, seed=1)
    assert result.fairness > 0.95
    assert result.queue.utilization > 0.95
    payload = stack.mss / (stack.mss + sources[0].header_size)
    total = sum(flow.throughput for flow in result.flows)
    assert total == pytest.approx(result.queue.utilization * link.rate * payload, rel=0.01)


CLASSIC = [
    Classic(recovery=recovery, mss=1000, receiver_window=2000, tick=0.01, rto_min=0.2)
    for recovery in ("reno", "newreno", "sack")
]
RENO = td.Stack.linux(congestion_control="reno")


@pytest.mark.parametrize(
    ("stack", "loss"), [*itertools.product(CLASSIC, (0.001, 0.003, 0.01, 0.03)), (RENO, 0.001), (RENO, 0.01)]
)
def test_the_rate_is_that_of_padhye_and_mathis(stack, loss):
    source = Bulk(path=SharedPath(RTT / 2, loss=loss), stack=stack)
    result = simulate_network([source], Bottleneck(1e10, 60_000), duration=5000, warm_up=50, seed=3)
    rate = result.flows[0].throughput / 8
    assert rate == pytest.approx(padhye_rate(RTT, loss, timeout=0.3, mss=stack.mss), rel=0.12)
    if loss <= 0.003 and stack is not RENO:
        assert rate == pytest.approx(square_root_rate(RTT, loss, mss=stack.mss), rel=0.05)


def test_phases_of_exact_paths_decide_who_loses():
    # Floyd, Jacobson, "On Traffic Phase Effects in Packet-Switched Gateways", 1992.
    stack, link = Classic(receiver_window=500), Bottleneck(10e6, 100)
    fairness = []
    for jitter in (0.0, 0.01):
        paths = [SharedPath(0.02 + 0.0007 * number, return_jitter=jitter) for number in range(5)]
        sources = [Bulk(path=path, stack=stack) for path in paths]
        fairness.append(simulate_network(sources, link, duration=500, warm_up=50).fairness)
    assert fairness[0] < 0.6
    assert fairness[1] > 0.95


def classic_delays_after_a_loss(stack, interval):
    """Return how many packets had which delay [ms], with one packet lost."""
    network = with_one_loss(stack, interval)
    delays = counted_delays(network, 300.0)
    assert sum(delays.values()) == 100
    assert network.flows[0].segments_lost == 1
    return delays, network.connections[0]


@pytest.mark.parametrize("recovery", ["reno", "newreno", "sack"])
def test_the_third_duplicate_repairs_a_loss(recovery):
    # Three packets later, their ACKs are in after a round-trip time; half of one later the repair is read.
    delays, connection = classic_delays_after_a_loss(Classic(recovery=recovery, receiver_window=60), 0.020)
    assert max(delays) == 3 * 20 + 100 + 50
    assert connection.timeouts == 0
    # All that came meanwhile was read with it: one packet less late for each interval, down to the path's delay.
    assert sorted(delays) == [50 + 20 * n for n in range(9)]


def test_a_lone_loss_waits_for_a_coarse_timer():
    stack = Classic(tick=0.5, rto_min=1.0)
    delays, connection = classic_delays_after_a_loss(stack, 2.0)
    assert connection.timeouts == 1
    # Estimates are one tick, deviations a quarter or a half: two or three ticks in all, the first of which has begun.
    assert 2 <= connection.rto <= 3
    assert 500 * (connection.rto - 1) <= max(delays) - 50 <= 500 * connection.rto
    assert delays[50.0] == 99


def test_limited_transmit_keeps_small_windows_alive():
    losses = SharedPath(RTT / 2, loss=0.05)
    results = [
        simulate_network(
            [Bulk(path=losses, stack=Classic(limited_transmit=switch))], FAST, duration=2000, seed=1
        ).flows[0]
        for switch in (False, True)
    ]
    share = [flow.timeouts / flow.segments_lost for flow in results]
    assert share[1] < 0.9 * share[0]
    assert results[1].throughput > results[0].throughput


@pytest.mark.parametrize("stack", [td.Stack.linux("reno"), td.Stack.linux("cubic"), Classic(receiver_window=200)])
def test_marks_take_the_place_of_drops(stack):
    link = Bottleneck(5e6, 200, discipline="dred", bandwidth_delay_product=30.0)
    with_marks, without = (
        simulate_network(
            [Bulk(path=SharedPath(0.03 + 0.001 * n), stack=stack, ecn=ecn) for n in range(3)],
            link,
            duration=300,
            warm_up=30,
            seed=2,
        )
        for ecn in (True, False)
    )
    assert with_marks.queue.marked > 100
    assert with_marks.queue.dropped < 0.05 * without.queue.dropped
    assert without.queue.marked == 0
    assert with_marks.queue.utilization > 0.95
    assert sum(flow.retransmissions for flow in with_marks.flows) < sum(flow.retransmissions for flow in without.flows)
    # Delay stays where it was: marks slow down as drops do.
    assert with_marks.queue.mean_length == pytest.approx(without.queue.mean_length, rel=0.3)
    assert with_marks.queue.mean_length < 60


def test_a_round_trip_of_marks_halves_the_window_once():
    connection = records(1, record_type(ClassicConnection))[0]
    connection.cwnd, connection.snd_una, connection.snd_max, connection.ecn_recover = 40.0, 100, 140, -1
    for acknowledged in (100, 101, 120, 140):
        connection.snd_una = acknowledged
        heed_mark(connection)
        assert connection.cwnd == 20
    connection.snd_una, connection.snd_max = 141, 161
    heed_mark(connection)
    assert connection.cwnd == 10


def test_datagrams_see_the_path_and_its_losses():
    source = ConstantRate(flow=VOICE, path=SharedPath(RTT / 2, loss=0.05), stack=Udp())
    flow = simulate_network([source], FAST, duration=2000, warm_up=100).flows[0]
    assert flow.delays is not None
    assert flow.delays.values.tolist() == [0.05]
    assert flow.lost / flow.offered == pytest.approx(0.05, abs=0.003)
    assert flow.delivered_fraction == 1 - flow.lost / flow.offered
    assert flow.late_fraction(0.06) == pytest.approx(1 - flow.delivered_fraction)
    assert flow.late_fraction(0.04) == 1


def test_a_file_takes_the_rounds_of_slow_start():
    # 20 kB are 14 segments of Linux: ten at once, and the others as soon as their ACKs return.
    flow = simulate_network([Transfers(path=PATH, stack=LINUX)], Bottleneck(1e9, 1000), duration=100).flows[0]
    assert flow.delays is not None
    assert flow.delays.mean == pytest.approx(RTT + RTT / 2, abs=0.002)
    # A request, a connection and an answer before it: 1.5 round trips, then 1.5 for the file.
    assert flow.offered == pytest.approx(100 / 0.3, abs=4)
    # Opened by the sender, which waits to be accepted, it takes as long.
    source = Transfers(path=PATH, stack=LINUX, opened_by="sender")
    flow = simulate_network([source], Bottleneck(1e9, 1000), duration=100).flows[0]
    assert flow.offered == pytest.approx(100 / 0.3, abs=4)
    # The classic one begins with two: rounds of 2, 4, and 8 segments of 1460 bytes.
    flow = simulate_network([Transfers(path=PATH, stack=Classic())], Bottleneck(1e9, 1000), duration=100).flows[0]
    assert flow.delays is not None
    assert flow.delays.mean == pytest.approx(2 * RTT + RTT / 2, abs=0.002)


def test_a_small_send_buffer_bounds_the_wait_in_it():
    results = [
        simulate_network(
            [Bulk(path=PATH, stack=LINUX, send_buffer=size)], Bottleneck(1e6, 400), duration=200, warm_up=50
        ).flows[0]
        for size in (30_000, 60_000)
    ]
    # The link is full, so a write waits for all bytes before it; the last is the one that passes two thirds.
    for size, flow in zip((30_000, 60_000), results, strict=True):
        assert flow.delays is not None
        expected = (2 * size // 3 // 1448 + 1) * 1448 * 8 / flow.throughput
        assert flow.delays.mean == pytest.approx(expected - RTT / 2, rel=0.02)


def test_a_link_that_is_too_slow_leaves_packets_unfinished():
    source = ConstantRate(flow=td.Flow(1448, 0.010, write_jitter=0), path=PATH, stack=LINUX)
    flow = simulate_network([source], Bottleneck(3e5, 50), duration=600).flows[0]
    assert flow.unfinished > 0.5 * flow.offered
    assert flow.late_fraction(10.0) > 0.5


@pytest.mark.parametrize(
    ("lost", "known"),
    [
        # Ten packets of 1 ms and ten of 2 ms per slice, and some that are lost.
        (np.random.default_rng(1).integers(0, 20, 64), True),
        # A sender that never writes again in the last quarter of the time.
        (np.repeat([0, 20], [48, 16]), False),
    ],
)
def test_a_share_that_depends_on_the_length_of_the_simulation_has_no_error(lost, known):
    delays = SlicedDelays()
    for _ in range(64):
        delays.take(SimpleNamespace(keys=np.repeat([1000, 2000], 10), used=20))
        delays.end_slice()
    levels, errors = delays.late_errors(0, lost)
    assert levels.tolist() == [0.001, 0.002]
    assert np.isfinite(errors).tolist() == [known, known]
    if known:
        shares = lost / (20 + lost)
        assert errors[1] == pytest.approx(1.998 * shares.std(ddof=1) / 8, rel=0.2)


def test_memory_does_not_grow_with_time():
    source = Bulk(path=PATH, stack=LINUX)
    network = started([source], Bottleneck(1e7, 100), until=1e6)
    delays = SlicedDelays()
    for until in (100, 1000):
        network.advance(until, delays)
    assert network.flows[0].packets_written > 6e5
    assert delays.current_slice[0].size < 500_000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: simulate_network([], FAST, duration=1), "sources must"),
        (lambda: simulate_network([Bulk(path=PATH, stack=LINUX)], FAST, duration=0), "duration must"),
        (lambda: simulate_network([Bulk(path=PATH, stack=LINUX)], FAST, duration=1, warm_up=1), "warm_up must"),
        (lambda: simulate_network([Source(path=PATH, stack=LINUX)], FAST, duration=1), "sources must"),
        (lambda: Bulk(path=PATH, stack=Udp()), "stack of Bulk must be Linux or Dctcp or Classic or Scp, got"),
        (lambda: Bulk(path=PATH, stack=td.Stack.newreno_2008()), "stack of Bulk must be Linux or Dctcp or Classic or"),
        (lambda: Bulk(path=PATH, stack=LINUX, start=2.0, stop=1.0), "stop must"),
        (lambda: Bulk(path=PATH, stack=LINUX, send_buffer=10), "send_buffer must"),
        (lambda: Bulk(path=PATH, stack=Classic(), packet_size=400), "packet_size must"),
        (lambda: Web(path=PATH, stack=LINUX, shape=1.0), "shape must"),
        (lambda: Web(path=PATH, stack=LINUX, opened_by="both"), "opened_by must"),
        (lambda: Web(path=PATH, stack=LINUX, header=-1), "header must"),
        (lambda: SharedPath(-1.0), "access_delay must"),
        (lambda: SharedPath(0.1, loss=1.0), "loss must"),
        (lambda: Classic(recovery="tahoe"), "recovery must"),
        (lambda: Classic(receiver_window=5000), "receiver_window must"),
    ],
)
def test_what_cannot_be_simulated_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 1 << 40)), min_size=1, max_size=50))
def test_rounded_delays_keep_their_flow_and_four_digits(pairs):
    numbers, delays = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    keys = delays_module.rounded(numbers << DELAY_BITS | delays)
    np.testing.assert_array_equal(keys >> DELAY_BITS, numbers)
    np.testing.assert_allclose(keys & ((1 << DELAY_BITS) - 1), delays, rtol=2.0**-DIGITS, atol=0)


def test_delays_of_many_values_take_bounded_room_and_keep_mean_and_quantiles(monkeypatch):
    sources = [Bulk(path=PATH, stack=LINUX), *[Web(path=PATH, stack=LINUX)] * 3]

    def simulated():
        flow = simulate_network(sources, Bottleneck(2e6, 60), duration=300, seed=1).flows[0]
        return flow.delays, flow.mean_interval.value

    exact, mean = simulated()
    monkeypatch.setattr(delays_module, "MOST_VALUES", 100)
    few, rounded_mean = simulated()
    assert few.values.size < exact.values.size
    assert rounded_mean == pytest.approx(mean, rel=2.0**-DIGITS)
    for share in (0.05, 0.5, 0.95):
        assert few.quantile(share) == pytest.approx(exact.quantile(share), rel=2.0**-DIGITS)


@pytest.mark.parametrize(
    ("size", "payload", "parity"), [(1472, 1472, 0), (1473, 1472, 0), (6000, 1200, 2), (100, 40, 1)]
)
def test_a_message_needs_as_many_datagrams_as_it_has_without_parity(size, payload, parity):
    loss, stack = 0.1, Udp(largest_payload=payload, parity=parity)
    source = ConstantRate(flow=td.Flow(size, 0.01, write_jitter=0), path=SharedPath(0.05, loss=loss), stack=stack)
    flow = simulate_network([source], FAST, duration=300).flows[0]
    needed = math.ceil(size / payload)
    assert flow.segments_sent == (needed + parity) * flow.offered
    lost = binom.sf(parity, needed + parity, loss)
    assert flow.lost / flow.offered == pytest.approx(lost, abs=4 * math.sqrt(lost * (1 - lost) / flow.offered))


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_backlog_beyond_the_records_of_a_dispatcher_grows_for_ever(pieces):
    path = SharedPath(0.04, loss=0.005)
    source = ConstantRate(flow=td.Flow(14_000, 0.010, write_jitter=0), path=path, stack=td.Stack.linux(), pieces=pieces)
    flow = simulate_network([source], FAST, duration=2000, warm_up=100).flows[0]
    assert not flow.sustainable


def test_the_datagrams_of_a_message_follow_each_other_over_the_link():
    source = ConstantRate(
        flow=td.Flow(3000, 0.1, write_jitter=0), path=SharedPath(0.05), stack=Udp(largest_payload=1000)
    )
    flow = simulate_network([source], Bottleneck(1e6, 100), duration=10).flows[0]
    # Three datagrams with headers of 28 bytes at 1 Mbit/s.
    assert flow.delays.quantile([0.0, 1.0]) == pytest.approx(0.05 + 3 * 1028 * 8 / 1e6, abs=5e-6)
