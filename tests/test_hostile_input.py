"""Input that is deep, long, folded in on itself or full of control characters: one line that says what is wrong."""

import gzip
import struct
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tcpdelay.capture.get_stats import read_reports
from tcpdelay.capture.pcap.container import CaptureFile
from tcpdelay.cli.program import main
from tcpdelay.report.document import Column, ResultTable
from tcpdelay.study.tables.files import reading_csv, table_fault

HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101)
CALL = ["report", "--rtt", "100ms", "--loss", "2%", "--packet-size", "174", "--interval", "20ms"]


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("lines", [1, 2])
def test_deep_statistics_are_refused_in_one_line(opened, closed, lines):
    deep = [opened * 100_000, "1" + closed * 100_000]
    with pytest.raises(ValueError, match=r"^stats\.json: is nested too deeply for statistics of getStats$"):
        list(read_reports(deep if lines == 2 else ["".join(deep)], "stats.json"))


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links")
def test_an_output_at_a_loop_of_links_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    monkeypatch.setattr("tcpdelay.report.guideline.guideline", lambda *_, **__: pytest.fail("worked"))
    assert main([*CALL, "-o", str(loop)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tcpdelay report: --output: ")
    assert "cannot be written: Too many levels of symbolic links" in said
    assert said.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a working directory cannot be removed")
def test_a_removed_working_directory_is_named(tmp_path, capsys, monkeypatch):
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()

    def ask(*_, **__):
        Path.cwd()

    monkeypatch.setattr("tcpdelay.cli.program.program", lambda *_: type("Asking", (), {"main": ask}))
    assert main(["paths"]) == 1
    assert capsys.readouterr().err == "tcpdelay: the working directory has been removed; change to another one\n"


def test_a_row_that_is_too_long_is_told_in_own_words(tmp_path):
    for rows in (f"a,80,{'1' * 3_000_000}%\n", "a,80,1%\n" * 200_000 + f"a,80,{'1' * 40_000_000}%\n"):
        table = tmp_path / "users.csv"
        table.write_text("user,rtt_ms,loss\n" + rows)
        with pytest.raises(pa.ArrowInvalid) as fault, reading_csv(table, {}) as reader:
            reader.read_all()
        assert "a row is too long: at most 16 MiB are read" in str(table_fault(table, "csv", fault.value))


def test_packets_of_no_bytes_and_what_no_capture_is_packed_like_are_refused(tmp_path):
    capture = tmp_path / "zeros.pcap.gz"
    capture.write_bytes(gzip.compress(HEADER + bytes(30_000_000)))
    with pytest.raises(ValueError, match="is damaged: a packet of no bytes at packet 1"):
        list(CaptureFile(capture))
    packet = struct.pack("<IIII", 0, 0, 60_000, 60_000) + bytes(60_000)
    capture.write_bytes(gzip.compress(HEADER + packet * 600))
    with pytest.raises(ValueError, match="is damaged: it unpacks to more than 400 times its size"):
        list(CaptureFile(capture))


def test_control_characters_do_not_reach_the_terminal():
    table = ResultTable("t", "Shares", (Column("region", "region"),), [{"region": "a\x1b[31m\nb"}])
    assert "a\\x1b[31m\\nb" in table.to_text()
    assert "\\x1b" in table.to_markdown()
    assert "\x1b" not in table.to_text() + table.to_markdown()
