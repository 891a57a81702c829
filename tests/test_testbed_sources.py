"""Sources in the guest in virtual time: the kernel's TCP carries the messages, the simulator predicts the delays."""

import numpy as np
import pytest

import tcpdelay as td
from guest_requirements import require
from tcpdelay.capture.flow_capture import read_capture
from tcpdelay.scenario.source_settings import SourceSettings
from tcpdelay.statistics import BATCHES, quantile_interval
from tcpdelay.testbed.backends import VirtualTimeBackend
from tcpdelay.testbed.campaign import Specification, run_campaign
from tcpdelay.testbed.experiment import Experiment

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
