import hashlib
import shutil
import subprocess

import pytest

from tcpdelay.testbed import virtual_kernel
from tcpdelay.testbed.virtual_kernel import SourceError, fetch_source, find_source

pytestmark = pytest.mark.skipif(
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


def test_a_source_is_fetched_once_and_nothing_else_is_left(archive, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    archive("linux-source-7.3", {"usr/src/linux-source-7.3.tar.xz": "the source", "usr/share/doc/a": "b"})
    assert find_source("7.3", cache) is None
    tarball = fetch_source("7.3", cache)
    assert tarball == find_source("7.3", cache)
    assert tarball.read_text() == "the source"
    assert [path.name for path in cache.iterdir()] == ["linux-source-7.3.tar.xz"]


def test_an_installed_source_comes_before_a_fetched_one(archive, tmp_path):
    name = "linux-source-6.12.tar.xz"
    for folder in ("installed", "cache"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    assert find_source("6.12", tmp_path / "cache") == tmp_path / "installed" / name


def test_a_version_that_debian_does_not_have_is_named(archive, tmp_path):
    with pytest.raises(
        SourceError, match=r"^linux-source-6\.9 cannot be fetched .*: Unable to locate package"
    ) as caught:
        fetch_source("6.9", tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("build-*"))


def test_a_package_with_another_signature_is_refused(archive, tmp_path, monkeypatch):
    archive("linux-source-7.3", {"usr/src/linux-source-7.3.tar.xz": "the source"})
    monkeypatch.setattr(virtual_kernel, "KEYRING", tmp_path / "none.gpg")
    with pytest.raises(SourceError, match=r"linux-source-7\.3 cannot be fetched from Debian's archive: "):
        fetch_source("7.3", tmp_path)


def test_the_machines_own_archive_is_used(monkeypatch):
    listed = "http://mirror.example/debian/\nhttp://mirror.example/ubuntu\n"
    answer = subprocess.CompletedProcess([], 0, listed, "")
    monkeypatch.setattr(virtual_kernel, "run_apt", lambda *_: answer)
    assert virtual_kernel.archive_sites() == {
        "debian": "http://mirror.example/debian",
        "debian-security": "http://deb.debian.org/debian-security",
    }


def test_without_apt_the_missing_program_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match=r"^the source of Linux 7\.3 is not installed, and apt-get is needed"):
        fetch_source("7.3", tmp_path)
