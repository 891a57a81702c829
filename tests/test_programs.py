"""Runs of unmodified programs in a guest, at the two ends of an emulated path."""

import errno
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from guest_requirements import require
from tcpdelay.capture.pcap.analysis import analyze_captures
from tcpdelay.capture.pcap.container import CaptureFile
from tcpdelay.declare import InvalidValueError
from tcpdelay.store import error_in_words
from tcpdelay.testbed.backends import SessionFailedError, UmlBackend, VirtualTimeBackend
from tcpdelay.testbed.program_session import hand_over_files
from tcpdelay.testbed.programs import hand_over, read_program_run, run_programs
from tcpdelay.testbed.topology import EmulatedPath

GUEST = VirtualTimeBackend(250)
PATH = EmulatedPath(rtt=0.06, loss=0.02, server_loss=0)
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
    settings = {"congestion_control": "reno", "duration": 30, **settings}
    return run_programs(client, server, PATH, directory, GUEST, **settings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    return run(tmp_path_factory.mktemp("run"), python(WRITES, outside), python(READS), seed=3), outside


def test_exit_status_output_and_files_are_handed_over(finished):
    found, outside = finished
    assert found.status == {"client": 3, "server": 0}
    assert found.output("client").splitlines() == ["Read-only file system", "reno", "True"]
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


def test_lines_have_the_virtual_time_at_which_they_were_written(tmp_path):
    seen = []
    client = ["sh", "-c", "echo begin; sleep 20; printf 'a\\rb' >&2; exit 4"]
    found = run(tmp_path, client, ["sh", "-c", "echo ready; sleep 100"], linger=5, on_line=seen.append)
    assert [(line.end, line.stream, line.text) for line in seen] == [
        ("server", "stdout", "ready"),
        ("client", "stdout", "begin"),
        ("client", "stderr", "a"),
        ("client", "stderr", "b"),
    ]
    assert [line.time for line in seen[:3]] == pytest.approx([-1, 0, 20], abs=0.05)
    assert found.lines() == seen
    assert found.status == {"client": 4, "server": None}


def test_traces_are_pcapng_files_with_the_lengths_on_the_wire(finished):
    found, _ = finished
    for trace in found.traces:
        assert trace.read_bytes()[:4] == bytes.fromhex("0a0d0d0a")
        packets = list(CaptureFile(trace))
        assert 500 + 66 <= max(packet.wire_length for packet in packets) <= 1514
        assert max(len(packet.data) for packet in packets) == 128


ATTACK = """
import ctypes, os, pathlib, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
outside, own = sys.argv[1:]

def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")

def attempt(name, action):
    try:
        action()
        print("DONE", name)
    except OSError:
        print("refused", name)

def mounted(kind, options, flags=0):
    checked(libc.mount(b"none", b"/mnt", kind.encode(), flags, options.encode()))

MS_REMOUNT, MS_BIND, NEWUSER, NEWNS, NEWNET = 32, 4096, 0x10000000, 0x20000, 0x40000000
attempt("write a new file", lambda: pathlib.Path(outside, "new").write_text("x"))
attempt("write an old file", lambda: pathlib.Path(outside, "old").write_text("x"))
attempt("remove", lambda: pathlib.Path(outside, "old").unlink())
attempt("chmod", lambda: pathlib.Path(outside, "old").chmod(0o777))
attempt("link", lambda: os.link(pathlib.Path(outside, "old"), pathlib.Path(outside, "link")))
attempt("write /etc", lambda: pathlib.Path("/etc/tcpdelay-intruder").write_text("x"))
attempt("write /mnt", lambda: pathlib.Path("/mnt/tcpdelay-intruder").write_text("x"))
attempt("remount", lambda: checked(libc.mount(b"none", b"/", None, MS_REMOUNT, None)))
attempt("mount hostfs", lambda: mounted("hostfs", outside))
attempt("bind", lambda: checked(libc.mount(outside.encode(), b"/mnt", None, MS_BIND, None)))
attempt("user namespace", lambda: checked(libc.unshare(NEWUSER | NEWNS)))
attempt("network namespace", lambda: checked(libc.unshare(NEWNET)))
attempt("mknod", lambda: os.mknod(pathlib.Path(own, "memory"), 0o20666, os.makedev(1, 1)))
attempt("chroot", lambda: os.chroot("/"))
attempt("/dev/mem", lambda: os.open("/dev/mem", os.O_RDWR))
attempt("/proc/kcore", lambda: os.open("/proc/kcore", os.O_RDONLY))
attempt("core_pattern", lambda: pathlib.Path("/proc/sys/kernel/core_pattern").write_text("|/bin/sh"))
attempt("sysctl", lambda: pathlib.Path("/proc/sys/net/ipv4/tcp_sack").write_text("0"))
attempt("sysrq", lambda: pathlib.Path("/proc/sysrq-trigger").write_text("b"))
attempt("session's root", lambda: os.listdir("/proc/1/root/mnt"))
attempt("session's memory", lambda: os.open("/proc/1/mem", os.O_RDWR))
attempt("ptrace", lambda: checked(libc.ptrace(16, 1, 0, 0)))
attempt("kill", lambda: os.kill(1, 9))
attempt("setuid", lambda: os.setuid(0))
attempt("reboot", lambda: checked(libc.reboot(0x4321FEDC)))
attempt("module", lambda: checked(libc.syscall(175, b"", 0, b"")))
attempt("write scratch", lambda: pathlib.Path(own, "kept").write_text("x"))
attempt("read", lambda: pathlib.Path(outside, "old").read_text())
"""


def test_programs_cannot_write_outside_their_own_directory(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "old").write_text("old")
    attack = [sys.executable, "-c", ATTACK, str(outside), "."]
    found = run(tmp_path / "run", ["true"], attack)
    lines = found.output("server").splitlines()
    assert len(lines) == ATTACK.count("\nattempt("), (found.directory / "server.stderr").read_text()
    assert [line for line in lines if line.startswith("DONE")] == ["DONE write scratch", "DONE read"]
    assert [file.name for file in outside.iterdir()] == ["old"]
    assert (outside / "old").read_text() == "old"
    assert [file.name for file in (found.directory / "scratch").iterdir()] == ["kept"]


def test_programs_that_go_on_are_ended_after_the_duration(tmp_path):
    found = run(tmp_path, ["sh", "-c", "sleep 1000 & trap 'echo ended; exit' TERM; wait"], ["true"])
    assert found.status == {"client": None, "server": 0}
    assert (tmp_path / "client.stdout").read_text() == "ended\n"


def test_a_program_that_polls_the_clock_does_not_stop_virtual_time(tmp_path):
    poll = "import time\nend = time.monotonic() + 0.01\nwhile time.monotonic() < end: pass"
    assert run(tmp_path, python(poll), ["true"]).status["client"] == 0


def test_work_takes_time_if_it_is_charged(tmp_path):
    require(GUEST.problems(), "VIRTUAL")
    work = python("import time\nwhile time.process_time() < 0.5: sum(range(10000))\ntime.sleep(30)")
    guest = VirtualTimeBackend(250, charges_work=True)
    found = run_programs(work, ["true"], PATH, tmp_path, guest, duration=60)
    assert 30.4 < found.ended["client"] < 59


def test_a_program_that_only_spins_is_given_up_in_one_line(tmp_path):
    require(GUEST.problems(), "VIRTUAL")
    guest = VirtualTimeBackend(250, patience=4)
    spin = python("print('before', flush=True)\nwhile True: pass")
    with pytest.raises(
        SessionFailedError, match=r"virtual time stood still for 4 s .* waits without sleeping"
    ) as failure:
        run_programs(spin, ["true"], PATH, tmp_path / "run", guest)
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


class FillsTheDisk(UmlBackend):
    """A guest that leaves results at once, on another file system than theirs, whose files may have `limit` bytes."""

    def __init__(self, limit):
        self.limit = limit

    def problems(self):
        return []

    def run(self, plan, directory, core, on_progress):
        # The header of a trace in nanoseconds, of Ethernet, without packets.
        header = bytes.fromhex("4d3cb2a1 02000400 00000000 00000000 80000000 01000000")
        for host in ("client", "server"):
            (directory / f"packets.{host}.pcap").write_bytes(header)
        folder = directory / "scratch" / "folder"
        folder.mkdir(parents=True)
        (folder / "large").write_bytes(bytes(9000))
        (directory / "client.stdout").write_bytes(bytes(3000))
        (directory / "kernel").write_text("6.1", encoding="ascii")
        self.limit()


@pytest.mark.parametrize(
    ("size", "name"), [(10, "client.pcapng"), (1000, "client.stdout"), (5000, "scratch/folder/large")]
)
def test_a_disk_that_is_full_is_told_with_the_file_and_nothing_is_kept(tmp_path, monkeypatch, size, name):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def another_file_system(*_):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr("os.rename", another_file_system)
    guest = FillsTheDisk(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1])))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            run_programs(["true"], ["true"], PATH, tmp_path / "out", guest)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error_in_words(error.value) == f"'{tmp_path}/out/{name}': File too large"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        run_programs(["true"], ["true"], PATH, tmp_path / "file" / "out", FillsTheDisk(pytest.fail))


COUNTER = """
import socket
receiver = socket.socket(type=socket.SOCK_DGRAM)
receiver.bind(("", 7000))
receiver.settimeout(3)
numbers = []
try:
    while True:
        numbers.append(int(receiver.recv(100)))
except TimeoutError:
    print(*numbers)
"""
NUMBERS = """
import os, socket, sys, time
count, drawn = map(int, sys.argv[1:])
os.urandom(drawn)
sender = socket.socket(type=socket.SOCK_DGRAM)
for number in range(count):
    sender.sendto(str(number).encode(), ("server", 7000))
    time.sleep(0.005)
"""


def received_numbers(directory, count=20_000, drawn=0, seed=0, **settings):
    """Return which of many datagrams arrive, one each 5 ms, in the order of arrival."""
    require(GUEST.problems(), "VIRTUAL")
    programs = (python(NUMBERS, count, drawn), python(COUNTER))
    found = run_programs(
        *programs, EmulatedPath(rtt=0.05, **settings), directory, GUEST, duration=240, linger=5, seed=seed
    )
    return np.array(found.output("server").split(), int)


def test_losses_follow_from_the_seed_and_not_from_what_else_the_guest_has_drawn(tmp_path):
    arrived = [
        received_numbers(tmp_path / str(drawn), 2000, drawn, seed, loss=0.1, jitter=0.004, reordering=0.1).tolist()
        for drawn, seed in ((0, 3), (100, 3), (1, 4))
    ]
    assert arrived[0] == arrived[1] != arrived[2]
    assert arrived[0] != sorted(arrived[0])
    # Standard error of the number of losses.
    assert len(arrived[0]) == pytest.approx(0.9 * 2000, abs=5 * (0.1 * 0.9 * 2000) ** 0.5)


def test_losses_in_time_come_in_bad_states_of_their_mean_duration(tmp_path):
    numbers = received_numbers(tmp_path, loss=0.05, bad_time=0.05)
    gaps = np.diff(numbers) - 1
    # 100 bad states in 100 s on average, each exponentially distributed: both means have an error of 10 to 14 %.
    assert 1 - numbers.size / 20_000 == pytest.approx(0.05, rel=0.35)
    assert 0.005 * gaps[gaps > 0].mean() == pytest.approx(0.05, rel=0.3)


def test_reordered_packets_skip_the_delay_and_overtake_those_in_flight(tmp_path):
    numbers = received_numbers(tmp_path, reordering=0.03)
    assert numbers.size == 20_000
    # A packet after which an earlier one arrives has skipped 25 ms: the time of five packets.
    early = np.flatnonzero(np.diff(numbers) < 0)
    assert early.size / numbers.size == pytest.approx(0.03, rel=0.15)
    places = np.argsort(numbers, kind="stable")
    assert np.quantile(np.arange(20_000) - places, 0.99) == pytest.approx(5, abs=1)


FLOOD = """
import socket
sender = socket.socket(type=socket.SOCK_DGRAM)
for number in range(100):
    sender.sendto(b"%d" % number + bytes(950), ("server", 7000))
"""
TIMES = """
import socket, time
receiver = socket.socket(type=socket.SOCK_DGRAM)
receiver.bind(("", 7000))
receiver.settimeout(10)
times = []
try:
    while True:
        receiver.recv(2000)
        times.append(time.monotonic())
except TimeoutError:
    print(*(time - times[0] for time in times))
"""


def flood(directory, **settings):
    """Return when the datagrams of a flood arrive after the first one [s], and their number of bits on the link."""
    require(GUEST.problems(), "VIRTUAL")
    programs = ([sys.executable, "-c", FLOOD], [sys.executable, "-c", TIMES])
    path = EmulatedPath(rtt=0.05, rate=1e6, burst=20_000, **settings)
    found = run_programs(*programs, path, directory, GUEST, duration=60, linger=12)
    # Headers of Ethernet, IP and UDP have 42 bytes; the number has two digits, or one in ten of the datagrams.
    return np.array(found.output("server").split(), float), 8 * (42 + 952), found.packets


def test_a_policer_lets_the_bucket_pass_and_drops_the_rest(tmp_path):
    times, bits, packets = flood(tmp_path, queue="policer")
    assert times.size == packets["bottleneck_sent"] == 8 * 20_000 // bits
    assert packets["bottleneck_dropped"] == 100 - times.size
    assert times.max() < 0.001


def test_the_bytes_of_a_bucket_leave_at_the_peak_rate_and_the_rest_at_the_rate(tmp_path):
    times, bits, _ = flood(tmp_path, peak_rate=4e6)
    assert times.size == 100
    # The second packet finds the rest of the bucket of the peak rate; the following ones leave at this rate.
    assert np.diff(times)[3:20] == pytest.approx(bits / 4e6, rel=0.01)
    assert np.diff(times)[-40:] == pytest.approx(bits / 1e6, rel=0.01)


def test_files_are_handed_over_with_their_holes_and_links_only_once(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.truncate(100 << 30)
        file.seek(3 << 30)
        file.write(b"data")
    (source / "data").write_bytes(bytes(1 << 20) + b"x" * (3 << 20))
    for number in range(100):
        os.link(source / "data", source / f"name-{number}")
    (source / "loop").symlink_to("loop")
    (source / "empty").touch()
    os.mkfifo(source / "fifo")
    assert hand_over_files(source, target) == []
    assert {file.name for file in target.iterdir()} == {file.name for file in source.iterdir()} - {"fifo"}
    assert (target / "sparse").stat().st_size == 100 << 30
    with (target / "sparse").open("rb") as file:
        file.seek((3 << 30) - 2)
        assert file.read(8) == b"\0\0data\0\0"
    assert (target / "name-7").read_bytes() == (source / "data").read_bytes()
    used = {file.lstat().st_ino: 512 * file.lstat().st_blocks for file in target.iterdir()}
    assert sum(used.values()) < 6 << 20


def test_a_file_that_cannot_be_copied_is_named_and_the_rest_is_handed_over(tmp_path):
    import resource

    source, target = tmp_path / "source", tmp_path / "target"
    (source / "folder").mkdir(parents=True)
    with (source / "folder" / "large").open("wb") as file:
        file.truncate(1 << 40)
    (source / "small").write_text("kept")
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, limits[1]))
    try:
        assert hand_over_files(source, target) == ["folder/large: [Errno 27] File too large"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert (target / "small").read_text() == "kept"
    assert list((target / "folder").iterdir()) == []


def test_directories_that_are_too_deep_lose_no_results(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "kept").touch()
    deep = os.open(source, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=deep)
        deeper = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = deeper
    os.close(deep)
    (left_out,) = hand_over_files(source, target)
    assert left_out
    assert (target / "kept").exists()
    subprocess.run(["rm", "-rf", source, target], check=True)


def test_another_file_system_gets_a_sparse_file_too(tmp_path, monkeypatch):
    place, directory = tmp_path / "place", tmp_path / "directory"
    (place / "scratch").mkdir(parents=True)
    directory.mkdir()
    with (place / "scratch" / "sparse").open("wb") as file:
        file.truncate(100 << 30)

    def elsewhere(*_):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "rename", elsewhere)
    hand_over(SimpleNamespace(programs=[]), place, directory, "Linux")
    assert (directory / "scratch" / "sparse").stat().st_size == 100 << 30
    assert (directory / "scratch" / "sparse").stat().st_blocks == 0
