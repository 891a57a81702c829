"""One question has one answer, whoever is asked: Python, predict, report, solve and batch."""

import csv
import json
import random

import pytest

import tcpdelay as td
from tcpdelay.scenario.scenario import Scenario


def drawn(count, seed=3):
    """Return calls within the validated range: packet size [bytes], interval [ms], RTT [ms], loss [fraction]."""
    draw = random.Random(seed)
    return [
        (draw.randint(80, 1000), draw.choice([20, 30, 40, 60]), draw.randint(40, 250), draw.choice([5e-3, 0.01, 0.02]))
        for _ in range(count)
    ]


@pytest.fixture(params=drawn(6), ids=str)
def call(request):
    size, interval, rtt, loss = request.param
    words = ["--packet-size", f"{size}B", "--interval", f"{interval}ms", "--rtt", f"{rtt}ms", "--limit", "300ms"]
    scenario = Scenario(td.Flow(size, interval / 1000), td.Path(rtt=rtt / 1000, loss=loss))
    return scenario, words, ["--loss", f"{100 * loss:g}%"]


def in_json(run, *arguments):
    status, printed, errors = run(*arguments, "--format", "json")
    assert status == 0, errors
    return json.loads(printed)


def test_the_delays_are_the_same(run, call, tmp_path):
    scenario, words, loss = call
    target = td.Target(0.3)
    answer = td.predict_delay(scenario.source, scenario.path)
    expected = (answer.quantile(0.95), answer.mean)
    predicted = in_json(run, "predict", *words, *loss)
    assert (predicted["p95"], predicted["mean"]) == expected
    found = td.guideline(scenario.source, scenario.path, target=target)
    if found.answer.method == answer.method:
        assert (found.answer.require().quantile(0.95), found.mean) == expected
    (tmp_path / "rows.csv").write_text(f"rtt,loss\n{scenario.path.rtt},{scenario.path.loss}\n")
    status, _, errors = run("batch", "rows.csv", "-o", "out.csv", *words[:4], *words[6:])
    assert status == 0, errors
    with (tmp_path / "out.csv").open() as file:
        (row,) = csv.DictReader(file)
    if answer.method == "chain":
        assert float(row["p95"]) == expected[0]


def test_the_edges_are_the_same(run, call):
    scenario, words, loss = call
    reported = {margin["quantity"]: margin for margin in in_json(run, "report", *words, *loss)["margins"]}
    target = td.Target(0.3)
    flow, path = scenario.source, scenario.path
    edges = {
        "loss": td.largest_loss(flow, path, target=target),
        "rtt": td.largest_rtt(flow, path, target=target),
        "bitrate": td.largest_bitrate(flow, path, target=target),
    }
    without = {"loss": [*words], "rtt": [*words[:4], *words[6:], *loss], "bitrate": [*words, *loss]}
    for quantity, edge in edges.items():
        solved = in_json(run, "solve", quantity, *without[quantity])
        assert (solved["value"], solved["certain"], solved["impossible"]) == (edge.value, edge.certain, edge.impossible)
        margin = reported[quantity]
        # A report moves an edge that is within the tolerance of the present value to it.
        if margin["edge"] != margin["now"]:
            assert margin["edge"] == edge.value
        if margin["within_error"] is not None and margin["edge"] == edge.value:
            low, high = margin["within_error"]
            assert low in (edge.certain, margin["now"])
            assert high in (edge.impossible, margin["now"])
