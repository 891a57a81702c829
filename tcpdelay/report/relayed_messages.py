"""The delay through a relay, and the time of requests and their responses, as a record and as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tcpdelay.report.prediction import quantile_in_words, scenario_in_words, scenario_record
from tcpdelay.report.result_table import UNBROKEN, as_text, facts_table
from tcpdelay.scenario.stack import Linux
from tcpdelay.scenario.target import REPORTED_QUANTILES
from tcpdelay.units import NOT_SETTLED, format_fraction, format_known_time, format_time, quantile_name

if TYPE_CHECKING:
    from tcpdelay.scenario.path import Path
    from tcpdelay.scenario.sources.message_stream import Source
    from tcpdelay.scenario.target import Target
    from tcpdelay.sim.exchanges import Exchanges
    from tcpdelay.sim.network.relay import Leg, RelayedMessages, RelayResult


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
        "limit": target.limit,
        "quantile": target.quantile,
        **_figures(result, target),
        "by_kind": {kind: _figures(messages, target) for kind, messages in result.by_kind.items()},
        "sustainable": result.sustainable,
        **settled_record(unknown),
    }


def relay_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a record of `relay_record` as a table: a row for all messages, and a row for each kind of message."""
    whole = {key: value for key, value in record.items() if key != "by_kind"}
    return [{"kind": kind, **whole, **figures} for kind, figures in (("all", {}), *record["by_kind"].items())]


def _figures(messages: RelayedMessages, target: Target) -> dict[str, Any]:
    """Return numbers and shares of messages, the delay through the relay, and the mean delay of each leg."""
    delays, *parts = (messages.delays, messages.first, messages.second) if messages.settled else (None, None, None)
    return {
        "offered": messages.offered,
        "delivered": messages.delivered,
        "lost_share": messages.lost_share,
        "dropped_share": messages.dropped_share,
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
            *(
                (f"{format_fraction(q)} come within", format_known_time(result.delays.known_quantile(q)))
                for q in sorted({*REPORTED_QUANTILES, target.quantile})
            ),
            (f"later than {format_time(target.limit)}", format_fraction(result.delays.late_fraction(target.limit))),
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
    return f"{scenario_in_words(source, first[0])}\n{as_text(facts_table(facts), width=UNBROKEN)}"


def _transport(leg: Leg) -> str:
    """Return the transport of a leg in one word."""
    return "tcp" if isinstance(leg[1], Linux) else "udp"


def _leg_in_words(leg: Leg) -> str:
    """Return transport and path of a leg in words."""
    path = leg[0]
    return f"{_transport(leg).upper()}, round-trip time {format_time(path.rtt)}, loss {format_fraction(path.loss)}"


# The time of requests and their responses as a record and as text.


def exchange_record(path: Path, sizes: tuple[int, int], target: Target, found: Exchanges) -> dict[str, Any]:
    """Return path, `sizes` of request and response [bytes], and figures as one record in seconds and fractions."""
    return {
        "rtt": path.rtt,
        "loss": path.loss,
        "ack_loss": path.ack_loss,
        "request_size": sizes[0],
        "response_size": sizes[1],
        "limit": target.limit,
        "quantile": target.quantile,
        "mean": found.mean,
        **{quantile_name(q): found.known_quantile(q) for q in REPORTED_QUANTILES},
        "target_quantile": found.known_quantile(target.quantile),
        "target_quantile_low": found.quantile_interval.low,
        "target_quantile_high": found.quantile_interval.high,
        "late_fraction": found.late_fraction(target.limit),
        "mean_request": found.request.mean,
        "mean_response": found.response.mean,
        "answer_time": found.answer_time,
        "exchanges": found.exchanges,
        "seed": found.seed,
        "ended_by_clock": found.ended_by_clock,
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
        *(
            (f"{format_fraction(q)} end within", format_known_time(found.known_quantile(q)))
            for q in sorted({*REPORTED_QUANTILES, target.quantile})
        ),
        (f"later than {format_time(target.limit)}", format_fraction(found.late_fraction(target.limit))),
        ("method", f"simulation of {found.exchanges} exchanges" + (found.ended_note and f", {found.ended_note}")),
    ]
    interval = found.quantile_interval
    if interval.low == interval.low:
        ends = f"{format_time(interval.low)} to {format_time(interval.high)}"
        facts.append(("known to", f"{format_fraction(target.quantile)} within {ends} (95 % interval)"))
    return f"{asked}\n{as_text(facts_table(facts), width=UNBROKEN)}"
