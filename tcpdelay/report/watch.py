"""What is known of a watched path: as a record, as a line, as a table for a terminal, and for Prometheus."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from tcpdelay.report.result_table import UNKNOWN, facts_table, interval_cells, with_interval
from tcpdelay.scenario.target import REPORTED_QUANTILES, Target
from tcpdelay.statistics import Interval
from tcpdelay.units import (
    format_delay,
    format_duration,
    format_fraction,
    format_rate,
    format_size,
    format_time,
    quantile_name,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from rich.table import Table

    from tcpdelay.advice.watched_path import Observation, WatchedPath

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
        return UNKNOWN
    delays = seen.outlook.answer.distribution
    if delays is None:
        return f"no answer: {seen.outlook.answer.refusal}"
    ends = seen.outlook.quantile_range
    value = format_delay(delays.quantile(target.quantile))
    shown = [UNKNOWN if math.isnan(end) else format_delay(end) for end in ends]
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
    width = max(len(name) for name, _ in facts)
    return "".join(f"{name:{width}}  {value}\n" for name, value in facts)
