"""The validated ranges, beyond which every prediction warns."""

import csv
from pathlib import Path as FilePath

import pytest

from scoring import error_map
from scoring.drop_tail import published_figures
from tcpdelay.accuracy.validity import LINUX_RANGE, PUBLISHED_RANGE, ValidityWarning, validated_range
from tcpdelay.models.predict import predict, predict_delay
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim import simulation
from tcpdelay.sim.simulation import simulate

VALIDATION = FilePath(__file__).parents[1] / "validation"
PUBLISHED = published_figures(VALIDATION / "published" / "brosh.csv")


def published_chain(case, figures):
    """Return the 95th percentile of the chain with the one-way delay that the published columns imply, RTT - 50 ms."""
    packet_size, queue, _ = case
    rtt = figures["round-trip time"]
    path = Path(rtt, figures["loss"] / 100, "correlated", queue, rtt - 0.050)
    stack = Stack.newreno_2008()
    return predict(Scenario(Flow(packet_size, 0.020), path, stack), method="chain").require().quantile(0.95)


@pytest.mark.parametrize("web_flows", [0, 10, 15])
def test_byte_queues_at_low_loss_give_the_published_model_column(web_flows):
    """Our chain prints the published figure to its last digit where 95 % of the packets have no delay beyond L."""
    case = (174, "bytes", web_flows)
    figures = PUBLISHED[case]
    found = published_chain(case, figures)
    assert found == pytest.approx(figures["p95, model"], abs=0.0005)
    assert found == pytest.approx(figures["round-trip time"] - 0.050, abs=1e-9)


def test_the_figures_beside_the_published_tables_are_those_of_the_chain():
    with (VALIDATION / "results" / "papers" / "brosh-published.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"] == "p95, model"]
    assert len(rows) == len(PUBLISHED) == 20
    for row, (case, figures) in zip(rows, PUBLISHED.items(), strict=True):
        assert float(row["value"]) == figures["p95, model"]
        assert float(row["ours"]) == pytest.approx(published_chain(case, figures), rel=1e-5)


@pytest.mark.parametrize(
    ("stack", "smallest", "largest"),
    [(None, 0.005, 0.4), (Stack.linux(), 0.005, 0.4), (Stack.newreno_2008(backlog_bound="grow"), 0.02, 0.3)],
)
def test_predictions_outside_the_range_warn_and_name_it(stack, smallest, largest):
    words = rf"rtt 0\.5 s lies outside the validated range of {smallest} to {largest} s"
    with pytest.warns(ValidityWarning, match=words):
        predict_delay(rtt=0.5, loss=0.02, packet_size=174, interval=0.020, stack=stack, method="chain")
    predict_delay(rtt=largest, loss=0.1, packet_size=1448, interval=0.030, stack=stack, method="chain")


def test_every_input_is_checked():
    beyond = PUBLISHED_RANGE.exceeded_by(Flow(15_000, 0.1), Path(rtt=0.001, loss=0.5))
    assert [sentence.split()[0] for sentence in beyond] == ["rtt", "loss", "packet_size", "interval"]


def test_unknown_stacks_have_no_range():
    with pytest.raises(ValueError, match="stack must come from one of the profiles"):
        validated_range(Stack())


def test_the_linux_profile_warns_beyond_the_map_of_its_error():
    assert validated_range(Stack.linux()) is LINUX_RANGE
    beyond = LINUX_RANGE.exceeded_by(Flow(20_000, 0.2), Path(rtt=0.5, loss=0.2))
    assert [sentence.split()[0] for sentence in beyond] == ["rtt", "loss", "packet_size", "interval"]
    assert LINUX_RANGE.exceeded_by(Flow(15_000, 0.005), Path(rtt=0.005, loss=0.0001)) == []


@pytest.mark.parametrize(
    ("packets", "loss", "validated"), [(1, 0.10, True), (1, 0.11, False), (10, 0.01, True), (10, 0.011, False)]
)
def test_correlated_losses_are_validated_up_to_one_round_in_ten(packets, loss, validated):
    flow, rtt = Flow(174, 0.020), 0.010 + 0.020 * (packets - 1)
    beyond = LINUX_RANGE.exceeded_by(flow, Path(rtt, loss, loss_pattern="correlated"))
    # 1 - (1 - p)^n of the rounds of n packets have a loss.
    assert any("rounds lose packets" in sentence for sentence in beyond) is not validated
    assert not any("rounds" in sentence for sentence in LINUX_RANGE.exceeded_by(flow, Path(rtt, loss)))


def test_auto_simulates_correlated_losses_in_too_many_rounds(monkeypatch):
    monkeypatch.setattr(simulation, "MOST_PACKETS", 20_000)
    path = Path(0.2, 0.02, loss_pattern="correlated")
    assert predict_delay("voip", path, method="auto").method == "simulation"
    with pytest.warns(ValidityWarning, match="20% of the rounds lose packets, and at most 10% are validated"):
        assert predict_delay("voip", path, method="chain").method == "chain"


def test_the_linux_range_is_what_the_map_is_drawn_from():
    sizes = (error_map.SINGLE_SEGMENT_SIZE[0], error_map.SEVERAL_SEGMENTS_SIZE[1])
    drawn = (error_map.RTT, error_map.LOSS, sizes, error_map.INTERVAL)
    assert (LINUX_RANGE.rtt, LINUX_RANGE.loss, LINUX_RANGE.packet_size, LINUX_RANGE.interval) == drawn


@pytest.mark.parametrize("stack", [Stack.linux(), Stack.newreno_2008(backlog_bound="grow")])
def test_a_path_without_loss_is_in_the_range(stack):
    found = predict_delay("voip", rtt=0.1, loss=0, stack=stack, method="chain")
    assert (found.mean, found.worst) == (0.05, 0.05)
    known = validated_range(stack)
    assert not known.exceeded_by_paths(Flow(174, 0.020), [0.1, 0.3], [0, 0.1]).any()
    assert known.exceeded_by_paths(Flow(174, 0.020), [0.5, 0.1], [0, 0.5]).all()


def test_the_simulator_too_has_no_delay_but_the_networks_without_loss():
    found = simulate("voip", Path(rtt=0.1, loss=0), packets=2000)
    assert found.worst == pytest.approx(0.05, abs=2e-6)
