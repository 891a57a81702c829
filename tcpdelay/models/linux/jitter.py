"""Jitter below the packet interval, as a mean of chains with a constant round-trip time each.

Each segment takes an additional time that is uniform from 0 to the jitter J. With J up to the packet interval, packets
that leave with their writes do not overtake each other. A packet that waits for nothing takes

    one-way delay + U,

and a packet that waits for an ACK, or for a repair, meets the additional delays of two segments: U' of the segment that
triggers the ACK, and U of its own segment, or of the retransmission. U' lengthens the round-trip time of the wait, so

    delay = D(RTT + U') + U,

where D(R) is the delay of the chain with the constant round-trip time R. The expectation over U' is the sum over the
nodes of Gauss's quadrature: with two nodes it is exact for a D that is a polynomial of third degree in R.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.interface import SIMULATED, UnsupportedError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux

NODES = (0.5 - math.sqrt(1 / 12), 0.5 + math.sqrt(1 / 12))
"""Nodes of the Gauss-Legendre quadrature with two points on the interval from 0 to 1; their weights are equal."""
STEPS_OF_JITTER, STEPS_OF_DELAY = 128, 512
"""Number of delays that are distinguished within the jitter, and within a delay itself: the larger step counts."""
NEGLIGIBLE = 1e-13
"""Density, as a weight per jitter, below which there are no delays: the rounding error of sums."""


def jitter_refusals(flow: Flow, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
    """Yield an error for each field of a scenario with jitter that the chain refuses because of the jitter.

    The retransmission timeout is the smoothed RTT plus the larger of RTO_MIN and four mean deviations of the RTT
    (`tcp_rtt_estimator`, `tcp_set_rto`; RFC 6298, 2.3). The mean deviation is J / 4, so RTO_MIN holds while J is below.

    Examples
    --------
    >>> late = Path(rtt=0.100, loss=0.02, jitter=0.030)
    >>> [str(refused) for refused in jitter_refusals(Flow(174, 0.020), late, Linux())]
    ['jitter must be at most 0.02 s, the interval, in the chain, got 0.03; tcpdelay.simulate takes it into account']
    >>> list(jitter_refusals(Flow(174, 0.020), Path(rtt=0.100, loss=0.02, jitter=0.005), Linux()))
    []
    """
    if path.jitter == 0:
        return
    longest = min((flow.interval, "the interval"), (stack.rto_min, "the minimum retransmission timeout"))
    if path.jitter > longest[0]:
        yield UnsupportedError(
            "jitter", path.jitter, f"be at most {longest[0]:g} s, {longest[1]}, in the chain", SIMULATED
        )
    where = "in the chain with jitter"
    if flow.packet_size > stack.mss:
        yield UnsupportedError("packet_size", flow.packet_size, f"be at most {stack.mss} bytes {where}", SIMULATED)
    if path.loss_pattern != "random":
        yield UnsupportedError("loss_pattern", path.loss_pattern, f"be 'random' {where}", SIMULATED)
    if path.loss_burst > 1:
        yield UnsupportedError("loss_burst", path.loss_burst, f"be 1 {where}", SIMULATED)


def constant_paths(path: Path) -> tuple[Path, ...]:
    """Return paths without jitter, equally probable, whose round-trip times have the distribution of RTT + U'.

    Examples
    --------
    >>> [round(one.rtt, 5) for one in constant_paths(Path(rtt=0.100, loss=0.02, jitter=0.010))]
    [0.10211, 0.10789]
    >>> path = Path(rtt=0.100, loss=0.02)
    >>> constant_paths(path) == (path,)
    True
    """
    if path.jitter == 0:
        return (path,)
    forward = path.forward_delay
    return tuple(replace(path, rtt=path.rtt + node * path.jitter, one_way_delay=forward, jitter=0.0) for node in NODES)


def with_jitter(
    distributions: Sequence[DelayDistribution], jitter: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean of equally probable distributions, each delay with a uniform additional delay U.

    The sum of a delay v and U has the density 1 / J from v to v + J. So the density of the mixture is constant between
    two neighbouring ends v or v + J. Each such piece is cut into equal parts, and a part is one delay at its middle,
    which keeps the mean.

    Parameters
    ----------
    distributions : sequence of DelayDistribution
        Distributions of the same number of packets, of finite delays.
    jitter : float
        Largest additional delay J [s], above 0.

    Returns
    -------
    values, weights : ndarray
        Ascending delays [s], and their weights, which sum to 1.

    Examples
    --------
    >>> punctual = DelayDistribution(np.array([0.05]), np.array([1.0]), one_way_delay=0.05)
    >>> values, weights = with_jitter([punctual], jitter=0.010)
    >>> round(float((values * weights).sum()), 6), values.size, round(float(values[0]), 4)
    (0.055, 103, 0.05)
    """
    starts = np.concatenate([one.values for one in distributions])
    weights = np.concatenate([one.weights for one in distributions]) / len(distributions)
    ends = np.concatenate([starts, starts + jitter])
    order = np.argsort(ends, kind="stable")
    ends, weight_per_jitter = ends[order], np.cumsum(np.concatenate([weights, -weights])[order])[:-1]
    filled = weight_per_jitter > NEGLIGIBLE
    begins, lengths = ends[:-1][filled], np.diff(ends)[filled]
    step = np.maximum(jitter / STEPS_OF_JITTER, begins / STEPS_OF_DELAY)
    parts = np.ceil(lengths / step).clip(1).astype(np.int64)
    first = np.cumsum(parts) - parts
    place = np.arange(parts.sum()) - np.repeat(first, parts)
    values = np.repeat(begins, parts) + (place + 0.5) * np.repeat(lengths / parts, parts)
    masses = np.repeat(weight_per_jitter[filled] * lengths / parts, parts)
    # Ends that differ by rounding only may have the same middle.
    distinct, places = np.unique(values, return_inverse=True)
    joined = np.bincount(places, masses)
    return distinct, joined / joined.sum()
