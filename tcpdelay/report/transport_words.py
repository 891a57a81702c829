"""In words, whether another transport than TCP would help."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tcpdelay.units import format_time, quantile_name

if TYPE_CHECKING:
    from tcpdelay.advice.other_transports import TransportComparison
    from tcpdelay.confidence import Interval
    from tcpdelay.models.verdict import Verdict
    from tcpdelay.scenario.target import Target

TARGET_IS: dict[Verdict, str] = {"works": "met", "uncertain": "uncertain", "fails": "missed"}
"""Verdicts on a target in a table."""
_DECIDED: dict[Verdict, str] = {"works": "meets", "uncertain": "may meet", "fails": "misses"}
HOW_COMPARED = (
    "QUIC streams carry each message on a stream of its own. QUIC datagrams are not sent again: they are late if they "
    "are lost. Both are simulated by RFC 9002 on this path. Nine of ten predictions of TCP do not exceed its error; "
    "the errors of QUIC are statistical (95 %)."
)


def change_of_transport(compared: TransportComparison, target: Target) -> tuple[str, ...]:
    """Return in sentences whether a change of transport would help, and by how much.

    Parameters
    ----------
    compared : TransportComparison
        TCP and the other transports.
    target : Target
        The demand on the delay.
    """
    name, over_tcp = quantile_name(target.quantile), compared.quantile.value
    if not compared.others:
        return (f"Whether a change of transport would help is not known: {compared.refusal}.",)
    helping = [other for other in compared.others if other.helps]
    if not helping:
        unchanged = f"QUIC neither changes the verdict nor shortens {name} by more than the errors"
        return (f"A change of transport would not help: {unchanged}.", HOW_COMPARED)
    if compared.verdict == "works":
        first = "TCP meets the target; another transport would be faster."
    elif any(other.verdict == "works" for other in helping):
        first = "A change of transport would help."
    else:
        first = "A change of transport would shorten the delay, but may not meet the target."
    sentences = [first]
    for other in helping:
        delay = format_time(other.quantile.value)
        less = f", {format_time(over_tcp - other.quantile.value)} less than over TCP" if math.isfinite(over_tcp) else ""
        sentences.append(f"{other.name}: {name} is {delay}{less}, which {_DECIDED[other.verdict]} the target.")
    return " ".join(sentences), HOW_COMPARED


def error_of(delay: Interval) -> str:
    """Return the distance from a delay [s] to the farther end of its interval.

    Examples
    --------
    >>> from tcpdelay.confidence import Interval
    >>> error_of(Interval(0.14, 0.131, 0.142)), error_of(Interval(math.inf, math.inf, math.inf))
    ('±9 ms', '')
    """
    farther = max(delay.high - delay.value, delay.value - delay.low)
    return f"±{format_time(farther)}" if math.isfinite(delay.value) else ""
