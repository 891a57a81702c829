"""Compare the speed of two commits: `python -m benchmarks [COMMIT] [--rounds 3] [--into benchmarks/README.md]`.

Each commit runs in a process of its own, and both take turns at every row, so that other work on the machine slows
both. Times are processor times. A ratio is the median of the old time over the new time: above 1, the new commit is
faster. The old commit is checked out beside this one and compiles its kernels first, which takes minutes.

`--short` compares this checkout with the times in `recorded.json` instead, in less than a minute. They are scaled by
the time of a fixed piece of Python, measured before each row, as another machine recorded them. It prints the rows that
have become 20 % slower, and never fails. `--record` writes the file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.first_minute import run
from benchmarks.summary import duration, put_into

ROOT = Path(__file__).parents[1]
RECORDED = Path(__file__).with_name("recorded.json")
SLOWER = 1.2
"""Ratio of the new time to the recorded time from which on `--short` prints a row."""


@dataclass(frozen=True)
class Row:
    """A call that is timed, with losses that differ by up to 5 % between the calls: no answer is known before."""

    code: str
    loss: float
    calls: int
    # Flow and path of a chain whose phases and events are counted; empty for other calls.
    chain: str = ""
    short: bool = True  # Whether `--short` has the row

    def losses(self) -> list[float]:
        """Return the loss of each call."""
        return [self.loss * (1 + 0.05 * place / self.calls) for place in range(self.calls)]


def chain_row(size: int, rtt: float, loss: float, calls: int, interval: float = 0.020) -> Row:
    """Return the row of a prediction by the chain of Linux."""
    scenario = f"td.Flow({size}, {interval!r}), td.Path(rtt={rtt}, loss=loss)"
    return Row(f"td.predict_delay({scenario}, method='chain')", loss, calls, scenario)


VOIP = "td.Flow(174, 0.020), td.Path(rtt=0.1, loss=loss)"
ROWS = {
    "VoIP (174 B, 20 ms, RTT 100 ms, loss 2 %), chain of Linux": chain_row(174, 0.1, 0.02, 300),
    "VoIP, `auto`": Row(f"td.predict_delay({VOIP}, method='auto')", 0.02, 200),
    "VoIP, published chain": Row(f"td.predict_delay({VOIP}, td.Stack.newreno_2008(), method='chain')", 0.02, 300),
    "1200 B, 20 ms, RTT 150 ms, loss 0.5 %": chain_row(1200, 0.15, 0.005, 20),
    "1200 B, 20 ms, RTT 150 ms, loss 2 %": chain_row(1200, 0.15, 0.02, 4),
    "1200 B, 20 ms, RTT 150 ms, loss 2.4 %": chain_row(1200, 0.15, 0.024, 3),
    "2.5 Mbit/s (1200 B), RTT 60 ms, loss 0.3 %": chain_row(1200, 0.06, 0.003, 3, interval=0.00384),
    "speech, chain of Linux": Row(
        "td.predict_delay(td.Speech(174, 0.020), td.Path(rtt=0.1, loss=loss), method='chain')", 0.01, 20
    ),
    "region of 100 x 100 cells, VoIP": Row(
        "td.working_region(td.Flow(174, 0.02), td.Stack.linux(), rtt=np.geomspace(0.01, 0.4, 100), "
        "loss=np.geomspace(1e-3, 0.1, 100) * (1 + loss), limit=0.2, quantile=0.95)",
        *(0.02, 1, "", False),
    ),
    "simulator, 500 000 packets": Row(
        "td.simulate(td.Flow(174, 0.02), td.Path(rtt=0.1, loss=loss), packets=500_000, seed=1)",
        *(0.02, 1, "", False),
    ),
}
"""Calls in a process that has made them before."""
COMMANDS = {
    "warm report, VoIP": "report --ping {root}/examples/ping.txt --app voip",
    "warm report, video of 4 Mbit/s": "report --rtt 60ms --loss 0.3% --bitrate 4Mbit/s --fps 30 --limit 2s",
}
"""Commands in a process of their own, with kernels compiled before."""
WORKER = """
import json, sys, time, warnings
import numpy as np
import tcpdelay as td
from tcpdelay import DelayModel
warnings.simplefilter("ignore")

def reference():
    values, total = np.linspace(0.0, 1.0, 300), 0
    for _ in range(300):
        values = np.sqrt(values * 0.5 + 0.1)
        total += sum(place for place in range(100))
    return total

def timed(function, *arguments):
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start

for line in sys.stdin:
    asked = json.loads(line)
    call = eval("lambda loss: " + asked["code"])
    call(asked["losses"][0] * 0.99)
    scale = min(timed(reference) for _ in range(25))
    seconds = sorted(timed(call, loss) for loss in asked["losses"])
    found = {"seconds": seconds[len(seconds) // 2], "least": seconds[0], "scale": scale}
    if asked["chain"]:
        phases, events = eval("lambda loss: DelayModel(" + asked["chain"] + ", td.Stack.linux())")(
            asked["losses"][0]
        )._profile.structure
        found |= {"phases": len(phases) - 1, "events": len(events)}
    print(json.dumps(found), flush=True)
"""


def _python(checkout: Path) -> str:
    """Return the Python of a checkout, or this one."""
    own = checkout / ".venv/bin/python"
    return str(own if own.exists() else sys.executable)


class Worker:
    """A process that makes the calls of one checkout."""

    def __init__(self, checkout: Path) -> None:
        self._checkout, self._environment = checkout, {**os.environ, "PYTHONPATH": str(checkout)}
        # Children of this process must find the package of their checkout, not that of the folder they start in.
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [_python(checkout), "-c", WORKER],
            env=self._environment,
            cwd=self._folder.name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, row: Row) -> dict[str, float]:
        """Return the median processor time of the calls of a row [s], and what else the process has found."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"code": row.code, "losses": row.losses(), "chain": row.chain}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def command(self, arguments: str, **environment: str) -> dict[str, float]:
        """Return the processor time of a command in a process of its own [s]."""
        words = arguments.format(root=self._checkout).split()
        environment = {"PYTHONPATH": str(self._checkout), **environment}
        command = (_python(self._checkout), "-m", "tcpdelay", *words)
        _, seconds, memory, _ = run(*command, directory=Path(self._folder.name), **environment)
        return {"seconds": seconds, "memory": memory}

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check a commit out beside this one, and remove it at the end."""
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder, "base")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", checkout, commit], cwd=ROOT, check=True)
        try:
            yield checkout
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", checkout], cwd=ROOT, check=True)


def compared(old: Worker, new: Worker, rounds: int) -> list[dict[str, Any]]:
    """Return the times of both checkouts, row by row and in turn."""
    results = []
    for what, row in (ROWS | COMMANDS).items():
        pairs = []
        for _ in range(rounds):
            pair = [each.call(row) if isinstance(row, Row) else each.command(row) for each in (old, new)]
            pairs.append(pair)
            if sum(each["seconds"] for each in pair) > 20:
                break
        before, after = (median(pair[place]["seconds"] for pair in pairs) for place in (0, 1))
        ratio = median(one["seconds"] / other["seconds"] for one, other in pairs)
        sizes = [[pair[name] for pair in pairs[0]] for name in ("phases", "events") if name in pairs[0][0]]
        results.append({"what": what, "old": before, "new": after, "ratio": ratio, "sizes": sizes})
        print(f"{what}: {duration(before)}, {duration(after)}, {ratio:.2f}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as cache:
        found = [
            each.command(COMMANDS["warm report, VoIP"], NUMBA_CACHE_DIR=str(Path(cache, str(place))))
            for place, each in enumerate((old, new))
        ]
    first, second = (each["seconds"] for each in found)
    memory = [f"{each['memory']:.0f} MB" for each in found]
    what = f"first report, VoIP, with an empty cache (largest memory of a process: {memory[0]}, {memory[1]})"
    return [{"what": what, "old": first, "new": second, "ratio": first / second, "sizes": []}, *results]


def table(results: list[dict[str, Any]], names: tuple[str, str]) -> str:
    """Return the results as a table in Markdown."""
    lines = [f"| | phases, events | {names[0]} | {names[1]} | ratio |", "| --- | ---: | ---: | ---: | ---: |"]
    for row in results:
        sizes = ""
        if row["sizes"]:
            before, after = zip(*row["sizes"], strict=True)
            sizes = ", ".join(map(str, after)) + (
                "" if before == after else f" (before: {', '.join(map(str, before))})"
            )
        lines.append(
            f"| {row['what']} | {sizes} | {duration(row['old'])} | {duration(row['new'])} | {row['ratio']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def short(record: bool) -> None:
    """Compare this checkout with the recorded times, or record them."""
    if not record and not RECORDED.exists():
        print(f"benchmarks: no times are recorded in {RECORDED.name}")
        return
    start, worker = time.perf_counter(), Worker(ROOT)
    found = {what: worker.call(row) for what, row in ROWS.items() if row.short}
    worker.close()
    if record:
        commit = _git("rev-parse", "--short", "HEAD")
        RECORDED.write_text(json.dumps({"commit": commit, "rows": found}, indent=1) + "\n", encoding="utf-8")
        return
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    slower = 0
    for what, now in found.items():
        before = recorded["rows"].get(what)
        if before is None:
            continue
        ratio = now["least"] / now["scale"] / (before["least"] / before["scale"])
        if ratio >= SLOWER:
            slower += 1
            changed = [name for name in ("phases", "events") if now.get(name) != before.get(name)]
            grown = [f"{name} {before[name]} to {now[name]}" for name in changed]
            print(f"{what}: {100 * (ratio - 1):.0f} % slower ({', '.join([duration(now['least']), *grown])})")
    others = f"{len(found) - slower} of {len(found)} rows are not 20 % slower than at {recorded['commit']}"
    print(f"benchmarks: {others} ({time.perf_counter() - start:.0f} s)")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main() -> None:
    """Compare, print the table, and put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "commit", nargs="?", default="HEAD^", help="the commit to compare with; a checkout's folder too"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--into", type=Path, metavar="FILE.md", help="put the table between the marks `speed` of a page"
    )
    parser.add_argument("--short", action="store_true", help="compare with the recorded times")
    parser.add_argument("--record", action="store_true", help="record the times of this checkout")
    arguments = parser.parse_args()
    if arguments.short or arguments.record:
        short(arguments.record)
        return
    if Path(arguments.commit).is_dir():
        results = _results(Path(arguments.commit).resolve(), arguments.rounds)
        names = arguments.commit, _git("rev-parse", "--short", "HEAD")
    else:
        with checked_out(arguments.commit) as checkout:
            results = _results(checkout, arguments.rounds)
        names = _git("rev-parse", "--short", arguments.commit), _git("rev-parse", "--short", "HEAD")
    text = table(results, names)
    print(text, end="")
    if arguments.into is not None:
        load, cores = os.getloadavg()[2], os.cpu_count()
        put_into(arguments.into, f"{cores} cores, load {load:.0f}; {time.strftime('%Y-%m-%d')}.\n\n{text}", "speed")


def _results(checkout: Path, rounds: int) -> list[dict[str, Any]]:
    old, new = Worker(checkout), Worker(ROOT)
    try:
        return compared(old, new, rounds)
    finally:
        old.close()
        new.close()


if __name__ == "__main__":
    main()
