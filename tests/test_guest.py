"""The testbed's guests for real: calibration, packet traces, virtual time, and runs that are killed in the middle.

Whatever a test starts works below a directory of its own, and ends with the test.
"""

import heapq
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import binom

from cli_process import process
from guest_requirements import require
from tcpdelay.capture.flow_capture import read_capture
from tcpdelay.models.predict import predict_delay
from tcpdelay.testbed.backends import UmlBackend, VirtualTimeBackend
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.workplaces import guests_of

HZ = 250
BACKENDS = {"uml": (UmlBackend(), "TESTBED"), "uml-virtual": (VirtualTimeBackend(HZ), "VIRTUAL")}
LONGEST_RUN = 180
RECORDINGS = 3
UNDISTURBED = 1000
"""Attempts to record in real time, and the median delay beyond the path's up to which the host was idle enough [us]."""
NO_THRESHOLD = 2**31 - 1
LOSSY = {"loss": 0.02}
RECORDED = {
    "clean": {},
    "lossy": LOSSY,
    "bbr": LOSSY | {"congestion_control": "bbr"},
    "no sack": LOSSY | {"congestion_control": "westwood", "sack": False},
    "large": LOSSY | {"congestion_control": "vegas", "packet_size": 4000, "rtt": 0.02},
    "three": LOSSY | {"congestion_control": "reno", "flows": 3},
}
ONE_CONNECTION = [kind for kind in RECORDED if kind != "three"]
RARE = {"application": "cbr", "interval": 0.5, "rtt": 0.05, "loss": 0.1}
FULL = {"application": "adaptive", "packet_size": 1448, "rtt": 0.05, "loss": 0.01}
VARIOUS = {
    "parallel": LOSSY | {"connections": 3},
    "intelligent": LOSSY | {"connections": 3, "scheduling": "intelligent"},
    "split": {"pieces": 3},
    "delayed ack": {"delayed_ack": True},
    "nagle": {"nodelay": False},
    "probes": RARE,
    "no probes": RARE | {"early_retrans": 0},
    "buffered": FULL,
    "lowat": FULL | {"notsent_lowat": 1448},
    "udp": {"application": "udp", "interval": 0.005, "loss": 0.05, "loss_burst": 3},
    "states": {"application": "udp", "interval": 0.005, "loss": 0.1, "bad_time": 0.05, "bad_loss": 0.8},
    "bottleneck": {"bottleneck_rate": 1e6, "queue_packets": 20, "bulk_flows": 1, "web_flows": 3, "flows": 2},
}


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return met


@contextmanager
def started(place, backend, experiments, *options, **settings):
    """Start a run of the testbed with everything it writes in `place`; nothing of it outlives the block."""
    require(BACKENDS[backend][0].problems(), BACKENDS[backend][1])
    (place / "tmp").mkdir(parents=True, exist_ok=True)
    tables = [{"name": "tests", "backend": backend, "hz": HZ, **settings}]
    tables += [{key: value for key, value in json.loads(e.to_json()).items() if value is not None} for e in experiments]
    parts = ["".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items()) for table in tables]
    (place / "tests.toml").write_text("[[experiments]]\n".join(parts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(place / "tmp"))
        arguments = ["testbed", "run", str(place / "tests.toml"), "-o", str(place / "captures"), *options]
        run = process(*arguments, stdout=subprocess.PIPE)
    with run:
        try:
            yield run
        finally:
            run.kill()
            if not wait_for(lambda: not guests_of(place / "tmp"), 10):
                for guest in guests_of(place / "tmp"):
                    os.kill(guest, signal.SIGKILL)


def capture(place, backend, experiments, *options, **settings):
    """Run to the end and return the captures, in the order of the experiments."""
    with started(place, backend, experiments, *options, **settings) as run:
        output, errors = run.communicate(timeout=LONGEST_RUN)
    assert run.returncode == 0, errors
    assert_nothing_left(place)
    files = [Path(line) for line in output.splitlines()]
    hz = BACKENDS[backend][0].hz()
    assert files == [place / "captures" / f"{experiment.name}-hz{hz}.parquet" for experiment in experiments]
    return [read_capture(file) for file in files]


def assert_nothing_left(place):
    assert guests_of(place / "tmp") == []
    assert [entry for entry in (place / "tmp").rglob("*") if entry.parent != place / "tmp"] == []


def complaints(errors):
    """Return what was printed beside the progress, which a slow machine sees."""
    return [line for line in errors.splitlines() if not line.startswith("capturing: ")]


@dataclass
class Recording:
    """Captures by what they are for, their traces, and how exact they are."""

    directory: Path
    real_time: bool
    captures: dict

    def __getitem__(self, kind):
        return self.captures[kind]

    def run(self, kind):
        return self.captures[kind].runs[0]

    def segments(self, kind, end):
        return read_trace(self.directory / f"{self.captures[kind].name}.run0.{end}.pcap")


def record(place, backend, kinds, duration, **settings):
    experiments = [Experiment(**kind, duration=duration) for kind in kinds.values()]
    captures = capture(place, backend, experiments, side_by_side=len(kinds), **settings)
    return Recording(place / "captures", backend == "uml", dict(zip(kinds, captures, strict=True)))


@pytest.fixture(scope="session", params=BACKENDS)
def recorded(request, tmp_path_factory):
    traced = shutil.which("tcpdump") is not None
    duration = 15 if request.param == "uml" else 30
    for _ in range(RECORDINGS):
        recording = record(tmp_path_factory.mktemp(request.param), request.param, RECORDED, duration, pcap=traced)
        # In real time a busy host makes every packet late. Without loss nothing else does, so that is no finding.
        if not recording.real_time or np.median(recording.run("clean").delay) - 50_000 < UNDISTURBED:
            break
    return recording


@pytest.fixture
def traced(recorded):
    programs = ("tcpdump", "tshark")
    require([f"{name} is missing" for name in programs if shutil.which(name) is None], "TESTBED")
    return recorded


@pytest.fixture(scope="session")
def various(tmp_path_factory):
    return record(tmp_path_factory.mktemp("various"), "uml-virtual", VARIOUS, 40)


class Segment(NamedTuple):
    """A TCP segment to the receiver: its time [ns since 1970] and the bytes of the stream that it holds."""

    time: int
    start: int
    end: int
    identification: str
    frame: int
    syn: bool
    sack: bool


@cache
def read_trace(file):
    """Read a trace by tshark, each connection up to its first FIN: the kernel's counters are read before that.

    A trace that a busy host ends late shows what still passes between the ends of a closed connection.
    """
    fields = ["frame.time_epoch", "tcp.seq", "tcp.len", "ip.id", "frame.len", "tcp.flags.syn", "tcp.options.sack_perm"]
    columns = [part for field in ("ip.src", "ip.dst", *fields, "tcp.stream", "tcp.flags.fin") for part in ("-e", field)]
    command = ["tshark", "-n", "-r", file, "-T", "fields", *columns]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    rows, ended = [], set()
    for *row, connection, fin in (line.split("\t") for line in printed.splitlines()):
        if fin == "1":
            ended.add(connection)
        if connection not in ended:
            rows.append(row)
    receiver = max(tuple(map(int, address.split("."))) for row in rows for address in row[:2])
    return [
        # The first byte of the stream follows the number of the SYN.
        Segment(
            int(when.replace(".", "")),
            int(seq) - 1,
            int(seq) - 1 + int(size),
            ip_id,
            int(frame),
            syn == "1",
            sack != "",
        )
        for _, destination, when, seq, size, ip_id, frame, syn, sack in rows
        if tuple(map(int, destination.split("."))) == receiver
    ]


def ends_of_packets(segments, packet_size, count):
    """Return when the stream without gaps reached the end of each packet [ns].

    In real time packets that were held up together share a segment, and a segment may be sent twice.
    """
    reached, waiting, progress = 0, [], []
    for segment in segments:
        heapq.heappush(waiting, (segment.start, segment.end))
        while waiting and waiting[0][0] <= reached:
            reached = max(reached, heapq.heappop(waiting)[1])
        progress.append(reached)
    assert reached == packet_size * count
    ends = packet_size * np.arange(1, count + 1)
    return np.array([segment.time for segment in segments])[np.searchsorted(progress, ends)]


def assert_soon(later, real_time):
    """Check that what comes after something else does so by next to nothing [ns], up to the captures' microsecond.

    In real time the guest may be held up anywhere, even between its readings of the two clocks.
    """
    if real_time:
        assert later.min() > -5e6
        assert np.median(later) < 2e6
    else:
        assert later.min() > -2000
        assert later.max() < 200_000


def binomial_interval(count, share):
    """Return how many of `count` may be hit; every build of a guest draws others, and none is to fail in vain."""
    return binom.interval(1 - 1e-6, count, share)


def test_without_loss_the_delay_is_that_of_the_path(recorded):
    excess = recorded.run("clean").delay - 50_000
    assert excess.min() >= 0
    assert np.median(excess) < (2000 if recorded.real_time else 300)
    if not recorded.real_time:
        assert np.quantile(excess, 0.99) < 2000
    assert recorded.run("clean").packets["data_dropped"] == 0
    # A host that stands still longer than the path's RTT holds ACKs back, and the kernel probes for them; once in each.
    assert recorded.run("clean").counters.get("RetransSegs", 0) <= (recorded.run("clean").stall_length > 50_000).sum()


@pytest.mark.parametrize("kind", RECORDED)
def test_every_packet_is_written_on_time_and_read(recorded, kind):
    flow = recorded[kind].settings
    for run in recorded[kind].runs:
        assert run.written.size - flow["duration"] / flow["interval"] in (0, 1)
        assert (np.diff(run.written) >= 0).all()
        assert run.delay.min() >= 1e6 * flow["rtt"] / 2
        late = run.written - 1e6 * flow["interval"] * np.arange(run.written.size)
        assert np.median(abs(late - np.median(late))) < (5000 if recorded.real_time else 10)


@pytest.mark.parametrize("kind", [kind for kind in RECORDED if kind != "clean"])
def test_loss_is_as_configured(recorded, kind):
    packets = recorded.run(kind).packets
    offered = packets["data_sent"] + packets["data_dropped"]
    low, high = binomial_interval(offered, 0.02)
    assert low <= packets["data_dropped"] <= high


@pytest.mark.parametrize("kind", RECORDED)
def test_kernels_counters_agree_with_the_queues(recorded, kind):
    run = recorded.run(kind)
    retransmitted, dropped = run.counters.get("RetransSegs", 0), run.packets["data_dropped"]
    assert run.counters["OutSegs"] + retransmitted == run.packets["data_sent"] + dropped
    assert run.counters["InSegs"] == run.packets["ack_sent"]
    # Small segments that are lost side by side go out again as one; a probe or a timeout sends one that is not lost.
    assert 0.5 * dropped <= retransmitted <= 1.6 * dropped + 10


def test_delays_are_about_those_of_the_published_chain(recorded):
    measured = recorded["three"].delay_distribution()
    predicted = predict_delay(recorded["three"].flow, recorded["three"].path)
    limit = 0.002 if recorded.real_time else 0.0003
    assert measured.quantile(0.001) == pytest.approx(predicted.quantile(0.001), abs=limit)
    assert measured.quantile(0.5) == pytest.approx(predicted.quantile(0.5), abs=limit)
    assert 1 / 3 < measured.quantile(0.95) / predicted.quantile(0.95) < 3
    assert measured.quantile(0.95) > 0.06


@pytest.mark.parametrize(("kind", "lowered"), [("lossy", True), ("no sack", True), ("bbr", False)])
def test_congestion_control_is_the_one_asked_for(recorded, kind, lowered):
    # BBR takes no loss for congestion, and so never sets a threshold.
    assert (recorded.run(kind).samples["ssthresh"].min() < NO_THRESHOLD) == lowered


@pytest.mark.parametrize(("kind", "permitted"), [("lossy", True), ("no sack", False)])
def test_sack_is_offered_unless_switched_off(traced, kind, permitted):
    offers = [segment.sack for segment in traced.segments(kind, "sender") if segment.syn]
    assert offers
    assert set(offers) == {permitted}


@pytest.mark.parametrize("kind", ONE_CONNECTION)
def test_packets_are_read_when_the_trace_completes_them(traced, kind):
    run = traced.run(kind)
    size = traced[kind].flow.packet_size
    arrival = ends_of_packets(traced.segments(kind, "receiver"), size, run.written.size)
    assert_soon(run.epoch + 1000 * (run.written + run.delay) - arrival, traced.real_time)


def test_segments_leave_when_they_are_written(traced):
    run = traced.run("clean")
    sent = [segment for segment in traced.segments("clean", "sender") if segment.end > segment.start]
    if not traced.real_time:
        assert len(sent) == run.written.size
    left = ends_of_packets(sent, traced["clean"].flow.packet_size, run.written.size)
    assert_soon(left - (run.epoch + 1000 * run.written), traced.real_time)


@pytest.mark.parametrize("kind", ONE_CONNECTION)
def test_the_traces_count_as_the_kernel_does(traced, kind):
    sent, run = traced.segments(kind, "sender"), traced.run(kind)
    highest = itertools.accumulate((segment.end for segment in sent), max, initial=0)
    again = sum(segment.start < before for segment, before in zip(sent, highest, strict=False) if not segment.syn)
    connecting = sum(segment.syn for segment in sent) - 1
    assert again + connecting == run.counters.get("RetransSegs", 0)
    assert len(sent) == run.packets["data_sent"] + run.packets["data_dropped"]
    assert len(traced.segments(kind, "receiver")) == run.packets["data_sent"]


def test_segments_fit_the_link_and_are_lost_one_by_one(traced):
    sent = traced.segments("large", "sender")
    assert max(segment.frame for segment in sent) == 1514
    arrived = {segment.identification for segment in traced.segments("large", "receiver")}
    lost = [segment.identification not in arrived for segment in sent]
    assert sum(lost) == traced.run("large").packets["data_dropped"]
    # Of two packets that netem handles as one, both are lost or none.
    following = [after for before, after in itertools.pairwise(lost) if before]
    assert sum(following) <= binomial_interval(len(following), 0.02)[1]


@pytest.mark.parametrize("kind", [kind for kind in VARIOUS if kind not in ("udp", "states", "buffered", "lowat")])
def test_every_kind_of_source_counts_each_packet_once(various, kind):
    flow = various[kind].settings
    for run in various[kind].runs:
        assert run.written.size - flow["duration"] / flow["interval"] in (0, 1)
        assert run.delay.min() >= 1e6 * flow["rtt"] / 2


def test_parallel_connections_share_the_packets(various):
    for kind in ("parallel", "intelligent"):
        assert set(various.run(kind).samples["connection"]) == {0, 1, 2}
        assert various.run(kind).packets["data_sent"] > 0.9 * various[kind].offered


def test_split_packets_leave_as_several_segments(various):
    assert various.run("split").packets["data_sent"] == pytest.approx(3 * various["split"].offered, rel=0.01)


def test_nagles_algorithm_holds_packets_back(various):
    assert various.run("nagle").packets["data_sent"] < various["nagle"].offered / 3
    assert np.median(various.run("nagle").delay) > 80_000


def test_linux_delays_acknowledgements_in_bulk_only(various):
    # A reader that has taken a pushed segment and writes nothing itself makes the kernel acknowledge at once.
    packets = various.run("delayed ack").packets
    assert packets["ack_sent"] == pytest.approx(packets["data_sent"], abs=3)
    packets = various.run("buffered").packets
    assert packets["ack_sent"] < 0.75 * packets["data_sent"]


def test_tail_loss_probes_can_be_switched_off(various):
    assert various.run("probes").counters["TCPLossProbes"] > 0
    assert "TCPLossProbes" not in various.run("no probes").counters


def test_a_low_watermark_keeps_an_adaptive_source_fresh(various):
    waiting = {kind: various.run(kind).delay - 25_000 for kind in ("buffered", "lowat")}
    assert min(delays.min() for delays in waiting.values()) >= 0
    assert waiting["lowat"].mean() < waiting["buffered"].mean() / 4
    assert various["lowat"].offered > various["buffered"].offered / 2


def test_losses_come_in_bursts(various):
    run = various.run("udp")
    lost = run.delay < 0
    assert run.written.size == run.packets["data_sent"] + run.packets["data_dropped"]
    assert lost.sum() == run.packets["data_dropped"]
    assert run.delay[~lost].max() < 50_300
    lengths = [len(list(group)) for is_lost, group in itertools.groupby(lost) if is_lost]
    # Standard error of the mean of a geometric length, and of the share of the losses.
    assert np.mean(lengths) == pytest.approx(3, abs=4.5 * (6 / len(lengths)) ** 0.5)
    assert lost.mean() == pytest.approx(0.05, abs=4.5 * 0.05 * (5 / len(lengths)) ** 0.5)


def test_losses_come_in_states_that_a_timer_ends(various):
    run = various.run("states")
    lost = run.delay < 0
    assert lost.sum() == run.packets["data_dropped"]
    # Packets that were in netem's queue when its loss changed arrive in time and in order.
    assert run.delay[~lost].max() < 50_300
    # The state is bad for 0.125 of the time and is forgotten with exp(-t / 43.75 ms), if 0.8 of the packets are lost.
    share, kept, received = 0.125, math.exp(-0.005 / 0.04375), 0.8
    covariance = received**2 * share * (1 - share)
    error = ((0.1 * 0.9 + 2 * covariance * kept / (1 - kept)) / lost.size) ** 0.5
    assert lost.mean() == pytest.approx(0.1, abs=4.5 * error)
    # After a loss the state is still bad with share + (1 - share) kept.
    following = lost[1:][lost[:-1]]
    expected = received * (share + (1 - share) * kept)
    assert following.mean() == pytest.approx(expected, abs=4.5 * (expected * (1 - expected) / following.size) ** 0.5)


def test_a_bottleneck_queues_and_drops(various):
    packets = various.run("bottleneck").packets
    assert packets["bottleneck_dropped"] > 0
    assert np.median(various.run("bottleneck").delay) > 60_000


def test_virtual_time_repeats_itself_and_is_fast(tmp_path):
    experiment = Experiment(**LOSSY, duration=60)
    runs, taken = [], []
    for n, seed in enumerate((7, 7, 8)):
        began = time.monotonic()
        runs += capture(tmp_path / str(n), "uml-virtual", [experiment], seed=seed)[0].runs
        taken.append(time.monotonic() - began)
    # In real time no run would, and beside other load not each does.
    assert min(taken) < experiment.duration
    first, again, other = runs
    for name in ("written", "delay"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert (first.counters, first.packets, first.epoch) == (again.counters, again.packets, again.epoch)
    assert not np.array_equal(first.delay[:2500], other.delay[:2500])


def wait_until_running(place, captures):
    """Wait for some captures to be finished and for a further session to be under way."""

    def running():
        finished = len(list((place / "captures").glob("*.parquet")))
        progress = any((place / "tmp").glob("*/run-*/*/progress"))
        # The session before may have left its files for a moment, but no guest.
        return finished == captures and progress and guests_of(place)

    assert wait_for(running, 60)


@pytest.mark.parametrize(
    ("backend", "number"),
    [
        ("uml-virtual", signal.SIGKILL),
        ("uml-virtual", signal.SIGINT),
        ("uml", signal.SIGTERM),
    ],
)
def test_a_killed_run_leaves_finished_captures_only_and_is_resumed(tmp_path, backend, number):
    short, long = experiments = [Experiment(duration=1), Experiment(rtt=0.05, duration=3600)]
    named = Path("/run/netns")
    names = sorted(named.iterdir()) if named.exists() else []
    with started(tmp_path, backend, experiments, side_by_side=1) as run:
        wait_until_running(tmp_path, captures=1)
        # All that happens in the guest's own namespaces stays there.
        namespaces = {Path(f"/proc/{guest}/ns/net").readlink() for guest in guests_of(tmp_path)}
        assert namespaces == {Path("/proc/self/ns/net").readlink()}
        run.send_signal(number)
        _, errors = run.communicate(timeout=20)
        assert wait_for(lambda: not guests_of(tmp_path), 10)
    assert run.returncode == (130 if number == signal.SIGINT else -number)
    assert complaints(errors) == []
    (kept,) = (tmp_path / "captures").iterdir()
    assert read_capture(kept).settings["rtt"] == short.rtt
    written = kept.stat().st_mtime_ns
    cut = Experiment(rtt=long.rtt, duration=1)
    captures = capture(tmp_path, backend, [short, cut], "--duration", "1s", side_by_side=1)
    assert [run.written.size for capture in captures for run in capture.runs] == [50, 50]
    assert kept.stat().st_mtime_ns == written
    assert (sorted(named.iterdir()) if named.exists() else []) == names


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_guest_that_dies_ends_the_run_with_one_line(tmp_path, backend):
    with started(tmp_path, backend, [Experiment(duration=3600)]) as run:
        wait_until_running(tmp_path, captures=0)
        (kernel,) = [guest for guest in guests_of(tmp_path) if os.getpgid(guest) == guest]
        os.kill(kernel, signal.SIGKILL)
        output, errors = run.communicate(timeout=20)
    assert (run.returncode, output) == (2, "")
    (complaint,) = complaints(errors)
    assert complaint.startswith("tcpdelay testbed run: testbed: the guest ended with SIGKILL at 0% of its run")
    assert_nothing_left(tmp_path)
    assert list((tmp_path / "captures").iterdir()) == []
