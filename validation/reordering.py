"""Compare the simulator with captures of paths with jitter: `python validation/reordering.py`.

`validation/specs/jitter.toml` makes the captures in `jitter-captures/jitter.parquet`, whose uniform jitter reorders,
and `jitter-kinds.toml` those in `jitter-captures/jitter-kinds.parquet`, with other distributions, correlation, and in
order. The script simulates each capture `SIMULATIONS` times at its own length and share of losses, so that a difference
can be told from chance: in delays, and in the kernel's counters of retransmissions, D-SACKs and the like. A counter
that differs beyond chance is a rule that the simulator lacks. It takes some minutes, and writes `results/NAME.csv` and
`.md`, by default for both sets.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from tcpdelay.capture.flow_capture import FlowCapture, read_captures
from tcpdelay.scenario.stack import Stack, kernel_of_release
from tcpdelay.sim.simulation import simulate
from tcpdelay.study.validation.captures import measure
from tcpdelay.study.validation.predictions import error_beyond, simulated_messages

HERE = FilePath(__file__).parent
RESULTS = HERE / "results"
SETS = {
    "reordering": HERE / "jitter-captures" / "jitter.parquet",
    "jitter-kinds": HERE / "jitter-captures" / "jitter-kinds.parquet",
}
"""The folders of captures by the names of their results."""
DELAYS = ("mean", "p95", "p99")
GROUPS = ("application", "control", "distribution", "correlation", "in_order")
"""Columns by which the errors are summed up."""
SIMULATIONS = 20
SIGNIFICANT = 3.0
"""Standard deviations of the simulations beyond which a capture differs from them."""
COUNTERS = {
    "segments_sent": ("OutSegs", "RetransSegs"),
    "segments_retransmitted": ("RetransSegs",),
    "recoveries": ("TCPSackRecovery",),
    "timeouts": ("TCPTimeouts",),
    "probes": ("TCPLossProbes",),
    "undone": ("TCPFullUndo", "TCPPartialUndo", "TCPDSACKUndo", "TCPLossUndo"),
    "dsack_dups": ("TCPDSACKRecv", "TCPDSACKOfoRecv"),
    "paws_discards": ("receiver_PAWSEstab",),
    "acks_sent": ("InSegs",),
}
"""For each count of the simulator the counters of the kernel that count the same in sum."""


def simulated(capture: FlowCapture) -> pd.DataFrame:
    """Return figures of simulations of a capture: delays [s], and counts of TCP per 1000 new segments."""
    measured, (run,) = measure(capture), capture.runs
    experiment = measured.experiment
    if experiment.application == "quic":
        asked = simulated_messages(measured)
        assert asked is not None
        source, path, stack = asked.source, asked.path, asked.stack
    else:
        stack = Stack.linux(experiment.congestion_control, hz=measured.hz, kernel=kernel_of_release(measured.kernel))
        source = measured.source if run.messages is None else capture.trace(experiment.duration)
        # The capture's own share of losses: its chance would otherwise be taken for a difference of every counter.
        path = replace(experiment.lossy_path, loss=measured.loss)
    rows = []
    for seed in range(SIMULATIONS):
        found = simulate(source, path, stack, packets=run.written.size, seed=seed)
        figures = {"mean": found.mean, "p95": found.quantile(0.95), "p99": found.quantile(0.99)}
        if experiment.application != "quic":
            new = found.counts["segments_sent"] - found.counts["segments_retransmitted"]
            figures |= {name: 1000 * found.counts[name] / new for name in COUNTERS}
        rows.append(figures)
    return pd.DataFrame(rows)


def captured(capture: FlowCapture) -> dict[str, float]:
    """Return the same figures of a capture."""
    measured, (run,) = measure(capture), capture.runs
    figures = {name: getattr(measured, name).value for name in DELAYS}
    if measured.experiment.application == "quic":
        return figures
    # The kernel counts the repetition of a SYN as well; the simulator has no handshake.
    repeated = run.counters.get("TCPSynRetrans", 0)
    counters = run.counters | {
        name: run.counters.get(name, 0) - repeated for name in ("RetransSegs", "TCPTimeouts") if repeated
    }
    new = counters["OutSegs"]
    return figures | {name: 1000 * sum(counters.get(one, 0) for one in own) / new for name, own in COUNTERS.items()}


def rows(place: FilePath) -> Iterator[dict[str, object]]:
    """Yield one row per capture and figure: the capture, the simulations, and how far they differ."""
    for capture in read_captures(place):
        measured, found, kernel = measure(capture), simulated(capture), captured(capture)
        experiment = measured.experiment
        kind = {
            "application": experiment.application if experiment.source is None else experiment.source.kind,
            "control": experiment.congestion_control,
            "distribution": experiment.jitter_distribution,
            "correlation": experiment.jitter_correlation,
            "in_order": experiment.in_order,
        }
        print(capture.name, file=sys.stderr, flush=True)
        for name, value in kernel.items():
            mean, deviation = found[name].mean(), found[name].std()
            row = kind | {
                "case": capture.name,
                "figure": name,
                "kernel": value,
                "simulator": mean,
                "deviation": deviation,
            }
            # Where no simulation has such an event, a single one in the capture differs by any measure.
            score = (value - mean) / deviation if deviation > 0 else 0.0 if value == mean else np.inf
            row["score"] = score
            if name in DELAYS:
                row["beyond"] = abs(error_beyond(mean, getattr(measured, name)))
            yield row


def summary(table: pd.DataFrame) -> str:
    """Return the errors beyond the captures' intervals, and each figure of each case."""
    delays = table[table["beyond"].notna()]
    said = [
        f"{table['case'].nunique()} captures, each with {SIMULATIONS} simulations of the same length. Error beyond the "
        f"capture's 95 % interval, in the mean: "
        + ", ".join(f"{name} {own['beyond'].mean():.1%}" for name, own in delays.groupby("figure"))
        + ".\n",
        by_group(delays),
        "\nThe root of the mean square of the scores, which is about 1.08 if a capture differs only by chance from "
        f"{SIMULATIONS} simulations: "
        + ", ".join(f"{name} {rms(own['score']):.2f}" for name, own in table.groupby("figure", sort=False))
        + ".\n\nDelays in ms, counts per 1000 new segments, and in parentheses by how many standard deviations of the "
        f"simulations the kernel is above them; beyond {SIGNIFICANT:g} it is in bold.\n",
    ]
    lines = []
    for case, own in table.groupby("case", sort=False):
        line: dict[str, object] = {"case": case}
        for one in own.to_dict("records"):
            scale = 1000 if one["figure"] in DELAYS else 1
            score = f"({one['score']:+.1f})"
            score = f"**{score}**" if abs(one["score"]) > SIGNIFICANT else score
            line[one["figure"]] = f"{scale * one['kernel']:.4g} / {scale * one['simulator']:.4g} {score}"
        lines.append(line)
    return "\n".join([*said, pd.DataFrame(lines).fillna("").to_markdown(index=False)]) + "\n"


def by_group(delays: pd.DataFrame) -> str:
    """Return the mean errors of the delays beyond the captures' intervals, by each column of `GROUPS`."""
    lines = []
    for column in GROUPS:
        for value, own in delays.groupby(column):
            errors = own.groupby("figure")["beyond"].mean()
            line = {"group": f"{column} {value}", "captures": own["case"].nunique()}
            lines.append(line | {name: f"{errors[name]:.1%}" for name in DELAYS})
    return str(pd.DataFrame(lines).to_markdown(index=False, disable_numparse=True))


def rms(scores: pd.Series) -> float:
    """Return the root of the mean square of the scores that are finite."""
    finite = scores[np.isfinite(scores)]
    return float(np.sqrt((finite**2).mean()))


def main() -> None:
    """Write the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*SETS, []], help="results to write (default: all)")
    parser.add_argument("--output", type=FilePath, default=RESULTS)
    arguments = parser.parse_args()
    for name in arguments.names or SETS:
        table = pd.DataFrame(rows(SETS[name]))
        table.round(6).to_csv(arguments.output / f"{name}.csv", index=False)
        text = summary(table)
        (arguments.output / f"{name}.md").write_text(text)
        print(text)


if __name__ == "__main__":
    main()
