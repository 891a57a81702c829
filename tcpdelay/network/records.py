"""What every flow has, of whatever kind, and how its packets are counted; all times are microseconds.

What is written when: constant bit rate, as much as the buffer takes, and transfers over connections of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.path import is_lost
from tcpdelay.models.simulator.records import KEPT, NEVER, RING, uniform
from tcpdelay.network.bottleneck import DROPPED, enqueue

LINUX, CLASSIC, DATAGRAMS, SCP = range(4)
"""Kinds of transport: each has a module with `step` and `next_time`, and a branch in `engine`."""
CONSTANT_RATE, BULK, TRANSFERS, DISPATCHED = range(4)
"""Kinds of application; a dispatcher writes the messages of the last one."""
CONNECTING, ANSWERED, OPENED, BUSY = range(4)
"""Stages of a transfer: its connection is to be opened, has been answered, is open, and data is under way."""
WRITES = 1 << 13
"""Messages of a bulk source between write and read that there is room for."""
DELAY_BITS = 44
"""Bits of a sample that hold the delay; the flow's number stands above them."""
SAMPLES = KEPT * 2
"""Delays that are kept until they are taken out of the compiled code; one step adds `KEPT` at most."""

_GROUPS = {
    "path": "number kind access_delay exit_delay return_delay return_jitter last_return header ecn until_loss in_burst "
    "next_double random_state",
    "application": "application interval first_write next_write stop stage attempts send_buffer "
    "largest_backlog message section first_timeout round_trip opened_by_sender min_buf_multiple min_buf_extra "
    "notsent_lowat forging",
    "dispatcher": "dispatcher member due_write",
    "connection": "ack_delay ack_held return_before first_unsent connection_read",
    "window of counting": "count_from count_until",
    "messages": "packets_written packets_read offered delivered lost bytes_read sender_delay network_delay "
    "receiver_delay transfers",
    "segments": "segments_sent segments_lost segments_dropped segments_carried marks retransmissions timeouts",
}
FLOW = np.dtype(
    [(name, np.float64) for name in ("loss", "loss_burst", "mean_pause", "mean_size", "pareto_shape", "largest_size")]
    + [(name, np.int64) for names in _GROUPS.values() for name in names.split()]
    + [
        ("first_sent", np.int64, RING),
        ("arrived", np.int64, RING),
        ("marked", np.int8, RING),
        ("writes", np.int64, WRITES),
    ]
)
"""The part of a flow that does not depend on its kind.

Of each segment, at its number modulo `RING`: `first_sent`, `arrived`, when its first copy reached the receiver, and
`marked`, whether its last one was. `writes` has the time of each message's write at its number modulo `WRITES`; it is
not used where that follows from the interval, and says where messages end in the stream that a dispatcher writes.
"""
COUNTERS = np.dtype(
    [("used", np.int64), ("keys", np.int64, SAMPLES), ("completed", np.int64), ("completions", np.int64, (KEPT, 3))]
)
"""Delays that have been counted, each with its flow.

`completions` has of each message that a connection of a dispatcher has read in this step when it was sent first, when
it arrived, and when that connection could read it.
"""


@kernel()
def cross(flow: Any, link: Any, now: int, payload: int) -> int:
    """Send a packet on its way at a time; return when it reaches the receiver, or `DROPPED`."""
    flow.segments_sent += 1
    if is_lost(flow, flow):
        flow.segments_lost += 1
        return DROPPED
    departure = enqueue(link, now + flow.access_delay, payload + flow.header, flow.ecn == 1)
    if departure == DROPPED:
        flow.segments_dropped += 1
        return DROPPED
    flow.segments_carried += 1
    flow.marks += link.marked
    return int(departure + flow.exit_delay)


@kernel()
def note_write(flow: Any, now: int) -> None:
    """Count a message that is written."""
    flow.writes[flow.packets_written % WRITES] = now
    flow.packets_written += 1
    if flow.count_from <= now < flow.count_until:
        flow.offered += 1


@kernel()
def written_at(flow: Any, number: int) -> int:
    """Return when the message of that number was written."""
    if flow.application == CONSTANT_RATE:
        return int(flow.first_write + number // flow.section * flow.interval)
    return int(flow.writes[number % WRITES])


@kernel()
def message_end(flow: Any) -> int:
    """Return where the next message to be read ends in the stream of its connection."""
    if flow.application == DISPATCHED:
        return int(flow.writes[flow.packets_read % WRITES]) if flow.packets_read < flow.packets_written else NEVER
    return int(flow.connection_read + flow.message)


@kernel()
def note_read(flow: Any, samples: Any, sent: int, arrived: int, read: int) -> None:
    """Count the next message as read: when it was sent first, when it arrived, and when it was read in order."""
    if flow.application == DISPATCHED:
        completion = samples.completions[samples.completed]
        completion[0], completion[1], completion[2] = sent, arrived, read
        samples.completed += 1
    else:
        count_read(flow, samples, written_at(flow, flow.packets_read), sent, arrived, read)
    flow.packets_read += 1


@kernel()
def count_read(flow: Any, samples: Any, written: int, sent: int, arrived: int, read: int) -> None:
    """Count a message that the application has read."""
    if flow.count_from <= read < flow.count_until:
        flow.bytes_read += flow.message
    if flow.count_from <= written < flow.count_until:
        flow.delivered += 1
        flow.sender_delay += sent - written
        flow.network_delay += arrived - sent
        flow.receiver_delay += read - arrived
        samples.keys[samples.used] = flow.number << DELAY_BITS | (read - written)
        samples.used += 1


@kernel()
def note_lost(flow: Any) -> None:
    """Count the next message as lost for good."""
    written = written_at(flow, flow.packets_read)
    flow.packets_read += 1
    if flow.count_from <= written < flow.count_until:
        flow.lost += 1


MOST_DOUBLINGS = 6


@kernel()
def is_write_due(flow: Any, link: Any) -> bool:
    """Do what the application has to do at `flow.next_write`; whether it writes a message then."""
    now = flow.next_write
    flow.next_write = NEVER
    if flow.application == CONSTANT_RATE or flow.application == DISPATCHED:
        if now + flow.interval < flow.stop:
            flow.next_write = now + flow.interval
        flow.due_write = now
        return bool(flow.application == CONSTANT_RATE)
    if flow.application == TRANSFERS:
        if flow.stage < OPENED:
            if now < flow.stop:
                _connect(flow, link, now)
            return False
        flow.stage = BUSY
        flow.message = draw_size(flow)
        return True
    return False


@kernel()
def _connect(flow: Any, link: Any, now: int) -> None:
    """Send what opens a connection over the link, again after a timeout if that is lost.

    If the receiver opens it, that is the answer to its request; once the way back is over too, the connection is open.
    The sender has two packets to send, its request, and what confirms the receiver's answer and lets it accept.
    """
    arrival = cross(flow, link, now, 0)
    if arrival == DROPPED:
        flow.next_write = now + (flow.first_timeout << min(flow.attempts, MOST_DOUBLINGS))
        flow.attempts += 1
        return
    flow.attempts = 0
    if flow.stage == ANSWERED:
        flow.stage = OPENED
        flow.next_write = arrival
        return
    flow.stage = ANSWERED if flow.opened_by_sender else OPENED
    flow.next_write = arrival + flow.return_delay
    flow.round_trip = flow.next_write - now


@kernel()
def finish_transfer(flow: Any, read: int) -> None:
    """Note that a transfer has been read, and ask for the next one after a pause."""
    flow.transfers += 1
    flow.stage = CONNECTING
    pause = 0
    if flow.mean_pause > 0.0:
        pause = round(-flow.mean_pause * np.log(1.0 - uniform(flow.next_double, flow.random_state)))
    flow.next_write = read + pause + (0 if flow.opened_by_sender else flow.return_delay)


@kernel()
def draw_size(flow: Any) -> int:
    """Return the size of the next transfer [bytes]: fixed, or Pareto with an upper end."""
    if flow.pareto_shape <= 0.0:
        return int(flow.mean_size)
    smallest = flow.mean_size * (flow.pareto_shape - 1.0) / flow.pareto_shape
    size = smallest * (1.0 - uniform(flow.next_double, flow.random_state)) ** (-1.0 / flow.pareto_shape)
    return int(max(round(min(size, flow.largest_size)), 1))
