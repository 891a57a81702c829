"""Read whole reports of random scenarios as data, and list the statements that are wrong or disagree.

    python validation/report_consistency.py [--reports 300] [--seed 1]
    python validation/report_consistency.py --pages [--reports 200] [--seed 1]

Draws applications, paths and targets, and checks each report: nothing to do without an effect, every effect equal to
that of a second prediction, and no two statements that disagree. With `--pages`, draws video by frames and every
application, near the capacity of the path and beyond it, and checks that each report is written in every format,
without an infinite or undefined number and without an empty chart.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console

from tcpdelay import Guideline, SourceGuideline, guideline
from tcpdelay.accuracy.throughput import connection_utilization
from tcpdelay.advice.guideline import Findings
from tcpdelay.advice.judged_delays import MOST_TO_DO, SMALLEST_GAIN
from tcpdelay.advice.recommendation import Recommendation
from tcpdelay.advice.rules import SMALLEST_PART
from tcpdelay.declare import bounds
from tcpdelay.models.heuristics import joined_delay, piece_of, share_of, striped_delay
from tcpdelay.models.predict import predict
from tcpdelay.report.content import content
from tcpdelay.report.document import print_content
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import APPLICATIONS, Application, Scenario, Target, application
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, Stack
from tcpdelay.sim.tcp.constants import DELAYED_ACK_MIN
from tcpdelay.study.search import at_bitrate

LIGHT = ("voip", "opus", "voice-agent", "remote-control", "game")
"""Applications whose reports take seconds."""
NO_NUMBER = re.compile(r"(?<![\w#&-])(inf|nan|infinity)(?![\w-])", re.IGNORECASE)
"""An infinite or undefined number on a page."""
DRAWN = "clip-path"
"""What the SVG of a chart contains if it has a line or a bar; a text instead of a chart is not clipped."""


def draw(rng: np.random.Generator) -> tuple[Application, Path, Linux]:
    """Return an application with a light flow and a target near its preset, a path and a stack."""

    def between(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    preset = application(str(rng.choice(LIGHT)))
    target = replace(preset.target, limit=preset.target.limit * between(0.5, 2.0))
    path = Path(between(0.010, 0.300), between(1e-3, 0.08))
    stack = Stack.linux(str(rng.choice(["cubic", "reno"])), delayed_ack=bool(rng.random() < 0.25))
    return replace(preset, target=target), path, stack


def report(scenario: tuple[Application, Path, Linux]) -> Findings:
    """Return the findings on a scenario."""
    known, path, stack = scenario
    return guideline(path=path, stack=stack, application=known)


def draw_heavy(rng: np.random.Generator) -> dict[str, Any]:
    """Return the arguments of a report: video by frames or any application, near the capacity and beyond it."""
    path = Path(rng.uniform(0.010, 0.200), math.exp(rng.uniform(math.log(5e-4), math.log(0.05))))
    target = Target(rng.uniform(0.1, 3.0), float(rng.choice([0.95, 0.99, 0.999])))
    if rng.random() < 0.5:
        known = application(str(rng.choice(list(APPLICATIONS))))
        return {"path": path, "application": replace(known, target=target)}
    interval = 1 / float(rng.choice([24, 25, 30, 60]))
    # The rate at which a Flow of any size uses a share of what a long transfer carries on the path.
    share = rng.uniform(0.3, 1.6) / connection_utilization(Flow(1448, interval, write_jitter=0.0), path, Linux())
    size = int(min(max(1448 * share, 100), bounds(Flow, "packet_size")[1]))
    return {"flow": Flow(size, interval, write_jitter=0.0), "path": path, "target": target}


def _as_text(found: Guideline | SourceGuideline) -> str:
    page = io.StringIO()
    print_content(found.content(), Console(file=page, width=100))
    return page.getvalue()


def page_faults(found: Guideline | SourceGuideline) -> list[str]:
    """Return the formats in which a report has an infinite or undefined number, and the charts that are empty."""
    written = {
        "text": _as_text(found),
        "markdown": found.to_markdown(),
        "html": found.to_html(),
        "json": found.to_json(),
    }
    faults = [f"{name} has {match[0]}" for name, page in written.items() if (match := NO_NUMBER.search(page))]
    drawn = found.charts()
    if "margins" in drawn and not found.loss_curve.loss.size:
        faults.append("the chart of the loss is empty")
    faults += [f"{chart.caption} is empty" for charts in drawn.values() for chart in charts if DRAWN not in chart.svg]
    return faults


def contradictions(found: Findings) -> list[str]:
    """Return the statements of a report that are wrong or disagree, in words."""
    return [*_advice_faults(found), *_effect_faults(found), *_figure_faults(found), *_rendering_faults(found)]


def _to_do(found: Findings) -> list[Recommendation]:
    return [rule for rule in found.recommendations if rule.place == "do"]


def _advice_faults(found: Findings) -> Iterator[str]:
    """Yield what is wrong with the list of what to do."""
    rules, known = _to_do(found), {rule.key: rule for rule in found.recommendations}
    if len(rules) > MOST_TO_DO or list(found.recommendations[: len(rules)]) != rules:
        yield "what to do is not a short list at the beginning"
    effects = [rule.effect for rule in rules]
    for rule, effect in zip(rules, effects, strict=True):
        if effect is None or effect.basis not in ("chain", "simulation", "bound") or effect.reason is not None:
            yield f"{rule.key} is to be done without an effect"
        elif effect.quantity == "quantile" and not (
            effect.gain == math.inf or effect.gain > SMALLEST_GAIN * found.quantile
        ):
            yield f"{rule.key} is to be done for nothing"
        elif effect.quantity == "late fraction" and found.works:
            yield f"{rule.key} is to be done although the target is met"
    sure = [effect for effect in effects if effect and effect.provided is None]
    for reaching in (True, False):
        gains = [
            e.gain for e in sure if found.target.is_met_by(math.inf if e.with_rule is None else e.with_rule) == reaching
        ]
        if gains != sorted(gains, reverse=True):
            yield "the largest effect is not first"
    if known["delayed-ack"].place == "do" and not getattr(found.stack, "delayed_ack", False):
        yield "delayed ACKs are to be switched off that are off"
    rate, edge = known["bitrate"].effect, found.margins[-1].edge
    if (
        not found.works
        and edge is not None
        and edge >= SMALLEST_PART * found.flow.bitrate
        and (rate is None or not found.target.is_met_by(rate.with_rule or math.inf))
    ):
        yield f"the target is met up to {edge:.0f} bit/s, but not with the advice to send less"


def _effect_faults(found: Findings) -> Iterator[str]:
    """Yield effects that differ from those of a second prediction."""
    scenario, quantile = Scenario(found.flow, found.path, found.stack), found.target.quantile
    flow, path, stack = found.flow, found.path, found.stack

    def delays(**changes: Any) -> Any:
        return predict(replace(scenario, **changes), method="chain").require()

    now = delays()
    again: dict[str, Callable[[], float]] = {
        "bitrate": lambda: delays(source=at_bitrate(flow, found.margins[-1].edge, stack.mss)).quantile(quantile),
        "split": lambda: joined_delay(delays(source=piece_of(flow, 2)), flow.interval, 2).quantile(quantile),
        "parallel": lambda: striped_delay(delays(source=share_of(flow, 2)), flow.interval, 2).quantile(quantile),
        "segment-ratio": lambda: delays(
            stack=replace(stack, mss=stack.mss // flow.packet_size * flow.packet_size)
        ).quantile(quantile),
        "bbr": lambda: delays(stack=replace(stack, congestion_control="bbr")).quantile(quantile),
        "byte-queue": lambda: delays(path=replace(path, bottleneck="bytes")).quantile(quantile),
    }
    bounds = {
        "nagle": math.ceil(stack.mss / flow.packet_size) * flow.interval,
        "delayed-ack": DELAYED_ACK_MIN,
    }
    for rule in found.recommendations:
        effect = rule.effect
        if effect is None:
            continue
        if effect.saves_up_to is not None and effect.saves_up_to != bounds[rule.key]:
            yield f"{rule.key} has another bound"
        if effect.quantity == "late fraction":
            # Nothing but the playout changes, so that these are the delays of the report.
            if effect.without != found.late_fraction:
                yield f"{rule.key} starts from another share of late packets"
            if effect.at is not None and effect.with_rule != found.late_after(effect.at):
                yield f"{rule.key} has another share of late packets"
        elif effect.basis == "chain":
            if effect.without != now.quantile(quantile) and rule.place != "already so":
                yield f"{rule.key} starts from another delay"
            if effect.with_rule != again[rule.key]():
                yield f"{rule.key} has another delay"


def _figure_faults(found: Findings) -> Iterator[str]:
    """Yield figures that disagree."""
    target, quantile = found.target, found.quantile
    if not found.works == target.is_met_by(quantile) == target.allows(found.distribution.late_fraction(target.latest)):
        yield "verdict, quantile and late packets disagree"
    # The model of the verdict answers the whole report.
    simulated = found.distribution.method == "simulation"
    if simulated and any(rule.effect and rule.effect.basis == "chain" for rule in found.recommendations):
        yield "the chain computes effects of a simulated report"
    for margin in found.margins:
        if simulated and margin.edge == margin.now:
            continue
        if margin.edge is not None and (margin.edge >= margin.now) != found.works:
            yield f"the margin of {margin.quantity} is on the other side"
        elif margin.edge is not None and not _works_at(found, margin.quantity, margin.edge):
            yield f"the target is missed at the margin of {margin.quantity}"
    largest, rate = found.largest_sustainable_rate, found.margins[-1]
    if largest.edge is not None and rate.edge is not None and rate.edge > largest.edge * 1.01 and not largest.at_least:
        yield "the target is met at a rate that TCP cannot carry"
    if found.distribution.sustainable and (largest.edge is None or largest.edge < found.flow.bitrate):
        yield "TCP carries the flow, but not its bitrate"
    loss, curve = found.margins[0], found.loss_curve
    for place, delay in zip(curve.loss.tolist(), curve.quantile.tolist(), strict=True):
        if (
            loss.edge is not None
            and not (simulated and loss.edge == loss.now)
            and target.is_met_by(delay) != (place <= loss.edge)
            and abs(place / loss.edge - 1) > 0.01
        ):
            yield "the curve of the loss contradicts its margin"
    if found.call is not None and found.call.best.mos < found.call.at_limit.mos:
        yield "the best playout of the call is not the best"


def _works_at(found: Findings, quantity: str, value: float) -> bool:
    """Return whether the whole distribution at a value of one quantity meets the target."""
    flow, path = found.flow, found.path
    if quantity == "bitrate":
        flow = at_bitrate(flow, value, found.stack.mss)
    elif quantity == "loss":
        path = replace(path, loss=value)
    else:
        path = replace(path, rtt=value)
    return predict(Scenario(flow, path, found.stack), method="chain").meets(found.target)


def _rendering_faults(found: Findings) -> Iterator[str]:
    """Yield what the words of the report, or its JSON, do not have from the data."""
    shown = content(found)
    (advice,) = (section for section in shown.sections if section.key == "advice")
    titles = [rule.title for rule in advice.advice]
    folded = [point for _, points in advice.folded for point in points]
    if titles != [rule.title for rule in _to_do(found)]:
        yield "the page has another list"
    if sum(any(point.startswith(rule.title) for point in folded) for rule in found.recommendations) != len(folded):
        yield "a rule is missing or told twice"
    if any("worse here" in (rule.effect or "") for rule in advice.advice):
        yield "a rule to follow is worse"
    if found.call is not None and not found.call.usable:
        (call,) = (section for section in shown.sections if section.key == "call")
        if any(row[0] == "best" for row in call.tables[0].rows):
            yield "an unusable call has a best playout"
    if [rule["place"] for rule in json.loads(found.to_json())["recommendations"]] != [
        rule.place for rule in found.recommendations
    ]:
        yield "the JSON has another list"


def main() -> None:
    """Check random reports and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=300)
    parser.add_argument("--pages", action="store_true", help="check the pages of heavier reports")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng, wrong, works, start = np.random.default_rng(arguments.seed), 0, 0, time.perf_counter()
    for number in range(arguments.reports):
        if arguments.pages:
            drawn = draw_heavy(rng)
            scenario = tuple(drawn.values())
            heavy = guideline(**drawn)
            faults, met = page_faults(heavy), heavy.works
        else:
            scenario = draw(rng)
            found = report(scenario)
            faults, met = contradictions(found), found.works
        wrong, works = wrong + bool(faults), works + met
        if faults:
            print(number, *scenario, *faults, sep="\n  ", flush=True)
    elapsed = time.perf_counter() - start
    print(f"{wrong} of {arguments.reports} reports have faults; {works} flows work; {elapsed:.0f} s")


if __name__ == "__main__":
    main()
