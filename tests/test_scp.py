"""SCP: its states event by event, and flows of it on a shared link against the closed form."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from flow_counts import FAST, PATH, assert_counted, shared_paths
from tcpdelay.sim.literature import scp
from tcpdelay.sim.literature.scp import CONGESTED, PAUSED, SLOW_START, STEADY, scp_rate_beside, scp_share
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.link_trace import LinkTrace
from tcpdelay.sim.network.simulation import prepare, simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate, Web
from tcpdelay.sim.network.stacks import Classic, Scp
from tcpdelay.sim.records import RING
from tcpdelay.sim.tcp.constants import NEVER

RTT = 100
VOICE = td.Flow(174, 0.020)
PACKET = 8 * 1500


class Script:
    """A sender whose acknowledgements and writes are written down; all times are milliseconds."""

    def __init__(self, bulk=True, **settings):
        stack = Scp(**settings)
        source = Bulk(path=PATH, stack=stack) if bulk else ConstantRate(flow=VOICE, path=PATH, stack=stack)
        self.network = prepare([source], FAST, 0, 0.0, 1e6)
        self.flow, self.wire, self.s = self.network.flows[0], self.network.wires[0], self.network.connections[0]
        self.flow.count_from = NEVER
        if not bulk:
            self.flow.next_write, self.flow.stop = NEVER, 0

    def run(self, until):
        """Return which packets are sent up to a time, and when."""
        first = self.s.following
        while scp.next_time(self.flow, self.s, self.wire) <= until * 1000:
            scp.step(self.flow, self.s, self.wire, self.network.link[0], self.network.samples[0])
            self.s.next_ack = self.s.first_ack
        return [(round(self.wire.segments[n % RING].sent / 1000), n) for n in range(first, self.s.following)]

    def ack(self, time, number):
        """Let the acknowledgement of a packet come; return what is sent at that time."""
        assert self.run(time - 0.001) == []
        acknowledgement = self.wire.acknowledgements[self.s.first_ack % RING]
        acknowledgement.arrival, acknowledgement.segment = round(time * 1000), number
        self.s.next_ack = self.s.first_ack + 1
        return self.run(time)

    def write(self, time):
        assert self.run(time - 0.001) == []
        self.flow.next_write = round(time * 1000)
        return self.run(time)

    def outstanding(self, state, window, packets, now=1000.0):
        """Put the sender into a state at a time, with so many packets sent an RTT ago, one acknowledged per 10 ms."""
        s = self.s
        self.run(0)
        s.state, s.window, s.threshold, s.now = state, window, 500.0, round(now * 1000)
        s.base_rtt, s.rtt, s.deviation, s.rto = 1e3 * RTT, 1e3 * RTT, 0.0, 1e6
        s.oldest, s.following, s.next_send = 100, 100 + packets, 0.0
        s.counted, s.counted_since = 0, s.now
        for place in range(packets):
            segment = self.wire.segments[(100 + place) % RING]
            segment.sent = s.now + 10_000 * (place + 1) - 1000 * RTT
            segment.gone = segment.sent + 1_000_000
        s.timer_at = self.wire.segments[100].gone
        return s


def test_slow_start_opens_the_window_by_each_acknowledgement_and_paces():
    script = Script()
    assert script.run(0) == [(0, 0)]
    assert script.ack(100, 0) == [(100, 1)]
    # Two packets per round trip of 100 ms, so 50 ms apart.
    assert script.run(199) == [(150, 2)]
    assert script.ack(200, 1) == [(200, 3)]
    assert script.s.window == 3
    assert script.run(249) == [(233, 4)]
    assert script.ack(250, 2) == []
    # The pace of three per round trip goes on from 233 ms, then it is that of four.
    assert script.run(299) == [(267, 5), (292, 6)]
    assert script.ack(300, 3) == []
    assert (script.s.state, script.s.window, script.s.base_rtt) == (SLOW_START, 5, 100_000)


@pytest.mark.parametrize(("rtt", "state"), [(130, SLOW_START), (150, STEADY)])
def test_slow_start_ends_as_packets_pile_up(rtt, state):
    s = (script := Script()).outstanding(SLOW_START, 10.0, 10)
    s.rtt = 1e3 * rtt
    # Of 11 packets 11 (1 - T_brtt / T_rtt) are queued: 2.3 or 3.5, with the smoothed RTT 126 or 144 ms.
    script.ack(1010, 100)
    assert (s.state, s.window) == (state, 11)


def test_slow_start_ends_at_the_threshold():
    s = (script := Script()).outstanding(SLOW_START, 10.0, 10)
    s.threshold, s.rate = 12.0, 1e-4
    script.ack(1010, 100)
    assert s.state == SLOW_START
    script.run(1019.5)
    script.ack(1020, 101)
    assert (s.state, s.window, s.rate) == (STEADY, 12, 0)


def test_the_steady_window_follows_the_rate_of_the_acknowledgements():
    s = (script := Script()).outstanding(STEADY, 8.0, 60)
    s.base_rtt = 80_000.0
    for place in range(9):
        script.ack(1010 + 10 * place, 100 + place)
        assert s.window == 8
    # Ten acknowledgements in a round trip of 100 ms are eight in the shortest one, and W_D = 3 beyond.
    script.ack(1100, 109)
    assert s.window == s.threshold == pytest.approx(8 + 3)
    for place in range(10, 30):
        now = 1100 + 5 * (place - 9)
        script.wire.segments[(100 + place) % RING].sent = 1000 * (now - RTT)
        script.ack(now, 100 + place)
    # 20 in the next: a quarter of the step, to 12.5, is taken.
    assert s.window == pytest.approx(0.8 * 12.5 + 3)
    assert s.state == STEADY


def test_half_a_packet_of_the_window_is_left_to_the_next():
    s = (script := Script()).outstanding(CONGESTED, 2.5, 2)
    s.recover = 1000
    # Two may be outstanding, then three, 100 / 2.5 ms later.
    assert script.ack(1010, 100) == [(1010, 102)]
    assert script.run(1050) == [(1050, 103)]
    assert script.ack(1100, 101) == []
    assert script.ack(1110, 102) == [(1110, 104)]
    assert script.run(1150) == [(1150, 105)]


def test_a_gap_halves_the_window_once_until_the_first_packet_sent_then_is_acknowledged():
    s = (script := Script()).outstanding(STEADY, 12.0, 12)
    s.rate = 1e-4
    assert script.ack(1010, 101) == []
    assert (s.state, s.window, s.rate, s.recover) == (CONGESTED, 6, 0, 112)
    # Another gap, in what was sent before.
    assert script.ack(1030, 103) == []
    assert script.ack(1040, 104) == []
    assert script.ack(1050, 105) == []
    # Five are left, and a sixth may be sent. Nothing counts for the rate until that is acknowledged.
    assert script.ack(1060, 106) == [(1060, 112)]
    assert (s.state, s.window, s.rate, s.counted) == (CONGESTED, 6, 0, 0)


def congested():
    """Return a script and its connection, congested with a window of 6, whose first packet then has been sent."""
    s = (script := Script()).outstanding(STEADY, 12.0, 7)
    script.ack(1010, 101)
    script.run(1019)
    assert (s.state, s.window, s.recover) == (CONGESTED, 6, 107)
    return script, s


def acknowledge_what_was_sent_before(script, s):
    for number in range(102, 107):
        script.run(10 * number - 1)
        script.ack(10 * number, number)
        assert (s.state, s.window, s.rate) == (CONGESTED, 6, 0)
    script.run(1109)


def test_the_first_packet_sent_when_congested_ends_it():
    script, s = congested()
    assert s.following == 108
    acknowledge_what_was_sent_before(script, s)
    script.ack(1110, 107)
    assert (s.state, s.window, s.rate) == (STEADY, 6, 0)


def test_its_loss_halves_the_window_again():
    script, s = congested()
    acknowledge_what_was_sent_before(script, s)
    following = s.following
    assert following > 108
    script.ack(1120, 108)
    assert (s.state, s.window, s.recover) == (CONGESTED, 3, following)


def test_each_expiry_doubles_the_timeout():
    script = Script()
    # At first 3 s; nothing else has been sent since the last, so each expiry is a loss of the first packet.
    assert script.run(50_000) == [(0, 0), (3000, 1), (9000, 2), (21_000, 3), (45_000, 4)]
    assert (script.s.timeouts, script.s.window, script.s.state) == (4, 1, CONGESTED)
    # Then it is held at 64 s, until an estimate replaces it: an RTT, and four times half of it.
    assert script.run(45_000 + 48_000) == [(93_000, 5)]
    assert script.run(93_000 + 64_000) == [(157_000, 6)]
    assert script.ack(157_800, 6) == [(157_800, 7)]
    assert script.s.rto == 3 * 800_000
    assert script.s.state == STEADY


def test_each_packet_has_a_timer_and_only_the_first_since_the_last_loss_backs_off():
    s = (script := Script()).outstanding(STEADY, 12.0, 12)
    # Packet 100 is lost. Of 102 to 111, which were sent from 930 ms on every 10 ms, nothing is heard.
    script.ack(1010, 101)
    assert script.run(1969) == []
    assert (s.oldest, s.window, s.rto, s.timeouts) == (106, 6, 1e6, 0)
    # Five are left at 1970 ms, so a sixth is sent; then one per 90 ms / 6 as further timers end.
    assert script.run(2969) == [(1970 + 15 * place, 112 + place) for place in range(6)]
    # Of these the first, sent at 1970 ms, is lost too.
    assert script.run(2970) == []
    assert (s.state, s.window, s.rto, s.timeouts, s.recover) == (CONGESTED, 3, 2e6, 1, 118)
    assert script.run(5014) == [(3015, 118), (3045, 119), (3075, 120)]
    assert script.run(5015) == []
    assert (s.window, s.rto, s.timeouts) == (1.5, 4e6, 2)
    # The acknowledgement of a packet whose timer has ended tells nothing.
    before = s.copy()
    script.ack(5016, 118)
    assert (s.oldest, s.rtt, s.window) == (before.oldest, before.rtt, before.window)


@pytest.mark.parametrize(("pause", "window"), [(99, 8), (100, 4), (250, 2), (999, 1), (100_000, 1)])
def test_a_pause_halves_the_window_with_each_round_trip(pause, window):
    script = Script(bulk=False)
    assert script.write(0) == [(0, 0)]
    assert script.ack(100, 0) == []
    assert (script.s.state, script.s.paused_at) == (PAUSED, 100_000)
    script.s.window = 8.0
    assert script.write(100 + pause) == [(100 + pause, 1)]
    assert (script.s.state, script.s.window) == (SLOW_START, window)


def test_packets_to_spare_wait_for_the_window_in_order():
    script = Script(bulk=False)
    assert [script.write(time) for time in (0, 10, 20)] == [[(0, 0)], [], []]
    assert script.ack(100, 0) == [(100, 1)]
    assert script.run(199) == [(150, 2)]
    script.ack(200, 1)
    script.ack(250, 2)
    assert script.s.state == PAUSED


def test_a_reset_forgets_the_path_and_begins_slow_start():
    script = Script(reset_interval=1.0)
    s = script.s
    script.run(0)
    script.ack(100, 0)
    script.run(199)
    assert script.ack(200, 1) == [(200, 3)]
    assert script.run(1000) == [(233, 4), (1000, 5)]
    assert (s.state, s.window, s.threshold, s.base_rtt, s.rto) == (SLOW_START, 1, 1000, math.inf, 3e6)
    # Acknowledgements of what was sent before are no news of the path.
    assert script.ack(1010, 2) == []
    assert (s.base_rtt, s.window) == (math.inf, 1)
    assert script.ack(1300, 5) == [(1300, 6)]
    assert (s.base_rtt, s.window) == (300_000, 2)
    assert script.run(2000)[-1][0] == 2000
    assert (s.window, s.base_rtt) == (1, math.inf)


def test_a_reset_finds_the_base_rtt_of_a_longer_path():
    # 20 packets are under way on the longer path; with the old base RTT the window holds some three.
    link = Bottleneck(1e6, 1000, trace=LinkTrace.of_rates([0, 100, 1000], [1e6] * 3, [0, 0.2, 0.2]))
    without, reset = (
        simulate_network([Bulk(path=SharedPath(0.005), stack=stack)], link, duration=200, warm_up=110).queue.utilization
        for stack in (Scp(), Scp(reset_interval=101.0))
    )
    assert without < 0.4
    assert reset > 0.98


def test_three_packets_stay_queued_on_a_modem():
    # Cen, Pu, Walpole 1998: 1.2 s of buffering delay where TCP fills the 15 s that there are.
    rate, path = 28_800, SharedPath(0.05)
    link = Bottleneck(rate, 15 * rate // 8, unit="bytes")
    calm, full = (
        simulate_network([Bulk(path=path, stack=stack)], link, duration=600, warm_up=100)
        for stack in (Scp(), Classic(receiver_window=44))
    )
    assert calm.queue.mean_sojourn == pytest.approx(4 * PACKET / rate, rel=0.02)
    assert calm.queue.utilization == pytest.approx(1, abs=1e-6)
    assert calm.queue.dropped == 0
    assert full.queue.mean_sojourn > 10


@pytest.mark.parametrize(("rate", "one_way"), [(1e6, 0.05), (5e6, 0.02)])
@pytest.mark.parametrize("seed", [1, 2])
def test_two_flows_begun_together_share_evenly(rate, one_way, seed):
    sources = [Bulk(path=SharedPath(one_way, return_jitter=0.001), stack=Scp())] * 2
    result = simulate_network(sources, Bottleneck(rate, 1000), duration=300, warm_up=50, seed=seed)
    assert result.fairness > 0.98
    assert result.queue.utilization > 0.999
    assert result.queue.dropped == 0


@pytest.mark.parametrize("offset", [0.2, 1.0, 30.0])
@pytest.mark.parametrize(("rate", "one_way"), [(1e6, 0.05), (2e6, 0.02)])
def test_a_wrong_base_rtt_pays_as_the_closed_form_says(rate, one_way, offset):
    path = SharedPath(one_way, return_jitter=0.001)
    network = prepare(
        [Bulk(path=path, stack=Scp(), start=start) for start in (0, offset)], Bottleneck(rate, 1000), 1, 0, 1e3
    )
    carried = []
    for until in (300, 600):
        network.advance(until)
        carried.append(network.flows.segments_carried.copy())
    base_rtts = np.array([connection.base_rtt for connection in network.connections]) / 1e6
    errors = np.maximum(base_rtts - 2 * one_way - PACKET / rate, 0)
    shares = carried[1] - carried[0]
    # To half a packet of the window, some ten of which are in use.
    assert shares[0] / shares.sum() == pytest.approx(scp_share(rate / PACKET, *errors), abs=0.03)
    if offset == 30:
        assert 0.33 < shares[0] / shares.sum() < 0.42


def test_it_is_shy_behind_a_deep_buffer():
    sources = [Bulk(path=SharedPath(0.05, return_jitter=0.005), stack=stack) for stack in (Scp(), Classic())]
    parts = []
    for capacity in (10, 100):
        first, second = simulate_network(sources, Bottleneck(1e6, capacity), duration=300, warm_up=50).flows
        parts.append(first.throughput / (first.throughput + second.throughput))
    assert parts[0] > 0.3
    assert parts[1] < 0.1


rates = st.floats(1.0, 1e5)
base_errors = st.floats(0.0, 5.0)


@given(rates, base_errors, base_errors, st.floats(0.5, 20.0))
def test_both_forms_of_the_analysis_agree(rate, error, other_error, backlog):
    share, other = scp_share(rate, error, other_error, backlog), scp_share(rate, other_error, error, backlog)
    assert share + other == pytest.approx(1)
    assert min(share, other) > 0
    assert (share < other) == (share < 0.5)
    # Where a window is not of rounding errors only, the windows are to one another as the rates.
    windows = share * rate * error + backlog, other * rate * other_error + backlog
    extra = share * other * rate * (other_error - error)
    assert share * backlog + extra == pytest.approx(other * backlog, rel=1e-6, abs=1e-6 * max(windows))
    if min(share, other) > 1e-3:
        assert scp_rate_beside(other * rate, error, other_error, backlog) == pytest.approx(share * rate, rel=1e-6)


def test_a_rate_that_no_window_explains_is_infinite():
    assert scp_rate_beside([10.0, 50.0], error=0.1).tolist() == [15.0, math.inf]


scp_sources = st.one_of(
    st.builds(
        ConstantRate,
        flow=st.builds(td.Flow, st.integers(40, 1400), st.floats(0.005, 0.2)),
        stack=st.builds(Scp, backlog=st.floats(0.5, 10)),
        path=shared_paths,
        start=st.floats(0.0, 5.0),
    ),
    st.builds(
        Bulk, stack=st.builds(Scp, rto_min=st.sampled_from([0.001, 1.0])), path=shared_paths, start=st.floats(0.0, 5.0)
    ),
    st.builds(Bulk, stack=st.builds(Classic), path=shared_paths),
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(scp_sources, min_size=1, max_size=4),
    st.sampled_from([3e4, 3e5, 3e7]),
    st.sampled_from([1, 5, 60]),
    st.integers(0, 100),
)
def test_every_packet_is_counted_once(sources, rate, capacity, seed):
    duration = 12.0
    result = simulate_network(sources, Bottleneck(rate, capacity), duration=duration, seed=seed)
    for source, flow in zip(sources, result.flows, strict=True):
        assert_counted(flow, source.path)
        if not isinstance(source.stack, Scp):
            continue
        assert flow.lost == flow.segments_lost + flow.segments_dropped
        assert flow.delivered == flow.segments_carried
        assert flow.retransmissions == 0
        if isinstance(source, ConstantRate):
            interval = round(source.flow.interval * 1e6)
            written = math.ceil((duration * 1e6 - round(source.start * 1e6)) / interval)
            assert flow.offered == written
        else:
            assert flow.unfinished == 0
        if flow.delays is not None:
            assert flow.receiver_delay == 0
            assert flow.sender_delay + flow.network_delay == pytest.approx(flow.delays.mean)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scp(backlog=0.0), "backlog must"),
        (lambda: Scp(rate_gain=2.0), "rate_gain must"),
        (lambda: Scp(rto_min=0.0), "rto_min must"),
        (lambda: Scp(mss=10), "mss must"),
        (lambda: Scp(reset_interval=0.0), "reset_interval must lie between 0.001 and 1e\\+07 s"),
        (lambda: Web(path=PATH, stack=Scp()), "stack of Web must be Linux or Dctcp or Classic, got Scp"),
        (lambda: Bulk(path=PATH, stack=Scp(), send_buffer=10_000), "send_buffer must be None"),
        (lambda: Bulk(path=PATH, stack=Scp(), ecn=True), "ecn must"),
        (lambda: scp_share(0.0), "link_rate must"),
        (lambda: scp_share(10.0, error=-1.0), "error must"),
        (lambda: scp_rate_beside(10.0, other_error=-1.0), "other_error must"),
        (lambda: scp_rate_beside(10.0, backlog=0.0), "backlog must"),
    ],
)
def test_what_is_not_scp_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
