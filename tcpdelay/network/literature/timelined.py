"""Time-lined TCP: data that is written in sections lives until a deadline, then the sender goes on without it.

These kernels belong to the classic sender. Segments are numbered in the order of their first transmission. A section
that expires before it is sent gets no numbers, so the outstanding segments are a range of numbers even where sections
have expired in part. The published sender keeps, for each obsolete section, the highest sequence number sent and the
last one acknowledged; this range replaces both. The published header has the field `seq_update`, from which the
receiver goes on. Here it is the sender's `first_live`: the receiver processes a segment when it is sent, so the
value need not be stored with the segment.

References
----------
Mukherjee, "Time-lined TCP: a transport protocol for delivery of streaming media over the Internet", MMath thesis,
University of Waterloo, 2000; Mukherjee, Brecht, "Time-lined TCP for the TCP-friendly delivery of streaming media", ICNP
2000.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import MASK, NEVER
from tcpdelay.network.records import note_lost, written_at

PRESUMED_LOST = 4
"""Flag of an obsolete segment that is not outstanding any more, although it is not acknowledged."""


@kernel()
def arm(s: Any) -> None:
    """Start the lifetime timer for a section that has just been written, unless it runs for an older section."""
    if s.lifetime and s.expires_at == NEVER:
        s.expires_at = s.now + s.lifetime


@kernel()
def expire(flow: Any, s: Any, wire: Any) -> None:
    """Give up the oldest section, and start the lifetime timer for the next one.

    No segment of the section is sent or sent again. Its segments in flight still count as outstanding, so that their
    acknowledgements release new data, which prevents a burst. Its segments that were about to be sent again do not.

    Parameters
    ----------
    flow, s, wire : record
        The flow, its connection, and the segments and acknowledgements in transit.
    """
    s.expired += 1
    end = s.expired * flow.section
    unsent = max(end - s.skipped - s.snd_max, 0)
    s.skipped += unsent
    s.written -= unsent
    s.first_live = end - s.skipped
    for number in range(s.snd_nxt, s.first_live):
        wire.segments[number & MASK].state |= PRESUMED_LOST
        s.written_off += 1
    s.snd_nxt = max(s.snd_nxt, s.first_live)
    s.expires_at = NEVER
    if end < flow.packets_written:
        s.expires_at = written_at(flow, end) + s.lifetime


@kernel()
def repair_with(s: Any) -> int:
    """Return the segment to send when a loss is detected: the first that is neither acknowledged nor obsolete."""
    return int(max(s.snd_una, s.first_live))


@kernel()
def abandon(s: Any) -> None:
    """Forget the obsolete segments: after a timeout none of them is outstanding."""
    s.snd_una = max(s.snd_una, s.first_live)
    s.written_off = 0


@kernel()
def release(s: Any, wire: Any, acknowledged: int) -> None:
    """Subtract the segments that an acknowledgement covers from the count of segments written off."""
    if s.written_off == 0:
        return
    for number in range(s.snd_una, acknowledged):
        if wire.segments[number & MASK].state & PRESUMED_LOST:
            s.written_off -= 1


@kernel()
def skip(flow: Any, s: Any, wire: Any) -> None:
    """Let the receiver skip ahead to a segment's `seq_update`; the messages before it that are not read are lost."""
    if s.lifetime == 0:
        return
    s.rcv_nxt = max(s.rcv_nxt, s.first_live)
    if s.rcv_nxt == s.snd_max:
        return
    while flow.packets_read < wire.segments[s.rcv_nxt & MASK].start:
        note_lost(flow)
