"""Players of video and speech: stalls, gaps and buffers, against players that look at their buffers step by step."""

import csv
import io
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

import tcpdelay as td
from tcpdelay.delays import DelayDistribution
from tcpdelay.quality.experience import smallest_buffer, video_playout
from tcpdelay.quality.player import RESOLUTION, play
from tcpdelay.quality.voice import play_bursts
from tcpdelay.report.answers import TitledTable, notes, to_markdown, to_page
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.statistics import count_interval
from tcpdelay.study.playback import STAGES
from tcpdelay.study.playout import PlayoutCell, playout_table

# A video player that rebuffers: stalls counted by a player that looks at its buffer every millisecond

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
        ({"hours": 1}, "hours must lie between 2.67 and 185.2, 16 sessions of 600 s"),
        ({"rebuffer": 1e9}, "rebuffer"),
    ],
)
def test_bad_values_of_a_video_player_are_refused(change, words):
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


# Video over TCP: stalls counted in made-up flows that are held up at the head of the line

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


# Speech and replies: gaps and audio that cannot be stopped, against loops over single chunks and Little's law

REPLIES = td.Utterances(960, 0.020, speed=3)
LOWAT = 4096
bursts = st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=8), min_size=1, max_size=6)


@given(bursts, st.integers(0, 200))
def test_bursts_play_as_chunk_by_chunk(bursts, buffer):
    read = np.cumsum(np.concatenate(bursts)) / 1e3
    starts = np.cumsum([0, *map(len, bursts)])[:-1]
    found = play_bursts(read, starts, 0.020, buffer / 1e3)
    for start, burst, required in zip(starts, bursts, found.required, strict=True):
        clock, without_wait = read[start] + buffer / 1e3, 0.0
        for number in range(len(burst)):
            clock = max(clock, read[start + number])
            assert found.played[start + number] == pytest.approx(clock)
            clock += 0.020
            without_wait = max(without_wait, read[start + number] - read[start] - number * 0.020)
        assert required == pytest.approx(without_wait)


@pytest.mark.parametrize(
    "source", [td.Speech(174, 0.020, write_jitter=0), td.Utterances(960, 0.020, speed=2, write_jitter=0)]
)
def test_without_losses_nothing_has_to_wait(source):
    found = td.playout_without_gaps(source, td.Path(0.1, 0), bursts=1000)
    assert found.value.value == pytest.approx(0, abs=2e-6)
    assert found.gaps(0.0).value == 0
    assert found.start_quantile(0.99, buffer=0.1).value == pytest.approx(0.15, abs=2e-6)


def simulated(packets, source=REPLIES):
    """Return times of writes, first transmissions and reads, and the numbers of the first chunks of replies."""
    found = td.simulate(source, PATH, packets=packets, trace=True)
    written = found.messages["time"]
    firsts = np.flatnonzero(found.messages["kind"] == 1)
    return written, written + found.sent_after, written + found.read_after, firsts


def test_the_buffer_is_the_one_that_single_replies_require():
    found = td.playout_without_gaps(REPLIES, PATH, gap_share=0.05, bursts=1000)
    written, _, read, firsts = simulated(round(1000 * REPLIES.packets_per_burst))
    required, first_delays = [], []
    for first, following in pairwise(firsts):
        lateness = read[first:following] - read[first] - 0.020 * np.arange(following - first)
        required.append(lateness.max())
        first_delays.append(read[first] - written[first])
    assert found.bursts == len(required)
    assert found.value.value == pytest.approx(np.quantile(required, 0.95, method="inverted_cdf"))
    assert found.gaps(0.0555).value == pytest.approx(np.mean(np.array(required) > 0.0555))
    assert found.gaps(found.value.value).value <= 0.05
    assert found.start_quantile(0.9).value == pytest.approx(np.quantile(first_delays, 0.9, method="inverted_cdf"))


def test_the_stages_obey_littles_law():
    buffer = 0.2
    found = td.audio_not_stoppable(REPLIES, PATH, buffer=buffer, bursts=1000)
    written, sent, read, firsts = simulated(round(1000 * REPLIES.packets_per_burst))
    whole = slice(firsts[0], firsts[-1])
    played = play_bursts(read[whole], firsts[:-1] - firsts[0], 0.020, buffer).played
    ends = played[firsts[1:] - firsts[0] - 1] + 0.020
    time = np.sum(ends - written[firsts[:-1]])
    sojourns = {
        "unsent": sent[whole] - written[whole],
        "in flight": read[whole] - sent[whole],
        "at the reader": played - read[whole],
        "not stoppable": played - written[whole],
    }
    for stage, sojourn in sojourns.items():
        assert found.chunks[stage].mean() == pytest.approx(sojourn.sum() / time, rel=0.01)
    assert not found.chunks["held back"].any()


def test_an_application_that_waits_for_the_socket_leaves_less_in_it():
    found = td.audio_not_stoppable(REPLIES, PATH, notsent_lowat=LOWAT, bursts=1000)
    without = td.audio_not_stoppable(REPLIES, PATH, bursts=1000)
    written, sent, _, firsts = simulated(round(1000 * REPLIES.packets_per_burst))
    whole = slice(firsts[0], firsts[-1])
    events = sorted([(time, 1) for time in written[whole]] + [(time, 0) for time in sent[whole]])
    # The application has a queue of its own, and writes a chunk whenever the limit allows it.
    queue = unsent = before = 0
    waited = 0.0
    for time, is_write in events:
        waited += queue * (time - before)
        before = time
        queue, unsent = (queue + 1, unsent) if is_write else (queue, unsent - 1)
        while queue and unsent * 960 < LOWAT:
            queue, unsent = queue - 1, unsent + 1
        assert unsent * 960 < LOWAT + 960
    # By Little's law.
    time = (sent[whole] - written[whole]).sum() / without.chunks["unsent"].mean()
    assert found.chunks["held back"].mean() == pytest.approx(waited / time, rel=0.01)
    np.testing.assert_array_equal(found.chunks["held back"] + found.chunks["unsent"], without.chunks["unsent"])
    np.testing.assert_array_equal(found.chunks["in flight"], without.chunks["in flight"])


def test_seconds_and_bytes_are_of_the_same_chunks():
    found = td.audio_not_stoppable(REPLIES, PATH, bursts=1000)
    for stage in STAGES:
        seconds, size = found.seconds(stage, 0.95), found.bytes(stage, 0.95)
        assert seconds.value / 0.020 * 960 == pytest.approx(size.value)
        assert seconds.low <= seconds.value <= seconds.high
    with pytest.raises(ValueError, match="stage must be one of 'held back'"):
        found.seconds("lost", 0.5)
    for probability in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="probability must lie between 0 and 1"):
            found.seconds("unsent", probability)


@pytest.mark.parametrize(
    ("question", "change", "words"),
    [
        (td.playout_without_gaps, {"gap_share": 0}, "gap_share must lie between 0 and 1"),
        (td.playout_without_gaps, {"bursts": 10}, "bursts must be a whole number between 1000 and"),
        (td.playout_without_gaps, {"source": td.Flow(174, 0.020)}, "source must be Speech or Utterances"),
        (td.audio_not_stoppable, {"notsent_lowat": 0}, "notsent_lowat must be a whole number of bytes"),
        (td.audio_not_stoppable, {"bursts": 1000.5}, "bursts must be a whole number"),
    ],
)
def test_bad_values_of_speech_and_replies_are_refused(question, change, words):
    settings = {"source": REPLIES, "path": PATH, "bursts": 1000} | change
    with pytest.raises(ValueError, match=words):
        question(**settings)


# `tcpdelay solve startup`, `gaps` and `interruption`: the answers are the library's, in every format

PATH_OPTIONS = ["--rtt", "100ms", "--loss", "1%"]
VIDEO_OPTIONS = [*PATH_OPTIONS, "--bitrate", "1Mbit/s", "--key-ratio", "8"]
SHORT = ["--session", "60s", "--hours", "1"]
SPEECH_OPTIONS = [*PATH_OPTIONS, "--packet-size", "960", "--interval", "20ms", "--speed", "3", "--bursts", "1000"]


def answer(run, *arguments):
    status, printed, errors = run("solve", *arguments, "--format", "json")
    assert (status, errors) == (0, "")
    return json.loads(printed)


def test_the_startup_buffer_is_that_of_the_library(run):
    found = answer(run, "startup", *VIDEO_OPTIONS, *SHORT, "--stalls", "10", "--rebuffer", "100ms")
    video, path = td.Video(1e6), td.Path(rtt=0.1, loss=0.01)
    expected = td.startup_for_stalls(video, path, stalls_per_hour=10, rebuffer=0.1, session=60, hours=1)
    assert (found["value"], found["value_low"], found["value_high"]) == (expected.value, *expected.value_range)
    assert found["stalls_per_hour"] == expected.stalls.stalls_per_hour.value <= 10
    judged = answer(run, "startup", *VIDEO_OPTIONS, *SHORT, "--startup", f"{found['value']}s", "--rebuffer", "100ms")
    for name in ("stalls_per_hour", "stalled_share", "stall_p95", "startup_delay", "undisturbed_share"):
        assert judged[name] == found[name]


def test_the_playout_without_gaps_is_that_of_the_library(run):
    found = answer(run, "gaps", *SPEECH_OPTIONS, "--gap-fraction", "2%")
    expected = td.playout_without_gaps(
        td.Utterances(960, 0.020, speed=3), td.Path(rtt=0.1, loss=0.01), gap_share=0.02, bursts=1000
    )
    assert found["value"] == expected.value.value
    assert found["gap_share"] <= 0.02 < found["gap_share_without_buffer"]
    assert found["start_p95"] == expected.start_quantile(0.95, expected.value.value).value


def test_the_audio_that_cannot_be_stopped_is_that_of_the_library(run):
    found = answer(run, "interruption", *SPEECH_OPTIONS, "--notsent-lowat", "4kB", "--playout-buffer", "100ms")
    expected = td.audio_not_stoppable(
        td.Utterances(960, 0.020, speed=3), td.Path(rtt=0.1, loss=0.01), buffer=0.1, notsent_lowat=4000, bursts=1000
    )
    for stage in found["stages"]:
        assert stage["seconds_p95"] == pytest.approx(expected.seconds(stage["stage"], 0.95).value)
        assert stage["bytes_p99"] == pytest.approx(expected.bytes(stage["stage"], 0.99).value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["startup", *VIDEO_OPTIONS, *SHORT, "--stalls", "20"],
        ["startup", *VIDEO_OPTIONS, *SHORT, "--startup", "10s"],
        ["gaps", *SPEECH_OPTIONS],
        ["interruption", *SPEECH_OPTIONS],
    ],
)
def test_text_and_csv_hold_the_answer(run, arguments):
    status, printed, errors = run("solve", *arguments)
    assert (status, errors) == (0, "")
    assert len(printed.splitlines()) > 5
    rows = list(csv.DictReader(io.StringIO(run("solve", *arguments, "--format", "csv")[1])))
    assert len(rows) == (5 if arguments[0] == "interruption" else 1)


def test_a_playout_buffer_for_the_frames_of_a_video(run, tmp_path):
    frames = tmp_path / "frames.csv"
    frames.write_text("time,size\n" + "".join(f"{number / 30},{3000}\n" for number in range(30)))
    found = answer(run, "playout", *PATH_OPTIONS, "--source", str(frames), "--period", "1s", "--late-fraction", "5%")
    assert found["late_fraction"] <= 0.05 < found["late_beyond"]
    assert found["method"] == "simulation"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["startup", *VIDEO_OPTIONS, "--bursts", "1000"],
            "--bursts: goes with solve gaps or interruption, not with startup",
        ),
        (["startup", *VIDEO_OPTIONS, "--limit", "2s"], "--limit: does not go with solve startup"),
        (["startup", *VIDEO_OPTIONS, "--stalls", "1", "--startup", "2s"], "--startup and --stalls: give one of them"),
        (["startup", *VIDEO_OPTIONS, "--method", "chain"], "--method: solve startup needs a simulation"),
        (["startup", *VIDEO_OPTIONS, "--stalls", "-1"], "--stalls: must be a number from 0 on"),
        (["gaps", *VIDEO_OPTIONS], "gaps is for speech (--talk, --silence) or a voice agent's replies"),
        (
            ["interruption", *SPEECH_OPTIONS, "--playout-buffer", "2e9s"],
            "--playout-buffer: must be a number of seconds from 0 to 3600",
        ),
        (["gaps", *SPEECH_OPTIONS, "--gap-fraction", "0%"], "--gap-fraction"),
        (
            ["sensitivity", "--rtt", "100ms", "--loss", "1%", "--app", "voip", "--silence", "1s"],
            "--silence: goes with solve bitrate, ",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(refused, arguments, words):
    assert words in refused("solve", *arguments)


# `tcpdelay playout`: the table of playout buffers, its formats, and bad input

SMALL = ("playout", "--app", "voip", "--rtt", "200ms,100ms", "--loss", "0.1%,2%", "--method", "chain")


def test_each_buffer_is_the_predicted_delay_less_the_one_way_delay(run):
    controls = ("--congestion-control", "cubic", "--congestion-control", "reno")
    status, printed, errors = run(*SMALL, *controls, "--format", "csv")
    assert (status, errors) == (0, "")
    rows = list(csv.DictReader(io.StringIO(printed)))
    cells = [(row["stack"], float(row["rtt_s"]), float(row["loss_fraction"])) for row in rows]
    assert cells == [(cc, rtt, loss) for cc in ("cubic", "reno") for rtt in (0.1, 0.2) for loss in (0.001, 0.02)]
    for row, (control, rtt, loss) in zip(rows, cells, strict=True):
        stack = td.Stack.linux(congestion_control=control)
        delays = td.predict_delay(td.Flow(174, 0.020), td.Path(rtt, loss), stack, method="chain")
        delay = delays.quantile(0.95)
        assert float(row["delay_s"]) == pytest.approx(delay, rel=1e-5)
        assert float(row["buffer_s"]) == pytest.approx(delay - rtt / 2, abs=1e-6)
        assert float(row["buffer_rtts"]) == pytest.approx((delay - rtt / 2) / rtt, abs=1e-5)
        assert float(row["buffer_error_s"]) == pytest.approx(delays.expected_error.p90 * delay, rel=1e-5)
        assert row["verdict"] == ("fails" if (rtt, loss) == (0.2, 0.02) else "works")


def test_every_format_has_the_cells_and_the_pages_have_the_command(run, tmp_path):
    for suffix in ("html", "md", "txt", "csv", "json"):
        assert run(*SMALL, "-o", f"wall.{suffix}") == (0, "", "")
    pages = {suffix: (tmp_path / f"wall.{suffix}").read_text() for suffix in ("html", "md", "txt", "json")}
    for suffix in ("html", "md", "txt"):
        for text in ("0.90 RTT", "RTT ✗", "voip over cubic"):
            assert text in pages[suffix]
    for suffix in ("html", "md"):
        assert f"tcpdelay {' '.join(SMALL)} -o wall.{suffix}" in pages[suffix]
    assert pages["html"].count('<td class="works">') == 3
    assert pages["html"].count('<td class="fails">') == 1
    assert [record["rtt_s"] for record in json.loads(pages["json"])] == [0.1, 0.1, 0.2, 0.2]


def test_a_path_that_is_not_validated_and_a_flow_that_is_not_carried_are_marked():
    call = Scenario(td.Flow(1448, 0.005), td.Path(0.5, 0.001), target=td.Target(0.2))
    table = playout_table(call, [0.1, 0.5], [0.001, 0.1], method="chain")
    outside, last = [[bool(cell.outside) for cell in row] for row in table.rows], table.rows[1][1]
    assert outside == [[False, False], [True, True]]
    assert (last.verdict, last.buffer) == ("not carried", math.inf)
    titled = [TitledTable(None, "cubic", table)]
    assert "not carried*" in to_page(titled, "tcpdelay playout")
    assert "not carried\\*" in to_markdown(titled, "tcpdelay playout")
    assert any("round-trip times of 5 ms to 400 ms" in note for note in notes(titled))


def test_a_cell_without_an_answer_says_why():
    call = Scenario(td.Flow(174, 0.020), td.Path(0.1, 0.001, reordering=0.01), target=td.Target(0.2))
    table = playout_table(call, [0.1], [0.02], method="chain")
    cell = table.rows[0][0]
    assert (cell.verdict, cell.method) == ("no answer", "")
    assert math.isnan(cell.buffer)
    assert any(cell.refusal in note for note in notes([TitledTable("voip", "cubic", table)]))


def test_the_one_way_delay_of_the_path_is_taken_off():
    assert PlayoutCell(td.Path(0.1, 0.02, one_way_delay=0.03), 0.14, 0.1, "works", "chain").buffer == pytest.approx(
        0.11
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rtt", "20ms,40"), "--rtt: '40' has no unit"),
        (("--rtt", "100s"), "--rtt: must lie between 1e-06 and 60 s, got 100"),
        (("--rtt", "20ms,100s"), "--rtt: must lie between 1e-06 and 60 s, got 100"),
        (("--loss", "1%,200%"), "--loss: "),
        (("--loss", ",".join(f"{i / 10}%" for i in range(51))), "--loss: must have 1 to 50 values"),
        (("--congestion-control", "vegas"), "--congestion-control: must be one of cubic, reno, bbr, westwood, got"),
        (("--congestion-control", "reno", "--stack", "newreno_2008"), "--congestion-control: goes with --stack linux"),
        (("-o", "wall.pdf"), "--output: 'wall.pdf' does not end in one of "),
    ],
)
def test_a_wrong_option_is_named_in_one_line(refused, arguments, message):
    errors = refused("playout", "--app", "voip", "--method", "chain", *arguments)
    assert errors.startswith("tcpdelay playout: ")
    assert message.replace("'", "") in errors.replace("'", "")
