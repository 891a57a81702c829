"""The first minute of a new user: `python benchmarks/first_minute.py [--format json] [--python python3.11]`.

The script clones the repository, sets it up with make, and installs its wheel in a second virtual environment. Every
first call begins with an empty cache of compiled kernels. It takes some minutes. Each row has the time by the clock and
the processor time: other work on the machine increases the first, but hardly the second.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
REPEATS = 5
SCENARIO = ("--rtt", "100ms", "--loss", "2%", "--app", "voip")
PREDICTION = """
import time, tcpdelay
start = time.perf_counter()
tcpdelay.predict_delay(rtt=0.1, loss=0.02, packet_size=174, interval=0.02)
print(time.perf_counter() - start)
"""
IMPORT = """
import time
start = time.perf_counter()
import tcpdelay
print(time.perf_counter() - start)
"""


@dataclass(frozen=True)
class Row:
    """One row: the time by the clock, and the processor time [s]."""

    what: str
    clock: float
    processor: float


def run(*command: object, directory: Path, **environment: str) -> tuple[float, float, str]:
    """Run a command; return its time by the clock, its processor time [s], and its output."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    clock, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stdout}{done.stderr}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return clock, processor, done.stdout


def from_a_clone(clone: Path, python: str) -> list[Row]:
    """Time the set-up of a clone, its first report, and its second report."""
    run("git", "clone", "--quiet", ROOT, clone, directory=ROOT)
    rows = []
    for what, target in (
        ("install, by make", ".venv/stamps/package"),
        ("first `make report` after that", "report"),
        ("second `make report`", "report"),
    ):
        # The caches of this machine's user are not used.
        caches = {"UV_CACHE_DIR": str(clone.with_name("uv")), "PIP_CACHE_DIR": str(clone.with_name("pip"))}
        clock, processor, _ = run("make", f"PYTHON={python}", target, directory=clone, **caches)
        rows.append(Row(what, clock, processor))
    return rows


def build_wheel(clone: Path, directory: Path) -> Path:
    """Build the wheel of a clone."""
    run(clone / ".venv/bin/python", "-m", "hatchling", "build", "-t", "wheel", "-d", directory, directory=clone)
    (wheel,) = directory.glob("*.whl")
    return wheel


def from_a_wheel(clone: Path, wheel: Path, directory: Path) -> list[Row]:
    """Install the wheel in a virtual environment of its own, and time first and second calls."""
    python, uv = directory / "bin/python", clone / ".venv/bin/uv"
    run(clone / ".venv/bin/python", "-m", "venv", "--without-pip", directory, directory=clone)
    for installed in (["--require-hashes", "-r", clone / "locks/runtime.lock"], ["--no-deps", wheel]):
        run(uv, "pip", "install", "--quiet", "--python", python, *installed, directory=clone)
    calls = {
        "predict_delay()": [python, "-c", PREDICTION],
        "`tcpdelay report`": [directory / "bin/tcpdelay", "report", *SCENARIO],
        "`tcpdelay compare`": [directory / "bin/tcpdelay", "compare", *SCENARIO],
    }
    rows = []
    for number, (what, call) in enumerate(calls.items()):
        for order in ("first", "second"):
            cache = str(directory / f"kernels{number}")
            clock, processor, _ = run(*call, directory=directory, NUMBA_CACHE_DIR=cache)
            rows.append(Row(f"{order} {what}, in a new process", clock, processor))
    imports = [float(run(python, "-c", IMPORT, directory=directory)[2]) for _ in range(REPEATS)]
    rows.append(Row(f"`import tcpdelay`, median of {REPEATS}", median(imports), median(imports)))
    for option in ("--version", "--help"):
        times = [run(directory / "bin/tcpdelay", option, directory=directory)[:2] for _ in range(REPEATS)]
        clock, processor = (median(column) for column in zip(*times, strict=True))
        rows.append(Row(f"`tcpdelay {option}`, median of {REPEATS}", clock, processor))
    return rows


def content(wheel: Path) -> dict[str, int]:
    """Return the unpacked sizes of a wheel's folders [bytes]."""
    sizes: Counter[str] = Counter()
    with zipfile.ZipFile(wheel) as archive:
        for file in archive.infolist():
            parts = Path(file.filename).parts
            sizes["/".join(parts[:2]) if len(parts) > 2 else parts[0]] += file.file_size
    return dict(sizes.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--python", default=sys.executable, help="the Python that sets the clone up")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        clone = directory / "clone"
        rows = from_a_clone(clone, arguments.python)
        wheel = build_wheel(clone, directory / "dist")
        rows += from_a_wheel(clone, wheel, directory / "installed")
        size, folders = wheel.stat().st_size, content(wheel)
    if arguments.format == "json":
        print(json.dumps({"rows": [asdict(row) for row in rows], "wheel": size, "content": folders}))
        return
    print("| What | Clock [s] | Processor [s] |\n| --- | ---: | ---: |")
    for row in rows:
        print(f"| {row.what} | {row.clock:.2f} | {row.processor:.2f} |")
    print(f"\nThe wheel has {size / 1e3:.0f} kB; unpacked:\n")
    print("| Folder | kB |\n| --- | ---: |")
    for folder, unpacked in folders.items():
        print(f"| `{folder}` | {unpacked / 1e3:.0f} |")


if __name__ == "__main__":
    main()
