"""Every answer, row and cell keeps within its time and memory, and odd inputs get an answer or one clear line."""

import csv
import io
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import tcpdelay as td
from scoring.odd_scenarios import OddScenario, outcome
from tcpdelay.accuracy.validity import ValidityWarning
from tcpdelay.ask import Requested
from tcpdelay.budget import SECONDS_PER_UPDATE, Budget, TooLargeError, checked_budget
from tcpdelay.chain import chains as chain_models
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.chain.engine import SolvedChain
from tcpdelay.chain.linux.transitions import LinuxProfile, linux_transitions
from tcpdelay.chain.solver.state_space import reachable_rows
from tcpdelay.chain.solver.stationary import iterate_sweeps, solve_by_sweeps
from tcpdelay.declare import InvalidValueError
from tcpdelay.models.predict import predict
from tcpdelay.report.notebook import distribution_html
from tcpdelay.report.prediction import (
    exchange_text,
    not_settled_record,
    not_settled_text,
    prediction_record,
    prediction_text,
)
from tcpdelay.scenario.media import Speech, Video
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.sim import simulation
from tcpdelay.sim.simulation import packets_within
from tcpdelay.study.grid import question
from tcpdelay.study.sweep.run import sweep_runs
from tcpdelay.study.sweep.specification import read_sweep
from tcpdelay.study.tables.lattice import EXACT_ROWS, FEW_SIMULATED, lattice_path

CALL, PATH = td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02)
LARGE = Scenario(td.Flow(1448, 0.005), td.Path(rtt=0.3, loss=0.0012), td.Stack.linux())
"""60 packets per round-trip time near the capacity."""
MANY_BACKLOGS = Scenario(td.Flow(14_480, 125e-6), td.Path(rtt=13.8e-6, loss=1.93e-7))
"""A chain of millions of cells, whose drift does not settle."""
SPARSE = Scenario(td.Flow(7, 1.37), td.Path(rtt=1.3e-3, loss=0.0126), td.Stack.linux(mss=8948))
"""A sparse flow of tiny packets: its delays once took 2.7 GB of bins."""


def test_estimates_add_up_to_a_refusal():
    budget = Budget(max_seconds=2.0)
    budget.spend(1.5)
    with pytest.raises(TooLargeError, match=r"needs about 3 s or more .* at most 2 s are allowed"):
        budget.spend(1.5)
    budget.require_memory(2**30)
    with pytest.raises(TooLargeError, match=r"needs about 2.0 GiB .* at most 1 GiB"):
        budget.require_memory(2**31)


@pytest.mark.parametrize("seconds", [0, -1.0, np.nan, "10", 10**400, np.timedelta64(1, "s"), True])
def test_a_time_out_of_range_is_refused_in_one_line(seconds):
    with pytest.raises(InvalidValueError, match=r"max_seconds must .*, got"):
        checked_budget(seconds, None)


@pytest.mark.parametrize("memory", [0, 2**51, np.nan, "1GiB"])
def test_a_memory_out_of_range_is_refused_in_one_line(memory):
    with pytest.raises(InvalidValueError, match="max_memory must lie between 1 MiB and 1 PiB"):
        checked_budget(10.0, memory)


@pytest.mark.parametrize("scenario", [LARGE, MANY_BACKLOGS])
def test_a_chain_beyond_its_time_is_refused_before_it_takes_it(scenario):
    answer = predict(scenario, Requested(max_seconds=2.0), "chain")
    assert answer.status == "too large"
    assert "at most 2 s are allowed" in str(answer.refusal) or "at most 1 GiB" in str(answer.refusal)


def test_the_memory_of_a_chain_is_the_one_that_is_allowed():
    scenario = Scenario(td.Flow(1448, 0.005), td.Path(rtt=0.300, loss=0.001))
    refused = predict(scenario, Requested(max_memory=2**20), "chain")
    assert refused.status == "too large"
    assert predict(scenario, Requested(), "chain").status != "too large"


@pytest.mark.parametrize("jitter", [0.0, 0.005])
def test_an_expected_error_takes_no_more_than_its_prediction(monkeypatch, jitter):
    budgets = []

    def recorded(profile, budget):
        budgets.append(budget)
        return SolvedChain(profile, budget)

    monkeypatch.setattr(chain_models, "SolvedChain", recorded)
    scenario = Scenario(CALL, replace(PATH, jitter=jitter), td.Stack.linux())
    # The expected error depends on the capacity: a small chain has found it, the chains of a path with jitter have not.
    request = Requested(quantiles=(0.95,), distribution=False, max_seconds=7.0, max_memory=2**29)
    answer = predict(scenario, request, "chain")
    predicted = len(budgets)
    assert answer.expected_error is not None
    assert (len(budgets) > predicted) == (jitter > 0)
    assert {budget.max_seconds * (1 if jitter == 0 else predicted) for budget in budgets} == {7.0}
    assert {budget.max_memory for budget in budgets} == {2**29}


@pytest.fixture
def short_calls(monkeypatch):
    """Let the solver make a single sweep in each call."""
    monkeypatch.setattr("tcpdelay.chain.solver.stationary.SLICE", 1e-9)
    monkeypatch.setattr("tcpdelay.chain.solver.stationary.SWEEPS_PER_CALL", 1)


def test_a_slow_solution_is_ended_between_two_calls_of_the_solver(short_calls):
    model = DelayModel(td.Flow(1448, 0.020), td.Path(rtt=0.100, loss=0.01), td.Stack.linux("reno"), Budget(4e-4))
    with pytest.raises(TooLargeError, match="or more"):
        model.delay_distribution()


def test_a_call_of_the_solver_takes_no_more_than_is_left(monkeypatch):
    allowed = []

    def recorded(*arguments):
        allowed.append(arguments[-1])
        return iterate_sweeps(*arguments)

    monkeypatch.setattr("tcpdelay.chain.solver.stationary.iterate_sweeps", recorded)
    budget = Budget(0.05)
    model = DelayModel(td.Flow(1448, 0.020), td.Path(rtt=0.100, loss=0.01), td.Stack.linux("reno"), budget)
    made = budget.spent
    model.delay_distribution()
    assert allowed == [pytest.approx((0.05 - made) / SECONDS_PER_UPDATE, abs=2)]
    assert budget.spent > made


def test_nothing_is_begun_after_the_budget_is_spent():
    budget = Budget(1e-3, spent=2e-3)
    with pytest.raises(TooLargeError, match="or more"):
        budget.left()


@pytest.mark.parametrize(
    ("scenario", "step"),
    [
        (Scenario(td.Flow(5, 149e-6), td.Path(rtt=0.378, loss=8.96e-9), td.Stack.linux("bbr")), "phases"),
        (Scenario(td.Flow(39_300, 1.18e-3), td.Path(rtt=0.0217, loss=8.7e-9), td.Stack.linux()), "phases"),
        (Scenario(td.Flow(4, 141e-6), td.Path(rtt=3.55e-3, loss=0.0742), td.Stack.linux("reno", mss=536)), "delays"),
        (
            Scenario(td.Flow(44_800, 0.27), td.Path(rtt=35.1e-6, loss=2.07e-3), td.Stack.linux("reno", mss=8948)),
            "delays",
        ),
    ],
)
def test_the_estimate_of_a_step_is_not_far_below_its_time(scenario, step):
    DelayModel(CALL, PATH, td.Stack.linux()).delay_distribution()  # compiles the kernels
    profile = LinuxProfile(scenario.flow, scenario.path, scenario.stack)
    estimate = profile.least_seconds
    if step == "delays":
        phases, transitions = profile.structure
        rows = reachable_rows(phases, transitions, profile.start, profile.first_bound)
        probability = solve_by_sweeps(phases, transitions, rows, profile.start, 1000).probability
        estimate, _ = profile.cost_of_delays(rows, probability)
    begun = time.thread_time()
    if step == "delays":
        profile.delays(rows, probability)
    else:
        linux_transitions(profile.parameters)
    assert time.thread_time() - begun < 4 * estimate


def test_a_solution_in_many_calls_is_the_same(request):
    parts = CALL, PATH, td.Stack.linux()
    whole = DelayModel(*parts).delay_distribution()
    request.getfixturevalue("short_calls")
    sliced = DelayModel(*parts).delay_distribution()
    assert sliced.mean == pytest.approx(whole.mean, rel=1e-9)
    assert sliced.quantile(0.999) == pytest.approx(whole.quantile(0.999), rel=1e-9)


def test_a_simulation_ends_after_its_time():
    found = td.simulate(CALL, PATH, half_width=1e-6, max_seconds=0.1)
    assert found.packets == 200_000
    assert td.simulate(CALL, PATH, packets=5000, max_seconds=0.01).packets == 5000


@pytest.mark.parametrize("loss", [0.5, 0.9])
def test_a_simulation_ends_in_the_middle_of_its_first_packets(loss):
    begun = time.thread_time()
    with pytest.raises(TooLargeError, match="has only reached 0 packets in the time that it may take"):
        td.simulate(td.Flow(800_000, 0.815), td.Path(rtt=0.336, loss=loss), max_seconds=0.01)
    assert time.thread_time() - begun < 1.0


@pytest.fixture
def clock(monkeypatch):
    """Let the clock of processor time go at another rate."""
    real = time.thread_time

    def at_rate(rate):
        monkeypatch.setattr(time, "thread_time", lambda: rate * real())

    return at_rate


SMALL_BUDGETS = [
    # Each ends by its work, before it has its most packets.
    (td.Flow(20_000, 0.040), td.Path(rtt=0.1, loss=0.02), None, 0.05),
    (td.Flow(20_000, 0.040), td.Path(rtt=0.1, loss=0.02), td.Stack.linux("bbr"), 0.05),
    (td.Flow(5_000, 0.010), td.Path(rtt=0.02, loss=0.01), td.Stack.quic(), 0.05),
    (Video(4_000_000), td.Path(rtt=0.05, loss=0.01), None, 0.05),
]


def answer_of(flow, path, stack, seconds):
    """Return all figures of a simulation, or its refusal, which names the packets that it has reached."""
    try:
        found = td.simulate(flow, path, stack, half_width=1e-6, max_seconds=seconds)
    except TooLargeError as error:
        return str(error)
    assert found.packets < packets_within(seconds, flow, stack or td.Stack.linux())
    assert not found.ended_by_clock
    return found.packets, found.counts, found.values.tolist(), found.weights.tolist()


@pytest.mark.parametrize("number", range(len(SMALL_BUDGETS)), ids=["cubic", "bbr", "quic", "video"])
def test_a_budget_ends_a_simulation_at_the_same_packet_whatever_the_clock(clock, number):
    answers = []
    for rate in (1.0, 5.0, 0.2):
        clock(rate)
        answers.append(answer_of(*SMALL_BUDGETS[number]))
    assert answers[1] == answers[2] == answers[0]


def test_exchanges_end_after_the_same_work_whatever_the_clock(clock):
    found = []
    for rate in (1.0, 5.0, 0.2):
        clock(rate)
        found.append(td.simulate_exchanges(20_000, 800, PATH, exchanges=1_000_000, max_seconds=0.1))
    assert found[0].exchanges < 1_000_000
    assert "ended by its budget" in exchange_text(PATH, (20_000, 800), td.Target(0.2), found[0])
    assert found[1].values.tolist() == found[2].values.tolist() == found[0].values.tolist()


@pytest.mark.parametrize("stack", [td.Stack.linux(), td.Stack.quic()], ids=["tcp", "quic"])
def test_the_clock_ends_a_simulation_as_the_last_resort_and_the_answer_says_so(clock, stack):
    clock(250.0)
    # Without jitter, the quantile of QUIC is known exactly before.
    path = td.Path(rtt=0.100, loss=0.02, jitter=0.005)
    found = td.simulate(CALL, path, stack, half_width=1e-6)
    assert found.ended_by_clock
    assert f"ended by the clock after {found.packets} packets" in repr(found)
    assert "ended by the clock" in distribution_html(found, "simulation")
    asked = (CALL, path, td.Target(0.2), found)
    assert prediction_record(*asked)["ended_by_clock"] is True
    assert "ended by the clock" in prediction_text(*asked)
    with pytest.raises(TooLargeError, match="before the clock ended it"):
        td.simulate(CALL, path, stack, half_width=1e-6, max_seconds=0.1)


def test_an_answer_says_that_the_clock_ended_its_simulation():
    answer = predict(Scenario(CALL, PATH), Requested(packets=5000), "simulation")
    assert not answer.clock_notes
    ended = replace(answer, distribution=replace(answer.require(), ended_by_clock=True))
    assert any("ended by the clock after 5000 packets" in said for said in ended.assumptions)


def test_a_simulation_of_requested_packets_has_a_budget(clock, monkeypatch):
    monkeypatch.setattr(simulation, "REQUESTED", 0.5)
    found, exact = [], replace(CALL, write_jitter=0)
    for rate in (1.0, 5.0, 0.2):
        clock(rate)
        found.append(td.simulate(exact, PATH, packets=100_000, max_seconds=0.01))
    early = found[0]
    assert 1000 <= early.packets < 100_000
    assert [one.values.tolist() for one in found] == 3 * [early.values.tolist()]
    assert (early.settled, early.ended_by_budget, early.ended_by_clock) == (False, True, False)
    assert f"not settled after {early.packets} packets, where its budget ended the simulation" in repr(early)
    # Each packet would be sent a million times.
    with pytest.raises(TooLargeError, match="has only reached 0 packets in the time"):
        td.simulate(td.Flow(174, 1.0, write_jitter=0), td.Path(rtt=0.1, loss=0.999999), packets=2000, max_seconds=0.1)


def test_a_leg_of_a_relay_has_a_budget(monkeypatch):
    monkeypatch.setattr(simulation, "SLOWEST", 0.01)
    monkeypatch.setattr(simulation, "REQUESTED", 1.0)
    hopeless = (td.Path(rtt=0.1, loss=0.999999), td.Stack.linux())
    with pytest.raises(TooLargeError, match=r"has only reached \d packets of a leg .*; use a lower loss"):
        td.simulate_relay(CALL, hopeless, (td.Path(rtt=0.1, loss=0.0), td.Udp()), packets=2000)


def test_a_network_and_a_comparison_have_a_budget(clock, run):
    said = []
    for rate in (1.0, 5.0, 0.2):
        clock(rate)
        with pytest.raises(
            TooLargeError, match=r"has only reached \S+ s of 1e\+07 s in the time .*; allow more time"
        ) as got:
            td.compare(CALL, PATH, duration=1e7, ways=["udp"], max_seconds=0.1)
        said.append(str(got.value))
    assert said == 3 * [said[0]]
    clock(1e6)
    with pytest.raises(TooLargeError, match="before the clock ended it"):
        td.compare(CALL, PATH, duration=1e7, ways=["udp"], max_seconds=0.1)
    asked = ["compare", "--rtt", "100ms", "--loss", "2%", "--app", "voip", "--max-seconds", "0.01"]
    status, _, errors = run(*asked, "--duration", "1e6s")
    assert (status, "allow more time" in errors, errors.count("\n")) == (2, True, 1)


def test_a_refusal_says_that_the_clock_has_ended_the_simulation(clock):
    near_capacity = Scenario(td.Flow(1448, 0.0046336), td.Path(rtt=0.078, loss=0.005))
    clock(150.0)
    answer = predict(near_capacity, Requested(), "simulation")
    refusal = answer.refusal
    assert (answer.status, refusal.ended_by) == ("not settled", "the clock")
    assert f"not settled after {refusal.packets} packets, where the clock ended the simulation: TCP" in str(refusal)
    assert "\n" not in str(refusal)
    asked = near_capacity.source, near_capacity.path
    assert not_settled_record(*asked, td.Target(0.2), refusal)["ended_by_clock"] is True
    assert "where the clock ended the simulation" in not_settled_text(*asked, refusal)


@pytest.mark.parametrize(
    ("requested", "needed"), [(Requested(max_seconds=0.05), "s or more"), (Requested(max_memory=2**20), "GiB")]
)
def test_a_chain_of_speech_keeps_within_its_budget(requested, needed):
    speech = Speech(packet_size=20, interval=1e-4)
    answer = predict(Scenario(speech, td.Path(rtt=1e-4, loss=0.05), td.Stack.linux("reno")), requested, "chain")
    assert answer.status == "too large"
    assert needed in str(answer.refusal)


@pytest.mark.parametrize(("rtt", "needed"), [(2.3e-5, "s or more"), (1e-6, "GiB")])
def test_a_chain_of_video_keeps_within_its_budget(rtt, needed):
    scenario = Scenario(Video(200_000), td.Path(rtt=rtt, loss=0.01), td.Stack.linux())
    answer = predict(scenario, Requested(max_seconds=0.5), "chain")
    assert answer.status == "too large"
    assert needed in str(answer.refusal)


def test_a_larger_budget_asks_again():
    from tcpdelay.ask import solved_once

    with solved_once():
        refused = predict(LARGE, Requested(max_seconds=0.5, max_memory=2**32), "chain")
        again = predict(LARGE, Requested(max_seconds=1.0, max_memory=2**32), "chain")
    assert "0.5 s are allowed" in str(refused.refusal)
    assert "1 s are allowed" in str(again.refusal)


def test_a_sparse_flow_takes_little_memory():
    code = """
import resource, warnings, sys
import tcpdelay as td
warnings.simplefilter("ignore")
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = td.predict_delay(td.Flow(7, 1.37), td.Path(rtt=1.3e-3, loss=0.0126), td.Stack.linux(mss=8948), method="chain")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base, found.mean)
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert float(printed[0]) < 500_000  # KiB
    assert 0.00065 < float(printed[1]) < 0.1


@pytest.mark.parametrize("value", [np.timedelta64(1, "s"), 10**400])
@pytest.mark.parametrize("name", ["rtt", "loss", "packet_size", "interval"])
def test_values_without_a_float_are_refused_in_one_line(name, value):
    arguments = {"rtt": 0.1, "loss": 0.01, "packet_size": 174, "interval": 0.02} | {name: value}
    with pytest.raises(InvalidValueError, match=f"^{name} must") as caught:
        td.predict_delay(**arguments, method="chain")
    assert "\n" not in str(caught.value)


def test_a_published_bound_says_that_the_flow_is_not_carried():
    stack = td.Stack.newreno_2008(backlog_bound="published")
    with pytest.warns(ValidityWarning):
        found = td.predict_delay(td.Flow(1400, 0.005), td.Path(rtt=0.3, loss=0.05), stack, method="chain")
    assert not found.sustainable
    assert np.isfinite(found.quantile(0.95))
    assert "unsustainable" in repr(found)


def test_an_unusual_stack_warns_of_nothing_else():
    scenario = Scenario(td.Flow(44, 3.2e-3), td.Path(rtt=2.1, loss=0.08))
    assert outcome(OddScenario(scenario, "chain", 0.12)).fault == ""


def test_the_script_goes_on_where_it_was_interrupted(tmp_path):
    script, file = Path(__file__).parent.parent / "validation" / "odd_scenarios.py", tmp_path / "odd.csv"
    command = [sys.executable, str(script)]
    file.write_text(
        "number,method,status,answered_by,p95,seconds,peak_mib,fault,scenario\n7,chain,exact,chain,1,0,0,,\n"
    )
    subprocess.run(
        [*command, "run", str(file), "--scenarios", "9", "--method", "chain"], check=True, capture_output=True
    )
    lines = file.read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["number", "7", "8"]
    shown = subprocess.run([*command, "table", str(file)], check=True, capture_output=True, text=True).stdout
    assert shown.startswith("chain: 2 scenarios, 0 with a fault")


# Rows of sweeps and tables, and cells of regions

STREAM = td.Flow(1448, 0.005)
RTT, LOSS = 0.05, 0.002
"""A path on which the chain of the stream takes more than 10 ms and 1 MiB, and less than 10 s and 1 GiB."""
LITTLE = [{"max_seconds": 0.01}, {"max_memory": 2**20}]


def swept(evaluate):
    flow = {"packet_size": STREAM.packet_size, "interval": STREAM.interval}
    return {"flow": flow, "grid": {"rtt": [RTT, 0.001], "loss": [LOSS]}, "evaluate": evaluate}


@pytest.mark.parametrize("little", LITTLE)
def test_a_run_of_a_sweep_beyond_its_budget_is_refused_with_the_reason(little):
    found = td.sweep(swept(little))
    assert found.refused.values.ravel().tolist() == [1, 0]
    assert "the chain needs about" in found.refusals.values[1]
    assert np.isnan(found.mean_delay.values[0, 0])
    assert not td.sweep(swept({})).refused.any()


def test_the_budget_of_a_sweep_has_units_and_tells_kept_runs_apart():
    written = read_sweep(swept({"max_seconds": "20 ms", "max_memory": "1 GiB"}))
    requested = sweep_runs(written).requested
    assert (requested.max_seconds, requested.max_memory) == (0.02, 2**30)
    assert written.digest == read_sweep(swept({"max_seconds": 0.02, "max_memory": 2**30})).digest
    others = ({}, {"max_seconds": 0.02}, {"max_seconds": 0.03, "max_memory": 2**30})
    assert len({written.digest, *(read_sweep(swept(each)).digest for each in others)}) == 4


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ({"max_seconds": 0}, "max_seconds must lie between 0.01 and 1e+06 s, got 0"),
        ({"max_seconds": "1 ms"}, "max_seconds must lie between 0.01 and 1e+06 s, got 0.001"),
        ({"max_seconds": "2"}, "max_seconds: '2' has no unit; write 2ms or 2s"),
        ({"max_seconds": [2]}, "max_seconds must be a number, or text with a unit, got [2]"),
        ({"max_memory": "1kB"}, "max_memory must lie between 1 MiB and 1 PiB (in bytes), got 1000"),
        ({"max_memory": "much"}, "max_memory: 'much' is no size; write 174, 1448B or 1.4kB"),
        ({"max_seconds": 2, "method": "simulation"}, "max_seconds: goes with method = 'chain', not with 'simulation'"),
    ],
)
def test_a_wrong_budget_of_a_sweep_is_refused_in_one_line(evaluate, message):
    with pytest.raises(ValueError, match=r"^specification: ") as caught:
        read_sweep(swept(evaluate))
    assert str(caught.value) == f"specification: [evaluate] {message}"


MANY = {"rtt": [RTT] * (FEW_SIMULATED + 1), "loss": (LOSS * np.linspace(1, 1.01, FEW_SIMULATED + 1)).tolist()}
"""A table with more paths than are simulated one by one."""


@pytest.mark.parametrize("little", LITTLE)
def test_a_single_row_beyond_the_budget_of_the_chain_is_simulated_as_predict_does(little):
    found = td.predict_many({"rtt": [RTT], "loss": [LOSS]}, flow=STREAM, cached=False, **little)
    asked = Requested(target=question(STREAM, None, None, None).target, **little)
    answer = predict(Scenario(STREAM, td.Path(RTT, LOSS)), asked)
    assert answer.method == "simulation"
    assert (found["p95"][0], found["reason"][0]) == (answer.require().quantile(0.95), None)


@pytest.mark.parametrize("little", LITTLE)
@pytest.mark.parametrize(
    "table", [MANY, {"rtt": [RTT] * (EXACT_ROWS + 1), "loss": [LOSS] * (EXACT_ROWS + 1)}], ids=["exact", "lattice"]
)
def test_a_row_beyond_its_budget_has_the_reason(little, table):
    found = td.predict_many(table, flow=STREAM, cached=False, **little)
    assert set(found["reason"]) == {"the chain is too large to compute, or does not model this loss or packet size"}
    assert np.isnan(found["p95"]).all()
    assert set(td.predict_many(table, flow=STREAM, cached=False)["reason"]) == {None}


def test_cached_answers_are_those_of_the_same_budget(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = EXACT_ROWS + 1
    table = {"rtt": [RTT] * rows, "loss": [LOSS] * rows}
    known = [np.isfinite(td.predict_many(table, flow=STREAM, **each)["p95"][0]) for each in ({}, *LITTLE, {})]
    assert known == [True, False, False, True]
    budgets = [(), (10,), (10, 2**30), (9,)]
    assert len({lattice_path(question(STREAM, None, None, None, *each)) for each in budgets}) == 3


@pytest.mark.parametrize("little", LITTLE)
def test_a_cell_beyond_its_budget_is_too_large_and_the_edge_there_is_simulated(little):
    cells = td.working_region(STREAM, rtt=[RTT], loss=[LOSS], codec=None, **little)
    assert (cells.accuracy.item(), bool(cells.works.item())) == (3, False)
    edge = {"rtt": [RTT], "loss": [LOSS, 0.5]}
    assert td.working_boundary(STREAM, **edge, **little).simulated.item()
    assert not td.working_boundary(STREAM, **edge).simulated.item()


@pytest.mark.parametrize(("little", "far"), [*((little, True) for little in LITTLE), ({}, False)])
def test_the_values_beside_an_edge_have_its_budget(little, far):
    edge = td.working_boundary(STREAM, rtt=[2 * RTT], loss=[LOSS / 20, 0.5], method="chain", **little)
    # A chain that is too large does not show that its loss is impossible; far beyond, a small part of it does.
    assert (edge.impossible_from.item() > 0.003) == far


def test_a_simulated_cell_and_row_have_no_more_messages_than_their_time_allows(monkeypatch):
    seen = []

    def simulated(*arguments, packets, **options):
        seen.append(packets)
        raise ValueError("seen enough")

    monkeypatch.setattr("tcpdelay.sim.simulation.simulate", simulated)
    speech = td.Speech(174, 0.020)
    for seconds in (10.0, 0.02):
        td.working_region(speech, rtt=[0.1], loss=[0.01], max_seconds=seconds)
        td.predict_many(MANY, flow=speech, max_seconds=seconds, cached=False)
    cell_and_rows = len(MANY["rtt"]) + 1
    assert seen == [50_000] * cell_and_rows + [40_000] * cell_and_rows
    td.working_region(speech, rtt=[0.1], loss=[0.01], max_seconds=0.02, packets=60_000)
    assert seen[-1] == 60_000


@pytest.mark.parametrize(
    "ask",
    [
        lambda **little: td.predict_many({"rtt": [RTT], "loss": [LOSS]}, flow=STREAM, cached=False, **little),
        lambda **little: td.working_region(STREAM, rtt=[RTT], loss=[LOSS], **little),
        lambda **little: td.working_boundary(STREAM, rtt=[RTT], loss=[LOSS], **little),
    ],
)
@pytest.mark.parametrize(("name", "value"), [("max_seconds", 0), ("max_memory", 5)])
def test_a_budget_out_of_range_is_refused_everywhere_alike(ask, name, value):
    with pytest.raises(InvalidValueError, match=rf"^{name} must lie between .*, got {value}$"):
        ask(**{name: value})


@pytest.mark.parametrize("command", [["predict", "--rtt", "50ms", "--loss", "1%"], ["region"], ["batch", "users.csv"]])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-seconds", "1e-3", "must lie between 0.01 and 1e+06 s, got 0.001"),
        ("--max-memory", "5", "must lie between 1 MiB and 1 PiB (in bytes), got 5"),
        ("--max-memory", "much", "'much' is no size; write 174, 1448B or 1.4kB"),
    ],
)
def test_options_have_one_message(run, tmp_path, command, option, value, message):
    (tmp_path / "users.csv").write_text("rtt,loss\n0.05,0.001\n")
    status, _, errors = run(*command, "--app", "voip", option, value)
    assert (status, errors) == (2, f"tcpdelay {command[0]}: {option}: {message}\n")


def test_options_reach_the_rows_and_the_cells(run, tmp_path):
    lines = [f"{rtt},{loss}" for rtt, loss in zip(MANY["rtt"], MANY["loss"], strict=True)]
    (tmp_path / "users.csv").write_text("\n".join(["rtt,loss", *lines]))
    stream = ("--packet-size", "1448", "--interval", "5ms")
    status, _, errors = run("batch", "users.csv", *stream, "--no-cache", "--max-memory", "1MiB")
    assert (status, "11 of 11 rows have no prediction: the chain is too large" in errors) == (0, True)
    asked = ("region", *stream, "--rtt", "50ms..60ms", "--loss", "0.2%..0.5%", "--points", "2", "--max-seconds", "0.01")
    status, printed, _ = run(*asked, "--method", "chain", "--format", "csv")
    assert status == 0
    assert [row["works_up_to"] for row in csv.DictReader(io.StringIO(printed))] == ["", ""]
    assert run(*asked, "--method", "chain", "-o", "region.nc")[0] == 0
    assert (xr.open_dataset("region.nc", engine="scipy").accuracy.values[:, 0] == 3).all()
