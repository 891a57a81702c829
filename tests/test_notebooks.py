"""Notebooks: what they show of a result, those committed, and the comparison that `make notebooks` makes."""

import base64
import copy
import io
import json
import re
import sys
from pathlib import Path as FilePath
from xml.etree import ElementTree

import nbformat
import pytest
from IPython.core.formatters import HTMLFormatter
from matplotlib.figure import Figure

import tcpdelay as td
from notebook_outputs import NUMBER_TOLERANCE, differences, main
from tcpdelay.models.predict import predict
from tcpdelay.scenario import Flow, Path, Scenario, Stack

# What notebooks show of a result: a table, and a chart in given axes

CALL = {"rtt": 0.100, "loss": 0.02}
LATE = Scenario(Flow(174, 0.020), Path(0.1, 0.02), Stack.newreno_2008())


@pytest.fixture(scope="module")
def results():
    call, old = (td.guideline("voip", stack=stack, **CALL) for stack in (None, Stack.newreno_2008()))
    return {
        "prediction": (td.predict_delay("voip", **CALL), "140 ms"),
        "measured": (td.DelayDistribution.from_samples([0.05, 0.15], 0.05), "by measurement"),
        "unsustainable": (td.predict_delay(rtt=0.3, loss=0.1, packet_size=1448, interval=0.005), "cannot carry"),
        "answer": (predict(LATE), "190 ms"),
        "guideline": (call, "Works, with 59.7 ms to spare"),
        "guidelines": (td.compare_guidelines(old, call), "p95 190 ms → 140 ms"),
        "comparison": (td.compare("voip", Path(**CALL), duration=60), "par-2-blind"),
        "boundary": (td.working_boundary("voip", rtt=[0.1, 0.2], tolerance=0.1), "round-trip time"),
        "boundary in rtt": (td.working_boundary("voip", loss=[0.01, 0.9], rtt=[0.05, 0.3], searched="rtt"), "–"),
    }


NAMES = ("prediction", "answer", "guideline", "guidelines", "comparison", "boundary", "boundary in rtt", "measured")


@pytest.mark.parametrize("name", [*NAMES, "unsustainable"])
def test_a_notebook_shows_a_table(results, name):
    result, words = results[name]
    shown = HTMLFormatter()(result)
    page = ElementTree.fromstring(f"<div>{shown}</div>")
    assert page.find("table") is not None
    assert words in "".join(page.itertext()).replace("\xa0", " ")


@pytest.mark.parametrize("name", [*NAMES, "unsustainable"])
def test_a_result_is_drawn_into_the_given_axes(results, name):
    figure = Figure()
    ax = figure.subplots()
    assert results[name][0].plot(ax) is ax
    assert ax.texts or ax.lines


@pytest.mark.parametrize("name", NAMES)
def test_without_axes_the_current_ones_are_used(results, name):
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    _, ax = pyplot.subplots()
    assert results[name][0].plot() is ax
    pyplot.close("all")


def test_an_answer_without_a_distribution_shows_why():
    refused = predict(Scenario(Flow(174, 0.020), Path(0.1, 0.02, reordering=0.01)), method="chain")
    assert "reordering must be 0" in HTMLFormatter()(refused)


def test_regions_are_drawn_by_a_public_name():
    region = td.working_region("voip", rtt=[0.05, 0.1], loss=[0.01, 0.02])
    ax = Figure().subplots()
    assert td.plot_region(region, ax=ax) is ax


# The notebooks as committed, and the comparison of their outputs with an execution

ROOT = FilePath(__file__).parents[1]
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


def with_outputs(*outputs, tags=()):
    cell = nbformat.v4.new_code_cell("...", metadata={"tags": list(tags)}, outputs=list(outputs))
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Title"), cell])


def displayed(**data):
    return nbformat.v4.new_output("display_data", {kind.replace("_", "/"): content for kind, content in data.items()})


def drawn(values, width=4):
    """Return a chart as a notebook stores it."""
    figure = Figure(figsize=(width, 3))
    figure.subplots().plot(values)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return displayed(image_png=base64.b64encode(png.getvalue()).decode(), text_plain="<Figure>")


TEXT = "| RTT | p95 |\n|---|---|\n| 100 ms | 1.00 s |"
CHART = drawn([1, 2, 3])


def test_equal_outputs_have_no_differences():
    stored = with_outputs(displayed(text_markdown=TEXT), CHART)
    assert not list(differences(stored, copy.deepcopy(stored)))


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (TEXT.replace("1.00", "1.02"), "@@ -3 +3 @@\n  -| 100 ms | 1.00 s |\n  +| 100 ms | 1.02 s |"),
        (TEXT.replace("1.00 s", "1.00 ms"), "1.00 ms"),
        (TEXT.replace("1.00 s", "-1.00 s"), "-1.00 s"),
        (TEXT.replace("1.00 s", "never"), "never"),
        (TEXT + "\n| 200 ms | 3 s |", "+| 200 ms | 3 s |"),
    ],
)
def test_a_changed_text_is_a_difference_with_its_cell_and_line(new, said):
    (found,) = differences(with_outputs(displayed(text_markdown=TEXT)), with_outputs(displayed(text_markdown=new)))
    assert found.startswith("cell 2, text/markdown: ")
    assert said in found


def test_one_unit_in_the_third_digit_of_a_number_is_none():
    for old, new in (("1.00", "1.01"), ("100 ms", "101 ms")):
        assert abs(float(new.split()[0]) / float(old.split()[0]) - 1) <= NUMBER_TOLERANCE * 1.01
        changed = TEXT.replace(old, new)
        assert not list(
            differences(with_outputs(displayed(text_markdown=TEXT)), with_outputs(displayed(text_markdown=changed)))
        )


@pytest.mark.parametrize(
    ("new", "said"), [(drawn([1, 2, 2.9]), "root mean square"), (drawn([1, 2, 3], width=5), "sizes do not match")]
)
def test_a_changed_chart_is_a_difference(new, said):
    (found,) = differences(with_outputs(CHART), with_outputs(new))
    assert found.startswith("cell 2, image/png: ")
    assert said in found


@pytest.mark.parametrize("outputs", [(), (CHART, CHART), (displayed(text_plain="<Figure>"),)])
def test_another_number_or_kind_of_outputs_is_a_difference(outputs):
    (found,) = differences(with_outputs(CHART), with_outputs(*outputs))
    assert found.startswith("cell 2: stored are the outputs ")


def test_only_a_cell_that_measures_time_may_have_other_numbers():
    old, new = displayed(text_plain="took 3 ms"), displayed(text_plain="took 400 ms")
    assert list(differences(with_outputs(old), with_outputs(new)))
    assert not list(differences(with_outputs(old, tags=["varies"]), with_outputs(new, tags=["varies"])))
    slow = displayed(text_plain="took 3 s")
    assert list(differences(with_outputs(old, tags=["varies"]), with_outputs(slow, tags=["varies"])))


@pytest.mark.skipif(sys.platform == "win32", reason="the event loop of Windows warns of Jupyter's sockets")
def test_an_execution_is_stored_and_then_compared(tmp_path, capsys):
    """A notebook with other outputs fails until they are stored; a cell that raises fails in any case."""
    stored, changed, raising = (tmp_path / f"{name}.ipynb" for name in ("stored", "changed", "raising"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(1 + 1)")])
    notebook.metadata = {"language_info": {"name": "python"}}
    nbformat.write(notebook, stored)
    assert main(["--store", str(stored)]) == 0
    assert load(stored)["metadata"] == notebook.metadata
    assert load(stored)["cells"][0]["outputs"][0]["text"] == ["2\n"]
    changed.write_text(stored.read_text().replace("1 + 1", "1 + 2"))
    raising.write_text(stored.read_text().replace("1 + 1", "1 / 0"))
    capsys.readouterr()
    assert main([str(changed), str(raising)]) == 2
    printed = capsys.readouterr().out
    assert "+3\n" in printed
    assert "ZeroDivisionError" in printed
    assert "make notebooks-store" in printed
