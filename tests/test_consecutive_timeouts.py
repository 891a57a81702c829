"""Losses so frequent that timeouts in a row determine the delays: the chain agrees with the simulator, or refuses."""

import pytest

import tcpdelay as td
from tcpdelay.ask import UnsupportedError
from tcpdelay.chain.linux.parameters import linux_parameters
from tcpdelay.models.predict import predict
from tcpdelay.scenario.scenario import Scenario

pytestmark = pytest.mark.filterwarnings("ignore::tcpdelay.accuracy.validity.ValidityWarning")
PACKETS = 200_000


@pytest.mark.parametrize(
    ("size", "interval", "rtt", "loss"),
    [(161, 0.0944, 0.549, 0.17), (79, 0.097, 0.0234, 0.18), (220, 0.0143, 0.0164, 0.15), (767, 0.0997, 0.0103, 0.19)],
)
def test_the_chain_agrees_where_few_timeouts_follow_one_another(size, interval, rtt, loss):
    flow, path = td.Flow(size, interval), td.Path(rtt, loss)
    chain = td.predict_delay(flow, path, method="chain")
    simulated = td.simulate(flow, path, packets=PACKETS, seed=1)
    assert chain.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=0.15)


@pytest.mark.parametrize(
    ("size", "interval", "rtt", "loss"),
    [
        # Of these, the chain's p95 was 15 s, 18.7 s and 19.8 s. The simulator's is 387 s, or it says "not carried".
        (81, 0.37, 0.1, 0.5),
        (81, 0.37, 0.1, 0.88),
        (81, 0.37, 0.1, 0.9),
        # The timer fires before the next packet is written.
        (48, 0.687, 0.0656, 0.25),
        (42, 4.03, 0.0148, 0.79),
        # Several packets are in flight. The chain's p95 is 11 s, and the simulator's 28 s.
        (971, 0.163, 0.178, 0.29),
        # Near the capacity the chain takes seconds to solve, and is refused before.
        (174, 0.02, 0.1, 0.3),
    ],
)
def test_the_chain_refuses_a_carried_flow_whose_delays_many_timeouts_determine(size, interval, rtt, loss):
    answer = predict(Scenario(td.Flow(size, interval), td.Path(rtt, loss), td.Stack.linux()), method="chain")
    assert isinstance(answer.refusal, UnsupportedError)
    assert answer.refusal.name == "loss"
    assert "\n" not in str(answer.refusal)


def test_a_flow_that_is_not_carried_is_not_refused():
    answer = predict(Scenario(td.Flow(1340, 0.0209), td.Path(0.0451, 0.5), td.Stack.linux()), method="chain")
    assert answer.status == "not carried"


def test_timeouts_double_up_to_the_longest():
    p = linux_parameters(td.Flow(81, 0.2), td.Path(0.1, 0.5), td.Stack.linux())
    assert p.timeout * 2 ** (p.backoffs - 2) < p.longest_timeout <= p.timeout * 2 ** (p.backoffs - 1)
    assert p.longest_timeout == pytest.approx(600.0)


def test_the_longest_timeouts_repeat_themselves():
    # The number of timeouts of 120 s is geometric: some delays exceed the sum of one timeout of each length.
    delays = td.DelayModel(td.Flow(81, 0.2), td.Path(0.01, 0.5), td.Stack.linux()).delay_distribution()
    assert delays.sustainable
    assert delays.quantile(0.999) > sum(min(0.21 * 2**number, 120.0) for number in range(11))
