"""Losses in time: Gilbert's channel with dwell times, against a plain-Python twin and against probability theory."""

import itertools
import random
import re

import numpy as np
import pytest
from scipy import stats

import tcpdelay as td
from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.engine import new_connection
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import ConstantRate
from tcpdelay.sim.network.stacks import Udp
from tcpdelay.sim.path import is_lost
from tcpdelay.study.transports import shared_path

VOICE = td.Flow(174, 0.020, write_jitter=0)
RADIO = td.Path(rtt=0.060, loss=0.02, bad_time=0.100, bad_loss=0.8)
OFTEN_BAD = td.Path(rtt=0.1, loss=0.3, bad_time=0.050, bad_loss=0.5)
SILENT = td.Path(rtt=0.060, loss=0.02, bad_time=0.100)
MOST_ERRORS = 4.0
"""Standard errors by which a figure may differ from its expectation."""


@kernel()
def draw_losses(connection, wire, times, lost):
    """Draw for each of the `times` [us] whether a segment is lost."""
    for number in range(times.size):
        lost[number] = is_lost(connection, wire, times[number])


def losses(path, times, seed):
    """Return whether segments that are sent at `times` [s] are lost in the simulator."""
    connection, wire = new_connection(VOICE, path, td.Stack.linux(), seed)
    lost = np.empty(len(times), bool)
    draw_losses(connection, wire.record, np.rint(np.asarray(times) * 1e6).astype(np.int64), lost)
    return lost


def twin_losses(path, times, seed):
    """Return the same by the definition: states that last for random times, and losses in the bad state."""
    draw = random.Random(seed)
    bad_share = path.loss / path.bad_loss
    mean_good = path.bad_time * (1 - bad_share) / bad_share
    bad = draw.random() < bad_share
    until, lost = draw.expovariate(1 / (path.bad_time if bad else mean_good)), []
    for time in times:
        while until <= time:
            bad = not bad
            until += draw.expovariate(1 / (path.bad_time if bad else mean_good))
        lost.append(bad and draw.random() < path.bad_loss)
    return np.array(lost)


def standard_error_of_mean(path, interval, count):
    """Return the standard error of the share of losses of `count` segments, one per `interval` [s]."""
    share = path.loss / path.bad_loss
    kept = np.exp(-interval / (path.bad_time * (1 - share)))
    correlated = 2 * path.bad_loss**2 * share * (1 - share) * kept / (1 - kept)
    return np.sqrt((path.loss * (1 - path.loss) + correlated) / count)


@pytest.mark.parametrize("path", [RADIO, SILENT, OFTEN_BAD])
@pytest.mark.parametrize("lost_of", [losses, twin_losses])
def test_the_mean_loss_over_time_is_as_declared(path, lost_of):
    interval, count = 0.010, 300_000
    share = lost_of(path, np.arange(count) * interval, seed=1).mean()
    assert share == pytest.approx(path.loss, abs=MOST_ERRORS * standard_error_of_mean(path, interval, count))


def test_the_first_segment_meets_the_mean_loss():
    first = [losses(RADIO, [0.0], seed)[0] for seed in range(2000)]
    assert np.mean(first) == pytest.approx(0.02, abs=MOST_ERRORS * np.sqrt(0.02 * 0.98 / 2000))


@pytest.mark.parametrize("lost_of", [losses, twin_losses])
def test_both_states_last_for_exponential_times(lost_of):
    # A probe every millisecond: the length of a run is the time in a state to a millisecond, which is spread evenly.
    step, count = 0.001, 1_000_000
    runs = [(lost, len(list(run))) for lost, run in itertools.groupby(lost_of(SILENT, np.arange(count) * step, seed=2))]
    spread = np.random.default_rng(1)
    for state, mean in ((True, SILENT.bad_time), (False, SILENT.good_time)):
        lengths = np.array([length for lost, length in runs[1:-1] if lost == state], float)
        lengths = (lengths - 1 + spread.random(lengths.size) + spread.random(lengths.size)) * step
        error = MOST_ERRORS / np.sqrt(lengths.size)
        assert lengths.size > 150
        assert lengths.mean() == pytest.approx(mean, rel=error)
        # The coefficient of variation of an exponential time is 1, with a standard error of sqrt(2 / n).
        assert lengths.std() / lengths.mean() == pytest.approx(1, abs=error * np.sqrt(2))
        assert stats.kstest(lengths, stats.expon(scale=mean).cdf).pvalue > 0.001


@pytest.mark.parametrize("path", [RADIO, OFTEN_BAD])
def test_the_channel_agrees_with_its_twin_at_any_spacing(path):
    # Segments in a row at one instant, and pauses from a fraction of the bad time to many times of it.
    gaps = np.tile([0.0, 0.0, 0.004, 0.030, 0.150, 2.0], 60_000)
    found, expected = (lost_of(path, np.cumsum(gaps), seed=3) for lost_of in (losses, twin_losses))
    for place, gap in enumerate(gaps[:6]):
        # The share that is lost too, after a loss and after a delivery.
        for before in (True, False):
            counts = []
            for lost in (found, expected):
                following = lost[1:][(lost[:-1] == before) & (np.arange(1, lost.size) % 6 == place)]
                counts.append((following.sum(), following.size))
            (a, n), (b, m) = counts
            pooled = (a + b) / (n + m)
            error = np.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
            assert abs(a / n - b / m) < MOST_ERRORS * error, (gap, before)


def test_at_one_instant_the_state_is_one():
    assert set(losses(SILENT, np.repeat(np.arange(2000) * 0.05, 5), seed=4).reshape(-1, 5).sum(axis=1)) == {0, 5}


def test_a_bad_state_ends_while_the_sender_waits():
    # Each retransmission that is backed off meets the same burst of segments, but a later state of the path.
    bursts = td.simulate(VOICE, td.Path(rtt=0.060, loss=0.01, loss_burst=3.0), packets=200_000, seed=1)
    states = td.simulate(VOICE, td.Path(rtt=0.060, loss=0.01, bad_time=0.060), packets=200_000, seed=1)
    assert bursts.quantile(0.99) > 10
    # A bad state of 1.2 s has a probability of exp(-20); the backed-off retransmission comes within twice the time.
    assert states.quantile(0.99) < 0.5
    assert states.quantile(1.0) < 3.0


def test_the_command_for_a_radio_link_prints_milliseconds(run):
    radio = ["--bad-time", "60ms", "--bad-loss", "100%", "--method", "auto", "--packets", "100000"]
    arguments = ["--rtt", "60ms", "--loss", "1%", "--app", "opus", "--over", "wss-down", "--jitter", "30ms", *radio]
    status, printed, _ = run("predict", *arguments)
    lines = dict(re.split(r" {2,}", line) for line in printed.splitlines()[1:])
    assert status == 0
    assert lines["method"] == "simulation: the chain does not model this scenario (bad time, jitter)"
    assert float(lines["95 % come within"].removesuffix(" ms")) < 100
    assert float(lines["99 % come within"].removesuffix(" ms")) < 500


@pytest.mark.parametrize("change", [{}, {"jitter": 0.03}, {"ack_loss": 0.1}])
def test_a_simulation_loses_the_declared_share(change):
    # One segment per second is sent again soon after its loss, and the path has long forgotten its state by the next.
    path = td.Path(rtt=0.010, loss=0.05, bad_time=0.001, **change)
    counts = td.simulate(td.Flow(174, 1.0, write_jitter=0), path, packets=20_000, seed=1).counts
    share = counts["segments_lost"] / counts["segments_sent"]
    assert share == pytest.approx(0.05, abs=MOST_ERRORS * np.sqrt(0.05 * 0.95 / counts["segments_sent"]))


def test_flows_on_a_shared_link_have_the_channel_too():
    path = SharedPath(0.030, loss=0.05, bad_time=0.050, bad_loss=0.5)
    source = ConstantRate(flow=td.Flow(174, 0.010, write_jitter=0), path=path, stack=Udp())
    (flow,) = simulate_network([source], Bottleneck(rate=1e8, capacity=100), duration=2000, seed=1).flows
    declared = td.Path(rtt=0.060, loss=0.05, bad_time=0.050, bad_loss=0.5)
    error = standard_error_of_mean(declared, 0.010, flow.segments_sent)
    assert flow.segments_lost / flow.segments_sent == pytest.approx(0.05, abs=MOST_ERRORS * error)
    # Independent losses would have a quarter of the error: the test sees the channel.
    assert error > 2 * np.sqrt(0.05 * 0.95 / flow.segments_sent)


def test_a_comparison_of_transports_takes_the_channel_over():
    taken = shared_path(RADIO)
    assert (taken.loss, taken.bad_time, taken.bad_loss) == (RADIO.loss, RADIO.bad_time, RADIO.bad_loss)


@pytest.mark.parametrize("stack", [td.Stack.linux(), td.Stack.newreno_2008()])
def test_the_chains_refuse_the_channel(stack):
    with pytest.raises(ValueError, match=r"^bad_time must be 0 in .* chain, got 0\.1; tcpdelay.simulate takes it into"):
        td.DelayModel(VOICE, SILENT, stack)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bad_time": -1}, r"^bad_time must lie between 0 and 60 s, got -1$"),
        ({"bad_time": 100}, r"^bad_time must lie between 0 and 60 s, got 100; .*100 ms is 0\.100$"),
        ({"bad_time": 0.1, "bad_loss": 0}, r"^bad_loss must be a fraction above 0, up to 1, got 0$"),
        ({"bad_time": 0.1, "bad_loss": 50}, r"^bad_loss must be a fraction above 0, up to 1, got 50$"),
        ({"bad_time": 0.1, "bad_loss": 0.02}, r"^loss must be below the bad_loss of 0\.02, got 0\.02$"),
        ({"bad_time": 0.1, "loss_burst": 2}, r"^loss_burst must be 1 with a bad_time of 0\.1 s, got 2$"),
        ({"bad_loss": 0.5}, r"^bad_loss must be 1 without a bad_time, got 0\.5$"),
    ],
)
def test_a_channel_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        td.Path(**{"rtt": 0.1, "loss": 0.02} | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"bad_time": 61},
            "bad_time must lie between 0 and 60 s, got 61; the duration is given in seconds: 100 ms is 0.100",
        ),
        ({"bad_time": 0.1, "bad_loss": 1.1}, "bad_loss must be a fraction above 0, up to 1, got 1.1"),
        ({"bad_time": 0.1, "bad_loss": 0.01}, "loss must be below the bad_loss of 0.01, got 0.02"),
    ],
)
def test_a_shared_path_refuses_such_a_channel_too(change, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        SharedPath(0.1, loss=0.02, **change)
