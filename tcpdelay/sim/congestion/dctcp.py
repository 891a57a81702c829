"""DCTCP: the window shrinks in proportion to the share of marked segments (RFC 8257; net/ipv4/tcp_dctcp.c).

It grows as with Reno.
"""

from __future__ import annotations

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.records import Connection, WireRecord

MAX_ALPHA = 1024
"""All segments are marked (`DCTCP_MAX_ALPHA`); alpha begins with this value."""
SHIFT_G = 4
"""Binary logarithm of 1 / g (`dctcp_shift_g`)."""
SMALLEST_WINDOW = 2


class State(Connection):
    """A connection with the state of DCTCP."""

    dctcp_alpha: int
    next_seq: int
    old_delivered: int
    delivered_ce: int


@kernel()
def start(c: State) -> None:
    """Begin as if all segments were marked (`dctcp_init`)."""
    c.dctcp_alpha = MAX_ALPHA


@kernel()
def reports_marks(c: State) -> bool:
    """Return that the receiver reports each change (`dctcp_ece_ack_update`)."""
    return True


@kernel()
def on_marks(c: State, acknowledged: int, delivered: int, marked: int) -> None:
    """Set alpha = (1 - g) alpha + g F per round trip, with its share F of marked segments (`dctcp_update_alpha`)."""
    c.delivered_ce += marked
    if acknowledged < c.next_seq:
        return
    alpha = c.dctcp_alpha
    # A small alpha falls to 0, not just near it.
    alpha -= (alpha >> SHIFT_G) or alpha
    alpha += (c.delivered_ce << (10 - SHIFT_G)) // max(delivered - c.old_delivered, 1)
    c.dctcp_alpha = min(alpha, MAX_ALPHA)
    c.next_seq, c.old_delivered, c.delivered_ce = c.snd_nxt, delivered, 0


@kernel()
def on_loss(c: State) -> int:
    """Return the window times 1 - alpha / 2, also after a loss, until `on_recovery` (`dctcp_ssthresh`)."""
    return int(max(c.snd_cwnd - (c.snd_cwnd * c.dctcp_alpha >> 11), SMALLEST_WINDOW))


@kernel()
def on_recovery(c: State) -> None:
    """Set the threshold after a loss to half of the window (`dctcp_react_to_loss`)."""
    c.snd_ssthresh = max(c.snd_cwnd >> 1, SMALLEST_WINDOW)


@kernel()
def on_timeout(c: State, wire: WireRecord, first: bool) -> None:
    """Set the threshold to half of the window before the timeout (`dctcp_react_to_loss`)."""
    if first:
        c.snd_ssthresh = max(c.prior_cwnd >> 1, SMALLEST_WINDOW)
