"""Scenarios far beyond the validated range get a sound answer or one clear line, within 20 s and 4 GiB.

A Hypothesis profile with another number of examples than the default asks about as many scenarios.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tcpdelay as td
from odd_scenarios import Worker, compile_all
from scoring.odd_scenarios import INTERVAL, LOSS, LOSS_GROWTH, RTT, SIZE, OddScenario
from tcpdelay.scenario.scenario import Scenario

EXAMPLES = 20 if settings.default.max_examples == 100 else settings.default.max_examples
"""Number of scenarios of each test."""


def between(bounds: tuple[float, float]) -> st.SearchStrategy[float]:
    """Return a strategy for values between two bounds, uniform in the logarithm."""
    low, high = bounds
    return st.floats(0.0, 1.0).map(lambda share: low * (high / low) ** share)


STACKS = st.builds(
    td.Stack.linux,
    st.sampled_from(["cubic", "reno", "bbr"]),
    hz=st.sampled_from([100, 250, 1000]),
    mss=st.sampled_from([536, 1448, 8948]),
)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Return a process with a limit of its memory, and a clock for each call."""
    compile_all()
    started = Worker(max_seconds=1.0)
    yield started
    started.close()


@pytest.mark.parametrize("method", ["chain", "simulation"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(between(SIZE), between(INTERVAL), between(RTT), between(LOSS), between(LOSS_GROWTH), STACKS)
def test_an_odd_scenario_ends_well(worker, method, size, interval, rtt, loss, growth, stack):
    path = td.Path(rtt=rtt, loss=min(loss, LOSS[1]))
    scenario = Scenario(td.Flow(round(size), min(interval, INTERVAL[1])), path, stack)
    found, _ = worker.ask(OddScenario(scenario, method, min(loss * growth, LOSS[1])))
    assert found.fault == ""


@pytest.mark.filterwarnings("ignore::tcpdelay.accuracy.validity.ValidityWarning")
def test_a_flow_whose_recoveries_never_end_is_not_carried():
    # The window has some 750 segments. To rounding, none of its rounds in the recovery is without a loss.
    flow, bbr = td.Flow(45, 0.00231), td.Stack.linux("bbr")
    few, many = (
        td.predict_delay(flow, td.Path(rtt=1.74, loss=loss), bbr, method="chain", max_seconds=30.0)
        for loss in (0.02, 0.07)
    )
    assert few.sustainable
    assert not many.sustainable


@pytest.mark.filterwarnings("ignore::tcpdelay.accuracy.validity.ValidityWarning")
@pytest.mark.parametrize("loss", [0.00186, 0.00188, 0.002, 0.0074])
def test_a_flow_at_a_third_of_the_capacity_is_carried(loss):
    # Timeouts of 775 slots, and an RTT of a twentieth of a slot: the iteration is slow, and some backlogs are so rare
    # that their probability has no inverse.
    flow, path = td.Flow(4030, 0.000258), td.Path(rtt=1.43e-5, loss=loss)
    found = td.predict_delay(flow, path, td.Stack.linux("reno", hz=300), method="chain")
    assert found.sustainable
    assert found.quantile(0.95) < 0.001
