"""Write the figures that a change of the code must keep, or compare two files of them.

    python validation/golden write before.json [PART ...]
    python validation/golden compare before.json after.json [--intended FILE]

All parts take some minutes on two processors; `--help` lists them. To write the figures of an earlier commit, let
Python import that commit's package. Examples, captures and specifications are then also those of that commit:

    git worktree add ../before COMMIT
    PYTHONPATH=../before python validation/golden write before.json
    PYTHONPATH=. python validation/golden write after.json

Equal seeds must give simulations that are equal to the last bit. Chains may differ by 1e-12, texts must be the same to
the byte but for numbers of at least 12 digits, and each kernel must have the syntax tree that it had.

A file of intended changes has a pattern of `fnmatch` per line for the places that `compare` prints, each after its part
and " / ", as in `help / *--format markdown*`. Lines that begin with # say why.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from comparison import compare
from parts import PARTS, outcomes

PROCESSES = 2
"""Processes by default."""
LONGEST_FIRST = ("examples", "questions", "chains", "errors", "captures")


def write(file: Path, parts: list[str], processes: int, every: int) -> None:
    """Write the figures of parts; each process takes every other case."""
    import tcpdelay

    print(f"figures of {Path(tcpdelay.__file__).parent}", file=sys.stderr)
    found: dict[str, dict[str, Any]] = {part: {} for part in parts}
    order = sorted(parts, key=lambda part: LONGEST_FIRST.index(part) if part in LONGEST_FIRST else len(LONGEST_FIRST))
    start = time.monotonic()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        running = {
            pool.submit(outcomes, part, share * every, processes * every): part
            for part in order
            for share in range(processes)
        }
        for done in as_completed(running):
            found[running[done]] |= done.result()
            words = f"{running[done]}: {len(found[running[done]])} cases after {time.monotonic() - start:.0f} s"
            print(words, file=sys.stderr)
    ordered = {part: dict(sorted(figures.items())) for part, figures in found.items()}
    file.write_text(json.dumps(ordered, indent=0), encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write figures")
    writing.add_argument("file", type=Path)
    writing.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    writing.add_argument("--processes", type=int, default=PROCESSES, help="processes (%(default)s)")
    writing.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th case, for a quick look")
    comparing = commands.add_parser("compare", help="compare two files; the exit status is 1 if a figure differs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--intended", type=Path, metavar="FILE", help="patterns of differences that are intended")
    comparing.add_argument("--most", type=int, default=20, help="differences printed of a part (%(default)s)")
    asked = parser.parse_args()
    if asked.command == "write":
        for part in asked.parts:
            if part not in PARTS:
                parser.error(f"PART must be one of {', '.join(PARTS)}, got {part!r}")
        write(asked.file, asked.parts or list(PARTS), asked.processes, asked.every)
        return
    before, after = (json.loads(file.read_text(encoding="utf-8")) for file in (asked.before, asked.after))
    lines = asked.intended.read_text(encoding="utf-8").splitlines() if asked.intended else []
    intended = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    sys.exit(1 if compare(before, after, intended, asked.most) else 0)


if __name__ == "__main__":
    main()
