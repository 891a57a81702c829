"""Stored kernels of other sources than those that run are out of date."""

import ast
import importlib.util
import os

import pytest

from tcpdelay.compiling import source_digest, stored_kernels
from tcpdelay.compiling.compilation import cached
from tcpdelay.compiling.source_digest import PACKAGE, SOURCES
from tcpdelay.compiling.stored_kernels import is_compiled


@pytest.fixture
def double(tmp_path):
    """Return a function of a module of its own, beside which Numba stores it."""
    file = tmp_path / "doubling.py"
    file.write_text("def double(value):\n    return 2 * value\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("doubling", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.double


def test_a_kernel_is_stored_and_found_again(double):
    first = cached(double, {})
    assert not is_compiled(first)
    assert first(2) == 4
    again = cached(double, {})
    assert is_compiled(again)
    assert again(2) == 4
    assert sum(again.stats.cache_hits.values()) == 1


def test_a_change_of_any_source_has_stored_kernels_compiled_anew(double, monkeypatch):
    cached(double, {})(2)
    monkeypatch.setattr(stored_kernels, "fingerprint", lambda: b"other")
    changed = cached(double, {})
    assert not is_compiled(changed)
    assert changed(2) == 4
    assert not changed.stats.cache_hits


def test_the_digest_is_that_of_all_modules_with_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(source_digest, "PACKAGE", tmp_path)
    module = tmp_path / "sim" / "queues" / "red.py"
    module.parent.mkdir(parents=True)
    found = set()
    for text in ("", "LIMIT = 1\n", "LIMIT = 2\n"):
        module.write_text(text, encoding="utf-8")
        found.add(source_digest.source_digest())
    module.rename(module.with_name("blue.py"))
    found.add(source_digest.source_digest())
    assert len(found) == 4


def test_the_digest_does_not_depend_on_times(tmp_path, monkeypatch):
    monkeypatch.setattr(source_digest, "PACKAGE", tmp_path)
    module = tmp_path / "sim" / "constants.py"
    module.parent.mkdir()
    module.write_text("MSS = 1448\n", encoding="utf-8")
    before = source_digest.source_digest()
    os.utime(module, (0, 0))
    assert source_digest.source_digest() == before


def test_kernels_are_made_from_the_sources_only():
    sources = {file for pattern in SOURCES for file in PACKAGE.glob(pattern)}
    assert len(sources) > 80
    modules = {".".join(["tcpdelay", *file.relative_to(PACKAGE).with_suffix("").parts]) for file in sources}
    found = set()
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imported = {
            alias.asname or alias.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tcpdelay.")
            for alias in node.names
            if not {node.module, f"{node.module}.{alias.name}"} & modules
        }
        kernels = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and any(ast.unparse(each).startswith(("kernel(", "allocation_free(")) for each in node.decorator_list)
        ]
        assert not kernels or file in sources, file
        for kernel in kernels:
            names = {node.id for node in ast.walk(ast.Module(kernel.body, [])) if isinstance(node, ast.Name)}
            found |= {(file.name, kernel.name, name) for name in names & imported.keys()}
    assert not found
