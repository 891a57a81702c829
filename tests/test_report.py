"""Reports: their content in every format, comparisons, escaped text, terminals, and that no two statements disagree."""

import dataclasses
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from report_cases import CASES, FORMATS, VOIP, Page, as_text, markdown_rows, rendered
from report_consistency import contradictions, draw, report
from tcpdelay import guideline
from tcpdelay.advice.recommendation import Effect
from tcpdelay.capture.estimate import PathEstimate
from tcpdelay.chain import chains as chain_models
from tcpdelay.chain.linux.chain import LinuxChain
from tcpdelay.quality.voice import voice_quality
from tcpdelay.report import phrases
from tcpdelay.report.content import content
from tcpdelay.report.document import escape, print_content
from tcpdelay.report.guideline import compare_guidelines
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Target, application
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.units import format_fraction, format_time, parse_fraction, parse_rate, parse_time


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize(
    ("case", "headline"),
    [
        ("works", "Works, with 59.7 ms to spare"),
        ("fails", "Does not work: "),
        ("never", "Does not work: TCP cannot carry this flow"),
        ("estimated", "Uncertain: the measurement does not settle it"),
        ("lossless", "Works, with 150 ms to spare"),
    ],
)
def test_verdict_stands_first(findings, case, headline, output_format):
    report = rendered(findings[case], output_format).replace("\u00a0", " ")
    if output_format == "html":
        report = Page(report).all("h1")[0]["text"]
    assert report.removeprefix("# ").startswith(headline)


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_no_number_is_left_raw(findings, case, output_format):
    report = rendered(findings[case], output_format)
    if output_format == "html":
        report = " ".join(element["text"] for element in Page(report).all("header", "main"))
    # What is typed on Windows.
    report = report.replace("-CwndRestart False", "")
    assert not re.search(r"\b(inf|nan|None|True|False)\b", report)
    # Three significant digits at most.
    assert not re.search(r"\b0\.(0{4}|0*[1-9]\d{3})|[1-9]\d*\.\d{3}", report)


@pytest.mark.parametrize("output_format", ["html", "markdown"])
@pytest.mark.parametrize("case", ["works", "fails", "estimated"])
def test_figures_are_those_of_the_guideline(findings, case, output_format):
    found = findings[case]
    report = rendered(found, output_format)
    rows = {}
    for row in Page(report).rows() if output_format == "html" else markdown_rows(report):
        rows.setdefault((row[0], len(row)), row)
    distribution, digits = found.distribution, {"rel": 5.1e-3}

    def time(name, columns, place):
        return parse_time(rows[name, columns][place], name, allow_zero=True)

    for q in (0.5, 0.95, 0.99):
        assert time(f"p{100 * q:.0f}", 3, 1) == pytest.approx(distribution.quantile(q), **digits)
    assert time("mean", 3, 1) == pytest.approx(distribution.mean, **digits)
    assert time("jitter", 3, 1) == pytest.approx(distribution.std, **digits)
    late = distribution.late_fraction(found.target.limit)
    assert parse_fraction(rows["late", 3][1], "late") == pytest.approx(late, **digits)
    for name, part in (
        ("Network", found.parts.network),
        ("Backlog", found.parts.backlog),
        ("Head of line", found.parts.head_of_line),
        ("Timeouts", found.parts.timeouts),
    ):
        assert time(name, 4, 1) == pytest.approx(part, **digits)
        assert parse_fraction(rows[name, 4][2], name) == pytest.approx(part / distribution.mean, **digits)
    for margin, name, read in zip(
        found.margins, ("Loss", "Round-trip time", "Bitrate"), (parse_fraction, parse_time, parse_rate), strict=True
    ):
        _, now, edge, _ = rows[name, 4]
        assert read(now, name) == pytest.approx(margin.now, **digits)
        if margin.edge is None:
            assert edge == "none found"
        else:
            assert read(edge.removesuffix(" or more"), name) == pytest.approx(margin.edge, **digits)
    for buffer in found.playout:
        _, formula, delay, still_late = rows[buffer.masks, 4]
        assert formula == buffer.formula
        assert parse_time(delay, "delay") == pytest.approx(buffer.delay, **digits)
        if still_late == "< 0.001 %":
            assert 0 < buffer.late_fraction < 1e-5
        else:
            assert parse_fraction(still_late, "late") == pytest.approx(buffer.late_fraction, **digits)


def test_text_report_holds_the_figures_of_the_other_formats(findings):
    found = findings["works"]
    words = re.sub(r"\s+", " ", as_text(found, width=100))
    for row in markdown_rows(found.to_markdown()):
        if not row[0].startswith("---") and len(row) > 2:
            assert " ".join(row[:2]) in words


@pytest.mark.parametrize("output_format", FORMATS)
def test_unsustainable_flow_reads_sensibly(findings, output_format):
    found = findings["never"]
    report = re.sub(r"\s+", " ", rendered(found, output_format, width=400).replace("\u00a0", " "))
    assert not found.distribution.sustainable
    assert "The delay never settles: TCP cannot carry this flow on this path." in report
    assert "p50" not in report
    assert "none found" in report
    assert "not enough alone: TCP still cannot carry the flow" in report
    assert "No single change is computed to meet the target." in report


@pytest.mark.parametrize("output_format", FORMATS)
def test_nothing_lost_is_not_reported_as_no_loss(findings, output_format):
    found = findings["estimated"]
    report = re.sub(r"\s+", " ", rendered(found, output_format, width=400).replace("\u00a0", " "))
    assert (
        "0 of 20 lost, which is not 0 %: up to 16.8 % fits with it (95 % confidence). Predicted with 1.12 %." in report
    )
    assert "confidence interval 98 ms to 102 ms" in report
    assert "worst case of the 95 % interval" in report
    assert "On the path as measured it works, but not everywhere in the 95 %" in report


@pytest.mark.parametrize("output_format", FORMATS)
def test_recommendations_that_apply_come_first_with_their_setting(findings, output_format):
    found = findings["works"]
    report = re.sub(r"\s+", " ", rendered(found, output_format, width=400).replace("\u00a0", " "))
    if output_format == "html":
        report = re.sub(r"\s+", " ", Page(report).all("main")[0]["text"])
    else:
        report = report.replace("`", "")
    assert {rule.place for rule in found.recommendations} == {"do", "little gain", "already so", "not computed"}
    divides = [report.index(title) for title in ("Little or no gain here", "Already so", "Not computed")]
    assert divides == sorted(divides)
    places = [report.index(rule.title) for rule in found.recommendations]
    assert places == sorted(places)
    for rule, place in zip(found.recommendations, places, strict=True):
        assert (place < divides[0]) == (rule.place == "do")
        assert (rule.setting.replace("`", "") in report) == (rule.place == "do")


def test_a_report_without_anything_to_do_says_so():
    found = content(guideline(Flow(1448, 0.1), Path(rtt=0.020, loss=0)))
    (advice,) = (section for section in found.sections if section.key == "advice")
    assert advice.advice == ()
    assert (advice.title, advice.paragraphs) == (
        "What to do",
        ("There is nothing to do: no rule has a computed gain here.",),
    )


@pytest.mark.parametrize("output_format", FORMATS)
def test_no_best_playout_of_an_unusable_call_is_recommended(output_format):
    found = guideline(path=Path(0.400, 0.10), application=application("opus"))
    report = re.sub(r"\s+", " ", rendered(found, output_format, width=400).replace("\u00a0", " "))
    assert not found.call.usable
    assert found.call.best.mos >= found.call.at_limit.mos
    assert "No playout delay makes this call usable: its best score is about 1" in report
    assert "recommends no connection below 2.58." in report
    (call,) = (section for section in content(found).sections if section.key == "call")
    assert [row[0] for row in call.tables[0].rows] == ["at the limit"]


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        (Effect("chain", 0.246, 0.190), "p95 246 ms → 190 ms, which meets the limit (chain)"),
        (Effect("chain", 0.190, 0.170), "p95 190 ms → 170 ms (chain)"),
        (Effect("chain", 0.190, 0.210), "p95 190 ms → 210 ms, worse here (chain)"),
        (Effect("chain", 0.190, 0.190), "p95 stays at 190 ms (chain)"),
        (Effect("chain", math.inf, 0.3), "TCP can then carry the flow: p95 300 ms (chain)"),
        (Effect("chain", 0.3, math.inf), "worse here: TCP could no longer carry the flow (chain)"),
        (Effect("chain", math.inf, math.inf), "not enough alone: TCP still cannot carry the flow (chain)"),
        (Effect("bound", saves_up_to=0.040), "saves up to 40 ms per packet"),
        (Effect("chain"), None),
        (None, None),
    ],
)
def test_effect_in_words(effect, words):
    assert phrases.effect(effect, Target(0.2)) == words


def test_finite_but_unsustainable_delays_are_qualified():
    found = guideline(Flow(968, 0.020), Path(rtt=0.250, loss=0.2), Stack.newreno_2008(backlog_bound="published"))
    assert math.isfinite(found.quantile)
    assert "the figures depend on where the published chain cuts off its backlog" in found.to_markdown()


def test_inputs_outside_the_validated_range_are_marked_once():
    found = guideline(VOIP, Path(rtt=0.600, loss=0.002), method="chain")
    assert markdown_rows(found.to_markdown())[-4:][0] == ["Round-trip time", "5 ms to 400 ms", "600 ms", "outside"]
    assert "lies outside" not in found.to_markdown()


def test_reports_load_no_more_than_they_need():
    script = """
import sys
from tcpdelay import guideline
import tcpdelay.report.document
found = guideline(rtt=0.1, loss=0, packet_size=174, interval=0.02)
found.to_markdown()
assert "matplotlib" not in sys.modules
found.to_html()
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_content_names_every_section_once(findings):
    titles = [section.title for section in content(findings["estimated"]).sections]
    assert titles == [
        "Do this",
        "Another transport",
        "Scenario",
        "What was measured",
        "Delays",
        "Margins",
        "Where the delay comes from",
        "Playout buffers",
        "If the path is not as measured",
        "Other rules",
        "How far to trust this",
    ]


@pytest.mark.parametrize("output_format", FORMATS)
def test_what_to_do_follows_the_verdict(findings, output_format):
    report = rendered(findings["fails"], output_format).lower()
    # The contents of a page name the sections before the sections.
    report = report.rpartition("</nav>")[2]
    places = [report.index(title) for title in ("do this", "scenario", "playout buffers", "little or no gain here")]
    assert places == sorted(places)


@pytest.mark.parametrize(("name", "about"), [("voip", False), ("opus", True)])
def test_calls_are_rated_and_marked_where_that_is_approximate(no_search, name, about):
    found = guideline(path=Path(0.100, 0.02), application=application(name))
    quality = voice_quality(found.distribution, found.call.codec, found.target.limit)
    report = found.to_markdown()
    assert f"{'about ' if about else ''}{quality.mos:.2f}" in report
    assert ("approximately" in report) == about
    assert found.call.best.mos >= quality.mos


def test_wideband_speech_is_not_rated_by_a_narrowband_codec(no_search):
    found = guideline(path=Path(0.100, 0.02), application=application("voice-agent"))
    assert found.call is None
    assert "g711" not in found.to_markdown()
    assert "MOS" not in found.to_markdown()


def test_videos_are_played(no_search):
    video = dataclasses.replace(
        application("live-video"), content=Flow(1448, 0.020), over="tcp", target=Target(0.3, 0.99)
    )
    found = guideline(path=Path(0.020, 0.001), application=video)
    assert found.video.startup_delay == 0.3
    assert found.call is None
    assert "How the video plays" in found.to_markdown()


@pytest.fixture
def chains(monkeypatch):
    """Return the list of scenarios for which a chain is built from now on."""
    built = []

    class Counted(chain_models.SolvedChain):
        def __init__(self, profile, budget):
            built.append((profile.flow, profile.path))
            super().__init__(profile, budget)

    monkeypatch.setattr(chain_models, "SolvedChain", Counted)
    return built


def test_rendering_solves_nothing(findings, chains):
    for found in findings.values():
        for output_format in FORMATS:
            rendered(found, output_format)
        json.loads(found.to_json())
    assert chains == []


def test_a_report_asks_each_question_once(monkeypatch):
    asked = []
    answer = LinuxChain.answer

    def counted(self, scenario, requested):
        asked.append((scenario, requested))
        return answer(self, scenario, requested)

    monkeypatch.setattr(LinuxChain, "answer", counted)
    guideline(Flow(174, 0.020), Path(rtt=0.100, loss=0.02))
    assert len(asked) == len(set(asked))
    exact = [scenario for scenario, requested in asked if requested.precision == "exact"]
    assert len(exact) == len(set(exact))
    # A decision on the target is asked for only where there was no distribution yet; the ranges of the margins decide
    # on limits that are longer and shorter by the expected error.
    firsts = {scenario: number for number, (scenario, _) in reversed(list(enumerate(asked)))}
    assert all(
        requested.precision == "exact" or requested.target != Target(0.2) or firsts[scenario] == number
        for number, (scenario, requested) in enumerate(asked)
    )


def test_all_formats_show_the_same_loss_curve(findings):
    found = findings["works"]
    plain = json.loads(found.to_json())["loss_curve"]
    assert plain["loss"] == found.loss_curve.loss.tolist()
    assert plain["quantile"] == found.loss_curve.quantile.tolist()
    delays = {
        format_fraction(loss): format_time(delay) for loss, delay in zip(plain["loss"], plain["quantile"], strict=True)
    }
    rows = [row[:2] for row in markdown_rows(found.to_markdown()) if len(row) == 3 and row[-1] in ("met", "missed")]
    assert rows
    assert all(delays[loss] == delay for loss, delay in rows)
    assert all(row in [each[:2] for each in Page(found.to_html()).rows()] for row in rows)


@pytest.mark.parametrize(
    ("name", "value", "assumed"), [("window_validation", False, "on"), ("delayed_ack", True, "off")]
)
def test_an_ignored_field_is_reported_beside_the_answer(no_search, name, value, assumed):
    found = guideline(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(**{name: value}))
    words = f"the chain does not model {name.replace('_', ' ')} and assumes that it is {assumed}"
    assert any(note.startswith(words) for note in found.notes)
    assert json.loads(found.to_json())["ignored"] == {name: assumed}
    for output_format in FORMATS:
        report = re.sub(r"\s+", " ", rendered(found, output_format).replace("\u00a0", " "))
        assert words[1:] in report
    assert guideline(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)).ignored == {}


def test_what_is_not_computed_is_said_and_not_promised(no_search):
    # The worst case of this measurement needs a chain beyond the memory limit.
    estimate = PathEstimate(source="ping", rtt=0.1, sent=1000, lost=1, rtt_interval=(0.098, 60.0))
    found = guideline(Flow(174, 0.001), Path(rtt=0.100, loss=0.0001), estimate=estimate)
    worst = found.alternatives[-1]
    assert math.isnan(worst.quantile)
    assert not worst.meets_target
    assert found.verdict == "uncertain"
    assert "not computed" in found.to_markdown()
    assert json.loads(found.to_json())["alternatives"][-1]["quantile"] is None


# Two scenarios and their differences


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
    for text in (found.to_html(), found.to_markdown()):
        assert "never settles" in text
        assert not re.search(r"\b(inf|nan)\b", Page(text).all("main")[0]["text"] if "<main>" in text else text)


# Text of users stays text in all formats

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


# On a terminal: width and colours


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


# Whole reports of random scenarios, read as data: no two statements disagree

REPORTS = 30
SEED = 1


def test_reports_of_random_scenarios_do_not_contradict_themselves():
    rng = np.random.default_rng(SEED)
    scenarios = [draw(rng) for _ in range(REPORTS)]
    faults = {scenario: found for scenario in scenarios if (found := contradictions(report(scenario)))}
    assert not faults


@pytest.fixture(scope="module")
def found():
    return guideline(path=Path(0.100, 0.02), application=application("voip"))


def changed(found, key, **changes):
    rules = [replace(rule, **changes) if rule.key == key else rule for rule in found.recommendations]
    return replace(found, recommendations=tuple(sorted(rules, key=lambda rule: rule.place != "do")))


@pytest.mark.parametrize(
    ("key", "changes", "fault"),
    [
        ("split", {"place": "do"}, "split is to be done for nothing"),
        ("sack", {"place": "do"}, "sack is to be done without an effect"),
        ("delayed-ack", {"place": "do"}, "delayed ACKs are to be switched off that are off"),
        ("segment-ratio", {"effect": Effect("chain", 0.140, 0.120)}, "segment-ratio has another delay"),
        ("playout-loss", {"place": "do"}, "playout-loss is to be done without an effect"),
        ("nagle", {"effect": Effect("bound", saves_up_to=1.0)}, "nagle has another bound"),
    ],
)
def test_faulty_advice_is_found(found, key, changes, fault):
    assert contradictions(found) == []
    assert fault in contradictions(changed(found, key, **changes))


def test_a_wrong_verdict_or_margin_is_found(found):
    assert "verdict, quantile and late packets disagree" in contradictions(replace(found, works=False))
    loss = replace(found.margins[0], edge=0.2)
    assert "the target is missed at the margin of loss" in contradictions(
        replace(found, margins=(loss, *found.margins[1:]))
    )
