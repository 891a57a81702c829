"""What follows from the one declaration of a field: option, sweep axis, column, units, `help`."""

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tcpdelay as td
from tcpdelay.cli.options import OPTIONS
from tcpdelay.cli.output import argument_errors, option_name
from tcpdelay.declare import InvalidValueError, Quantity, declarations
from tcpdelay.scenario.scenario import FIELDS
from tcpdelay.scenario.stack import Linux, NewReno2008, Quic
from tcpdelay.study.sweep.specification import PARAMETERS, read_sweep
from tcpdelay.study.tables.columns import QUANTITIES
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.topology import EmulatedPath

PACKAGE = Path(__file__).parents[1] / "tcpdelay"
ADDED = """
    queueing: float = in_seconds("Mean queueing delay.", 0.0, 2.0, example="3ms", default=0.004)

    def _check_jitter"""
TOPOLOGY = """
[programs.client]
run = "true"
after = "server"
[programs.server]
run = "true"
[[links]]
between = ["client", "server"]
rtt = "100ms"
queueing = "3ms"
"""
CAMPAIGN = """
name = "new"
[[experiments]]
queueing = "3ms"
"""
SHOWN = """
import pyarrow
from tcpdelay.cli.options import ScenarioOptions
from tcpdelay.cli.program import main
from tcpdelay.cli.scenario import read_scenario
from tcpdelay.study.grid import labelled
from tcpdelay.study.execution import Results
from tcpdelay.study.sweep.run import sweep_runs
from tcpdelay.study.sweep.specification import read_sweep
from tcpdelay.study.tables.columns import QUANTITIES, Source, read_column
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.campaign import read_specification

main(["predict", "--help-all"])
main(["predict", "--rtt", "100ms", "--loss", "2%", "--app", "voip", "--queueing", "3s"])
print(read_scenario(ScenarioOptions(rtt=0.1, loss=0.02, bitrate=1e6, queueing=0.005)).path.queueing)
sweep = read_sweep({
    "flow": {"packet_size": 174, "interval": "20ms"},
    "path": {"rtt": "100ms", "loss": "2%"},
    "grid": {"queueing": ["1ms", "2ms"]},
})
runs = sweep_runs(sweep)
print(labelled(runs, Results(runs.size, runs.row_type)).queueing.attrs, sweep.axes[0].values)
batch = pyarrow.record_batch({"q": ["7 ms", "3 s"]})
print(read_column(batch, QUANTITIES["queueing"], Source("q", 1.0)))
main(["run", "--help"])
main(["run", "--rtt", "100ms", "--queueing", "3ms", "--", "true", "--client", "true"])
main(["run", "links.toml"])
print(Experiment().to_json(), Experiment().name)
try:
    read_specification("campaign.toml")
except ValueError as error:
    print(error)
"""


def test_a_new_field_of_the_path_needs_no_other_edit(tmp_path):
    copied = shutil.copytree(PACKAGE, tmp_path / "tcpdelay", ignore=shutil.ignore_patterns("__pycache__"))
    declared = copied / "scenario" / "path.py"
    declared.write_text(declared.read_text().replace("\n    def _check_jitter", ADDED, 1))
    (tmp_path / "links.toml").write_text(TOPOLOGY)
    (tmp_path / "campaign.toml").write_text(CAMPAIGN)
    done = subprocess.run(
        [sys.executable, "-c", SHOWN], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    assert "--queueing TIME Mean queueing delay. Example: 3ms. [default: (4ms)]" in printed
    assert done.stderr.splitlines() == [
        "tcpdelay predict: --queueing: must lie between 0 and 2 s, got 3",
        "tcpdelay run: --queueing: must be 0.004 in the testbed, got 0.003",
        "tcpdelay run: links.toml: links 1: queueing must be 0.004 in the testbed, got 0.003",
    ]
    assert printed.count("--queueing TIME Mean queueing delay. Example: 3ms.") == 2
    assert "campaign.toml: experiments 1: queueing must be 0.004 in the testbed, got 0.003" in printed
    # Captures keep their names and their digests.
    assert '"queueing"' not in printed
    assert " 0.005 {'long_name': 'mean queueing delay', 'units': 's'} (0.001, 0.002)" in printed
    assert "Cells(values=array([0.007, 3. ]), faults=array([0, 5], dtype=int8))" in printed


def test_every_declared_field_is_an_option_and_can_be_swept():
    declared = {name for part in (td.Flow, td.Path, Linux, NewReno2008, Quic, td.Target) for name in declarations(part)}
    assert declared == set(FIELDS) <= set(OPTIONS)
    assert declared - set(declarations(td.Target)) <= set(PARAMETERS)
    assert {name for name, (part, field) in FIELDS.items() if part == "path" and isinstance(field, Quantity)} <= set(
        QUANTITIES
    )


def test_the_help_of_a_class_shows_types_and_defaults_alone():
    signature = str(inspect.signature(td.Path))
    assert signature.startswith("(rtt: float, loss: float, loss_pattern: Literal['random', 'correlated'] = 'random'")
    assert "Quantity" not in signature + str(td.Path.__annotations__)


@pytest.mark.parametrize("described", [td.Path, td.Target, td.Video, Linux, EmulatedPath, Experiment])
def test_the_docstring_describes_every_field_once(described):
    parameters = described.__doc__.partition("Parameters\n----------\n")[2].partition("\n\nRaises\n")[0]
    names = [line.partition(" : ")[0] for line in parameters.splitlines() if not line.startswith(" ")]
    assert names == list(declarations(described))
    for declaration in declarations(described).values():
        assert declaration.meaning in parameters


def test_the_docstring_has_types_ranges_and_defaults():
    text = td.Path.__doc__
    assert "rtt : float\n    Round-trip time. From 1e-06 to 60 s.\n" in text
    assert "one_way_delay : float, optional\n" in text
    assert "Must be a fraction above 0, up to 1. By default 1.0.\n" in text
    assert "loss_pattern : {'random', 'correlated'}\n" in text


def test_every_setting_of_an_emulated_path_is_an_option_of_run(run):
    status, printed, _ = run("run", "--help")
    assert status == 0
    for name in declarations(EmulatedPath):
        assert option_name("link_trace" if name == "trace" else name) in printed


OUT_OF_RANGE = {
    "packet_size": "20MB",
    "interval": "2min",
    "rtt": "2min",
    "one_way_delay": "1s",
    "loss_burst": "101",
    "bad_time": "2min",
    "jitter": "2s",
    "hz": "99",
    "rto_min": "3min",
    "mss": "80B",
    "initial_timeout": "3min",
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_value_out_of_range_is_answered_with_its_option(refused, name):
    stack = ["--stack", "newreno_2008"] if name == "initial_timeout" else []
    option = option_name(name)
    arguments = ["--rtt", "100ms", "--loss", "2%", "--app", "voip", *stack, option, OUT_OF_RANGE[name]]
    errors = refused("predict", *arguments)
    assert re.fullmatch(rf"tcpdelay predict: {option}: must lie between .*, got [\d.]+\n", errors)


@pytest.mark.parametrize(
    ("argument", "option"), [("ack_loss", "--ack-loss"), ("late_after", "--limit"), ("columns", "--column")]
)
def test_an_error_names_the_option_of_its_argument(argument, option):
    import typer

    with pytest.raises(typer.BadParameter) as raised, argument_errors():
        raise InvalidValueError(argument, 3, "be less", "a hint for Python")
    assert raised.value.message == f"{option}: must be less, got 3"
    with pytest.raises(typer.BadParameter) as raised, argument_errors("TABLE"):
        raise InvalidValueError(argument, 3, "be less")
    assert raised.value.message == f"TABLE: {argument} must be less, got 3"


@pytest.mark.parametrize(
    ("value", "text"),
    [(10**400, "1e+400"), (-(10**9000) - 1, "-1e+9000"), (1_234_567_890_123, "1.23457e+12"), (10**12 - 1, "9" * 12)],
    ids=["400 digits", "9000 digits", "13 digits", "12 digits"],
)
def test_an_error_shortens_a_long_whole_number(value, text):
    assert str(InvalidValueError("packets", value, "be less")) == f"packets must be less, got {text}"


@pytest.mark.parametrize("huge", [10**400, -(10**400)])
def test_a_number_beyond_floating_point_is_refused_like_any_other(huge):
    with pytest.raises(InvalidValueError, match="packet_size must be finite"):
        td.Flow(huge, 0.02)
    with pytest.raises(ValueError, match="rtt must be a number"):
        read_sweep({"flow": {"packet_size": 174, "interval": 0.02}, "path": {"loss": 0.02}, "grid": {"rtt": [huge]}})
