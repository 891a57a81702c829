"""Programs on several hosts, over several links, over links with a trace, and in tests of users: runs in a guest."""

import subprocess
import sys
from pathlib import Path

import pytest

from guest_requirements import require
from tcpdelay.capture.pcap.analysis import analyze_directions
from tcpdelay.declare import InvalidValueError
from tcpdelay.sim.network.link_trace import LinkTrace
from tcpdelay.testbed.backends import VirtualTimeBackend
from tcpdelay.testbed.programs import run_programs, run_topology
from tcpdelay.testbed.topology import EmulatedPath, read_topology

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "shared-link.toml"
TRACE = ROOT / "examples" / "link-traces" / "lte.up"
GUEST = VirtualTimeBackend(250)
PROGRAMS = """
[programs.server]
run = "true"
[programs.client]
run = ["true"]
after = "server"
"""
LINK = """
[[links]]
between = ["client", "server"]
rtt = "60ms"
"""


def written(folder, text):
    file = folder / "topology.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_values_of_a_link_are_read_with_units_and_for_each_direction(tmp_path):
    more = 'loss = ["1%", "0%"]\nrate = ["1Mbit/s", "16Mbit/s"]\nqueue = ["fifo", "cake"]\n'
    topology = read_topology(written(tmp_path, PROGRAMS + LINK + more))
    (link,) = topology.links
    assert (link.forward.delay, link.backward.delay) == (0.03, 0.03)
    assert (link.forward.loss, link.backward.loss) == (0.01, 0.0)
    assert (link.forward.rate, link.backward.rate) == (1e6, 16e6)
    assert (link.forward.queue, link.backward.queue) == ("fifo", "cake")
    assert [program.name for program in topology.clients] == ["client"]
    assert [program.host for program in topology.programs] == ["server", "client"]


def test_a_link_may_have_a_trace_or_outages_in_one_direction(tmp_path):
    (tmp_path / "two.up").write_text("5\n10\n")
    more = 'link_trace = ["two.up", "two.up"]\nqueue_packets = 7\n'
    (link,) = read_topology(written(tmp_path, PROGRAMS + LINK + more)).links
    assert (link.forward.trace.times, link.forward.trace.period) == ([5_000_000, 10_000_000], 10_000_000)
    assert (link.forward.rate, link.forward.queue_packets) == (None, 7)
    more = 'link_trace = ["two.up", ""]\nrate = ["", "8Mbit/s"]\nburst = ["", "20kB"]\nqueue_packets = 7\n'
    (link,) = read_topology(written(tmp_path, PROGRAMS + LINK + more)).links
    assert (link.forward.rate, link.backward.rate) == (None, 8e6)
    assert (link.forward.trace is None, link.backward.trace is None) == (False, True)
    assert (link.forward.burst, link.backward.burst) == (None, 20_000)
    more = 'link_trace = ["", "two.up"]\noutage_every = ["", "1s"]\noutage = ["", "5ms"]\n'
    (link,) = read_topology(written(tmp_path, PROGRAMS + LINK + more)).links
    assert (link.forward.trace is None, len(link.backward.trace.times)) == (True, 199)
    more = 'rate = "8Mbit/s"\noutage_every = "15s"\noutage = "300ms"\n'
    (link,) = read_topology(written(tmp_path, PROGRAMS + LINK + more)).links
    assert (link.backward.trace.rates, link.backward.trace.times) == ([0, 8_000_000], [0, 300_000_000])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PROGRAMS + LINK + 'link_trace = ""\n', "links 1: link_trace: "),
        (PROGRAMS + LINK + 'loss = ["1%", ""]\n', "links 1: loss: empty, but a fraction is needed"),
        (PROGRAMS + LINK + 'queue_packets = ["", 5]\n', "links 1: queue_packets must go with a rate, got 5"),
        (PROGRAMS + LINK + 'rate = "1Mbit/s"\nqueue = "policer"\n', "links 1: burst must go with a policer, got None"),
        (PROGRAMS + LINK + 'rate = "1Mbit/s"\nburst = 0\n', "links 1: burst must lie between 2000 and 1e+06 bytes"),
        (PROGRAMS + LINK + "link_trace = 3\n", "links 1: link_trace must be the name of a file, got 3"),
        (PROGRAMS + LINK + 'outage = "1s"\noutage_every = "2s"\n', "links 1: outage must go with a rate or a trace"),
        (LINK, "there must be at least one table [programs.NAME]"),
        (PROGRAMS, "there must be at least one table [[links]]"),
        (PROGRAMS + LINK + "delay = 3\n", "links 1: 'delay' is no key; there are between, rtt, loss,"),
        (PROGRAMS + LINK + 'loss = "60%"\n', "links 1: loss must be a fraction from 0 to 0.5, got 0.6"),
        (PROGRAMS + LINK + 'rate = "fast"\n', "links 1: rate: 'fast' is no rate"),
        (PROGRAMS + LINK + 'queue = "pie"\n', "links 1: queue must go with a rate, got 'pie'"),
        (PROGRAMS + LINK + 'loss = ["1%", "1%", "1%"]\n', "links 1: loss must be one value, or a list of two"),
        (PROGRAMS + LINK.replace('"client"', '"laptop"'), "programs.client.host must be the end of one of"),
        (PROGRAMS + LINK + LINK.replace('"client"', '"laptop"'), "programs.server.host must be the end of one"),
        (PROGRAMS + LINK.replace('rtt = "60ms"', ""), "links 1: rtt is missing"),
        (
            PROGRAMS.replace('after = "server"', 'after = "web"') + LINK,
            "programs.client.after must name another program",
        ),
        (PROGRAMS.replace('"true"\n', '"true"\nafter = "client"\n', 1) + LINK, "not wait for each other in a circle"),
        (
            PROGRAMS.replace('"true"\n', '"true"\nport = 70000\n', 1) + LINK,
            "programs.server.port must be a whole number",
        ),
        (PROGRAMS.replace('"true"\n', '""\n', 1) + LINK, "programs.server.run must be a command line"),
        ("[programs.Server]\nrun = 'true'\n" + LINK, "programs.Server must be a small letter"),
        ("seed = 3\n" + PROGRAMS + LINK, "'seed' is no table of a topology"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_with_table_and_key(run, tmp_path, text, said):
    file = written(tmp_path, text)
    status, printed, errors = run("run", str(file))
    assert (status, printed) == (2, "")
    (line,) = errors.splitlines()
    assert line.startswith(f"tcpdelay run: {file}: ")
    assert said in line


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("none.up", None, "none.up: No such file or directory"),
        ("empty.up", "", "empty.up: is empty"),
        ("words.up", "1\nfast\n", "words.up, line 2: must be a whole number of milliseconds, got 'fast'"),
        ("dead.csv", "time,rate\n0,0\n1,0\n", "dead.csv, line 2: rate must be 1 bit/s or more in one row"),
        (
            "outage.csv",
            "time,rate\n0,9\n1,0\n900,9\n",
            "outage.csv, line 3: rate must be above 0 at least once in 600 s",
        ),
    ],
)
def test_the_error_of_a_trace_names_the_link_and_the_key(run, tmp_path, file, content, said):
    if content is not None:
        (tmp_path / file).write_text(content)
    topology = written(tmp_path, PROGRAMS + LINK + f'link_trace = ["{file}", ""]\n')
    status, printed, errors = run("run", str(topology))
    assert (status, printed, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"tcpdelay run: {topology}: links 1: link_trace: {tmp_path}/{said}")


def test_options_of_the_path_belong_into_the_file(run):
    status, _, errors = run("run", "--loss", "1%", str(EXAMPLE))
    assert (status, errors.count("\n")) == (2, 1)
    assert "--loss: belongs into" in errors
    status, _, errors = run("run", "--link-trace", str(TRACE), str(EXAMPLE))
    assert (status, errors.count("\n")) == (2, 1)
    assert "--link-trace: belongs into" in errors
    status, _, errors = run("run", str(EXAMPLE), "--seed", "3")
    assert (status, errors.count("\n")) == (2, 1)
    assert "--seed: must be in front of" in errors


def in_guest(file, directory, **settings):
    require(GUEST.problems(), "VIRTUAL")
    settings = {"duration": 60, "linger": 5, "working_directory": ROOT, **settings}
    return run_topology(read_topology(file), directory, GUEST, **settings)


def test_a_queue_that_the_kernel_lacks_is_refused_in_one_line(run, tmp_path):
    require(GUEST.problems(), "VIRTUAL")
    file = written(tmp_path, PROGRAMS + LINK + 'rate = "1Mbit/s"\nqueue = "dualpi2"\n')
    status, printed, errors = run("run", str(file))
    # The guest finds out about the queue; by then root has been warned.
    lines = [line for line in errors.splitlines() if "root runs the programs" not in line]
    assert (status, printed, len(lines)) == (2, "", 1)
    assert f"{file}: queue must be in the kernel (it needs Linux 6.17 or later: run" in errors


def echo_times(found):
    """Return the median and the 95th percentile of the caller's echo [ms]."""
    words = found.output("caller").split()
    return float(words[words.index("median") + 1]), float(words[words.index("within") + 1])


def test_a_download_delays_voice_in_a_fifo_and_less_in_fq_codel(tmp_path):
    fifo = in_guest(EXAMPLE, tmp_path / "fifo")
    text = EXAMPLE.read_text(encoding="utf-8").replace('"fifo"', '"fq_codel"')
    fair = in_guest(written(tmp_path, text), tmp_path / "fq_codel")
    for found in (fifo, fair):
        assert found.status == dict.fromkeys(["echo", "web", "caller", "laptop"], 0)
        assert found.output("laptop") == "download: complete\n"
        assert {file.name for file in found.traces} == {"caller.pcapng", "laptop.pcapng", "server.pcapng"}
        # Both links and the router are on the path of the voice: 10 + 30 ms.
        traces = (found.trace("caller"), found.trace("server"))
        analysis = analyze_directions(traces, f"{found.addresses['caller']}:", same_clock=True)[0]
        assert analysis.rtt_base == pytest.approx(0.04, abs=0.002)
    assert fifo.packets["router-server_bottleneck_back_dropped"] == 0
    assert fair.packets["router-server_bottleneck_back_dropped"] > 0
    assert echo_times(fifo)[0] > 200
    assert echo_times(fair)[0] < 60


UPLOAD = """
import socket, sys
stream = socket.create_connection((sys.argv[1], 80))
for _ in range(30):
    stream.sendall(bytes(65536))
"""
SINK = """
import socket
stream, _ = socket.create_server(("", 80)).accept()
while stream.recv(65536):
    pass
"""


def test_every_queue_drops_or_marks(tmp_path):
    (tmp_path / "sink.py").write_text(SINK, encoding="utf-8")
    (tmp_path / "upload.py").write_text(UPLOAD, encoding="utf-8")
    cases = [("red", "false"), ("red", "true"), ("pie", "true"), ("cake", "true")]
    tables = [
        f"""
[programs.to-{queue}-{ecn}]
run = ["{sys.executable}", "upload.py", "{queue}-{ecn}"]
after = "{queue}-{ecn}"
[programs.{queue}-{ecn}]
run = ["{sys.executable}", "sink.py"]
port = 80
[[links]]
between = ["to-{queue}-{ecn}", "{queue}-{ecn}"]
rtt = "40ms"
rate = "5Mbit/s"
queue = "{queue}"
ecn = {ecn}
"""
        for queue, ecn in cases
    ]
    found = in_guest(written(tmp_path, "".join(tables)), tmp_path / "out", working_directory=tmp_path)
    assert set(found.status.values()) == {0}
    marked, dropped = (
        [found.packets[f"to-{queue}-{ecn}-{queue}-{ecn}_bottleneck_{what}"] for queue, ecn in cases]
        for what in ("marked", "dropped")
    )
    # All hosts negotiate ECN here. The first queue drops all the same.
    assert marked[0] == 0
    assert dropped[0] > 0
    assert min(marked[1:]) > 0


# A link with a trace: times, drops, and TCP in both directions

SERVER = """
import socket, time
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind(("", 7000))
listening = socket.create_server(("", 7001))
times = []
for _ in range(12):
    own.recv(2048)
    times.append(time.monotonic())
print(*(round(1e3 * (later - earlier), 3) for earlier, later in zip(times, times[1:])), flush=True)
stream, _ = listening.accept()
while data := stream.recv(65536):
    stream.sendall(data)
"""
CLIENT = """
import socket, time
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(13):
    own.sendto(bytes(1472), ("server", 7000))
time.sleep(0.2)
stream = socket.create_connection(("server", 7001))
begin = time.monotonic()
stream.sendall(bytes(14480))
left = 14480
while left:
    left -= len(stream.recv(65536))
print(round(time.monotonic() - begin, 2), flush=True)
"""


def test_packets_leave_at_the_opportunities_of_the_trace(tmp_path):
    require(GUEST.problems(), "VIRTUAL")
    path = EmulatedPath(rtt=0.020, trace=LinkTrace.of_opportunities([10]), queue_packets=12)
    ends = [[sys.executable, "-c", text] for text in (CLIENT, SERVER)]
    found = run_programs(*ends, path, tmp_path / "run", GUEST, duration=30)
    # The last datagram finds twelve in the queue.
    assert found.output("server").splitlines() == [" ".join(["10.0"] * 11)]
    assert found.packets["bottleneck_dropped"] == 1
    assert found.status == {"client": 0, "server": 0}
    # A round trip, ten segments, one every 10 ms, and in each direction a wait for the first opportunity.
    assert 0.12 <= float(found.output("client")) <= 0.15


# The plugin of pytest: tests over an emulated path, in a pytest of their own


def run_pytest(*arguments, cwd=ROOT):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n0", "-rs", "-v", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False).stdout


def test_the_example_passes():
    require(GUEST.problems(), "VIRTUAL")
    printed = run_pytest("examples/test_bad_path.py")
    assert "1 passed" in printed, printed


def test_the_marker_is_declared():
    assert (
        "tcpdelay(rtt="
        in subprocess.run(
            [sys.executable, "-m", "pytest", "--markers"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    )


def test_a_test_without_a_guest_is_skipped_with_the_reason(tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "import pytest\n@pytest.mark.tcpdelay(hz=999, kernel='5.15')\n"
        "def test_it(tcpdelay_path):\n    raise AssertionError\n"
    )
    printed = run_pytest(tmp_path, "--rootdir", tmp_path, cwd=tmp_path)
    assert "1 skipped" in printed
    build = "tcpdelay testbed build-kernel --kernel 5.15 --hz 999"
    assert f"tcpdelay_path: no kernel of Linux 5.15 with virtual time at 999 Hz; run: {build}" in printed


def test_the_path_of_a_test_takes_the_settings_of_the_test(tcpdelay_path):
    assert (tcpdelay_path.path.rtt, tcpdelay_path.path.loss, tcpdelay_path.seed) == (0.1, 0.01, 0)
    other = tcpdelay_path.over(rtt=0.3, seed=4)
    assert (other.path.rtt, other.path.loss, other.seed) == (0.3, 0.01, 4)
    with pytest.raises(InvalidValueError, match="rtt must lie between"):
        tcpdelay_path.over(rtt=100)
