"""The playout delays that hide one loss or one timeout.

References
----------
.. [1] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
   Transactions on Networking, 2010, section VII: L + RTT + 3/f, and 4 RTT for a timeout.
.. [2] RFC 9002, section 6.2.1: the probe timeout (PTO) of QUIC; 1 ms is its granularity (section 6.1.2).
.. [3] RFC 6298: the retransmission timeout is the smoothed round-trip time plus its variation; Linux adds at least
   TCP_RTO_MIN to the smoothed round-trip time (tcp_set_rto, __tcp_set_rto).
"""

from __future__ import annotations

from dataclasses import dataclass

from tcpdelay.ask import Answer
from tcpdelay.models.verdict import late_range
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import DEFAULT_STACK, KnownStack, KnownTcp, Linux, NewReno2008, Quic
from tcpdelay.sim.quic.implementations import IMPLEMENTATIONS
from tcpdelay.sim.tcp.constants import DUPLICATE_THRESHOLD, SECOND
from tcpdelay.units import format_time


@dataclass(frozen=True)
class PlayoutBuffer:
    """A playout delay [s] that hides one kind of loss, and the share of packets that are late with this delay."""

    masks: str
    formula: str
    delay: float
    late_fraction: float
    late_range: tuple[float, float]  # Smallest and largest share that the expected error of the prediction allows


def fast_retransmit_playout(flow: Flow, path: Path) -> float:
    """Return the playout delay [s] that hides one loss detected by three duplicate ACKs: L + RTT + 3/f."""
    return path.forward_delay + path.rtt + DUPLICATE_THRESHOLD * flow.interval


def timeout_playout(path: Path, stack: KnownStack = DEFAULT_STACK) -> float:
    """Return the playout delay [s] that hides one retransmission timeout of a stack.

    For Linux it is RTT + RTO, where the timeout RTO is at least RTT + `rto_min`. For the published chain it is the
    first timeout, by default 4 RTT. For QUIC it is L + PTO: without jitter the probe timeout PTO is RTT + 1 ms +
    `max_ack_delay`, and its probe carries the oldest data in flight.
    """
    if isinstance(stack, NewReno2008):
        return stack.first_timeout(path.rtt)
    if isinstance(stack, Quic):
        return path.forward_delay + path.rtt + _beyond_rtt(stack)
    return 2 * path.rtt + stack.rto_min


def _beyond_rtt(stack: Quic) -> float:
    """Return the time [s] that the probe timeout adds to the RTT: the granularity, and the announced delay of ACKs."""
    # Imported here, because it imports Numba, which takes a second.
    from tcpdelay.sim.quic.recovery import GRANULARITY

    announced = IMPLEMENTATIONS[stack.implementation].settings(stack.max_ack_delay)["max_ack_delay"]
    return (GRANULARITY + announced) / SECOND


def timeout_in_words(stack: KnownStack) -> str:
    """Return the retransmission timeout of a stack in a sentence."""
    if isinstance(stack, NewReno2008):
        timeout = "4 RTT" if stack.initial_timeout is None else format_time(stack.initial_timeout)
        return f"The first retransmission timeout (RTO) of this TCP of 2008 is {timeout}."
    if isinstance(stack, Quic):
        return f"The probe timeout (PTO) of QUIC is RTT + {format_time(_beyond_rtt(stack))} without jitter."
    return f"The retransmission timeout (RTO) of Linux is at least RTT + {format_time(stack.rto_min)}."


def playout_buffers(answer: Answer) -> tuple[PlayoutBuffer, ...]:
    """Return the playout delays that hide single losses, each with its late fraction; none hides a lost datagram."""
    flow, path, stack = answer.scenario.flow, answer.scenario.path, answer.scenario.stack
    delays = answer.require()
    if isinstance(stack, Quic) and stack.delivery == "datagram":
        return ()
    if isinstance(stack, Quic):
        buffers = [
            ("a loss that three later packets show", "L + RTT + 3/f", fast_retransmit_playout(flow, path)),
            ("one probe timeout", "L + PTO", timeout_playout(path, stack)),
        ]
    else:
        buffers = _buffers_of_tcp(flow, path, stack)
    return tuple(
        PlayoutBuffer(masks, formula, delay, delays.late_fraction(delay), late_range(answer, delay))
        for masks, formula, delay in buffers
    )


def _buffers_of_tcp(flow: Flow, path: Path, stack: KnownTcp) -> list[tuple[str, str, float]]:
    """Return what each playout delay over TCP hides, its formula, and the delay [s]."""
    published = stack if isinstance(stack, NewReno2008) else NewReno2008()
    linux = stack if isinstance(stack, Linux) else Linux()
    return [
        ("one fast retransmit", "L + RTT + 3/f", fast_retransmit_playout(flow, path)),
        (
            "one timeout, TCP of 2008",
            "4 RTT" if published.initial_timeout is None else "RTO",
            timeout_playout(path, published),
        ),
        ("one timeout, Linux today", "RTT + RTO", timeout_playout(path, linux)),
    ]
