"""Sweeps on a real cluster of processes, and whatever is killed on the way."""

import os
import re
import signal
import subprocess
import sys

import pytest

from cli_process import ROOT, process
from dask_cluster import running_cluster, until
from tcpdelay.study import execution
from tcpdelay.study.sweep.run import sweep

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


def test_a_scheduler_that_is_not_there_is_said_to_be_so_in_one_line(run, specification, monkeypatch):
    monkeypatch.setattr(execution, "CONNECTION_TIME", 0.2)
    for nowhere in ("tcp://127.0.0.1:9", "nonsense://", "foo"):
        status, printed, errors = run("sweep", specification, "-o", "none.nc", "--scheduler", nowhere)
        assert (status, printed) == (2, "")
        assert errors.startswith("tcpdelay sweep: --scheduler: must be the address of a running Dask scheduler (")
        assert errors.endswith(f"), got '{nowhere}'\n")
        assert errors.count("\n") == 1


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
