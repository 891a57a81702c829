"""Queues that decide about packets as they leave: against drop-tail, the RFCs' rules, and what no queue may break."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpdelay.compiling.compilation import records
from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.media import Video
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.network.bottleneck import (
    MANAGED,
    Bottleneck,
    SharedPath,
    prepare_link,
    prepare_managed_link,
    serve,
    wait,
)
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate, Web
from tcpdelay.sim.network.stacks import Classic, Dctcp, Udp
from tcpdelay.sim.network.transport import FLOW
from tcpdelay.sim.network.waiting import DISCARDED, ECT_0, ECT_1, LINK, NOBODY, NOT_ECT, take_outcome

PATH = SharedPath(access_delay=0.02, exit_delay=0.005)


def managed_link(discipline, **settings):
    """Return an empty link of 1 Mbit/s, or another rate, and its generator."""
    bottleneck = Bottleneck(**({"rate": 1e6, "discipline": discipline} | settings))
    (link,), random = records(1, LINK), np.random.default_rng(1)
    prepare_link(link, bottleneck, random)
    prepare_managed_link(link, bottleneck)
    return link, random


def outcomes(link):
    """Return flow, number, arrival, departure and mark of the packets whose outcome is known."""
    found = []
    while link.first_outcome != NOBODY:
        packet = link.packets[take_outcome(link)]
        found.append((packet.flow, packet.segment, packet.enqueued, packet.departure, packet.marked))
    return found


def run(link, arrivals, ecn=NOT_ECT):
    """Let packets arrive, given as rows (time [us], flow, bytes), until the link is empty; return all outcomes.

    `ecn` is the codepoint of the packets, or has one for each flow.
    """
    flows = records(max(flow for _, flow, _ in arrivals) + 1, FLOW)
    flows["number"], flows["ecn"] = np.arange(len(flows)), ecn
    found = []
    for number, (time, flow, length) in enumerate(arrivals):
        while link.next_service <= 1000 * time:
            serve(link)
            found += outcomes(link)
        assert wait(link, flows[flow], time, length, number, 0)
        found += outcomes(link)
    while link.next_service < 1 << 62:
        serve(link)
        found += outcomes(link)
    return found


def steady(flow, interval, length, packets, first=0):
    return [(first + interval * number, flow, length) for number in range(packets)]


@pytest.mark.parametrize("stack", [Stack.linux(), Stack.quic(), Udp()])
def test_codel_without_drops_is_drop_tail(stack):
    # Packets that wait and packets whose departure is known at once take different ways through the engine.
    video = ConstantRate(flow=Video(500_000, write_jitter=0), path=PATH, stack=stack)
    sources = [video, Bulk(path=PATH, stack=Stack.linux(), stop=4.0), Web(path=PATH, stack=Stack.linux())]
    links = (
        Bottleneck(rate=3e6, capacity=60, burst=2000),
        Bottleneck(rate=3e6, capacity=60, burst=2000, discipline="codel", target=5),
    )
    known, waiting = (simulate_network(sources, link, duration=10, seed=3) for link in links)
    assert waiting.queue.dropped > 10
    for one, other in zip(known.flows, waiting.flows, strict=True):
        assert (one.delivered, one.segments_sent, one.segments_dropped, one.retransmissions) == (
            other.delivered,
            other.segments_sent,
            other.segments_dropped,
            other.retransmissions,
        )
        assert np.array_equal(one.delays.values, other.delays.values)


@settings(max_examples=25, deadline=None)
@given(
    discipline=st.sampled_from(MANAGED),
    gaps=st.lists(st.integers(0, 30_000), min_size=1, max_size=120),
    seed=st.integers(0, 99),
    ecn=st.lists(st.sampled_from([NOT_ECT, ECT_0, ECT_1]), min_size=4, max_size=4),
    capacity=st.sampled_from([1, 7, None]),
)
def test_packets_leave_once_in_the_order_of_their_flow_and_not_faster_than_the_link(
    discipline, gaps, seed, ecn, capacity
):
    random = np.random.default_rng(seed)
    times, flows = np.cumsum(gaps), random.integers(0, 4, len(gaps))
    arrivals = [(int(time), int(flow), int(random.integers(40, 1515))) for time, flow in zip(times, flows, strict=True)]
    link, _generator = managed_link(discipline, capacity=capacity)
    found = run(link, arrivals, ecn[: 1 + max(flow for _, flow, _ in arrivals)])
    assert sorted(number for _, number, *_ in found) == list(range(len(arrivals)))
    left = [packet for packet in found if packet[3] != DISCARDED]
    assert (link.offered, link.dropped, link.queued, link.queued_bytes) == (len(found), len(found) - len(left), 0, 0)
    for flow in range(4):
        own = [number for of, number, *_ in left if of == flow]
        assert own == sorted(own)
    ends = sorted(departure for *_, departure, _ in left)
    sizes = {number: length for number, (_, _, length) in enumerate(arrivals)}
    order = sorted(left, key=lambda packet: packet[3])
    assert all(departure >= arrival for _, _, arrival, departure, _ in left)
    # With CAKE a packet leaves when its transmission begins.
    for (_, before, *_), (_, after, *_), start, end in zip(order, order[1:], ends, ends[1:], strict=False):
        assert end - start >= 8000 * sizes[before if discipline == "cake" else after] - 1000
    assert not any(marked and ecn[flow] == NOT_ECT for flow, *_, marked in found)


def test_codel_drops_an_interval_after_the_target_then_faster():
    # A packet of 1000 B every 4 ms, of which the link sends one in 8 ms.
    link, _generator = managed_link("codel")
    found = run(link, steady(0, 4000, 1000, 400))
    drops = [number for _, number, _, departure, _ in found if departure == DISCARDED]
    # CoDel decides when the packet before has left. It never drops from a queue of less than a full packet.
    before = [(departure - 8e6, arrival, number) for _, number, arrival, departure, _ in found[: drops[0]]]
    above = [now - arrival >= 5e6 and (now - 1) // 4e6 - number >= 2 for now, arrival, number in before]
    first_above = before[len(above) - above[::-1].index(False)][0]
    times = []
    last = 0
    for _, _, _, departure, _ in found:
        times += [last] if departure == DISCARDED else []
        last = departure if departure != DISCARDED else last
    assert len(drops) > 20
    assert 100e6 < times[0] - first_above <= 108e6
    # interval / sqrt(count), with the kernel's Newton steps from 1: 1, 1/2, 0.5625, 0.4995 ...
    reciprocals, x = [], 1.0
    for count in range(2, 12):
        reciprocals.append(x)
        x *= 0.5 * (3 - count * x**2)
    assert reciprocals[1] == 0.5
    for spacing, expected in zip(np.diff(times), reciprocals, strict=False):
        assert spacing == pytest.approx(100e6 * expected, abs=8.1e6)


def test_fq_codel_shares_bytes_and_lets_a_sparse_flow_pass():
    link, _generator = managed_link("fq_codel")
    floods = steady(0, 4000, 1500, 1500) + steady(1, 1000, 300, 6000) + steady(2, 50_000, 60, 120, first=100_000)
    found = run(link, sorted(floods))
    end = 6_000_000_000
    sizes = {0: 1500, 1: 300}
    shares = [sum(sizes[flow] for flow, _, _, at, _ in found if flow == own and 0 < at < end) for own in (0, 1)]
    assert shares[0] == pytest.approx(shares[1], rel=0.01)
    # A packet of the sparse flow waits for the packet that is being sent at most.
    waits = [departure - arrival for flow, _, arrival, departure, _ in found if flow == 2]
    assert max(waits) <= 12_000_000 + 480_000


def test_cake_shares_bytes_and_lets_a_sparse_flow_pass():
    link, _generator = managed_link("cake")
    floods = steady(0, 4000, 1500, 1500) + steady(1, 1000, 300, 6000) + steady(2, 50_000, 60, 120, first=100_000)
    found = run(link, sorted(floods))
    sizes = {0: 1500, 1: 300}
    shares = [sum(sizes[flow] for flow, _, _, at, _ in found if flow == own and 0 < at < 6e9) for own in (0, 1)]
    assert shares[0] == pytest.approx(shares[1], rel=0.02)
    waits = [departure - arrival for flow, _, arrival, departure, _ in found if flow == 2]
    assert max(waits) <= 12_000_000
    assert not any(departure == DISCARDED for flow, _, _, departure, _ in found if flow == 2)


def test_cake_adapts_to_a_slow_link():
    # cake_set_rate: 1.5 packets of 1514 B at 1 Mbit/s last 18.2 ms; 125 000 B/s / 4096 is below the smallest quantum.
    link, _generator = managed_link("cake")
    assert (link.target, link.interval, link.quantum) == (18_168_000, 100_000_000 + 18_168_000 - 5_000_000, 300)
    link, _generator = managed_link("cake", rate=1e9)
    assert (link.target, link.interval, link.quantum) == (5_000_000, 100_000_000, 1514)


def test_pie_drops_what_exceeds_the_rate_and_holds_the_target():
    # Without a reaction of the sender, a sixth of 1.2 times the rate must be dropped.
    link, _generator = managed_link("pie", rate=1e7)
    found = run(link, steady(0, 667, 1000, 12_000))
    late = found[6000:]
    assert np.mean([departure == DISCARDED for *_, departure, _ in late]) == pytest.approx(1 / 6, abs=0.01)
    waits = [departure - arrival - 8e5 for _, _, arrival, departure, _ in late if departure != DISCARDED]
    assert np.mean(waits) == pytest.approx(15e6, rel=0.1)
    # The burst allowance: nothing is dropped in the first 150 ms (RFC 8033, 4.4).
    assert all(arrival > 150e6 for _, _, arrival, departure, _ in found if departure == DISCARDED)


def test_dualpi2_drops_what_exceeds_the_rate_and_holds_the_target():
    # Without a reaction of the sender, a sixth of 1.2 times the rate must be dropped (RFC 9332: p_C = p^2).
    link, _generator = managed_link("dualpi2", rate=1e7)
    found = run(link, steady(0, 667, 1000, 30_000))
    late = found[15_000:]
    assert np.mean([departure == DISCARDED for *_, departure, _ in late]) == pytest.approx(1 / 6, abs=0.01)
    assert link.prob**2 == pytest.approx(1 / 6, rel=0.1)
    waits = [departure - arrival - 8e5 for _, _, arrival, departure, _ in late if departure != DISCARDED]
    assert np.mean(waits) == pytest.approx(15e6, rel=0.1)


def test_dualpi2_couples_both_queues():
    # RFC 9332, 2.1: L4S packets are marked with k p, k = 2, where the drops of the other packets have p^2.
    link, _generator = managed_link("dualpi2", rate=1e7)
    found = run(link, sorted(steady(0, 727, 1000, 30_000) + steady(1, 20_000, 174, 1090)), [NOT_ECT, ECT_1])[15_000:]
    p = np.sqrt(np.mean([departure == DISCARDED for flow, *_, departure, _ in found if flow == 0]))
    marked = [mark for flow, *_, mark in found if flow == 1]
    waits = [departure - arrival for flow, _, arrival, departure, _ in found if flow == 1]
    assert 0.2 < p < 0.45
    assert np.mean(marked) == pytest.approx(2 * p, abs=0.1)
    # They wait for the packet that is being sent, of 0.8 ms, and once in a while for another one.
    assert np.quantile(waits, 0.95) <= 939_200
    assert max(waits) <= 1_739_200
    assert not any(departure == DISCARDED for flow, *_, departure, _ in found if flow == 1)


def test_dualpi2_marks_all_l4s_packets_beyond_the_threshold():
    # Three packets of 0.8 ms each at once: they wait for 0, 0.8 and 1.6 ms, and the threshold is 1 ms (RFC 9332, A.1).
    link, _generator = managed_link("dualpi2", rate=1e7)
    bursts = [(100_000 * number + place, 0, 1000) for number in range(50) for place in range(3)]
    assert [mark for *_, mark in run(link, bursts, ECT_1)] == 50 * [0, 0, 1]
    link, _generator = managed_link("dualpi2", rate=1e7)
    assert not any(mark for *_, mark in run(link, bursts, ECT_0))


@pytest.mark.parametrize("length", [500, 1000])
def test_dualpi2_lets_no_queue_starve(length):
    # c_protection_wc: while both queues hold packets, a tenth of the bytes is left to the packets that are not L4S.
    # Without updates of the probability nothing is dropped.
    link, _generator = managed_link("dualpi2", rate=1e7, capacity=10_000, interval=100)
    floods = steady(0, 500, 1000, 4000) + steady(1, length // 2, length, 2_000_000 * 2 // length)
    found = run(link, sorted(floods), [NOT_ECT, ECT_1])
    sizes = {0: 1000, 1: length}
    sent = [sum(sizes[flow] for flow, _, _, at, _ in found if flow == own and 5e8 < at < 2e9) for own in (0, 1)]
    assert sent[0] / sum(sent) == pytest.approx(0.1, abs=0.01)


def test_dctcp_behind_dualpi2_is_marked_as_in_the_kernel():
    # Linux 7.3, validation/queue-captures/dualpi2: voice and one transfer, both with DCTCP, at 20 Mbit/s and 20 ms. The
    # router marked 0.1749 of the packets, and 95 % of the messages took less than 12.23 ms.
    path = SharedPath(access_delay=0.01, in_host=True)
    voice = ConstantRate(flow=Flow(174, 0.02, write_jitter=0), path=path, stack=Dctcp(), l4s=True, header=66)
    bulk = Bulk(path=path, stack=Dctcp(delayed_ack=True), l4s=True, header=66)
    result = simulate_network([voice, bulk], Bottleneck(2e7, discipline="dualpi2", burst=2000), duration=60, seed=1)
    assert result.queue.marked / result.queue.offered == pytest.approx(0.1749, rel=0.01)
    assert result.flows[0].delays.quantile(0.95) == pytest.approx(0.01223, rel=0.01)
    assert result.queue.dropped == 0


def test_dctcp_needs_marks_and_only_some_stacks_are_l4s():
    with pytest.raises(InvalidValueError, match=r"^ecn must be True with Dctcp, unless l4s is, got False$"):
        Bulk(path=PATH, stack=Dctcp())
    with pytest.raises(InvalidValueError, match=r"^l4s must be False with Linux, got True$"):
        Bulk(path=PATH, stack=Stack.linux(), l4s=True)


@pytest.mark.parametrize("discipline", MANAGED)
def test_marks_take_the_place_of_drops(discipline):
    def voice_and_bulk(ecn):
        sources = [
            ConstantRate(flow=Flow(174, 0.02, write_jitter=0), path=PATH, stack=Stack.linux(), ecn=ecn),
            Bulk(path=PATH, stack=Stack.linux(), ecn=ecn),
        ]
        return simulate_network(sources, Bottleneck(3e6, discipline=discipline), duration=40, warm_up=5, seed=1)

    marked, dropped = voice_and_bulk(True), voice_and_bulk(False)
    assert marked.queue.marked > 20 > marked.queue.dropped
    assert dropped.queue.dropped > 20 > dropped.queue.marked == 0
    # The long transfer no longer fills a queue of a second.
    assert dropped.flows[0].delays.quantile(0.95) < 0.12
    assert dropped.flows[1].throughput > 2e6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"discipline": "drop-tail"}, r"capacity must be a number in packets, got None"),
        ({"discipline": "drop-tail", "capacity": 9, "target": 0.01}, r"target must go with 'codel', .*, got 0\.01"),
        ({"capacity": 10_241}, r"capacity must lie between 1 and 10240 packets, got 10241"),
        ({"unit": "bytes"}, r"unit must be 'packets' with 'codel', got 'bytes'"),
        ({"target": 0}, r"target must lie between 0\.0001 and 5 s, got 0"),
        ({"interval": 1e3}, r"interval must lie between 0\.001 and 100 s, got 1000"),
        ({"quantum": 255}, r"quantum must lie between 256 and 65535 bytes, got 255"),
        ({"flows": 1025}, r"flows must lie between 1 and 1024 queues, got 1025"),
        ({"discipline": "cake", "burst": 2000}, r"burst must be 0 bytes with 'cake', .*, got 2000"),
    ],
)
def test_an_impossible_managed_link_is_refused(arguments, message):
    with pytest.raises(InvalidValueError, match=f"^{message}$"):
        Bottleneck(**({"rate": 1e6, "discipline": "codel"} | arguments))


def test_transports_that_know_arrivals_at_once_are_refused():
    source = ConstantRate(flow=Flow(174, 0.02, write_jitter=0), path=PATH, stack=Classic())
    with pytest.raises(InvalidValueError, match=r"discipline must be 'drop-tail', .* with Classic, got 'codel'"):
        simulate_network([source], Bottleneck(1e6, discipline="codel"), duration=1)
