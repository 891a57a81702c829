"""The chain of video behind the interface of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.accuracy import VIDEO_TABLE
from tcpdelay.models.budget import SECONDS_PER_UPDATE, Budget, TooLargeError
from tcpdelay.models.interface import SIMULATED, UnsupportedError
from tcpdelay.models.linux.delays import NUMBER
from tcpdelay.models.linux.key_frames import BINS, VideoParameters, key_frame_chain
from tcpdelay.models.linux.parameters import SMALLEST_WINDOW
from tcpdelay.models.linux.video_frames import (
    flights,
    growing_windows,
    key_sizes,
    mean_segments,
    repaired_in_time,
    segment_shares,
    video_parameters,
    window_waits,
)
from tcpdelay.models.solver.gth import gth_solve
from tcpdelay.models.solver.profile import NEGLIGIBLE_LOSS
from tcpdelay.models.source_chain import SourceChain, SourceDelays
from tcpdelay.models.validity import packet_size
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.video import Video
from tcpdelay.scenario.stack import Linux

LARGEST_UTILIZATION = 0.35
"""Largest rate of a video's segments, relative to the fair rate of TCP: above it, backlogs of other frames grow."""
LARGEST_NEED = 80.0
"""Largest mean number of segments of a key frame and of the frames in flight."""
LARGEST_FRAME = 12.0
"""Largest mean number of segments of other frames: in a reduced window, larger ones take several rounds each."""
MOST_FRAMES = 300
"""Largest number of frames from a key frame to the next."""
LARGEST_VARIATION = 0.6
"""Largest variation of the sizes at which the chain has been compared with the simulator."""
LONGEST_INTERVAL = 0.1
"""Longest frame interval [s]: after a longer one the window would be reduced as in idle time."""
LONGEST_WAIT = 14.0
"""Longest delay of the chain in round-trip times, beyond five frame intervals."""
SECONDS_PER_KEY_FRAME, SECONDS_PER_BIN = 5e-5, 5e-8
"""Time that one size of a key frame and one bin of its delays take, for each state of the window [s]."""
UNFINISHED = 0.01
"""Largest share of key frames that may still wait when the next key frame is written."""


class VideoModel(SourceChain):
    """The Markov chain of a Linux kernel for video: key frames and other frames."""

    source = Video
    subject = "video"
    busy = "segments"
    largest_utilization = LARGEST_UTILIZATION
    table = VIDEO_TABLE

    def busiest(self, source: Video, stack: Linux) -> Flow:
        """Return the flow of the mean number of segments, with full segments: windows count segments."""
        segments = (source.group - 1) * mean_segments(source, stack.mss) + source.mean_sizes[1] / stack.mss
        return Flow(packet_size(segments / source.group * stack.mss), source.mean_interval)

    def refusals(self, source: Video, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
        """Yield an error for each field that only the chain of video refuses."""
        where = "in the chain of video"
        if source.frame_sizes != "lognormal":
            yield UnsupportedError("frame_sizes", source.frame_sizes, f"be 'lognormal' {where}", SIMULATED)
        if source.variation > LARGEST_VARIATION:
            allowed = f"be at most {LARGEST_VARIATION:g} {where}"
            yield UnsupportedError("variation", source.variation, allowed, SIMULATED)
        if source.mean_interval > LONGEST_INTERVAL:
            allowed = f"be at least {1 / LONGEST_INTERVAL:g} {where}"
            yield UnsupportedError("frame_rate", source.frame_rate, allowed, SIMULATED)
        if not 1 < source.group <= MOST_FRAMES:
            allowed = f"be 2 to {MOST_FRAMES} frames {where}"
            yield UnsupportedError("key_interval", source.key_interval, allowed, SIMULATED)
        of_frame = mean_segments(source, stack.mss)
        of_key_frame = source.mean_sizes[1] / stack.mss + path.rtt * source.bitrate / 8 / stack.mss
        for segments, most, what in (
            (of_frame, LARGEST_FRAME, "frames other than key frames have"),
            (of_key_frame, LARGEST_NEED, "a key frame and the flight have"),
        ):
            if segments > most:
                allowed = f"be smaller {where}: {what} {segments:.0f} segments, and at most {most:.0f} are followed"
                yield UnsupportedError("bitrate", source.bitrate, allowed, SIMULATED)

    def solve(
        self, source: Video, path: Path, stack: Linux, ignored: Mapping[str, str], budget: Budget
    ) -> SourceDelays:
        """Solve the chain of video.

        Raises
        ------
        TooLargeError
            If key frames often wait until the next key frame is written, or beyond the budget.
        """
        kinds = source.kinds if source.key_ratio > 1 else source.kinds[:1]
        if path.loss < NEGLIGIBLE_LOSS:
            values, each = np.array([path.forward_delay]), [np.ones(1)] * len(kinds)
        else:
            v = video_parameters(source, path, stack)
            each = _delays(v, source, stack, budget)
            values = path.forward_delay + np.arange(each[0].size) * path.rtt / BINS
        if len(each) > len(kinds):
            each = [each[0] + each[1]]
        every = np.sum(each, axis=0)
        return SourceDelays(
            *_distributed(values, every),
            path.forward_delay,
            scenario=(source, path, stack),
            ignored=ignored,
            by_kind={
                kind: DelayDistribution(*_distributed(values, weights), path.forward_delay)
                for kind, weights in zip(kinds, each, strict=True)
            },
        )


def _distributed(
    values: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the delays that occur, and their weights, which sum to 1."""
    occurs = weights > 0
    return values[occurs], weights[occurs] / weights[occurs].sum()


def _delays(v: VideoParameters, source: Video, stack: Linux, budget: Budget) -> list[NDArray[np.float64]]:
    """Return the weights of the delays of other frames and of key frames, in bins of `BINS` per round-trip time."""
    shares, sizes = segment_shares(source, stack.mss), key_sizes(source, stack.mss)
    bins = int((LONGEST_WAIT + 5 / v.load) * BINS)
    states, of_key_frames = v.periods * (v.largest_window + 1), 2 * bins
    budget.load = f"frames of {1 / v.load:.4g} round-trip times"
    budget.require_memory(NUMBER * float(states) * (of_key_frames + states))
    of_state = SECONDS_PER_KEY_FRAME * sizes.size + SECONDS_PER_BIN * of_key_frames + SECONDS_PER_UPDATE * states**2
    budget.spend(states * of_state)
    in_time, filled = window_waits(v, shares, bins)
    growing = growing_windows(v, filled)
    in_flight = flights(shares, v.flight)
    transitions, delays, written, unfinished = key_frame_chain(v, sizes, in_flight, growing, bins)
    used = np.flatnonzero(np.arange(transitions.shape[0]) % growing.size >= SMALLEST_WINDOW)
    probability = gth_solve(transitions[np.ix_(used, used)])
    if probability @ unfinished[used] > UNFINISHED:
        raise TooLargeError("key frames often wait until the next key frame is written; simulate instead")
    waiting, key = np.tensordot(probability, delays[used], 1)
    in_window = np.maximum(probability @ written[used], 0.0)
    by_then = (in_window @ in_time) * repaired_in_time(v, shares, bins)
    by_then[-1] = in_window.sum()
    return [waiting + np.diff(by_then, prepend=0.0), key]
