"""The delay through a relay as a record and as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tcpdelay.report.prediction import quantile_in_words, scenario_in_words, scenario_record
from tcpdelay.report.result_table import UNBROKEN, as_text, facts_table
from tcpdelay.scenario.stack import Linux
from tcpdelay.scenario.target import REPORTED_QUANTILES
from tcpdelay.units import format_fraction, format_known_time, format_time, quantile_name

if TYPE_CHECKING:
    from tcpdelay.network.relay import Leg, RelayedMessages, RelayResult
    from tcpdelay.scenario.sources.message_stream import Source
    from tcpdelay.scenario.target import Target


def relay_record(source: Source, first: Leg, second: Leg, target: Target, result: RelayResult) -> dict[str, Any]:
    """Return the legs, and the fate of the messages, as one record in seconds, bytes, bit/s and fractions.

    The figures of the delays are None if no message is delivered.
    """
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
        "settled": result.settled,
    }


def relay_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a record of `relay_record` as a table: a row for all messages, and a row for each kind of message."""
    whole = {key: value for key, value in record.items() if key != "by_kind"}
    return [{"kind": kind, **whole, **figures} for kind, figures in (("all", {}), *record["by_kind"].items())]


def _figures(messages: RelayedMessages, target: Target) -> dict[str, Any]:
    """Return numbers and shares of messages, the delay through the relay, and the mean delay of each leg."""
    delays, parts = messages.delays, (messages.first, messages.second)
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
    if result.delays is not None and result.first is not None and result.second is not None:
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
