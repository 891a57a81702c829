"""The models that are scored, and their predictions, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.chain import DelayModel
from tcpdelay.models.interface import TooLargeError
from tcpdelay.models.tcp import RTO_MIN
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import CongestionControl, Stack
from tcpdelay.validation.measured import MeasuredDelay
from tcpdelay.validation.simulated import SimulatedFlow, simulate_flow, simulated_flow

SMALLEST_RESERVE = 0.002
"""Reserve of TCP over the flow, relative to its rate, below which the chain is not solved.

Delays then are of minutes and depend on the last digits of the reserve, and the solution takes half a minute."""


@dataclass(frozen=True)
class Prediction:
    """What a model says about a flow and a path.

    Parameters
    ----------
    distribution : DelayDistribution or None
        The delays; None where the chain was not solved because TCP hardly carries the flow.
    after_loss : ndarray, optional
        Delays of the packets after an isolated loss, as `tcpdelay.validation.loss_recovery.delays_after_loss` finds
        them; None where the model has no single packets.
    """

    distribution: DelayDistribution | None
    after_loss: NDArray[np.float64] | None = None

    @property
    def sustainable(self) -> bool:
        """Whether TCP carries the flow, with whatever small reserve."""
        return self.distribution is None or self.distribution.sustainable

    def quantile(self, probability: float) -> float:
        """Return the quantile [s]; NaN where the chain was not solved."""
        return float("nan") if self.distribution is None else self.distribution.quantile(probability)

    @property
    def mean(self) -> float:
        """Mean delay [s]; NaN where the chain was not solved."""
        return float("nan") if self.distribution is None else self.distribution.mean

    def late_fraction(self, playout_delay: float) -> float:
        """Return the share of packets later than `playout_delay` [s]; NaN where the chain was not solved."""
        return float("nan") if self.distribution is None else self.distribution.late_fraction(playout_delay)


@dataclass(frozen=True)
class ScoredModel:
    """A model under a name.

    Parameters
    ----------
    name : str
        Name in tables and files.
    title : str
        What it is, in a few words.
    question : callable
        Returns all of a capture that its prediction depends on, or None where it does not describe such a capture.
    answer : callable
        Returns the prediction for such a question.
    halves : bool
        Whether its errors are also reported for the captures held out from its design and for the others.
    """

    name: str
    title: str
    question: Callable[[MeasuredDelay], Hashable | None]
    answer: Callable[[Any], Prediction]
    halves: bool = False


@dataclass(frozen=True)
class ChainQuestion:
    """What a chain's prediction depends on."""

    flow: Flow
    path: Path
    stack: Stack


def chain(
    name: str, title: str, stack: Callable[[MeasuredDelay], Stack], halves: bool = False, routed: bool = True
) -> ScoredModel:
    """Return a chain as a model to be scored on lone or competing flows over the default stack, in virtual time.

    Parameters
    ----------
    name, title : str
        As for `ScoredModel`.
    stack : callable
        Returns the profile for a capture.
    halves : bool
        As for `ScoredModel`.
    routed : bool
        Whether it describes flows that compete behind a router.
    """

    def question(capture: MeasuredDelay) -> ChainQuestion | None:
        described = capture.plain or (routed and capture.experiment.routed)
        return ChainQuestion(capture.flow, capture.path, stack(capture)) if described else None

    return ScoredModel(name, title, question, solve, halves)


def solve(question: ChainQuestion) -> Prediction:
    """Return what a chain says, without solving those whose answer is clear or takes too long."""
    flow, path = question.flow, question.path
    try:
        model = DelayModel(flow, path, question.stack)
        # The drift is cheap, and one upwards means that no bound of the backlog is wide enough.
        if model.backlog_drift >= 0:
            return Prediction(DelayDistribution.unsustainable(path.forward_delay))
        if -model.backlog_drift < SMALLEST_RESERVE * flow.packet_rate:
            return Prediction(None)
        return Prediction(model.delay_distribution())
    except TooLargeError:
        return Prediction(None)


def _published(capture: MeasuredDelay) -> Stack:
    return Stack.newreno_2008(backlog_bound="grow")


def _with_linux_timeout(capture: MeasuredDelay) -> Stack:
    timeout = capture.path.rtt + RTO_MIN
    return Stack.newreno_2008(initial_timeout=timeout, limited_transmit=True, backlog_bound="grow")


def _linux(capture: MeasuredDelay) -> Stack:
    return Stack.linux(cast(CongestionControl, capture.experiment.congestion_control), hz=capture.hz)


def _simulate(flow: SimulatedFlow) -> Prediction:
    return Prediction(*simulate_flow(flow))


PUBLISHED = chain("newreno_2008", "published chain, first timeout of 4 RTT", _published)
PUBLISHED_LINUX_TIMEOUT = chain(
    "newreno_2008-rto", "published chain, first timeout of RTT + 200 ms, limited transmit", _with_linux_timeout
)
LINUX = chain("linux", "chain of current Linux, of the capture's congestion control", _linux, halves=True, routed=False)
SIMULATOR = ScoredModel(
    "simulator", "Linux TCP simulated ACK by ACK, of the capture's congestion control", simulated_flow, _simulate
)
MODELS = (PUBLISHED, PUBLISHED_LINUX_TIMEOUT, LINUX, SIMULATOR)


class Predictions:
    """Predictions of the models, each question to a model answered once.

    Parameters
    ----------
    models : sequence of ScoredModel
        The models.
    """

    def __init__(self, models: Sequence[ScoredModel] = MODELS) -> None:
        self.models = {model.name: model for model in models}
        self._known: dict[tuple[str, Hashable], Prediction] = {}

    def of(self, name: str, capture: MeasuredDelay) -> Prediction | None:
        """Return what the model called `name` says about a capture; None where it does not describe such a one."""
        model = self.models[name]
        question = model.question(capture)
        if question is None:
            return None
        if (name, question) not in self._known:
            self._known[name, question] = model.answer(question)
        return self._known[name, question]
