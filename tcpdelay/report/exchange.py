"""The time of requests and their responses as a record and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tcpdelay.report.result_table import UNBROKEN, as_text, facts_table
from tcpdelay.scenario.target import REPORTED_QUANTILES
from tcpdelay.units import format_fraction, format_known_time, format_time, quantile_name

if TYPE_CHECKING:
    from tcpdelay.models.simulator.exchanges import Exchanges
    from tcpdelay.scenario.path import Path
    from tcpdelay.scenario.target import Target


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
        ("method", f"simulation of {found.exchanges} exchanges"),
    ]
    interval = found.quantile_interval
    if interval.low == interval.low:
        ends = f"{format_time(interval.low)} to {format_time(interval.high)}"
        facts.append(("known to", f"{format_fraction(target.quantile)} within {ends} (95 % interval)"))
    return f"{asked}\n{as_text(facts_table(facts), width=UNBROKEN)}"
