"""Paths that vary in time: Gilbert's channel of losses, and links with a trace."""

import itertools
import math
import random
import re
from collections import deque
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import tcpdelay as td
from tcpdelay import Flow, Stack
from tcpdelay.compiling.compilation import kernel
from tcpdelay.scenario import InvalidValueError
from tcpdelay.sim.engine import new_connection
from tcpdelay.sim.network.bottleneck import DROPPED, Bottleneck, SharedPath, enqueue, prepare_link
from tcpdelay.sim.network.link_trace import OPPORTUNITY, LinkTrace, read_link_trace, trace_departure
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate
from tcpdelay.sim.network.stacks import Udp
from tcpdelay.sim.network.waiting import LINK
from tcpdelay.sim.path import is_lost
from tcpdelay.study.transports import shared_path
from tcpdelay.testbed.queues import Departures
from tcpdelay.testbed.topology import EmulatedPath

# Gilbert's channel with dwell times: against a plain-Python twin and against probability theory

VOICE = td.Flow(174, 0.020, write_jitter=0)
RADIO = td.Path(rtt=0.060, loss=0.02, bad_time=0.100, bad_loss=0.8)
OFTEN_BAD = td.Path(rtt=0.1, loss=0.3, bad_time=0.050, bad_loss=0.5)
SILENT = td.Path(rtt=0.060, loss=0.02, bad_time=0.100)
MOST_ERRORS = 4.0
"""Standard errors by which a figure may differ from its expectation."""


@kernel()
def draw_losses(connection, wire, times, lost):
    """Draw for each of the `times` [us] whether a segment is lost."""
    for number in range(times.size):
        lost[number] = is_lost(connection, wire, times[number])


def losses(path, times, seed):
    """Return whether segments that are sent at `times` [s] are lost in the simulator."""
    connection, wire = new_connection(VOICE, path, td.Stack.linux(), seed)
    lost = np.empty(len(times), bool)
    draw_losses(connection, wire.record, np.rint(np.asarray(times) * 1e6).astype(np.int64), lost)
    return lost


def twin_losses(path, times, seed):
    """Return the same by the definition: states that last for random times, and losses in the bad state."""
    draw = random.Random(seed)
    bad_share = path.loss / path.bad_loss
    mean_good = path.bad_time * (1 - bad_share) / bad_share
    bad = draw.random() < bad_share
    until, lost = draw.expovariate(1 / (path.bad_time if bad else mean_good)), []
    for time in times:
        while until <= time:
            bad = not bad
            until += draw.expovariate(1 / (path.bad_time if bad else mean_good))
        lost.append(bad and draw.random() < path.bad_loss)
    return np.array(lost)


def standard_error_of_mean(path, interval, count):
    """Return the standard error of the share of losses of `count` segments, one per `interval` [s]."""
    share = path.loss / path.bad_loss
    kept = np.exp(-interval / (path.bad_time * (1 - share)))
    correlated = 2 * path.bad_loss**2 * share * (1 - share) * kept / (1 - kept)
    return np.sqrt((path.loss * (1 - path.loss) + correlated) / count)


@pytest.mark.parametrize("path", [RADIO, SILENT, OFTEN_BAD])
@pytest.mark.parametrize("lost_of", [losses, twin_losses])
def test_the_mean_loss_over_time_is_as_declared(path, lost_of):
    interval, count = 0.010, 300_000
    share = lost_of(path, np.arange(count) * interval, seed=1).mean()
    assert share == pytest.approx(path.loss, abs=MOST_ERRORS * standard_error_of_mean(path, interval, count))


def test_the_first_segment_meets_the_mean_loss():
    first = [losses(RADIO, [0.0], seed)[0] for seed in range(2000)]
    assert np.mean(first) == pytest.approx(0.02, abs=MOST_ERRORS * np.sqrt(0.02 * 0.98 / 2000))


@pytest.mark.parametrize("lost_of", [losses, twin_losses])
def test_both_states_last_for_exponential_times(lost_of):
    # A probe every millisecond: the length of a run is the time in a state to a millisecond, which is spread evenly.
    step, count = 0.001, 1_000_000
    runs = [(lost, len(list(run))) for lost, run in itertools.groupby(lost_of(SILENT, np.arange(count) * step, seed=2))]
    spread = np.random.default_rng(1)
    for state, mean in ((True, SILENT.bad_time), (False, SILENT.good_time)):
        lengths = np.array([length for lost, length in runs[1:-1] if lost == state], float)
        lengths = (lengths - 1 + spread.random(lengths.size) + spread.random(lengths.size)) * step
        error = MOST_ERRORS / np.sqrt(lengths.size)
        assert lengths.size > 150
        assert lengths.mean() == pytest.approx(mean, rel=error)
        # The coefficient of variation of an exponential time is 1, with a standard error of sqrt(2 / n).
        assert lengths.std() / lengths.mean() == pytest.approx(1, abs=error * np.sqrt(2))
        assert stats.kstest(lengths, stats.expon(scale=mean).cdf).pvalue > 0.001


@pytest.mark.parametrize("path", [RADIO, OFTEN_BAD])
def test_the_channel_agrees_with_its_twin_at_any_spacing(path):
    # Segments in a row at one instant, and pauses from a fraction of the bad time to many times of it.
    gaps = np.tile([0.0, 0.0, 0.004, 0.030, 0.150, 2.0], 60_000)
    found, expected = (lost_of(path, np.cumsum(gaps), seed=3) for lost_of in (losses, twin_losses))
    for place, gap in enumerate(gaps[:6]):
        # The share that is lost too, after a loss and after a delivery.
        for before in (True, False):
            counts = []
            for lost in (found, expected):
                following = lost[1:][(lost[:-1] == before) & (np.arange(1, lost.size) % 6 == place)]
                counts.append((following.sum(), following.size))
            (a, n), (b, m) = counts
            pooled = (a + b) / (n + m)
            error = np.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
            assert abs(a / n - b / m) < MOST_ERRORS * error, (gap, before)


def test_at_one_instant_the_state_is_one():
    assert set(losses(SILENT, np.repeat(np.arange(2000) * 0.05, 5), seed=4).reshape(-1, 5).sum(axis=1)) == {0, 5}


def test_a_bad_state_ends_while_the_sender_waits():
    # Each retransmission that is backed off meets the same burst of segments, but a later state of the path.
    bursts = td.simulate(VOICE, td.Path(rtt=0.060, loss=0.01, loss_burst=3.0), packets=200_000, seed=1)
    states = td.simulate(VOICE, td.Path(rtt=0.060, loss=0.01, bad_time=0.060), packets=200_000, seed=1)
    assert bursts.quantile(0.99) > 10
    # A bad state of 1.2 s has a probability of exp(-20); the backed-off retransmission comes within twice the time.
    assert states.quantile(0.99) < 0.5
    assert states.quantile(1.0) < 3.0


def test_the_command_for_a_radio_link_prints_milliseconds(run):
    radio = ["--bad-time", "60ms", "--bad-loss", "100%", "--method", "auto", "--packets", "100000"]
    arguments = ["--rtt", "60ms", "--loss", "1%", "--app", "opus", "--over", "wss-down", "--jitter", "30ms", *radio]
    status, printed, _ = run("predict", *arguments)
    lines = dict(re.split(r" {2,}", line) for line in printed.splitlines()[1:])
    assert status == 0
    because = "bad time; jitter must be at most 0.02 s, the interval"
    assert lines["method"] == f"simulation: the chain does not model this scenario ({because})"
    assert float(lines["95 % come within"].removesuffix(" ms")) < 100
    assert float(lines["99 % come within"].removesuffix(" ms")) < 500


@pytest.mark.parametrize("change", [{}, {"jitter": 0.03}, {"ack_loss": 0.1}])
def test_a_simulation_loses_the_declared_share(change):
    # One segment per second is sent again soon after its loss, and the path has long forgotten its state by the next.
    path = td.Path(rtt=0.010, loss=0.05, bad_time=0.001, **change)
    counts = td.simulate(td.Flow(174, 1.0, write_jitter=0), path, packets=20_000, seed=1).counts
    share = counts["segments_lost"] / counts["segments_sent"]
    assert share == pytest.approx(0.05, abs=MOST_ERRORS * np.sqrt(0.05 * 0.95 / counts["segments_sent"]))


def test_flows_on_a_shared_link_have_the_channel_too():
    path = SharedPath(0.030, loss=0.05, bad_time=0.050, bad_loss=0.5)
    source = ConstantRate(flow=td.Flow(174, 0.010, write_jitter=0), path=path, stack=Udp())
    (flow,) = simulate_network([source], Bottleneck(rate=1e8, capacity=100), duration=2000, seed=1).flows
    declared = td.Path(rtt=0.060, loss=0.05, bad_time=0.050, bad_loss=0.5)
    error = standard_error_of_mean(declared, 0.010, flow.segments_sent)
    assert flow.segments_lost / flow.segments_sent == pytest.approx(0.05, abs=MOST_ERRORS * error)
    # Independent losses would have a quarter of the error: the test sees the channel.
    assert error > 2 * np.sqrt(0.05 * 0.95 / flow.segments_sent)


def test_a_comparison_of_transports_takes_the_channel_over():
    taken = shared_path(RADIO)
    assert (taken.loss, taken.bad_time, taken.bad_loss) == (RADIO.loss, RADIO.bad_time, RADIO.bad_loss)


@pytest.mark.parametrize("path", [partial(td.Path, rtt=0.1), partial(SharedPath, access_delay=0.1)])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bad_time": -1}, r"^bad_time must lie between 0 and 60 s, got -1$"),
        (
            {"bad_time": 61},
            r"^bad_time must lie between 0 and 60 s, got 61; the duration is given in seconds: 100 ms is 0\.100$",
        ),
        ({"bad_time": 0.1, "bad_loss": 0}, r"^bad_loss must be a fraction above 0, up to 1, got 0$"),
        ({"bad_time": 0.1, "bad_loss": 1.1}, r"^bad_loss must be a fraction above 0, up to 1, got 1\.1$"),
        ({"bad_time": 0.1, "bad_loss": 0.02}, r"^loss must be below the bad_loss of 0\.02, got 0\.02$"),
        ({"bad_time": 0.1, "loss_burst": 2}, r"^loss_burst must be 1 with a bad_time of 0\.1 s, got 2$"),
        ({"bad_loss": 0.5}, r"^bad_loss must be 1 without a bad_time, got 0\.5$"),
    ],
)
def test_a_channel_that_cannot_be_is_refused(path, change, message):
    with pytest.raises(ValueError, match=message):
        path(loss=0.02, **change)


# Links with a trace: against mahimahi's algorithm and a fluid link in plain Python, and broken traces

ALIVE = []
"""Traces whose arrays the links of the tests use."""


def link_of(trace, capacity=10_000):
    ALIVE.append(trace)
    links = np.zeros(1, LINK).view(np.recarray)
    bottleneck = Bottleneck(rate=trace.mean_rate, capacity=capacity, trace=trace)
    prepare_link(links[0], bottleneck, np.random.default_rng(0))
    return links[0]


class Mahimahi:
    """`LinkQueue` of mahimahi's link_queue.cc, line by line, with an endless queue and times in milliseconds."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.next_delivery, self.base = 0, 0
        self.waiting, self.in_transit, self.left = deque(), None, 0
        self.departures = {}

    def next_time(self):
        return self.schedule[self.next_delivery] + self.base

    def use_a_delivery_opportunity(self):
        self.next_delivery = (self.next_delivery + 1) % len(self.schedule)
        # wraparound
        if self.next_delivery == 0:
            self.base += self.schedule[-1]

    def rationalize(self, now):
        while self.next_time() <= now:
            this_time, budget = self.next_time(), OPPORTUNITY
            self.use_a_delivery_opportunity()
            while budget > 0:
                if self.left == 0:
                    if not self.waiting:
                        break
                    self.in_transit, self.left = self.waiting.popleft()
                sent = min(self.left, budget)
                self.left -= sent
                budget -= sent
                if self.left == 0:
                    self.departures[self.in_transit] = this_time

    def read_packet(self, now, number, size):
        self.rationalize(now)
        self.waiting.append((number, size))


def fluid_departure(trace, start, bits):
    """When a fluid link that begins at `start` [s] has sent `bits`: by steps of whole entries, with no place kept."""
    times = [*(trace.times / 1e9), trace.duration]
    cycle, offset = divmod(start, trace.duration)
    entry = int(np.searchsorted(times, offset, side="right")) - 1
    while True:
        end = times[entry + 1]
        if trace.rates[entry] * (end - offset) >= bits:
            return cycle * trace.duration + offset + bits / trace.rates[entry]
        bits -= trace.rates[entry] * (end - offset)
        entry, offset = entry + 1, end
        if entry == len(trace.times):
            entry, offset, cycle = 0, 0.0, cycle + 1


GAPS = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(any)
PACKETS = st.lists(st.tuples(st.integers(0, 60_000), st.integers(40, 1500)), min_size=1, max_size=60)


@settings(max_examples=60)
@given(GAPS, PACKETS)
def test_opportunities_are_used_as_mahimahi_uses_them(gaps, packets):
    schedule = np.cumsum(gaps).tolist()
    link, reference, now, found = link_of(LinkTrace.of_opportunities(schedule)), Mahimahi(schedule), 0, []
    for number, (gap, size) in enumerate(packets):
        now += gap
        found.append(enqueue(link, now, size, False))
        # mahimahi reads its clock in whole milliseconds.
        reference.read_packet(now // 1000, number, size)
    reference.rationalize(now // 1000 + 10**6)
    assert found == [1000 * reference.departures[number] for number in range(len(packets))]


RATES = st.lists(st.tuples(st.integers(1, 2000), st.sampled_from([0, 1e5, 1e6, 7e6])), min_size=2, max_size=20).filter(
    lambda rows: any(rate for _, rate in rows)
)


@settings(max_examples=60)
@given(RATES, PACKETS)
def test_rates_serve_as_a_fluid_link_does(rows, packets):
    times = np.cumsum([0, *(gap / 1000 for gap, _ in rows[1:])]).tolist()
    trace = LinkTrace.of_rates(times, [rate for _, rate in rows])
    link, now, free = link_of(trace), 0, 0.0
    for gap, size in packets:
        now += gap
        free = fluid_departure(trace, max(now / 1e6, free), 8 * size)
        assert enqueue(link, now, size, False) == pytest.approx(1e6 * free, abs=2)


@settings(max_examples=60)
@given(GAPS, RATES, PACKETS, st.booleans())
def test_the_testbeds_link_serves_as_the_simulated_one(gaps, rows, packets, opportunities):
    if opportunities:
        trace = LinkTrace.of_opportunities(np.cumsum(gaps))
    else:
        times = np.cumsum([0, *(gap / 1000 for gap, _ in rows[1:])]).tolist()
        trace = LinkTrace.of_rates(times, [rate for _, rate in rows], [gap / 1e4 for gap, _ in rows])
    link, now = link_of(trace), 0
    departures = Departures(EmulatedPath(rtt=0.1, trace=trace).forward.trace)
    for gap, size in packets:
        now += 1000 * gap
        departed = trace_departure(link, now, size)
        link.last_departure = departed
        assert departures.after(now, size) == (departed, departed + link.added_delay)


@given(PACKETS)
@settings(max_examples=20)
def test_one_rate_in_a_trace_is_a_link_of_this_rate(packets):
    link, now = link_of(LinkTrace.of_rates([0], [3e6])), 0
    plain = np.zeros(1, LINK).view(np.recarray)
    prepare_link(plain[0], Bottleneck(rate=3e6, capacity=10_000), np.random.default_rng(0))
    for gap, size in packets:
        now += gap
        assert enqueue(link, now, size, False) == pytest.approx(enqueue(plain[0], now, size, False), abs=1)


def test_a_delay_that_falls_lets_no_packet_overtake():
    link = link_of(LinkTrace.of_rates([0, 0.010, 0.020], [12e6, 12e6, 12e6], [0.005, 0.001, 0.001]))
    assert [enqueue(link, now, 1500, False) for now in (0, 8000, 10_000, 20_000)] == [6000, 14_000, 14_000, 22_000]


def test_a_long_pause_skips_whole_repetitions():
    link = link_of(LinkTrace.of_opportunities([1, 2, 5]))
    assert enqueue(link, 3_600_000_000, 1500, False) == 3_600_001_000
    assert enqueue(link, 3_600_001_500, 1500, False) == 3_600_002_000


def test_the_queue_of_a_link_with_a_trace_is_bounded():
    link = link_of(LinkTrace.of_opportunities([10, 20, 30]), capacity=2)
    assert [enqueue(link, now, 1500, False) for now in (0, 1, 2, 10_000)] == [10_000, 20_000, DROPPED, 30_000]


def test_outages_come_at_the_beginning_of_each_period():
    trace = LinkTrace.of_rates([0], [8e6]).with_outages(every=15, duration=0.3)
    link = link_of(trace)
    assert [enqueue(link, round(now * 1e6), 1000, False) for now in (0, 1, 14.9995, 15.1, 30.1)] == pytest.approx(
        [301_000, 1_001_000, 15_300_500, 15_301_500, 30_301_000], abs=1
    )
    kept = LinkTrace.of_opportunities(np.arange(1, 1001)).with_outages(every=0.1, duration=0.02)
    assert kept.mean_rate == pytest.approx(0.8 * 12e6)


def test_a_trace_may_be_shorter_than_the_time_between_outages():
    trace = LinkTrace.of_opportunities([50, 100]).with_outages(every=15, duration=0.3)
    assert (trace.duration, trace.times[0], len(trace.times)) == (15, 300_000_000, 294)
    rates = LinkTrace.of_rates([0, 1], [8e6, 4e6]).with_outages(every=4, duration=1)
    assert (rates.duration, rates.mean_rate) == (4, 4e6)
    with pytest.raises(InvalidValueError, match="every must span at most"):
        LinkTrace.of_opportunities([1]).with_outages(every=1e6, duration=1)


def test_a_simulation_over_a_trace_has_its_rate_and_its_outages():
    trace = LinkTrace.of_rates([0], [4e6]).with_outages(every=5, duration=0.5)
    link = Bottleneck(rate=trace.mean_rate, capacity=50, trace=trace)
    path = SharedPath(access_delay=0.02)
    call = ConstantRate(flow=Flow(174, 0.020), path=path, stack=Stack.linux())
    alone = simulate_network([call], link, duration=500).flows[0]
    # A packet that is written during an outage waits for its end; the link has no other queue.
    assert alone.delays.late_fraction(0.030) == pytest.approx(0.1, abs=0.03)
    assert alone.delays.quantile(0.999) == pytest.approx(0.52, abs=0.05)
    both = simulate_network([call, Bulk(path=path, stack=Stack.linux())], link, duration=100)
    assert 0.8 < both.queue.utilization <= 1
    assert sum(flow.throughput for flow in both.flows) == pytest.approx(0.97 * trace.mean_rate, rel=0.1)


BROKEN = {
    "empty.up": ("", ": is empty"),
    "words.up": ("1\n2\nthree\n", ", line 3: must be a whole number of milliseconds, got 'three'"),
    "negative.up": ("-1\n", ", line 1: must be a whole number of milliseconds, got '-1'"),
    "descending.up": ("1\n5\n\n4\n", ", line 4: must not be before the time ahead of it, got 4"),
    "zeros.up": ("0\n0\n", ", line 2: must end after 0 ms: a trace lasts up to its last time, got 0"),
    "endless.up": (
        "1\n700000\n",
        ", line 2: must come within 600 s of the time ahead of it: a longer outage is endless, got 700000",
    ),
    "columns.csv": ("seconds,rate\n0,1\n", ", line 1: must name the columns time, rate and optionally delay"),
    "empty.csv": ("", ", line 1: must name the columns time, rate and optionally delay, got []"),
    "no-row.csv": ("time,rate\n", ": has no row"),
    "late.csv": ("time,rate\n1,1e6\n", ", line 2: time must be 0 in the first row, got 1"),
    "back.csv": ("time,rate\n0,1e6\n2,1e6\n1,1e6\n", ", line 4: time must be after that of the row ahead of it"),
    "short.csv": ("time,rate\n0,1e6\n1\n", ", line 3: must be 2 numbers, got '1'"),
    "words.csv": ("time,rate\n0,fast\n", ", line 2: must be 2 numbers, got '0,fast'"),
    "nan.csv": ("time,rate\n0,nan\n", ", line 2: rate must lie between 0 and 1e+12 bit/s, got nan"),
    "negative.csv": ("time,rate,delay\n0,1e6,-1\n", ", line 2: delay must lie between 0 and 60 s, got -1"),
    "dead.csv": (
        "time,rate\n0,0\n5,0\n",
        ", line 2: rate must be 1 bit/s or more in one row: the link carries nothing",
    ),
    "endless.csv": ("time,rate\n0,1e6\n1,0\n800,1e6\n", ", line 3: rate must be above 0 at least once in 600 s"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_trace_is_refused_in_one_line_that_names_file_and_line(tmp_path, name):
    content, message = BROKEN[name]
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(ValueError, match=file.name) as caught:
        read_link_trace(file)
    assert str(caught.value).startswith(f"{file}{message}")
    assert "\n" not in str(caught.value)


def test_files_give_the_same_traces_as_numbers(tmp_path):
    (tmp_path / "a.up").write_text("1\n2\n2\n4\n")
    assert read_link_trace(tmp_path / "a.up").times.tolist() == [1_000_000, 2_000_000, 2_000_000, 4_000_000]
    (tmp_path / "b.csv").write_text("rate,time\n4e6,0\n0,1\n\n2e6,1.5\n")
    trace = read_link_trace(tmp_path / "b.csv")
    assert (trace.rates.tolist(), trace.duration) == ([4_000_000, 0, 2_000_000], 2.0)
    (tmp_path / "c.up").write_bytes(b"\xff\xfe\x00")
    for file, message in (("c.up", "is no text"), ("none.up", "No such file")):
        with pytest.raises(ValueError, match=message):
            read_link_trace(tmp_path / file)


@pytest.mark.parametrize(
    ("every", "duration"), [(15, 0), (15, math.nan), (1, 1), (1, 2), (math.inf, 1), (15, 700), (None, 1)]
)
def test_outages_without_end_are_refused(every, duration):
    with pytest.raises(InvalidValueError):
        LinkTrace.of_rates([0], [1e6]).with_outages(every, duration)


def test_outages_that_leave_nothing_are_refused():
    with pytest.raises(InvalidValueError, match="leave some"):
        LinkTrace.of_opportunities([1000, 2000, 20_000]).with_outages(20, 15)
    with pytest.raises(InvalidValueError, match="leave some"):
        LinkTrace.of_rates([0, 1], [1e6, 0]).with_outages(2, 1.5)
    with pytest.raises(InvalidValueError, match="burst must be 0 bytes with a trace"):
        Bottleneck(rate=1e6, capacity=10, burst=100, trace=LinkTrace.of_rates([0], [1e6]))
