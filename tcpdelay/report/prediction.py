"""A prediction as a record, as text and as a chart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from tcpdelay.declare import declarations, effective_fields
from tcpdelay.report.result_table import UNBROKEN, as_text, facts_table
from tcpdelay.scenario.source import Flow, is_exact
from tcpdelay.scenario.sources.message_stream import TYPICAL_WRITE_JITTER
from tcpdelay.scenario.sources.source_settings import source_parameters
from tcpdelay.scenario.target import REPORTED_QUANTILES
from tcpdelay.units import (
    format_fraction,
    format_fraction_range,
    format_known_time,
    format_rate,
    format_time,
    quantile_name,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tcpdelay.ask import NotSettledError
    from tcpdelay.delays import DelayDistribution, ExpectedError
    from tcpdelay.scenario.path import Path
    from tcpdelay.scenario.sources.message_stream import Source
    from tcpdelay.scenario.target import Target


def scenario_record(source: Source, path: Path) -> dict[str, Any]:
    """Return source and path as entries of a record, in seconds, bytes, bit/s and fractions.

    A source whose rate is not constant has the means, and its parameters.
    """
    sent: dict[str, Any] = {
        "source": source_parameters(source),
        "packet_size": source.mean_size,
        "interval": source.mean_interval,
        "bitrate": source.mean_bitrate,
    }
    if isinstance(source, Flow):
        sent = {**effective_fields(source), "bitrate": source.bitrate}
    return {"rtt": path.rtt, "loss": path.loss, **sent}


def lateness_in_words(source: Source) -> str:
    """Return how late a source writes, as the end of a phrase; nothing if it writes as programs usually do.

    Examples
    --------
    >>> lateness_in_words(Flow(174, 0.020)), lateness_in_words(Flow(174, 0.020, write_jitter=0))
    ('', ', written exactly on time')
    """
    if is_exact(source):
        return ", written exactly on time"
    usual = source.write_jitter in (0.0, TYPICAL_WRITE_JITTER)
    return "" if usual else f", write jitter {format_time(source.write_jitter)}"


def source_in_words(source: Source) -> str:
    """Return a source in words.

    Examples
    --------
    >>> source_in_words(Flow(174, 0.020))
    '174 bytes every 20 ms (69.6 kbit/s)'
    >>> source_in_words(Flow(174, 0.020, write_jitter=0.005))
    '174 bytes every 20 ms (69.6 kbit/s), write jitter 5 ms'
    """
    late = lateness_in_words(source)
    if isinstance(source, Flow):
        return f"{source.packet_size} bytes every {format_time(source.interval)} ({format_rate(source.bitrate)}){late}"
    mean, peak = format_rate(source.mean_bitrate), format_rate(source.peak_bitrate)
    return f"{type(source).__name__.lower()} of {mean} in the mean, {peak} in the busiest second{late}"


def scenario_in_words(source: Source, path: Path) -> str:
    """Return in words the source, and the path with all fields that differ from their defaults.

    Examples
    --------
    >>> from tcpdelay.scenario import Flow, Path
    >>> scenario_in_words(Flow(174, 0.020), Path(rtt=0.070, loss=0.01, jitter=0.015))
    '174 bytes every 20 ms (69.6 kbit/s), round-trip time 70 ms, loss 1 %, jitter 15 ms'
    """
    declared = declarations(type(path))
    special = [
        f", {field.name.replace('_', ' ')} {declared[field.name].written(getattr(path, field.name))}"
        for field in fields(path)
        if field.default is not MISSING and getattr(path, field.name) != field.default
    ]
    sent, loss = source_in_words(source), format_fraction(path.loss)
    return f"{sent}, round-trip time {format_time(path.rtt)}, loss {loss}{''.join(special)}"


def expected_errors(error: ExpectedError | None) -> dict[str, Any]:
    """Return the expected error of a prediction as entries of a record, in fractions; None if it is not known."""
    row: dict[str, Any] = {
        "expected_error_source": error and error.source,
        "expected_error_cases": error and error.cases,
        "expected_error_quantile": error and error.quantile,
        "expected_error_sampling": error and error.sampling,
    }
    for quantity, spread in (("p95", error), ("mean", error and error.mean_delay)):
        for statistic in ("median", "mean", "p90"):
            size = math.nan if spread is None else float(getattr(spread, statistic))
            row[f"expected_error_{quantity}_{statistic}"] = None if math.isnan(size) else size
    return row


def ignored_in_words(ignored: Mapping[str, str], method: str) -> list[tuple[str, str]]:
    """Return the fields that a model ignored, as a fact for people; an empty list if there is no such field.

    Examples
    --------
    >>> ignored_in_words({"window_validation": "on"}, "chain")
    [('ignored', 'window validation (the chain assumes on)')]
    """
    named = [f"{name.replace('_', ' ')} (the {method} assumes {assumed})" for name, assumed in ignored.items()]
    return [("ignored", ", ".join(named))] if named else []


def prediction_record(
    source: Source, path: Path, target: Target, distribution: DelayDistribution, simulated_because: str = ""
) -> dict[str, Any]:
    """Return scenario and prediction as one record, in seconds, bytes, bit/s and fractions.

    `simulated_because` says why a simulation replaces the chain; empty if it does not.
    """
    from tcpdelay.ask import settled_record

    return {
        **scenario_record(source, path),
        "limit": target.limit,
        "quantile": target.quantile,
        **_figures(target, distribution),
        **_kinds_record(target, distribution),
        **settled_record(None),
        "method": distribution.method,
        "simulated_because": simulated_because or None,
        "ended_by_clock": distribution.ended_by_clock,
        **expected_errors(distribution.expected_error_of(target.quantile)),
        "ignored": dict(distribution.ignored),
    }


def quantile_in_words(distribution: DelayDistribution, share: float) -> str:
    """Return the delay within which a share of the messages arrives.

    Examples
    --------
    >>> from tcpdelay.delays import DelayDistribution
    >>> delays = DelayDistribution.from_samples([0.05] * 200, one_way_delay=0.05)
    >>> quantile_in_words(delays, 0.95), quantile_in_words(delays, 0.99)
    ('95 % within 50 ms', '99 %: too few messages')
    """
    delay = distribution.known_quantile(share)
    return f"{format_fraction(share)}{':' if math.isnan(delay) else ' within'} {format_known_time(delay)}"


def _kinds_record(target: Target, distribution: DelayDistribution) -> dict[str, Any]:
    """Return the target's quantile by kind of message as an entry of a record; nothing for messages of one kind."""
    by_kind = _by_kind(distribution)
    quantiles = {kind: delays.known_quantile(target.quantile) for kind, delays in by_kind.items()}
    return {"target_quantile_by_kind": quantiles} if by_kind else {}


def _by_kind(distribution: DelayDistribution) -> Mapping[str, DelayDistribution]:
    """Return the delays by kind of message; empty unless a source with several kinds was simulated."""
    by_kind: Mapping[str, DelayDistribution] = getattr(distribution, "by_kind", {})
    return by_kind


def not_settled_record(
    source: Source, path: Path, target: Target, refusal: NotSettledError, simulated_because: str = ""
) -> dict[str, Any]:
    """Return the record of `prediction_record` for a simulation that has not settled: its figures are None."""
    from tcpdelay.ask import settled_record
    from tcpdelay.delays import DelayDistribution

    endless = DelayDistribution.unsustainable(path.forward_delay)
    record = prediction_record(source, path, target, endless, simulated_because)
    unknown = dict.fromkeys(_figures(target, endless))
    ended = {"ended_by_clock": refusal.ended_by == "the clock"}
    return record | unknown | settled_record(refusal) | {"method": "simulation"} | ended


def _figures(target: Target, distribution: DelayDistribution) -> dict[str, Any]:
    """Return the predicted figures as entries of a record."""
    return {
        "mean": distribution.mean,
        "jitter": distribution.jitter,
        **{quantile_name(q): distribution.known_quantile(q) for q in REPORTED_QUANTILES},
        "target_quantile": distribution.known_quantile(target.quantile),
        "late_fraction": distribution.late_fraction(target.limit),
        **dict(zip(("late_fraction_low", "late_fraction_high"), _late_range(target, distribution), strict=True)),
        "sustainable": distribution.sustainable,
    }


def _late_range(target: Target, distribution: DelayDistribution) -> tuple[float, float]:
    """Return the smallest and the largest share of late packets that the expected error allows."""
    from tcpdelay.models.verdict import late_range_within, relative_error
    from tcpdelay.scenario.stack import Linux

    stack = Linux() if distribution.scenario is None else distribution.scenario[2]
    return late_range_within(
        distribution, relative_error(stack, distribution.expected_error_of(target.quantile)), target.latest
    )


def not_settled_text(source: Source, path: Path, refusal: NotSettledError, simulated_because: str = "") -> str:
    """Return as text what is known from a simulation that has not settled."""
    from tcpdelay.delays import ended_after

    reached = ended_after(refusal.packets, refusal.ended_by) + ("," if refusal.ended_by else "")
    facts = [
        ("delay", f"not settled: after {reached} it still depends on how many are simulated"),
        ("sustainable", f"not settled: {refusal.in_words}"),
        ("method", _method("simulation", simulated_because)),
    ]
    return f"{scenario_in_words(source, path)}\n{as_text(facts_table(facts), width=UNBROKEN)}"


def _method(name: str, simulated_because: str) -> str:
    """Return the name of a model, and why it answers in place of the chain."""
    return f"{name}: {simulated_because}" if simulated_because else name


def prediction_text(
    source: Source, path: Path, target: Target, distribution: DelayDistribution, simulated_because: str = ""
) -> str:
    """Return the prediction as text."""
    from tcpdelay.accuracy.errors import in_words

    error = distribution.expected_error_of(target.quantile)
    late = format_fraction(distribution.late_fraction(target.limit))
    low, high = _late_range(target, distribution)
    if low < high:
        late += f"; the expected error allows {format_fraction_range((low, high))}"
    facts = [
        ("mean", format_time(distribution.mean)),
        ("jitter", format_time(distribution.jitter)),
        *(
            (f"{format_fraction(q)} come within", format_known_time(distribution.known_quantile(q)))
            for q in sorted({*REPORTED_QUANTILES, target.quantile})
        ),
        (f"later than {format_time(target.limit)}", late),
        *((kind, quantile_in_words(delays, target.quantile)) for kind, delays in _by_kind(distribution).items()),
        ("sustainable", "yes" if distribution.sustainable else "no: the backlog grows for ever"),
        ("method", _method(distribution.method, simulated_because)),
        ("expected error", "not known" if error is None else in_words(error, target.quantile)),
        *ignored_in_words(distribution.ignored, distribution.method),
        *([("note", distribution.ended_note)] if distribution.ended_note else []),
    ]
    return f"{scenario_in_words(source, path)}\n{as_text(facts_table(facts), width=UNBROKEN)}"


def draw_prediction(distribution: DelayDistribution, limit: float, counted: str = "packets") -> Figure:
    """Return the chart of a distribution with a mark at `limit` [s]; `counted` names what its shares are shares of."""
    from matplotlib.figure import Figure

    from tcpdelay.report.charts import plot_distribution

    figure = Figure(layout="constrained")
    plot_distribution(distribution, figure.subplots(), thresholds={"limit": limit}, counted=counted)
    return figure
