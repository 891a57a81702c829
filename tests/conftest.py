"""Hypothesis profiles, and compiled kernels that are never older than their sources."""

import os
from pathlib import Path

from hypothesis import settings

# No deadline: the first call of a compiled kernel takes seconds, every later one microseconds.
settings.register_profile("local", deadline=None, print_blob=True)
# CI repeats the same examples, so that a pass says the same twice.
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "local"))


def pytest_configure() -> None:
    """Remove compiled kernels that a changed source has made stale.

    Numba compares a cached kernel with its own source file only, not with those of the kernels it calls.
    """
    package = Path(__file__).parents[1] / "tcpdelay"
    newest = max(source.stat().st_mtime for source in package.rglob("*.py"))
    for cached in package.rglob("*.nb[ic]"):
        if cached.stat().st_mtime < newest:
            cached.unlink(missing_ok=True)
