"""`tcpdelay warm-up`: what it compiles, how far it says it is, and when there is nothing to compile."""

import numpy as np
import pytest

from tcpdelay.cli import program
from tcpdelay.cli.program import Estimate, Part, compile_parts
from tcpdelay.compiling import stored_kernels
from tcpdelay.compiling.compilation import kernel


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
