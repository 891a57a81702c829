"""Score the models against the captures in this directory: `python validation/run.py` writes validation/results/."""

from __future__ import annotations

import sys
from pathlib import Path

from tcpdelay.cli import main

HERE = Path(__file__).parent

if __name__ == "__main__":
    # What is given on the command line comes later, and so overrides these.
    here = ["--captures", str(HERE / "captures"), "--output", str(HERE / "results")]
    sys.exit(main(["validate", *here, *sys.argv[1:]]))
