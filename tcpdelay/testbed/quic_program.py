"""The program of the testbed that speaks QUIC with the library quic-go: its sources, and its build with Go."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.kernel_cache import cache_directory

SOURCES = ("go.mod", "go.sum", "main.go", "messages.go", "receiver.go", "sender.go")
MISSING_AIOQUIC = "the package aioquic is missing; run: pip install 'tcpdelay[quic]'"
MISSING_GO = "the program go is missing, which builds quic-go; install Go 1.24 or later, such as Debian's golang-go"
BUILD_TIME = 900.0
"""Longest time of a build, which first fetches the library [s]."""


class QuicBuildError(RuntimeError):
    """The program could not be built; the message is one line."""


def quic_program_path() -> Path:
    """Return the path of the program in the user's cache; its name holds a hash of its sources, so a change is built.

    Examples
    --------
    >>> quic_program_path().name.startswith("quic_go-")
    True
    """
    content = hashlib.sha256()
    for name, text in _sources():
        content.update(f"{name}\0{len(text)}\0{text}".encode())
    return cache_directory().parent / "quic" / f"quic_go-{content.hexdigest()[:8]}"


def _sources() -> Iterable[tuple[str, str]]:
    folder = resources.files("tcpdelay.testbed") / "quic_go"
    return [(name, (folder / name).read_text(encoding="utf-8")) for name in SOURCES]


def build_quic_program() -> Path:
    """Build the program, unless it has been built from the same sources, and return its path.

    The first build fetches quic-go from Go's module proxy, and checks it against `go.sum`. It takes a minute or two.

    Raises
    ------
    QuicBuildError
        If Go is missing or the build fails.
    """
    path = quic_program_path()
    if path.is_file():
        return path
    if shutil.which("go") is None:
        raise QuicBuildError(MISSING_GO)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            for name, text in _sources():
                Path(work, name).write_text(text, encoding="utf-8")
            # Without cgo the program is one static file. -mod=readonly refuses what go.sum does not list.
            environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false"}
            command = ["go", "build", "-o", path.name, "."]
            done = subprocess.run(
                command, cwd=work, env=environment, capture_output=True, text=True, timeout=BUILD_TIME, check=False
            )
            if done.returncode != 0:
                lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
                raise QuicBuildError(f"the build of quic-go failed: {lines[-1]}")
            Path(work, path.name).replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QuicBuildError(f"quic-go cannot be built in {path.parent}: {error}") from error
    return path


def quic_problems(experiments: Iterable[Experiment]) -> list[str]:
    """Return what is missing for the QUIC implementations of experiments, one line each; empty if nothing is.

    Examples
    --------
    >>> quic_problems([Experiment()])
    []
    """
    needed = {experiment.implementation for experiment in experiments if experiment.application == "quic"}
    problems = []
    if "aioquic" in needed and find_spec("aioquic") is None:
        problems.append(MISSING_AIOQUIC)
    if "quic-go" in needed and not quic_program_path().is_file() and shutil.which("go") is None:
        problems.append(MISSING_GO)
    return problems
