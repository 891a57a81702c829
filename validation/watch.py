"""Score `tcpdelay watch` over time on captures whose delays are known: `python validation/watch.py`.

The captures hold TCP_INFO ten times a second. `run_samples` draws from them what `ss` would have shown once a second.
At 10 s to 10 min after the start of a watch, the script compares the predicted p95 and the p95 by the backlog with the
p95 of the whole capture, and the verdict with the share of late packets in the whole capture. It writes
`results/watch.csv` with one line per watch and time, `results/watch.md` and `results/watch.svg`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path as FilePath

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from scoring.figures import COLORS, draw_svg
from tcpdelay.advice.guideline import HOLD, WINDOW, Advice, WatchedPath
from tcpdelay.ask import solved_once
from tcpdelay.capture.estimate import PathWindow
from tcpdelay.capture.flow_capture import FlowCapture, read_captures, run_samples
from tcpdelay.report.charts import LABEL_SIZE, tidy
from tcpdelay.scenario.scenario import Target
from tcpdelay.scenario.stack import Stack
from tcpdelay.statistics import share_interval
from tcpdelay.study.validation.captures import PLAYOUT_DELAYS, MeasuredDelay, measure
from tcpdelay.study.validation.predictions import relative_error

HERE = FilePath(__file__).parent
RESULTS = HERE / "results"
SETS = {"random losses": ("random-loss", "cbr-174B-20ms-*-hz250"), "losses in bursts": ("loss-in-time", "*")}
HORIZONS = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Times after the start of a watch at which it is scored [s]."""
STARTS = 6
"""Largest number of watches of a capture that are scored at one time; they do not overlap."""
QUANTILE = 0.95
ADVICE_INTERVAL = 5.0
"""Distance of the samples with which the advice is followed [s]: predictions at each second would take an hour."""
BOOTSTRAPS = 400


def truth(measured: MeasuredDelay, limit: float) -> str:
    """Return whether a capture meets the target: "works", "does not work", or an empty text if it is not certain."""
    late = measured.late[limit]
    if not measured.sustainable or late.low > 1 - QUANTILE:
        return "does not work"
    return "works" if late.high <= 1 - QUANTILE else ""


def watches(capture: FlowCapture, measured: MeasuredDelay, group: str) -> Iterator[dict[str, object]]:
    """Yield a line for each watch of a capture, and each time at which it is scored."""
    run, stack = capture.runs[0], Stack.linux(str(capture.settings["congestion_control"]))
    duration = capture.settings["duration"]
    dropped, carried = (run.packets[f"data_{fate}"] for fate in ("dropped", "sent"))
    for horizon in HORIZONS:
        starts = np.arange(min(STARTS, int(duration / horizon))) * max(horizon, duration / STARTS)
        for start in starts[starts + horizon <= duration]:
            window = PathWindow(horizon)
            for sample in run_samples(capture, run, start):
                if sample.time > start + horizon:
                    break
                window.add(sample)
            estimate = window.estimate()
            row: dict[str, object] = {
                "set": group,
                "capture": capture.name,
                "rtt": capture.settings["rtt"],
                "loss": capture.settings["loss"],
                "dropped": dropped / (dropped + carried),
                "start": start,
                "horizon": horizon,
                "p95": measured.p95.value,
                "p95_low": measured.p95.low,
                "p95_high": measured.p95.high,
            }
            if estimate is not None:
                low, high = estimate.loss_interval
                row |= {"sent": estimate.sent, "lost": estimate.lost, "loss_low": low, "loss_high": high}
                by_backlog = window.delays(estimate.rtt / 2, QUANTILE)
                row["by_backlog"] = np.nan if by_backlog is None else by_backlog.quantile.value
            with solved_once():
                for limit in PLAYOUT_DELAYS:
                    verdict = "too early to say"
                    if estimate is not None:
                        watched = WatchedPath(measured.flow, stack, Target(limit, QUANTILE))
                        outlook = watched.outlook(estimate)
                        verdict = outlook.verdict
                        delays = outlook.answer.distribution
                        row["predicted"] = np.nan if delays is None else delays.quantile(QUANTILE)
                        row["predicted_low"], row["predicted_high"] = outlook.quantile_range
                    row |= {f"verdict_{limit:g}": verdict, f"truth_{limit:g}": truth(measured, limit)}
            yield row


def advised(capture: FlowCapture, measured: MeasuredDelay, limit: float) -> tuple[Advice, int]:
    """Return the advice at the end of a capture with the defaults of the command, and the number of its changes."""
    stack = Stack.linux(str(capture.settings["congestion_control"]))
    watched = WatchedPath(measured.flow, stack, Target(limit, QUANTILE), window=WINDOW, hold=HOLD)
    advice: Advice = "none yet"
    for sample in run_samples(capture, capture.runs[0], interval=ADVICE_INTERVAL):
        advice = watched.add(sample).advice
    return advice, watched.changes


def errors(table: pd.DataFrame, column: str) -> pd.Series:
    """Return the relative errors of a column of 95th percentiles, where TCP carried the flow."""
    carried = table[np.isfinite(table["p95"]) & table[column].notna()]
    return pd.Series([abs(relative_error(*pair)) for pair in zip(carried[column], carried["p95"], strict=True)])


def with_interval(table: pd.DataFrame, column: str, share: float) -> str:
    """Return a quantile of the errors with its 95 % interval, by a bootstrap over captures."""
    rng, names = np.random.default_rng(1), table["capture"].unique()
    by_name = {name: errors(own, column).to_numpy() for name, own in table.groupby("capture")}
    if not any(len(own) for own in by_name.values()):
        return "–"

    def quantile(chosen: np.ndarray) -> float:
        return float(np.quantile(np.concatenate([by_name[name] for name in chosen]), share, method="lower"))

    draws = [quantile(rng.choice(names, names.size)) for _ in range(BOOTSTRAPS)]
    low, high = np.quantile(draws, [0.025, 0.975], method="lower")
    return f"{quantile(names):.1%} ({low:.1%} to {high:.1%})"


def decisions(table: pd.DataFrame) -> dict[str, int]:
    """Return the numbers of right, wrong and open verdicts where the capture itself is certain."""
    found = {"right": 0, "wrong": 0, "too early to say": 0, "too close to say": 0}
    for limit in PLAYOUT_DELAYS:
        known = table[table[f"truth_{limit:g}"] != ""]
        for verdict, is_true in zip(known[f"verdict_{limit:g}"], known[f"truth_{limit:g}"], strict=True):
            found[verdict if verdict in found else "right" if verdict == is_true else "wrong"] += 1
    return found


def in_words(count: int, of: int) -> str:
    """Return a share with its 95 % interval, as of independent trials."""
    share = share_interval(count, of)
    return f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%})" if of else "–"


def inside(table: pd.DataFrame, column: str, interval: str) -> str:
    """Return the share of the watches in which an interval contains the value of a column."""
    contains = (table[f"{interval}_low"] <= table[column]) & (table[column] <= table[f"{interval}_high"])
    return in_words(int(contains.sum()), len(table))


def summary(table: pd.DataFrame, advice: pd.DataFrame) -> str:
    """Return the errors, the verdicts and the advice as Markdown."""
    limits = ", ".join(f"{limit * 1e3:g}" for limit in PLAYOUT_DELAYS)
    said = [
        "# `tcpdelay watch` on captures of known delays\n",
        "Voice (174 B every 20 ms), Linux 6.1 at 250 Hz. Each watch starts with nothing known, and samples once a "
        "second. "
        "The error is relative to the 95th percentile of the whole capture. In parentheses: 95 % intervals, of errors "
        "by a bootstrap over captures, of shares as of independent trials. "
        f"Verdicts are on 95 % within {limits} ms, where the capture itself is certain.\n",
    ]
    for group, own in table.groupby("set", sort=False):
        rows, verdicts = [], []
        for horizon, part in own.groupby("horizon"):
            rows.append(
                {
                    "after": f"{horizon:g} s",
                    "watches": len(part),
                    "predicted p95, median error": with_interval(part, "predicted", 0.5),
                    "nine of ten": with_interval(part, "predicted", 0.9),
                    "p95 by the backlog, median error": with_interval(part, "by_backlog", 0.5),
                    "nine of ten ": with_interval(part, "by_backlog", 0.9),
                    "path's loss within the interval": inside(part, "loss", "loss"),
                    "share of dropped segments within the interval": inside(part, "dropped", "loss"),
                    "p95 within the predicted interval": inside(part[np.isfinite(part["p95"])], "p95", "predicted"),
                }
            )
            counts = decisions(part)
            total = sum(counts.values())
            verdicts.append(
                {"after": f"{horizon:g} s", "verdicts": total}
                | {name: in_words(count, total) for name, count in counts.items()}
            )
        said += [f"## {group.capitalize()}: {own['capture'].nunique()} captures\n"]
        said += [pd.DataFrame(rows).to_markdown(index=False), ""]
        said += [pd.DataFrame(verdicts).to_markdown(index=False), ""]
    said += ["## Advice\n", advice_in_words(advice), ""]
    return "\n".join(said)


def advice_in_words(advice: pd.DataFrame) -> str:
    """Return how the advice ended, and how often it changed."""
    known = advice[advice["truth"] != ""]
    expected = known["truth"].map({"works": "stay on TCP", "does not work": "move away from TCP"})
    right, none = int((known["advice"] == expected).sum()), int((known["advice"] == "none yet").sum())
    return (
        f"With the defaults (window {WINDOW:g} s, hold {HOLD:g} s), a sample every {ADVICE_INTERVAL:g} s and RTT 100 "
        "ms, "
        f"{len(known)} watches of 10 minutes ended with the right advice in {right}, without advice in {none} and with "
        f"the wrong advice in {len(known) - right - none}. The advice changed {int(advice['changes'].sum())} times in "
        f"{len(advice)} watches."
    )


def draw(figure: Figure, table: pd.DataFrame) -> None:
    """Draw errors and verdicts over the time since the start, for random losses."""
    own = table[table["set"] == next(iter(SETS))]
    left, right = figure.subplots(1, 2)
    times = [f"{horizon:g} s" if horizon < 60 else f"{horizon / 60:g} min" for horizon in HORIZONS]
    places = np.arange(len(HORIZONS))
    parts = [own[own["horizon"] == horizon] for horizon in HORIZONS]
    for column, color, name in (
        ("predicted", COLORS[0], "predicted"),
        ("by_backlog", COLORS[1], "by the backlog"),
    ):
        for share, style, what in ((0.5, "-", "median"), (0.9, "--", "nine of ten below")):
            values = [
                np.quantile(found, share, method="lower") if len(found := errors(part, column)) else np.nan
                for part in parts
            ]
            left.plot(places, 100 * np.array(values), style, marker="o", color=color, label=f"{name}, {what}")
    left.set_yscale("log")
    left.set_yticks([1, 3, 10, 30, 100], ["1 %", "3 %", "10 %", "30 %", "100 %"])
    left.minorticks_off()
    left.set_ylabel("error of p95")
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, columnspacing=1.0)
    below = np.zeros(len(HORIZONS))
    shades = {"right": COLORS[2], "wrong": COLORS[1], "too early to say": "#b8bec5", "too close to say": "#dfe3e7"}
    counts = [decisions(part) for part in parts]
    for name, color in shades.items():
        shares = np.array([100 * count[name] / sum(count.values()) for count in counts])
        right.bar(places, shares, bottom=below, color=color, label=name, width=0.7)
        below += shares
    right.set_yticks([0, 25, 50, 75, 100], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    right.set_ylabel("verdicts")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, columnspacing=1.0, handlelength=1.0)
    for ax in (left, right):
        tidy(ax)
        ax.set_xticks(places, times)
        ax.set_xlabel("time since the start of the watch", fontsize=LABEL_SIZE)


def main() -> None:
    """Score all captures, and write the tables and the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results (%(default)s)")
    output = parser.parse_args().output
    rows: list[dict[str, object]] = []
    followed: list[dict[str, object]] = []
    for group, (name, pattern) in SETS.items():
        for capture in read_captures(HERE / "captures" / f"{name}.parquet", pattern):
            measured = measure(capture)
            rows += watches(capture, measured, group)
            if group == next(iter(SETS)) and capture.settings["rtt"] == 0.1:
                for limit in PLAYOUT_DELAYS:
                    advice, changes = advised(capture, measured, limit)
                    followed.append(
                        {"capture": capture.name, "limit": limit, "truth": truth(measured, limit)}
                        | {"advice": advice, "changes": changes}
                    )
            print(len(rows), capture.name, file=sys.stderr, flush=True)
    table, advice = pd.DataFrame(rows), pd.DataFrame(followed)
    table.round(6).to_csv(output / "watch.csv", index=False)
    (output / "watch.md").write_text(summary(table, advice), encoding="utf-8")
    (output / "watch.svg").write_bytes(draw_svg(lambda figure: draw(figure, table), (9, 4)))
    print(summary(table, advice))


if __name__ == "__main__":
    main()
