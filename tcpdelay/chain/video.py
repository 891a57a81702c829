"""The chain of video: frames that do not wait behind a key frame, and its interface of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.errors import VIDEO_TABLE
from tcpdelay.accuracy.validity import packet_size
from tcpdelay.ask import SIMULATED, UnsupportedError
from tcpdelay.budget import SECONDS_PER_UPDATE, Budget, TooLargeError
from tcpdelay.chain.linux.chain import SourceChain
from tcpdelay.chain.linux.delays import NUMBER
from tcpdelay.chain.linux.parameters import SAME_TIME, SMALLEST_WINDOW
from tcpdelay.chain.solver.aggregation import gth_solve
from tcpdelay.chain.solver.stationary import NEGLIGIBLE_LOSS
from tcpdelay.compiling.compilation import allocation_free, kernel
from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.media import Video
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
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
    """Return the mean number of segments of other frames."""
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
    """Return the probability that a frame waits at most so long for losses, which are independent, per bin."""
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

    def own_refusals(self, source: Video, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
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

    def delays(self, scenario: Scenario, budget: Budget) -> DelayDistribution:
        """Return the delays of all frames, and those of key frames and other frames."""
        source, path, stack = scenario.source, scenario.path, scenario.stack
        assert isinstance(source, Video)
        assert isinstance(stack, Linux)
        forward, kinds = path.forward_delay, source.kinds if source.key_ratio > 1 else source.kinds[:1]
        if path.loss < NEGLIGIBLE_LOSS:
            values, each = np.array([forward]), [np.ones(1)] * len(kinds)
        else:
            each = _delays(video_parameters(source, path, stack), source, stack, budget)
            values = forward + np.arange(each[0].size) * path.rtt / BINS
        if len(each) > len(kinds):
            each = [each[0] + each[1]]
        found = []
        for weights in (np.sum(each, axis=0), *each):
            occurs = weights > 0
            found.append(DelayDistribution(values[occurs], weights[occurs] / weights[occurs].sum(), forward))
        return replace(found[0], by_kind=dict(zip(kinds, found[1:], strict=True)))


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


# The chain of video: the window from key frame to key frame, and the frames that wait behind a key frame.

BINS = 200
"""Bins of the delay per round-trip time."""
NEGLIGIBLE = 1e-3
"""Probability of a course of events, given the window at the key frame, from which on it is not followed."""
MOST_ROUNDS = 60
"""Largest number of rounds for which a key frame is followed."""
CLOCK_PERIODS = 4
"""Key frames since a loss that the chain counts where CUBIC's clock goes on; later the window has what it needs."""
ORIGIN = 0.5 * (1 + (1 + tcp.CUBIC_BETA / tcp.CUBIC_SCALE) / 2)
"""Window at which CUBIC grows slowest, relative to the window before the loss, if half of the losses converge fast.

With fast convergence it is (1 + beta) / 2, without it 1 (`tcp.fast_converged`).
"""
reduced_window = kernel()(tcp.reduced_window)


class VideoParameters(NamedTuple):
    """A video on a path; unless noted, times are in frame intervals, and sizes in segments."""

    load: float  # Round-trip time
    interval: float  # Frame interval [s]
    flight: int  # Number of earlier frames whose ACKs are missing when a frame is written
    loss: float  # Probability that a segment is lost, above 0
    group: int  # Frames from a key frame to the next
    frame_size: float  # Mean size of a frame that is no key frame; the data of frames that wait share segments
    frame_segments: float  # Mean number of segments of such a frame if it does not wait
    largest_window: int  # Largest window of the chain: no key frame needs a larger one
    cubic: int  # Whether the window is that of CUBIC, else of Reno
    clock: int  # Whether CUBIC's clock goes on between key frames. It stops while no segment is in flight.
    periods: int  # Number of states of this clock: key frames since a loss
    # Time from the sending of a segment to RACK's timer, if fewer than three later segments have arrived.
    reordering_timer: float


@kernel()
def state_of(v: VideoParameters, period: int, window: int) -> int:
    """Return the number of a state: key frames since a loss, and window."""
    return int(period * (v.largest_window + 1) + window)


@allocation_free()
def _put(bins: NDArray[np.float64], load: float, delay: float, weight: float) -> None:
    """Add the weight of a delay beyond the one-way delay [frame intervals]."""
    bins[min(int(delay / load * BINS + 0.5), bins.size - 1)] += weight


@kernel()
def _target(v: VideoParameters, origin: float, time: float) -> float:
    """Return CUBIC's window at a time [frame intervals] after growth began again (RFC 9438, 4.2)."""
    shrunk = origin * (1 - tcp.CUBIC_BETA / tcp.CUBIC_SCALE / ORIGIN)
    return float(origin + tcp.CUBIC_C * (time * v.interval - (shrunk / tcp.CUBIC_C) ** (1 / 3)) ** 3)


@kernel()
def _origin(v: VideoParameters, period: int, window: int) -> float:
    """Return the window at which CUBIC's growth is slowest, from the window some key frames after a loss."""
    least = tcp.CUBIC_BETA / tcp.CUBIC_SCALE / ORIGIN
    best, found = np.inf, float(window)
    for step in range(BINS):
        origin = window / least * (1 - step / BINS)
        reached = origin * least
        if period:
            reached = max(reached, _target(v, origin, (period - 0.5) * v.group))
        if abs(reached - window) < best:
            best, found = abs(reached - window), origin
    return found


@kernel()
def _growth(v: VideoParameters, window: int, origin: float, time: float) -> float:
    """Return by how much a window grows that limits the sender for a round-trip time [segments]."""
    if not v.cubic:
        return 1.0
    friendly = 8.0 / tcp.CUBIC_RENO_EIGHTHS
    if not v.clock:
        return friendly
    return float(max(friendly, min(_target(v, origin, time) - window, window / tcp.CUBIC_FASTEST_GROWTH)))


@allocation_free()
def _add_frame(
    v: VideoParameters,
    bins: NDArray[np.float64],
    wait: float,
    silent: float,
    together: float,
    earlier: float,
    weight: float,
) -> None:
    """Add a frame that leaves after a wait, delayed by losses in the round-trip time before.

    `together` segments leave at the same time as the frame's last one, which is among them, and `earlier` segments
    leave in the frame intervals before. A retransmission arrives one round-trip time after a lost segment would have.
    If no data follows at once, the loss of the last segment is detected by the next frame, written after `silent`, and
    that of the two before it by RACK's timer at the latest.
    """
    rest = weight
    for part in range(v.flight + tcp.DUPLICATE_THRESHOLD):
        age = part - tcp.DUPLICATE_THRESHOLD + 1
        left = v.load - max(age, 0)
        if age > 0:
            segments = earlier / v.flight
        elif age == 0:
            segments = together - tcp.DUPLICATE_THRESHOLD
        elif part == 0:
            segments, left = min(together, 1.0), v.load + silent
        else:
            segments = min(together - 1.0, tcp.DUPLICATE_THRESHOLD - 1.0)
            left = v.load + min(silent, v.reordering_timer - v.load)
        if segments <= 0 or left <= 0:
            continue
        late = rest * (1 - (1 - v.loss) ** segments)
        _put(bins, v.load, wait + left, late * (1 - v.loss))
        _put(bins, v.load, wait + left + v.load, late * v.loss)
        rest -= late
    _put(bins, v.load, wait, rest)


class KeyFrame(NamedTuple):
    """A key frame that is followed, and the state of the chain in which it is written."""

    size: float  # In segments
    flying: int  # Segments in flight when it is written
    period: int  # Key frames since a loss
    origin: float  # Window at which CUBIC's growth is slowest, as of `_origin`


class Followed(NamedTuple):
    """What follows from a state: delays, and where the chain goes on; and the states within a round, overwritten."""

    bins: NDArray[np.float64]  # Weights of delays: of other frames, and of key frames
    left: NDArray[np.float64]  # Probability by the first frame that does not wait, and by state
    begun: NDArray[np.float64]  # Frames that wait for a loss of the last round, by window
    # held, lists: Probability by state within this round and within the next, and the states that have one. A state is
    # whether a segment has been lost, the window, and the segments sent.
    held: NDArray[np.float64]
    lists: NDArray[np.int64]
    counts: NDArray[np.int64]  # Length of both lists


@allocation_free()
def _add_frames(
    v: VideoParameters, k: KeyFrame, bins: NDArray[np.float64], rounds: int, window: int, sent: int, weight: float
) -> tuple[int, bool, float, bool]:
    """Add the frames whose last segments leave in a round.

    Return the next frame, whether the window no longer limits the sender, the segments of this round up to then, and
    whether the window was filled.
    """
    frame = max(int((sent - k.flying - k.size) / v.frame_size) - 1, 0) if sent else 0
    filled = rounds > 0
    while frame < v.group:
        position = math.ceil(k.size + frame * v.frame_size - 1e-9) + k.flying
        if position > sent + window:
            return frame, False, float(window), filled
        if position > sent:
            index = position - sent
            filled = filled or index == window
            early = 0
            if index <= k.flying:
                early = min(math.ceil((k.flying - index + 0.5) / v.frame_segments), v.flight)
            leaves = rounds * v.load - early
            if frame > 0 and leaves <= frame + 1e-9:
                return frame, True, max(index - v.frame_size, 0.0), filled
            together = float(index - k.flying if index > k.flying else index)
            earlier = min(float(window), float(index)) - together if rounds == 0 else window - together
            wait, silent = max(leaves - frame, 0.0), max(frame + 1 - leaves, 0.0)
            _add_frame(v, bins[1 if frame == 0 else 0], wait, silent, together, earlier, weight)
        frame += 1
    return frame, True, 0.0, filled


@kernel()
def _grown_by(v: VideoParameters, k: KeyFrame, rounds: int, window: int, lost: bool, share: float) -> tuple[int, float]:
    """Return by how many segments a window grows in a round, of which a share counts, and the chance of one more.

    Growth by less than a segment takes several rounds; larger growth is rounded.
    """
    slowest, since = (window * ORIGIN, 0.0) if lost else (k.origin, (k.period + 0.5) * v.group)
    growth = _growth(v, window, slowest, since + (rounds + 1) * v.load) * share
    full = int(growth + 0.5) if growth > 1 else int(growth)
    return full, max(growth - full, 0.0) if growth < 1 else 0.0


@allocation_free()
def _leave(v: VideoParameters, k: KeyFrame, f: Followed, frame: int, window: int, lost: bool, chance: float) -> None:
    """Add the probability that the window limits the sender no longer from a frame on."""
    if v.clock and lost:
        # The loss was a whole time between key frames before the next one.
        for later in range(2):
            f.left[frame, state_of(v, later, window)] += chance / 2
    else:
        f.left[frame, state_of(v, min(k.period + 1, v.periods - 1), window)] += chance


@allocation_free()
def follow_key_frame(v: VideoParameters, k: KeyFrame, window: int, weight: float, f: Followed) -> None:
    """Follow a key frame, round by round, until the window no longer limits the sender.

    In a round, which takes a round-trip time, the segments of one window leave. Position s of the stream, counted from
    the oldest segment in flight, leaves in round floor((s - 1) / window), at the time within the round at which the
    segment one window before it was acknowledged.
    """
    shape = f.held.shape[1] // 2
    longest = shape // (v.largest_window + 1)
    held, lists, counts = f.held, f.lists, f.counts
    start = window * longest
    held[0, start], lists[0, 0], counts[0] = weight, start, 1
    here = 0
    for rounds in range(MOST_ROUNDS + 1):
        there = 1 - here
        counts[there] = 0
        for place in range(counts[here]):
            state = lists[here, place]
            chance = held[here, state]
            held[here, state] = 0.0
            lost, w, sent = state // shape, state % shape // longest, state % longest
            frame, done, segments, filled = _add_frames(v, k, f.bins, rounds, w, sent, chance)
            done = done or rounds == MOST_ROUNDS or chance < NEGLIGIBLE * weight
            loss = 1 - (1 - v.loss) ** segments
            smaller = reduced_window(w, v.cubic == 1)
            # A window that was the limit grows until the last segments that had to wait are acknowledged.
            share = 1.0 if not done else (segments / w if filled else 0.0)
            full, part = _grown_by(v, k, rounds, w, lost == 1, share)
            for outcome in range(3):
                probability, following = chance * loss, smaller
                if outcome < 2:
                    probability = chance * (1 - loss) * (part if outcome else 1 - part)
                    following = min(w + full + outcome, v.largest_window)
                if probability <= 0:
                    continue
                if done:
                    _leave(v, k, f, frame, following, lost == 1 or outcome == 2, probability)
                    continue
                position = min(sent + w - (1 if outcome == 2 and following < w else 0), longest - 1)
                target = (1 if outcome == 2 else lost) * shape + following * longest + position
                if held[there, target] == 0.0:
                    lists[there, counts[there]] = target
                    counts[there] += 1
                held[there, target] += probability
            if done and loss > 0:
                # Frames soon after the key frame wait for a loss of its last round.
                for late in range(frame, min(v.group, math.ceil(rounds * v.load + v.load))):
                    _put(f.bins[0], v.load, (rounds + 1) * v.load - late, chance * loss)
                    f.begun[smaller] += chance * loss
        here = there
        if counts[here] == 0:
            break


@kernel()
def follow_frames(
    v: VideoParameters, entering: NDArray[np.float64], growing: NDArray[np.float64], loss: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Follow the frames that do not wait behind a key frame, until the next key frame."""
    written = np.zeros(growing.size)
    now = entering[0].copy()
    for frame in range(1, v.group + 1):
        following = entering[frame].copy()
        for state in range(now.size):
            if now[state] == 0.0:
                continue
            window = state % growing.size
            written[window] += now[state]
            following[reduced_window(window, v.cubic == 1)] += now[state] * loss
            grown = state if window == v.largest_window else state + 1
            following[grown] += now[state] * growing[window]
            following[state] += now[state] * (1 - loss - growing[window])
        now = following
    return written, now


@kernel()
def key_frame_chain(
    v: VideoParameters,
    key_sizes: NDArray[np.float64],
    in_flight: NDArray[np.int64],
    growing: NDArray[np.float64],
    bins: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the chain of the windows at key frames, and what happens from each window to the next key frame."""
    unfinished = np.zeros(v.periods * (v.largest_window + 1))
    states = unfinished.size
    transitions = np.zeros((states, states))
    delays = np.zeros((states, 2, bins))
    written = np.zeros((states, growing.size))
    loss = 1 - (1 - v.loss) ** v.frame_segments
    weight = 1.0 / key_sizes.size
    longest = int(key_sizes[-1]) + in_flight.max() + v.largest_window + int(v.group * v.frame_size) + 2
    held = np.zeros((2, 2 * growing.size * longest))
    lists, counts = np.zeros(held.shape, np.int64), np.zeros(2, np.int64)
    for state in range(states):
        window = state % growing.size
        if window < SMALLEST_WINDOW:
            transitions[state, SMALLEST_WINDOW] = 1.0
            continue
        left, begun = np.zeros((v.group + 1, states)), np.zeros(growing.size)
        f = Followed(delays[state], left, begun, held, lists, counts)
        period = state // growing.size
        origin = _origin(v, period, window) if v.clock else 0.0
        for pair in range(key_sizes.size):
            k = KeyFrame(key_sizes[pair], min(in_flight[pair], window - 1), period, origin)
            follow_key_frame(v, k, window, weight, f)
        unfinished[state] = left[v.group].sum()
        open_frames, transitions[state] = follow_frames(v, left, growing, loss)
        written[state] = open_frames - begun
    return transitions, delays, written, unfinished
