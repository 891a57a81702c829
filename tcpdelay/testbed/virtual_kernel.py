"""User-Mode Linux kernels with virtual time, built from Debian's kernel source and kept in the user's cache.

Debian's User-Mode Linux can neither jump over idle time nor run its timer at the usual rates, so tcpdelay builds a
kernel. `kernel/virtual_time.config` lists the additions to the smallest possible configuration, and
`kernel/since_6.17.config` those that older versions lack; `kernel/virtual_time.patch`, `kernel/before_6.6.patch` and
`kernel/before_6.13.patch` hold the changes to Debian's source.
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
from pathlib import Path
from typing import TextIO

from tcpdelay.declare import InvalidValueError
from tcpdelay.testbed.kernel_source import (
    DEFAULT_KERNEL,
    KERNEL_HZ,
    SourceError,
    cache_directory,
    check_version,
    fetch_source,
    find_source,
    kernel_path,
    patch_of,
    read_record,
    record_of,
    settings_of,
    version_of_tarball,
)

UNPACKING_STEPS = 110
"""Work of unpacking, in steps; the number is in proportion to the time."""
KERNEL_STEPS = 1129
"""Work of compiling a kernel, in steps: the number of lines that make prints."""

_MAKE_LINE = re.compile(r"  [A-Z]+ ")
_CAUSE = re.compile(r"error: |FAILED|\*\*\*|^(?:tar|xz|patch): ")
_SETTING = re.compile(r"^(?:(CONFIG_\w+)=(.*)|# (CONFIG_\w+) is not set)$", re.MULTILINE)
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
C_LIBRARY_HEADER = Path("/usr/include/stdio.h")
_NOT_IN_ALL_VERSIONS = {"CONFIG_RANDOM_TRUST_CPU", "CONFIG_BASE_FULL", "CONFIG_PROC_SYSCTL"}
"""Settings that later versions made permanent: the processor's random numbers, full-size tables, files of sysctls."""
_SAME_IN_ALL_BUILDS = {
    "KBUILD_BUILD_TIMESTAMP": "1970-01-01",
    "KBUILD_BUILD_VERSION": "1",
    "KBUILD_BUILD_USER": "tcpdelay",
    "KBUILD_BUILD_HOST": "tcpdelay",
}
"""What a kernel says of its build: it feeds the guest's randomness, and so differs in no build."""
SPACE_NEEDED = 2 * 2**30
_WORK_PREFIX = "build-"


class KernelBuildError(RuntimeError):
    """A kernel could not be built; the message is one line and names the log, if there is a log."""


@dataclass
class KernelBuild:
    """A running build: call `unpack` once, then `configure` and `compile` for each kernel."""

    work: Path  # An empty directory for the build; its path holds neither blanks nor colons
    log: TextIO  # Receives the output of the programs
    lock: int  # A file descriptor that all started programs inherit
    jobs: int  # Number of compilers that run at a time
    # Called with the name of the current step and the finished share of all work, 0 to 1.
    tell: Callable[[str, float], None]
    kernels: int  # Number of kernels that will be compiled
    _steps_behind: int = field(default=0, init=False)

    def unpack(self, tarball: Path, patch: str) -> None:
        """Unpack a source of Linux and patch it."""
        self._tree.mkdir()
        stage = "unpacking the kernel's source"
        self._run(stage, ["tar", "-xf", os.fspath(tarball), "--strip-components=1"], self._tree, UNPACKING_STEPS)
        file = self.work / "patch"
        file.write_text(patch, encoding="utf-8")
        self._run("patching the kernel's source", ["patch", "-p1", "--force", "-i", os.fspath(file)], self._tree)

    def configure(self, name: str, settings: str) -> None:
        """Write the configuration of a kernel."""
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
        lost = [
            f"{symbol}={value}"
            for symbol, value in requested.items()
            if actual.get(symbol, "n") != value and (symbol in actual or symbol not in _NOT_IN_ALL_VERSIONS)
        ]
        if lost:
            raise KernelBuildError(f"{stage} failed: Kconfig does not take over {', '.join(lost)}")

    def compile(self, name: str) -> tuple[Path, str, str]:
        """Compile a configured kernel."""
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
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "LC_ALL": "C",
                "TMPDIR": os.fspath(self.work),
                **_SAME_IN_ALL_BUILDS,
            },
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


def build_requirements() -> list[str]:
    """Return the missing Debian packages that `build_kernels` needs besides the kernel's source, sorted."""
    missing = {package for program, package in _PACKAGE_OF_PROGRAM.items() if shutil.which(program) is None}
    if not C_LIBRARY_HEADER.is_file():
        missing.add("libc6-dev")
    return sorted(missing)


def build_kernels(
    hz_values: Sequence[int] = KERNEL_HZ,
    *,
    kernel: str | None = None,
    source: Path | None = None,
    jobs: int | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> list[Path]:
    """Build the kernels with the given tick rates, except kernels that were built from the same source before.

    A kernel takes a few minutes, and the build needs 2 GiB of disk space. If another build is running, this function
    waits for its end. An interrupted build leaves no incomplete kernel in the cache.
    """
    if kernel is not None:
        check_version(kernel)
    for hz in hz_values:
        kernel_path(hz)
    if jobs is not None and jobs < 1:
        raise InvalidValueError("jobs", jobs, "be a whole number of at least 1")
    if source is not None and not source.is_file():
        raise InvalidValueError("source", str(source), "be the tarball of a Linux")
    cache = cache_directory()
    _check_machine(cache)
    tell = on_progress or (lambda stage, share: None)
    try:
        with _locked(cache, lambda: tell("waiting for another build to end", 0.0)) as lock:
            version, tarball = _source_of(kernel, source, cache, tell)
            paths = {hz: kernel_path(hz, version) for hz in hz_values}
            with tarball.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            missing = [hz for hz in paths if not _built_from(paths[hz], digest)]
            if missing:
                with _workplace(cache) as work, (cache / "build.log").open("w", encoding="utf-8") as log:
                    build = KernelBuild(work, log, lock, jobs or len(os.sched_getaffinity(0)), tell, len(missing))
                    build.unpack(tarball, patch_of(version))
                    for hz in missing:
                        name = f"hz{hz}"
                        build.configure(name, f"{settings_of(version)}CONFIG_HZ={hz}\n")
                        program, release, compiler = build.compile(name)
                        record = {
                            "release": release,
                            "hz": hz,
                            "built": datetime.now(UTC).isoformat(timespec="seconds"),
                            "compiler": compiler,
                            "source": tarball.name,
                            "source_sha256": digest,
                        }
                        _install(program, record, paths[hz])
    except SourceError as error:
        raise KernelBuildError(str(error)) from error
    except OSError as error:
        raise KernelBuildError(f"no kernel can be built in {cache}: {error}") from error
    tell("done", 1.0)
    return [paths[hz] for hz in hz_values]


def _source_of(
    kernel: str | None, source: Path | None, cache: Path, tell: Callable[[str, float], None]
) -> tuple[str, Path]:
    """Return the version of Linux to build, and its tarball, which is fetched if it is not there."""
    if source is not None:
        version = version_of_tarball(source)
        if kernel not in (None, version):
            raise SourceError(f"{source} holds Linux {version}, but Linux {kernel} is needed")
        return version, source.absolute()
    version = kernel or DEFAULT_KERNEL
    found = find_source(version, cache)
    if found is None:
        tell(f"fetching the source of Linux {version}", 0.0)
        found = fetch_source(version, cache)
    return version, found


def _check_machine(cache: Path) -> None:
    """Raise a KernelBuildError if the build cannot succeed on this machine."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise KernelBuildError("kernels can be built and run on Linux on 64-bit x86 processors only")
    if missing := build_requirements():
        raise KernelBuildError(f"the build lacks Debian packages; install them: apt install {' '.join(missing)}")
    if re.search(r"[\s:]", os.fspath(cache.resolve())):
        raise KernelBuildError(f"the path of {cache} must hold neither blanks nor colons; set XDG_CACHE_HOME")


@contextmanager
def _locked(cache: Path, on_wait: Callable[[], None]) -> Iterator[int]:
    """Lock the cache against other builds until all programs of the build, which inherit the lock, have ended."""
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


def _built_from(kernel: Path, digest: str) -> bool:
    """Return whether a kernel was built from the source with this SHA-256 digest."""
    return kernel.is_file() and read_record(kernel).get("source_sha256") == digest


def _install(kernel: Path, record: Mapping[str, object], path: Path) -> None:
    """Move a kernel into the cache. Its record is written last: a kernel without a record counts as absent."""
    text = kernel.with_name("record.json")
    text.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    record_of(path).unlink(missing_ok=True)
    kernel.replace(path)
    text.replace(record_of(path))
