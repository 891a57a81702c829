import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from cli_process import process
from tcpdelay.cli.options import OPTIONS
from tcpdelay.cli.program import main
from tcpdelay.scenario.scenario import APPLICATIONS

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def examples(printed):
    """Return the arguments of each command in a help text; a line that ends in a backslash goes on."""
    joined = re.sub(r" *\\\n +", " ", printed)
    return [
        shlex.split(line, comments=True)[1:] for line in joined.splitlines() if line.strip().startswith("tcpdelay ")
    ]


@pytest.mark.parametrize("command", [[], ["report"], ["predict"], ["solve"]])
def test_every_example_of_the_help_runs_as_written(run, brief_simulations, tmp_path, command):
    with process(*command, "--help", stdout=subprocess.PIPE) as started:
        printed, errors = started.communicate()
    assert (started.returncode, errors) == (0, "")
    assert max(map(len, printed.splitlines())) <= 80
    found = examples(printed)
    assert len(found) >= 3
    (tmp_path / "examples").symlink_to(EXAMPLES)
    for arguments in found:
        with brief_simulations():
            status, _, errors = run(*arguments)
        assert status == 0, arguments
        assert all(line.startswith("warning: ") for line in errors.splitlines()), arguments
        if "-o" in arguments or "--chart" in arguments:
            assert (tmp_path / arguments[-1]).stat().st_size > 1000


def test_the_help_names_every_option_in_full(run):
    _, usual, _ = run("report", "--help")
    _, everything, _ = run("report", "--help-all")
    for printed in (usual, everything):
        for name in OPTIONS:
            assert f"--{name.replace('_', '-')}" in printed
        assert "\nWhat is sent:\n  --app " in printed
        assert "\nOutput:\n  --format " in printed
    assert "[default: (grow)]" in " ".join(everything.split())
    assert "[default: (grow)]" not in " ".join(usual.split())
    assert len(usual.splitlines()) < 0.75 * len(everything.splitlines())


@pytest.mark.parametrize("arguments", [["--help"], ["predict", "--help"], ["batch", "--help"], ["region", "--help"]])
def test_the_help_gives_packets_and_target_of_each_application(run, arguments):
    printed = " ".join(run(*arguments)[1].split())
    assert "voip Telephony, G.711: 174 B every 20 ms (69.6 kbit/s); 95 % within 200 ms" in printed
    assert all(f" {name} {preset.title}: " in printed for name, preset in APPLICATIONS.items())


@pytest.mark.parametrize("arguments", [["analyze"], ["batch"], ["sweep"], ["validate"], ["testbed", "show"]])
def test_the_help_of_an_argument_has_no_type_of_the_language(run, arguments):
    status, printed, _ = run(*arguments, "--help")
    assert status == 0
    assert not re.search(r"<(list|path|str)\b", printed, flags=re.IGNORECASE)


def test_alone_it_explains_itself(run):
    status, printed, errors = run()
    assert (status, errors) == (0, "")
    assert run("--help") == run("-h") == (0, printed, "")
    assert "report" in printed
    assert "predict" in printed


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("tcpdelay rep", "report"),
        ("tcpdelay report --app v", "voip\nvoice-agent\nvoice-agent-reply"),
        ("tcpdelay predict --variant s", "sack"),
    ],
)
def test_the_shell_completes_commands_and_values(monkeypatch, capfd, typed, completed):
    monkeypatch.setenv("_TCPDELAY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert capfd.readouterr() == (f"{completed}\n", "")


def test_version(run):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run("--version") == (0, f"tcpdelay {declared}\n", "")


def test_a_missing_argument_points_to_the_examples(run):
    assert run("sweep") == (2, "", "tcpdelay sweep: missing argument 'SPEC.toml'; tcpdelay sweep --help has examples\n")
    status, printed, _ = run("sweep", "--help")
    assert (status, "[grid]" in printed) == (0, True)


def test_the_help_says_which_jitter_is_meant_and_that_packets_are_reordered(run):
    _, printed, _ = run("predict", "--help-all")
    said = " ".join(printed.split())
    assert "each delay is drawn uniformly from 0 to this maximum, so the mean is half of it" in said
    assert "data may overtake earlier data" in said
