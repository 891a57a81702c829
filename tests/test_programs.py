"""Runs of unmodified programs in a guest, at the two ends of an emulated path."""

import sys

import pytest

from guest_requirements import require
from tcpdelay.capture.pcap.analysis import analyze_captures
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.testbed import backends
from tcpdelay.testbed.backends import SessionFailedError, VirtualTimeBackend
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.programs import read_program_run, run_programs

GUEST = VirtualTimeBackend(250)
PATH = Experiment(rtt=0.06, loss=0.02, congestion_control="reno", duration=30)
WRITES = """
import os, pathlib, socket, sys, time
try:
    pathlib.Path(sys.argv[1], "intruder").write_text("")
except OSError as error:
    print(error.strerror)
stream = socket.create_connection(("server", 7000))
print(stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode())
for number in range(300):
    stream.send(bytes(500))
    time.sleep(0.02)
print(os.environ["SERVER_ADDRESS"] == stream.getpeername()[0])
sys.exit(3)
"""
READS = """
import socket
stream, _ = socket.create_server(("", 7000)).accept()
with open("received", "wb") as file:
    while data := stream.recv(65536):
        file.write(data)
"""


def python(code, *arguments):
    return [sys.executable, "-c", code, *map(str, arguments)]


def run(directory, client, server, **settings):
    require(GUEST.problems(), "VIRTUAL")
    return run_programs(client, server, PATH, directory, GUEST, **settings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    return run(tmp_path_factory.mktemp("run"), python(WRITES, outside), python(READS), seed=3), outside


def test_exit_status_output_and_files_are_handed_over(finished):
    found, outside = finished
    assert found.status == {"client": 3, "server": 0}
    assert (found.directory / "client.stdout").read_text().splitlines() == ["Read-only file system", "reno", "True"]
    assert (found.directory / "scratch" / "received").stat().st_size == 300 * 500
    assert list(outside.iterdir()) == []
    assert read_program_run(found.directory) == found


def test_virtual_time_passes_while_programs_sleep(finished):
    found, _ = finished
    assert found.ended["client"] == pytest.approx(300 * 0.02 + 0.06, abs=0.15)


def test_path_has_the_configured_delay_and_loss(finished):
    found, _ = finished
    analysis = analyze_captures(found.traces)
    assert analysis.rtt_base == pytest.approx(PATH.rtt, abs=1e-4)
    assert found.packets["data_dropped"] == found.counters["client"]["RetransSegs"] > 0


def test_equal_seeds_give_equal_traces(finished, tmp_path):
    found, outside = finished
    again = run(tmp_path / "again", python(WRITES, outside), python(READS), seed=3)
    other = run(tmp_path / "other", python(WRITES, outside), python(READS), seed=4)
    traces = [[file.read_bytes() for file in each.traces] for each in (found, again, other)]
    assert traces[0] == traces[1] != traces[2]


def test_programs_that_go_on_are_ended_after_the_duration(tmp_path):
    found = run(tmp_path, ["sh", "-c", "sleep 1000 & trap 'echo ended; exit' TERM; wait"], ["true"])
    assert found.status == {"client": None, "server": 0}
    assert (tmp_path / "client.stdout").read_text() == "ended\n"


def test_a_program_that_polls_the_clock_does_not_stop_virtual_time(tmp_path):
    poll = "import time\nend = time.monotonic() + 0.05\nwhile time.monotonic() < end: pass"
    assert run(tmp_path, python(poll), ["true"]).status["client"] == 0


def test_a_program_that_only_spins_is_given_up_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(backends, "SILENCE", 20)
    with pytest.raises(SessionFailedError, match=r"given up at .* waits without sleeping") as failure:
        run(tmp_path, python("while True: pass"), ["true"])
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("client", "server", "name"),
    [([], ["true"], "client"), ("true", ["true"], "client"), (["true"], ["no-such-program"], "server")],
)
def test_a_command_that_is_no_program_is_refused(tmp_path, client, server, name):
    with pytest.raises(InvalidValueError, match=f"^{name} must begin with a program"):
        run_programs(client, server, PATH, tmp_path, GUEST)


def test_results_do_not_overwrite_files(tmp_path):
    (tmp_path / "notes").write_text("")
    with pytest.raises(InvalidValueError, match=r"^directory must be a new or an empty directory"):
        run_programs(["true"], ["true"], PATH, tmp_path, GUEST)
