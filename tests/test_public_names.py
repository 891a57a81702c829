"""The package's public names, and what importing them costs."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import tcpdelay as td

ROOT = Path(__file__).parents[1]
HEAVY = ("numba", "numpy", "scipy", "matplotlib", "jinja2", "pyarrow", "pyroute2")


@pytest.mark.parametrize("code", ["import tcpdelay", "import tcpdelay.cli; tcpdelay.cli.main(['report', '--help'])"])
def test_the_help_waits_for_no_heavy_import(code):
    check = f"import sys; {code}; print('loaded', *set(sys.modules) & set({HEAVY}), file=sys.stderr)"
    finished = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    assert finished.stderr == "loaded\n"


WHATEVER_WAS_IMPORTED = """
import importlib, pkgutil, sys, types
import tcpdelay
import tcpdelay.guideline
assert isinstance(tcpdelay.guideline, types.FunctionType)
for found in pkgutil.walk_packages(tcpdelay.__path__, "tcpdelay."):
    if found.name != "tcpdelay.__main__":
        importlib.import_module(found.name)
for name in tcpdelay.__all__:
    value = getattr(tcpdelay, name)
    assert name == "__version__" or value.__name__ == name, (name, value)
    assert not isinstance(value, types.ModuleType), name
assert isinstance(sys.modules["tcpdelay.guideline"], types.ModuleType)
assert dir(tcpdelay) == sorted(tcpdelay.__all__)
"""


def test_public_names_are_what_they_say_whatever_was_imported():
    finished = subprocess.run([sys.executable, "-c", WHATEVER_WAS_IMPORTED], cwd=ROOT, capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (0, "")
    with pytest.raises(AttributeError, match="module 'tcpdelay' has no attribute 'nonsense'"):
        _ = td.nonsense


def test_type_checkers_see_the_names_that_exist_at_run_time():
    source = (ROOT / "tcpdelay" / "__init__.py").read_text()
    block = source.partition("if TYPE_CHECKING:\n")[2].partition("\n\n")[0]
    imported = [name for line in block.splitlines() for name in line.partition(" import ")[2].split(", ")]
    assert sorted([*imported, "__version__"]) == sorted(td.__all__)
    for line in block.splitlines():
        home = sys.modules.get(line.split()[1]) or importlib.import_module(line.split()[1])
        for name in line.partition(" import ")[2].split(", "):
            assert getattr(td, name) is getattr(home, name)
