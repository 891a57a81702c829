"""Measure what the numeric constants of the chains change: `python validation/chain_constants.py`.

It writes `results/chain-constants.csv`, with a line for each numeric constant in `tcpdelay/chain` and its kind. Each
constant that is neither derived, nor a rule, a unit or a limit (`KINDS`) is halved and doubled in turn, and the
scenarios that read it are solved again. Kernels run as plain Python, because compiled code holds constants. So a time
is that of plain Python. The script takes some 20 minutes of one processor; `--only NAME ...` renews single lines.
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path as FilePath
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import numba.core.config  # imported before the processes are forked, as it takes a second
import numpy as np
import scipy.sparse.linalg
import scipy.special  # noqa: F401

ROOT = FilePath(__file__).parents[1]
TABLE = ROOT / "validation" / "results" / "chain-constants.csv"
FOLDER = ROOT / "tcpdelay" / "chain"
KINDS = {
    "number of a kind, a code or a place": (
        "NEWRENO", "SACK", "RENO", "LEFT", "CARRIED", "NOT_CARRIED", "NO_PACKETS", "QUEUED", "HEAD_OF_LINE", "WEIGHT",
        "REMAINDER", "EXTRA", "STARTUP", "TIMEOUT", "REPAIR_MORE", "REPAIR_AGAIN", "REPAIR", "REPAIR_OPEN", "ROUND",
        "OPEN", "LOST_OPEN", "LOST_TWO", "LOST_REPAIRING", "LOST", "PER_WINDOW", "OPEN_KINDS", "BLOCKED",
        "SHOWN_LATER", "RECOVERING", "FOUND_LATER", "DETECTIONS", "_OUTCOMES", "_EVENTS", "EMPTIED",
    ),
    "rule of a kernel, an RFC or the published chain": (
        "RENO_TWO_LOSS_WINDOW", "BACKOFF_STAGES", "WINDOW_PER_LOAD", "BACKLOG_PER_LOAD", "SMALLEST_WINDOW",
        "TIMER_SLACK", "FASTER", "PACED", "RATE_WITH_BACKLOG", "LONGEST_TIMEOUT", "UPDATE_INTERVAL", "MIN_RTT_TIME",
        "PROBE_TIME", "SLOWER", "HIGH", "SPARE_SEGMENTS", "SPARE_WHEN_FASTER", "ORIGIN",
    ),
    "derived": (
        "MEAN_TICK", "SMALLEST_LIMITED_WINDOW", "FAST_CONVERGED", "LATENESS_DEVIATION", "LATENESS_NODES", "NODES",
        "ROUND_TRIPS_TO_ROUND", "MOST_PHASES",
    ),
    "unit": ("NUMBER", "MICROSECOND"),
    "estimate of time or memory": (
        "DELAYS_WORTH_A_LOOK", "SECONDS_OF_SMALL_CHAIN", "MEMORY_OF_SMALL_CHAIN",
        "UPDATES_OF_REPAIR", "UPDATES_IN_ROW", "PHASES_PER_WINDOW", "SECONDS_PER_WINDOW", "SECONDS_PER_SEGMENT",
        "SECONDS_PER_ROUND", "SECONDS_PER_PHASE", "BYTES_PER_SLOT", "UPDATES_PER_CELL", "UPDATES_PER_MOVE",
        "SECONDS_PER_STATE", "BYTES_PER_CELL", "BYTES_PER_PHASE", "SECONDS_PER_KEY_FRAME", "SECONDS_PER_BIN",
    ),
    "size of an array": ("TRANSITIONS_PER_PHASE", "ROUNDS_PER_WINDOW", "UPDATES_AWAITED"),
    "limit of use": (
        "OVERLOAD", "MOST_CELLS", "LARGEST_LOSS", "CHECKED_TIMEOUTS", "LARGEST_SHARE_BEYOND",
        "LARGEST_BURST", "LARGEST_LOSS_WITH_BBR", "LARGEST_OUTAGE", "MOST_WINDOWS", "MOST_PACKETS",
        "LARGEST_DENSE_CHAIN", "LARGEST_CHAIN", "LEAST_PACKETS_PER_SEGMENT", "LARGEST_UTILIZATION", "SHORTEST_TALK",
        "MOST_BOUNDS", "LARGEST_NEED", "LARGEST_FRAME", "MOST_FRAMES", "LARGEST_VARIATION", "LONGEST_INTERVAL",
        "UNFINISHED",
    ),
}  # fmt: skip
"""Constants that are not tuned, by their kind. All others are measured."""
MEASURED = "tuned"
FACTORS = {"halved": 0.5, "doubled": 2.0}
SAME = 1e-9
"""Relative difference below which a figure has not changed."""
COUNTED_TIME = 0.25
"""Relative change of the time below which it is noise."""
MOST_SECONDS = 1.5
"""Time of the scenarios that are solved for a constant which more of them read: the quickest are taken [s]."""
LONGEST = 90.0
"""Time after which a change is given up: the chain does not end with it [s]."""
FIELDS = (
    "constant", "where", "value", "meaning", "kind", "scenarios", "halved_p95", "halved_mean", "halved_time",
    "doubled_p95", "doubled_mean", "doubled_time",
)  # fmt: skip


class Constant(NamedTuple):
    """A numeric constant of a module."""

    module: str
    name: str
    meaning: str
    value: Any  # A number, or a tuple of numbers


def module_of(file: FilePath) -> str:
    """Return the name of a module of the package."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def place_of(constant: Constant) -> str:
    """Return the module of a constant within `tcpdelay.chain`."""
    return constant.module.removeprefix("tcpdelay.chain.")


@cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module of the package."""
    return ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))


def names_of(node: ast.stmt) -> list[str]:
    """Return the names in capital letters that an assignment gives."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    named = [each for target in targets for each in getattr(target, "elts", [target]) if isinstance(each, ast.Name)]
    return [each.id for each in named if each.id == each.id.upper()]


def constants() -> Iterator[Constant]:
    """Yield the numeric constants of the chains, in the order of their modules."""
    for file in sorted(FOLDER.rglob("*.py")):
        module = module_of(file)
        body = tree_of(module).body
        for node, following in zip(body, [*body[1:], ast.Pass()], strict=True):
            described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            text = ast.get_docstring(ast.Module([following], [])) if described else ""
            meaning = " ".join((text or "").split("\n\n")[0].split())
            for name in names_of(node):
                value = getattr(importlib.import_module(module), name)
                numbers = value if isinstance(value, tuple) else (value,)
                if numbers and all(type(each) in (int, float) for each in numbers):
                    yield Constant(module, name, meaning, value)


def kind_of(constant: Constant) -> str:
    """Return the kind of a constant."""
    return next((kind for kind, names in KINDS.items() if constant.name in names), MEASURED)


def scenarios() -> dict[str, tuple[Any, Any, Any]]:
    """Return small chains of each kind: in plain Python they take ten seconds together."""
    import tcpdelay as td

    voice, linux, reno, bbr = td.Flow(174, 0.020), td.Stack.linux(), td.Stack.linux("reno"), td.Stack.linux("bbr")
    streams = td.Stack.quic("rfc9002", delivery="stream_per_message")
    datagrams = td.Stack.quic("aioquic", delivery="datagram")
    published, grown = td.Stack.newreno_2008(), td.Stack.newreno_2008(backlog_bound="grow")
    return {
        "voice": (voice, td.Path(0.1, 0.02), linux),
        "voice, 0.5 %": (voice, td.Path(0.1, 0.005), linux),
        "voice, short path": (voice, td.Path(0.02, 0.02), linux),
        "voice, 8 %": (voice, td.Path(0.06, 0.08), linux),
        "voice, Reno": (voice, td.Path(0.08, 0.03), reno),
        "voice, BBR": (voice, td.Path(0.06, 0.02), bbr),
        "1000 bytes, BBR": (td.Flow(1000, 0.02), td.Path(0.04, 0.03), bbr),
        "1000 bytes": (td.Flow(1000, 0.03), td.Path(0.05, 0.01), linux),
        "1000 bytes, Reno": (td.Flow(1000, 0.02), td.Path(0.05, 0.03), reno),
        "two segments": (td.Flow(2000, 0.1), td.Path(0.05, 0.02), reno),
        "late writes": (td.Flow(174, 0.020, write_jitter=0.010), td.Path(0.06, 0.02), linux),
        "bursts": (voice, td.Path(0.04, 0.02, loss_burst=1.2), reno),
        "drop-tail": (voice, td.Path(0.06, 0.02, "correlated"), linux),
        "jitter": (voice, td.Path(0.06, 0.02, jitter=0.01), linux),
        "sparse": (td.Flow(100, 0.5), td.Path(0.02, 0.02), linux),
        "sparse, 10 %": (td.Flow(100, 0.8), td.Path(0.05, 0.1), linux),
        "published": (voice, td.Path(0.1, 0.02), published),
        "published, SACK": (td.Flow(1000, 0.02), td.Path(0.06, 0.03), td.Stack.newreno_2008("sack")),
        "published, growing": (td.Flow(174, 0.04), td.Path(0.05, 0.04), grown),
        "published, near the capacity": (td.Flow(1448, 0.05), td.Path(0.05, 0.1), grown),
        "speech": (td.Speech(174, 0.020), td.Path(0.05, 0.01), linux),
        "speech, Reno": (td.Speech(174, 0.020, talk=0.5), td.Path(0.08, 0.02), reno),
        "video": (td.Video(3e5), td.Path(0.03, 0.005), linux),
        "video, 40 ms": (td.Video(5e5), td.Path(0.04, 0.01), linux),
        "video, Reno": (td.Video(2e5), td.Path(0.05, 0.01), reno),
        "QUIC": (voice, td.Path(0.1, 0.02), streams),
        "QUIC, 2400 bytes": (td.Flow(2400, 0.05), td.Path(0.05, 0.05), streams),
        "QUIC, datagrams": (voice, td.Path(0.04, 0.03), datagrams),
        "QUIC, waiting": (td.Flow(1200, 0.03), td.Path(0.05, 0.05), streams),
    }


class Figures(NamedTuple):
    """What a scenario has for an answer."""

    p95: float  # [s]; infinite where the flow is not carried, NaN where the chain refuses it
    mean: float  # [s]
    seconds: float  # Processor time in plain Python


def solved(flow: Any, path: Any, stack: Any) -> Figures:
    """Return the figures of a scenario."""
    from tcpdelay.models.predict import predict_delay

    start = time.process_time()
    try:
        found = predict_delay(flow, path, stack, method="chain", max_seconds=100.0)
        p95, mean = float(found.quantile(0.95)), found.mean
        found.expected_error_of(0.95)
    except ValueError:
        p95 = mean = np.nan
    return Figures(p95, mean, time.process_time() - start)


class _Changed(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):  # type: ignore[misc]
    """Imports one module with another value of one of its constants."""

    def __init__(self, constant: Constant, value: Any) -> None:
        super().__init__(constant.module, str(ROOT / f"{constant.module.replace('.', '/')}.py"))
        self._constant, self._value = constant, value

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        """Return this loader for the module."""
        if fullname != self._constant.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the module with the value given right behind the constant's own assignment."""
        tree = ast.parse(FilePath(self.path).read_text(encoding="utf-8"))
        (place,) = (place for place, node in enumerate(tree.body) if self._constant.name in names_of(node))
        tree.body[place + 1 : place + 1] = ast.parse(f"{self._constant.name} = {self._value!r}").body
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


def _solve(connection: Any, constant: Constant | None, value: Any, names: list[str]) -> None:
    """Send the figures of scenarios with another value of a constant; run in a process of its own."""
    warnings.simplefilter("ignore")
    if constant is not None:
        sys.meta_path.insert(0, _Changed(constant, value))
    every = scenarios()
    with np.errstate(all="ignore"):
        # The first answer imports modules.
        solved(*every[names[0]])
        connection.send([solved(*every[name]) for name in names])


def with_value(constant: Constant | None, value: Any, names: list[str]) -> list[Figures] | None:
    """Return the figures of scenarios with another value of a constant; None if they are not found."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_solve, args=(sender, constant, value, names), daemon=True)
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(LONGEST) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def _read(connection: Any, name: str) -> None:
    """Send the names that the code of a scenario reads, each with its module, and all constants of the chains."""
    warnings.simplefilter("ignore")
    found: set[CodeType] = set()

    def called(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            found.add(frame.f_code)

    scenario = scenarios()[name]
    solved(*scenario)
    sys.setprofile(called)
    solved(*scenario)
    sys.setprofile(None)
    own = {code for code in found if code.co_filename.startswith(str(FOLDER))}
    connection.send({(module_of(FilePath(code.co_filename)), read) for code in own for read in code.co_names})


def names_read(name: str) -> set[tuple[str, str]]:
    """Return what the code that solves a scenario reads: modules and names."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_read, args=(sender, name), daemon=True)
    process.start()
    found: set[tuple[str, str]] = receiver.recv()
    process.join()
    return found


@cache
def users_of(module: str, name: str) -> frozenset[tuple[str, str]]:
    """Return modules and names of what imports a constant, or is computed from it when a module is imported."""
    found = set()
    for file in FOLDER.rglob("*.py"):
        other = module_of(file)
        for node in tree_of(other).body:
            if isinstance(node, ast.ImportFrom) and node.module == module:
                found |= {(other, each.asname or each.name) for each in node.names if each.name == name}
    for node in tree_of(module).body:
        at_import: list[ast.AST] = [node]
        if isinstance(node, ast.FunctionDef):
            at_import = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.ClassDef):
            at_import = [each for each in node.body if not isinstance(each, ast.FunctionDef)]
        for part in at_import:
            if any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(part)):
                if isinstance(node, ast.ClassDef):
                    names = [each for each in ast.walk(part) if isinstance(each, ast.Name)]
                    given = [each.id for each in names if isinstance(each.ctx, ast.Store)]
                    found |= {(module_of(file), each) for file in FOLDER.rglob("*.py") for each in given}
                else:
                    found |= {(module, each) for each in [*names_of(node), getattr(node, "name", "")] if each}
    return frozenset(found)


@cache
def known_as(module: str, name: str) -> frozenset[tuple[str, str]]:
    """Return the modules and names by which code knows a constant, or what is computed from it at import."""
    found, waiting = set(), [(module, name)]
    while waiting:
        here = waiting.pop()
        if here not in found:
            found.add(here)
            waiting += users_of(*here)
    return frozenset(found)


def scaled(value: Any, factor: float) -> Any:
    """Return a constant times a factor; whole numbers stay whole."""
    if isinstance(value, tuple):
        return tuple(scaled(each, factor) for each in value)
    return type(value)(np.floor(value * factor + 0.5)) if isinstance(value, int) else value * factor


def largest(before: list[float], after: list[float]) -> float | str:
    """Return the largest relative change of a figure, or how many scenarios the chain answers no longer."""
    was, now = np.array(before), np.array(after)
    same = np.isfinite(was) == np.isfinite(now)
    if not same.all():
        return f"{np.count_nonzero(~same)} refused"
    both = np.isfinite(was)
    change = float(np.max(np.abs(now[both] / was[both] - 1), initial=0.0))
    return float(f"{change:.2g}") if change > SAME else 0.0


def row(constant: Constant, names: list[str], before: dict[str, Figures]) -> dict[str, Any]:
    """Return the line of a constant."""
    found: dict[str, Any] = {
        "constant": constant.name,
        "where": place_of(constant),
        "value": constant.value,
        "meaning": constant.meaning,
        "kind": kind_of(constant),
    }
    if found["kind"] != MEASURED:
        return found
    found["scenarios"] = len(names)
    for word, factor in FACTORS.items() if names else ():
        value = scaled(constant.value, factor)
        after = with_value(constant, value, names) if value != constant.value else [before[name] for name in names]
        if after is None:
            found |= {f"{word}_p95": "no answer", f"{word}_mean": "no answer"}
            continue
        was = [before[name] for name in names]
        for figure in ("p95", "mean"):
            found[f"{word}_{figure}"] = largest([getattr(e, figure) for e in was], [getattr(e, figure) for e in after])
        change = sum(each.seconds for each in after) / sum(each.seconds for each in was) - 1
        found[f"{word}_time"] = round(change, 2) if abs(change) > COUNTED_TIME else 0.0
    return found


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="renew the lines of these constants")
    asked = parser.parse_args()
    # Kernels are plain Python, in the processes that are started too.
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    numba.core.config.reload_config()
    # The constants themselves are read in a process of their own, so that no child has imported the package.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        listed: list[Constant] = pool.apply(_listed)
        every: list[str] = pool.apply(_names)
    reads = {name: names_read(name) for name in every}
    first, second = (with_value(None, None, every) for _ in range(2))
    assert first is not None
    assert second is not None
    before = {
        name: one._replace(seconds=min(one.seconds, two.seconds))
        for name, one, two in zip(every, first, second, strict=True)
    }
    print(f"{sum(each.seconds for each in before.values()):.1f} s", file=sys.stderr)
    for name, figures in before.items():
        print(f"{name}: p95 {figures.p95:.4f} s, {figures.seconds:.2f} s", file=sys.stderr)
    rows = {}
    if asked.only:
        with TABLE.open(encoding="utf-8", newline="") as file:
            rows = {(each["where"], each["constant"]): each for each in csv.DictReader(file)}
    for constant in listed:
        if not asked.only or constant.name in asked.only:
            reading = [name for name in every if reads[name] & known_as(constant.module, constant.name)]
            found = row(constant, quickest(reading, before), before)
            rows[found["where"], found["constant"]] = {key: str(value) for key, value in found.items()}
            print(*found.values(), sep=" | ", file=sys.stderr, flush=True)
            _write(rows, listed)


def quickest(names: list[str], before: dict[str, Figures]) -> list[str]:
    """Return the quickest of some scenarios, which together take at most `MOST_SECONDS`; one at least."""
    found: list[str] = []
    for name in sorted(names, key=lambda name: before[name].seconds):
        if not found or sum(before[each].seconds for each in [*found, name]) <= MOST_SECONDS:
            found.append(name)
    return found


def _write(rows: Mapping[tuple[str, str], dict[str, str]], listed: list[Constant]) -> None:
    """Write the table with the rows that are known, and the present words on each constant."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for each in listed:
            if (known := rows.get((place_of(each), each.name))) is not None:
                writer.writerow(known | {"meaning": each.meaning, "kind": kind_of(each)})


def _listed() -> list[Constant]:
    """Return the constants of the chains."""
    return list(constants())


def _names() -> list[str]:
    """Return the names of the scenarios."""
    return list(scenarios())


if __name__ == "__main__":
    main()
