"""Reports on a terminal: width and colours."""

import io
import re

import pytest
from rich.console import Console

from report_cases import CASES, as_text
from tcpdelay.report.document import print_content


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("case", CASES)
def test_terminal_report_keeps_to_the_width(findings, case, width):
    lines = as_text(findings[case], width=width).splitlines()
    assert max(map(len, lines)) <= min(width, 100)
    assert not any(line.endswith(" ") for line in lines)
    assert not any("…" in line.replace("change …", "").replace("replace …", "") for line in lines)


def test_terminal_report_says_the_same_without_colour(findings):
    plain = as_text(findings["fails"], width=80)
    coloured = as_text(findings["fails"], width=80, force_terminal=True, color_system="standard")
    assert "\x1b" not in plain
    assert "\x1b[1;31mDoes not work" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@pytest.mark.parametrize(("variable", "coloured"), [("", True), ("NO_COLOR", False)])
def test_a_terminal_shows_the_verdict_in_colour_unless_it_must_not(findings, monkeypatch, variable, coloured):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")
    page = io.StringIO()
    print_content(
        findings["fails"].content(), Console(file=page, width=100, force_terminal=True, color_system="standard")
    )
    assert ("\x1b[1;31m" in page.getvalue()) == coloured
