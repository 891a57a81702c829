"""How far a prediction is probably off, which method answers, and the map of the chain's error."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path as FilePath
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from near_capacity import RESULTS, backlog_cases, backlog_errors
from scoring import error_map
from scoring.capture_comparison import error_in_captures
from scoring.error_map import (
    SimulatedScenario,
    extend,
    random_scenario,
    read_simulated,
    simulate_scenario,
    write_simulated,
)
from scoring.error_map_scores import (
    LOSS,
    UTILIZATION,
    error_table,
    expected_table,
    groups_table,
    score_map,
    worst_table,
)
from scoring.error_map_scores import error_map as drawn_map
from scoring.spreads import model_spread, spread_of
from tcpdelay.accuracy import errors as module
from tcpdelay.accuracy.errors import (
    BACKLOG_ERRORS,
    BEYOND_CAPACITY,
    CAPACITY_ERROR,
    FEATURES,
    LARGEST_CAPACITY_ERROR,
    NEIGHBOURS,
    PUBLISHED_ERROR,
    QUANTILES,
    SIMULATED_RATE_ERROR,
    SIMULATOR_ERROR,
    ErrorTable,
    expected_error,
    features_of,
    in_words,
    statistical_error,
)
from tcpdelay.accuracy.validity import LINUX_RANGE, ValidityWarning
from tcpdelay.ask import Requested
from tcpdelay.budget import TooLargeError
from tcpdelay.chain import chains as chain_models
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import predict, predict_delay
from tcpdelay.models.verdict import judge
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, Target
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim import simulation
from tcpdelay.sim.simulation import simulate
from tcpdelay.statistics import Interval
from tcpdelay.study.largest import largest_loss
from tcpdelay.study.region import VERDICTS, working_region
from tcpdelay.study.validation.predictions import Prediction
from tcpdelay.units import format_fraction

ROOT = FilePath(__file__).parents[1]
FLOW, PATH, LINUX = Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux()


def table_of(p95, mean=0.0, *, count=400, cubic=True, carried=True):
    """Return a table of scenarios around the one above, all with the same errors."""
    random = np.random.default_rng(1)
    features = features_of(FLOW, PATH, LINUX) * np.exp(random.normal(size=(count, 4)))
    flags = [np.full(count, flag) for flag in (cubic, carried)]
    return ErrorTable(features, *flags, {0.95: np.full(count, p95)}, np.full(count, mean))


def joined(*tables):
    """Return one table of the rows of several."""
    names = ("features", "cubic", "carried", "mean")
    features, cubic, carried, mean = (np.concatenate([getattr(table, name) for table in tables]) for name in names)
    return ErrorTable(features, cubic, carried, {0.95: np.concatenate([one.quantiles[0.95] for one in tables])}, mean)


@pytest.fixture
def use(monkeypatch):
    """Return a function that makes a table the one that predictions look up."""

    def use(table, with_bursts=None, correlated=None):
        def linux_table(burst=1.0, bbr=False, rest_lost=False):
            return correlated if rest_lost and correlated else with_bursts if burst > 1 and with_bursts else table

        monkeypatch.setattr(module, "linux_table", linux_table)

    return use


@pytest.fixture
def linux_chain(monkeypatch):
    """Let a model stand in for the chain of Linux that says 0.1 s, or whatever is put in its place."""

    class Model:
        answer = DelayDistribution(np.array([0.05, 0.1]), np.array([0.5, 0.5]), one_way_delay=0.05)
        capacity = np.inf
        known_capacity = None

        def __init__(self, profile, budget):
            pass

        def distribution_up_to(self, limit, quantile):
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        def distribution_alone(self, figures):
            return self.distribution_up_to(figures.limit, figures.share)

    monkeypatch.setattr(chain_models, "SolvedChain", Model)
    return Model


@pytest.fixture
def brief(monkeypatch):
    """Let simulations be over soon."""
    monkeypatch.setattr(simulation, "MOST_PACKETS", 20_000)


def test_the_errors_near_capacity_are_those_of_the_results():
    assert backlog_errors(backlog_cases()) == BACKLOG_ERRORS
    simulated = pd.read_csv(RESULTS / "near-capacity.csv").dropna(subset="rate")
    missing = (simulated["rate"] / simulated["simulated_rate"] - 1).max()
    assert missing == pytest.approx(SIMULATED_RATE_ERROR, abs=5e-4)
    off = (pd.read_csv(RESULTS / "capacity.csv")["simulated"] - 1).abs()
    assert off.quantile(0.9) == pytest.approx(CAPACITY_ERROR - SIMULATED_RATE_ERROR, abs=5e-3)
    too_small = (pd.read_csv(RESULTS / "capacity.csv")["simulated"] - 1).max()
    assert too_small == pytest.approx(LARGEST_CAPACITY_ERROR - SIMULATED_RATE_ERROR, abs=5e-4)


def test_far_beyond_the_capacity_the_chain_is_not_wrong():
    """The map of the error ends at twice the fair rate; half of its cases there are wrong calls."""
    video, path = Flow.from_bitrate(2_500_000), Path(rtt=0.250, loss=0.05)
    answer = predict(Scenario(video, path, LINUX), method="chain")
    assert not answer.sustainable
    assert answer.expected_error == BEYOND_CAPACITY
    assert judge(Scenario(video, path, LINUX), Target(5.0, 0.999), "chain").verdict == "fails"
    region = working_region(video, LINUX, rtt=[0.250], loss=[0.0002, 0.001, 0.05], limit=5.0, quantile=0.999)
    assert region.expected_error_p90.values[0, -1] == 0
    assert region.verdict.values[0, -1] == VERDICTS.index("fails")


def test_a_path_without_a_delay_to_the_receiver_has_an_expected_error():
    simulated = simulate(FLOW, Path(0.1, 0.02, one_way_delay=0.0), LINUX, packets=20_000)
    assert 0 < simulated.expected_error.p90 < 1


def test_the_expected_error_is_that_of_the_nearest_scenarios():
    near, far = table_of(-0.03, 0.01, count=60), table_of(0.5, 0.2)
    far = ErrorTable(far.features * 50, far.cubic, far.carried, far.quantiles, far.mean)
    found = joined(near, far).expected(features_of(FLOW, PATH, LINUX), cubic=True, carried=True)
    assert (found.median, found.p90, found.mean_delay.median) == pytest.approx((0.03, 0.03, 0.01))
    assert found.mean == pytest.approx(0.03)
    assert found.cases == NEIGHBOURS


def test_nearer_scenarios_count_more():
    ring = np.exp(np.arange(1, 61) / 60)[:, None]
    table = ErrorTable(ring * np.ones(4), *np.ones((2, 60), bool), {0.95: np.arange(60) / 60}, np.zeros(60))
    found = table.expected(np.ones(4), cubic=True, carried=True)
    assert found.mean < np.mean(np.arange(NEIGHBOURS) / 60)


def test_only_the_same_congestion_control_and_statement_count():
    kinds = [(True, True, 0.01), (False, True, 0.02), (True, False, 0.0), (False, False, 1.0)]
    table = joined(*(table_of(error, cubic=cubic, carried=carried) for cubic, carried, error in kinds))
    for cubic, carried, error in kinds:
        assert table.expected(features_of(FLOW, PATH, LINUX), cubic, carried).median == error


def test_a_scenario_far_outside_has_the_error_of_the_edge():
    found = table_of(0.04).expected(np.array([1e3, 0.0, 0.0, 1e9]), cubic=True, carried=True)
    assert found.median == 0.04


@pytest.mark.parametrize(("asked", "known"), [(0.5, 0.95), (0.95, 0.95), (0.97, 0.99), (0.999, 0.999), (0.9999, 0.999)])
def test_the_error_is_that_of_the_next_higher_quantile(use, asked, known):
    table = table_of(0.0)
    quantiles = {quantile: np.full(table.mean.size, quantile / 2) for quantile in QUANTILES}
    use(replace(table, quantiles=quantiles))
    found = expected_error(FLOW, PATH, LINUX, quantile=asked)
    assert (found.quantile, found.p90) == (known, pytest.approx(np.hypot(known / 2, SIMULATOR_ERROR.p90)))


def test_a_target_has_the_error_of_its_quantile():
    """A lost retransmission is rare at p95, and common at p99.9, where the chain is wrong by more."""
    scenario = Scenario(FLOW, PATH, LINUX)
    usual, target = predict(scenario, method="chain"), Target(0.4, 0.999)
    asked = predict(scenario, Requested(target=target), "chain")
    assert (usual.expected_error.quantile, asked.expected_error.quantile) == (0.95, 0.999)
    assert asked.distribution.expected_error.quantile == 0.95
    assert judge(scenario, target, "chain").answer.expected_error == asked.expected_error
    assert largest_loss(FLOW, PATH, LINUX, target).expected_error.quantile == 0.999


def test_without_any_such_case_nothing_is_known():
    found = table_of(0.04).expected(features_of(FLOW, PATH, LINUX), cubic=False, carried=True)
    assert np.isnan([found.median, found.mean, found.p90, found.mean_delay.mean]).all()
    assert found.cases == 0
    assert in_words(found) == "not known"


@given(
    st.lists(st.floats(-10, 10), min_size=1, max_size=50).flatmap(
        lambda errors: st.tuples(
            st.just(np.array(errors)),
            st.lists(st.floats(0.01, 1), min_size=len(errors), max_size=len(errors)).map(np.array),
        )
    )
)
def test_the_spread_is_ordered_and_half_lies_below_the_median(case):
    errors, weights = case
    found, sizes = spread_of(errors, weights), np.abs(errors)
    assert sizes.min() <= found.median <= found.p90 <= sizes.max()
    assert weights[sizes <= found.median].sum() >= weights.sum() * (0.5 - 1e-6)
    assert weights[sizes < found.p90].sum() <= weights.sum() * (0.9 + 1e-6)
    # Products of the smallest errors and their weights underflow.
    assert sizes.min() * (1 - 1e-9) - 1e-300 <= found.mean <= sizes.max() * (1 + 1e-9)


def test_a_table_survives_its_file(tmp_path):
    table, file = joined(table_of(0.0312, -0.5), table_of(-1.0, 1.0, cubic=False, carried=False)), tmp_path / "t.csv"
    file.write_text(table.to_csv())
    again = ErrorTable.read(file)
    np.testing.assert_allclose(again.features, table.features, rtol=5e-3)
    for name in ("cubic", "carried", "mean"):
        np.testing.assert_array_equal(getattr(again, name), getattr(table, name))
    np.testing.assert_array_equal(again.quantiles[0.95], table.quantiles[0.95])


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "a,b\nx,y\n"])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    file = tmp_path / "t.csv"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"t\.csv: holds no table of errors"):
        ErrorTable.read(file)


def test_the_table_of_the_package_holds_all_kinds_of_cases_and_is_small():
    table = module.linux_table()
    assert table.features.shape[1] == len(FEATURES)
    assert {(cubic, True) for cubic in (True, False)} <= set(zip(table.cubic, table.carried, strict=True))
    assert module.linux_table_file().stat().st_size < 300_000
    assert set(table.quantiles) == set(QUANTILES)
    assert all(np.isfinite(errors).all() for errors in table.quantiles.values())
    assert np.isfinite(table.mean).all()


def scores_of(model):
    """Return the scores of a model in the captures that the published chain was asked about, with their intervals."""
    keys = ["capture", "collection"]
    scores, captures = (pd.read_csv(RESULTS / f"{name}.csv") for name in ("scores", "captures"))
    scores = scores[scores["comparable"]]
    asked = scores[scores["model"] == "newreno_2008"]["capture"]
    return scores[(scores["model"] == model) & scores["capture"].isin(asked)].merge(
        captures.drop(columns="utilization"), on=keys
    )


def test_the_errors_of_the_published_chain_are_those_that_were_measured():
    scores = scores_of("newreno_2008")
    assert len(scores) == PUBLISHED_ERROR.cases
    for quantity, spread in (("p95", PUBLISHED_ERROR), ("mean", PUBLISHED_ERROR.mean_delay)):
        assert list(vars(spread_of(scores[f"error_{quantity}"].to_numpy())).values()) == pytest.approx(
            [spread.median, spread.mean, spread.p90], abs=0.02
        )


def test_the_errors_of_the_simulator_are_those_that_were_measured():
    scores = scores_of("simulator")
    assert len(scores) == SIMULATOR_ERROR.cases
    for quantity, spread in (("p95", SIMULATOR_ERROR), ("mean", SIMULATOR_ERROR.mean_delay)):
        found = error_in_captures(scores[f"predicted_{quantity}"], scores, quantity)
        for statistic, value in vars(found).items():
            assert value == pytest.approx(getattr(spread, statistic), abs=0.00006)


@pytest.mark.parametrize("deviation", [0.0, 0.03])
def test_the_sampling_error_of_captures_is_taken_out(deviation):
    """Errors of 2 % in nine of ten, in captures with errors of their own."""
    random = np.random.default_rng(1)
    errors = random.normal(0, 0.02 / 1.645, 100_000) + random.normal(0, deviation, 100_000)
    found = model_spread(errors, np.full(errors.size, deviation))
    assert found.p90 == pytest.approx(0.02, rel=0.05)
    assert found.median == pytest.approx(0.02 * 0.674 / 1.645, rel=0.1)
    assert found.mean == pytest.approx(0.02 * 0.798 / 1.645, rel=0.1)
    exact = model_spread(random.normal(0, 0.03, 100_000), np.full(100_000, 0.03))
    assert exact.p90 < 0.005


def test_no_error_is_smaller_than_that_of_what_it_was_measured_with(use):
    use(joined(table_of(1e-5, 1e-5), table_of(0.0, carried=False)))
    found = expected_error(FLOW, PATH, LINUX)
    least = SIMULATOR_ERROR
    assert (found.median, found.mean, found.p90) == pytest.approx((least.median, least.mean, least.p90), abs=1e-5)
    assert found.mean_delay.p90 == pytest.approx(least.mean_delay.p90, abs=1e-5)
    assert (found.cases, found.source) == (NEIGHBOURS, "simulations of scenarios like this one")
    assert expected_error(FLOW, PATH, LINUX, carried=False).p90 == 0.0


def test_unknown_stacks_have_no_expected_error():
    with pytest.raises(ValueError, match="stack must come from one of the profiles"):
        expected_error(FLOW, PATH, Stack())


def test_statistical_errors_follow_from_the_interval():
    found = statistical_error(Interval(1.0, 1 - 0.0209, 1 + 0.0209), Interval(0.1, 0.1, 0.1), 5000)
    assert (found.median, found.mean, found.p90) == pytest.approx((0.00674, 0.00798, 0.01645))
    assert found.mean_delay.p90 == 0
    assert in_words(found).endswith("in nine of ten: the statistical error of 5000 simulated packets")


def test_the_error_is_that_of_the_quantile_asked_for():
    found = statistical_error(Interval(1.0, 0.98, 1.02), Interval(0.1, 0.1, 0.1), 5000, 0.99)
    assert in_words(found, 0.99).startswith("p99 0.")
    assert in_words(SIMULATOR_ERROR, 0.999).startswith("p95, not p99.9, 0.01 % off in the median")
    assert in_words(SIMULATOR_ERROR, 0.95).startswith("p95 0.01 % off in the median")


def test_a_simulation_states_the_error_of_its_own_quantile():
    simulated = simulate(FLOW, PATH, LINUX, packets=60_000, quantile=0.99, seed=1)
    half = simulated.quantile_interval.relative_half_width
    error = simulated.expected_error
    assert error.quantile == 0.99
    assert error.median < half
    assert in_words(error, 0.99).startswith("p99 ")


def test_a_prediction_knows_its_method_and_error(use, linux_chain):
    use(table_of(0.02))
    predicted = predict_delay(FLOW, PATH, LINUX, method="chain")
    assert (predicted.method, predicted.expected_error.median) == ("chain", pytest.approx(0.02, abs=1e-5))
    assert predicted.quantile(0.95) == linux_chain.answer.quantile(0.95)


def test_the_published_chain_says_what_it_was_off_by():
    predicted = predict_delay(FLOW, PATH, Stack.newreno_2008(), method="auto")
    assert (predicted.method, predicted.expected_error) == ("chain", PUBLISHED_ERROR)


def test_what_is_no_prediction_has_no_expected_error():
    assert DelayDistribution.from_samples([0.1, 0.2], one_way_delay=0.1).expected_error is None


def test_an_unsustainable_prediction_looks_up_its_own_kind(use, linux_chain):
    use(joined(table_of(0.02), table_of(1.0, carried=False)))
    linux_chain.answer = DelayDistribution.unsustainable(0.05)
    predicted = predict_delay(FLOW, PATH, LINUX, method="chain")
    assert predicted.expected_error.median == 1.0
    assert "whether TCP carries the flow" in in_words(predicted.expected_error)


def test_a_simulation_is_that_of_the_simulator(brief):
    predicted = predict_delay(FLOW, PATH, LINUX, method="simulation")
    own = simulate(FLOW, PATH, LINUX)
    assert predicted.method == own.method == "simulation"
    np.testing.assert_array_equal(predicted.values, own.values)
    assert predicted.quantile_interval == own.quantile_interval
    assert predicted.expected_error == own.expected_error
    assert predicted.expected_error.source.endswith(f"the statistical error of {own.packets} simulated packets")


def test_the_errors_of_a_simulation_are_stated_apart():
    """The model's error, in captures, does not depend on the length of the simulation."""
    short, long = (simulate(FLOW, PATH, LINUX, packets=packets, seed=1) for packets in (20_000, 200_000))
    for one in (short, long):
        error = one.expected_error
        assert error.sampling == pytest.approx(1.645 * one.quantile_interval.relative_half_width / 2.09)
        assert np.hypot(SIMULATOR_ERROR.p90, error.sampling) == pytest.approx(error.p90)
    assert long.expected_error.sampling < short.expected_error.sampling
    assert f"(up to {format_fraction(float(f'{short.expected_error.sampling:.2g}'))} in" in in_words(
        short.expected_error
    )


def test_an_endless_simulation_has_no_statistical_error():
    endless = simulate(Flow(5000, 0.005), Path(rtt=0.3, loss=0.05), packets=200_000)
    assert not endless.sustainable
    assert endless.expected_error is None


@pytest.mark.parametrize(
    ("error", "change", "method"),
    [
        (0.099, {}, "chain"),
        (0.101, {}, "simulation"),
        (0.01, {"ack_loss": 0.1}, "simulation"),
        (0.01, {"reordering": 0.010}, "simulation"),
        (0.01, {"rtt": 2 * LINUX_RANGE.rtt[1]}, "simulation"),
    ],
)
def test_auto_simulates_where_the_chain_is_far_off_or_does_not_know(use, linux_chain, brief, error, change, method):
    use(table_of(error))
    assert predict_delay(FLOW, replace(PATH, **change), LINUX, method="auto").method == method


@pytest.mark.parametrize(("p95", "method"), [(0.05, "chain"), (0.15, "simulation")])
def test_auto_decides_by_the_errors_with_bursts(use, linux_chain, brief, p95, method):
    use(table_of(0.01), table_of(p95))
    assert predict_delay(FLOW, Path(0.100, 0.02, loss_burst=2.0), LINUX, method="auto").method == method
    assert predict_delay(FLOW, PATH, LINUX, method="auto").method == "chain"


@pytest.mark.parametrize(
    ("table", "path", "losses"),
    [
        ("with_bursts", Path(0.100, 0.02, loss_burst=1.2), "losses in bursts"),
        ("correlated", Path(0.100, 0.02, loss_pattern="correlated"), "correlated losses"),
    ],
)
def test_with_other_losses_an_error_is_no_less_than_without(use, table, path, losses):
    use(table_of(0.03, 0.20), **{table: table_of(0.12, 0.07)})
    found = expected_error(FLOW, path, LINUX)
    assert (found.median, found.mean_delay.median) == pytest.approx((0.12, 0.20), abs=1e-4)
    assert found.source == f"simulations of {losses} in scenarios like this one"
    use(table_of(0.03), **{table: table_of(0.12, carried=True)})
    assert np.isnan(expected_error(FLOW, path, LINUX, carried=False).mean)


@pytest.mark.parametrize(
    ("burst", "name"),
    [
        (1, "linux-errors"),
        (1.01, "linux-errors-burst1.5"),
        (1.5, "linux-errors-burst1.5"),
        (1.6, "linux-errors-burst2"),
        (9, "linux-errors-burst2"),
    ],
)
def test_errors_are_those_of_the_next_longer_burst(burst, name):
    assert module.linux_table_file(burst).name == f"{name}.csv"
    assert module.linux_table_file(correlated=True).name == "linux-errors-correlated.csv"


def test_auto_simulates_where_the_chain_is_too_large_or_its_error_not_known(use, linux_chain, brief):
    use(table_of(0.01, cubic=False))
    assert predict_delay(FLOW, PATH, LINUX, method="auto").method == "simulation"
    use(table_of(0.01))
    linux_chain.answer = TooLargeError("too large")
    assert predict_delay(FLOW, PATH, LINUX, method="auto").method == "simulation"
    with pytest.raises(TooLargeError):
        predict_delay(FLOW, PATH, LINUX, method="chain")


def test_auto_leaves_to_the_chain_what_cannot_be_simulated(use):
    use(table_of(0.9))
    fast = Flow(174, 0.0001)
    with pytest.warns(ValidityWarning, match="interval 0.0001 s"):
        assert predict_delay(fast, Path(0.110, 0.0), LINUX, method="auto").method == "chain"
    # What neither knows is refused in the words of the chain.
    with pytest.raises(ValueError, match="reordering must be 0 in the chain"):
        predict(Scenario(fast, Path(0.110, 0.02, reordering=0.01), LINUX)).require()


@pytest.mark.parametrize(
    ("path", "stack", "message"),
    [
        (
            PATH,
            Stack.newreno_2008(),
            r"stack must be Stack\.linux\(\) or Stack\.quic\(\) in a simulation, got NewReno2008",
        ),
        (Path(30.0, 0.02), LINUX, "rtt must span less than 1024 segments of the flow in a simulation, not 1501"),
    ],
)
def test_what_cannot_be_simulated_is_refused(path, stack, message):
    with pytest.raises(ValueError, match=message):
        predict_delay(FLOW, path, stack, method="simulation")


# The map of the chain's error: random scenarios, their simulations, and what is made of them

SCENARIOS = [random_scenario(number) for number in range(400)]


def simulated(number, p95=0.2, sustainable=True):
    """Return a made-up simulation: a tenth of the packets take `p95` [s], the others half of that."""
    p95 = p95 if sustainable else np.inf
    times = dict.fromkeys(("p95", "p95_low", "p95_high", "p99", "p99.9"), p95)
    times |= {"p50": p95 / 2, "p90": p95 / 2, "mean": 0.55 * p95, "mean_low": 0.5 * p95, "mean_high": 0.6 * p95}
    times |= {"sender_delay": 0.01, "head_of_line_delay": 0.01}
    return SimulatedScenario(SCENARIOS[number], 1000, sustainable, times)


def answering(p95):
    """Return a chain that says about any scenario that a tenth of its packets take `p95` [s], the others half."""

    def answer(question):
        if p95 is None:
            return Prediction(None)
        if np.isinf(p95):
            return Prediction(DelayDistribution.unsustainable(0.05))
        return Prediction(DelayDistribution(np.array([p95 / 2, p95]), np.array([0.9, 0.1]), 0.05))

    return answer


def test_scenarios_lie_in_the_validated_range_and_off_ties():
    for one in SCENARIOS:
        assert LINUX_RANGE.exceeded_by(one.flow, replace(one.path, rtt=one.path.rtt - 1e-5)) in ([], ["rtt"])
        assert one.utilization < error_map.LARGEST_UTILIZATION
        periods = one.packets_per_rtt
        assert abs(periods - round(periods)) * one.flow.interval > 1e-6
    kinds = {(one.stack.congestion_control, one.stack.hz) for one in SCENARIOS}
    assert kinds == {(control, hz) for control in ("cubic", "reno") for hz in (250, 1000)}
    share = np.mean([one.flow.packet_size <= 1448 for one in SCENARIOS])
    assert 0.65 < share < 0.85


def test_a_round_trip_of_whole_intervals_is_moved():
    assert error_map.off_multiples(0.100, 0.020) == 0.100007
    assert error_map.off_multiples(0.101, 0.020) == 0.101


def test_the_file_is_extended_and_not_simulated_anew(tmp_path, monkeypatch):
    file, seen = tmp_path / "simulated.parquet", []
    monkeypatch.setattr(error_map, "BATCH", 2)

    def interrupted(done, total):
        seen.append((done, total))
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extend(file, 5, 2000, interrupted)
    kept = read_simulated(file)
    assert [one.scenario.number for one in kept] == [0, 1]
    seen.clear()
    extend(file, 5, 2000, lambda done, total: seen.append((done, total)))
    assert seen == [(2, 5), (3, 5), (4, 5)]
    found = read_simulated(file)
    assert found[:2] == kept
    assert [one.scenario for one in found] == SCENARIOS[:5]
    assert found[4] == simulate_scenario(SCENARIOS[4], 2000)
    assert not list(tmp_path.glob("*.part"))


def test_other_files_are_refused(tmp_path):
    text, other = tmp_path / "text.parquet", tmp_path / "other.parquet"
    text.write_text("no Parquet")
    with pytest.raises(ValueError, match=r"text\.parquet: cannot be read"):
        read_simulated(text)
    pq.write_table(pa.table({"number": [1]}), other)
    with pytest.raises(ValueError, match=r"other\.parquet: holds no simulated scenarios, as there is no column 'rtt'"):
        read_simulated(other)


def test_infinite_delays_survive_the_file(tmp_path):
    file, known = tmp_path / "simulated.parquet", [simulated(0), simulated(1, sustainable=False)]
    write_simulated(file, known[::-1])
    assert read_simulated(file) == known


def test_errors_are_relative_to_the_simulator():
    (score,) = score_map([simulated(0, 0.2)], answering(0.3))
    assert score.error("p95") == pytest.approx(0.5)
    assert score.error("mean") == pytest.approx(0.5)
    assert score.both_carried


@pytest.mark.parametrize(
    ("sustainable", "p95", "error"), [(False, np.inf, 0.0), (False, 0.3, -1.0), (True, np.inf, 1.0)]
)
def test_wrong_calls_count_as_a_hundred_percent(sustainable, p95, error):
    (score,) = score_map([simulated(0, sustainable=sustainable)], answering(p95))
    assert score.error("p95") == score.error("mean") == error
    assert score.call_right == (error == 0)
    table = error_table([score])
    assert (table.quantiles[0.95][0], table.carried[0]) == (error, np.isfinite(p95))


def test_what_the_chain_does_not_solve_is_left_out():
    assert score_map([simulated(0)], answering(None)) == []


def test_a_simulation_that_has_not_settled_is_left_out():
    carried, endless = simulated(0), simulated(1, sustainable=False)
    drifting = replace(carried, times=carried.times | {"p95_low": np.nan, "p95_high": np.nan})
    assert [one.settled for one in (carried, endless, drifting)] == [True, True, False]
    assert len(score_map([carried, endless, drifting], answering(0.25))) == 2


def test_the_table_for_predictions_holds_the_scenario():
    scores = score_map([simulated(number) for number in range(20)], answering(0.25))
    table = error_table(scores)
    for row, scenario in zip(table.features, SCENARIOS[:20], strict=True):
        at = (scenario.path.rtt, scenario.path.loss, scenario.utilization, scenario.packets_per_rtt)
        assert tuple(row) == pytest.approx(at)
    assert table.cubic.tolist() == [one.stack.congestion_control == "cubic" for one in SCENARIOS[:20]]
    assert table.quantiles[0.99] == pytest.approx(np.full(20, 0.25))


def test_groups_count_every_scenario_once_per_grouping():
    known = [simulated(number, 1.0, sustainable=number % 10 != 0) for number in range(100)]
    scores = score_map(known, answering(1.1))
    rows = {row["group"]: row for row in groups_table(scores).rows}
    assert rows["all"]["scenarios"] == 100
    assert (rows["all"]["cases"], rows["all"]["wrongly_carried"], rows["all"]["call_right"]) == (90, 10, 0.9)
    assert rows["all"]["median_p95"] == rows["all"]["p90_p95"] == pytest.approx(0.1)
    for kinds in (("cubic", "reno"), ("packets of one segment", "packets of several segments")):
        assert sum(rows[kind]["scenarios"] for kind in kinds) == 100
    for kind in ("RTT", "loss", "utilization 0", "utilization below 0.1"):
        assert any(name.startswith(kind) for name in rows)
    for prefix in ("RTT ", "loss "):
        assert sum(row["scenarios"] for name, row in rows.items() if name.startswith(prefix)) == 100


def test_the_worst_cases_come_first_and_are_below_the_limit():
    known = [simulated(number, 0.1 + 0.01 * number) for number in range(60)]
    scores = score_map(known, answering(0.3))
    rows = worst_table(scores, count=10).rows
    assert len(rows) == 10
    assert all(row["utilization"] < 0.9 for row in rows)
    assert all(abs(before["error_p95"]) >= abs(after["error_p95"]) for before, after in pairwise(rows))
    eligible = [score for score in scores if score.comparable]
    assert abs(rows[0]["error_p95"]) == max(abs(score.error("p95")) for score in eligible)


def test_expected_errors_are_compared_with_errors_of_other_scenarios():
    scores = score_map([simulated(number, 1.0) for number in range(200)], answering(1.03))
    (row,) = expected_table(scores).rows
    assert (row["expected"], row["cases"], row["within_p90"]) == ("2 % to 5 %", 100, 1.0)
    assert [row[name] for name in ("expected_mean", "mean", "median")] == pytest.approx([0.03] * 3)


def test_the_map_is_an_svg_that_comes_out_the_same_again():
    scores = score_map([simulated(number) for number in range(60)], answering(0.25))
    drawn = drawn_map(scores)
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert drawn == drawn_map(scores)
    assert b">25<" in drawn.replace(b"<!-- 25 -->", b"")
    for scale in (UTILIZATION, LOSS):
        assert {scale.cell(score) for score in scores} <= set(range(len(scale.edges) - 1))


def test_simulations_of_the_project_are_those_of_the_random_scenarios():
    known = read_simulated(ROOT / "validation" / "error-map" / "simulated.parquet")
    assert len(known) >= 2000
    assert [one.scenario for one in known[:50]] == SCENARIOS[:50]
