"""Stored kernels of other sources than those that run are out of date."""

import importlib.util
from pathlib import Path

import pytest

from tcpdelay.models import compilation
from tcpdelay.models.compilation import PACKAGE, SOURCES, cached, is_compiled


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
    monkeypatch.setattr(compilation, "fingerprint", lambda: b"other")
    changed = cached(double, {})
    assert not is_compiled(changed)
    assert changed(2) == 4
    assert not changed.stats.cache_hits


def test_the_fingerprint_is_that_of_all_modules_with_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "PACKAGE", tmp_path)
    module = tmp_path / "network" / "queues" / "red.py"
    module.parent.mkdir(parents=True)
    found = set()
    for text in ("", "LIMIT = 1\n", "LIMIT = 2\n"):
        module.write_text(text, encoding="utf-8")
        found.add(compilation.fingerprint.__wrapped__())
    assert len(found) == 3


def test_kernels_call_those_of_the_sources_only():
    # A kernel elsewhere may call them; its own file is part of its stamp.
    users = {
        str(file.relative_to(PACKAGE).parts[0])
        for file in Path(PACKAGE).rglob("*.py")
        if "models.compilation import" in file.read_text(encoding="utf-8")
    }
    assert users - set(SOURCES) == {"advice", "quality"}
