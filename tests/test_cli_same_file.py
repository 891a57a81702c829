"""No command replaces a file that it reads, or writes two results into one file."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from cli_process import ROOT
from tcpdelay.cli.output import refuse_missing_folder, refuse_same_file

PCAP = ROOT / "validation" / "pcap" / "voice-clean.sender.pcap.gz"
VOIP = ["--app", "voip"]
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
    assert refused("batch", *arguments, *VOIP).startswith(message)


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
        (["predict", *VOIP, "--ping", "ping.svg", "--chart", "ping.svg"], "--chart: 'ping.svg' is what --ping names"),
        (["predict", *VOIP, "--ss", "ping.svg", "--chart", "ping.svg"], "--chart: 'ping.svg' is what --ss names"),
        (["report", *VOIP, "--ping", "ping.md", "-o", "ping.md"], "--output: 'ping.md' is what --ping names"),
        (
            ["report", *VOIP, *PATH, "--against", "ping=ping.md", "-o", "ping.md"],
            "--output: 'ping.md' is what --ping names",
        ),
        (
            ["compare", *VOIP, *PATH, "-o", "x.svg", "--chart", "x.svg", "--format", "csv"],
            "--chart: 'x.svg' is what --output names",
        ),
        (["compare", *VOIP, "--ping", "ping.md", "-o", "ping.md"], "--output: 'ping.md' is what --ping names"),
        (
            ["region", *VOIP, "-o", "x.svg", "--chart", "x.svg", "--format", "csv"],
            "--chart: 'x.svg' is what --output names",
        ),
        (
            ["region", *VOIP, "--measured", "bad.csv", "--chart", "x.svg", "-o", "bad.csv"],
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
    assert refused("batch", *arguments, *VOIP) == message


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
