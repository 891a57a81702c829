"""The scripts of benchmarks/ and validation/ run nowhere else in the tests: that they still start at all."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(
    file
    for folder in ("benchmarks", "validation")
    for file in (ROOT / folder).rglob("*.py")
    if file.parent.name != "scoring"
)
WITH_COMMAND_LINE = [script for script in SCRIPTS if "ArgumentParser(" in script.read_text()]
OF_EXTRA_BENCH = ("pytest_benchmark", "quantecon", "stormpy")


@pytest.fixture
def started(monkeypatch):
    """Return what runs a script as Python would, and forgets what the script has imported from beside it."""
    before = set(sys.modules)

    def start(script, name, *arguments):
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        monkeypatch.setattr(sys, "path", [str(script.parent), str(ROOT), *sys.path])
        try:
            runpy.run_path(str(script), run_name=name)
        except ModuleNotFoundError as error:
            if error.name not in OF_EXTRA_BENCH:
                raise
            pytest.skip(f"{error.name} of the extra bench is not installed")

    yield start
    for module in set(sys.modules) - before:
        file = getattr(sys.modules[module], "__file__", None) or ""
        if Path(file) in SCRIPTS:
            del sys.modules[module]


# The others show below that they start.
@pytest.mark.parametrize(
    "script", [s for s in SCRIPTS if s not in WITH_COMMAND_LINE], ids=lambda script: str(script.relative_to(ROOT))
)
def test_all_that_a_script_imports_is_there(started, script):
    started(script, "imported")


@pytest.mark.parametrize("script", WITH_COMMAND_LINE, ids=lambda script: str(script.relative_to(ROOT)))
def test_a_script_explains_its_command_line(started, script, capsys):
    with pytest.raises(SystemExit) as end:
        started(script, "__main__", "--help")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


def test_arguments_are_read_by_a_parser_that_explains_them():
    assert len(WITH_COMMAND_LINE) > 5
    # The ends of programs in a guest are started by other scripts.
    scripts = [script for script in SCRIPTS if script.parent.name != "program_ends"]
    by_hand = [script for script in scripts if "sys.argv[1" in script.read_text()]
    # What it runs in another process reads the files that it is given there.
    assert sorted(script.name for script in by_hand) == ["large.py", "public.py"]
