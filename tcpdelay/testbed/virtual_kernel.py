"""User-Mode Linux kernels with virtual time, built from Debian's kernel source and kept in the user's cache.

Debian's own User-Mode Linux can neither jump over idle time nor tick at the rates in use, so a kernel is built. What
its configuration has beyond the smallest possible one stands in `kernel/virtual_time.config`, what its source has
beyond Debian's in `kernel/virtual_time.patch`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.testbed.kernel_build import KernelBuild, KernelBuildError

__all__ = ["KERNEL_HZ", "KernelBuildError", "build_kernels", "build_requirements", "find_kernel", "kernel_path"]

KERNEL_HZ = (250, 1000)
"""Timer interrupts a second [1/s] of the kernels in use: of most distributions, and of those for desktops."""

_VERSION = "6.1"
_SOURCE_PACKAGE = f"linux-source-{_VERSION}"
_DEBIAN_SOURCE = Path(f"/usr/src/{_SOURCE_PACKAGE}.tar.xz")
# libelf-dev and libssl-dev are not among them: nothing that this configuration compiles uses their headers.
_PACKAGE_OF_PROGRAM = {
    "bc": "bc",
    "bison": "bison",
    "flex": "flex",
    "gcc": "gcc",
    "make": "make",
    "patch": "patch",
    "setpriv": "util-linux",
    "xz": "xz-utils",
}
_C_LIBRARY_HEADER = Path("/usr/include/stdio.h")
_SPACE_NEEDED = 2 * 2**30
_WORK_PREFIX = "build-"


def kernel_path(hz: int) -> Path:
    """Return where the kernel with a tick rate is in the user's cache, or would be.

    The cache is `tcpdelay/kernels` in `$XDG_CACHE_HOME` or `~/.cache`. The name changes with the patch and the
    configuration, so that a change of either asks for a new build.

    Parameters
    ----------
    hz : int
        Timer interrupts a second [1/s], 100 to 1000.

    Returns
    -------
    Path
        The file of the kernel, which need not exist.

    Raises
    ------
    ValueError
        If `hz` is out of range.

    Examples
    --------
    >>> kernel_path(250).name.startswith("linux-6.1-hz250-")
    True
    """
    if hz not in range(100, 1001):
        raise InvalidValueError("hz", hz, "be a whole number from 100 to 1000")
    made_with = _data("virtual_time.patch") + _data("virtual_time.config")
    return _cache() / f"linux-{_VERSION}-hz{hz:d}-{hashlib.sha256(made_with.encode()).hexdigest()[:8]}"


def find_kernel(hz: int) -> Path | None:
    """Return the kernel with a tick rate if it has been built.

    Parameters
    ----------
    hz : int
        Timer interrupts a second [1/s], 100 to 1000.

    Returns
    -------
    Path or None
        The kernel, which runs like any program. The file beside it with `.json` at its end holds `release`, `hz`,
        `built` (date of the build), `compiler`, `source` (name of the tarball) and `source_sha256`.

    Raises
    ------
    ValueError
        If `hz` is out of range.
    """
    path = kernel_path(hz)
    return path if path.is_file() and _record_of(path).is_file() else None


def build_requirements() -> list[str]:
    """Return the Debian packages that `build_kernels` needs and does not find.

    Returns
    -------
    list of str
        Names of packages, sorted. Another tarball of the version can stand in for `linux-source-6.1`.
    """
    missing = {package for program, package in _PACKAGE_OF_PROGRAM.items() if shutil.which(program) is None}
    if not _C_LIBRARY_HEADER.is_file():
        missing.add("libc6-dev")
    if not _DEBIAN_SOURCE.is_file():
        missing.add(_SOURCE_PACKAGE)
    return sorted(missing)


def build_kernels(
    hz_values: Sequence[int] = KERNEL_HZ,
    *,
    source: Path | None = None,
    jobs: int | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> list[Path]:
    """Build the kernels with some tick rates, except those built from the same source before.

    Takes a few minutes for each, and 2 GiB of disk space while it lasts. Another build under way is waited for.
    However the build ends, each kernel is in the cache whole or not at all.

    Parameters
    ----------
    hz_values : sequence of int
        Timer interrupts a second [1/s], 100 to 1000 each.
    source : Path, optional
        The tarball of the source of a Linux 6.1; by default the one of Debian's package `linux-source-6.1`.
    jobs : int, optional
        How many compilers run at a time, at least 1; by default one for each usable processor.
    on_progress : callable, optional
        Called with what is being done and the share of all work that is behind, from 0 to 1.

    Returns
    -------
    list of Path
        The kernels, in the order of `hz_values`.

    Raises
    ------
    ValueError
        If an argument is out of range, or `source` no file.
    KernelBuildError
        If a package is missing or the build fails; what the programs printed is in `build.log` in the cache.
    """
    paths = {hz: kernel_path(hz) for hz in hz_values}
    if jobs is not None and jobs < 1:
        raise InvalidValueError("jobs", jobs, "be a whole number of at least 1")
    if source is not None and not source.is_file():
        raise InvalidValueError("source", str(source), f"be the tarball of a Linux {_VERSION}")
    cache = _cache()
    _check_machine(cache, own_source=source is not None)
    tell = on_progress or (lambda stage, share: None)
    tarball = (source or _DEBIAN_SOURCE).absolute()
    try:
        with _locked(cache, lambda: tell("waiting for another build to end", 0.0)) as lock:
            with tarball.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            wanted = [hz for hz in paths if not _built_from(hz, digest)]
            if wanted:
                with _workplace(cache) as work, (cache / "build.log").open("w", encoding="utf-8") as log:
                    build = KernelBuild(work, log, lock, jobs or len(os.sched_getaffinity(0)), tell, len(wanted))
                    build.unpack(tarball, _VERSION, _data("virtual_time.patch"))
                    for hz in wanted:
                        name = f"hz{hz}"
                        build.configure(name, f"{_data('virtual_time.config')}CONFIG_HZ={hz}\n")
                        kernel, release, compiler = build.compile(name)
                        record = {
                            "release": release,
                            "hz": hz,
                            "built": datetime.now(UTC).isoformat(timespec="seconds"),
                            "compiler": compiler,
                            "source": tarball.name,
                            "source_sha256": digest,
                        }
                        _install(kernel, record, paths[hz])
    except OSError as error:
        raise KernelBuildError(f"no kernel can be built in {cache}: {error}") from error
    tell("done", 1.0)
    return [paths[hz] for hz in hz_values]


def _check_machine(cache: Path, *, own_source: bool) -> None:
    """Raise a KernelBuildError if it is clear from the start that the build cannot succeed."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise KernelBuildError("kernels can be built and run on Linux on 64-bit x86 processors only")
    missing = [package for package in build_requirements() if not (own_source and package == _SOURCE_PACKAGE)]
    if missing:
        raise KernelBuildError(f"the build lacks Debian packages; install them: apt install {' '.join(missing)}")
    if re.search(r"[\s:]", os.fspath(cache.resolve())):
        raise KernelBuildError(f"the path of {cache} must hold neither blanks nor colons; set XDG_CACHE_HOME")


@contextmanager
def _locked(cache: Path, on_wait: Callable[[], None]) -> Iterator[int]:
    """Keep other builds out of the cache.

    The programs of the build inherit the lock, so that it holds until the last one that outlives a killed build ends.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


@contextmanager
def _workplace(cache: Path) -> Iterator[Path]:
    """Provide a directory for the build, and remove it afterwards as well as what killed builds left behind."""
    for leftover in cache.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(leftover)
    if (free := shutil.disk_usage(cache).free) < _SPACE_NEEDED:
        raise KernelBuildError(f"the build needs 2 GiB of disk space in {cache}, where {free / 2**30:.1f} GiB are free")
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=cache) as work:
        yield Path(work)


def _built_from(hz: int, digest: str) -> bool:
    """Tell whether the kernel with a tick rate has been built from the source with a SHA-256."""
    kernel = find_kernel(hz)
    if kernel is None:
        return False
    try:
        return bool(json.loads(_record_of(kernel).read_text(encoding="utf-8"))["source_sha256"] == digest)
    except (ValueError, TypeError, KeyError):
        return False


def _install(kernel: Path, record: Mapping[str, object], path: Path) -> None:
    """Move a kernel into the cache; its record comes last, as a kernel without one counts as absent."""
    text = kernel.with_name("record.json")
    text.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    _record_of(path).unlink(missing_ok=True)
    kernel.replace(path)
    text.replace(_record_of(path))


def _record_of(kernel: Path) -> Path:
    return kernel.with_name(f"{kernel.name}.json")


def _data(name: str) -> str:
    return (resources.files("tcpdelay.testbed") / "kernel" / name).read_text(encoding="utf-8")


def _cache() -> Path:
    # The XDG base directory specification ignores a relative path.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tcpdelay" / "kernels"
