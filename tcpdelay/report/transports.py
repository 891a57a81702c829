"""A comparison of transports, as table, chart, HTML page and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from tcpdelay.delays import carried_in_words
from tcpdelay.report.charts import (
    BLUE,
    DASHED,
    LABEL_SIZE,
    LINE_WIDTH,
    ORANGE,
    SMALLEST_TIME,
    current_axes,
    note,
    round_ticks,
    tidy,
    time_axis,
)
from tcpdelay.report.document import (
    Cell,
    Column,
    ResultTable,
    as_text,
    attributes,
    facts_table,
    html_table,
    interval_cells,
)
from tcpdelay.report.html import environment, inline_svg
from tcpdelay.report.prediction import scenario_in_words, scenario_record
from tcpdelay.scenario.path import WARNING
from tcpdelay.units import NEVER_SETTLES, NOT_SETTLED, format_fraction, format_rate, format_time, quantile_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tcpdelay.quality.experience import Call
    from tcpdelay.study.transports import Carried, Comparison


CHART_WIDTH, ROW_HEIGHT, CHART_EDGES = 9.2, 0.29, 0.9
"""Sizes of the chart [inches]: its width, the height of a row, and the height above and below the rows."""
BAR_HEIGHT = 0.55
"""Height of a bar, relative to the height of a row."""
TEXT_WIDTH = 140
"""Width of a text that is not printed on a terminal [columns]."""
MOST_DECADES = 1.3
"""Largest delay on the time axis, in decades above the limit; longer bars leave the chart."""
EVERY_PACKET_LOST = "every packet is lost"
"""Reason why nothing arrives over a contender."""


class _SettledColumn(Column):
    """A column that says so where the delays of a contender have not settled; the other columns have a dash."""

    def shown(self, row: Mapping[str, Cell]) -> str:
        """Return the cell of `row`, formatted for people."""
        return super().shown(row) if row["settled"] else NOT_SETTLED


def comparison_table(comparison: Comparison) -> ResultTable:
    """Return all figures of a comparison, one row per contender by rank, in seconds, bit/s and fractions."""
    columns = [
        Column("name", "carried by"),
        Column("rank", "rank", "count"),
        Column("mean", "mean", "time"),
        Column("p50", "p50", "time"),
        _SettledColumn("p95", "p95", "time"),
        Column("p99", "p99", "time"),
        Column("worst", "worst", "time"),
        Column("lost_fraction", "lost", "fraction"),
        _SettledColumn("late_fraction", f"lost or > {format_time(comparison.target.limit)}", "fraction"),
        Column("late_error", "±", "fraction"),
        Column("retransmission_fraction", "resent", "fraction"),
    ]
    if (rated := _call(comparison)) is not None:
        columns.append(Column("mos", f"MOS ({rated.codec.name})", "score"))
    if comparison.others:
        columns.append(Column("taken", "takes", "rate"))
    if any(row.predicted is not None for row in comparison.rows):
        columns.append(Column("predicted_p95", "p95 predicted", "time"))
    return ResultTable(
        "comparison",
        scenario_in_words(comparison.flow, comparison.path),
        columns,
        [{"rank": rank, **_cells(comparison, row)} for rank, row in comparison.ranked()],
        _note(comparison),
    )


def _call(comparison: Comparison) -> Call | None:
    """Return the ratings of a call over the first contender that has them; None if the flow is not a call."""
    return next((rated for row in comparison.rows if (rated := comparison.call(row)) is not None), None)


def table_html(comparison: Comparison) -> str:
    """Return the table of a comparison for notebooks."""
    table = comparison_table(comparison)
    rows = [[column.shown(row) for column in table.columns] for row in table.rows]
    return html_table(table.title, [column.heading for column in table.columns], rows, table.note)


def _note(comparison: Comparison) -> str:
    """Return the explanation of the table."""
    times = dict.fromkeys(map(format_time, (min(row.duration for row in comparison.rows), comparison.duration)))
    until = ", until its rank is settled" if len(times) > 1 else ""
    words = (
        "Ranked by the share of packets that are lost or late, with its statistical error (±, 95 %): contenders that "
        "do not differ by more have one rank. If all packets are late, ranked by the share that arrives at all. "
        f"Each simulated for {' to '.join(times)}{until}. "
        "Delays are those of packets that arrive; lost ones never did, and some were given up on purpose."
    )
    if not all(row.result.sustainable for row in comparison.rows):
        words += " Where delays never settle, the share of lost packets is not known."
    if (rated := _call(comparison)) is not None:
        words += (
            f" MOS: {'approximate ' if rated.approximate else ''}score of a call with {rated.codec.name} that plays "
            f"out each packet {format_time(comparison.target.limit)} after its write (E-model)."
        )
    if (preset := comparison.path_preset) is not None:
        words += f" Path preset {preset.name}, {preset.title}: {WARNING}."
    if comparison.mean_jitter:
        mean = format_time(comparison.mean_jitter)
        words += (
            f" The simulated path has no jitter: {mean}, the mean of the jitter, are a part of its round-trip time."
        )
    if not comparison.others:
        return words
    rate = format_rate(comparison.undisturbed)
    return f'{words} Without the flow, the other flows get {rate}; "takes" is their loss of rate with the flow.'


def _cells(comparison: Comparison, row: Carried) -> dict[str, Cell]:
    result, call = row.result, comparison.call(row)
    late, settled = comparison.missed(row), not comparison.unsettled(row)
    delays = result.delays if result.sustainable and settled else None
    parts = attributes(result, "sender_delay", "network_delay", "receiver_delay")
    # A simulation counts the packets of an endless backlog as lost where it has no room to remember them.
    lost_is_known = settled and result.sustainable and result.offered
    cells: dict[str, Cell] = {
        "name": row.contender.name,
        "title": row.contender.title,
        "sustainable": result.sustainable if settled else None,
        "settled": settled,
        **interval_cells("mean", result.mean_interval),
        "p50": math.nan if delays is None else delays.quantile(0.5),
        **interval_cells("p95", result.p95_interval),
        "p99": math.nan if delays is None else delays.quantile(0.99),
        "worst": math.nan if delays is None else float(delays.values[-1]),
    }
    if not result.sustainable:
        # The simulated delays would only show how long the simulation was.
        cells |= {name: math.inf for name, value in cells.items() if isinstance(value, float)}
    elif not settled:
        cells |= {name: math.nan for name, value in cells.items() if isinstance(value, float)}
    return cells | {
        **interval_cells("p95_difference_to_tcp", comparison.p95_difference(row)),
        **interval_cells("p95_ratio_to_tcp", comparison.p95_ratio(row)),
        "late_fraction": late,
        "late_error": comparison.missed_error(row),
        "lost_fraction": result.lost / result.offered if lost_is_known else math.nan,
        "meets_target": comparison.meets(row),
        "throughput": result.throughput,
        "retransmission_fraction": result.retransmissions / result.segments_sent if result.segments_sent else math.nan,
        **(parts if result.sustainable and settled else dict.fromkeys(parts)),
        "carried_low": result.carried.low,
        "carried_high": result.carried.high,
        "others": row.others if comparison.others else None,
        "taken": comparison.taken(row),
        "mos": None if call is None else call.at_limit.mos,
        "codec": None if call is None else call.codec.name,
        "duration": row.duration,
        "reason": EVERY_PACKET_LOST if _nothing_arrives(comparison, row) else None,
        "predicted_mean": None if row.predicted is None else row.predicted.mean,
        "predicted_p95": None if row.predicted is None else row.predicted.quantile(0.95),
    }


def _nothing_arrives(comparison: Comparison, row: Carried) -> bool:
    """Return whether it is known that no packet of a contender arrives."""
    return row.result.sustainable and not row.result.delivered and not comparison.unsettled(row)


NEXT_TO_TCP = ("quic-stream", "quic-streams", "quic-datagram", "udp")
"""Contenders whose p95 is compared with that of plain TCP in words."""


def tcp_beside_quic(comparison: Comparison) -> list[str]:
    """Return one sentence on each of QUIC's ways and UDP: what TCP costs over it at p95, or the reverse.

    Contenders whose p95 is not known, and all if TCP's is not, have no sentence.
    """
    plain = comparison.rows[0].contender.name
    said = []
    for row in comparison.rows:
        name, difference, ratio = row.contender.name, comparison.p95_difference(row), comparison.p95_ratio(row)
        if name not in NEXT_TO_TCP or math.isnan(difference.value):
            continue
        if math.isnan(difference.low) or difference.low <= 0 <= difference.high:
            said.append(f"At p95, {plain} and {name} do not differ beyond the statistical error.")
            continue
        slower, faster = (name, plain) if difference.value > 0 else (plain, name)
        more = _with_ends([abs(each) for each in difference], format_time)
        times = _with_ends([max(each, 1 / each) for each in ratio], "{:.2f}".format)
        said.append(f"At p95, {slower} takes {more} more than {faster}: {times} times as long.")
    return said


def _with_ends(figures: Sequence[float], formatted: Callable[[float], str]) -> str:
    """Return an estimate and the ends of its interval; without the ends if they look like the estimate."""
    value, low, high = (formatted(each) for each in (figures[0], *sorted(figures[1:])))
    return value if low == value == high else f"{value} ({low} to {high})"


def conclusion(comparison: Comparison) -> str:
    """Return what a comparison shows: how many contenders meet the target, plain TCP, and the best contender."""
    target, plain, (_, best) = comparison.target, comparison.rows[0], comparison.ranked()[0]
    equal = [row for rank, row in comparison.ranked()[1:] if rank == 1]
    meeting = [row for _, row in comparison.ranked() if comparison.meets(row)]
    demand = f"{format_fraction(target.quantile)} of the packets within {format_time(target.limit)}"
    without = "Without the jitter of the path, " if comparison.mean_jitter else ""
    said = [f"{without}{len(meeting)} of {len(comparison.rows)} meet the target, {demand}."]
    missed = format_fraction(comparison.missed(plain))
    verb = "meets" if comparison.meets(plain) else "misses"
    if comparison.unsettled(plain):
        said.append(f"Plain TCP ({plain.contender.name}) is {NOT_SETTLED}.")
    else:
        said.append(f"Plain TCP ({plain.contender.name}) {verb} it: {missed} of the packets are lost or late.")
    if comparison.unsettled(best):
        said.append("No delays have settled.")
    elif comparison.none_on_time(best):
        share = format_fraction(min(best.result.throughput / comparison.flow.mean_bitrate, 1.0))
        said.append(
            f"No way has packets on time; most arrive over {best.contender.name} ({best.contender.title}): {share}."
        )
    elif plain is best:
        said.append("No other way has fewer.")
    elif plain in equal:
        said.append("No other way has fewer beyond the statistical error.")
    else:
        fewest = format_fraction(comparison.missed(best))
        said.append(f"The fewest has {best.contender.name} ({best.contender.title}): {fewest}.")
        if equal:
            names = " and ".join(row.contender.name for row in equal)
            said.append(f"Within the statistical error {names} {'has' if len(equal) == 1 else 'have'} as few.")
    if not comparison.meets(plain):
        over_tcp = [row for row in meeting if row.contender.source.stack == comparison.stack]
        said.append(
            f"Of the ways over the same TCP, {over_tcp[0].contender.name} meets it best."
            if over_tcp
            else "No way over the same TCP is known to meet it."
            if any(
                comparison.unsettled(row) and row.contender.source.stack == comparison.stack for row in comparison.rows
            )
            else "No way over the same TCP meets it."
        )
    if undecided := [row.contender.name for row in comparison.rows if comparison.undecided(row)]:
        verb = "meets" if len(undecided) == 1 else "meet"
        said.append(f"The statistical error leaves open whether {' and '.join(undecided)} {verb} the target.")
    if silent := [row.contender.name for row in comparison.rows if _nothing_arrives(comparison, row)]:
        said.append(f"Nothing arrives over {' and '.join(silent)}: {EVERY_PACKET_LOST}.")
    if unsettled := [row for row in comparison.rows if comparison.unsettled(row)]:
        said.append(_not_settled(comparison, unsettled))
    return " ".join(said)


def _not_settled(comparison: Comparison, unsettled: Sequence[Carried]) -> str:
    """Return the contenders whose delays have not settled, and which share of the rate each carries."""
    names = []
    for row in unsettled:
        carried = row.result.carried
        share = "" if math.isnan(carried.low) else f" (carries {carried_in_words(carried)} of the rate)"
        names.append(row.contender.name + share)
    return (
        f"{NOT_SETTLED.capitalize()} after {format_time(comparison.duration)}, so that the delays still depend on how "
        f"long is simulated: {', '.join(names)}. A longer duration tells more."
    )


def rendered(comparison: Comparison, chosen: Literal["text", "markdown", "html", "json", "csv"]) -> str:
    """Return the comparison in a format."""
    if chosen == "text":
        return to_text(comparison, TEXT_WIDTH)
    if chosen == "csv":
        return comparison_table(comparison).to_csv()
    return {"markdown": to_markdown, "html": to_html, "json": to_json}[chosen](comparison).rstrip("\n") + "\n"


def to_text(comparison: Comparison, width: int) -> str:
    """Return the comparison as text: table, meaning of each name, TCP beside QUIC, and conclusion."""
    from rich.text import Text

    names = facts_table([(row.contender.name, row.contender.title) for row in comparison.rows])
    beside = [Text(sentence) for sentence in tcp_beside_quic(comparison)]
    if beside:
        beside.append(Text(""))
    said = as_text(names, Text(""), *beside, Text(conclusion(comparison)), width=width)
    return f"{comparison_table(comparison).to_text(width)}\n{said}"


def to_markdown(comparison: Comparison) -> str:
    """Return the comparison in Markdown: table, meaning of each name, TCP beside QUIC, and conclusion."""
    table = comparison_table(comparison)
    names = "\n".join(f"- `{row.contender.name}`: {row.contender.title}" for row in comparison.rows)
    beside = "".join(f"- {sentence}\n" for sentence in tcp_beside_quic(comparison))
    return (
        "\n\n".join(
            part.strip("\n") for part in (table.title, table.to_page(), names, beside, conclusion(comparison)) if part
        )
        + "\n"
    )


def to_json(comparison: Comparison) -> str:
    """Return the comparison as JSON: seconds, bytes, bit/s and fractions; null where a value is infinite or unknown."""
    path, target, link = comparison.path, comparison.target, comparison.link
    record: dict[str, Any] = {
        "scenario": {
            **scenario_record(comparison.flow, path),
            **attributes(path, "loss_burst", "bad_time", "bad_loss"),
            "path_preset": None if comparison.path_preset is None else comparison.path_preset.name,
            **attributes(target, "limit", "quantile"),
            "link": None if link is None else link.rate,
            "queue": None if link is None or link.discipline == "policer" else link.limit,
            "discipline": None if link is None else link.discipline,
            "queue_target": None if link is None or not link.managed else link.queue_target,
            "others": [type(source).__name__ for source in comparison.others],
            "undisturbed": comparison.undisturbed if comparison.others else None,
            **attributes(comparison, "duration", "seed", "mean_jitter"),
        },
        "contenders": comparison_table(comparison).to_records(),
        "tcp_beside_quic": tcp_beside_quic(comparison),
        "conclusion": conclusion(comparison),
    }
    return json.dumps(record, indent=2, allow_nan=False)


def to_html(comparison: Comparison) -> str:
    """Return the comparison as a self-contained HTML page."""
    chart = inline_svg(
        lambda ax: plot_comparison(comparison, ax),
        "comparison-chart",
        "Delays by what carries the flow",
        "; ".join(_described(row) for _, row in comparison.ranked()),
        _chart_size(comparison),
    )
    table = comparison_table(comparison)
    template = environment().get_template("comparison.html.j2")
    return template.render(
        heading=table.title,
        note=table.note,
        conclusion=conclusion(comparison),
        beside=tcp_beside_quic(comparison),
        chart=chart,
        columns=[(column.heading, column.kind != "text") for column in table.columns],
        rows=[[column.shown(cells) for column in table.columns] for cells in table.rows],
        meeting=[bool(cells["meets_target"]) for cells in table.rows],
        titles=[(row.contender.name, row.contender.title) for row in comparison.rows],
    )


def _described(row: Carried) -> str:
    """Return the main result of one contender, for the description of the chart."""
    delays = row.result.delays
    if delays is None:
        return f"{row.contender.name}: nothing arrives"
    if not row.result.sustainable:
        return f"{row.contender.name}: the backlog grows for ever"
    if not row.result.settled:
        return f"{row.contender.name}: {NOT_SETTLED}"
    return f"{row.contender.name}: p95 {format_time(delays.quantile(0.95))}"


def comparison_figure(comparison: Comparison) -> Figure:
    """Return the chart of a comparison."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_chart_size(comparison), layout="constrained")
    plot_comparison(comparison, figure.subplots())
    return figure


def _chart_size(comparison: Comparison) -> tuple[float, float]:
    """Return width and height of the chart [inches]."""
    return CHART_WIDTH, CHART_EDGES + ROW_HEIGHT * len(comparison.rows)


def plot_comparison(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Draw the delays of each contender: a bar from the smallest to the 95th percentile, a line on to the 99th."""
    ax = current_axes(ax)
    limit = comparison.target.limit
    label = partial(ax.annotate, xycoords=ax.get_yaxis_transform(), textcoords="offset points", fontsize=LABEL_SIZE)
    tidy(ax)
    ax.set_xscale("log")
    reach = []
    ranked = [row for _, row in comparison.ranked()]
    for place, row in enumerate(ranked):
        delays, late = row.result.delays, comparison.missed(row)
        color = BLUE if comparison.meets(row) else ORANGE
        if not row.result.sustainable:
            label(NEVER_SETTLES, (0.0, place), (4, 0), va="center", color=color)
        elif comparison.unsettled(row):
            label(NOT_SETTLED, (0.0, place), (4, 0), va="center", color=ax.xaxis.label.get_color())
            continue
        elif delays is not None:
            shown = (float(delays.values[0]), *(delays.quantile(q) for q in (0.5, 0.95, 0.99)))
            first, middle, p95, p99 = (max(delay, SMALLEST_TIME) for delay in shown)
            # A bar without length would be invisible.
            start = first / 1.012
            ax.barh(place, p95 * 1.012 - start, left=start, height=BAR_HEIGHT, color=color, linewidth=0)
            ax.plot([p95, p99], [place, place], color=color, linewidth=LINE_WIDTH)
            ax.plot([middle, middle], [place - BAR_HEIGHT / 2, place + BAR_HEIGHT / 2], color="white", linewidth=1.2)
            reach += [start, p99]
        label(format_fraction(late), (1.0, place), (8, 0), va="center", color=color)
    names = [row.contender.name for row in ranked]
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    low, high = min([*reach, limit]) / 1.15, min(max([*reach, limit]) * 1.15, limit * 10**MOST_DECADES)
    ax.set_xlim(low, high)
    round_ticks(ax.xaxis, low, high)
    time_axis(ax.xaxis)
    ax.axvline(limit, color=ax.xaxis.label.get_color(), linewidth=1.0, linestyle=DASHED)
    note(ax, f"limit {format_time(limit)}", (limit, -0.6), (0, 4), "center", str(ax.xaxis.label.get_color()))
    label("lost or late", (1.0, -0.6), (8, 4), va="bottom")
    ax.set_xlabel(f"delay: bar to {quantile_name(0.95)} with the median, line to {quantile_name(0.99)}")
    return ax
