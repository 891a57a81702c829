"""Ask about random scenarios far beyond the validated range, and list the calls that do not end well.

    python validation/odd_scenarios.py run FILE.csv --scenarios 1000 --method chain
    python validation/odd_scenarios.py table FILE.csv ...

`run` asks about each scenario in a process of its own pool, with a limit of its memory and a clock, and appends a line
for each to the file. Started again, it goes on after the last line. `table` counts the faults by kind.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path as FilePath
from typing import Any, get_args

import numpy as np
import pandas as pd

from scoring.odd_scenarios import Method, odd_scenario, outcome
from tcpdelay.models.linux.profile import compile_kernels
from tcpdelay.models.predict import predict
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

MOST_TIME = 20.0
"""Processor time that the two questions of a scenario may each take [s]."""
PATIENCE = 30.0
"""Factor by which the clock on the wall may run longer than this time, beside other work."""
MOST_MEMORY = 4 * 2**30
"""Memory that a process may take beyond what it has at the start [bytes]."""
POLL = 0.05
"""Time between two looks at a process that takes long [s]."""
STEPS = 100
"""Number of scenarios between two lines of progress."""
COLUMNS = ("number", "method", "status", "answered_by", "p95", "seconds", "peak_mib", "fault", "scenario")
TICKS = os.sysconf("SC_CLK_TCK")
WORST = 5
"""Number of examples in the table of each kind of fault."""


def _compile() -> None:
    """Compile all kernels, so that no time of a call is that of the compiler."""
    compile_kernels()
    for stack in (Stack.linux(), Stack.linux("bbr"), Stack.newreno_2008(), Stack.newreno_2008(backlog_bound="grow")):
        predict(Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), stack), method="chain")
    for control in ("cubic", "bbr"):
        predict(Scenario(Flow(174, 0.020), Path(0.100, 0.02), Stack.linux(control)), method="simulation")  # type: ignore[arg-type]


def _work(asked: Connection, method: Method) -> None:
    """Answer numbers of scenarios until the connection ends."""
    limit = _memory(os.getpid(), "VmSize") + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while True:
        try:
            number = asked.recv()
        except EOFError:
            return
        # The peak of the memory begins anew (proc_pid_clear_refs(5)).
        FilePath("/proc/self/clear_refs").write_text("5")
        begun = time.process_time()
        found = outcome(odd_scenario(number, method))
        asked.send((found, time.process_time() - begun, _memory(os.getpid(), "VmHWM")))


def _memory(process: int, name: str) -> int:
    """Return a figure of a process's memory [bytes]."""
    for line in FilePath(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _used(process: int) -> float:
    """Return the processor time of a process [s]."""
    fields = FilePath(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class _Worker:
    """A process that answers one scenario after another, and is replaced when it does not end."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.method), daemon=True)
        self.process.start()
        theirs.close()
        assert self.process.pid is not None
        self.pid = self.process.pid

    def ask(self, number: int) -> tuple[str, str, float, float, float, str]:
        """Return status, model, p95, processor time, peak of memory and fault of a scenario."""
        begun, used = time.monotonic(), _used(self.pid)
        # The two questions of a scenario have a clock each.
        most = 2 * MOST_TIME
        self.connection.send(number)
        while not self.connection.poll(POLL):
            spent = _used(self.pid) - used if self.process.is_alive() else np.inf
            if spent > most or time.monotonic() - begun > PATIENCE * most:
                ended = "the process died" if np.isinf(spent) else f"no answer in {spent:.0f} s of processor time"
                peak = _memory(self.pid, "VmHWM") if self.process.is_alive() else 0
                self.close()
                self._start()
                return "none", "", np.nan, spent, peak / 2**20, ended
        try:
            found, seconds, peak = self.connection.recv()
        except EOFError:
            self.close()
            self._start()
            return "none", "", np.nan, np.nan, np.nan, "the process died"
        slow = f"took {seconds:.0f} s of processor time" if seconds > most else ""
        return found.status, found.method, found.p95, seconds, peak / 2**20, found.fault or slow

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _rows(numbers: range, method: Method) -> Iterator[dict[str, Any]]:
    """Yield one row for each scenario."""
    worker = _Worker(method)
    try:
        for number in numbers:
            status, by, p95, seconds, peak, fault = worker.ask(number)
            scenario = odd_scenario(number, method).in_words() if fault else ""
            values = (number, method, status, by, f"{p95:.6g}", f"{seconds:.3f}", f"{peak:.0f}", fault, scenario)
            yield dict(zip(COLUMNS, values, strict=True))
    finally:
        worker.close()


def run(file: FilePath, scenarios: int, first: int, method: Method) -> None:
    """Ask about scenarios, from the one after the last in the file on."""
    done = pd.read_csv(file)["number"].max() + 1 if file.exists() else first
    _compile()
    begun, faults = time.monotonic(), 0
    with file.open("a", newline="") as stream:
        table = csv.DictWriter(stream, COLUMNS)
        if not stream.tell():
            table.writeheader()
        for count, row in enumerate(_rows(range(int(done), first + scenarios), method), start=1):
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
            f"{seconds.mean():.3f} s in the mean, at most {seconds.max():.1f} s; memory at most {peak.max():.0f} MiB"
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
    counting = commands.add_parser("table", help="count the faults of runs by kind")
    counting.add_argument("files", type=FilePath, nargs="+", help="CSV files of runs")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.file, arguments.scenarios, arguments.first, arguments.method)
    else:
        print(table(arguments.files))


if __name__ == "__main__":
    main()
