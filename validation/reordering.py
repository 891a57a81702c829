"""Compare the simulator with captures of paths whose jitter reorders: `python validation/reordering.py`.

`validation/specs/jitter.toml` makes the captures, `validation/jitter-captures` has them. The script simulates each
capture `SIMULATIONS` times at its own length and share of losses, so that a difference can be told from chance: in
delays, and in the kernel's counters of retransmissions, D-SACKs and the like. A counter that differs beyond chance is a
rule that the simulator lacks. It takes some minutes, and writes `results/reordering.csv` and `.md`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from tcpdelay.capture.flow_capture import FlowCapture, read_captures
from tcpdelay.models.simulator.simulation import simulate
from tcpdelay.questions.validation.captures import measure
from tcpdelay.questions.validation.scores import error_beyond
from tcpdelay.scenario.kernels import kernel_of_release
from tcpdelay.scenario.stack import Stack

HERE = FilePath(__file__).parent
CAPTURES, RESULTS = HERE / "jitter-captures", HERE / "results"
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
    """Return figures of simulations of a capture: delays [s], and counts per 1000 new segments."""
    measured, (run,) = measure(capture), capture.runs
    experiment = measured.experiment
    stack = Stack.linux(experiment.congestion_control, hz=measured.hz, kernel=kernel_of_release(measured.kernel))
    source = measured.source if run.messages is None else capture.trace(experiment.duration)
    # The capture's own share of losses: its chance would otherwise be taken for a difference of every counter.
    path = replace(experiment.lossy_path, loss=measured.loss)
    rows = []
    for seed in range(SIMULATIONS):
        found = simulate(source, path, stack, packets=run.written.size, seed=seed)
        new = found.counts["segments_sent"] - found.counts["segments_retransmitted"]
        counts = {name: 1000 * found.counts[name] / new for name in COUNTERS}
        rows.append({"mean": found.mean, "p95": found.quantile(0.95), "p99": found.quantile(0.99)} | counts)
    return pd.DataFrame(rows)


def captured(capture: FlowCapture) -> dict[str, float]:
    """Return the same figures of a capture."""
    measured, (run,) = measure(capture), capture.runs
    new = run.counters["OutSegs"]
    counted = {
        name: 1000 * sum(run.counters.get(one, 0) for one in counters) / new for name, counters in COUNTERS.items()
    }
    return {name: getattr(measured, name).value for name in ("mean", "p95", "p99")} | counted


def rows(place: FilePath) -> Iterator[dict[str, object]]:
    """Yield one row per capture and figure: the capture, the simulations, and how far they differ."""
    for capture in read_captures(place):
        measured, found, kernel = measure(capture), simulated(capture), captured(capture)
        for name, value in kernel.items():
            mean, deviation = found[name].mean(), found[name].std()
            row = {"case": capture.name, "figure": name, "kernel": value, "simulator": mean, "deviation": deviation}
            # Where no simulation has such an event, a single one in the capture differs by any measure.
            score = (value - mean) / deviation if deviation > 0 else 0.0 if value == mean else np.inf
            row["score"] = score
            if name in ("mean", "p95", "p99"):
                row["beyond"] = abs(error_beyond(mean, getattr(measured, name)))
            yield row


def summary(table: pd.DataFrame) -> str:
    """Return the errors beyond the captures' intervals, and each figure of each case."""
    delays = table[table["beyond"].notna()]
    said = [
        f"{table['case'].nunique()} captures, each with {SIMULATIONS} simulations of the same length. Error beyond the "
        f"capture's 95 % interval, in the mean: "
        + ", ".join(f"{name} {own['beyond'].mean():.1%}" for name, own in delays.groupby("figure"))
        + ".\n\nDelays in ms, counts per 1000 new segments, and in parentheses by how many standard deviations of the "
        f"simulations the kernel is above them; beyond {SIGNIFICANT:g} it is in bold.\n"
    ]
    lines = []
    for case, own in table.groupby("case", sort=False):
        line: dict[str, object] = {"case": case}
        for one in own.to_dict("records"):
            scale = 1000 if one["figure"] in ("mean", "p95", "p99") else 1
            score = f"({one['score']:+.1f})"
            score = f"**{score}**" if abs(one["score"]) > SIGNIFICANT else score
            line[one["figure"]] = f"{scale * one['kernel']:.4g} / {scale * one['simulator']:.4g} {score}"
        lines.append(line)
    return "\n".join([*said, pd.DataFrame(lines).to_markdown(index=False)]) + "\n"


def main() -> None:
    """Write the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captures", nargs="?", type=FilePath, default=CAPTURES)
    parser.add_argument("--output", type=FilePath, default=RESULTS)
    arguments = parser.parse_args()
    table = pd.DataFrame(rows(arguments.captures))
    table.round(6).to_csv(arguments.output / "reordering.csv", index=False)
    text = summary(table)
    (arguments.output / "reordering.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
