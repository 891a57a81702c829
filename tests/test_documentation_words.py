"""The documentation stays as short as a reader can carry: budgets of words for sections, and of pages in the lists."""

import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BUILT = {"_build", "generated", "jupyter_execute"}
BUDGETS = {"user pages": 45_000, "appendix": 40_000, "API": 40_000, "notebooks": 15_000}
"""Most words of each section. A budget only falls: a longer page ends another page."""


MOST_PAGES = 40
"""Most pages in the lists of the five sections: without the appendix, and without pages below others."""


def words_in(text):
    return len(text.split())


def pages(appendix):
    """Return the pages of the appendix, or all others."""
    found = (page.relative_to(DOCS) for page in DOCS.rglob("*.md"))
    within = [page for page in found if not BUILT & {*page.parts} and "notebooks" not in page.parts]
    return [DOCS / page for page in within if (page.parts[0] == "appendix") == appendix]


def written_in(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def described_by(name):
    """Return the docstring of a name in the reference."""
    module, *attributes = "tcpdelay", *name.removeprefix("tcpdelay.").split(".")
    found = importlib.import_module(module)
    for attribute in attributes:
        if not hasattr(found, attribute):
            importlib.import_module(f"{found.__name__}.{attribute}")
        found = getattr(found, attribute)
    return inspect.getdoc(found) or ""


def words(section):
    """Return the number of words of a section; code and tables count like text."""
    if section == "API":
        page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
        names = re.findall(r"^(?:   |\.\. autofunction:: )([A-Za-z]\w*(?:\.\w+)*)$", page, flags=re.MULTILINE)
        return sum(words_in(described_by(name)) for name in names)
    if section == "notebooks":
        return sum(words_in(written_in(notebook)) for notebook in (ROOT / "notebooks").glob("*.ipynb"))
    return sum(words_in(page.read_text(encoding="utf-8")) for page in pages(appendix=section == "appendix"))


@pytest.mark.parametrize(("section", "budget"), BUDGETS.items(), ids=BUDGETS)
def test_a_section_keeps_its_budget_of_words(section, budget):
    assert words(section) <= budget


def test_every_page_is_in_a_section():
    counted = {*pages(appendix=True), *pages(appendix=False)}
    assert {DOCS / "index.md", DOCS / "appendix" / "index.md", DOCS / "reference" / "api.md"} <= counted


def listed_on(page):
    """Return the pages in the lists of contents of a page."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    names = [re.sub(r".*<(.*)>", r"\1", line) for line in lines]
    return [(page.parent / f"{name}.md").resolve() for name in names]


def test_the_navigation_stays_a_map():
    sections = listed_on(DOCS / "index.md")
    assert len(sections) == 5
    listed = [page for section in sections for page in listed_on(section) if "appendix" not in page.parts]
    assert len(listed) < MOST_PAGES  # and the front page
    assert len(listed) == len(set(listed))
    assert all(page.exists() for page in listed)
