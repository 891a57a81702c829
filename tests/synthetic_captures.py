"""Captures with known delays, for the tests of the validation."""

from dataclasses import asdict

import numpy as np

from tcpdelay.capture.flow_capture import NOT_READ, FlowCapture, FlowRun, write_capture
from tcpdelay.testbed.experiment import Experiment

SPACING = 2.0
"""Time between two packets [s]: longer than the delays, so that none waits for the one before it."""
EMPTY = np.empty(0, np.int64)


def experiment(packets=2000, **settings):
    """Return an experiment that is long enough for that many packets."""
    plain = {"packet_size": 174, "interval": 0.020, "rtt": 0.020, "loss": 0.01, "congestion_control": "reno"}
    return Experiment(**{**plain, "duration": packets * SPACING, **settings})


def flow_run(delays, run=0, flow=0, spacing=SPACING, **fields):
    """Return a run with those delays [s]; infinite ones were not read."""
    delays = np.asarray(delays, np.float64)
    read = np.isfinite(delays)
    defaults = {
        "backend": "uml-virtual",
        "seed": run,
        "hz": 250,
        "kernel": "6.1.0",
        "tool": "0",
        "recorded": "2026-01-01T00:00:00",
        "counters": {},
        "packets": {"data_sent": 99 * delays.size, "data_dropped": delays.size},
        "samples": {},
    }
    return FlowRun(
        run=run,
        flow=flow,
        written=np.round(1e6 * spacing * np.arange(delays.size)).astype(np.int64),
        delay=np.where(read, np.round(1e6 * np.where(read, delays, 0)), NOT_READ).astype(np.int64),
        stall_time=EMPTY,
        stall_length=EMPTY,
        **{**defaults, **fields},
    )


def capture(runs, settings=None, name="synthetic"):
    """Return a capture of runs, or of one run with those delays [s]."""
    if not isinstance(runs[0], FlowRun):
        runs = [flow_run(runs)]
    return FlowCapture(name, asdict(settings or experiment(len(runs[0].written))), runs)


def write(directory, made):
    """Write a capture into a directory, by its name."""
    directory.mkdir(parents=True, exist_ok=True)
    write_capture(directory / f"{made.name}.parquet", made)


def shuffled(distribution, packets, seed=1):
    """Return delays that occur as often as `distribution` says, in random order."""
    places = (np.arange(packets) + 0.5) / packets
    return np.random.default_rng(seed).permutation(distribution.quantile(places))
