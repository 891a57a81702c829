"""A Dask cluster of several processes on this machine, for the tests."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

from cli_process import ROOT

PATIENCE = 120
LOCAL = ("--host", "127.0.0.1", "--no-dashboard")


def until(condition, what):
    """Return what `condition` returns once that is true; fail after two minutes."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited {PATIENCE} s for {what}")


def _start(role, *arguments, directory):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    return subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_" + role, *arguments],
        # What tcpdelay is, for an uninstalled one.
        env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])},
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _address(file):
    with suppress(OSError, ValueError):
        return json.loads(file.read_text())["address"]


@contextmanager
def running_cluster(directory, workers=2):
    """Start a scheduler and workers; give the scheduler's address."""
    file = directory / "scheduler.json"
    processes = [_start("scheduler", *LOCAL, "--port", "0", "--scheduler-file", str(file), directory=directory)]
    try:
        address = until(lambda: _address(file), "the scheduler")
        for _ in range(workers):
            one = ("--nthreads", "1", "--local-directory", str(directory))
            processes.append(_start("worker", address, *LOCAL, *one, directory=directory))
        yield address
    finally:
        for process in processes:
            # A nanny and its worker are a session of their own.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
