"""The chain of speech behind the interface of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.accuracy import SPEECH_TABLE
from tcpdelay.models.budget import SECONDS_PER_UPDATE, Budget, TooLargeError
from tcpdelay.models.compilation import interpreted_first
from tcpdelay.models.interface import SIMULATED, UnsupportedError
from tcpdelay.models.linux.delays import cost_of_bins, delay_bins, filled_bins
from tcpdelay.models.linux.departures import WEIGHT
from tcpdelay.models.linux.parameters import linux_parameters
from tcpdelay.models.linux.phases import make_layout, start_phase
from tcpdelay.models.linux.profile import beyond_backlog, compile_kernels, first_bound, seconds_of_phases
from tcpdelay.models.linux.talk_spurts import Alternation, first_packets, speech_chain
from tcpdelay.models.solver.measures import probability_at_bound
from tcpdelay.models.solver.narrow import NEGLIGIBLE_TRUNCATION
from tcpdelay.models.solver.profile import BYTES_PER_CELL
from tcpdelay.models.solver.state_space import reachable_rows
from tcpdelay.models.solver.stationary import from_start, solve_within
from tcpdelay.models.source_chain import SourceChain, SourceDelays
from tcpdelay.models.tcp import INITIAL_WINDOW
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.sources.speech import Speech
from tcpdelay.scenario.stack import Linux

LEAST_PACKETS_PER_SEGMENT = 2
"""Smallest number of packets in a full segment: with larger packets a backlog may outlast a talk spurt."""
LARGEST_UTILIZATION = 0.25
"""Largest rate of a talk spurt, relative to the fair rate of TCP: above it, windows limit the sender too often."""
SHORTEST_TALK = 0.2
"""Shortest mean talk spurt, and shortest mean silence, at which the chain has been compared with the simulator [s]."""
MOST_DOUBLINGS = 4
"""Number of times that the bound of the backlog is doubled."""


class SpeechModel(SourceChain):
    """The Markov chain of a Linux kernel for speech: talk spurts and silences."""

    source = Speech
    subject = "speech"
    busy = "talk spurts"
    largest_utilization = LARGEST_UTILIZATION
    table = SPEECH_TABLE

    def refusals(self, source: Speech, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
        """Yield an error for each field that only the chain of speech refuses."""
        for name, size, most in (
            ("packet_size", source.packet_size, stack.mss / LEAST_PACKETS_PER_SEGMENT),
            ("rtt", path.rtt, INITIAL_WINDOW * source.interval),
        ):
            if size > most:
                yield UnsupportedError(name, size, f"be at most {most:g} in the chain of speech", SIMULATED)
        for name in ("talk", "silence"):
            if getattr(source, name) < SHORTEST_TALK:
                allowed = f"be at least {SHORTEST_TALK:g} s in the chain of speech"
                yield UnsupportedError(name, getattr(source, name), allowed, SIMULATED)

    def solve(
        self, source: Speech, path: Path, stack: Linux, ignored: Mapping[str, str], budget: Budget
    ) -> SourceDelays:
        """Solve the chain of speech."""

        # The first call is repeated in compiled kernels if it takes long in plain Python: each with the whole budget.
        def solve() -> SourceDelays:
            return _delays(source, path, stack, ignored, replace(budget))

        return interpreted_first(solve, filled_bins, compile_kernels)


def _delays(source: Speech, path: Path, stack: Linux, ignored: Mapping[str, str], budget: Budget) -> SourceDelays:
    """Solve the chain of speech.

    Raises
    ------
    TooLargeError
        If the backlog needs a larger bound than the solver tries, or the chain more time or memory than the budget.
    """
    alternation = Alternation(
        source.talk / (source.talk + source.silence), source.interval * (1 / source.talk + 1 / source.silence)
    )
    following = math.exp(-source.interval / source.talk)
    flow = source.without_silence
    p = linux_parameters(flow, path, stack)._replace(continuation=following)
    budget.load = f"{p.load:.4g} packets per round-trip time"
    budget.spend(seconds_of_phases(p))
    chain = speech_chain(p, alternation)
    start, bound = start_phase(p, make_layout(p)), first_bound(p)
    for _ in range(MOST_DOUBLINGS):
        rows = reachable_rows(chain.phases, chain.transitions, start, bound)
        budget.require_memory(float(rows["offset"][-1]) * BYTES_PER_CELL)
        inflow = from_start(rows, start)
        probability = solve_within(budget, chain.phases, chain.transitions, rows, start, inflow).probability
        cut = probability_at_bound(chain.phases, rows, probability)
        if cut < NEGLIGIBLE_TRUNCATION:
            break
        bound *= 2
    else:
        raise TooLargeError("the backlogs of talk spurts are too large for the chain of speech")
    beyond = beyond_backlog(p)
    updates, memory = cost_of_bins(p, chain.phases, chain.sending, rows, probability, beyond)
    budget.spend(2 * updates * SECONDS_PER_UPDATE)
    budget.require_memory(2 * memory)
    every = delay_bins(p, chain.phases, chain.sending, rows, probability, beyond)
    counted, weights = first_packets(chain, alternation, rows, probability)
    first = delay_bins(p, chain.phases, counted, rows, weights, beyond)
    # Every talk spurt has a first packet, and 1 / (1 - following) packets in the mean.
    share = (1 - following) * every[WEIGHT, :-1].sum() / first[WEIGHT, :-1].sum()
    later = every.copy()
    later[:, :-1] = np.maximum(every[:, :-1] - share * first[:, :-1], 0.0)
    of_kind = {
        kind: DelayDistribution(*_delays_of(bins, path, p.interval), path.forward_delay)
        for kind, bins in zip(source.kinds, (later, first), strict=True)
    }
    return SourceDelays(
        *_delays_of(every, path, p.interval),
        path.forward_delay,
        truncated_mass=float(cut),
        scenario=(source, path, stack),
        ignored=ignored,
        by_kind=of_kind,
    )


def _delays_of(
    bins: NDArray[np.float64], path: Path, interval: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the delays [s] in bins of slots, and their weights."""
    values, weights = filled_bins(bins)
    return path.forward_delay + values * interval, weights
