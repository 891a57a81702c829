"""The kernel of the guests in virtual time: how it is built, and from which source."""

import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest

from tcpdelay.testbed import virtual_kernel
from tcpdelay.testbed.backends import fits_processor
from tcpdelay.testbed.virtual_kernel import (
    KERNEL_HZ,
    KernelBuildError,
    SourceError,
    build_kernels,
    build_requirements,
    built_kernels,
    fetch_source,
    find_kernel,
    find_source,
    kernel_path,
)

needs_programs = pytest.mark.skipif(
    any(shutil.which(program) is None for program in ("make", "patch", "setpriv", "tar")),
    reason="builds run make, patch, setpriv and tar",
)

DATA = Path(virtual_kernel.__file__).parent / "kernel"
MAKEFILE = """\
# SPDX-License-Identifier: GPL-2.0
VERSION = 6
PATCHLEVEL = 1
SUBLEVEL = 7
.PHONY: tinyconfig olddefconfig linux
tinyconfig:
	@echo 'CONFIG_CC_VERSION_TEXT="gcc 12.2.0"' >$(O)/.config
olddefconfig:
	@{olddefconfig}
linux:
	@echo "  CC      init/main.o"
	@{compile}
	@echo "  LINK    linux"
"""
COMPILE = "printf '#!/bin/sh\\necho 6.1.7\\n' >$(O)/linux; chmod +x $(O)/linux"
MERGE = 'cat "$3" >>"$2"\n'


def source_of_patched_files():
    """What the patch expects to find: its lines without those that it adds."""
    files = {}
    for line in virtual_kernel.patch_of("6.1").splitlines(keepends=True):
        if line.startswith("--- a/"):
            lines = files.setdefault(line[len("--- a/") :].strip(), [])
        elif files and line[0] in " -":
            lines.append(line[1:])
    return {name: "".join(lines) for name, lines in files.items()}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(virtual_kernel, "build_requirements", list)
    monkeypatch.setattr(virtual_kernel, "INSTALLED", tmp_path / "installed")
    monkeypatch.setattr(virtual_kernel, "SPACE_NEEDED", 0)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return tmp_path / "cache" / "tcpdelay" / "kernels"


@pytest.fixture
def source(tmp_path):
    """A function that packs a source that looks enough like that of Linux."""

    def pack(compile=COMPILE, olddefconfig="true", **replaced):
        files = source_of_patched_files() | {
            "Makefile": MAKEFILE.format(compile=compile, olddefconfig=olddefconfig),
            "scripts/kconfig/merge_config.sh": MERGE,
        }
        path = tmp_path / "source.tar.gz"
        with tarfile.open(path, "w:gz") as tarball:
            for name, text in (files | replaced).items():
                member = tarfile.TarInfo(f"linux/{name}")
                member.size = len(text.encode())
                tarball.addfile(member, io.BytesIO(text.encode()))
        return path

    return pack


def names_in(cache):
    return sorted(path.name for path in cache.iterdir())


@needs_programs
def test_a_build_leaves_kernels_that_run_and_their_records(cache, source):
    tarball = source()
    told = []
    assert find_kernel(250) is None
    paths = build_kernels([250, 1000], source=tarball, on_progress=lambda *step: told.append(step))
    assert paths == [kernel_path(250), kernel_path(1000)] == [find_kernel(250), find_kernel(1000)]
    for hz, path in zip((250, 1000), paths, strict=True):
        assert subprocess.run([path], capture_output=True, text=True, check=True).stdout == "6.1.7\n"
        record = json.loads((cache / f"{path.name}.json").read_text())
        assert (record["release"], record["hz"], record["compiler"]) == ("6.1.7", hz, "gcc 12.2.0")
        assert record["source"] == tarball.name
        assert re.fullmatch("[0-9a-f]{64}", record["source_sha256"])
    records = [f"{path.name}.json" for path in paths]
    assert names_in(cache) == sorted([*(path.name for path in paths), *records, "build.log", "lock"])
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert (shares[0], told[-1]) == (0.0, ("done", 1.0))
    # Both lines that make prints, and no other, bring the work on.
    compiling = [share for stage, share in told if stage == "compiling the kernel hz250"]
    assert len(set(compiling)) == 3


@needs_programs
def test_the_patch_is_applied_and_the_tick_rate_configured(cache, source):
    keep = f'cp arch/um/Kconfig "{cache}/Kconfig"; cp $(O)/.config "{cache}/config"; '
    build_kernels([333], source=source(compile=keep + COMPILE))
    assert '\tint "Timer interrupts a second"\n' in (cache / "Kconfig").read_text()
    config = (cache / "config").read_text()
    assert re.findall("CONFIG_HZ=.*", config) == ["CONFIG_HZ=333"]
    assert "CONFIG_UML_TIME_TRAVEL_SUPPORT=y\n" in config


@needs_programs
def test_a_kernel_is_built_again_only_from_another_source(cache, source):
    count = f'echo >>"{cache}/compiled"; '
    compiled = cache / "compiled"
    tarball = source(compile=count + COMPILE)
    build_kernels([250], source=tarball)
    build_kernels([250], source=tarball)
    assert compiled.read_text() == "\n"
    build_kernels([250, 300], source=tarball)
    assert compiled.read_text() == "\n\n"
    build_kernels([250], source=source(compile=count + COMPILE, README="newer"))
    assert compiled.read_text() == "\n\n\n"
    # A record that cannot be read says nothing about the source.
    (cache / f"{kernel_path(250).name}.json").write_text("[")
    build_kernels([250], source=tarball)
    assert compiled.read_text() == "\n\n\n\n"


@pytest.mark.parametrize(
    "changed", ["virtual_time.patch", "before_6.6.patch", "before_6.13.patch", "virtual_time.config"]
)
def test_the_name_follows_what_the_kernel_is_made_of(monkeypatch, changed):
    before = kernel_path(250)
    read = virtual_kernel.packaged_file
    monkeypatch.setattr(virtual_kernel, "packaged_file", lambda name: read(name) + "#\n" * (name == changed))
    after = kernel_path(250)
    for path in (before, after):
        assert re.fullmatch("linux-6[.]1-hz250-[0-9a-f]{8}", path.name)
    assert before != after


@needs_programs
def test_what_a_kernel_says_of_its_build_is_the_same_in_all_builds(cache, source, monkeypatch):
    monkeypatch.setenv("KBUILD_BUILD_USER", "somebody")
    told = cache / "told"
    build_kernels([250], source=source(compile=f'env | grep ^KBUILD | sort >"{told}"; {COMPILE}'))
    # Documentation/kbuild/kbuild.rst, and scripts/mkcompile_h for the number of the build.
    assert re.findall(r"^KBUILD_BUILD_(\w+)=.", told.read_text(), re.MULTILINE) == [
        "HOST",
        "TIMESTAMP",
        "USER",
        "VERSION",
    ]
    assert "somebody" not in told.read_text()


def test_netem_is_changed_where_it_took_no_seed():
    assert "TCA_NETEM_PRNG_SEED" in virtual_kernel.patch_of("6.5")
    assert "TCA_NETEM_PRNG_SEED" not in virtual_kernel.patch_of("6.6")


def test_the_registers_are_changed_where_their_size_was_fixed():
    assert "HOST_FP_SIZE" in virtual_kernel.patch_of("6.12")
    assert "HOST_FP_SIZE" not in virtual_kernel.patch_of("6.13")


@pytest.mark.parametrize(
    ("release", "flags", "fits"),
    [
        ("6.1.176", "fpu avx512f amx_bf16 amx_tile amx_int8", False),
        ("6.1.176", "fpu avx avx512f", True),
        ("6.12.3-um", "amx_tile", False),
        ("6.13.0", "amx_tile", True),
        ("7.3", "amx_tile", True),
    ],
)
def test_kernels_with_too_little_room_for_registers_are_known(tmp_path, release, flags, fits):
    processors = tmp_path / "cpuinfo"
    processors.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: spectre_v1\n")
    assert fits_processor(release, processors) == fits
    assert fits_processor(release, tmp_path / "missing")


def test_settings_of_newer_versions_leave_the_name_of_older_kernels(monkeypatch):
    # DualPI2 came with Linux 6.17.
    versions = ("6.1", "6.16", "6.17", "7.3")
    before = [kernel_path(250, version) for version in versions]
    read = virtual_kernel.packaged_file
    monkeypatch.setattr(
        virtual_kernel, "packaged_file", lambda name: read(name) + "#\n" * (name == "since_6.17.config")
    )
    changed = [kernel_path(250, version) != path for version, path in zip(versions, before, strict=True)]
    assert changed == [False, False, True, True]
    assert "CONFIG_NET_SCH_DUALPI2=y" in virtual_kernel.settings_of("6.17")
    assert "DUALPI2" not in virtual_kernel.settings_of("6.1")


@pytest.mark.parametrize("hz", [99, 1001, 250.5, "250", -250])
def test_tick_rates_out_of_range_are_refused(hz):
    for function in (kernel_path, find_kernel, lambda hz: build_kernels([250, hz])):
        with pytest.raises(ValueError, match=f"^hz must be a whole number from 100 to 1000, got {hz!r}$"):
            function(hz)


def test_the_ends_of_the_range_and_the_default_rates_are_allowed():
    assert len({kernel_path(hz) for hz in (100, 1000, *KERNEL_HZ)}) == 3


def test_the_cache_is_where_the_user_wants_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert kernel_path(250).parent == tmp_path / "home" / ".cache" / "tcpdelay" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert kernel_path(250).parent == tmp_path / "home" / ".cache" / "tcpdelay" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert kernel_path(250).parent == tmp_path / "xdg" / "tcpdelay" / "kernels"


def test_missing_packages_are_named(monkeypatch, tmp_path):
    present = tmp_path / "present"
    present.touch()
    monkeypatch.setattr(virtual_kernel, "C_LIBRARY_HEADER", present)
    for program in ("bc", "bison", "flex", "gcc", "make", "patch", "setpriv", "xz"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build_requirements() == []
    (tmp_path / "xz").unlink()
    (tmp_path / "flex").unlink()
    assert build_requirements() == ["flex", "xz-utils"]
    present.unlink()
    assert build_requirements() == ["flex", "libc6-dev", "xz-utils"]


def test_a_build_without_its_packages_does_not_start(cache, source, monkeypatch):
    monkeypatch.setattr(virtual_kernel, "build_requirements", lambda: ["flex"])
    with pytest.raises(KernelBuildError, match=r"apt install flex$"):
        build_kernels(source=source())
    assert not cache.exists()


def test_wrong_arguments_are_refused(cache, source, tmp_path):
    with pytest.raises(ValueError, match=r"^jobs must be a whole number of at least 1, got 0$"):
        build_kernels(source=source(), jobs=0)
    with pytest.raises(ValueError, match=r"^source must be the tarball of a Linux, got .*none'$"):
        build_kernels(source=tmp_path / "none")


def test_machines_and_places_that_cannot_build_are_told_so(cache, source, monkeypatch, tmp_path):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(KernelBuildError, match="64-bit x86"):
        build_kernels(source=source())
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(virtual_kernel, "SPACE_NEEDED", 2**70)
    with pytest.raises(KernelBuildError, match=r"needs 2 GiB .* GiB are free$"):
        build_kernels(source=source())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    with pytest.raises(KernelBuildError, match="blanks"):
        build_kernels(source=source())
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(KernelBuildError, match="Not a directory"):
        build_kernels(source=source())


FAILURES = {
    "a patch that does not fit": (
        {"arch/um/Kconfig": "config HZ\n\tint\n\tdefault 200\n"},
        r"patching the kernel's source failed: Hunk #1 FAILED at .*; the log is .*/build.log$",
    ),
    "an empty file to patch": ({"arch/um/Kconfig": ""}, "patching the kernel's source failed: "),
    "a compiler's error": (
        {"compile": "echo 'x.c:1:2: error: no type'; exit 1"},
        r"compiling the kernel hz250 failed: x.c:1:2: error: no type; the log is .*/build.log$",
    ),
    "a program that fails in silence": (
        {"scripts/kconfig/merge_config.sh": "exit 7"},
        "configuring the kernel hz250 failed: exit status 7; the log",
    ),
    "a kernel that is no program": (
        {"compile": "touch $(O)/linux; chmod +x $(O)/linux"},
        "hz250 does not run: .*Exec format error",
    ),
    "a kernel that fails": (
        {"compile": "printf '#!/bin/sh\\necho 6.1.7; exit 3\\n' >$(O)/linux; chmod +x $(O)/linux"},
        "hz250 does not run: .* exit status 3",
    ),
    "a kernel without release": (
        {"compile": "printf '#!/bin/sh\\necho hello\\n' >$(O)/linux; chmod +x $(O)/linux"},
        r"hz250 answers --version with 'hello\\n', not its release$",
    ),
    "no kernel": ({"compile": "true"}, "No such file"),
    "a symbol that Kconfig drops": (
        {"olddefconfig": "sed -i -e /CONFIG_INET=/d -e s/CONFIG_SLUB=y/CONFIG_SLOB=y/ $(O)/.config"},
        "does not take over CONFIG_INET=y, CONFIG_SLUB=y$",
    ),
    "a symbol that Kconfig brings back": (
        {"olddefconfig": "sed -i 's/^# CONFIG_SLOB is not set/CONFIG_SLOB=y/' $(O)/.config"},
        "does not take over CONFIG_SLOB=n$",
    ),
}


@needs_programs
@pytest.mark.parametrize(("changes", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_told_in_one_line_and_leaves_only_the_log(cache, source, changes, message):
    with pytest.raises(KernelBuildError, match=message) as caught:
        build_kernels([250], source=source(**changes))
    assert "\n" not in str(caught.value)
    assert names_in(cache) == ["build.log", "lock"]


SOURCES_OF_NO_USE = {
    "an old version": (
        {"Makefile": "VERSION = 5\nPATCHLEVEL = 10\n"},
        "Linux 5.10, but Linux 5.15 or later is needed$",
    ),
    "another version": ({"Makefile": "VERSION = 6\nPATCHLEVEL = 2\n"}, "holds Linux 6.2, but Linux 6.1 is needed$"),
    "something else": ({"Makefile": "all:\n"}, "holds no source of Linux$"),
    "another Makefile": ({"Makefile": "", "tools/Makefile": MAKEFILE}, "holds no source of Linux$"),
}


@needs_programs
@pytest.mark.parametrize(("changes", "message"), SOURCES_OF_NO_USE.values(), ids=SOURCES_OF_NO_USE)
def test_a_source_of_no_use_is_told_at_once(cache, source, changes, message):
    with pytest.raises(KernelBuildError, match=message):
        build_kernels([250], kernel="6.1", source=source(**changes))
    assert names_in(cache) == ["lock"]


def makefile_of(version):
    major, minor = version.split(".")
    return (
        MAKEFILE.format(compile=COMPILE, olddefconfig="true")
        .replace("= 6\n", f"= {major}\n")
        .replace("PATCHLEVEL = 1", f"PATCHLEVEL = {minor}")
    )


@needs_programs
def test_kernels_of_several_versions_lie_side_by_side(cache, source):
    build_kernels([250], source=source())
    (path,) = build_kernels([250], source=source(Makefile=makefile_of("7.3")))
    assert path == kernel_path(250, "7.3") == find_kernel(250, "7.3")
    assert path.name.startswith("linux-7.3-hz250-")
    build_kernels([1000], source=source(Makefile=makefile_of("6.12")))
    assert built_kernels() == [("6.1", 250, "6.1.7"), ("6.12", 1000, "6.1.7"), ("7.3", 250, "6.1.7")]


@needs_programs
def test_settings_that_a_version_no_longer_has_are_no_error(cache, source):
    gone = "sed -i -e /CONFIG_BASE_FULL/d -e /CONFIG_RANDOM_TRUST_CPU/d $(O)/.config"
    build_kernels([250], source=source(olddefconfig=gone))


@needs_programs
def test_an_installed_source_is_used(cache, source, tmp_path):
    (tmp_path / "installed").mkdir()
    source().rename(tmp_path / "installed" / "linux-source-6.1.tar.xz")
    assert build_kernels([250]) == [find_kernel(250)]


@pytest.mark.parametrize("kernel", ["5.14", "6", "6.1.7", "latest", 6.1, ""])
def test_other_versions_are_refused(kernel):
    for function in (kernel_path, find_kernel, lambda hz, kernel: build_kernels([hz], kernel=kernel)):
        with pytest.raises(ValueError, match=r"^kernel must be a version of Linux of at least 5\.15"):
            function(250, kernel)


@needs_programs
def test_a_damaged_tarball_is_told(cache, tmp_path, source):
    tarball = source()
    tarball.write_bytes(tarball.read_bytes()[:200])
    with pytest.raises(KernelBuildError, match=r"source.tar.gz holds no source of Linux$"):
        build_kernels([250], source=tarball)
    assert names_in(cache) == ["lock"]


@needs_programs
def test_a_failure_leaves_the_kernel_built_before(cache, source):
    (path,) = build_kernels([250], source=source())
    with pytest.raises(KernelBuildError):
        build_kernels([250, 1000], source=source(compile="exit 1"))
    assert (find_kernel(250), find_kernel(1000)) == (path, None)


@needs_programs
def test_a_kernel_counts_only_with_its_own_record(cache, source, monkeypatch):
    build_kernels([250], source=source())
    replace = Path.replace

    def replace_kernels_only(path, target):
        if path.suffix == ".json":
            raise OSError("cut off")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replace_kernels_only)
    with pytest.raises(KernelBuildError, match="cut off"):
        build_kernels([250], source=source(README="newer"))
    assert find_kernel(250) is None


@needs_programs
def test_the_callers_settings_for_make_stay_outside(cache, source, monkeypatch):
    monkeypatch.setenv("MAKEFLAGS", "--dry-run")
    monkeypatch.setenv("KCONFIG_CONFIG", "elsewhere")
    build_kernels([250], source=source(compile=f'test -z "$$KCONFIG_CONFIG" || exit 1; {COMPILE}'))


def lock_is_free(cache):
    with (cache / "lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


HANGING = 'printf half >$(O)/linux; echo $$$$ >"{cache}/pid"; exec sleep 300'
BUILDER = """
import sys
from pathlib import Path
from tcpdelay.testbed import virtual_kernel
virtual_kernel.build_requirements = list
virtual_kernel.SPACE_NEEDED = 0
virtual_kernel.platform.machine = lambda: "x86_64"
virtual_kernel.build_kernels([250], source=Path(sys.argv[1]))
"""


@needs_programs
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_build_takes_its_programs_along_and_the_next_one_cleans_up(cache, source, ending):
    pid_file = cache / "pid"
    tarball = source(compile=HANGING.format(cache=cache))
    builder = subprocess.Popen([sys.executable, "-c", BUILDER, tarball], stderr=subprocess.DEVNULL)
    wait_until(lambda: pid_file.is_file() and pid_file.read_text())
    assert not lock_is_free(cache)
    builder.send_signal(ending)
    assert builder.wait() != 0
    pid = int(pid_file.read_text())
    try:
        wait_until(lambda: not is_alive(pid))
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: lock_is_free(cache))
    assert list(cache.glob("build-*"))
    assert find_kernel(250) is None
    build_kernels([250], source=source())
    assert find_kernel(250)
    assert not list(cache.glob("build-*"))


@needs_programs
def test_the_lock_holds_until_the_last_program_of_a_killed_build_ends(cache, source):
    stubborn = 'trap "" TERM; echo >"{cache}/started"; while test ! -e "{cache}/end"; do sleep 0.02; done'
    builder = subprocess.Popen([sys.executable, "-c", BUILDER, source(compile=stubborn.format(cache=cache))])
    wait_until((cache / "started").is_file)
    builder.kill()
    builder.wait()
    assert not lock_is_free(cache)
    (cache / "end").touch()
    wait_until(lambda: lock_is_free(cache))


@needs_programs
def test_an_exception_while_telling_the_progress_ends_the_programs(cache, source):
    def tell(stage, share):
        if (cache / "pid").is_file():
            raise KeyboardInterrupt

    announced = 'echo $$$$ >"{cache}/pid"; echo "  CC      x.o"; exec sleep 300'
    with pytest.raises(KeyboardInterrupt):
        build_kernels([250], source=source(compile=announced.format(cache=cache)), on_progress=tell)
    wait_until(lambda: not is_alive(int((cache / "pid").read_text())))
    assert names_in(cache) == ["build.log", "lock", "pid"]


@needs_programs
def test_a_build_waits_for_another(cache, source):
    cache.mkdir(parents=True)
    waits = threading.Event()
    built = []
    arguments = {"source": source(), "on_progress": lambda stage, share: "waiting" in stage and waits.set()}
    builder = threading.Thread(target=lambda: built.extend(build_kernels([250], **arguments)))
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        builder.start()
        assert waits.wait(20)
        assert names_in(cache) == ["lock"]
    builder.join(20)
    assert built == [kernel_path(250)]


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
