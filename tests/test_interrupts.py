"""An interrupt ends sweeps, tables and regions within about a second, also within a row that takes minutes."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import tcpdelay as td
from cli_process import process
from dask_cluster import until
from tcpdelay.budget import Budget, StoppedError, answering_until
from tcpdelay.cli.output import INTERRUPTED, interrupted_once
from tcpdelay.study.execution import work_through

PATIENCE = 15.0
"""Time within which a busy machine ends an interrupted process [s]; each row here takes longer than a minute."""
SLOW_PHASES, SLOW_SIMULATION = (
    """
    [flow]
    packet_size = 607000
    interval = "47ms"
    [path]
    loss = "3.62%"
    [stack]
    congestion_control = "reno"
    mss = 536
    [grid]
    rtt = ["424ms", "425ms", "426ms"]
    [evaluate]
    max_seconds = "1000 s"
    max_memory = "8 GiB"
    """,
    """
    [flow]
    packet_size = 1448
    interval = "3ms"
    [path]
    loss = "0.02%"
    [grid]
    rtt = ["200ms", "205ms", "210ms"]
    [evaluate]
    method = "simulation"
    packets = 1000000000
    """,
)
"""Sweeps whose rows take long in one call of a kernel, and in the simulator."""


def interrupted(*command, begun):
    """Interrupt a command some time after it has begun; return how long it took to end, and its errors."""
    with process(*command, stdout=subprocess.PIPE) as started:
        until(lambda: begun() or started.poll() is not None, "its beginning")
        time.sleep(3)
        started.send_signal(signal.SIGINT)
        sent = time.monotonic()
        try:
            printed, errors = started.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            started.kill()
            pytest.fail("the interrupt was not heeded")
    assert printed == ""
    assert time.monotonic() - sent < PATIENCE
    return started.returncode, errors


@pytest.mark.parametrize("content", [SLOW_PHASES, SLOW_SIMULATION])
def test_an_interrupt_ends_a_sweep_within_a_long_run(tmp_path, content):
    specification, result = tmp_path / "sweep.toml", tmp_path / "sweep.nc"
    specification.write_text(content)
    begun = (tmp_path / "sweep.nc.parts" / "sweep.json").exists
    status, errors = interrupted("sweep", str(specification), "-o", str(result), begun=begun)
    assert status == INTERRUPTED
    assert errors.endswith("the same command continues from there\n")


def test_an_interrupt_that_python_swallows_is_raised_later_and_not_printed(monkeypatch):
    class Interrupted:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    class Broken:
        def __del__(self):
            raise ValueError

    def interrupt():
        with interrupted_once() as raise_swallowed:
            Interrupted()
            Broken()
            raise_swallowed()

    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: printed.append(unraisable.exc_type))
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert printed == [ValueError]


def test_an_interrupt_ends_a_table_within_a_long_row(tmp_path):
    table, result = tmp_path / "users.csv", tmp_path / "out.csv"
    table.write_text("rtt_s,loss_fraction\n0.424,0.0362\n0.425,0.0362\n")
    flow = ("--packet-size", "607000", "--interval", "47ms", "--congestion-control", "reno", "--mss", "536")
    allowed = ("--max-seconds", "1000", "--max-memory", "8GiB", "--no-cache")
    command = ("batch", str(table), *flow, *allowed, "-o", str(result))
    status, errors = interrupted(*command, begun=lambda: list(tmp_path.glob(".tcpdelay-*")))
    assert (status, errors) == (INTERRUPTED, f"tcpdelay batch: interrupted: {str(result)!r} has not been written\n")
    assert [file.name for file in tmp_path.iterdir()] == ["users.csv"]


class Steps:
    """Runs of two steps each; the whole is stopped after a number of steps."""

    size, row_type = 3, np.dtype([("number", float)])

    def __init__(self, allowed):
        self.left = allowed

    def stopped(self):
        return self.left == 0

    def fill(self, row, number):
        budget = Budget()
        for _ in range(2):
            budget.spend(0.0)
            self.left -= 1
        row["number"] = number
        return ""


def test_a_run_under_way_is_given_up_and_finished_ones_are_kept():
    steps = Steps(3)
    rows = work_through(steps, 0, 3, stopped=steps.stopped)
    assert rows.values["number"].tolist() == [0]
    with pytest.raises(StoppedError):
        work_through(steps, 0, 3, stopped=steps.stopped)


def test_a_simulation_is_given_up_in_the_middle():
    calls = []
    with answering_until(lambda: len(calls) > 3), pytest.raises(StoppedError):
        td.simulate(td.Flow(174, 0.020), td.Path(0.1, 0.02), packets=10**6, on_progress=lambda *_: calls.append(1))
    assert len(calls) == 4
