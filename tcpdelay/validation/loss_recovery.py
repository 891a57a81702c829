"""The pattern of delays that a single loss leaves behind: that of the lost packet, of the one after it, and so on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow

PROBABILITIES = (0.1, 0.5, 0.9)
"""Quantiles of the delay that are kept of each place after a loss."""
SLACK = 0.002
"""Delay beyond the network's from which a packet counts as late [s]: above the noise of real time."""
QUIET_TIME = 1.0
"""Time beside a round-trip time in which nothing may have been late before a loss for it to be isolated [s]."""
LONGEST_PATTERN, SHORTEST_PATTERN = 64, 12
"""Packets after a loss that are looked at."""
ROUND_TRIPS = 4
"""Round-trip times after a loss that are looked at, within the limits above."""
FEWEST_LOSSES = 20


def delays_after_loss(sequences: Sequence[NDArray[np.float64]], flow: Flow, path: Path) -> NDArray[np.float64]:
    """Return quantiles of the delays of the packets that follow an isolated loss.

    Delays do not tell losses from one another, so a loss is isolated if no packet before it was late for a while;
    further losses within the pattern remain in it, and show as the distance between its quantiles.

    Parameters
    ----------
    sequences : sequence of ndarray
        Delays [s] in the order of writing; one array per run.
    flow : Flow
        The packets.
    path : Path
        Its round-trip time sets how long the pattern is.

    Returns
    -------
    ndarray, shape (3, n)
        The quantiles of `PROBABILITIES` [s] for the lost packet and those after it; n is 0 with fewer than 20 such
        losses.

    Examples
    --------
    >>> delays = np.full(4000, 0.01)
    >>> delays[99::100], delays[0::100] = 0.05, 0.03
    >>> delays_after_loss([delays], Flow(174, 0.020), Path(0.020, 0.01))[1, :3].tolist()
    [0.05, 0.03, 0.01]
    """
    quiet = math.ceil((QUIET_TIME + path.rtt) / flow.interval)
    length = min(max(SHORTEST_PATTERN, 1 + math.ceil(ROUND_TRIPS * path.rtt / flow.interval)), LONGEST_PATTERN)
    patterns = []
    for delays in sequences:
        late = delays > path.forward_delay + SLACK
        before = np.concatenate([[0], np.cumsum(late)])
        places = np.arange(quiet, max(quiet, delays.size - length + 1))
        losses = places[late[places] & (before[places] == before[places - quiet])]
        patterns.append(delays[losses[:, None] + np.arange(length)])
    found = np.concatenate(patterns) if patterns else np.empty((0, length))
    if found.shape[0] < FEWEST_LOSSES:
        return np.empty((len(PROBABILITIES), 0))
    return np.asarray(np.quantile(found, PROBABILITIES, axis=0, method="inverted_cdf"), np.float64)
