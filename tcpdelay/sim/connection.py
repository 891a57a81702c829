"""How a connection begins: the scenario in the simulator's units, and all that is not zero at first."""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpdelay.scenario import Flow, Linux, Path
from tcpdelay.sim.clock import SECOND
from tcpdelay.sim.path import segments_until_loss
from tcpdelay.sim.receiver import INITIAL_RECEIVE_MSS
from tcpdelay.sim.records import CONNECTION, INFINITE_SSTHRESH, NEVER, Wire
from tcpdelay.sim.rules import Rules
from tcpdelay.sim.window import INITIAL_WINDOW

FIRST_TIMEOUT = 1.0
"""Retransmission timeout before the first round-trip time is known [s]."""
TIE_BREAK = 1
"""What the round-trip time is longer by where no exact ties are wanted [us]."""
ALL_RULES = Rules()


def new_connection(
    flow: Flow, path: Path, stack: Linux, seed: int, rules: Rules = ALL_RULES, exact_ties: bool = False
) -> tuple[Any, Wire]:
    """Return a connection that nothing has been written to yet, and the record of what is under way.

    Parameters
    ----------
    flow, path, stack : Flow, Path, Linux
        The scenario.
    seed : int
        Seed of all that is drawn, 0 or more.
    rules : Rules
        Which of the kernel's rules are followed.
    exact_ties : bool
        Whether times are exact to the microsecond, as `simulate` explains.

    Examples
    --------
    >>> connection, _ = new_connection(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Linux(), seed=1)
    >>> int(connection.interval), int(connection.rtt)
    (20000, 100001)
    """
    random = np.random.default_rng(seed)
    wire = Wire(random)
    (connection,) = np.zeros(1, CONNECTION).view(np.recarray)
    tick = SECOND // stack.hz if rules.ticks else 1
    rtt = round(path.rtt * SECOND)
    rto_min = round(stack.rto_min * SECOND)
    settings = rules.switches() | {
        "packet_size": flow.packet_size,
        "interval": round(flow.interval * SECOND),
        "mss": stack.mss,
        "one_way_delay": round(path.forward_delay * SECOND),
        "rtt": rtt + (0 if exact_ties else TIE_BREAK),
        "exact_ties": int(exact_ties),
        "jitter": round(path.jitter * SECOND),
        "deferred": int(path.jitter > 0),
        "delayed_ack": int(stack.delayed_ack),
        "tick": tick,
        # The flow begins anywhere within a tick; and zero must be no tick, as it means "unset".
        "tick_phase": SECOND * SECOND // tick * tick + int(random.integers(tick)),
        "rto_min": rto_min,
        "cubic": int(stack.congestion_control == "cubic"),
        "window_validation": int(stack.window_validation),
        "leaping": 1,
        # In the testbed the whole path is a queue of the sender's host.
        "host_delay": NEVER if exact_ties else 0,
        "loss": path.loss,
        "loss_burst": path.loss_burst,
        "ack_loss": path.ack_loss,
        "snd_cwnd": INITIAL_WINDOW,
        "snd_ssthresh": INFINITE_SSTHRESH,
        "min_rtt": NEVER,
        "reo_wnd_steps": 1,
        "undo_retrans": -1,
        "timer_at": NEVER,
        "receiver_timer": NEVER,
        "delayed_ack_at": NEVER,
        "compressed_at": NEVER,
        "read_at": NEVER,
        "compressed_rcv_nxt": -1,
        "rcv_mss": min(INITIAL_RECEIVE_MSS, stack.mss),
        # The receiver sends no data, so the handshake's sample is all that it knows.
        "receiver_rto": -(-(rtt + max(2 * rtt, rto_min)) // tick),
        "rto": -(-round(FIRST_TIMEOUT * SECOND) // tick),
        "until_loss": segments_until_loss(wire.record, path.loss),
    }
    for name, value in settings.items():
        connection[name] = value
    return connection, wire
