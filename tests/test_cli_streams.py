"""The command line in a process of its own: interrupts, closed streams, full disks, narrow encodings."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli_process import ROOT, process
from tcpdelay.cli.output import INTERRUPTED

VOIP = ["--rtt", "100ms", "--loss", "2%", "--app", "voip"]


def test_an_interrupt_ends_a_long_prediction_at_once():
    simulation = ["--method", "simulation", "--packets", "1000000000", "--max-seconds", "100000"]
    long = [*simulation, "--rtt", "1s", "--loss", "0.01%", "--bitrate", "2.5Mbit/s", "--limit", "5s"]
    with process("predict", *long, stdout=subprocess.PIPE) as started:
        time.sleep(5)
        started.send_signal(signal.SIGINT)
        assert started.communicate() == ("", "")
    assert started.returncode in (INTERRUPTED, -signal.SIGINT)


def test_closed_streams_do_no_harm():
    command = f"{shlex.join([sys.executable, '-m', 'tcpdelay', 'predict', *VOIP])}"
    finished = subprocess.run(f"{command} >&-; {command} --rtt 1 2>&-", shell=True, cwd=ROOT, capture_output=True)
    assert (finished.returncode, finished.stdout, finished.stderr) == (2, b"", b"")


@pytest.mark.parametrize("command", [["predict", *VOIP], ["report", *VOIP], ["--help"]])
@pytest.mark.parametrize("python", [(), ("-u",)])
def test_a_reader_that_goes_away_is_no_error(command, python):
    reading, writing = os.pipe()
    os.close(reading)
    with process(*command, python=python, stdout=writing) as started:
        os.close(writing)
        _, errors = started.communicate()
    assert (started.returncode, errors) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", [["predict", *VOIP], ["report", *VOIP, "--format", "json"]])
def test_a_full_disk_is_one_line(command):
    with Path("/dev/full").open("w") as full, process(*command, stdout=full) as started:
        _, errors = started.communicate()
    assert (started.returncode, errors) == (1, "tcpdelay: No space left on device\n")


@pytest.mark.parametrize(
    ("command", "shown"), [(["report", *VOIP], "140 ms"), (["predict", *VOIP, "--rtt", "1ms"], "500 ?s")]
)
def test_an_ascii_terminal_gets_its_answer(monkeypatch, command, shown):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    with process(*command, stdout=subprocess.PIPE) as started:
        printed, errors = started.communicate()
    assert (started.returncode, [line for line in errors.splitlines() if not line.startswith("warning: ")]) == (0, [])
    assert shown in printed
