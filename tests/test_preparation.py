"""Surfaces that are solved before there is a table."""

import signal
from contextlib import suppress

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.cli.errors import StatusLine
from tcpdelay.questions.region.question import question
from tcpdelay.questions.tables.interpolation import UNTESTED
from tcpdelay.questions.tables.surface import Surface, load_surface, surface_path

VOIP = question("voip", None, None, None)
RTT, LOSS = (0.090, 0.100), (0.015, 0.030)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_is_said_to_be_left_is_what_rows_are_left():
    surface = Surface(VOIP)
    shares = []
    left = surface.prepare(RTT, LOSS, 0.05, lambda share, chains: shares.append(share))
    assert left <= 0.05
    assert len(shares) > 1
    assert shares == sorted(shares, reverse=True)
    rng = np.random.default_rng(1)
    rtt, loss = (np.exp(rng.uniform(*np.log(ends), 20_000)) for ends in (RTT, LOSS))
    columns = np.empty((5, rtt.size))
    rows = surface._look_up(rtt, loss, columns, np.arange(rtt.size)).rows
    # Losses count in cells of the surface, which are nearly those of the logarithm here.
    assert rows.size / rtt.size <= 1.5 * left + 0.005


def test_tables_begin_with_what_has_been_prepared():
    prepared = td.prepare_surface("voip", rtt=RTT, loss=LOSS, left=0.05)
    assert prepared.path == str(surface_path(VOIP))
    assert prepared.chains == len(load_surface(VOIP).node_at)
    again = td.prepare_surface("voip", rtt=RTT, loss=LOSS, left=0.05)
    assert again == prepared
    solved = []
    td.predict_many({"rtt": [0.0955], "loss": [0.0203]}, flow="voip", on_progress=lambda done, of: solved.append(done))
    assert not solved


@pytest.mark.parametrize("solved_before", [1, 2])
def test_an_interrupt_leaves_no_cell_half_tested(solved_before, monkeypatch):
    """Corners, first probes and the others are solved one after the other: each may be the last."""
    surface = Surface(VOIP)
    solve, calls = surface._solved_at, []

    def interrupted(points, on_progress):
        if len(calls) == solved_before:
            raise KeyboardInterrupt
        calls.append(points)
        return solve(points, on_progress)

    monkeypatch.setattr(surface, "_solved_at", interrupted)
    with pytest.raises(KeyboardInterrupt):
        surface.prepare(RTT, LOSS, 0.5)
    assert surface.whole
    assert (surface.cells.state == UNTESTED).all()


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
        ({"threshold": "50ms"}, "threshold must be a number of seconds above 0, got '50ms'"),
    ],
)
def test_regions_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        td.prepare_surface("voip", **options)


def test_a_surface_that_cannot_be_kept_is_not_begun(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"npz cannot be written$"):
        td.prepare_surface("voip", on_progress=lambda *_: pytest.fail("solved for nothing"))


def test_the_command_says_what_is_left_and_where_it_is(run):
    status, printed, _ = run("prepare", "--app", "voip", "--rtt", "30ms..32ms", "--loss", "0.1%..0.2%", "--left", "10%")
    assert status == 0
    assert "% of the region is left to be solved row by row" in printed
    assert printed.splitlines()[-1].endswith(".npz")
    status, _, errors = run("prepare", "--app", "voip", "--rtt", "30ms..9s")
    assert (status, errors.count("\n")) == (2, 1)
    assert "--rtt: must be a range, from low to high, within 0.0001 to 2 s, got (0.03, 9.0)" in errors


def test_an_interrupt_keeps_what_has_been_solved():
    def interrupt(share, chains):
        if chains > 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        td.prepare_surface("voip", rtt=RTT, loss=LOSS, left=0.001, on_progress=interrupt)
    assert load_surface(VOIP).node_at


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
    assert errors == "tcpdelay prepare: interrupted; what has been solved is kept, and the next run goes on\n"
