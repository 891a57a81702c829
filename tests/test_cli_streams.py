"""The command line as a process: interrupts, closed streams, full disks, narrow encodings, and the files it writes."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

import tcpdelay as td
from cli_process import ROOT, process
from dask_cluster import until
from tcpdelay.budget import Budget, StoppedError, answering_until
from tcpdelay.cli.output import INTERRUPTED, interrupted_once, refuse_missing_folder, refuse_same_file
from tcpdelay.study.execution import work_through

# The command line in a process of its own

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


# Interrupts end sweeps, tables and regions within about a second, also within a row that takes minutes

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


# No command replaces a file that it reads, or writes two results into one file

PCAP = ROOT / "validation" / "pcap" / "voice-clean.sender.pcap.gz"
APPLICATION = ["--app", "voip"]
PATH = ["--rtt", "100ms", "--loss", "2%"]


@pytest.fixture
def refused(run, tmp_path, monkeypatch):
    """Run a command between files of many kinds; return its one line of refusal, all files being as they were."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bad.csv").write_text("rtt_ms,loss\n80,2%\n")
    (tmp_path / "link.csv").symlink_to("bad.csv")
    (tmp_path / "hard.csv").hardlink_to(tmp_path / "bad.csv")
    (tmp_path / "ahead.csv").symlink_to("x.csv")
    (tmp_path / "notes").touch()
    (tmp_path / "mix").mkdir()
    (tmp_path / "mixed").symlink_to("mix")
    (tmp_path / "empty").mkdir()
    pq.write_table(pa.table({"rtt": [0.1], "loss": [0.02]}), tmp_path / "mix" / "a.parquet")
    for name in ("keep.pcap", "keep.csv", "keep.svg"):
        shutil.copy(PCAP, tmp_path / name)
    shutil.copy(ROOT / "examples" / "sweep.toml", tmp_path / "spec.nc")
    for name in ("ping.md", "ping.svg"):
        shutil.copy(ROOT / "examples" / "ping.txt", tmp_path / name)

    def contents():
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def refused(*arguments):
        before = contents()
        status, printed, errors = run(*arguments)
        assert (status, printed, errors.count("\n")) == (2, "", 1)
        assert contents() == before
        return errors.removeprefix("tcpdelay ").partition(": ")[2].rstrip("\n")

    return refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bad.csv", "-o", "./bad.csv"], "--output: 'bad.csv' is the table itself; name another file"),
        (["bad.csv", "--summary", "bad.csv"], "--summary: 'bad.csv' is the table itself; name another file"),
        (["bad.csv", "--summary", "link.csv"], "--summary: 'link.csv' is the table itself; name another file"),
        (["link.csv", "--summary", "bad.csv"], "--summary: 'bad.csv' is the table itself; name another file"),
        (["bad.csv", "--summary", "hard.csv"], "--summary: 'hard.csv' is the table itself; name another file"),
        (["mix/a.parquet", "--summary", "mix/a.parquet"], "--summary: 'mix/a.parquet' is the table itself; name"),
        (["mix", "--summary", "mix/a.parquet"], "--summary: 'mix/a.parquet' is in the folder that TABLE names; name a"),
        (["mix", "--chart", "mixed/new.svg"], "--chart: 'mixed/new.svg' is in the folder that TABLE names; name a"),
        (["mixed", "-o", "mix/parts/"], "--output: 'mix/parts' is in the folder that TABLE names; name a"),
        (["mix", "-o", "mixed/"], "--output: 'mixed' is the table itself; name another file"),
        (["keep.svg", "--table-format", "csv", "--chart", "keep.svg"], "--chart: 'keep.svg' is the table itself"),
        (["bad.csv", "-o", "x.csv", "--summary", "mix/../x.csv"], "--summary: 'mix/../x.csv' is what --output names"),
        (["bad.csv", "-o", "ahead.csv", "--summary", "x.csv"], "--summary: 'x.csv' is what --output names"),
        (["bad.csv", "--chart", "o.svg", "--summary", "o.svg"], "--chart: 'o.svg' is what --summary names"),
    ],
)  # fmt: skip
def test_batch_keeps_its_table_and_its_results_apart(refused, arguments, message):
    assert refused("batch", *arguments, *APPLICATION).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["analyze", "keep.pcap", "-o", "keep.pcap", "--format", "csv"], "--output: 'keep.pcap' is the capture itself"),
        (["analyze", "keep.csv", "-o", "keep.csv"], "--output: 'keep.csv' is the capture itself"),
        (["analyze", "keep.pcap", "keep.csv", "-o", "keep.csv"], "--output: 'keep.csv' is the capture itself"),
        (["analyze", "keep.svg", "--chart", "keep.svg"], "--chart: 'keep.svg' is the capture itself"),
        (
            ["analyze", "keep.pcap", "-o", "x.svg", "--chart", "x.svg", "--format", "csv"],
            "--chart: 'x.svg' is what --output names",
        ),
        (
            ["testbed", "show", "keep.pcap", "keep.svg", "--chart", "keep.svg"],
            "--chart: 'keep.svg' is the capture itself",
        ),
        (
            ["predict", *APPLICATION, "--ping", "ping.svg", "--chart", "ping.svg"],
            "--chart: 'ping.svg' is what --ping names",
        ),
        (
            ["predict", *APPLICATION, "--ss", "ping.svg", "--chart", "ping.svg"],
            "--chart: 'ping.svg' is what --ss names",
        ),
        (["report", *APPLICATION, "--ping", "ping.md", "-o", "ping.md"], "--output: 'ping.md' is what --ping names"),
        (
            ["report", *APPLICATION, *PATH, "--against", "ping=ping.md", "-o", "ping.md"],
            "--output: 'ping.md' is what --ping names",
        ),
        (
            ["compare", *APPLICATION, *PATH, "-o", "x.svg", "--chart", "x.svg", "--format", "csv"],
            "--chart: 'x.svg' is what --output names",
        ),
        (["compare", *APPLICATION, "--ping", "ping.md", "-o", "ping.md"], "--output: 'ping.md' is what --ping names"),
        (
            ["region", *APPLICATION, "-o", "x.svg", "--chart", "x.svg", "--format", "csv"],
            "--chart: 'x.svg' is what --output names",
        ),
        (
            ["region", *APPLICATION, "--measured", "bad.csv", "--chart", "x.svg", "-o", "bad.csv"],
            "--output: 'bad.csv' is what --measured names",
        ),
        (["sweep", "spec.nc", "-o", "spec.nc"], "--output: 'spec.nc' is the specification itself"),
    ],
)
def test_every_command_keeps_what_it_reads_and_its_results_apart(refused, arguments, message):
    assert refused(*arguments) == f"{message}; name another file"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bad.csv", "-o", "no/x.csv"], "--output: 'no/x.csv' cannot be written: the folder 'no' does not exist"),
        (["bad.csv", "--summary", "no/x"], "--summary: 'no/x' cannot be written: the folder 'no' does not exist"),
        (["bad.csv", "--chart", "no/x.svg"], "--chart: 'no/x.svg' cannot be written: the folder 'no' does not exist"),
        (["mix", "-o", "bad.csv/x.csv"], "--output: 'bad.csv/x.csv' cannot be written: 'bad.csv' is no folder"),
        (["mix", "-o", "notes"], "--output: 'notes' is a file; name a folder, or a file with a suffix"),
        (["empty"], "TABLE: 'empty' holds no .parquet"),
        (
            ["bad.csv", "--column", "rtt=a", "--column", "loss=c", "--column", "rtt=b:ms"],
            "--column: rtt is named twice, as 'a' and as 'b:ms'; name one column",
        ),
    ],
)
def test_batch_says_beforehand_what_is_wrong_with_its_files(refused, monkeypatch, arguments, message):
    monkeypatch.setattr("tcpdelay.study.tables.predict_many.run_job", lambda *_, **__: pytest.fail("computed"))
    assert refused("batch", *arguments, *APPLICATION) == message


def test_a_read_only_folder_is_refused_before_the_work(monkeypatch, tmp_path):
    (tmp_path / "old.csv").touch()
    # A test as root may write into every folder.
    monkeypatch.setattr(os, "access", lambda path, mode: not (Path(path) == tmp_path and mode == os.W_OK))
    with pytest.raises(typer.BadParameter, match=r"-o: '.*new.csv' cannot be written: the folder '.*' is read-only$"):
        refuse_missing_folder(tmp_path / "new.csv", "-o")
    # A file that exists may have other rights than its folder.
    refuse_missing_folder(tmp_path / "old.csv", "-o")


def test_a_device_may_be_named_twice(tmp_path):
    (tmp_path / "device.svg").symlink_to("/dev/null")
    refuse_same_file([("TABLE", "/dev/null")], [("--output", Path("/dev/null")), ("--chart", tmp_path / "device.svg")])
