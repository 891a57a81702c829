"""Split, spread, discarded and suppressed packets: event by event, against plain flows, and against closed forms."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from flow_counts import FAST, LINUX, PATH, RTT, assert_counted, counted_delays
from tcpdelay.models.heuristics import parallel_delay, split_delay, striped_delay
from tcpdelay.sim.congestion.of_tcp import CONNECTION
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.dispatching import UNREAD, accept, collect, discard, expected_delay, least_loaded
from tcpdelay.sim.network.simulation import prepare, simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate
from tcpdelay.sim.network.stacks import Classic, Udp
from tcpdelay.sim.network.transport import DELAY_BITS
from tcpdelay.sim.records import LOSS, OPEN
from tcpdelay.sim.tcp.window import restart_after_idle

VOICE = td.Flow(174, 0.020, write_jitter=0)
CLASSIC = Classic(receiver_window=60)


def started(packets=100, stack=LINUX, path=PATH, **how):
    source = ConstantRate(flow=VOICE, path=path, stack=stack, stop=packets * VOICE.interval, **how)
    return prepare([source], FAST, 0, 0.0, 1000.0)


# Which connection gets which packet.


@pytest.mark.parametrize("stack", [LINUX, CLASSIC])
def test_blind_packets_take_turns(stack):
    network = started(8, stack, connections=3)
    assert counted_delays(network) == {50.0: 8}
    assert network.flows.packets_written.tolist() == [3, 3, 2]
    assert network.flows.segments_sent.tolist() == [3, 3, 2]
    assert network.flows[0].offered == network.flows[0].delivered == 8


def test_the_intelligent_choice_is_the_smallest_queue_outside_a_timeout():
    network = started(connections=3, scheduling="intelligent")
    d = network.dispatchers[0]
    for state, queues, expected in [
        ([OPEN, OPEN, OPEN], [0, 0, 0], 0),
        ([OPEN, OPEN, OPEN], [300, 200, 200], 1),
        ([OPEN, LOSS, OPEN], [300, 0, 299], 2),
        ([LOSS, LOSS, LOSS], [300, 299, 400], 1),
    ]:
        for c, ca_state, queue in zip(network.connections, state, queues, strict=True):
            c.ca_state, c.written, c.snd_una = ca_state, 1000 + queue, 1000
        assert least_loaded(d, network.flows, network.carriers) == expected


def test_the_intelligent_choice_of_classic_avoids_a_backed_off_timer():
    network = started(connections=2, scheduling="intelligent", stack=CLASSIC)
    for connection, written in zip(network.connections, (1, 5), strict=True):
        connection.written = written
    assert least_loaded(network.dispatchers[0], network.flows, network.carriers) == 0
    network.connections[0].backoff = 1
    assert least_loaded(network.dispatchers[0], network.flows, network.carriers) == 1


def test_intelligent_packets_avoid_a_connection_with_a_loss():
    network = started(50, connections=2, scheduling="intelligent")
    # The first packet of the first connection is lost; until that is repaired, its queue is the longer one.
    network.flows[0].until_loss = 1
    counted_delays(network, 0.155)
    assert network.flows.packets_written.tolist() == [3, 3]
    counted_delays(network, 0.235)
    assert network.flows[1].packets_written > network.flows[0].packets_written


# The order of reads.


def test_a_packet_is_read_when_all_before_it_have_arrived():
    network = started(connections=2)
    d, (first, second), samples = network.dispatchers[0], network.flows, network.samples[0]

    def read(flow, *completions):
        flow.packets_read += len(completions)
        samples.completions[: len(completions)] = completions
        samples.completed = len(completions)
        collect(d, first, flow, samples)
        delays = samples.keys[: samples.used] - (first.number << DELAY_BITS)
        samples.used = 0
        return delays.tolist()

    for number in range(5):
        accept(d, first, network.flows[number % 2], 20 * number, 174 * (number // 2 + 1))
    # Sent, arrived and readable on its connection: the packets 1 and 3 wait for 0 and 2, which are read together.
    assert read(second, (20, 70, 70)) == []
    assert read(second, (60, 110, 110)) == []
    assert read(first, (0, 200, 200), (40, 90, 200)) == [200, 180, 160, 140]
    discard(d, first, samples, 100)
    assert read(first, (80, 130, 210)) == [130]
    accept(d, first, second, 120, 522)
    assert read(second, (120, 170, 170)) == [210 - 120]
    assert (first.offered, first.delivered, first.lost) == (7, 6, 1)


def test_over_two_connections_one_lost_packet_holds_up_both():
    network = started(60, connections=2)
    network.flows[0].until_loss = 20
    delays = counted_delays(network)
    assert sum(delays.values()) == 60
    # The other connection has lost nothing, but its packets wait too: one late packet for each interval.
    late = sorted(delay for delay in delays if delay > 51)
    assert np.allclose(np.diff(late), 20)
    assert max(late) >= 50 + RTT * 1000


# Pieces.


# Classic begins with a window of two.
@pytest.mark.parametrize(("stack", "pieces", "packets"), [(LINUX, 2, 40), (LINUX, 4, 40), (CLASSIC, 2, 1)])
def test_every_piece_is_a_segment_while_the_window_allows(stack, pieces, packets):
    network = started(packets, stack, pieces=pieces)
    delays = counted_delays(network)
    assert sum(delays.values()) == packets
    assert network.flows[0].segments_sent <= pieces * packets
    assert network.flows[0].segments_sent >= pieces * min(packets, 10 // pieces)
    assert delays[50.0] >= min(packets, 10 // pieces)


def test_what_does_not_fit_the_window_is_sent_in_full_segments():
    # Ten segments in the first round trip are the pieces of two packets and a half; then three packets and a half
    # wait until the first ACKs.
    network = started(6, pieces=4)
    counted_delays(network, 0.149)
    connection = network.connections[0]
    assert network.flows[0].segments_sent == 10
    # 174 bytes in four pieces are two of 44 bytes and two of 43.
    assert connection.snd_nxt == 2 * 174 + 88
    assert connection.written == 5 * 174
    counted_delays(network, 0.1501)
    # The first ACK of four lets one segment go, with all that was waiting; the packet of that instant follows.
    assert network.flows[0].segments_sent - 10 <= 4
    assert connection.snd_nxt >= 5 * 174


@pytest.mark.parametrize("stack", [LINUX, CLASSIC])
def test_a_packet_is_read_with_its_last_piece(stack):
    def delays(lost):
        network = started(1, stack, pieces=2)
        network.flows[0].until_loss = lost
        return counted_delays(network)

    assert delays(100) == {50.0: 1}
    for lost in (1, 2):
        ((delay, count),) = delays(lost).items()
        assert count == 1
        assert delay > 50 + 1000 * RTT


# What is discarded.


def test_the_expected_delay_is_that_of_whole_windows():
    # Two of five unsent segments fit now; three wait 3/10 of a round trip. On the way for half of one.
    assert expected_delay(5, 10, 8, 100_000) == 30_000 + 50_000
    assert expected_delay(1, 10, 9, 100_000) == 50_000
    assert expected_delay(1, 1, 1, 100_000) == 150_000
    # More in flight than the window holds makes no room.
    assert expected_delay(2, 4, 9, 100_000) == 100_000
    assert expected_delay(3, 10, 10, 0) == 0


@pytest.mark.parametrize("stack", [LINUX, Classic(receiver_window=60, tick=0.01)])
def test_what_would_be_late_is_not_written(stack):
    source = {"flow": td.Flow(1400, 0.020, write_jitter=0), "path": SharedPath(RTT / 2, loss=0.03), "stack": stack}
    plain, dropping = (
        simulate_network([ConstantRate(**source, discard_after=limit)], FAST, duration=1000, seed=1).flows[0]
        for limit in (None, 0.3)
    )
    assert plain.lost == 0
    assert 0 < dropping.lost < dropping.offered
    assert dropping.offered == dropping.delivered + dropping.lost + dropping.unfinished == plain.offered
    # A late packet and a discarded one are of no use; discarding some saves others.
    assert dropping.late_fraction(0.3) < 0.8 * plain.late_fraction(0.3)
    assert dropping.delays.quantile(0.99) < plain.delays.quantile(0.99)


def test_an_idle_connection_sends_whatever_the_delay_that_it_expects():
    network = started(packets=105, discard_after=0.0)
    # Without a measured round-trip time, for five packets, the expected delay is 0. Then it is too long for each
    # packet, and one packet is written per round trip of five or six intervals.
    assert 5 + 100 // 6 <= sum(counted_delays(network).values()) <= 5 + 100 // 5
    assert network.flows[0].delivered + network.flows[0].lost == 105


def test_an_application_that_is_never_read_discards_in_the_end():
    source = ConstantRate(flow=td.Flow(1000, 0.001, write_jitter=0), path=PATH, stack=LINUX, connections=2)
    flow = simulate_network([source], Bottleneck(1e4, 20), duration=60).flows[0]
    assert flow.lost > flow.offered - UNREAD - flow.delivered - 1 > 0
    assert flow.offered == flow.delivered + flow.lost + flow.unfinished == 60_000


# Silence.


@pytest.mark.parametrize("keepalive_size", [None, 20])
def test_only_talk_counts(keepalive_size):
    source = ConstantRate(flow=VOICE, path=PATH, stack=LINUX, talk=1.0, silence=1.5, keepalive_size=keepalive_size)
    flow = simulate_network([source], FAST, duration=10_000, seed=2).flows[0]
    assert flow.offered == flow.delivered == pytest.approx(500_000 * 1.0 / 2.5, rel=0.05)
    assert flow.segments_sent == (flow.offered if keepalive_size is None else 500_000)
    assert flow.throughput == pytest.approx(8 * 174 * flow.offered / 10_000, rel=1e-3)
    assert flow.delays.values.tolist() == [0.05]


@pytest.mark.parametrize(
    ("idle", "window", "expected"), [(50, 40, 40), (51, 40, 20), (101, 40, 10), (1000, 40, 10), (1000, 6, 6)]
)
def test_the_window_halves_for_each_timeout_of_silence(idle, window, expected):
    # RFC 2861, as `tcp_cwnd_restart` has it: down to the initial window, never up.
    c = np.zeros(1, CONNECTION).view(np.recarray)[0]
    c.tick, c.rto, c.snd_cwnd, c.snd_ssthresh, c.window_validation, c.last_send = 4000, 50, window, 20, 1, 1000
    c.now = 4000 * (1000 + idle)
    restart_after_idle(c)
    assert c.snd_cwnd == expected
    assert c.snd_ssthresh == (20 if idle <= 50 else max(20, window * 3 // 4))


# Beside plain flows.


@pytest.mark.parametrize("stack", [LINUX, td.Stack.linux("reno", delayed_ack=True), CLASSIC])
def test_with_one_connection_and_one_piece_nothing_changes(stack):
    path = SharedPath(0.03, loss=0.01)
    beside = Bulk(path=path, stack=LINUX)
    results = []
    for how in ({}, {"discard_after": 60.0}):
        # A playout delay that is never missed has the packets dispatched, and does nothing else.
        voice = ConstantRate(flow=VOICE, path=path, stack=stack, **how)
        assert voice.dispatched == bool(how)
        results.append(simulate_network([voice, beside], Bottleneck(2e6, 30), duration=300, warm_up=5, seed=3))
    plain, dispatched = results
    assert plain.queue == dispatched.queue
    for one, other in zip(plain.flows, dispatched.flows, strict=True):
        assert repr(one) == repr(other)
        np.testing.assert_array_equal(one.delays.values, other.delays.values)
        np.testing.assert_array_equal(one.delays.weights, other.delays.weights)


stacks = st.sampled_from([LINUX, td.Stack.linux("reno", delayed_ack=True), CLASSIC, Classic(ack_delay=0.2)])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.builds(
            lambda flow, keepalive, **options: ConstantRate(
                flow=flow,
                talk=0.5 if keepalive else None,
                silence=0.5 if keepalive else None,
                keepalive_size=-(-flow.packet_size // options["pieces"]) if keepalive else None,
                **options,
            ),
            flow=st.builds(td.Flow, st.integers(40, 1400), st.floats(0.005, 0.2)),
            keepalive=st.booleans(),
            path=st.builds(
                SharedPath, st.floats(0.0, 0.1), loss=st.sampled_from([0.0, 0.1]), return_jitter=st.just(0.003)
            ),
            stack=stacks,
            start=st.floats(0.0, 5.0),
            pieces=st.integers(1, 5),
            connections=st.integers(1, 5),
            scheduling=st.sampled_from(["blind", "intelligent"]),
            discard_after=st.sampled_from([None, 0.0, 0.2]),
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([2e5, 2e6, 2e7]),
    st.integers(0, 1000),
)
def test_every_packet_is_counted_once(sources, rate, seed):
    result = simulate_network(sources, Bottleneck(rate, 20), duration=12.0, warm_up=3.0, seed=seed)
    for source, flow in zip(sources, result.flows, strict=True):
        assert_counted(flow, source.path)
        assert flow.lost == 0 or source.discard_after is not None
        if source.talk is None:
            assert abs(flow.offered - 9.0 / source.flow.interval) <= 2 + max(source.start - 3, 0) / source.flow.interval


# Closed forms.


@settings(max_examples=50)
@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
    st.integers(1, 30),
    st.integers(1, 4),
)
def test_the_product_is_the_largest_of_independent_delays(values, shares, interval, connections):
    values = sorted(values)
    weights = np.array(shares[: len(values)]) / sum(shares[: len(values)])
    one = td.DelayDistribution(np.array(values) / 1e3, weights, 0.0)
    expected: dict[int, float] = {}
    for chosen in itertools.product(range(len(values)), repeat=connections):
        latest = max(values[place] - interval * j for j, place in enumerate(chosen))
        expected[latest] = expected.get(latest, 0.0) + math.prod(weights[place] for place in chosen)
    answer = striped_delay(one, interval / 1e3, connections)
    np.testing.assert_allclose(answer.values * 1e3, sorted(expected), atol=1e-6)
    np.testing.assert_allclose(answer.weights, [expected[value] for value in sorted(expected)], rtol=1e-9)


def lone(flow, seconds, **how):
    source = ConstantRate(flow=flow, path=SharedPath(0.04985, loss=0.02), stack=LINUX, **how)
    return simulate_network([source], FAST, duration=seconds, warm_up=20, seed=1).flows[0].delays


PROBABILITIES = [0.5, 0.9, 0.95, 0.99]


@pytest.mark.parametrize("size", [174, 1448])
@pytest.mark.parametrize("connections", [2, 5])
def test_parallel_connections_are_as_late_as_the_product_says(size, connections):
    simulated = lone(td.Flow(size, 0.020, write_jitter=0), 4000, connections=connections)
    product = striped_delay(
        lone(td.Flow(size, 0.020 * connections, write_jitter=0), 4000 * connections), 0.020, connections
    )
    assert product.mean == pytest.approx(simulated.mean, rel=0.02)
    np.testing.assert_allclose(product.quantile(PROBABILITIES[:3]), simulated.quantile(PROBABILITIES[:3]), rtol=0.02)
    chain = parallel_delay(td.Flow(size, 0.020, write_jitter=0), td.Path(0.0997, 0.02), LINUX, connections)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.1)


# With four pieces the chain's mean is 5.8 % too high.
@pytest.mark.parametrize("pieces", [2, 4])
def test_split_packets_are_about_as_late_as_the_chain_says(pieces):
    flow = td.Flow(348, 0.020, write_jitter=0)
    chain, simulated = split_delay(flow, td.Path(0.0997, 0.02), LINUX, pieces), lone(flow, 4000, pieces=pieces)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.06)
    assert chain.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=0.1)


def test_one_connection_and_one_piece_are_the_plain_prediction():
    path = td.Path(0.1, 0.02)
    plain = td.predict_delay(VOICE, path)
    for answer in (parallel_delay(VOICE, path, connections=1), split_delay(VOICE, path, pieces=1)):
        np.testing.assert_array_equal(answer.values, plain.values)
        np.testing.assert_array_equal(answer.weights, plain.weights)


def test_more_connections_do_not_carry_what_one_of_them_cannot():
    heavy, path = td.Flow(14_480, 0.020, write_jitter=0), td.Path(0.2, 0.05)
    assert not parallel_delay(heavy, path, connections=2).sustainable


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ({"pieces": 0}, "pieces must"),
        ({"pieces": 65}, "pieces must"),
        ({"connections": 0}, "connections must"),
        ({"scheduling": "clever"}, "scheduling must"),
        ({"discard_after": -1.0}, "discard_after must"),
        ({"talk": 1.0}, "talk and silence must"),
        ({"talk": 1.0, "silence": 0.0}, "silence must"),
        ({"keepalive_size": 10}, "keepalive_size must"),
        ({"talk": 1.0, "silence": 1.0, "keepalive_size": 175}, "keepalive_size must"),
        ({"pieces": 2, "stack": Udp()}, "stack must"),
    ],
)
def test_what_an_application_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        ConstantRate(**({"flow": VOICE, "path": PATH, "stack": LINUX} | make))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parallel_delay(VOICE, td.Path(0.1, 0.02), connections=0), "connections must"),
        (lambda: split_delay(VOICE, td.Path(0.1, 0.02), pieces=1000), "pieces must"),
        (lambda: striped_delay(td.predict_delay(VOICE, td.Path(0.1, 0.02)), 0.0, 2), "interval must"),
    ],
)
def test_closed_forms_name_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()
