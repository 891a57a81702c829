"""Requests and responses: against arithmetic, a flow of the same messages, the guest's echo; `tcpdelay exchange`."""

import csv
import io
import json
import math
import re

import numpy as np
import pytest

import tcpdelay as td

ECHO = td.Path(rtt=0.010, loss=0.01, ack_loss=0.01)


def test_without_loss_an_exchange_takes_the_round_trip():
    found = td.simulate_exchanges(800, 2000, td.Path(rtt=0.040, loss=0.0, one_way_delay=0.030), exchanges=1000)
    assert found.quantile([0.0, 1.0]) == pytest.approx([0.040, 0.040], abs=1e-9)
    assert (found.request.mean, found.response.mean) == pytest.approx((0.030, 0.010), abs=1e-9)


def test_a_message_larger_than_the_window_takes_round_trips_more():
    # Ten segments leave at once, and slow start doubles them: 10, 20 and 40 segments in three rounds (RFC 6928).
    # With an idle pause the window begins anew each time (RFC 2861).
    found = td.simulate_exchanges(100, 60 * 1448, td.Path(rtt=0.100, loss=0.0), think_time=30.0, exchanges=1000)
    assert found.quantile(0.5) == pytest.approx(0.300, abs=1e-3)


# A third segment would wait a round trip where a loss has reduced the window to two.
@pytest.mark.parametrize("writes", [1, 2])
def test_a_late_exchange_is_one_with_a_loss(writes):
    found = td.simulate_exchanges(900, 900, ECHO, writes=writes, exchanges=50_000, seed=3)
    # Some losses hit what is sent once more in vain; hardly any other reason makes an exchange late.
    lost = 1 - (1 - ECHO.loss) ** (2 * writes)
    error = 4 * math.sqrt(lost / found.exchanges)
    assert found.late_fraction(0.011) == pytest.approx(lost, abs=error + 0.1 * lost)
    assert np.all(found.values >= 0.010 - 1e-9)
    assert found.mean == pytest.approx(found.request.mean + found.response.mean, rel=1e-9)


def test_the_quantiles_are_those_of_the_guest():
    """`validation/results/echo.md`: p99 of four runs of 4000 messages over Linux 6.1 at 250 Hz."""
    one, two = (td.simulate_exchanges(800, 800, ECHO, td.Stack.linux(hz=250), writes=writes) for writes in (1, 2))
    assert one.quantile(0.99) == pytest.approx(0.2245, rel=0.02)
    assert two.quantile(0.99) == pytest.approx(0.0365, rel=0.05)


def test_a_request_waits_as_long_as_a_packet_of_a_sparse_flow():
    path = td.Path(rtt=0.050, loss=0.02)
    found = td.simulate_exchanges(200, 200, path, think_time=1.0, exchanges=100_000, seed=1)
    flow = td.simulate(td.Flow(200, 1.05), path, packets=100_000, seed=2)
    for share in (0.95, 0.985, 0.99):
        assert found.request.quantile(share) == pytest.approx(flow.quantile(share), rel=0.02)
    assert found.response.worst == pytest.approx(0.025, abs=1e-6)


def test_the_work_of_the_server_is_a_part_of_the_exchange_and_a_pause_for_the_client():
    slow = td.simulate_exchanges(800, 800, ECHO, answer_time=0.050, exchanges=50_000, seed=1)
    slow_client = td.simulate_exchanges(800, 800, ECHO, think_time=0.050, exchanges=50_000, seed=1)
    assert slow.values.min() == pytest.approx(0.060, abs=1e-6)
    assert slow.mean == pytest.approx(0.050 + slow_client.mean, rel=1e-6)
    for name in ("quantile_interval", "mean_interval"):
        later = np.array(getattr(slow_client, name)) + 0.050
        assert getattr(slow, name) == pytest.approx(tuple(later), rel=1e-6)


def test_seeds_repeat_and_bbr_takes_several_connections():
    stack = td.Stack.linux(congestion_control="bbr")
    first, again, other = (
        td.simulate_exchanges(800, 800, ECHO, stack, think_time=0.5, exchanges=5000, seed=seed) for seed in (1, 1, 2)
    )
    assert first.mean == again.mean != other.mean
    assert first.exchanges == 5000


def test_the_time_is_limited():
    large = {"request_size": 1_000_000, "response_size": 10}
    with pytest.raises(ValueError, match=r"has only reached \d+ exchanges in the time"):
        td.simulate_exchanges(**large, path=td.Path(rtt=0.001, loss=0.3), max_seconds=0.01)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"request_size": 0}, "request_size must be a whole number of bytes from 1 to 10 000 000, got 0"),
        ({"response_size": 1.5}, "response_size must be a whole number of bytes from 1 to 10 000 000, got 1.5"),
        ({"stack": td.Stack.newreno_2008()}, "stack must be one of Stack.linux"),
        ({"answer_time": 61}, "answer_time must lie between 0 and 60 s, got 61"),
        ({"writes": 17}, "writes must be a whole number, 1 to 16, got 17"),
        ({"response_size": 1, "writes": 2}, "writes must be a whole number, 1 to 1, got 2"),
        ({"exchanges": 10}, "exchanges must be a whole number, 1000 to 10000000, got 10"),
        ({"quantile": 1}, "quantile must lie between 0 and 1, got 1"),
        ({"max_seconds": 0}, "max_seconds must lie between 0.01 and 1e+06 s, got 0"),
        ({"response_size": 9_000_000}, "rtt must span less than"),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    arguments = {"request_size": 800, "response_size": 800, "path": ECHO} | wrong
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        td.simulate_exchanges(**arguments)


# `tcpdelay exchange`: its text, its records, its chart, and its errors

COMMAND = ["exchange", "--rtt", "10ms", "--loss", "1%", "--request-size", "800B", "--response-size", "900B"]


def test_records_have_the_figures_of_the_simulation(run):
    options = ["--answer-time", "5ms", "--think-time", "1s", "--writes", "2", "--seed", "3", "--limit", "20ms"]
    status, printed, _ = run(*COMMAND, *options, "--exchanges", "5000", "--format", "json")
    record = json.loads(printed)
    path = td.Path(0.010, 0.01, ack_loss=0.01)
    expected = td.simulate_exchanges(
        800, 900, path, answer_time=0.005, think_time=1.0, writes=2, exchanges=5000, seed=3
    )
    assert status == 0
    assert (record["mean"], record["p99"]) == (expected.mean, expected.quantile(0.99))
    assert (record["mean_request"], record["late_fraction"]) == (expected.request.mean, expected.late_fraction(0.020))
    assert record["target_quantile_low"] is None
    _, printed, _ = run(*COMMAND, *options, "--exchanges", "5000", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(printed))
    assert row.keys() == record.keys()
    assert (float(row["p95"]), row["seed"]) == (record["p95"], "3")


def test_text_and_chart(run, tmp_path):
    chart = tmp_path / "times.svg"
    status, printed, _ = run(*COMMAND, "--ack-loss", "0", "--exchanges", "1000", "--chart", str(chart))
    assert status == 0
    assert printed.startswith(
        "800 bytes answered by 900, round-trip time 10 ms, loss 1 % of requests, 0 % of responses"
    )
    assert "at the server" not in printed
    _, slow, _ = run(*COMMAND, "--exchanges", "1000", "--answer-time", "50ms")
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
        (["--stack", "quic"], "no such option: --stack"),
        (["--congestion-control", "newreno"], "'newreno' is not one of 'cubic', 'reno', 'bbr', 'westwood'"),
        (["--packet-size", "100B"], "no such option: --packet-size"),
    ],
)
def test_bad_input_is_one_line(refused, options, message):
    assert message in refused(*COMMAND, *options)
