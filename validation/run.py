"""Score the models against the captures in this directory: `python validation/run.py` writes validation/results/.

Beyond what `tcpdelay validate` does, this repeats some captures by simulation and runs the simulator with each of its
rules left out, which takes a few minutes more.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from tcpdelay.validation.ablation import ablation_table
from tcpdelay.validation.collection import measure_all
from tcpdelay.validation.drop_tail import published_figures
from tcpdelay.validation.repeats import farthest, in_bursts, repeats_table
from tcpdelay.validation.results import evaluate

HERE = Path(__file__).parent
CAPTURES, RESULTS = HERE / "captures", HERE / "results"
PUBLISHED = HERE / "published" / "brosh_droptail.csv"
STEPS = 100
"""Captures from one line of progress to the next."""


def show(done: int, total: int) -> None:
    """Print every now and then how many captures are done."""
    if done % STEPS == 0:
        print(f"{done} of {total} captures ...", file=sys.stderr)


def main() -> None:
    """Write all results, and print the summary."""
    measured = measure_all(CAPTURES, sys.exit, show)
    results = evaluate(measured, published_figures(PUBLISHED), on_progress=show)
    files = results.files()
    for table in (
        repeats_table("farthest", "The captures that the simulator is farthest from", farthest(results.scores), show),
        repeats_table("bursts", "Losses in bursts", in_bursts(measured), show),
        ablation_table(measured, lambda rules: print(f"{rules} ...", file=sys.stderr)),
    ):
        files |= {f"{table.name}.csv": table.to_csv().encode(), f"{table.name}.md": table.to_page().encode()}
    for name, content in files.items():
        (RESULTS / name).write_bytes(content)
    results.summary.print_text(Console(), transposed=True)


if __name__ == "__main__":
    main()
