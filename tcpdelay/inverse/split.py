"""Into how many pieces to write each packet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tcpdelay.applications import Target
from tcpdelay.heuristics import split_delay
from tcpdelay.inverse.call import CallTarget
from tcpdelay.inverse.choice import Choice, Way, choose, whole_numbers, wire_rate
from tcpdelay.scenario import Flow, Path, Stack
from tcpdelay.validity import checked_profile

PIECES = (1, 2, 4)


def best_split(
    flow: Flow,
    path: Path,
    stack: Stack,
    target: Target | CallTarget,
    pieces: Sequence[int] = PIECES,
    on_progress: Callable[[int, int], None] | None = None,
) -> Choice:
    """Return the number of pieces to write each packet in, so that it is read soonest.

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
    pieces : sequence of int
        What to choose from, each 1 to 64 and at most the bytes of a packet.
    on_progress : callable, optional
        Is told after each number how many are done, and of how many.

    Returns
    -------
    Choice
        The best number; among equals the smallest. Its expected error is that of the chain, not of the approximation
        that `tcpdelay.heuristics.split_delay` makes beyond it.

    Raises
    ------
    ValueError
        If a value is out of its range, or no number meets the target; the message says what the best is.

    References
    ----------
    Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM ToN 2010: packet splitting.

    Examples
    --------
    >>> best_split(Flow(1448, 0.020), Path(rtt=0.100, loss=0.01), Stack.linux(), Target(0.2)).value > 1
    True
    """
    stack = checked_profile(stack)
    ways = []
    for number in whole_numbers("pieces", pieces):
        piece = Flow(-(-flow.packet_size // number), flow.interval / number)
        predict = partial(split_delay, flow, path, stack, number)
        ways.append(Way(number, flow, piece, wire_rate(piece, stack.mss), predict))
    return choose("pieces", ways, path, stack, target, on_progress)
