"""The front door of the simulator: how late the packets of a flow are, with the statistical error of the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.confidence import Interval
from tcpdelay.distribution import DelayDistribution
from tcpdelay.scenario import Flow, Linux, Path, Stack
from tcpdelay.sim.batches import MICROSECONDS, Batches
from tcpdelay.sim.engine import advance
from tcpdelay.sim.path import segments_until_loss
from tcpdelay.sim.records import (
    ACKNOWLEDGEMENT,
    CONNECTION,
    INFINITE_SSTHRESH,
    NEVER,
    RING,
    SEGMENT,
    Wire,
)
from tcpdelay.sim.sender import LARGEST_FLIGHT
from tcpdelay.sim.window import INITIAL_WINDOW

CHUNK = 50_000
"""Packets that are simulated in one go."""
WARM_UP = 2_000
"""Packets at the beginning that do not count."""
MOST_PACKETS = 20_000_000
HALF_WIDTH = 0.02
FIRST_TIMEOUT = 1.0
LONG_RUN = 8
"""Chunks over which a backlog must have grown to count as growing for ever."""
GROWTH = 0.005
"""Share of the packets written by which it must have grown."""
SECOND = 1_000_000
UNKNOWN = Interval(np.nan, np.nan, np.nan)
COUNTS = (
    "segments_sent",
    "segments_lost",
    "segments_retransmitted",
    "recoveries",
    "timeouts",
    "probes",
    "reordering_timeouts",
)


@dataclass(frozen=True, repr=False)
class Simulation(DelayDistribution):
    """Simulated delays: a distribution, and what stands behind it.

    Attributes
    ----------
    packets : int
        Packets that count.
    seed : int
        Seed of the losses.
    mean_interval : Interval
        Mean delay [s] with its 95 % interval.
    quantile_interval : Interval
        The quantile asked for [s], with its 95 % interval.
    sender_delay, head_of_line_delay : float
        Parts of the mean beyond the network's one-way delay [s]: waiting in the send buffer, and behind a lost
        segment, one's own included.
    counts : dict of int
        Segments sent, lost and retransmitted; recoveries, timeouts, probes and reordering timeouts.
    sent_after, read_after : ndarray of float
        Of each packet, from write to first transmission and to read [s]; empty unless a trace was asked for.
    """

    packets: int = 0
    seed: int = 0
    mean_interval: Interval = UNKNOWN
    quantile_interval: Interval = UNKNOWN
    sender_delay: float = 0.0
    head_of_line_delay: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    sent_after: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), repr=False)
    read_after: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), repr=False)


def simulate(
    flow: Flow,
    path: Path,
    stack: Stack | None = None,
    *,
    packets: int | None = None,
    seed: int = 0,
    quantile: float = 0.95,
    half_width: float = HALF_WIDTH,
    loss_burst: float = 1.0,
    tick_offset: float | None = None,
    trace: bool = False,
) -> Simulation:
    """Simulate a flow over Linux TCP, ACK by ACK.

    Parameters
    ----------
    flow : Flow
        The packets.
    path : Path
        The network: constant delays, random losses.
    stack : Stack, optional
        `Stack.linux(...)`, its defaults if left out.
    packets : int, optional
        Packets that count, 1000 to 1e9; by default as many as `half_width` takes, 20 million at most.
    seed : int
        Seed of the losses, 0 or more; one seed gives one result.
    quantile : float
        The quantile that is to be known precisely, above 0 and below 1.
    half_width : float
        Half width of its 95 % interval, relative to it, above 0 and below 1.
    loss_burst : float
        Mean number of segments lost in a row, 1 to 100; above 1 the losses follow a Gilbert model.
    tick_offset : float, optional
        Time from a tick of the kernel's clock to the first write [s], 0 to 1; by default it is drawn anew for every
        50 000 packets, as flows and kernels have no common clock.
    trace : bool
        Whether to keep the delays of every packet, in the order of writing; `packets` must then be given.

    Returns
    -------
    Simulation
        The delays. Where the backlog grows for as long as the flow lasts, every quantile is infinite.

    Raises
    ------
    ValueError
        If a value is out of its range, or more segments would be under way than there is room for.

    Examples
    --------
    >>> delays = simulate(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), packets=100_000, seed=1)
    >>> round(delays.mean, 3), round(delays.quantile(0.95), 3)
    (0.062, 0.14)
    """
    stack = Stack.linux() if stack is None else stack
    if not isinstance(stack, Linux):
        raise ValueError(f"stack must be one of Stack.linux(...), got {stack!r}")
    if path.loss_pattern != "random":
        raise ValueError(f"loss_pattern must be 'random' in a simulation, got {path.loss_pattern!r}")
    _check("quantile", quantile, 0, 1, "")
    _check("half_width", half_width, 0, 1, "")
    if not 1 <= loss_burst <= 100:
        raise ValueError(f"loss_burst must lie between 1 and 100 segments, got {loss_burst:g}")
    if tick_offset is not None and not 0 <= tick_offset <= 1:
        raise ValueError(f"tick_offset must lie between 0 and 1 s, got {tick_offset:g}")
    if packets is not None and not 1000 <= packets <= 1e9:
        raise ValueError(f"packets must lie between 1000 and 1e9, got {packets:g}")
    if trace and packets is None:
        raise ValueError("packets must be given with a trace")
    segments = -(-flow.packet_size // stack.mss) * (path.rtt / flow.interval + 1)
    if segments > LARGEST_FLIGHT / 2:
        raise ValueError(f"rtt must be less than {LARGEST_FLIGHT // 2} segments of the flow long, got {segments:.0f}")
    connection, wire = _start(flow, path, stack, seed, loss_burst)
    if tick_offset is not None:
        connection.tick_phase += round(tick_offset * SECOND) % connection.tick - connection.tick_phase % connection.tick
    advance(connection, wire, WARM_UP)
    return _run(connection, wire, path, packets, seed, quantile, half_width, tick_offset is None, trace)


def _check(name: str, value: float, low: float, high: float, unit: str) -> None:
    if not low < value < high:
        raise ValueError(f"{name} must lie between {low:g} and {high:g}{unit}, got {value:g}")


def _start(flow: Flow, path: Path, stack: Linux, seed: int, loss_burst: float) -> tuple[Any, Wire]:
    """Return a new connection."""
    random = np.random.default_rng(seed)
    (connection,) = np.zeros(1, CONNECTION).view(np.recarray)
    tick = SECOND // stack.hz
    settings = {
        "packet_size": flow.packet_size,
        "interval": round(flow.interval * SECOND),
        "mss": stack.mss,
        "one_way_delay": round(path.forward_delay * SECOND),
        "rtt": round(path.rtt * SECOND),
        "tick": tick,
        # The flow begins anywhere within a tick; and zero must be no tick, as it means "unset".
        "tick_phase": SECOND * SECOND // tick * tick + int(random.integers(tick)),
        "rto_min": round(stack.rto_min * SECOND),
        "cubic": int(stack.congestion_control == "cubic"),
        "window_validation": int(stack.window_validation),
        "reordering_window": 1,
        "proportional_reduction": 1,
        "leaping": 1,
        "loss": path.loss,
        "loss_burst": loss_burst,
        "snd_cwnd": INITIAL_WINDOW,
        "snd_ssthresh": INFINITE_SSTHRESH,
        "min_rtt": NEVER,
        "timer_at": NEVER,
        "rto": -(-round(FIRST_TIMEOUT * SECOND) // tick),
        "until_loss": segments_until_loss(random, path.loss),
    }
    for name, value in settings.items():
        connection[name] = value
    wire = Wire(
        np.zeros(RING, SEGMENT).view(np.recarray),
        np.zeros(RING, ACKNOWLEDGEMENT).view(np.recarray),
        np.zeros((2, 2 * CHUNK), np.int64),
        random,
    )
    return connection, wire


def _run(
    connection: Any,
    wire: Wire,
    path: Path,
    packets: int | None,
    seed: int,
    quantile: float,
    half_width: float,
    drifting: bool,
    trace: bool,
) -> Simulation:
    batches, sums, backlogs, traces = Batches(), np.zeros(2), [], []
    wanted = MOST_PACKETS if packets is None else packets
    chunk = min(CHUNK, -(-wanted // 20))
    counted = 0
    while counted < wanted:
        first = int(connection.packets_read)
        size = min(chunk, wanted - counted)
        if drifting:
            connection.tick_phase += int(wire.random.integers(connection.tick))
        advance(connection, wire, first + size)
        delays = wire.delays[:, np.arange(first, first + size) % wire.delays.shape[1]]
        counted += size
        batches.add(delays[0])
        sums += delays.sum(axis=1)
        if trace:
            traces.append(delays)
        backlogs.append(int(connection.packets_written - connection.packets_read))
        if _grows(backlogs, counted):
            return _unsustainable(path, counted, seed, connection)
        if packets is None and batches.enough and batches.quantile(quantile).relative_half_width <= half_width:
            break
    values, counts = batches.histogram()
    mean_delay, mean_sender = sums / counted / MICROSECONDS
    kept = np.concatenate(traces, axis=1) / MICROSECONDS if trace else np.empty((2, 0))
    return Simulation(
        np.asarray(values / MICROSECONDS, np.float64),
        counts / counts.sum(),
        path.forward_delay,
        packets=counted,
        seed=seed,
        mean_interval=batches.mean(),
        quantile_interval=batches.quantile(quantile),
        sender_delay=float(mean_sender),
        head_of_line_delay=float(mean_delay - mean_sender - path.forward_delay),
        counts={name: int(connection[name]) for name in COUNTS},
        sent_after=kept[1],
        read_after=kept[0],
    )


def _grows(backlogs: list[int], packets: int) -> bool:
    """Whether the packets written but not read keep growing with the length of the flow."""
    if len(backlogs) < LONG_RUN:
        return False
    recent = backlogs[-LONG_RUN:]
    rising = all(later > earlier for earlier, later in pairwise(recent))
    return rising and recent[-1] - recent[0] > GROWTH * packets


def _unsustainable(path: Path, packets: int, seed: int, connection: Any) -> Simulation:
    counts = {name: int(connection[name]) for name in COUNTS}
    never = Interval(np.inf, np.inf, np.inf)
    return Simulation(
        np.array([np.inf]),
        np.array([1.0]),
        path.forward_delay,
        sustainable=False,
        packets=packets,
        seed=seed,
        mean_interval=never,
        quantile_interval=never,
        sender_delay=np.inf,
        head_of_line_delay=np.inf,
        counts=counts,
    )
