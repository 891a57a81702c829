"""Sweeps that are interrupted, damaged, short of room or killed, also on a cluster: what is finished is never lost."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from cli_process import ROOT, process
from dask_cluster import running_cluster, until
from tcpdelay.study import execution
from tcpdelay.study.execution import program, work_through
from tcpdelay.study.sweep import run as kept_on_disk
from tcpdelay.study.sweep.run import (
    MANIFEST,
    DamagedCheckpointWarning,
    Origin,
    Part,
    checkpoint,
    read_part,
    sweep,
    sweep_runs,
    write_part,
)
from tcpdelay.study.sweep.specification import read_sweep
from test_sweep import ANYTHING, EXAMPLES, SMALL, with_changes

MARK = 42.0
"""Standard deviation that no evaluation gives."""


def stored_half(output, specification):
    """Keep the first two of the four runs of SMALL, as an interrupted sweep does; return the part."""
    with checkpoint(output, specification) as kept:
        kept.store(work_through(sweep_runs(specification), 0, 2))
    return output.with_name(f"{output.name}.parts") / "runs-0000000000-0000000002.npz.gz"


def test_what_is_stored_is_not_evaluated_again(tmp_path):
    output, specification = tmp_path / "result.nc", read_sweep(SMALL)
    expected = td.sweep(SMALL, tmp_path / "expected.nc")
    part = stored_half(output, specification)
    rows = read_part(part).rows
    # The mark shows where the result has these values from.
    rows.values["standard_deviation"] = MARK
    with checkpoint(output, specification) as kept:
        kept.store(rows)
    result = td.sweep(SMALL, output)
    assert result.standard_deviation.values.ravel()[:2].tolist() == [MARK, MARK]
    assert result.delay.equals(expected.delay)


def test_a_folder_that_nothing_shows_to_be_a_sweeps_is_left_alone(tmp_path):
    output = tmp_path / "result.nc"
    folder = tmp_path / "result.nc.parts"
    folder.mkdir()
    (folder / MANIFEST).write_text("[]")
    other = folder / "notes.txt"
    other.write_text("of somebody else")
    with pytest.raises(ValueError, match="is not the folder of a sweep; name another output"):
        td.sweep(SMALL, output)
    assert other.read_text() == "of somebody else"
    assert (folder / MANIFEST).read_text() == "[]"


@pytest.mark.parametrize("damage", [b"", b"PK\3\4 and then nothing"])
def test_a_damaged_part_is_made_again(tmp_path, damage):
    output = tmp_path / "result.nc"
    stored_half(output, read_sweep(SMALL)).write_bytes(damage)
    (tmp_path / "result.nc.parts" / ".tcpdelay-0123.part").write_bytes(damage)
    with pytest.warns(DamagedCheckpointWarning, match="1 of 1 parts were damaged; their runs are done again"):
        td.sweep(SMALL, output)
    td.sweep(SMALL, tmp_path / "expected.nc")
    assert output.read_bytes() == (tmp_path / "expected.nc").read_bytes()


@st.composite
def damaged(draw, whole):
    """Draw what may have become of a file's content: cut short, a bit turned, or something else altogether."""
    place = draw(st.integers(0, len(whole) - 1))
    turned = whole[:place] + bytes([whole[place] ^ 1 << draw(st.integers(0, 7))]) + whole[place + 1 :]
    other = st.binary(max_size=8) | ANYTHING.map(lambda held: json.dumps(held).encode())
    return draw(st.just(whole[:place]) | st.just(turned) | other)


def same(one, other):
    return one.origin == other.origin and one.rows.values.tobytes() == other.rows.values.tobytes()


@settings(max_examples=200)
@given(st.data())
def test_no_damage_of_a_part_escapes(kept_marked, data):
    _, folder = kept_marked
    part = folder / "runs-0000000000-0000000002.npz.gz"
    whole = part.read_bytes()
    with TemporaryDirectory() as directory:
        copy = Path(directory, part.name)
        copy.write_bytes(data.draw(damaged(whole)))
        read = read_part(copy)
        # gzip's time stamp and the like carry nothing.
        assert read is None or same(read, read_part(part))
        copy.write_bytes(whole)
        assert read_part(copy).rows.stop == 2


@settings(max_examples=100)
@given(st.data())
def test_no_damage_of_the_mark_loses_what_is_finished(kept_marked, data):
    output, folder = kept_marked
    manifest = folder / MANIFEST
    whole = manifest.read_bytes()
    manifest.write_bytes(data.draw(damaged(whole)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedCheckpointWarning)
        with checkpoint(output, read_sweep(SMALL)) as kept:
            (rows,) = kept.stored()
    assert rows.values["standard_deviation"].tolist() == [MARK, MARK]
    assert json.loads(manifest.read_bytes()) == json.loads(whole)


@pytest.fixture(scope="module")
def kept_marked(tmp_path_factory):
    """The output of an interrupted sweep, and the folder in which the first two of its four runs are kept, marked."""
    output, specification = tmp_path_factory.mktemp("kept") / "result.nc", read_sweep(SMALL)
    part = stored_half(output, specification)
    rows = read_part(part).rows
    rows.values["standard_deviation"] = MARK
    with checkpoint(output, specification) as kept:
        kept.store(rows)
    return output, part.parent


@pytest.mark.parametrize("damage", ["{", None])
def test_without_its_mark_a_sweep_goes_on_if_the_parts_are_its_own(tmp_path, run, damage):
    (tmp_path / "spec.toml").write_text(
        '[flow]\npacket_size = 174\ninterval = "20ms"\n[grid]\nrtt = ["50ms", "100ms"]\nloss = ["1%", "2%"]\n'
    )
    output, other = tmp_path / "result.nc", with_changes(grid={"rtt": [0.1], "loss": [0.01]})
    manifest = stored_half(output, read_sweep(SMALL)).with_name(MANIFEST)
    if damage is None:
        manifest.unlink()
    else:
        manifest.write_text(damage)
    with pytest.raises(ValueError, match="holds another specification's points; remove it, or name another output"):
        td.sweep(other, output)
    status, printed, errors = run("sweep", "spec.toml", "-o", "result.nc")
    assert (status, printed) == (0, "result.nc\n")
    wrong = "missing" if damage is None else "damaged"
    rest = "and is written again; every part is checked separately"
    assert errors == f"warning: result.nc.parts/sweep.json: was {wrong}, {rest}\n"
    td.sweep(SMALL, tmp_path / "expected.nc")
    assert output.read_bytes() == (tmp_path / "expected.nc").read_bytes()


def test_what_cannot_be_written_is_named_and_the_rest_is_kept(tmp_path, run, monkeypatch):
    monkeypatch.setattr(execution, "MOST_RUNS_IN_PART", 1)
    synced, sync = [], os.fsync

    def fill_the_disk(file):
        synced.append(file)
        # Each file takes two: itself, and its entry in the folder.
        if len(synced) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fill_the_disk)
        status, _, errors = run("sweep", EXAMPLES / "sweep.toml", "-o", "full.nc")
    assert status == 2
    assert errors.startswith(
        "tcpdelay sweep: full.nc.parts: cannot be written: No space left on device; finished runs "
    )
    assert errors.endswith("kept in full.nc.parts; the same command continues from there\n")
    assert sorted(file.name for file in (tmp_path / "full.nc.parts").iterdir())[1:] == [MANIFEST]


def test_what_belongs_to_something_else_is_left_alone(tmp_path, monkeypatch):
    output, other = tmp_path / "result.nc", with_changes(grid={"rtt": [0.1], "loss": [0.01]})
    part = stored_half(output, read_sweep(SMALL))
    with pytest.raises(ValueError, match="holds another specification's points; remove it, or name another output"):
        td.sweep(other, output)
    with monkeypatch.context() as patched:
        patched.setattr(kept_on_disk, "program", lambda: "tcpdelay 9.9")
        with pytest.raises(ValueError, match=r"was begun by tcpdelay .*, but this is tcpdelay 9.9; finish it"):
            td.sweep(SMALL, output)
    manifest = part.with_name(MANIFEST)
    held = json.loads(manifest.read_text())
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    manifest.write_text(json.dumps({**held, "program": "tcpdelay 0.0.1"}))
    with pytest.raises(ValueError, match=r"was begun by tcpdelay 0.0.1, but this is .*; finish it there, or remove it"):
        td.sweep(SMALL, output)
    part.unlink()
    manifest.rename(manifest.with_name("other.json"))
    with pytest.raises(ValueError, match="is not the folder of a sweep; name another output"):
        td.sweep(SMALL, output)
    manifest.write_text(json.dumps(held))
    part.write_bytes(whole)
    stray = part.with_name("runs-0000000002-0000000003.npz.gz")
    write_part(stray, Part(read_part(part).rows, Origin("0f", program())))
    with pytest.raises(ValueError, match="holds another specification's points"):
        td.sweep(SMALL, output)
    stray.unlink()
    assert part.exists()
    finished = tmp_path / "finished.nc"
    result = td.sweep(SMALL, finished)
    written = finished.stat().st_mtime_ns
    assert td.sweep(SMALL, finished).identical(result)
    assert finished.stat().st_mtime_ns == written
    stored_half(finished, read_sweep(SMALL))
    assert td.sweep(SMALL, finished).identical(result)
    assert not (tmp_path / "finished.nc.parts").exists()
    with pytest.raises(ValueError, match="holds the result of another specification"):
        td.sweep(other, finished)
    for content in (b"", b"no netCDF"):
        finished.write_bytes(content)
        with pytest.raises(ValueError, match="exists, and is not the result of a sweep; name another output"):
            td.sweep(SMALL, finished)


def test_two_sweeps_do_not_share_an_output(tmp_path):
    in_use = pytest.raises(ValueError, match="another sweep writes its points there")
    with checkpoint(tmp_path / "result.nc", read_sweep(SMALL)), in_use:
        td.sweep(SMALL, tmp_path / "result.nc")


# A real cluster of processes, and whatever is killed on the way

SPECIFICATION = """
[flow]
packet_size = 174
interval = "20ms"
[grid]
rtt = { from = "20ms", to = "90ms", points = 20 }
loss = { from = "0.5%", to = "3%", points = 15, spacing = "log" }
congestion_control = ["cubic", "reno"]
loss_burst = [1, 3]
[evaluate]
late_after = ["150ms", "200ms"]
"""
RUNS = 1200
SIMULATED = """
[flow]
packet_size = 174
interval = "20ms"
[grid]
rtt = { from = "20ms", to = "90ms", points = 10 }
loss = { from = "0.5%", to = "3%", points = 6, spacing = "log" }
jitter = ["0ms", "5ms"]
[evaluate]
method = "simulation"
packets = 4000
seed = 3
replications = 2
"""
SIMULATED_RUNS = 240


@pytest.fixture(scope="module")
def specification(tmp_path_factory):
    file = tmp_path_factory.mktemp("sweep") / "sweep.toml"
    file.write_text(SPECIFICATION)
    return file


@pytest.fixture(scope="module")
def undisturbed(specification):
    """The result of one thread that nothing disturbs, as a file."""
    file = specification.with_name("undisturbed.nc")
    assert 0 < int((sweep(specification, file, workers=1).refused > 0).sum()) < RUNS
    return file


@pytest.fixture(scope="module")
def address(undisturbed, tmp_path_factory):
    # After the undisturbed run, which leaves compiled kernels behind.
    with running_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def worker_pids(client):
    return {name: pid for name, pid in client.run(os.getpid).items() if pid}


def sweep_while_workers_are_killed(specification, output, address, kills):
    """Sweep, kill one worker after another on the way, and return the result and whom it hit."""
    from distributed import Client

    killed = []
    with Client(address, set_as_default=False) as client:
        until(lambda: len(client.nthreads()) == 2, "two workers")
        before = worker_pids(client)

        def kill_one(progress):
            victims = [pid for pid in before.values() if pid not in killed]
            due = len(killed) < kills and progress.done > progress.total * (len(killed) + 1) / 4
            if due and victims and progress.done < progress.total:
                os.kill(victims[0], signal.SIGKILL)
                killed.append(victims[0])

        result = sweep(specification, output, scheduler=address, on_progress=kill_one)
        # Each nanny starts another worker.
        until(lambda: len(client.nthreads()) == 2, "new workers")
        assert not set(worker_pids(client).values()) & set(killed)
    return result, killed


def test_killed_workers_change_nothing(specification, undisturbed, address, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "SHORTEST_BUDGET", 0.05)
    result, killed = sweep_while_workers_are_killed(specification, tmp_path / "disturbed.nc", address, 2)
    assert len(killed) == 2
    assert result.mean_delay.size == RUNS
    assert (tmp_path / "disturbed.nc").read_bytes() == undisturbed.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["disturbed.nc"]


def test_a_killed_worker_changes_nothing_in_simulations_either(address, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "SHORTEST_BUDGET", 0.05)
    specification, here = tmp_path / "simulated.toml", tmp_path / "here.nc"
    specification.write_text(SIMULATED)
    alone = sweep(specification, here, workers=1)
    result, killed = sweep_while_workers_are_killed(specification, tmp_path / "disturbed.nc", address, 1)
    assert len(killed) == 1
    assert result.mean_delay.size == SIMULATED_RUNS
    assert not alone.refused.any()
    assert alone.seed.to_numpy().ravel().size == len(set(alone.seed.to_numpy().ravel())) == SIMULATED_RUNS
    assert (tmp_path / "disturbed.nc").read_bytes() == here.read_bytes()


@pytest.mark.parametrize(("where", "ending"), [("cluster", "SIGKILL"), ("here", "SIGKILL"), ("here", "SIGINT")])
def test_a_killed_sweep_goes_on_where_it_was(specification, undisturbed, request, tmp_path, where, ending):
    scheduler = request.getfixturevalue("address") if where == "cluster" else None
    output = tmp_path / "resumed.nc"
    parts = tmp_path / "resumed.nc.parts"
    remote = () if scheduler is None else ("--scheduler", scheduler)
    with process("sweep", str(specification), "-o", str(output), *remote, stdout=subprocess.PIPE) as started:
        until(lambda: len(list(parts.glob("runs-*"))) >= 2 or started.poll() is not None, "two parts")
        started.send_signal(getattr(signal, ending))
        printed, errors = started.communicate()
    assert not output.exists()
    assert printed == ""
    if ending == "SIGINT":
        assert started.returncode == 130
        pattern = r"tcpdelay sweep: interrupted after \d+ of 1200 runs; finished runs are kept in \S+resumed.nc.parts; "
        assert re.fullmatch(pattern + "the same command continues from there\n", errors)
    kept = sum(stop - start for start, stop in map(range_of, parts.glob("runs-*")))
    assert 0 < kept < RUNS
    shown = []
    sweep(specification, output, scheduler=scheduler, on_progress=shown.append)
    assert shown[0].done >= kept
    assert output.read_bytes() == undisturbed.read_bytes()
    assert not parts.exists()


def range_of(part):
    start, stop = part.name.partition(".")[0].split("-")[1:]
    return int(start), int(stop)


def test_a_scheduler_that_is_not_there_is_said_to_be_so_in_one_line(refused, specification, monkeypatch):
    monkeypatch.setattr(execution, "CONNECTION_TIME", 0.2)
    for nowhere in ("tcp://127.0.0.1:9", "nonsense://", "foo"):
        errors = refused("sweep", specification, "-o", "none.nc", "--scheduler", nowhere)
        assert errors.startswith("tcpdelay sweep: --scheduler: must be the address of a running Dask scheduler (")
        assert errors.endswith(f"), got '{nowhere}'\n")


def test_a_sweep_without_its_scheduler_prints_one_line_and_leaves_nothing(specification, tmp_path):
    silent = (
        "from tcpdelay.study import execution; execution.CONNECTION_TIME = 0.2; "
        "from tcpdelay.__main__ import run; run()"
    )
    output = tmp_path / "none.nc"
    finished = subprocess.run(
        [sys.executable, "-c", silent, "sweep", str(specification), "-o", str(output), "--scheduler", "tcp://127.0.0.1:9"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert finished.stderr.count("\n") == 1
    assert finished.stderr.startswith("tcpdelay sweep: --scheduler: must be the address of a running Dask scheduler")
    assert not list(tmp_path.iterdir())


def test_a_scheduler_that_dies_leaves_what_is_finished(specification, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "SHORTEST_BUDGET", 0.05)
    output = tmp_path / "left.nc"
    cluster = running_cluster(tmp_path, workers=1)
    address = cluster.__enter__()
    ended = []

    def end(progress):
        if progress.done and not ended:
            ended.append(progress.done)
            cluster.__exit__(None, None, None)

    with pytest.raises(execution.SweepFailedError, match="the connection to the scheduler is lost"):
        sweep(specification, output, scheduler=address, on_progress=end)
    shown = []
    sweep(specification, output, on_progress=shown.append)
    assert shown[0].done >= ended[0]
    assert output.read_bytes() == undisturbed.read_bytes()
