"""The timer that switches the loss of an experiment's path, with an event loop whose time jumps to the next timer."""

import heapq

import numpy as np
import pytest

from tcpdelay.scenario.path import Path
from tcpdelay.testbed.network import LossChannel

PATH = Path(rtt=0.1, loss=0.02, bad_time=0.1, bad_loss=0.5)
SECOND = 1_000_000_000


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
