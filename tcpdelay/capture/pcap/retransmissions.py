"""The segments of one capture by their kind: new data, retransmitted, spurious, reordered or duplicate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpdelay.capture.pcap.trace import NEVER, Acknowledgements, Coverage, DataSegments, Flags, Integers, Trace

_REORDERING_TIME = 3_000_000
"""Time [ns] within which a late segment counts as overtaken, if neither timestamp nor identification decides."""
_MOST_IN_REPORT = 1000
"""Largest number of repetitions that one report of duplicates (D-SACK) can cover."""


@dataclass(frozen=True)
class Sent:
    """The segments of a capture at the sender.

    Attributes
    ----------
    original : ndarray of int64
        Indices of the segments that hold only new data.
    repetition : ndarray of bool
        Whether a segment is a repetition.
    resent : ndarray of bool
        Whether a segment is a repetition or was repeated.
    spurious : ndarray of bool
        Whether a repetition was unnecessary, as the receiver reported.
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
        Whether a segment is a retransmission that filled a gap.
    reordered : ndarray of bool
        Whether a later segment overtook the segment.
    duplicate : ndarray of bool
        Whether a segment held no new data.
    """

    repetition: Flags
    reordered: Flags
    duplicate: Flags


def at_sender(trace: Trace, pieces: Coverage) -> Sent:
    """Classify the segments of a capture at the sender: new data, repetitions, spurious repetitions.

    A repetition is spurious if the receiver reports it as a duplicate (D-SACK, RFC 2883), or if the acknowledgement
    that covers it echoes a timestamp older than its own (Eifel, RFC 3522). If these acknowledgements were lost, the
    spurious repetition is not recognized.

    Parameters
    ----------
    trace : Trace
        The capture.
    pieces : Coverage
        The stream in pieces.

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
    """Return a mask of the keep-alive probes: one byte that was acknowledged before (RFC 9293, 3.8.4)."""
    covered = acks.first_covering(data.end)
    known = np.append(acks.time, NEVER)[covered] < data.time
    probes: Flags = (data.end - data.start == 1) & (data.end == before) & known
    return probes


def _by_eifel(data: DataSegments, acks: Acknowledgements, repetition: Flags) -> Flags:
    """Return a mask of the repetitions that the answer to an earlier transmission acknowledged (Eifel)."""
    spurious = np.zeros(data.size, np.bool_)
    again = np.flatnonzero(repetition & data.stamped)
    covering = acks.first_covering(data.end[again])
    again, covering = again[covering < acks.size], covering[covering < acks.size]
    begins = acks.before()[covering]
    # The receiver echoes the timestamp of the segment at the left edge of its window (RFC 7323, 4.3).
    leftmost = (data.start[again] <= begins) & (acks.time[covering] > data.time[again]) & acks.stamped[covering]
    older = (acks.tsecr[covering] - data.tsval[again]).view(np.int32) < 0
    spurious[again[leftmost & older]] = True
    return spurious


def _mark_reported(data: DataSegments, acks: Acknowledgements, repetition: Flags, spurious: Flags) -> None:
    """Mark the repetitions in a D-SACK block: a block at or below the ACK, or within the next block (RFC 2883)."""
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
            # A repetition that is only partly a duplicate was necessary for the rest.
            if data.end[i] <= reached:
                reported[i] = spurious[i] = True
                reached = data.start[i]


def at_receiver(trace: Trace, pieces: Coverage) -> Arrived:
    """Classify the segments of a capture at the receiver: retransmitted, reordered, duplicate.

    A late segment arrives behind a segment with later data. It was overtaken if its timestamp is older than the
    timestamp of the other segment, or, with equal timestamps, if its IPv4 identification is older; else it was sent
    again. If neither decides, a segment that is less than 3 ms late counts as overtaken.

    Parameters
    ----------
    trace : Trace
        The capture.
    pieces : Coverage
        The stream in pieces.

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
    """Return the number of duplicate ACKs: no payload, and the number and window of the previous ACK (RFC 5681, 2).

    Parameters
    ----------
    trace : Trace
        A capture at either end.

    Returns
    -------
    int
        Number of duplicate ACKs in this stretch that were sent while data were outstanding.
    """
    acks, data = trace.acks, trace.data
    behind = np.searchsorted(data.time, acks.time[1:], side="right")
    sent = np.maximum.accumulate(np.concatenate([[np.int64(data.reached or 0)], data.end]))[behind]
    repeated = (acks.length[1:] == 0) & (np.diff(acks.ack) == 0) & (np.diff(acks.window) == 0)
    return int(np.count_nonzero(repeated & (sent > acks.ack[1:]) & trace.span.during(acks.time[1:])))
