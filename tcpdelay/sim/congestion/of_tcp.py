"""The interface of the congestion controls of TCP, like the kernel's `struct tcp_congestion_ops` (net/tcp.h).

A control is a module with those functions of this interface in which it differs from Reno. Its state, if it has one, is
the class `State`.
"""

from __future__ import annotations

from tcpdelay.compiling.record_types import record_type
from tcpdelay.sim.congestion import bbr, cubic, dctcp, reno, westwood
from tcpdelay.sim.congestion.interface import by_control
from tcpdelay.sim.records import Connection, WireRecord

CONTROLS = {"reno": reno, "cubic": cubic, "dctcp": dctcp, "bbr": bbr, "westwood": westwood}
"""The controls by name; the place of a control is its number, the field `control` of a connection."""
_STATES = [control.State for control in CONTROLS.values() if hasattr(control, "State")]
CONNECTION = record_type(type("State", tuple(_STATES), {}))
"""The record of a connection with the states of all controls."""


def number_of(name: str) -> int:
    """Return the number of a control."""
    return list(CONTROLS).index(name)


# What a control is asked about itself.


@by_control(CONTROLS)
def sets_window(c: Connection) -> bool:
    """Return whether the control sets the window itself, also in recovery and after idle time (`cong_control`)."""
    return False


@by_control(CONTROLS)
def reports_marks(c: Connection) -> bool:
    """Return whether the receiver reports each change of the marks at once."""
    return False


@by_control(CONTROLS)
def buffered_windows(c: Connection) -> int:
    """Return how many windows a send buffer holds whose size is not set (`sndbuf_expand`)."""
    return 2


@by_control(CONTROLS)
def is_paced(c: Connection) -> bool:
    """Return whether the next segment must wait; if so, the pacing timer is set."""
    return False


# Events, from the start of a connection on.


@by_control(CONTROLS)
def start(c: Connection) -> None:
    """Begin with the state after the handshake (`init`)."""


@by_control(CONTROLS)
def on_write(c: Connection) -> None:
    """Learn that the application is about to write."""


@by_control(CONTROLS)
def on_idle(c: Connection, wire: WireRecord) -> None:
    """Learn that a segment is about to leave while none is in flight (`cwnd_event`, CA_EVENT_TX_START)."""


@by_control(CONTROLS)
def on_send(c: Connection, wire: WireRecord, number: int) -> None:
    """Learn that a segment, by its number, is about to leave."""


@by_control(CONTROLS)
def before_ack(c: Connection) -> None:
    """Learn that an ACK has arrived, before the segments that it reports are processed."""


@by_control(CONTROLS)
def on_delivery(c: Connection, wire: WireRecord, number: int) -> None:
    """Learn that the ACK reports a segment, by its number, for the first time."""


@by_control(CONTROLS)
def on_rtt(c: Connection, rtt: int) -> None:
    """Take the round-trip time of an ACK [us] (`pkts_acked`)."""


@by_control(CONTROLS)
def on_arrival(c: Connection, predicted: bool) -> None:
    """Learn that an ACK has been processed; if `predicted`, it only acknowledges what comes next (`in_ack_event`)."""


@by_control(CONTROLS)
def on_marks(c: Connection, acknowledged: int, delivered: int, marked: int) -> None:
    """Learn, before an ACK up to a position is processed, how much it newly reports.

    Given are the segments that are then delivered since the start, and the newly reported segments with marks.
    """


@by_control(CONTROLS)
def on_ack(c: Connection, acknowledged: int) -> None:
    """Let the window grow for a number of acknowledged segments (`cong_avoid`)."""
    reno.on_ack(c, acknowledged)


@by_control(CONTROLS)
def set_window(c: Connection, wire: WireRecord, delivered: int, lost: int, delayed: bool) -> None:
    """Set the window after an ACK that shows segments delivered and lost, and may be delayed (`cong_control`)."""


@by_control(CONTROLS)
def on_loss(c: Connection) -> int:
    """Return the slow-start threshold after a loss or a mark, and note the window (`ssthresh`)."""
    return int(reno.on_loss(c))


@by_control(CONTROLS)
def on_recovery(c: Connection) -> None:
    """Learn that a recovery begins (`set_state`, TCP_CA_Recovery)."""


@by_control(CONTROLS)
def on_reduction_end(c: Connection) -> None:
    """Learn that a reduction of the window is complete or undone (`cwnd_event`, CA_EVENT_COMPLETE_CWR)."""


@by_control(CONTROLS)
def on_timeout(c: Connection, wire: WireRecord, first: bool) -> None:
    """Learn of a retransmission timeout, the `first` of its episode or a repeated one (`set_state`, TCP_CA_Loss)."""


@by_control(CONTROLS)
def on_undo(c: Connection) -> None:
    """Take back a needless reduction of the window (`undo_cwnd`)."""
    c.snd_cwnd = max(c.snd_cwnd, c.prior_cwnd)
