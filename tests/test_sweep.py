import json
import math
import sys
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.declare import Quantity
from tcpdelay.models.heuristics import parallel_delay, split_delay, striped_delay
from tcpdelay.scenario.stack import Linux, NewReno2008, Quic
from tcpdelay.study import execution
from tcpdelay.study.execution import Executor, Results, Schedule, SweepFailedError, work_through
from tcpdelay.study.grid import run_seed
from tcpdelay.study.sweep.run import SWEPT, kind_variables, row_type, sweep_runs
from tcpdelay.study.sweep.specification import PARAMETERS, Evaluation, read_sweep

VOICE = {"packet_size": 174, "interval": "20ms"}
SMALL = {"flow": VOICE, "grid": {"rtt": ["50ms", "100ms"], "loss": ["1%", "2%"]}}
EXAMPLES = Path(__file__).parents[1] / "examples"


def with_changes(**tables):
    return {**SMALL, **tables}


def test_every_parameter_of_flow_path_and_tcp_can_be_swept():
    owned = {field.name for owner in (td.Flow, td.Path, Linux, NewReno2008, Quic) for field in fields(owner)}
    assert owned | {"bitrate", "profile", "connections", "pieces"} == set(PARAMETERS)


def test_nothing_that_is_worked_out_is_named_like_a_parameter():
    assert not set(PARAMETERS) & {*SWEPT, "refused", "refusals"}
    names = {name for method in ("chain", "simulation") for name in row_type(Evaluation(method=method)).names}
    assert names == set(SWEPT)
    assert not any(hasattr(xr.Dataset, name) for name in SWEPT)


def test_a_chain_is_asked_as_predict_delay_asks_it():
    grid = {"bitrate": ["64kbit/s", "200kbit/s"], "variant": ["reno", "sack"], "loss": [0.01]}
    result = td.sweep(
        {
            "flow": {"packet_size": "160B"},
            "path": {"rtt": "100ms", "one_way_delay": "30ms"},
            "stack": {"profile": "newreno_2008", "limited_transmit": True},
            "grid": grid,
            "evaluate": {"quantiles": [0.9, 0.99], "late_after": ["100ms", "0.15s"]},
        }
    )
    assert result.sizes == {"bitrate": 2, "variant": 2, "loss": 1, "quantile": 2, "late_after": 2, "refusal": 1}
    for bitrate, interval in ((64e3, 0.02), (200e3, 0.0064)):
        for variant in ("reno", "sack"):
            stack = td.Stack.newreno_2008(variant, limited_transmit=True, backlog_bound="grow")
            flow, path = td.Flow(160, interval), td.Path(0.1, 0.01, one_way_delay=0.03)
            expected = td.DelayModel(flow, path, stack).delay_distribution()
            point = result.sel(bitrate=bitrate, variant=variant, loss=0.01)
            assert point.mean_delay == expected.mean
            assert point.standard_deviation == expected.std
            assert point.delay.values.tolist() == [expected.quantile(0.9), expected.quantile(0.99)]
            assert point.late_fraction.values.tolist() == [expected.late_fraction(0.1), expected.late_fraction(0.15)]
            assert point.sustainable == expected.sustainable
    assert result.validated.values.tolist() == [[[False]] * 2] * 2  # 160 bytes are below the published range
    assert result.bitrate.units == "bit/s"
    assert result.delay.units == "s"


def test_a_simulation_can_be_repeated_from_its_seed():
    asked = {"method": "simulation", "packets": 2000, "seed": 7, "replications": 2}
    result = td.sweep(with_changes(evaluate=asked))
    assert result.delay.dims == ("rtt", "loss", "replication", "quantile")
    assert np.unique(result.seed).size == 8
    point = result.sel(rtt=0.1, loss=0.02).isel(replication=1)
    again = td.simulate(td.Flow(174, 0.02), td.Path(0.1, 0.02), packets=2000, seed=int(point.seed))
    assert point.mean_delay == again.mean
    assert point.delay.sel(quantile=0.95) == again.quantile(0.95)
    assert point.mean_half_width == pytest.approx(again.mean_interval.high - again.mean)
    assert td.sweep(with_changes(evaluate=asked), workers=1).identical(result)


def test_seeds_depend_on_sweep_point_and_replication_alone():
    seeds = {run_seed(seed, *place) for seed in (0, 1) for place in np.ndindex(50, 4)}
    assert len(seeds) == 400
    assert all(0 <= seed == int(float(seed)) for seed in seeds)
    asked = {"method": "simulation", "packets": 1000, "seed": 3, "replications": 3}
    runs = sweep_runs(read_sweep(with_changes(evaluate=asked)))
    assert work_through(runs, 8, 9).values["seed"] == run_seed(3, 2, 2)


def test_heuristics_are_those_of_the_library():
    heuristics = {"connections": [1, 3], "pieces": [1, 2]}
    result = td.sweep(
        {"flow": {"packet_size": 1200, "interval": "20ms"}, "path": {"rtt": "100ms", "loss": "2%"}, "grid": heuristics}
    )
    flow, path = td.Flow(1200, 0.02), td.Path(0.1, 0.02)
    striped, split = parallel_delay(flow, path, connections=3), split_delay(flow, path, pieces=2)
    assert result.mean_delay.sel(connections=3, pieces=1) == striped.mean
    assert result.mean_delay.sel(connections=1, pieces=2) == split.mean
    both = striped_delay(split_delay(td.Flow(1200, 0.06), path, pieces=2), 0.02, connections=3)
    assert result.mean_delay.sel(connections=3, pieces=2) == both.mean


def test_refused_points_say_why_and_stop_nothing():
    result = td.sweep(with_changes(path={"reordering": 0.01}, grid={"rtt": [0.05], "loss": [0.01, 0.02]}))
    assert result.refused.values.tolist() == [[1, 1]]
    assert result.refusals.values[1].startswith("reordering must be 0 in the chain")
    assert np.isnan(result.delay).all()
    assert not result.sustainable.any()
    mixed = td.sweep(with_changes(grid={"rtt": [0.05, 0.1], "loss": [0.01], "one_way_delay": [0.03, 0.08]}))
    assert mixed.refused.squeeze("loss").values.tolist() == [[0, 1], [0, 0]]
    assert "one_way_delay must lie between 0 and 0.05" in mixed.refusals.values[1]


BAD = [
    ({"flows": {}}, "unknown table [flows]; allowed are [flow], [path], [stack], [heuristics], [source], [grid]"),
    ({"flow": 3}, "flow must be a table, got 3"),
    ({"method": "simulation"}, "method: belongs in the table [evaluate]"),
    ({"rtt": 0.1}, "rtt: belongs in the table [path]"),
    ({"key_ratio": 8}, "key_ratio: belongs in the table [source]"),
    ({"path": {"packets": 5000}}, "[path] packets: belongs in the table [evaluate]"),
    ({"flow": {"size": 3}}, "[flow] unknown key 'size'; allowed are packet_size, interval, write_jitter, bitrate"),
    ({"grid": {"rrt": [1]}}, "[grid] unknown key 'rrt'; did you mean rtt?"),
    ({"flow": {"packet_size": 174, "interval": "20"}}, "[flow] interval: '20' has no unit; write 20ms or 20s"),
    ({"flow": {"packet_size": 174, "interval": 20.0}}, None),
    ({"flow": {"packet_size": 174, "interval": 200}}, "[flow] interval must lie between 1e-07 and 60 s, got 200"),
    ({"flow": {"packet_size": 174}}, "[flow] and [grid] must give two of packet_size, interval and bitrate, got pack"),
    ({"path": {"jitter": "2s"}}, "[path] jitter must lie between 0 and 1 s, got 2"),
    ({"stack": {"delayed_ack": "yes"}}, "[stack] delayed_ack must be true or false, got 'yes'"),
    ({"stack": {"profile": "bsd"}}, "[stack] profile must be one of 'linux', 'newreno_2008', 'quic', got 'bsd'"),
    ({"stack": {"variant": "sack"}}, "variant: goes with profile 'newreno_2008', which the sweep does not have"),
    ({"heuristics": {"pieces": 65}}, "[heuristics] pieces must be a whole number from 1 to 64, got 65"),
    ({"grid": {}}, "[grid] must vary at least one parameter"),
    ({"grid": {"rtt": ["50ms"]}}, "loss is missing; give it in [path] or [grid]"),
    ({"grid": {"rtt": "50ms", "loss": [0.1]}}, "[grid] rtt must be a list of 1 to 100000 values or a table with from"),
    ({"grid": {"rtt": [], "loss": [0.1]}}, "[grid] rtt must be a list of 1 to 100000 values"),
    ({"grid": {"rtt": [0.1], "loss": [2]}}, "[grid] loss must be a fraction from 0 to below 1, got 2"),
    ({"grid": {"rtt": [0.1, "100ms"], "loss": [0.1]}}, "[grid] rtt: has the value 0.1 more than once"),
    ({"grid": {"rtt": [0.1], "loss": [0.1], "interval": [0.1]}}, "[grid] interval: is fixed by [flow] already"),
    ({"grid": {"rtt": {"from": 0.1, "to": 1}, "loss": [0.1]}}, "[grid] rtt: points is missing; a range has from, to"),
    ({"grid": {"rtt": {"from": 1, "to": 0.1, "points": 3}, "loss": [0.1]}}, "[grid] rtt: from must be below to"),
    (
        {"grid": {"rtt": [0.1], "loss": {"from": 0, "to": 0.1, "points": 3, "spacing": "log"}}},
        "[grid] loss: from must be above 0 and below to",
    ),
    (
        {"grid": {"rtt": [0.1], "loss": [0.1], "hz": {"from": 100, "to": 103, "points": 9}}},
        "[grid] hz: the range has fewer than 9 different whole numbers",
    ),
    (
        {"grid": {"rtt": [0.1], "loss": [0.1], "delayed_ack": {"from": False, "to": True, "points": 2}}},
        "[grid] delayed_ack: cannot have a range of values; write a list",
    ),
    ({"evaluate": {"method": "magic"}}, "[evaluate] method must be one of 'chain', 'simulation', got 'magic'"),
    ({"evaluate": {"packets": 5000}}, "[evaluate] packets: goes with method = 'simulation', not with 'chain'"),
    ({"evaluate": {"quantiles": [0.5, 1.0]}}, "[evaluate] quantiles must be fractions above 0 and below 1, got 1"),
    ({"evaluate": {"quantiles": [0.9, 0.5]}}, "[evaluate] quantiles must ascend, got [0.9, 0.5]"),
    (
        {"evaluate": {"method": "simulation", "packets": 10}},
        "[evaluate] packets must be a whole number from 1000 to 1000000000, got 10",
    ),
    ({"output": {"file": "x.csv"}}, "[output] file must be the name of a file that ends in .nc, got 'x.csv'"),
    ({"output": {"file": "\0.nc"}}, r"[output] file must be the name of a file that ends in .nc, got '\x00.nc'"),
    (
        {
            "grid": {
                "rtt": {"from": "1ms", "to": "1s", "points": 10_000},
                "loss": {"from": 0.0, "to": 0.5, "points": 10_000},
            }
        },
        "[grid] spans 100000000 points with their replications; at most 50000000",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_what_is_wrong_with_a_specification_is_said_in_one_line(change, message):
    if message is None:
        read_sweep(with_changes(**change))
        return
    with pytest.raises(ValueError, match=r"^specification: ") as caught:
        read_sweep(with_changes(**change))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*PARAMETERS, "from", "to", "points", "quantiles", "late_after", "method", "seed", "file"])
TABLES = st.sampled_from(["flow", "path", "stack", "heuristics", "grid", "evaluate", "output", "?"])


@settings(max_examples=60)
@given(st.dictionaries(TABLES, st.dictionaries(KEYS, ANYTHING, max_size=3), max_size=4), st.booleans())
def test_nonsense_is_refused_in_one_line(tables, beside_sound_ones):
    try:
        read_sweep({**SMALL, **tables} if beside_sound_ones else tables)
    except ValueError as error:
        said = str(error)
    else:
        said = ""
    assert said.isprintable()


@given(
    st.lists(st.integers(1, 9999), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True),
    st.permutations(["rtt", "loss", "congestion_control"]),
)
def test_units_and_comments_do_not_matter_but_order_does(milliseconds, percent, order):
    written = {"rtt": [f"{time} ms" for time in milliseconds], "loss": [f"{share}%" for share in percent]}
    plain = {"rtt": [time / 1000 for time in milliseconds], "loss": [share / 100 for share in percent]}
    controls = {"congestion_control": ["reno", "cubic"]}
    one, other = (
        read_sweep({"flow": VOICE, "grid": {name: {**axes, **controls}[name] for name in order}})
        for axes in (written, plain)
    )
    assert one == other
    assert one.digest == other.digest
    # As nested loops over the axes would have it, the last one innermost.
    values = {**plain, **controls}
    expected = [dict(zip(order, each, strict=True)) for each in _product([values[name] for name in order])]
    grid = sweep_runs(one).grid
    assert [grid.values_at(point) for point in range(grid.size)] == expected


def _product(lists):
    if not lists:
        return [()]
    return [(value, *rest) for value in lists[0] for rest in _product(lists[1:])]


@settings(max_examples=30)
@given(st.integers(2, 200), st.sampled_from(["linear", "log"]))
def test_a_range_has_both_its_ends_and_equal_steps(points, spacing):
    table = {"from": "10ms", "to": "1s", "points": points, "spacing": spacing}
    (axis, _) = read_sweep({"flow": VOICE, "grid": {"rtt": table, "loss": [0.01]}}).axes
    assert (axis.values[0], axis.values[-1], len(axis.values)) == (0.01, 1.0, points)
    steps = np.diff(axis.values if spacing == "linear" else np.log(axis.values))
    assert np.allclose(steps, steps.mean(), rtol=1e-6)


class Elsewhere(Pool):
    """Workers that answer at once, in any order, and die of some runs."""

    def __init__(self, deadly=(), deaths=math.inf):
        self.deadly, self.deaths, self.asked = deadly, deaths, []

    def submit(self, function, specification, start, stop, *arguments):
        self.asked.append((start, stop))
        future = Future()
        if self.deaths > 0 and any(start <= run < stop for run in self.deadly):
            self.deaths -= 1
            future.set_exception(LostWorkerError())
        else:
            try:
                # Not all that is asked for, as if time had run out.
                future.set_result(function(specification, start, max(start + 1, stop - 1), *arguments))
            except Exception as error:
                future.set_exception(error)
        return future

    def workers(self, width=3):
        return Executor(self, lambda: width, (LostWorkerError,), remote=True)


class LostWorkerError(Exception):
    pass


def scheduled(specification, elsewhere, store=lambda rows: None):
    runs = sweep_runs(specification)
    results = Results(runs.size, runs.row_type)
    Schedule(runs, results, elsewhere.workers(), store, lambda progress: None).run()
    return results


def test_runs_whose_workers_die_are_given_out_anew():
    specification = read_sweep(with_changes(grid={"rtt": [0.05, 0.1], "loss": {"from": 0.01, "to": 0.05, "points": 9}}))
    calm, dying = Elsewhere(), Elsewhere(deadly=(3, 11), deaths=5)
    expected = scheduled(specification, calm)
    assert scheduled(specification, dying).values.tobytes() == expected.values.tobytes()
    assert dying.deaths == 0


def test_a_run_that_kills_every_worker_is_named_and_the_others_are_kept():
    specification = read_sweep(with_changes(grid={"rtt": [0.05, 0.1], "loss": {"from": 0.01, "to": 0.05, "points": 9}}))
    kept = []
    with pytest.raises(SweepFailedError, match="run 7 repeatedly ended its workers"):
        scheduled(specification, Elsewhere(deadly=(7,)), kept.append)
    assert all(not rows.start <= 7 < rows.stop for rows in kept)


class OtherProgram(Elsewhere):
    """Workers that are asked by a process with another program."""

    def submit(self, function, work, start, stop, expected_program, *arguments):
        assert expected_program == execution.program()
        return super().submit(function, work, start, stop, "tcpdelay 0.0.1", *arguments)


def test_workers_with_another_program_are_refused():
    with pytest.raises(SweepFailedError, match=r"a worker runs tcpdelay .* but the sweep tcpdelay 0.0.1; install the"):
        scheduled(read_sweep(SMALL), OtherProgram())


def test_a_worker_that_fails_is_named_in_one_line(monkeypatch):
    elsewhere = Elsewhere()
    monkeypatch.setattr(execution, "work_through", lambda *arguments: [][1])
    with pytest.raises(SweepFailedError, match=r"a worker failed: IndexError: list index out of range$"):
        scheduled(read_sweep(SMALL), elsewhere)


def test_where_dask_is_missing_it_is_said_how_to_get_it(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    status, _, errors = run("sweep", EXAMPLES / "sweep.toml", "-o", "none.nc", "--scheduler", "tcp://127.0.0.1:1")
    assert status == 2
    missing = "must be left out where Dask is missing (pip install 'tcpdelay[cluster]'), got 'tcp://127.0.0.1:1'"
    assert errors == f"tcpdelay sweep: --scheduler: {missing}\n"


def test_time_ends_a_part_but_not_before_its_first_run():
    specification = read_sweep(SMALL)
    runs = sweep_runs(specification)
    assert work_through(runs, 1, 4, budget=0.0).values.size == 1
    assert work_through(runs, 1, 4).stop == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be a whole number from 1 to 256, got 0"),
        ({"workers": 2, "scheduler": "tcp://127.0.0.1:1"}, "workers must be left out with a scheduler, got 2"),
        ({"output": "result.csv"}, "output must be the name of a file that ends in .nc, got 'result.csv'"),
        ({"output": "nowhere/result.nc"}, "output must be in a folder that exists, got 'nowhere/result.nc'"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        td.sweep(SMALL, **options)


def test_a_result_is_the_same_from_its_file(tmp_path, monkeypatch):
    grid = {"delayed_ack": [True, False], "congestion_control": ["reno", "cubic"], "loss_burst": [1, 3], "mss": [536]}
    asked = {"flow": VOICE, "path": {"rtt": 0.1, "loss": 0.02}, "grid": grid, "output": {"file": "named.nc"}}
    monkeypatch.chdir(tmp_path)
    result = td.sweep(asked)
    with xr.open_dataset(tmp_path / "named.nc") as opened:
        assert opened.load().identical(result)
    assert result.delayed_ack.dtype == bool
    assert result.rtt.item() == 0.1
    assert json.loads(result.specification)["evaluate"]["method"] == "chain"


def test_the_command_says_what_it_costs_and_what_it_made(run, refused, tmp_path):
    grid = '[grid]\nrtt = ["50ms", "0.1s"]\nloss = ["1%"]\nloss_burst = [1, 3]\n'
    (tmp_path / "sweep.toml").write_text(f'[flow]\npacket_size = 174\ninterval = "20ms"\n{grid}')
    status, printed, errors = run("sweep", "sweep.toml", "--dry-run")
    assert (status, errors) == (0, "")
    assert printed.startswith("sweep.toml: 2 rtt x 1 loss x 2 loss_burst = 4 points, by chain\n4 tried here: ")
    assert "; 2 refused\nall: about 1 s of one processor" in printed
    assert not list(tmp_path.glob("*.nc*"))
    errors = refused("sweep", "sweep.toml")
    assert (
        errors == "tcpdelay sweep: --output: is missing, and sweep.toml names no file in [output]; write -o sweep.nc\n"
    )
    status, printed, errors = run("sweep", "sweep.toml", "-o", "sweep.nc", "--workers", "2")
    assert (status, printed) == (0, "sweep.nc\n")
    start = "warning: 2 of 4 runs were refused, the first because loss_burst must be at most 2 in the chain, got 3"
    assert errors.startswith(start)
    (tmp_path / "sweep.toml").write_text("[grid]\nspeed = [1]\n")
    status, printed, errors = run("sweep", "sweep.toml", "-o", "other.nc")
    assert (status, printed) == (2, "")
    assert errors.startswith(
        "tcpdelay sweep: sweep.toml: [grid] unknown key 'speed'; allowed are packet_size, interval,"
    )
    assert (
        run("sweep", "nowhere.toml")[2] == "tcpdelay sweep: nowhere.toml: cannot be read: No such file or directory; "
        "tcpdelay sweep --help shows a specification\n"
    )


def test_the_example_can_be_swept():
    specification = read_sweep(EXAMPLES / "sweep.toml")
    assert specification.shape == (2, 2, 13, 4)
    assert work_through(sweep_runs(specification), 100, 101).refusals.tolist() == [""]


def test_progress_is_told_of_all_runs():
    shown = []
    td.sweep(SMALL, workers=1, on_progress=shown.append)
    assert (shown[-1].done, shown[-1].total, shown[-1].workers) == (4, 4, 1)


def test_values_are_read_by_their_kind():
    declared = {name: parameter.declaration for name, parameter in PARAMETERS.items()}
    assert declared["packet_size"].read("packet_size", "1.4kB") == 1400
    assert declared["packet_size"].read("packet_size", 1400.0) == 1400
    assert isinstance(declared["rtt"].read("rtt", 1), float)
    for name, declaration in declared.items():
        kind = declaration.kind
        for wrong in (
            None,
            [],
            {},
            *([True] if kind != "flag" else [1]),
            *([1] if kind == "word" else []),
        ):
            with pytest.raises(ValueError, match=f"^{name} must be "):
                declaration.read(name, wrong)
        if isinstance(declaration, Quantity):
            with pytest.raises(ValueError, match=f"^{name}"):
                declaration.read(name, "nonsense")


VIDEO = {"kind": "video", "frame_rate": 25, "variation": 0.2}
REPLIES = {"kind": "utterances", "packet_size": 964, "interval": "20ms"}
SIMULATED = {"method": "simulation", "packets": 3000, "seed": 5}
SOURCE_SWEEP = {
    "source": VIDEO,
    "path": {"rtt": "50ms", "loss": "1%"},
    "grid": {"bitrate": ["300kbit/s", "600kbit/s"], "key_ratio": {"from": 4, "to": 8, "points": 2}},
    "evaluate": SIMULATED,
}


def test_fields_of_a_source_can_be_swept_and_agree_with_simulate():
    result = td.sweep(SOURCE_SWEEP)
    assert dict(result.sizes) | {"refusal": 1} == {
        "bitrate": 2,
        "key_ratio": 2,
        "quantile": 3,
        "late_after": 1,
        "refusal": 1,
    }
    assert (result.bitrate.units, float(result.refused.max())) == ("bit/s", 0)
    point = result.sel(bitrate=6e5, key_ratio=4.0)
    video = td.Video(6e5, 25, key_ratio=4, variation=0.2)
    again = td.simulate(video, td.Path(0.05, 0.01), packets=3000, seed=int(point.seed))
    assert point.mean_delay == again.mean
    assert point.delay.sel(quantile=0.95) == again.quantile(0.95)
    assert point.delay_key_frame.sel(quantile=0.5) == again.by_kind["key frame"].quantile(0.5)
    assert point.delay_other_frame.sel(quantile=0.95) == again.by_kind["other frame"].quantile(0.95)
    # Three of 60 key frames are expected beyond the 95th percentile.
    assert np.isnan(point.delay_key_frame.sel(quantile=0.95))
    assert (point.delay_key_frame.units, "'key frame'" in point.delay_key_frame.long_name) == ("s", True)
    assert json.loads(result.attrs["specification"])["source"]["kind"] == "video"


def test_kinds_whose_labels_differ_in_a_sign_have_variables_of_their_own():
    trace = td.Trace([0.0, 1.0, 2.0], [1, 1, 1], labels=["I-frame", "I frame", "P"])
    assert sorted(kind_variables(trace).values()) == ["delay_I_frame_0", "delay_I_frame_1", "delay_P"]


def test_the_bitrate_axis_scales_a_trace_whose_file_is_beside_the_specification(tmp_path):
    rows = [f"{0.02 * n:.2f},{3000 if n % 5 == 0 else 500}" for n in range(5000)]
    (tmp_path / "frames.csv").write_text("time,size\n" + "\n".join(rows) + "\n")
    (tmp_path / "sweep.toml").write_text(
        '[source]\nkind = "trace"\nfile = "frames.csv"\n[path]\nrtt = "50ms"\nloss = "1%"\n'
        '[grid]\nbitrate = ["200kbit/s", "400kbit/s"]\n[evaluate]\nmethod = "simulation"\npackets = 2000\n'
    )
    result = td.sweep(tmp_path / "sweep.toml")
    trace = td.Trace.read(tmp_path / "frames.csv").at_bitrate(4e5)
    point = result.sel(bitrate=4e5)
    assert point.mean_delay == td.simulate(trace, td.Path(0.05, 0.01), packets=2000, seed=int(point.seed)).mean
    before = read_sweep(tmp_path / "sweep.toml").digest
    (tmp_path / "frames.csv").write_text("time,size\n" + "\n".join(rows[:-1]) + "\n")
    assert read_sweep(tmp_path / "sweep.toml").digest != before


def test_a_source_of_constant_rate_has_the_figures_of_a_flow():
    flow = td.sweep(with_changes(evaluate=SIMULATED))
    source = td.sweep({"source": {"kind": "flow", **VOICE}, "grid": SMALL["grid"], "evaluate": SIMULATED})
    for name in ("mean_delay", "delay", "late_fraction", "utilization", "seed"):
        np.testing.assert_array_equal(flow[name], source[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flow": VOICE}, r"\[flow\] does not go with \[source\]"),
        ({"heuristics": {"pieces": 2}}, r"\[heuristics\] does not go with \[source\]"),
        ({"source": {**VIDEO, "seed": 3}}, r"\[source\] seed: belongs in \[evaluate\]"),
        ({"source": {**VIDEO, "key_ratio": 8}}, r"\[grid\] key_ratio: is fixed by \[source\] already"),
        ({"source": {"kind": "film"}}, "source.kind must be one of"),
        ({"source": 5}, "source must be a table"),
        ({"grid": {"key_ratio": [4]}}, "source: bitrate missing for 'video'"),
        ({"grid": {"bitrate": [3e5], "pieces": [1, 2]}}, r"\[grid\] unknown key 'pieces'"),
        ({"grid": {"bitrate": [3e5], "key_ratio": [0.5]}}, r"\[grid\] key_ratio must lie between 1 and 1000 times"),
        (
            {"source": REPLIES, "grid": {"speed": [2, 4]}, "evaluate": {}},
            r"\[evaluate\] method: the chain does not model this source; write method = 'simulation'",
        ),
    ],
)
def test_a_wrong_sweep_of_a_source_is_refused_in_one_line(changes, message):
    with pytest.raises(ValueError, match=f"^specification: {message}") as caught:
        read_sweep({**SOURCE_SWEEP, **changes})
    assert "\n" not in str(caught.value)
