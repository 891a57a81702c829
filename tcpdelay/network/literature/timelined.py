"""Time-lined TCP: what is written in sections lives until a deadline, and then the classic sender moves on without it.

Segments are numbered in the order in which they are first sent. A message that expires unsent gets no number, so what
is outstanding is a range of numbers also where sections have expired in part: of the section with the highest sequence
number sent and the last one acknowledged, which the published sender keeps for each obsolete section, that range is all
that the window needs. Where the receiver goes on, `seq_update` in the header of each segment, is the sender's `live`: a
segment is worked out at the receiver when it is sent, so it need not be kept.

References
----------
Mukherjee, "Time-lined TCP: a transport protocol for delivery of streaming media over the Internet", MMath thesis,
University of Waterloo, 2000; Mukherjee, Brecht, "Time-lined TCP for the TCP-friendly delivery of streaming media", ICNP
2000.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import NEVER, RING
from tcpdelay.network.records import note_lost, written_at

PRESUMED_LOST = 4
"""Flag of an obsolete segment that a timeout has written off: it is not outstanding."""
_MASK = RING - 1


@kernel()
def arm(s: Any) -> None:
    """Let a section that has just been written live, unless the lifetime timer follows an older one."""
    if s.lifetime and s.expires_at == NEVER:
        s.expires_at = s.now + s.lifetime


@kernel()
def expire(flow: Any, s: Any, wire: Any) -> None:
    """Give up the oldest section, and follow the next.

    Nothing of it is sent again, and nothing that was not sent yet. What is under way still counts as outstanding, so
    that its acknowledgements, and no burst, let new data out; not so what the sender was about to send again.

    Parameters
    ----------
    flow, s, wire : record
        The flow, its connection, and what is under way.
    """
    s.expired += 1
    end = s.expired * flow.section
    unsent = max(end - s.skipped - s.snd_max, 0)
    s.skipped += unsent
    s.written -= unsent
    s.live = end - s.skipped
    for number in range(s.snd_nxt, s.live):
        wire.segments[number & _MASK].state |= PRESUMED_LOST
        s.given_up += 1
    s.snd_nxt = max(s.snd_nxt, s.live)
    s.expires_at = NEVER
    if end < flow.packets_written:
        s.expires_at = written_at(flow, end) + s.lifetime


@kernel()
def repair_with(s: Any) -> int:
    """Return which segment answers a loss: the first that is neither acknowledged nor obsolete, sent before or not."""
    return int(max(s.snd_una, s.live))


@kernel()
def abandon(s: Any) -> None:
    """Forget what is obsolete: after a timeout none of it is outstanding."""
    s.snd_una = max(s.snd_una, s.live)
    s.given_up = 0


@kernel()
def release(s: Any, wire: Any, acknowledged: int) -> None:
    """Take back what an acknowledgement covers from what was written off."""
    if s.given_up == 0:
        return
    for number in range(s.snd_una, acknowledged):
        if wire.segments[number & _MASK].state & PRESUMED_LOST:
            s.given_up -= 1


@kernel()
def skip(flow: Any, s: Any, wire: Any) -> None:
    """Let the receiver skip ahead on a segment's `seq_update`: what it has not read before that is lost."""
    if s.lifetime == 0:
        return
    s.rcv_nxt = max(s.rcv_nxt, s.live)
    if s.rcv_nxt == s.snd_max:
        return
    while flow.packets_read < wire.segments[s.rcv_nxt & _MASK].start:
        note_lost(flow)
