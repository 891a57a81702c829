"""User-Mode Linux kernels with virtual time: their sources, their builds, and the user's cache of them.

Debian's User-Mode Linux can neither jump over idle time nor run its timer at the usual rates, so tcpdelay builds a
kernel of Debian's kernel source. `kernel/virtual_time.config` lists the additions to the smallest possible
configuration, and `kernel/since_6.17.config` those that older versions lack; `kernel/virtual_time.patch`,
`kernel/before_6.6.patch` and `kernel/before_6.13.patch` hold the changes to Debian's source.
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
from typing import NamedTuple, TextIO
from urllib.parse import urlsplit

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.stack import is_at_least

# The source of a version of Linux: installed by a Debian package, or fetched from Debian's archive into the cache.
#
# A package list of its own makes apt-get find versions that the machine's sources do not have, and leaves these sources
# as they are.

OLDEST = "5.15"
"""The oldest version that is built."""
SUITES = (
    ("debian-security", "bookworm-security"),
    ("debian-security", "trixie-security"),
    ("debian", "bookworm-backports"),
    ("debian", "trixie-backports"),
)
"""Archives and suites of Debian that have the package linux-source of several versions, and short package lists."""
DEFAULT_SITE = "http://deb.debian.org"
"""Server of Debian's archives if the machine's own sources name none."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
INSTALLED = Path("/usr/src")
PATIENCE = 1800
"""Time after which a program of apt is given up [s]."""
_MAKEFILE_VERSION = re.compile(r"^VERSION = (\d+)\nPATCHLEVEL = (\d+)$", re.MULTILINE)
_PROGRAMS = ("apt-get", "dpkg-deb", "tar")


class SourceError(RuntimeError):
    """The source of a kernel cannot be had; the message is one line."""


def version_of_tarball(tarball: Path) -> str:
    """Return the version of the Linux in a tarball, two numbers such as "6.1"."""
    # Only the Makefile in the first directory counts; tar ends as soon as it has found it.
    options = ["--occurrence=1", "--wildcards", "--no-wildcards-match-slash"]
    makefile = subprocess.run(
        ["tar", "-xOf", os.fspath(tarball), *options, "*/Makefile"],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    ).stdout
    found = _MAKEFILE_VERSION.search(makefile)
    if found is None:
        raise SourceError(f"{tarball} holds no source of Linux")
    version = ".".join(found.groups())
    if not is_at_least(version, OLDEST):
        raise SourceError(f"{tarball} holds Linux {version}, but Linux {OLDEST} or later is needed")
    return version


def find_source(version: str, cache: Path) -> Path | None:
    """Return the tarball of a version that a Debian package has installed or that was fetched before, or None."""
    name = f"linux-source-{version}.tar.xz"
    return next((folder / name for folder in (INSTALLED, cache) if (folder / name).is_file()), None)


def fetch_source(version: str, cache: Path) -> Path:
    """Fetch the source of a version from Debian's archive into the cache, without a change of the package sources."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        raise SourceError(f"the source of Linux {version} is not installed, and {missing[0]} is needed to fetch it")
    package = f"linux-source-{version}"
    with tempfile.TemporaryDirectory(prefix="build-source-", dir=cache) as place:
        work = Path(place)
        options = _private_apt(work)
        # An archive without one of the suites is no error as long as another suite has the package.
        update = run_apt(["apt-get", *options, "update"], work)
        download = run_apt(["apt-get", *options, "download", package], work)
        packages = list(work.glob(f"{package}_*.deb"))
        if not packages:
            cause = _error(update) or _error(download) or "no package came"
            raise SourceError(f"{package} cannot be fetched from Debian's archive: {cause}")
        tarball = work / f"{package}.tar.xz"
        with (
            tarball.open("wb") as file,
            subprocess.Popen(["dpkg-deb", "--fsys-tarfile", packages[0]], stdout=subprocess.PIPE) as content,
        ):
            unpacked = subprocess.run(
                ["tar", "-xOf", "-", f"./usr/src/{tarball.name}"],
                stdin=content.stdout,
                stdout=file,
                stderr=subprocess.PIPE,
                check=False,
            )
        if unpacked.returncode != 0:
            raise SourceError(f"{packages[0].name} holds no {tarball.name}")
        return tarball.replace(cache / tarball.name)


def _private_apt(work: Path) -> list[str]:
    """Write a list of sources, and return the options with which apt uses only `work`."""
    for folder in ("lists/partial", "cache/archives/partial", "sources"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    sites = archive_sites()
    entries = [
        f"Types: deb\nURIs: {sites[archive]}\nSuites: {suite}\nComponents: main\nSigned-By: {KEYRING}\n"
        for archive, suite in SUITES
    ]
    (work / "sources" / "linux.sources").write_text("\n".join(entries), encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": work / "sources",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "Acquire::Languages": "none",
        "Acquire::Retries": 3,
        # The user of apt's sandbox could not enter the cache.
        "APT::Sandbox::User": "root",
    }
    return [option for name, value in settings.items() for option in ("-o", f"{name}={value}")]


def archive_sites() -> dict[str, str]:
    """Return the address of each archive, from the machine's own sources if they have it."""
    sites = {archive: f"{DEFAULT_SITE}/{archive}" for archive, _ in SUITES}
    listed = run_apt(["apt-get", "indextargets", "--format", "$(SITE)"], Path.cwd())
    for site in reversed(listed.stdout.split()):
        archive = urlsplit(site).path.strip("/").rpartition("/")[2]
        if archive in sites:
            sites[archive] = site.rstrip("/")
    return sites


def run_apt(command: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of apt in a folder, with messages in English; SourceError if it does not end."""
    try:
        return subprocess.run(
            command,
            cwd=place,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"{command[0]} did not end within {PATIENCE} s") from None


def _error(run: subprocess.CompletedProcess[str]) -> str:
    """Return the first error that a program of apt printed; empty if it printed none."""
    errors = [line for line in run.stderr.splitlines() if line.startswith("E: ")]
    return errors[0].removeprefix("E: ") if errors else ""


# The cache of User-Mode Linux kernels with virtual time: their names, their records, and what they are made with.

KERNEL_HZ = (250, 1000)
"""Timer interrupts per second [1/s] of common kernels: of most distributions, and of desktop distributions."""
DEFAULT_KERNEL = "6.1"
"""Version of Linux that is built and that runs unless another is chosen."""
DUALPI2_SINCE = "6.17"
"""The first version of Linux with net/sched/sch_dualpi2.c."""
ANY_SIZE_OF_REGISTERS_SINCE = "6.13"
"""The first version of Linux whose User-Mode Linux asks the processor how large its floating-point registers are."""
SEED_OF_NETEM_SINCE = "6.6"
"""The first version of Linux whose netem takes a seed (include/uapi/linux/pkt_sched.h, TCA_NETEM_PRNG_SEED)."""


def kernel_path(hz: int, kernel: str = DEFAULT_KERNEL) -> Path:
    """Return the path of a kernel in the user's cache; its name has a hash of patch and configuration."""
    if hz not in range(100, 1001):
        raise InvalidValueError("hz", hz, "be a whole number from 100 to 1000")
    check_version(kernel)
    return cache_directory() / f"linux-{kernel}-hz{hz:d}-{_hash_of_changes(kernel)}"


def check_version(kernel: object) -> str:
    """Return a version of Linux that can be built; raise InvalidValueError if it is none."""
    if not (isinstance(kernel, str) and is_at_least(kernel, OLDEST)):
        raise InvalidValueError("kernel", kernel, 'be a version of Linux of at least 5.15, such as "6.1"')
    return kernel


def find_kernel(hz: int, kernel: str = DEFAULT_KERNEL) -> Path | None:
    """Return the kernel of a version and a tick rate if it has been built."""
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
    made_with = patch_of(kernel) + settings_of(kernel)
    return hashlib.sha256(made_with.encode()).hexdigest()[:8]


def patch_of(kernel: str) -> str:
    """Return the changes to the source of a version of Linux."""
    changes = [packaged_file("virtual_time.patch")]
    for first in (SEED_OF_NETEM_SINCE, ANY_SIZE_OF_REGISTERS_SINCE):
        if not is_at_least(kernel, first):
            changes.append(packaged_file(f"before_{first}.patch"))
    return "".join(changes)


def settings_of(kernel: str) -> str:
    """Return the additions to the smallest possible configuration of a version of Linux, in the format of Kconfig."""
    return packaged_file("virtual_time.config") + (
        packaged_file("since_6.17.config") if is_at_least(kernel, DUALPI2_SINCE) else ""
    )


def packaged_file(name: str) -> str:
    """Return the content of a file that comes with the package: the kernel's patch or configuration."""
    return (resources.files("tcpdelay.testbed") / "kernel" / name).read_text(encoding="utf-8")


def cache_directory() -> Path:
    """Return the directory of kernels in the user's cache."""
    # The XDG base directory specification ignores a relative path.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tcpdelay" / "kernels"


# The build of a kernel.

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
