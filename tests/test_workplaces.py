"""Workplaces of guests, and the source of the kernel that is built for them."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tcpdelay.testbed import virtual_kernel, workplaces
from tcpdelay.testbed.virtual_kernel import SourceError, fetch_source, find_source
from tcpdelay.testbed.workplaces import guests_of, parent_of_workplaces, remove_leftovers, workplace

own_temporary_directory = pytest.mark.usefixtures("temporary_directory")


@own_temporary_directory
def test_a_workplace_is_removed_whatever_happens():
    places = []

    def fail():
        with workplace() as place:
            places.append(place)
            (place / "session").mkdir()
            (place / "session" / "file").touch()
            raise RuntimeError("oops")

    with pytest.raises(RuntimeError, match="oops"):
        fail()
    assert not places[0].exists()


@own_temporary_directory
def test_a_workplace_in_use_is_left_alone():
    with workplace() as place:
        assert remove_leftovers() == []
        with workplace() as other:
            assert other != place
        assert place.is_dir()


HOLDER = """
import subprocess, sys, time
from tcpdelay.testbed.workplaces import workplace
with workplace() as place:
    session = place / "session"
    session.mkdir()
    guest = subprocess.Popen(["sleep", "300"], cwd=session, start_new_session=True)
    print(place, guest.pid, flush=True)
    time.sleep(300)
"""


def ended(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill_keeper(place):
    """Kill the process that waits for the end of a run."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(place).encode() in command:
                os.kill(int(entry.name), signal.SIGKILL)


@own_temporary_directory
@pytest.mark.parametrize("linked", [False, True], ids=["plain", "linked"])
@pytest.mark.parametrize("keeper", ["alive", "killed"])
def test_the_workplace_and_the_guests_of_a_killed_run_are_removed_at_once_or_by_the_next(
    tmp_path, temporary_directory, monkeypatch, linked, keeper
):
    if linked:
        # A directory for temporary files may be reached by a symbolic link.
        (tmp_path / "link").symlink_to(temporary_directory)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
        monkeypatch.setenv("TMPDIR", str(tmp_path / "link"))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    guest = None
    try:
        place, guest = holder.stdout.readline().split()
        guest = int(guest)
        assert parent_of_workplaces() == Path(place).parent
        assert guests_of(Path(place)) == [guest]
        assert remove_leftovers() == []
        if keeper == "killed":
            kill_keeper(Path(place))
        holder.kill()
        holder.wait()
        if keeper == "killed":
            assert Path(place).is_dir()
            assert not ended(guest)
            with workplace():
                pass
        deadline = time.monotonic() + 10
        while not ended(guest) or Path(place).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
        if guest is not None and not ended(guest):
            os.kill(guest, signal.SIGKILL)


@own_temporary_directory
def test_guests_are_found_by_where_they_work(tmp_path):
    inside, outside = tmp_path / "run" / "session", tmp_path / "run-2"
    inside.mkdir(parents=True)
    outside.mkdir()
    guests = [subprocess.Popen(["sleep", "60"], cwd=place) for place in (inside, outside)]
    try:
        assert guests_of(tmp_path / "run") == [guests[0].pid]
        assert sorted(guests_of(tmp_path)) == sorted(guest.pid for guest in guests)
        # A directory that is gone is remembered by the kernel.
        inside.rmdir()
        assert guests_of(inside) == [guests[0].pid]
        assert guests_of(tmp_path / "run" / "other") == []
    finally:
        for guest in guests:
            guest.kill()
            guest.wait()


@own_temporary_directory
def test_a_workplace_of_somebody_else_is_not_used(temporary_directory, tmp_path, monkeypatch):
    parent_of_workplaces().symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="belongs to another user; set TMPDIR"), workplace():
        pass
    parent_of_workplaces().unlink()
    another = os.getuid() + 1
    (temporary_directory / f"tcpdelay-testbed-{another}").mkdir()
    monkeypatch.setattr(workplaces.os, "getuid", lambda: another)
    with pytest.raises(PermissionError, match="belongs to another user"), workplace():
        pass


# The source of the kernel

with_apt = pytest.mark.skipif(
    any(shutil.which(program) is None for program in ("apt-get", "dpkg-deb", "gpg", "tar")),
    reason="sources are fetched by apt-get and unpacked by dpkg-deb",
)

SUITE = "trixie-backports"


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A signed archive of Debian with one suite, on this disk; returns a function that adds a package."""
    root, home = tmp_path / "archive" / "debian", tmp_path / "keys"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", home, "--batch", "--yes", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
    subprocess.run([*gpg, "--quick-generate-key", "archive@example.org", "ed25519", "sign"], check=True)
    keyring = tmp_path / "keyring.gpg"
    subprocess.run([*gpg, "--output", keyring, "--export"], check=True)
    monkeypatch.setattr(virtual_kernel, "KEYRING", keyring)
    monkeypatch.setattr(virtual_kernel, "SUITES", (("debian", SUITE),))
    monkeypatch.setattr(virtual_kernel, "archive_sites", lambda: {"debian": f"file:{root}"})
    monkeypatch.setattr(virtual_kernel, "INSTALLED", tmp_path / "installed")
    index = root / "dists" / SUITE / "main" / "binary-amd64" / "Packages"
    index.parent.mkdir(parents=True)
    index.touch()

    def add(package, content):
        tree = tmp_path / package
        (tree / "DEBIAN").mkdir(parents=True)
        control = f"Package: {package}\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: b\n"
        (tree / "DEBIAN" / "control").write_text(control)
        for name, text in content.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
        file = root / f"{package}_1_all.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, file], check=True, capture_output=True)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        with index.open("a") as packages:
            packages.write(f"{control}Filename: {file.name}\nSize: {file.stat().st_size}\nSHA256: {digest}\n\n")

    def sign():
        digest = hashlib.sha256(index.read_bytes()).hexdigest()
        listed = f" {digest} {index.stat().st_size} main/binary-amd64/Packages\n"
        release = root / "dists" / SUITE / "Release"
        release.write_text(
            f"Suite: {SUITE}\nCodename: {SUITE}\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nArchitectures: amd64\n"
            f"Components: main\nSHA256:\n{listed}"
        )
        subprocess.run([*gpg, "--output", release.with_name("InRelease"), "--clearsign", release], check=True)

    def add_signed(package, content):
        add(package, content)
        sign()

    sign()
    yield add_signed
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)


@with_apt
def test_a_source_is_fetched_once_and_nothing_else_is_left(archive, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    archive("linux-source-7.3", {"usr/src/linux-source-7.3.tar.xz": "the source", "usr/share/doc/a": "b"})
    assert find_source("7.3", cache) is None
    tarball = fetch_source("7.3", cache)
    assert tarball == find_source("7.3", cache)
    assert tarball.read_text() == "the source"
    assert [path.name for path in cache.iterdir()] == ["linux-source-7.3.tar.xz"]


@with_apt
def test_an_installed_source_comes_before_a_fetched_one(archive, tmp_path):
    name = "linux-source-6.12.tar.xz"
    for folder in ("installed", "cache"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    assert find_source("6.12", tmp_path / "cache") == tmp_path / "installed" / name


@with_apt
def test_a_version_that_debian_does_not_have_is_named(archive, tmp_path):
    with pytest.raises(
        SourceError, match=r"^linux-source-6\.9 cannot be fetched .*: Unable to locate package"
    ) as caught:
        fetch_source("6.9", tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("build-*"))


@with_apt
def test_a_package_with_another_signature_is_refused(archive, tmp_path, monkeypatch):
    archive("linux-source-7.3", {"usr/src/linux-source-7.3.tar.xz": "the source"})
    monkeypatch.setattr(virtual_kernel, "KEYRING", tmp_path / "none.gpg")
    with pytest.raises(SourceError, match=r"linux-source-7\.3 cannot be fetched from Debian's archive: "):
        fetch_source("7.3", tmp_path)


@with_apt
def test_the_machines_own_archive_is_used(monkeypatch):
    listed = "http://mirror.example/debian/\nhttp://mirror.example/ubuntu\n"
    answer = subprocess.CompletedProcess([], 0, listed, "")
    monkeypatch.setattr(virtual_kernel, "run_apt", lambda *_: answer)
    assert virtual_kernel.archive_sites() == {
        "debian": "http://mirror.example/debian",
        "debian-security": "http://deb.debian.org/debian-security",
    }


@with_apt
def test_without_apt_the_missing_program_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match=r"^the source of Linux 7\.3 is not installed, and apt-get is needed"):
        fetch_source("7.3", tmp_path)
