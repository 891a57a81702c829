"""Time-lined TCP, whose data lives until a deadline."""

from __future__ import annotations

from typing import Annotated

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.record_types import Array, Record
from tcpdelay.sim.network.transport import SCHEDULED, UNREAD, FlowRecord, written_at
from tcpdelay.sim.records import MASK, RING, WireRecord
from tcpdelay.sim.tcp.constants import NEVER

# Time-lined TCP: data that is written in sections lives until a deadline, then the sender goes on without it.
#
# These kernels belong to the classic sender, whose record is declared here. A section is a message, or the messages
# that a source writes at one time.
# As published, the sections are a continuous stream of bytes, so a segment may have the end of a section and the
# beginning of the next one. Segments are numbered in the order of their first transmission. Data that expires before it
# is sent gets no numbers, so the outstanding segments are a range of numbers even where sections have expired in part.
# The published sender keeps, for each obsolete section, the highest sequence number sent and the last one acknowledged;
# this range replaces both. The published header has the field `seq_update`, from which the receiver goes on. Here it is
# the sender's `live_from`, the first byte of the oldest section that is neither obsolete nor acknowledged: the receiver
# processes a segment when it is sent, so the value need not be stored with the segment.
#
# The deadline of a section may be earlier than that of the section before it, as of an MPEG frame that is displayed
# before its reference frame. Such a section is skipped where it is not sent in time. The receiver learns this from the
# order of the segments, because one `seq_update` can only name a first live byte: this goes beyond the published
# header.
#
# Mukherjee, "Time-lined TCP: a transport protocol for delivery of streaming media over the
# Internet", MMath thesis, University of Waterloo, 2000; Mukherjee, Brecht, "Time-lined TCP for the TCP-friendly
# delivery of streaming media", ICNP 2000.

PRESUMED_LOST = 4
"""Flag of an obsolete segment that is not outstanding any more, although it is not acknowledged."""
SEQ_UPDATE_OPTION = 8
"""Bytes of the option with `seq_update` in the header of TCP: kind, length, 32 bits, and padding."""


class ClassicConnection(Record):
    """A connection of the classic sender. The estimator counts ticks of the timers' clock.

    Segments are numbered from zero in the order of their first transmission. The first and the last byte of a segment
    are in its record.
    """

    cwnd: float
    ssthresh: float
    mean_gap: float
    # Scenario
    variant: int
    mss: int
    receiver_window: int
    limited_transmit: int
    byte_counting: int
    window_validation: int
    tick: int
    tick_phase: int
    rto_min: int
    # Sender
    now: int
    snd_una: int  # Number of a segment, as `snd_nxt`, `snd_max`, `first_live` and `rcv_nxt`
    snd_nxt: int
    snd_max: int
    last_sent: int
    dupacks: int
    recover: int
    in_recovery: int
    ecn_recover: int
    # Stream: positions in bytes
    written: int
    assembled: int  # Up to here the stream is divided into segments
    acknowledged_to: int
    unwritten: int  # Further bytes that a dispatcher has written
    pieces: int  # Number of writes of these bytes
    # Estimator
    srtt: int
    rttvar: int
    rto: int
    backoff: int
    timed: int
    timed_at: int
    timer_at: int
    # Path
    first_ack: int
    next_ack: int
    # Deadlines
    lifetime: int
    expires_at: int
    oldest: int
    live_from: int
    first_live: int
    sending: int
    sending_from: int
    written_off: int
    # Receiver
    rcv_nxt: int
    highest: int
    read_to: int  # Position in the stream
    gap: int  # Missing bytes of the message that the receiver reads
    # TCP-RC
    forge_at: int
    last_arrival: int
    acknowledged: int
    duplicates: int
    # Counts
    segments_retransmitted: int
    recoveries: int
    timeouts: int
    obsolete_at: Annotated[Array[int], RING]  # Latest deadline of the bytes of a segment, at its number modulo `RING`


@kernel()
def section_size(flow: FlowRecord, section: int) -> int:
    """Return the size of a section [bytes]."""
    if flow.application == SCHEDULED:
        return int(flow.unread[section % UNREAD].length)
    return int(flow.section * flow.message)


@kernel()
def deadline_of(flow: FlowRecord, s: ClassicConnection, section: int) -> int:
    """Return the deadline of a section; `NEVER` before it is written."""
    number = section * flow.section
    if number >= flow.packets_written:
        return NEVER
    kind = flow.unread[number % UNREAD].kind if flow.application == SCHEDULED else 0
    lifetime = flow.lifetimes[kind] if flow.lifetimes[kind] else s.lifetime
    return int(written_at(flow, number) + lifetime)


@kernel()
def discard_obsolete(flow: FlowRecord, s: ClassicConnection, wire: WireRecord) -> None:
    """Discard the sections whose deadline has passed, and let the lifetime timer follow the oldest live section.

    No segment of an obsolete section is sent or sent again. Its segments in flight still count as outstanding, so that
    their acknowledgements release new data, which prevents a burst. Its segments that were about to be sent again do
    not.
    """
    # Sections that are acknowledged need no timer.
    while s.oldest * flow.section < flow.packets_written:
        end = s.live_from + section_size(flow, s.oldest)
        if end > s.acknowledged_to and deadline_of(flow, s, s.oldest) > s.now:
            break
        s.oldest, s.live_from = s.oldest + 1, end
    s.expires_at = deadline_of(flow, s, s.oldest)
    while s.sending * flow.section < flow.packets_written:
        end = s.sending_from + section_size(flow, s.sending)
        if s.assembled < end and deadline_of(flow, s, s.sending) > s.now:
            break
        s.assembled = max(s.assembled, end)
        s.sending, s.sending_from = s.sending + 1, end
    while s.first_live < s.snd_max and wire.segments[s.first_live & MASK].end <= s.live_from:
        s.first_live += 1
    while s.snd_nxt < s.snd_max and (s.snd_nxt < s.first_live or s.obsolete_at[s.snd_nxt & MASK] <= s.now):
        wire.segments[s.snd_nxt & MASK].state |= PRESUMED_LOST
        s.written_off += 1
        s.snd_nxt += 1


@kernel()
def assemble(flow: FlowRecord, s: ClassicConnection, number: int) -> int:
    """Return where a new segment ends, given its number: it has the bytes of live sections, up to the MSS."""
    section, end = s.sending, s.sending_from
    s.obsolete_at[number & MASK] = 0
    while end < s.assembled + s.mss and s.now < deadline_of(flow, s, section) < NEVER:
        s.obsolete_at[number & MASK] = max(s.obsolete_at[number & MASK], deadline_of(flow, s, section))
        end += section_size(flow, section)
        section += 1
    return int(min(end, s.assembled + s.mss))


@kernel()
def repair_with(flow: FlowRecord, s: ClassicConnection, wire: WireRecord) -> int:
    """Return the segment to send when a loss is detected: the first that is neither acknowledged nor obsolete."""
    if s.lifetime:
        discard_obsolete(flow, s, wire)
    return int(max(s.snd_una, s.first_live))


@kernel()
def abandon(s: ClassicConnection) -> None:
    """Forget the obsolete segments: after a timeout none of them is outstanding."""
    s.snd_una = max(s.snd_una, s.first_live)
    s.written_off = 0


@kernel()
def release(s: ClassicConnection, wire: WireRecord, acknowledged: int) -> None:
    """Subtract the segments that an acknowledgement covers from the count of segments written off."""
    if s.written_off == 0:
        return
    for number in range(s.snd_una, acknowledged):
        if wire.segments[number & MASK].state & PRESUMED_LOST:
            s.written_off -= 1
