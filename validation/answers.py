"""Ask the same question of every command, and list where the answers disagree.

    python validation/answers.py [--questions 200] [--seed 1] [--processes 1]

Draws sources, encapsulations, paths, transports and targets. Each question is asked of `predict_delay`, `predict`,
`report` and `solve`, and of `batch`, `region`, `compare` and the explorer where they take it, each command for itself.
Figures must agree to the last digit that is written, verdicts must not contradict each other, and `predict` must agree
with the range of an edge at both of its ends. The rows go to `results/answers.csv`, and a run that was interrupted goes
on there.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path as File
from typing import Any

import numpy as np

import tcpdelay as td
from report_consistency import NO_NUMBER
from tcpdelay.ask import Requested, solved_once
from tcpdelay.cli.program import main as command
from tcpdelay.models.predict import predict
from tcpdelay.scenario.encapsulation import encapsulation
from tcpdelay.scenario.path import PATH_PRESETS
from tcpdelay.scenario.scenario import APPLICATIONS, DEFAULT_LIMIT, Scenario, Target
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import NewReno2008, Quic, Stack
from tcpdelay.study.explorer import PROBABILITIES, predict_places
from tcpdelay.study.search import Axis, bitrate_axis, loss_axis, rtt_axis

RESULTS = File(__file__).parent / "results" / "answers.csv"
QUANTITIES = ("loss", "rtt", "bitrate")
COMPARED = 3
"""`compare` simulates some twenty transports, so that only every third question is asked of it."""
TRACE = "trace.csv"
"""Name of the file of a drawn trace."""
SIX_DIGITS = 1e-5
"""Relative difference of numbers that a table shows with six digits."""


@dataclass(frozen=True)
class Question:
    """One question, as options of a command and as arguments in Python."""

    number: int
    options: Mapping[str, str]  # What is sent, the path, the transport and the target; without the leading dashes
    scenario: Scenario
    target: Target
    quantity: str  # The quantity whose edge is asked for
    app: str | None = None  # The application that is sent as it is
    rows: Mapping[str, Any] = field(default_factory=dict)  # The columns of a drawn trace

    def words(self, *without: str) -> list[str]:
        """Return the options of a command."""
        return [
            word for name, value in self.options.items() if name not in without for word in (f"--{name}", value) if word
        ]

    @property
    def axis(self) -> Axis:
        """The quantity that is varied."""
        source, path, stack = self.scenario.source, self.scenario.path, self.scenario.stack
        if self.quantity == "bitrate":
            return bitrate_axis(source, path, stack, "size" if not isinstance(source, Flow) else "segments")
        return {"loss": loss_axis, "rtt": rtt_axis}[self.quantity](source, path)

    @property
    def now(self) -> float:
        """The present value of the quantity."""
        scenario = self.scenario
        return {"loss": scenario.path.loss, "rtt": scenario.path.rtt, "bitrate": scenario.source.mean_bitrate}[
            self.quantity
        ]


def draw_question(rng: np.random.Generator, number: int) -> Question:
    """Return a question with any kind of source, path, transport and target."""

    def between(low: float, high: float) -> float:
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")

    def one_of(*values: Any, p: Any = None) -> Any:
        return values[int(rng.choice(len(values), p=p))]

    options: dict[str, str] = {}
    rows: dict[str, Any] = {}
    app = None
    target = Target(DEFAULT_LIMIT)
    source: Source
    kind = one_of(
        "flow", "app", "frames", "video", "speech", "utterances", "trace", p=[0.4, 0.3, 0.1, 0.08, 0.05, 0.04, 0.03]
    )
    if kind == "app":
        app = one_of(*APPLICATIONS)
        options["app"], source, target = app, APPLICATIONS[app].source, APPLICATIONS[app].target
    elif kind == "video":
        rate, fps, ratio = between(3e5, 3e6), one_of(25, 30), one_of(4, 8)
        options |= {"bitrate": f"{rate:.0f}bit/s", "fps": f"{fps}", "key-ratio": f"{ratio}", "key-interval": "2s"}
        source = td.Video(float(f"{rate:.0f}"), fps, key_interval=2.0, key_ratio=ratio)
    elif kind == "trace":
        times = np.round(np.cumsum(rng.exponential(0.03, 6000)), 4)
        rows = {"time": times.tolist(), "size": [int(size) for size in rng.integers(40, 3000, times.size)]}
        period = math.ceil(times[-1]) + 1
        options |= {"source": TRACE, "period": f"{period}s"}
        source = td.Trace(rows["time"], rows["size"], period=period)
    else:
        size = int(between(6000, 14000) if kind == "frames" else between(40, 1400))
        interval = one_of(40, 33) if kind == "frames" else one_of(10, 20, 30, 40, 60, 100)
        options |= {"packet-size": f"{size}B", "interval": f"{interval}ms"}
        source = Flow(size, interval / 1000)
        if kind == "speech":
            options |= {"talk": "1s", "silence": "1500ms"}
            source = td.Speech(size, interval / 1000, talk=1.0, silence=1.5)
        elif kind == "utterances":
            options |= {"speed": "3", "length": "4s", "pause": "4s"}
            source = td.Utterances(size, interval / 1000, speed=3, length=4.0, pause=4.0)
    if kind != "app" and rng.random() < 0.35:
        over = one_of("websocket", "wss", "tls", "rtmp", *(("rtp-tcp", "turn-tcp") if kind == "flow" else ()))
        options["over"], source = over, encapsulation(over).around(source)
    if rng.random() < 0.25:
        preset = one_of(*PATH_PRESETS)
        options["path"] = preset
        path = td.Path(**PATH_PRESETS[preset].changed())
    else:
        rtt, loss = round(1000 * between(0.010, 0.300)), between(0.0005, 0.06)
        options |= {"rtt": f"{rtt}ms", "loss": f"{100 * loss:.6g}%"}
        more, value, taken = one_of(
            ("", "", {}),
            ("jitter", "5ms", {"jitter": 0.005}),
            ("loss-burst", "2", {"loss_burst": 2.0}),
            ("bad-time", "40ms", {"bad_time": 0.04}),
            ("ack-loss", "1%", {"ack_loss": 0.01}),
            ("reordering", "1%", {"reordering": 0.01}),
            p=[0.65, 0.15, 0.08, 0.04, 0.04, 0.04],
        )
        options |= {more: value} if more else {}
        path = td.Path(rtt / 1000, loss, **taken)
    words, stack = one_of(
        ({}, Stack.linux()),
        ({"congestion-control": "reno"}, Stack.linux("reno")),
        ({"congestion-control": "bbr"}, Stack.linux("bbr")),
        ({"delayed-ack": ""}, Stack.linux(delayed_ack=True)),
        ({"stack": "newreno_2008"}, Stack.newreno_2008()),
        ({"stack": "quic", "delivery": "stream_per_message"}, Stack.quic(delivery="stream_per_message")),
        ({"stack": "quic", "delivery": "datagram"}, Stack.quic(delivery="datagram")),
        p=[0.6, 0.08, 0.1, 0.04, 0.08, 0.06, 0.04],
    )
    options |= words
    if rng.random() < 0.7:
        limit = round(1000 * target.limit * between(0.6, 3.0))
        options["limit"], target = f"{limit}ms", replace(target, limit=limit / 1000)
    if rng.random() < 0.3:
        share = one_of(0.9, 0.99, 0.999)
        options["quantile"], target = f"{100 * share:g}%", replace(target, quantile=share)
    scenario = Scenario(source, path, stack, target)
    return Question(number, options, scenario, target, QUANTITIES[number % len(QUANTITIES)], app, rows)


# The answers, each from a command of its own.


@dataclass
class Answers:
    """What the commands answer, by command; None where a command refuses the question."""

    records: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)  # The line that a command refuses with
    pages: dict[str, str] = field(default_factory=dict)  # Texts for people


def _run(*words: str) -> tuple[int, str, str]:
    """Run a command; return its status, what it prints, and its errors."""
    printed, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(errors):
        status = command(list(words))
    return status, printed.getvalue(), errors.getvalue()


def ask(question: Question) -> Answers:
    """Ask every command, in an empty directory."""
    found = Answers()
    with tempfile.TemporaryDirectory() as folder, chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if question.rows:
            with File(TRACE).open("w", newline="") as file:
                csv.writer(file).writerows([["time", "size"], *zip(*question.rows.values(), strict=True)])
        for name, asked in _commands(question):
            try:
                found.records[name] = asked(found)
            except ValueError as refusal:
                found.records[name], found.refusals[name] = None, str(refusal)
    return found


def _json(*words: str) -> Any:
    """Return what a command answers as JSON; raise a ValueError with its line if it refuses."""
    status, printed, errors = _run(*words, "--format", "json")
    if status:
        raise ValueError(errors.strip().splitlines()[-1] if errors.strip() else f"status {status} without a word")
    return json.loads(printed)


def _commands(question: Question) -> Iterator[tuple[str, Callable[[Answers], dict[str, Any] | None]]]:
    """Yield the commands that can be asked, by name."""
    scenario, quantity = question.scenario, question.quantity
    plain = scenario.path == td.Path(scenario.path.rtt, scenario.path.loss)
    yield "python", lambda _: _in_python(question)
    yield "predict", lambda _: _json("predict", *question.words())
    yield "report", lambda found: _shown(question, found, "report", *question.words())
    yield (
        "solve",
        lambda found: _shown(
            question, found, "solve", quantity, *question.words(*(() if quantity == "bitrate" else (quantity,)))
        ),
    )
    constant = isinstance(scenario.source, Flow)
    if plain and (constant or question.app or not isinstance(scenario.stack, Quic)):
        yield "batch", lambda _: _in_batch(question)
    if plain and constant and question.quantity == "loss":
        yield "region", lambda _: _in_region(question)
    if scenario.stack == Stack.linux() and constant and plain and question.number % COMPARED == 0:
        yield "compare", lambda _: _compared(question)
    if plain and constant and question.app and scenario.stack == Stack.linux() and "bitrate" not in question.options:
        yield "explorer", lambda _: _explored(question)


def _in_python(question: Question) -> dict[str, Any]:
    scenario, target = question.scenario, question.target
    delays = td.predict_delay(scenario.source, scenario.path, scenario.stack)
    return {
        "p95": delays.quantile(0.95),
        "target_quantile": delays.quantile(target.quantile),
        "mean": delays.mean,
        "late_fraction": delays.late_fraction(target.limit),
        "sustainable": delays.sustainable,
        "method": delays.method,
    }


def _shown(question: Question, found: Answers, name: str, *words: str) -> dict[str, Any]:
    """Return what a command answers as JSON, and keep its text for people; both show what is found once."""
    with solved_once():
        record: dict[str, Any] = _json(name, *words)
        status, page, errors = _run(name, *words)
    if status:
        raise ValueError(f"as text only: {errors.strip().splitlines()[-1]}")
    found.pages[name] = page
    return record


def _in_batch(question: Question) -> dict[str, Any]:
    path = question.scenario.path
    File("rows.csv").write_text(f"rtt_s,loss\n{path.rtt!r},{path.loss!r}\n")
    words = question.words("path", "rtt", "loss")
    status, _, errors = _run(
        "batch",
        "rows.csv",
        "-o",
        "out.csv",
        "--column",
        "rtt=rtt_s:s",
        "--column",
        "loss=loss:fraction",
        "--no-cache",
        *words,
    )
    if status:
        raise ValueError(errors.strip().splitlines()[-1])
    with File("out.csv").open() as file:
        (row,) = csv.DictReader(file)
    return {
        name: row.get(name) for name in ("p95", "mean", "late", "works", "verdict", "reason", "remark", "sustainable")
    }


def _in_region(question: Question) -> dict[str, Any]:
    scenario, target = question.scenario, question.target
    region = td.working_region(
        scenario.source,
        scenario.stack,
        rtt=[scenario.path.rtt],
        loss=[scenario.path.loss],
        target=target,
        beyond="exact",
    )
    edge = td.working_boundary(scenario.source, scenario.stack, rtt=[scenario.path.rtt], target=target)
    names = region.verdict.attrs["flag_meanings"].split()
    return {
        "p95": float(region.p95[0, 0]),
        "target_quantile": float(region["quantile"][0, 0]),
        "works": bool(region.works[0, 0]),
        "verdict": names[int(region.verdict[0, 0])],
        "works_up_to": float(edge.works_up_to[0]),
        "fails_from": float(edge.fails_from[0]),
        "certain_up_to": float(edge.certain_up_to[0]),
        "impossible_from": float(edge.impossible_from[0]),
    }


def _compared(question: Question) -> dict[str, Any]:
    words = question.words("stack")
    record = _json("compare", *words)
    return next(each for each in record["contenders"] if each["name"] == "tcp")


def _explored(question: Question) -> dict[str, Any]:
    scenario, target, app = question.scenario, question.target, APPLICATIONS[question.app or ""]
    place = np.array([[scenario.source.mean_bitrate, scenario.path.rtt, scenario.path.loss]])
    (cell,) = predict_places(replace(app, target=target), place)
    return {
        "p95": float(cell["quantiles"][int(np.flatnonzero(np.isclose(PROBABILITIES, 0.95))[0])]),
        "mean": float(cell["mean"]),
        "late_fraction": float(cell["late_fraction"]),
    }


# The comparison of the answers: one function for all commands.


def disagreements(question: Question, found: Answers) -> list[str]:
    """Return the statements of different commands that disagree, in words."""
    return [
        *_figures_differ(question, found),
        *_verdicts_differ(question, found),
        *_edges_differ(question, found),
        *_pages_differ(found),
    ]


def _same(first: float | None, second: float | None, within: float = 0.0) -> bool:
    """Return whether two figures are the same to the last digit, or within a relative difference."""
    if first is None or second is None or math.isnan(first) or math.isnan(second):
        return _missing(first) == _missing(second)
    return first == second or math.isclose(first, second, rel_tol=within, abs_tol=0.0)


def _missing(figure: float | None) -> bool:
    """Return whether a figure is not finite; JSON has null in its place."""
    return figure is None or not math.isfinite(figure)


def _figures_differ(question: Question, found: Answers) -> Iterator[str]:
    """Yield figures of one scenario that differ: those of Python and `predict` are compared with all others."""
    records = {name: record for name, record in found.records.items() if record is not None}
    predicted = records.get("predict")
    refused = sorted({"python", "predict", "report"} & found.refusals.keys())
    if refused not in ([], ["predict", "python", "report"]):
        unsettled = predicted is not None and not predicted["settled"]
        if not (refused == ["python"] and unsettled and "not settled" in found.refusals["python"]):
            yield f"only {', '.join(refused)} refuses: {found.refusals[refused[0]]}"
    if predicted is None:
        return
    if (python := records.get("python")) is not None:
        for name in ("p95", "mean", "late_fraction", "target_quantile"):
            if not _same(python[name], predicted[name]):
                yield f"{name}: {python[name]} in Python, {predicted[name]} by predict"
        if python["method"] != predicted["method"]:
            yield f"method: {python['method']} in Python, {predicted['method']} by predict"
    if (report := records.get("report")) is not None:
        delay = report["delay"]
        for name in ("p95", "p50", "p99", "mean", "late_fraction", "target_quantile", "settled"):
            if not _same(delay[name], predicted[name]):
                yield f"{name}: {delay[name]} in the report, {predicted[name]} by predict"
        if delay["method"] != predicted["method"]:
            yield f"method: {delay['method']} in the report, {predicted['method']} by predict"
    chain = predicted["method"] == "chain"
    if (row := records.get("batch")) is not None:
        p95 = float(row["p95"]) if row["p95"] else None
        if not _same(p95, predicted["p95"]) and (chain or not (row["reason"] or row["remark"])):
            yield f"p95: {p95} by batch without a reason or remark, {predicted['p95']} by predict"
    if (cell := records.get("region")) is not None and chain and not _same(cell["p95"], predicted["p95"], SIX_DIGITS):
        yield f"p95: {cell['p95']} in the region, {predicted['p95']} by predict"
    if (cell := records.get("explorer")) is not None and chain and not _same(cell["p95"], predicted["p95"], SIX_DIGITS):
        yield f"p95: {cell['p95']} in the explorer, {predicted['p95']} by predict"
    if (tcp := records.get("compare")) is not None and not _near(tcp["p95"], predicted):
        yield f"p95: {tcp['p95']} by compare, {predicted['p95']} by predict, beyond the expected error of both"


def _near(figure: float | None, predicted: Mapping[str, Any]) -> bool:
    """Return whether a figure is within the error of a prediction that nine of ten do not exceed."""
    p95, error = predicted["p95"], predicted["expected_error_p95_p90"]
    if error is None or error >= 1:
        return True
    if _missing(figure) or _missing(p95):
        return _missing(figure) == _missing(p95)
    assert figure is not None
    return bool(abs(figure - p95) <= 2 * error * p95 + 1e-3)


def _verdict(record: Mapping[str, Any], target: Target) -> str:
    """Return the verdict that the range of late packets of a prediction gives."""
    low, high = record["late_fraction_low"], record["late_fraction_high"]
    if low is None or high is None:
        return "uncertain"
    met = {target.allows(low), target.allows(high)}
    return "uncertain" if len(met) > 1 else "works" if met == {True} else "fails"


def _verdicts_differ(question: Question, found: Answers) -> Iterator[str]:
    """Yield verdicts of one scenario that contradict each other; `uncertain` contradicts nothing but a sure model."""
    predicted, target = found.records.get("predict"), question.target
    if predicted is None:
        return
    expected = _verdict(predicted, target)
    verdicts = {"predict": expected}
    if (report := found.records.get("report")) is not None:
        verdicts["report"] = report["verdict"]
        kind = report.get("path_preset") or report.get("estimate")
        if report["verdict"] != expected and not (kind and report["verdict"] == "uncertain"):
            yield f"verdict: {report['verdict']} in the report, {expected} by predict"
    for name in ("batch", "region"):
        if (record := found.records.get(name)) is not None:
            verdicts[name] = record["verdict"]
            if predicted["method"] == "chain" and record["verdict"] not in (expected, ""):
                yield f"verdict: {record['verdict']} by {name}, {expected} by predict"
    if {"works", "fails"} <= set(verdicts.values()):
        yield f"verdicts contradict each other: {verdicts}"


def _edges_differ(question: Question, found: Answers) -> Iterator[str]:
    """Yield edges that differ, and edges beside which a prediction says something else."""
    solved, predicted = found.records.get("solve"), found.records.get("predict")
    report, region = found.records.get("report"), found.records.get("region")
    margins = {} if report is None else {margin["quantity"]: margin for margin in report["margins"]}
    margin = margins.get(question.quantity)
    name = question.quantity
    if solved is None:
        refusal = found.refusals["solve"]
        if margin is not None and margin["edge"] is not None and "meets the target" in refusal:
            yield f"{name}: {refusal}, but {margin['edge']} in the report"
        return
    value, certain, impossible = solved["value"], solved["certain"], solved["impossible"]
    if margin is not None and margin["edge"] != value and margin["edge"] != margin["now"]:
        yield f"{name}: {value} by solve, {margin['edge']} in the report"
    if margin is not None and margin["edge"] == value:
        within = margin["within_error"]
        if within is None:
            said = "has no range" in found.pages["report"] or isinstance(question.scenario.stack, NewReno2008)
            if (certain, impossible) != (None, None) and not said:
                yield f"{name}: a range from {certain} to {impossible} by solve, none in the report"
        elif within[0] not in (certain, margin["now"]) or within[1] not in (impossible, margin["now"]):
            yield f"{name}: from {certain} to {impossible} by solve, {within} in the report"
    if region is not None:
        theirs = [region[key] for key in ("works_up_to", "fails_from", "certain_up_to", "impossible_from")]
        ours = [value, solved["fails"], certain, impossible]
        inside = question.axis.lowest < value and 1e-3 <= value <= 0.1
        if inside and not all(_same(a, b, 2e-2) for a, b in zip(theirs[:2], ours[:2], strict=True)):
            yield f"loss: {ours} by solve, {theirs} by region"
        elif inside and not all(_same(a, b) for a, b in zip(theirs[:2], ours[:2], strict=True)):
            yield f"loss to the last digit: {ours} by solve, {theirs} by region"
    yield from _beside_edge(question, solved, predicted)


def _beside_edge(question: Question, solved: Mapping[str, Any], predicted: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what `predict` says at the ends of an edge's range, if it is the contrary."""
    axis, stack, target, now = question.axis, question.scenario.stack, question.target, question.now
    certain, impossible, value = solved["certain"], solved["impossible"], solved["value"]
    asked = Requested(target=target, precision="decision", max_seconds=3)
    for end, meets in ((certain, True), (impossible, False)):
        if end is None or not axis.lowest <= end <= axis.highest:
            continue
        answer = predict(Scenario(*axis.place(end), stack), asked)
        if answer.answered and answer.meets(target) != meets:
            says = "meets" if answer.meets(target) else "misses"
            yield (
                f"{question.quantity}: {value:.6g} by solve ({solved['method']}, {certain} to {impossible}), but "
                f"predict ({answer.method}: {answer.simulated_because}) {says} the target at {end:.6g}"
            )
    if predicted is not None:
        verdict = _verdict(predicted, target)
        if verdict == "fails" and certain is not None and now < certain:
            yield f"{question.quantity}: certain to {certain:.6g} by solve, but predict fails at {now:.6g}"
        if verdict == "works" and impossible is not None and now > impossible and question.quantity != "rtt":
            yield f"{question.quantity}: impossible from {impossible:.6g} by solve, but predict works at {now:.6g}"


def _pages_differ(found: Answers) -> Iterator[str]:
    """Yield infinite numbers on a page, and sentences of a page that disagree."""
    for name, page in found.pages.items():
        if match := NO_NUMBER.search(page):
            yield f"the {name} has {match[0]}"
    report = found.records.get("report")
    if report is None:
        return
    works = report["works"]
    for margin in report["margins"]:
        if margin["edge"] is not None and (margin["edge"] >= margin["now"]) != works:
            yield f"the margin of {margin['quantity']} is on the other side: {margin}, works {works}"
        low, high = margin["within_error"] or (None, None)
        if low is not None and high is not None and not low <= margin["edge"] <= high:
            yield f"the margin of {margin['quantity']} lies outside its range: {margin}"
    if works != (report["verdict"] == "works") and report["verdict"] != "uncertain":
        yield f"works is {works}, the verdict {report['verdict']}"


# Random questions, and the table of their answers.

COLUMNS = (
    "number",
    "question",
    "quantity",
    "method",
    "p95",
    "verdict",
    "value",
    "certain",
    "impossible",
    "asked",
    "refused",
    "disagree",
)


def answers_row(number: int, seed: int = 1) -> dict[str, str]:
    """Ask a random question of all commands, and return its row of the table."""
    question = draw_question(np.random.default_rng([seed, number]), number)
    found = ask(question)
    predicted, solved = found.records["predict"] or {}, found.records["solve"] or {}
    row = {
        "number": number,
        "question": " ".join(question.words()),
        "quantity": question.quantity,
        "method": predicted.get("method"),
        "p95": predicted.get("p95"),
        "verdict": _verdict(predicted, question.target) if predicted else "",
        "asked": " ".join(found.records),
        "refused": " ".join(found.refusals),
        "disagree": "; ".join(disagreements(question, found)),
        **{name: solved.get(name) for name in ("value", "certain", "impossible")},
    }
    return {name: "" if row[name] is None else str(row[name]) for name in COLUMNS}


def main() -> None:
    """Ask random questions, write the table, and print what disagrees."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    rows: dict[int, dict[str, str]] = {}
    if RESULTS.exists():
        with RESULTS.open(newline="") as file:
            rows = {int(row["number"]): row for row in csv.DictReader(file)}
    missing = [number for number in range(arguments.questions) if number not in rows]
    with ProcessPoolExecutor(arguments.processes) as pool:
        asked = [pool.submit(answers_row, number, arguments.seed) for number in missing]
        for done in as_completed(asked):
            row = done.result()
            rows[int(row["number"])] = row
            with RESULTS.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows[number] for number in sorted(rows))
            if row["disagree"]:
                print(row["number"], row["question"], row["disagree"], sep="\n  ", flush=True)
    wrong = sum(bool(row["disagree"]) for row in rows.values())
    refused = sum("predict" in row["refused"].split() for row in rows.values())
    print(f"{len(rows)} questions, of which all commands refuse {refused}; {wrong} with answers that disagree")


if __name__ == "__main__":
    main()
