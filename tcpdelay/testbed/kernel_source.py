"""The source of a version of Linux, and the cache of User-Mode Linux kernels with virtual time."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tcpdelay.declare import InvalidValueError

# The source of a version of Linux: installed by a Debian package, or fetched from Debian's archive into the cache.
#
# A package list of its own makes apt-get find versions that the machine's sources do not have, and leaves these sources
# as they are.

OLDEST = (5, 15)
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
_VERSION = re.compile(r"[1-9]\d?\.\d{1,2}")
_MAKEFILE_VERSION = re.compile(r"^VERSION = (\d+)\nPATCHLEVEL = (\d+)$", re.MULTILINE)
_PROGRAMS = ("apt-get", "dpkg-deb", "tar")


class SourceError(RuntimeError):
    """The source of a kernel cannot be had; the message is one line."""


def is_version(text: str) -> bool:
    """Return whether a text is a version of Linux: two numbers, of at least 5.15."""
    return _VERSION.fullmatch(text) is not None and tuple(map(int, text.split("."))) >= OLDEST


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
    if not is_version(version):
        raise SourceError(f"{tarball} holds Linux {version}, but Linux {'.'.join(map(str, OLDEST))} or later is needed")
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
DUALPI2_SINCE = (6, 17)
"""The first version of Linux with net/sched/sch_dualpi2.c."""
ANY_SIZE_OF_REGISTERS_SINCE = (6, 13)
"""The first version of Linux whose User-Mode Linux asks the processor how large its floating-point registers are."""
SEED_OF_NETEM_SINCE = (6, 6)
"""The first version of Linux whose netem takes a seed (include/uapi/linux/pkt_sched.h, TCA_NETEM_PRNG_SEED)."""


def kernel_path(hz: int, kernel: str = DEFAULT_KERNEL) -> Path:
    """Return the path of a kernel in the user's cache; its name has a hash of patch and configuration."""
    if hz not in range(100, 1001):
        raise InvalidValueError("hz", hz, "be a whole number from 100 to 1000")
    check_version(kernel)
    return cache_directory() / f"linux-{kernel}-hz{hz:d}-{_hash_of_changes(kernel)}"


def check_version(kernel: object) -> None:
    """Raise an InvalidValueError if `kernel` is no version of Linux that can be built."""
    if not (isinstance(kernel, str) and is_version(kernel)):
        raise InvalidValueError("kernel", kernel, 'be a version of Linux of at least 5.15, such as "6.1"')


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
        if _numbers(kernel) < first:
            changes.append(packaged_file("before_{}.{}.patch".format(*first)))
    return "".join(changes)


def settings_of(kernel: str) -> str:
    """Return the additions to the smallest possible configuration of a version of Linux, in the format of Kconfig."""
    return packaged_file("virtual_time.config") + (packaged_file("since_6.17.config") if has_dualpi2(kernel) else "")


def has_dualpi2(kernel: str) -> bool:
    """Return whether a version of Linux has the queueing discipline DualPI2."""
    return _numbers(kernel) >= DUALPI2_SINCE


def _numbers(kernel: str) -> tuple[int, ...]:
    """Return the numbers of a version of Linux, which order versions."""
    return tuple(map(int, kernel.split(".")))


def packaged_file(name: str) -> str:
    """Return the content of a file that comes with the package: the kernel's patch or configuration."""
    return (resources.files("tcpdelay.testbed") / "kernel" / name).read_text(encoding="utf-8")


def cache_directory() -> Path:
    """Return the directory of kernels in the user's cache."""
    # The XDG base directory specification ignores a relative path.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tcpdelay" / "kernels"
