"""The playout delays that hide one loss or one timeout.

References
----------
.. [1] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
   Transactions on Networking, 2010, section VI: L + RTT + 3/f, and 4 RTT of a timeout.
"""

from __future__ import annotations

from dataclasses import dataclass

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.tcp import DUPLICATE_THRESHOLD, RTO_MIN
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow


@dataclass(frozen=True)
class PlayoutBuffer:
    """A playout delay [s] that masks one kind of loss, and the share of packets that still come late."""

    masks: str
    formula: str
    delay: float
    late_fraction: float


def fast_retransmit_playout(flow: Flow, path: Path) -> float:
    """Return the playout delay [s] that masks one loss found by three duplicate acknowledgements.

    Examples
    --------
    >>> round(fast_retransmit_playout(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)), 3)
    0.21
    """
    return path.forward_delay + path.rtt + DUPLICATE_THRESHOLD * flow.interval


def timeout_playout(path: Path) -> float:
    """Return the playout delay [s] that masks one timeout of a current Linux: RTT + RTO.

    Examples
    --------
    >>> timeout_playout(Path(rtt=0.100, loss=0.02))
    0.4
    """
    return path.rtt + path.rtt + RTO_MIN


def playout_buffers(flow: Flow, path: Path, distribution: DelayDistribution) -> tuple[PlayoutBuffer, ...]:
    """Return the playout delays that mask single losses, with the late fraction at each."""
    buffers = [
        ("one fast retransmit", "L + RTT + 3/f", fast_retransmit_playout(flow, path)),
        ("one timeout, TCP of 2008", "4 RTT", 4 * path.rtt),
        ("one timeout, Linux today", "RTT + RTO", timeout_playout(path)),
    ]
    return tuple(
        PlayoutBuffer(masks, formula, delay, distribution.late_fraction(delay)) for masks, formula, delay in buffers
    )
