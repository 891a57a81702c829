"""Compare the speed of two checkouts: `python benchmarks/side_by_side.py OLD NEW [--rounds 5] [--format json]`.

Each checkout runs in a process of its own, with its own `.venv` if it has one. Both take turns, so that other work on
the machine slows both. Times are processor times. A ratio is the median of the old time over the new time: above 1, the
new checkout is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

PACKETS = 500_000
TASKS = {
    "VoIP, predict_delay [ms]": (
        "for _ in range(50): td.predict_delay(rtt=0.1, loss=0.02, packet_size=174, interval=0.02)",
        50 / 1e3,
    ),
    "region of 100 x 100 cells [s]": (
        "td.working_region(td.Flow(174, 0.02), td.Stack.linux(), rtt=np.geomspace(0.01, 0.4, 100), "
        "loss=np.geomspace(1e-3, 0.1, 100), limit=0.2, quantile=0.95)",
        1.0,
    ),
    "simulator, a million packets [s]": (
        f"td.simulate(td.Flow(174, 0.02), td.Path(rtt=0.1, loss=0.02), packets={PACKETS}, seed=1)",
        PACKETS / 1e6,
    ),
    "report on live video [s]": (
        "main('report --rtt 100ms --loss 1% --app live-video --packet-size 1448 -o report.html --format html'.split())",
        1.0,
    ),
}
"""Code of each task, and the number by which its time is divided."""
WORKER = """
import json, sys, time, warnings
import numpy as np
import tcpdelay as td
from tcpdelay.cli.program import main
warnings.simplefilter("ignore")
# The first call compiles kernels, or loads them; it is not timed.
for code in json.load(sys.stdin):
    exec(code)
    start = time.process_time()
    exec(code)
    print(time.process_time() - start, flush=True)
"""


def times(checkout: Path) -> list[float]:
    """Return the processor time of each task in a checkout [s]."""
    own = checkout / ".venv/bin/python"
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [str(own if own.exists() else sys.executable), "-c", WORKER],
            input=json.dumps([code for code, _ in TASKS.values()]),
            env={**os.environ, "PYTHONPATH": str(checkout)},
            cwd=directory,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [float(line) for line in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, help="a checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    rounds = [(times(arguments.old.resolve()), times(arguments.new.resolve())) for _ in range(arguments.rounds)]
    rows = []
    for place, (what, (_, units)) in enumerate(TASKS.items()):
        old, new = ([part[place] / units for part in column] for column in zip(*rounds, strict=True))
        ratio = median(one / other for one, other in zip(old, new, strict=True))
        rows.append({"what": what, "old": median(old), "new": median(new), "ratio": ratio})
    if arguments.format == "json":
        print(json.dumps(rows))
        return
    print("| What | Old | New | Old / new |\n| --- | ---: | ---: | ---: |")
    for row in rows:
        print(f"| {row['what']} | {row['old']:.3g} | {row['new']:.3g} | {row['ratio']:.2f} |")


if __name__ == "__main__":
    main()
