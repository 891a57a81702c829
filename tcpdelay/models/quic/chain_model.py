"""The chain of QUIC behind the interface of a model: a stream per message, or datagrams."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from tcpdelay.models.budget import TooLargeError
from tcpdelay.models.chain import budget_for
from tcpdelay.models.compilation import interpreted_first
from tcpdelay.models.interface import (
    Answer,
    DelayParts,
    Requested,
    Support,
    UnsupportedError,
    requested_figures,
)
from tcpdelay.models.quic.message_chain import (
    PATH_FIELDS,
    QuicDelays,
    largest_rate,
    quic_chain_refusals,
    quic_delays,
)
from tcpdelay.models.quic.window_chain import window_chain, window_waits
from tcpdelay.scenario.fields import declarations
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Quic

_HONOURED = frozenset(name for part in (Flow, Quic) for name in declarations(part)) | PATH_FIELDS


class QuicChain:
    """The Markov chain of QUIC for messages that do not wait for each other.

    Examples
    --------
    >>> from tcpdelay.scenario.path import Path
    >>> quic = Quic("quic-go", delivery="stream_per_message")
    >>> scenario = Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), quic)
    >>> QuicChain().answer(scenario, Requested((0.95, 0.99))).quantiles.round(3)
    array([0.05, 0.17])
    """

    name: ClassVar[str] = "chain"

    def supports(self, scenario: Scenario) -> Support:
        """Return which fields the chain honours and refuses."""
        source, path, stack = scenario.source, scenario.path, scenario.stack
        if not isinstance(stack, Quic):
            return Support(frozenset(), refused=(UnsupportedError("stack", stack, "be a Quic"),))
        return Support(_HONOURED, refused=tuple(quic_chain_refusals(source, path, stack)))

    def answer(self, scenario: Scenario, requested: Requested) -> Answer:
        """Return the chain's answer."""
        answered = partial(Answer, scenario, requested, self.name)
        for refused in self.supports(scenario).refused:
            return answered("unsupported", refusal=refused)
        flow, path, stack = scenario.flow, scenario.path, scenario.stack
        assert isinstance(stack, Quic)

        # The first call is repeated in compiled kernels if it takes long in plain Python: each with the whole budget.
        def solve() -> QuicDelays:
            return quic_delays(flow, path, stack, budget_for(requested.max_seconds, requested.max_memory))

        try:
            found = interpreted_first(solve, window_waits)
        except TooLargeError as error:
            return answered("too large", refusal=error)
        except MemoryError:
            return answered("too large", refusal=TooLargeError("the chain needs more memory than there is"))
        return answered(
            "exact" if found.sustainable else "not carried",
            mean=found.mean,
            sustainable=found.sustainable,
            truncated_mass=found.truncated_mass,
            distribution=found,
            parts=_parts(found) if requested.parts else None,
            backlogged_time_fraction=found.backlogged,
            **requested_figures(found, requested),
        )

    def capacity(self, scenario: Scenario) -> float:
        """Return the largest packet rate [1/s] that QUIC carries; infinite without loss, NaN where it is unknown."""
        stack = scenario.stack
        if self.supports(scenario).refused or not isinstance(stack, Quic):
            return np.nan
        return interpreted_first(partial(largest_rate, scenario.flow, scenario.path, stack), window_chain)


def _parts(found: QuicDelays) -> DelayParts:
    """Return the parts of the mean delay [s]: the path, the wait for the window, and repairs."""
    # Nobody repairs datagrams, whose mean delay is infinite, and where QUIC does not carry the flow nothing is known.
    repairs = found.mean - found.one_way_delay - found.waiting if np.isfinite(found.mean) else 0.0
    return DelayParts(found.one_way_delay, found.waiting, repairs, timeouts=0.0)
