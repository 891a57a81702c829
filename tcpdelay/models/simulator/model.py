"""The simulator behind the interface of a model (`tcpdelay.models.interface`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from tcpdelay.models.budget import TooLargeError
from tcpdelay.models.interface import (
    Answer,
    DelayParts,
    NotSettledError,
    Requested,
    Support,
    UnsupportedError,
    unknown_fields,
)
from tcpdelay.models.simulator.connections import warm_up
from tcpdelay.models.simulator.path import PATH_FIELDS
from tcpdelay.models.simulator.simulation import (
    FEWEST_PACKETS,
    countable,
    segments_per_message,
    simulate,
    source_refusals,
)
from tcpdelay.scenario.fields import declarations
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.sources.message_trace import Trace
from tcpdelay.scenario.sources.random_messages import Messages
from tcpdelay.scenario.sources.speech import Speech, Utterances
from tcpdelay.scenario.sources.video import Video
from tcpdelay.scenario.stack import Linux, Quic, transport_name
from tcpdelay.scenario.target import DEFAULT_LIMIT, Target

_SOURCES = (Flow, Video, Speech, Utterances, Messages, Trace)
_HONOURED = frozenset(name for part in (*_SOURCES, Linux, Quic) for name in declarations(part)) | PATH_FIELDS

PROLONGED = 8
"""Factor by which a simulation that has not settled is prolonged, divided by the segments of a packet."""


@dataclass(frozen=True)
class Simulator:
    """The packet-level simulator of a Linux kernel's TCP and of QUIC.

    Parameters
    ----------
    packets : int, optional
        Number of packets of a simulation whose request has none, or all messages of a source that has fewer; by default
        as many as its precision requires. If the
        delays of this number of packets have not settled, eight times as many segments are simulated.
    on_progress : callable, optional
        Called in a simulation whose request has no such function, with the number of packets simulated and the largest
        number of packets.
    because : str
        Why it answers in place of the chain; the answers carry it as `simulated_because`.
    """

    packets: int | None = None
    on_progress: Callable[[int, int], None] | None = None
    because: str = ""
    name: ClassVar[str] = "simulation"

    def supports(self, scenario: Scenario) -> Support:
        """Return which fields the simulator honours and refuses."""
        return Support(_HONOURED, refused=tuple(_refusals(scenario)))

    def answer(self, scenario: Scenario, requested: Requested) -> Answer:
        """Return the simulated delays: the target's quantile to 2 %, unless a number of packets is requested.

        Without a target, it is the 95th percentile.
        """
        answered = partial(Answer, scenario, requested, self.name, simulated_because=self.because)
        for refused in self.supports(scenario).refused:
            return answered("unsupported", refusal=refused)
        source, path, stack = scenario.source, scenario.path, scenario.stack
        assert isinstance(stack, Linux | Quic)
        simulated = partial(
            simulate,
            source,
            path,
            stack,
            seed=requested.seed,
            on_progress=requested.on_progress or self.on_progress,
            max_seconds=requested.max_seconds,
            quantile=(requested.target or Target(DEFAULT_LIMIT)).quantile,
        )
        packets = None if self.packets is None else at_hand(source, stack, self.packets)
        try:
            found = simulated(packets=requested.packets or packets)
            if not found.settled and requested.packets is None and packets is not None:
                longer = at_hand(source, stack, PROLONGED * packets // segments_per_message(source, stack))
                found = simulated(packets=longer) if longer > packets else found
        except TooLargeError as error:
            return answered("too large", refusal=error)
        except MemoryError:
            return answered("too large", refusal=TooLargeError("the simulation needs more memory than there is"))
        if not found.settled:
            refusal = NotSettledError(found.packets, found.carried, transport=transport_name(stack))
            return answered("not settled", refusal=refusal)
        found = replace(found, scenario=(source, path, stack))
        parts = DelayParts(
            path.forward_delay + path.jitter / 2, found.sender_delay, found.head_of_line_delay, timeouts=0.0
        )
        target = requested.target
        return answered(
            "estimated" if found.sustainable else "not carried",
            found.quantile(np.array(requested.quantiles)),
            found.late_fraction(np.array(requested.late_after)),
            found.mean,
            found.sustainable,
            distribution=found,
            lateness=np.nan if target is None else found.late_fraction(target.limit),
            parts=parts if requested.parts else None,
        )

    def capacity(self, scenario: Scenario) -> float:
        """Return NaN: a simulation shows only whether TCP carries one packet rate."""
        return np.nan


def at_hand(source: Source, stack: Linux | Quic, packets: int) -> int:
    """Return the smaller of `packets` and of the packets that the source has after the warm-up, if it ends."""
    available = countable(source, warm_up(source, stack))
    return packets if available is None else min(packets, max(available, FEWEST_PACKETS))


def _refusals(scenario: Scenario) -> Iterator[UnsupportedError]:
    """Yield the fields of a scenario whose values the simulator refuses."""
    source, path, stack = scenario.source, scenario.path, scenario.stack
    if not isinstance(stack, Linux | Quic):
        yield UnsupportedError("stack", stack, "be Stack.linux() or Stack.quic() in a simulation")
        return
    if isinstance(stack, Linux):
        yield from unknown_fields(path, PATH_FIELDS, "in a simulation")
    yield from source_refusals(source, path, stack)
