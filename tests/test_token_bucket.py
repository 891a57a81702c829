"""Token buckets of a link: against twins that keep tokens as the kernel does."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpdelay import Flow, Stack, simulate_network
from tcpdelay.sim.network.bottleneck import DROPPED, Bottleneck, SharedPath, enqueue, prepare_link
from tcpdelay.sim.network.link_trace import LinkTrace
from tcpdelay.sim.network.sources import Bulk, ConstantRate
from tcpdelay.sim.network.waiting import LINK

ROUNDING = 2
"""The simulator rounds times to nanoseconds, then to microseconds."""


def link_of(bottleneck):
    links = np.zeros(1, LINK).view(np.recarray)
    random = np.random.default_rng(1)
    prepare_link(links[0], bottleneck, random)
    return links, random


class TokenBucketFilter:
    """`tbf_dequeue` of net/sched/sch_tbf.c with a pfifo; tokens are times [us]."""

    def __init__(self, rate, burst, peak_rate, peak_burst, limit):
        self.time_per_byte, self.peak_time_per_byte = 8e6 / rate, 8e6 / peak_rate if peak_rate else 0.0
        self.buffer, self.mtu = burst * self.time_per_byte, peak_burst * self.peak_time_per_byte
        self.tokens, self.ptokens, self.t_c = self.buffer, self.mtu, 0.0
        self.limit, self.free = limit, 0.0
        self.departures = deque()

    def _tokens_after(self, now, size):
        passed = min(now - self.t_c, self.buffer)
        peak = min(passed + self.ptokens, self.mtu) - size * self.peak_time_per_byte
        return min(passed + self.tokens, self.buffer) - size * self.time_per_byte, peak

    def enqueue(self, now, size):
        """Return the time at which the watchdog's timer lets the packet pass, or None if the queue is full."""
        while self.departures and self.departures[0] <= now:
            self.departures.popleft()
        if len(self.departures) >= self.limit:
            return None
        # The packet is the first of the queue when the one before it has left.
        now = max(now, self.free)
        while True:
            tokens, peak = self._tokens_after(now, size)
            if min(tokens, peak) >= -1e-6:
                break
            now += max(-tokens, -peak)
        self.tokens, self.ptokens, self.t_c = tokens, peak, now
        self.free = now
        self.departures.append(now)
        return now


buckets = {
    "rate": st.sampled_from([1e5, 1e6]),
    "burst": st.sampled_from([2000, 9000, 60_000]),
    "seed": st.integers(0, 1000),
}


def arrivals(rate, seed):
    """Bursts, then pauses: the load swings about one."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(8e6 * 700 / rate, 400) * rng.choice([0.0, 0.2, 1.0, 6.0, 40.0], 400)
    return zip(np.cumsum(gaps.astype(np.int64)).tolist(), rng.integers(40, 1500, 400).tolist(), strict=True)


@settings(deadline=None, max_examples=60)
@given(**buckets, faster=st.sampled_from([None, 1.5, 4.0]), capacity=st.sampled_from([3, 400]))
def test_packets_leave_as_tbf_lets_them(rate, burst, seed, faster, capacity):
    peak_rate = None if faster is None else faster * rate
    links, _random = link_of(Bottleneck(rate, capacity, burst=burst, peak_rate=peak_rate))
    twin = TokenBucketFilter(rate, burst, peak_rate, 2000, capacity)
    for now, size in arrivals(rate, seed):
        expected = twin.enqueue(now, size)
        departure = enqueue(links[0], now, size, False)
        if expected is None or departure == DROPPED:
            assert expected is None
            assert departure == DROPPED
        else:
            assert departure == pytest.approx(expected, abs=ROUNDING)


@settings(deadline=None, max_examples=60)
@given(**buckets)
def test_a_policer_drops_what_tcf_police_act_drops(rate, burst, seed):
    links, _random = link_of(Bottleneck(rate, discipline="policer", burst=burst))
    full, time_per_byte = burst * 8e6 / rate, 8e6 / rate
    tokens, before = full, 0
    for now, size in arrivals(rate, seed):
        left = min(full, tokens + min(now - before, full)) - size * time_per_byte
        departure = enqueue(links[0], now, size, False)
        if abs(left) < ROUNDING:
            # Either decision is right to rounding, and the later ones depend on it.
            return
        assert departure == (now if left > 0 else DROPPED)
        if left > 0:
            tokens, before = left, now
    assert links[0].sojourn == 0


def test_a_policer_drops_packets_of_a_transfer_and_delays_no_packet():
    path = SharedPath(access_delay=0.025)
    voice = ConstantRate(flow=Flow(174, 0.020), path=path, stack=Stack.linux())
    bulk = Bulk(path=path, stack=Stack.linux())
    link = Bottleneck(5e6, discipline="policer", burst=30_000)
    result = simulate_network([voice, bulk], link, duration=60, warm_up=5, seed=1)
    call, transfer = result.flows
    assert result.queue.loss_fraction > 0.001
    assert call.throughput + transfer.throughput < 5e6
    assert call.delays.quantile(0.5) == pytest.approx(0.025, abs=1e-4)
    # After a large packet has been dropped, there are often tokens for a small one.
    assert call.segments_dropped / call.segments_sent < transfer.segments_dropped / transfer.segments_sent / 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"discipline": "policer"}, r"burst must lie between 1 and 1e\+06 bytes, got 0"),
        ({"discipline": "policer", "burst": 9000, "capacity": 5}, "capacity must be absent with 'policer', .*, got 5"),
        ({"discipline": "policer", "burst": 9000, "peak_rate": 2e6}, "peak_rate must go with a burst, and not .*"),
        (
            {"discipline": "policer", "trace": LinkTrace.of_rates([0], [1e6])},
            "discipline must be 'drop-tail', 'red' or 'dred' with a trace, got 'policer'",
        ),
        ({"capacity": 9, "peak_rate": 2e6}, "peak_rate must go with a burst, .*, got 2000000"),
        ({"capacity": 9, "burst": 9000, "peak_rate": 1e6}, r"peak_rate must be above the rate, 1e\+06 bit/s, got"),
        ({"capacity": 9, "burst": 9000, "peak_rate": 2e6, "peak_burst": 99}, "peak_burst must lie between 1514 and"),
    ],
)
def test_an_impossible_bucket_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Bottleneck(1e6, **arguments)
