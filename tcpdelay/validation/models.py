"""The models that are scored, and their predictions, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tcpdelay.chain.model import ChainTooLargeError, DelayModel
from tcpdelay.distribution import DelayDistribution
from tcpdelay.scenario import Flow, Path, Stack

SMALLEST_RESERVE = 0.002
"""Reserve of TCP over the flow, relative to its rate, below which the chain is not solved.

Delays then are of minutes and depend on the last digits of the reserve, and the solution takes half a minute."""
SMALLEST_TIMEOUT = 0.200
"""What Linux adds to the round-trip time at least in its retransmission timeout [s] (TCP_RTO_MIN)."""


@dataclass(frozen=True)
class ScoredModel:
    """A model under a name.

    Parameters
    ----------
    name : str
        Name in tables and files.
    title : str
        What it is, in a few words.
    stack : callable
        Returns the stack for a path.
    """

    name: str
    title: str
    stack: Callable[[Path], Stack]


def _published(path: Path) -> Stack:
    return Stack.newreno_2008(backlog_bound="grow")


def _with_linux_timeout(path: Path) -> Stack:
    return Stack.newreno_2008(initial_timeout=path.rtt + SMALLEST_TIMEOUT, limited_transmit=True, backlog_bound="grow")


MODELS = (
    ScoredModel("newreno_2008", "published chain, first timeout of 4 RTT", _published),
    ScoredModel(
        "newreno_2008-rto",
        "published chain, first timeout of RTT + 200 ms, limited transmit",
        _with_linux_timeout,
    ),
)


@dataclass(frozen=True)
class Prediction:
    """What a model says about a flow and a path.

    Parameters
    ----------
    distribution : DelayDistribution or None
        The delays; None where the chain was not solved because TCP hardly carries the flow.
    """

    distribution: DelayDistribution | None

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


class Predictions:
    """Predictions of the models, each flow, path and model computed once.

    Parameters
    ----------
    models : sequence of ScoredModel
        The models.

    Examples
    --------
    >>> predictions = Predictions()
    >>> prediction = predictions.of("newreno_2008", Flow(174, 0.020), Path(0.100, 0.02))
    >>> round(prediction.quantile(0.95), 3), prediction.sustainable
    (0.19, True)
    """

    def __init__(self, models: Sequence[ScoredModel] = MODELS) -> None:
        self.models = {model.name: model for model in models}
        self._known: dict[tuple[str, Flow, Path], Prediction] = {}

    def of(self, name: str, flow: Flow, path: Path) -> Prediction:
        """Return the prediction of the model called `name`; KeyError if there is none."""
        key = (name, flow, path)
        if key not in self._known:
            self._known[key] = predict(self.models[name], flow, path)
        return self._known[key]


def predict(model: ScoredModel, flow: Flow, path: Path) -> Prediction:
    """Return what a model says, without solving chains whose answer is clear or takes too long."""
    try:
        chain = DelayModel(flow, path, model.stack(path))
        # The drift is cheap, and one upwards means that no bound of the backlog is wide enough.
        if chain.backlog_drift >= 0:
            return Prediction(DelayDistribution.unsustainable(path.forward_delay))
        if -chain.backlog_drift < SMALLEST_RESERVE * flow.packet_rate:
            return Prediction(None)
        return Prediction(chain.delay_distribution())
    except ChainTooLargeError:
        return Prediction(None)
