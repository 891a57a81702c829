"""All results of scoring the models against the project's captures: tables and figures of the documentation."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from scoring import capture_pairs
from scoring.capture_pairs import capture_pairs_table, pairs_table
from scoring.delay_figures import (
    draw_by_loss,
    draw_overlays,
    draw_recoveries,
    is_stream,
    overlay_cases,
    recovery_cases,
)
from scoring.drop_tail import RouterCase, drop_tail_table
from scoring.figures import draw_errors, draw_scatter, draw_svg
from scoring.simulator_tables import not_simulated_table
from tcpdelay.capture.flow_capture import FlowCapture
from tcpdelay.report.document import Cell, Column, ResultTable
from tcpdelay.report.validation import (
    GROUP_COLUMNS,
    LONG_TABLES,
    Figure,
    Results,
    by_model,
    captures_table,
    error_row,
    errors_table,
    scores_table,
    settings_table,
    sources_table,
    summary_table,
)
from tcpdelay.study.validation.captures import MeasuredDelay
from tcpdelay.study.validation.predictions import MODELS, Predictions, Score, ScoredModel, predictable, score

_TIMER_RATE = re.compile(r"-hz\d+$")
FIGURES = {
    "p95-scatter.svg": "Predicted against measured 95th percentile, with the measurement's 95 % interval.",
    "error-by-utilization.svg": "Predicted over measured 95th percentile by utilization.",
    "distributions.svg": "Share of packets later than a delay, measured and predicted.",
    "after-loss.svg": "Delay of the packets after a single loss: median, and where 80 % of them are.",
    "p95-by-loss-small.svg": "95th percentile by loss, 174 B every 20 ms: points measured, lines predicted.",
    "p95-by-loss-large.svg": "95th percentile by loss, 1448 B every 20 ms: points measured, lines predicted.",
}
HALVED_MODELS = ("linux",)
"""Models with separate errors for the captures that were held out from their design, and for all other captures."""
SMALL, LARGE = 174, 1448
"""Packet sizes of the figures by loss [bytes]."""


def held_out(name: str) -> bool:
    """Return whether a capture is held out: the design of a model must not have seen it.

    A model that is improved until its errors on captures are small is in effect fitted to these captures: a change that
    reduces the errors may describe the captures and not TCP. Therefore about half of the captures are held out. The
    design uses the other half only, and the relevant error is the error on the captures held out.

    The split depends only on the capture's name. It cannot be chosen and never changes, and new captures are assigned
    automatically. The two timer rates of one experiment give nearly the same delays, so they are in the same half.
    """
    experiment = _TIMER_RATE.sub("", name)
    return hashlib.sha256(experiment.encode()).digest()[0] % 2 == 1


def evaluate(
    measured: Sequence[MeasuredDelay],
    published: Mapping[RouterCase, Mapping[str, float]],
    models: Sequence[ScoredModel] = MODELS,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Results:
    """Score the models against captures, and compare captures with each other."""
    predictions = Predictions(models)
    # Captures behind a router have a table of their own.
    lossy = [capture for capture in predictable(measured) if not capture.experiment.routed]
    scores = score(lossy, predictions, on_progress)
    plain = [one for one in scores if one.measured.plain]
    clocks, controls = capture_pairs.clock_rates(measured), capture_pairs.congestion_controls(measured)
    tables = [
        summary_table(plain),
        errors_table(plain),
        halves_table(plain),
        settings_table([one for one in scores if _other_settings(one.measured)]),
        sources_table(scores),
        not_simulated_table(measured),
        drop_tail_table(measured, published, predictions),
        capture_pairs_table(
            "switches",
            "Stack switches, each beside the default stack on the same path",
            capture_pairs.switches(measured),
        ),
        capture_pairs_table(
            "heuristics",
            "Heuristics of applications, each beside the application without it",
            capture_pairs.heuristics(measured),
        ),
        capture_pairs_table("real-time", "Real time beside virtual time", capture_pairs.real_time(measured)),
        pairs_table([*clocks, *controls]),
        capture_pairs_table("clock-rates", "Other timer rates beside HZ 250", clocks),
        capture_pairs_table("congestion-controls", "CUBIC beside Reno", controls),
        captures_table(measured),
        scores_table(scores),
    ]
    return Results(models, measured, plain, tables, (*LONG_TABLES, "clock-rates", "congestion-controls"))


def _other_settings(measured: MeasuredDelay) -> bool:
    """Return whether a capture of constant rate has another stack or path than the default, apart from loss bursts."""
    return not measured.plain and measured.experiment.source is None and measured.experiment.loss_burst == 1


def figures(scores: Sequence[Score], read: Callable[[MeasuredDelay], FlowCapture]) -> dict[str, Figure]:
    """Return the figures of the scores of plain captures with their captions by file name, without empty ones."""
    comparable = [score for score in scores if score.comparable]
    drawn: dict[str, bytes] = {}
    if comparable:
        drawn["p95-scatter.svg"] = draw_svg(lambda figure: draw_scatter(figure, comparable), (12.0, 4.6))
        drawn["error-by-utilization.svg"] = draw_svg(lambda figure: draw_errors(figure, scores), (12.0, 4.2))
    # Only one timer rate: the curves of several rates would cover each other.
    clock = min((score.measured.hz for score in scores), default=0)
    one_clock = [score for score in scores if score.measured.hz == clock]
    cases = overlay_cases(one_clock)
    if cases:
        height = 3.1 * math.ceil(len(cases) / 2)
        drawn["distributions.svg"] = draw_svg(lambda figure: draw_overlays(figure, cases), (10.0, height))
    recoveries = recovery_cases([score.measured for score in one_clock], read)
    if recoveries:
        height = 3.1 * math.ceil(len(recoveries) / 2)
        drawn["after-loss.svg"] = draw_svg(lambda figure: draw_recoveries(figure, recoveries), (10.0, height))
    for size, name in ((SMALL, "p95-by-loss-small.svg"), (LARGE, "p95-by-loss-large.svg")):
        own = [score for score in one_clock if is_stream(score.measured, size)]
        if own:
            drawn[name] = draw_svg(partial(draw_by_loss, scores=own), (10.0, 5.0))
    return {name: (FIGURES[name], content) for name, content in drawn.items()}


def halves_table(scores: Sequence[Score]) -> ResultTable:
    """Return the errors of `HALVED_MODELS` on captures that were held out from their design, and on all others."""
    rows: list[dict[str, Cell]] = []
    for model, own in by_model(scores).items():
        for half, out in (("held out", True), ("seen in design", False)) if model in HALVED_MODELS else ():
            part = [score for score in own if held_out(score.measured.name) == out]
            right = sum(score.sustainable_call_right for score in part) / len(part) if part else None
            errors = error_row([score for score in part if score.comparable])
            rows.append({"model": model, "half": half, **errors, "sustainable_right": right})
    columns = (
        Column("model", "model"),
        Column("half", "captures"),
        *GROUP_COLUMNS,
        Column("sustainable_right", "carried or not: right", "fraction"),
    )
    return ResultTable("halves", "Captures held out from a model's design, and the others", columns, rows)
