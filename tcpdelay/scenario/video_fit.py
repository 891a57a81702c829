"""The parameters of a video from the times and sizes of its frames."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.messages import Trace

KEY_LABELS = ("key", "key frame", "i", "idr")
"""Labels of key frames, in lower case."""
FEWEST_FRAMES = 10
FEWEST_KEY_FRAMES = 5
"""Number of key frames below which sizes do not tell key frames from chance."""
MOST_SEARCHED = 10_000
"""Number of frames, from the first on, in which key frames are searched."""
LARGEST_SPREAD = 1.0
"""Largest difference of the 10th and 90th percentile of the intervals of a video, relative to the median."""
LARGEST_GAP_SHARE = 0.25
"""Largest difference of the mean interval of a video and the median, relative to the median."""
SMALLEST_GAIN = 10.0
"""Gain of the logarithmic likelihood from which frames are divided into classes; few frames reach less by chance."""
LARGEST_REPEATED = 0.5
"""Share of the larger frames, followed by another one, above which they are a part of the content and no class."""
SMALLEST_RATIO = 1.5
"""Ratio of the geometric means of two classes below which the larger frames are no class of their own."""
SMALLEST_SEPARATION = 2.0
"""Distance of the means of two classes, in standard deviations, from which a mixture has two modes (Ashman's D)."""
_SMALLEST_VARIANCE = 1e-6
_UPPER_SHARES = (0.4, 0.1, 0.02, 0.004)
_ROUNDS = 60
_CONVERGED = 1e-6

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


class Split(NamedTuple):
    """A division of frames into two classes."""

    # Gain of the logarithmic likelihood over one class, less the price of the further parameters (Schwarz 1978).
    gain: float
    larger: Numbers  # Indices of the frames of the class of larger frames


NO_SPLIT = Split(0.0, np.empty(0, np.int64))


class VideoParameters(NamedTuple):
    """Parameters of `Video`, by its names."""

    bitrate: float
    frame_rate: float
    key_interval: float
    key_ratio: float
    variation: float


def fitted_parameters(trace: Trace) -> VideoParameters:
    """Return the parameters of `Video` for the frames of a trace; the method is described at `Video.fit`."""
    if not isinstance(trace, Trace):
        raise InvalidValueError("trace", trace, "be a Trace")
    frame_rate = _frame_rate(trace)
    sizes = trace.sizes.astype(np.float64)
    bitrate = 8 * float(sizes.mean()) * frame_rate
    found = _labelled_key_frames(trace)
    if found is None:
        sizes = sizes[:MOST_SEARCHED]
        found = key_frames(sizes)
    key = np.zeros(sizes.size, np.bool_)
    key[found] = True
    if not key.any() or key.all() or sizes[key].mean() <= sizes[~key].mean():
        variation = float(sizes.std() / sizes.mean())
        return VideoParameters(bitrate, frame_rate, 1 / frame_rate, 1.0, variation)
    means = np.where(key, sizes[key].mean(), sizes[~key].mean())
    group = (found[-1] - found[0]) / (found.size - 1) if found.size > 1 else sizes.size
    variation = float(np.std(sizes / means))
    return VideoParameters(bitrate, frame_rate, round(group) / frame_rate, float(means.max() / means.min()), variation)


def key_frames(sizes: NDArray[np.float64]) -> Numbers:
    """Return the indices of the key frames among the frames of a video, by their sizes.

    The frames are divided into two classes, by a fixed distance of the larger frames or by a mixture of two lognormal
    distributions, whichever is more likely. The class of larger frames is divided again until one class is more likely:
    in a video with bidirectional frames, the first division separates these from the others.
    """
    logs = np.log(sizes)
    found = NO_SPLIT.larger
    candidates = np.arange(sizes.size)
    while candidates.size >= 2 * FEWEST_KEY_FRAMES:
        split = max(_periodic(logs[candidates]), _mixture(logs[candidates]), key=lambda split: split.gain)
        if split.gain < SMALLEST_GAIN:
            break
        found = candidates = candidates[split.larger]
    return found


def _frame_rate(trace: Trace) -> float:
    """Return the frames per second; raise InvalidValueError if the messages do not come at a constant rate."""
    count = trace.times.size
    if count < FEWEST_FRAMES:
        raise InvalidValueError("trace", repr(trace), f"have {FEWEST_FRAMES} or more messages")
    intervals = np.diff(trace.times)
    low, median, high = np.quantile(intervals, (0.1, 0.5, 0.9))
    mean = float(trace.period / count if trace.period is not None else intervals.mean())
    regular = high - low <= LARGEST_SPREAD * median and abs(mean - median) <= LARGEST_GAP_SHARE * median
    if median <= 0 or not regular:
        hint = "add up the messages of each frame" if low <= median / 2 else ""
        allowed = "have messages at a constant rate, one for each frame of a video"
        got = f"intervals of {low:.3g} to {high:.3g} s (10th to 90th percentile), {mean:.3g} s in the mean"
        raise InvalidValueError("trace", got, allowed, hint)
    return 1 / mean


def _labelled_key_frames(trace: Trace) -> Numbers | None:
    """Return the indices of the frames that are labelled as key frames; None if there is no such label."""
    if trace.labels is None:
        return None
    codes = [code for code, name in enumerate(trace.labels.names) if name.lower() in KEY_LABELS]
    return np.flatnonzero(np.isin(trace.labels.codes, codes)) if codes else None


def _periodic(logs: Floats) -> Split:
    """Return the best division with larger frames at a fixed distance, as two lognormal classes of one variance."""
    count = logs.size
    centred = logs - logs.mean()
    total = float(centred @ centred)
    numbers = np.arange(count)
    best, group, phase = 0.0, 0, 0
    longest = count // FEWEST_KEY_FRAMES
    for length in range(2, longest + 1):
        members = np.bincount(numbers % length, minlength=length)
        sums = np.bincount(numbers % length, centred, minlength=length)
        # The sum of squares between the class of a phase and all other frames; the sum of all frames is 0.
        between = np.where(sums > 0, sums**2 * (1 / members + 1 / (count - members)), 0.0)
        place = int(np.argmax(between))
        if between[place] > best:
            best, group, phase = float(between[place]), length, place
    if not group:
        return NO_SPLIT
    larger = numbers[phase::group]
    floor = count * _SMALLEST_VARIANCE
    candidates = longest * (longest + 1) / 2
    gain = count / 2 * math.log((total + floor) / (total - best + floor)) - math.log(count) / 2 - math.log(candidates)
    return _checked(Split(gain, larger), logs)


def _mixture(logs: Floats) -> Split:
    """Return the division by the most likely mixture of two lognormal distributions with two modes."""
    one = float(_log_density(logs, float(logs.mean()), float(logs.var())).sum())
    starts = (logs > np.quantile(logs, 1 - share) for share in _UPPER_SHARES)
    found = [maximum for start in starts if (maximum := _maximized(logs, start.astype(np.float64))) is not None]
    if not found:
        return NO_SPLIT
    likelihood, larger = max(found, key=lambda maximum: maximum[0])
    return _checked(Split(likelihood - one - 3 / 2 * math.log(logs.size), larger), logs)


def _maximized(logs: Floats, larger: Floats) -> tuple[float, Numbers] | None:
    """Maximize the likelihood of a mixture, from the probabilities on that frames are of the class of larger frames.

    Returns the logarithmic likelihood and the frames that are probably of this class; None if a class vanishes, or if
    the classes are not separated.
    """
    likelihood = -math.inf
    for _ in range(_ROUNDS):
        classes = (1 - larger, larger)
        weights = [float(part.sum()) for part in classes]
        if min(weights) < FEWEST_KEY_FRAMES:
            return None
        means = [float(part @ logs) / weight for part, weight in zip(classes, weights, strict=True)]
        squares = [float(part @ (logs - mean) ** 2) for part, mean in zip(classes, means, strict=True)]
        variances = [square / weight for square, weight in zip(squares, weights, strict=True)]
        low, high = (
            math.log(weight / logs.size) + _log_density(logs, mean, variance)
            for weight, mean, variance in zip(weights, means, variances, strict=True)
        )
        together = np.logaddexp(low, high)
        larger = np.exp(high - together)
        before, likelihood = likelihood, float(together.sum())
        if likelihood - before < _CONVERGED * logs.size:
            break
    if means[1] - means[0] < SMALLEST_SEPARATION * math.sqrt(sum(variances) / 2):
        return None
    return likelihood, np.flatnonzero((larger > 0.5) & (logs > means[0]))


def _log_density(logs: Floats, mean: float, variance: float) -> Floats:
    variance += _SMALLEST_VARIANCE
    return np.asarray(-((logs - mean) ** 2) / (2 * variance) - math.log(2 * math.pi * variance) / 2, np.float64)


def _checked(split: Split, logs: Floats) -> Split:
    """Return a division, or none if the larger frames are too few, too many, hardly larger or side by side."""
    larger = np.zeros(logs.size, np.bool_)
    larger[split.larger] = True
    if not FEWEST_KEY_FRAMES <= split.larger.size <= logs.size / 2:
        return NO_SPLIT
    if np.mean(np.diff(split.larger) == 1) > LARGEST_REPEATED:
        return NO_SPLIT
    if logs[larger].mean() - logs[~larger].mean() < math.log(SMALLEST_RATIO):
        return NO_SPLIT
    return split
