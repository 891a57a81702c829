"""What a session measured of a flow, as a capture keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay import __version__
from tcpdelay.capture.flow_capture import NOT_READ, FlowRun
from tcpdelay.testbed.backends import BackendName
from tcpdelay.testbed.handover import FlowRecord

MICROSECOND = 1000
SAMPLES = {
    "time": "time",
    "connection": "connection",
    "cwnd": "snd_cwnd",
    "ssthresh": "snd_ssthresh",
    "unacked": "unacked",
    "rtt": "rtt",
    "retransmits": "total_retrans",
    "reordering": "reordering",
    "delivery_rate": "delivery_rate",
}
"""What a capture keeps of the samples of TCP_INFO, and what the kernel calls it."""


class Origin(NamedTuple):
    """Where a run comes from; the fields are those of `FlowRun`."""

    run: int
    backend: BackendName
    seed: int
    hz: int
    kernel: str
    recorded: str


def flow_run(record: FlowRecord, origin: Origin, stalls: Sequence[int]) -> FlowRun:
    """Return a measured flow in microseconds since the start of writing.

    Parameters
    ----------
    record : FlowRecord
        What was measured.
    origin : Origin
        Where it comes from.
    stalls : sequence of int
        Times and lengths of the session's stalls, in turns [ns, monotonic clock].
    """
    written = np.array(record.written, np.int64)
    read = np.array(record.read, np.int64)

    def since_start(times: NDArray[np.int64]) -> NDArray[np.int64]:
        return (times - record.started + MICROSECOND // 2) // MICROSECOND

    # The runs that prolong an experiment are for its delays; their samples would double the size of a capture.
    sampled = SAMPLES.items() if origin.run == 0 else ()
    samples = {kept: np.array(record.samples[kernel_name], np.int64) for kept, kernel_name in sampled}
    if samples:
        samples["time"] = since_start(samples["time"])
    pairs = np.array(stalls, np.int64).reshape(-1, 2)
    return FlowRun(
        **origin._asdict(),
        flow=record.flow,
        tool=__version__,
        counters=record.counters,
        packets=record.packets,
        written=since_start(written),
        delay=np.where(read < 0, NOT_READ, (read - written + MICROSECOND // 2) // MICROSECOND),
        samples=samples,
        stall_time=since_start(pairs[:, 0]),
        stall_length=pairs[:, 1] // MICROSECOND,
        epoch=record.epoch,
    )
