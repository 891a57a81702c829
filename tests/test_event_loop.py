"""The event loop of the testbed, and the timer that switches the loss of an experiment's path."""

import heapq
import itertools
import socket
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_loop_driver import MILLISECOND, open_descriptors, run_for, run_until
from tcpdelay.scenario.path import Path
from tcpdelay.testbed.event_loop import NANOSECONDS as SECOND
from tcpdelay.testbed.event_loop import READABLE, WRITABLE, EventLoop, moment_of, sleep_until
from tcpdelay.testbed.network import LossChannel


def test_moments_come_in_order_and_never_early(loop):
    start = time.monotonic_ns()
    called = []
    for delay in (9, 3, 6, 3, -5):
        due = start + delay * MILLISECOND
        loop.at(due, lambda due=due: called.append((due, time.monotonic_ns())))
    run_until(loop, lambda: len(called) == 5)
    assert [due for due, _ in called] == sorted(due for due, _ in called)
    assert all(now >= due for due, now in called)


def test_moments_at_the_same_time_come_in_the_order_of_asking(loop):
    due = time.monotonic_ns() + MILLISECOND
    called = []
    for number in range(20):
        loop.at(due, lambda number=number: called.append(number))
    run_until(loop, lambda: len(called) == 20)
    assert called == list(range(20))


def test_a_moment_may_ask_for_another_one(loop):
    called = []

    def again():
        called.append(time.monotonic_ns())
        if len(called) < 5:
            loop.at(called[-1] + 2 * MILLISECOND, again)

    loop.at(time.monotonic_ns(), again)
    run_until(loop, lambda: len(called) == 5)
    assert all(later - earlier >= 2 * MILLISECOND for earlier, later in itertools.pairwise(called))


def test_an_earlier_moment_asked_for_later_is_not_kept_waiting(loop):
    called = []
    loop.at(time.monotonic_ns() + 10**12, lambda: called.append("late"))
    loop.at(time.monotonic_ns() + MILLISECOND, lambda: called.append("early"))
    run_until(loop, lambda: called == ["early"])


def test_timers_are_finer_than_milliseconds(loop):
    lateness = []
    for _ in range(30):
        due = time.monotonic_ns() + 300_000
        done = []
        loop.at(due, lambda due=due, done=done: done.append(lateness.append(time.monotonic_ns() - due)))
        run_until(loop, lambda done=done: bool(done))
    assert 0 <= min(lateness) < 300_000


def test_a_repetition_expires_as_often_as_its_interval_has_it(loop):
    first = time.monotonic_ns() + 5 * MILLISECOND
    beats = []
    loop.every(2 * MILLISECOND, first, lambda count: beats.append((count, time.monotonic_ns())))
    run_until(loop, lambda: sum(count for count, _ in beats) >= 10)
    expired = 0
    for count, now in beats:
        expired += count
        assert now >= first + (expired - 1) * 2 * MILLISECOND
    assert beats[0][1] >= first


def test_what_expired_during_a_stall_is_told_at_once(loop):
    counts = []
    loop.every(MILLISECOND, time.monotonic_ns(), counts.append)
    time.sleep(0.05)
    run_until(loop, lambda: bool(counts))
    assert counts[0] >= 50


def test_a_cancelled_repetition_ends_and_may_be_cancelled_again(loop):
    counts, others = [], []

    def beat(count):
        counts.append(count)
        loop.cancel(repetition)

    before = open_descriptors()
    repetition = loop.every(MILLISECOND, time.monotonic_ns(), beat)
    run_until(loop, lambda: bool(counts))
    loop.cancel(repetition)
    assert open_descriptors() == before
    loop.every(MILLISECOND, time.monotonic_ns(), others.append)
    run_until(loop, lambda: sum(others) > 20)
    assert len(counts) == 1


def test_what_was_due_before_the_end_comes_first_when_a_stall_hid_both(loop):
    counts = []
    first = time.monotonic_ns()
    end = first + 30 * MILLISECOND
    repetition = loop.every(MILLISECOND, first, counts.append)
    time.sleep(0.05)
    loop.cancel(repetition, end)
    assert counts == [30]
    loop.cancel(repetition, end)
    assert counts == [30]


def test_a_paused_descriptor_is_left_alone_for_that_long(loop):
    end, other = socket.socketpair()
    calls = []

    def writable(_):
        calls.append(time.monotonic_ns())
        loop.pause(end.fileno(), 20 * MILLISECOND)

    with end, other:
        loop.watch(end.fileno(), WRITABLE, writable)
        run_until(loop, lambda: len(calls) == 3)
        assert all(later - earlier >= 20 * MILLISECOND for earlier, later in itertools.pairwise(calls))
        # Forgotten while it is paused, it does not come back; nor does the pause end the watch that follows.
        loop.forget(end.fileno())
        run_for(loop, 0.03)
        assert len(calls) == 3
        loop.watch(end.fileno(), WRITABLE, lambda _: calls.append(None))
        run_until(loop, lambda: len(calls) == 4)
        loop.forget(end.fileno())


def test_a_descriptor_forgotten_by_an_earlier_handler_of_the_batch_is_left_alone(loop):
    pairs = [socket.socketpair() for _ in range(2)]
    called = []

    def readable(number):
        called.append(number)
        for end, _ in pairs:
            loop.forget(end.fileno())

    for number, (end, other) in enumerate(pairs):
        loop.watch(end.fileno(), READABLE, lambda _, number=number: readable(number))
        other.send(b"x")
    run_for(loop, 0.01)
    assert len(called) == 1
    for end in itertools.chain(*pairs):
        end.close()


def test_waiting_costs_no_processor_time(loop):
    before = time.thread_time()
    run_for(loop, 0.3)
    assert time.thread_time() - before < 0.05


def test_closing_gives_up_every_descriptor():
    before = open_descriptors()
    loop = EventLoop()
    for _ in range(3):
        loop.every(MILLISECOND, time.monotonic_ns(), lambda _: None)
    loop.close()
    assert open_descriptors() == before


@given(st.integers(0, 2**40), st.integers(1, 10**15))
def test_a_moment_follows_from_the_seed_and_the_second(seed, earliest):
    moment = moment_of(seed, earliest)
    assert earliest <= moment < earliest + SECOND + SECOND // 100
    assert moment % SECOND < SECOND // 100
    assert moment_of(seed, moment - moment % SECOND) == moment


def test_moments_of_seeds_are_spread_over_the_longest_tick():
    places = [moment_of(seed, 1) % SECOND / (SECOND // 100) for seed in range(1000)]
    # The distance of Kolmogorov and Smirnov, exceeded by chance in one of a thousand.
    even = (np.arange(1000) + 0.5) / 1000
    assert np.abs(np.sort(places) - even).max() < 1.95 / np.sqrt(1000)


def test_a_sleep_ends_at_its_moment():
    moment = time.monotonic_ns() + SECOND // 50
    sleep_until(moment)
    assert time.monotonic_ns() >= moment


# The timer of the loss, with an event loop whose time jumps to the next timer

PATH = Path(rtt=0.1, loss=0.02, bad_time=0.1, bad_loss=0.5)


class JumpingLoop:
    """An event loop whose time is that of the last timer."""

    def __init__(self):
        self.now, self.timers = 0, []

    def at(self, when, handler):
        heapq.heappush(self.timers, (when, len(self.timers), handler))

    def run(self, until):
        while self.timers and self.timers[0][0] <= until:
            self.now, _, handler = heapq.heappop(self.timers)
            handler()


def switched(seed, until=2000 * SECOND):
    """Return the times [s] and the losses that a channel sets."""
    loop, switches = JumpingLoop(), []
    channel = LossChannel(loop, PATH, lambda loss: switches.append((loop.now / SECOND, loss)), seed)
    channel.start(3 * SECOND)
    loop.run(until)
    channel.stop()
    loop.run(2 * until)
    return np.array(switches).T


def test_states_alternate_with_their_mean_durations_and_end_with_the_run():
    times, losses = switched("1")
    assert times[0] == 3
    assert times[-1] <= 2000
    assert set(losses) == {0.0, 0.5}
    assert np.all(np.diff(losses) != 0)
    durations = np.diff(times)
    for loss, mean in ((0.5, PATH.bad_time), (0.0, PATH.good_time)):
        found = durations[losses[:-1] == loss]
        error = 4 / np.sqrt(found.size)
        assert found.mean() == pytest.approx(mean, rel=error)
        assert found.std() / found.mean() == pytest.approx(1, abs=error * np.sqrt(2))


def test_a_seed_repeats_the_states():
    np.testing.assert_array_equal(switched("1"), switched("1"))
    assert switched("1").shape != switched("2").shape or not np.array_equal(switched("1"), switched("2"))


def test_the_first_state_is_bad_with_its_share_of_the_time():
    first = [switched(str(seed), until=3 * SECOND)[1][0] for seed in range(3000)]
    share = PATH.loss / PATH.bad_loss
    assert np.mean(np.array(first) > 0) == pytest.approx(share, abs=4 * np.sqrt(share / 3000))
