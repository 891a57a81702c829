"""The chain of video: frames that do not wait behind a key frame, and its interface of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.errors import VIDEO_TABLE
from tcpdelay.accuracy.validity import packet_size
from tcpdelay.ask import SIMULATED, UnsupportedError
from tcpdelay.budget import SECONDS_PER_UPDATE, Budget, TooLargeError
from tcpdelay.chain.chains import SourceChain, SourceDelays
from tcpdelay.chain.linux.delays import NUMBER
from tcpdelay.chain.linux.key_frames import BINS, CLOCK_PERIODS, VideoParameters, key_frame_chain
from tcpdelay.chain.linux.parameters import SAME_TIME, SMALLEST_WINDOW
from tcpdelay.chain.solver.aggregation import gth_solve
from tcpdelay.chain.solver.stationary import NEGLIGIBLE_LOSS
from tcpdelay.compiling.compilation import kernel
from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.video import Video
from tcpdelay.scenario.stack import Linux
from tcpdelay.sim.tcp import constants as tcp

# Frames that do not wait behind a key frame: their sizes, their losses, and their waits for a small window.

KEY_SIZES, FLIGHTS = 6, 3
"""Number of equally likely sizes of key frames, and of equally likely numbers of segments in flight; a small size and a
large size go with each number of segments."""
LEAST_SHARE = 1e-4
"""Smallest share of frames with a number of segments whose losses are followed."""
LARGEST_DEVIATION = 4.0
"""Deviation of the logarithm of a frame's size from its mean up to which sizes are counted, in standard deviations."""


def _log_sizes(video: Video, mean: float) -> tuple[float, float]:
    """Return mean and standard deviation of the logarithm of lognormal sizes."""
    variance = math.log1p(video.variation**2)
    return math.log(mean) - variance / 2, math.sqrt(variance)


def segment_shares(video: Video, mss: int) -> NDArray[np.float64]:
    """Return the share of other frames that have 0, 1, 2 ... segments."""
    from scipy.special import ndtr

    center, deviation = _log_sizes(video, video.mean_sizes[0])
    most = math.ceil(math.exp(center + LARGEST_DEVIATION * deviation) / mss - SAME_TIME)
    if deviation == 0:
        return np.asarray(np.eye(most + 1)[most])
    shares = ndtr((np.log(mss * np.arange(1, most + 1)) - center) / deviation)
    shares[-1] = 1.0
    return np.diff(np.concatenate([[0.0, 0.0], shares]))


def mean_segments(video: Video, mss: int) -> float:
    """Return the mean number of segments of other frames.

    Examples
    --------
    >>> mean_segments(Video(300_000, key_ratio=1, variation=0), mss=1448)
    1.0
    """
    shares = segment_shares(video, mss)
    return float(shares @ np.arange(shares.size))


def key_sizes(video: Video, mss: int) -> NDArray[np.float64]:
    """Return equally likely sizes of key frames [segments]: the means of parts of their distribution."""
    from scipy.special import ndtr, ndtri

    mean = video.mean_sizes[1]
    _, deviation = _log_sizes(video, mean)
    if deviation == 0:
        return np.full(KEY_SIZES, mean / mss)
    ends = ndtri(np.linspace(0, 1, KEY_SIZES + 1))
    # The mean of a lognormal size between two quantiles, relative to the whole mean.
    return np.asarray(mean / mss * KEY_SIZES * np.diff(ndtr(ends - deviation)))


def flights(shares: NDArray[np.float64], frames: int) -> NDArray[np.int64]:
    """Return equally likely numbers of segments of some frames, in the order of `key_sizes`."""
    total = np.ones(1)
    for _ in range(frames):
        total = np.convolve(total, shares)
    numbers = np.searchsorted(np.cumsum(total), (np.arange(FLIGHTS) + 0.5) / FLIGHTS)
    return np.tile(numbers, KEY_SIZES // FLIGHTS)


def video_parameters(video: Video, path: Path, stack: Linux) -> VideoParameters:
    """Return the parameters of the chain of video."""
    load = path.rtt * video.frame_rate
    flight = math.floor(load + SAME_TIME)
    segments = mean_segments(video, stack.mss)
    cubic = stack.congestion_control == "cubic"
    clock = cubic and flight > 0
    needed = math.ceil(key_sizes(video, stack.mss)[-1]) + math.ceil(segments * flight)
    # A timer of the wheel fires one and a half ticks late in the mean.
    slack = tcp.TIMER_SLACK / tcp.SECOND + 1.5 / stack.hz
    return VideoParameters(
        load,
        1 / video.frame_rate,
        flight,
        path.loss,
        video.group,
        video.mean_sizes[0] / stack.mss,
        segments,
        max(needed + 3, segment_shares(video, stack.mss).size, tcp.INITIAL_WINDOW),
        int(cubic),
        int(clock),
        CLOCK_PERIODS if clock else 1,
        load * (1 + 1 / tcp.REORDERING_SHARE) + slack * video.frame_rate,
    )


@kernel()
def lone_loss(v: VideoParameters, segments: int, lost: int, frame_segments: int) -> NDArray[np.float64]:
    """Return how long a frame with a loss, and each frame after it, waits for the repair [frame intervals]."""
    arrived = segments - lost
    detected, credit, frames = v.load, arrived - tcp.DUPLICATE_THRESHOLD + 1, 0
    while arrived < tcp.DUPLICATE_THRESHOLD:
        frames += 1
        shown = frames + v.load
        if arrived > 0 and shown > v.reordering_timer:
            detected, credit = v.reordering_timer, 1
            break
        before = arrived
        arrived += frame_segments
        # RACK: a segment that was sent a quarter of the round-trip time later has arrived.
        if before == 0 and frames * tcp.REORDERING_SHARE >= v.load:
            detected, credit = shown, frame_segments
            break
        detected, credit = shown, arrived - tcp.DUPLICATE_THRESHOLD + 1
    # Proportional rate reduction: in the recovery each SACK releases a segment; the first is the retransmission.
    credit -= 1
    end, first = detected + v.load, math.floor(detected - v.load + SAME_TIME) + 1
    waits = np.zeros(int(end) + 1)
    for frame in range(waits.size):
        if frame <= detected:
            waits[frame] = detected - frame
            continue
        credit -= frame_segments
        acknowledged = first - 1 + max(math.ceil(-credit / frame_segments), 0)
        released = float(frame)
        if acknowledged >= first:
            released = min(acknowledged + v.load, end) if acknowledged <= detected else end
        waits[frame] = max(released - frame, 0.0)
    return waits


def repaired_in_time(v: VideoParameters, shares: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """Return the probability that a frame waits at most so long for losses in a window that lets it leave, per bin.

    Frames with losses are independent of each other, so that the probability is a product over earlier frames.
    """
    late = np.zeros((int(5 * v.load) + 8, bins))
    following = max(round(v.frame_segments), 1)
    for segments in map(int, np.flatnonzero(shares > LEAST_SHARE)):
        for lost in range(1, segments + 1):
            chance = shares[segments] * v.loss * (1 - v.loss) ** (segments - lost)
            waits = lone_loss(v, segments, lost, following)
            # If the retransmission is lost too, the next frame that is written shows it a round-trip time later.
            again = waits[0] + v.load + min(1.0, v.load)
            for age, wait in enumerate(waits):
                late[age, : round(wait / v.load * BINS)] += chance * (1 - v.loss)
            for age in range(math.ceil(again)):
                late[age, : round((again - age) / v.load * BINS)] += chance * v.loss
    return np.asarray(np.prod(1 - np.minimum(late, 1.0), axis=0))


def window_waits(
    v: VideoParameters, shares: NDArray[np.float64], bins: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how long frames wait for a window, and how often they fill it.

    With the window w, segment k leaves when segment k - w is acknowledged. So the last segment of a frame waits for
    longer than x if, for some i, the frame and the i frames before it have more than w j segments, where j is the
    smallest whole number with j RTT > x + i.
    """
    windows = np.arange(v.largest_window + 1)
    beyond = np.zeros((windows.size, bins))
    filled = np.zeros(windows.size)
    total = np.ones(1)
    waits = (np.arange(bins) + 0.5) / BINS
    for frame in range(v.flight + 6):
        total = np.convolve(total, shares)
        more = np.append(np.clip(1 - np.cumsum(total), 0.0, 1.0), 0.0)
        rounds = np.floor(waits + frame / v.load).astype(np.int64) + 1
        needed = np.minimum(windows[:, None] * rounds, more.size - 1)
        beyond = np.maximum(beyond, more[needed])
        if frame == v.flight:
            filled[1:] = more[np.minimum(windows[1:] - 1, more.size - 1)]
    return 1 - beyond, filled


def growing_windows(v: VideoParameters, filled: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability per frame that a window grows which frames without a key frame fill, per window."""
    windows = np.maximum(np.arange(filled.size), 1)
    pace = 8 / tcp.CUBIC_RENO_EIGHTHS if v.cubic else 1.0
    reduced = 1 - (1 - v.loss) ** v.frame_segments
    return np.asarray(np.minimum(filled * pace * v.frame_segments / windows, 1 - reduced))


# The chain of video behind the interface of a model.

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
        """Solve the chain of video."""
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
