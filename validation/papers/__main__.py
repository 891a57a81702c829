"""Compute every published figure anew: `python validation/papers [scp] [timelined] ...`, all papers by default."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PAPERS = sorted(file.stem for file in HERE.glob("*.py") if file.stem not in ("__main__", "comparison"))


def main() -> None:
    """Run the scripts of the papers, one after the other."""
    parser = argparse.ArgumentParser(description="Compute the published figures anew; write validation/results/papers.")
    parser.add_argument("papers", nargs="*", metavar="PAPER", help=f"{', '.join(PAPERS)}; all by default")
    chosen = parser.parse_args().papers or PAPERS
    for paper in chosen:
        if paper not in PAPERS:
            parser.error(f"PAPER must be one of {', '.join(PAPERS)}, got {paper!r}")
    for paper in chosen:
        print(f"{paper} ...", file=sys.stderr)
        subprocess.run([sys.executable, HERE / f"{paper}.py"], check=True)


if __name__ == "__main__":
    main()
