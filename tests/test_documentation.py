"""README and documentation: short sections, names and files that exist, and figures of the files of results."""

import importlib
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tcpdelay as td
from tcpdelay.accuracy import errors

# Budgets of words for sections, and of pages in the lists

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


# Modules, names and files that pages mention exist

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


# Figures in the prose are those of the files of results that they come from

RESULTS = ROOT / "validation" / "results"


def table(name):
    return pd.read_csv(RESULTS / f"{name}.csv")


def text_of(page):
    """Return a page with single spaces between its words."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def percent(share, digits=0):
    return f"{100 * share:.{digits}f} %"


@pytest.fixture(scope="module")
def p95():
    """Return the errors of the 95th percentile by model, in captures of random losses that TCP carried."""
    scores = table("scores")
    scores = scores[scores.comparable & scores.collection.isin(["random-loss", "working-region"])]
    return {model: own.error_p95 for model, own in scores.groupby("model")}


def test_the_errors_in_captures(p95):
    linux, published = p95["linux"].abs(), p95["newreno_2008"].abs()
    readme = text_of("README.md")
    assert f"In the {len(linux)} captures under random losses at a utilization below 0.9" in readme
    own = f"{percent(linux.median(), 1)} in the median and {percent(linux.mean())} in the mean for the chain of Linux"
    assert own in readme
    assert f"it is {percent(published.median())} and {percent(published.mean())}, mostly too high" in readme
    assert f"is {percent(published.median())} of the 95th percentile in the median, mostly upwards" in text_of(
        "docs/report.md"
    )
    assert (p95["newreno_2008"] > 0).mean() > 0.5


def test_the_errors_that_answers_state():
    page, simulator = text_of("docs/accuracy/error-map.md"), errors.SIMULATOR_ERROR
    assert f"In {simulator.cases} captures of random losses, the error of the simulator's p95 is" in page
    spread = f"{percent(simulator.median, 2)} in the median, {percent(simulator.mean, 1)} in the mean and below"
    assert f"{spread} {percent(simulator.p90, 1)} in nine of ten" in page
    (_, some), (beyond, many) = errors.BACKLOG_ERRORS
    assert f"below {percent(some.p90)} in nine of ten captures, and below {percent(many.p90)}" in page
    assert beyond == 4
    assert "beyond four round-trip times" in page
    assert f"capacity is within {percent(errors.CAPACITY_ERROR)} of the flow's rate" in page
    assert f"sends {percent(errors.LARGEST_CAPACITY_ERROR)} more than the chain's capacity" in page


def test_the_row_that_explains_the_map_is_a_row_of_the_table():
    page = text_of("docs/accuracy/error-map.md")
    rows = (RESULTS / "error-map.md").read_text(encoding="utf-8").splitlines()
    (row,) = [row for row in rows if row.startswith("| RTT 50 ms to 160 ms")]
    _, cases, *values = [cell.strip() for cell in row.strip("|").split("|")]
    median, mean, tenth, mean_median, mean_mean, mean_tenth, beyond, _, _, same, *_ = values
    assert f"It has {cases} scenarios that TCP carries" in page
    assert f"is {median} or less in half of the scenarios, {mean} on average, and {tenth} or less" in page
    assert f"for the mean delay, {mean_median}, {mean_mean} and {mean_tenth}." in page
    assert f"on average {beyond} outside" in page
    assert f"in {same} of the scenarios" in page


def test_the_error_of_the_capacity():
    page, simulated = text_of("docs/accuracy/error-map.md"), table("capacity").simulated
    apart = (simulated - 1).abs()
    assert f"compares the capacity of the chain with {len(simulated)} simulations" in page
    median, tenth = percent(apart.median(), 1), percent(apart.quantile(0.9), 1)
    assert f"differs by {median} in the median, by up to {tenth} in nine of ten" in page
    assert f"at most {percent(simulated.max() - 1, 1)} above the chain's" in page
    appendix = f"differs by {median} from simulations, in the median of {len(simulated)}"
    assert appendix in text_of("docs/appendix/chain-linux.md")
    near = table("near-capacity")
    slower = f"Linux sends up to {percent((near.rate / near.simulated_rate).max() - 1, 1)} more"
    for name in ("docs/accuracy/error-map.md", "CHANGELOG.md"):
        assert slower in text_of(name)
    assert f"compares them with {near.capture.nunique()} captures of an hour" in page


def test_the_watches_of_captures():
    page, written = text_of("docs/how-to/watch-a-connection.md"), (RESULTS / "watch.md").read_text()
    random, bursts = (part for part in re.split(r"^## ", written, flags=re.MULTILINE)[1:3])

    def cells(part, duration):
        """Return the shares of a duration, in percent: of the predictions, then of the verdicts."""
        rows = re.findall(rf"^\| {duration} s +\| +\d+ \|(.+)", part, re.MULTILINE)
        return [[float(share) for share in re.findall(r"(?:^|\|) *([\d.]+)%", row)] for row in rows]

    watched = {duration: cells(random, duration) for duration in (10, 60, 600)}
    medians, tenths, right = (
        [watched[duration][row][column] for duration in watched] for row, column in ((0, 0), (0, 1), (1, 0))
    )
    assert f"is {medians[0]} % after 10 s, {medians[1]} % after a minute and {medians[2]} % after 10 minutes" in page
    assert f"Nine of ten predictions are within {tenths[0]:.0f} %, {tenths[1]:.0f} % and {tenths[2]:.0f} %" in page
    assert (
        f"{right[0]:.0f} % were right after 10 s, {right[1]:.0f} % after a minute, {right[2]:.0f} % after 10 minutes"
        in page
    )
    assert all(watched[duration][1][1] == cells(bursts, duration)[1][1] == 0 for duration in watched)
    assert "No verdict was wrong" in page
    counts = [int(re.search(r": (\d+) captures", part)[1]) for part in (random, bursts)]
    assert f"{counts[0]} captures of a voice flow at random losses" in page
    assert f"With losses in bursts ({counts[1]} captures)" in page
    assert f"in only {cells(bursts, 600)[0][-1]:.0f} % of the watches after 10 minutes" in page


def test_the_links_whose_rate_varies():
    page, written = text_of("docs/how-to/kinds-of-paths.md"), (RESULTS / "variable-link.md").read_text()
    found = re.findall(r"^\| (\w+) \| (guest|simulated) \| \d+ \| ([\d.]+) s [^|]*\| ([\d.]+) s", written, re.MULTILINE)
    delays = {(beside, where): (float(p50), float(p95)) for beside, where, p50, p95 in found}
    ratio = {
        beside: np.divide(delays[beside, "simulated"], delays[beside, "guest"]) for beside in ("none", "cubic", "bbr")
    }
    within = {beside: round(100 * abs(values[1] - 1)) for beside, values in ratio.items()}
    assert f"within {within['none']} % of that in the guest, and beside BBR within {within['bbr']} %" in page
    assert f"Beside CUBIC its p95 is {within['cubic']} % shorter, and its median half as long" in page
    assert ratio["cubic"][0] == pytest.approx(0.5, abs=0.05)


def test_the_simplest_transport():
    page = text_of("docs/how-to/which-transport.md")
    shares = pd.read_csv(ROOT / "docs" / "images" / "which-transport.csv")
    meets = {
        key: own.set_index(["rtt", "loss"]).meets_target for key, own in shares.groupby(["application", "transport"])
    }
    paths = meets["voip", "tcp"].index
    assert f"all {3 * len(paths)} paths" in page

    def largest_loss(application, transport, rtt):
        met = meets[application, transport].loc[rtt]
        return met.index[met].max()

    assert (largest_loss("voip", "tcp", 0.08), largest_loss("voip", "tcp", 0.18)) == (0.06, 0.005)
    assert "up to a loss of 6 % at 80 ms, or 0.5 % at 180 ms" in page
    long = [key for key in paths if key[0] >= 0.24 and not meets["voip", "tcp"][key]]
    assert {key[1] for key in long if meets["voip", "udp"][key]} == {0.005, 0.015, 0.03, 0.04}
    assert not any(meets["voip", other][key] for key in long for other in ("quic-streams", "quic-datagram"))
    helped = [
        key for key in paths if meets["remote-control", "quic-streams"][key] > meets["remote-control", "tcp"][key]
    ]
    assert {key[1] for key in helped if key[0] >= 0.12} == {0.001, 0.002, 0.005}
    assert {key[0] for key in helped} == {0.02, 0.04, 0.08, 0.12, 0.18, 0.24}
    assert "helps at 120 to 240 ms with up to 0.5 % loss, and on shorter paths with more" in page
    video = {transport: meets["live-video", transport].sum() for transport in ("tcp", "quic-streams")}
    counts = f"on {video['tcp']} of {len(paths)} paths, QUIC with a stream per message on {video['quic-streams']}"
    assert counts in page


def test_bbr_beside_cubic():
    page, pairs = text_of("docs/start/questions.md"), table("switches")
    bbr = pairs[(pairs.changed == "congestion_control bbr") & (pairs.interval == 0.02)]
    small = bbr[(bbr.packet_size == 174) & (bbr.loss == 0.02)].ratio_p95
    assert (small - 1).abs().max() < 0.055
    assert "every 20 ms and 2 % loss its 95th percentile is within 5 % of CUBIC's" in page
    large = bbr[(bbr.packet_size == 1448) & (bbr.rtt == 0.1) & (bbr.loss == 0.01)].ratio_p95
    assert large.to_numpy() == pytest.approx(0.5, abs=0.02)
    assert "at 100 ms and 1 % loss it is half of CUBIC's" in page


def test_sparse_flows_in_captures():
    page, rows = text_of("docs/appendix/chain-linux.md"), table("sparse")
    chain, simulator = rows.chain_p99_beyond.abs(), rows.simulator_p99_beyond.abs()
    assert f"In {len(rows)} captures of Linux 6.1 and 7.3" in page
    assert f"by {percent(chain.mean(), 1)} on average, and by {percent(chain.max(), 1)} at most" in page
    assert f"that of the simulator by {percent(simulator.mean(), 1)} and {percent(simulator.max(), 1)}" in page
    sent_again = f"{rows.retransmitted.sum():,}".replace(",", " ")
    assert f"None of the {sent_again} retransmissions was spurious" in page
    assert rows.spurious.sum() == 0
