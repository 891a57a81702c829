import csv
import io
import json

import numpy as np
import pytest

from synthetic_captures import capture, flow_run, write
from tcpdelay.cli.program import main
from tcpdelay.study.validation import predictions
from tcpdelay.study.validation.predictions import MODELS


@pytest.fixture
def run(capfd, tmp_path, monkeypatch):
    """Run `tcpdelay validate` in an empty directory; return its exit status, what it printed, and its errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(predictions, "PACKETS", 20_000)

    def run(*arguments):
        capfd.readouterr()
        status = main(["validate", *map(str, arguments)])
        return status, *capfd.readouterr()

    return run


@pytest.fixture
def captures(tmp_path):
    """A directory with two captures, where the command looks for them."""
    directory = tmp_path / "captures"
    rng = np.random.default_rng(3)
    for name in ("one", "two"):
        write(directory / "random-loss", capture(rng.choice([0.010, 0.030], 2000, p=[0.97, 0.03]), name=name))
    return directory


def test_results_go_where_asked_and_the_summary_is_printed(run, captures, tmp_path):
    status, printed, errors = run("--output", "results")
    assert (status, errors) == (0, "tables: results\n")
    assert "newreno_2008-rto" in printed
    assert "2 captures with 4000 packets" in (tmp_path / "results" / "report.md").read_text()
    assert not (tmp_path / "validation-results").exists()


def test_the_default_directories_are_here(run, captures, tmp_path):
    assert run()[0] == 0
    assert {file.name for file in (tmp_path / "validation-results").iterdir()} == {
        "report.md",
        "results.json",
        "captures.csv",
        "scores.csv",
        *(f"{table}.{kind}" for table in ("summary", "errors", "other-settings", "sources") for kind in ("csv", "md")),
    }


def test_the_summary_comes_in_each_format(run, captures):
    _, printed, _ = run("--format", "csv")
    assert [row["cases"] for row in csv.DictReader(io.StringIO(printed))] == ["2"] * len(MODELS)
    _, printed, _ = run("--format", "json")
    assert [row["cases"] for row in json.loads(printed)] == [2] * len(MODELS)
    _, printed, _ = run("--format", "markdown")
    assert printed.startswith("| model | cases |")


def test_captures_in_real_time_are_summarized_if_there_are_no_others(run, tmp_path):
    delays = np.random.default_rng(3).choice([0.010, 0.030], 2000, p=[0.97, 0.03])
    write(tmp_path / "captures", capture([flow_run(delays, backend="uml")]))
    _, printed, _ = run("--format", "json")
    (row,) = json.loads(printed)
    assert (row["model"], row["cases"]) == ("simulator", 1)


def test_a_broken_capture_is_named_and_left_out(run, captures):
    (captures / "broken.parquet").write_bytes(b"nonsense")
    status, _, errors = run()
    assert status == 0
    warning, _ = errors.splitlines()
    assert warning.startswith("warning: captures/broken.parquet: is no Parquet file")


def refused(result):
    status, printed, errors = result
    assert (status, printed) == (2, "")
    return errors


def test_captures_that_are_not_there(run, tmp_path):
    hint = "name a folder or a set to which 'tcpdelay testbed run' wrote captures\n"
    assert refused(run()) == f"tcpdelay validate: --captures: 'captures' does not exist; {hint}"
    assert refused(run("--captures", "nowhere")).endswith(f"'nowhere' does not exist; {hint}")
    (tmp_path / "empty").mkdir()
    assert refused(run("--captures", "empty")).startswith("tcpdelay validate: --captures: 'empty' holds no capture, ")


@pytest.mark.parametrize("option", ["--captures", "--output"])
def test_a_name_that_the_system_refuses_is_one_line(run, captures, option):
    long = "x" * 300
    assert refused(run(option, long)) == f"tcpdelay validate: {option}: '{long}': File name too long\n"


def test_nothing_but_broken_captures(run, tmp_path):
    (tmp_path / "broken").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "broken" / f"{name}.parquet").write_bytes(b"nonsense")
    (error,) = refused(run("--captures", "broken")).splitlines()
    said = "tcpdelay validate: --captures: 'broken' holds no capture that can be used among 3 files"
    assert error.startswith(f"{said}, the first of which is a.parquet: is no Parquet file")
    assert error.endswith("; name a folder or a set to which 'tcpdelay testbed run' wrote captures")


def test_an_output_that_is_a_file(run, captures, tmp_path):
    (tmp_path / "results").write_text("mine")
    assert refused(run("--output", "results")) == (
        "tcpdelay validate: --output: 'results' is a file; name a directory\n"
    )
    below = refused(run("--output", "results/below"))
    assert below == "tcpdelay validate: --output: 'results/below': Not a directory\n"
    assert (tmp_path / "results").read_text() == "mine"
