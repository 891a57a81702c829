"""A video player that rebuffers: stalls counted by a player that looks at its buffer every millisecond."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

import tcpdelay as td
from tcpdelay.quality.player import RESOLUTION, play
from tcpdelay.statistics import count_interval

VIDEO, PATH = td.Video(1e6), td.Path(rtt=0.1, loss=0.01)
lateness = st.lists(st.integers(0, 400), min_size=1, max_size=40)
buffers = st.integers(0, 300)


def in_order(lateness, step=40):
    """Return the times of writes and in-order reads [ms]."""
    written = step * np.arange(len(lateness))
    return written, np.maximum.accumulate(written + np.array(lateness))


def watched(written, read, startup, rebuffer):
    """Return start-up delay and stalls of a player that looks at its buffer at every millisecond."""
    waiting_since, required, position, behind = 0, startup, 0, 0
    startup_delay, stalls = None, {}
    for now in range(int(read[-1]) + 1000):
        arrived = np.count_nonzero(read <= now)
        while position < len(written):
            if waiting_since is not None:
                held = arrived > position and written[arrived - 1] - written[position] >= required
                if not held and arrived < len(written):
                    break
                behind = now - written[position]
                if startup_delay is None:
                    startup_delay = behind
                else:
                    stalls[position] = now - waiting_since
                waiting_since = None
            if written[position] + behind > now:
                break
            if read[position] > now:
                waiting_since, required = now, rebuffer
                break
            position += 1
    return startup_delay, stalls


@given(lateness, buffers, buffers)
def test_the_player_stalls_like_one_that_looks_at_its_buffer(lateness, startup, rebuffer):
    written, read = in_order(lateness)
    played = play(written / 1e3, read / 1e3, td.Player(startup / 1e3, rebuffer / 1e3))
    startup_delay, stalls = watched(written, read, startup, rebuffer)
    assert played.startup_delays[0] * 1e3 == pytest.approx(startup_delay)
    found = {int(frame): played.stall_before[frame] * 1e3 for frame in played.stall_before.nonzero()[0]}
    assert found == pytest.approx(stalls)


@given(lateness, buffers, buffers, st.floats(0, 1))
def test_no_frame_is_shown_before_it_is_read(lateness, startup, rebuffer, catch_up):
    written, read = (times / 1e3 for times in in_order(lateness))
    played = play(written, read, td.Player(startup / 1e3, rebuffer / 1e3, catch_up))
    assert np.all(written + played.behind >= read - RESOLUTION)
    assert np.all(played.behind >= played.startup_delays[0] - 1e-9)


def test_a_player_that_catches_up_is_back_after_the_expected_time():
    written = np.arange(3000) / 100
    read = written + 0.05
    read[500:600] = np.maximum(read[500:600], written[599])
    played = play(written, read, td.Player(0.2, rebuffer=0.0, catch_up=0.1))
    (stalled,) = played.stall_before.nonzero()[0]
    stall = played.stall_before[stalled]
    assert stall == pytest.approx(written[599] - written[500] - 0.25, abs=0.01)
    back = np.argmax((np.arange(3000) > stalled) & (played.behind < 0.25 + 1e-9))
    assert written[back] - written[stalled] == pytest.approx(stall * 1.1 / 0.1, abs=0.02)


def test_each_session_has_a_new_player():
    written, read = (times / 1e3 for times in in_order([50, 50, 300, 50, 50, 50, 50, 50, 300, 50]))
    together = play(written, read, td.Player(0.04), np.array([0, 5]))
    for part in (slice(0, 5), slice(5, 10)):
        alone = play(written[part], read[part], td.Player(0.04))
        np.testing.assert_allclose(together.behind[part], alone.behind)
        np.testing.assert_allclose(together.stall_before[part], alone.stall_before)


@pytest.mark.parametrize("count", [0, 1, 7, 200])
def test_the_interval_of_a_count_has_a_fortieth_beyond_each_end(count):
    _, low, high = count_interval(count)
    assert poisson.cdf(count, high) == pytest.approx(0.025)
    assert low == 0 if count == 0 else poisson.sf(count - 1, low) == pytest.approx(0.025)


def test_without_losses_a_video_starts_after_its_buffer_and_never_stalls():
    found = td.video_stalls(
        td.Video(2e5, key_ratio=1, write_jitter=0), td.Path(0.1, 0), player=td.Player(1.0), session=60, hours=2
    )
    assert found.startup_delay.value == pytest.approx(1.0 + 0.05, abs=1e-4)
    assert found.stalls_per_hour == pytest.approx((0, 0, -math.log(0.025) / 2), rel=1e-6)
    assert found.stalled_share.high == 0
    assert found.undisturbed.value == 1
    assert math.isnan(found.stall_quantile(0.5).value)


def test_stalls_are_those_of_the_simulated_frames():
    player = td.Player(0.3, rebuffer=0.2, catch_up=0.05)
    found = td.video_stalls(VIDEO, PATH, player=player, session=60, hours=1)
    frames = td.simulate(VIDEO, PATH, packets=30 * (3600 + 30), trace=True)
    written = frames.messages["time"]
    lengths, viewed = [], 0.0
    for number in range(60):
        within = (written >= 60 * number) & (written < 60 * (number + 1))
        played = play(written[within], written[within] + frames.read_after[within], player)
        lengths += list(played.stall_before[played.stall_before > 0])
        viewed += 60 + played.stall_before.sum()
    assert found.sessions == 60
    assert found.stalls_per_hour.value == pytest.approx(3600 * len(lengths) / viewed)
    assert found.stalled_share.value == pytest.approx(sum(lengths) / viewed)
    assert found.stall_quantile(0.9).value == pytest.approx(np.quantile(lengths, 0.9, method="inverted_cdf"))


def test_the_smallest_startup_buffer_suffices_and_one_frame_less_does_not():
    settings = {"rebuffer": 0.1, "session": 60, "hours": 1}
    found = td.startup_for_stalls(VIDEO, PATH, stalls_per_hour=20, **settings)
    assert found.stalls.stalls_per_hour.value <= 20
    shorter = td.Player(found.value - 1 / 30, rebuffer=0.1)
    stalls = td.video_stalls(VIDEO, PATH, player=shorter, session=60, hours=1).stalls_per_hour
    assert stalls.value > 20
    assert found.value_range[0] <= found.value <= found.value_range[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hours": 0}, "hours must lie above 0"),
        ({"session": 300, "hours": 1}, "session must lie between 1 s and 225 s"),
        ({"hours": 1}, "hours must lie between 2.67 and .*, 16 sessions of 600 s"),
        ({"stalls_per_hour": -1}, "stalls_per_hour must be a number from 0 on"),
        ({"rebuffer": 1e9}, "rebuffer"),
        ({"catch_up": -0.1}, "catch_up"),
    ],
)
def test_bad_values_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        td.startup_for_stalls(VIDEO, PATH, **change)


def test_a_video_that_tcp_cannot_carry_is_refused():
    with pytest.raises(ValueError, match="source must have a rate that TCP can carry"):
        td.video_stalls(td.Video(20e6), td.Path(rtt=0.2, loss=0.02), session=60, hours=1)


def test_no_buffer_suffices_if_frames_come_too_late(monkeypatch):
    monkeypatch.setattr("tcpdelay.study.playback.LONGEST_STARTUP", 0.1)
    with pytest.raises(ValueError, match=r"no start-up buffer up to 0.1 s has 0 stalls per hour or less: .* there are"):
        td.startup_for_stalls(VIDEO, PATH, stalls_per_hour=0, session=60, hours=1)


@pytest.mark.parametrize("read", [[0.0, 0.1], [0.1, 0.0, 0.2], [-1.0, 0.1, 0.2]])
def test_frames_must_be_read_in_order_and_after_their_write(read):
    with pytest.raises(ValueError, match="read must"):
        play(np.array([0.0, 0.05, 0.1]), np.array(read), td.Player(0.1))
