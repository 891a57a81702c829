"""Analyses of connections and captures of the testbed, as records, text and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tcpdelay.report.result_table import attributes, facts_text, interval_cells
from tcpdelay.scenario.target import REPORTED_QUANTILES
from tcpdelay.units import NEVER_SETTLES, format_fraction, format_rate, format_time, quantile_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tcpdelay.capture.flow_capture import FlowCapture
    from tcpdelay.capture.pcap.connection_analysis import ConnectionAnalysis
    from tcpdelay.delays import DelayDistribution
    from tcpdelay.quality.experience import Call
    from tcpdelay.statistics import Interval


@dataclass(frozen=True)
class Expected:
    """What the models say of a measured connection."""

    # The predicted delays for the measured path and flow; None if there is no prediction.
    delays: DelayDistribution | None = None
    # The 95th percentile in simulations as long as the capture: median, lowest and highest [s]; None if not known.
    by_chance: Interval | None = None
    # measured_call, predicted_call: The ratings of the call with the measured and with the predicted delays; None if
    # the application is no call.
    measured_call: Call | None = None
    predicted_call: Call | None = None
    # Packets unlike those of the application, and measured values outside the range in which the model has been
    # checked.
    notes: tuple[str, ...] = ()


UNKNOWN = Expected()
REASONS_IF_LONGER = (
    "Likely reasons: losses that come together, a queue on the path, a sender whose writes wait (Nagle's algorithm, a "
    "full send buffer), or another congestion control."
)
REASONS_IF_SHORTER = "Likely reasons: losses that are not random, or another congestion control."


def record(analysis: ConnectionAnalysis, expected: Expected = UNKNOWN) -> dict[str, Any]:
    """Return the analysis as one record, in seconds, bytes and fractions; a value that is not known is None."""
    scales = analysis.window_scale or (None, None)
    clocks, delays = analysis.clocks, analysis.delays
    low, high = analysis.loss_interval
    row: dict[str, Any] = {
        **attributes(analysis, "sender", "receiver"),
        "captured_at": " and ".join(analysis.captured_at),
        **attributes(analysis, "duration", "payload", "data_segments", "acknowledgements", "rtt", "rtt_base"),
        "rtt_samples": analysis.rtt_count,
        **attributes(analysis, "rtt_kind", "rtt_measured", "loss"),
        "loss_low": low,
        "loss_high": high,
        **attributes(analysis, "sent", "lost", "loss_counted", "retransmissions", "spurious_retransmissions"),
        **attributes(analysis, "reordered", "duplicates", "duplicate_acks", "mss", "mss_known", "sack", "timestamps"),
        "window_scale_sender": scales[0],
        "window_scale_receiver": scales[1],
        **attributes(analysis, "delayed_ack", "several_acknowledged", "carried_acks", "largest_flight"),
        **attributes(analysis, "smallest_receive_window", "packet_size", "interval", "fixed_size", "fixed_interval"),
        **attributes(analysis, "messages", "unfinished", "one_way_delay"),
        **{f"clock_{name}": clocks and getattr(clocks, name) for name in ("offset", "skew", "residual")},
        **attributes(analysis, "delay_kind", "delay_measured"),
        "mean": delays and delays.mean,
        "jitter": delays and delays.jitter,
        **{quantile_name(q): delays and delays.quantile(q) for q in REPORTED_QUANTILES},
        **_expected_record(expected),
        "notes": "; ".join((*analysis.notes, *expected.notes)),
    }
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}


def _expected_record(expected: Expected) -> dict[str, Any]:
    """Return the predicted figures, and the scores of a call at the limit, as entries of a record."""
    delays, measured, predicted = expected.delays, expected.measured_call, expected.predicted_call
    return {
        "predicted_mean": delays and delays.mean,
        "p95_lowest_by_chance": expected.by_chance and expected.by_chance.low,
        "p95_highest_by_chance": expected.by_chance and expected.by_chance.high,
        **{f"predicted_{quantile_name(q)}": delays and delays.quantile(q) for q in REPORTED_QUANTILES},
        "mos": measured and measured.at_limit.mos,
        "predicted_mos": predicted and predicted.at_limit.mos,
    }


def analysis_text(analysis: ConnectionAnalysis, expected: Expected = UNKNOWN) -> str:
    """Return the analysis as text, with the predicted figures after the measured ones."""
    facts = [*_path_rows(analysis), *_tcp_rows(analysis), *_flow_rows(analysis), *_delay_rows(analysis, expected)]
    heading = (
        f"{analysis.sender} -> {analysis.receiver}, captured at the {' and at the '.join(analysis.captured_at)}: "
        f"{analysis.payload} bytes in {format_time(analysis.duration)}\n"
    )
    notes = "".join(f"note: {note}\n" for note in (*analysis.notes, *expected.notes))
    return heading + disagreement(analysis, expected) + facts_text(facts) + notes


def disagreement(analysis: ConnectionAnalysis, expected: Expected) -> str:
    """Return a line that the measured delays contradict the model; empty if chance explains the difference."""
    by_chance = expected.by_chance
    if by_chance is None or analysis.delays is None:
        return ""
    from tcpdelay.study.validation.predictions import SAME_DELAY

    measured = analysis.delays.quantile(0.95)
    if by_chance.low - SAME_DELAY <= measured <= by_chance.high + SAME_DELAY:
        return ""
    shorter = measured < by_chance.low
    return (
        f"The measured 95th percentile, {format_time(measured)}, is {'shorter' if shorter else 'longer'} than in "
        f"simulations of this path, {format_time(by_chance.low)} to {format_time(by_chance.high)}. "
        f"{REASONS_IF_SHORTER if shorter else REASONS_IF_LONGER}\n"
    )


def _time(seconds: float) -> str:
    """Return a time [s] with its unit, or "not known" for NaN."""
    return "not known" if math.isnan(seconds) else format_time(seconds)


def _round_trip(analysis: ConnectionAnalysis) -> str:
    """Return the round-trip time: a mean with the smallest, the path's from both captures, or a bound."""
    if math.isnan(analysis.rtt):
        return "not known"
    if analysis.rtt_kind == "mean":
        return f"{_time(analysis.rtt)}, at least {_time(analysis.rtt_base)}"
    if analysis.clocks is not None:
        # The smallest delays of both ways contain no time for which an end waited.
        return _time(analysis.rtt)
    return f"{_time(analysis.rtt)} at {'least' if analysis.rtt_kind == 'smallest' else 'most'}"


def _one_way(analysis: ConnectionAnalysis) -> str:
    """Return the one-way delay: measured by one clock, or half of the round-trip time."""
    if analysis.clocks is not None and analysis.clocks.same_clock:
        return _time(analysis.one_way_delay)
    if math.isnan(analysis.one_way_delay):
        return "not known"
    bound = " at most" if analysis.rtt_kind == "upper bound" else " at least"
    return f"{_time(analysis.one_way_delay)}{'' if analysis.clocks else bound}, if the way back takes as long"


def _path_rows(analysis: ConnectionAnalysis) -> list[tuple[str, str]]:
    low, high = analysis.loss_interval
    rows = [
        ("round-trip time", _round_trip(analysis)),
        ("measured as", analysis.rtt_measured),
        ("one-way delay", _one_way(analysis)),
        (
            "loss",
            f"{format_fraction(analysis.loss)} ({analysis.lost} of {analysis.sent} packets; "
            f"95 % confidence {format_fraction(low)} to {format_fraction(high)})",
        ),
        ("counted as", analysis.loss_counted),
    ]
    if analysis.reordered is not None:
        rows.append(("reordered", f"{analysis.reordered} segments overtaken, {analysis.duplicates} duplicates"))
    clocks = analysis.clocks
    if clocks is not None and clocks.same_clock:
        rows.append(("clocks", "one clock at both ends"))
    elif clocks is not None:
        rows.append(
            (
                "clocks",
                f"the receiver's clock is ahead by {clocks.offset:.6f} s and gains {1e6 * clocks.skew:.3g} us/s; "
                f"the two directions disagree by {1e6 * clocks.residual:.3g} us",
            )
        )
    return rows


def _tcp_rows(analysis: ConnectionAnalysis) -> list[tuple[str, str]]:
    scales = analysis.window_scale
    known = "" if analysis.mss_known else " at least; the handshake is not in the capture"
    window = analysis.smallest_receive_window
    return [
        (
            "retransmitted",
            f"{analysis.retransmissions} packets, {analysis.spurious_retransmissions} of them spurious",
        ),
        ("duplicate ACKs", f"{analysis.duplicate_acks}"),
        ("segment size", f"{analysis.mss} B{known}"),
        (
            "options",
            f"SACK {'on' if analysis.sack else 'off'}, timestamps {'on' if analysis.timestamps else 'off'}, window "
            f"scales {'not known' if scales is None else f'{scales[0]} and {scales[1]}'}",
        ),
        (
            "delayed ACKs",
            f"{'yes' if analysis.delayed_ack else 'no'}: {format_fraction(analysis.several_acknowledged)} "
            "acknowledge two or more segments",
        ),
        ("ACKs on data", format_fraction(analysis.carried_acks)),
        ("largest flight", f"{analysis.largest_flight} B"),
        ("receive window", "not known" if math.isnan(window) else f"{window:.0f} B at least"),
    ]


def _flow_rows(analysis: ConnectionAnalysis) -> list[tuple[str, str]]:
    if math.isnan(analysis.interval):
        return [("messages", f"{analysis.messages}, too few to measure their interval")]
    size, interval = ("always" if fixed else "in the mean" for fixed in (analysis.fixed_size, analysis.fixed_interval))
    rate = format_rate(8 * analysis.packet_size / analysis.interval) if analysis.interval else "not known"
    return [
        ("messages", f"{analysis.messages}, {analysis.unfinished} not delivered within the capture"),
        ("packet size", f"{analysis.packet_size:.6g} B {size}"),
        ("interval", f"{format_time(analysis.interval)} {interval}, which is {rate}"),
    ]


def _delay_rows(analysis: ConnectionAnalysis, expected: Expected) -> list[tuple[str, str]]:
    delays = analysis.delays
    if delays is None or analysis.delay_kind is None:
        return [("delay", f"not known: {analysis.delay_measured}")]
    figures: list[tuple[str, Callable[[DelayDistribution], float]]] = [
        ("mean", lambda found: found.mean),
        ("jitter", lambda found: found.jitter),
        *((f"{format_fraction(q)} within", partial(_quantile, q)) for q in REPORTED_QUANTILES),
    ]
    rows = [("delay", f"{analysis.delay_kind}: {analysis.delay_measured}")]
    for name, figure in figures:
        predicted = "" if expected.delays is None else f", predicted {format_time(figure(expected.delays))}"
        rows.append((name, format_time(figure(delays)) + predicted))
    if (by_chance := expected.by_chance) is not None:
        from tcpdelay.study.validation.predictions import MOST_MESSAGES, SIMULATED_CAPTURES

        low, high = format_time(by_chance.low), format_time(by_chance.high)
        each = f"{SIMULATED_CAPTURES} simulations of {min(analysis.messages, MOST_MESSAGES)} messages"
        rows.append(("95 % by chance", f"within {low} to {high}, in {each}"))
    if expected.measured_call is not None:
        at_limit = expected.measured_call.at_limit
        call = expected.predicted_call
        predicted = "" if call is None else f", predicted {call.at_limit.mos:.2f}"
        played = format_time(at_limit.playout_delay)
        rows.append(
            ("MOS", f"{at_limit.mos:.2f}{predicted}, of {expected.measured_call.codec.name} played after {played}")
        )
    return rows


def _quantile(probability: float, delays: DelayDistribution) -> float:
    return delays.quantile(probability)


def capture_record(capture: FlowCapture) -> dict[str, Any]:
    """Return the figures of a capture of the testbed as one record, in seconds and fractions."""
    from tcpdelay.statistics import BATCHES, mean_interval, quantile_interval

    if capture.offered < BATCHES:
        raise ValueError(f"{capture.name}: holds {capture.offered} packets; intervals take at least {BATCHES}")
    delays = capture.delays()
    first = capture.runs[0]
    row: dict[str, Any] = {
        "capture": capture.name,
        "backend": first.backend,
        "kernel": first.kernel,
        "hz": first.hz,
        "offered": capture.offered,
        "not_read": sum(int((run.delay < 0).sum()) for run in capture.runs),
    }
    for name, interval in (
        ("mean", mean_interval(delays)),
        *((f"p{100 * q:g}", quantile_interval(delays, q)) for q in (0.5, 0.95, 0.99)),
    ):
        row |= interval_cells(name, interval)
    row |= _kinds_record(capture)
    # The flows of one run share the path's queues, so each run counts once.
    of_runs = {run.run: run for run in capture.runs}.values()
    dropped = sum(run.packets["data_dropped"] for run in of_runs)
    sent = sum(run.packets["data_sent"] for run in of_runs)
    row |= {
        "configured_loss": capture.settings["loss"],
        "measured_loss": dropped / max(sent + dropped, 1),
        "dropped": dropped,
        "retransmitted": sum(run.counters.get("RetransSegs", 0) for run in of_runs),
        "timeouts": sum(run.counters.get("TCPTimeouts", 0) for run in of_runs),
        "longest_stall": max((int(run.stall_length.max(initial=0)) for run in capture.runs), default=0) * 1e-6,
    }
    return row


def _kinds_record(capture: FlowCapture) -> dict[str, Any]:
    """Return the figures of each kind of message, NaN if it has too few; nothing for messages of one kind."""
    import numpy as np

    from tcpdelay.delays import DelayDistribution
    from tcpdelay.statistics import BATCHES, quantile_interval

    entries = ("messages_by_kind", "mean_by_kind", "p95_by_kind", "p95_low_by_kind", "p95_high_by_kind")
    row: dict[str, dict[str, float]] = {}
    for kind, parts in capture.delays_by_kind().items():
        count = sum(part.size for part in parts)
        delays = DelayDistribution.from_samples(np.concatenate(parts), capture.path.forward_delay)
        low, high = quantile_interval(parts, 0.95)[1:] if count >= BATCHES else (math.nan, math.nan)
        for entry, value in zip(entries, (count, delays.mean, delays.quantile(0.95), low, high), strict=True):
            row.setdefault(entry, {})[kind] = value
    return row


def captures_text(records: Sequence[dict[str, Any]]) -> str:
    """Return the figures of captures of the testbed as text."""
    return "".join(map(_capture_text, records))


def _capture_text(row: dict[str, Any]) -> str:
    facts = [
        (
            f"  {name}",
            f"{format_time(row[name])} ({format_time(row[f'{name}_low'])} to {format_time(row[f'{name}_high'])})",
        )
        for name in ("mean", "p50", "p95", "p99")
    ]
    facts += [(f"  {kind}", _kind_text(row, kind)) for kind in row.get("messages_by_kind", {})]
    lines = [
        f"  {row['offered']} packets offered, {row['not_read']} not read before the end",
        f"  loss {format_fraction(row['measured_loss'])} ({row['dropped']} segments dropped; configured "
        f"{format_fraction(row['configured_loss'])}), {row['retransmitted']} retransmitted, "
        f"{row['timeouts']} timeouts",
    ]
    if row["longest_stall"] > 0:
        lines.append(f"  the guest stalled, for {format_time(row['longest_stall'])} at the longest")
    heading = f"{row['capture']}: {row['backend']}, Linux {row['kernel']}, {row['hz']} Hz\n"
    return heading + facts_text(facts) + "\n".join(lines) + "\n"


def _kind_text(row: dict[str, Any], kind: str) -> str:
    """Return the figures of one kind of message as text."""
    low, high = row["p95_low_by_kind"][kind], row["p95_high_by_kind"][kind]
    between = "" if math.isnan(low) else f" ({format_time(low)} to {format_time(high)})"
    mean, p95 = format_time(row["mean_by_kind"][kind]), format_time(row["p95_by_kind"][kind])
    return f"{row['messages_by_kind'][kind]} messages, mean {mean}, p95 {p95}{between}"


def draw_curves(curves: Sequence[tuple[str, DelayDistribution]], title: str) -> Figure:
    """Return a chart of P(delay > d), with one curve for each distribution."""
    from matplotlib.figure import Figure

    from tcpdelay.report.charts import plot_distribution

    figure = Figure(layout="constrained")
    axes = figure.subplots()
    for label, distribution in curves:
        if math.isfinite(distribution.values[0]):
            plot_distribution(distribution, axes, kind="survival")
            axes.lines[-1].set_label(label)
        elif len(curves) > 1:
            axes.plot([], [], " ", label=f"{label}: {NEVER_SETTLES}")
        else:
            # The chart is then only the message that TCP cannot carry the flow.
            plot_distribution(distribution, axes, kind="survival")
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize="small", frameon=False)
    axes.set_title(title, fontsize="medium")
    return figure


def draw_captures(captures: Sequence[FlowCapture]) -> Figure:
    """Return the chart of captures of the testbed; a single capture is drawn with the prediction for its path."""
    from tcpdelay.models.predict import predict_delay

    alone = len(captures) == 1
    curves = [("measured" if alone else capture.name, capture.delay_distribution()) for capture in captures]
    settings = captures[0].settings
    if alone and settings["bottleneck_rate"] is None:
        if settings["application"] == "cbr":
            curves.append(("predicted", predict_delay(captures[0].flow, captures[0].path)))
        elif settings["application"] == "source":
            source = captures[0].trace(period=settings["duration"])
            curves.append(("predicted", predict_delay(source, captures[0].path, method="simulation")))
    return draw_curves(curves, captures[0].name if alone else "")


def draw_analyses(found: Sequence[tuple[ConnectionAnalysis, DelayDistribution]]) -> Figure:
    """Return the chart of the measured and the predicted delays of each direction of a connection."""
    curves = []
    for analysis, predicted in found:
        assert analysis.delays is not None
        way = f"from {analysis.sender}: " if len(found) > 1 else ""
        curves += [(f"{way}measured, {analysis.delay_kind}", analysis.delays), (f"{way}predicted", predicted)]
    first = found[0][0]
    return draw_curves(curves, f"{first.sender} {'and' if len(found) > 1 else 'to'} {first.receiver}")
