"""Modules, names and files that the pages of the documentation mention exist."""

import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

import tcpdelay as td

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")])
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DOTTED_NAME = re.compile(r"(?<![\w./])(?:tcpdelay|td)(?:\.[A-Za-z_]\w*)+")
IMPORT = re.compile(r"^\s*from (tcpdelay[\w.]*) import (?:\(([^)]*)\)|(.+))$", flags=re.MULTILINE)
SOURCE_FILE = re.compile(
    r"(?<![\w./-])(?:tcpdelay|tests|benchmarks|validation|docs|examples|notebooks)/[\w./-]+\.(?:py|pyi|md|toml|ipynb)\b"
)
PRIVATE = re.compile(r"\b[a-z]\w*\._[a-z]\w*")


def resolve(name):
    """Return what a dotted name means; raise if a module or an attribute does not exist."""
    first, *parts = name.split(".")
    found = importlib.import_module("tcpdelay" if first == "td" else first)
    for part in parts:
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(f"{found.__name__}.{part}")
    return found


def names_in(text):
    """Return the dotted names of a text, and the names that its code imports."""
    found = set(DOTTED_NAME.findall(text))
    for module, in_brackets, in_line in IMPORT.findall(text):
        imported = (in_brackets or in_line.partition("#")[0]).split(",")
        found |= {f"{module}.{name.split()[0]}" for name in imported if name.strip()}
    return found


def code_in(page):
    blocks = re.findall(
        r"^```(?:python|\{code-cell\} python3)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    return "\n".join(blocks)


def source_of(notebook):
    return "\n".join("".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_on_a_page_exists(page):
    for name in names_in(page.read_text()):
        resolve(name)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_every_name_in_a_notebook_exists(notebook):
    for name in names_in(source_of(notebook)):
        resolve(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_source_file_named_on_a_page_exists(page):
    for file in SOURCE_FILE.findall(page.read_text()):
        assert "NAME" in file or "SUBJECT" in file or (ROOT / file).exists(), file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_code_of_a_page_uses_private_attributes(page):
    assert not PRIVATE.findall(code_in(page))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_no_notebook_uses_private_attributes(notebook):
    assert not PRIVATE.findall(source_of(notebook))


def names_in_the_reference():
    """Return the names that the reference documents, in the order of the page."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    blocks = re.findall(r"^```\{eval-rst\}\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^(?:   |\.\. autofunction:: )([A-Za-z]\w*(?:\.\w+)*)$", "\n".join(blocks), flags=re.MULTILINE)


def test_the_reference_has_every_public_name_once():
    names = names_in_the_reference()
    assert len(names) == len(set(names))
    assert {name for name in names if "." not in name} == set(td.__all__) - {"__version__"}


def test_every_name_in_the_reference_exists_and_has_a_description():
    for name in names_in_the_reference():
        found = resolve(name if name.startswith("tcpdelay.") else f"tcpdelay.{name}")
        assert inspect.getdoc(found), name


def test_a_name_that_does_not_exist_is_noticed():
    assert names_in("from tcpdelay.scenario import (Path,\n    Flow as Source,)") == {
        "tcpdelay.scenario",
        "tcpdelay.scenario.Path",
        "tcpdelay.scenario.Flow",
    }
    for name in ("tcpdelay.nowhere", "td.Flow.nothing", "tcpdelay.scenario.path.Pat"):
        with pytest.raises((AttributeError, ImportError)):
            resolve(name)
