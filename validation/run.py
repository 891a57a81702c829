"""Score the models against the captures in this directory: `python validation/run.py` writes validation/results/.

It also repeats some captures by simulation, and runs the simulator without each of its rules. It takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from scoring.drop_tail import published_figures
from scoring.results import evaluate, figures
from scoring.simulator_tables import ablation_table, farthest, in_bursts, in_states, repeats_table
from tcpdelay.capture.flow_capture import SUFFIX, FlowCapture, read_capture
from tcpdelay.study.validation.captures import MeasuredDelay, measure_all

HERE = Path(__file__).parent
CAPTURES, RESULTS = HERE / "captures", HERE / "results"
PUBLISHED = HERE / "published" / "brosh.csv"
STEPS = 100
"""Number of captures between two lines of progress."""


def show(done: int, total: int) -> None:
    """Print the number of finished captures from time to time."""
    if done % STEPS == 0:
        print(f"{done} of {total} captures ...", file=sys.stderr)


def read(capture: MeasuredDelay) -> FlowCapture:
    """Return a capture with its single delays."""
    return read_capture(CAPTURES / f"{capture.collection}{SUFFIX}", capture.name)


def main() -> None:
    """Write all results, and print the summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of the results (%(default)s)")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    measured = measure_all(CAPTURES, sys.exit, show)
    results = evaluate(measured, published_figures(PUBLISHED), on_progress=show)
    files = results.files(figures(results.scores, read))
    for table in (
        repeats_table("farthest", "The captures that the simulator is farthest from", farthest(results.scores), show),
        repeats_table("bursts", "Losses in bursts", in_bursts(measured), show),
        repeats_table("loss-in-time", "Losses in time", in_states(measured), show),
        ablation_table(measured, lambda rules: print(f"{rules} ...", file=sys.stderr)),
    ):
        files |= {f"{table.name}.csv": table.to_csv().encode(), f"{table.name}.md": table.to_page().encode()}
    for name, content in files.items():
        (output / name).write_bytes(content)
    results.summary.print_text(Console(), transposed=True)


if __name__ == "__main__":
    main()
