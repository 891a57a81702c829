"""One TCP connection as the kernel reports it, the choice among several, and the path estimate it yields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tcpdelay.capture.estimate import PathEstimate

_MOST_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What `ss -tin` shows of one TCP connection; None where it prints nothing.

    Parameters
    ----------
    local, peer : str
        The two ends as printed, address and port.
    congestion_control : str, optional
        Name of the congestion control.
    rtt, rtt_deviation, rtt_min : float, optional
        Smoothed round-trip time, its smoothed mean deviation, and the smallest of the last minutes [s].
    retransmission_timeout : float, optional
        Current retransmission timeout [s].
    mss : int, optional
        Largest segment payload [bytes].
    congestion_window, slow_start_threshold : int, optional
        Congestion window and slow-start threshold [segments].
    bytes_sent, bytes_retransmitted : int, optional
        Payload bytes sent, retransmissions included, and retransmitted.
    segments_out, data_segments_out, data_segments_in : int, optional
        Segments sent; those sent and received with data. Retransmissions are included.
    retransmissions_in_flight, retransmissions : int
        Retransmitted segments not acknowledged yet, and all there ever were.
    marked_lost : int, optional
        Segments in flight that the sender takes for lost.
    spurious_retransmissions : int, optional
        Retransmissions the receiver reported as duplicates (D-SACK).
    delivered : int, optional
        Data segments that arrived.
    send_rate, delivery_rate : float, optional
        Congestion window over round-trip time, and the newest measured rate of delivery [bit/s].
    app_limited : bool
        Whether the delivery rate was limited by the application.
    """

    local: str
    peer: str
    congestion_control: str | None = None
    rtt: float | None = None
    rtt_deviation: float | None = None
    rtt_min: float | None = None
    retransmission_timeout: float | None = None
    mss: int | None = None
    congestion_window: int | None = None
    slow_start_threshold: int | None = None
    bytes_sent: int | None = None
    bytes_retransmitted: int | None = None
    segments_out: int | None = None
    data_segments_out: int | None = None
    data_segments_in: int | None = None
    retransmissions_in_flight: int = 0
    retransmissions: int = 0
    marked_lost: int | None = None
    spurious_retransmissions: int | None = None
    delivered: int | None = None
    send_rate: float | None = None
    delivery_rate: float | None = None
    app_limited: bool = False

    @property
    def segments_sent(self) -> int | None:
        """Segments that loss is counted over: those with data, or all where the kernel (before 4.6) has no such count.

        A kernel that counts the data segments it receives counts those it sends as well, and prints no 0.
        """
        if self.data_segments_out is None and self.data_segments_in is None:
            return self.segments_out
        return self.data_segments_out

    @property
    def shortcoming(self) -> str | None:
        """Why no path can be estimated from this connection, or None if one can."""
        if not self.rtt:
            return "shows no round-trip time (was it recorded with the option -i, as in 'ss -tin'?)"
        if not self.segments_sent:
            return "has sent no data, so its loss is unknown; record at the end that sends"
        if self.retransmissions >= self.segments_sent:
            return (
                f"has sent {self.segments_sent} segments, {self.retransmissions} of them again: too few to predict from"
            )
        return None

    def estimate(self) -> PathEstimate:
        """Return the path estimate of this connection.

        The round-trip time is the kernel's smoothed one: the last dozen acknowledgements, not the whole connection. The
        loss is the share of all data segments sent that were retransmissions, less those that the receiver reported
        as duplicates. It remains an upper estimate: a retransmission is also needless when reordering is taken for
        loss, when only the acknowledgements were lost, or when the report itself was.

        Returns
        -------
        PathEstimate
            With `lost` the retransmissions and `sent` the segments they are counted over.

        Raises
        ------
        ValueError
            If the connection shows no round-trip time or has sent too little.

        Examples
        --------
        >>> Connection(local="10.0.0.1:4000", peer="10.0.0.2:5001", rtt=0.1, data_segments_out=2883,
        ...            retransmissions=50).estimate().loss
        0.0173430
        """
        if self.rtt is None or self.segments_sent is None or self.shortcoming:
            raise ValueError(f"the connection {_listed([self])} {self.shortcoming}")
        return PathEstimate(
            source="ss",
            rtt=self.rtt,
            sent=self.segments_sent,
            lost=max(self.retransmissions - (self.spurious_retransmissions or 0), 0),
            rtt_min=self.rtt_min,
            rtt_deviation=self.rtt_deviation,
            mss=self.mss,
            congestion_window=self.congestion_window,
        )


def choose_connection(connections: Sequence[Connection], wanted: str | None, name: str) -> Connection:
    """Return the connection that is `wanted`, or the only one a path can be estimated from.

    Parameters
    ----------
    connections : sequence of Connection
        Where to choose from.
    wanted : str or None
        A local or a peer end, or a part of one; whole ends go first. None takes all into account.
    name : str
        What the recording is called in messages.

    Returns
    -------
    Connection
        The only match, or the only one of several matches that has no shortcoming.

    Raises
    ------
    ValueError
        If none or several match, or if the match has a shortcoming.

    Examples
    --------
    >>> idle = Connection(local="10.0.0.1:22", peer="10.0.0.9:4000")
    >>> busy = Connection(local="10.0.0.1:5001", peer="10.0.0.2:6000", rtt=0.1, data_segments_out=500)
    >>> choose_connection([idle, busy], None, "ss.txt").peer
    '10.0.0.2:6000'
    """
    matches = list(connections)
    if wanted is not None:
        whole = [found for found in connections if wanted in (found.local, found.peer)]
        matches = whole or [found for found in connections if wanted in found.local or wanted in found.peer]
        if not matches:
            raise ValueError(f"{name}: no connection matches {wanted!r:.60}; it holds {_listed(connections)}")
    usable = [found for found in matches if found.shortcoming is None]
    if len(usable) == 1:
        return usable[0]
    if len(matches) == 1:
        raise ValueError(f"{name}: the connection {_listed(matches)} {matches[0].shortcoming}")
    if not usable:
        raise ValueError(
            f"{name}: no path can be estimated from any of {len(matches)} connections; "
            f"the first, {_listed(matches[:1])}, {matches[0].shortcoming}"
        )
    matching = "" if wanted is None else f" that match {wanted!r:.60}"
    raise ValueError(f"{name}: {len(usable)} connections{matching}, choose one by its address: {_listed(usable)}")


def _listed(connections: Sequence[Connection]) -> str:
    ends = [f"{found.local[:60]} -> {found.peer[:60]}" for found in connections[:_MOST_LISTED]]
    more = len(connections) - len(ends)
    return ", ".join(ends) + (f" and {more} more" if more else "")
