"""Whether a change of transport would help a flow over TCP, from quick simulations of QUIC on the same path."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tcpdelay.ask import Answer, Requested
from tcpdelay.models.predict import packets_to_count, predict, supports
from tcpdelay.models.verdict import Verdict, relative_error, verdict_of
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Delivery, Linux, Stack
from tcpdelay.scenario.target import Target
from tcpdelay.statistics import Interval

if TYPE_CHECKING:
    from tcpdelay.sim.simulation import Simulation

SIMULATED = 100_000
"""Packets of QUIC in each simulation; it takes some tenths of a second."""
FEWEST_SIMULATED = 5000
"""Fewest messages of a simulation."""
SMALLEST_SAVING = 0.01
"""Smallest saving that counts, as a share of the delay over TCP."""
DELIVERIES: dict[Delivery, str] = {
    "stream_per_message": "QUIC streams",
    "datagram": "QUIC datagrams",
}
"""The deliveries over QUIC that are compared with TCP: a stream per message, and datagrams.

One stream for all messages delays them much as TCP does."""


@dataclass(frozen=True)
class OtherTransport:
    """The delays over another transport."""

    name: str  # The transport in words
    delivery: Delivery  # Delivery of `tcpdelay.Stack.quic`
    # The target's quantile of the delay [s] with its 95 % interval. Lost datagrams have an infinite delay.
    quantile: Interval
    late_fraction: float  # Share of the messages that are late or lost
    verdict: Verdict  # Whether the target is met
    # Whether this transport meets a target that TCP may miss, or saves more than the errors of both delays and more
    # than 1 % of the delay.
    helps: bool


@dataclass(frozen=True)
class TransportComparison:
    """TCP and other transports on one path."""

    # The target's quantile of the delay over TCP [s], with the range that its expected error allows.
    quantile: Interval
    late_fraction: float  # Share of the messages that are late over TCP
    verdict: Verdict  # Whether TCP meets the target
    others: tuple[OtherTransport, ...]  # The other transports that the simulator has an answer for
    refusal: str = ""  # Why the simulator has no answer for one of them; empty if it has


def other_transports(
    scenario: Scenario, target: Target, answer: Answer, verdict: Verdict
) -> TransportComparison | None:
    """Simulate the messages of a scenario over QUIC, and return whether this helps."""
    if not isinstance(scenario.stack, Linux) or answer.distribution is None:
        return None
    delays, share = answer.distribution, target.quantile
    own = delays.quantile(share)
    error = relative_error(scenario.stack, answer.expected_error)
    within = Interval(own, own * max(1 - error, 0.0), own * (1 + error))
    found: list[OtherTransport] = []
    refusal = ""
    for delivery, name in DELIVERIES.items():
        over_quic = Scenario(scenario.source, scenario.path, Stack.quic(delivery=delivery))
        refused = supports(over_quic, "simulation").refused
        if refused:
            fields = ", ".join(error.name.replace("_", " ") for error in refused)
            refusal = f"the simulator of QUIC does not model this scenario ({fields})"
            return TransportComparison(within, delays.late_fraction(target.limit), verdict, (), refusal)
        requested = Requested(packets=_messages(over_quic), target=target)
        simulated = predict(over_quic, requested, "simulation")
        if simulated.distribution is None:
            refusal = f"the simulation of {name} has not settled, because the load is close to what QUIC carries"
            continue
        quantile = cast("Simulation", simulated.distribution).quantile_interval
        met = verdict_of(simulated, target)
        helps = (met == "works" != verdict) or _saves(within, quantile)
        late = simulated.distribution.late_fraction(target.limit)
        found.append(OtherTransport(name, delivery, quantile, late, met, helps))
    return TransportComparison(within, delays.late_fraction(target.limit), verdict, tuple(found), refusal)


def _messages(scenario: Scenario) -> int:
    """Return the number of messages to simulate: fewer if they are large, so that the time is about the same."""
    if not isinstance(scenario.source, Flow):
        return packets_to_count(scenario, SIMULATED)
    return max(int(SIMULATED / max(scenario.flow.packet_size / scenario.stack.mss, 1)), FEWEST_SIMULATED)


def _saves(own: Interval, other: Interval) -> bool:
    """Return whether another delay is shorter by more than the errors of both, and by more than a negligible part."""
    if math.isinf(own.value):
        return math.isfinite(other.value)
    return other.high < own.low and own.value - other.value > SMALLEST_SAVING * own.value
