"""User-Mode Linux kernels with virtual time, built from Debian's kernel source and kept in the user's cache.

Debian's User-Mode Linux can neither jump over idle time nor run its timer at the usual rates, so tcpdelay builds a
kernel. `kernel/virtual_time.config` lists the additions to the smallest possible configuration;
`kernel/virtual_time.patch` holds the changes to Debian's source.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TextIO

from tcpdelay.scenario.fields import InvalidValueError

UNPACKING_STEPS = 110
"""Work of unpacking, in steps; the number is in proportion to the time."""
KERNEL_STEPS = 1129
"""Work of compiling a kernel, in steps: the number of lines that make prints."""

_MAKE_LINE = re.compile(r"  [A-Z]+ ")
_CAUSE = re.compile(r"error: |FAILED|\*\*\*|^(?:tar|xz|patch): ")
_SETTING = re.compile(r"^(?:(CONFIG_\w+)=(.*)|# (CONFIG_\w+) is not set)$", re.MULTILINE)
_MAKEFILE_VERSION = re.compile(r"^VERSION = (\d+)\nPATCHLEVEL = (\d+)$", re.MULTILINE)
KERNEL_HZ = (250, 1000)
"""Timer interrupts per second [1/s] of common kernels: of most distributions, and of desktop distributions."""
_VERSION = "6.1"
_SOURCE_PACKAGE = f"linux-source-{_VERSION}"
_DEBIAN_SOURCE = Path(f"/usr/src/{_SOURCE_PACKAGE}.tar.xz")
# libelf-dev and libssl-dev are not needed: nothing in this configuration uses their headers.
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
SPACE_NEEDED = 2 * 2**30
_WORK_PREFIX = "build-"


class KernelBuildError(RuntimeError):
    """A kernel could not be built; the message is one line and names the log, if there is a log."""


@dataclass
class KernelBuild:
    """A running build: call `unpack` once, then `configure` and `compile` for each kernel.

    Parameters
    ----------
    work : Path
        An empty directory for the build; its path holds neither blanks nor colons.
    log : file
        Receives the output of the programs.
    lock : int
        A file descriptor that all started programs inherit.
    jobs : int
        Number of compilers that run at a time.
    tell : callable
        Called with the name of the current step and the finished share of all work, 0 to 1.
    kernels : int
        Number of kernels that will be compiled.
    """

    work: Path
    log: TextIO
    lock: int
    jobs: int
    tell: Callable[[str, float], None]
    kernels: int
    _steps_behind: int = field(default=0, init=False)

    def unpack(self, tarball: Path, version: str, patch: str) -> None:
        """Unpack the source of a version of Linux and patch it.

        Parameters
        ----------
        tarball : Path
            The source, in any compression that tar can read.
        version : str
            The required version, two numbers such as "6.1".
        patch : str
            The patch; its paths have one leading directory (patch -p1).

        Raises
        ------
        KernelBuildError
            If the tarball is no source of this version, or the patch does not apply.
        """
        self._tree.mkdir()
        stage = "unpacking the kernel's source"
        self._run(stage, ["tar", "-xf", os.fspath(tarball), "--strip-components=1"], self._tree, UNPACKING_STEPS)
        makefile = self._tree / "Makefile"
        found = _MAKEFILE_VERSION.search(
            makefile.read_text(encoding="utf-8", errors="replace") if makefile.is_file() else ""
        )
        if found is None:
            raise KernelBuildError(f"{tarball} holds no source of Linux")
        if (holds := ".".join(found.groups())) != version:
            raise KernelBuildError(f"{tarball} holds Linux {holds}, but Linux {version} is needed")
        file = self.work / "patch"
        file.write_text(patch, encoding="utf-8")
        self._run("patching the kernel's source", ["patch", "-p1", "--force", "-i", os.fspath(file)], self._tree)

    def configure(self, name: str, settings: str) -> None:
        """Write the configuration of a kernel.

        Parameters
        ----------
        name : str
            Name of the kernel in the names of steps.
        settings : str
            Additions to the smallest possible configuration, in the format of Kconfig.

        Raises
        ------
        KernelBuildError
            If Kconfig drops a setting.
        """
        stage = f"configuring the kernel {name}"
        output = self.work / name
        output.mkdir()
        fragment = output / "fragment"
        fragment.write_text(settings, encoding="utf-8")
        merge = os.fspath(self._tree / "scripts" / "kconfig" / "merge_config.sh")
        self._run(stage, self._make(output, "tinyconfig"), self._tree)
        self._run(stage, ["sh", merge, "-m", ".config", fragment.name], output)
        self._run(stage, self._make(output, "olddefconfig"), self._tree)
        # Kconfig drops settings that other symbols do not allow, without an error.
        actual = _settings_in((output / ".config").read_text(encoding="utf-8"))
        requested = _settings_in(settings)
        lost = [f"{symbol}={value}" for symbol, value in requested.items() if actual.get(symbol, "n") != value]
        if lost:
            raise KernelBuildError(f"{stage} failed: Kconfig does not take over {', '.join(lost)}")

    def compile(self, name: str) -> tuple[Path, str, str]:
        """Compile a configured kernel.

        Parameters
        ----------
        name : str
            The name from `configure`.

        Returns
        -------
        tuple of Path, str and str
            The kernel, its release and the version of the compiler.

        Raises
        ------
        KernelBuildError
            If the kernel cannot be compiled or does not run.
        """
        output = self.work / name
        self._run(f"compiling the kernel {name}", self._make(output, "linux"), self._tree, KERNEL_STEPS)
        kernel = output / "linux"
        try:
            answer = subprocess.run([kernel, "--version"], capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise KernelBuildError(f"the kernel {name} does not run: {error}") from error
        release = answer.stdout.strip()
        if not re.fullmatch(r"\d+\.\d+\S*", release):
            raise KernelBuildError(f"the kernel {name} answers --version with {answer.stdout[:80]!r}, not its release")
        config = _settings_in((output / ".config").read_text(encoding="utf-8"))
        return kernel, release, config["CONFIG_CC_VERSION_TEXT"].strip('"')

    @property
    def _tree(self) -> Path:
        return self.work / "source"

    def _make(self, output: Path, target: str) -> list[str]:
        return ["make", "ARCH=um", f"O={output}", f"-j{self.jobs}", target]

    def _run(self, stage: str, command: list[str], directory: Path, steps: int = 0) -> None:
        """Run a program whose work is `steps` steps, and report the progress."""
        total = UNPACKING_STEPS + self.kernels * KERNEL_STEPS
        end = self._steps_behind + steps
        cause = ""
        self.tell(stage, self._steps_behind / total)
        # The environment is empty because make and Kconfig read it. The program dies with this process, and
        # make then ends its own programs.
        with subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            cwd=directory,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TMPDIR": os.fspath(self.work)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=[self.lock],
        ) as process:
            try:
                for line in process.stdout or ():
                    self.log.write(line)
                    if not _CAUSE.search(cause):
                        cause = line.strip() or cause
                    if self._steps_behind < end and _MAKE_LINE.match(line):
                        self._steps_behind += 1
                        self.tell(stage, self._steps_behind / total)
                status = process.wait()
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        self._steps_behind = end
        if status != 0:
            raise KernelBuildError(f"{stage} failed: {cause or f'exit status {status}'}; the log is {self.log.name}")


def _settings_in(config: str) -> dict[str, str]:
    return {match[1] or match[3]: match[2] or "n" for match in _SETTING.finditer(config)}


def kernel_path(hz: int) -> Path:
    """Return the path of the kernel with a tick rate in the user's cache.

    The cache is `tcpdelay/kernels` in `$XDG_CACHE_HOME` or `~/.cache`. The name holds a hash of the patch and the
    configuration, so a change of either leads to a new build.

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
    made_with = packaged_file("virtual_time.patch") + packaged_file("virtual_time.config")
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
        The kernel, which runs like any program; None if it has not been built. The file of the same name with the
        suffix `.json` holds `release`, `hz`, `built` (date of the build), `compiler`, `source` (name of the tarball)
        and `source_sha256`.

    Raises
    ------
    ValueError
        If `hz` is out of range.
    """
    path = kernel_path(hz)
    return path if path.is_file() and _record_of(path).is_file() else None


def build_requirements() -> list[str]:
    """Return the missing Debian packages that `build_kernels` needs.

    Returns
    -------
    list of str
        Names of packages, sorted. Another tarball of this version can replace `linux-source-6.1`.
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
    """Build the kernels with the given tick rates, except kernels that were built from the same source before.

    A kernel takes a few minutes, and the build needs 2 GiB of disk space. If another build is running, this function
    waits for its end. An interrupted build leaves no incomplete kernel in the cache.

    Parameters
    ----------
    hz_values : sequence of int
        Timer interrupts a second [1/s], 100 to 1000 each.
    source : Path, optional
        The tarball with the source of Linux 6.1; by default, the tarball of Debian's package `linux-source-6.1`.
    jobs : int, optional
        Number of compilers that run at a time, at least 1; by default, the number of usable processors.
    on_progress : callable, optional
        Called with the name of the current step and the finished share of all work, 0 to 1.

    Returns
    -------
    list of Path
        The kernels, in the order of `hz_values`.

    Raises
    ------
    ValueError
        If an argument is out of range, or `source` is no file.
    KernelBuildError
        If a package is missing or the build fails; `build.log` in the cache holds the output of the programs.
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
            missing = [hz for hz in paths if not _built_from(hz, digest)]
            if missing:
                with _workplace(cache) as work, (cache / "build.log").open("w", encoding="utf-8") as log:
                    build = KernelBuild(work, log, lock, jobs or len(os.sched_getaffinity(0)), tell, len(missing))
                    build.unpack(tarball, _VERSION, packaged_file("virtual_time.patch"))
                    for hz in missing:
                        name = f"hz{hz}"
                        build.configure(name, f"{packaged_file('virtual_time.config')}CONFIG_HZ={hz}\n")
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
    """Raise a KernelBuildError if the build cannot succeed on this machine."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise KernelBuildError("kernels can be built and run on Linux on 64-bit x86 processors only")
    missing = [package for package in build_requirements() if not (own_source and package == _SOURCE_PACKAGE)]
    if missing:
        raise KernelBuildError(f"the build lacks Debian packages; install them: apt install {' '.join(missing)}")
    if re.search(r"[\s:]", os.fspath(cache.resolve())):
        raise KernelBuildError(f"the path of {cache} must hold neither blanks nor colons; set XDG_CACHE_HOME")


@contextmanager
def _locked(cache: Path, on_wait: Callable[[], None]) -> Iterator[int]:
    """Lock the cache against other builds.

    The programs of the build inherit the lock. After a killed build, the lock lasts until all its programs have ended.
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
    """Provide a directory for the build. Remove it at the end, together with directories of killed builds."""
    for leftover in cache.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(leftover)
    if (free := shutil.disk_usage(cache).free) < SPACE_NEEDED:
        raise KernelBuildError(f"the build needs 2 GiB of disk space in {cache}, where {free / 2**30:.1f} GiB are free")
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=cache) as work:
        yield Path(work)


def _built_from(hz: int, digest: str) -> bool:
    """Return whether the kernel with a tick rate was built from the source with this SHA-256 digest."""
    kernel = find_kernel(hz)
    if kernel is None:
        return False
    try:
        return bool(json.loads(_record_of(kernel).read_text(encoding="utf-8"))["source_sha256"] == digest)
    except (ValueError, TypeError, KeyError):
        return False


def _install(kernel: Path, record: Mapping[str, object], path: Path) -> None:
    """Move a kernel into the cache. Its record is written last: a kernel without a record counts as absent."""
    text = kernel.with_name("record.json")
    text.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    _record_of(path).unlink(missing_ok=True)
    kernel.replace(path)
    text.replace(_record_of(path))


def _record_of(kernel: Path) -> Path:
    return kernel.with_name(f"{kernel.name}.json")


def packaged_file(name: str) -> str:
    """Return the content of a file that comes with the package: the kernel's patch or configuration."""
    return (resources.files("tcpdelay.testbed") / "kernel" / name).read_text(encoding="utf-8")


def _cache() -> Path:
    # The XDG base directory specification ignores a relative path.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tcpdelay" / "kernels"
