"""How late a lost packet of QUIC is: when its loss is found, and when a retransmission arrives (RFC 9002, 6).

The window is taken to be open: packets leave when they are written, and retransmissions when a loss is found.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.quic.implementations import QuicRules
from tcpdelay.models.quic.recovery import GRANULARITY, PACKET_THRESHOLD, TIME_THRESHOLD
from tcpdelay.models.simulator.engine import TIE_BREAK
from tcpdelay.models.tcp import SECOND
from tcpdelay.scenario.path import Path

NEGLIGIBLE = 1e-9
"""Probability of a sequence of losses below which it counts as repaired."""
DIGITS = 7
"""Decimals of a delay [s]."""
_TIE = 1e-9
"""Share of an interval within which two times are equal."""


class Found(NamedTuple):
    """How a loss is found: the time since the packet was sent [s], the probability, and whether a probe finds it."""

    after: float
    probability: float
    by_probe: bool


class LossRecovery(NamedTuple):
    """Loss recovery of a flow of messages, all of which leave at once when they are written.

    Parameters
    ----------
    loss : float
        Loss probability of a packet, 0 to below 1.
    rtt : float
        Round-trip time [s].
    interval : float
        Interval of the messages [s].
    packets : int
        Packets of a message, 1 or more.
    empty : int
        The last packets of a message that have no data of it.
    ack_delay : float
        Delay of the ACK of a packet beside a gap [s].
    probe_timeout : float
        Probe timeout of a steady RTT, without back-off [s].
    probes : int
        Packets of a probe timeout.
    """

    loss: float
    rtt: float
    interval: float
    packets: int
    empty: int
    ack_delay: float
    probe_timeout: float
    probes: int

    def found(self, sent: float, behind: int, lost_behind: int, timeouts: int) -> Iterator[Found]:
        """Yield how the loss of a packet is found.

        An ACK of the first later packet that arrives shows the loss: at once, if it was sent three packets later or
        more (RFC 9002, 6.1.1), or else when 9/8 of the RTT have passed (6.1.2) or a third packet is acknowledged. A
        probe finds it if no packet is sent for a probe timeout (6.2.1).

        Parameters
        ----------
        sent : float
            When the packet is sent, since the write of its message [s].
        behind : int
            Packets that are sent behind it at the same time.
        lost_behind : int
            How many of these are lost until the first that is not.
        timeouts : int
            Probe timeouts since the last ACK.

        Examples
        --------
        A packet every 20 ms over 100 ms. The next packet is acknowledged 120 ms after the lost one was sent; if it is
        lost as well, the packet after it:

        >>> recovery = LossRecovery(0.1, 0.1, 0.02, packets=1, empty=0, ack_delay=0, probe_timeout=0.126, probes=1)
        >>> [(round(each.after, 6), round(each.probability, 6)) for each in recovery.found(0.0, 0, 0, 0)][:2]
        [(0.12, 0.9), (0.14, 0.09)]

        Over 20 ms, with a packet every 100 ms, the probe comes first:

        >>> sparse = LossRecovery(0.1, 0.02, 0.1, packets=1, empty=0, ack_delay=0, probe_timeout=0.046, probes=1)
        >>> list(sparse.found(0.0, 0, 0, 0))
        [Found(after=0.046, probability=1.0, by_probe=True)]
        """
        if lost_behind < behind:
            yield Found(self._shown(sent, 0.0, lost_behind + 1, behind), 1.0, False)
            return
        timeout = self.probe_timeout * 2**timeouts
        last, later, rest = 0.0, behind, 1.0
        while rest > NEGLIGIBLE:
            at = self._later_write(sent, last, 1)
            if at - last > timeout:
                yield Found(last + timeout, rest, True)
                return
            for place in range(1, self.packets + 1):
                yield Found(self._shown(sent, at, later + place, later + self.packets), rest * (1 - self.loss), False)
                rest *= self.loss
            last, later = at, later + self.packets

    def _shown(self, sent: float, at: float, place: int, written: int) -> float:
        """Return when a loss is found by the packet that is sent `place` packets later, at a time since `sent` [s].

        By then, `written` packets are sent later than the lost one. The third of them is taken to arrive.
        """
        back = self.rtt + self.ack_delay
        if place >= PACKET_THRESHOLD:
            return at + back
        third = at if written >= PACKET_THRESHOLD else self._later_write(sent, at, PACKET_THRESHOLD - written)
        return min(max(at + back, TIME_THRESHOLD * self.rtt), third + back)

    def _later_write(self, sent: float, at: float, packets: int) -> float:
        """Return when a number of packets have been written after the time `at`; times are relative to `sent` [s]."""
        writes = -(-packets // self.packets)
        return (math.floor((sent + at) / self.interval + _TIE) + writes) * self.interval - sent

    def repaired(self, behind: int, lost_behind: int) -> dict[float, float]:
        """Return how late a lost packet of a message arrives [s], by probability; parameters as of `found`."""
        late: defaultdict[float, float] = defaultdict(float)
        self._follow(0.0, behind, lost_behind, 0, 1.0, late)
        return late

    def _follow(
        self, sent: float, behind: int, lost_behind: int, timeouts: int, share: float, late: defaultdict[float, float]
    ) -> None:
        """Follow the loss of a packet until a retransmission arrives."""
        for found in self.found(sent, behind, lost_behind, timeouts):
            again, possible = sent + found.after, share * found.probability
            lost = self.loss ** (self.probes if found.by_probe else 1)
            if possible * lost < NEGLIGIBLE:
                lost = 0.0
            late[round(again, DIGITS)] += possible * (1 - lost)
            if lost:
                self._follow(again, 0, 0, timeouts + 1 if found.by_probe else 0, possible * lost, late)


def loss_recovery(
    rules: QuicRules, path: Path, interval: float, packets: tuple[int, int], max_ack_delay: float
) -> LossRecovery:
    """Return the loss recovery of an implementation.

    A message has a number of packets with data and without; `max_ack_delay` [s] is a setting of `Stack.quic`.
    """
    settings = rules.settings(max_ack_delay)
    gap_delay = 0.0 if rules.acks_gaps else settings["ack_delay"] / SECOND
    rtt = path.rtt + TIE_BREAK / SECOND
    # The RTT of the path is constant, so that its measured variation vanishes (RFC 9002, 5.3 and 6.2.1).
    timeout = rtt + (GRANULARITY + settings["max_ack_delay"]) / SECOND
    return LossRecovery(path.loss, rtt, interval, sum(packets), packets[1], gap_delay, timeout, rules.probes)


def message_repairs(recovery: LossRecovery) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the delays by which a message may be late for its losses [s], and their probabilities.

    A message is complete with the last of its packets with data. Packets are lost independently. How the loss of one is
    found depends on which of the packets behind it are lost, so that the packets are taken from the last to the first.

    Examples
    --------
    A message of one packet, of which one in ten is lost, and found by the next packet in nine of ten cases:

    >>> recovery = LossRecovery(0.1, 0.1, 0.02, packets=1, empty=0, ack_delay=0, probe_timeout=0.126, probes=1)
    >>> late, probability = message_repairs(recovery)
    >>> [(round(float(a), 6), round(float(b), 6)) for a, b in zip(late, probability)][:2]
    [(0.0, 0.9), (0.12, 0.081)]
    """
    loss = recovery.loss
    each = {
        (behind, lost): recovery.repaired(behind, lost)
        for behind in range(recovery.empty, recovery.packets)
        for lost in range(behind + 1)
        if loss ** (lost + 1) >= NEGLIGIBLE
    }
    values = np.array(sorted({0.0}.union(*each.values())))
    # The share of messages that are complete by each delay, by the run of losses directly behind the next packet.
    by_then = {0: np.ones(values.size)}
    for behind in range(recovery.packets):
        following = {0: (1 - loss) * np.sum(list(by_then.values()), axis=0)}
        for lost, share in by_then.items():
            if behind < recovery.empty:
                following[lost + 1] = loss * share
            elif (behind, lost) in each:
                arrived = np.cumsum([each[behind, lost].get(value, 0.0) for value in values.tolist()])
                following[lost + 1] = loss * share * arrived
        by_then = following
    complete = np.sum(list(by_then.values()), axis=0)
    return values, np.diff(complete / complete[-1], prepend=0.0)
