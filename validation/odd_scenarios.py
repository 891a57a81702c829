"""Ask about random scenarios far beyond the validated range, and list the calls that do not end well.

    python validation/odd_scenarios.py run FILE.csv --scenarios 1000 --method chain
    python validation/odd_scenarios.py table FILE.csv ...

`run` asks about one scenario after the other in one process with a limit of its memory and a clock for each call, and
appends a line for each to the file. A process that the clock ends is replaced. Started again, it goes on after the last
line. `table` counts the faults by kind.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import resource
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path as FilePath
from typing import Any, get_args

import numpy as np
import pandas as pd

from scoring.odd_scenarios import Method, OddScenario, Outcome, Sources, odd_scenario, outcome
from tcpdelay.budget import MOST_SECONDS
from tcpdelay.chain.linux.transitions import compile_kernels
from tcpdelay.models.predict import predict
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

MOST_TIME = 20.0
"""Processor time that a call may take [s]."""
PATIENCE = 1200.0
"""Time on the wall that a scenario may take beside other work [s]."""
MOST_MEMORY = 4 * 2**30
"""Memory that a process may take beyond what it has at the start [bytes]."""
STEPS = 100
"""Number of scenarios between two lines of progress."""
COLUMNS = ("number", "method", "status", "answered_by", "p95", "seconds", "peak_mib", "fault", "scenario")
WORST = 5
"""Number of examples in the table of each kind of fault."""


def compile_all() -> None:
    """Compile all kernels, so that no time of a call is that of the compiler."""
    compile_kernels()
    for stack in (Stack.linux(), Stack.linux("bbr"), Stack.newreno_2008(), Stack.newreno_2008(backlog_bound="grow")):
        predict(Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), stack), method="chain")
    for control in ("cubic", "bbr"):
        predict(Scenario(Flow(174, 0.020), Path(0.100, 0.02), Stack.linux(control)), method="simulation")  # type: ignore[arg-type]


def _start_clock() -> None:
    """Let the kernel end this process once it has taken the time of a call: no Python handler runs in compiled code."""
    signal.setitimer(signal.ITIMER_PROF, MOST_TIME)


def _work(asked: Connection, far_end: Connection, max_seconds: float) -> None:
    """Answer scenarios until the connection ends."""
    # Without this, the end of the other process would not end the connection.
    far_end.close()
    limit = _memory("VmSize") + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while True:
        try:
            odd = asked.recv()
        except EOFError:
            return
        # The peak of the memory begins anew (proc_pid_clear_refs(5)).
        FilePath("/proc/self/clear_refs").write_text("5")
        asked.send((outcome(odd, max_seconds, _start_clock), _memory("VmHWM")))


def _memory(name: str) -> int:
    """Return a figure of this process's memory [bytes]."""
    for line in FilePath("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


class Worker:
    """A process that answers one scenario after another, and is replaced when it does not end."""

    def __init__(self, max_seconds: float) -> None:
        self.max_seconds = max_seconds
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        arguments = theirs, self.connection, self.max_seconds
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, odd: OddScenario) -> tuple[Outcome, float]:
        """Return what came of a scenario, and the peak of memory [bytes]; NaN if the process did not end well."""
        self.connection.send(odd)
        try:
            if self.connection.poll(PATIENCE):
                found: tuple[Outcome, float] = self.connection.recv()
                return found
            ended = f"no answer in {PATIENCE:.0f} s"
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode
            too_late = f"no answer in {MOST_TIME:.0f} s of processor time"
            ended = too_late if code == -signal.SIGPROF else f"the process died ({code})"
        self.close()
        self._start()
        return Outcome("none", ended), np.nan

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _rows(numbers: range, method: Method, sources: Sources, max_seconds: float) -> Iterator[dict[str, Any]]:
    """Yield one row for each scenario."""
    worker = Worker(max_seconds)
    try:
        for number in numbers:
            odd = odd_scenario(number, method, sources)
            found, peak = worker.ask(odd)
            scenario = odd.in_words() if found.fault else ""
            figures = f"{found.p95:.6g}", f"{found.seconds:.3f}", f"{peak / 2**20:.0f}"
            values = (number, method, found.status, found.method, *figures, found.fault, scenario)
            yield dict(zip(COLUMNS, values, strict=True))
    finally:
        worker.close()


def run(file: FilePath, numbers: range, method: Method, sources: Sources, max_seconds: float) -> None:
    """Ask about scenarios, from the one after the last in the file on."""
    done = pd.read_csv(file)["number"].max() + 1 if file.exists() else numbers.start
    compile_all()
    begun, faults = time.monotonic(), 0
    with file.open("a", newline="") as stream:
        table = csv.DictWriter(stream, COLUMNS)
        if not stream.tell():
            table.writeheader()
        for count, row in enumerate(_rows(range(int(done), numbers.stop), method, sources, max_seconds), start=1):
            table.writerow(row)
            stream.flush()
            faults += bool(row["fault"])
            if count % STEPS == 0:
                rate = count / (time.monotonic() - begun)
                print(f"{count} scenarios, {rate:.1f} per second, {faults} faults", file=sys.stderr, flush=True)


def _kind(fault: str) -> str:
    """Return a fault without its figures."""
    words = fault.partition(": ")[2] if fault.startswith("with loss") else fault
    return " ".join(word for word in words.split() if not any(letter.isdigit() for letter in word))[:60]


def table(files: list[FilePath]) -> str:
    """Return the number of scenarios, their time and memory, and the faults by kind with examples."""
    rows = pd.concat([pd.read_csv(file, keep_default_na=False) for file in files])
    lines = []
    for method, of_method in rows.groupby("method"):
        seconds, peak = (pd.to_numeric(of_method[name], errors="coerce") for name in ("seconds", "peak_mib"))
        lines.append(
            f"{method}: {len(of_method)} scenarios, {(of_method['fault'] != '').sum()} with a fault; time "
            f"of the longer call {seconds.mean():.3f} s in the mean, at most {seconds.max():.1f} s; "
            f"memory at most {peak.max():.0f} MiB"
        )
        counted = of_method["status"].value_counts()
        lines.append("  " + ", ".join(f"{count} {status}" for status, count in counted.items()))
        faulty = of_method[of_method["fault"] != ""]
        for kind, of_kind in faulty.groupby(faulty["fault"].map(_kind)):
            lines.append(f"  {len(of_kind)} x {kind}")
            lines += [
                f"    {row['number']}: {row['fault']} [{row['scenario']}]"
                for row in of_kind.head(WORST).to_dict("records")
            ]
    return "\n".join(lines)


def main() -> None:
    """Run scenarios, or print the table of runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="ask about random scenarios")
    running.add_argument("file", type=FilePath, help="CSV file with one line for each scenario")
    running.add_argument("--scenarios", type=int, default=1000, help="number of scenarios (%(default)s)")
    running.add_argument("--first", type=int, default=0, help="number of the first scenario (%(default)s)")
    running.add_argument("--method", choices=get_args(Method), default="chain", help="what is asked (%(default)s)")
    kinds = "sources: flows of a constant rate, or all others (%(default)s)"
    running.add_argument("--sources", choices=get_args(Sources), default="flow", help=kinds)
    allowed = "max_seconds of each question (%(default)s)"
    running.add_argument("--max-seconds", type=float, default=MOST_SECONDS, help=allowed)
    counting = commands.add_parser("table", help="count the faults of runs by kind")
    counting.add_argument("files", type=FilePath, nargs="+", help="CSV files of runs")
    arguments = parser.parse_args()
    if arguments.command == "run":
        numbers = range(arguments.first, arguments.first + arguments.scenarios)
        run(arguments.file, numbers, arguments.method, arguments.sources, arguments.max_seconds)
    else:
        print(table(arguments.files))


if __name__ == "__main__":
    main()
