"""`tcpdelay compare` as its user meets it."""

import csv
import io
import json
from pathlib import Path

import pytest

LTE = Path(__file__).parents[1] / "examples" / "link-traces" / "lte.up"
SHORT = ["compare", "--rtt", "100ms", "--loss", "2%", "--app", "voip", "--duration", "60s"]


def test_the_table_has_one_row_per_contender_and_fits_a_terminal_of_usual_width(run):
    status, printed, errors = run(*SHORT)
    assert (status, errors) == (0, "")
    assert printed.startswith("174 bytes every 20 ms (69.6 kbit/s), round-trip time 100 ms, loss 2 %")
    names = [row["name"] for row in json.loads(run(*SHORT, "--format", "json")[1])["contenders"]]
    lines = [line.split()[0] for line in printed.splitlines() if line.strip()]
    # The ranking, and the meaning of each name.
    found = [line for line in lines if line in names]
    assert (found[: len(names)], sorted(found[len(names) :])) == (names, sorted(names))
    assert "Plain TCP (tcp) meets it" in printed
    assert max(map(len, printed.splitlines())) <= 140


def test_csv_and_json_hold_the_same_figures(run):
    rows = list(csv.DictReader(io.StringIO(run(*SHORT, "--format", "csv")[1])))
    records = json.loads(run(*SHORT, "--format", "json")[1])["contenders"]
    for row, record in zip(rows, records, strict=True):
        assert row["name"] == record["name"]
        assert float(row["p95"]) == record["p95"]


def test_parity_adds_a_contender(run):
    status, printed, errors = run(*SHORT, "--parity", "1", "--format", "csv")
    assert (status, errors) == (0, "")
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(printed))}
    assert float(rows["udp-parity-1"]["lost_fraction"]) < 0.5 * float(rows["udp"]["lost_fraction"])
    assert "and 1 parity datagram for each packet" in rows["udp-parity-1"]["title"]


@pytest.mark.parametrize(
    ("given", "source"),
    [
        (["--bitrate", "300kbit/s", "--key-ratio", "8"], "video"),
        (["--app", "remote-desktop"], "messages"),
        (["--app", "voip", "--talk", "1s"], "speech"),
    ],
)
def test_a_source_is_compared_over_tcp_and_udp(run, given, source):
    path = ["--rtt", "100ms", "--loss", "1%", "--duration", "60s", "--format", "json"]
    status, printed, _ = run("compare", *path, *given)
    assert status == 0
    found = json.loads(printed)
    assert found["scenario"]["source"]["kind"] == source
    assert {row["name"] for row in found["contenders"]} == {
        "tcp",
        "tcp-bbr",
        "quic-stream",
        "quic-streams",
        "quic-datagram",
        "udp",
    }


@pytest.mark.parametrize("suffix", ["txt", "md", "html", "json", "csv"])
def test_the_suffix_chooses_the_format(run, tmp_path, suffix):
    status, printed, errors = run(*SHORT, "-o", f"ways.{suffix}", "--chart", "ways.svg")
    assert (status, printed, errors) == (0, "", "")
    assert "udp" in (tmp_path / f"ways.{suffix}").read_text()
    assert b"</svg>" in (tmp_path / "ways.svg").read_bytes()


def test_a_shared_link_shows_what_is_taken_from_the_others(run):
    shared = ["--link", "3Mbit/s", "--bulk", "1", "--web", "2", "--cbr", "100kbit/s", "--queue", "40"]
    for discipline in ("drop-tail", "red", "dred"):
        status, printed, errors = run(
            *SHORT, "--duration", "20s", *shared, "--discipline", discipline, "--format", "json"
        )
        assert (status, errors) == (0, "")
        found = json.loads(printed)
        assert found["scenario"]["others"] == ["Bulk", "Web", "Web", "ConstantRate"]
        assert found["scenario"]["queue"] == 40
        assert all(row["taken"] is not None for row in found["contenders"])


@pytest.mark.parametrize("discipline", ["codel", "fq_codel", "pie", "cake"])
def test_a_managed_queue_has_its_target_and_leaves_out_the_literature(run, discipline):
    link = ["--link", "3Mbit/s", "--bulk", "1", "--discipline", discipline, "--queue-target", "7ms"]
    status, printed, errors = run(*SHORT, "--duration", "5s", *link, "--format", "json")
    assert (status, errors) == (0, "")
    found = json.loads(printed)
    assert [found["scenario"][name] for name in ("discipline", "queue_target")] == [discipline, 0.007]
    names = {row["name"] for row in found["contenders"]}
    assert {"tcp", "min-buf-1-0", "quic-stream", "udp"} < names
    assert not {"sack", "tcp-rc", "time-lined", "scp"} & names


def test_beside_a_link_the_path_loses_nothing_by_default(run):
    trace = ["--link-trace", str(LTE)]
    given = ["compare", "--rtt", "50ms", "--app", "voip", "--duration", "5s", "--format", "json"]
    status, printed, errors = run(*given, *trace)
    assert status == 0, errors
    assert printed == run(*given, "--loss", "0", *trace)[1]
    status, _, errors = run(*given)
    assert status == 2
    assert "--loss is missing" in errors


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--bulk", "2"], "--bulk: needs --link or --link-trace, the link that is shared"),
        (["--link", "3Mbit/s", "--bulk", "-2"], "--bulk: must be 0 or more, got -2"),
        (["--stack", "newreno_2008"], "no such option: --stack"),
        (["--jitter", "3ms"], "--jitter: must be 0 in a comparison, got 0.003"),
        (["--link", "3Mbit/s", "--queue", "0"], "--queue: must lie between 1 and 2.6e+06 packets or bytes, got 0"),
        (["--link", "3"], "--link"),
        (["--discipline", "red"], "--discipline: needs --link or --link-trace, the link that is shared"),
        (["--link", "3Mbit/s", "--queue-target", "5ms"], "--queue-target: must go with 'codel', 'fq_codel', 'pie', "),
        (
            ["--link", "3Mbit/s", "--discipline", "pie", "--queue-target", "9s"],
            "--queue-target: must lie between 0.0001 and 5 s, got 9",
        ),
        (
            ["--link", "3Mbit/s", "--outage-every", "9s", "--outage", "1s", "--discipline", "fq_codel"],
            "--discipline: must be 'drop-tail', 'red' or 'dred' with a trace, got 'fq_codel'",
        ),
        (["--duration", "1ms"], "--duration: must be at least 3 s, for 100 packets, got 0.001"),
        (["-o", "ways.exe"], "--output: 'ways.exe' does not end in one of .txt, .md, .html, .json, .csv"),
        (["--seed", "-1"], "--seed: must be a whole number, 0 or more, got -1"),
        (["--parity", "256"], "--parity: must lie between 0 and 255 datagrams, got 256"),
        (["--parity", "-1"], "--parity: must lie between 0 and 255 datagrams, got -1"),
        (["--chart", "none/x.svg"], "--chart: 'none/x.svg' cannot be written: the folder 'none' does not exist"),
    ],
)
def test_bad_input_is_one_line(refused, arguments, complaint):
    assert complaint in refused(*SHORT, *arguments)


TRACED = ["compare", "--rtt", "50ms", "--loss", "0%", "--app", "voip", "--duration", "20s", "--format", "json"]


def test_a_link_may_have_a_trace_or_outages(run, tmp_path):
    trace = tmp_path / "link.up"
    trace.write_text("1\n2\n4\n")
    status, printed, errors = run(*TRACED, "--link-trace", str(trace))
    found = json.loads(printed)
    assert (status, errors, found["scenario"]["link"]) == (0, "", 9e6)
    _, printed, _ = run(*TRACED, "--link", "10Mbit/s", "--outage-every", "2s", "--outage", "400ms")
    (udp,) = [row for row in json.loads(printed)["contenders"] if row["name"] == "udp"]
    # A fifth of the packets wait for the end of an outage, for up to 400 ms.
    assert json.loads(printed)["scenario"]["link"] == pytest.approx(8e6)
    assert (udp["p50"], udp["p95"]) == pytest.approx((0.0251, 0.325), abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--link-trace", "{broken}"],
            "--link-trace: {broken}, line 2: must not be before the time ahead of it, got 1",
        ),
        (["--link-trace", "none.up"], "--link-trace: none.up: No such file or directory"),
        (["--link", "1Mbit/s", "--link-trace", "{broken}"], "--link and --link-trace: give one of them"),
        (["--link", "1bit/s"], "--link: must lie between 100 and 1e+12 bit/s, got 1"),
        (["--link", "1Mbit/s", "--discipline", "policer"], "--burst: must lie between 1 and 1e+06 bytes, got 0"),
        (["--burst", "9kB"], "--burst: needs --link or --link-trace, the link that is shared"),
        (
            ["--link", "1Mbit/s", "--discipline", "policer", "--burst", "9kB", "--queue", "5"],
            "--queue: must be absent with 'policer', which has no queue, got 5",
        ),
        (
            ["--link", "2Mbit/s", "--burst", "9kB", "--peak-rate", "1Mbit/s"],
            "--peak-rate: must be above the rate, 2e+06 bit/s, got 1000000",
        ),
        (["--link", "1Mbit/s", "--outage", "1s"], "--outage-every and --outage: give both or none"),
        (["--outage-every", "5s", "--outage", "1s"], "--outage: needs --link or --link-trace, the link that is shared"),
        (
            ["--link", "1Mbit/s", "--outage-every", "1s", "--outage", "2s"],
            "--outage-every: must lie between the duration of 2 s and 1e+06 s, got 1",
        ),
        (
            ["--link", "1Mbit/s", "--outage-every", "60min", "--outage", "20min"],
            "--outage: must lie between 0 and 600 s, got 1200",
        ),
    ],
)
def test_a_broken_link_is_refused_in_one_line(run, tmp_path, arguments, message):
    broken = tmp_path / "broken.up"
    broken.write_text("5\n1\n")
    status, _, errors = run(*TRACED, *(word.format(broken=broken) for word in arguments))
    assert (status, errors) == (2, f"tcpdelay compare: {message.format(broken=broken)}\n")
