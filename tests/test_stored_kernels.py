"""Kernels that are stored are used while their sources are the same; `tcpdelay warm-up` compiles them."""

import ast
import importlib.util
import os

import numpy as np
import pytest

from tcpdelay.cli import program
from tcpdelay.cli.program import Estimate, Part, compile_parts
from tcpdelay.compiling import source_digest, stored_kernels
from tcpdelay.compiling.compilation import cached, kernel
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
        for node in kernels:
            names = {node.id for node in ast.walk(ast.Module(node.body, [])) if isinstance(node, ast.Name)}
            found |= {(file.name, node.name, name) for name in names & imported.keys()}
    assert not found


# `tcpdelay warm-up`: what it compiles, how far it says it is, and when there is nothing to compile


@pytest.fixture
def clocks(monkeypatch):
    """Set the two clocks that an estimate reads."""

    def set_clocks(monotonic, process):
        monkeypatch.setattr("time.monotonic", lambda: monotonic)
        monkeypatch.setattr("time.process_time", lambda: process)

    set_clocks(100.0, 5.0)
    return set_clocks


def test_the_estimate_takes_a_free_processor_as_it_is(clocks):
    estimate = Estimate(100)
    clocks(110.0, 15.0)
    assert estimate.in_words(40) == "10 %, about 90 s left"
    estimate.done(40)
    assert estimate.in_words(60) == "40 %, about 60 s left"


def test_the_estimate_notices_other_work(clocks):
    estimate = Estimate(100)
    clocks(140.0, 15.0)
    # A quarter of a processor: the 90 s that are left take four times as long.
    assert estimate.in_words(40) == "10 %, about 6 min left"


def test_a_part_that_takes_longer_than_expected_stays_within_its_share(clocks):
    estimate = Estimate(100)
    clocks(180.0, 85.0)
    assert estimate.in_words(40) == "40 %, about 60 s left"


def test_a_part_is_compiled_and_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(program.StatusLine, "show", lambda _, text: print(text))

    def double(value):
        return 2 * value

    compiled = kernel()(double)
    compile_parts((Part("doubling", 3, lambda: compiled(np.float64(2))), Part("nothing", 1, lambda: None)))
    assert compiled.signatures
    printed = capsys.readouterr().out
    assert printed.startswith("Compiling doubling (1 of 2), 0 %, about ")
    assert "nothing" not in printed


def test_there_is_nothing_to_compile_with_the_kernels_of_the_installation(run, monkeypatch):
    monkeypatch.setattr(stored_kernels, "unusable", lambda: None)
    printed = "Nothing to compile: the installation has the kernels for this machine.\n"
    assert run("warm-up") == (0, printed, "")


def test_the_reason_for_compiling_is_said(run, monkeypatch):
    monkeypatch.setattr(stored_kernels, "unusable", lambda: "this processor lacks avx2")
    monkeypatch.setattr(program, "parts", lambda: ())
    status, printed, errors = run("warm-up")
    assert (status, errors) == (0, "")
    assert printed.startswith("Compiling: this processor lacks avx2.\nCompiled in ")


def test_every_part_runs():
    names = [part.name for part in program.parts()]
    assert len(set(names)) == len(names) > 5
    compile_parts(program.parts())
