"""The place of a chain of QUIC behind the interface of a model: it refuses every scenario."""

from __future__ import annotations

import numpy as np

from tcpdelay.models.interface import Answer, Requested, Support, UnsupportedError
from tcpdelay.scenario.scenario import Scenario


class NoChain:
    """A model without an answer, for a transport that no chain knows.

    Examples
    --------
    >>> from tcpdelay.scenario import Flow, Path, Stack
    >>> NoChain().supports(Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.quic())).refused[0].allowed
    "be a TCP with the method 'chain' ('auto' simulates QUIC)"
    """

    name = "chain"

    def supports(self, scenario: Scenario) -> Support:
        """Return that the stack is refused."""
        allowed = "be a TCP with the method 'chain' ('auto' simulates QUIC)"
        return Support(frozenset(), refused=(UnsupportedError("stack", type(scenario.stack).__name__, allowed),))

    def answer(self, scenario: Scenario, requested: Requested) -> Answer:
        """Return the refusal."""
        return Answer(scenario, requested, self.name, "unsupported", refusal=self.supports(scenario).refused[0])

    def capacity(self, scenario: Scenario) -> float:
        """Return NaN: the largest packet rate is not known."""
        return np.nan
