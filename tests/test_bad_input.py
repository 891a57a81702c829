"""Bad input: one line that says what is wrong, for wrong types, odd text, deep or long files, and odd scenarios."""

import contextlib
import gzip
import inspect
import io
import math
import struct
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tcpdelay as td
from odd_scenarios import Worker, compile_all
from scoring.odd_scenarios import INTERVAL, LOSS, LOSS_GROWTH, RTT, SIZE, OddScenario
from tcpdelay.capture.get_stats import read_reports
from tcpdelay.capture.pcap.container import CaptureFile
from tcpdelay.chain import engine as model
from tcpdelay.cli.options import OPTIONS
from tcpdelay.cli.program import main
from tcpdelay.declare import InvalidValueError
from tcpdelay.report.document import Column, ResultTable
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.study.tables.files import reading_csv, table_fault

# Whatever is typed

EXAMPLES = Path(__file__).parents[1] / "examples"
PATH_OPTIONS = ["--rtt", "100ms", "--loss", "2%"]
VOIP = [*PATH_OPTIONS, "--app", "voip"]
NUMBERS = st.sampled_from(
    ["0", "-0", "-1", "1", "2", "100", "0.02", "1e-9", "1e9", "1e308", "1e999", "nan", "inf", "-inf", "0x10", "1,5"]
) | st.sampled_from(["1_000", "\u0663", "½", "", "9" * 70, "+5", "1..2", ".", "1e", "--"])
UNITS = st.sampled_from(
    ["", "%", "%%", " %", "s", "ms", "us", "µs", "MS", "min", "m", "h", "B", "kB", "GB", "bit", "bit/s", "kbit/s"]
) | st.sampled_from(["Gbit/s", "bps", " ", "\t", "\u017f", "\u202e", "[red]", "\x1b[0m", "\n", "\U0001f4a5"])
WORDS = st.sampled_from(["voip", "game", "random", "bytes", "sack", "grow", "json", "csv", "a b", "./", "no/such/file"])
VALUES = st.builds("{}{}".format, NUMBERS, UNITS) | WORDS | st.text(max_size=12)
VALUED = [f"--{name.replace('_', '-')}" for name in OPTIONS]
GIVEN = st.tuples(st.sampled_from(VALUED), VALUES)
BASE = st.sampled_from(
    [[], PATH_OPTIONS, VOIP, [*PATH_OPTIONS, "--bitrate", "64kbit/s"], ["--ping", str(EXAMPLES / "ping.txt")]]
)
EXTRA = (
    st.just([])
    | VALUES.map(lambda value: [value])
    | st.sampled_from(
        [
            ["--limited-transmit"],
            ["--format", "csv"],
            ["--chart", "x.gif"],
            ["--chart", ""],
            ["--nonsense"],
            ["--"],
            ["-"],
        ]
    )
)


@settings(max_examples=500)
@given(base=BASE, options=st.lists(GIVEN, max_size=3), extra=EXTRA)
def test_whatever_is_typed_gives_an_answer_or_one_line(base, options, extra):
    arguments = ["predict", *base, *(word for option in options for word in option), *extra]
    printed, errors = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
    ):
        # Larger chains are refused, so that no input takes long.
        patched.setattr(model, "MOST_MEMORY", 2**22)
        status = main(arguments)
    complaints = [line for line in errors.getvalue().split("\n")[:-1] if not line.startswith("warning: ")]
    if status == 0:
        assert not complaints
        assert printed.getvalue()
    else:
        assert (status, printed.getvalue(), len(complaints)) == (2, "", 1)
        assert complaints[0].startswith("tcpdelay predict: ")
        assert complaints[0].isprintable()


# Input that is deep, long, folded in on itself or full of control characters

HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101)
CALL = ["report", "--rtt", "100ms", "--loss", "2%", "--packet-size", "174", "--interval", "20ms"]


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("lines", [1, 2])
def test_deep_statistics_are_refused_in_one_line(opened, closed, lines):
    deep = [opened * 100_000, "1" + closed * 100_000]
    with pytest.raises(ValueError, match=r"^stats\.json: is nested too deeply for statistics of getStats$"):
        list(read_reports(deep if lines == 2 else ["".join(deep)], "stats.json"))


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links")
def test_an_output_at_a_loop_of_links_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    monkeypatch.setattr("tcpdelay.report.guideline.guideline", lambda *_, **__: pytest.fail("worked"))
    assert main([*CALL, "-o", str(loop)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tcpdelay report: --output: ")
    assert "cannot be written: Too many levels of symbolic links" in said
    assert said.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a working directory cannot be removed")
def test_a_removed_working_directory_is_named(tmp_path, capsys, monkeypatch):
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()

    def ask(*_, **__):
        Path.cwd()

    monkeypatch.setattr("tcpdelay.cli.program.program", lambda *_: type("Asking", (), {"main": ask}))
    assert main(["paths"]) == 1
    assert capsys.readouterr().err == "tcpdelay: the working directory has been removed; change to another one\n"


def test_a_row_that_is_too_long_is_told_in_own_words(tmp_path):
    for rows in (f"a,80,{'1' * 3_000_000}%\n", "a,80,1%\n" * 200_000 + f"a,80,{'1' * 40_000_000}%\n"):
        table = tmp_path / "users.csv"
        table.write_text("user,rtt_ms,loss\n" + rows)
        with pytest.raises(pa.ArrowInvalid) as fault, reading_csv(table, {}) as reader:
            reader.read_all()
        assert "a row is too long: at most 16 MiB are read" in str(table_fault(table, "csv", fault.value))


def test_packets_of_no_bytes_and_what_no_capture_is_packed_like_are_refused(tmp_path):
    capture = tmp_path / "zeros.pcap.gz"
    capture.write_bytes(gzip.compress(HEADER + bytes(30_000_000)))
    with pytest.raises(ValueError, match="is damaged: a packet of no bytes at packet 1"):
        list(CaptureFile(capture))
    packet = struct.pack("<IIII", 0, 0, 60_000, 60_000) + bytes(60_000)
    capture.write_bytes(gzip.compress(HEADER + packet * 600))
    with pytest.raises(ValueError, match="is damaged: it unpacks to more than 400 times its size"):
        list(CaptureFile(capture))


def test_control_characters_do_not_reach_the_terminal():
    table = ResultTable("t", "Shares", (Column("region", "region"),), [{"region": "a\x1b[31m\nb"}])
    assert "a\\x1b[31m\\nb" in table.to_text()
    assert "\\x1b" in table.to_markdown()
    assert "\x1b" not in table.to_text() + table.to_markdown()


# Wrong types in calls of the public functions

FLOW, PATH = td.Flow(174, 0.020), td.Path(0.100, 0.02)
LEG = (PATH, td.Stack.linux())
VALID = {
    "flow": FLOW,
    "source": td.Utterances(960, 0.020, speed=3),
    "path": PATH,
    "stack": None,
    "bitrate": 64_000.0,
    "late_fraction": 0.01,
    "request_size": 100,
    "response_size": 100,
    "sources": [td.ConstantRate(path=td.SharedPath(0.01), stack=td.Stack.linux(), flow=FLOW)],
    "bottleneck": td.Bottleneck(1e6, capacity=50),
    "duration": 10.0,
    "first": LEG,
    "second": LEG,
    "table": {"rtt": [0.1], "loss": [0.02]},
    "specification": {
        "flow": {"packet_size": 174, "interval": "20ms"},
        "grid": {"loss": ["1%", "2%"], "rtt": ["0.1s"]},
    },
    "before": object.__new__(td.Guideline),
    "after": object.__new__(td.Guideline),
    "boundaries": {},
    "region": xr.Dataset(coords={"rtt": [0.05, 0.1], "loss": [0.01, 0.02]}),
}
WRONG = {
    "an object": object(),
    "a complex number": 1j,
    "a list": ["chain"],
    "a text": "1000",
    "None": None,
    "bytes": b"1",
    "no number": math.nan,
    "a number below 0": -1,
}
FUNCTIONS = {name: value for name in td.__all__ if inspect.isfunction(value := getattr(td, name))}
ARGUMENTS = [
    pytest.param(name, parameter, id=f"{name}-{parameter.name}")
    for name, function in FUNCTIONS.items()
    for parameter in inspect.signature(function).parameters.values()
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD
]


def is_wrong(value, annotation):
    """Whether a value is of a wrong type by the words of an annotation."""
    if value is None:
        return "None" not in annotation and annotation != "Any"
    if isinstance(value, str):
        return "str" not in annotation
    if isinstance(value, bytes):
        return "Sequence[" not in annotation
    # A number of a list is named by its own name.
    return not isinstance(value, (int, float)) or "Sequence[" not in annotation


@pytest.mark.parametrize(("name", "parameter"), ARGUMENTS)
def test_a_wrong_type_is_refused_in_one_line_that_names_the_argument(name, parameter):
    function = FUNCTIONS[name]
    given = {
        each.name: VALID[each.name]
        for each in inspect.signature(function).parameters.values()
        if (each.default is inspect.Parameter.empty or each.name in ("flow", "path")) and each.name in VALID
    }
    for kind, value in WRONG.items():
        if not is_wrong(value, parameter.annotation):
            continue
        with pytest.raises(InvalidValueError) as refused:
            function(**(given | {parameter.name: value}))
        said = str(refused.value)
        assert said.startswith(parameter.name), (kind, said)
        assert "\n" not in said


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: td.simulate(FLOW, PATH, packets="1000"),
            "packets must be a whole number from 1000 to 1e9, got '1000'",
        ),
        (lambda: td.simulate(FLOW, PATH, seed=1.5), "seed must be a whole number, 0 or more, got 1.5"),
        (
            lambda: td.best_split(FLOW, PATH, pieces=(1, "2")),
            "pieces must hold whole numbers above 0, one at least, got (1, '2')",
        ),
        (lambda: td.loss_rtt_frontier(FLOW, 0.1, rtts=[0.05]), "path must be a Path, got 0.1"),
        (lambda: td.guideline(FLOW, PATH, target="0.2"), "target must be a Target, got '0.2'"),
        (lambda: td.predict_delay(FLOW, PATH, method="chains"), "method must be one of 'chain', 'simulation', 'auto'"),
    ],
)
def test_the_error_says_what_is_allowed(call, said):
    with pytest.raises(InvalidValueError) as refused:
        call()
    assert str(refused.value).startswith(said)


RECORDS = {
    td.Bottleneck: {"rate": 1e6, "capacity": 50},
    td.SharedPath: {"access_delay": 0.01},
    td.CallTarget: {},
    **{source: {"path": td.SharedPath(0.01), "stack": LEG[1]} for source in (td.Bulk, td.Transfers, td.Web)},
    td.ConstantRate: {"path": td.SharedPath(0.01), "stack": LEG[1], "flow": FLOW},
}


@pytest.mark.parametrize(
    ("record", "field"),
    [(record, field) for record in RECORDS for field in fields(record)],
    ids=lambda value: getattr(value, "name", None) or value.__name__,
)
def test_a_field_of_a_wrong_type_is_refused_in_one_line_that_names_it(record, field):
    annotation = str(inspect.signature(record).parameters[field.name].annotation).replace("Optional", "None")
    for kind, value in (WRONG | {"a broken number": 1.5}).items():
        number = isinstance(value, (int, float))
        allowed = (value is None and "None" in annotation) or (isinstance(value, str) and "str" in annotation)
        if allowed or (number and "float" in annotation):
            continue
        with pytest.raises(InvalidValueError) as refused:
            record(**(RECORDS[record] | {field.name: value}))
        said = str(refused.value)
        assert said.startswith(f"{field.name} must "), (kind, said)
        assert "\n" not in said


DELAYS = td.DelayDistribution(np.array([0.05, 0.15]), np.array([0.7, 0.3]) * (1 - 1e-10), one_way_delay=0.05)


@pytest.mark.parametrize(
    "method", ["late_fraction", "cdf", "quantile", "known_quantile", "meets", "expected_error_of", "late_error"]
)
@pytest.mark.parametrize(
    "value", ["200ms", None, object(), [[0.1], [0.1, 0.2]]], ids=("text", "None", "object", "ragged")
)
def test_figures_of_a_distribution_refuse_what_is_no_number(method, value):
    with pytest.raises(InvalidValueError, match=r"^\w+ must be a (number|Target)"):
        getattr(DELAYS, method)(value)


@pytest.mark.parametrize("value", ["200ms", None, td.Target(0.2)], ids=("text", "None", "target"))
def test_errors_of_simulations_refuse_what_is_no_number(value):
    flow = td.ConstantRate(path=td.SharedPath(0.01), stack=td.Stack.linux(), flow=FLOW)
    shared = td.simulate_network([flow], td.Bottleneck(1e6, capacity=50), duration=5.0).flows[0]
    for found in (td.simulate(FLOW, PATH, packets=1000), shared):
        with pytest.raises(InvalidValueError, match=r"^\w+ must be a number of seconds"):
            found.late_error(value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: FLOW.messages(1.0, seed=math.inf), "seed must be a whole number, 0 or more, got inf"),
        (lambda: FLOW.scale_to(10**400), "bitrate must be a number of bit/s above 0, got 1e"),
        (lambda: td.Path.preset(["lte"]), r"path must be one of same-city, .*, got \['lte'\]"),
        (lambda: DELAYS.known_quantile([]), r"probability must be a number, 0 to 1, got \[\]"),
    ],
)
def test_huge_numbers_and_lists_are_refused_like_other_values(call, said):
    with pytest.raises(InvalidValueError, match=f"^{said}"):
        call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (td.Target(0.2).allows, "late_fraction must be a number"),
        (td.LognormalSizes(1000, 0.5).at, "probability must be a number"),
        (td.ParetoSizes(100, 1.5).at, "probability must be a number"),
        (td.EmpiricalSizes([100, 200]).at, "probability must be a number"),
        (lambda value: td.DelayModel(FLOW, PATH, LEG[1]).lateness(value, 0.95), "limit must be a number of seconds"),
    ],
)
def test_methods_refuse_what_is_no_number(call, said):
    for value in ("0.5", None, object(), 1j):
        with pytest.raises(InvalidValueError, match=f"^{said}"):
            call(value)


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_sizes_have_quantiles_of_probabilities_below_1(value):
    for sizes in (td.LognormalSizes(1000, 0.5), td.ParetoSizes(100, 1.5), td.EmpiricalSizes([100, 200])):
        with pytest.raises(InvalidValueError, match=r"^probability must be at least 0 and below 1"):
            sizes.at([0.5, value])


def test_every_packet_is_later_than_a_negative_delay():
    assert DELAYS.late_fraction(-1) == 1.0
    assert DELAYS.cdf(-1) == 0.0


def test_a_whole_number_may_be_written_as_a_float():
    assert td.simulate(FLOW, PATH, packets=2e3, seed=1.0).seed == 1


# Scenarios far beyond the validated range: a sound answer or one clear line, within 20 s and 4 GiB. A Hypothesis
# profile with another number of examples than the default asks about as many scenarios.

SCENARIO_COUNT = 20 if settings.default.max_examples == 100 else settings.default.max_examples
"""Number of scenarios of each test."""


def between(bounds: tuple[float, float]) -> st.SearchStrategy[float]:
    """Return a strategy for values between two bounds, uniform in the logarithm."""
    low, high = bounds
    return st.floats(0.0, 1.0).map(lambda share: low * (high / low) ** share)


STACKS = st.builds(
    td.Stack.linux,
    st.sampled_from(["cubic", "reno", "bbr"]),
    hz=st.sampled_from([100, 250, 1000]),
    mss=st.sampled_from([536, 1448, 8948]),
)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Return a process with a limit of its memory, and a clock for each call."""
    compile_all()
    started = Worker(max_seconds=1.0)
    yield started
    started.close()


@pytest.mark.parametrize("method", ["chain", "simulation"])
@settings(max_examples=SCENARIO_COUNT, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(between(SIZE), between(INTERVAL), between(RTT), between(LOSS), between(LOSS_GROWTH), STACKS)
def test_an_odd_scenario_ends_well(worker, method, size, interval, rtt, loss, growth, stack):
    path = td.Path(rtt=rtt, loss=min(loss, LOSS[1]))
    scenario = Scenario(td.Flow(round(size), min(interval, INTERVAL[1])), path, stack)
    found, _ = worker.ask(OddScenario(scenario, method, min(loss * growth, LOSS[1])))
    assert found.fault == ""


@pytest.mark.filterwarnings("ignore::tcpdelay.accuracy.validity.ValidityWarning")
def test_a_flow_whose_recoveries_never_end_is_not_carried():
    # The window has some 750 segments. To rounding, none of its rounds in the recovery is without a loss.
    flow, bbr = td.Flow(45, 0.00231), td.Stack.linux("bbr")
    few, many = (
        td.predict_delay(flow, td.Path(rtt=1.74, loss=loss), bbr, method="chain", max_seconds=30.0)
        for loss in (0.02, 0.07)
    )
    assert few.sustainable
    assert not many.sustainable


@pytest.mark.filterwarnings("ignore::tcpdelay.accuracy.validity.ValidityWarning")
@pytest.mark.parametrize("loss", [0.00186, 0.00188, 0.002, 0.0074])
def test_a_flow_at_a_third_of_the_capacity_is_carried(loss):
    # Timeouts of 775 slots, and an RTT of a twentieth of a slot: the iteration is slow, and some backlogs are so rare
    # that their probability has no inverse.
    flow, path = td.Flow(4030, 0.000258), td.Path(rtt=1.43e-5, loss=loss)
    found = td.predict_delay(flow, path, td.Stack.linux("reno", hz=300), method="chain")
    assert found.sustainable
    assert found.quantile(0.95) < 0.001
