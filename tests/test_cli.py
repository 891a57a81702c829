import csv
import io
import json
import math
import os
import re
import threading
from dataclasses import fields
from pathlib import Path

import pytest

import tcpdelay as td
from tcpdelay.accuracy.errors import PUBLISHED_ERROR
from tcpdelay.capture.ping import read_ping
from tcpdelay.capture.ss import read_ss
from tcpdelay.cli.options import OPTIONS, ScenarioOptions
from tcpdelay.cli.scenario import read_scenario
from tcpdelay.scenario.scenario import APPLICATIONS
from tcpdelay.scenario.stack import DEFAULT_STACK, PROFILES, Linux, NewReno2008

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PATH = ["--rtt", "100ms", "--loss", "2%"]
VOIP = [*PATH, "--app", "voip"]


@pytest.fixture
def predicted(run):
    """Return the row that `tcpdelay predict --format json` prints, after no complaint but a warning."""

    def predicted(*arguments):
        status, printed, errors = run("predict", "--format", "json", *arguments)
        assert status == 0, errors
        return json.loads(printed)

    return predicted


def test_predict_prints_what_the_library_predicts(predicted):
    expected = td.predict_delay(rtt=0.100, loss=0.02, packet_size=174, interval=0.020)
    error = expected.expected_error_of(0.999)
    low, high = expected.late_fraction(0.15 * (1 + error.p90)), expected.late_fraction(0.15 * (1 - error.p90))
    row = predicted(*PATH, "--packet-size", "174", "--interval", "20ms", "--limit", "150ms", "--quantile", "99.9%")
    assert row == {
        "rtt": 0.1,
        "loss": 0.02,
        "packet_size": 174,
        "interval": 0.02,
        "write_jitter": 0.001,
        "bitrate": 69600.0,
        "limit": 0.15,
        "quantile": pytest.approx(0.999, rel=1e-15),
        "mean": expected.mean,
        "jitter": expected.std,
        "p50": expected.quantile(0.5),
        "p95": expected.quantile(0.95),
        "p99": expected.quantile(0.99),
        "target_quantile": expected.quantile(0.999),
        "late_fraction": expected.late_fraction(0.15),
        "late_fraction_low": low,
        "late_fraction_high": high,
        "sustainable": True,
        "settled": True,
        "carried_low": None,
        "carried_high": None,
        "carried_by_chain": None,
        "method": "chain",
        "simulated_because": None,
        "ended_by_clock": False,
        "expected_error_source": error.source,
        "expected_error_cases": error.cases,
        "expected_error_quantile": error.quantile,
        "expected_error_sampling": error.sampling,
        "expected_error_p95_median": error.median,
        "expected_error_p95_mean": error.mean,
        "expected_error_p95_p90": error.p90,
        "expected_error_mean_median": error.mean_delay.median,
        "expected_error_mean_mean": error.mean_delay.mean,
        "expected_error_mean_p90": error.mean_delay.p90,
        "ignored": {},
    }


def test_fields_that_the_model_ignored_are_printed_beside_the_answer(run, predicted):
    ignoring = [*VOIP, "--no-window-validation"]
    assert predicted(*ignoring)["ignored"] == {"window_validation": "on"}
    _, printed, _ = run("predict", *ignoring)
    assert re.search(r"^ignored +window validation \(the chain assumes on\)$", printed, re.MULTILINE)
    (row,) = csv.DictReader(io.StringIO(run("predict", *ignoring, "--format", "csv")[1]))
    assert row["ignored"] == "window_validation=on"
    _, printed, _ = run("solve", "loss", *ignoring)
    assert re.search(r"^ignored +window validation \(the chain assumes on\)$", printed, re.MULTILINE)
    assert json.loads(run("solve", "loss", *ignoring, "--format", "json")[1])["ignored"] == {"window_validation": "on"}
    assert "ignored" not in run("predict", *VOIP)[1]


def test_the_published_chain_says_how_far_off_it_was_in_captures(predicted):
    row = predicted(*VOIP, "--stack", "newreno_2008")
    assert {name: value for name, value in row.items() if name.startswith("expected_error_")} == {
        "expected_error_source": PUBLISHED_ERROR.source,
        "expected_error_cases": 432,
        "expected_error_quantile": 0.95,
        "expected_error_sampling": 0.0,
        "expected_error_p95_median": PUBLISHED_ERROR.median,
        "expected_error_p95_mean": PUBLISHED_ERROR.mean,
        "expected_error_p95_p90": PUBLISHED_ERROR.p90,
        "expected_error_mean_median": PUBLISHED_ERROR.mean_delay.median,
        "expected_error_mean_mean": PUBLISHED_ERROR.mean_delay.mean,
        "expected_error_mean_p90": PUBLISHED_ERROR.mean_delay.p90,
    }


def test_csv_holds_the_same_row_as_json(run, predicted):
    _, printed, _ = run("predict", *VOIP, "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(printed))
    assert {key: "" if value in ({}, None) else str(value) for key, value in predicted(*VOIP).items()} == row


def test_text_shows_rounded_numbers_and_the_wanted_quantile(run, predicted):
    row = predicted(*VOIP, "--quantile", "99.9%")
    status, printed, errors = run("predict", *VOIP, "--quantile", "99.9%")
    assert (status, errors) == (0, "")
    lines = dict(re.split(r" {2,}", line) for line in printed.splitlines()[1:])
    assert float(lines["mean"].removesuffix(" ms")) == pytest.approx(1000 * row["mean"], rel=5e-3)
    assert lines["95 % come within"] == f"{1000 * row['p95']:.0f} ms"
    assert lines["99.9 % come within"] == f"{1000 * row['target_quantile']:.0f} ms"
    shares = [float(share) for share in re.findall(r"([\d.]+) %", lines["later than 200 ms"])]
    names = ("late_fraction", "late_fraction_low", "late_fraction_high")
    assert shares == pytest.approx([100 * row[name] for name in names], rel=5e-3)
    assert lines["sustainable"] == "yes"


def test_a_load_that_tcp_cannot_carry_has_no_number(run, predicted):
    overload = ["--rtt", "300ms", "--loss", "10%", "--bitrate", "1Mbit/s"]
    row = predicted(*overload)
    assert (row["mean"], row["p50"], row["late_fraction"], row["sustainable"]) == (None, None, 1.0, False)
    _, printed, _ = run("predict", *overload, "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(printed))
    assert (float(row["p99"]), row["sustainable"]) == (math.inf, "False")
    _, printed, _ = run("predict", *overload)
    assert re.search(r"^mean +never$", printed, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "packet_size", "interval"),
    [
        ("--packet-size 160 --interval 20ms", 160, 0.020),
        ("--packet-size 160 --bitrate 64kbit/s", 160, 0.020),
        ("--interval 20ms --bitrate 64kbit/s", 160, 0.020),
        ("--interval 33ms --bitrate 24kbit/s", 99, 0.033),
        ("--bitrate 1Mbit/s", 1448, 0.011584),
        ("--bitrate 1Mbit/s --mss 1000", 1000, 0.008),
        ("--app voip", 174, 0.020),
        ("--app voip --interval 30ms", 174, 0.030),
        ("--app voip --packet-size 94", 94, 0.020),
        ("--app voip --packet-size 94 --interval 30ms", 94, 0.030),
        ("--app voip --bitrate 64kbit/s", 160, 0.020),
        ("--app voip --bitrate 1158.4kbit/s", 1448, 0.010),
        ("--app voip --packet-size 160 --bitrate 128kbit/s", 160, 0.010),
        ("--app voip --interval 10ms --bitrate 64kbit/s", 80, 0.010),
    ],
)
def test_any_two_of_size_interval_and_bitrate_make_a_flow(predicted, options, packet_size, interval):
    row = predicted("--rtt", "40ms", "--loss", "1%", *options.split())
    assert (row["packet_size"], row["interval"]) == (packet_size, pytest.approx(interval))


@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_brings_its_flow_and_its_target(predicted, name):
    preset = APPLICATIONS[name]
    few = () if preset.constant_rate else ("--packets", "5000")
    row = predicted(*PATH, "--app", name, *few)
    sent = (preset.source.mean_size, pytest.approx(1 / preset.source.message_rate))
    assert (row["packet_size"], row["interval"], row["bitrate"]) == (*sent, pytest.approx(preset.source.mean_bitrate))
    assert ("source" in row) == (not preset.constant_rate)
    assert (row["limit"], row["quantile"]) == (preset.target.limit, preset.target.quantile)
    row = predicted(*PATH, "--app", name, "--limit", "1s", *few)
    assert (row["limit"], row["quantile"]) == (1.0, preset.target.quantile)


def test_every_argument_of_the_library_is_an_option():
    arguments = {field.name for made in (td.Flow, td.Path, NewReno2008, Linux, td.Target) for field in fields(made)}
    assert arguments <= set(OPTIONS)
    scenario = read_scenario(ScenarioOptions(rtt=0.1, loss=0.02, bitrate=1e6))
    assert (scenario.stack, scenario.path) == (DEFAULT_STACK, td.Path(rtt=0.1, loss=0.02))
    assert scenario.target == td.Target(limit=0.2, quantile=0.95)
    given = read_scenario(
        ScenarioOptions(
            rtt=0.1,
            loss=0.02,
            loss_pattern="correlated",
            bottleneck="bytes",
            one_way_delay=0.02,
            ack_loss=0.03,
            jitter=0.004,
            packet_size=100,
            interval=0.01,
            limit=0.3,
            quantile=0.9,
            stack="newreno_2008",
            variant="sack",
            limited_transmit=True,
            window_validation=True,
            initial_timeout=1.0,
            mss=1000,
            backlog_bound="published",
        )
    )
    assert given.flow == td.Flow(100, 0.01)
    assert given.path == td.Path(0.1, 0.02, "correlated", "bytes", 0.02, ack_loss=0.03, jitter=0.004)
    assert given.stack == NewReno2008("sack", True, True, 1.0, 1000, "published")
    assert given.target == td.Target(0.3, 0.9)
    linux = {"congestion_control": "reno", "delayed_ack": True, "window_validation": False, "hz": 1000, "rto_min": 0.1}
    given = read_scenario(
        ScenarioOptions(rtt=0.1, loss=0.02, loss_burst=2.0, bitrate=1e6, stack="linux", mss=536, **linux)
    )
    assert given.path == td.Path(0.1, 0.02, loss_burst=2.0)
    assert given.stack == td.Stack.linux(**linux, mss=536)


@pytest.mark.parametrize("name", PROFILES)
def test_each_stack_has_the_settings_of_the_library_by_default(name):
    assert read_scenario(ScenarioOptions(rtt=0.1, loss=0.02, bitrate=1e6, stack=name)).stack == PROFILES[name]


@pytest.mark.parametrize(
    ("stack", "setting", "other"),
    [
        ("linux", ["--variant", "sack"], "newreno_2008"),
        ("linux", ["--no-limited-transmit"], "newreno_2008"),
        ("newreno_2008", ["--hz", "1000"], "linux"),
        ("newreno_2008", ["--congestion-control", "reno"], "linux or --stack quic"),
        ("linux", ["--delivery", "datagram"], "quic"),
        ("quic", ["--rto-min", "100ms"], "linux"),
        ("quic", ["--mss", "1200B"], "linux or --stack newreno_2008"),
    ],
)
def test_settings_of_the_other_stack_are_refused(refused, stack, setting, other):
    errors = refused("predict", *VOIP, "--stack", stack, *setting)
    option = setting[0].replace("--no-", "--")
    assert errors == f"tcpdelay predict: {option}: goes with --stack {other}, not with {stack}\n"


def test_a_simulation_says_so_and_how_far_off_it_may_be(run, predicted, monkeypatch):
    monkeypatch.setattr("tcpdelay.sim.simulation.MOST_PACKETS", 20_000)
    linux = [*VOIP, "--stack", "linux"]
    row = predicted(*linux, "--method", "simulation")
    assert row["method"] == "simulation"
    assert 0 < row["expected_error_p95_median"] < row["expected_error_p95_p90"] < 0.2
    assert "simulated packets" in row["expected_error_source"]
    _, printed, _ = run("predict", *linux, "--reordering", "1%")
    lines = dict(re.split(r" {2,}", line) for line in printed.splitlines()[1:])
    assert lines["method"] == "simulation: the chain does not model this scenario (reordering)"
    assert lines["expected error"].startswith("p95 ")
    status, _, errors = run("predict", *VOIP, "--stack", "newreno_2008", "--method", "simulation")
    assert status == 2
    assert errors.startswith("tcpdelay predict: --stack: must be Stack.linux() or Stack.quic() in a simulation")


def test_a_simulation_that_ends_before_it_is_precise_says_how_to_get_more(run, monkeypatch):
    reordered = ["predict", *VOIP, "--reordering", "1%"]
    monkeypatch.setattr("tcpdelay.sim.simulation.MOST_PACKETS", 5000)
    status, _, errors = run(*reordered)
    assert status == 0
    assert re.fullmatch(
        r"warning: after 5000 packets the 95th percentile is known to [\d.]+ % only, not to 2 %: .+ ms to .+ ms; "
        r"--packets 25000 would tell more\n",
        errors,
    )
    status, printed, errors = run(*reordered, "--packets", "3000")
    assert (status, errors) == (0, "")
    assert "the statistical error of 3000 simulated packets" in printed


NEAR_CAPACITY = ["--rtt", "80ms", "--loss", "0.5%", "--bitrate", "2.5Mbit/s", "--method", "simulation"]


def test_a_simulation_near_capacity_prints_no_delay_that_depends_on_its_length(run, predicted):
    short = [*NEAR_CAPACITY, "--packets", "200000"]
    row = predicted(*short)
    assert (row["p50"], row["p95"], row["mean"], row["late_fraction"], row["sustainable"]) == (None,) * 5
    assert not row["settled"]
    assert row["carried_low"] < row["carried_by_chain"] < 1 < row["carried_high"]
    status, printed, _ = run("predict", *short)
    lines = dict(re.split(r" {2,}", line) for line in printed.splitlines()[1:])
    assert status == 0
    assert set(lines) == {"delay", "sustainable", "method"}
    assert lines["delay"].startswith("not settled: after 200000 packets")
    assert re.fullmatch(
        r"not settled: TCP carries between \S+ % and 1\S+ % of this rate; "
        r"the chain expects 99 %, but may be 12.2 % wrong",
        lines["sustainable"],
    )
    longer = predicted(*NEAR_CAPACITY, "--packets", "2650000")
    assert (longer["settled"], longer["p95"]) == (False, None)
    assert row["carried_low"] < longer["carried_low"] < 1 < longer["carried_high"] < row["carried_high"]


@pytest.mark.parametrize(
    ("share", "told"),
    [
        (0.5, "the chain does not decide: its 50 % lies outside"),
        (1.5, "the chain does not decide: its 150 % lies outside"),
        (0.97, "the chain expects 97 %, but may be 12.2 % wrong"),
    ],
)
def test_the_chain_decides_neither_outside_the_interval_nor_near_its_capacity(run, predicted, monkeypatch, share, told):
    monkeypatch.setattr("tcpdelay.models.predict.capacity", lambda scenario: share * scenario.flow.packet_rate)
    short = [*NEAR_CAPACITY, "--packets", "200000"]
    printed = run("predict", *short)[1]
    assert f"; {told}" in printed
    row = predicted(*short)
    assert (row["settled"], row["sustainable"], row["carried_by_chain"]) == (False, None, pytest.approx(share))


def test_a_simulation_that_has_not_settled_has_no_chart(run, tmp_path):
    chart = tmp_path / "delays.svg"
    status, printed, errors = run("predict", *NEAR_CAPACITY, "--packets", "200000", "--chart", chart)
    assert (status, printed, chart.exists()) == (2, "", False)
    assert errors.startswith("tcpdelay predict: not settled after 200000 packets: TCP carries between")


def test_packets_are_for_simulations(run):
    status, printed, errors = run("predict", *VOIP, "--packets", "3000")
    assert (status, printed) == (2, "")
    assert errors.startswith(
        "tcpdelay predict: --packets: must be left out unless something is simulated (method 'chain'), got 3000"
    )


def test_an_endless_simulation_has_no_known_error(run, predicted):
    overload = ["--stack", "linux", "--rtt", "300ms", "--loss", "10%", "--bitrate", "1Mbit/s", "--method", "simulation"]
    row = predicted(*overload)
    assert (row["sustainable"], row["expected_error_p95_median"], row["expected_error_source"]) == (False, None, None)
    assert re.search("^expected error +not known$", run("predict", *overload)[1], re.MULTILINE)


def test_flags_reach_the_model(predicted):
    published = [*VOIP, "--stack", "newreno_2008"]
    plain, changed = (predicted(*published, flag)["p95"] for flag in ("--no-limited-transmit", "--limited-transmit"))
    assert changed < plain
    assert predicted(*VOIP, "--one-way-delay", "0ms", "--write-jitter", "0ms")["p50"] == 0


def test_an_ss_recording_brings_the_timeout_of_its_connection(predicted, tmp_path):
    # A call over Wi-Fi with a write every 5 s, for which ss shows rto:613, stalled for 400 to 1400 ms.
    counted = "cubic {} rtt:5.5/120 mss:1448 data_segs_out:3000 retrans:0/140"
    recording = tmp_path / "ss.txt"
    flow = "--ss", recording, "--packet-size", 200, "--interval", "5s"
    for timeout, beyond in (("rto:613", 0.6075), ("rto:206", 0.2)):
        recording.write_text(f"ESTAB 0 0 192.0.2.80:51912 192.0.2.7:5001\n\t {counted.format(timeout)} minrtt:3\n")
        scenario = read_scenario(ScenarioOptions(ss=str(recording), packet_size=200, interval=5.0))
        assert scenario.stack.rto_min == pytest.approx(beyond)
        # A lost message arrives half a round-trip time after its timeout, as no later message reports the loss.
        assert predicted(*flow)["p99"] == pytest.approx(beyond + 1.5 * 0.0055, abs=0.05)
        assert read_scenario(ScenarioOptions(ss=str(recording), bitrate=1e5, rto_min=0.3)).stack.rto_min == 0.3


def test_a_ping_recording_replaces_rtt_and_loss(predicted):
    measured = read_ping(EXAMPLES / "ping.txt")
    row = predicted("--ping", EXAMPLES / "ping.txt", "--app", "voip")
    assert (row["rtt"], row["loss"]) == (measured.rtt, measured.loss)
    row = predicted("--ping", EXAMPLES / "ping.txt", "--app", "voip", "--rtt", "50ms")
    assert (row["rtt"], row["loss"]) == (0.05, measured.loss)
    row = predicted("--ping", EXAMPLES / "ping.txt", "--app", "voip", "--loss", "1%")
    assert (row["rtt"], row["loss"]) == (measured.rtt, 0.01)


def test_an_ss_recording_brings_its_segment_size_too(tmp_path):
    recording = tmp_path / "ss.txt"
    recording.write_text((EXAMPLES / "ss.txt").read_text().replace(" mss:1448 ", " mss:1200 "))
    connection = read_ss(recording)
    scenario = read_scenario(ScenarioOptions(ss=str(recording), bitrate=1e5))
    assert (scenario.path.rtt, scenario.path.loss) == (connection.rtt, connection.estimate().loss)
    assert scenario.flow.packet_size == scenario.stack.mss == 1200
    assert read_scenario(ScenarioOptions(ss=str(recording), bitrate=1e5, mss=536)).stack.mss == 536
    several = ScenarioOptions(ss=str(EXAMPLES / "ss-several.txt"), connection="10.0.3.2:5003", bitrate=1e5)
    assert read_scenario(several).path.rtt == read_ss(EXAMPLES / "ss-several.txt", "10.0.3.2:5003").rtt


def test_the_report_carries_the_interval_of_a_measurement_unless_it_was_overridden(no_search, run):
    def reported(*options):
        status, printed, errors = run("report", "--ping", EXAMPLES / "ping-clean.txt", "--app", "voip", *options)
        assert (status, errors) == (0, "")
        return json.loads(printed)

    measured = read_ping(EXAMPLES / "ping-clean.txt")
    found = reported("--format", "json")
    assert found["estimate"]["lost"] == 0
    assert found["path"]["loss"] == measured.loss_for_prediction > 0
    assert [end["loss"] for end in found["alternatives"]] == list(measured.loss_interval)
    assert [end["rtt"] for end in found["alternatives"]] == list(measured.rtt_interval)
    found = reported("--format", "json", "--rtt", "30ms")
    assert [end["rtt"] for end in found["alternatives"]] == [0.03, 0.03]
    assert [end["loss"] for end in found["alternatives"]] == list(measured.loss_interval)
    found = reported("--format", "json", "--loss", "1%")
    assert (found["path"]["loss"], found["estimate"], found["alternatives"]) == (0.01, None, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predic"], "tcpdelay: no such command 'predic'. Did you mean 'predict'?"),
        (["--nonsense"], "tcpdelay: no such option: --nonsense"),
        (
            ["report", "--los", "2%"],
            "tcpdelay report: no such option: --los (Possible options: --bad-loss, --loss, --ss)",
        ),
        (["report", "--rtt"], "tcpdelay report: option '--rtt' requires an argument"),
        (["predict", *VOIP, "more"], "tcpdelay predict: got unexpected extra argument(s) (more)"),
        (["report"], "tcpdelay report: --rtt and --loss are missing; write --rtt 100ms --loss 2%, or --path lte, or"),
        (["predict", "--rtt", "1s"], "tcpdelay predict: --loss is missing; write --rtt 100ms --loss 2%, or --path"),
        (["predict", *PATH], "tcpdelay predict: the flow is missing; write --app voip, two of --packet-size, --int"),
        (
            ["predict", *PATH, "--packet-size", "9"],
            "tcpdelay predict: --packet-size needs --interval, --bitrate or --app beside it",
        ),
        (
            ["predict", *PATH, "--interval", "9ms"],
            "tcpdelay predict: --interval needs --packet-size, --bitrate or --app beside it",
        ),
        (
            ["predict", *VOIP, "--packet-size", "9", "--interval", "9ms", "--bitrate", "8kbit/s"],
            "tcpdelay predict: --packet-size, --interval and --bitrate: give two of them; the third follows from these",
        ),
        (
            ["report", *VOIP, "--loss", "2"],
            "tcpdelay report: --loss: 2 is neither a fraction below 1 nor a percentage;",
        ),
        (["report", *VOIP, "--loss", "120%"], "tcpdelay report: --loss: '120%' is not below 100%; write 2% or 0.02"),
        (["report", *VOIP, "--loss", "-1%"], "tcpdelay report: --loss: '-1%' is negative, but a fraction cannot be;"),
        (["report", *VOIP, "--rtt", "100"], "tcpdelay report: --rtt: '100' has no unit; write 100ms or 100s"),
        (["report", *VOIP, "--rtt", "2min"], "tcpdelay report: --rtt: must lie between 1e-06 and 60 s, got 120"),
        (["report", *VOIP, "--rtt", "nan"], "tcpdelay report: --rtt: 'nan' is no time; write 100ms or 0.1s"),
        (["report", *VOIP, "--rtt", ""], "tcpdelay report: --rtt: empty, but a time is needed; write 100ms or 0.1s"),
        (
            ["report", *VOIP, "--one-way-delay", "200ms"],
            "tcpdelay report: --one-way-delay: must lie between 0 and 0.1 s (the round-trip time), got 0.2",
        ),
        (
            ["report", *VOIP, "--packet-size", "11MB"],
            "tcpdelay report: --packet-size: must lie between 1 and 1e+07 bytes, got 11000000",
        ),
        (["report", *VOIP, "--mss", "50B"], "tcpdelay report: --mss: must lie between 88 and 65495 bytes, got 50"),
        (
            ["report", *VOIP, "--stack", "newreno_2008", "--initial-timeout", "3min"],
            "tcpdelay report: --initial-timeout: must lie between 1e-06 and 120 s, got 180",
        ),
        (
            ["report", *PATH, "--bitrate", "1bit/s"],
            "tcpdelay report: --bitrate: must lie between 193.067 and 1.1584e+11 bit/s for packets of 1448 bytes, "
            "got 1",
        ),
        (
            ["report", *VOIP, "--bitrate", "8bit/s"],
            "tcpdelay report: --bitrate: 8 bit/s at an interval of 0.02 s make packets of 0.02 bytes, which must be 1",
        ),
        (
            ["report", *PATH, "--interval", "1min", "--bitrate", "9e300Gbit/s"],
            "tcpdelay report: --bitrate: '9e300Gbit/s' is too large for a rate",
        ),
        (
            ["predict", *VOIP, "--quantile", "101"],
            "tcpdelay predict: --quantile: 101 is too large: write a ",
        ),
        (
            ["predict", *VOIP, "--jitter", "30ms", "--method", "chain"],
            "tcpdelay predict: --jitter: must be at most 0.02 s, the interval, in the chain, got 0.03; "
            "tcpdelay predict --stack linux --method simulation models it",
        ),
        (["report", *VOIP, "--quantile", "100%"], "tcpdelay report: --quantile: '100%' is not below 100%;"),
        (["report", *VOIP, "--quantile", "0%"], "tcpdelay report: --quantile: '0%' is 0, but the fraction must be abo"),
        (["report", *VOIP, "--limit", "0ms"], "tcpdelay report: --limit: '0ms' is 0, but the time must be above 0"),
        (
            ["report", *PATH, "--app", "voi[p]"],
            "tcpdelay report: --app: must be one of voip, opus, voice-agent, voice-agent-reply, live-video, "
            "remote-control, remote-desktop, game, got 'voi[p]'",
        ),
        (
            ["report", *VOIP, "--variant", "[bold]reno"],
            "tcpdelay report: --variant: '[bold]reno' is not one of 'newreno', 'sack', 'reno'",
        ),
        (
            ["report", *VOIP, "--format", "xml"],
            "tcpdelay report: --format: 'xml' is not one of 'text', 'markdown', 'html', 'json'",
        ),
        (
            ["predict", *VOIP, "--format", "xml"],
            "tcpdelay predict: --format: 'xml' is not one of 'text', 'json', 'csv'",
        ),
        (["predict", *VOIP, "a\nb\x1b[31m"], r"tcpdelay predict: got unexpected extra argument(s) (a\x0ab\x1b[31m)"),
        (["report", *VOIP, "--limited-transmit=1"], "tcpdelay report: option '--limited-transmit' does not take a val"),
        (
            ["report", *VOIP, "--connection", "a"],
            "tcpdelay report: --connection: chooses a connection of --ss, but --ss",
        ),
        (
            ["report", "--ping", "a", "--ss", "b", "--app", "voip"],
            "tcpdelay report: --ping and --ss: give one measurement, not both",
        ),
        (["report", *VOIP, "--ping", ""], "tcpdelay report: --ping: the name of the file is empty"),
        (["report", *VOIP, "--source", ""], "tcpdelay report: --source: the name of the file is empty"),
        (["report", *VOIP, "--output="], "tcpdelay report: --output: the name of the file is empty"),
        (["batch", "", "--app", "voip"], "tcpdelay batch: TABLE: the name of the file is empty"),
        (["analyze", "a.pcap", ""], "tcpdelay analyze: CAPTURE: the name of the file is empty"),
        (["testbed", "run", ""], "tcpdelay testbed run: SPEC.toml: the name of the file is empty"),
        (
            ["predict", *VOIP, "--packets", "\u0663"],
            "tcpdelay predict: --packets: must be a whole number, got '\u0663'",
        ),
        (["predict", *VOIP, "--max-seconds", "1,5"], "tcpdelay predict: --max-seconds: must be a number, got '1,5'"),
        (
            ["report", "--ss", EXAMPLES / "ss-several.txt", "--app", "voip"],
            f"tcpdelay report: --ss: {EXAMPLES / 'ss-several.txt'}: 4 connections, choose one by its address: 10.0.3.1",
        ),
        (
            ["predict", *PATH, "--packet-size", "1B", "--interval", "1us"],
            "tcpdelay predict: the chain needs about ",
        ),
        (
            ["predict", *VOIP, "--chart", "delays[1].gif"],
            "tcpdelay predict: --chart: 'delays[1].gif' does not end in one of .svg, .png, .pdf",
        ),
        (
            ["report", *VOIP, "-o", "report[1].docx"],
            "tcpdelay report: --output: 'report[1].docx' does not end in one of .txt, .md, .html, .json; choose with",
        ),
        (["report", *VOIP, "-o", "."], "tcpdelay report: --output: '.' is a directory; name a file"),
    ],
)
def test_a_mistake_is_answered_in_one_line_that_names_it(run, arguments, message):
    status, printed, errors = run(*arguments)
    assert (status, printed) == (2, "")
    (line,) = (line for line in errors.splitlines() if not line.startswith("warning: "))
    assert line.startswith(message)
    assert "in seconds" not in line


@pytest.mark.parametrize("option", ["--ping", "--ss"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "cannot be read: No such file or directory"),
        ("directory", "cannot be read: Is a directory"),
        ("empty", "is empty; the text that "),
        ("truncated", ""),
        ("binary", "holds binary data, not the text that "),
        ("of something else", "no "),
    ],
)
def test_a_recording_that_cannot_be_used_is_named(run, tmp_path, option, kind, message):
    recording = tmp_path / "recording.txt"
    complete = (EXAMPLES / f"{option.removeprefix('--')}.txt").read_bytes()
    content = {
        "empty": b"",
        "truncated": complete[: complete.index(b" retrans:") if option == "--ss" else -30],
        "binary": b"\0" * 100,
        "of something else": b"Hello, world.\n",
    }
    if kind == "directory":
        recording.mkdir()
    elif kind in content:
        recording.write_bytes(content[kind])
    status, printed, errors = run("report", "--app", "voip", option, recording)
    assert (status, printed, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"tcpdelay report: {option}: {recording}: {message}")


def test_a_warning_is_one_line_without_a_place_in_the_source(run):
    status, printed, errors = run("predict", *PATH, "--app", "remote-control", "--stack", "newreno_2008")
    assert status == 0
    assert "sustainable" in printed
    assert errors == "warning: packet size 64 bytes lies outside the validated range of 174 to 1448 bytes\n"


@pytest.mark.parametrize(
    ("name", "start"),
    [("r.md", "# "), ("r.html", "<!DOCTYPE html>"), ("r.json", "{"), ("r.txt", ""), ("[r].MD", "# ")],
)
def test_the_suffix_chooses_the_format(no_search, run, tmp_path, name, start):
    assert run("report", *VOIP, "-o", name) == (0, "", "")
    text = (tmp_path / name).read_text()
    assert text.lower().startswith(start.lower())
    assert text.endswith("\n")
    assert "\x1b" not in text
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_format_goes_before_the_suffix_and_the_terminal_gets_the_same(no_search, run, tmp_path):
    assert run("report", *VOIP, "-o", "r.html", "--format", "json") == (0, "", "")
    in_file = (tmp_path / "r.html").read_text()
    assert run("report", *VOIP, "--format", "json") == (0, in_file, "")
    assert json.loads(in_file)["verdict"] == "works"
    assert run("report", *VOIP, "--format", "markdown")[1].startswith("# ")


def test_the_text_report_shows_the_numbers(no_search, run):
    status, printed, errors = run("report", *VOIP)
    assert (status, errors) == (0, "")
    assert "140 ms" in printed


@pytest.mark.parametrize("command", [["predict", *VOIP, "--chart"], ["report", *VOIP, "-o"]])
def test_an_output_that_cannot_be_written_is_refused(run, tmp_path, command):
    suffix = ".svg" if command[0] == "predict" else ".md"
    option = "--chart" if command[0] == "predict" else "--output"
    (tmp_path / "file").touch()
    (tmp_path / f"directory{suffix}").mkdir()
    for name, reason in [
        (f"missing/x{suffix}", "cannot be written: the folder 'missing' does not exist"),
        (f"file/x{suffix}", "cannot be written: 'file' is no folder"),
        (f"directory{suffix}", "cannot be written: Is a directory"),
        ("x" * 300 + suffix, "cannot be written: File name too long"),
    ]:
        status, printed, errors = run(*command, name)
        assert (status, printed, errors.count("\n")) == (2, "", 1)
        assert errors.startswith(f"tcpdelay {command[0]}: {option}: {name!r} {reason}")
    assert {path.name for path in tmp_path.iterdir()} == {"file", f"directory{suffix}"}


def test_a_write_protected_file_is_not_replaced(no_search, run, tmp_path, monkeypatch):
    kept = tmp_path / "r.json"
    kept.write_text("kept")
    monkeypatch.setattr(Path, "replace", lambda *_: pytest.fail("replaced"))

    def refuse(path, mode="r", *_, **__):
        assert (path, mode) == (Path("r.json"), "ab")
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    status, _, errors = run("report", *VOIP, "-o", "r.json")
    assert (status, errors) == (
        2,
        "tcpdelay report: --output: 'r.json' cannot be written: Permission denied\n",
    )
    monkeypatch.undo()
    assert kept.read_text() == "kept"


def test_a_file_is_replaced_at_once_or_not_at_all(no_search, run, tmp_path, monkeypatch):
    (tmp_path / "r.json").write_text("old")
    (tmp_path / "link.json").symlink_to("r.json")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    status, _, errors = run("report", *VOIP, "-o", "link.json")
    assert (status, errors.split(": ")[-1]) == (2, "No space left on device\n")
    assert (tmp_path / "r.json").read_text() == "old"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run("report", *VOIP, "-o", "link.json")[0] == 0
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "works"
    assert (tmp_path / "link.json").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_pipe_is_written_to_and_stays_a_pipe(no_search, run, tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()), daemon=True)
    reader.start()
    assert run("report", *VOIP, "-o", "pipe.json")[0] == 0
    reader.join(timeout=10)
    assert json.loads(received[0])["verdict"] == "works"
    assert pipe.is_fifo()


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".PDF", b"%PDF")])
def test_a_chart_is_drawn(run, tmp_path, suffix, magic):
    status, printed, errors = run("predict", *VOIP, "--chart", f"delays{suffix}")
    assert (status, errors) == (0, "")
    assert "sustainable" in printed
    assert (tmp_path / f"delays{suffix}").read_bytes().startswith(magic)


def test_a_chart_is_drawn_even_where_tcp_cannot_carry_the_load(run, tmp_path):
    overload = ["--rtt", "300ms", "--loss", "10%", "--bitrate", "1Mbit/s"]
    assert run("predict", *overload, "--chart", "delays.svg")[0] == 0
    assert b"</svg>" in (tmp_path / "delays.svg").read_bytes()


def test_an_interrupt_is_quiet(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tcpdelay.cli.predict.predict_with_warning", interrupted)
    assert run("predict", *VOIP) == (130, "", "")
    monkeypatch.setattr("tcpdelay.cli.program.program", interrupted)
    assert run("--help") == (130, "", "")
