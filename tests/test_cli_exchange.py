"""The command `tcpdelay exchange`: its text, its records, its chart, and its errors."""

import csv
import io
import json
import re

import pytest

import tcpdelay as td

ECHO = ["exchange", "--rtt", "10ms", "--loss", "1%", "--request-size", "800B", "--response-size", "900B"]


def test_records_have_the_figures_of_the_simulation(run):
    options = ["--answer-time", "5ms", "--think-time", "1s", "--writes", "2", "--seed", "3", "--limit", "20ms"]
    status, printed, _ = run(*ECHO, *options, "--exchanges", "5000", "--format", "json")
    record = json.loads(printed)
    path = td.Path(0.010, 0.01, ack_loss=0.01)
    expected = td.simulate_exchanges(
        800, 900, path, answer_time=0.005, think_time=1.0, writes=2, exchanges=5000, seed=3
    )
    assert status == 0
    assert (record["mean"], record["p99"]) == (expected.mean, expected.quantile(0.99))
    assert (record["mean_request"], record["late_fraction"]) == (expected.request.mean, expected.late_fraction(0.020))
    assert record["target_quantile_low"] is None
    _, printed, _ = run(*ECHO, *options, "--exchanges", "5000", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(printed))
    assert row.keys() == record.keys()
    assert (float(row["p95"]), row["seed"]) == (record["p95"], "3")


def test_text_and_chart(run, tmp_path):
    chart = tmp_path / "times.svg"
    status, printed, _ = run(*ECHO, "--ack-loss", "0", "--exchanges", "1000", "--chart", str(chart))
    assert status == 0
    assert printed.startswith(
        "800 bytes answered by 900, round-trip time 10 ms, loss 1 % of requests, 0 % of responses"
    )
    assert "at the server" not in printed
    _, slow, _ = run(*ECHO, "--exchanges", "1000", "--answer-time", "50ms")
    assert re.search(r"^mean .* for responses, 50 ms at the server$", slow, flags=re.M)
    assert re.search(r"^50 % end within +10 ms$", printed, flags=re.M)
    assert re.search(r"^method +simulation of 1000 exchanges$", printed, flags=re.M)
    assert chart.read_text(encoding="utf-8").startswith("<?xml")


def test_the_help_offers_no_stack_that_is_refused(run):
    _, printed, _ = run("exchange", "--help-all")
    assert "--stack <" not in printed
    assert "quic" not in printed.lower()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--request-size", "20MB"], "--request-size: must be a whole number of bytes from 1 to 10 000 000"),
        (["--think-time", "2min"], "--think-time: must lie between 0 and 60 s, got 120"),
        (["--exchanges", "10"], "--exchanges: must be a whole number, 1000 to 10000000, got 10"),
        (["--stack", "quic"], "no such option: --stack"),
        (["--congestion-control", "newreno"], "--congestion-control: 'newreno' is not one of 'cubic', 'reno', 'bbr'"),
        (["--packet-size", "100B"], "no such option: --packet-size"),
    ],
)
def test_bad_input_is_one_line(run, options, message):
    status, printed, errors = run(*ECHO, *options)
    assert (status, printed) == (2, "")
    assert message in errors
    assert "Traceback" not in errors
