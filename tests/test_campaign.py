import json
import os
import re
import threading
import time
from array import array
from dataclasses import dataclass, field, replace
from inspect import signature

import numpy as np
import pytest

import tcpdelay as td
from synthetic_captures import capture, flow_run, write
from tcpdelay import __version__
from tcpdelay.capture.flow_capture import (
    NOT_READ,
    SAMPLE_FIELDS,
    CaptureFile,
    read_capture,
    write_capture,
)
from tcpdelay.testbed import campaign
from tcpdelay.testbed.backends import (
    HostBackend,
    SessionFailedError,
    UmlBackend,
    VirtualTimeBackend,
    run_plan,
    write_plan,
)
from tcpdelay.testbed.campaign import Precision, Progress, Specification, run_campaign, targets_of
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.experiment_run import Plan
from tcpdelay.testbed.flows import FlowRecord, TcpInfo, read_records, write_records
from tcpdelay.testbed.workplaces import parent_of_workplaces

STARTED = 5_000_000_000
EPOCH = 1_700_000_000_000_000_000


pytestmark = pytest.mark.usefixtures("temporary_directory")


def recorded(experiment, seed, index):
    """Records that follow from the experiment, the seed and its place alone."""
    rng = np.random.default_rng([seed, index])
    interval = round(1e9 * experiment.interval)
    size = round(experiment.duration / experiment.interval)
    records = []
    for flow in range(experiment.flows):
        written = STARTED + interval * np.arange(size)
        read = written + np.round(1e9 * (experiment.rtt / 2 + rng.exponential(0.02, size))).astype(np.int64)
        samples = {name: array("q", [number, 2 * number]) for number, name in enumerate(signature(TcpInfo).parameters)}
        samples |= {"time": array("q", [STARTED + 1_000_000, STARTED + 2_000_400]), "connection": array("q", [0, 1])}
        counts = {"data_sent": size, "data_dropped": 2}
        written, read = array("q", written.tolist()), array("q", read.tolist())
        records.append(FlowRecord(flow, STARTED, EPOCH, {"RetransSegs": 2}, counts, written, read, samples))
    return records


@dataclass
class FakeBackend:
    """A kernel that measures at once."""

    ticks: int = 250
    name: str = "uml-virtual"
    real_time: bool = False
    sessions: list[Plan] = field(default_factory=list)
    cores: list[int] = field(default_factory=list)
    fails_at: str | None = None
    trouble: list[str] = field(default_factory=list)
    during: object = None

    def problems(self):
        return self.trouble

    def hz(self):
        return self.ticks

    @property
    def label(self):
        return f"hz{self.ticks}"

    def kernel(self, directory):
        return "6.1.0-fake"

    def run(self, plan, directory, core, on_progress):
        assert all(file.suffix == ".messages" for file in directory.iterdir())
        self.sessions.append(plan)
        self.cores.append(core)
        on_progress(0.5)
        if self.during:
            self.during(plan, directory)
        (directory / "stalls").write_text(json.dumps([STARTED + 3_000_000, 6_000_000]))
        for index, experiment in enumerate(plan.experiments):
            if experiment.name == self.fails_at:
                raise SessionFailedError("the guest failed: out of memory")
            if plan.pcap:
                for end in ("sender", "receiver"):
                    (directory / f"{index}.{end}.pcap").write_text(f"{experiment.name} {end}")
            write_records(directory, index, recorded(experiment, plan.seed, index))
        on_progress(1.0)

    @property
    def plans(self):
        """What ran, in an order that does not depend on the threads."""
        return sorted(
            (plan.seed, [(experiment.name, experiment.duration) for experiment in plan.experiments])
            for plan in self.sessions
        )


@pytest.fixture
def backend(monkeypatch):
    """The only backend; `during` may do more while a session runs."""
    backend = FakeBackend()
    monkeypatch.setattr(campaign, "VirtualTimeBackend", lambda hz, kernel: backend)
    return backend


def experiments(count, **settings):
    return tuple(Experiment(**{"packet_size": 100 + n, "loss": 0.02, "duration": 10, **settings}) for n in range(count))


FOUR = Specification("four", experiments(4), side_by_side=2)
PRECISE = replace(FOUR, precision=Precision(half_width=0.01, utilization=0.9, max_duration=80))


def measured(directory):
    """What the captures of a directory hold of what was measured, by their names."""
    return {
        file.stem: [(run.run, run.flow, run.seed, run.written.tolist(), run.delay.tolist()) for run in capture.runs]
        for file in sorted(directory.glob("*.parquet"))
        for capture in [read_capture(file)]
    }


def test_messages_are_those_of_the_seed_and_each_flow_and_run_has_its_own(backend, tmp_path):
    source = {"kind": "video", "bitrate": 1e5, "frame_rate": 50, "seed": 3}
    experiment = Experiment.from_table({"source": source, "loss": 0.02, "flows": 2, "duration": 10})
    # Unlike anything else, a short capture of random delays is not precise.
    specification = Specification("video", (experiment,), precision=Precision(1e-6, 0.9, 20))
    (file,) = run_campaign(specification, tmp_path)
    found = read_capture(file)
    assert found.settings["source"] == experiment.source.table
    assert [(run.run, run.flow) for run in found.runs] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for run, seed in zip(found.runs, (3, 4, 5, 6), strict=True):
        written = td.Video(1e5, frame_rate=50).messages(10, seed)
        assert run.messages.kinds == ("other frame", "key frame")
        assert run.messages.sizes.tolist() == written["size"].tolist()
        assert run.messages.kind_numbers.tolist() == written["kind"].tolist()
    assert run_campaign(specification, tmp_path) == [file]
    assert len(backend.sessions) == 2


def stamps(directory):
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in directory.iterdir()}


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_campaign_makes_a_capture_of_every_experiment(backend, tmp_path):
    output = tmp_path / "new" / "captures"
    files = run_campaign(FOUR, output)
    assert files == [output / f"{experiment.name}-hz250.parquet" for experiment in FOUR.experiments]
    assert sorted(output.iterdir()) == sorted(files)
    assert [[experiment.name for experiment in plan.experiments] for plan in backend.sessions] in (
        [[e.name for e in FOUR.experiments[:2]], [e.name for e in FOUR.experiments[2:]]],
        [[e.name for e in FOUR.experiments[2:]], [e.name for e in FOUR.experiments[:2]]],
    )
    for file, experiment in zip(files, FOUR.experiments, strict=True):
        found = read_capture(file)
        assert found.settings == json.loads(experiment.to_json())
        assert found.offered == 500


def test_a_capture_holds_what_was_handed_over(backend, tmp_path):
    def hand_over(plan, directory):
        (directory / "stalls").write_text(json.dumps([STARTED + 3_000_000, 6_000_499]))
        written = array("q", [STARTED, STARTED + 20_000_499, STARTED + 40_000_500])
        read = array("q", [STARTED + 50_000_499, NOT_READ, STARTED + 90_001_001])
        samples = {name: array("q", [number]) for number, name in enumerate(signature(TcpInfo).parameters, start=10)}
        samples |= {"time": array("q", [STARTED + 1_600]), "connection": array("q", [3])}
        flow = FlowRecord(0, STARTED, EPOCH, {"TCPTimeouts": 4}, {"data_sent": 5}, written, read, samples)
        write_records(directory, 0, [flow])
        raise SessionFailedError("and then failed")

    backend.during = hand_over
    with pytest.raises(SessionFailedError, match="and then failed"):
        run_campaign(Specification("one", experiments(1)), tmp_path)
    (file,) = tmp_path.glob("*.parquet")
    (run,) = read_capture(file).runs
    assert run.written.tolist() == [0, 20_000, 40_001]
    assert run.delay.tolist() == [50_000, NOT_READ, 50_001]
    assert (run.stall_time.tolist(), run.stall_length.tolist()) == ([3000], [6000])
    assert (run.run, run.flow, run.backend, run.hz, run.kernel) == (0, 0, "uml-virtual", 250, "6.1.0-fake")
    assert (run.counters, run.packets, run.epoch, run.tool) == (
        {"TCPTimeouts": 4},
        {"data_sent": 5},
        EPOCH,
        __version__,
    )
    assert run.seed == backend.sessions[0].seed
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", run.recorded)
    number = {name: 10 + place for place, name in enumerate(signature(TcpInfo).parameters)}
    assert {name: values.tolist() for name, values in run.samples.items()} == {
        "time": [2],
        "connection": [3],
        "cwnd": [number["snd_cwnd"]],
        "ssthresh": [number["snd_ssthresh"]],
        "unacked": [number["unacked"]],
        "rtt": [number["rtt"]],
        "retransmits": [number["total_retrans"]],
        "reordering": [number["reordering"]],
        "delivery_rate": [number["delivery_rate"]],
    }
    assert set(run.samples) == set(SAMPLE_FIELDS)


def test_all_flows_of_an_experiment_are_in_its_capture(backend, tmp_path):
    (file,) = run_campaign(Specification("flows", experiments(1, flows=3)), tmp_path)
    assert [(run.run, run.flow) for run in read_capture(file).runs] == [(0, 0), (0, 1), (0, 2)]


def test_what_is_there_is_not_captured_again(backend, tmp_path):
    files = run_campaign(PRECISE, tmp_path)
    before, sessions = stamps(tmp_path), len(backend.sessions)
    assert run_campaign(PRECISE, tmp_path) == files
    assert stamps(tmp_path) == before
    assert len(backend.sessions) == sessions


def test_only_what_is_missing_is_captured_and_written(backend, tmp_path):
    files = run_campaign(FOUR, tmp_path)
    before, whole, plans = stamps(tmp_path), measured(tmp_path), backend.plans
    files[1].unlink()
    backend.sessions.clear()
    run_campaign(FOUR, tmp_path)
    # With it runs what ran beside it, for each experiment to see the same, but that is not written again.
    (again,) = backend.plans
    assert again in plans
    assert [name for name, _ in again[1]] == [experiment.name for experiment in FOUR.experiments[:2]]
    after = stamps(tmp_path)
    assert [name for name in before if before[name] != after[name]] == [files[1].name]
    assert measured(tmp_path) == whole


@pytest.mark.parametrize("place", range(4))
def test_a_failure_keeps_what_was_finished_and_the_next_run_goes_on(backend, tmp_path, place):
    uninterrupted = tmp_path / "uninterrupted"
    run_campaign(FOUR, uninterrupted)
    output = tmp_path / "captures"
    backend.fails_at = FOUR.experiments[place].name
    with pytest.raises(SessionFailedError, match="out of memory") as error:
        run_campaign(FOUR, output)
    one_line(error)
    kept = measured(output)
    lost = [experiment.name for experiment in FOUR.experiments[place : (place // 2 + 1) * 2]]
    assert not {f"{name}-hz250" for name in lost} & set(kept)
    # The experiment before it in the same session had been handed over.
    if place % 2:
        assert f"{FOUR.experiments[place - 1].name}-hz250" in kept
    before = stamps(output)
    backend.fails_at = None
    run_campaign(FOUR, output)
    assert measured(output) == measured(uninterrupted)
    assert {name: stamp for name, stamp in stamps(output).items() if name in before} == before


def test_a_set_gets_the_captures_that_it_lacks(backend, tmp_path):
    file = tmp_path / "four.parquet"
    run_campaign(replace(FOUR, experiments=FOUR.experiments[:2]), file)
    backend.fails_at = FOUR.experiments[3].name
    with pytest.raises(SessionFailedError):
        run_campaign(replace(FOUR, side_by_side=1), file)
    backend.fails_at = None
    assert run_campaign(replace(FOUR, side_by_side=1), file) == [file]
    # The lines of a specification are the captures of its set, and only what was missing has run.
    assert CaptureFile(file).names == sorted(f"{experiment.name}-hz250" for experiment in FOUR.experiments)
    assert not (tmp_path / "four").exists()
    ran = [experiment.name for plan in backend.sessions for experiment in plan.experiments]
    assert [ran.count(experiment.name) for experiment in FOUR.experiments] == [1, 1, 1, 2]


def test_an_interrupt_ends_the_sessions_and_keeps_what_was_finished(backend, tmp_path):
    def on_progress(progress):
        if len(list(tmp_path.glob("*.parquet"))) >= 2:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SessionFailedError)):
        run_campaign(replace(FOUR, side_by_side=1), tmp_path, on_progress)
    assert 2 <= len(measured(tmp_path)) <= 3
    assert list(parent_of_workplaces().iterdir()) == []


def test_each_round_doubles_what_was_measured_until_the_longest_duration(backend, tmp_path):
    told = []
    specification = replace(PRECISE, experiments=PRECISE.experiments[:1])
    (file,) = run_campaign(specification, tmp_path, told.append)
    found = read_capture(file)
    assert [plan.experiments[0].duration for plan in backend.sessions] == [10, 10, 20, 40]
    assert [run.run for run in found.runs] == [0, 1, 2, 3]
    assert [run.written.size for run in found.runs] == [500, 500, 1000, 2000]
    assert len({run.seed for run in found.runs}) == 4
    # The settings are those of the experiment, whatever was added.
    assert found.settings["duration"] == 10
    assert [run.samples["time"].size > 0 for run in found.runs] == [True, False, False, False]
    assert [(progress.round, progress.total) for progress in told[::2]] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_rounds_stop_where_the_precision_is_reached(backend, tmp_path):
    wide, narrow = (replace(PRECISE.precision, half_width=width, max_duration=640) for width in (0.9, 0.04))
    run_campaign(replace(PRECISE, precision=wide), tmp_path / "wide")
    assert all(len(runs) == 1 for runs in measured(tmp_path / "wide").values())
    run_campaign(replace(PRECISE, precision=narrow), tmp_path / "narrow")
    lengths = []
    for file in (tmp_path / "narrow").iterdir():
        found = read_capture(file)
        lengths.append(len(found.runs))
        reached = [
            campaign.quantile_interval([run.delays for run in found.runs[:count]], 0.95).relative_half_width <= 0.04
            for count in range(1, len(found.runs) + 1)
        ]
        # It is what was measured until then that decides, and nothing is measured beyond.
        assert not any(reached[:-1])
        assert reached[-1] or len(found.runs) == 7
    assert max(lengths) > 1


@pytest.mark.parametrize(
    "experiment",
    [
        Experiment(application="udp", loss=0.02, duration=10),
        Experiment(application="adaptive", loss=0.02, duration=10),
        # More than the path carries.
        Experiment(packet_size=1448, rtt=0.3, loss=0.1, duration=10),
        # Fewer packets than batches.
        Experiment(interval=5, loss=0.02, duration=10),
    ],
    ids=lambda experiment: experiment.name,
)
def test_precision_is_for_flows_that_fit_their_path(backend, tmp_path, experiment):
    (file,) = run_campaign(replace(PRECISE, experiments=(experiment,)), tmp_path)
    assert len(read_capture(file).runs) == 1


def test_sessions_do_not_depend_on_what_is_there_already(backend, tmp_path):
    complete = tmp_path / "complete"
    run_campaign(PRECISE, complete)
    plans = backend.plans
    names = sorted(complete.iterdir())
    for kept_runs in (1, 2):
        partial = tmp_path / f"partial-{kept_runs}"
        partial.mkdir()
        for file in names[::2]:
            found = read_capture(file)
            write_capture(partial / file.name, replace(found, runs=found.runs[:kept_runs]))
        backend.sessions.clear()
        run_campaign(PRECISE, partial)
        assert all(plan in plans for plan in backend.plans)
        assert 0 < len(backend.plans) <= len(plans)
        assert measured(partial) == measured(complete)


def test_rounds_do_not_depend_on_later_ones(backend, tmp_path):
    """What was measured later would end the rounds of a capture too early, and change who runs beside whom."""
    precision = replace(PRECISE.precision, half_width=0.04, max_duration=640)
    specification = replace(PRECISE, precision=precision, side_by_side=4)
    files = run_campaign(specification, tmp_path)
    whole, plans = measured(tmp_path), backend.plans
    longest = max(files, key=lambda file: len(whole[file.stem]))
    assert len({len(runs) for runs in whole.values()}) > 1
    longest.unlink()
    backend.sessions.clear()
    run_campaign(specification, tmp_path)
    assert all(plan in plans for plan in backend.plans)
    assert measured(tmp_path) == whole


def test_other_seeds_give_other_sessions(backend, tmp_path):
    run_campaign(FOUR, tmp_path / "one")
    run_campaign(replace(FOUR, seed=2), tmp_path / "two")
    seeds = [plan.seed for plan in backend.sessions]
    assert len(set(seeds)) == len(seeds) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_every_tick_rate_has_captures_of_its_own(monkeypatch, tmp_path):
    backends = {hz: FakeBackend(ticks=hz) for hz in (250, 1000)}
    monkeypatch.setattr(campaign, "VirtualTimeBackend", lambda hz, kernel: backends[hz])
    files = run_campaign(replace(FOUR, hz=(250, 1000)), tmp_path)
    assert [file.stem.rpartition("-")[2] for file in files] == ["hz250"] * 4 + ["hz1000"] * 4
    assert [run.hz for file in files for run in read_capture(file).runs] == [250] * 4 + [1000] * 4
    assert [len(backend.sessions) for backend in backends.values()] == [2, 2]


def test_targets_follow_the_specification():
    targets = targets_of(replace(FOUR, hz=(250, 1000)))
    assert [(target.experiment, target.backend.hz()) for target in targets] == [
        (experiment, hz) for hz in (250, 1000) for experiment in FOUR.experiments
    ]
    for name, kind in (("uml-virtual", VirtualTimeBackend), ("uml", UmlBackend), ("host", HostBackend)):
        assert all(type(target.backend) is kind for target in targets_of(replace(FOUR, backend=name)))


def test_every_version_has_captures_of_its_own():
    targets = targets_of(replace(FOUR, hz=(250, 1000), kernel=("6.1", "7.3")))
    names = [target.name.removeprefix(target.experiment.name) for target in targets[:: len(FOUR.experiments)]]
    assert names == ["-hz250", "-hz1000", "-hz250-linux7.3", "-hz1000-linux7.3"]


def concurrency(backend, tmp_path, cores):
    """The most sessions that ran at a time, each of which waits a while for the others."""
    running, most, lock = set(), [], threading.Lock()

    def wait(plan, directory):
        with lock:
            running.add(directory)
            most.append(len(running))
        deadline = time.monotonic() + 0.2
        while len(running) < cores and time.monotonic() < deadline:
            time.sleep(0.005)
        with lock:
            running.remove(directory)

    backend.during = wait
    run_campaign(replace(FOUR, side_by_side=1), tmp_path)
    return max(most)


def test_virtual_time_uses_every_core_and_real_time_one(backend, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    assert concurrency(backend, tmp_path / "virtual", 3) == 3
    assert set(backend.cores) == {3, 5, 7}
    backend.real_time = True
    backend.cores.clear()
    assert concurrency(backend, tmp_path / "real", 2) == 1
    assert len(set(backend.cores)) == 1
    assert [plan.heartbeat for plan in backend.sessions] == [False] * 4 + [True] * 4


def test_the_progress_grows_to_the_whole(backend, tmp_path):
    told = []
    run_campaign(replace(FOUR, experiments=FOUR.experiments[:3]), tmp_path, told.append)
    assert sorted(progress.done for progress in told) == [progress.done for progress in told]
    assert told[-1] == Progress(0, 3.0, 3)


def test_traces_come_along(backend, tmp_path):
    (file,) = run_campaign(Specification("traced", experiments(1), pcap=True), tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.glob("*.pcap")} == {
        f"{file.stem}.run0.{end}.pcap": f"{file.stem.removesuffix('-hz250')} {end}" for end in ("sender", "receiver")
    }


def test_a_backend_that_does_not_work_is_told_before_anything_is_made(backend, tmp_path):
    backend.trouble = ["no kernel with virtual time at 250 Hz"]
    with pytest.raises(ValueError, match=r"^backend 'uml-virtual' does not work here: no kernel with") as error:
        run_campaign(FOUR, tmp_path / "output")
    one_line(error)
    assert not (tmp_path / "output").exists()


def test_a_capture_of_other_settings_is_told_and_kept(backend, tmp_path):
    files = run_campaign(FOUR, tmp_path)
    before = stamps(tmp_path)
    longer = replace(FOUR, experiments=experiments(4, duration=20))
    with pytest.raises(ValueError, match=r"is a capture of other settings; remove it or choose") as error:
        run_campaign(longer, tmp_path)
    assert one_line(error).startswith(f"{files[0]}: ")
    assert stamps(tmp_path) == before


def test_a_capture_of_an_older_version_is_one_of_these_settings(backend, tmp_path):
    files = run_campaign(FOUR, tmp_path)
    backend.sessions.clear()
    for file in files[:2]:
        capture = read_capture(file)
        settings = dict(capture.settings)
        # Settings that were added later.
        del settings["bad_time"], settings["bad_loss"]
        write_capture(file, replace(capture, settings=settings))
    assert run_campaign(FOUR, tmp_path) == files
    assert backend.sessions == []
    write_capture(files[0], replace(capture, settings=settings | {"bad_time": 2.0}))
    with pytest.raises(ValueError, match="is a capture of other settings"):
        run_campaign(FOUR, tmp_path)


def test_a_damaged_capture_is_told_and_kept(backend, tmp_path):
    files = run_campaign(FOUR, tmp_path)
    files[2].write_bytes(files[2].read_bytes()[:-9])
    before = stamps(tmp_path)
    backend.sessions.clear()
    with pytest.raises(ValueError, match="is no Parquet file") as error:
        run_campaign(FOUR, tmp_path)
    assert one_line(error).startswith(f"{files[2]}: ")
    assert stamps(tmp_path) == before
    assert backend.sessions == []


def test_two_runs_do_not_share_a_directory(backend, tmp_path):
    errors = []

    def run_another(plan, directory):
        with pytest.raises(ValueError, match="another run writes its captures there") as error:
            run_campaign(FOUR, tmp_path)
        errors.append(one_line(error))

    backend.during = run_another
    run_campaign(replace(FOUR, side_by_side=4), tmp_path)
    assert errors == [f"{tmp_path}: another run writes its captures there"]
    # The refused one has not disturbed the other, and with its end the directory is free.
    backend.during = None
    run_campaign(FOUR, tmp_path)
    assert len(measured(tmp_path)) == 4


def test_what_a_killed_run_left_is_removed_and_nothing_else(backend, tmp_path):
    (tmp_path / ".tcpdelay-1f.part").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, capture([flow_run([0.1])], name="other"))
    run_campaign(FOUR, tmp_path)
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert ".tcpdelay-1f.part" not in names
    assert {"notes.txt", "other.parquet"} <= names


def test_sessions_leave_nothing_behind(backend, tmp_path, temporary_directory):
    seen = []
    backend.during = lambda plan, directory: seen.append(directory)
    run_campaign(FOUR, tmp_path)
    assert all(directory.is_relative_to(temporary_directory) for directory in seen)
    assert list(parent_of_workplaces().iterdir()) == []


# Handing over


def test_records_are_read_as_they_were_written(tmp_path):
    records = recorded(Experiment(flows=3, duration=1), 7, 0)
    assert read_records(tmp_path, 4) is None
    write_records(tmp_path, 4, records)
    write_records(tmp_path, 5, recorded(Experiment(duration=2), 8, 0))
    assert read_records(tmp_path, 4) == records
    assert read_records(tmp_path, 3) is None


def test_a_plan_is_read_as_it_was_written(tmp_path, monkeypatch):
    plan = Plan(list(experiments(3)), 5, heartbeat=False, pcap=True)
    written = []
    monkeypatch.setattr(Plan, "run", lambda plan, directory: written.append((plan, directory)))
    write_plan(plan, tmp_path)
    run_plan(str(tmp_path))
    assert written == [(plan, tmp_path)]
