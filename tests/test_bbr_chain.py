"""The chain of BBR: against captures of the kernel, against the simulator, and measurement by measurement."""

import math
import re
from pathlib import Path as FilePath

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.chain.linux.parameters import linux_parameters
from tcpdelay.chain.linux.recoveries import STARTUP, ascending, held_back
from tcpdelay.models.predict import predict, supports
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.statistics import Interval
from tcpdelay.study.validation.predictions import error_beyond

# The captures include shorter intervals than the range in which random scenarios have been checked.
pytestmark = pytest.mark.filterwarnings("ignore::tcpdelay.accuracy.validity.ValidityWarning")
BBR = td.Stack.linux("bbr")
VOICE = td.Flow(174, 0.020)
CAPTURES = FilePath(__file__).parent.parent / "validation" / "results" / "bbr.csv"
NAME = re.compile(r"cbr-(\d+)B-([\d.]+)ms-rtt([\d.]+)ms-loss([\d.]+)pct-bbr-hz250")


def captured():
    """Return the captures of Linux 6.1 as flow, path, and the measured figures."""
    for row in pd.read_csv(CAPTURES).itertuples():
        size, interval, rtt, loss = map(float, NAME.fullmatch(row.capture).groups())
        yield td.Flow(int(size), interval / 1e3), td.Path(rtt=rtt / 1e3, loss=loss / 100), row


def test_delays_are_those_of_captures():
    beyond, off = [], []
    for flow, path, row in captured():
        predicted = td.predict_delay(flow, path, BBR, method="chain")
        interval = Interval(row.p95, row.p95_low, row.p95_high)
        beyond.append(abs(error_beyond(predicted.quantile(0.95), interval)))
        off.append(predicted.mean / row.mean - 1)
    assert len(beyond) == 41
    assert np.mean(beyond) < 0.01
    assert max(beyond) < 0.1
    assert np.mean(np.abs(off)) < 0.02


@pytest.mark.parametrize(
    ("size", "interval", "rtt", "loss"),
    [
        (174, 0.020, 0.1, 0.02),
        (500, 0.010, 0.05, 0.01),
        (1448, 0.002, 0.1, 0.005),
        (1448, 0.005, 0.05, 0.02),
        (1448, 0.020, 0.2, 0.02),
    ],
)
def test_delays_are_those_of_the_simulator(size, interval, rtt, loss):
    flow, path = td.Flow(size, interval, write_jitter=0), td.Path(rtt, loss)
    chain = td.predict_delay(flow, path, BBR, method="chain")
    simulated = td.simulate(flow, path, BBR, packets=max(300_000, round(3600 / interval)), seed=1)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.05)
    # Pacing delays packets of fast flows by an interval; the chain follows it only after a measurement of the RTT.
    for limit in rtt / 2 + np.arange(0.013, 0.2, 0.010):
        assert chain.late_fraction(limit) == pytest.approx(simulated.late_fraction(limit), abs=0.02)


def test_without_loss_only_measurements_of_the_rtt_delay_packets():
    path = td.Path(0.2, 0.0)
    chain = td.predict_delay(VOICE, path, BBR, method="chain")
    simulated = td.simulate(VOICE, path, BBR, packets=300_000, seed=1)
    assert chain.mean == pytest.approx(simulated.mean, rel=1e-3)
    for quantile in (0.5, 0.95, 0.97, 0.99, 0.999):
        assert chain.quantile(quantile) == pytest.approx(simulated.quantile(quantile), abs=0.001)


def test_a_packet_per_round_trip_is_never_held_back():
    """BBR restarts after idle time; its window of four segments is enough for up to four packets."""
    for rtt in (0.015, 0.05):
        assert td.predict_delay(VOICE, td.Path(rtt, 0.0), BBR, method="chain").quantile(1) == rtt / 2


@given(
    st.integers(60, 1448),
    st.floats(0.002, 0.04),
    st.floats(0.01, 0.3),
    st.sampled_from([0.0, 0.002, 0.03]),
    st.sampled_from([STARTUP, 0, *range(2, 8)]),
)
def test_a_measurement_holds_each_packet_until_it_is_sent_in_order(size, interval, rtt, loss, phase):
    p = linux_parameters(td.Flow(size, interval), td.Path(max(rtt, interval), loss), BBR)
    delays, duration = held_back(p, phase)
    assert duration * interval >= 0.2
    assert (delays >= 0).all()
    # Packets leave in the order of writing, and at the end at once.
    assert (np.diff(np.arange(delays.size) + delays) >= -1e-6).all()
    # Four segments per round-trip time leave during a measurement, and the backlog is what is left.
    largest = max(p.load - 4 * p.packets_per_segment, 0) / p.load * (duration + p.load) + p.load
    assert delays.max(initial=0) <= largest + 1


@given(st.integers(60, 1448), st.floats(0.005, 0.04), st.floats(0.01, 0.2), st.floats(0.001, 0.1) | st.just(0.0))
def test_the_chain_is_a_distribution(size, interval, rtt, loss):
    model = td.DelayModel(td.Flow(size, interval), td.Path(rtt, loss), BBR)
    chain = model.delay_distribution()
    assert chain.sustainable
    assert chain.weights.sum() == pytest.approx(1)
    assert chain.quantile(0) >= rtt / 2
    parts = model.delay_parts
    assert sum(vars(parts).values()) == pytest.approx(chain.mean, rel=1e-6)
    assert 0 <= model.backlogged_time_fraction <= 1


def test_what_the_chain_of_bbr_refuses():
    for flow, path, name in (
        (td.Flow(3000, 0.040), td.Path(0.1, 0.01), "packet_size"),
        (VOICE, td.Path(0.1, 0.01, loss_burst=2), "loss_burst"),
        (VOICE, td.Path(0.1, 0.2), "loss"),
    ):
        scenario = Scenario(flow, path, BBR)
        (refused,) = supports(scenario, "chain").refused
        assert refused.name == name
        assert "in the chain with BBR" in str(refused)
        assert not supports(scenario, "simulation").refused
        with pytest.raises(ValueError, match=f"{name} must be at most"):
            td.predict_delay(flow, path, BBR, method="chain")


def test_the_expected_error_is_that_of_the_chain_of_bbr():
    error = predict(Scenario(VOICE, td.Path(0.1, 0.02), BBR), method="chain").expected_error
    assert 0 <= error.median <= error.mean < 0.05
    # Where the flow is near the edge between startup and the gain cycle, the error is large.
    large = predict(Scenario(td.Flow(1400, 0.006), td.Path(0.25, 0.0005), BBR), method="chain").expected_error
    assert large.mean > error.mean


def test_tables_and_regions_take_bbr():
    rows = td.predict_many({"rtt": [0.1, 0.2], "loss": [0.01, 0.02]}, BBR, flow="voip")
    assert (np.asarray(rows["p95"]) > 0.05).all()
    region = td.working_region(VOICE, BBR, rtt=[0.05, 0.1], loss=[0.005, 0.02], limit=0.2)
    assert region["works"].all()
    assert math.isfinite(td.largest_loss(VOICE, td.Path(0.1, 0.0), BBR, td.Target(0.2)).value)


@given(st.lists(st.floats(allow_nan=False), max_size=300))
def test_delays_are_sorted(values):
    given_values = np.array(values, np.float64)
    found = ascending(given_values)
    assert found.tolist() == sorted(values)
    assert given_values.tolist() == values
