"""The kernels that come with an installation: used where they are right and safe, and compiled anew elsewhere."""

import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tcpdelay.compiling import stored_kernels

ROOT = Path(__file__).parents[1]
REPORT = ("report", "--ping", str(ROOT / "examples" / "ping.txt"), "--app", "voip")
CALL = """
import json, sys
import numpy as np
from numba.core import event
from tcpdelay.compiling import compilation
compilation.QUIET_TIME = 0
from tcpdelay.quality.player import Player, play
with event.install_recorder("numba:compile") as compiled:
    written = np.arange(200) / 50
    played = play(written, np.maximum.accumulate(written + 0.1 * np.sin(written) ** 2), Player(startup=0.02))
print(json.dumps([len(compiled.buffer), played.stall_before.tolist(), played.behind.tolist()]))
"""
MAIN = """
import sys
from numba.core import event
from tcpdelay.cli.program import main
with event.install_recorder("numba:compile") as compiled:
    status = main(sys.argv[1:])
print(len(compiled.buffer), file=sys.stderr)
sys.exit(status)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of this checkout, with the kernels that `make kernels` has compiled."""
    pytest.importorskip("hatchling")
    if not stored_kernels.can_store():
        pytest.skip("this processor cannot run the kernels of a wheel")
    stamp = ROOT / "tcpdelay" / "compiled_kernels" / "stamp.json"
    fresh = stamp.exists() and json.loads(stamp.read_text())["sources"] == stored_kernels.fingerprint().hex()
    if not fresh:
        assert os.environ.get("TCPDELAY_REQUIRE_KERNELS") != "1", "the kernels are not compiled"
        pytest.skip("needs the kernels of `make kernels`")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installation(wheel, tmp_path_factory):
    """The folder of a virtual environment where the wheel is installed; its dependencies are those of this process."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(packages)
    else:
        install = [uv, "pip", "install", "--quiet", "--no-deps", "--python", str(folder / "bin" / "python")]
        subprocess.run([*install, str(wheel)], check=True)
    return packages


def run(packages, code, *arguments, **environment):
    """Run Python in an environment; return what it prints and its errors. The cache of kernels is empty."""
    unwanted = ("PYTHONPATH", "NUMBA_CACHE_DIR", stored_kernels.SWITCH)
    own = {name: value for name, value in os.environ.items() if name not in unwanted}
    done = subprocess.run(
        [str(packages.parents[2] / "bin" / "python"), "-c", code, *arguments],
        env={**own, **environment},
        cwd=packages,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def changed(installation):
    """A copy of the installation that a test may change."""
    folder = installation / "tcpdelay" / "compiled_kernels"
    kept = installation / "kept"
    shutil.copytree(folder, kept)
    yield folder
    shutil.rmtree(folder)
    kept.rename(folder)


@pytest.fixture(scope="module")
def played(installation, tmp_path_factory):
    """What the code `CALL` prints where it uses the kernels of the installation."""
    printed, errors = run(installation, CALL, NUMBA_CACHE_DIR=str(tmp_path_factory.mktemp("cache")))
    assert errors == ""
    compiled, *found = json.loads(printed)
    assert compiled == 0
    return found


def test_a_wheel_with_kernels_is_for_one_python_on_one_system(wheel):
    version = "".join(map(str, sys.version_info[:2]))
    assert f"-cp{version}-cp{version}" in wheel.name
    assert wheel.stat().st_size < 10_000_000
    with zipfile.ZipFile(wheel) as opened:
        kernels = [name for name in opened.namelist() if name.endswith(".kernel")]
        assert len(kernels) > 50
        # Where they were compiled is nobody's business.
        assert not [name for name in kernels if str(ROOT / "tcpdelay" / "cli").encode() in opened.read(name)]


def test_a_first_report_compiles_nothing(installation, tmp_path, run_here):
    printed, errors = run(installation, MAIN, *REPORT, NUMBA_CACHE_DIR=str(tmp_path))
    assert errors == "0\n"
    assert not list(tmp_path.rglob("*.nb[ic]"))
    assert printed == run_here(*REPORT)


@pytest.fixture
def run_here(capfd):
    """Return what a command prints in this process, which runs the checkout."""

    def printed(*arguments):
        from tcpdelay.cli.program import main

        capfd.readouterr()
        assert main(list(arguments)) == 0
        return capfd.readouterr().out

    return printed


def test_an_installation_that_cannot_be_written_compiles_nothing(installation, tmp_path, played):
    # A mode does not stop root, so Numba is told that it can write nowhere.
    nowhere = (
        "import numba.core.caching as caching\n"
        "def ensure_cache_path(self):\n"
        "    raise OSError('nothing can be written there')\n"
        "caching._CacheLocator.ensure_cache_path = ensure_cache_path\n"
    )
    folders = [installation / "tcpdelay", installation / "tcpdelay" / "compiled_kernels"]
    for folder in folders:
        folder.chmod(0o555)
    try:
        printed, errors = run(installation, nowhere + CALL, TMPDIR=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert (json.loads(printed), errors) == ([0, *played], "")
    assert not list(tmp_path.iterdir())


def edited(name, value):
    """Return a function that changes an entry of the stamp."""

    def edit(folder):
        file = folder / "stamp.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))

    return edit


def kernel_file(folder):
    return folder / "quality.player._play.kernel"


MISMATCHES = {
    "another numba": (
        edited("numba", "0.61.0"),
        "compiled kernels of this installation are for Numba 0.61.0, not ",
    ),
    "another llvmlite": (edited("llvmlite", "0.44.0"), "are for llvmlite 0.44.0, not "),
    "another Python": (edited("python", "cpython 3.10"), "are for cpython 3.10, not cpython 3."),
    "another system": (edited("system", "x86_64-apple-darwin"), "are for x86_64-apple-darwin, not "),
    "other sources": (edited("sources", "00"), "the compiled kernels of this installation are of other sources"),
    "a processor without a feature": (edited("features", ["avx2", "avx99"]), "this processor lacks avx99"),
    "a folder that others can write": (lambda folder: folder.chmod(0o777), "others can write to "),
    "a stamp that others can write": (lambda folder: (folder / "stamp.json").chmod(0o666), "others can write to "),
    "a kernel that others can write": (lambda folder: kernel_file(folder).chmod(0o646), "others can write to "),
    "a damaged stamp": (lambda folder: (folder / "stamp.json").write_text("{"), "stamp.json cannot be read"),
    "half a kernel": (lambda folder: os.truncate(kernel_file(folder), 2000), "_play.kernel is damaged"),
    "no kernels": (shutil.rmtree, "this installation has no compiled kernels"),
}


def falls_back(packages, cache, played, reason, **environment):
    """Check that kernels are compiled, with one line that says why, and that they answer the same."""
    printed, errors = run(packages, CALL, NUMBA_CACHE_DIR=str(cache), **environment)
    compiled, *found = json.loads(printed)
    assert compiled > 0
    assert found == played
    (said,) = errors.splitlines()
    assert said.startswith("tcpdelay: compiling parts of ")
    assert f"{reason}" in said


@pytest.mark.parametrize("mismatch", MISMATCHES)
def test_kernels_that_do_not_fit_are_compiled_anew(installation, changed, tmp_path, played, mismatch):
    change, reason = MISMATCHES[mismatch]
    change(changed)
    try:
        falls_back(installation, tmp_path, played, reason)
    finally:
        changed.mkdir(exist_ok=True)


def test_another_processor_compiles_its_kernels(installation, tmp_path, played):
    falls_back(installation, tmp_path, played, "this processor lacks ", NUMBA_CPU_NAME="generic")


def test_a_changed_source_has_its_kernels_compiled(installation, tmp_path, played):
    module = installation / "tcpdelay" / "sim" / "tcp" / "constants.py"
    text = module.read_text()
    module.write_text(f"{text}# A change.\n")
    try:
        falls_back(installation, tmp_path, played, "of other sources")
    finally:
        module.write_text(text)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_kernels_of_another_user_are_not_used(installation, changed, tmp_path, played):
    os.chown(kernel_file(changed), 12345, 12345)
    falls_back(installation, tmp_path, played, "belongs to another user")


def test_kernels_of_another_build_are_not_used(installation, changed, tmp_path, played):
    # A file of an earlier build, under the stamp of this one.
    file = kernel_file(changed)
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    falls_back(installation, tmp_path, played, "_play.kernel is damaged")


def test_a_link_is_not_followed(installation, changed, tmp_path, played):
    elsewhere = kernel_file(changed).rename(tmp_path / "elsewhere")
    kernel_file(changed).symlink_to(elsewhere)
    falls_back(installation, tmp_path, played, "_play.kernel")


@pytest.mark.parametrize(("mode", "refused"), [(0o644, False), (0o664, True), (0o646, True), (0o600, False)])
def test_the_group_of_root_may_not_write(mode, refused, monkeypatch):
    monkeypatch.setattr(stored_kernels, "is_private_group", lambda group, user: False)
    found = os.stat_result((stat.S_IFREG | mode, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    assert (stored_kernels.fault_of_mode(found, Path("kernel")) is not None) == refused


def test_the_private_group_of_a_user_may_write(monkeypatch):
    monkeypatch.setattr(stored_kernels, "is_private_group", lambda group, user: True)
    found = os.stat_result((stat.S_IFREG | 0o664, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    assert stored_kernels.fault_of_mode(found, Path("kernel")) is None
