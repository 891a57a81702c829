"""Speech and replies: gaps and audio that cannot be stopped, against loops over single chunks and Little's law."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.quality.voice import play_bursts
from tcpdelay.study.playback import STAGES

REPLIES, PATH = td.Utterances(960, 0.020, speed=3), td.Path(rtt=0.1, loss=0.01)
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
        (td.audio_not_stoppable, {"notsent_lowat": "4k"}, "notsent_lowat must be a whole number of bytes"),
        (td.audio_not_stoppable, {"bursts": 1000.5}, "bursts must be a whole number"),
        (td.audio_not_stoppable, {"buffer": "long"}, "buffer must be a number of seconds"),
        (td.audio_not_stoppable, {"buffer": -1.0}, "buffer must be a number of seconds"),
    ],
)
def test_bad_values_are_refused(question, change, words):
    settings = {"source": REPLIES, "path": PATH, "bursts": 1000} | change
    with pytest.raises(ValueError, match=words):
        question(**settings)
