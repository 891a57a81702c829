"""Requests and responses: a client that asks, waits for the whole answer, pauses, and asks again.

Each direction is simulated as a connection whose next message waits until the one before is answered. The ACK of a
message travels with the answer. It is never missing when the next message is written, so it is not lost here. Left out:
while an answer is lost and not yet sent again, the sender of the message may probe for the ACK in vain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tcpdelay.budget import MOST_SECONDS, SimulationBudget, checked_budget
from tcpdelay.declare import SEED, InvalidValueError, declarations, is_number
from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.path import Path, checked_path
from tcpdelay.scenario.scenario import Target
from tcpdelay.scenario.source import BLOCK, Blocks, Flow, Source, message_array
from tcpdelay.scenario.stack import Linux, Stack, StackName, checked_linux
from tcpdelay.sim.batches import Batches
from tcpdelay.sim.connections import Connections, warm_up
from tcpdelay.sim.engine import CONNECTION_TIME, TCP, TIE_BREAK
from tcpdelay.sim.simulation import segments_per_message, source_refusals
from tcpdelay.sim.tcp.constants import SECOND
from tcpdelay.sim.writes import AnsweredSchedule
from tcpdelay.statistics import Interval

CHUNK, SEGMENTS_PER_CALL = 2_000, 200_000
"""Exchanges, and segments, that one call of the compiled code simulates at most; an interrupt is answered after it."""
FEWEST, MOST = 1_000, 10_000_000
"""Bounds of the number of exchanges."""
MOST_WRITES = 16
"""Largest number of writes of a message."""
LONGEST_PAUSE = 60.0
"""Longest time for which the client may pause [s]."""


@dataclass(frozen=True, repr=False)
class Exchanges(DelayDistribution):
    """The time of exchanges, from the write of a request to the read of the last byte of its response.

    The time that the server takes for its answer is a part of it.
    """

    # request, response: Delay of requests and of responses, each from the write to the in-order read of its last
    # byte.
    request: DelayDistribution = field(kw_only=True)
    response: DelayDistribution = field(kw_only=True)
    answer_time: float = field(kw_only=True)  # Time from the read of each request to the write of its response [s]
    exchanges: int = field(kw_only=True)  # Number of exchanges counted
    seed: int = field(kw_only=True)  # Seed of the random numbers


@dataclass(frozen=True)
class _Answered(Source):
    """Messages that each wait for the answer to the message before; the time of a message is its pause after that."""

    # size, writes: Size of a message [bytes], and in how many writes it is written.
    size: int
    writes: int
    # Pauses from the read of a message to the write of the next [s]; each is drawn from these.
    pauses: NDArray[np.float64]

    @property
    def message_rate(self) -> float:
        """Largest number of writes per second, were nothing but pauses to take time [1/s]."""
        return self.writes / float(self.pauses.mean())

    @property
    def mean_bitrate(self) -> float:
        """Bits per second at this rate [bit/s]."""
        return 8 * self.mean_size * self.message_rate

    @property
    def mean_size(self) -> float:
        """Mean size of a write [bytes]."""
        return self.size / self.writes

    def generate(self, seed: int) -> Blocks:
        """Yield the writes of a seed. A write of kind 1 follows the write before it at once, without a pause."""
        random = np.random.default_rng(seed)
        parts = np.full(self.writes, self.size // self.writes)
        parts[-1] += self.size - parts.sum()
        kinds = np.minimum(np.arange(self.writes), 1)
        while True:
            pauses = np.repeat(random.choice(self.pauses, BLOCK), self.writes)
            yield message_array(pauses, np.tile(parts, BLOCK), np.tile(kinds, BLOCK))


def simulate_exchanges(
    request_size: int,
    response_size: int,
    path: Path,
    stack: Stack | StackName | None = None,
    *,
    think_time: float = 0.0,
    answer_time: float = 0.0,
    writes: int = 1,
    exchanges: int = 40_000,
    seed: int = 0,
    quantile: float = 0.95,
    max_seconds: float = MOST_SECONDS,
) -> Exchanges:
    """Simulate a client that asks, waits for the whole answer, and asks again: an echo, a database, a remote call.

    Both ends have the same stack, and disable Nagle's algorithm.

    Parameters
    ----------
    request_size, response_size : int
        Sizes of a request and of a response [bytes], 1 to 10 000 000.
    path : Path
        The network from the client to the server: `loss` is the share of the client's segments that are lost, and
        `ack_loss` that of the server's segments, which carry the responses. Jitter, reordering and loss patterns are
        those of the client's segments; the server's losses are independent.
    stack : Stack or "linux", optional
        `Stack.linux(...)`, its defaults if left out.
    think_time : float
        Time from the read of a response to the write of the next request [s], 0 to 60.
    answer_time : float
        Time from the read of a request to the write of its response [s], 0 to 60: the work of the server.
    writes : int
        Number of writes in which the ends write a message, 1 to 16 and not above either size. Each write leaves as a
        segment. If the first of two is lost, the second shows it after a round trip; a lost message of one segment is
        only sent again after the smallest timeout of the kernel, 200 ms.
    exchanges : int
        Number of exchanges, 1000 to 10 000 000; the first of a connection are not counted.
    seed : int
        Seed of all random numbers, 0 or more; the same seed gives the same result.
    quantile : float
        The probability to which `quantile_interval` belongs, above 0 and below 1.
    max_seconds : float
        Processor time that each direction may take on an ordinary machine, roughly [s], 0.01 to 1e6. After it, counted
        in events and segments, the result has fewer exchanges, and `ended_by_budget` is True. After 20 times this time,
        the clock ends a direction.

    Returns
    -------
    Exchanges
        The distribution of the time of an exchange, with its statistical error, and the delays of both directions.

    Raises
    ------
    TooLargeError
        If less than 1000 exchanges fit into `max_seconds`; a ValueError.
    InvalidValueError
        If a value is out of its range, or a message needs more segments than the simulator can hold; a ValueError.

    Examples
    --------
    An echo of 800 bytes over 5 ms and 1 % loss each way:

    >>> path = Path(rtt=0.010, loss=0.01, ack_loss=0.01)
    >>> echo = simulate_exchanges(800, 800, path, seed=1)
    >>> [round(echo.quantile(share), 3) for share in (0.5, 0.95, 0.99)]
    [0.01, 0.01, 0.224]

    In two writes each, a header and the rest, most losses are found much sooner:

    >>> round(simulate_exchanges(800, 800, path, writes=2, seed=1).quantile(0.99), 3)
    0.037
    """
    path, stack = checked_path(path), checked_linux(stack)
    for name, pause in (("think_time", think_time), ("answer_time", answer_time)):
        if not is_number(pause) or not 0 <= pause <= LONGEST_PAUSE:
            raise InvalidValueError(name, pause, f"lie between 0 and {LONGEST_PAUSE:g} s")
    for name, size in (("request_size", request_size), ("response_size", response_size)):
        if not is_number(size) or not 1 <= size <= 10_000_000 or size != int(size):
            raise InvalidValueError(name, size, "be a whole number of bytes from 1 to 10 000 000")
    most_writes = min(MOST_WRITES, request_size, response_size)
    for name, value, least, most in (("writes", writes, 1, most_writes), ("exchanges", exchanges, FEWEST, MOST)):
        if not is_number(value) or not least <= value <= most or value != int(value):
            raise InvalidValueError(name, value, f"be a whole number, {least} to {most}")
    seed = SEED.require("seed", seed)
    declarations(Target)["quantile"].require("quantile", quantile)
    checked_budget(max_seconds, None)
    there = replace(path, ack_loss=0.0)
    back = Path(path.rtt, path.ack_loss, one_way_delay=path.rtt - path.forward_delay)
    seeds = [int(drawn) for drawn in np.random.SeedSequence(seed).generate_state(2)]
    # A request waits for the response before it, so the pauses of one direction hold the delays of the other. They
    # matter little: each message finds an idle connection.
    constant = np.array([think_time + path.forward_delay + answer_time])
    budgets = SimulationBudget(max_seconds), SimulationBudget(max_seconds)
    responses = _delays(response_size, back, stack, writes, constant, exchanges, seeds[0], budgets[0])
    pauses = think_time + answer_time + responses / SECOND
    requests = _delays(request_size, there, stack, writes, pauses, exchanges, seeds[1], budgets[1])
    counted = min(requests.size, responses.size)
    times = requests[:counted] + responses[:counted]
    by_clock = any(budget.ended_by_clock for budget in budgets)
    batches = Batches()
    for chunk in np.array_split(times, math.ceil(counted / CHUNK)):
        batches.add(chunk)
    delays = batches.delays(DelayDistribution, path.rtt, quantile)
    return Exchanges(
        delays.values + answer_time,
        delays.weights,
        path.rtt + answer_time,
        method="simulation",
        request=DelayDistribution.from_samples(requests / SECOND, path.forward_delay, "simulation"),
        response=DelayDistribution.from_samples(responses / SECOND, back.forward_delay, "simulation"),
        answer_time=answer_time,
        exchanges=counted,
        seed=seed,
        probability=quantile,
        quantile_interval=_later(delays.quantile_interval, answer_time),
        mean_interval=_later(delays.mean_interval, answer_time),
        ended_by_clock=by_clock,
        ended_by_budget=counted < exchanges and not by_clock,
    )


def _later(interval: Interval, time: float) -> Interval:
    return Interval(*(each + time for each in interval))


def _delays(
    size: int,
    path: Path,
    stack: Linux,
    writes: int,
    pauses: NDArray[np.float64],
    exchanges: int,
    seed: int,
    budget: SimulationBudget,
) -> NDArray[np.int64]:
    """Return the delays of the messages of one direction [us]."""
    messages = Flow(size, LONGEST_PAUSE)
    for refused in source_refusals(messages, path, stack):
        raise refused
    # The answer brings the ACK, so the ACK is there before the next message. In the simulation it is later by the time
    # that keeps ACKs apart.
    source = _Answered(size, writes, pauses + 2 * TIE_BREAK * writes / SECOND)
    connections = Connections(
        TCP,
        source,
        path,
        stack,
        seed,
        budget,
        warm_up(source, stack),
        connection_time=CONNECTION_TIME,
        schedule=AnsweredSchedule(source, seed),
    )
    most = min(CHUNK, max(SEGMENTS_PER_CALL // (writes + segments_per_message(messages, stack)), 1))
    parts: list[NDArray[np.int64]] = []
    for chunk in connections.chunks(exchanges * writes, most * writes):
        last_of_message = np.arange(chunk.first + 1, chunk.first + 1 + chunk.packets) % writes == 0
        parts.append(chunk.delays[0][last_of_message])
    counted = sum(part.size for part in parts)
    if counted < min(exchanges, FEWEST):
        raise budget.error(f"{counted} exchanges", "allow more time, or use smaller messages")
    return np.concatenate(parts)
