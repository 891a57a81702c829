"""Where compiled kernels are stored, and when they are out of date.

A kernel that Python calls is compiled with all kernels below it. Numba compiles it anew only if the file of this one
kernel changes. Here, a change of any module of the chains and simulators has all their kernels compiled anew: after an
upgrade of the package, kernels of the earlier version would otherwise run on.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config
from numba.core.dispatcher import Dispatcher

PACKAGE = Path(__file__).parents[1]
SOURCES = ("models", "network")
"""Packages whose kernels call each other, or use each other's constants."""


@cache
def fingerprint() -> bytes:
    """Return a digest of the modules of `SOURCES`."""
    digest = hashlib.blake2b(digest_size=16)
    for module in sorted(module for name in SOURCES for module in (PACKAGE / name).rglob("*.py")):
        digest.update(module.read_bytes())
    return digest.digest()


def cached(function: Any, options: dict[str, Any]) -> Any:
    """Return the compiled function, with a cache of this process and its children if there is no place for another."""
    try:
        return _stamped(njit(cache=True, **options)(function))
    except RuntimeError:
        # Numba says so if it can write neither beside the source nor in the user's cache.
        if config.CACHE_DIR:  # type: ignore[attr-defined]
            raise
    folder = tempfile.mkdtemp(prefix="tcpdelay-kernels-")
    _remove_at_end(folder)
    config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"] = folder  # type: ignore[attr-defined]
    return _stamped(njit(cache=True, **options)(function))


def _stamped(compiled: Any) -> Any:
    """Return a compiled function whose stored code is out of date if any module of `SOURCES` has changed."""
    if isinstance(compiled, Dispatcher):
        index = compiled._cache._cache_file  # type: ignore[attr-defined]
        index._source_stamp = index._source_stamp, fingerprint()
    return compiled


def _remove_at_end(folder: str) -> None:
    """Remove a folder when this process ends, also if a signal kills it.

    A killed process cannot remove anything. Another process does, at the end of the pipe between them.
    """
    if getattr(sys, "frozen", False):
        # The executable of a frozen application is not Python.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return
    code = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
    remover = subprocess.Popen(
        [sys.executable, "-IS", "-c", code, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C reaches all processes of a terminal's session.
        start_new_session=True,
    )
    atexit.register(remover.communicate)


def is_compiled(function: Callable[..., Any]) -> bool:
    """Return whether a kernel has been compiled in this process, or is in the cache."""
    if not isinstance(function, Dispatcher) or function.overloads:
        return True
    return bool(function._cache._cache_file._load_index())  # type: ignore[attr-defined]
