"""What is prepared: stored kernels, kernels that `tcpdelay warm-up` compiles, and prepared answers of tables."""

import ast
import importlib.util
import os
import signal
from contextlib import suppress

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.cli import program
from tcpdelay.cli.output import StatusLine
from tcpdelay.cli.program import Estimate, Part, compile_parts
from tcpdelay.compiling import source_digest, stored_kernels
from tcpdelay.compiling.compilation import cached, kernel
from tcpdelay.compiling.source_digest import PACKAGE, SOURCES
from tcpdelay.compiling.stored_kernels import is_compiled
from tcpdelay.study.grid import question
from tcpdelay.study.tables.lattice import EXACT_ROWS, lattice_path, load_lattice, place_of


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


# Answers that are solved before there is a table

VOIP = question("voip", None, None, None)
RTT, LOSS = (0.090, 0.100), (0.015, 0.030)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def drawn(rows, seed=1):
    rng = np.random.default_rng(seed)
    return tuple(np.exp(rng.uniform(*np.log(ends), rows)) for ends in (RTT, LOSS))


@pytest.mark.usefixtures("own_cache")
def test_the_share_that_is_left_is_the_share_of_rows_without_an_answer():
    shares = []
    prepared = td.prepare_surface("voip", rtt=RTT, loss=LOSS, left=0.1, on_progress=lambda left, _: shares.append(left))
    assert prepared.left <= 0.1
    assert len(shares) > 1
    assert shares == sorted(shares, reverse=True)
    lattice = load_lattice(VOIP)
    assert lattice.size == prepared.chains
    places = place_of(*drawn(20_000))
    unanswered = np.isin(places, lattice.missing(places)).mean()
    assert abs(unanswered - prepared.left) < 0.05


@pytest.mark.usefixtures("own_cache")
def test_tables_begin_with_the_prepared_answers():
    prepared = td.prepare_surface("voip", rtt=RTT, loss=LOSS, left=1e-9)
    assert prepared.path == str(lattice_path(VOIP))
    assert td.prepare_surface("voip", rtt=RTT, loss=LOSS, left=1e-9) == prepared
    solved = []
    rtt, loss = drawn(EXACT_ROWS + 1)
    td.predict_many({"rtt": rtt, "loss": loss}, flow="voip", on_progress=lambda done, of: solved.append(done))
    assert not solved


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rtt": (0.1, 0.05)}, r"rtt must be a range, from low to high, within 0.0001 to 2 s, got \(0.1, 0.05\)"),
        ({"rtt": (0.1, 5.0)}, r"rtt must be a range, from low to high, within 0.0001 to 2 s, got \(0.1, 5.0\)"),
        ({"loss": (0.1, 0.6)}, r"loss must be a range, from low to high, within 0 to 0.5, got \(0.1, 0.6\)"),
        ({"rtt": 0.05}, r"rtt must be a range, from low to high, within 0\.0001 to 2 s, got 0\.05$"),
        ({"rtt": ("50ms", "60ms")}, r"rtt must be a range, .* within 0.0001 to 2 s, got \('50ms', '60ms'\)"),
        ({"rtt": ()}, r"rtt must be a range, .* got \(\)"),
        ({"loss": (0.01, 0.02, 0.03)}, r"loss must be a range, .* within 0 to 0.5, got \(0.01, 0.02, 0.03\)"),
        ({"left": 0.0}, "left must lie above 0 and below 1, got 0"),
        ({"left": "1%"}, "left must lie above 0 and below 1, got '1%'"),
        ({"left": True}, "left must lie above 0 and below 1, got True"),
        ({"rtt": (True, 2)}, r"rtt must be a range, .* got \(True, 2\)"),
        ({"rtt": "ab"}, "rtt must be a range, .* within 0.0001 to 2 s, got 'ab'"),
        ({"limit": "50ms"}, "limit must be a number of seconds above 0, got '50ms'"),
    ],
)
def test_regions_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        td.prepare_surface("voip", **options)


@pytest.mark.usefixtures("own_cache")
def test_answers_that_cannot_be_kept_are_not_solved(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"parquet: cannot be written: '.*file.*': (Not a directory|File exists)$"):
        td.prepare_surface("voip", on_progress=lambda *_: pytest.fail("solved for nothing"))


@pytest.mark.usefixtures("own_cache")
def test_the_command_says_what_is_left_and_where_it_is(run):
    status, printed, _ = run("prepare", "--app", "voip", "--rtt", "30ms..32ms", "--loss", "0.1%..0.2%", "--left", "10%")
    assert status == 0
    assert "% of the region is left unsolved" in printed
    assert printed.splitlines()[-1].endswith(".parquet")
    status, _, errors = run("prepare", "--app", "voip", "--rtt", "30ms..9s")
    assert (status, errors.count("\n")) == (2, 1)
    assert "--rtt: must be a range, from low to high, within 0.0001 to 2 s, got (0.03, 9.0)" in errors


@pytest.mark.usefixtures("own_cache")
def test_an_interrupt_keeps_what_has_been_solved():
    def interrupt(share, chains):
        if chains > 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        td.prepare_surface("voip", rtt=RTT, loss=LOSS, left=0.001, on_progress=interrupt)
    assert load_lattice(VOIP).size > 60


@pytest.mark.usefixtures("own_cache")
def test_a_swallowed_interrupt_ends_the_command_at_its_next_step(run, monkeypatch):
    def show(*_):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(StatusLine, "show", lambda *_: pytest.fail("goes on"))

    monkeypatch.setattr(StatusLine, "show", show)
    assert run("prepare", "--app", "voip", "--left", "0.001%")[0] == 130


@pytest.mark.usefixtures("own_cache")
def test_an_interrupted_command_says_that_it_goes_on(run, monkeypatch):
    monkeypatch.setattr(StatusLine, "show", lambda *_: signal.raise_signal(signal.SIGINT))
    status, printed, errors = run("prepare", "--app", "voip", "--left", "0.001%")
    assert (status, printed) == (130, "")
    assert errors == "tcpdelay prepare: interrupted; all solved paths are kept, and the next run continues\n"
