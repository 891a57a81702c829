"""Tables of paths: what the lattice answers, what becomes of bad rows, and in which form the answers come."""

import csv
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.declare import ColumnUnitWarning
from tcpdelay.models.verdict import judge, late_range
from tcpdelay.quality.voice import CallTarget, voice_mos, voice_quality
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.study.grid import question, run_seed
from tcpdelay.study.tables.columns import QUANTITIES, Source, check_units, find_sources, read_column, reasons
from tcpdelay.study.tables.lattice import (
    COLUMNS,
    EXACT_ROWS,
    SMALLEST_LOSS,
    TOLERANCE,
    Lattice,
    lattice_path,
    load_lattice,
    path_at,
    place_of,
    save_lattice,
)

VOIP = question("voip", None, None, None)
RTT = QUANTITIES["rtt"]
BOX = ((0.090, 0.100), (0.015, 0.045))
"""Round-trip times [s] and losses between which quantiles jump from one plateau to the next."""


def drawn(rows, seed, box=BOX):
    rng = np.random.default_rng(seed)
    return tuple(np.exp(rng.uniform(*np.log(ends), rows)) for ends in box)


def chain(rtt, loss):
    """Return what the chain says of a path: the columns, and whether the flow works."""
    delays = td.DelayModel(VOIP.flow, td.Path(rtt, loss), VOIP.stack).delay_distribution()
    figures = [*delays.quantile([0.5, 0.95, 0.99]), delays.mean, delays.late_fraction(VOIP.target.limit)]
    return figures, delays.meets(VOIP.target)


def test_rows_of_large_tables_are_answered_for_a_path_within_the_tolerance():
    rtt, loss = drawn(EXACT_ROWS + 200, seed=2)
    answers = Lattice(VOIP).answer(rtt, loss)
    near = path_at(place_of(rtt, loss))
    assert np.abs(near[0] / rtt - 1).max() <= TOLERANCE * 1.000001
    assert np.abs((near[1] - loss) / (loss + SMALLEST_LOSS)).max() <= TOLERANCE * 1.000001
    for row in range(0, rtt.size, 40):
        figures, works = chain(float(near[0][row]), float(near[1][row]))
        assert [answers[name][row] for name in COLUMNS[:5]] == pytest.approx(figures, rel=1e-9, abs=1e-12)
        assert answers["works"][row] == works


@given(st.floats(1e-6, 60.0), st.just(0.0) | st.floats(0.0, 1.0, exclude_max=True))
def test_every_path_has_a_lattice_point_within_the_tolerance(rtt, loss):
    near_rtt, near_loss = (value.item() for value in path_at(place_of(np.array(rtt), np.array(loss))))
    td.Path(near_rtt, near_loss)
    assert abs(near_rtt / rtt - 1) <= TOLERANCE * 1.000001
    assert abs(near_loss - loss) <= TOLERANCE * (loss + SMALLEST_LOSS) * 1.000001
    assert (near_loss == 0) == (loss == 0)


def test_works_is_what_the_quantile_and_the_late_fraction_say():
    answers = Lattice(VOIP).answer(*drawn(EXACT_ROWS + 1000, seed=6, box=((0.12, 0.2), (0.005, 0.05))))
    assert 100 < answers["works"].sum() < 1900
    assert np.array_equal(answers["works"], answers["p95"] <= VOIP.target.limit * (1 + 1e-9))
    assert np.array_equal(answers["works"], answers["late"] <= 0.05 + 1e-9)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(0.001, 0.3), st.floats(0.0, 0.1)), min_size=1, max_size=4))
def test_a_few_rows_get_exactly_what_the_chain_says(rows):
    rtt, loss = (np.array(column) for column in zip(*rows, strict=True))
    answers = Lattice(VOIP).answer(rtt, loss)
    for place, (one_rtt, one_loss) in enumerate(rows):
        model = td.DelayModel(VOIP.flow, td.Path(one_rtt, one_loss), VOIP.stack).delay_distribution()
        expected = [*model.quantile([0.5, 0.95, 0.99]), model.mean]
        assert [answers[name][place] for name in COLUMNS[:4]] == pytest.approx(expected, rel=1e-9)
        assert answers["sustainable"][place] == model.sustainable


def test_rows_are_counted_over_all_batches_before_they_are_snapped():
    rtt, loss = drawn(EXACT_ROWS, seed=7)
    lattice = Lattice(VOIP)
    for part in np.array_split(np.arange(EXACT_ROWS), 4):
        lattice.answer(rtt[part], loss[part])
    assert (lattice.solved, lattice.size) == (EXACT_ROWS, 0)
    lattice.answer(rtt[:10], loss[:10])
    assert 0 < lattice.size <= 10


def test_a_flow_that_tcp_cannot_carry_is_endlessly_late():
    rng = np.random.default_rng(3)
    rtt, loss = rng.uniform(0.45, 0.46, EXACT_ROWS + 1), rng.uniform(0.40, 0.41, EXACT_ROWS + 1)
    lattice = Lattice(VOIP)
    answers = lattice.answer(rtt, loss)
    assert lattice.solved < 30
    assert all(np.isinf(answers[name]).all() for name in COLUMNS[:4])
    assert (answers["late"] == 1).all()
    assert not (answers["works"] | answers["sustainable"]).any()


def test_answers_are_kept_for_later_beside_those_of_others_and_a_damaged_file_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    box = ((0.090, 0.100), (0.015, 0.018))
    rows = drawn(EXACT_ROWS + 1, seed=5, box=box), drawn(EXACT_ROWS + 1, seed=8, box=((0.05, 0.052), (0.01, 0.012)))
    one, other = Lattice(VOIP), Lattice(VOIP)
    found = one.answer(*rows[0]), other.answer(*rows[1])
    assert save_lattice(one)
    assert save_lattice(other)
    again = load_lattice(VOIP)
    assert again.size == one.size + other.size - np.intersect1d(one.remembered()[0], other.remembered()[0]).size
    for given_rows, answers in zip(rows, found, strict=True):
        np.testing.assert_equal(again.answer(*given_rows), answers)
    assert again.solved == 0
    content = bytearray(lattice_path(VOIP).read_bytes())
    content[100] ^= 1
    for damaged in (content, content[:1000], b""):
        lattice_path(VOIP).write_bytes(damaged)
        assert load_lattice(VOIP).size == 0


@settings(max_examples=40)
@given(
    st.lists(st.floats(1e-6, 60.0), min_size=1, max_size=5),
    st.sampled_from([("rtt", 1.0), ("rtt_s", 1.0), ("RTT_ms", 1e3), ("rtt_us", 1e6)]),
)
def test_units_follow_the_name_of_the_column(seconds, named):
    name, per_second = named
    batch = pa.record_batch({name: [second * per_second for second in seconds], "loss": [0.0] * len(seconds)})
    source = find_sources(batch.schema.names)["rtt"]
    assert read_column(batch, QUANTITIES["rtt"], source).values == pytest.approx(seconds)
    texts = pa.record_batch({name: [f"{second!r} s" for second in seconds], "loss": [0.0] * len(seconds)})
    assert read_column(texts, QUANTITIES["rtt"], source).values == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("names", "chosen", "message"),
    [
        (["rtt"], None, "columns must include loss or one of loss_fraction, loss_percent, loss_pct"),
        (["avg_rtt_ms", "loss"], None, "or name another column such as rtt=avg_rtt_ms, got"),
        (
            ["a", "b"],
            None,
            "columns must include rtt or one of rtt_s, rtt_ms, rtt_us, and loss or one of loss_fraction, "
            "loss_percent, loss_pct, or name other columns, got",
        ),
        (["ping", "plr"], None, "or name other columns such as rtt=ping, loss=plr, got"),
        (["Latency", "lost"], None, "or name other columns such as rtt=Latency, loss=lost, got"),
        (["avg_rtt", "loss_rate"], None, "or name other columns such as rtt=avg_rtt, loss=loss_rate, got"),
        (["rtt", "RTT_ms", "loss"], None, r"columns must say which column is rtt, got \['rtt', 'RTT_ms'\]"),
        (["a", "loss"], {"rtt": "b:ms"}, "columns must be some of a, loss for rtt, got 'b'"),
        (["a", "loss"], {"rtt": "a:min"}, "columns must be in s, ms, us for rtt, got 'min'"),
        (
            ["a", "loss"],
            {"delay": "a"},
            "columns must name some of rtt, loss, packet_size, interval, limit, quantile, got 'delay'",
        ),
    ],
)
def test_columns_that_cannot_be_told_are_refused(names, chosen, message):
    with pytest.raises(ValueError, match=message):
        find_sources(names, chosen)


BAD = [
    ({"rtt": None}, "rtt is missing"),
    ({"rtt": float("nan")}, "rtt is missing"),
    ({"rtt": float("inf")}, "rtt must lie between 1e-06 and 60 s"),
    ({"rtt": -0.1}, "rtt must lie between 1e-06 and 60 s"),
    ({"rtt": 100.0}, "rtt must lie between 1e-06 and 60 s"),
    ({"loss": 1.0}, "loss must be a fraction from 0 to below 1"),
    ({"loss": -1e-9}, "loss must be a fraction from 0 to below 1"),
    ({"packet_size": 0.0}, "packet_size must be a whole number of bytes from 1 to 10000000"),
    ({"packet_size": 1.5}, "packet_size must be a whole number of bytes from 1 to 10000000"),
    ({"interval": 0.0}, "interval must lie between 1e-07 and 60 s"),
    ({"rtt": None, "interval": None}, "rtt is missing"),
]


TEXTS = [
    ("rtt_ms", "80", 0.08), ("rtt_ms", " 80 ", 0.08), ("rtt_ms", "80ms", 0.08), ("rtt_ms", "80 \u00b5s", 80e-6),
    ("rtt_ms", "0.5 min", 30.0), ("rtt_ms", "1e-1s", 0.1), ("rtt_ms", "+80", 0.08), ("rtt_ms", "80\u00a0ms", 0.08),
    ("rtt_ms", "", "rtt is missing"), ("rtt_ms", "NaN", "rtt is missing"), ("rtt_ms", "n/a", "rtt is missing"),
    ("rtt_ms", "?", "rtt is not a number"), ("rtt_ms", "10-20ms", "rtt is not a number"),
    ("rtt_ms", "1.2.3", "rtt is not a number"), ("rtt_ms", "1 000", "rtt is not a number"),
    ("rtt_ms", "80parsec", "rtt has an unknown unit: use s, ms, us or min"),
    ("rtt_ms", "80m", "rtt has an unknown unit: use s, ms, us or min"),
    ("rtt_ms", "5 e3ms", "rtt has an unknown unit: use s, ms, us or min"),
    ("rtt_ms", "5 e-400s", "rtt has an unknown unit: use s, ms, us or min"),
    ("rtt_ms", "80,5", "rtt has a comma where a decimal point is needed"),
    ("rtt_ms", "-80ms", "rtt must lie between 1e-06 and 60 s"),
    ("rtt_ms", "2 min", "rtt must lie between 1e-06 and 60 s"),
    ("rtt_ms", "inf", "rtt must lie between 1e-06 and 60 s"),
    ("rtt_ms", "1e999ms", "rtt must lie between 1e-06 and 60 s"),
    ("loss", "2%", 0.02), ("loss", "0.02", 0.02), ("loss_percent", "2", 0.02), ("loss_percent", "0 %", 0.0),
    ("loss", "150%", "loss must be a fraction from 0 to below 1"),
    ("loss", "-1%", "loss must be a fraction from 0 to below 1"),
    ("loss", "2", "loss must be a fraction from 0 to below 1"),
    ("loss", "2permille", "loss has an unknown unit: write 2% or 0.02"),
    ("packet_size", "1.001kB", 1001), ("packet_size", "1KiB", 1024), ("packet_size", "174", 174),
    ("packet_size", "1kb", "packet_size has an unknown unit: use B, kB, MB, KiB or MiB"),
    ("packet_size", "1.5B", "packet_size must be a whole number of bytes from 1 to 10000000"),
]  # fmt: skip


def name_and_cells(column, texts):
    source = find_sources([column, *{"rtt", "loss"} - {column.partition("_")[0]}])
    name = next(name for name, each in source.items() if each.column == column)
    return name, read_column(pa.record_batch({column: texts}), QUANTITIES[name], source[name])


@pytest.mark.parametrize(("column", "text", "meaning"), TEXTS)
def test_a_text_is_a_value_or_has_a_reason_whatever_else_is_in_its_column(column, text, meaning):
    for texts, place in (([text], 0), (["?", "1", None, text, text], 3), (["0.5"] * 100 + [text], 100)):
        name, cells = name_and_cells(column, texts)
        if isinstance(meaning, str):
            assert reasons(QUANTITIES[name])[cells.faults[place] - 1] == meaning
        else:
            assert (cells.faults[place], cells.values[place]) == (0, pytest.approx(meaning, rel=1e-15))


@given(st.lists(st.floats(width=64) | st.none(), min_size=1, max_size=5))
def test_numbers_mean_the_same_as_texts_as_plain_texts_and_as_texts_with_a_unit(numbers):
    written = [None if number is None else repr(number) for number in numbers]
    as_numbers = read_column(pa.record_batch({"rtt": pa.array(numbers, pa.float64())}), RTT, Source("rtt", 1.0))
    for texts in (written, [*written, "80ms"]):
        cells = read_column(pa.record_batch({"rtt": pa.array(texts, pa.string())}), RTT, Source("rtt", 1.0))
        assert cells.faults[: len(numbers)].tolist() == as_numbers.faults.tolist()
        right = as_numbers.faults == 0
        assert cells.values[: len(numbers)][right].tolist() == as_numbers.values[right].tolist()


def test_a_table_of_nothing_but_bad_rows_has_their_reasons():
    answers = td.predict_many({"rtt": [-1.0, 0.0], "loss": [0.02, 0.02]}, flow="voip", cached=False)
    assert answers["reason"].tolist() == ["rtt must lie between 1e-06 and 60 s"] * 2


def test_bad_rows_keep_their_place_and_harm_no_other():
    good = {"rtt": 0.1, "loss": 0.02, "packet_size": 174.0, "interval": 0.02}
    rows = [good]
    for bad, _ in BAD:
        rows += [{**good, **bad}, good]
    table = pa.Table.from_pylist([{"user": place, **row} for place, row in enumerate(rows)])
    answers = td.predict_many(table, cached=False)
    assert answers.column("user").to_pylist() == list(range(len(rows)))
    assert answers.column("reason").to_pylist()[1::2] == [reason for _, reason in BAD]
    assert answers.column("reason").to_pylist()[::2] == [None] * (len(BAD) + 1)
    for name in ("p50", "p95", "p99", "mean", "late", "late_low", "late_high", "works", "sustainable", "verdict"):
        assert answers.column(name).to_pylist()[1::2] == [None] * len(BAD)
    p95 = td.predict_delay(**good, method="chain").quantile(0.95)
    assert answers.column("p95").to_pylist()[::2] == pytest.approx([p95] * (len(BAD) + 1))


def test_a_row_without_a_prediction_neither_works_nor_fails():
    rows = {"rtt": [0.1, 0.3, -1.0], "loss": [0.02, 0.1, 0.02]}
    options = {"flow": "voip", "cached": False}
    arrays = td.predict_many(rows, **options)
    frame = td.predict_many(pd.DataFrame(rows, index=[3, 5, 7]), **options)
    table = td.predict_many(pa.table(rows), **options)
    for name in ("works", "sustainable"):
        assert arrays[name].tolist() == table.column(name).to_pylist()
        assert arrays[name][2] is None
        assert frame[name].dtype == "boolean"
        assert frame[name].isna().tolist() == [False, False, True]
    assert frame["works"].sum() == 1
    assert (frame["works"].mean(), arrays["works"][:2].tolist()) == (0.5, [True, False])


def test_what_comes_back_is_of_the_kind_that_was_given():
    plain = {"rtt_ms": [100.0, 20.0], "loss_percent": [2.0, 0.1], "user": ["a", "b"]}
    options = {"flow": "voip", "cached": False}
    table = td.predict_many(pa.table(plain), **options)
    batch = td.predict_many(pa.record_batch(plain), **options)
    reader = td.predict_many(pa.table(plain).to_reader(), **options)
    frame = td.predict_many(pd.DataFrame(plain, index=[7, 9]), **options)
    arrays = td.predict_many(plain, **options)
    assert isinstance(table, pa.Table)
    assert isinstance(batch, pa.RecordBatch)
    assert isinstance(reader, pa.RecordBatchReader)
    assert table.equals(pa.Table.from_batches([batch]))
    assert table.equals(reader.read_all())
    assert frame.index.tolist() == [7, 9]
    assert frame.columns.tolist() == table.column_names == list(arrays)
    assert frame["p95"].tolist() == arrays["p95"].tolist() == table.column("p95").to_pylist()
    assert frame["user"].tolist() == arrays["user"].tolist() == ["a", "b"]
    assert td.predict_many(pa.table(plain).slice(0, 0), **options).num_rows == 0


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (
            {"rtt": [0.1], "loss": [0.0]},
            {"flow": None},
            "flow must be given, as the table has no packet_size",
        ),
        (
            {"rtt": [0.1], "loss": [0.0], "p95": [1]},
            {},
            "prefix must be one with which no added column is in the table already: p95",
        ),
        ({"rtt": [0.1, 0.2], "loss": [0.0]}, {}, "table must have columns of one length"),
        ([1, 2], {}, r"table must be a table of pyarrow, a pandas DataFrame or a mapping of arrays, got \[1, 2\]"),
        ({"rtt": np.array([0.1j]), "loss": [0.0]}, {}, "table must have columns that Arrow can hold: rtt: "),
        ({"rtt": np.array([0.1, "?"], object), "loss": [0.0, 0.0]}, {}, "Arrow can hold: rtt: Could not convert '\\?'"),
        ({"rtt": [0.1], "loss": [0.0], "size": [10**30]}, {}, "Arrow can hold: size: "),
        ({"rtt": [[0.1], [0.1, 0.2]], "loss": [0.0, 0.0]}, {}, "Arrow can hold: rtt: "),
        ({"rtt": [[0.1]], "loss": [0.0]}, {}, r"columns of one dimension, got the shape \(1, 1\) for 'rtt'"),
        ({"rtt": [0.1], "loss": [0.0], 3: [1]}, {}, "table must have columns whose names are texts, got 3"),
        (pd.DataFrame({"rtt": [0.1j], "loss": [0.0]}), {}, "Arrow can hold: .* column rtt with type complex128"),
        (
            pd.DataFrame({"rtt": [0.1] * 2, "loss": [0.0] * 2, "x": [1, "a"]}),
            {},
            "Arrow can hold: .* column x with type object",
        ),
        ({"rtt": [0.1], "loss": [0.0]}, {"columns": "rtt"}, "columns must be a mapping .* got 'rtt'"),
        ({"rtt": [0.1], "loss": [0.0]}, {"columns": {"rtt": 3}}, "columns must be a mapping .* got {'rtt': 3}"),
        ({"rtt": [True], "loss": [0.0]}, {}, "columns must hold numbers or texts, got 'rtt: bool'"),
        ({"rtt": [0.1], "loss": [0.0]}, {"limit": -1.0}, "limit must be a number of seconds above 0"),
        ({"rtt": [0.1], "loss": [0.0]}, {"limit": "50ms"}, "limit must be a number .* above 0, got '50ms'$"),
        ({"rtt": [0.1], "loss": [0.0]}, {"quantile": "95%"}, "^quantile must lie between 0 and 1, got '95%'$"),
        ({"rtt": [0.1], "loss": [0.0]}, {"prefix": 3}, "^prefix must be a text, got 3$"),
        ({"rtt": [0.1], "loss": [0.0]}, {"cached": "no"}, "^cached must be True or False, got 'no'$"),
        (
            {"rtt": [0.1], "loss": [0.0]},
            {"flow": "tv"},
            "^flow must be a Source, .*, or one of voip, .*, got 'tv'$",
        ),
    ],
)
def test_tables_that_make_no_sense_are_refused(table, options, message):
    with pytest.raises(ValueError, match=message):
        td.predict_many(table, **{"flow": "voip", "cached": False, **options})


def test_a_target_keeps_its_answers_whatever_kind_of_number_it_is_given_as():
    assert lattice_path(question("voip", None, np.float64(0.2), Fraction(19, 20))) == lattice_path(VOIP)


def test_what_is_passed_through_is_what_was_given():
    given = {"x": [1.0, float("nan"), None], "code": ["NA", "nan", None], "rtt": [0.1] * 3, "loss": [0.02] * 3}
    table = td.predict_many(pa.table(given), flow="voip", cached=False)
    assert repr(table.select(list(given)).to_pydict()) == repr(given)


def test_decimal_columns_are_numbers():
    digits = [Decimal("0.1"), Decimal("0.2")]
    exact = pa.table({"rtt": pa.array(digits, pa.decimal128(38, 20)), "loss": pa.array([Decimal("0.01")] * 2)})
    plain = pa.table({"rtt": [0.1, 0.2], "loss": [0.01, 0.01]})
    found, wanted = (td.predict_many(table, flow="voip", cached=False)["p95"] for table in (exact, plain))
    np.testing.assert_allclose(found.to_numpy(), wanted.to_numpy(), rtol=1e-12)


@pytest.fixture
def by_chain(monkeypatch):
    """Tables in which no path is simulated as `predict_delay` does, as in those with many such paths."""
    monkeypatch.setattr("tcpdelay.study.tables.rows.FEW_SIMULATED", 0)


def test_rows_beyond_the_checked_range_are_counted(by_chain):
    with pytest.warns(td.ValidityWarning, match="1 of 2 rows lie outside the range"):
        td.predict_many({"rtt": [0.1, 0.8], "loss": [0.01, 0.0]}, flow="voip", cached=False)


def test_a_loss_beyond_the_checked_range_only_fails_for_certain(by_chain):
    # The chain has 317 ms at 12 %, and the simulation that `predict_delay` takes there has 418 ms.
    rows = {"rtt": [0.1] * 4, "loss": [0.12, 0.1, 0.11, 0.02], "limit": [0.4, 0.4, 0.1, 0.4]}
    with pytest.warns(td.ValidityWarning, match="2 of 4 .* at a larger loss, only a failure is certain"):
        found = td.predict_many(rows, flow="game", columns={"loss": "loss:fraction"}, cached=False)
    assert found["verdict"].tolist() == ["uncertain", "works", "fails", "works"]
    assert found["late_high"][0] == 1
    assert found["late_low"][0] == pytest.approx(found["late_low"][1])
    unchecked = "by the chain; predict simulates, as the chain is not checked here"
    assert found["remark"].tolist() == [unchecked, None, unchecked, None]


def test_rows_say_why_a_prediction_has_other_figures(by_chain, run, tmp_path):
    table = tmp_path / "paths.csv"
    table.write_text("rtt_ms,loss_percent\n76,0.982\n600,1\n50,1\n")
    status, _, errors = run("batch", str(table), "-o", "out.csv", "--app", "game", "--limit", "299ms", "--no-cache")
    assert status == 0
    written = [row["remark"] for row in csv.DictReader((tmp_path / "out.csv").read_text().splitlines())]
    reasons = ["the chain's expected error is 10 % or more", "the chain is not checked here"]
    assert written == [*(f"by the chain; predict simulates, as {reason}" for reason in reasons), ""]
    assert "2 of 3 rows have other figures than predict: by the chain; predict simulates, as " in errors


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rtt": [80.0, 40.0, 0.02], "loss": [0.01] * 3}, r"like milliseconds \(median 40\): write rtt=rtt:ms"),
        ({"RTT": ["8", "40", "x"], "loss": ["1%"] * 3}, r"like milliseconds \(median 24\): write rtt=RTT:ms"),
        ({"rtt": [1.7e308] * 2, "loss": [0.01] * 2}, r"like milliseconds \(median 1e\+300\): write rtt=rtt:ms"),
        ({"rtt_ms": [80, 40], "loss": [2, 1]}, r"like percent \(median 1.5\): write loss=loss:percent"),
        # A LAN in milliseconds, and losses below 1 % in percent, also if most paths lose nothing.
        ({"rtt": [1.8, 1.2, 0.9], "loss": [0.5, 0.2, 0.9]}, r"like milliseconds \(median 1.2\): write rtt=rtt:ms"),
        ({"rtt": [0.08, 0.02, 0.05], "loss": [0.5, 0.2, 0.9]}, r"like percent \(median 0.5\): write loss=loss:percent"),
        ({"rtt_ms": [80] * 4, "loss": [0, 0, 0, 0.4]}, r"like percent \(median 0.4\): write loss=loss:percent"),
        (
            {"rtt_ms": [80], "loss_percent": [1], "interval": [20]},
            r"like milliseconds \(median 20\): write interval=in",
        ),
    ],
)
def test_a_column_that_looks_like_another_unit_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        td.predict_many(table, flow="voip", cached=False)
    reader = pa.table(table).to_reader()
    with pytest.raises(ValueError, match=message):
        td.predict_many(reader, flow="voip", cached=False).read_all()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"rtt": [0.9, 0.7, 0.6], "loss": [0.01] * 3},
            "'rtt' states no unit and is read as rtt in seconds, .* rtt=rtt:ms$",
        ),
        (
            {"rtt": [0.1] * 3, "Loss": [0.09, 0.0, 0.08]},
            "'Loss' states no unit and is read as loss in fractions, .*:percent$",
        ),
        (
            {"rtt_ms": [80] * 3, "loss_pct": [1] * 3, "limit": [15, 10, 8]},
            "'limit' states no unit and is read as limit in seconds, with a median of 10.* limit=limit:ms$",
        ),
        (
            {"rtt_ms": [80] * 3, "loss_pct": [1] * 3, "interval": [0.9, 0.8, 0.7]},
            "'interval' states no unit and is read as interval in seconds, .* interval=interval:ms$",
        ),
        (
            {"rtt_ms": [80], "loss_pct": [1], "Jitter_ms": [5]},
            "'Jitter_ms' is not read: .* no jitter, and are predicted",
        ),
        ({"rtt_ms": [80], "loss_pct": [1], "one_way_delay": [9]}, "'one_way_delay' is not read: .* no one_way_delay"),
    ],
)
def test_values_that_are_possible_in_two_units_name_the_unit_that_is_assumed(table, message):
    batch = pa.record_batch(table)
    with pytest.warns(ColumnUnitWarning, match=message):
        check_units(batch, find_sources(batch.schema.names), td.Stack.linux())


@pytest.mark.parametrize("name", ["rtt", "ping", "latency", "RTT"])
@pytest.mark.parametrize(
    "values", [("0.1", "0.5", "0.3"), ("0.2", "0.4", "9"), ("0.08", "0.05", "0.02"), (" 0.15", "80ms", "0.9 s")]
)
def test_a_lan_in_a_file_without_a_unit_is_never_read_as_seconds_silently(name, values):
    batch = pa.record_batch({name: list(values), "loss_pct": ["0.1"] * 3})
    columns = None if name.lower() == "rtt" else {"rtt": name}
    with pytest.warns(
        ColumnUnitWarning, match=rf"'{name}' states no unit and is read as rtt in seconds.*rtt={name}:ms$"
    ):
        check_units(batch, find_sources(batch.schema.names, columns), td.Stack.linux())


@pytest.mark.parametrize("name", ["loss", "plr"])
def test_a_loss_in_a_file_without_a_unit_is_never_read_as_a_fraction_silently(name):
    columns = {"loss": name}
    for values in (["0.02", "0.05", "0"], ["0.01", "0.001", "0"]):
        batch = pa.record_batch({"rtt_ms": ["20"] * 3, name: values})
        with pytest.warns(ColumnUnitWarning, match=rf"'{name}' states no unit .* in fractions.* loss={name}:percent$"):
            check_units(batch, find_sources(batch.schema.names, columns), td.Stack.linux())
    batch = pa.record_batch({"rtt_ms": ["20"] * 3, name: ["0.5", "0.2", "0.9"]})
    with pytest.raises(ValueError, match=r"must state the unit of loss, because these look like percent"):
        check_units(batch, find_sources(batch.schema.names, columns), td.Stack.linux())


@pytest.mark.parametrize("columns", [{"rtt": "rtt:s"}, {"rtt": "rtt_s"}])
def test_a_column_whose_unit_is_stated_is_taken_at_its_word(columns):
    table = {columns["rtt"].partition(":")[0]: [3.0], "loss": [0.01]}
    answers = td.predict_many(table, flow="voip", columns=columns, cached=False)
    assert answers["p50"][0] > 1.5


@pytest.mark.parametrize(
    ("table", "columns", "read", "fits"),
    [
        (
            {"avg": [100.0, 120.0, 0.1]},
            {"rtt": "avg:s"},
            "rtt in s, with a median of 100; usual are 0.005 to 0.4. ",
            "ms",
        ),
        ({"rtt_s": [80, 40]}, None, "rtt in s, with a median of 60; ", "ms"),
        ({"rtt_ms": [0.08, 0.04]}, None, "rtt in ms, with a median of 0.06; usual are 5 to 400", "s"),
        ({"plr": [2.0], "rtt": [0.1]}, {"loss": "plr:fraction"}, "loss in fraction, with a median of 2; ", "percent"),
        ({"interval_s": [20], "rtt": [0.1]}, None, "interval in s, with a median of 20; ", "ms"),
        ({"quantile_percent": [0.95], "rtt": [0.1]}, None, "quantile in percent, with a median of 0.95; ", "fraction"),
        ({"limit_s": [150], "rtt": [0.1]}, None, "limit in s, with a median of 150; ", "ms"),
    ],
)
def test_a_stated_unit_that_does_not_fit_the_values_is_named(table, columns, read, fits):
    column, *_ = table
    if "plr" not in table:
        table = {**table, "loss": [0.01] * len(table[column])}
    batch = pa.record_batch(table)
    advice = rf"If the values are in {fits}, name the column as \w+={column}:{fits}$"
    with pytest.warns(ColumnUnitWarning, match=rf"column '{column}' is read as {re.escape(read)}.*{advice}"):
        check_units(batch, find_sources(batch.schema.names, columns), td.Stack.linux())


def test_the_unit_is_named_in_tables_and_in_streams():
    table = {"rtt_s": [100.0], "loss": [0.01]}
    with pytest.warns(ColumnUnitWarning):
        td.predict_many(table, flow="voip", cached=False)
    with pytest.warns(ColumnUnitWarning):
        td.predict_many(pa.table(table).to_reader(), flow="voip", cached=False).read_all()


@pytest.mark.parametrize(
    "table",
    [
        {"rtt_ms": [5.0, 400.0, 900.0], "loss_percent": [0.0, 0.0, 5.0]},
        {"rtt_ms": ["100ms", "0.2 s"], "loss_percent": ["1%", "0.02"]},
        {"rtt": ["100ms", "0.4 s"], "loss": ["2%", "30%"]},
        {"rtt_s": ["0.1", "0.3"], "loss_percent": ["5", "2"]},
        # No other unit fits.
        {"rtt_s": [3.0], "loss_percent": [0.000001]},
        {"rtt_ms": [None], "loss_percent": ["?"], "packet_size_bytes": [1_000_000]},
    ],
)
def test_stated_units_that_fit_the_values_give_no_warning(table):
    batch = pa.record_batch(table)
    check_units(batch, find_sources(batch.schema.names), td.Stack.linux())


def test_a_chain_that_is_too_large_is_a_reason():
    with pytest.warns(td.ValidityWarning), pytest.warns(ColumnUnitWarning):
        answers = td.predict_many({"rtt_s": [50.0], "loss": [1e-9]}, flow=td.Flow(1448, 1e-5), cached=False)
    assert answers["reason"].tolist() == [
        "the chain is too large to compute, or does not model this loss or packet size"
    ]
    assert np.isnan(answers["p50"][0])


def test_a_stream_needs_no_more_memory_however_long_it_is():
    batch = pa.record_batch({"rtt": np.linspace(0.02, 0.021, 100_000), "loss": np.zeros(100_000)})
    reader = pa.RecordBatchReader.from_batches(batch.schema, (batch for _ in range(40)))
    before = pa.total_allocated_bytes()
    most = rows = 0
    for answers in td.predict_many(reader, flow="voip", cached=False):
        most, rows = max(most, pa.total_allocated_bytes() - before), rows + answers.num_rows
    # All answers together would be 200 MB.
    assert rows == 4_000_000
    assert most < 20e6


def test_the_verdict_is_that_of_a_report_by_the_chain():
    # The 95th percentile of these paths is 150 to 260 ms, around the limit of 200 ms.
    rtt, loss = drawn(60, seed=8, box=((0.12, 0.17), (0.01, 0.04)))
    answers = td.predict_many({"rtt": rtt, "loss": loss}, flow="voip", cached=False)
    assert set(answers["verdict"]) == {"works", "uncertain", "fails"}
    assert (answers["late_low"] <= answers["late"]).all()
    assert (answers["late"] <= answers["late_high"]).all()
    for row in range(rtt.size):
        scenario = Scenario(VOIP.flow, td.Path(rtt[row], loss[row]), VOIP.stack, VOIP.target)
        judged = judge(scenario, VOIP.target, "chain")
        assert answers["verdict"][row] == judged.verdict
        allowed = late_range(judged.answer, VOIP.target.latest)
        assert (answers["late_low"][row], answers["late_high"][row]) == pytest.approx(allowed, rel=1e-9, abs=1e-12)
    for verdict in ("works", "uncertain", "fails"):
        row = answers["verdict"].tolist().index(verdict)
        report = td.guideline("voip", td.Path(rtt[row], loss[row]), method="chain")
        assert (report.verdict, report.works) == (verdict, bool(answers["works"][row]))


def test_the_verdict_on_a_call_follows_the_range_of_late_packets():
    rtt, loss = drawn(60, seed=9, box=((0.12, 0.25), (0.005, 0.08)))
    rows = {"rtt": rtt, "loss": loss}
    answers = td.predict_many(rows, flow="voip", call=CallTarget("g711", mos=3.6), cached=False)
    best, worst = (voice_mos(0.220, answers[name], "g711") for name in ("late_low", "late_high"))
    assert set(answers["verdict"]) == {"works", "uncertain", "fails"}
    assert np.array_equal(answers["verdict"] == "works", worst >= 3.6)
    assert np.array_equal(answers["verdict"] == "fails", best < 3.6)


def test_a_row_may_have_its_own_target():
    table = {
        "rtt_ms": [100] * 4,
        "loss": [0.02] * 4,
        "limit_ms": [200, 100, 150, 150],
        "quantile": [0.95, 0.95, 0.95, 0.99],
    }
    answers = td.predict_many(table, flow="voip", cached=False)
    delays = td.predict_delay(VOIP.flow, td.Path(0.1, 0.02), method="chain")
    assert answers["late"] == pytest.approx([delays.late_fraction(ms / 1000) for ms in table["limit_ms"]], rel=1e-9)
    wanted = [delays.meets(td.Target(ms / 1000, share)) for ms, share in zip(*list(table.values())[2:], strict=True)]
    assert answers["works"].tolist() == wanted
    assert set(wanted) == {True, False}


def test_a_call_is_rated_where_it_plays_out():
    table = {"rtt_ms": [20, 100, 300, 400], "loss": [0.001, 0.02, 0.05, 0.1], "limit": [0.15, 0.2, 0.2, 0.3]}
    answers = td.predict_many(table, flow="voip", call=CallTarget("g711", mos=3.6), cached=False)
    for row, (rtt, loss, limit) in enumerate(zip(*table.values(), strict=True)):
        delays = td.predict_delay(VOIP.flow, td.Path(rtt / 1000, loss), method="chain")
        mos = voice_quality(delays, "g711", playout_delay=limit).mos
        assert answers["mos"][row] == pytest.approx(mos, rel=1e-6)
        assert answers["works"][row] == (mos >= 3.6)
    assert set(answers["works"]) == {True, False}
    assert "mos" not in td.predict_many(table, flow="voip", cached=False)


SPEECH = td.Speech(174, 0.020)


def test_a_few_rows_of_a_source_are_those_of_a_prediction():
    found = td.predict_many({"rtt": [0.1, 0.3], "loss": [0.01, 0.02]}, flow=SPEECH)
    exact = [td.predict_delay(SPEECH, td.Path(rtt, loss)) for rtt, loss in ((0.1, 0.01), (0.3, 0.02))]
    assert [delays.method for delays in exact] == ["chain", "simulation"]
    assert found["p95"].tolist() == [delays.quantile(0.95) for delays in exact]
    assert found["late"].tolist() == [delays.late_fraction(0.2) for delays in exact]
    assert found["remark"].tolist() == [None, None]


def test_rows_of_a_source_are_simulated_and_equal_rows_once(by_chain, monkeypatch):
    simulated = []
    simulate = td.simulate
    monkeypatch.setattr(
        "tcpdelay.sim.simulation.simulate",
        lambda *args, **more: simulated.append(args) or simulate(*args, **more),
    )
    table = {"rtt": [0.1, 0.3, 0.1, 0.1], "loss": [0.01, 0.02, 0.01, -1.0]}
    found = td.predict_many(table, flow=SPEECH)
    assert len(simulated) == 2
    for row, (place, rtt, loss) in {0: (0, 0.1, 0.01), 1: (1, 0.3, 0.02)}.items():
        delays = simulate(SPEECH, td.Path(rtt, loss), packets=50_000, seed=run_seed(0, place, 0))
        assert found["p95"][row] == delays.quantile(0.95)
        assert found["late"][row] == delays.late_fraction(0.2)
    assert found["p95"][2] == found["p95"][0]
    assert found["verdict"].tolist()[:2] == ["works", "fails"]
    assert found["reason"][3] == "loss must be a fraction from 0 to below 1"
    fewer = "of at most 50000 messages; predict simulates more"
    assert found["remark"].tolist() == [fewer, fewer, fewer, None]


def test_a_table_with_too_many_paths_for_simulations_is_refused_with_an_estimate(monkeypatch):
    monkeypatch.setattr("tcpdelay.study.tables.lattice.LONGEST_TIME", 0.0)
    monkeypatch.setattr("tcpdelay.study.tables.lattice.PATH_MESSAGES", 1000)
    rtt = np.geomspace(0.01, 0.3, 300)
    with pytest.raises(ValueError, match=r"^the table has 300 different paths, whose simulations would take about "):
        td.predict_many({"rtt": rtt, "loss": np.full(300, 0.001)}, flow=SPEECH)


@pytest.mark.parametrize(
    ("table", "more", "message"),
    [
        ({"packet_size": [99]}, {}, "flow must be a Flow for a table with packet sizes or intervals"),
        ({}, {"call": td.CallTarget()}, "flow must be a Flow .* and for the rating of a call"),
        ({}, {"stack": td.Stack.newreno_2008()}, "stack must be .*"),
    ],
)
def test_tables_that_do_not_go_with_a_source_are_refused(table, more, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        td.predict_many({"rtt": [0.1], "loss": [0.01], **table}, flow=SPEECH, **more)


def test_the_command_simulates_a_source(run, tmp_path):
    (tmp_path / "paths.csv").write_text("rtt_ms,loss\n100,0.01\n300,0.02\n")
    arguments = ("batch", str(tmp_path / "paths.csv"), "--app", "voip", "--talk", "1s", "-o", str(tmp_path / "out.csv"))
    status, _, errors = run(*arguments)
    assert status == 0, errors
    assert pd.read_csv(tmp_path / "out.csv")["verdict"].tolist() == ["works", "fails"]
    (tmp_path / "paths.csv").write_text("rtt_ms,loss,interval_ms\n100,0.01,20\n")
    status, _, errors = run(*arguments)
    assert (status, errors) == (
        2,
        "tcpdelay batch: --talk: does not go with a table that has the column 'interval_ms'\n",
    )
