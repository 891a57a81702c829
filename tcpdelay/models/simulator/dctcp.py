"""DCTCP: the window shrinks in proportion to the share of marked segments (RFC 8257; net/ipv4/tcp_dctcp.c).

It grows as with Reno.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models.compilation import kernel

MAX_ALPHA = 1024
"""All segments are marked (`DCTCP_MAX_ALPHA`); alpha begins with this value."""
SHIFT_G = 4
"""Binary logarithm of 1 / g (`dctcp_shift_g`)."""
SMALLEST_WINDOW = 2


@kernel()
def update_alpha(c: Any, acknowledged: int, delivered: int) -> None:
    """Update alpha once per round trip (`dctcp_update_alpha`), with the share F of marked segments in it.

        alpha = (1 - g) alpha + g F

    Parameters
    ----------
    c : record
        The connection; `delivered_ce` has the marked segments that were delivered in this round trip.
    acknowledged : int
        Position in the stream up to which the ACK acknowledges [bytes].
    delivered : int
        All segments delivered so far.
    """
    if acknowledged < c.next_seq:
        return
    alpha = c.dctcp_alpha
    # A small alpha falls to 0, not just near it.
    alpha -= (alpha >> SHIFT_G) or alpha
    alpha += (c.delivered_ce << (10 - SHIFT_G)) // max(delivered - c.old_delivered, 1)
    c.dctcp_alpha = min(alpha, MAX_ALPHA)
    c.next_seq, c.old_delivered, c.delivered_ce = c.snd_nxt, delivered, 0


@kernel()
def marked_threshold(c: Any) -> int:
    """Return the slow-start threshold after marks: window (1 - alpha / 2) (`dctcp_ssthresh`)."""
    return int(max(c.snd_cwnd - (c.snd_cwnd * c.dctcp_alpha >> 11), SMALLEST_WINDOW))


@kernel()
def react_to_loss(c: Any) -> None:
    """Set the threshold after a loss to half of the window (`dctcp_react_to_loss`)."""
    if c.dctcp:
        c.snd_ssthresh = max(c.snd_cwnd >> 1, SMALLEST_WINDOW)
