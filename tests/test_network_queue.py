"""The shared link's queue: against twins in plain Python, and against queueing theory."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from tcpdelay.sim.network.bottleneck import DROPPED, Bottleneck, enqueue, prepare_link
from tcpdelay.sim.network.waiting import LINK

SLOTS = 5


def link_of(bottleneck, seed=0):
    links = np.zeros(1, LINK).view(np.recarray)
    random = np.random.default_rng(seed)
    prepare_link(links[0], bottleneck, random)
    return links, random


class Twin:
    """The queue again, from its description: a list of what is waiting, and nothing clever."""

    def __init__(self, bottleneck, seed=0):
        self.settings = bottleneck
        self.random = np.random.default_rng(seed)
        self.waiting = deque()
        self.tokens_until = -8e9 * bottleneck.burst / bottleneck.rate
        self.average, self.count, self.idle_since = 0.0, -1, 0

    def length(self):
        return sum(size for _, size in self.waiting) if self.settings.unit == "bytes" else len(self.waiting)

    def early(self, time, size):
        """Return what the discipline says: pass, mark or drop."""
        s = self.settings
        if s.discipline == "dred":
            over = self.length() / s.bandwidth_delay_product - 1
            if over >= 1:
                return "drop"
            return "mark" if over >= 0 and self.random.random() < 0.1 + 0.9 * over else "pass"
        if s.discipline == "drop-tail":
            return "pass"
        if self.waiting:
            self.average = (1 - s.w_q) * self.average + s.w_q * self.length()
        else:
            typical = s.mean_packet_size * 8e9 / s.rate
            self.average *= (1 - s.w_q) ** ((time - self.idle_since) / typical)
        if self.average < s.min_th:
            self.count = -1
            return "pass"
        if self.average >= s.max_th * (2 if s.gentle else 1):
            self.count = 0
            return "drop"
        if self.average < s.max_th:
            p = s.max_p * (self.average - s.min_th) / (s.max_th - s.min_th)
        else:
            p = s.max_p + (1 - s.max_p) * (self.average / s.max_th - 1)
        if s.unit == "bytes":
            p *= size / s.mean_packet_size
        self.count += 1
        if self.count * p >= 1 or self.random.random() < p / (1 - self.count * p):
            self.count = 0
            return "mark"
        return "pass"

    def enqueue(self, now, size, ecn):
        """Return time of departure [us] or DROPPED, and whether the packet is marked."""
        time = now * 1000
        while self.waiting and self.waiting[0][0] <= time:
            self.waiting.popleft()
        verdict = self.early(time, size)
        more = size if self.settings.unit == "bytes" else 1
        if verdict == "drop" or (verdict == "mark" and not ecn) or self.length() + more > self.settings.capacity:
            return DROPPED, False
        start = max(self.tokens_until, time - round(8e9 * self.settings.burst / self.settings.rate))
        self.tokens_until = start + round(size * 8e9 / self.settings.rate)
        departure = max(self.tokens_until, time)
        self.idle_since = departure
        self.waiting.append((departure, size))
        return int(departure + 500) // 1000, verdict == "mark"


bottlenecks = st.builds(
    lambda rate, unit, discipline, capacity, gentle, burst: Bottleneck(
        rate,
        capacity * (800 if unit == "bytes" else 1),
        unit=unit,
        discipline=discipline,
        min_th=2.0 * (800 if unit == "bytes" else 1),
        max_th=5.0 * (800 if unit == "bytes" else 1),
        max_p=0.2,
        w_q=0.1,
        gentle=gentle,
        bandwidth_delay_product=capacity / 3 * (800 if unit == "bytes" else 1),
        burst=burst,
    ),
    rate=st.sampled_from([1e5, 1e6, 2.88e4]),
    unit=st.sampled_from(["packets", "bytes"]),
    discipline=st.sampled_from(["drop-tail", "red", "dred"]),
    capacity=st.integers(3, 40),
    gentle=st.booleans(),
    burst=st.sampled_from([0, 2000]),
)


@settings(deadline=None, max_examples=150)
@given(bottlenecks, st.integers(0, 1000))
def test_the_queue_does_what_its_description_says(bottleneck, seed):
    rng = np.random.default_rng(seed)
    links, _random = link_of(bottleneck, seed)
    twin = Twin(bottleneck, seed)
    # Bursts, then pauses: the load swings about one.
    gaps = rng.exponential(8e6 * 700 / bottleneck.rate, 400) * rng.choice([0.0, 0.2, 1.0, 6.0], 400)
    now = 0
    dropped = marked = 0
    for gap in gaps:
        now += int(gap)
        size, ecn = int(rng.integers(40, 1500)), bool(rng.integers(2))
        expected = twin.enqueue(now, size, ecn)
        departure = enqueue(links[0], now, size, ecn)
        assert (departure, bool(links[0].marked)) == expected
        dropped += departure == DROPPED
        marked += expected[1]
    assert links[0].dropped == dropped
    assert links[0].marks == marked
    assert links[0].offered == 400
    assert links[0].next == 400 - dropped


@njit
def mean_wait(link, arrivals, sizes, service):
    """Return the mean time in the queue before service [us] and the packets dropped."""
    total, dropped = 0.0, 0
    for number in range(arrivals.size):
        departure = enqueue(link, arrivals[number], sizes[number], False)
        if departure < 0:
            dropped += 1
        else:
            total += departure - arrivals[number] - service[number]
    return total / (arrivals.size - dropped), dropped


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("sizes", ["deterministic", "exponential"])
def test_the_mean_wait_is_that_of_pollaczek_and_khinchine(load, sizes):
    rng = np.random.default_rng(7)
    count, mean_size, rate = 2_000_000, 10_000, 1e8
    links, _random = link_of(Bottleneck(rate, 65_000))
    lengths = np.full(count, mean_size) if sizes == "deterministic" else np.ceil(rng.exponential(mean_size, count))
    service = lengths * 8e6 / rate
    arrivals = np.cumsum(rng.exponential(service.mean() / load, count)).astype(np.int64)
    wait, dropped = mean_wait(links[0], arrivals, lengths.astype(np.int64), service)
    second_moment = 1 if sizes == "deterministic" else 2
    expected = load / (1 - load) / 2 * second_moment * service.mean()
    assert dropped == 0
    assert wait == pytest.approx(expected, rel=0.03)
    # Little's law, and the busy share of the time.
    assert links[0].sojourn / 1e3 / count == pytest.approx(wait + service.mean(), rel=1e-3)
    assert links[0].busy / 1e3 / arrivals[-1] == pytest.approx(load, rel=0.01)


def test_a_full_queue_of_exponential_sizes_loses_what_erlang_says():
    rng = np.random.default_rng(8)
    count, load, places = 1_000_000, 0.9, SLOTS
    links, _random = link_of(Bottleneck(1e8, places))
    lengths = np.ceil(rng.exponential(10_000, count)).astype(np.int64)
    service = lengths * 8e6 / 1e8
    arrivals = np.cumsum(rng.exponential(service.mean() / load, count)).astype(np.int64)
    _, dropped = mean_wait(links[0], arrivals, lengths, service)
    # M/M/1/K.
    expected = (1 - load) * load**places / (1 - load ** (places + 1))
    assert dropped / count == pytest.approx(expected, rel=0.02)


def test_dred_marks_a_tenth_at_one_product_and_all_at_two():
    shares = {}
    for length in (9, 10, 15, 19):
        links, _random = link_of(Bottleneck(1e3, 60_000, discipline="dred", bandwidth_delay_product=10.0), seed=length)
        marked = 0
        for _ in range(4000):
            links[0].queued = length
            links[0].first = links[0].next
            enqueue(links[0], 0, 100, True)
            marked += int(links[0].marked)
        shares[length] = marked / 4000
    assert shares[9] == 0
    assert shares[10] == pytest.approx(0.1, abs=0.02)
    assert shares[15] == pytest.approx(0.55, abs=0.03)
    assert shares[19] == pytest.approx(0.91, abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": 0}, "rate must"),
        ({"capacity": 0}, "capacity must"),
        ({"unit": "segments"}, "unit must"),
        ({"discipline": "blue"}, "discipline must be one of .*, 'policer', got 'blue'"),
        ({"min_th": 20.0}, "max_th must"),
        ({"max_p": 0.0}, "max_p must"),
        ({"w_q": 2.0}, "w_q must"),
        ({"discipline": "dred"}, "bandwidth_delay_product must"),
        ({"burst": -1}, "burst must"),
    ],
)
def test_an_impossible_link_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Bottleneck(**({"rate": 1e6, "capacity": 10} | arguments))
