"""Sources on a shared link: against the single-flow simulator, closed forms, and counts of every message."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

import tcpdelay as td
from flow_counts import FAST, LINUX, PATH, assert_counted
from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.source import is_exact
from tcpdelay.sim.engine import TCP, new_connection
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.simulation import prepare, simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate
from tcpdelay.sim.network.stacks import Scp
from tcpdelay.sim.network.transport import AHEAD, DELAY_BITS, KIND_BITS, UNREAD
from tcpdelay.sim.writes import WriteSchedule

VIDEO = td.Video(1_000_000)


class InOrder:
    """Takes the delays [us] and the kinds of the messages in the order of reading."""

    def __init__(self):
        self.keys = np.empty(0, np.int64)

    def take(self, samples):
        self.keys = np.append(self.keys, samples.keys[: samples.used])

    @property
    def delays(self):
        return self.keys & ((1 << DELAY_BITS) - 1)

    @property
    def kinds(self):
        return self.keys >> DELAY_BITS & ((1 << KIND_BITS) - 1)


# Packets at a constant rate; messages of many sizes; windows that idle; small writes that share segments.
SOURCES = {
    "packets": td.Flow(174, 0.020, write_jitter=0),
    "packets of several segments": td.Flow(3000, 0.050, write_jitter=0),
    "video": VIDEO,
    "speech": td.Speech(174, 0.020),
    "replies": td.Utterances(960, 0.020, speed=8, pause=2.0),
    "messages": td.Messages(200, td.ParetoSizes(300)),
    "late writes": td.Flow(500, 0.010, write_jitter=0.004),
    "large, after idle time": td.Messages(0.7, td.LognormalSizes(60_000, 0.5)),
    "trace": td.Trace(
        [0.0, 0.001, 0.4, 0.4, 1.9], [40_000, 1, 1448, 2897, 300], period=2.3, labels=["a", "b"] + ["c"] * 3
    ),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(
    "stack",
    [
        LINUX,
        td.Stack.linux("reno"),
        td.Stack.linux(delayed_ack=True),
        td.Stack.linux("reno", delayed_ack=True),
        td.Stack.linux(window_validation=False),
    ],
    ids=str,
)
def test_alone_on_a_fast_link_each_message_of_a_source_is_as_late_as_on_a_path(name, stack):
    # The RTT is no multiple of an interval, as the two take things that happen at one instant in different order.
    source, rtt, loss = SOURCES[name], 0.097746, 0.01
    messages = 20_000 if is_exact(source) else 3000
    connection, wire = new_connection(source, td.Path(rtt=rtt, loss=loss), stack, 5)
    first = next(source.blocks(7, size=messages + 1))
    duration = (first["time"][-2] + first["time"][-1]) / 2
    carried = ConstantRate(flow=source, path=SharedPath(rtt / 2, loss=loss), stack=stack)
    network = prepare([carried], FAST, 7, 0.0, float(duration))
    # The same losses, and the same phase of the clock. No segment takes time on the link.
    network.generators[0].bit_generator.state = wire.random.bit_generator.state
    network.flows[0].until_loss = connection.until_loss
    network.connections[0].tick_phase = connection.tick_phase
    network.link[0].nanoseconds_per_byte = 0.0
    found = InOrder()
    network.advance(duration + 100, found)
    schedule = None
    if not is_exact(source):
        schedule = WriteSchedule(source, 7)
        schedule.begin(connection)
    TCP.advance(connection, wire, messages, schedule)
    np.testing.assert_array_equal(found.delays, wire.delays_of(0, messages)[0])
    np.testing.assert_array_equal(found.kinds, first["kind"][:messages])
    assert connection.segments_lost > 10


def test_a_trace_of_a_flow_has_the_results_of_the_flow_beside_other_flows():
    flow = td.Flow(3000, 0.030, write_jitter=0)
    packets = next(flow.blocks(size=2000))
    trace = td.Trace(packets["time"], packets["size"], period=60.0)
    path = SharedPath(0.03, loss=0.01)
    constant, scheduled = (
        simulate_network(
            [ConstantRate(flow=source, path=path, stack=LINUX), Bulk(path=path, stack=LINUX, start=5.0)],
            Bottleneck(4e6, 6),
            duration=100,
            warm_up=10,
            seed=2,
        )
        for source in (flow, trace)
    )
    assert [each.flows[0].name for each in (constant, scheduled)] == ["ConstantRate over Linux", "Trace over Linux"]
    assert repr(constant.queue) == repr(scheduled.queue)
    assert repr(constant.flows[1]) == repr(scheduled.flows[1])
    assert constant.flows[0].segments_dropped > 5
    for one, other in zip(*(vars(each.flows[0]).items() for each in (constant, scheduled)), strict=True):
        if one[0] not in ("name", "delays", "late_errors"):
            assert one == other
    np.testing.assert_array_equal(constant.flows[0].delays.values, scheduled.flows[0].delays.values)
    np.testing.assert_array_equal(constant.flows[0].delays.weights, scheduled.flows[0].delays.weights)


sources = st.one_of(
    st.builds(td.Video, st.floats(1e5, 2e6), key_interval=st.floats(0.5, 3.0), key_ratio=st.floats(1.0, 20.0)),
    st.builds(td.Speech, st.integers(1, 2000), st.floats(0.005, 0.1), talk=st.floats(0.05, 3.0)),
    st.builds(td.Utterances, st.integers(100, 3000), st.floats(0.01, 0.1), speed=st.floats(1.0, 20.0)),
    st.builds(td.Messages, st.floats(0.5, 2000), st.integers(1, 5000)),
    st.builds(
        lambda gaps, sizes, period: td.Trace(np.cumsum(gaps), sizes[: len(gaps)], period and sum(gaps) + period),
        st.lists(st.floats(0.0, 0.5), min_size=1, max_size=40),
        st.lists(st.integers(1, 100_000), min_size=40, max_size=40),
        st.sampled_from([None, 0.5]),
    ),
)
carried_sources = st.builds(
    ConstantRate,
    flow=sources,
    path=st.builds(SharedPath, st.floats(0.0, 0.1), st.floats(0.0, 0.1), loss=st.sampled_from([0.0, 0.01, 0.1])),
    stack=st.one_of(
        st.builds(td.Stack.linux, st.sampled_from(["reno", "cubic", "bbr"]), delayed_ack=st.booleans()),
        st.builds(td.Udp, parity=st.integers(0, 2)),
    ),
    start=st.floats(0.0, 12.0),
    stop=st.sampled_from([13.0, np.inf]),
)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(carried_sources, min_size=1, max_size=3),
    st.builds(Bottleneck, st.sampled_from([2e5, 2e6, 2e7]), st.integers(2, 60)),
    st.integers(0, 1000),
)
@example(
    # The first segment of the last flow absorbs all segments behind it, and its first copy has arrived.
    [
        ConstantRate(flow=td.Video(1e5, key_interval=1.0, key_ratio=1.0), path=SharedPath(0.0), stack=LINUX),
        ConstantRate(
            flow=td.Speech(1, 0.03125, talk=0.5), path=SharedPath(0.0625), stack=td.Stack.linux("reno"), start=7.0
        ),
    ],
    Bottleneck(2e5, 51),
    2,
)
def test_every_message_is_counted_once_in_all_and_by_kind(carried, link, seed):
    warm_up, duration = 3.0, 15.0
    bulk = Bulk(path=PATH, stack=LINUX)
    result = simulate_network([*carried, bulk], link, duration=duration, warm_up=warm_up, seed=seed)
    for each, flow in zip(carried, result.flows, strict=False):
        assert_counted(flow, each.path)
        assert flow.lost == 0 or isinstance(each.stack, td.Udp) or not flow.settled
        if flow.by_kind:
            for name in ("offered", "delivered", "lost", "unfinished"):
                assert getattr(flow, name) == sum(getattr(of_kind, name) for of_kind in flow.by_kind.values())
        if flow.delays is not None:
            assert flow.delays.weights.sum() == pytest.approx(1)
            by_kind = [(k.delivered * k.delays.mean) for k in flow.by_kind.values() if k.delays is not None]
            assert not by_kind or sum(by_kind) / flow.delivered == pytest.approx(flow.delays.mean)
    # The first source writes the messages of the seed.
    first = carried[0]
    times = round(first.start * 1e6) + np.rint(first.flow.messages(20.0, seed)["time"] * 1e6)
    counted = (times >= warm_up * 1e6) & (times < min(duration, first.stop) * 1e6)
    assert result.flows[0].offered == counted.sum()


@pytest.mark.parametrize("parity", [0, 2])
def test_a_large_message_is_lost_more_often_over_datagrams(parity):
    loss, sizes = 0.05, {"small": 1000, "large": 14_000}
    trace = td.Trace([0.0, 0.01], list(sizes.values()), period=0.02, labels=list(sizes))
    stack = td.Udp(largest_payload=1400, parity=parity)
    source = ConstantRate(flow=trace, path=SharedPath(0.05, loss=loss), stack=stack)
    flow = simulate_network([source], FAST, duration=400).flows[0]
    assert flow.segments_sent == (11 + 2 * parity) * 20_000
    for kind, datagrams in (("small", 1), ("large", 10)):
        of_kind, lost = flow.by_kind[kind], binom.sf(parity, datagrams + parity, loss)
        assert of_kind.offered == 20_000
        assert of_kind.lost / of_kind.offered == pytest.approx(lost, abs=4 * np.sqrt(lost * (1 - lost) / 20_000))
        assert of_kind.delays.values == pytest.approx([0.05])


def test_the_messages_of_a_source_share_the_link_with_its_queue():
    # Three segments with headers of 52 bytes at 1 Mbit/s; of the second message, one behind the other.
    trace = td.Trace([0.0, 1.0], [100, 2 * 1448 + 100], period=2.0)
    source = ConstantRate(flow=trace, path=PATH, stack=LINUX)
    flow = simulate_network([source], Bottleneck(1e6, 100), duration=20).flows[0]
    times = np.array([152, 2 * 1500 + 152]) * 8 / 1e6
    assert flow.delays.values == pytest.approx(0.05 + times, abs=2e-6)
    assert flow.throughput == pytest.approx((100 + 2 * 1448 + 100) * 8 / 2)
    assert flow.by_kind == {}


def test_messages_beyond_the_records_are_lost_and_nothing_is_settled():
    source = ConstantRate(flow=td.Messages(2000, 500), path=PATH, stack=LINUX)
    flow = simulate_network([source], Bottleneck(1e6, 20), duration=100).flows[0]
    # The link sends some 200 messages a second; the rest waits, up to `UNREAD` of them, and is lost.
    assert flow.offered == pytest.approx(200_000, rel=0.02)
    assert flow.offered == flow.delivered + flow.lost + flow.unfinished
    assert flow.offered - flow.delivered - UNREAD <= flow.lost < flow.offered - UNREAD
    assert not flow.sustainable
    assert not flow.settled
    network = prepare([source], Bottleneck(1e6, 20), 0, 0.0, 100.0)
    network.advance(50.0)
    assert network.flows[0].packets_written - network.flows[0].packets_read == UNREAD - 1


def test_sources_with_the_same_parameters_write_different_messages():
    sources = [ConstantRate(flow=td.Messages(100, 500), path=PATH, stack=LINUX)] * 3
    counts = [
        [flow.offered for flow in simulate_network(sources, FAST, duration=100, seed=seed).flows] for seed in (0, 0, 1)
    ]
    assert counts[0] == counts[1]
    assert len(set(counts[0] + counts[2])) == 6


@pytest.mark.parametrize(("stack", "control"), [(LINUX, "cubic"), (td.Udp(), None)])
def test_a_trace_without_a_period_ends(stack, control):
    times = np.arange(3 * AHEAD) * 0.001
    source = ConstantRate(flow=td.Trace(times, np.full(times.size, 100)), path=PATH, stack=stack, start=1.0)
    flow = simulate_network([source], FAST, duration=100).flows[0]
    assert flow.offered == flow.delivered == times.size


def carried(flow=VIDEO, stack=LINUX, **options):
    return ConstantRate(flow=flow, path=PATH, stack=stack, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: carried(stack=Scp()),
            "stack must be Linux or Dctcp or Quic or Classic or TimeLined or Udp with a source that is no .*, got Scp",
        ),
        (
            lambda: carried(td.Flow(174, 0.020, 0.002), Scp()),
            "stack must be Linux or .* or TimeLined or Udp with a write_jitter above 0.001 s, got Scp",
        ),
        (
            lambda: carried(td.Flow(174, 0.020, 0.002), pieces=2),
            "flow must not have a write_jitter above 0.001 s where packets are split, .*, got Flow",
        ),
        (lambda: carried(pieces=2), "flow must be a Flow where packets are split, .*, got Video"),
        (lambda: carried(connections=2), "flow must be a Flow where packets are split, .*, got Video"),
        (lambda: carried(discard_after=0.2), "flow must be a Flow where packets are split, .*, got Video"),
        (lambda: carried(talk=1.0, silence=1.0), "flow must be a Flow where packets are split, .*, got Video"),
        (lambda: carried(keepalive_size=1), "flow must be a Flow where packets are split, .*, got Video"),
        (lambda: carried(forging=True), "forging must be False, got True; it needs a single connection of Classic"),
        (lambda: carried(flow="live-video"), "flow must be a Source, got 'live-video'"),
        (
            lambda: simulate_network([carried(td.Trace([0.0] * (AHEAD + 1), [9] * (AHEAD + 1)))], FAST, duration=1),
            "flow must write at most 4096 messages in a microsecond, got Trace",
        ),
    ],
)
def test_what_has_no_meaning_with_a_source_is_refused_in_one_line(make, message):
    with pytest.raises(InvalidValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)
