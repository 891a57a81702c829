"""Jitter: the distributions of netem, correlation from segment to segment, and segments that keep their order.

netem keeps an inverse distribution function as a table of deviations from the mean, and draws an entry for each packet
(net/sched/sch_netem.c, `tabledist`). iproute2 generates the tables (netem/normal.c, pareto.c and paretonormal.c). Here
they are computed anew, and equal those in `/usr/lib/tc`.

netem's own correlation (`get_crandom`) has no effect on delays: the correlated number is reduced modulo the size of
the table, or the width of the uniform distribution, and its remainder is as good as independent of the number before.
So correlated jitter is drawn here from an autoregressive normal process, whose distribution function gives the place
in the table. Every delay then has the same distribution as without correlation.
"""

from __future__ import annotations

import math
from array import array
from functools import cache
from statistics import NormalDist
from typing import Literal

JitterDistribution = Literal["uniform", "normal", "pareto", "paretonormal"]
"""Distributions of the additional delay; all but "uniform" are the tables of netem."""
TABLE_SIZE, TABLE_SCALE = 4096, 8192
"""Entries of a table of netem, and its units in a standard deviation (NETEM_DIST_SCALE)."""
SHORTEST, LONGEST = -(1 << 15), (1 << 15) - 1
"""Range of an entry of a table (SHRT_MIN, SHRT_MAX): four standard deviations."""
RELEASE_RATE = 1e9
"""Rate at which packets leave that have waited for the packets ahead [bit/s].

Without a rate they would leave in one instant, and RACK would take a retransmission that leaves together with a new
segment for older (`tcp_rack_sent_after`).
"""
RELEASE_OVERHEAD = 250
"""Bytes by which each packet counts as longer at that rate.

A packet of less than 100 bytes would otherwise follow the packet ahead within 1 us. A guest in virtual time needs as
long to wake the application, which would then read and acknowledge both together.
"""
GRID = 0.00005
"""Step of the grid from -10 standard deviations on, on which iproute2 inverts the normal distribution."""
PARETO_SHAPE = 3.0


@cache
def jitter_table(distribution: JitterDistribution) -> array[int]:
    """Return netem's table of a distribution: deviations from the mean, in units of a standard deviation / 8192.

    The normal table has the largest number of the grid whose probability is rounded to that of the entry. The Pareto
    table has the shape 3, scaled to the mean 0 and the standard deviation 1, and ends at four standard deviations. The
    third table is a quarter normal and three quarters Pareto.

    Examples
    --------
    >>> list(jitter_table("normal")[:2]), list(jitter_table("pareto")[-2:])
    ([-32768, -28307], [32767, 32767])
    """
    entry = {"normal": _normal, "pareto": _pareto, "paretonormal": _mixed}[distribution]
    return array("h", (min(max(entry(place), SHORTEST), LONGEST) for place in range(TABLE_SIZE)))


def _normal(place: int) -> int:
    most = NormalDist().inv_cdf((4 * place + 0.5) / (4 * TABLE_SIZE))
    return round((math.floor((most + 10) / GRID) * GRID - 10) * TABLE_SCALE)


def _pareto(place: int) -> int:
    deviation: float = (1 - place / TABLE_SIZE) ** (-1 / PARETO_SHAPE) - PARETO_SHAPE / (PARETO_SHAPE - 1)
    return round(min(deviation * (4 / 3) * TABLE_SCALE, LONGEST))


def _mixed(place: int) -> int:
    """Return a quarter of the normal and three quarters of the Pareto entry, rounded toward 0 as C does."""
    quarters = _normal(place) + 3 * _pareto(place)
    return quarters // 4 if quarters >= 0 else -(-quarters // 4)


def table_delay(mean: int, deviation: int, entry: int) -> int:
    """Return the delay [ns] of a table's entry, given mean and standard deviation [ns]; below 0 it passes at once.

    The arithmetic is that of `tabledist`.

    Examples
    --------
    >>> table_delay(50_000_000, 10_000_000, 8192), table_delay(50_000_000, 10_000_000, -4096)
    (60000000, 45000000)
    """
    rest = (deviation % TABLE_SCALE) * entry
    half = TABLE_SCALE // 2
    rounded = (rest + half) // TABLE_SCALE if rest >= 0 else -((half - rest) // TABLE_SCALE)
    return max(rounded + deviation // TABLE_SCALE * entry + mean, 0)


@cache
def mean_jitter(delay: float, jitter: float, distribution: JitterDistribution) -> float:
    """Return the mean additional delay [s] on a path with a constant delay [s]: half of the jitter, or by the table."""
    if distribution == "uniform":
        return jitter / 2
    lows = (max(delay + jitter / 2 * (1 + entry / TABLE_SCALE), 0.0) for entry in jitter_table(distribution))
    return sum(lows) / TABLE_SIZE - delay


def largest_jitter(jitter: float, distribution: JitterDistribution) -> float:
    """Return the largest additional delay [s].

    Examples
    --------
    >>> [round(largest_jitter(0.010, each), 4) for each in ("uniform", "normal", "pareto")]
    [0.01, 0.0226, 0.025]
    """
    return jitter if distribution == "uniform" else jitter / 2 * (1 + jitter_table(distribution)[-1] / TABLE_SCALE)
