import itertools
import math
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.scenario.source_settings import SourceSettings
from tcpdelay.testbed.campaign import Precision, Specification, read_specification, shortened
from tcpdelay.testbed.experiment import Experiment

ROOT = Path(__file__).parents[1]
SHIPPED = [*sorted((ROOT / "validation" / "specs").glob("*.toml")), ROOT / "examples" / "first-capture.toml"]
HEAD = 'name = "test"\n'
PLAIN = HEAD + "[[experiments]]\n"
PRECISION = PLAIN + "[precision]\n"


@pytest.fixture
def read(tmp_path):
    def read(text):
        file = tmp_path / "spec.toml"
        file.write_text(text, encoding="utf-8")
        return read_specification(file)

    return read


@pytest.fixture
def refused(read, tmp_path):
    """What is said of a specification behind the name of its file, which must be one line."""

    def refused(text):
        with pytest.raises(ValueError, match=r"spec\.toml: ") as caught:
            read(text)
        message = str(caught.value)
        assert "\n" not in message
        prefix = f"{tmp_path / 'spec.toml'}: "
        assert message.startswith(prefix)
        return message.removeprefix(prefix)

    return refused


def test_the_least_that_is_needed(read):
    assert read(PLAIN) == Specification("test", (Experiment(),))


def test_everything_that_can_be_said(read):
    specification = read(
        """
        name = "All-of.it"
        backend = "uml-virtual"
        hz = [250, 1000]
        seed = 7
        side_by_side = 3
        pcap = true
        [precision]
        half_width = "5%"
        utilization = 0.8
        max_duration = "40 min"
        [[experiments]]
        packet_size = "1.4kB"
        interval = "30ms"
        rtt = "0.2 s"
        loss = "2%"
        ack_loss = 0.01
        bottleneck_rate = "3Mbit/s"
        queue_bytes = "50kB"
        duration = "5 min"
        [[experiments]]
        application = "adaptive"
        loss = "1%"
        notsent_lowat = "16384B"
        duration = 90
        """
    )
    first = Experiment(
        packet_size=1400,
        interval=0.03,
        rtt=0.2,
        loss=0.02,
        ack_loss=0.01,
        bottleneck_rate=3e6,
        queue_bytes=50_000,
        duration=300,
    )
    second = Experiment(application="adaptive", loss=0.01, notsent_lowat=16384, duration=90)
    precision = Precision(half_width=0.05, utilization=0.8, max_duration=2400)
    assert specification == Specification(
        "All-of.it", (first, second), "uml-virtual", (250, 1000), 7, 3, True, precision
    )


def test_a_source_is_for_experiments_that_name_no_other(read, tmp_path):
    (tmp_path / "frames.csv").write_text("time,size\n0,9000\n0.5,700\n")
    specification = read(
        """
        name = "sources"
        [source]
        kind = "video"
        bitrate = "2Mbit/s"
        seed = 7
        [[experiments]]
        rtt = ["20ms", "60ms"]
        [[experiments]]
        application = "cbr"
        [[experiments]]
        source = [{ kind = "trace", file = "frames.csv" }, { kind = "messages", rate = 50, sizes = "500B" }]
        [[experiments]]
        rtt = "150ms"
        [experiments.source]
        kind = "speech"
        packet_size = "174B"
        interval = "20ms"
        """
    )
    video = SourceSettings(td.Video(2e6), 7)
    first, second, constant, trace, messages, speech = specification.experiments
    assert (first.source, first.application, first.rtt) == (video, "source", 0.020)
    assert (second.source, second.rtt) == (video, 0.060)
    assert constant == Experiment()
    assert trace.source.source == td.Trace([0, 0.5], [9000, 700])
    assert messages.source.source == td.Messages(50, 500)
    assert speech.source.source == td.Speech(174, 0.020)


@given(
    st.lists(st.integers(1, 1500), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 300), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from(["reno", "cubic", "bbr"]), min_size=1, max_size=3, unique=True),
)
def test_lists_span_grids_in_order(tmp_path_factory, sizes, times, controls):
    file = tmp_path_factory.getbasetemp() / "grid.toml"
    file.write_text(
        f"{PLAIN}packet_size = {sizes}\nrtt = {[f'{ms}ms' for ms in times]}\ncongestion_control = {controls}\n"
    )
    assert read_specification(file).experiments == tuple(
        Experiment(packet_size=size, rtt=ms / 1000, congestion_control=control)
        for size, ms, control in itertools.product(sizes, times, controls)
    )


def test_one_tick_rate_needs_no_list(read):
    assert read(f"hz = 1000\n{PLAIN}").hz == (1000,)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_the_specifications_that_are_shipped_read(file):
    specification = read_specification(file)
    assert specification.name == file.stem
    names = [experiment.name for experiment in specification.experiments]
    assert len(set(names)) == len(names) > 0


def test_the_published_grid_is_complete():
    grid = read_specification(ROOT / "validation" / "specs" / "random-loss.toml")
    assert len(grid.experiments) == 3 * 2 * 3 * 7 * 2


WRONG = {
    "no name": ("[[experiments]]\n", "name must be up to 61 letters, digits, dots and hyphens, got None"),
    "a name with a slash": ('name = "a/b"\n[[experiments]]\n', "name must be up to 61 letters"),
    "a name that hides": ('name = ".a"\n[[experiments]]\n', "name must be up to 61 letters"),
    "a name of two lines": ('name = "a\\n"\n[[experiments]]\n', "name must be up to 61 letters"),
    "a long name": (f'name = "{"a" * 62}"\n[[experiments]]\n', "name must be up to 61 letters"),
    "an unknown key": (f"speed = 1\n{PLAIN}", "'speed' is no key of a specification; there are backend, experiments,"),
    "a misspelt key": (f"sede = 1\n{PLAIN}", "source; did you mean seed?"),
    "an unknown setting": (f"{PLAIN}speed = 1\n", "experiments 1: 'speed' is no setting of an experiment; there are"),
    "no experiments": (HEAD, "there must be at least one table [[experiments]]"),
    "empty experiments": (f"{HEAD}experiments = []\n", "there must be at least one table [[experiments]]"),
    "one table": (f"{HEAD}[experiments]\n", "there must be at least one table [[experiments]]"),
    "numbers for tables": (f"{HEAD}experiments = [1]\n", "experiments 1: a table of settings is expected, got 1"),
    "an unknown backend": (f'backend = "xen"\n{PLAIN}', "backend must be one of 'uml-virtual', 'uml', 'host', got"),
    "several backends": (f'backend = ["uml"]\n{PLAIN}', "backend must be one of"),
    "pcap in words": (f'pcap = "yes"\n{PLAIN}', "pcap must be true or false, got 'yes'"),
    "a slow tick": (f"hz = 99\n{PLAIN}", "hz must be a whole number from 100 to 1000, got 99"),
    "a broken tick": (f"hz = [250, 250.5]\n{PLAIN}", "hz must be a whole number from 100 to 1000, got 250.5"),
    "no tick": (f"hz = []\n{PLAIN}", "hz must be a whole number or a list of different whole numbers, got []"),
    "a tick twice": (f"hz = [250, 250]\n{PLAIN}", "hz must be a whole number or a list of different whole numbers"),
    "an old kernel": (f'kernel = "5.4"\n{PLAIN}', "kernel must be a version of Linux of at least 5.15, such as"),
    "a kernel as a number": (f"kernel = 6.1\n{PLAIN}", "kernel must be a version of Linux of at least 5.15, such as"),
    "a kernel twice": (f'kernel = ["6.1", "6.1"]\n{PLAIN}', "kernel must be a version of Linux or a list of different"),
    "a kernel elsewhere": (f'backend = "host"\nkernel = "6.1"\n{PLAIN}', "kernel is for the backend 'uml-virtual'"),
    "a negative seed": (f"seed = -1\n{PLAIN}", "seed must be a whole number from 0 to 2147483647, got -1"),
    "a large seed": (f"seed = {2**31}\n{PLAIN}", "seed must be a whole number from 0 to 2147483647"),
    "a true seed": (f"seed = true\n{PLAIN}", "seed must be a whole number from 0 to 2147483647, got True"),
    "none side by side": (f"side_by_side = 0\n{PLAIN}", "side_by_side must be a whole number from 1 to 64, got 0"),
    "many side by side": (f"side_by_side = 65\n{PLAIN}", "side_by_side must be a whole number from 1 to 64, got 65"),
    "a time without unit": (f'{PLAIN}rtt = "100"\n', "experiments 1: rtt: '100' has no unit; write 100ms or 100s"),
    "no fraction": (f'{PLAIN}loss = "2"\n', "experiments 1: loss: 2 is neither a fraction below 1 nor a percentage"),
    "no rate": (f'{PLAIN}bottleneck_rate = "1"\n', "experiments 1: bottleneck_rate: '1' has no unit"),
    "no size": (f'{PLAIN}packet_size = "big"\n', "experiments 1: packet_size: 'big' is no size"),
    "an interval of zero": (
        f'{PLAIN}interval = "0s"\n',
        "experiments 1: interval must lie between 0.001 and 60 s, got 0",
    ),
    "a date": (
        f"{PLAIN}rtt = 2001-01-01\n",
        "experiments 1: rtt must be a number, or text with a unit, got datetime.date",
    ),
    "out of range": (f"{PLAIN}rtt = 11\n", "experiments 1: rtt must lie between 1e-06 and 10 s, got 11"),
    "a bad one in the second": (f"{PLAIN}[[experiments]]\nrtt = 11\n", "experiments 2: rtt must lie between"),
    "a bad one in a list": (f"{PLAIN}rtt = [0.1, 11]\n", "experiments 1: rtt must lie between 1e-06 and 10 s, got 11"),
    "an empty list": (f"{PLAIN}rtt = []\n", "experiments 1: rtt is an empty list"),
    "a list in a list": (
        f"{PLAIN}rtt = [[0.1]]\n",
        "experiments 1: rtt must be a number, or text with a unit, got [0.1]",
    ),
    "a huge number": (
        f"{PLAIN}packet_size = 1{'0' * 400}\n",
        "packet_size must be a number, or text with a unit, got 1e+400",
    ),
    "the same in a list": (f"{PLAIN}rtt = [0.1, 0.1]\n", "experiments 1: 'cbr-174B-20ms-rtt100ms-loss0pct-cubic' is"),
    "the same with another unit": (f'{PLAIN}rtt = ["100ms", "0.1s"]\n', "is already requested by experiments 1"),
    "the same in two tables": (f"{PLAIN}[[experiments]]\nrtt = [0.2, 0.1]\n", "is already requested by experiments 1"),
    "durations alone": (
        f"{PLAIN}duration = [60, 120]\n",
        "2 experiments differ only in settings that names do not show and would be named 'cbr-174B-20ms-rtt100ms-",
    ),
    "what datagrams do not use": (
        f'{PLAIN}application = "udp"\ncongestion_control = ["reno", "cubic"]\n',
        "2 experiments differ only in settings that names do not show and would be named 'udp-174B-20ms-rtt100ms-",
    ),
    "too many": (
        f"{PLAIN}packet_size = {list(range(1, 102))}\nrtt = {list(range(100))}\n",
        "span 10100 experiments",
    ),
    "a source of no kind": (f"{HEAD}[source]\n[[experiments]]\n", "source.kind must be one of 'flow', 'video', "),
    "a source with an unknown key": (
        f'{HEAD}[source]\nkind = "video"\nbitrate = 1e6\nfps = 9\n[[experiments]]\n',
        "source: 'fps' is no parameter of 'video'",
    ),
    "a source as a word": (f'{PLAIN}source = "video"\n', "experiments 1: source must be a table with the keys kind"),
    "a trace that is not there": (
        f'{PLAIN}source = {{ kind = "trace", file = "none.csv" }}\n',
        "none.csv: cannot be read: No such file or directory",
    ),
    "a size beside a source": (
        f'{PLAIN}packet_size = 174\nsource = {{ kind = "video", bitrate = 1e6 }}\n',
        "experiments 1: packet_size does not go with a source, which has its own sizes and times",
    ),
    "a source of datagrams": (
        f'{PLAIN}application = "udp"\nsource = {{ kind = "video", bitrate = 1e6 }}\n',
        "experiments 1: a source goes with the applications 'source' and 'quic', got 'udp'",
    ),
    "no source": (f'{PLAIN}application = "source"\n', "experiments 1: the application 'source' needs a source"),
    "a source over two connections": (
        f'{PLAIN}connections = 2\nsource = {{ kind = "video", bitrate = 1e6 }}\n',
        "experiments 1: pieces and connections are for the application 'cbr', not 'source'",
    ),
    "precision as a number": (
        f"precision = 0.05\n{PLAIN}",
        "precision must have the keys half_width, utilization",
    ),
    "half a precision": (
        f"{PRECISION}half_width = 0.1\n",
        "precision must have the keys half_width, utilization",
    ),
    "too much precision": (
        f"{PRECISION}half_width = 0.1\nutilization = 0.5\nmax_duration = 60\nmore = 1\n",
        "precision must have the keys half_width, utilization, max_duration, got",
    ),
    "no TOML": ("name = \n", "is no TOML: Invalid value (at line 1, column 8)"),
    "a key twice": (HEAD + PLAIN, "is no TOML: Cannot overwrite a value (at line 2"),
    "deep nesting": (f"x = {'[' * 5000}{']' * 5000}\n", "is no TOML: "),
    "endless digits": (f"seed = {'9' * 5000}\n{PLAIN}", "is no TOML: "),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_wrong_specifications_are_told_in_one_line(refused, text, message):
    assert message in refused(text)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("half_width", ["0", "1", "true", "nan", "[0.1]", "-0.1"], "must lie between 0 and 1, got "),
        ("half_width", ['"5 parts"'], "unknown unit 'parts' of a fraction"),
        ("utilization", ["0", "1.0", "false", '"0%"'], "must lie between 0 and 1, got "),
        ("max_duration", ["0", "-1", "1e9"], "must lie between 0 and 172800 s, got "),
        ("max_duration", ["nan", "inf"], "must be finite, got "),
        ("max_duration", ["true", "[60]"], "must be a number, or text with a unit, got "),
        ("max_duration", ['"5"'], "'5' has no unit"),
    ],
)
def test_a_precision_out_of_range_is_told_by_its_key(refused, name, values, message):
    for value in values:
        table = {"half_width": "0.05", "utilization": "0.8", "max_duration": "3600", name: value}
        text = PRECISION + "".join(f"{key} = {setting}\n" for key, setting in table.items())
        said = refused(text)
        assert said.startswith(f"precision.{name}")
        assert message in said


def test_files_that_cannot_be_read_are_told(tmp_path):
    with pytest.raises(ValueError, match=r"none\.toml: cannot be read: No such file or directory$"):
        read_specification(tmp_path / "none.toml")
    with pytest.raises(ValueError, match=r"cannot be read: Is a directory$"):
        read_specification(tmp_path)
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'name = "\xe4"\n')
    with pytest.raises(ValueError, match=r"latin\.toml: is no TOML: .*utf-8"):
        read_specification(latin)


def test_the_largest_grid_is_read_in_reasonable_time(read):
    start = time.perf_counter()
    specification = read(f"{PLAIN}packet_size = {list(range(1, 101))}\nrtt = {[n / 100 for n in range(1, 101)]}\n")
    assert len(specification.experiments) == 10_000
    assert time.perf_counter() - start < 5


def test_shortened_experiments_keep_what_else_they_are(read):
    specification = read(
        f"seed = 3\n{PRECISION}half_width = 0.1\nutilization = 0.5\nmax_duration = 900\n"
        "[[experiments]]\nrtt = 0.2\nduration = 10\n"
    )
    short = shortened(specification, 30.0)
    assert short.precision is None
    assert short.seed == 3
    assert [experiment.duration for experiment in short.experiments] == [30, 10]
    assert [experiment.name for experiment in short.experiments] == [e.name for e in specification.experiments]
    assert specification.experiments[0].duration == 60
    with pytest.raises(ValueError, match=r"^duration must lie between 1 and 86400 s, got 0\.5$"):
        shortened(specification, 0.5)
    assert math.isclose(shortened(specification, 5).experiments[1].duration, 5)
