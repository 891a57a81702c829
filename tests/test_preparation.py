"""Answers that are solved before there is a table."""

import signal
from contextlib import suppress

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.cli.output import StatusLine
from tcpdelay.study.grid import question
from tcpdelay.study.tables.lattice import EXACT_ROWS, lattice_path, load_lattice, place_of

VOIP = question("voip", None, None, None)
RTT, LOSS = (0.090, 0.100), (0.015, 0.030)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def drawn(rows, seed=1):
    rng = np.random.default_rng(seed)
    return tuple(np.exp(rng.uniform(*np.log(ends), rows)) for ends in (RTT, LOSS))


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


def test_tables_begin_with_the_prepared_answers():
    prepared = td.prepare_surface("voip", rtt=RTT, loss=LOSS, left=1e-9)
    assert prepared.path == str(lattice_path(VOIP))
    assert td.prepare_surface("voip", rtt=RTT, loss=LOSS, left=1e-9) == prepared
    solved = []
    rtt, loss = drawn(EXACT_ROWS + 1)
    td.predict_many({"rtt": rtt, "loss": loss}, flow="voip", on_progress=lambda done, of: solved.append(done))
    assert not solved


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


def test_answers_that_cannot_be_kept_are_not_solved(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"parquet: cannot be written: '.*file.*': (Not a directory|File exists)$"):
        td.prepare_surface("voip", on_progress=lambda *_: pytest.fail("solved for nothing"))


def test_the_command_says_what_is_left_and_where_it_is(run):
    status, printed, _ = run("prepare", "--app", "voip", "--rtt", "30ms..32ms", "--loss", "0.1%..0.2%", "--left", "10%")
    assert status == 0
    assert "% of the region is left unsolved" in printed
    assert printed.splitlines()[-1].endswith(".parquet")
    status, _, errors = run("prepare", "--app", "voip", "--rtt", "30ms..9s")
    assert (status, errors.count("\n")) == (2, 1)
    assert "--rtt: must be a range, from low to high, within 0.0001 to 2 s, got (0.03, 9.0)" in errors


def test_an_interrupt_keeps_what_has_been_solved():
    def interrupt(share, chains):
        if chains > 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        td.prepare_surface("voip", rtt=RTT, loss=LOSS, left=0.001, on_progress=interrupt)
    assert load_lattice(VOIP).size > 60


def test_a_swallowed_interrupt_ends_the_command_at_its_next_step(run, monkeypatch):
    def show(*_):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(StatusLine, "show", lambda *_: pytest.fail("goes on"))

    monkeypatch.setattr(StatusLine, "show", show)
    assert run("prepare", "--app", "voip", "--left", "0.001%")[0] == 130


def test_an_interrupted_command_says_that_it_goes_on(run, monkeypatch):
    monkeypatch.setattr(StatusLine, "show", lambda *_: signal.raise_signal(signal.SIGINT))
    status, printed, errors = run("prepare", "--app", "voip", "--left", "0.001%")
    assert (status, printed) == (130, "")
    assert errors == "tcpdelay prepare: interrupted; all solved paths are kept, and the next run continues\n"
