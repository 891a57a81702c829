"""The plugin of pytest: tests over an emulated path, in a pytest of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

from guest_requirements import require
from tcpdelay.declare import InvalidValueError
from tcpdelay.testbed.backends import VirtualTimeBackend

ROOT = Path(__file__).parents[1]
GUEST = VirtualTimeBackend(250)


def run_pytest(*arguments, cwd=ROOT):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n0", "-rs", "-v", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False).stdout


def test_the_example_passes():
    require(GUEST.problems(), "VIRTUAL")
    printed = run_pytest("examples/test_bad_path.py")
    assert "1 passed" in printed, printed


def test_the_marker_is_declared():
    assert (
        "tcpdelay(rtt="
        in subprocess.run(
            [sys.executable, "-m", "pytest", "--markers"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    )


def test_a_test_without_a_guest_is_skipped_with_the_reason(tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "import pytest\n@pytest.mark.tcpdelay(hz=999, kernel='5.15')\n"
        "def test_it(tcpdelay_path):\n    raise AssertionError\n"
    )
    printed = run_pytest(tmp_path, "--rootdir", tmp_path, cwd=tmp_path)
    assert "1 skipped" in printed
    build = "tcpdelay testbed build-kernel --kernel 5.15 --hz 999"
    assert f"tcpdelay_path: no kernel of Linux 5.15 with virtual time at 999 Hz; run: {build}" in printed


def test_the_path_of_a_test_takes_the_settings_of_the_test(tcpdelay_path):
    assert (tcpdelay_path.path.rtt, tcpdelay_path.path.loss, tcpdelay_path.seed) == (0.1, 0.01, 0)
    other = tcpdelay_path.over(rtt=0.3, seed=4)
    assert (other.path.rtt, other.path.loss, other.seed) == (0.3, 0.01, 4)
    with pytest.raises(InvalidValueError, match="rtt must lie between"):
        tcpdelay_path.over(rtt=100)
