import csv
import io
import json
import math
import re
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest

from synthetic_captures import capture, experiment, flow_run, write
from tcpdelay.capture.flow_capture import FlowCapture, WrittenMessages, read_capture
from tcpdelay.cli.program import main
from tcpdelay.delays import DelayDistribution
from tcpdelay.statistics import mean_interval, quantile_interval
from tcpdelay.testbed import backends, campaign, virtual_kernel
from tcpdelay.testbed.backends import SessionFailedError
from tcpdelay.testbed.campaign import Precision, Progress, read_specification
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.virtual_kernel import BuiltKernel, KernelBuildError

SPECIFICATION = """\
name = "mine"
backend = "uml"
[precision]
half_width = "5%"
utilization = 0.8
max_duration = "10 min"
[[experiments]]
rtt = ["20ms", "100ms"]
loss = "2%"
duration = "1 min"
"""


@pytest.fixture
def run(run):
    """Run a command of the testbed in an empty directory; return its status, what it printed, and its errors."""
    return partial(run, "testbed")


@pytest.fixture
def refused(refused):
    """Return the one line with which a command refuses its arguments."""
    return lambda *arguments: refused(*arguments).removesuffix("\n")


@pytest.fixture
def specification(tmp_path):
    file = tmp_path / "spec.toml"
    file.write_text(SPECIFICATION)
    return file


@pytest.fixture
def campaigns(monkeypatch):
    """What `run` passes to the campaign, which makes nothing."""
    passed = []

    def run_campaign(specification, output, on_progress):
        passed.append((specification, output))
        on_progress(Progress(0, 0.5, 1))
        return [output / "one.parquet", output / "two.parquet"]

    monkeypatch.setattr(campaign, "run_campaign", run_campaign)
    return passed


@pytest.fixture
def captures(tmp_path):
    """A function that writes a capture of some delays [s], by its name, and returns its file."""

    def make(name="mine", delays=None, runs=None, **settings):
        delays = np.random.default_rng(1).exponential(0.05, 1000) + 0.01 if delays is None else delays
        runs = runs or [flow_run(delays, counters={"RetransSegs": 30, "TCPTimeouts": 4})]
        made = capture(runs, experiment(**settings), name)
        write(tmp_path, made)
        return tmp_path / f"{name}.parquet"

    return make


VIDEO = Experiment.from_table({"source": {"kind": "video", "bitrate": 2e5}, "rtt": 0.02, "loss": 0.01, "duration": 7e3})


@pytest.fixture
def video(tmp_path):
    """The file of a capture of 3000 frames, of which every 60th is a key frame; the key frames are later."""
    number = np.arange(3000)
    key = (number % 60 == 0).astype(np.int64)
    random = np.random.default_rng(1).exponential(0.01, 3000)
    messages = WrittenMessages(700 + 5000 * key, key, ("other frame", "key frame"))
    run = flow_run(0.01 + random + 0.1 * key, messages=messages)
    write(tmp_path, FlowCapture("film", json.loads(VIDEO.to_json()), [run]))
    return tmp_path / "film.parquet"


# testbed


def test_the_help_names_the_commands(run):
    status, printed, errors = run("--help")
    assert (status, errors) == (0, "")
    for command in ("check", "build-kernel", "run", "show"):
        assert re.search(rf"^  {command} ", printed, re.MULTILINE)
    assert "tcpdelay testbed run examples/first-capture.toml" in printed


@pytest.mark.parametrize("command", ["check", "build-kernel", "run", "show"])
def test_every_command_has_help(run, command):
    status, printed, errors = run(command, "--help")
    assert (status, errors) == (0, "")
    assert f"tcpdelay testbed {command}" in printed


def test_wrong_commands_and_options_are_told(refused):
    assert refused("walk") == "tcpdelay testbed: no such command 'walk'"
    assert refused("check", "--fast").startswith("tcpdelay testbed check: no such option: --fast")
    assert refused("run").startswith("tcpdelay testbed run: missing argument 'SPEC.toml'")
    assert refused("show").startswith("tcpdelay testbed show: missing argument 'CAPTURE'")


def test_without_a_command_there_is_help(run):
    assert run() == run("--help")


@pytest.mark.parametrize("command", ["check", "run", "build-kernel"])
def test_without_what_it_needs_the_testbed_says_so(refused, monkeypatch, specification, command):
    arguments = [specification] if command == "run" else []
    with monkeypatch.context() as patched:
        patched.setattr("sys.platform", "darwin")
        assert refused(command, *arguments).endswith(": the testbed runs on Linux only, not on 'darwin'")
    monkeypatch.setattr("tcpdelay.cli.captures.find_spec", lambda name: None)
    assert refused(command, *arguments).endswith("needs the package pyroute2; run: pip install 'tcpdelay[testbed]'")


# testbed check


@pytest.fixture
def problems(monkeypatch):
    """What each backend says stands in its way, by the name of its class; changed by the tests."""
    problems = {"UmlBackend": [], "VirtualTimeBackend": [], "HostBackend": []}
    for name in ("UmlBackend", "VirtualTimeBackend", "HostBackend"):
        monkeypatch.setattr(getattr(backends, name), "problems", lambda self: problems[type(self).__name__])
    monkeypatch.setattr(virtual_kernel, "build_requirements", list)
    monkeypatch.setattr(virtual_kernel, "built_kernels", list)
    return problems


def test_check_says_what_works(run, problems):
    status, printed, errors = run("check")
    assert (status, errors) == (0, "")
    lines = printed.splitlines()
    assert [line.split()[0] for line in lines] == ["uml", "uml-virtual", "uml-virtual", "host"]
    assert all(line.endswith("  works") for line in lines)
    assert ["250 Hz" in line for line in lines] == [False, True, False, False]
    assert ["1000 Hz" in line for line in lines] == [False, False, True, False]


def test_check_lists_the_kernels_that_have_been_built(run, problems, monkeypatch):
    built = [BuiltKernel("6.1", 250, "6.1.192"), BuiltKernel("7.3", 333, "7.3.4")]
    monkeypatch.setattr(virtual_kernel, "built_kernels", lambda: built)
    lines = [" ".join(line.split()) for line in run("check")[1].splitlines() if line.startswith("uml-virtual")]
    assert lines == [
        "uml-virtual a guest in virtual time, Linux 6.1, 250 Hz works: 6.1.192",
        "uml-virtual a guest in virtual time, Linux 6.1, 1000 Hz works",
        "uml-virtual a guest in virtual time, Linux 7.3, 333 Hz works: 7.3.4",
    ]


def test_check_says_what_is_missing(run, problems, monkeypatch):
    problems["UmlBackend"] = ["the program linux.uml is missing", "the program insmod is missing"]
    monkeypatch.setattr(virtual_kernel, "build_requirements", lambda: ["bison", "flex"])
    status, printed, _ = run("check")
    assert status == 0
    (line,) = [line for line in printed.splitlines() if line.startswith("uml ")]
    assert line.endswith("does not work: the program linux.uml is missing; the program insmod is missing")
    assert printed.endswith("first run: sudo apt-get install bison flex\n")


def test_check_fails_where_nothing_works(run, problems):
    for name in problems:
        problems[name] = ["no"]
    status, printed, errors = run("check")
    assert (status, errors, printed.count("does not work: no\n")) == (1, "", 4)


# testbed build-kernel


def test_build_kernel_passes_on_what_is_asked(run, monkeypatch, tmp_path):
    asked = []

    def build_kernels(hz, kernel, source, on_progress):
        asked.append((tuple(hz), kernel, source and source.name))
        on_progress("compiling", 0.5)
        return [tmp_path / f"linux-{rate}" for rate in hz]

    monkeypatch.setattr(virtual_kernel, "build_kernels", build_kernels)
    status, printed, _ = run("build-kernel")
    assert (status, printed) == (0, f"{tmp_path / 'linux-250'}\n{tmp_path / 'linux-1000'}\n")
    (tmp_path / "linux.tar.xz").touch()
    assert run("build-kernel", "--hz", "100", "--hz", "300", "--kernel", tmp_path / "linux.tar.xz")[0] == 0
    assert run("build-kernel", "--hz", "250", "--kernel", "7.3")[0] == 0
    assert asked == [((250, 1000), None, None), ((100, 300), None, "linux.tar.xz"), ((250,), "7.3", None)]


@pytest.mark.parametrize("hz", ["99", "1001", "250.5", "-250", "many", "", "٢٥٠"])
def test_build_kernel_refuses_other_rates(refused, hz):
    said = refused("build-kernel", f"--hz={hz}")
    assert re.match(
        r".* build-kernel: --hz: must be a whole number of interrupts per second from 100 to 1000, got .*$",
        said,
    )


def test_build_kernel_says_why_it_cannot(refused, monkeypatch, tmp_path):
    for kernel in ("5.4", tmp_path / "none"):
        said = refused("build-kernel", "--kernel", kernel)
        assert re.match(r"tcpdelay testbed build-kernel: --kernel: must be a version of Linux of .*, got '.*'$", said)

    def build_kernels(*_, **__):
        raise KernelBuildError("the build lacks Debian packages; install them: apt install flex")

    monkeypatch.setattr(virtual_kernel, "build_kernels", build_kernels)
    assert refused("build-kernel").endswith(": the build lacks Debian packages; install them: apt install flex")


# testbed run


def test_run_passes_on_the_specification(run, campaigns, specification):
    status, printed, errors = run("run", specification)
    assert (status, errors) == (0, "")
    assert printed == "captures/mine/one.parquet\ncaptures/mine/two.parquet\n"
    ((passed, output),) = campaigns
    assert passed == read_specification(specification)
    assert str(output) == "captures/mine"


def test_run_overrides_what_the_options_say(run, campaigns, specification, tmp_path):
    status, _, _ = run("run", specification, "-o", tmp_path / "else", "--backend", "host", "--duration", "30s")
    ((passed, output),) = campaigns
    assert (status, output, passed.backend, passed.precision) == (0, tmp_path / "else", "host", None)
    assert [experiment.duration for experiment in passed.experiments] == [30, 30]
    run("run", specification, "--backend", "uml-virtual")
    assert campaigns[1][0].backend == "uml-virtual"
    assert campaigns[1][0].precision == Precision(0.05, 0.8, 600)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend", "xen"], "--backend: 'xen' is not one of 'uml-virtual', 'uml', 'host'"),
        (["--duration", "30"], "--duration: '30' has no unit; write 30ms or 30s"),
        (["--duration", "0.5s"], "SPEC.toml: duration must lie between 1 and 86400 s, got 0.5"),
        (["--duration", "0s"], "--duration: '0s' is 0, but the time must be above 0"),
        (["more.toml"], "got unexpected extra argument"),
    ],
)
def test_run_refuses_wrong_options(refused, campaigns, specification, options, said):
    assert said in refused("run", specification, *options)
    assert campaigns == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "is no TOML: "),
        ('name = "mine"', "there must be at least one table [[experiments]]"),
        (SPECIFICATION.replace("2%", "2"), "experiments 1: loss: 2 is neither a fraction below 1 nor a percentage"),
        (SPECIFICATION + "colour = 3\n", "experiments 1: 'colour' is no setting of an experiment"),
        (SPECIFICATION.replace('"uml"', '"xen"'), "backend must be one of"),
    ],
)
def test_run_refuses_wrong_specifications(refused, campaigns, specification, text, said):
    specification.write_text(text)
    line = refused("run", specification)
    assert line.startswith(f"tcpdelay testbed run: SPEC.toml: {specification}: ")
    assert said in line
    assert campaigns == []


def test_run_tells_a_file_that_is_missing(refused, tmp_path):
    assert refused("run", "none.toml").endswith("none.toml: cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ValueError("backend 'uml' does not work here: no linux.uml"),
            "backend 'uml' does not work here: no linux.uml",
        ),
        (SessionFailedError("the guest failed: MemoryError"), "the guest failed: MemoryError"),
        (PermissionError(13, "Permission denied", "captures"), "'captures': Permission denied"),
        (OSError(28, "Error writing bytes to file. Detail: [errno 28] ..."), "'here': No space left on device"),
        (OSError(30, "Read-only", "here/.tcpdelay-1f.part"), "'here': Read-only file system"),
    ],
)
def test_run_tells_what_stopped_the_campaign(refused, specification, monkeypatch, error, told):
    def run_campaign(*_):
        raise error

    monkeypatch.setattr(campaign, "run_campaign", run_campaign)
    assert refused("run", specification, "-o", "here") == f"tcpdelay testbed run: testbed: {told}"


def test_run_can_be_interrupted(run, specification, monkeypatch):
    def run_campaign(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "run_campaign", run_campaign)
    assert run("run", specification) == (130, "", "")


# testbed show


@pytest.fixture
def shown(run):
    """Return the rows that `show --format json` prints."""

    def shown(*files):
        status, printed, errors = run("show", *files, "--format", "json")
        assert (status, errors) == (0, "")
        return json.loads(printed)

    return shown


def test_show_prints_what_captures_hold(shown, captures):
    runs = [
        flow_run(
            np.random.default_rng(run).exponential(0.05, 500),
            run=run,
            flow=flow,
            counters={"RetransSegs": 10 + run, "TCPTimeouts": run},
            packets={"data_sent": 970 + run, "data_dropped": 30 - run},
        )
        for run in range(2)
        for flow in range(2)
    ]
    file = captures(runs=runs, packets=500)
    (row,) = shown(file)
    delays = [run.delays for run in runs]
    expected = {
        "capture": "mine",
        "backend": "uml-virtual",
        "kernel": "6.1.0",
        "hz": 250,
        "offered": 2000,
        "not_read": 0,
        "configured_loss": 0.01,
        # The flows of a run share its counts.
        "dropped": 59,
        "measured_loss": pytest.approx(59 / 2000),
        "retransmitted": 21,
        "timeouts": 1,
        "longest_stall": 0.0,
    }
    for name, interval in (
        ("mean", mean_interval(delays)),
        ("p50", quantile_interval(delays, 0.5)),
        ("p95", quantile_interval(delays, 0.95)),
        ("p99", quantile_interval(delays, 0.99)),
    ):
        expected |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    assert row == expected


def test_show_prints_the_same_in_text(run, shown, captures):
    file = captures(delays=np.linspace(0.1, 0.2, 1001))
    (row,) = shown(file)
    status, printed, errors = run("show", file)
    assert (status, errors) == (0, "")
    lines = printed.splitlines()
    assert lines[0] == "mine: uml-virtual, Linux 6.1.0, 250 Hz"
    assert [line.split()[0] for line in lines[1:5]] == ["mean", "p50", "p95", "p99"]
    assert lines[2].startswith("  p50   150 ms (")
    for line in lines[1:5]:
        name, *numbers = re.findall(r"^  (\w+)|([\d.]+) ms", line)
        found = [float(number) for _, number in numbers]
        keys = [name[0], f"{name[0]}_low", f"{name[0]}_high"]
        assert found == pytest.approx([1000 * row[key] for key in keys], rel=5e-3)
    assert lines[5] == "  1001 packets offered, 0 not read before the end"
    assert lines[6] == "  loss 1 % (1001 segments dropped; configured 1 %), 30 retransmitted, 4 timeouts"
    assert len(lines) == 7


def test_show_prints_the_same_as_csv(run, shown, captures):
    files = [captures("one"), captures("two", loss=0.05)]
    status, printed, errors = run("show", *files, "--format", "csv")
    assert (status, errors) == (0, "")
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [row["capture"] for row in rows] == ["one", "two"]
    for row, expected in zip(rows, shown(*files), strict=True):
        assert row == {name: str(value) for name, value in expected.items()}


def test_show_tells_stalls_in_real_time(run, captures):
    stalled = [flow_run(np.linspace(0.1, 0.2, 100), backend="uml")]
    object.__setattr__(stalled[0], "stall_time", np.array([5000, 9000]))
    object.__setattr__(stalled[0], "stall_length", np.array([6000, 42_000]))
    _, printed, _ = run("show", captures(runs=stalled))
    assert printed.endswith("  the guest stalled, for 42 ms at the longest\n")


@pytest.mark.parametrize("application", ["cbr", "udp"])
def test_show_copes_with_packets_that_were_not_read(run, shown, captures, application):
    delays = np.full(1000, 0.1)
    delays[-15:] = math.inf
    file = captures(delays=delays, application=application)
    (row,) = shown(file)
    assert (row["offered"], row["not_read"]) == (1000, 15)
    assert (row["mean"], row["p99"]) == (None, None)
    assert row["p95"] == pytest.approx(0.1)
    status, printed, errors = run("show", file)
    assert (status, errors) == (0, "")
    assert "NaN" not in printed
    assert "  mean  never (never to never)\n" in printed


def test_show_copes_with_nothing_read(run, captures, tmp_path):
    file = captures(delays=np.full(100, math.inf), application="udp")
    status, printed, errors = run("show", file, "--chart", "delays.svg")
    assert (status, errors) == (0, "")
    assert "100 packets offered, 100 not read" in printed
    assert (tmp_path / "delays.svg").stat().st_size > 1000


def texts(file):
    """The words in an SVG file: matplotlib draws them as paths, and says in comments what they are."""
    return re.findall(r"<!-- (.+?) -->", file.read_text())


def test_show_draws_one_capture_beside_its_prediction(run, captures, tmp_path, monkeypatch):
    asked = []

    # Compiling the model would take longer than all other tests here.
    def predict_delay(flow, path):
        asked.append((flow, path))
        return DelayDistribution.from_samples([0.01, 0.02], path.forward_delay)

    monkeypatch.setattr("tcpdelay.models.predict.predict_delay", predict_delay)
    status, _, errors = run("show", captures(), "--chart", "delays.svg")
    assert (status, errors) == (0, "")
    file = tmp_path / "delays.svg"
    assert ElementTree.parse(file).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert {"measured", "predicted", "mine"} <= set(texts(file))
    assert asked == [(experiment().flow, experiment().path)]


@pytest.mark.parametrize(
    "settings",
    [
        {"application": "udp"},
        {"application": "adaptive"},
        {"bottleneck_rate": 1e6, "queue_packets": 50},
    ],
    ids=str,
)
def test_show_predicts_only_what_the_models_describe(run, captures, tmp_path, settings):
    status, _, errors = run("show", captures(**settings), "--chart", "delays.svg")
    assert (status, errors) == (0, "")
    assert "measured" in texts(tmp_path / "delays.svg")
    assert "predicted" not in texts(tmp_path / "delays.svg")


def test_show_draws_several_captures_by_their_names(run, captures, tmp_path):
    status, _, errors = run("show", captures("one"), captures("two", loss=0.05), "--chart", "delays.svg")
    assert (status, errors) == (0, "")
    assert {"one", "two"} <= set(texts(tmp_path / "delays.svg"))
    assert not {"measured", "predicted"} & set(texts(tmp_path / "delays.svg"))


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("SVG", b"<?xml")])
def test_show_draws_every_format(run, captures, tmp_path, suffix, magic):
    assert run("show", captures(application="udp"), "--chart", f"delays.{suffix}")[0] == 0
    assert (tmp_path / f"delays.{suffix}").read_bytes().startswith(magic)


def test_show_refuses_what_it_cannot_write(refused, captures, tmp_path):
    file = captures(application="udp")
    assert "--chart: 'delays.gif' does not end in one of .svg, .png, .pdf" in refused(
        "show", file, "--chart=delays.gif"
    )
    assert "--chart: 'none/delays.svg' cannot be written" in refused("show", file, "--chart=none/delays.svg")
    assert "--format: 'xml' is not one of 'text', 'json', 'csv'" in refused("show", file, "--format=xml")


def test_show_refuses_what_is_no_capture(refused, captures, tmp_path):
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(captures().read_bytes()[:-50])
    foreign = tmp_path / "notes.txt"
    foreign.write_text("notes\n" * 50)
    (tmp_path / "empty").mkdir()
    for file, message in (
        (tmp_path / "none.parquet", "cannot be read: No such file or directory"),
        (tmp_path / "empty", "holds no capture"),
        (foreign, "is no Parquet file: "),
        (broken, "is no Parquet file: "),
    ):
        # One that is whole does not hide the one that is not.
        for arguments in ([file], [tmp_path / "mine.parquet", file]):
            line = refused("show", *arguments)
            assert line.startswith(f"tcpdelay testbed show: CAPTURE: {file}: {message}")


def test_show_refuses_too_few_packets_for_an_interval(refused, captures):
    line = refused("show", captures(delays=np.full(19, 0.1)))
    assert line.endswith("mine: holds 19 packets; intervals take at least 20")


# Sources


def test_a_dry_run_lists_the_captures(run, campaigns, tmp_path, monkeypatch):
    # Where Debian's kernel does not run, the kernel in its place has another tick.
    monkeypatch.setattr(backends, "fits_processor", lambda release: True)
    (tmp_path / "spec.toml").write_text(
        """
        name = "mine"
        backend = "uml"
        [source]
        kind = "video"
        bitrate = "2.5Mbit/s"
        seed = 7
        [[experiments]]
        rtt = ["60ms", "300ms"]
        loss = "1%"
        duration = "2 min"
        [[experiments]]
        application = "cbr"
        [[experiments]]
        application = "adaptive"
        loss = "1%"
        """
    )
    status, printed, errors = run("run", "spec.toml", "--dry-run")
    assert (status, errors, campaigns) == (0, "", [])
    lines = [re.split("  +", line) for line in printed.splitlines()]
    frames = "messages of 10417 B in the mean, 2.5 Mbit/s, seed 7"
    assert lines == [
        [
            "video-bitrate2500000-writejitter0.001-seed7-rtt60ms-loss1pct-cubic-hz100",
            f"{frames}; round-trip time 60 ms, loss 1 %; 2 min",
        ],
        [
            "video-bitrate2500000-writejitter0.001-seed7-rtt300ms-loss1pct-cubic-hz100",
            f"{frames}; round-trip time 300 ms, loss 1 %; 2 min",
        ],
        [
            "cbr-174B-20ms-rtt100ms-loss0pct-cubic-hz100",
            "packets of 174 B every 20 ms; round-trip time 100 ms, loss 0 %; 60 s",
        ],
        [
            "adaptive-174B-rtt100ms-loss1pct-cubic-hz100",
            "packets of 174 B as fast as the socket accepts them; round-trip time 100 ms, loss 1 %; 60 s",
        ],
        ["4 captures, 6 min in all"],
    ]


def test_a_wrong_source_is_refused_in_one_line(refused, tmp_path):
    (tmp_path / "spec.toml").write_text('name = "x"\n[source]\nkind = "trace"\nfile = "a.csv"\n[[experiments]]\n')
    assert refused("run", "spec.toml", "--dry-run") == (
        "tcpdelay testbed run: SPEC.toml: spec.toml: source: a.csv: cannot be read: No such file or directory"
    )


@pytest.mark.parametrize("command", [["testbed", "show"], ["analyze"]])
def test_delays_of_messages_are_shown_by_kind(capfd, video, command):
    assert main([*command, str(video)]) == 0
    printed = capfd.readouterr().out
    found = {line.strip().partition("  ")[0]: line for line in printed.splitlines()}
    assert re.search(r"2950 messages, mean (19|20)(\.\d)? ms, p95 \d+(\.\d)? ms \(.* to .*\)", found["other frame"])
    assert re.search(r"50 messages, mean 1[12]\d ms, p95 1[2-8]\d ms \(.* to .*\)", found["key frame"])
    assert main([*command, str(video), "--format", "json"]) == 0
    (record,) = json.loads(capfd.readouterr().out)
    assert record["messages_by_kind"] == {"other frame": 2950, "key frame": 50}
    low, value, high = (record[f"{name}_by_kind"]["key frame"] for name in ("p95_low", "p95", "p95_high"))
    assert low <= value <= high


def test_the_chart_of_messages_has_the_simulated_delays(video):
    from tcpdelay.report.analysis import draw_captures

    (axes,) = draw_captures([read_capture(video)]).axes
    assert [line.get_label() for line in axes.lines][:2] == ["measured", "predicted"]


def test_what_needs_a_constant_rate_refuses_messages_in_one_line(capfd, video):
    assert main(["analyze", str(video), "--report"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("tcpdelay analyze: --report: capture must have packets of one size and interval, got 'film'")
