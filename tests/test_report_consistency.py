"""Whole reports of random scenarios, read as data: no two statements disagree."""

from dataclasses import replace

import numpy as np
import pytest

from report_consistency import contradictions, draw, report
from tcpdelay import guideline
from tcpdelay.advice.rule import Effect
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import application

REPORTS = 30
SEED = 1


def test_reports_of_random_scenarios_do_not_contradict_themselves():
    rng = np.random.default_rng(SEED)
    scenarios = [draw(rng) for _ in range(REPORTS)]
    faults = {scenario: found for scenario in scenarios if (found := contradictions(report(scenario)))}
    assert not faults


@pytest.fixture(scope="module")
def found():
    return guideline(path=Path(0.100, 0.02), application=application("voip"))


def changed(found, key, **changes):
    rules = [replace(rule, **changes) if rule.key == key else rule for rule in found.recommendations]
    return replace(found, recommendations=tuple(sorted(rules, key=lambda rule: rule.place != "do")))


@pytest.mark.parametrize(
    ("key", "changes", "fault"),
    [
        ("split", {"place": "do"}, "split is to be done for nothing"),
        ("sack", {"place": "do"}, "sack is to be done without an effect"),
        ("delayed-ack", {"place": "do"}, "delayed ACKs are to be switched off that are off"),
        ("segment-ratio", {"effect": Effect("chain", 0.140, 0.120)}, "segment-ratio has another delay"),
        ("playout-loss", {"place": "do"}, "playout-loss is to be done without an effect"),
        ("nagle", {"effect": Effect("bound", saves_up_to=1.0)}, "nagle has another bound"),
    ],
)
def test_faulty_advice_is_found(found, key, changes, fault):
    assert contradictions(found) == []
    assert fault in contradictions(changed(found, key, **changes))


def test_a_wrong_verdict_or_margin_is_found(found):
    assert "verdict, quantile and late packets disagree" in contradictions(replace(found, works=False))
    loss = replace(found.margins[0], edge=0.2)
    assert "the target is missed at the margin of loss" in contradictions(
        replace(found, margins=(loss, *found.margins[1:]))
    )
