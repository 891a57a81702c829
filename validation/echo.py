"""A TCP echo in the guest beside a published measurement: `python validation/echo.py`.

Messages of 800 bytes go to a server and back, one after the other, with TCP_NODELAY, over 5 ms and 1 % loss each way.
The published figures are those of the TCP echo in rust-raknet's validation of 2026-09-30, measured in real time under
netem. They do not say whether a message is one write or two, so both are measured here, and simulated. So is a server
that takes 50 ms for its answer. It needs `tcpdelay testbed build-kernel --hz 250`, and writes `results/echo.md`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tcpdelay.scenario.path import Path as NetworkPath
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.exchanges import simulate_exchanges
from tcpdelay.testbed.backends import VirtualTimeBackend
from tcpdelay.testbed.programs import run_programs
from tcpdelay.testbed.topology import EmulatedPath

ENDS = Path(__file__).with_name("program_ends") / "echo_ends.py"
RESULTS = Path(__file__).parent / "results" / "echo.md"
HZ = 250
SIZE = 800
PATH = EmulatedPath(rtt=0.010, loss=0.01)
PUBLISHED = "| published | 10.36 ms | 12.4 to 13.3 ms | 36 to 44 ms, and once 222 ms | 229 to 286 ms |"
SHARES = (0.5, 0.95, 0.99, 1.0)
LONGEST = 7200.0
KINDS = {"one write": (1, 0.0), "two writes": (2, 0.0), "one write, answered after 50 ms": (1, 0.050)}
"""Writes of a message, and the time that the server takes for its answer [s]."""


def measured(messages: int, writes: int, answer_time: float, seed: int) -> NDArray[np.float64]:
    """Return the times from the write of a message to its answer [s]."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, str(ENDS)]
        settings = [str(messages), str(writes), str(answer_time)]
        guest, directory = VirtualTimeBackend(HZ), Path(place, "run")
        client, server = [*command, "client", *settings], [*command, "server", *settings]
        run = run_programs(client, server, PATH, directory, guest, duration=LONGEST, seed=seed, linger=2.0)
        if run.status["client"] != 0:
            raise RuntimeError((directory / "client.stderr").read_text(encoding="utf-8"))
        return np.fromfile(directory / "scratch" / "times", np.int64) / 1e9


def simulated(messages: int, writes: int, answer_time: float, seed: int) -> NDArray[np.float64]:
    """Return simulated times from the write of a message to its answer [s]."""
    path = NetworkPath(PATH.rtt, PATH.loss, ack_loss=PATH.loss)
    stack = Stack.linux(hz=HZ, kernel="6.1")
    found = simulate_exchanges(
        SIZE, SIZE, path, stack, answer_time=answer_time, writes=writes, exchanges=messages, seed=seed
    )
    return np.repeat(found.values, np.rint(found.weights * messages).astype(np.int64))


def row(name: str, runs: list[NDArray[np.float64]]) -> str:
    """Return the row of a table: each quantile as its range over the runs."""
    cells = []
    for share in SHARES:
        values = [1e3 * float(np.quantile(times, share)) for times in runs]
        low, high = f"{min(values):.2f}", f"{max(values):.2f}"
        cells.append(f"{low} ms" if low == high else f"{low} to {high} ms")
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Measure, print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=5000, help="messages of a run")
    parser.add_argument("--runs", type=int, default=4, help="runs of each kind")
    arguments = parser.parse_args()
    rows = [PUBLISHED]
    for name, (writes, answer_time) in KINDS.items():
        for place, times in (("guest", measured), ("simulator", simulated)):
            runs = [times(arguments.messages, writes, answer_time, seed) for seed in range(arguments.runs)]
            rows.append(row(f"{place}, {name}", runs))
            print(rows[-1], file=sys.stderr)
    head = "| echo of 800 B, 5 ms and 1 % loss each way | p50 | p95 | p99 | largest |\n|---|---:|---:|---:|---:|\n"
    table = head + "\n".join(rows) + "\n"
    print(table, end="")
    made = f"\n{arguments.runs} runs of {arguments.messages} messages each, Linux 6.1 at {HZ} Hz, CUBIC.\n"
    RESULTS.write_text(table + made, encoding="utf-8")


if __name__ == "__main__":
    main()
