"""Compare what `auto` answers, and the error that it states, with all captures: `python validation/auto.py`.

Each capture in virtual time is asked about as a user would ask: source, path and stack as they were captured, a router
by the round-trip time and the losses that the capture measured. The script writes `results/auto.csv` with one line per
capture, and `results/auto.md` with the errors and their coverage by source, path, utilization and congestion control.
It takes some half an hour, and `--resume` continues where it was interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path as FilePath
from typing import cast

import numpy as np
import pandas as pd

from manifest import HERE, sets
from scoring.capture_comparison import RESULTS
from scoring.results import held_out
from scoring.simulator_tables import REPEATS, repeated
from tcpdelay.accuracy.throughput import LARGEST_SUSTAINABLE_UTILIZATION
from tcpdelay.ask import Requested, solved_once
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.predict import predict
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Source
from tcpdelay.sim.simulation import Simulation
from tcpdelay.statistics import share_interval
from tcpdelay.study.validation.captures import VIRTUAL_TIME, MeasuredDelay, measure_all
from tcpdelay.study.validation.predictions import (
    HALF_WIDTH,
    SAME_DELAY,
    captured_scenario,
    error_beyond,
    predictable,
    relative_error,
)
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.units import format_fraction, format_time

MOST_SECONDS = 2.0
"""Processor time of an answer [s]."""
QUANTITIES = ("p95", "mean")
ANSWERED = ("exact", "estimated")
ROUTER = "behind a router"
GROUPS = ("source", "path", "load", "control")
UTILIZATIONS = (0.0, 1 / 3, 2 / 3, LARGEST_SUSTAINABLE_UTILIZATION)
"""Limits of the groups of the flow's rate over the fair TCP rate; captures beyond are not counted."""
LARGE_PACKET = 724
"""Packets above this size count as large [bytes]: half a segment."""
NINE_OF_TEN = 1.645
"""The size in standard errors that nine of ten errors of an estimate do not exceed."""
TARGET = 0.87, 0.93
"""Shares of captures within the stated error that agree with nine of ten."""
LARGEST_ERROR = 0.02
"""Mean error of p95 beyond the captures' intervals that is aimed at in each group."""
REPEATED = {"p95": "p95", "answered": "predicted_p95", "lowest": "p95_lowest", "highest": "p95_highest"}
"""Columns of the captures that were simulated at their own length, by their headings."""
FEWEST = 8
"""Captures from which on a group of all four settings is listed."""


def path_kind(path: Path, interval: float) -> str:
    """Return the group of a path without a router: what it does apart from independent losses."""
    side = "in order" if path.in_order else f"{'below' if path.jitter <= interval else 'above'} the interval"
    kinds = {
        "losses in time": path.bad_time > 0,
        f"jitter {side}": path.jitter > 0,
        "lost ACKs": path.ack_loss > 0,
        "loss bursts": path.loss_burst > 1,
    }
    return next((kind for kind, applies in kinds.items() if applies), "random losses")


def source_kind(experiment: Experiment, source: Source) -> str:
    """Return the group of a source."""
    if experiment.source is not None and experiment.source.kind != "flow":
        return experiment.source.kind
    return "constant, large" if source.mean_size > LARGE_PACKET else "constant, small"


def compared(place: str, measured: MeasuredDelay, scenario: Scenario) -> dict[str, object]:
    """Return a capture's delays beside the answer [s], and the relative errors: measured, and as the answer states."""
    experiment = measured.experiment
    quic = experiment.application == "quic"
    answer = predict(scenario, Requested(max_seconds=MOST_SECONDS))
    stated = answer.expected_error if answer.answered else None
    row: dict[str, object] = {
        "set": place,
        "capture": measured.name,
        "case": experiment.name,
        "held_out": held_out(measured.name),
        "source": source_kind(experiment, measured.source),
        "path": ROUTER if experiment.routed else path_kind(scenario.path, measured.source.mean_interval),
        "control": "quic" if quic else experiment.congestion_control,
        "rtt": scenario.path.rtt,
        "loss": scenario.path.loss,
        "one_way": scenario.path.forward_delay,
        "utilization": measured.utilization,
        "carried": measured.sustainable,
        "method": answer.method,
        "status": answer.status,
        "because": answer.simulated_because,
    }
    for name in QUANTITIES:
        interval = getattr(measured, name)
        if answer.distribution is None:
            predicted = np.nan
        else:
            predicted = answer.distribution.mean if name == "mean" else answer.distribution.quantile(0.95)
        error = relative_error(predicted, interval.value)
        end = interval.high if error > 0 else interval.low
        row |= {
            name: interval.value,
            f"predicted_{name}": predicted,
            f"{name}_error": error,
            f"{name}_beyond": error_beyond(predicted, interval),
            # The capture's standard error, on the side of the prediction.
            f"{name}_sampling": abs(end / interval.value - 1) / HALF_WIDTH if interval.value > 0 else np.nan,
            # The standard error of a simulation.
            f"{name}_simulated": _standard_error(answer.distribution, name),
            f"{name}_stated": np.nan if stated is None else (stated.mean_delay if name == "mean" else stated).p90,
        }
    again = answer.method == "simulation" and abs(cast("float", row["p95_beyond"])) > LARGEST_ERROR
    found = [once.quantile(0.95) for once in repeated(measured)] if again else []
    for name, of in (("lowest", min), ("highest", max)):
        row[f"p95_{name}"] = of(found, default=np.nan)
    return row


def _standard_error(delays: DelayDistribution | None, name: str) -> float:
    """Return the relative standard error of a simulated p95 or mean; 0 for a chain, NaN without an answer."""
    if delays is None:
        return np.nan
    if not isinstance(delays, Simulation):
        return 0.0
    return (delays.mean_interval if name == "mean" else delays.quantile_interval).relative_half_width / HALF_WIDTH


def rows(known: set[tuple[str, str]]) -> Iterator[dict[str, object]]:
    """Yield one row per capture that is not known yet."""
    for file in sets():
        place = str(file.relative_to(HERE))
        with solved_once():
            for measured in predictable(measure_all(file, sys.exit)):
                scenario = captured_scenario(measured) if measured.backend == VIRTUAL_TIME else None
                if scenario is not None and (place, measured.name) not in known:
                    yield compared(place, measured, scenario)


def counted(table: pd.DataFrame) -> pd.DataFrame:
    """Return the captures that TCP carried below the largest utilization, with their groups and coverage."""
    kept = table[table["carried"] & (table["utilization"] < UTILIZATIONS[-1]) & np.isfinite(table["p95"])].copy()
    names = [f"{low:.2g} to {high:.2g}" for low, high in pairwise(UTILIZATIONS)]
    kept["load"] = pd.cut(kept["utilization"], UTILIZATIONS, labels=names, right=False).astype(str)
    for name in QUANTITIES:
        # The error of the prediction and the sampling error of the capture are independent: their squares add.
        allowed = np.hypot(kept[f"{name}_stated"], NINE_OF_TEN * kept[f"{name}_sampling"])
        covered = kept[f"{name}_error"].abs() <= allowed
        # Where hardly a message waits, p95 is the one-way delay by any model, and says nothing about a stated error.
        known = kept[f"{name}_stated"].notna() & (kept[name] > kept["one_way"] + SAME_DELAY)
        kept[f"{name}_covered"] = covered.astype(float).where(known)
    return kept


def figures(own: pd.DataFrame) -> dict[str, object]:
    """Return the errors and the coverage of a group of captures."""
    line: dict[str, object] = {"captures": len(own), "simulated": int((own["method"] == "simulation").sum())}
    for name in QUANTITIES:
        finite = own[np.isfinite(own[f"{name}_error"])]
        line |= {
            f"{name}_beyond": finite[f"{name}_beyond"].abs().mean(),
            f"{name}_signed": finite[f"{name}_error"].mean(),
            f"{name}_stated": own[f"{name}_stated"].median(),
        }
        # Captures of one case by several kernels and timer rates share their errors: they count as one.
        covered = own.dropna(subset=f"{name}_covered").groupby("case")[f"{name}_covered"].mean()
        share = share_interval(round(covered.sum()), len(covered))
        line |= {f"{name}_cases": len(covered), f"{name}_coverage": covered.mean()}
        line |= {f"{name}_low": share.low, f"{name}_high": share.high}
    return line


def grouped(table: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return one line of figures for each group of captures."""
    lines = []
    for keys, own in table.groupby(names):
        lines.append(dict(zip(names, keys, strict=True)) | figures(own))
    return pd.DataFrame(lines)


def outside(groups: pd.DataFrame, name: str = "p95") -> pd.Series:
    """Return +1 for each group whose coverage is above `TARGET` beyond chance, -1 below it, and 0 within."""
    low, high = TARGET
    return (groups[f"{name}_low"] > high).astype(int) - (groups[f"{name}_high"] < low).astype(int)


def in_words(groups: pd.DataFrame) -> str:
    """Return a table of groups as Markdown."""
    shown = groups.loc[:, [name for name in GROUPS if name in groups]].copy()
    shown["captures"], shown["simulated"] = groups["captures"], groups["simulated"]
    for name in QUANTITIES:
        shown[f"{name} beyond"] = groups[f"{name}_beyond"].map("{:.1%}".format)
        shown[f"{name} with sign"] = groups[f"{name}_signed"].map("{:+.1%}".format)
        shown[f"{name} stated"] = groups[f"{name}_stated"].map("{:.1%}".format)
        ends = zip(*(groups[f"{name}_{end}"] for end in ("cases", "coverage", "low", "high")), strict=True)
        shown[f"{name} covered"] = [
            f"{share:.0%} ({low:.0%}–{high:.0%})" if cases else "" for cases, share, low, high in ends
        ]
    return str(shown.to_markdown(index=False, disable_numparse=True))


def by_chance(kept: pd.DataFrame) -> list[str]:
    """Return the captures that were simulated at their own length because the answer is far off, as Markdown."""
    own = kept.dropna(subset=["p95_lowest"]).sort_values("p95_beyond", key=abs, ascending=False)
    if own.empty:
        return []
    within = (own["p95_lowest"] - SAME_DELAY <= own["p95"]) & (own["p95"] <= own["p95_highest"] + SAME_DELAY)
    shown = pd.DataFrame({"set": own["set"], "capture": own["capture"]})
    for title, name in REPEATED.items():
        shown[title] = own[name].map(format_time)
    return [
        "### Simulations that are far off\n",
        f"{len(own)} simulated answers are more than {format_fraction(LARGEST_ERROR)} beyond the interval of the "
        f"capture. Each was repeated by {REPEATS} simulations of the capture's length. The measured p95 is between the "
        f"lowest and the highest of these in {int(within.sum())}: there it is chance. Where a step of the distribution "
        "is at 95 %, p95 is one of two values by chance, in the capture and in each simulation.\n",
        str(shown.to_markdown(index=False, disable_numparse=True)),
        "",
    ]


def summary(table: pd.DataFrame) -> str:
    """Return the errors and the coverage in words, and in tables by each setting and by all four together."""
    every = counted(table)
    kept = every[every["path"] != ROUTER]
    crossed = grouped(kept, list(GROUPS))
    listed = crossed[crossed["captures"] >= FEWEST]
    tested = listed[listed["p95_cases"] >= FEWEST]
    sides, within = outside(tested), int((listed["p95_beyond"] <= LARGEST_ERROR).sum())
    said = [
        f"{len(table)} captures, of which TCP carried {len(kept)} below {UTILIZATIONS[-1]:g} of the fair rate; "
        f"{int((~kept['status'].isin(ANSWERED)).sum())} of these have no answer or one that says that TCP does not "
        f"carry the flow, and {int(kept['p95_stated'].isna().sum())} no stated error. Each answer may take "
        f"{MOST_SECONDS:g} s.\n",
        "*Beyond* is the mean distance from the captures' 95 % intervals, *stated* the median of the error that nine "
        "of ten answers shall not exceed, and *covered* the share of captures within it, where the capture's own "
        "sampling error adds to the stated error as squares do. In parentheses is the 95 % interval of that share, for "
        "as many cases; captures of one case by several kernels are one. Captures whose p95 is their one-way delay do "
        "not count.\n",
        f"{len(listed)} groups of all four settings have {FEWEST} captures or more. p95 is within "
        f"{format_fraction(LARGEST_ERROR)} beyond the intervals in {within} of them. {len(tested)} have {FEWEST} "
        "cases whose p95 is longer than the one-way delay: the coverage of p95 agrees with "
        f"{TARGET[0]:.0%} to {TARGET[1]:.0%} within chance in {int((sides == 0).sum())} of these, is too low in "
        f"{int((sides < 0).sum())} and too high in {int((sides > 0).sum())}.\n",
        "### By each setting\n",
    ]
    for name in (*GROUPS, "method"):
        said += [in_words(grouped(kept, [name]).rename(columns={"method": "source"})), ""]
    halves = kept.assign(source=np.where(kept["held_out"], "held out", "seen in design"))
    said += [in_words(grouped(halves, ["source"])), ""]
    said += ["### By all four settings\n", in_words(listed), ""]
    said += by_chance(kept)
    routed = every[every["path"] == ROUTER]
    if len(routed):
        said += [
            "### Behind a router\n",
            "Here the answer is that of independent losses, at the loss and the round-trip time that the capture "
            "measured. A shared queue delays and drops otherwise, and `simulate_network` is the question to ask: these "
            "captures do not count above.\n",
            in_words(grouped(routed, ["source", "control"])),
            "",
        ]
    return "\n".join(said)


def main() -> None:
    """Compare all captures, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the captures that are done")
    arguments = parser.parse_args()
    file = arguments.output / "auto.csv"
    known: set[tuple[str, str]] = set()
    if arguments.resume and file.exists():
        done = pd.read_csv(file)
        known = set(zip(done["set"], done["capture"], strict=True))
    else:
        file.unlink(missing_ok=True)
    for row in rows(known):
        pd.DataFrame([row]).to_csv(file, mode="a", header=not file.exists(), index=False, float_format="%.6g")
        print(row["set"], row["capture"], row["method"], file=sys.stderr, flush=True)
    page = summary(pd.read_csv(file))
    (arguments.output / "auto.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
