"""The chain of speech behind the interface of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import DelayDistribution, ExpectedError
from tcpdelay.models.accuracy import speech_error
from tcpdelay.models.chain_models import LinuxChain, ignored_settings
from tcpdelay.models.compilation import interpreted_first
from tcpdelay.models.interface import SIMULATED, Answer, Requested, Support, TooLargeError, UnsupportedError
from tcpdelay.models.linux.delays import delay_bins, filled_bins
from tcpdelay.models.linux.departures import WEIGHT
from tcpdelay.models.linux.parameters import PATH_FIELDS, linux_parameters, linux_refusals
from tcpdelay.models.linux.phases import make_layout, start_phase
from tcpdelay.models.linux.profile import beyond_backlog, compile_kernels, first_bound
from tcpdelay.models.linux.talk_spurts import Alternation, first_packets, speech_chain
from tcpdelay.models.solver.measures import probability_at_bound
from tcpdelay.models.solver.narrow import NEGLIGIBLE_TRUNCATION
from tcpdelay.models.solver.state_space import reachable_rows
from tcpdelay.models.solver.stationary import MAX_SWEEPS, solve_by_sweeps
from tcpdelay.models.tcp import INITIAL_WINDOW
from tcpdelay.models.throughput import connection_utilization
from tcpdelay.scenario.fields import declarations
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.speech import Speech
from tcpdelay.scenario.stack import Linux

LEAST_PACKETS_PER_SEGMENT = 2
"""Smallest number of packets in a full segment: with larger packets a backlog may outlast a talk spurt."""
LARGEST_UTILIZATION = 0.25
"""Largest rate of a talk spurt, relative to the fair rate of TCP: above it, windows limit the sender too often."""
SHORTEST_TALK = 0.2
"""Shortest mean talk spurt, and shortest mean silence, at which the chain has been compared with the simulator [s]."""
SHARE_ERROR = 0.05
"""Relative error of a share of late packets: where it would move p95 by 5 % or more, half of the p95 were so wrong."""
MOST_DOUBLINGS = 4
"""Number of times that the bound of the backlog is doubled."""


@dataclass(frozen=True, repr=False)
class SpeechDelays(DelayDistribution):
    """The delays of the packets of speech.

    Attributes
    ----------
    by_kind : mapping of str to DelayDistribution
        Delays of the first packets of talk spurts, and of all other packets.
    """

    by_kind: Mapping[str, DelayDistribution] = field(default_factory=dict, repr=False, compare=False)


class SpeechModel:
    """The Markov chain of a Linux kernel for speech: talk spurts and silences."""

    name = "chain"

    def supports(self, scenario: Scenario) -> Support:
        """Return which fields the chain honours, ignores and refuses."""
        if not isinstance(scenario.source, Speech) or not isinstance(scenario.stack, Linux):
            return Support(frozenset(), refused=(UnsupportedError("source", scenario.source, "be Speech", SIMULATED),))
        assumed = LinuxChain.assumed
        fields = {name for part in (Speech, Linux) for name in declarations(part)}
        refused = tuple(_refusals(scenario.source, scenario.path, scenario.stack))
        ignored = ignored_settings(scenario.stack, assumed)
        return Support(frozenset(fields - set(assumed)) | PATH_FIELDS, ignored, refused)

    def answer(self, scenario: Scenario, requested: Requested) -> Answer:
        """Return the chain's answer."""
        support = self.supports(scenario)
        answered = partial(Answer, scenario, requested, self.name, ignored=support.ignored)
        if support.refused:
            return answered("unsupported", refusal=support.refused[0])
        source, path, stack = scenario.source, scenario.path, scenario.stack
        assert isinstance(source, Speech)
        assert isinstance(stack, Linux)
        solve = partial(_delays, source, path, stack, support.ignored)
        try:
            found = interpreted_first(solve, filled_bins, compile_kernels)
        except TooLargeError as error:
            return answered("too large", refusal=error)
        target = requested.target
        return answered(
            "exact",
            found.quantile(np.array(requested.quantiles)),
            found.late_fraction(np.array(requested.late_after)),
            found.mean,
            True,
            found.truncated_mass,
            distribution=found,
            lateness=np.nan if target is None else found.late_fraction(target.latest),
        )

    def capacity(self, scenario: Scenario) -> float:
        """Return NaN: the chain answers only far below the capacity."""
        return np.nan


def _refusals(source: Speech, path: Path, stack: Linux) -> Iterator[UnsupportedError]:
    """Yield an error for each field of a scenario that the chain of speech refuses."""
    flow = source.without_silence
    if stack.congestion_control == "bbr":
        yield UnsupportedError("congestion_control", "bbr", "be cubic or reno in the chain of speech", SIMULATED)
        return
    for name, value in (("loss_pattern", "random"), ("loss_burst", 1.0), ("bottleneck", "packets")):
        if getattr(path, name) != value:
            allowed = f"be {value!r} in the chain of speech"
            yield UnsupportedError(name, getattr(path, name), allowed, SIMULATED)
            return
    yield from linux_refusals(flow, path, stack)
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
    if path.loss > 0 and connection_utilization(flow, path, stack) > LARGEST_UTILIZATION:
        limit = f"{LARGEST_UTILIZATION:.0%} of the fair rate of TCP"
        allowed = f"be smaller in the chain of speech: talk spurts exceed {limit}"
        yield UnsupportedError("loss", path.loss, allowed, SIMULATED)


def _delays(source: Speech, path: Path, stack: Linux, ignored: Mapping[str, str]) -> SpeechDelays:
    """Solve the chain of speech.

    Raises
    ------
    TooLargeError
        If the backlog needs a larger bound than the solver tries.
    """
    alternation = Alternation(
        source.talk / (source.talk + source.silence), source.interval * (1 / source.talk + 1 / source.silence)
    )
    following = math.exp(-source.interval / source.talk)
    flow = source.without_silence
    p = linux_parameters(flow, path, stack)._replace(continuation=following)
    chain = speech_chain(p, alternation)
    start, bound = start_phase(p, make_layout(p)), first_bound(p)
    for _ in range(MOST_DOUBLINGS):
        rows = reachable_rows(chain.phases, chain.transitions, start, bound)
        probability = solve_by_sweeps(chain.phases, chain.transitions, rows, start, MAX_SWEEPS).probability
        cut = probability_at_bound(chain.phases, rows, probability)
        if cut < NEGLIGIBLE_TRUNCATION:
            break
        bound *= 2
    else:
        raise TooLargeError("the backlogs of talk spurts are too large for the chain of speech")
    beyond = beyond_backlog(p)
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
    delays = SpeechDelays(
        *_delays_of(every, path, p.interval),
        path.forward_delay,
        truncated_mass=float(cut),
        scenario=(source, path, stack),
        ignored=ignored,
        by_kind=of_kind,
    )
    return replace(delays, look_up_error=partial(_expected_error, delays, flow, path, stack))


def _expected_error(delays: SpeechDelays, talk: Flow, path: Path, stack: Linux, quantile: float) -> ExpectedError:
    """Return the expected error of a quantile.

    The delays of speech are a comb. At the edge of a tooth, a small error of the share of late packets moves a quantile
    by a whole tooth. So the error is at least half of this distance in the mean, and the distance in nine of ten.
    """
    found = speech_error(talk, path, stack, quantile)
    at = delays.quantile(quantile)
    late = (1 - quantile) * np.array([1 - SHARE_ERROR, 1 + SHARE_ERROR])
    moved = float(np.abs(delays.quantile(1 - late) / at - 1).max())
    return replace(found, mean=max(found.mean, moved / 2), p90=max(found.p90, moved))


def _delays_of(
    bins: NDArray[np.float64], path: Path, interval: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the delays [s] in bins of slots, and their weights."""
    values, weights = filled_bins(bins)
    return path.forward_delay + values * interval, weights
