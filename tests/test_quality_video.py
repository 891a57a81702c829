"""Video over TCP: stalls counted in made-up flows that are held up at the head of the line."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.delays import DelayDistribution
from tcpdelay.quality.experience import smallest_buffer, video_playout

INTERVAL = 0.005
distributions = st.lists(st.integers(1, 900).map(lambda n: n / 1000), min_size=1, max_size=60).map(
    lambda delays: DelayDistribution.from_samples(delays, one_way_delay=0.001)
)


def held_up(holdups):
    """Return the delays of packets that are read in order, each held up by a loss of its own or of an earlier one."""
    arrivals = np.arange(holdups.size) * INTERVAL + 0.05 + holdups
    return np.maximum.accumulate(arrivals) - np.arange(holdups.size) * INTERVAL


def counted_stalls(delays, buffer):
    """Return stalls a minute and their mean length, counted over the pictures that are due one by one."""
    late = delays > buffer
    stalls = np.count_nonzero(late[1:] & ~late[:-1])
    return 60 * stalls / (delays.size * INTERVAL), np.count_nonzero(late) * INTERVAL / stalls


def losses(rng, holdup):
    return np.where(rng.random(400_000) < 0.001, holdup, 0.0)


@pytest.mark.parametrize("kind", ["exponential", "alike"])
@pytest.mark.parametrize("buffer", [0.06, 0.1, 0.25])
def test_stalls_are_counted_right_if_backlogs_are_read_at_once(kind, buffer):
    rng = np.random.default_rng(1)
    delays = held_up(losses(rng, 0.303 if kind == "alike" else rng.exponential(0.1, 400_000)))
    play = video_playout(DelayDistribution.from_samples(delays, 0.05), buffer, INTERVAL)
    stalls, length = counted_stalls(delays, buffer)
    assert play.late_packets == pytest.approx(np.mean(delays > buffer))
    assert play.stalls_per_minute == pytest.approx(stalls, rel=0.05)
    assert play.mean_stall == pytest.approx(length, rel=0.05)


@pytest.mark.parametrize(
    ("flow", "path", "most"),
    [(td.Flow(174, 0.020), td.Path(0.1, 0.02), 1.1), (td.Flow(1448, 0.005), td.Path(0.02, 0.01), 1.8)],
)
@pytest.mark.parametrize("buffer", [0.06, 0.1])
def test_stalls_of_simulated_flows_are_no_more_than_that(flow, path, most, buffer):
    simulated = td.simulate(flow, path, packets=200_000, seed=1, trace=True)
    late = simulated.read_after > buffer
    stalls = 60 * np.count_nonzero(late[1:] & ~late[:-1]) / (late.size * flow.interval)
    play = video_playout(simulated, buffer, flow.interval)
    assert 1 <= play.stalls_per_minute / stalls < most


@pytest.mark.parametrize("size", [1, 3, 8])
def test_frames_are_whole_when_their_last_packet_is_there(size):
    rng = np.random.default_rng(2)
    delays = held_up(losses(rng, rng.exponential(0.1, 400_000)))
    written = np.arange(delays.size) * INTERVAL
    whole = (written + delays)[size - 1 :: size]
    due = written[: 1 - size or None : size][: whole.size] + 0.1
    play = video_playout(DelayDistribution.from_samples(delays, 0.05), 0.1, INTERVAL, packets_per_frame=size)
    assert play.late_frames == pytest.approx(np.mean(whole > due + 1e-9), rel=0.1)


def test_frames_are_due_with_their_first_packet():
    delays = DelayDistribution(np.array([0.05, 0.19]), np.array([0.9, 0.1]), one_way_delay=0.05)
    late = [video_playout(delays, 0.2, 0.01, packets_per_frame=size).late_frames for size in (1, 2, 3)]
    assert late == pytest.approx([0, 0, 0.1])


@given(distributions, st.floats(0, 1), st.floats(0, 1))
def test_a_longer_buffer_never_makes_more_late(distribution, buffer, more):
    short, long = (video_playout(distribution, b, INTERVAL, 4) for b in (buffer, buffer + more))
    assert long.late_packets <= short.late_packets
    assert long.late_frames <= short.late_frames
    assert short.late_packets <= short.late_frames


@given(distributions, st.floats(0, 1))
def test_the_picture_stands_while_packets_are_late(distribution, buffer):
    play = video_playout(distribution, buffer, INTERVAL)
    assert play.startup_delay == buffer
    if play.late_packets > 0 and math.isfinite(play.mean_stall):
        assert play.stalls_per_minute * play.mean_stall / 60 == pytest.approx(play.late_packets)


@given(distributions, st.floats(0, 0.999))
def test_no_shorter_buffer_than_the_smallest_is_enough(distribution, share):
    buffer = smallest_buffer(distribution, share)
    assert distribution.late_fraction(buffer) <= share + 1e-9
    assert distribution.late_fraction(buffer - 0.0005) > share - 1e-9


def test_coarse_distributions_have_stalls_too():
    delays = DelayDistribution(np.array([0.05, 0.25]), np.array([0.98, 0.02]), one_way_delay=0.05)
    play = video_playout(delays, 0.15, 0.01)
    assert play.stalls_per_minute == pytest.approx(60 * 0.02 / 0.1)
    assert play.mean_stall == pytest.approx(0.1)


def test_nothing_late_is_no_stall():
    play = video_playout(DelayDistribution.from_samples([0.1, 0.2], 0.1), 0.2, INTERVAL)
    assert (play.late_packets, play.stalls_per_minute, play.mean_stall) == (0, 0, 0)


@pytest.mark.parametrize(
    "distribution", [DelayDistribution.unsustainable(0.05), DelayDistribution.from_samples([0.5, 0.6], 0.5)]
)
def test_nothing_in_time_is_one_stall_for_ever(distribution):
    play = video_playout(distribution, 0.1, INTERVAL)
    assert (play.late_packets, play.late_frames) == (1, 1)
    assert play.stalls_per_minute == play.mean_stall == math.inf


def test_no_buffer_is_enough_for_what_tcp_cannot_carry():
    assert smallest_buffer(DelayDistribution.unsustainable(0.05), 0.5) == math.inf


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ((-0.1, 0.01, 1), "buffer"),
        ((math.inf, 0.01, 1), "buffer"),
        ((0.1, 0.0, 1), "interval"),
        ((0.1, math.nan, 1), "interval"),
        ((0.1, 0.01, 0), "packets_per_frame"),
    ],
)
def test_wrong_arguments_are_named(wrong, name):
    with pytest.raises(ValueError, match=f"{name} must"):
        video_playout(DelayDistribution.from_samples([0.1], 0.1), *wrong)


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_shares_that_are_none_are_refused(share):
    with pytest.raises(ValueError, match="late_fraction must"):
        smallest_buffer(DelayDistribution.from_samples([0.1], 0.1), share)
