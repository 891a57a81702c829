"""The source of a version of Linux: installed by a Debian package, or fetched from Debian's archive into the cache.

A package list of its own makes apt-get find versions that the machine's sources do not have, and leaves these sources
as they are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

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
    """Return whether a text is a version of Linux: two numbers, of at least 5.15.

    Examples
    --------
    >>> is_version("6.12"), is_version("5.4"), is_version("linux.tar.xz")
    (True, False, False)
    """
    return _VERSION.fullmatch(text) is not None and tuple(map(int, text.split("."))) >= OLDEST


def version_of_tarball(tarball: Path) -> str:
    """Return the version of the Linux in a tarball, two numbers such as "6.1".

    Raises
    ------
    SourceError
        If the tarball holds no source of Linux, or an older version than 5.15.
    """
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
    """Fetch the source of a version from Debian's archive into the cache.

    The machine's package sources stay as they are: apt-get gets a list of sources and directories of its own. Proxies
    and other settings of the machine apply.

    Parameters
    ----------
    version : str
        Two numbers such as "7.3".
    cache : Path
        An existing directory; the tarball is kept there.

    Returns
    -------
    Path
        The tarball.

    Raises
    ------
    SourceError
        If a program is missing, or Debian's archive has no such package or cannot be reached.
    """
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
