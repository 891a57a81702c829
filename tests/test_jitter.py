"""Jitter in the chain of Linux: what must hold always, what is refused, and the simulator."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.accuracy.errors import SIMULATED_JITTER
from tcpdelay.ask import Requested, UnsupportedError
from tcpdelay.chain.linux.delays import constant_paths, with_jitter
from tcpdelay.models.predict import capacity, carries, predict
from tcpdelay.scenario.scenario import Scenario

VOICE, PATH = td.Flow(174, 0.020, write_jitter=0), td.Path(rtt=0.101, loss=0.02)
DISTRIBUTIONS = st.builds(
    lambda delays, shares: td.DelayDistribution(
        np.array(sorted(delays)), np.array(shares[: len(delays)]) / sum(shares[: len(delays)]), min(delays)
    ),
    st.lists(st.floats(0.001, 5.0), min_size=1, max_size=8, unique=True),
    st.lists(st.floats(0.001, 1.0), min_size=8, max_size=8),
)


def by_chain(path, flow=VOICE, stack=None, **requested):
    """Return the chain's answer."""
    return predict(Scenario(flow, path, stack or td.Stack.linux()), Requested(**requested), "chain")


@given(st.lists(DISTRIBUTIONS, min_size=1, max_size=3), st.floats(1e-6, 1.0))
@settings(deadline=None)
def test_each_delay_gets_a_uniform_delay(distributions, jitter):
    values, weights = with_jitter(distributions, jitter)
    assert np.all(np.diff(values) > 0)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert weights.min() >= 0
    mean = np.mean([one.mean for one in distributions]) + jitter / 2
    assert (values * weights).sum() == pytest.approx(mean, rel=1e-9)
    smallest, largest = min(one.values[0] for one in distributions), max(one.worst for one in distributions)
    assert smallest <= values[0]
    assert values[-1] <= largest + jitter
    for at in np.linspace(smallest, largest + jitter, 7):
        share = np.mean([(one.weights * np.clip((at - one.values) / jitter, 0, 1)).sum() for one in distributions])
        # Delays are up to a step apart.
        step = max(jitter / 128, at / 512)
        found = [weights[values <= at + side * step].sum() for side in (-1, 1)]
        assert found[0] - 1e-9 <= share <= found[1] + 1e-9


@given(
    packet_size=st.integers(60, 1448),
    interval=st.floats(0.005, 0.1),
    rtt=st.floats(0.02, 0.3),
    loss=st.floats(0.001, 0.05),
    share=st.floats(0.001, 1.0),
    control=st.sampled_from(["cubic", "reno", "bbr"]),
)
@settings(deadline=None, max_examples=25)
def test_what_holds_in_any_scenario(packet_size, interval, rtt, loss, share, control):
    flow, stack = td.Flow(packet_size, interval, write_jitter=0), td.Stack.linux(control)
    path = td.Path(rtt, loss, jitter=share * interval)
    answer = by_chain(path, flow, stack, parts=True)
    if not answer.sustainable:
        assert answer.status in ("not carried", "too large")
        return
    delays = answer.distribution
    assert delays.values[0] >= path.forward_delay
    assert delays.weights.sum() == pytest.approx(1, abs=1e-9)
    assert sum(vars(answer.parts).values()) == pytest.approx(delays.mean, rel=1e-3)
    assert answer.parts.network == path.forward_delay + path.jitter / 2
    # Each packet takes its own additional delay. Delays are up to a step apart.
    median = delays.quantile(0.5)
    assert median >= path.forward_delay + 0.5 * path.jitter - max(path.jitter / 128, median / 512)
    assert carries(Scenario(flow, path, stack), "chain")


@pytest.mark.parametrize("control", ["cubic", "reno", "bbr"])
def test_without_jitter_nothing_changes(control):
    stack = td.Stack.linux(control)
    answer = by_chain(replace(PATH, jitter=0.0), stack=stack)
    expected = td.DelayModel(VOICE, PATH, stack).delay_distribution()
    assert np.array_equal(answer.distribution.values, expected.values)
    assert np.array_equal(answer.distribution.weights, expected.weights)


@pytest.mark.parametrize("control", ["cubic", "reno", "bbr"])
def test_a_vanishing_jitter_changes_nothing(control):
    stack = td.Stack.linux(control)
    calm = by_chain(PATH, stack=stack).distribution
    for jitter in (1e-9, 1e-6, 1e-5):
        delays = by_chain(replace(PATH, jitter=jitter), stack=stack).distribution
        assert delays.mean == pytest.approx(calm.mean, abs=3 * jitter, rel=1e-4)
        shares = np.array([0.5, 0.9, 0.97, 0.99])
        assert delays.quantile(shares) == pytest.approx(calm.quantile(shares), abs=1e-4)


def test_paths_have_the_mean_and_the_variance_of_the_round_trip_time():
    path = td.Path(rtt=0.100, loss=0.02, jitter=0.030, one_way_delay=0.04)
    found = constant_paths(path)
    assert {(one.forward_delay, one.loss, one.jitter) for one in found} == {(0.04, 0.02, 0.0)}
    times = np.array([one.rtt for one in found])
    assert times.mean() == pytest.approx(path.mean_rtt)
    assert times.std() == pytest.approx(path.jitter / np.sqrt(12))


def test_without_loss_delays_are_uniform():
    delays = by_chain(td.Path(rtt=0.100, loss=0.0, jitter=0.010)).distribution
    shares = np.array([0.1, 0.5, 0.95])
    assert delays.quantile(shares) == pytest.approx(0.050 + 0.010 * shares, abs=1e-4)
    assert delays.mean == pytest.approx(0.055)


OVERTAKEN = "with the segments of a burst reordered, the window grows on SACKs, which the chain does not know"


@pytest.mark.parametrize(
    ("flow", "rtt", "loss", "jitter", "control"),
    [
        (VOICE, 0.100, 0.02, 0.005, "cubic"),
        (VOICE, 0.100, 0.02, 0.020, "bbr"),
        pytest.param(td.Flow(1200, 0.020), 0.100, 0.01, 0.010, "reno", marks=pytest.mark.xfail(reason=OVERTAKEN)),
        (td.Flow(174, 0.060), 0.050, 0.02, 0.060, "cubic"),
        # The timer repairs what a sparse flow loses.
        (td.Flow(174, 0.600), 0.050, 0.02, 0.100, "cubic"),
    ],
)
def test_the_simulator_agrees_within_the_stated_error(flow, rtt, loss, jitter, control):
    # The chain of jitter knows no late writes.
    flow = replace(flow, write_jitter=0)
    path, stack = td.Path(rtt, loss, jitter=jitter), td.Stack.linux(control)
    chain = by_chain(path, flow, stack).distribution
    simulated = td.simulate(flow, path, stack, packets=300_000, seed=1)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.03)
    for share in (0.5, 0.95, 0.985):
        stated = by_chain(path, flow, stack, quantiles=(share,)).expected_error
        allowed = 0.02 if share == 0.5 else stated.p90
        around = simulated.quantile([share - 0.1 * (1 - share), share + 0.1 * (1 - share)])
        assert (1 - allowed) * around[0] <= chain.quantile(share) <= (1 + allowed) * around[1]


def test_all_precisions_and_figures_are_those_of_the_distribution():
    path, target = replace(PATH, jitter=0.010), td.Target(0.150, 0.95)
    whole = by_chain(path).distribution
    for precision in ("exact", "bound", "decision"):
        answer = by_chain(path, quantiles=(0.95,), late_after=(0.150,), precision=precision, target=target)
        assert answer.lateness == whole.late_fraction(0.150)
        assert answer.meets(target) == whole.meets(target)
        assert answer.quantiles.tolist() == [whole.quantile(0.95)]
        assert answer.mean == whole.mean
    assert (whole.method, whole.scenario[1]) == ("chain", path)


def test_the_expected_error_is_no_less_than_without_jitter():
    calm, jittery = (by_chain(replace(PATH, jitter=jitter)).expected_error for jitter in (0.0, 0.010))
    assert jittery.source == SIMULATED_JITTER
    assert jittery.p90 >= calm.p90
    assert jittery.mean_delay.mean >= calm.mean_delay.mean


def test_a_load_that_tcp_does_not_carry_on_the_longer_path_is_not_carried():
    flow, path = td.Flow(1448, 0.020), td.Path(rtt=0.100, loss=0.02, jitter=0.020)
    largest = capacity(Scenario(flow, path), "chain")
    each = [capacity(Scenario(flow, one), "chain") for one in constant_paths(path)]
    assert largest == min(each) < max(each)
    fast = td.Flow(1448, 0.005)
    answer = by_chain(replace(path, jitter=0.005), fast)
    assert (answer.status, answer.sustainable, answer.mean) == ("not carried", False, np.inf)
    assert answer.distribution.late_fraction(10.0) == 1


@pytest.mark.parametrize(
    ("flow", "path", "message"),
    [
        (VOICE, {"jitter": 0.03}, r"^jitter must be at most 0\.02 s, the interval, in the chain, got 0\.03; "),
        (
            td.Flow(174, 0.5),
            {"jitter": 0.3},
            r"^jitter must be at most 0\.2 s, the minimum retransmission timeout, in the chain, got 0\.3; ",
        ),
        (td.Flow(3000, 0.02), {}, r"^packet_size must be at most 1448 bytes in the chain with jitter, got 3000; "),
        (VOICE, {"loss_burst": 1.5}, r"^loss_burst must be 1 in the chain with jitter, got 1\.5; "),
        (VOICE, {"loss_pattern": "correlated"}, r"^loss_pattern must be 'random' in the chain with jitter, got "),
    ],
)
def test_what_is_refused_with_jitter_is_said_in_one_line_and_simulated(flow, path, message):
    jittery = replace(PATH, **({"jitter": 0.005} | path))
    with pytest.raises(UnsupportedError, match=message) as refused:
        by_chain(jittery, flow).require()
    assert "\n" not in str(refused.value)
    assert np.isnan(capacity(Scenario(flow, jittery), "chain"))
    assert predict(Scenario(flow, jittery), Requested(packets=2000)).method == "simulation"


def test_searches_and_reports_take_jitter():
    path = td.Path(rtt=0.100, loss=0.01, jitter=0.005)
    target = td.Target(0.146)
    found = td.largest_loss(VOICE, path, target=target)
    assert found.method == "chain"
    simulated = td.largest_loss(VOICE, path, target=target, method="simulation")
    assert found.certain <= simulated.value <= found.impossible
    report = td.guideline("voip", path)
    assert report.distribution.method == "chain"
    assert report.refused == ()
    assert "up to 5 ms per segment, 2.5 ms in the mean" in report.to_markdown()
