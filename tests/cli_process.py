"""The command line in a process of its own, for the tests."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Process(subprocess.Popen):
    """A process that does not outlive a test that fails."""

    def __exit__(self, kind, *error):
        if kind is not None:
            self.kill()
        super().__exit__(kind, *error)


def process(*arguments, python=(), **options):
    """Start `python -m tcpdelay` in a process of its own, with a terminal 80 columns wide and without colour."""
    unwanted = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "PYTHONWARNINGS", "PYTHONUNBUFFERED")
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    return Process(
        [sys.executable, *python, "-m", "tcpdelay", *arguments],
        cwd=ROOT,
        env={**environment, "COLUMNS": "80"},
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
