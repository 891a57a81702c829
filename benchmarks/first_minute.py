"""The first minute of a new user: `python benchmarks/first_minute.py [--format json] [--python python3.11]`.

The script clones the repository, sets it up with make, and installs its wheel in a second virtual environment. Every
first call begins with an empty cache of compiled kernels; with the kernels of the wheel and without them, in turn. It
takes some minutes. Each row has the time by the clock, the processor time, and the largest memory of a process: other
work on the machine increases the first, but hardly the second.
"""

from __future__ import annotations

import argparse
import json
import os
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
tcpdelay.predict_delay(rtt=0.1, loss=0.02, packet_size=174, interval=0.02, method="chain")
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
    """One row: the time by the clock and the processor time [s], and the largest memory of a process [MB]."""

    what: str
    clock: float
    processor: float
    memory: float


def run(*command: object, directory: Path, **environment: str) -> tuple[float, float, float, str]:
    """Run a command; return its time by the clock, its processor time [s], its largest memory [MB], and its output."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        started = subprocess.Popen(
            [str(part) for part in command],
            cwd=directory,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        # The usage of this process and of those that it waited for.
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        clock = time.perf_counter() - start
        output.seek(0)
        printed = output.read()
    if started.returncode:
        raise SystemExit(f"{command}: {printed}")
    return clock, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3, printed


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
        *used, _ = run("make", f"PYTHON={python}", target, directory=clone, **caches)
        rows.append(Row(what, *used))
    return rows


def build_wheel(clone: Path) -> Path:
    """Compile the kernels of a clone, and build its wheel with them."""
    run("make", "wheel", directory=clone)
    (wheel,) = (clone / "dist").glob("*.whl")
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
    for what, call in calls.items():
        for order in ("first", "second"):
            for kernels in ("", "compile"):
                cache = str(directory / f"kernels {what} {kernels}")
                environment = {"NUMBA_CACHE_DIR": cache, "TCPDELAY_KERNELS": kernels}
                *used, _ = run(*call, directory=directory, **environment)
                rows.append(Row(f"{order} {what}" + (", kernels compiled here" if kernels else ""), *used))
    imported = [run(python, "-c", IMPORT, directory=directory) for _ in range(REPEATS)]
    seconds = median(float(printed) for *_, printed in imported)
    rows.append(Row(f"`import tcpdelay`, median of {REPEATS}", seconds, seconds, median(row[2] for row in imported)))
    for option in ("--version", "--help"):
        times = [run(directory / "bin/tcpdelay", option, directory=directory)[:3] for _ in range(REPEATS)]
        rows.append(Row(f"`tcpdelay {option}`, median of {REPEATS}", *map(median, zip(*times, strict=True))))
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
        wheel = build_wheel(clone)
        rows += from_a_wheel(clone, wheel, directory / "installed")
        size, folders = wheel.stat().st_size, content(wheel)
    if arguments.format == "json":
        print(json.dumps({"rows": [asdict(row) for row in rows], "wheel": size, "content": folders}))
        return
    print("| What | Clock [s] | Processor [s] | Memory [MB] |\n| --- | ---: | ---: | ---: |")
    for row in rows:
        print(f"| {row.what} | {row.clock:.2f} | {row.processor:.2f} | {row.memory:.0f} |")
    print(f"\nThe wheel has {size / 1e3:.0f} kB; unpacked:\n")
    print("| Folder | kB |\n| --- | ---: |")
    for folder, unpacked in folders.items():
        print(f"| `{folder}` | {unpacked / 1e3:.0f} |")


if __name__ == "__main__":
    main()
