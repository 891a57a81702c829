"""Compare verdicts near capacity with captures: `python validation/near_capacity.py CAPTURES`.

Where a flow takes nearly the rate that TCP carries, delays are long and depend on the last percent of that rate. The
script asks whether each verdict agrees with an hour of the kernel's TCP, and whether the expected errors cover it. It
writes `results/near-capacity.csv` and `.md`; `validation/specs/near-capacity.toml` makes the captures again.

Without a folder of captures, the script prints the simulator's errors from the results that are there
(`tcpdelay.accuracy.errors.BACKLOG_ERRORS`), and how many captures they cover if the captures of each path are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from scoring.spreads import spread_of
from tcpdelay.accuracy.errors import BACKLOG_ERRORS
from tcpdelay.capture.flow_capture import MICROSECONDS, FlowCapture, FlowRun, read_captures
from tcpdelay.delays import ExpectedError, Spread
from tcpdelay.models.predict import capacity
from tcpdelay.models.verdict import judge, late_range
from tcpdelay.scenario.scenario import Scenario, Target
from tcpdelay.scenario.stack import Stack, kernel_of_release
from tcpdelay.sim.simulation import simulate
from tcpdelay.statistics import mean_interval, quantile_interval
from tcpdelay.study.validation.captures import delays_by_run
from tcpdelay.testbed.experiment import Experiment

RESULTS = FilePath(__file__).parent / "results"
TARGETS = (Target(1.0, 0.95), Target(5.0, 0.999))
LONGEST_ADDED = 50.0
"""Mean delay added by TCP [round-trip times] that an hour still shows."""
LONG_WAIT, MOSTLY = 0.5, 0.8
"""TCP is saturated if this share of the packets has at least this delay [s]."""
OVERLOAD, PACKETS = 1.4, 2_000_000
"""Rate of the simulated sender that always has a backlog, relative to the capture's, and its packets."""
BATCHES = 8
"""Batches of an hour: a backlog near capacity is remembered for minutes."""


def saturated_rate(runs: Sequence[FlowRun], delays: Sequence[NDArray[np.float64]]) -> float:
    """Return the packets read per second [1/s] while they wait; NaN if packets wait for less than most of the time."""
    read = np.concatenate([run.written / MICROSECONDS + delay for run, delay in zip(runs, delays, strict=True)])
    waited = np.concatenate(delays) > LONG_WAIT
    if waited.mean() < MOSTLY:
        return np.nan
    both = waited[1:] & waited[:-1] & np.isfinite(read[1:])
    return float(both.sum() / np.diff(read)[both].sum())


def compared(capture: FlowCapture) -> list[dict[str, float | str | bool]]:
    """Return, for each target, the verdict on the scenario of a capture beside what the capture shows."""
    experiment = Experiment.from_table(capture.settings)
    run = capture.runs[0]
    stack = Stack.linux(experiment.congestion_control, hz=run.hz, kernel=kernel_of_release(run.kernel))
    scenario = Scenario(experiment.flow, experiment.path, stack)
    sequences, _ = delays_by_run(capture, experiment)
    share = 1 / (experiment.interval * capacity(scenario))
    rate = saturated_rate(capture.runs, capture.delays())
    busy = replace(scenario.flow, interval=scenario.flow.interval / OVERLOAD)
    simulated = (
        np.nan if np.isnan(rate) else simulate(busy, scenario.path, stack, packets=PACKETS, seed=1).carried.value
    )
    mean = mean_interval(sequences, batches=BATCHES).value
    measured = quantile_interval(sequences, 0.95, batches=BATCHES)
    rows: list[dict[str, float | str | bool]] = []
    for target in TARGETS:
        late = mean_interval([(sequence > target.latest).astype(np.float64) for sequence in sequences], batches=BATCHES)
        fewest, most = target.allows(max(late.low, 0.0)), target.allows(min(late.high, 1.0))
        shown = "undecided" if fewest != most else "works" if most else "fails"
        found = judge(scenario, target)
        low, high = late_range(found.answer, target.latest)
        error = found.answer.expected_error
        p95 = found.answer.require().quantile(0.95) if found.answer.answered else np.nan
        off = measured.value / p95 - 1
        rows.append(
            {
                "capture": capture.name,
                "share of capacity": round(share, 3),
                "limit": target.limit,
                "quantile": target.quantile,
                "late": round(late.value, 6),
                "late_low": round(max(late.low, 0.0), 6),
                "late_high": round(min(late.high, 1.0), 6),
                "capture shows": shown,
                "verdict": found.verdict,
                "answered by": found.answer.method,
                "status": found.answer.status,
                "predicted_late_low": round(low, 6),
                "predicted_late_high": round(high, 6),
                "late covered": bool(low <= min(late.high, 1.0) and max(late.low, 0.0) <= high),
                "p95": round(measured.value, 6),
                "predicted_p95": round(p95, 6),
                "mean": round(mean, 6),
                "predicted_mean": round(found.answer.require().mean if found.answer.answered else np.nan, 6),
                "rtt": scenario.path.rtt,
                "one_way_delay": scenario.path.forward_delay,
                "error_p90": error.p90 if error is not None else np.nan,
                "rate": round(rate, 3),
                "simulated_rate": round(simulated / busy.interval, 3),
                "p95 covered": bool(error is not None and abs(off) <= error.p90),
            }
        )
    return rows


def backlog_cases() -> pd.DataFrame:
    """Return the captures that the simulator says TCP carries: delay added by TCP [round-trip times], and errors.

    Captures with a longer added delay than `LONGEST_ADDED` are left out: they are too short for it.
    """
    scores = pd.read_csv(RESULTS / "scores.csv")
    scores = scores[(scores["model"] == "simulator") & scores["predicted_sustainable"] & scores["measured_sustainable"]]
    rtt = scores["capture"].str.extract(r"rtt([\d.]+)ms")[0].astype(float) / 1e3
    earlier = pd.DataFrame(
        {
            "path": "",
            "added": (scores["predicted_mean"] - rtt / 2) / rtt,
            "p95": (scores["measured_p95"] / scores["predicted_p95"] - 1).abs(),
            "mean": (scores["measured_mean"] / scores["predicted_mean"] - 1).abs(),
        }
    )
    near = pd.read_csv(RESULTS / "near-capacity.csv")
    near = near[(near["answered by"] == "simulation") & (near["status"] == "estimated")].drop_duplicates("capture")
    later = pd.DataFrame(
        {
            "path": near["capture"].str.extract(r"(rtt.*)-hz")[0],
            "added": (near["predicted_mean"] - near["one_way_delay"]) / near["rtt"],
            "p95": (near["p95"] / near["predicted_p95"] - 1).abs(),
            "mean": (near["mean"] / near["predicted_mean"] - 1).abs(),
        }
    )
    both = pd.concat([earlier, later], ignore_index=True)
    return both[np.isfinite(both["p95"]) & (both["added"] < LONGEST_ADDED)]


def backlog_errors(cases: pd.DataFrame) -> tuple[tuple[float, ExpectedError], ...]:
    """Return the simulator's error by the shortest added delay, as in `tcpdelay.accuracy.errors.BACKLOG_ERRORS`."""
    found = []
    for (shortest, known), (longest, _) in zip(
        BACKLOG_ERRORS, (*BACKLOG_ERRORS[1:], (LONGEST_ADDED, None)), strict=True
    ):
        inside = cases[(cases["added"] >= shortest) & (cases["added"] < longest)]
        p95, mean = (spread_of(inside[name].to_numpy()) for name in ("p95", "mean"))
        error = ExpectedError(**vars(_rounded(p95)), mean_delay=_rounded(mean), cases=len(inside), source=known.source)
        found.append((shortest, error))
    return tuple(found)


def _rounded(spread: Spread) -> Spread:
    return Spread(*(round(float(value), 3) for value in (spread.median, spread.mean, spread.p90)))


def covered_elsewhere(cases: pd.DataFrame) -> tuple[int, int]:
    """Return how many captures near capacity the errors without the captures of their path cover, and all of them."""
    covered, tested = 0, cases[(cases["path"] != "") & (cases["added"] >= BACKLOG_ERRORS[0][0])]
    for path, of_path in tested.groupby("path"):
        errors = backlog_errors(cases[cases["path"] != path])
        for added, off in zip(of_path["added"], of_path["p95"], strict=True):
            covered += off <= [error.p90 for shortest, error in errors if added >= shortest][-1]
    return covered, len(tested)


def summary(table: pd.DataFrame) -> str:
    """Return how many verdicts are right, uncertain and wrong, and how often the expected errors cover the captures."""
    decided = table[table["capture shows"] != "undecided"]
    right = int((decided["verdict"] == decided["capture shows"]).sum())
    uncertain = int((decided["verdict"] == "uncertain").sum())
    known = table[np.isfinite(table["predicted_p95"]) & np.isfinite(table["p95"])]
    lines = [
        f"{table['capture'].nunique()} captures, {len(table)} verdicts.",
        f"The capture decides {len(decided)}: {right} are right, {uncertain} uncertain, "
        f"{len(decided) - right - uncertain} wrong.",
        f"The range of the late share meets the capture's interval in {table['late covered'].sum()} of {len(table)}.",
        f"The error that nine of ten do not exceed covers p95 in {known['p95 covered'].sum()} of {len(known)}.",
    ]
    saturated = table.drop_duplicates("capture").dropna(subset="rate")
    ratios = saturated["simulated_rate"] / saturated["rate"]
    lines.append(
        f"The simulated rate of a sender that always has a backlog is {ratios.min():.3f} to {ratios.max():.3f} times "
        f"the captured rate in {len(ratios)} captures with a backlog nearly all the time."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the comparison of all captures of a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("captures", type=FilePath, nargs="?", help="set or folder of the captures")
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results (%(default)s)")
    arguments = parser.parse_args()
    if arguments.captures is None:
        cases = backlog_cases()
        for shortest, error in backlog_errors(cases):
            print(f"from {shortest:g} round-trip times on: {error}")
        print("{} of {} are covered by the errors without the captures of their path".format(*covered_elsewhere(cases)))
        return
    rows = []
    for capture in read_captures(arguments.captures):
        rows += compared(capture)
        shown = [f"{row['capture shows']} {row['verdict']}" for row in rows[-len(TARGETS) :]]
        print(capture.name, *shown, file=sys.stderr)
    table = pd.DataFrame(rows)
    table.to_csv(arguments.output / "near-capacity.csv", index=False)
    (arguments.output / "near-capacity.md").write_text(summary(table), encoding="utf-8")
    print(summary(table))


if __name__ == "__main__":
    main()
