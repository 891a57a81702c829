"""Questions and reports by the chain or the simulator; what is too large for a chain; what has not settled."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

import tcpdelay as td
from tcpdelay import DelayDistribution, Simulation
from tcpdelay.ask import Requested, UnsupportedError
from tcpdelay.budget import TooLargeError
from tcpdelay.delays import UnsettledWarning
from tcpdelay.models.predict import COMPARED_PACKETS, model_to_compare, predict
from tcpdelay.models.verdict import judge, late_range, verdict_of
from tcpdelay.quality.voice import CallTarget
from tcpdelay.report.notebook import distribution_html
from tcpdelay.report.region_charts import Edge, edge_table
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.statistics import Interval
from tcpdelay.study.region import VERDICTS
from tcpdelay.study.transports import UNLIMITED

# Questions and reports by method, and the ranges that the expected error allows

VOIP, PATH, TARGET = td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02), td.Target(0.2)
REORDERED = td.Path(rtt=0.100, loss=0.02, reordering=0.01)
CALL_OPTIONS = ("--rtt", "100ms", "--loss", "2%", "--app", "voip")


@pytest.fixture
def quick(monkeypatch):
    """Simulate fewer packets than a search or a report does."""
    monkeypatch.setattr("tcpdelay.models.predict.COMPARED_PACKETS", 20_000)
    monkeypatch.setattr("tcpdelay.sim.simulation.MOST_PACKETS", 20_000)


@pytest.mark.parametrize(
    "options",
    [
        (*CALL_OPTIONS, "--reordering", "1%"),
        ("--rtt", "100ms", "--loss", "2%", "--ack-loss", "1%", "--app", "opus", "--over", "wss-down"),
        ("--rtt", "60ms", "--loss", "1%", "--bad-time", "60ms", "--app", "opus", "--over", "turn-tcp"),
    ],
)
def test_a_report_simulates_what_the_chain_refuses(run, options, monkeypatch):
    monkeypatch.setattr("tcpdelay.models.predict.COMPARED_PACKETS", 20_000)
    status, printed, _ = run("report", *options, "--format", "json")
    assert status == 0
    found = json.loads(printed)
    assert found["refused"]
    assert found["delay"]["method"] == "simulation"
    assert all(margin["edge"] is not None for margin in found["margins"])
    assert {rule["effect"]["basis"] for rule in found["recommendations"] if rule["effect"]} <= {
        "simulation",
        "bound",
        "none",
        "unknown",
    }
    assert len(found["loss_curve"]["loss"]) > 3
    assert (found["backlogged_time_fraction"], found["loss_curve"]["critical"]) == (None, None)


@pytest.fixture(scope="module")
def reordered():
    """Return a report whose figures are all simulated."""
    return td.guideline("voip", REORDERED)


def test_a_simulated_report_says_so_in_words(reordered):
    page = reordered.to_markdown()
    assert (
        f"The chain does not model this scenario (reordering), so all figures are simulated: each margin "
        f"with up to {COMPARED_PACKETS} packets." in " ".join(page.split())
    )
    assert "Reordering | 1 %" in page
    assert "Timeouts" not in page
    assert "timeouts" not in reordered.to_html().partition("Parts of the mean delay")[2].partition("</figure>")[0]
    with pytest.raises(UnsupportedError, match="reordering must be 0 in the chain"):
        td.guideline("voip", REORDERED, method="chain")


def test_margins_of_a_simulated_report_agree_with_the_search(reordered):
    edge = td.largest_loss("voip", REORDERED)
    assert reordered.margins[0].edge == pytest.approx(edge.value, rel=0.05)
    assert reordered.refused == ("reordering",)
    assert reordered.largest_sustainable_rate.edge > VOIP.bitrate


@pytest.mark.parametrize("options", [("--reordering", "1%"), ("--ack-loss", "5%"), ("--bad-time", "40ms")])
def test_solve_simulates_what_the_chain_refuses(run, quick, options):
    status, printed, _ = run("solve", "rtt", "--loss", "1%", "--app", "voip", *options, "--format", "json")
    assert status == 0
    found = json.loads(printed)
    assert found["method"] == "simulation"
    assert found["certain"] <= found["value"] < found["fails"] <= found["impossible"]
    status, _, errors = run("solve", "rtt", "--loss", "1%", "--app", "voip", *options, "--method", "chain")
    assert status == 2
    assert "chain" in errors


@pytest.mark.parametrize("question", ["playout", "interval", "split", "connections", "sensitivity", "frontier", "loss"])
def test_every_question_takes_a_method(run, quick, question):
    more = {"frontier": ("--rtts", "60ms"), "interval": ("--bitrate", "64kbit/s")}.get(question, ())
    options = CALL_OPTIONS if question != "interval" else CALL_OPTIONS[:4]
    for method in ("chain", "simulation"):
        status, printed, errors = run("solve", question, *options, *more, "--method", method, "--format", "json")
        assert (status, errors) == (0, "")
        assert f'"method": "{method}"' in printed


def test_an_edge_has_the_range_in_which_the_expected_error_places_it():
    edge = td.largest_loss("voip", PATH)
    assert edge.method == "chain"
    assert edge.certain < edge.value < edge.fails < edge.impossible

    def verdict(loss):
        return judge(Scenario(VOIP, td.Path(0.1, loss)), TARGET, "chain").verdict

    found = [verdict(loss) for loss in (edge.certain, 1.02 * edge.certain, edge.value, edge.impossible)]
    assert found == ["works", "uncertain", "uncertain", "fails"]
    simulated = td.largest_loss("voip", PATH, method="simulation")
    assert edge.certain < simulated.value < edge.impossible
    assert simulated.impossible - simulated.certain < edge.impossible - edge.certain


def test_the_tcp_of_2008_has_no_range_and_is_not_simulated():
    stack = td.Stack.newreno_2008()
    edge = td.largest_loss("voip", PATH, stack)
    assert edge.certain == pytest.approx(edge.value, rel=0.011)
    assert edge.impossible == pytest.approx(edge.fails, rel=0.011)
    with pytest.raises(UnsupportedError, match="simulation"):
        td.largest_loss("voip", PATH, stack, method="simulation")


def test_compared_simulations_have_the_same_random_numbers():
    model = model_to_compare(Scenario(VOIP, REORDERED), "auto")
    first, second = (predict(Scenario(VOIP, REORDERED), Requested(), model).require() for _ in range(2))
    assert first.packets == COMPARED_PACKETS
    assert np.array_equal(first.values, second.values)
    assert model_to_compare(Scenario(VOIP, PATH), "auto") == "chain"
    with pytest.raises(UnsupportedError, match="reordering"):
        model_to_compare(Scenario(VOIP, REORDERED), "chain")


def test_the_smallest_buffer_is_simulated_where_the_chain_leaves_the_share_open():
    chain = td.playout_for_late_fraction(VOIP, PATH, None, 0.01, method="chain")
    auto = td.playout_for_late_fraction(VOIP, PATH, None, 0.01)
    assert (chain.method, auto.method) == ("chain", "simulation")
    simulated = td.simulate(VOIP, PATH, packets=1_000_000, seed=3)
    low, high = chain.late_range
    assert low < chain.late_fraction <= 0.01 < simulated.late_fraction(chain.value) < high
    assert chain.value_range[0] < auto.value < chain.value_range[1]
    assert simulated.late_fraction(auto.value_range[1]) <= 0.0105
    # Where the expected error leaves nothing open, the chain answers.
    certain = td.playout_for_late_fraction(VOIP, PATH, td.Stack.newreno_2008(), 0.01)
    assert (certain.method, certain.late_range) == ("chain", (certain.late_fraction,) * 2)


def test_every_late_fraction_has_its_range(run):
    answer = predict(Scenario(VOIP, PATH), method="chain")
    low, high = late_range(answer, 0.2)
    record = json.loads(run("predict", *CALL_OPTIONS, "--format", "json")[1])
    assert (record["late_fraction_low"], record["late_fraction_high"]) == pytest.approx((low, high), rel=1e-6)
    words = f"; the expected error allows {100 * low:.3g} % to {100 * high:.3g} %"
    assert words in run("predict", *CALL_OPTIONS)[1]
    assert words in " ".join(run("report", *CALL_OPTIONS)[1].split())
    record = json.loads(run("solve", "playout", *CALL_OPTIONS, "--format", "json", "--method", "chain")[1])
    assert record["late_fraction_low"] < record["late_fraction"] < record["late_fraction_high"]


def test_a_choice_names_the_verdict_on_each_way_and_simulates_open_ones():
    flow, path = td.Flow(1448, 0.020), td.Path(rtt=0.100, loss=0.01)
    chain = td.best_connections(flow, path, method="chain")
    assert "uncertain" in {one.verdict for one in chain.candidates}
    auto = td.best_connections(flow, path)
    assert {one.method for one in auto.candidates} == {"simulation"}
    clear = td.best_interval(64_000, PATH)
    assert {(one.verdict, one.method) for one in clear.candidates} == {("works", "chain")}


def test_the_edge_of_a_region_has_a_band_and_can_be_simulated(run):
    points = [0.1, 0.15]
    chain = td.working_boundary("voip", rtt=points)
    assert np.all(chain.certain_up_to < chain.works_up_to)
    assert np.all(chain.works_up_to < chain.impossible_from)
    simulated = td.working_boundary("voip", rtt=points, method="simulation")
    assert (chain.method, simulated.method) == ("chain", "simulation")
    assert np.all(simulated.certain_up_to <= simulated.works_up_to)
    assert np.all(simulated.impossible_from / simulated.certain_up_to < chain.impossible_from / chain.certain_up_to)
    options = ("region", "--app", "voip", "--points", "2", "--rtt", "100ms..150ms", "--format", "json")
    rows = json.loads(run(*options)[1])
    assert [row["certain_up_to"] for row in rows] == pytest.approx(chain.certain_up_to.tolist(), rel=0.02)
    assert json.loads(run(*options, "--method", "simulation")[1]) != rows


def test_the_verdict_of_a_cell_is_the_verdict_on_its_prediction():
    rtts, losses = [0.05, 0.1, 0.2], [0.005, 0.02, 0.056, 0.06, 0.2]
    cells = td.working_region("voip", rtt=rtts, loss=losses, beyond="exact")
    expected = [
        [verdict_of(predict(Scenario(VOIP, td.Path(rtt, loss)), method="chain"), TARGET) for loss in losses]
        for rtt in rtts
    ]
    assert [[VERDICTS[place] for place in row] for row in cells.verdict.values] == expected
    assert {name for row in expected for name in row} == set(VERDICTS)


# Scenarios that need more memory than a chain may take: the method `auto` simulates them, and says why

REASON = "the chain needs about"


@pytest.fixture
def no_memory(monkeypatch):
    monkeypatch.setattr("tcpdelay.chain.engine.MOST_MEMORY", 1)


@pytest.fixture
def little_memory(monkeypatch):
    """Let the chain of a call fit with a round-trip time of 80 ms, and not with 100 ms."""
    monkeypatch.setattr("tcpdelay.chain.engine.MOST_MEMORY", 100_000)


def test_a_prediction_says_why_it_is_simulated(no_memory, run):
    answer = predict(Scenario(VOIP, PATH))
    assert (answer.method, answer.simulated_because[: len(REASON)]) == ("simulation", REASON)
    status, printed, errors = run("predict", "--rtt", "100ms", "--loss", "2%", "--app", "voip")
    assert (status, errors) == (0, "")
    assert f"simulation: {REASON}" in printed
    with pytest.raises(TooLargeError):
        td.predict_delay(VOIP, PATH, method="chain")


def test_a_report_says_why_it_is_simulated(no_memory):
    found = td.guideline("voip", PATH)
    assert found.verdict == "works"
    assert "so all figures are simulated" in found.to_markdown()
    assert json.loads(found.to_json())["simulated_because"].startswith(REASON)
    with pytest.raises(TooLargeError):
        td.guideline("voip", PATH, method="chain")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: td.largest_loss(VOIP, PATH),
        lambda: td.sensitivities(VOIP, PATH),
        lambda: td.playout_for_late_fraction(VOIP, PATH, None, 0.02),
        lambda: td.best_split(VOIP, PATH),
        lambda: td.best_connections(VOIP, PATH, target=CallTarget()),
    ],
)
def test_questions_say_why_they_are_simulated(no_memory, ask):
    found = ask()
    assert found.method == "simulation"
    assert any(REASON in note for note in found.notes)


def test_an_edge_beyond_the_largest_chain_is_simulated(little_memory):
    alone = td.largest_rtt(VOIP, PATH, method="chain")
    assert alone.limited_by == "size of the chain"
    found = td.largest_rtt(VOIP, PATH)
    assert (found.method, found.limited_by) == ("simulation", "delay")
    assert found.value > 1.1 * alone.value
    assert any(REASON in note for note in found.notes)


def test_points_of_a_region_beyond_the_largest_chain_are_simulated(little_memory):
    found = td.working_boundary(VOIP, rtt=[0.08, 0.12], loss=np.geomspace(0.001, 0.04, 8), limit=0.1)
    assert found.simulated.tolist() == [False, True]
    assert 0.001 < found.works_up_to[1] < found.works_up_to[0] < 0.04
    table = edge_table([Edge("voip", "linux", found, (None, None))])
    assert [row["method"] for row in table.to_records()] == ["chain", "simulation"]
    assert "Where the chain is too large, the edge is simulated." in table.to_text()


# A simulation that has not settled says so wherever its delays are shown

SETTLED = Simulation(
    np.array([0.05, 70.0]), np.array([0.5, 0.5]), 0.05, packets=500_000, carried=Interval(0.968, 0.925, 1.014)
)
UNSETTLED = replace(SETTLED, settled=False)
NOTE = "not settled after 500000 packets: between 92.5 % and 101 % of the rate is carried"


def test_its_repr_says_so():
    assert repr(UNSETTLED).endswith(f", {NOTE})")
    assert "settled" not in repr(SETTLED)


def test_its_quantiles_warn():
    with pytest.warns(UnsettledWarning, match=NOTE):
        assert UNSETTLED.quantile(0.95) == 70.0
    # Where warnings are errors, as in this test, no other distribution warns.
    assert SETTLED.quantile(0.95) == DelayDistribution(SETTLED.values, SETTLED.weights, 0.05).quantile(0.95) == 70.0


def test_its_chart_and_its_table_say_so():
    for kind in ("both", "cdf", "density", "survival"):
        assert UNSETTLED.plot(Figure().subplots(), kind=kind).get_title("left") == NOTE
        assert SETTLED.plot(Figure().subplots(), kind=kind).get_title("left") == ""
    assert NOTE in distribution_html(UNSETTLED, "simulation")
    assert "settled" not in distribution_html(SETTLED, "simulation")


NEAR_CAPACITY = td.Flow(1448, 0.0046336), td.Path(rtt=0.078, loss=0.005)
"""About the rate that TCP carries: the chain says a little less."""
FREE = td.Path(rtt=0.001, loss=0.0), td.Udp()


def over_network(flow: td.Flow, path: td.Path, packets: int):
    shared = td.SharedPath(access_delay=path.rtt / 2, loss=path.loss)
    source = td.ConstantRate(flow=flow, path=shared, stack=td.Stack.linux())
    return simulate_network([source], UNLIMITED, duration=packets * flow.interval).flows[0]


def over_relay(flow: td.Flow, path: td.Path, packets: int):
    return td.simulate_relay(flow, FREE, (path, td.Stack.linux()), packets=packets)


def test_an_isolated_loss_in_twenty_is_settled_in_every_simulator():
    # Either side of the 95th percentile lies a delay: its interval is wide, but the share of later packets is known.
    flow, path = td.Flow(174, 1.0), td.Path(rtt=0.1, loss=0.049)
    network = over_network(flow, path, 20_000)
    assert network.p95_interval.high > 3 * network.p95_interval.value
    assert network.settled
    assert over_relay(flow, path, 20_000).settled
    assert td.simulate(flow, path, packets=20_000).settled


@pytest.mark.parametrize("simulated", [over_network, over_relay])
def test_networks_and_relays_say_so_wherever_they_show_delays(simulated):
    found = simulated(*NEAR_CAPACITY, 200_000)
    assert not found.settled
    note = found.delays.unsettled_note
    assert re.fullmatch(r"not settled after \d+ packets: between 9\S+ % and 1\S+ % of the rate is carried", note)
    assert note in repr(found.delays)
    page = distribution_html(found.delays, found.delays.method)
    assert "by simulation" in page
    assert note in page
    assert found.delays.plot(Figure().subplots()).get_title("left") == note
    with pytest.warns(UnsettledWarning, match=note):
        found.delays.quantile(0.95)


def test_key_frames_of_an_unsettled_video_are_not_settled_either():
    path = td.Path(rtt=0.080, loss=0.005)
    flows = td.simulate(td.Video(2.5e6), path, packets=20_000, seed=1), over_relay(td.Video(2.5e6), path, 20_000)
    for found in flows:
        kinds = [getattr(kind, "delays", kind) for kind in found.by_kind.values()]
        assert {found.settled, *(kind.settled for kind in kinds)} == {False}


def test_a_relay_prints_no_delay_that_has_not_settled(run):
    first = ["--rtt", "1ms", "--loss", "0", "--first", "udp"]
    asked = ["relay", "--packet-size", "1448", "--interval", "4.6336ms", *first, "--second-rtt", "78ms"]
    status, printed, _ = run(*asked, "--second-loss", "0.5%", "--format", "json")
    record = json.loads(printed)
    assert status == 0
    assert (record["settled"], record["p95"], record["mean"], record["mean_second"]) == (False, None, None, None)
    assert record["carried_low"] < 1 < record["carried_high"]
    _, printed, _ = run(*asked, "--second-loss", "0.5%")
    assert "not settled after 100000 packets" in printed
    assert "come within" not in printed
