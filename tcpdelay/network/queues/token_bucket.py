"""The token buckets of a link: the rate with its burst, the peak rate, and the policer.

A bucket of `burst` bytes fills at a rate. A packet needs tokens for all its bytes. If they are not there, a link lets
the packet wait (`tbf_dequeue` of Linux, net/sched/sch_tbf.c), and a policer drops it (`tcf_police_act`, act_police.c).
The record of a link has a time for each bucket (`virtual_finish`): the tokens at a time t are what arrives from then to
t, and at most the whole bucket.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel

BUCKET_FLOATS = "burst_time peak_nanoseconds_per_byte peak_burst_time"
BUCKET_INTEGERS = "virtual_finish peak_finish"
"""Fields of the record of a link. Times are nanoseconds; without a peak rate its time per byte is 0."""


@kernel()
def next_departure(link: Any, time: int, size: int) -> int:
    """Return when a packet of `size` bytes that is first in the queue at a time [ns] has left, and take its tokens."""
    service = round(size * link.nanoseconds_per_byte)
    link.virtual_finish = max(link.virtual_finish, time - link.burst_time) + service
    departure = max(int(link.virtual_finish), time)
    if link.peak_nanoseconds_per_byte:
        peak_service = round(size * link.peak_nanoseconds_per_byte)
        link.peak_finish = max(link.peak_finish, time - link.peak_burst_time) + peak_service
        departure = max(departure, int(link.peak_finish))
        # A packet takes both kinds of tokens when it leaves. The bucket that it did not wait for fills up till then.
        link.virtual_finish = max(link.virtual_finish, departure - link.burst_time + service)
        link.peak_finish = max(link.peak_finish, departure - link.peak_burst_time + peak_service)
    return departure


@kernel()
def conforms(link: Any, time: int, size: int) -> bool:
    """Return whether a policer lets a packet pass at a time [ns], and take its tokens if so."""
    finish = max(link.virtual_finish, time - link.burst_time) + round(size * link.nanoseconds_per_byte)
    if finish > time:
        return False
    link.virtual_finish = finish
    return True
