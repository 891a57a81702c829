"""`tcpdelay run`: its refusals, its exit status, runs that are killed, and the options of queues."""

import contextlib
import errno
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyroute2 import NetlinkError

from cli_process import process
from guest_requirements import require
from tcpdelay.cli.emulation import analysed, exit_status, split_commands
from tcpdelay.testbed.backends import UmlBackend, VirtualTimeBackend
from tcpdelay.testbed.programs import ProgramRun
from tcpdelay.testbed.queues import add_bottleneck, red_attributes
from tcpdelay.testbed.topology import EmulatedPath, Link, two_hosts
from tcpdelay.testbed.workplaces import guests_of

GUEST = VirtualTimeBackend(250)
SERVER = """
import socket
stream, _ = socket.create_server(("", 80)).accept()
while data := stream.recv(4096):
    stream.sendall(data)
"""
CLIENT = """
import socket, sys, time
stream = socket.create_connection(("server", 80))
print("connected", flush=True)
for _ in range(300):
    stream.sendall(bytes(200))
    time.sleep(0.02)
print("sent", flush=True)
print("to errors", file=sys.stderr)
sys.exit(3)
"""
WARNING_OF_ROOT = "warning: root runs the programs: they can read all files of this machine that root can read\n"
TRUE = ["--", "true", "--client", "true"]
LTE = str(Path(__file__).parents[1] / "examples" / "link-traces" / "lte.up")
BOTH = ["--", sys.executable, "-c", SERVER, "--client", sys.executable, "-c", CLIENT]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rtt", "100ms", "--", "true"], "--client: is missing; write -- SERVER ... --client CLIENT ..."),
        (["--rtt", "100ms", "--", "--client", "true"], "SERVER: is missing"),
        (["--rtt", "100ms", "--", "true", "--client"], "CLIENT: is missing"),
        (
            ["--rtt", "100ms", "--loss", "60%", *TRUE],
            "--loss: must be a fraction from 0 to 0.5",
        ),
        (["--rtt", "100s", *TRUE], "--rtt: must lie between 1e-06 and 10 s, got 100"),
        (["--rtt", "1s", "--queue", "codel", *TRUE], "--queue: must go with a rate"),
        (["--rtt", "1s", "--burst", "20000B", *TRUE], "--burst: must go with a rate"),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--queue", "cake", "--burst", "20000B", *TRUE],
            "--burst: must be absent with cake",
        ),
        (
            ["--rtt", "1s", "--link-trace", LTE, "--burst", "20000B", *TRUE],
            "--burst: must be absent with a trace of the link or outages",
        ),
        (["--rtt", "1s", "--link-trace", "none.up", *TRUE], "--link-trace: none.up: No such file or directory"),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--link-trace", LTE, *TRUE],
            f"--link-trace: must be absent with a rate, got '{LTE}'",
        ),
        (
            ["--rtt", "1s", "--link-trace", LTE, "--queue", "codel", *TRUE],
            "--queue: must be 'fifo' with a trace of the link or outages",
        ),
        (
            ["--rtt", "1s", "--outage-every", "5s", *TRUE],
            "--outage-every: must go with the duration of an outage, got 5",
        ),
        (
            ["--rtt", "1s", "--outage-every", "5s", "--outage", "1s", *TRUE],
            "--outage: must go with a rate or a trace of the link",
        ),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--outage-every", "5s", "--outage", "6s", *TRUE],
            "--outage-every: must lie between the duration of 6 s and 1e+06 s",
        ),
        (
            ["--rtt", "1s", "--rate", "10kbit/s", "--burst", "900000B", *TRUE],
            "--burst: must last at most 274 s at the rate",
        ),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--queue", "sfq", *TRUE],
            "--queue: 'sfq' is not one of 'fifo', 'codel', 'fq_codel', 'red', 'pie', 'cake', 'dualpi2', 'policer'",
        ),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--ecn", *TRUE],
            "--ecn: must go with a queue of codel, fq_codel, red, pie, cake, dualpi2, got True",
        ),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--queue-target", "5ms", *TRUE],
            "--queue-target: must go with a queue of",
        ),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--queue", "pie", "--queue-target", "2s", *TRUE],
            "--queue-target: must lie between 0.001 and 1 s, got 2",
        ),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--queue", "cake", "--queue-packets", "50", *TRUE],
            "--queue-packets: must be absent with cake, which limits its memory, got 50",
        ),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--queue", "policer", *TRUE],
            "--burst: must go with a policer, got None",
        ),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--queue", "policer", "--burst", "9kB", "--queue-packets", "5", *TRUE],
            "--queue-packets: must be absent with a policer, which has no queue, got 5",
        ),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--burst", "1500B", *TRUE],
            "--burst: must lie between 2000 and 1e+06 bytes, got 1500",
        ),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--burst", "0B", *TRUE],
            "--burst: '0B' is 0, but the size must be above",
        ),
        (["--rtt", "1s", "--rate", "0Mbit/s", *TRUE], "--rate: '0Mbit/s' is 0, but the rate must be above 0"),
        (
            ["--rtt", "1s", "--rate", "5Mbit/s", "--burst", "9kB", "--peak-rate", "5Mbit/s", *TRUE],
            "--peak-rate: must be above the rate, 5e+06 bit/s, got 5000000",
        ),
        (
            ["--rtt", "1s", "--link-trace", LTE, "--outage-every", "900s", "--outage", "601s", *TRUE],
            "--outage: must lie between 0 and 600 s, got 601",
        ),
        (["--rtt", "1s", "--bad-loss", "50%", *TRUE], "--bad-loss: must be 1 without a bad_time, got 0.5"),
        (
            ["--rtt", "1s", "--loss", "30%", "--bad-time", "1s", "--bad-loss", "20%", *TRUE],
            "--loss: must be below the bad_loss of 0.2, got 0.3",
        ),
        (["--rtt", "1s", "--reordering", "60%", *TRUE], "--reordering: must be a fraction from 0 to 0.5, got 0.6"),
        (["--rtt", "1s", "--seed", "-1", *TRUE], "--seed: must be 0 or more, got -1"),
        (["--rtt", "1s", "--sysctl", "kernel.panic=1", *TRUE], "--sysctl: must be like"),
        (["--rtt", "1s", "--", "true", "--client", "no-such-program"], "--client: must begin with a program"),
        (["--rtt", "1s", "-o", "/", *TRUE], "--output: must be a new or an empty directory, got '/'"),
        (["--rtt", "1s", "--hz", "999", *TRUE], "no kernel with virtual time at 999 Hz"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(run, arguments, said):
    status, printed, errors = run("run", *arguments)
    assert (status, printed) == (2, "")
    (line,) = errors.splitlines()
    assert line.startswith("tcpdelay run: ")
    assert said in line


def without_warnings(errors):
    """Return errors without the warning of root, who may run the tests."""
    return errors.removeprefix(WARNING_OF_ROOT) if os.getuid() == 0 else errors


@pytest.mark.parametrize("user", [0, 1000])
def test_root_is_warned_that_the_programs_read_what_root_reads(run, monkeypatch, user):
    monkeypatch.setattr(os, "getuid", lambda: user)

    def failing(*_, on_progress, **__):
        on_progress(0.0)
        on_progress(0.5)
        raise OSError(5, "fails")

    monkeypatch.setattr("tcpdelay.testbed.programs.run_topology", failing)
    status, printed, errors = run("run", "--backend", "uml", "--rtt", "1s", *TRUE)
    assert (status, printed) == (125, "")
    assert errors.count(WARNING_OF_ROOT) == (user == 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--rate", "5Mbit/s", "--queue", "dualpi2"],
            "--queue: must be in the kernel (it needs Linux 6.17 or later: run tcpdelay testbed build-kernel --kernel "
            "7.3, and use this kernel), got 'dualpi2'",
        ),
        (
            ["--sysctl", "net.ipv4.tcp_none=1"],
            "--sysctl: must name a setting that a network of this kernel has, got 'net.ipv4.tcp_none=1'",
        ),
        (
            ["--sysctl", "net.ipv4.tcp_sack=on"],
            "--sysctl: must have a value that this kernel takes, got 'net.ipv4.tcp_sack=on'",
        ),
        (
            ["--sysctl", "net.ipv4.tcp_congestion_control=prague"],
            "--sysctl: must have a value that this kernel takes, got 'net.ipv4.tcp_congestion_control=prague'",
        ),
    ],
)
def test_what_the_kernel_refuses_is_the_fault_of_the_option(run, arguments, said):
    require(GUEST.problems(), "VIRTUAL")
    status, printed, errors = run("run", "--rtt", "1s", *arguments, *TRUE)
    assert (status, printed) == (2, "")
    assert without_warnings(errors) == f"tcpdelay run: {said}\n"


def test_a_folder_that_cannot_be_written_is_the_fault_of_the_output_before_the_run(run, tmp_path):
    require(GUEST.problems(), "VIRTUAL")
    (tmp_path / "file").touch()
    status, printed, errors = run("run", "--rtt", "1s", "-o", f"{tmp_path}/file/out", *TRUE)
    assert (status, printed) == (2, "")
    assert without_warnings(errors) == f"tcpdelay run: --output: '{tmp_path}/file/out': Not a directory\n"


def test_options_behind_the_server_are_those_of_the_programs():
    words = ["iperf3", "--rtt", "-s", "--client", "iperf3", "--client", "server"]
    assert split_commands(words) == (["iperf3", "--rtt", "-s"], ["iperf3", "--client", "server"])


@pytest.mark.parametrize(
    ("client", "server", "expected"),
    [(0, 0, 0), (0, None, 0), (3, 0, 3), (0, 4, 4), (3, 4, 3), (-9, 0, 137), (0, -11, 139), (None, None, 124)],
)
def test_the_exit_status_is_the_clients_or_that_of_a_server_that_failed(client, server, expected):
    assert exit_status(ProgramRun(Path(), {"client": client, "server": server}, {}, {}, {})) == expected


def test_a_run_without_packets_names_the_capture_without_its_folder(tmp_path):
    for name in ("client", "server"):
        (tmp_path / f"{name}.pcapng").touch()
    topology = two_hosts(["true"], ["true"], EmulatedPath(rtt=0.1))
    found = ProgramRun(tmp_path, {}, {}, {}, {}, {"client": "10.0.0.1", "server": "10.0.0.2"})
    assert analysed(found, topology).startswith("No analysis: client.pcapng: ")


def test_lines_have_times_the_delays_are_predicted_and_the_status_is_passed_on(tmp_path):
    require(GUEST.problems(), "VIRTUAL")
    options = ["--rtt", "100ms", "--loss", "2%", "--seed", "5", "-o", str(tmp_path / "out")]
    with process("run", *options, *BOTH, stdout=subprocess.PIPE) as started:
        printed, errors = started.communicate()
    assert started.returncode == 3, errors
    lines = printed.splitlines()
    assert [line.split()[1:] for line in lines[:2]] == [["s", "client", "connected"], ["s", "client", "sent"]]
    connected, sent = (float(line.split()[0]) for line in lines[:2])
    # Other kernels may lose a packet of the handshake, and send it anew after 1, 3, 7 or 15 s.
    assert connected == pytest.approx(0.1, abs=0.05) or 1.1 < connected < 16
    assert sent - connected == pytest.approx(300 * 0.02, abs=0.05)
    assert [line.split()[1:] for line in errors.splitlines() if "client" in line] == [["s", "client", "to", "errors"]]
    (ended,) = re.findall(r"^The client ended at ([\d.]+) s with status 3;", printed, re.MULTILINE)
    assert float(ended) == pytest.approx(sent, abs=0.05)
    # The server sends all data back: both directions are analysed.
    # Where losses make enough acknowledgements come alone, their mean stands in front of the smallest.
    assert [line.split()[-2:] for line in lines if line.startswith("round-trip time")] == [["100", "ms"]] * 2
    # One clock stamped both captures: nothing is a bound.
    assert [line.split()[2:] for line in lines if line.startswith("one-way delay")] == [["50", "ms"]] * 2
    within = [line for line in lines if line.startswith("95 % within")]
    assert len(within) == 2
    assert all("predicted" in line for line in within)
    kept = {file.name for file in (tmp_path / "out").iterdir()}
    assert kept >= {"client.pcapng", "server.pcapng", "client.stdout", "server.stderr", "output.jsonl", "scratch"}


def test_sparse_files_of_programs_stay_sparse_on_this_machine(tmp_path):
    require(GUEST.problems(), "VIRTUAL")
    leave = "cd $SCRATCH; truncate -s 100G large; truncate -s 6G small; echo data >> small; echo kept"
    options = ["--rtt", "20ms", "--no-analysis", "-o", str(tmp_path / "out")]
    with process("run", *options, "sleep", "30", "--client", "sh", "-c", leave, stdout=subprocess.PIPE) as started:
        printed, errors = started.communicate()
    assert started.returncode == 0, errors
    assert printed.splitlines()[0].endswith("client  kept")
    left = {file.name: file.stat() for file in (tmp_path / "out" / "scratch").iterdir()}
    assert {name: status.st_size for name, status in left.items()} == {"large": 100 << 30, "small": (6 << 30) + 5}
    assert 512 * sum(status.st_blocks for status in left.values()) < 1 << 20


def test_programs_run_in_debians_guest_in_real_time(tmp_path):
    require(UmlBackend().problems(), "UML")
    few = [*BOTH[:-1], CLIENT.replace("range(300)", "range(10)")]
    options = ["--backend", "uml", "--rtt", "40ms", "--no-analysis", "-o", str(tmp_path / "out")]
    with process("run", *options, *few, stdout=subprocess.PIPE) as started:
        printed, errors = started.communicate()
    assert started.returncode == 3, errors
    assert [line.split()[3] for line in printed.splitlines()[:2]] == ["connected", "sent"]
    assert "with status 3; the server ended" in printed
    assert (tmp_path / "out" / "client.pcapng").stat().st_size > 10 * 200 / 2


def leaders_of(processes):
    """Return those that lead a group; while it boots, a kernel has children that end at once."""
    leaders = []
    for process_id in processes:
        with contextlib.suppress(ProcessLookupError):
            leaders += [process_id] if os.getpgid(process_id) == process_id else []
    return leaders


@pytest.mark.parametrize("what", ["the run", "the guest"])
def test_nothing_is_left_when_the_run_or_the_guest_is_killed(tmp_path, monkeypatch, what):
    require(GUEST.problems(), "VIRTUAL")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    forever = ["--", "sleep", "100000", "--client", "sh", "-c", "while sleep 0.01; do :; done"]
    with (
        process("run", "--rtt", "10ms", "--for", "60000s", *forever, stdout=subprocess.PIPE) as started,
        contextlib.ExitStack() as leaving,
    ):
        # A failure would wait for the run's end.
        leaving.callback(started.kill)
        deadline = time.monotonic() + 60
        while not (kernels := leaders_of(guests_of(tmp_path))):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        # Any moment will do: the boot, or the run of the programs.
        time.sleep(random.uniform(0, 3))
        os.kill(started.pid if what == "the run" else kernels[0], signal.SIGKILL)
        _, errors = started.communicate()
    if what == "the guest":
        assert started.returncode == 125
        assert "the guest ended with SIGKILL" in errors
    deadline = time.monotonic() + 20
    while guests_of(tmp_path) or list(tmp_path.glob("tcpdelay-testbed-*/run-*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Options of the queues of an emulated path; `test_programs.py` runs all queues in a guest


def parameters(**settings):
    link = Link(0.03, **{"rate": 10e6, "queue": "red", "queue_packets": 1000, **settings})
    return dict(red_attributes(link))["TCA_RED_PARMS"]


def test_red_has_the_thresholds_of_adaptive_red():
    # Floyd, Gummadi and Shenker 2001, section 5.1: min_th = target * C / 2, max_th = 3 * min_th.
    found = parameters(queue_target=0.05)
    assert (found["qth_min"], found["qth_max"]) == (31_250, 93_750)
    # ... but min_th is at least five packets.
    assert parameters()["qth_min"] == 5 * 1514
    assert parameters()["limit"] == 1000 * 1514


@pytest.mark.parametrize(("rate", "weight"), [(10e6, 0.0012), (100e6, 0.00012)])
def test_red_averages_over_about_a_second_of_packets(rate, weight):
    # Section 5.2 with 1514 B packets: w_q = 1 - exp(-1 / C).
    assert 2.0 ** -parameters(rate=rate)["Wlog"] == pytest.approx(weight, rel=0.42)


@pytest.mark.parametrize("rate", [1e4, 1e6, 1e9])
def test_the_kernel_accepts_the_parameters_at_every_rate(rate):
    # red_check_params: thresholds of up to 32 bits after the scaling by the weight, and shifts below 32.
    for target in (0.001, 1.0):
        found = parameters(rate=rate, queue_target=target)
        assert found["qth_max"].bit_length() + found["Wlog"] < 32
        assert 0 <= found["Scell_log"] < 32
        assert 1 <= found["Wlog"] < 32


def test_the_mean_queue_shrinks_while_the_link_is_idle():
    link = Link(0.03, rate=10e6, queue="red", queue_packets=1000)
    options = dict(red_attributes(link))
    table, cell = options["TCA_RED_STAB"], 2 ** options["TCA_RED_PARMS"]["Scell_log"] * 1e-6
    # After an idle time of m packets the mean is (1 - w_q)^m times what it was, here after half the table's times.
    packets = 128 * cell * 10e6 / 8 / 1514
    assert 2.0 ** -table[128] == pytest.approx((1 - 2.0 ** -options["TCA_RED_PARMS"]["Wlog"]) ** packets, rel=0.42)
    assert len(table) == 256
    assert list(table) == sorted(table)


class KernelWithoutQueues:
    """A kernel that refuses all queueing disciplines, or one, for one reason."""

    def __init__(self, code, lacking=None):
        self.code, self.lacking = code, lacking

    def tc(self, command, kind, device, **settings):
        if self.lacking in (None, kind):
            raise NetlinkError(self.code, "refused")


class Recorder:
    """A kernel that notes the options of each queueing discipline, and the actions of filters."""

    def __init__(self):
        self.options = {}

    def tc(self, command, kind, device, **settings):
        block = settings.get("action", settings).get("block")
        self.options[kind] = block and block["attrs"]


def test_a_token_bucket_and_its_peak_rate_have_times_in_ticks():
    kernel = Recorder()
    link = Link(0.03, rate=8e6, queue_packets=9, burst=64_000, peak_rate=16e6)
    add_bottleneck(kernel, 1, link)
    (_, parameters), *tables = kernel.options["tbf"]
    # 64 kB take 64 ms at 8 Mbit/s, and the 2000 B of the peak rate 1 ms; a tick is 64 ns.
    assert (parameters["buffer"], parameters["mtu"]) == (1_000_000, 15_625)
    assert (parameters["rate"], parameters["peak"]) == (1_000_000, 2_000_000)
    assert [name for name, _ in tables] == ["TCA_TBF_RTAB", "TCA_TBF_PTAB"]


def test_a_policer_drops_and_has_no_queue():
    kernel = Recorder()
    add_bottleneck(kernel, 1, Link(0.03, rate=8e6, queue="policer", burst=64_000))
    assert set(kernel.options) == {"clsact", "matchall"}
    (_, parameters), _table = kernel.options["matchall"]
    # TC_POLICE_SHOT is 2 in linux/pkt_cls.h.
    assert (parameters["action"], parameters["burst"], parameters["rate"]) == (2, 1_000_000, 1_000_000)


def test_a_kernel_without_policers_is_named_with_the_remedy():
    link = Link(0.03, rate=8e6, queue="policer", burst=64_000)
    with pytest.raises(
        ValueError, match=r"^queue must be in the kernel \(run tcp.* build-kernel, .*\), got 'policer'$"
    ):
        add_bottleneck(KernelWithoutQueues(errno.ENOENT, "matchall"), 1, link)


def test_dualpi2_has_the_kernels_defaults_unless_told_otherwise():
    kernel = Recorder()
    add_bottleneck(kernel, 1, Link(0.03, rate=1e6, queue="dualpi2", ecn=True))
    # It always marks packets with ECN, and has no option for this.
    assert kernel.options["dualpi2"] == []
    add_bottleneck(kernel, 1, Link(0.03, rate=1e6, queue="dualpi2", queue_target=0.02, queue_packets=50, l4s=True))
    # TC_DUALPI2_ECN_MASK_ANY_ECT is 3 in linux/pkt_sched.h; times are in microseconds.
    assert dict(kernel.options["dualpi2"]) == {
        "TCA_DUALPI2_ECN_MASK": 3,
        "TCA_DUALPI2_LIMIT": 50,
        "TCA_DUALPI2_TARGET": 20_000,
    }


def test_a_queue_that_the_kernel_lacks_is_named_with_the_remedy():
    # A kernel without a discipline answers with ENOENT (qdisc_create in net/sched/sch_api.c).
    link = Link(0.03, rate=1e6, queue="cake")
    with pytest.raises(
        ValueError, match=r"^queue must be in the kernel \(run tcpdelay testbed build-ker.*, got 'cake'$"
    ):
        add_bottleneck(KernelWithoutQueues(errno.ENOENT), 1, link)
    newer = Link(0.03, rate=1e6, queue="dualpi2")
    with pytest.raises(ValueError, match=r"\(it needs Linux 6.17 or later: run .* --kernel 7.3, .*\), got 'dualpi2'$"):
        add_bottleneck(KernelWithoutQueues(errno.ENOENT, "dualpi2"), 1, newer)
    with pytest.raises(NetlinkError):
        add_bottleneck(KernelWithoutQueues(errno.EPERM), 1, link)
