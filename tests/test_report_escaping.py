"""Text of users stays text in all formats of a report."""

import dataclasses
import re

import pytest

from report_cases import Page, as_text, markdown_rows
from tcpdelay.report.document import escape

HOSTILE = '<script>alert(1)</script> "><img src=x onerror=alert(1)> [bold]a[/bold] | `b` *c* {{ 7*7 }}\n# d'


@pytest.fixture(scope="module")
def hostile(findings):
    found = findings["estimated"]
    rule = dataclasses.replace(
        found.recommendations[0], title=HOSTILE, reason=HOSTILE, condition=HOSTILE, setting=f"sysctl a.b {HOSTILE}"
    )
    return dataclasses.replace(
        found,
        recommendations=(rule, *found.recommendations[1:], dataclasses.replace(rule, applies=False)),
        notes=(HOSTILE,),
        alternatives=(dataclasses.replace(found.alternatives[0], label=HOSTILE),),
        playout=(dataclasses.replace(found.playout[0], masks=HOSTILE, formula=HOSTILE),),
        validity=dataclasses.replace(found.validity, source=HOSTILE),
    )


def test_hostile_text_stays_text_in_html(hostile):
    page = Page(hostile.to_html())
    assert not page.all("script", "img")
    assert page.all("main")[0]["text"].count("<script>alert(1)</script>") == 15


def test_hostile_text_stays_text_in_markdown(hostile):
    report = hostile.to_markdown()
    assert "\n# d" not in report
    assert not re.search(r"(?<!\\)<", report)
    assert not re.search(r"(?<![\\*])\*c", report)
    widths = {len(row) for row in markdown_rows(report) if "script" in "".join(row)}
    assert widths == {4, 5}


def test_hostile_text_stays_text_in_the_terminal(hostile):
    report = as_text(hostile)
    assert "<script>alert(1)</script>" in report
    # Backticks around code stand for a style.
    assert "[bold]a[/bold] | b *c* {{ 7*7 }} # d" in re.sub(r"\s+", " ", report)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("2 % of a_b", "2 % of a_b"),
        ("_a_", r"\_a\_"),
        ("# a", r"\# a"),
        ("- a", r"\- a"),
        ("1. a", r"1\. a"),
        ("1.5 s", "1.5 s"),
        ("a | b", r"a \| b"),
        (r"a\b", r"a\\b"),
        ("[a](b)", r"\[a\](b)"),
        ("a\n# b", "a # b"),
    ],
)
def test_markdown_shows_text_as_it_stands(text, escaped):
    assert escape(text) == escaped
