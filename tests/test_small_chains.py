"""A small chain that is solved in one call has the answers of its single steps, which parts of the mean need."""

import numpy as np
import pytest

from tcpdelay import DelayModel, Flow, Path, Stack
from tcpdelay.ask import Requested
from tcpdelay.models.predict import capacity, predict
from tcpdelay.scenario.scenario import Scenario

VOICE = Flow(174, 0.020)
STACKS = (
    Stack.linux(),
    Stack.linux(congestion_control="reno"),
    Stack.linux(congestion_control="bbr"),
    Stack.newreno_2008(),
    Stack.newreno_2008(backlog_bound="grow"),
)
SCENARIOS = {
    "voice": (VOICE, Path(rtt=0.1, loss=0.02)),
    "beyond the first bound": (Flow(1200, 0.020), Path(rtt=0.15, loss=0.015)),
    "not carried": (Flow(1448, 0.010), Path(rtt=0.2, loss=0.1)),
    "sparse": (Flow(174, 0.5), Path(rtt=0.05, loss=0.02)),
    "jitter": (VOICE, Path(rtt=0.1, loss=0.02, jitter=0.005)),
}


def answers(flow, path, stack):
    """The answer of one call, and of single steps."""
    scenario = Scenario(flow, path, stack)
    return [predict(scenario, Requested(parts=parts), "chain") for parts in (False, True)]


@pytest.mark.parametrize("stack", STACKS, ids=str)
@pytest.mark.parametrize(("flow", "path"), SCENARIOS.values(), ids=SCENARIOS)
def test_one_call_has_the_delays_of_single_steps(flow, path, stack):
    one, steps = answers(flow, path, stack)
    assert (one.status, one.sustainable, str(one.refusal)) == (steps.status, steps.sustainable, str(steps.refusal))
    if steps.answered:
        for name in ("values", "weights"):
            found, expected = (getattr(each.distribution, name) for each in (one, steps))
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)
        assert one.mean == pytest.approx(steps.mean, rel=1e-12)
        assert one.truncated_mass == pytest.approx(steps.truncated_mass, rel=1e-6, abs=1e-18)
        assert one.expected_error == steps.expected_error


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_one_call_finds_the_capacity(stack):
    path = Path(rtt=0.1, loss=0.02)
    model = DelayModel(VOICE, path, stack)
    predicted = predict(Scenario(VOICE, path, stack), method="chain")
    assert predicted.sustainable == model.carried
    assert model.capacity == pytest.approx(capacity(Scenario(VOICE, path, stack)), rel=1e-12)
