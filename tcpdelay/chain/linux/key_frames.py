"""The chain of video: the window from key frame to key frame, and the frames that wait behind a key frame."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.linux.parameters import SMALLEST_WINDOW
from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.tcp import constants as tcp

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


@kernel()
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


@kernel()
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


@kernel()
def follow_key_frame(
    v: VideoParameters,
    key_size: float,
    in_flight: int,
    period: int,
    window: int,
    origin: float,
    weight: float,
    bins: NDArray[np.float64],
    left: NDArray[np.float64],
    begun: NDArray[np.float64],
    held: NDArray[np.float64],
    lists: NDArray[np.int64],
) -> None:
    """Follow a key frame, round by round, until the window no longer limits the sender.

    In a round, which takes a round-trip time, the segments of one window leave. Position s of the stream, counted from
    the oldest segment in flight, leaves in round floor((s - 1) / window), at the time within the round at which the
    segment one window before it was acknowledged.
    """
    shape = held.shape[1] // 2
    longest = shape // (v.largest_window + 1)
    counts = np.zeros(2, np.int64)
    flying = min(in_flight, window - 1)
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
            frame = max(int((sent - flying - key_size) / v.frame_size) - 1, 0) if sent else 0
            done, segments, filled = False, float(w), rounds > 0
            while True:
                position = math.ceil(key_size + frame * v.frame_size - 1e-9) + flying
                if position > sent + w:
                    break
                if position > sent:
                    index = position - sent
                    filled = filled or index == w
                    early = 0
                    if index <= flying:
                        early = min(math.ceil((flying - index + 0.5) / v.frame_segments), v.flight)
                    leaves = rounds * v.load - early
                    if frame > 0 and leaves <= frame + 1e-9:
                        done, segments = True, max(index - v.frame_size, 0.0)
                        break
                    together = float(index - flying if index > flying else index)
                    earlier = min(float(w), float(index)) - together if rounds == 0 else w - together
                    wait, silent = max(leaves - frame, 0.0), max(frame + 1 - leaves, 0.0)
                    _add_frame(v, bins[1 if frame == 0 else 0], wait, silent, together, earlier, chance)
                frame += 1
                if frame >= v.group:
                    done, segments = True, 0.0
                    break
            if rounds == MOST_ROUNDS or chance < NEGLIGIBLE * weight:
                done = True
            loss = 1 - (1 - v.loss) ** segments
            smaller = reduced_window(w, v.cubic == 1)
            slowest = w * ORIGIN if lost else origin
            growth = _growth(v, w, slowest, (0 if lost else (period + 0.5) * v.group) + (rounds + 1) * v.load)
            if done:
                # A window that was the limit grows until the last segments that had to wait are acknowledged.
                growth *= segments / w if filled else 0.0
            # Growth by less than a segment takes several rounds; larger growth is rounded.
            full = int(growth + 0.5) if growth > 1 else int(growth)
            part = max(growth - full, 0.0) if growth < 1 else 0.0
            for outcome in range(3):
                if outcome == 2:
                    probability, following = chance * loss, smaller
                else:
                    probability = chance * (1 - loss) * (part if outcome else 1 - part)
                    following = min(w + full + outcome, v.largest_window)
                if probability <= 0:
                    continue
                if done:
                    if v.clock and (lost or outcome == 2):
                        # The loss was a whole time between key frames before the next one.
                        for later in range(2):
                            left[frame, state_of(v, later, following)] += probability / 2
                    else:
                        later = min(period + 1, v.periods - 1)
                        left[frame, state_of(v, later, following)] += probability
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
                    until = (rounds + 1) * v.load - late
                    _put(bins[0], v.load, until, chance * loss)
                    begun[smaller] += chance * loss
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
    lists = np.zeros(held.shape, np.int64)
    for state in range(states):
        window = state % growing.size
        if window < SMALLEST_WINDOW:
            transitions[state, SMALLEST_WINDOW] = 1.0
            continue
        left = np.zeros((v.group + 1, states))
        begun = np.zeros(growing.size)
        period = state // growing.size
        origin = _origin(v, period, window) if v.clock else 0.0
        for pair in range(key_sizes.size):
            size, flying = key_sizes[pair], in_flight[pair]
            follow_key_frame(v, size, flying, period, window, origin, weight, delays[state], left, begun, held, lists)
        unfinished[state] = left[v.group].sum()
        open_frames, transitions[state] = follow_frames(v, left, growing, loss)
        written[state] = open_frames - begun
    return transitions, delays, written, unfinished
