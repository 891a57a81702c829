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
    """Let a transport carry the flows of a stack.

    Parameters
    ----------
    stack : type of Stack
        Class of the settings, whose instances are given to `Source` as `stack`.
    transport : Transport
        Its implementation.
    """
    TRANSPORTS[stack] = transport


def transport_of(stack: object) -> Transport | None:
    """Return the transport that implements a stack, or None if there is none.

    Examples
    --------
    >>> transport_of(Udp()).header
    28
    """
    return TRANSPORTS.get(type(stack))


def stacks_with(feature: Feature | None) -> list[str]:
    """Return the names of the stacks whose transports have a feature; of all stacks if it is None.

    Examples
    --------
    >>> stacks_with("transfers")
    ['Linux', 'Dctcp', 'Classic']
    """
    return [
        stack.__name__ for stack, transport in TRANSPORTS.items() if feature is None or feature in transport.features
    ]
