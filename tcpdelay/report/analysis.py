"""What was measured, as records, text and charts: connections, captures of the testbed, watched paths."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from tcpdelay.report.document import UNKNOWN as DASH
from tcpdelay.report.document import attributes, facts_table, facts_text, interval_cells, with_interval
from tcpdelay.scenario.scenario import REPORTED_QUANTILES, Target
from tcpdelay.units import (
    NEVER_SETTLES,
    format_delay,
    format_duration,
    format_fraction,
    format_rate,
    format_size,
    format_time,
    quantile_name,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from prometheus_client import CollectorRegistry
    from rich.table import Table

    from tcpdelay.advice.guideline import Observation, WatchedPath
    from tcpdelay.advice.judged_delays import CapturedDelays
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
    captured = captured_delays(analysis, expected)
    contradiction = disagreement(captured) if captured is not None else ""
    return heading + (contradiction and f"{contradiction}\n") + facts_text(facts) + notes


def captured_delays(analysis: ConnectionAnalysis, expected: Expected) -> CapturedDelays | None:
    """Return the measured 95th percentile, and its range by chance; None if one of them is not known."""
    from tcpdelay.advice.judged_delays import CapturedDelays

    if expected.by_chance is None or analysis.delays is None:
        return None
    return CapturedDelays(analysis.delays.quantile(0.95), expected.by_chance, analysis.messages)


def disagreement(captured: CapturedDelays) -> str:
    """Return in words that the measured delays contradict the model; empty if chance explains the difference."""
    from tcpdelay.study.validation.predictions import SAME_DELAY

    measured, (_, low, high) = captured.p95, captured.by_chance
    if low - SAME_DELAY <= measured <= high + SAME_DELAY:
        return ""
    shorter = measured < low
    return (
        f"The measured 95th percentile, {format_time(measured)}, is {'shorter' if shorter else 'longer'} than in "
        f"simulations of this path, {format_time(low)} to {format_time(high)}. "
        f"{REASONS_IF_SHORTER if shorter else REASONS_IF_LONGER}"
    )


def by_chance_row(captured: CapturedDelays) -> tuple[str, str]:
    """Return the range of the 95th percentile by chance as a row of a table."""
    from tcpdelay.study.validation.predictions import MOST_MESSAGES, SIMULATED_CAPTURES

    low, high = format_time(captured.by_chance.low), format_time(captured.by_chance.high)
    each = f"{SIMULATED_CAPTURES} simulations of {min(captured.messages, MOST_MESSAGES)} messages"
    return "95 % by chance", f"within {low} to {high}, in {each}"


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
        ("retransmitted", f"{analysis.retransmissions} packets, {analysis.spurious_retransmissions} of them spurious"),
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
    rows = [("delay", f"{analysis.delay_kind}: {analysis.delay_measured}")]
    measured, predicted = _figures(delays), {} if expected.delays is None else _figures(expected.delays)
    for name, figure in measured.items():
        rows.append((name, f"{figure}, predicted {predicted[name]}" if predicted else figure))
    if (captured := captured_delays(analysis, expected)) is not None:
        rows.append(by_chance_row(captured))
    if expected.measured_call is not None:
        at_limit = expected.measured_call.at_limit
        call = expected.predicted_call
        also = "" if call is None else f", predicted {call.at_limit.mos:.2f}"
        played = format_time(at_limit.playout_delay)
        rows.append(("MOS", f"{at_limit.mos:.2f}{also}, of {expected.measured_call.codec.name} played after {played}"))
    return rows


def _figures(delays: DelayDistribution) -> dict[str, str]:
    """Return mean, jitter and quantiles by name, with their units."""
    quantiles = {f"{format_fraction(q)} within": format_time(delays.quantile(q)) for q in REPORTED_QUANTILES}
    return {"mean": format_time(delays.mean), "jitter": format_time(delays.jitter), **quantiles}


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


# What is known of a watched path: as a record, as a line, as a table for a terminal, and for Prometheus.

_PROMETHEUS = {
    "rtt": ("rtt_seconds", "Mean round-trip time of the window."),
    "rtt_low": ("rtt_low_seconds", "Lower end of the 95 % interval of the round-trip time."),
    "rtt_high": ("rtt_high_seconds", "Upper end of the 95 % interval of the round-trip time."),
    "sent": ("window_packets_sent", "Segments or packets sent in the window."),
    "lost": ("window_packets_lost", "Segments or packets lost in the window."),
    "loss": ("loss_ratio", "Loss of the window."),
    "loss_low": ("loss_low_ratio", "Lower end of the 95 % interval of the loss."),
    "loss_high": ("loss_high_ratio", "Upper end of the 95 % interval of the loss."),
    "bitrate": ("acknowledged_bits_per_second", "Rate of acknowledged payload."),
    "backlog": ("backlog_bytes", "Payload in the send buffer that is not acknowledged."),
    "unsent": ("unsent_bytes", "Payload in the send buffer that has not been sent."),
    "congestion_window": ("congestion_window_segments", "Congestion window."),
    "jitter": ("jitter_seconds", "Interarrival jitter that the receiver reports."),
    "predicted_mean": ("predicted_mean_seconds", "Predicted mean delay over TCP."),
    "predicted_quantile": ("predicted_quantile_seconds", "Predicted quantile of the target over TCP."),
    "predicted_low": ("predicted_quantile_low_seconds", "This quantile at the best end of the path's intervals."),
    "predicted_high": ("predicted_quantile_high_seconds", "This quantile at the worst end of the path's intervals."),
    "late_fraction": ("predicted_late_ratio", "Predicted share of packets later than the limit."),
    "measured_mean": ("measured_mean_seconds", "Mean delay by the backlog of the connection."),
    "measured_quantile": ("measured_quantile_seconds", "Quantile of the target by the backlog of the connection."),
    "limit": ("limit_seconds", "Limit of the target."),
    "quantile": ("target_ratio", "Share of packets that must arrive within the limit."),
}
"""Name and help of the metric of each number in a record."""
_PREFIX = "tcpdelay_"


def watch_record(seen: Observation, target: Target) -> dict[str, Any]:
    """Return what is known as one record, in seconds, bytes, bit/s and fractions; None if it is not known."""
    estimate, sample, outlook, measured = seen.estimate, seen.sample, seen.outlook, seen.measured
    loss_low, loss_high = (None, None) if estimate is None else estimate.loss_interval
    rtt_low, rtt_high = (None, None) if estimate is None else estimate.rtt_interval or (None, None)
    best, worst = (None, None) if outlook is None else outlook.quantile_range
    delays = None if outlook is None else outlook.answer.distribution
    error = None if outlook is None else outlook.answer.expected_error
    record: dict[str, Any] = {
        "time": sample.time,
        "elapsed": seen.elapsed,
        "source": sample.source,
        "rtt": estimate and estimate.rtt,
        "rtt_low": rtt_low,
        "rtt_high": rtt_high,
        "sent": estimate and estimate.sent,
        "lost": estimate and estimate.lost,
        "loss": estimate and estimate.loss,
        "loss_low": loss_low,
        "loss_high": loss_high,
        "bitrate": seen.rate,
        "backlog": sample.backlog,
        "unsent": sample.unsent,
        "congestion_window": sample.congestion_window,
        "jitter": sample.jitter,
        "predicted_mean": delays and delays.mean,
        "predicted_quantile": delays and delays.quantile(target.quantile),
        "predicted_low": best,
        "predicted_high": worst,
        **{f"predicted_{quantile_name(each)}": delays and delays.quantile(each) for each in REPORTED_QUANTILES},
        "late_fraction": delays and delays.late_fraction(target.limit),
        "expected_error_p95_p90": error and error.p90,
        **interval_cells("measured_mean", None if measured is None else measured.mean),
        **interval_cells("measured_quantile", None if measured is None else measured.quantile),
        "limit": target.limit,
        "quantile": target.quantile,
        "verdict": seen.verdict,
        "advice": seen.advice,
    }
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in record.items()}


def json_line(event: str, record: Mapping[str, Any]) -> str:
    """Return a record as one line of JSON that begins with its event; an infinite number becomes null."""
    return json.dumps({"event": event, **to_jsonable_python(dict(record), inf_nan_mode="null")}, allow_nan=False)


def prometheus_metrics(record: Mapping[str, Any]) -> CollectorRegistry:
    """Return what is known of a record as metrics for Prometheus; verdict and advice are gauges of 1 with a label."""
    # Imported here, because only --prometheus needs it.
    from prometheus_client import CollectorRegistry, Gauge

    found = CollectorRegistry()
    for key, (name, meaning) in _PROMETHEUS.items():
        if record.get(key) is not None:
            Gauge(_PREFIX + name, meaning, registry=found).set(record[key])
    for key, meaning in (("verdict", "The verdict on TCP."), ("advice", "The advice for the flow.")):
        if key in record:
            Gauge(_PREFIX + key, meaning, [key], registry=found).labels(record[key]).set(1)
    return found


def watch_facts(seen: Observation, watched: WatchedPath) -> list[tuple[str, str]]:
    """Return what is known as facts for people: names and texts with units and intervals."""
    from tcpdelay.statistics import Interval

    target, estimate, sample = watched.target, seen.estimate, seen.sample
    name = quantile_name(target.quantile)
    facts = [("watched for", format_duration(max(seen.elapsed, 0.0)))]
    if estimate is None:
        facts.append(("path", "not known yet: no packet arrived, or no round-trip time is known"))
    else:
        times = Interval(estimate.rtt, *(estimate.rtt_interval or (estimate.rtt, estimate.rtt)))
        loss = with_interval(Interval(estimate.loss, *estimate.loss_interval), format_fraction)
        facts += [
            ("round-trip time", with_interval(times, format_time)),
            ("loss", f"{estimate.lost} of {estimate.sent}: {loss}"),
        ]
    if seen.rate is not None:
        facts.append(("acknowledged", format_rate(seen.rate)))
    if sample.backlog is not None:
        unsent = f", {format_size(sample.unsent)} not sent yet" if sample.unsent else ""
        facts.append(("backlog", f"{format_size(sample.backlog)}{unsent}"))
    if sample.jitter is not None:
        facts.append(("jitter at the receiver", format_time(sample.jitter)))
    facts.append((f"predicted {name} over TCP", _predicted(seen, target)))
    if seen.measured is not None:
        facts.append((f"measured {name}", with_interval(seen.measured.quantile, format_time)))
        facts.append(("measured mean", with_interval(seen.measured.mean, format_time)))
    facts.append(("target", f"{format_fraction(target.quantile)} within {format_time(target.limit)}"))
    facts.append(("verdict on TCP", seen.verdict))
    facts.append(("advice", seen.advice))
    return facts


def _predicted(seen: Observation, target: Target) -> str:
    """Return the predicted quantile, with those at the ends of the path's intervals."""
    if seen.outlook is None:
        return DASH
    delays = seen.outlook.answer.distribution
    if delays is None:
        return f"no answer: {seen.outlook.answer.refusal}"
    ends = seen.outlook.quantile_range
    value = format_delay(delays.quantile(target.quantile))
    shown = [DASH if math.isnan(end) else format_delay(end) for end in ends]
    return value if len(set(shown)) == 1 else f"{value} ({shown[0]} to {shown[1]})"


def watch_table(seen: Observation, watched: WatchedPath) -> Table:
    """Return what is known as a table for a terminal."""
    return facts_table(watch_facts(seen, watched))


def watch_line(seen: Observation, watched: WatchedPath) -> str:
    """Return what is known in one line."""
    facts = dict(watch_facts(seen, watched))
    clock = datetime.fromtimestamp(seen.sample.time).strftime("%H:%M:%S")
    name = quantile_name(watched.target.quantile)
    if seen.estimate is None:
        return f"{clock}  {facts['path']}; {seen.verdict}"
    parts = [
        f"RTT {facts['round-trip time']}",
        f"loss {facts['loss']}",
        f"predicted {name} {facts[f'predicted {name} over TCP']}",
    ]
    if seen.measured is not None:
        parts.append(f"measured {name} {facts[f'measured {name}']}")
    return f"{clock}  {'; '.join(parts)}; {seen.verdict}; advice: {seen.advice}"


def summary_record(seen: Observation, watched: WatchedPath, samples: int) -> dict[str, Any]:
    """Return the summary of a watch as a record: what is known at its end, and what happened before."""
    return {"samples": samples, "changes_of_advice": watched.changes, **watch_record(seen, watched.target)}


def summary_text(seen: Observation, watched: WatchedPath, samples: int) -> str:
    """Return the summary of a watch for people."""
    facts = [("samples", str(samples)), *watch_facts(seen, watched), ("changes of advice", str(watched.changes))]
    return facts_text(facts)
