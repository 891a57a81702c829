"""What was sent again, what of that was needless, and what came out of order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpdelay.capture.pcap.coverage import Coverage
from tcpdelay.capture.pcap.trace import Acknowledgements, DataSegments, Flags, Integers, Trace

_REORDERING_TIME = 3_000_000
"""Time within which a segment counts as overtaken where neither timestamp nor identification tells [ns]."""
_MOST_IN_REPORT = 1000
"""Repetitions that one report of duplicates is taken to speak of."""


@dataclass(frozen=True)
class Sent:
    """The segments of a capture at the sender.

    Attributes
    ----------
    original : ndarray of int64
        Indices of those that hold new data only.
    repetition : ndarray of bool
        Which were sent again.
    resent : ndarray of bool
        Which are repetitions or were repeated.
    spurious : ndarray of bool
        Which repetitions were needless, as the receiver reported.
    """

    original: Integers
    repetition: Flags
    resent: Flags
    spurious: Flags


@dataclass(frozen=True)
class Arrived:
    """The segments of a capture at the receiver.

    Attributes
    ----------
    repetition : ndarray of bool
        Which filled a gap and had been sent again.
    reordered : ndarray of bool
        Which came late but for the first time.
    duplicate : ndarray of bool
        Which held nothing new.
    """

    repetition: Flags
    reordered: Flags
    duplicate: Flags


def at_sender(trace: Trace, pieces: Coverage) -> Sent:
    """Tell repetitions from new segments in a capture at the sender.

    A repetition was needless if the receiver reports it as a duplicate (D-SACK, RFC 2883), or if the acknowledgement
    that covers it echoes a timestamp older than its own (Eifel, RFC 3522). Neither sees those whose acknowledgements
    were lost.

    Parameters
    ----------
    trace : Trace
        The capture.
    pieces : Coverage
        Its stream in pieces.

    Returns
    -------
    Sent
        The classification.
    """
    data = trace.data
    before = data.before()
    repetition = data.start < before
    repetition &= ~_keep_alive(data, trace.acks, before)
    times_held = np.bincount(pieces.piece, minlength=pieces.time.size)
    resent = repetition.copy()
    resent[pieces.owner[times_held[pieces.piece] > 1]] = True
    original = np.flatnonzero(data.start >= before)
    spurious = _by_eifel(data, trace.acks, repetition)
    _mark_reported(data, trace.acks, repetition, spurious)
    return Sent(original, repetition, resent, spurious)


def _keep_alive(data: DataSegments, acks: Acknowledgements, before: Integers) -> Flags:
    """Return which segments are probes of one byte that had been acknowledged (RFC 9293, 3.8.4)."""
    covered = acks.first_covering(data.end)
    known = np.append(acks.time, np.iinfo(np.int64).max)[covered] < data.time
    probes: Flags = (data.end - data.start == 1) & (data.end == before) & known
    return probes


def _by_eifel(data: DataSegments, acks: Acknowledgements, repetition: Flags) -> Flags:
    """Return which repetitions were acknowledged by an answer to an earlier transmission."""
    spurious = np.zeros(data.size, np.bool_)
    again = np.flatnonzero(repetition & data.stamped)
    covering = acks.first_covering(data.end[again])
    again, covering = again[covering < acks.size], covering[covering < acks.size]
    begins = np.concatenate([[np.int64(0)], np.maximum.accumulate(acks.ack)[:-1]])[covering]
    # Only the segment at the left edge is the one whose timestamp the receiver echoes (RFC 7323, 4.3).
    leftmost = (data.start[again] <= begins) & (acks.time[covering] > data.time[again]) & acks.stamped[covering]
    older = (acks.tsecr[covering] - data.tsval[again]).view(np.int32) < 0
    spurious[again[leftmost & older]] = True
    return spurious


def _mark_reported(data: DataSegments, acks: Acknowledgements, repetition: Flags, spurious: Flags) -> None:
    """Mark the repetitions that lie in a block of D-SACK: one at or below the acknowledgement, or within the next."""
    left, right = acks.left[:, 0], acks.right[:, 0]
    below = right <= acks.ack
    within = (acks.blocks > 1) & (left >= acks.left[:, 1]) & (right <= acks.right[:, 1])
    reports = np.flatnonzero((acks.blocks > 0) & (right > left) & (below | within))
    again = np.flatnonzero(repetition)
    by_start = again[np.lexsort((again, data.start[again]))]
    starts = data.start[by_start]
    reported = np.zeros(data.size, np.bool_)
    for report in reports.tolist():
        low, high = np.searchsorted(starts, (left[report], right[report]))
        near = by_start[low : min(high, low + _MOST_IN_REPORT)]
        near = near[(data.time[near] < acks.time[report]) & ~reported[near]]
        reached = right[report]
        for i in near[::-1].tolist():
            # One that is only partly a duplicate was needed for the rest.
            if data.end[i] <= reached:
                reported[i] = spurious[i] = True
                reached = data.start[i]


def at_receiver(trace: Trace, pieces: Coverage) -> Arrived:
    """Tell repetitions from reordered segments in a capture at the receiver.

    A segment that comes behind a later one was overtaken if its timestamp, or where that is equal its IPv4
    identification, is older than that of the one that overtook it; else it was sent again. Where neither tells, one
    that is no more than 3 ms late counts as overtaken.

    Parameters
    ----------
    trace : Trace
        The capture.
    pieces : Coverage
        Its stream in pieces.

    Returns
    -------
    Arrived
        The classification.
    """
    data = trace.data
    late = data.start < data.before()
    newest = np.zeros(data.size, np.int64)
    np.maximum.at(newest, pieces.owner, pieces.first[pieces.piece])
    duplicate = newest < np.arange(data.size)
    duplicate &= late
    candidates = np.flatnonzero(late & ~duplicate)
    overtaker = np.searchsorted(np.maximum.accumulate(data.end), data.end[candidates])
    stamps = (data.tsval[candidates] - data.tsval[overtaker]).view(np.int32).astype(np.int64)
    stamps[~(data.stamped[candidates] & data.stamped[overtaker])] = 0
    numbers = (data.ip_id[candidates] - data.ip_id[overtaker] + 2**15) % 2**16 - 2**15
    numbers[(data.ip_id[candidates] == 0) & (data.ip_id[overtaker] == 0)] = 0
    waited = data.time[candidates] - data.time[overtaker]
    age = np.where(stamps != 0, stamps, np.where(numbers != 0, numbers, waited - _REORDERING_TIME))
    reordered, repetition = np.zeros(data.size, np.bool_), np.zeros(data.size, np.bool_)
    reordered[candidates[age < 0]] = True
    repetition[candidates[age >= 0]] = True
    return Arrived(repetition, reordered, duplicate)


def duplicate_acknowledgements(trace: Trace) -> int:
    """Return how many acknowledgements repeat the one before: no payload, same number, same window (RFC 5681, 2).

    Parameters
    ----------
    trace : Trace
        A capture at either end.

    Returns
    -------
    int
        Their number in this stretch, while data were outstanding.
    """
    acks, data = trace.acks, trace.data
    behind = np.searchsorted(data.time, acks.time[1:], side="right")
    sent = np.maximum.accumulate(np.concatenate([[np.int64(data.reached or 0)], data.end]))[behind]
    repeated = (acks.length[1:] == 0) & (np.diff(acks.ack) == 0) & (np.diff(acks.window) == 0)
    return int(np.count_nonzero(repeated & (sent > acks.ack[1:]) & trace.span.during(acks.time[1:])))
