"""The command `tcpdelay relay`: its text, its records, its chart, and its errors."""

import csv
import io
import json
import re

import pytest

import tcpdelay as td

VOIP = ["relay", "--app", "voip", "--rtt", "40ms", "--loss", "3%", "--first", "udp", "--second-rtt", "60ms"]
VOIP += ["--second-loss", "1%"]


def test_json_has_the_figures_of_the_simulation(run):
    status, printed, _ = run(*VOIP, "--buffer", "1kB", "--packets", "5000", "--format", "json")
    record = json.loads(printed)
    legs = (td.Path(0.040, 0.03), td.Udp()), (td.Path(0.060, 0.01), td.Stack.linux())
    expected = td.simulate_relay("voip", *legs, buffer=1000, packets=5000)
    assert status == 0
    assert (record["lost_share"], record["dropped_share"]) == (expected.lost_share, expected.dropped_share)
    assert (record["mean"], record["p95"]) == (expected.delays.mean, expected.delays.quantile(0.95))
    assert (record["mean_first"], record["mean_second"]) == (expected.first.mean, expected.second.mean)
    assert (record["first_transport"], record["second_transport"]) == ("udp", "tcp")


def test_text_names_legs_losses_and_kinds(run, tmp_path):
    chart = tmp_path / "delays.svg"
    options = ["--bitrate", "1Mbit/s", "--key-ratio", "8", "--rtt", "20ms", "--loss", "0", "--second-rtt", "60ms"]
    status, printed, _ = run("relay", *options, "--second-loss", "0", "--packets", "2000", "--chart", str(chart))
    assert status == 0
    lines = {line[:13].strip(): line[13:].strip() for line in printed.splitlines()}
    assert lines["second leg"] == "TCP, round-trip time 60 ms, loss 0 %"
    assert lines["lost"] == "0 % of 2000 messages on a leg over UDP"
    assert {"key frame", "other frame"} <= lines.keys()
    assert lines["key frame"].endswith(", 0 % dropped")
    assert chart.read_text(encoding="utf-8").startswith("<?xml")


def test_csv_has_a_row_for_all_messages_and_for_each_kind(run):
    options = ["--bitrate", "1Mbit/s", "--key-ratio", "8", "--rtt", "20ms", "--loss", "0", "--second-rtt", "60ms"]
    asked = ["--second-loss", "0", "--packets", "2000", "--quantile", "90%"]
    status, printed, _ = run("relay", *options, *asked, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert status == 0
    assert [row["kind"] for row in rows] == ["all", "other frame", "key frame"]
    assert int(rows[0]["offered"]) == 2000 == sum(int(row["offered"]) for row in rows[1:])
    # Without loss, the delay is half of both round-trip times.
    assert [float(row["mean"]) for row in rows] == pytest.approx([0.04] * 3)
    assert {row["second_rtt"] for row in rows} == {"0.06"}
    assert rows[0]["source"].startswith("kind=video; bitrate=1000000.0; ")
    # Of 33 key frames, three are expected beyond the 90th percentile.
    assert (rows[2]["target_quantile"], rows[2]["p50"] == "") == ("", False)
    _, printed, _ = run("relay", *options, *asked)
    assert re.search(r"^key frame +90 %: too few messages, 0 % dropped$", printed, flags=re.M)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--second-loss", "120%"], "--second-loss"),
        (["--second", "udp", "--buffer", "1kB"], "--buffer: must be left out with UDP on the second leg"),
        (["--second", "udp", "--congestion-control", "reno"], "--congestion-control: does not go with UDP on both"),
        (["--packets", "5"], "--packets: must be a whole number between 1000 and 1000000, got 5"),
        (["--first", "sctp"], "--first"),
        (["--stack", "newreno_2008"], "must be one of Stack.linux(...), or Udp()"),
    ],
)
def test_wrong_options_get_one_line_and_status_2(run, options, message):
    status, printed, errors = run(*VOIP, *options)
    assert (status, printed) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1
