"""Sources and QUIC in the guest in virtual time: messages by each transport, and the delays of the simulator."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import tcpdelay as td
from guest_requirements import require
from tcpdelay.capture.flow_capture import read_capture
from tcpdelay.scenario.source_settings import SourceSettings
from tcpdelay.statistics import BATCHES, quantile_interval
from tcpdelay.testbed import quic_program
from tcpdelay.testbed.backends import VirtualTimeBackend
from tcpdelay.testbed.campaign import Specification, run_campaign
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.quic_program import PROGRAMS, QuicBuildError, build_quic_program, quic_problems

# The kernel's TCP carries the messages, the simulator predicts the delays

HZ = 250
SEED = 18
DURATION, WARM_UP = 180.0, 10.0
PATH = td.Path(rtt=0.060, loss=0.02)
SCREEN = "time,size,kind\n" + "".join(
    f"{0.1 * number},{20_000 if number % 10 == 0 else 300},{'page' if number % 10 == 0 else 'update'}\n"
    for number in range(100)
)
TABLES = {
    "flow": {"packet_size": "500B", "interval": "10ms", "write_jitter": "3ms"},
    "video": {"bitrate": "400kbit/s"},
    "speech": {"packet_size": "174B", "interval": "20ms"},
    "utterances": {"packet_size": "160B", "interval": "20ms", "speed": 4, "length": "2s", "pause": "1s"},
    "messages": {"rate": 30, "sizes": {"distribution": "lognormal", "mean": "1kB"}},
    "trace": {"file": "screen.csv", "period": "10s"},
}
CONFIDENCE = 0.9999
"""Probability that an interval of a capture holds p95; every build of a guest has other losses."""
STEP = 0.001
"""Difference between simulated and captured delays that is no error: the receiver's wait for later segments [s]."""


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """A short capture of each kind of source, in one guest, by the kind."""
    require(VirtualTimeBackend(HZ).problems(), "VIRTUAL")
    place = tmp_path_factory.mktemp("sources")
    (place / "temporary").mkdir()
    (place / "screen.csv").write_text(SCREEN)
    settings = [
        SourceSettings.from_table({"kind": kind, "seed": SEED, **table}, place) for kind, table in TABLES.items()
    ]
    experiments = tuple(
        Experiment(application="source", source=each, rtt=PATH.rtt, loss=PATH.loss, duration=DURATION)
        for each in settings
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(place / "temporary"))
        patch.setattr("tempfile.tempdir", str(place / "temporary"))
        files = run_campaign(Specification("sources", experiments, hz=(HZ,), side_by_side=8), place / "captures")
    captures = [read_capture(file) for file in files]
    return {kind: (each.source, found) for kind, each, found in zip(TABLES, settings, captures, strict=True)}


@pytest.mark.parametrize("kind", TABLES)
def test_the_guest_writes_the_messages_of_the_seed_at_their_times(captured, kind):
    source, capture = captured[kind]
    (run,) = capture.runs
    assert capture.settings["source"]["seed"] == SEED
    expected = source.messages(DURATION, SEED)
    assert run.messages.kinds == source.kinds
    np.testing.assert_array_equal(run.messages.sizes, expected["size"])
    np.testing.assert_array_equal(run.messages.kind_numbers, expected["kind"])
    late = run.written - np.rint(1e6 * expected["time"])
    # A write follows the writes before it, which take no time but a few microseconds of the guest's clock.
    assert late.min() >= -1
    assert np.quantile(late, 0.99) < 100


@pytest.mark.parametrize("kind", TABLES)
def test_every_message_is_read_in_order_and_none_is_faster_than_the_network(captured, kind):
    (run,) = captured[kind][1].runs
    assert run.delay.min() >= 1e6 * PATH.rtt / 2
    # Writes and delays are rounded to microseconds.
    assert np.diff(run.written + run.delay).min() >= -2


@pytest.mark.parametrize("kind", TABLES)
def test_the_simulator_predicts_the_delays_of_each_kind(captured, kind):
    source, capture = captured[kind]
    simulated = td.simulate(source, PATH, td.Stack.linux(hz=HZ), packets=300_000, seed=SEED)
    parts = {"all": capture.delays(WARM_UP), **capture.delays_by_kind(WARM_UP)}
    predicted = {"all": simulated, **simulated.by_kind}
    for name, delays in parts.items():
        if delays[0].size >= 5 * BATCHES:
            measured = quantile_interval(delays, 0.95, CONFIDENCE)
            assert measured.low - STEP <= predicted[name].quantile(0.95) <= measured.high + STEP, name


# QUIC: each implementation carries messages by each delivery, with and without losses

RTT = 0.040
INTERVAL = Experiment().interval
LOSS, VIDEO_LOSS = 0.05, 0.06
DURATIONS = {0.0: 1.0, LOSS: 3.0}
"""How long the messages are written, by loss [s]."""
DELIVERIES = ("stream", "stream_per_message", "stream_per_group", "datagram")
IMPLEMENTATIONS = ("aioquic", "quic-go", "quinn")
STANDARD_ERRORS = 5


def experiment(implementation, delivery, loss, **settings):
    table = {"application": "quic", "implementation": implementation, "delivery": delivery, "rtt": RTT, "loss": loss}
    return Experiment.from_table({"duration": DURATIONS.get(loss, 2.0), **table, **settings})


def messages(loss):
    return round(DURATIONS[loss] / INTERVAL)


def captured_in(place, implementation):
    """The captures of a session, by delivery and loss, and of a video in groups and in datagrams; with qlogs."""
    flows = [(delivery, loss) for loss in DURATIONS for delivery in DELIVERIES]
    video = {"kind": "video", "bitrate": "1Mbit/s", "key_interval": "500ms", "seed": 3}
    experiments = [experiment(implementation, *flow) for flow in flows]
    experiments += [experiment(implementation, delivery, VIDEO_LOSS, source=video) for delivery in DELIVERIES[2:]]
    specification = Specification("quic", tuple(experiments), hz=(HZ,), side_by_side=len(experiments), qlog=True)
    with pytest.MonkeyPatch.context() as patch:
        (place / "temporary").mkdir()
        patch.setenv("TMPDIR", str(place / "temporary"))
        patch.setattr("tempfile.tempdir", str(place / "temporary"))
        captures = [read_capture(file) for file in run_campaign(specification, place / "captures")]
    names = [*flows, *(("video", delivery) for delivery in DELIVERIES[2:])]
    return {name: capture.runs[0] for name, capture in zip(names, captures, strict=True)}


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def implementation(request):
    """An implementation that can run here."""
    require(VirtualTimeBackend(HZ).problems(), "VIRTUAL")
    if request.param == "aioquic" and find_spec("aioquic") is None:
        pytest.skip(quic_program.MISSING_AIOQUIC)
    if request.param == "quic-go":
        try:
            build_quic_program("quic-go")
        except QuicBuildError as error:
            pytest.skip(str(error))
    if request.param == "quinn" and not PROGRAMS["quinn"].path.is_file():
        pytest.skip("quinn is not built, which takes minutes; run: tcpdelay testbed build-quic quinn")
    return request.param


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("quic")


@pytest.fixture(scope="module")
def captured_quic(implementation, place):
    (place / implementation).mkdir()
    return captured_in(place / implementation, implementation)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_without_loss_each_delivery_takes_the_one_way_delay(captured_quic, delivery):
    run = captured_quic[delivery, 0.0]
    assert run.delay.size == messages(0.0)
    assert RTT / 2 <= run.delays.min() <= run.delays.max() < RTT / 2 + 0.001


@pytest.mark.parametrize("delivery", DELIVERIES[:3])
def test_streams_deliver_every_message_in_spite_of_losses(captured_quic, delivery):
    run = captured_quic[delivery, LOSS]
    assert run.packets["data_dropped"] > 0
    assert run.delay.size == messages(LOSS)
    assert run.delay.min() >= 1e6 * RTT / 2
    assert run.delay.max() > 1e6 * 1.5 * RTT


def test_only_messages_of_one_stream_stay_in_order(captured_quic):
    out_of_order = {}
    for delivery in DELIVERIES[:3]:
        run = captured_quic[delivery, LOSS]
        out_of_order[delivery] = np.flatnonzero(np.diff(run.written + run.delay) < -2) + 1
    assert out_of_order["stream"].size == 0
    assert out_of_order["stream_per_message"].size > 0
    # Only the first message of a group can overtake the one before it.
    assert np.all(out_of_order["stream_per_group"] % Experiment().group == 0)


def test_datagrams_are_lost_as_often_as_packets(captured_quic):
    run = captured_quic["datagram", LOSS]
    lost = np.isinf(run.unordered_delays)
    spread = np.sqrt(LOSS * (1 - LOSS) / messages(LOSS))
    assert abs(lost.mean() - LOSS) < STANDARD_ERRORS * spread
    assert run.unordered_delays[~lost].max() < RTT / 2 + 0.001


def test_large_messages_travel_in_several_datagrams(captured_quic):
    assert captured_quic["video", "stream_per_group"].delay.min() > 0
    datagrams = captured_quic["video", "datagram"]
    assert datagrams.packets["data_sent"] > 2 * datagrams.delay.size
    lost = datagrams.delay < 0
    # A message is lost with any of its parts.
    assert 0 < lost.sum() <= datagrams.packets["data_dropped"]
    assert datagrams.messages.sizes[lost].mean() > datagrams.messages.sizes.mean()


def test_both_ends_keep_a_qlog(captured_quic, implementation, place):
    logs = sorted((place / implementation / "captures").glob("*.qlog"))
    assert [log.name.split(".flow0.")[1] for log in logs] == len(captured_quic) * ["receiver.qlog", "sender.qlog"]
    for log in logs:
        # aioquic writes JSON, the others a sequence of JSON texts (RFC 7464).
        first = log.read_text().split("\x1e")[0 if implementation == "aioquic" else -2]
        assert json.loads(first)


def test_a_seed_repeats_a_capture(captured_quic, implementation, tmp_path):
    for name, again in captured_in(tmp_path, implementation).items():
        np.testing.assert_array_equal(captured_quic[name].written, again.written)
        np.testing.assert_array_equal(captured_quic[name].delay, again.delay)


# What is missing


def test_an_absent_go_or_aioquic_is_named_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(quic_program, "find_spec", lambda name: None)
    needed = [experiment(each, "stream", 0.0) for each in IMPLEMENTATIONS]
    aioquic, go, rust = quic_problems(needed)
    assert aioquic == quic_program.MISSING_AIOQUIC
    assert go == "the program go is missing, which builds quic-go; install Go 1.24 or later, such as Debian's golang-go"
    assert rust == "the program cargo is missing, which builds quinn; install Rust 1.85 or later from rustup.rs"
    assert quic_problems([Experiment()]) == []
    with pytest.raises(QuicBuildError, match=r"^the program go is missing, .*Go 1\.24"):
        build_quic_program("quic-go")


@pytest.mark.parametrize(("implementation", "builder"), [("quic-go", "go"), ("quinn", "cargo")])
def test_a_failed_build_is_told_in_one_line_and_leaves_nothing(monkeypatch, tmp_path, implementation, builder):
    go = tmp_path / builder
    go.write_text("#!/bin/sh\necho 'go: cannot find the module' >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(QuicBuildError, match=rf"^the build of {implementation} failed: go: cannot find the module$"):
        build_quic_program(implementation)
    assert list(PROGRAMS[implementation].path.parent.iterdir()) == []
    shutil.rmtree(tmp_path / "cache")


def test_the_testbed_needs_no_aioquic_for_other_flows():
    blocked = (
        "import sys; sys.modules['aioquic'] = sys.modules['cryptography'] = None; import tcpdelay.testbed.campaign"
    )
    subprocess.run([sys.executable, "-c", blocked], check=True)
