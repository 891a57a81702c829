"""Reports on two scenarios and their differences."""

import json
import re

import pytest

from report_cases import Page, markdown_rows, rendered
from tcpdelay import guideline
from tcpdelay.report.guideline import compare_guidelines
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import application
from tcpdelay.scenario.stack import Stack
from tcpdelay.units import parse_time


@pytest.fixture(scope="module")
def compared():
    call = application("voip")
    stacks = (Stack.linux(), Stack.newreno_2008(backlog_bound="grow"))
    return compare_guidelines(*(guideline(path=Path(0.100, 0.02), stack=s, application=call) for s in stacks))


@pytest.mark.parametrize("output_format", ["html", "markdown"])
def test_comparison_shows_both_guidelines(compared, output_format):
    report = rendered(compared, output_format)
    rows = Page(report).rows() if output_format == "html" else markdown_rows(report)
    rows = {row[0]: row for row in rows}
    for q in (0.5, 0.95, 0.99):
        for column, found in ((1, compared.before), (2, compared.after)):
            shown = parse_time(rows[f"p{100 * q:.0f}"][column], "delay")
            assert shown == pytest.approx(found.distribution.quantile(q), rel=5.1e-3)
    scores = [float(cell) for cell in rows["best MOS"][1:]]
    assert scores[:2] == pytest.approx([compared.before.call.best.mos, compared.after.call.best.mos], abs=0.0051)
    assert scores[2] == pytest.approx(scores[1] - scores[0], abs=0.0101)
    assert "Transport" in rows
    assert "Flow" not in rows


def test_comparison_draws_both_distributions(compared):
    page = Page(compared.to_html())
    (drawing,) = page.all("svg")
    texts = [element["text"] for element in page.all("text")]
    assert {"before", "after", "limit 200 ms"} <= set(texts)
    assert drawing["attributes"]["role"] == "img"
    assert "http" not in compared.to_html()


def test_comparison_names_what_differs(compared):
    record = json.loads(compared.to_json())
    assert "stack.backlog_bound" in record["differs"]
    assert not any(name.startswith(("flow", "path", "target")) for name in record["differs"])
    assert record["before"]["call"]["codec"]["name"] == "g711"


def test_comparison_with_a_flow_that_never_settles_reads_sensibly(findings):
    found = compare_guidelines(findings["works"], findings["never"])
    for report in (found.to_html(), found.to_markdown()):
        assert "never settles" in report
        assert not re.search(r"\b(inf|nan)\b", Page(report).all("main")[0]["text"] if "<main>" in report else report)
