"""Pages of reports near the capacity of a path and beyond it: written in every format, without an empty chart."""

import numpy as np
import pytest

import tcpdelay as td
from report_consistency import draw_heavy, page_faults
from tcpdelay.models import predict as models
from tcpdelay.models.predict import predict
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.study.edge import largest_loss

FRAMES = td.Flow(16_667, 1 / 30)
PATH, TARGET = td.Path(0.060, 0.003), td.Target(2.0, 0.999)


@pytest.fixture
def short(monkeypatch):
    """Simulate few packets: the pages are checked here, and not their figures."""
    monkeypatch.setattr(models, "COMPARED_PACKETS", 4000)
    monkeypatch.setattr("tcpdelay.advice.guideline.COMPARED_PACKETS", 4000)
    monkeypatch.setattr("tcpdelay.sim.simulation.MOST_PACKETS", 8000)


@pytest.mark.parametrize("number", range(4))
def test_a_report_near_the_capacity_is_written_in_every_format(short, number):
    assert page_faults(td.guideline(**draw_heavy(np.random.default_rng(number)))) == []


@pytest.mark.parametrize(
    ("rtt", "loss", "size", "interval"),
    [(0.060, 0.0030, 16_667, 1 / 30), (0.063, 0.0031, 15_833, 1 / 30), (0.057, 0.0027, 20_500, 1 / 25)],
)
def test_the_chain_does_not_judge_frames_beyond_the_initial_window(rtt, loss, size, interval):
    scenario = Scenario(td.Flow(size, interval), td.Path(rtt, loss))
    assert predict(scenario, method="chain").status == "unsupported"
    # Of these flows, the chain's capacity was 20 % too small, with an expected error of 0.
    assert td.simulate(scenario.source, scenario.path, packets=30_000, seed=1).sustainable


def test_the_margin_of_a_report_is_where_the_search_for_it_finds_it(short, monkeypatch):
    monkeypatch.setattr("tcpdelay.study.edge.COMPARED_PACKETS", 4000)
    report = td.guideline(FRAMES, PATH, target=TARGET)
    assert page_faults(report) == []
    assert report.simulated_because.startswith("the chain is not checked here: packet_size 16667 bytes")
    edge = largest_loss(FRAMES, PATH, target=TARGET)
    loss = report.margins[0]
    assert loss.edge == pytest.approx(edge.value, rel=0.5)
