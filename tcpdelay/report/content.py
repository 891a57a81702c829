"""The content of a report in reading order: sentences and tables of formatted values, without any layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tcpdelay.advice.guideline import NOT_FOR_SOURCES, Findings, SourceFindings
from tcpdelay.ask import assumptions
from tcpdelay.declare import declarations, effective_fields
from tcpdelay.report import phrases
from tcpdelay.report.analysis import by_chance_row, disagreement
from tcpdelay.report.document import Advice, Content, Section, Table
from tcpdelay.scenario.messages import EmpiricalSizes, LognormalSizes, ParetoSizes
from tcpdelay.scenario.path import WARNING, Path, PathPreset
from tcpdelay.scenario.scenario import REPORTED_QUANTILES
from tcpdelay.scenario.source_settings import KINDS
from tcpdelay.scenario.stack import transport_name
from tcpdelay.study.largest import FAR
from tcpdelay.units import (
    NEVER_SETTLES,
    TOO_FEW,
    format_delay,
    format_fraction,
    format_fraction_range,
    format_known_time,
    format_rate,
    format_time,
    quantile_name,
)

if TYPE_CHECKING:
    from tcpdelay.advice.judged_delays import JudgedDelays, TransportComparison
    from tcpdelay.advice.recommendation import Place, Recommendation
    from tcpdelay.capture.estimate import PathEstimate
    from tcpdelay.models.verdict import Verdict
    from tcpdelay.quality.experience import Call, VideoPlayout
    from tcpdelay.scenario.scenario import Target
    from tcpdelay.scenario.source import Flow, Source
    from tcpdelay.statistics import Interval


# In words, whether another transport than TCP would help.

TARGET_IS: dict[Verdict, str] = {"works": "met", "uncertain": "uncertain", "fails": "missed"}
"""Verdicts on a target in a table."""
_DECIDED: dict[Verdict, str] = {"works": "meets", "uncertain": "may meet", "fails": "misses"}
HOW_COMPARED = (
    "QUIC streams carry each message on a stream of its own. QUIC datagrams are not sent again: they are late if they "
    "are lost. Each is simulated by RFC 9002 on this path, with NewReno unless BBR is named. Nine of ten predictions "
    "of TCP have at most the error that the table gives; the errors of QUIC are statistical (95 %)."
)


def change_of_transport(compared: TransportComparison, target: Target) -> tuple[str, ...]:
    """Return in sentences whether QUIC would help in place of TCP, and by how much."""
    name, over_tcp = quantile_name(target.quantile), compared.quantile.value
    if not compared.others:
        return (f"Whether QUIC would help is not known: {compared.refusal}.",)
    helping = [other for other in compared.others if other.helps]
    if not helping:
        unchanged = f"neither meets a target that TCP misses nor shortens {name} by more than the errors"
        if compared.refusal:
            names = " and ".join(other.name for other in compared.others)
            return (f"{names} would not help: each {unchanged}. {phrases.sentence(compared.refusal)}", HOW_COMPARED)
        return (f"QUIC would not help: it {unchanged}.", HOW_COMPARED)
    if compared.verdict == "works":
        first = "TCP meets the target; QUIC would be faster."
    elif any(other.verdict == "works" for other in helping):
        first = "QUIC would help."
    else:
        may_meet = any(other.verdict == "uncertain" for other in helping)
        first = f"QUIC would shorten the delay, but {'may not meet' if may_meet else 'not enough for'} the target."
    sentences = [first]
    for other in helping:
        delay = format_time(other.quantile.value)
        less = f", {format_time(over_tcp - other.quantile.value)} less than over TCP" if math.isfinite(over_tcp) else ""
        sentences.append(f"{other.name}: {name} is {delay}{less}, which {_DECIDED[other.verdict]} the target.")
    sentences += [phrases.sentence(compared.refusal)] if compared.refusal else []
    return " ".join(sentences), HOW_COMPARED


def error_of(delay: Interval) -> str:
    """Return the distance from a delay [s] to the farther end of its interval; nothing if it is not known.

    Where nearly all simulated delays are equal, so are both ends: the simulation then does not show the error.
    """
    farther = max(delay.high - delay.value, delay.value - delay.low)
    return f"±{format_time(farther)}" if math.isfinite(farther) and farther > 0 else ""


NOT_COMPUTED = "not computed"
CURVE_ROWS = 8
"""Largest number of rows in the table of the delay at other losses."""
LOSS_PATTERN = {"random": "random losses", "correlated": "correlated losses, as in a full drop-tail queue"}
LOSS_FIELDS = ("loss", "loss_pattern", "loss_burst", "bad_time", "bad_loss")
"""Fields of a path in the row of the losses."""
SHOWN_FIELDS = (*LOSS_FIELDS, "rtt", "one_way_delay", "bottleneck")
"""Fields of a path that every report shows."""
BOTTLENECK = {"packets": "queue limited in packets", "bytes": "queue limited in bytes"}


def scenario_table(found: JudgedDelays) -> Table:
    """Return the scenario: a flow of constant rate, the path, the target and the transport."""
    path, target = found.path, found.target
    one_way = format_time(path.forward_delay)
    rows = (
        *([_flow_row(found.flow)] if isinstance(found, Findings) else []),
        ("Round-trip time", f"{format_time(path.rtt)}, of which {one_way} from sender to receiver"),
        ("Loss", f"{format_fraction(path.loss)}, {losses(path)}"),
        *other_fields(path),
        ("Bottleneck", BOTTLENECK[path.bottleneck]),
        ("Target", f"{format_fraction(target.quantile)} of the {found.messages} within {format_time(target.limit)}"),
        ("Transport", phrases.stack_words(found.stack)),
    )
    return Table(("Scenario", "Value"), rows)


def _flow_row(flow: Flow) -> tuple[str, str]:
    return "Flow", f"{flow.packet_size} B every {format_time(flow.interval)}, {format_rate(flow.bitrate)}"


def other_fields(path: Path) -> list[tuple[str, str]]:
    """Return the fields of the path that differ from their defaults and have no row of their own in the scenario."""
    words = {
        name: field.written(getattr(path, name))
        for name, field in declarations(type(path)).items()
        if name not in SHOWN_FIELDS and getattr(path, name) != field.default
    }
    if "jitter" in words:
        mean, most = format_time(path.mean_jitter), format_time(path.largest_jitter)
        words["jitter"] = f"up to {most} per segment, {mean} in the mean"
    return [(name.replace("_", " ").capitalize(), value) for name, value in words.items()]


def losses(path: Path) -> str:
    """Return the loss pattern in words."""
    if path.bad_time > 0:
        lost, duration = format_fraction(path.bad_loss), format_time(path.bad_time)
        return f"{lost} of the segments in bad states of {duration} in the mean"
    if path.loss_burst > 1:
        return f"in bursts of {path.loss_burst:g} segments in the mean"
    return LOSS_PATTERN[path.loss_pattern]


def measured_table(guideline: JudgedDelays, estimate: PathEstimate) -> Table:
    """Return the measurement and its confidence intervals."""
    rows = [
        ("Measured by", estimate.source),
        ("Round-trip time", phrases.measured_rtt(estimate)),
        ("Loss", phrases.measured_loss(estimate, guideline.path.loss)),
    ]
    if estimate.rtt_min is not None and estimate.rtt_max is not None:
        rows.append(("Smallest, largest", f"{format_time(estimate.rtt_min)}, {format_time(estimate.rtt_max)}"))
    if estimate.timeout_beyond_rtt is not None:
        rows.append(("Retransmission timeout", f"{format_time(estimate.rtt + estimate.timeout_beyond_rtt)}"))
    if estimate.mss is not None:
        rows.append(("Segment size", f"{estimate.mss} B"))
    if estimate.congestion_window is not None:
        rows.append(("Congestion window", f"{estimate.congestion_window} segments"))
    if guideline.captured is not None:
        rows += [("95 % within", format_time(guideline.captured.p95)), by_chance_row(guideline.captured)]
    return Table(("Measured", "Value"), tuple(rows))


def _in_words(described: type, values: Mapping[str, Any]) -> str:
    """Return values of a class's declared fields in words."""
    declared = declarations(described)
    written = {name: _sizes(value) or declared[name].written(value) for name, value in values.items()}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in written.items())


def _sizes(value: object) -> str:
    """Return a distribution of sizes in words; an empty text for any other value."""
    if not isinstance(value, LognormalSizes | ParetoSizes):
        return f"measured, {value.mean_size:.0f} B in the mean" if isinstance(value, EmpiricalSizes) else ""
    given = ", ".join(f"{name} {getattr(value, name):g}" for name in declarations(type(value)))
    return f"{type(value).__name__.removesuffix('Sizes').lower()} ({given})"


def preset_section(preset: PathPreset, path: Path) -> Section:
    """Return the section on the preset from which a path is made."""
    changed = {name: getattr(path, name) for name, value in preset.values.items() if getattr(path, name) != value}
    instead = f"; given instead: {_in_words(type(path), changed)}" if changed else ""
    return Section(
        "preset",
        "Where the path comes from",
        (
            f"The path is the preset {preset.name}, {preset.title}{instead}. Take care: {WARNING}.",
            f"Not modelled: {preset.not_modelled}.",
        ),
        (Table(("Value", "Why", "Source"), tuple(preset_rows(preset, path))),),
    )


def ranges_in_words(preset: PathPreset) -> str:
    """Return the values that paths of a preset's kind have, from the best to the worst."""
    declared = declarations(Path)
    ranges = [
        f"{name.replace('_', ' ')} {declared[name].written(best)} to {declared[name].written(worst)}"
        for name, (best, worst) in preset.ranges.items()
    ]
    return f"Paths of the kind {preset.name} have {', '.join(ranges)} ({preset.ranges_from})."


def preset_rows(preset: PathPreset, path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the values of a preset, why they are chosen, and the source; `path` only gives their declarations."""
    for basis in preset.basis:
        values = _in_words(type(path), {name: preset.values[name] for name in basis.fields})
        yield values, basis.statement, f"{basis.source} ({basis.date})" if basis.source else "none"


def delays_table(guideline: JudgedDelays) -> Table:
    """Return mean, jitter and quantiles; the row of the target's quantile is emphasised."""
    distribution, target = guideline.distribution, guideline.target
    rows = [
        ("mean", format_time(distribution.mean), "from write to in-order read"),
        ("jitter", format_time(distribution.jitter), "standard deviation of the delay"),
    ]
    if math.isinf(distribution.mean):
        lost = float(distribution.weights[np.isinf(distribution.values)].sum())
        rows = [("lost", format_fraction(lost), "datagrams that never arrive")]
    for q in sorted({*REPORTED_QUANTILES, target.quantile}):
        arrived = f"{format_fraction(q)} arrive within this time"
        if q == target.quantile:
            emphasis = len(rows)
            arrived += f"; the limit is {format_time(target.limit)}"
        rows.append((quantile_name(q), format_known_time(distribution.known_quantile(q)), arrived))
    late, allowed = format_fraction(guideline.late_fraction), phrases.allowed_lateness(guideline)
    rows.append(("late", late, f"come later than {format_time(target.limit)}{allowed}"))
    return Table(("Delay", "Value", "What it is"), tuple(rows), numeric=(1,), emphasis=emphasis)


def call_table(call: Call) -> Table:
    """Return the score of a call, with the target's limit and, if the call is usable, with the best playout delay."""
    rows = []
    for name, quality in (("at the limit", call.at_limit), *([("best", call.best)] if call.usable else [])):
        late = format_fraction(quality.late_fraction)
        rows.append((name, format_time(quality.playout_delay), late, phrases.score(call, quality)))
    return Table(("Playout", "Delay", "Late", "MOS"), tuple(rows), numeric=(1, 2, 3))


def video_table(video: VideoPlayout) -> Table:
    """Return how a video plays."""
    if math.isinf(video.stalls_per_minute):
        stalls, length = "never plays", "for ever"
    else:
        stalls, length = f"{video.stalls_per_minute:.2g} per minute", format_time(video.mean_stall)
    rows = (
        ("Start-up", format_time(video.startup_delay), "from the first write to the first picture"),
        (
            "Late packets",
            format_fraction(video.late_packets),
            "also the share of time in which the picture stands still",
        ),
        ("Stalls", stalls, "at most, if the player catches up after each stall"),
        ("Length", length, "mean length of a stall"),
    )
    return Table(("Video", "Value", "What it is"), rows, numeric=(1,))


def margins_table(guideline: JudgedDelays) -> Table:
    """Return the margins of loss, round-trip time and bitrate."""
    rows = []
    for margin in guideline.margins:
        edge = phrases.format_edge(margin)
        if margin.edge is not None and margin.method != guideline.answer.method:
            edge += f" ({margin.method})"
        now = phrases.format_quantity(margin.quantity, margin.now)
        rows.append((phrases.QUANTITY[margin.quantity], now, edge, phrases.room(margin, guideline.works)))
    return Table(("Quantity", "Here", "Works up to", "Margin"), tuple(rows), numeric=(1, 2))


def ranges_table(guideline: JudgedDelays) -> Table:
    """Return the range in which the expected error places each margin."""
    rows = tuple(
        (phrases.QUANTITY[margin.quantity], *phrases.within_error(margin.quantity, *margin.within_error))
        for margin in guideline.margins
        if margin.within_error is not None
    )
    return Table(("Within the error", "Works up to", "Fails from"), rows, numeric=(1, 2))


def loss_table(guideline: JudgedDelays) -> Table:
    """Return the target's quantile at a few losses around the scenario's loss."""
    curve, limit = guideline.loss_curve, guideline.target
    places = sorted({round(place) for place in np.linspace(0, curve.loss.size - 1, min(CURVE_ROWS, curve.loss.size))})
    rows = tuple(
        (format_fraction(loss), format_time(delay), "met" if limit.is_met_by(delay) else "missed")
        for loss, delay in zip(curve.loss[places].tolist(), curve.quantile[places].tolist(), strict=True)
    )
    return Table(("With a loss of", quantile_name(limit.quantile), "Target"), rows, numeric=(0, 1))


def parts_table(guideline: JudgedDelays) -> Table:
    """Return the parts of the mean delay."""
    parts, mean = guideline.parts, guideline.mean
    named = (
        ("Network", parts.network, f"one way, without {transport_name(guideline.stack)}"),
        ("Backlog", parts.backlog, "waiting in the send buffer while the window is too small"),
        ("Head of line", parts.head_of_line, "waiting at the receiver for a packet that was lost"),
        ("Timeouts", parts.timeouts, "waiting in the send buffer because of a retransmission timeout"),
    )
    rows = tuple(
        (name, format_time(delay), format_fraction(delay / mean if mean > 0 else 0.0), meaning)
        for name, delay, meaning in named
        if name != "Timeouts" or guideline.tells_timeouts
    )
    return Table(("Part", "Mean", "Share", "What it is"), rows, numeric=(1, 2))


def load_table(guideline: Findings) -> Table:
    """Return the load of the flow, relative to the rate that TCP can carry."""
    rows = (
        (
            "Time with a backlog",
            NOT_COMPUTED if guideline.simulated_because else format_fraction(guideline.backlogged_time_fraction),
            "packets wait in the send buffer",
        ),
        ("Fair TCP rate", format_rate(guideline.fair_rate), "what a long transfer of TCP Reno gets, by formula"),
        (
            "Utilization",
            format_fraction(guideline.utilization),
            f"bitrate over fair rate: {phrases.utilization(guideline)}",
        ),
        (
            "Largest rate",
            phrases.format_edge(guideline.largest_sustainable_rate),
            f"largest rate that this {transport_name(guideline.stack)} carries, by the model",
        ),
    )
    return Table(("Load", "Value", "What it is"), rows, numeric=(1,))


def playout_table(guideline: Findings) -> Table:
    """Return the playout delays that hide single losses."""
    rows = tuple(
        (buffer.masks, buffer.formula, format_time(buffer.delay), format_fraction(buffer.late_fraction))
        for buffer in guideline.playout
    )
    return Table(("Masks", "Playout delay", "Here", "Still late"), rows, numeric=(2, 3))


def playout_error(guideline: Findings) -> tuple[str, ...]:
    """Return in a sentence the late packets with each playout delay that the expected error allows, if it matters."""
    allowed = {format_time(buffer.delay): format_fraction_range(buffer.late_range) for buffer in guideline.playout}
    if all(buffer.late_range[0] == buffer.late_range[1] for buffer in guideline.playout):
        return ()
    cases = "; ".join(f"{late} late after {delay}" for delay, late in allowed.items())
    return (f"The expected error allows {cases}.",)


def validity_table(guideline: Findings) -> Table:
    """Return the range of inputs in which the model was checked."""
    valid, flow, path = guideline.validity, guideline.flow, guideline.path

    def size(value: float) -> str:
        return f"{value:.0f} B"

    inputs = (
        ("Round-trip time", path.rtt, valid.rtt, format_time),
        ("Loss", path.loss, valid.loss, format_fraction),
        ("Packet size", flow.packet_size, valid.packet_size, size),
        ("Interval", flow.interval, valid.interval, format_time),
    )
    rows = tuple(
        (name, f"{shown(low)} to {shown(high)}", shown(value), "inside" if low <= value <= high else "outside")
        for name, value, (low, high), shown in inputs
    )
    return Table(("Input", "Checked", "Here", "Range"), rows, numeric=(2,))


PLAYOUT_REMARK = (
    "A buffer that delays playout by this much hides one such loss; the share that is still late is predicted."
)
LOAD_REMARK = (
    "The fair TCP rate and the largest rate need not agree: the fair rate is a published formula for TCP Reno with "
    "delayed ACKs, which only the rule of thumb uses; the largest rate is the model's, for the transport of this "
    "report."
)
NOT_TO_DO: dict[Place, str] = {
    "little gain": "Little or no gain here",
    "already so": "Already so",
    "not computed": "Not computed",
}
"""Titles of the rules with nothing to do."""


def _without_delays(guideline: JudgedDelays) -> str:
    """Return in a sentence why a report has no delays."""
    carrier = transport_name(guideline.stack)
    if guideline.answer.answered:
        return (
            f"The delay {NEVER_SETTLES}: {carrier} cannot carry this flow on this path. It grows for as long as the "
            "flow sends, so mean, quantiles and playout buffers have no meaning here."
        )
    return (
        "The simulation has not settled: a longer simulation has other delays, because the load is close to the rate "
        f"that {carrier} carries. Mean, quantiles and playout buffers are not known here."
    )


def content(found: Findings | SourceFindings) -> Content:
    """Return the content of the report on findings."""
    explanation = phrases.verdict(found)
    source: list[Section] = []
    experience: list[Section] = []
    playout: list[Section] = []
    if isinstance(found, SourceFindings):
        source = [Section("source", "What is sent", tables=(_source_table(found.source),))]
    else:
        experience, playout = _experience(found), _playout_section(found)
        explanation += map(phrases.sentence, _assumptions(found))
        explanation += [phrases.expected_error(found)] if found.answer.answered else []
    sections = [
        _advice_section(found),
        *_transport_section(found),
        Section("scenario", "Scenario", tables=(scenario_table(found),)),
        *source,
        *_path_sections(found),
        _delays_section(found),
        *experience,
        _margins(found),
        *_parts_section(found),
        *playout,
        *_alternatives_section(found),
        _rules_section(found),
        _trust(found),
    ]
    return Content(
        verdict=found.verdict,
        headline=phrases.headline(found),
        explanation=tuple(explanation),
        key_figures=key_figures(found),
        sections=tuple(sections),
        transport=transport_name(found.stack),
    )


def _path_sections(found: JudgedDelays) -> list[Section]:
    """Return the sections on the preset of the path, and on its measurement, if there are such."""
    sections = []
    if found.path_preset is not None:
        sections.append(preset_section(found.path_preset, found.path))
    if found.estimate is not None:
        contradiction = disagreement(found.captured) if found.captured is not None else ""
        paragraphs = (contradiction,) if contradiction else ()
        table = measured_table(found, found.estimate)
        sections.append(Section("measured", "What was measured", paragraphs, (table,)))
    return sections


def _delays_section(found: Findings | SourceFindings) -> Section:
    """Return the section on the delays, and on those of each kind of a source's messages, or why there are none."""
    if found.endless:
        return Section("delays", "Delays", (_without_delays(found),))
    if isinstance(found, Findings) or not found.by_kind:
        return Section("delays", "Delays", tables=(delays_table(found),))
    return Section("delays", "Delays", _remark_on_kinds(found), (delays_table(found), _kinds_table(found)))


def _parts_section(found: Findings | SourceFindings) -> list[Section]:
    """Return the section on the parts of the mean delay, and on the load of a flow of constant rate."""
    # Lost datagrams make the mean delay infinite, which then has no parts.
    parts = (parts_table(found),) if math.isfinite(found.mean) else ()
    if isinstance(found, Findings):
        title = "Load of the flow" if found.endless else "Where the delay comes from"
        return [Section("parts", title, (LOAD_REMARK,), (*parts, load_table(found)))]
    return [Section("parts", "Where the delay comes from", tables=parts)] if parts else []


def _playout_section(found: Findings) -> list[Section]:
    """Return the section on the playout delays that hide single losses; nothing without delays or such a delay."""
    if found.endless or not found.playout:
        return []
    remarks = PLAYOUT_REMARK, *playout_error(found)
    return [Section("playout", "Playout buffers", remarks, (playout_table(found),))]


def _assumptions(found: JudgedDelays) -> tuple[str, ...]:
    """Return in words the assumptions for the fields that the model ignored."""
    return assumptions(found.answer.method, found.ignored)


def _margins(found: Findings | SourceFindings) -> Section:
    """Return the margin of each quantity, and the delay at other losses."""
    remark, tables = "Each margin holds if the other quantities do not change.", [margins_table(found)]
    if isinstance(found, SourceFindings):
        remark += (
            " Another bitrate changes the sizes of the messages, not their times. Each value is simulated with "
            f"{found.compared} messages, all with the same random numbers; margins are searched to 1 %."
        )
        if all(margin.quantity != "bitrate" for margin in found.margins):
            remark += " This class of sources cannot be scaled, so there is no margin of the bitrate."
    ranges = ranges_table(found)
    if ranges.rows:
        remark += " “Within the error” has the values that work, or fail, even with the expected error of the model."
        tables.append(ranges)
    if any(margin.is_far and margin.within_error is None for margin in found.margins):
        remark += f" A simulated margin that is {FAR:g} or more times the present value has no range, which takes long."
    curve = found.loss_curve
    tables += [loss_table(found)] if curve.loss.size else []
    paragraphs = [remark]
    if curve.critical is not None:
        critical = format_fraction(curve.critical)
        paragraphs.append(f"{transport_name(found.stack)} cannot carry the flow with a loss of {critical} or more.")
    return Section("margins", "Margins", tuple(paragraphs), tuple(tables))


def _experience(guideline: Findings) -> list[Section]:
    """Return the quality of a call or a video, if the application is one of these."""
    sections = []
    if guideline.call is not None:
        remarks = phrases.call(guideline.call)
        sections.append(Section("call", "Quality of the call", remarks, (call_table(guideline.call),)))
    if guideline.video is not None:
        sections.append(Section("video", "How the video plays", tables=(video_table(guideline.video),)))
    return sections


def _alternatives_section(guideline: JudgedDelays) -> list[Section]:
    """Return the predictions at the ends of the measured intervals, and of the preset's kind; nothing without both."""
    if not guideline.alternatives:
        return []
    preset = guideline.path_preset
    remarks = () if preset is None else (ranges_in_words(preset),)
    rows = [
        (
            case.label,
            format_time(case.rtt),
            format_fraction(case.loss),
            NOT_COMPUTED if math.isnan(case.quantile) else format_delay(case.quantile),
            "met" if case.meets_target else NOT_COMPUTED if math.isnan(case.quantile) else "missed",
        )
        for case in guideline.alternatives
    ]
    columns = ("Case", "RTT", "Loss", quantile_name(guideline.target.quantile), "Limit")
    table = Table(columns, tuple(rows), numeric=(1, 2, 3))
    title = "If the path is not as measured" if preset is None else "Other paths of this kind"
    return [Section("alternatives", title, remarks, (table,))]


def _advice_section(guideline: Findings | SourceFindings) -> Section:
    target, rules, carrier = guideline.target, guideline.recommendations, transport_name(guideline.stack)
    advice = tuple(_advice(rule, target, carrier) for rule in rules if rule.place == "do")
    if advice:
        bases = sorted({rule.effect.basis for rule in rules if rule.place == "do" and rule.effect is not None})
        models = [f"“{basis}”" for basis in bases if basis in ("chain", "simulation")]
        verb = "are" if len(models) > 1 else "is"
        computed = f"{' and '.join(models)} {verb} computed for this scenario, before and after, " if models else ""
        opening = (
            f"The largest effect on {quantile_name(target.quantile)} comes first; effects under a condition come last. "
            f"Each effect is for one change alone: {computed}“up to” is a bound that the protocol sets."
            f"{_remark_on_effects(guideline)}"
        )
        if not (guideline.works or any(_reaches(rule, target) for rule in rules)):
            opening += " No single change is computed to meet the target."
    else:
        opening = "There is nothing to do: no rule has a computed gain here."
    return Section("advice", "Do this" if advice else "What to do", (opening,), advice=advice)


def _transport_section(guideline: JudgedDelays) -> list[Section]:
    """Return the section on a change of the transport; none over QUIC and the TCP of 2008."""
    compared = guideline.transports
    if compared is None:
        return []
    target, words = guideline.target, change_of_transport(compared, guideline.target)
    rows = [("TCP", compared.quantile, compared.late_fraction, compared.verdict)]
    rows += [(other.name, other.quantile, other.late_fraction, other.verdict) for other in compared.others]
    table = Table(
        ("Transport", quantile_name(target.quantile), "Error", "Late", "Target"),
        tuple(
            (name, format_time(delay.value), error_of(delay), format_fraction(late), TARGET_IS[verdict])
            for name, delay, late, verdict in rows
        ),
        numeric=(1, 2, 3),
    )
    if any(math.isfinite(other.quantile.value) and not error_of(other.quantile) for other in compared.others):
        words += ("Where no error is given, nearly all simulated delays are equal, and its size is not known.",)
    return [Section("transport", "Another transport", words, (table,) if compared.others else ())]


def _rules_section(guideline: JudgedDelays) -> Section:
    """Return for all other rules why there is nothing to do."""
    target, rules, carrier = guideline.target, guideline.recommendations, transport_name(guideline.stack)
    folded = (
        (title, tuple(phrases.why_not_to_do(rule, target, carrier) for rule in rules if rule.place == place))
        for place, title in NOT_TO_DO.items()
    )
    return Section("rules", "Other rules", folded=tuple((title, points) for title, points in folded if points))


def _trust(found: Findings | SourceFindings) -> Section:
    """Return the expected error, what it does not cover, and the remaining notes."""
    said, assumed = [phrases.expected_error_in_full(found)], _assumptions(found)
    tables: tuple[Table, ...] = ()
    if isinstance(found, SourceFindings):
        said.append(f"Left out, because they are for a flow of constant rate: {', '.join(NOT_FOR_SOURCES)}.")
        notes = (*found.notes, *assumed)
    else:
        said.append(phrases.sentence(f"the model was checked against {found.validity.source}"))
        # The table shows which inputs are outside the range; the explanation of the verdict has the assumptions.
        known = (*found.validity.exceeded_by(found.flow, found.path), *assumed)
        notes, tables = tuple(note for note in found.notes if note not in known), (validity_table(found),)
    points = tuple(map(phrases.sentence, notes))
    return Section("trust", "How far to trust this", tuple(said), tables, points=points)


def key_figures(found: JudgedDelays) -> tuple[tuple[str, str], ...]:
    """Return labels and values of the most important figures: quantile, limit, late packets, and a call's score."""
    target, call = found.target, getattr(found, "call", None)
    delay = "grows for ever" if math.isinf(found.quantile) else phrases.settled(format_time, found.quantile)
    limit = format_time(target.limit)
    return (
        (f"{quantile_name(target.quantile)} delay", delay),
        ("limit", limit),
        (f"later than {limit}", phrases.settled(format_fraction, found.late_fraction)),
        *([(f"MOS, played after {limit}", phrases.score(call, call.at_limit))] if call is not None else []),
    )


def _reaches(rule: Recommendation, target: Target) -> bool:
    """Return whether a rule to follow is computed to meet the target, or meets its share after a longer playout."""
    found = rule.effect
    if rule.place != "do" or found is None or found.with_rule is None:
        return False
    return found.quantity == "late fraction" or target.is_met_by(found.with_rule)


def _advice(rule: Recommendation, target: Target, carrier: str) -> Advice:
    return Advice(
        title=rule.title,
        status=phrases.STATUS[rule.status],
        reason=phrases.sentence(rule.reason),
        condition=rule.condition,
        effect=phrases.effect(rule.effect, target, carrier),
        setting=rule.setting,
        elsewhere=(("macOS", rule.macos), ("Windows", rule.windows), ("Browser", rule.browser)),
        evidence=rule.evidence,
    )


# What is said of sources whose rate is not constant.


def _remark_on_effects(found: Findings | SourceFindings) -> str:
    """Return in a sentence from which delay the effects start, if the delays of the report are a source's chain's."""
    if isinstance(found, Findings) or found.answer.method != "chain":
        return ""
    name = quantile_name(found.target.quantile)
    return f" The simulated {name} is {format_delay(found.unchanged)} here, the chain's {format_delay(found.quantile)}."


def _source_table(source: Source) -> Table:
    named = effective_fields(source) if type(source) in KINDS.values() else {}
    settings = f"{type(source).__name__.lower()}: {_in_words(type(source), named)}" if named else repr(source)
    kinds = f"; kinds: {', '.join(source.kinds)}" if len(source.kinds) > 1 else ""
    rows = (
        ("Source", settings),
        ("Bitrate", f"{format_rate(source.mean_bitrate)} in the mean"),
        ("Busiest second", f"{format_rate(source.peak_bitrate)}, in the first ten minutes"),
        ("Messages", f"{source.message_rate:.3g} per second, {source.mean_size:.0f} B in the mean{kinds}"),
    )
    return Table(("Source", "Value"), rows)


def _kinds_table(found: SourceFindings) -> Table:
    target = found.target
    shares = sorted({0.5, 0.95, target.quantile})
    rows = []
    for kind, delays in found.by_kind.items():
        shown = (format_known_time(found.quantile_of_kind(kind, share)) for share in shares)
        late = format_fraction(delays.late_fraction(target.limit))
        rows.append((kind, format_time(delays.mean), *shown, late))
    columns = ("Kind", "Mean", *map(quantile_name, shares), f"Later than {format_time(target.limit)}")
    return Table(columns, tuple(rows), numeric=tuple(range(1, len(columns))))


def _remark_on_kinds(found: SourceFindings) -> tuple[str, ...]:
    """Return in a sentence why the quantile of some kind of message is missing; nothing if none is missing."""
    quantiles = [found.quantile_of_kind(kind, found.target.quantile) for kind in found.by_kind]
    if not any(map(math.isnan, quantiles)):
        return ()
    name = quantile_name(found.target.quantile)
    return (f"“{TOO_FEW}”: the simulation has fewer than ten messages of this kind beyond {name}.",)
