"""The list of transports, by the stack that they implement.

This is the only module outside `tcpdelay.sim.literature` that names the transports of the literature. A transport
that is not listed here is added with `register`.
"""

from __future__ import annotations

from tcpdelay.scenario.stack import Linux, Quic, Stack
from tcpdelay.sim.literature import classic, scp
from tcpdelay.sim.network import datagrams, linux, quic
from tcpdelay.sim.network.stacks import Classic, Dctcp, Scp, TimeLined, Udp
from tcpdelay.sim.network.transport import Feature, Transport

TRANSPORTS: dict[type, Transport] = {
    Linux: linux.TRANSPORT,
    Dctcp: linux.DCTCP,
    Quic: quic.TRANSPORT,
    Classic: classic.TRANSPORT,
    TimeLined: classic.TIME_LINED,
    Scp: scp.TRANSPORT,
    Udp: datagrams.TRANSPORT,
}


def register(stack: type[Stack], transport: Transport) -> None:
    """Let a transport carry the flows whose `Source` has a `stack` of this class."""
    TRANSPORTS[stack] = transport


def transport_of(stack: object) -> Transport | None:
    """Return the transport that implements a stack, or None if there is none."""
    return TRANSPORTS.get(type(stack))


def stacks_with(feature: Feature | None) -> list[str]:
    """Return the names of the stacks whose transports have a feature; of all stacks if it is None."""
    return [
        stack.__name__ for stack, transport in TRANSPORTS.items() if feature is None or feature in transport.features
    ]
