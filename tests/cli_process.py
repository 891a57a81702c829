"""The command line in a process of its own, for the tests."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def process(*arguments, python=(), **options):
    """Start `python -m tcpdelay` in a process of its own, with a terminal 80 columns wide and without colour."""
    unwanted = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "PYTHONWARNINGS", "PYTHONUNBUFFERED")
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    return subprocess.Popen(
        [sys.executable, *python, "-m", "tcpdelay", *arguments],
        cwd=ROOT,
        env={**environment, "COLUMNS": "80"},
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
