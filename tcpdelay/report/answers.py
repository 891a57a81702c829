"""The answers of `tcpdelay solve` as text, JSON and CSV, and tables of playout buffers for many paths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tcpdelay.accuracy.errors import in_words
from tcpdelay.models.predict import COMPARED_PACKETS
from tcpdelay.report.document import (
    FILE_WIDTH,
    UNBROKEN,
    Cell,
    Column,
    ResultTable,
    as_text,
    attributes,
    cells_table,
    facts_table,
    interval_cells,
    to_csv,
    to_json,
    with_interval,
)
from tcpdelay.report.prediction import (
    expected_errors,
    ignored_in_words,
    scenario_in_words,
    scenario_record,
    source_in_words,
)
from tcpdelay.scenario.scenario import REPORTED_QUANTILES, Target
from tcpdelay.statistics import Interval
from tcpdelay.study.best import Candidate, Choice
from tcpdelay.study.boundary import Frontier
from tcpdelay.study.largest import Edge
from tcpdelay.study.margins import NOISE, Input, Output, Sensitivities
from tcpdelay.study.playback import STAGES, GaplessPlayout, PlayerAnswer, StartupBuffer, UnstoppableAudio, VideoStalls
from tcpdelay.study.playout import PlayoutCell, PlayoutTable, SmallestBuffer
from tcpdelay.study.search import FORMATS
from tcpdelay.units import (
    format_fraction,
    format_fraction_range,
    format_rate,
    format_size,
    format_time,
    quantile_name,
    told_apart,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tcpdelay.scenario.encapsulation import Encapsulation


Format = Literal["text", "json", "csv"]
Row = dict[str, Any]
PlayerSolution = StartupBuffer | VideoStalls | GaplessPlayout | UnstoppableAudio
Solution = Edge | SmallestBuffer | Frontier | Choice | Sensitivities | PlayerSolution
"""The answer to a question."""


LIMITS = {
    "delay": "the delay, which is too long beyond this value",
    "capacity": "the rate that TCP can carry",
    "size of the chain": "the chain, which is too large beyond this value",
    "not modelled": "the chain, which does not model larger values: they may work",
    "segments in flight": "the simulator, which cannot hold more segments in flight: a larger value may work",
    "range": "the range of the search, which ends here",
    "late packets": "late packets with a shorter buffer",
    "score": "the score with a shorter buffer",
    "network": "the network: no packet arrives earlier",
    "target": "the target, which the neighbouring candidates miss",
    "rank": "the neighbouring candidates, which are worse",
    "candidates": "the candidates: the best one is the first or the last",
}
"""The limit of an answer, in words."""


@dataclass(frozen=True)
class RenderedAnswer:
    """An answer in all formats."""

    facts: list[tuple[str, str]]  # The answer for people: names and values
    record: Row  # The answer in numbers: seconds, bytes, bit/s and fractions
    key: str = ""  # Name of `rows` in JSON
    rows: list[Row] = field(default_factory=list)  # The parts of the answer, if it has several parts
    # headings, cells: `rows` as a table for people.
    headings: list[str] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)


def answer_text(
    answer: Solution,
    chosen: Format,
    ignored: Mapping[str, str],
    over: Encapsulation | None = None,
    of_path: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return an answer of `tcpdelay.study` in one of the formats."""
    found = rendered(answer)
    if over is not None and isinstance(answer, Edge) and answer.quantity == "bitrate":
        data = _data_bitrate(answer, over)
        found.facts.insert(1, ("of which data", f"{format_rate(data)}, without the headers of {over.name}"))
        found.record["data_bitrate"] = data
    if chosen == "text":
        parts: list[RenderableType] = [facts_table([*found.facts, *ignored_in_words(ignored, answer.method)])]
        if found.cells:
            parts.append(cells_table(found.headings, found.cells))
        return as_text(*parts, width=UNBROKEN)
    more = {**of_path, "ignored": dict(ignored)}
    record = {**found.record, **more}
    if chosen == "json":
        return to_json({**record, **({found.key: found.rows} if found.key else {})})
    return to_csv([{**row, **more} for row in found.rows] or [record])


@singledispatch
def rendered(answer: object) -> RenderedAnswer:
    """Return an answer in all formats; each type of answer has its own function."""
    raise TypeError(f"no answer: {answer!r}")


@rendered.register
def _(edge: Edge) -> RenderedAnswer:
    words, target = FORMATS[edge.quantity], edge.target
    share = format_fraction(target.quantile)
    value, fails = told_apart(words, edge.value, edge.fails)
    delay, limit, delay_beyond = told_apart(format_time, edge.delay, target.limit, edge.delay_beyond)
    facts = [(f"largest {edge.quantity}", value), ("delay there", f"{share} come within {delay}, asked for {limit}")]
    if fails:
        facts.append(("fails", f"{fails}, with {share} within {delay_beyond}" if delay_beyond else fails))
    facts += [
        ("within the error", _edges_in_words(edge)),
        ("limited by", LIMITS[edge.limited_by]),
        ("found to", format_fraction(edge.tolerance)),
        ("method", _method(edge.method)),
        ("scenario there", scenario_in_words(*edge.at)),
        ("expected error", in_words(edge.expected_error, target.quantile)),
        *_notes(edge.notes),
    ]
    record = {
        "question": edge.quantity,
        **attributes(edge, "value", "fails", "limited_by", "tolerance", "delay", "delay_beyond"),
        **attributes(edge, "certain", "impossible", "method"),
        **_demand(target),
        **scenario_record(*edge.at),
        **expected_errors(edge.expected_error),
        "notes": edge.notes,
    }
    return RenderedAnswer(facts, record)


@rendered.register
def _(buffer: SmallestBuffer) -> RenderedAnswer:
    def described(late: str, score: str) -> str:
        return f"{late} late, score {score}" if score else f"{late} late"

    mos = None if buffer.quality is None else buffer.quality.mos
    mos_beyond = None if buffer.quality_beyond is None else buffer.quality_beyond.mos
    value, fails = told_apart(
        format_time, buffer.value, buffer.fails, error=max(buffer.value / buffer.value_range[0] - 1, 0.0)
    )
    # A share that fails must not look like the share that is allowed.
    allowed = None if buffer.quantile is None else 1 - buffer.quantile
    late, late_beyond, _ = told_apart(format_fraction, buffer.late_fraction, buffer.late_beyond, allowed)
    score, score_beyond = told_apart(_score, mos, mos_beyond)
    facts = [("playout buffer", f"{value} from write to playout"), ("with it", described(late, score))]
    if fails:
        # The error of the prediction may be larger than the difference to the next shorter buffer.
        shorter = "a slightly shorter buffer" if fails == value else fails
        facts.append(("fails", f"{shorter}: {described(late_beyond, score_beyond)}"))
    facts += [
        ("within the error", _buffers_in_words(buffer)),
        ("limited by", LIMITS[buffer.limited_by]),
        ("method", buffer.method),
        ("scenario", scenario_in_words(buffer.flow, buffer.path)),
        ("expected error", in_words(buffer.expected_error, buffer.quantile or "the buffer")),
        *_notes(buffer.notes),
    ]
    record = {
        "question": "playout",
        **attributes(buffer, "value", "fails", "limited_by", "tolerance", "late_fraction", "late_beyond"),
        "late_fraction_low": buffer.late_range[0],
        "late_fraction_high": buffer.late_range[1],
        "value_low": buffer.value_range[0],
        "value_high": buffer.value_range[1],
        "method": buffer.method,
        "mos": mos,
        "mos_beyond": mos_beyond,
        **scenario_record(buffer.flow, buffer.path),
        **expected_errors(buffer.expected_error),
        "notes": buffer.notes,
    }
    return RenderedAnswer(facts, record)


OF_EDGE = ("fails", "limited_by", "tolerance", "certain", "impossible", "method")
"""Attributes of an edge in the row of a frontier."""


@rendered.register
def _(frontier: Frontier) -> RenderedAnswer:
    target = frontier.target
    facts = [
        ("target", f"{format_fraction(target.quantile)} within {format_time(target.limit)}"),
        ("method", _method(frontier.method)),
    ]
    rows: list[Row] = []
    headings = ["round-trip time", "largest loss", "fails", "limited by", "within the expected error"]
    cells: list[list[str]] = []
    for rtt, edge in zip(frontier.rtts, frontier.edges, strict=True):
        row: Row = {"rtt": rtt, **dict.fromkeys(("loss", *OF_EDGE)), "notes": ""}
        if edge is None:
            cells.append([format_time(rtt), "none", "", "", ""])
        else:
            works, fails = told_apart(format_fraction, edge.value, edge.fails)
            cells.append([format_time(rtt), works, fails, edge.limited_by, _edges_in_words(edge)])
            row |= {"loss": edge.value, **attributes(edge, *OF_EDGE), "notes": "; ".join(edge.notes)}
        rows.append({**row, **expected_errors(None if edge is None else edge.expected_error)})
    return RenderedAnswer(facts, {"question": "frontier", **_demand(target)}, "points", rows, headings, cells)


@rendered.register
def _(choice: Choice) -> RenderedAnswer:
    best, call = choice.best, choice.best.mos is not None
    asked = choice.target.quantile if isinstance(choice.target, Target) else "the score"

    def named(value: float) -> str:
        return format_time(value) if choice.quantity == "interval" else f"{value:g}"

    def cells(one: Candidate) -> list[str]:
        score = [] if one.mos is None else [f"{one.mos:.2f}"]
        verdict = "best" if one is best else "meets the target" if one.meets_target else "misses the target"
        if one.verdict == "uncertain":
            verdict += ", uncertain by the expected error"
        size, rate = f"{one.flow.packet_size} B", format_rate(one.wire_rate)
        return [named(one.value), *score, format_time(one.delay), format_time(one.age), size, rate, verdict]

    facts = [
        (f"best {choice.quantity}", named(best.value)),
        ("ahead of the next by", _lead(choice)) if best.mos is None else ("score", f"{best.mos:.2f}"),
        ("limited by", LIMITS[choice.limited_by]),
        *([] if choice.fails is None else [("fails", named(choice.fails))]),
        ("method", _method(best.method)),
        ("expected error", in_words(choice.expected_error, asked)),
        *_notes(choice.notes),
    ]
    first = f"{format_fraction(choice.target.quantile)} within" if isinstance(choice.target, Target) else "playout"
    headings = [choice.quantity, *(["score"] if call else []), first, "and to fill", "packet", "on the network", ""]
    rows = [
        {
            choice.quantity: one.value,
            **attributes(one, "delay", "age", "mos"),
            **attributes(one.flow, "packet_size", "interval"),
            **attributes(one, "wire_rate", "meets_target", "verdict", "method"),
            "best": one is best,
            **expected_errors(one.expected_error),
            "notes": "; ".join(one.notes),
        }
        for one in choice.candidates
    ]
    record = {
        "question": choice.quantity,
        **attributes(choice, "value", "fails", "limited_by", "tolerance", "lead"),
        **(_demand(choice.target) if isinstance(choice.target, Target) else {"mos": choice.target.mos}),
        "notes": choice.notes,
    }
    return RenderedAnswer(facts, record, "candidates", rows, headings, list(map(cells, choice.candidates)))


INPUTS: dict[Input, tuple[str, Any]] = {
    "rtt": ("round-trip time", format_time),
    "loss": ("loss", format_fraction),
    "packet_size": ("packet size", lambda size: f"{size:g} B"),
    "interval": ("interval", format_time),
}
OUTPUTS: dict[Output, tuple[str, Any]] = {
    "quantile": ("quantile", format_time),
    "mean": ("mean", format_time),
    "late_fraction": ("late", format_fraction),
}


@rendered.register
def _(found: Sensitivities) -> RenderedAnswer:
    target = found.target
    facts = [
        ("scenario", scenario_in_words(found.flow, found.path)),
        ("quantile", f"{format_fraction(target.quantile)}; packets later than {format_time(target.limit)} are late"),
        ("depends most on", INPUTS[found.largest][0]),
        ("method", _method(found.method)),
        ("expected error", in_words(found.expected_error, target.quantile)),
        *_notes(found.notes),
    ]
    percent = format_fraction(found.step)
    headings = ["of", "by", f"-{percent}", "now", f"+{percent}", "change", "", "elasticity", "direction"]
    cells: list[list[str]] = []
    rows: list[Row] = []
    for entry in found.entries:
        (name, _), (output, written) = INPUTS[entry.input], OUTPUTS[entry.output]
        changes = [_change(change) for change in entry.changes]
        elasticity = "" if math.isnan(entry.elasticity) else f"{round(entry.elasticity, 2) + 0.0:.2f}"  # Not "-0.00".
        cells.append([output, name, *map(written, entry.outputs), *changes, elasticity, entry.direction])
        point: Row = {"input": entry.input, "output": entry.output}
        for place, value, result in zip(("low", "now", "high"), entry.inputs, entry.outputs, strict=True):
            point |= {f"input_{place}": value, f"output_{place}": result}
        point |= {"change_low": entry.changes[0], "change_high": entry.changes[1]}
        rows.append({**point, "elasticity": entry.elasticity, "direction": entry.direction})
    record = {
        "question": "sensitivity",
        "step": found.step,
        "method": found.method,
        **_demand(target),
        **scenario_record(found.flow, found.path),
        **expected_errors(found.expected_error),
        "notes": found.notes,
    }
    return RenderedAnswer(facts, record, "entries", rows, headings, cells)


def _data_bitrate(edge: Edge, over: Encapsulation) -> float:
    """Return the bitrate of the data alone [bit/s] in packets with headers."""
    source, _ = edge.at
    return 8 * over.largest_payload(round(source.mean_size)) / source.mean_interval


def _method(name: str) -> str:
    """Return a model in words; simulations that are compared have the same number of packets."""
    return (
        name
        if name == "chain"
        else f"simulations of up to {COMPARED_PACKETS} packets, all with the same random numbers"
    )


def _edges_in_words(edge: Edge) -> str:
    """Return in words the range in which the expected error places an edge."""
    certain, impossible = told_apart(FORMATS[edge.quantity], edge.certain, edge.impossible)
    low = f"up to {certain} works" if certain else "no value works for certain"
    return f"{low}, from {impossible} on fails" if impossible else f"{low}, no value fails for certain"


def _buffers_in_words(buffer: SmallestBuffer) -> str:
    """Return in words the late packets, and the smallest buffers, that the expected error allows."""
    shortest, longest = buffer.value_range
    buffers = "any longer buffer" if math.isinf(longest) else format_time(longest)
    late = format_fraction_range(buffer.late_range)
    return f"{late} late; the answer may lie between {format_time(shortest)} and {buffers}"


def _score(mos: float, digits: int) -> str:
    """Return a score of a call with a number of digits."""
    return f"{mos:.{digits - 1}f}"


def _lead(choice: Choice) -> str:
    """Return in words the difference between the best candidate and the next one."""
    if choice.lead == math.inf:
        return "no other candidate meets the target"
    doubt = "" if choice.certain else ", which is less than the expected error"
    return f"{format_fraction(max(choice.lead, 0.0), 2)} of its delay and the time to fill a packet{doubt}"


def _demand(target: Target) -> Row:
    return attributes(target, "limit", "quantile")


def _notes(notes: Sequence[str]) -> list[tuple[str, str]]:
    return [("note", note.replace("_", " ")) for note in notes]


def _share(fraction: float) -> str:
    return "not known" if math.isnan(fraction) else format_fraction(float(f"{fraction:.2g}"))


def _change(fraction: float) -> str:
    """Return a relative change with its sign; "0 %" for one that is rounding."""
    if abs(fraction) < NOISE:
        return "0 %"
    return "" if math.isnan(fraction) else "never" if fraction == math.inf else f"{100 * fraction:+.3g} %"


# The answers of `tcpdelay solve` about players: stalls, gaps, and audio that cannot be stopped.


@rendered.register
def _(stalls: VideoStalls) -> RenderedAnswer:
    player = stalls.player
    after = f"resumes with {format_time(player.resumes_at)}"
    catches_up = f"catches up at {format_fraction(player.catch_up)}" if player.catch_up else "does not catch up"
    lengths = [stalls.stall_quantile(probability) for probability in REPORTED_QUANTILES]
    facts = [
        ("player", f"starts with {format_time(player.startup)} of media time, {after}, {catches_up}"),
        ("first picture", f"{with_interval(stalls.startup_delay, format_time)} after the write of its frame"),
        ("stalls per hour", with_interval(stalls.stalls_per_hour, _number)),
        ("time stalled", with_interval(stalls.stalled_share, format_fraction)),
        ("length of a stall", _in_words(lengths) if stalls.stall_lengths.size else "no stall occurred"),
        ("without a stall", f"{with_interval(stalls.undisturbed, format_fraction)} of the sessions"),
        ("simulated", f"{stalls.sessions} sessions of {format_time(stalls.session)}"),
        *_scenario(stalls),
    ]
    record = {
        "question": "startup",
        "startup": player.startup,
        "rebuffer": player.resumes_at,
        "catch_up": player.catch_up,
        **interval_cells("startup_delay", stalls.startup_delay),
        **interval_cells("stalls_per_hour", stalls.stalls_per_hour),
        **interval_cells("stalled_share", stalls.stalled_share),
        **interval_cells("undisturbed_share", stalls.undisturbed),
    }
    simulated = {"session": stalls.session, "sessions": stalls.sessions, **_record(stalls)}
    return RenderedAnswer(facts, record | _quantiles("stall", lengths) | simulated)


@rendered.register
def _(buffer: StartupBuffer) -> RenderedAnswer:
    low, high = buffer.value_range
    beyond = "more than is simulated" if np.isinf(high) else format_time(high)
    with_it = rendered(buffer.stalls)
    facts = [
        ("start-up buffer", f"{format_time(buffer.value)} of media time"),
        ("within the error", f"{format_time(low)} to {beyond}"),
        ("for", f"at most {_number(buffer.stalls_per_hour)} stalls per hour"),
        *with_it.facts,
    ]
    record = {
        "question": "startup",
        "value": buffer.value,
        "value_low": low,
        "value_high": high,
        "allowed_stalls_per_hour": buffer.stalls_per_hour,
    }
    return RenderedAnswer(facts, {**record, **with_it.record})


@rendered.register
def _(found: GaplessPlayout) -> RenderedAnswer:
    buffer = found.value.value
    with_it, without = found.gaps(buffer), found.gaps(0.0)
    starts = [found.start_quantile(probability, buffer) for probability in REPORTED_QUANTILES]
    facts = [
        ("playout buffer", f"{with_interval(found.value, format_time)} from the first arrival to the playout"),
        ("with a gap", f"{with_interval(with_it, format_fraction)}, asked for {format_fraction(found.gap_share)}"),
        ("without a buffer", f"{with_interval(without, format_fraction)} have a gap"),
        ("starts after", f"{_in_words(starts)} from the first write to the playout"),
        ("simulated", f"{found.bursts} talk spurts or replies"),
        *_scenario(found),
    ]
    record = {
        "question": "gaps",
        **interval_cells("value", found.value),
        "allowed_gap_share": found.gap_share,
        **interval_cells("gap_share", with_it),
        **interval_cells("gap_share_without_buffer", without),
    }
    return RenderedAnswer(facts, record | _quantiles("start", starts) | {"bursts": found.bursts, **_record(found)})


@rendered.register
def _(audio: UnstoppableAudio) -> RenderedAnswer:
    limit = "not set" if audio.notsent_lowat is None else format_size(audio.notsent_lowat)
    facts = [("playout buffer", format_time(audio.buffer)), ("TCP_NOTSENT_LOWAT", limit), *_scenario(audio)]
    rows: list[Row] = []
    cells: list[list[str]] = []
    for stage in STAGES:
        row: Row = {"stage": stage}
        cell = [stage]
        for probability in REPORTED_QUANTILES:
            seconds, size = audio.seconds(stage, probability), audio.bytes(stage, probability)
            name = quantile_name(probability)
            row |= {**interval_cells(f"seconds_{name}", seconds), **interval_cells(f"bytes_{name}", size)}
            cell.append(f"{format_time(seconds.value)}, {format_size(size.value)}")
        rows.append(row)
        cells.append(cell)
    record = {
        "question": "interruption",
        "buffer": audio.buffer,
        "notsent_lowat": audio.notsent_lowat,
        **_record(audio),
    }
    headings = ["audio", *map(quantile_name, REPORTED_QUANTILES)]
    return RenderedAnswer(facts, record, "stages", rows, headings, cells)


def _in_words(quantiles: Sequence[Interval]) -> str:
    """Return times at `REPORTED_QUANTILES` in words, without their intervals."""
    return ", ".join(
        f"{quantile_name(probability)} {format_time(time.value)}"
        for probability, time in zip(REPORTED_QUANTILES, quantiles, strict=True)
    )


def _quantiles(name: str, quantiles: Sequence[Interval]) -> dict[str, float]:
    """Return times at `REPORTED_QUANTILES` as entries of a record, with their intervals."""
    record: dict[str, float] = {}
    for probability, time in zip(REPORTED_QUANTILES, quantiles, strict=True):
        record |= interval_cells(f"{name}_{quantile_name(probability)}", time)
    return record


def _scenario(found: PlayerAnswer) -> list[tuple[str, str]]:
    """Return the scenario and the expected error as labels and values."""
    return [
        ("scenario", scenario_in_words(found.source, found.path)),
        ("error of delays", in_words(found.expected_error)),
    ]


def _record(found: VideoStalls | GaplessPlayout | UnstoppableAudio) -> dict[str, Any]:
    """Return method, scenario and expected error as entries of a record."""
    return {
        "method": found.method,
        **scenario_record(found.source, found.path),
        **expected_errors(found.expected_error),
    }


def _number(value: float) -> str:
    return f"{value:.3g}"


# Tables of playout buffers by round-trip time and loss: a page to print, Markdown, text, CSV and JSON.

TITLE = "Playout buffer by round-trip time and loss"
DEFINITION = (
    "The buffer is the delay from write to read within which the application's share of packets arrives, less the "
    "one-way delay of the path (half the round-trip time)."
)
MARKS = {"works": "", "uncertain": "?", "fails": "✗", "not carried": "", "no answer": ""}
"""What follows the buffer in a cell, by verdict."""
OUTSIDE = "*"


@dataclass(frozen=True)
class TitledTable:
    """A table of playout buffers, and what it is about."""

    app: str | None  # The application, if there is one
    stack: str  # Congestion control, or the name of the TCP profile
    table: PlayoutTable  # The buffers

    @property
    def title(self) -> str:
        """Application and TCP."""
        return f"{self.app or 'flow'} over {self.stack}"

    @property
    def subtitle(self) -> str:
        """What is sent, and what counts as in time."""
        target = self.table.scenario.target
        assert target is not None
        sent = source_in_words(self.table.scenario.source)
        return f"{sent}; {format_fraction(target.quantile)} within {format_time(target.limit)}"

    @property
    def headings(self) -> list[str]:
        """The heading of the first column, and the losses."""
        return ["RTT", *(f"{format_fraction(cell.path.loss)} loss" for cell in self.table.rows[0])]

    @property
    def lines(self) -> list[tuple[str, list[tuple[str, str, str]]]]:
        """The lines of the matrix: a round-trip time, and class, main text and further text of each cell."""
        return [
            (
                format_time(row[0].path.rtt),
                [(cell.verdict.replace(" ", "-"), _in_rtts(cell), _in_time(cell)) for cell in row],
            )
            for row in self.table.rows
        ]

    def matrix(self, separator: str) -> list[list[str]]:
        """Return the lines of the matrix with one text for each cell; `separator` is between its two parts."""
        return [[rtt, *(separator.join(filter(None, cell[1:])) for cell in cells)] for rtt, cells in self.lines]


def _in_rtts(cell: PlayoutCell) -> str:
    """Return the buffer in round-trip times with its marks, or why there is none."""
    outside = OUTSIDE if cell.outside else ""
    if not math.isfinite(cell.buffer):
        return f"{cell.verdict}{outside}"
    mark = MARKS[cell.verdict]
    return f"{cell.buffer_in_rtts:.2f} RTT{f' {mark}' if mark else ''}{outside}"


def _in_time(cell: PlayoutCell) -> str:
    """Return the buffer with its error; an empty text if there is no buffer."""
    if not math.isfinite(cell.buffer):
        return ""
    if not cell.buffer_error > 0:
        return f"{1e3 * cell.buffer:.0f} ms"
    error = f"{1e3 * cell.buffer_error:.0f}"
    return f"{1e3 * cell.buffer:.0f} ± {'<1' if error == '0' else error} ms"


def notes(titled: Sequence[TitledTable]) -> list[str]:
    """Return the sentences below the tables: what the figures and marks mean that occur in them."""
    cells = [cell for each in titled for row in each.table.rows for cell in row]
    verdicts = {cell.verdict for cell in cells}
    said = [DEFINITION, "± is the error that nine of ten predictions do not exceed."]
    meanings = {
        "fails": "✗ The delay exceeds the application's target.",
        "uncertain": "? The error leaves open whether the target is met.",
        "not carried": "not carried: TCP cannot carry the flow, and the delay grows without end.",
        "no answer": "no answer: " + "; ".join(dict.fromkeys(cell.refusal for cell in cells if cell.refusal)) + ".",
    }
    said += [text for verdict, text in meanings.items() if verdict in verdicts]
    ranges = dict.fromkeys(
        each.table.validated for each in titled if any(cell.outside for row in each.table.rows for cell in row)
    )
    for known in ranges:
        (shortest, longest), (lowest, highest) = known.rtt, known.loss
        said.append(
            f"{OUTSIDE} Outside the range that is validated: round-trip times of {format_time(shortest)} to "
            f"{format_time(longest)}, losses of {format_fraction(lowest)} to {format_fraction(highest)}, packets of "
            f"{known.packet_size[0]:g} to {known.packet_size[1]:g} bytes every {format_time(known.interval[0])} to "
            f"{format_time(known.interval[1])}."
        )
    return said


def to_page(titled: Sequence[TitledTable], command: str) -> str:
    """Return the tables as an HTML page that prints on A4."""
    from tcpdelay.report.html import environment

    template = environment().get_template("playout.html.j2")
    return template.render(title=TITLE, tables=titled, notes=notes(titled), command=command) + "\n"


def to_markdown(titled: Sequence[TitledTable], command: str) -> str:
    """Return the tables in Markdown, with the command that made them."""
    from tcpdelay.report.document import escape

    parts = [f"# {TITLE}"]
    for each in titled:
        columns = [Column(str(place), heading, "text") for place, heading in enumerate(each.headings)]
        rows = [{str(place): text for place, text in enumerate(line)} for line in each.matrix(", ")]
        table = ResultTable("playout", each.title, columns, rows)
        parts += [f"## {escape(each.title)}", str(escape(each.subtitle)), table.to_markdown()]
    parts += ["\n".join(f"- {escape(note)}" for note in notes(titled)), f"```sh\n{command}\n```"]
    return "\n\n".join(parts) + "\n"


def to_text(titled: Sequence[TitledTable]) -> str:
    """Return the tables as aligned text."""
    from rich.text import Text

    tables = [cells_table(each.headings, each.matrix("\n"), f"{each.title}: {each.subtitle}") for each in titled]
    return as_text(*tables, *map(Text, notes(titled)), width=FILE_WIDTH)


def long_table(titled: Sequence[TitledTable]) -> ResultTable:
    """Return a table with a row for each cell, for CSV and JSON, with the units in the names."""
    rows = [_playout_record(each, cell) for each in titled for row in each.table.rows for cell in row]
    return ResultTable("playout", TITLE, [Column(key, key) for key in rows[0]], rows)


def _playout_record(titled: TitledTable, cell: PlayoutCell) -> dict[str, Cell]:
    target = titled.table.scenario.target
    assert target is not None
    return {
        "app": titled.app,
        "stack": titled.stack,
        "rtt_s": cell.path.rtt,
        "loss_fraction": cell.path.loss,
        "quantile_fraction": target.quantile,
        "limit_s": target.limit,
        "delay_s": cell.delay,
        "buffer_s": cell.buffer,
        "buffer_rtts": cell.buffer_in_rtts,
        "buffer_error_s": cell.buffer_error,
        "verdict": cell.verdict,
        "method": cell.method,
        "outside_validated_range": "; ".join(cell.outside),
        "refusal": cell.refusal,
    }
