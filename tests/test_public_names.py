"""The package's public names, and what importing them costs."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import tcpdelay as td

ROOT = Path(__file__).parents[1]
HEAVY = ("numba", "numpy", "scipy", "matplotlib", "jinja2", "pyarrow", "pyroute2")


@pytest.mark.parametrize(
    "code", ["import tcpdelay", "import tcpdelay.cli; tcpdelay.cli.program.main(['report', '--help'])"]
)
def test_the_help_waits_for_no_heavy_import(code):
    check = f"import sys; {code}; print('loaded', *set(sys.modules) & set({HEAVY}), file=sys.stderr)"
    finished = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    assert finished.stderr == "loaded\n"


WHATEVER_WAS_IMPORTED = """
import importlib, pkgutil, sys, types
import tcpdelay
for found in pkgutil.walk_packages(tcpdelay.__path__, "tcpdelay."):
    if found.name != "tcpdelay.__main__":
        importlib.import_module(found.name)
for name in tcpdelay.__all__:
    value = getattr(tcpdelay, name)
    assert name == "__version__" or value.__name__ == name, (name, value)
    assert not isinstance(value, types.ModuleType), name
"""


def test_public_names_are_what_they_say_whatever_was_imported():
    finished = subprocess.run([sys.executable, "-c", WHATEVER_WAS_IMPORTED], cwd=ROOT, capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (0, "")
    with pytest.raises(AttributeError, match="nonsense"):
        _ = td.nonsense


def test_type_checkers_see_the_names_that_exist_at_run_time():
    tree = ast.parse((ROOT / "tcpdelay" / "__init__.pyi").read_text())
    homes = {
        alias.name: f"tcpdelay.{node.module}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (listed,) = (ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    assert sorted(homes) == sorted(listed)
    assert set(listed) <= set(dir(td))
    for name, home in homes.items():
        assert getattr(td, name) is getattr(importlib.import_module(home), name)
