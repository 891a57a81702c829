"""Every command shown in README and documentation runs as written, or is at least understood."""

import doctest
import gzip
import re
import shlex
import shutil
import subprocess
import tomllib
from csv import DictReader
from datetime import date
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from pyarrow import csv, parquet

import tcpdelay as td
from tcpdelay.cli.program import program
from tcpdelay.units import format_fraction, format_time

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")])

UNDERSTOOD_ONLY = {
    "run": "boots a kernel",
    "proxy": "runs until it is ended",
    "testbed": "boots a kernel, or reads what such a run has left",
    "explore": "takes minutes",
    "prepare": "takes minutes",
    "validate": "takes minutes",
    "--dst": "needs a connection that is under way",
    "--get-stats": "needs the statistics of a call",
    "--scheduler": "needs a cluster",
}
"""Commands and options with which nothing runs here, and why; the options are read all the same."""
OTHER_PROGRAMS = {
    "ping": "needs a host that answers",
    "dask": "needs a cluster",
    "ss": "needs a connection that is under way",
    "ffprobe": "needs a video file",
    "sudo": "needs root",
    "curl": "needs a proxy that runs",
    "mkdir": "has nothing to do with the project",
}
"""Programs that are not the project's: their commands are not tried."""
RECORDED = {
    "ping.txt": "examples/ping.txt",
    "ss.txt": "examples/ss.txt",
    "ss-minute.txt": "examples/ss-minute.txt",
    "sender.pcap": "validation/pcap/voice.sender.pcap.gz",
    "receiver.pcap": "validation/pcap/voice.receiver.pcap.gz",
}
"""What readers have recorded when they come to a command, and what stands in for it; tables of users come besides."""

LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def commands_of(block):
    """Return the words of each command in a block of a shell, and what it prints; None if that is not shown."""
    if not re.search(r"^\$ ", block, flags=re.MULTILINE):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        return [(words, None) for line in lines if (words := shlex.split(line, comments=True))]
    sessions = [text.partition("\n") for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(shlex.split(command, comments=True), printed or None) for command, _, printed in sessions]


def shown_in(page):
    """Return the commands in the blocks of a page, each with the output that is shown."""
    blocks = re.findall(r"^```(sh|console|text)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [
        command for kind, block in blocks if kind != "text" or block.startswith("$ ") for command in commands_of(block)
    ]


def mentioned_in(page):
    """Return the commands with options in the prose of a page, and those whose output it shows."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"`((?:\.venv/bin/)?(?:tcpdelay|python) [^`]+)`", text)
    found += re.findall(r'^show\("(tcpdelay [^"]+)"', page.read_text(), flags=re.MULTILINE)
    commands = [shlex.split(command) for command in found]
    return [words for words in commands if words[0].endswith("python") or any(word.startswith("-") for word in words)]


def resolve(arguments):
    """Return the command that the arguments of `tcpdelay` name, what it is called, and the arguments that are left."""
    command, name = program(), "tcpdelay"
    while isinstance(command, typer.core.TyperGroup) and arguments and not arguments[0].startswith("-"):
        context = command.make_context(name, list(arguments[:1]))
        name, command, _ = command.resolve_command(context, list(arguments))
        arguments = arguments[1:]
    return command, name, arguments


def understand(arguments):
    """Parse the arguments of `tcpdelay` without running anything; what is wrong with them raises."""
    command, name, arguments = resolve(arguments)
    if not isinstance(command, typer.core.TyperGroup):
        command.make_context(name, list(arguments)).close()


def options_of(command):
    return {"--help"} | {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }


def require_script(words):
    """Say whether the file, the folder's or the module's, that Python would run is there."""
    if "-m" in words[:2]:
        assert words[2] == "pytest" or (ROOT / words[2] / "__main__.py").is_file(), words
        return
    assert (ROOT / words[1]).is_file() or (ROOT / words[1] / "__main__.py").is_file(), words


def files_written(arguments):
    return [file for option, file in pairwise(arguments) if option in ("-o", "--output", "--chart")]


@pytest.fixture
def source(tmp_path):
    """The folder that commands run in: what the source brings along, and what a reader has recorded."""
    for folder in ("examples", "validation"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "docs" / "images").mkdir(parents=True)
    for name, recorded in RECORDED.items():
        opened = gzip.open if recorded.endswith(".gz") else open
        with opened(ROOT / recorded, "rb") as original, (tmp_path / name).open("wb") as copy:
            shutil.copyfileobj(original, copy)
    users = csv.read_csv(ROOT / "examples" / "users.csv")
    (tmp_path / "big").mkdir()
    for file in ("users.parquet", "big/part.parquet"):
        parquet.write_table(users, tmp_path / file)
    csv.write_csv(users.rename_columns({"rtt_ms": "ping", "loss_percent": "plr"}), tmp_path / "users.csv")
    return tmp_path


with_commands = [page for page in PAGES if shown_in(page)]


@pytest.fixture(scope="module")
def answers():
    """Return status, output and errors of commands that write no file and whose output is not shown."""
    return {}


@pytest.mark.parametrize("page", with_commands, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_runs_as_written(run, source, brief_simulations, answers, page):
    for words, expected in shown_in(page):
        program, arguments = words[0].removeprefix(".venv/bin/"), words[1:]
        if program == "tcpdelay" and not UNDERSTOOD_ONLY.keys() & set(arguments):
            if expected is None:
                with brief_simulations():
                    status, printed, errors = answers.get(tuple(arguments)) or run(*arguments)
                if not files_written(arguments):
                    answers[tuple(arguments)] = status, printed, errors
            else:
                status, printed, errors = run(*arguments)
            assert status == 0, (words, errors)
            assert printed or files_written(arguments), words
            assert "Traceback" not in errors
            if expected is not None:
                alike = doctest.OutputChecker().check_output(expected, errors + printed, LENIENT)
                assert alike, f"{shlex.join(words)} prints\n{errors}{printed}"
            for file in files_written(arguments):
                assert (source / file).stat().st_size > 500, words
        elif program == "tcpdelay":
            understand(arguments)
        elif program == "make":
            made = subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
            assert made.returncode == 0, made.stderr
        elif program == "python":
            require_script(words)
        elif program == "pip":
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            name, _, extra = words[-1].removesuffix("]").partition("[")
            assert name in (project["name"], "."), words
            assert not extra or extra in project["optional-dependencies"], words
        else:
            assert program in OTHER_PROGRAMS, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_prose_is_understood(page):
    for words in mentioned_in(page):
        if words[0].endswith("python"):
            require_script(words)
            continue
        command, _, left = resolve(words[1:])
        if len(left) == 1 and left[0].startswith("-"):  # an option by its name alone
            assert left[0] in options_of(command), words
        else:
            understand(words[1:])


def measured_elsewhere(folder, name):
    with (ROOT / "validation" / folder / name).open(newline="", encoding="utf-8") as file:
        return list(DictReader(file))


def test_every_measurement_by_others_has_a_source_and_a_question_that_is_understood():
    rows = measured_elsewhere("published", "outside.csv")
    assert len({(row["item"], row["condition"]) for row in rows}) >= 30
    for row in rows:
        assert row["source"].startswith("https://"), row
        date.fromisoformat(row["date"])
        assert row["kind"] in ("printed", "chart", "claim"), row
        assert float(row["value"]) > 0, row
        words = shlex.split(row["question"])
        assert words[0] == "tcpdelay", row
        understand(words[1:])


def test_every_measurement_by_others_has_an_answer_and_a_reason_if_that_is_off():
    rows = measured_elsewhere("published", "outside.csv")
    answers = measured_elsewhere("results/papers", "outside-published.csv")
    for row, answer in zip(rows, answers, strict=True):
        for column in ("item", "condition", "quantity", "unit"):
            assert answer[column] == row[column]
        value, found = float(row["value"]), float(answer["ours"])
        assert float(answer["value"]) == pytest.approx(value, rel=1e-5)
        # Without a spread of its own, a tenth.
        if abs(found - value) > float(row["error"] or 0.1 * value):
            assert answer["reason"], answer


def test_the_figures_of_the_first_example_are_those_that_are_predicted():
    """README, and the description of the picture of a report, state delays of a call at 100 ms and 2 % loss."""
    readme, front, page = ((ROOT / name).read_text() for name in ("README.md", "docs/index.md", "docs/report.md"))
    found = td.guideline("voip", rtt=0.100, loss=0.02)
    delay = td.predict_delay("voip", rtt=0.100, loss=0.02)
    p95, late = delay.quantile(0.95), format_fraction(delay.late_fraction(0.200))
    assert f"# {p95:.3g} s, {late} later than 200 ms" in readme
    on_time = format_fraction(delay.cdf(0.051), digits=2)
    near = f"{on_time} of the packets arrive within 1 ms of the network's delay, 95 % within {format_time(p95)}]"
    assert near in readme
    assert near.removesuffix("]") in front
    assert f"2 % loss: 95 % of the packets arrive within {format_time(p95)}.*" in front
    assert found.verdict == "works"
    spare, score = format_time(0.200 - p95), found.call.at_limit.mos
    assert f"Works, with {spare} to spare; p95 {format_time(p95)}, limit 200 ms, {late} later, MOS {score:.2f}." in page


def test_an_exception_that_no_page_needs_any_more_is_taken_out():
    shown = [words for page in PAGES for words, _ in shown_in(page)]
    assert {words[0] for words in shown} >= OTHER_PROGRAMS.keys()
    of_the_tool = {words[1] for words in shown if words[0].removeprefix(".venv/bin/") == "tcpdelay"}
    assert of_the_tool >= {"testbed", "explore", "report", "predict", "solve", "compare", "analyze", "sweep"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "--rt", "100ms"],
        ["predict", "--rtt", "100"],
        ["testbed", "run", "--fast"],
        ["predictions"],
        ["explore", "--app", "fax"],
    ],
)
def test_what_the_command_line_does_not_know_is_noticed(arguments):
    with pytest.raises(typer.TyperException):
        understand(arguments)


def test_commands_are_read_as_a_shell_does():
    assert commands_of("a --b 'c d'  # e\n\nf \\\n  -g") == [(["a", "--b", "c d"], None), (["f", "-g"], None)]
    assert commands_of("$ a b\nprinted\n$ c\n") == [(["a", "b"], "printed\n"), (["c"], None)]
