"""The cache of User-Mode Linux kernels with virtual time: their names, their records, and what they are made with."""

from __future__ import annotations

import hashlib
import json
import os
import re
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.testbed.kernel_source import is_version

KERNEL_HZ = (250, 1000)
"""Timer interrupts per second [1/s] of common kernels: of most distributions, and of desktop distributions."""
DEFAULT_KERNEL = "6.1"
"""Version of Linux that is built and that runs unless another is chosen."""
DUALPI2_SINCE = (6, 17)
"""The first version of Linux with net/sched/sch_dualpi2.c."""


def kernel_path(hz: int, kernel: str = DEFAULT_KERNEL) -> Path:
    """Return the path of a kernel in the user's cache.

    The cache is `tcpdelay/kernels` in `$XDG_CACHE_HOME` or `~/.cache`. The name holds a hash of the patch and the
    configuration, so a change of either leads to a new build.

    Parameters
    ----------
    hz : int
        Timer interrupts a second [1/s], 100 to 1000.
    kernel : str
        Version of Linux: two numbers, of at least 5.15.

    Returns
    -------
    Path
        The file of the kernel, which need not exist.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> kernel_path(250).name.startswith("linux-6.1-hz250-")
    True
    """
    if hz not in range(100, 1001):
        raise InvalidValueError("hz", hz, "be a whole number from 100 to 1000")
    check_version(kernel)
    return cache_directory() / f"linux-{kernel}-hz{hz:d}-{_hash_of_changes(kernel)}"


def check_version(kernel: object) -> None:
    """Raise an InvalidValueError if `kernel` is no version of Linux that can be built."""
    if not (isinstance(kernel, str) and is_version(kernel)):
        raise InvalidValueError("kernel", kernel, 'be a version of Linux of at least 5.15, such as "6.1"')


def find_kernel(hz: int, kernel: str = DEFAULT_KERNEL) -> Path | None:
    """Return the kernel of a version and a tick rate if it has been built.

    Parameters
    ----------
    hz : int
        Timer interrupts a second [1/s], 100 to 1000.
    kernel : str
        Version of Linux: two numbers, of at least 5.15.

    Returns
    -------
    Path or None
        The kernel, which runs like any program; None if it has not been built. The file of the same name with the
        suffix `.json` holds `release`, `hz`, `built` (date of the build), `compiler`, `source` (name of the tarball)
        and `source_sha256`.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    path = kernel_path(hz, kernel)
    return path if path.is_file() and record_of(path).is_file() else None


class BuiltKernel(NamedTuple):
    """A kernel in the cache: its version of Linux, timer interrupts a second [1/s], and release."""

    kernel: str
    hz: int
    release: str


def built_kernels() -> list[BuiltKernel]:
    """Return the kernels that have been built with the present patch and configuration, oldest version first."""
    name = re.compile(r"linux-(\d+\.\d+)-hz(\d+)-[0-9a-f]{8}")
    found = []
    for path in cache_directory().glob("linux-*"):
        match = name.fullmatch(path.name)
        if match is not None and find_kernel(hz := int(match[2]), match[1]) == path:
            found.append(BuiltKernel(match[1], hz, str(read_record(path).get("release", "unknown"))))
    return sorted(found, key=lambda built: (*map(int, built.kernel.split(".")), built.hz))


def read_record(kernel: Path) -> dict[str, object]:
    """Return what was recorded at the build of a kernel; empty if the record cannot be read."""
    try:
        record = json.loads(record_of(kernel).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def record_of(kernel: Path) -> Path:
    """Return the file with what was recorded at the build of a kernel."""
    return kernel.with_name(f"{kernel.name}.json")


def _hash_of_changes(kernel: str) -> str:
    """Return eight digits of a hash of all that the package adds to the kernel's source."""
    made_with = packaged_file("virtual_time.patch") + settings_of(kernel)
    return hashlib.sha256(made_with.encode()).hexdigest()[:8]


def settings_of(kernel: str) -> str:
    """Return the additions to the smallest possible configuration of a version of Linux, in the format of Kconfig."""
    return packaged_file("virtual_time.config") + (packaged_file("since_6.17.config") if has_dualpi2(kernel) else "")


def has_dualpi2(kernel: str) -> bool:
    """Return whether a version of Linux has the queueing discipline DualPI2.

    Examples
    --------
    >>> has_dualpi2("6.12"), has_dualpi2("6.17")
    (False, True)
    """
    return tuple(map(int, kernel.split("."))) >= DUALPI2_SINCE


def packaged_file(name: str) -> str:
    """Return the content of a file that comes with the package: the kernel's patch or configuration."""
    return (resources.files("tcpdelay.testbed") / "kernel" / name).read_text(encoding="utf-8")


def cache_directory() -> Path:
    """Return the directory of kernels in the user's cache."""
    # The XDG base directory specification ignores a relative path.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tcpdelay" / "kernels"
