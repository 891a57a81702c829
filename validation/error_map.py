"""Map the chain's error: `python validation/error_map.py simulate`, then `python validation/error_map.py score`.

`simulate` writes simulations of random scenarios to `validation/error-map/simulated.parquet`. It takes about an hour,
can be interrupted, and continues from there. `score` compares the chain's predictions for the same scenarios. It writes
the tables and the figure of the documentation, and the errors that predictions quote (`tcpdelay/accuracy/data`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scoring.error_map import extend, read_simulated
from scoring.error_map_scores import (
    FIGURE,
    error_map,
    error_table,
    expected_table,
    groups_table,
    score_map,
    worst_table,
)
from tcpdelay.accuracy.errors import linux_table_file

HERE = Path(__file__).parent
SIMULATED = HERE / "error-map" / "simulated.parquet"
RESULTS = HERE / "results"
SCENARIOS = 5000
STEPS = 100
"""Number of scenarios between two lines of progress."""


def show(done: int, total: int) -> None:
    """Print the number of finished scenarios from time to time."""
    if done % STEPS == 0:
        print(f"{done} of {total} scenarios ...", file=sys.stderr, flush=True)


def score() -> None:
    """Write the errors that predictions quote, the tables and the map, and print the table of groups."""
    scores = score_map(read_simulated(SIMULATED), on_progress=show)
    groups = groups_table(scores)
    for table in (groups, worst_table(scores), expected_table(scores)):
        (RESULTS / f"{table.name}.csv").write_text(table.to_csv())
        (RESULTS / f"{table.name}.md").write_text(table.to_page())
    (RESULTS / FIGURE).write_bytes(error_map(scores))
    linux_table_file().write_text(error_table(scores).to_csv())
    print(groups.to_markdown())


def main() -> None:
    """Run the given step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=("simulate", "score"))
    parser.add_argument(
        "--scenarios", type=int, default=SCENARIOS, help="number of scenarios to simulate (%(default)s)"
    )
    arguments = parser.parse_args()
    if arguments.step == "simulate":
        SIMULATED.parent.mkdir(exist_ok=True)
        extend(SIMULATED, arguments.scenarios, on_progress=show)
    else:
        score()


if __name__ == "__main__":
    main()
