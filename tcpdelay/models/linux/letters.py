"""The letters of the rules of the chain of Linux: what each letter means, and how its value follows.

Names in parentheses are fields of `LinuxParameters` and kernels of this folder.
"""

from __future__ import annotations

from tcpdelay.models.linux.kernel_functions import (
    COLLAPSE,
    DETECTION,
    DROP_TAIL,
    GILBERT,
    GROWTH,
    PACKETS_IN_FLIGHT,
    PROBE_TIMER,
    PRR,
    RACK_DETECT,
    RACK_WINDOW,
    RELEASED,
    REPAIRED,
    RTO,
    SET_RTO,
    SLOW_START,
    Source,
)

SYMBOLS = {
    "p": "probability that a segment is lost if the segment before it arrived (`LinuxParameters.loss`); with "
    "correlated losses, if no earlier segment of its round is lost",
    "r": "probability that a segment is lost after a lost segment (`next_loss`): 1 - 1 / (mean length of a loss "
    "burst); p with independent and with correlated losses",
    "q": "probability that the recovery needs a further retransmission, as the retransmission is lost: p, or with "
    "loss bursts P (1 - (r - p)^N), with the mean loss P and the N segments sent since (`repeated_loss`). After "
    "several losses, that any of the retransmissions is lost. After the loss of a packet of several segments, "
    "that the retransmission or a further segment of the packet is lost (`repair_chances`)",
    "t": "probability that only the RTO finds a lost retransmission (`timeout_chance`): (1 - (1 - p)^2)^N. Each of "
    "the N segments in flight when the retransmission leaves, at most the reduced window - 1, releases one new "
    "segment. RACK finds the loss if both segments of one of these pairs arrive. With loss bursts r^N; 1 with "
    "none in flight. With correlated losses the rest of the retransmission's round is lost with it: 1 in REPAIR_MORE "
    "and REPAIR_AGAIN, elsewhere the probability by `rest_timeout`, divided by q",
    "m": "probability that another segment of the flight is lost (`more_lost`): 1 - (1 - p)^N, N being the segments "
    "that leave between the loss and its detection; in an open window without those that are known to have "
    "arrived or to be lost. With loss bursts, a segment right after a lost one is lost with probability r. With "
    "correlated losses, N are the segments that leave after the lost rest of the round",
    "h": "1 with correlated losses, with which the rest of a round is lost after its first loss (`rest_lost`); "
    "otherwise 0",
    "z": "with correlated losses, probability that a round of retransmissions after an outage loses its first segment "
    "and so all its segments: 1 - (1 - p)^N for N rounds (`lost_round_chance`). Only the RTO finds this, as no tail "
    "loss probe is sent in a recovery. N is c after a timeout (slow start), and 1 + c after a tail loss probe (PRR). 0 "
    "without correlated losses",
    "e": "probability that at least one segment of a packet is lost (`OpenWindow.loss`): 1 - (1 - p)^(segments per "
    "packet). With a bottleneck queue limited in bytes, a small packet is lost less often than a full segment",
    "f": "probability that what one ACK releases is lost: e in REPAIR_OPEN, application-limited; otherwise p",
    "v": "probability that a packet whose SACK would detect the loss is lost too (`next_lost`): e; 1 - (1 - e)^3 if "
    "the third SACK detects it; 0 with loss bursts and with packets of several segments",
    "b": "probability that a loss burst has only one segment (`burst_chance`): 1 - r; 1 with independent losses. With "
    "correlated losses, that the first loss is the last segment of its round (`rest_chance`)",
    "o": "probability of an outage, that is a loss burst that takes the whole window (`outage_chance`): r^(w - 1), "
    "or r^w if a tail loss probe leaves before the next packet; 0 with independent losses. With correlated losses, "
    "that the rest of a round, or the next round too, takes all segments that the window allows; in LOST 1 if so, "
    "otherwise 0",
    "g": "probability that a window grows in an interval (`open_growth`): (segments per packet) / w with Reno, 8/15 "
    "of it with CUBIC; 0 if w is larger than the flight, which then no longer fills it. With BBR w is always "
    "larger",
    "n": "number of ACKs in the phase that release a segment (`openings`): in REPAIR and REPAIR_AGAIN w - 1, as the "
    "retransmission takes one segment, or w in REPAIR_AGAIN with full segments; in REPAIR_MORE all ACKs of the phase "
    "but one; in REPAIR_OPEN w. If application-limited, the segments or packets written in an RTT. After the first "
    "round of a recovery, BBR paces 1.24 times as many",
    "w": "congestion window [segments]",
}
"""Letters of the probabilities: what they mean, and how they follow."""
TIMES = {
    "i": "packet interval",
    "RTT": "round-trip time",
    "RTO": "first retransmission timeout: RTT + TCP_RTO_MIN (200 ms, or the stack's `rto_min`), as the RTT is constant",
    "d": "time from the due time of the lost segment's ACK to the detection (`detection_wait`, `burst_wait`): to the "
    "first SACK that comes RTT / 4 or more after the due time, to the third SACK, or to RACK's timer, whichever "
    "is first; in LOST_TWO up to i longer. If the tail loss probe leaves before the next packet, RTT + d ends "
    "with the probe, which retransmits a single loss, or with the probe's ACK, which shows a burst",
    "a": "with full segments and a cwnd-limited REPAIR, time from the last ACK that releases a segment before the "
    "detection to the detection (`last_ack`): the mean time between ACKs before the reduction, that is RTT / window, "
    "but at least i. LOST ends with this ACK, and REPAIR is longer by `a`. 0 in REPAIR_OPEN, if application-limited, "
    "and with segments that are not full",
    "y": "time between two segments of the recovery with full segments, otherwise 0. Rounds begin one ACK before that "
    "of the retransmission: from there on each round has the ACKs of a whole window, and the window grows after it. "
    "0 in REPAIR_OPEN",
    "k": "number of timeouts before this one",
    "s": "number of packet intervals from the first retransmission of a loss burst to the last. In an open window one "
    "ACK comes per interval and releases one retransmission, so s is the number of retransmissions less 1; packets "
    "that share a segment count once (`repair_segments`). 0 after a single loss. With correlated losses, to the last "
    "retransmission, or to one interval before the ACK that releases new packets if this is later "
    "(`retransmission_times`)",
    "c": "rounds of retransmissions after the first retransmission of an outage (`repair_rounds`): floor(log2 N) for N "
    "segments, as each ACK releases two. The N segments carry w packets, after a timeout flight + 1 packets; packets "
    "that share a segment count once. 0 with independent losses",
}
"""Letters of the durations: what they mean, and how they follow."""
DECIDED_BY: dict[str, tuple[Source, ...]] = {
    "r": (GILBERT,),
    "q": REPAIRED,
    "t": (RACK_DETECT, PRR),
    "m": (PACKETS_IN_FLIGHT,),
    "h": (DROP_TAIL,),
    "z": (DROP_TAIL, PROBE_TIMER, SLOW_START, PRR),
    "v": (RACK_DETECT, RACK_WINDOW),
    "b": (GILBERT, DROP_TAIL),
    "o": (GILBERT, DROP_TAIL, PROBE_TIMER),
    "g": GROWTH,
    "n": RELEASED,
    "RTO": (SET_RTO,),
    "d": (*DETECTION, PROBE_TIMER),
    "k": (RTO,),
    "s": (PRR, COLLAPSE),
    "c": (SLOW_START, PRR, COLLAPSE),
}
"""Functions of the kernel from which the values of letters follow; letters without functions are left out."""
