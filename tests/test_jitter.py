"""Jitter: its kinds by netem's formula, in the chain, the simulator, the command line and the testbed."""

import json
import math
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

import tcpdelay as td
from guest_requirements import require
from tcpdelay.accuracy.errors import SIMULATED_JITTER
from tcpdelay.ask import Requested, UnsupportedError
from tcpdelay.capture.flow_capture import read_capture
from tcpdelay.chain.linux.delays import constant_paths, with_jitter
from tcpdelay.models.predict import capacity, carries, predict
from tcpdelay.proxy.stream import Stream
from tcpdelay.scenario.jitter import jitter_table, mean_jitter
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.sim.engine import new_connection
from tcpdelay.sim.network.relay import over_udp
from tcpdelay.sim.network.stacks import Udp
from tcpdelay.sim.path import arrival_time
from tcpdelay.sim.simulation import simulate
from tcpdelay.testbed.backends import VirtualTimeBackend
from tcpdelay.testbed.campaign import Specification, run_campaign
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.queues import JitterDraw, JitteredDelays, NetemOptions, set_netem
from tcpdelay.testbed.topology import EmulatedPath, Link

# In the chain of Linux: what must hold always, what is refused, and the simulator

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
        (
            VOICE,
            {"jitter_distribution": "normal"},
            "^jitter_distribution must be 'uniform' in the chain, got 'normal'; ",
        ),
        (VOICE, {"jitter_correlation": 0.5}, r"^jitter_correlation must be 0 in the chain, got 0\.5; "),
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


# Normal, Pareto, correlated and ordered jitter

TABLES = ("normal", "pareto", "paretonormal")
SHAPES = ("uniform", *TABLES)
SCALE = 8192  # NETEM_DIST_SCALE


def generated(name):
    """Return a table as netem/normal.c, pareto.c and paretonormal.c of iproute2 generate it."""
    grid = np.add.accumulate(np.concatenate([[-10.0], np.full(401_000, 0.00005)]))
    table = np.zeros(16_385)
    table[np.rint(16_384 * (0.5 + 0.5 * special.erf(grid / math.sqrt(2)))).astype(int)] = grid
    normal = np.rint(table[:-1:4] * SCALE).astype(int)
    share = np.arange(65_536, 0, -16) / 65_536
    pareto = np.rint(np.minimum((1 / share ** (1 / 3) - 1.5) * (4 / 3) * SCALE, 32_767)).astype(int)
    mixed = np.trunc((normal + 3 * pareto) / 4).astype(int)
    return np.clip({"normal": normal, "pareto": pareto, "paretonormal": mixed}[name], -32_768, 32_767)


def tabledist(mean, deviation, entries):
    """Return the delays of netem's `tabledist` [ns] for entries of a table; C rounds a quotient toward 0."""
    rest = (deviation % SCALE) * entries.astype(np.int64)
    quotient = np.trunc((rest + np.where(rest >= 0, SCALE // 2, -(SCALE // 2))) / SCALE).astype(np.int64)
    return quotient + deviation // SCALE * entries.astype(np.int64) + mean


def arrivals(path, count, gap=1000, seed=1):
    """Return when segments arrive that are sent with gaps [us], and the shares that the generator draws for them."""
    c, wire = new_connection(VOICE, path, td.Stack.linux(), seed)
    twin = np.random.default_rng()
    twin.bit_generator.state = wire.random.bit_generator.state
    found = np.empty(count, np.int64)
    for number in range(count):
        c.now = number * gap
        found[number] = arrival_time(c, wire.record)
    return found, twin.random(count)


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_those_of_iproute2(name):
    assert list(jitter_table(name)) == generated(name).tolist()
    for file in Path("/usr/lib").glob(f"*/tc/{name}.dist"):
        numbers = [int(word) for line in file.read_text().splitlines() if line[0] != "#" for word in line.split()]
        assert list(jitter_table(name)) == numbers


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(("rtt", "jitter"), [(0.1, 0.030), (0.1, 0.017383), (0.004, 0.030)])
def test_the_sampler_follows_the_formula_of_netem(name, rtt, jitter):
    path = td.Path(rtt, 0.0, jitter=jitter, jitter_distribution=name)
    found, shares = arrivals(path, 2000)
    delays = tabledist(
        round(1e9 * (rtt + jitter) / 2), round(1e9 * jitter / 2), generated(name)[(shares * 4096).astype(int)]
    )
    # A delay below 0 is none.
    expected = np.floor(np.maximum(delays, 0) / 1000 + 0.5)
    assert (found - 1000 * np.arange(2000)).tolist() == expected.tolist()
    assert (np.min(delays) < 0) == (rtt == 0.004 and name != "pareto")


def test_a_uniform_jitter_is_drawn_as_before():
    found, shares = arrivals(td.Path(0.1, 0.0, jitter=0.030), 1000)
    assert (found - 1000 * np.arange(1000)).tolist() == (50_000 + (shares * 30_001).astype(int)).tolist()


@given(
    rtt=st.floats(0.001, 0.3),
    jitter=st.floats(0.001, 0.2),
    name=st.sampled_from(SHAPES),
    correlation=st.sampled_from([0.0, 0.3]),
)
@settings(deadline=None, max_examples=30)
def test_delays_have_the_stated_mean_and_range(rtt, jitter, name, correlation):
    path = td.Path(rtt, 0.0, jitter=jitter, jitter_distribution=name, jitter_correlation=correlation)
    found, _ = arrivals(path, 4000, gap=0)
    added = found / 1e6 - path.forward_delay
    # The standard deviation is half of the jitter at most, and correlated draws count as fewer.
    error = 5 * jitter / 2 / np.sqrt(4000 * (1 - correlation) / (1 + correlation))
    assert added.mean() == pytest.approx(path.mean_jitter, abs=error + 2e-6)
    assert added.max() <= path.largest_jitter + 2e-6
    assert found.min() >= 0
    if name == "uniform":
        assert added.min() >= -2e-6


@pytest.mark.parametrize("name", TABLES)
def test_mean_and_deviation_are_about_half_of_the_jitter(name):
    table = np.array(jitter_table(name)) / SCALE
    # The Pareto distribution ends at four standard deviations: its tail is missing.
    assert table.mean() == pytest.approx(0, abs=0.04)
    assert table.std() == pytest.approx(1, abs=0.19)
    assert mean_jitter(1.0, 0.02, name) == pytest.approx(0.01 * (1 + table.mean()))


@given(
    gaps=st.lists(st.integers(0, 40_000), min_size=2, max_size=60),
    jitter=st.floats(0.0, 0.2),
    name=st.sampled_from(SHAPES),
    correlation=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_in_order_no_segment_overtakes_another_and_none_waits_longer_than_it_must(
    gaps, jitter, name, correlation, seed
):
    more = {"jitter_distribution": name, "jitter_correlation": correlation} if jitter else {}
    found = []
    for in_order in (False, True):
        path = td.Path(0.05, 0.0, jitter=jitter, in_order=in_order, **more)
        c, wire = new_connection(VOICE, path, td.Stack.linux(), seed)
        times = []
        for sent in np.cumsum(gaps):
            c.now = sent
            times.append(arrival_time(c, wire.record))
        found.append(times)
    free, ordered = found
    assert ordered == sorted(set(ordered))
    last = -1
    for own, arrival in zip(free, ordered, strict=True):
        assert arrival == max(own, last + 1)
        last = arrival


@pytest.mark.parametrize("name", SHAPES)
def test_correlated_delays_have_the_same_distribution(name):
    path = td.Path(0.5, 0.0, jitter=0.030, jitter_distribution=name)
    free, _ = arrivals(path, 60_000, gap=0)
    found, _ = arrivals(replace(path, jitter_correlation=0.9), 60_000, gap=0)
    # Of successive delays with a correlation of 0.9, every 60th is as good as independent: 0.9^60 = 0.002.
    assert stats.ks_2samp(free, found[::60]).pvalue > 0.001
    lag = np.corrcoef(found[:-1], found[1:])[0, 1]
    expected = {"normal": 0.9, "uniform": 6 / np.pi * np.arcsin(0.45)}
    assert lag == pytest.approx(expected.get(name, 0.87), abs=0.01 if name in expected else 0.04)
    assert abs(np.corrcoef(free[:-1], free[1:])[0, 1]) < 0.02


@pytest.mark.parametrize("name", SHAPES)
def test_the_testbed_draws_correlated_delays_as_the_simulator(name):
    draw = JitterDraw(0.25, 0.030, name, 0.9, seed=3)
    drawn = np.array([draw() for _ in range(60_000)]) / 1000
    path = td.Path(0.5, 0.0, jitter=0.030, jitter_distribution=name, jitter_correlation=0.9)
    found, _ = arrivals(path, 60_000, gap=0)
    assert stats.ks_2samp(drawn[::60], found[::60]).pvalue > 0.001
    lags = [np.corrcoef(each[:-1], each[1:])[0, 1] for each in (drawn, found)]
    assert lags[0] == pytest.approx(lags[1], abs=0.02)


def test_the_correlation_of_netem_itself_has_no_effect_on_delays():
    # get_crandom: x = (value (2^32 - rho) + last rho) / 2^32, and then the remainder by the size of the table.
    random, rho, last = np.random.default_rng(5), 0.9, 0.0
    numbers = np.empty(50_000)
    for place, value in enumerate(random.integers(2**32, size=numbers.size)):
        numbers[place] = last = math.floor(value * (1 - rho) + last * rho)
    assert np.corrcoef(numbers[:-1], numbers[1:])[0, 1] == pytest.approx(0.9, abs=0.01)
    for delays in (numbers % 20_000_000, generated("normal")[(numbers % 4096).astype(int)]):
        assert abs(np.corrcoef(delays[:-1], delays[1:])[0, 1]) < 0.02


def test_a_link_of_the_testbed_keeps_the_order_on_request():
    arrived = []
    for in_order in (False, True):
        link = JitteredDelays(JitterDraw(0.05, 0.03, "normal", 0.5, seed=1), in_order)
        arrived.append([link.after(1_000_000 * number, 200)[1] for number in range(2000)])
    # 200 B with an overhead of 250 B take 3.6 us at 1 Gbit/s.
    assert np.all(np.diff(arrived[1]) >= 3600)
    assert np.all(np.array(arrived[1]) >= np.maximum.accumulate(arrived[0]))
    assert np.diff(arrived[0]).min() < 0


@pytest.mark.parametrize("name", SHAPES)
def test_tcp_sees_no_reordering_where_segments_keep_their_order(name):
    counts, tails = [], []
    for in_order in (False, True):
        path = td.Path(0.1, 0.005, jitter=0.03, jitter_distribution=name, in_order=in_order)
        found = simulate(td.Flow(500, 0.010, write_jitter=0), path, packets=30_000, seed=1)
        counts.append(found.counts["undone"] + found.counts["paws_discards"] + found.counts["dsack_dups"])
        tails.append(found.quantile(0.95))
    assert counts[0] > 20
    assert counts[1] == 0
    assert tails[1] < tails[0]


@pytest.mark.parametrize("delivery", ["stream", "datagram"])
def test_quic_takes_every_kind_of_jitter(delivery):
    stack = td.Stack.quic(delivery=delivery)
    plain = simulate(VOICE, td.Path(0.1, 0.0, jitter=0.03), stack, packets=5000, seed=1)
    for kind in ({"jitter_distribution": "pareto"}, {"jitter_correlation": 0.9}, {"in_order": True}):
        path = td.Path(0.1, 0.0, jitter=0.03, **kind)
        found = simulate(VOICE, path, stack, packets=5000, seed=1)
        assert found.mean != plain.mean
        assert path.forward_delay <= found.quantile(0.01) <= found.quantile(0.999) <= 0.05 + path.largest_jitter + 1e-5


def test_a_live_connection_takes_every_kind_of_jitter():
    path = td.Path(0.1, 0.0, jitter=0.03, jitter_distribution="normal", jitter_correlation=0.5, in_order=True)
    stream = Stream(path, td.Stack.linux(), seed=1)
    for number in range(50):
        stream.write(b"x" * 100, 20_000 * number)
    data, delivered = stream.take(2_000_000)
    delays = [each.due - each.written for each in delivered]
    assert len(data) == 5000
    assert len(set(delays)) > 40
    assert max(delays) <= 1e6 * (path.forward_delay + path.largest_jitter)


def test_a_relay_over_udp_takes_every_kind_of_jitter():
    times, sizes = np.arange(20_000) * 5000, np.full(20_000, 100)
    path = td.Path(0.1, 0.0, jitter=0.03, jitter_distribution="normal", in_order=True)
    delays = over_udp(times, sizes, path, Udp(), 1).delays
    assert np.all(np.diff(times + delays) >= 0)
    free = over_udp(times, sizes, td.Path(0.1, 0.0, jitter=0.03, jitter_distribution="normal"), Udp(), 1).delays
    assert free.mean() == pytest.approx(65_000, abs=600)
    assert delays.mean() > free.mean()


def test_the_chain_takes_segments_in_order():
    # With a jitter up to the interval, packets that leave with their writes keep their order in any case.
    free, ordered = (
        predict(Scenario(VOICE, td.Path(0.1, 0.02, jitter=0.01, in_order=kept)), method="chain").require()
        for kept in (False, True)
    )
    assert ordered.quantile(0.95) == free.quantile(0.95)
    # Without jitter the order is kept anyway, in every chain.
    for stack in (td.Stack.newreno_2008(), td.Stack.linux()):
        predict(Scenario(VOICE, td.Path(0.1, 0.02, in_order=True), stack), method="chain").require()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--jitter-distribution", "normal"), "--jitter-distribution: must be 'uniform' without a jitter"),
        (("--jitter-correlation", "50%"), "--jitter-correlation: must be 0 without a jitter, got 0.5"),
        (("--jitter", "5ms", "--jitter-correlation", "100%"), "--jitter-correlation: "),
        (("--jitter", "5ms", "--jitter-distribution", "gauss"), "--jitter-distribution: "),
        (("--jitter", "5ms", "--in-order", "--reordering", "1%"), "--reordering: must be 0 where segments keep their"),
    ],
)
def test_a_wrong_kind_of_jitter_is_refused_with_its_option(refused, given, message):
    assert refused("predict", "--rtt", "100ms", "--loss", "1%", "--app", "voip", *given).startswith(
        f"tcpdelay predict: {message}"
    )


def test_options_and_sweeps_have_every_kind_of_jitter(run):
    kind = ("--jitter-distribution", "normal", "--jitter-correlation", "90%", "--in-order")
    given = ("--rtt", "100ms", "--loss", "1%", "--app", "voip", "--jitter", "30ms", *kind, "--packets", "2000")
    status, printed, _ = run("predict", *given)
    assert status == 0
    assert "jitter distribution normal, jitter correlation 90 %, in order on" in " ".join(printed.split())
    # A preset's order can be switched off.
    for more, said in (((), True), (("--no-in-order",), False)):
        _, printed, _ = run("predict", "--path", "lte", *more, "--app", "voip", "--packets", "2000")
        assert ("in order on" in " ".join(printed.split())) == said
    swept = td.sweep(
        {
            "flow": {"packet_size": 174, "interval": "20ms"},
            "path": {"rtt": "100ms", "loss": "1%", "jitter": "30ms"},
            "grid": {"jitter_distribution": ["uniform", "pareto"], "in_order": [False, True]},
            "evaluate": {"method": "simulation", "packets": 2000, "seed": 1},
        }
    )
    assert swept.delay.sizes["jitter_distribution"] == swept.delay.sizes["in_order"] == 2
    assert np.isfinite(swept.delay).all()


class Recorder:
    """A kernel that notes the options of netem."""

    def tc(self, command, kind, device, **options):
        self.kind, self.block = kind, options["block"]
        self.attributes = dict(self.block["attrs"])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("in_order", [False, True])
def test_netem_gets_its_own_table_and_a_rate_that_keeps_the_order(name, in_order):
    experiment = Experiment(jitter=0.020, jitter_distribution=name, in_order=in_order)
    link = Link(0.050, jitter=0.020, jitter_distribution=name, in_order=in_order)
    kernel = Recorder()
    set_netem(kernel, "add", 1, link)
    # As in: tc qdisc add dev eth0 root netem delay 60ms 10ms distribution normal; a tick is 64 ns.
    assert (kernel.kind, kernel.block["delay"], kernel.block["jitter"]) == ("netem", 937_500, 156_250)
    table = kernel.attributes.get("TCA_NETEM_DELAY_DIST")
    assert table is None if name == "uniform" else struct.unpack("4096h", table) == tuple(generated(name))
    # As in: rate 1gbit 250, in bytes/s.
    rate = {"rate": 125_000_000, "packet_overhead": 250, "cell_size": 0, "cell_overhead": 0}
    assert kernel.attributes.get("TCA_NETEM_RATE") == (rate if in_order else None)
    assert "TCA_NETEM_CORR" not in kernel.attributes
    # The attributes have their place in linux/pkt_sched.h.
    names = [attribute for attribute, _ in NetemOptions.nla_map]
    assert (names.index("TCA_NETEM_DELAY_DIST"), names.index("TCA_NETEM_RATE")) == (2, 6)
    path = experiment.lossy_path
    assert (path.jitter_distribution, path.in_order) == (name, in_order)
    assert Experiment.from_table(json.loads(experiment.to_json())) == experiment


def test_names_and_hashes_of_earlier_experiments_do_not_change():
    assert not {"jitter_distribution", "jitter_correlation", "in_order"} & json.loads(Experiment().to_json()).keys()
    named = Experiment(jitter=0.02, jitter_distribution="normal", jitter_correlation=0.9, in_order=True).name
    assert named.endswith("-jitter0.02s-normal-corr0.9-inorder-on")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"jitter_distribution": "normal"}, "jitter_distribution must be 'uniform' without a jitter, got 'normal'"),
        ({"jitter": 0.1, "jitter_correlation": 1.0}, "jitter_correlation must be a fraction from 0 to below 1, got 1"),
        ({"jitter": 0.1, "in_order": 1}, "in_order must be True or False, got 1"),
        ({"jitter": 0.1, "jitter_distribution": "gauss"}, "jitter_distribution must be one of 'uniform', 'normal', "),
    ],
)
def test_an_experiment_refuses_wrong_kinds(settings, message):
    with pytest.raises(ValueError, match=message):
        Experiment(**settings)


def test_a_path_of_programs_refuses_reordering_beside_correlated_jitter():
    with pytest.raises(ValueError, match=r"reordering must be 0 with correlated jitter, got 0\.1"):
        EmulatedPath(rtt=0.1, jitter=0.01, jitter_correlation=0.5, reordering=0.1)


KINDS = (
    {"jitter_distribution": "normal"},
    {"jitter_distribution": "pareto", "in_order": True},
    {"jitter_correlation": 0.9},
    {"jitter_distribution": "normal", "jitter_correlation": 0.9, "in_order": True},
)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Datagrams over each kind of jitter, in one guest."""
    require(VirtualTimeBackend(250).problems(), "VIRTUAL")
    own = {"application": "udp", "interval": 0.005, "rtt": 0.1, "jitter": 0.02, "duration": 60.0}
    experiments = tuple(Experiment(**own, **kind) for kind in KINDS)
    files = run_campaign(Specification("kinds", experiments), tmp_path_factory.mktemp("kinds"))
    return [read_capture(file).runs[0] for file in files]


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_packets_in_the_guest_have_the_delays_of_the_simulator(captured, number):
    kind, run = KINDS[number], captured[number]
    delays, read = run.delay[200:], (run.written + run.delay)[200:]
    found, _ = arrivals(td.Path(0.1, 0.0, jitter=0.02, **kind), 100_000, gap=5000)
    found -= 5000 * np.arange(found.size)
    # As good as independent: of delays with a correlation of 0.9, every 60th.
    apart = 60 if "jitter_correlation" in kind else 5
    assert stats.ks_2samp(delays[::apart], found[::apart]).pvalue > 1e-4
    lags = [np.corrcoef(each[:-1], each[1:])[0, 1] for each in (delays, found)]
    assert lags[0] == pytest.approx(lags[1], abs=0.04)
    # Times are rounded to microseconds.
    assert (np.diff(read).min() >= -1) == kind.get("in_order", False)
