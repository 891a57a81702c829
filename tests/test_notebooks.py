"""The notebooks as committed: executed from top to bottom, and nothing in them of the machine they ran on."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 1_000_000
ABSOLUTE_PATH = re.compile(r"""(?:^|[\s"'(=<>,:\[])(?:file://)?(?:/[\w.@+-]+){2,}|\b[A-Za-z]:\\\w""")


def load(path):
    return json.loads(path.read_text())


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def texts(output):
    """Return all that an output says, but its pictures, and the closing tags of its HTML."""
    yield "".join(output.get("text", ""))
    for kind, content in output.get("data", {}).items():
        if not kind.startswith("image/"):
            yield content if isinstance(content, str) else "".join(content)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return load(request.param)


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 7


def test_every_cell_ran_once_in_its_order(notebook):
    counts = [cell["execution_count"] for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))


def test_no_cell_failed_or_warned(notebook):
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            assert output["output_type"] != "error"
            assert output.get("name") != "stderr", texts(output)


def test_no_path_of_the_machine_is_in_an_output(notebook):
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            for text in texts(output):
                assert not ABSOLUTE_PATH.search(text), ABSOLUTE_PATH.search(text)


@pytest.mark.parametrize(
    "text", ["/home/me/x.py", "saved to /tmp/a.svg", "'/root/.cache/y'", "file:///srv/z/a", r"C:\Users", '"/opt/a/b"']
)
def test_an_absolute_path_is_recognized(text):
    assert ABSOLUTE_PATH.search(text)


@pytest.mark.parametrize("text", ["kbit/s", "../validation/results", "and/or", "<td>1</td>", "95 % / 5 %", "w/o"])
def test_what_only_holds_a_stroke_is_no_path(text):
    assert not ABSOLUTE_PATH.search(text)


def test_nothing_says_when_or_by_which_python_it_ran(notebook):
    assert all("execution" not in cell["metadata"] for cell in notebook["cells"])
    assert "version" not in notebook["metadata"]["language_info"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_no_burden_to_the_repository(path):
    assert path.stat().st_size < LARGEST


def test_the_documentation_lists_every_notebook():
    page = (ROOT / "docs" / "notebooks.md").read_text()
    listed = re.findall(r"^notebooks/(\S+)$", page, flags=re.MULTILINE)
    assert sorted(listed) == [path.stem for path in NOTEBOOKS]


def test_links_lead_to_files(notebook):
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            for target in re.findall(r"\]\(([^)#:]+)\)", "".join(cell["source"])):
                assert (ROOT / "notebooks" / target).is_file(), target
