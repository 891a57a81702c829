"""`tcpdelay batch`: tables in files, interrupted and taken up again, and the rows that work by group."""

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

import tcpdelay as td
from cli_process import process
from tcpdelay.cli import output as cli_output
from tcpdelay.cli import tables
from tcpdelay.cli.output import ERASE_LINE
from tcpdelay.statistics import share_interval
from tcpdelay.store import locked
from tcpdelay.study.tables import columns as cell_values
from tcpdelay.study.tables import files
from tcpdelay.study.tables import predict_many as job_module
from tcpdelay.study.tables import rows as rows_module
from tcpdelay.study.tables.files import chunks, reading

EXAMPLE = "user,rtt_ms,loss_percent,region\na,100,2,north\nb,20,0.1,north\nc,?,1,south\nd,300,5,south\n,,,\n"


@pytest.fixture
def run_batch(run, tmp_path, monkeypatch):
    """Run `tcpdelay batch` with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda *arguments: run("batch", *arguments)


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "users.csv"
    path.write_text(EXAMPLE)
    return path


def test_a_table_goes_from_any_format_to_any_other(run_batch, users, tmp_path):
    assert run_batch(users, "--app", "voip", "-o", "out.parquet")[0] == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column("user").to_pylist() == ["a", "b", "c", "d", None]
    p95s = [
        td.predict_delay("voip", td.Path(*path), method="chain").quantile(0.95) for path in ((0.1, 0.02), (0.02, 0.001))
    ]
    assert table.column("p95").to_pylist()[:2] == pytest.approx(p95s)
    reasons = [None, None, "rtt is not a number", None, "rtt is missing"]
    assert table.column("reason").to_pylist() == reasons
    for name in ("again.arrow", "again.csv"):
        assert run_batch("out.parquet", "--app", "game", "--prefix", "game_", "-o", name)[0] == 0
    arrow = pa.feather.read_table(tmp_path / "again.arrow")
    assert arrow.column("reason").to_pylist() == arrow.column("game_reason").to_pylist() == reasons
    text = pa.csv.read_csv(tmp_path / "again.csv", convert_options=pa.csv.ConvertOptions(strings_can_be_null=True))
    assert text.column("game_works").to_pylist() == arrow.column("game_works").to_pylist()


def test_shares_are_counted_by_group(run_batch, users):
    status, printed, _ = run_batch(users, "--app", "voip", "--group", "region", "--format", "json")
    assert status == 0
    rows = {row["region"]: row for row in json.loads(printed)}
    assert [(name, row["rows"], row["without_prediction"], row["works"]) for name, row in rows.items()] == [
        ("north", 2, 0, 1.0), ("south", 2, 1, 0.0), ("none", 1, 1, None), ("all", 5, 2, pytest.approx(2 / 3, rel=1e-5)),
    ]  # fmt: skip
    status, printed, _ = run_batch(users, "--app", "voip", "--threshold", "1min", "--chart", "shares.svg")
    assert status == 0
    assert "100 %" in printed


def test_rows_that_the_expected_error_leaves_open_are_counted_apart(run_batch, tmp_path):
    # The 95th percentile of the second path is just about the limit.
    (tmp_path / "paths.csv").write_text("rtt_ms,loss_percent\n100,2\n140,1.7\n400,5\n-1,1\n")
    status, printed, _ = run_batch("paths.csv", "--app", "voip", "--format", "json", "-o", "out.parquet")
    assert status == 0
    verdicts = pq.read_table(tmp_path / "out.parquet").column("verdict").to_pylist()
    assert verdicts == ["works", "uncertain", "fails", None]
    (row,) = json.loads(printed)
    third = pytest.approx(1 / 3, rel=1e-5)
    assert (row["rows"], row["without_prediction"]) == (4, 1)
    assert (row["works"], row["uncertain"], row["fails"]) == (third, third, third)
    text = run_batch("paths.csv", "--app", "voip")[1]
    assert all(word in text for word in ("works", "uncertain", "fails"))
    assert "working region" not in text


@pytest.mark.parametrize(("count", "of"), [(0, 1), (1, 1), (3, 10), (0, 50), (999, 1000)])
def test_intervals_of_shares_are_those_of_scipy(count, of):
    theirs = binomtest(count, of).proportion_ci(0.9, method="exact")
    ours = share_interval(count, of, 0.9)
    assert (ours.value, ours.low, ours.high) == pytest.approx((count / of, theirs.low, theirs.high), abs=1e-9)


def test_columns_of_the_table_go_before_options(run_batch, tmp_path):
    table = pa.table({"ping": [100.0, 100.0], "plr": [0.02, 0.02], "interval_ms": [20, 30], "packet_size": [174, 174]})
    pq.write_table(table, tmp_path / "table.parquet")
    columns = ["--column", "rtt=ping:ms", "--column", "loss=plr"]
    assert run_batch("table.parquet", *columns, "-o", "out.parquet")[0] == 0
    p95 = td.predict_delay(rtt=0.1, loss=0.02, packet_size=174, interval=0.02, method="chain").quantile(0.95)
    assert pq.read_table(tmp_path / "out.parquet").column("p95").to_pylist()[0] == pytest.approx(p95)
    assert run_batch("table.parquet", *columns, "--app", "game", "-o", "same.parquet")[0] == 0
    same, out = (pq.read_table(tmp_path / name).select(["p95", "mean"]) for name in ("same.parquet", "out.parquet"))
    assert same.equals(out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv", "--app", "voip"], "TABLE: 'none.csv' does not exist"),
        (["users.csv"], "the flow is missing; write --app voip"),
        (["users.csv", "--app", "voip", "-o", "users.csv"], "--output: 'users.csv' is the table itself"),
        (["users.csv", "--app", "voip", "-o", "out.xls"], "--output: 'out.xls' does not end in one of .parquet"),
        (["users.csv", "--app", "voip", "-o", "no/out.csv"], "cannot be"),
        (
            ["users.csv", "--app", "voip", "--group", "isp"],
            "--group: must be one of user, rtt_ms, loss",
        ),
        (
            ["twice.csv", "--app", "voip", "-o", "out.parquet"],
            "--output: must be CSV, as the table has several columns",
        ),
        (
            ["twice.csv", "--app", "voip", "--group", "isp"],
            "--group: must name a column that the table has once, got 'isp'",
        ),
        (
            ["twice.csv", "--app", "voip", "--column", "rtt=isp"],
            "--column: must name a column that the table has once, got 'isp'",
        ),
        (["users.csv", "--app", "voip", "--column", "rtt"], "'rtt' is no column; write rtt=COLUMN"),
        (["users.csv", "--app", "voip", "--column", "rtt=x"], "--column: must be some of user"),
        (["users.csv", "--app", "voip", "--chart", "a.txt"], "--chart: 'a.txt' does not end in one of"),
        (["users.csv", "--app", "voip", "--limit", "1s", "--threshold", "1s"], "--threshold: is the same as --limit"),
        (
            ["interval.csv", "--app", "voip", "--fps", "30"],
            "--fps: does not go with a table that has the column 'interval_ms'",
        ),
        (["users.parquet", "--app", "voip"], "TABLE: 'users.parquet' cannot be read: it is not a Parquet file\n"),
        (
            ["seconds.csv", "--app", "voip", "-o", "parts/"],
            "--column: must state the unit of rtt, because these look like milliseconds (median 80): "
            "write rtt=rtt:ms, or rtt=rtt:s if they are seconds",
        ),
    ],
)
def test_mistakes_are_answered_by_one_line(run_batch, users, tmp_path, arguments, message):
    (tmp_path / "users.parquet").write_text(EXAMPLE)
    (tmp_path / "seconds.csv").write_text("rtt,loss\n80,1%\n")
    (tmp_path / "interval.csv").write_text("rtt_ms,loss,interval_ms\n80,1%,20\n")
    (tmp_path / "twice.csv").write_text("isp,isp,rtt_ms,loss\na,b,80,1%\n")
    status, printed, errors = run_batch(*arguments)
    assert (status, printed, errors.count("\n")) == (2, "", 1)
    assert message in errors
    assert not list(tmp_path.glob(".tcpdelay-*"))


HEADER = b"user,rtt_ms,loss_percent\n"
ODD = {
    "a byte-order mark": b"\xef\xbb\xbfrtt_ms,loss_percent\n80,1\n",
    "semicolons": b"user;rtt_ms;loss_percent\na;80;1\n",
    "tabs": b"user\trtt_ms\tloss_percent\na\t80\t1\n",
    "empty lines": b"\n\n" + HEADER + b"\na,80,1\n\n",
    "quotes": b'"user","rtt_ms","loss_percent"\n"a","80"," 1"\n',
    "ends of lines of Windows": b"user,rtt_ms,loss_percent\r\na,80,1\r\n",
    "spaces": b"user, rtt_ms , loss_percent\na, 80 , 1 \n",
    "bars": b"user|rtt_ms|loss_percent\na|80|1\n",
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_ways_to_write_a_table_are_understood(run_batch, tmp_path, odd):
    (tmp_path / "odd.csv").write_bytes(ODD[odd])
    (tmp_path / "plain.csv").write_bytes(HEADER + b"a,80,1\n")
    answers = {}
    for name in ("odd", "plain"):
        assert run_batch(f"{name}.csv", "--app", "voip", "-o", f"{name}.parquet")[0] == 0
        answers[name] = pq.read_table(tmp_path / f"{name}.parquet").select(["p95", "mean", "reason"])
    assert answers["odd"].num_rows == 1
    assert answers["odd"].equals(answers["plain"])


def test_decimal_commas_are_read_if_they_are_announced(run_batch, tmp_path):
    (tmp_path / "german.csv").write_text("user;rtt_ms;loss\na;80,5;1,5%\nb;80.5;1.5%\n")
    status, _, errors = run_batch("german.csv", "--app", "voip")
    assert status == 0
    assert errors.startswith(
        "warning: 1 of 2 rows have no prediction: rtt has a comma where a decimal point is needed (1); "
    )
    assert errors.endswith("if it is a decimal comma, add --decimal-comma\n")
    status, _, errors = run_batch("german.csv", "--app", "voip", "--decimal-comma", "-o", "out.parquet")
    assert (status, errors) == (0, "")
    first, second = pq.read_table(tmp_path / "out.parquet").column("mean").to_pylist()
    assert first == second


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\n\n", "it is empty"),
        (HEADER.strip(), "it has no rows"),
        (HEADER + b"a,80,1\n\nb,80\n", "line 4 has 2 cells, but the first one names 3 columns"),
        (HEADER + b"a,80,1\nb,80,1,7\n", "line 3 has 4 cells, but the first one names 3 columns"),
        (HEADER + b"1,80,1\n" * 3000 + b"b,80\n", "line 3002 has 2 cells"),
        (HEADER + b"a,80,1\na,80\xb5s,1\n", "line 3 is not in UTF-8; convert the file, as by iconv"),
        (HEADER + b"a,80,1\n" * 3000 + b"a,80\xb5s,1\n", "line 3002 is not in UTF-8"),
        (b"rtt_ms,loss,Stra\xdfe\n80,1%,a\n", "line 1 is not in UTF-8"),
        (HEADER.decode().encode("utf-16"), "it is in UTF-16"),
        (HEADER + b'a,80,1\n"b,90,1\nc,70,1\n', "line 3 opens a quote that is not closed at the end of its cell"),
        (HEADER + b'a,80,1\nb,90,"1\nc,70,1\n', "line 3 opens a quote"),
        (HEADER + b'"a\nor",80,1\nb,90,"1\nc,70,"1\n', "line 4 opens a quote"),
        (HEADER + b"a,80,1\n" * 3000 + b'b,90,"1\n' + b"a,80,1\n" * 3000, "line 3002 opens a quote"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_the_line_at_fault(
    run_batch, tmp_path, monkeypatch, content, message
):
    for module, name in ((files, "CSV_BLOCK"),):
        monkeypatch.setattr(module, name, 4096)
    (tmp_path / "users.csv").write_bytes(content)
    status, printed, errors = run_batch("users.csv", "--app", "voip")
    assert (status, printed, errors.count("\n")) == (2, "", 1)
    assert f"TABLE: 'users.csv' cannot be read: {message}" in errors


def test_cells_of_several_lines_and_quotes_inside_of_cells_are_kept(run_batch, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CSV_BLOCK", 4096)
    names = ['"a, b\nor c"', '6" pipe', '"he said ""so""\n"', "d"] * 500
    text = "".join(f"{name},80,1%\n" for name in names)
    (tmp_path / "users.csv").write_text(f"user,rtt_ms,loss\n{text}")
    assert run_batch("users.csv", "--app", "voip", "-o", "out.parquet")[0] == 0
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column("user").to_pylist() == ["a, b\nor c", '6" pipe', 'he said "so"\n', "d"] * 500
    assert found.column("reason").null_count == 2000


@settings(max_examples=60)
@given(st.lists(st.tuples(*[st.text('ab01.;,"\n\t N', max_size=4) | st.sampled_from(["NA", "nan", "007"])] * 2)))
def test_what_is_passed_through_is_what_the_csv_of_python_reads(rows):
    with TemporaryDirectory() as folder:
        given, out = (Path(folder) / name for name in ("given.csv", "out.csv"))
        with given.open("w", newline="") as file:
            csv.writer(file).writerows([("user", "rtt"), *rows])
        with files.reading(given, "csv") as reader, files.TableWriter(out, "csv", reader.schema) as writer:
            for batch in reader:
                writer.write(batch)
        with out.open(newline="") as file:
            assert list(map(tuple, csv.reader(file))) == [("user", "rtt"), *rows]


def test_numbers_that_csv_has_as_texts_are_sorted_as_numbers(run_batch, tmp_path):
    (tmp_path / "users.csv").write_text("hour,rtt_ms,loss\n10,80,0\nNA,80,0\n9,80,0\n,80,0\n007,80,0\n")
    _, printed, _ = run_batch("users.csv", "--app", "voip", "--group", "hour", "--format", "json")
    assert [row["hour"] for row in json.loads(printed)] == ["007", "9", "10", "NA", "none", "all"]


def test_a_table_without_rows_has_no_share(run_batch, tmp_path):
    (tmp_path / "users.csv").write_bytes(HEADER)
    status, printed, errors = run_batch("users.csv", "--app", "voip", "--format", "json")
    assert (status, errors) == (0, "")
    assert [(row["rows"], row["works"]) for row in json.loads(printed)] == [(0, None)]


def test_a_folder_of_parts_is_taken_up_where_it_was_left(run_batch, tmp_path, monkeypatch):
    monkeypatch.setattr(job_module, "ROWS_AT_A_TIME", 10)
    monkeypatch.setattr(job_module, "ROWS_PER_PART", 20)
    table = pa.table({"user": range(95), "rtt_ms": np.linspace(20, 110, 95), "loss": np.full(95, 0.01)})
    pq.write_table(table, tmp_path / "users.parquet")
    written = job_module.TableWriter.write

    def interrupted(writer, batch):
        written(writer, batch)
        if batch.column("user")[0].as_py() == 50:
            raise KeyboardInterrupt

    asked = ["users.parquet", "--app", "voip", "-o", "out", "--format", "csv"]
    with monkeypatch.context() as patched:
        patched.setattr(job_module.TableWriter, "write", interrupted)
        status, printed, errors = run_batch(*asked)
    assert (status, printed) == (130, "")
    assert "interrupted: 2 parts are complete, and the same command continues after them" in errors
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "part-000000.parquet", "part-000001.parquet", "question.json",
    ]  # fmt: skip
    kept = (tmp_path / "out" / "part-000001.parquet").stat().st_mtime_ns
    status, printed, _ = run_batch(*asked)
    assert (status, printed.splitlines()[1].split(",")[0]) == (0, "95")
    assert (tmp_path / "out" / "part-000001.parquet").stat().st_mtime_ns == kept
    parts = pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / "out").glob("*.parquet"))])
    assert parts.select(["user", "rtt_ms"]).equals(table.select(["user", "rtt_ms"]))
    status, _, errors = run_batch(*asked, "--limit", "1s")
    assert status == 2
    assert "'out' holds the answers to another question; name another folder" in errors


@pytest.mark.parametrize("output_format", ["parquet", "csv"])
def test_a_folder_of_parts_is_read_back_and_counted_again(run_batch, users, tmp_path, output_format):
    asked = [users, "--app", "voip", "--output-format", output_format, "--group", "region", "--format", "csv"]
    _, counted, _ = run_batch(*asked, "-o", "out/")
    for _ in range(2):
        assert run_batch(*asked, "-o", "out/", "--summary", "out/shares.csv")[:2] == (0, "")
        assert (tmp_path / "out" / "shares.csv").read_text() == counted
    status, printed, errors = run_batch("out/", "--app", "game", "--prefix", "game_", "--format", "csv")
    if output_format == "csv":
        assert (status, errors) == (2, "tcpdelay batch: TABLE: 'out' holds no .parquet\n")
    else:
        assert (status, printed.splitlines()[1].split(",")[:2]) == (0, ["5", "2"])


def test_two_batches_never_write_to_one_folder(run_batch, users, tmp_path):
    asked = [users, "--app", "voip", "-o", "out/"]
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out", "is free"):
        in_use = "tcpdelay batch: out: another batch writes its parts there\n"
        assert run_batch(*asked) == (2, "", in_use)
        assert not list((tmp_path / "out").iterdir())
    assert run_batch(*asked)[0] == 0


def test_what_a_killed_batch_leaves_in_its_folder_is_removed(run_batch, users, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".tcpdelay-0123.part").write_bytes(b"half a part")
    assert run_batch(users, "--app", "voip", "-o", "out/")[0] == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["part-000000.parquet", "question.json"]


def test_a_part_that_is_damaged_is_named(run_batch, users, tmp_path):
    asked = [users, "--app", "voip", "-o", "out/", "--format", "csv"]
    _, counted, _ = run_batch(*asked)
    part = tmp_path / "out" / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    status, _, errors = run_batch(*asked)
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.startswith("tcpdelay batch: --output: 'out/part-000000.parquet' cannot be read: ")
    assert errors.endswith("; remove it, and it is written again\n")
    part.unlink()
    assert run_batch(*asked)[:2] == (0, counted)


@pytest.mark.parametrize("name", ["part-000000.parquet", "part-000007.parquet", "question.json"])
def test_the_summary_replaces_no_file_of_the_output(run_batch, users, tmp_path, name):
    assert run_batch(users, "--app", "voip", "-o", "out/")[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    status, printed, errors = run_batch(users, "--app", "voip", "-o", "out/", "--summary", f"out/../out/{name}")
    assert (status, printed) == (2, "")
    assert errors == (
        f"tcpdelay batch: --summary: 'out/../out/{name}' is a file that --output writes; name another file\n"
    )
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("column", ["user", "x" * 10_000])
@pytest.mark.parametrize("output", ["out.parquet", "out.csv", "out.arrow", "out/"])
def test_a_disk_that_is_full_is_the_fault_of_the_output(run_batch, tmp_path, column, output):
    resource = pytest.importorskip("resource")
    table = pa.table({column: np.random.default_rng(1).bytes(20_000).hex(" ").split(), "rtt": [0.1] * 20_000})
    pq.write_table(table.append_column("loss", pa.array([0.02] * 20_000)), tmp_path / "users.parquet")
    assert run_batch("users.parquet", "--app", "voip")[0] == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        status, printed, errors = run_batch("users.parquet", "--app", "voip", "-o", output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    written = "out/part-000000.parquet" if output == "out/" else output
    assert (status, printed) == (2, "")
    assert errors == f"tcpdelay batch: --output: {written!r} cannot be written: File too large\n"
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith((".tcpdelay-", written))]


def test_a_folder_that_cannot_be_made_is_the_fault_of_the_output(run_batch, users, tmp_path):
    status, _, errors = run_batch(users, "--app", "voip", "-o", f"{users}/out/")
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.endswith("users.csv/out' cannot be written: Not a directory\n")


def test_a_read_only_folder_is_the_fault_of_the_output(run_batch, users, monkeypatch):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    # On such a file system, removing a file that is not there fails in the same way.
    monkeypatch.setattr("pyarrow.csv.CSVWriter", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    status, _, errors = run_batch(users, "--app", "voip", "-o", "out.csv", "--no-cache")
    assert status == 2
    assert errors == "tcpdelay batch: --output: 'out.csv' cannot be written: Read-only file system\n"


def test_a_pipe_is_written_to_and_stays_one(run_batch, users, tmp_path):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as background:
        read = background.submit(pipe.read_text)
        assert run_batch(users, "--app", "voip", "-o", pipe)[0] == 0
        assert run_batch(users, "--app", "voip", "-o", "out.csv")[0] == 0
        assert read.result() == (tmp_path / "out.csv").read_text()
    assert pipe.is_fifo()


def test_a_damaged_file_of_arrow_is_one_line(run_batch, tmp_path):
    table = pa.table({"rtt": np.full(50, 0.1), "loss": np.full(50, 0.02)})
    path = tmp_path / "users.arrow"
    pa.feather.write_feather(table, path, compression="uncompressed")
    content = path.read_bytes()
    statuses = set()
    for place in range(8, content.index(np.full(50, 0.1).tobytes()), 16):
        path.write_bytes(content[:place] + b"\xff" * 8 + content[place + 8 :])
        status, _, errors = run_batch(path, "--app", "voip")
        assert errors.count("\n") == (status == 2), errors
        statuses.add(status)
    assert statuses == {0, 2}


@pytest.mark.parametrize("write", [pa.ipc.new_file, pa.ipc.new_stream])
def test_offsets_beyond_the_texts_of_an_arrow_file_are_refused(tmp_path, write):
    # Arrow follows them without a check, and ends the process if they lead out of its memory.
    table = pa.table({"rtt": ["80ms", "90ms"]})
    path = tmp_path / "users.arrow"
    with write(path, table.schema) as file:
        file.write_table(table)
    content = path.read_bytes()
    offsets = np.array([0, 4, 8], np.int32).tobytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, np.array([0, 4, 2**30], np.int32).tobytes()))
    with reading(path, "arrow") as reader, pytest.raises(pa.ArrowInvalid, match="Offset"):
        reader.read_all()


def test_an_interrupt_leaves_nothing_under_the_final_name(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(1)
    table = pa.table({"rtt": rng.uniform(0.1, 0.3, 100_000), "loss": rng.uniform(0.01, 0.08, 100_000)})
    pq.write_table(table, tmp_path / "users.parquet")
    out = tmp_path / "out.parquet"
    with process(
        "batch", str(tmp_path / "users.parquet"), "--app", "voip", "-o", str(out), stdout=subprocess.PIPE
    ) as started:
        while not list(tmp_path.glob(".tcpdelay-*")):
            assert started.poll() is None
            time.sleep(0.05)
        time.sleep(1)
        started.send_signal(signal.SIGINT)
        printed, errors = started.communicate()
    assert (started.returncode, printed) == (130, "")
    assert errors.startswith(f"tcpdelay batch: interrupted: {str(out)!r} has not been written")
    assert not out.exists()
    assert not list(tmp_path.glob(".tcpdelay-*"))


@pytest.mark.parametrize("ending", ["swallowed", "another exception"])
def test_an_interrupt_that_is_swallowed_on_the_way_ends_the_job_all_the_same(
    run_batch, users, tmp_path, monkeypatch, ending
):
    interrupted = []

    def read_column(*arguments):
        if not interrupted:
            interrupted.append(True)
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            if ending == "another exception":
                raise ImportError("pandas could not be imported")
        return cell_values.read_column(*arguments)

    monkeypatch.setattr(rows_module, "read_column", read_column)
    status, printed, errors = run_batch(users, "--app", "voip", "-o", "out.csv")
    assert (status, printed, interrupted) == (130, "", [True])
    if ending == "swallowed":
        assert "tcpdelay batch: interrupted: 'out.csv' has not been written" in errors
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["users.csv"]


def test_a_terminal_is_told_at_once_how_long_the_first_table_takes(run_batch, users, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(tables, "TERMINAL_INTERVAL", 0.0)
    status, _, errors = run_batch(users, "--app", "voip")
    first, *shown = errors.split(ERASE_LINE)
    assert (status, first) == (0, "Predicting ...")
    *solving, predicted = (line for line in shown if line.endswith(" ..."))
    assert solving[-1] == "solving 3 of 3 chains, about 0 s left ..."
    assert predicted.startswith("5 rows, ")


def test_a_stated_unit_that_does_not_fit_is_named_before_the_work(run_batch, tmp_path, monkeypatch):
    (tmp_path / "users.csv").write_text("avg_rtt_ms,loss_percent\n100,1\n120,1\n")

    def predict(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(rows_module.RowPredictor, "predict", predict)
    status, printed, errors = run_batch("users.csv", "--app", "voip", "--column", "rtt=avg_rtt_ms:s")
    assert (status, printed) == (130, "")
    assert errors.startswith("warning: column 'avg_rtt_ms' is read as rtt in s, with a median of 110; ")


def test_the_time_left_is_that_of_the_chains_after_the_first(monkeypatch):
    clock = iter([10.0, 14.0, 20.0, 21.0, 25.0])
    monkeypatch.setattr(cli_output.time, "monotonic", lambda: next(clock))
    estimate = cli_output.TimeLeft()
    assert estimate.in_words(1, 9) == ""
    assert estimate.in_words(3, 9) == ", about 12 s left"
    assert estimate.in_words(9, 9) == ", about 0 s left"
    # The next rows.
    assert estimate.in_words(1, 5) == ""
    assert estimate.in_words(3, 5) == ", about 4 s left"


def test_chunks_keep_all_rows_in_their_order():
    table = pa.table({"row": range(1000)})
    for size in (1, 7, 64, 1000, 3000):
        for rows in (1, 10, 999, 1000, 5000):
            cut = list(chunks(table.to_reader(size), rows))
            assert all(batch.num_rows == rows for batch in cut[:-1])
            assert pa.Table.from_batches(cut).equals(table)


def test_rows_are_counted_by_the_score_of_a_call(run_batch, users, tmp_path):
    shares = {}
    for mos in ("1.5", "4.2"):
        status, printed, errors = run_batch(
            users, "--app", "voip", "--mos", mos, "-o", "out.parquet", "--format", "json"
        )
        assert status == 0, errors
        shares[mos] = json.loads(printed)[-1]["works"]
        table = pq.read_table(tmp_path / "out.parquet").to_pylist()
        assert [row["works"] for row in table if row["works"] is not None] == [
            row["mos"] >= float(mos) for row in table if row["works"] is not None
        ]
    assert shares["1.5"] > shares["4.2"]
    assert run_batch(users, "--app", "voip", "--mos", "4")[1].startswith("MOS of at least 4, played out after 200 ms")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mos", "7"], "--mos: must lie between 1 and 4.5, got 7"),
        (["--codec", "mp3"], "--codec: must be one of g711,"),
    ],
)
def test_scores_and_codecs_are_checked(run_batch, users, arguments, message):
    status, printed, errors = run_batch(users, "--app", "voip", *arguments)
    assert (status, printed, errors.count("\n")) == (2, "", 1)
    assert message in errors
