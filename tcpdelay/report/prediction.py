"""Delays as a record, as text and as a chart: of a prediction, through a relay, and of requests with responses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from tcpdelay.declare import declarations, effective_fields
from tcpdelay.report.document import attributes, facts_text
from tcpdelay.scenario.scenario import REPORTED_QUANTILES
from tcpdelay.scenario.source import TYPICAL_WRITE_JITTER, Flow, is_exact
from tcpdelay.scenario.source_settings import source_parameters
from tcpdelay.scenario.stack import Linux
from tcpdelay.units import (
    NOT_SETTLED,
    format_delay,
    format_fraction,
    format_fraction_range,
    format_known_time,
    format_rate,
    format_time,
    quantile_name,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tcpdelay.advice.judged_delays import Alternative
    from tcpdelay.ask import NotSettledError
    from tcpdelay.delays import DelayDistribution, ExpectedError
    from tcpdelay.scenario.path import Path
    from tcpdelay.scenario.scenario import Target
    from tcpdelay.scenario.source import Source
    from tcpdelay.sim.exchanges import Exchanges
    from tcpdelay.sim.network.relay import Leg, RelayedMessages, RelayResult


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
    """Return how late a source writes, as the end of a phrase; nothing if it writes as programs usually do."""
    if is_exact(source):
        return ", written exactly on time"
    usual = source.write_jitter in (0.0, TYPICAL_WRITE_JITTER)
    return "" if usual else f", write jitter {format_time(source.write_jitter)}"


def source_in_words(source: Source) -> str:
    """Return a source in words."""
    late = lateness_in_words(source)
    if isinstance(source, Flow):
        return f"{source.packet_size} bytes every {format_time(source.interval)} ({format_rate(source.bitrate)}){late}"
    mean, peak = format_rate(source.mean_bitrate), format_rate(source.peak_bitrate)
    return f"{type(source).__name__.lower()} of {mean} in the mean, {peak} in the busiest second{late}"


def scenario_in_words(source: Source, path: Path) -> str:
    """Return in words the source, and the path with all fields that differ from their defaults."""
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
    """Return the fields that a model ignored, as a fact for people; an empty list if there is no such field."""
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
        **attributes(target, "limit", "quantile"),
        **_figures(target, distribution),
        **_kinds_record(target, distribution),
        **settled_record(None),
        "method": distribution.method,
        "simulated_because": simulated_because or None,
        "ended_by_clock": distribution.ended_by_clock,
        **expected_errors(distribution.expected_error_of(target.quantile)),
        "ignored": dict(distribution.ignored),
    }


def _quantile_facts(delays: DelayDistribution, target: Target, verb: str = "come") -> list[tuple[str, str]]:
    """Return the reported quantiles and that of the target as facts for people."""
    return [
        (f"{format_fraction(q)} {verb} within", format_known_time(delays.known_quantile(q)))
        for q in sorted({*REPORTED_QUANTILES, target.quantile})
    ]


def _late_fact(delays: DelayDistribution, target: Target) -> tuple[str, str]:
    return f"later than {format_time(target.limit)}", format_fraction(delays.late_fraction(target.limit))


def quantile_in_words(distribution: DelayDistribution, share: float) -> str:
    """Return the delay within which a share of the messages arrives."""
    delay = distribution.known_quantile(share)
    return f"{format_fraction(share)}{':' if math.isnan(delay) else ' within'} {format_known_time(delay)}"


def _kinds_record(target: Target, distribution: DelayDistribution) -> dict[str, Any]:
    """Return the target's quantile by kind of message as an entry of a record; nothing for messages of one kind."""
    quantiles = {kind: delays.known_quantile(target.quantile) for kind, delays in distribution.by_kind.items()}
    return {"target_quantile_by_kind": quantiles} if quantiles else {}


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
    return f"{scenario_in_words(source, path)}\n{facts_text(facts)}"


def _method(name: str, simulated_because: str) -> str:
    """Return the name of a model, and why it answers in place of the chain."""
    return f"{name}: {simulated_because}" if simulated_because else name


def kind_record(alternatives: Sequence[Alternative]) -> dict[str, Any]:
    """Return the target's quantile on the best and on the worst path of a kind as entries of a record."""
    names = ("target_quantile_best_path", "target_quantile_worst_path")
    return dict(zip(names, (each.quantile for each in alternatives), strict=False))


def prediction_text(
    source: Source,
    path: Path,
    target: Target,
    distribution: DelayDistribution,
    simulated_because: str = "",
    other_paths: Sequence[Alternative] = (),
) -> str:
    """Return the prediction as text; `other_paths` are the best and the worst path of the preset's kind."""
    from tcpdelay.accuracy.errors import in_words

    error = distribution.expected_error_of(target.quantile)
    name, late = _late_fact(distribution, target)
    low, high = _late_range(target, distribution)
    if low < high:
        late += f"; the expected error allows {format_fraction_range((low, high))}"
    facts = [
        ("mean", format_time(distribution.mean)),
        ("jitter", format_time(distribution.jitter)),
        *_quantile_facts(distribution, target),
        *([("on such paths", _on_such_paths(target, other_paths))] if other_paths else []),
        (name, late),
        *((kind, quantile_in_words(delays, target.quantile)) for kind, delays in distribution.by_kind.items()),
        ("sustainable", "yes" if distribution.sustainable else "no: the backlog grows for ever"),
        ("method", _method(distribution.method, simulated_because)),
        ("expected error", "not known" if error is None else in_words(error, target.quantile)),
        *ignored_in_words(distribution.ignored, distribution.method),
        *([("note", distribution.ended_note)] if distribution.ended_note else []),
    ]
    return f"{scenario_in_words(source, path)}\n{facts_text(facts)}"


def _on_such_paths(target: Target, ends: Sequence[Alternative]) -> str:
    """Return the target's quantile on the best and on the worst path of a kind, and whether the target is met."""
    best, worst = (NOT_SETTLED if math.isnan(each.quantile) else format_delay(each.quantile) for each in ends)
    met = [each.meets_target for each in ends]
    verdict = "every one meets" if all(met) else "some miss" if any(met) else "every one misses"
    if NOT_SETTLED in (best, worst):
        verdict = "it is not known whether every one meets"
    return f"{format_fraction(target.quantile)} within {best} to {worst}: {verdict} the limit"


# The delay through a relay.


def relay_record(source: Source, first: Leg, second: Leg, target: Target, result: RelayResult) -> dict[str, Any]:
    """Return the legs, and the fate of the messages, as one record in seconds, bytes, bit/s and fractions.

    The figures of the delays are None if no message is delivered, or if the delays have not settled.
    """
    from tcpdelay.ask import NotSettledError, settled_record

    delays = result.delays
    unknown = None if delays is None or delays.settled else NotSettledError(delays.packets, delays.carried)
    return {
        **scenario_record(source, first[0]),
        "second_rtt": second[0].rtt,
        "second_loss": second[0].loss,
        "first_transport": _transport(first),
        "second_transport": _transport(second),
        **attributes(target, "limit", "quantile"),
        **_relayed_figures(result, target),
        "by_kind": {kind: _relayed_figures(messages, target) for kind, messages in result.by_kind.items()},
        "sustainable": result.sustainable,
        **settled_record(unknown),
    }


def relay_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a record of `relay_record` as a table: a row for all messages, and a row for each kind of message."""
    whole = {key: value for key, value in record.items() if key != "by_kind"}
    return [{"kind": kind, **whole, **figures} for kind, figures in (("all", {}), *record["by_kind"].items())]


def _relayed_figures(messages: RelayedMessages, target: Target) -> dict[str, Any]:
    """Return numbers and shares of messages, the delay through the relay, and the mean delay of each leg."""
    delays, *parts = (messages.delays, messages.first, messages.second) if messages.settled else (None, None, None)
    return {
        **attributes(messages, "offered", "delivered", "lost_share", "dropped_share"),
        "mean": delays and delays.mean,
        **{quantile_name(q): delays and delays.known_quantile(q) for q in REPORTED_QUANTILES},
        "target_quantile": delays and delays.known_quantile(target.quantile),
        "late_fraction": delays and delays.late_fraction(target.limit),
        **{f"mean_{name}": part and part.mean for name, part in zip(("first", "second"), parts, strict=True)},
        "buffer_needed": messages.buffer_needed,
    }


def relay_text(source: Source, first: Leg, second: Leg, target: Target, result: RelayResult) -> str:
    """Return as text how many messages are delivered and lost, and how late."""
    facts = [
        ("first leg", f"{_transport(first).upper()}, round-trip time and loss as above"),
        ("second leg", _leg_in_words(second)),
        ("lost", f"{format_fraction(result.lost_share)} of {result.offered} messages on a leg over UDP"),
        ("dropped", f"{format_fraction(result.dropped_share)} by the relay"),
    ]
    if result.delays is not None and not result.settled:
        facts.append(("delay", result.delays.unsettled_note))
    elif result.delays is not None and result.first is not None and result.second is not None:
        parts = f"{format_time(result.first.mean)} on the first leg, {format_time(result.second.mean)} on the second"
        facts += [
            ("mean", f"{format_time(result.delays.mean)}: {parts}"),
            *_quantile_facts(result.delays, target),
            _late_fact(result.delays, target),
        ]
    for kind, messages in result.by_kind.items():
        within = "none delivered" if messages.delays is None else quantile_in_words(messages.delays, target.quantile)
        within = within if messages.settled else NOT_SETTLED
        facts.append((kind, f"{within}, {format_fraction(messages.dropped_share)} dropped"))
    if result.buffer_needed is not None:
        needs = {"message": result.buffer_needed}
        needs |= {kind: messages.buffer_needed for kind, messages in result.by_kind.items() if messages.buffer_needed}
        facts.append(("room at the relay", ", ".join(f"{needed} B for every {kind}" for kind, needed in needs.items())))
    backlog = "yes" if result.sustainable else "no: the backlog grows for ever"
    facts += [
        ("sustainable", backlog),
        ("settled", "yes" if result.settled else "no: the delays depend on the length of the simulation"),
    ]
    return f"{scenario_in_words(source, first[0])}\n{facts_text(facts)}"


def _transport(leg: Leg) -> str:
    return "tcp" if isinstance(leg[1], Linux) else "udp"


def _leg_in_words(leg: Leg) -> str:
    path = leg[0]
    return f"{_transport(leg).upper()}, round-trip time {format_time(path.rtt)}, loss {format_fraction(path.loss)}"


# The time of requests and their responses.


def exchange_record(path: Path, sizes: tuple[int, int], target: Target, found: Exchanges) -> dict[str, Any]:
    """Return path, `sizes` of request and response [bytes], and figures as one record in seconds and fractions."""
    return {
        **attributes(path, "rtt", "loss", "ack_loss"),
        "request_size": sizes[0],
        "response_size": sizes[1],
        **attributes(target, "limit", "quantile"),
        "mean": found.mean,
        **{quantile_name(q): found.known_quantile(q) for q in REPORTED_QUANTILES},
        "target_quantile": found.known_quantile(target.quantile),
        "target_quantile_low": found.quantile_interval.low,
        "target_quantile_high": found.quantile_interval.high,
        "late_fraction": found.late_fraction(target.limit),
        "mean_request": found.request.mean,
        "mean_response": found.response.mean,
        **attributes(found, "answer_time", "exchanges", "seed", "ended_by_clock"),
    }


def exchange_text(path: Path, sizes: tuple[int, int], target: Target, found: Exchanges) -> str:
    """Return as text how long exchanges take."""
    there, back = format_fraction(path.loss), format_fraction(path.ack_loss)
    lost = f"loss {there} each way" if there == back else f"loss {there} of requests, {back} of responses"
    asked = f"{sizes[0]} bytes answered by {sizes[1]}, round-trip time {format_time(path.rtt)}, {lost}"
    directions = f"{format_time(found.request.mean)} for requests, {format_time(found.response.mean)} for responses"
    if found.answer_time > 0:
        directions += f", {format_time(found.answer_time)} at the server"
    facts = [
        ("mean", f"{format_time(found.mean)}: {directions}"),
        *_quantile_facts(found, target, "end"),
        _late_fact(found, target),
        ("method", f"simulation of {found.exchanges} exchanges" + (found.ended_note and f", {found.ended_note}")),
    ]
    interval = found.quantile_interval
    if interval.low == interval.low:
        ends = f"{format_time(interval.low)} to {format_time(interval.high)}"
        facts.append(("known to", f"{format_fraction(target.quantile)} within {ends} (95 % interval)"))
    return f"{asked}\n{facts_text(facts)}"


def draw_prediction(distribution: DelayDistribution, limit: float, counted: str = "packets") -> Figure:
    """Return the chart of a distribution with a mark at `limit` [s]; `counted` names what its shares are shares of."""
    from matplotlib.figure import Figure

    from tcpdelay.report.charts import plot_distribution

    figure = Figure(layout="constrained")
    plot_distribution(distribution, figure.subplots(), thresholds={"limit": limit}, counted=counted)
    return figure
