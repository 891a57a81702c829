"""The kernels that come with an installation: used where they are right and safe, and compiled anew elsewhere."""

import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from numba.core import config

from tcpdelay.chain.linux.delays import delay_bins
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
    return folder / "chain.linux.delays.delay_bins.kernel"


def of_another_build(folder):
    content = bytearray(kernel_file(folder).read_bytes())
    content[0] ^= 1
    kernel_file(folder).write_bytes(content)


def linked(folder):
    elsewhere = kernel_file(folder).rename(folder.with_name("elsewhere"))
    kernel_file(folder).symlink_to(elsewhere)


MISMATCHES = {
    "another numba": (
        edited("numba", "0.61.0"),
        "compiled kernels of this installation are for Numba 0.61.0, not ",
    ),
    "another llvmlite": (edited("llvmlite", "0.44.0"), "are for llvmlite 0.44.0, not "),
    "another Python": (edited("python", "cpython 3.10"), "are for cpython 3.10, not cpython 3."),
    "another system": (edited("system", "x86_64-apple-darwin"), "are for x86_64-apple-darwin, not "),
    "other sources": (edited("sources", "00"), "the stored kernels do not match this installation's sources"),
    "a processor without a feature": (edited("features", ["avx2", "avx99"]), "this processor lacks avx99"),
    "a folder that others can write": (lambda folder: folder.chmod(0o777), "others can write to "),
    "a stamp that others can write": (lambda folder: (folder / "stamp.json").chmod(0o666), "others can write to "),
    "a kernel that others can write": (lambda folder: kernel_file(folder).chmod(0o646), "others can write to "),
    "a damaged stamp": (lambda folder: (folder / "stamp.json").write_text("{"), "stamp.json cannot be read"),
    "half a kernel": (lambda folder: os.truncate(kernel_file(folder), 2000), "delay_bins.kernel is damaged"),
    "a kernel of another build": (of_another_build, "delay_bins.kernel is damaged"),
    "a linked kernel": (linked, "delay_bins.kernel"),
    "no kernels": (shutil.rmtree, "this installation has no compiled kernels"),
}
if hasattr(os, "geteuid") and os.geteuid() == 0:
    # Only root can give files away.
    MISMATCHES["a kernel of another user"] = (
        lambda folder: os.chown(kernel_file(folder), 12345, 12345),
        "belongs to another user",
    )


@pytest.fixture
def looked_up(wheel, tmp_path, monkeypatch):
    """Return what looks a kernel up in a changed copy of the package's folder: whether it is found, and why not."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "compiled_kernels"
    folder.mkdir(mode=0o755)
    for file in (stored_kernels.FOLDER / "stamp.json", kernel_file(stored_kernels.FOLDER)):
        shutil.copy2(file, folder)

    def looked_up(change):
        change(folder)
        # A module of its own, as each process reads the stamp once.
        spec = importlib.util.spec_from_file_location("stored_kernels_read_anew", stored_kernels.__file__)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.FOLDER = folder
        found = module.KernelCache(delay_bins.py_func).holds_any()
        return found, module.unusable()

    return looked_up


def test_kernels_that_fit_are_found(looked_up):
    assert looked_up(lambda folder: None) == (True, None)


@pytest.mark.parametrize("mismatch", MISMATCHES)
def test_kernels_that_do_not_fit_are_not_found(looked_up, mismatch):
    change, reason = MISMATCHES[mismatch]
    found, said = looked_up(change)
    assert not found
    assert reason in said


def falls_back(packages, cache, played, reason, **environment):
    """Check that kernels are compiled, with one line that says why, and that they answer the same."""
    printed, errors = run(packages, CALL, NUMBA_CACHE_DIR=str(cache), **environment)
    compiled, *found = json.loads(printed)
    assert compiled > 0
    assert found == played
    (said,) = errors.splitlines()
    assert said.startswith("tcpdelay: compiling parts of ")
    assert f"{reason}" in said


def test_another_processor_compiles_its_kernels(installation, tmp_path, played):
    falls_back(installation, tmp_path, played, "this processor lacks ", NUMBA_CPU_NAME="generic")


def test_a_changed_source_has_its_kernels_compiled(installation, tmp_path, played):
    module = installation / "tcpdelay" / "sim" / "tcp" / "constants.py"
    text = module.read_text()
    module.write_text(f"{text}# A change.\n")
    try:
        falls_back(installation, tmp_path, played, "installation's sources")
    finally:
        module.write_text(text)


def test_a_damaged_kernel_is_compiled_anew(installation, tmp_path, played):
    kernel = installation / "tcpdelay" / "compiled_kernels" / "quality.player._play.kernel"
    content = kernel.read_bytes()
    os.truncate(kernel, 2000)
    try:
        falls_back(installation, tmp_path, played, "_play.kernel is damaged")
    finally:
        kernel.write_bytes(content)


@pytest.mark.parametrize(("mode", "refused"), [(0o644, False), (0o664, True), (0o646, True), (0o600, False)])
def test_the_group_of_root_may_not_write(mode, refused, monkeypatch):
    monkeypatch.setattr(stored_kernels, "is_private_group", lambda group, user: False)
    found = os.stat_result((stat.S_IFREG | mode, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    assert (stored_kernels.fault_of_mode(found, Path("kernel")) is not None) == refused


def test_the_private_group_of_a_user_may_write(monkeypatch):
    monkeypatch.setattr(stored_kernels, "is_private_group", lambda group, user: True)
    found = os.stat_result((stat.S_IFREG | 0o664, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    assert stored_kernels.fault_of_mode(found, Path("kernel")) is None
