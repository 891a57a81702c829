"""Over how many connections to spread the packets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tcpdelay.applications import Target
from tcpdelay.heuristics import parallel_delay
from tcpdelay.inverse.call import CallTarget
from tcpdelay.inverse.choice import Choice, Way, choose, whole_numbers, wire_rate
from tcpdelay.scenario import Flow, Path, Stack
from tcpdelay.validity import checked_profile

CONNECTIONS = (1, 2, 4)


def best_connections(
    flow: Flow,
    path: Path,
    stack: Stack,
    target: Target | CallTarget,
    connections: Sequence[int] = CONNECTIONS,
    on_progress: Callable[[int, int], None] | None = None,
) -> Choice:
    """Return the number of connections on which packets in turn are read, in order, soonest.

    Parameters
    ----------
    flow : Flow
        The application's packets.
    path : Path
        The path.
    stack : Stack
        The TCP implementation.
    target : Target or CallTarget
        What is demanded.
    connections : sequence of int
        What to choose from, each 1 to 64.
    on_progress : callable, optional
        Is told after each number how many are done, and of how many.

    Returns
    -------
    Choice
        The best number; among equals the smallest.

    Raises
    ------
    ValueError
        If a value is out of its range, or no number meets the target; the message says what the best is.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM ToN 2010: parallel connections.

    Examples
    --------
    >>> best_connections(Flow(1448, 0.020), Path(rtt=0.100, loss=0.02), Stack.linux(), Target(0.2)).value > 1
    True
    """
    stack = checked_profile(stack)
    ways = []
    for number in whole_numbers("connections", connections):
        share = Flow(flow.packet_size, flow.interval * number)
        predict = partial(parallel_delay, flow, path, stack, number)
        ways.append(Way(number, flow, share, wire_rate(flow, stack.mss), predict))
    return choose("connections", ways, path, stack, target, on_progress)
