"""The rules of the chain of Linux as a table: every state, its events, their probabilities, and the kernel's functions.

The kernels of this folder compute what the rules say; `tests/test_linux_rule_table.py` compares the two. Probabilities
are equations in the letters of `SYMBOLS` (`letters.py`), in Python's notation.
"""

from __future__ import annotations

from dataclasses import dataclass

from tcpdelay.models.linux.kernel_functions import (
    BBR_PACING,
    BBR_WINDOW,
    CWND_LIMITED,
    CWND_TEST,
    CWND_VALIDATE,
    DETECTION,
    DROP_TAIL,
    ENTER_LOSS,
    FASTRETRANS,
    GILBERT,
    GROWTH,
    PACKETS_IN_FLIGHT,
    PROBE,
    PROBE_ACK,
    PROBE_TIMER,
    PRR,
    RACK_DETECT,
    RACK_WINDOW,
    RECOVERED,
    REDUCTION,
    RELEASED,
    REPAIRED,
    RETRANSMIT,
    RTO,
    SENDMSG,
    SET_RTO,
    SLOW_START,
    TIMED_OUT,
    WRITE_XMIT,
    Source,
)
from tcpdelay.models.linux.states import (
    LAST_TIMEOUT,
    LOST,
    LOST_BURST,
    LOST_OPEN,
    LOST_REPAIRING,
    LOST_REST,
    LOST_TWO,
    OPEN,
    OUTAGE,
    REPAIR,
    REPAIR_AGAIN,
    REPAIR_MORE,
    REPAIR_NOT_LIMITED,
    REPAIR_OPEN,
    REPAIR_OPEN_NOT_LIMITED,
    ROUND,
    TIMEOUT,
    State,
)


@dataclass(frozen=True)
class Rule:
    """An event of one or several states.

    Attributes
    ----------
    states : tuple of State
        The states with this event.
    event : str
        What happens.
    probability : str
        Probability of the event in a phase: an equation in the letters of `SYMBOLS`.
    duration : str
        Time from the beginning of the phase to the event: an equation in the letters of `TIMES`, or words.
    leads_to : tuple of str
        Kinds of the next phase: the first if a backlog remains or the window limits the sender, otherwise the second.
    sources : tuple of Source
        Functions of the kernel that the rule models. The first one decides the event.
    deciding : int
        Number of functions that decide the event, from the first on: 1, or 2 if the event has two causes.

    Examples
    --------
    The probability that the whole window is lost, by state:

    >>> for rule in RULES:
    ...     if rule.leads_to == ("OUTAGE",):
    ...         print(", ".join(state.name for state in rule.states), "|", rule.probability)
    OPEN | e * o
    REPAIR, application-limited, REPAIR_OPEN, application-limited | (1 - (1 - f)**n) * o
    """

    states: tuple[State, ...]
    event: str
    probability: str
    duration: str
    leads_to: tuple[str, ...]
    sources: tuple[Source, ...]
    deciding: int = 1


LARGER = "OPEN with w + 1, or w + 2 if the ACK of a packet of several segments adds two"
"""Next phase if an open window grows."""
LOSS_DETECTED = (
    "RTT + d after the loss; if the reduced window limits the sender too, to the last ACK before this time. With "
    "correlated losses, to the last retransmission, or to one ACK interval before the ACK that releases new packets if "
    "this is later"
)
AFTER_PROBE = "then RTT for its ACK, and RTT for each of c rounds of retransmissions"
RETRANSMITTED = (
    "REPAIR_MORE: mean time to the ACK of the segment behind the last loss; REPAIR_AGAIN: RTT + the time between two "
    "ACKs, that is to the ACK of the segment behind the retransmission"
)
TO_PROBE = "(w - 1) i + 2 RTT + 2 ms to the tail loss probe, at most RTO"
SEGMENTS_LOST = "Several segments are lost, but not the whole window"
WINDOW_LOST = "All segments that the window allows are lost"
BY_BURST_OR_QUEUE = "by a loss burst or, with correlated losses, by a full queue."
PACKET_LOST = (
    "mean time to the ACK that releases the lost packet, for each third of the RTT; in REPAIR_OPEN half of the phase"
)
LOSS_IN_RECOVERY = "1 - (1 - f)**n"
NO_FURTHER_LOSS = "min(1 - q * t, (1 - q) * (1 - p)**n)"
AFTER_TIMEOUT = (
    "The window is then 2 segments, with loss bursts or correlated losses the window to which flight + 1 is reduced, "
    "and with BBR the restored window."
)
FIRST_LOST = "mean time to the ACK that releases the lost segment, for each group of numbers of lost segments"
RECOVERY_NOT_LIMITED = (REPAIR_NOT_LIMITED, REPAIR_OPEN_NOT_LIMITED)

RULES = (
    Rule(
        (ROUND,),
        "No segment is lost. The window grows by Reno's or CUBIC's rule; with BBR it stays as large as pacing allows.",
        "(1 - p)**w",
        "RTT",
        ("ROUND", "OPEN"),
        (WRITE_XMIT, CWND_TEST, SENDMSG, *GROWTH, BBR_PACING),
    ),
    Rule(
        (ROUND,),
        "The first loss of the round.",
        "(1 - (1 - p)**w) * (1 - h)",
        "mean time to the ACK that releases the lost segment, for each part of the round: the run, and either half "
        "of the other ACKs",
        ("LOST",),
        (WRITE_XMIT, CWND_TEST),
    ),
    Rule(
        (ROUND,),
        "The first loss of the round, with which its rest is lost.",
        "(1 - (1 - p)**w) * h",
        FIRST_LOST,
        ("LOST_REST",),
        (DROP_TAIL, WRITE_XMIT, CWND_TEST),
    ),
    Rule(
        (LOST_REST,),
        "The ACKs of the window have arrived: those of the rest of the round, and those of the next round up to the "
        "place of the loss.",
        "1",
        "to the last of these ACKs",
        ("LOST",),
        (WRITE_XMIT, CWND_TEST),
    ),
    Rule(
        (OPEN,),
        "The packet arrives, and the window does not grow.",
        "(1 - e) * (1 - g)",
        "i",
        ("OPEN",),
        (CWND_TEST, CWND_LIMITED, CWND_VALIDATE),
    ),
    Rule(
        (OPEN,),
        "The packet arrives, and the window grows, as the flight still fills it.",
        "(1 - e) * g",
        "i",
        (LARGER,),
        (*GROWTH, CWND_VALIDATE),
    ),
    Rule(
        (OPEN,),
        "One loss; the packets that detect it arrive.",
        "e * b * (1 - v)",
        "0",
        ("LOST_OPEN",),
        (RACK_DETECT, RACK_WINDOW),
    ),
    Rule(
        (OPEN,),
        "Two losses: a packet that would detect the loss is lost too.",
        "e * b * v",
        "0",
        ("LOST_TWO",),
        (RACK_DETECT, RACK_WINDOW),
    ),
    Rule(
        (OPEN,),
        f"{SEGMENTS_LOST}: {BY_BURST_OR_QUEUE}",
        "e * (1 - b - o)",
        "0",
        ("LOST_BURST",),
        (GILBERT, DROP_TAIL),
        deciding=2,
    ),
    Rule(
        (OPEN,),
        f"{WINDOW_LOST}, {BY_BURST_OR_QUEUE}",
        "e * o",
        "0",
        ("OUTAGE",),
        (GILBERT, DROP_TAIL),
        deciding=2,
    ),
    Rule(
        (LOST, LOST_REPAIRING),
        "RACK detects the loss, and the retransmission is the last one of the recovery; or in an outage, the tail loss "
        "probe arrives and its ACK shows the losses.",
        "(1 - o) * (1 - q) * (1 - m) + o * (1 - r) * (1 - z)",
        f"{LOSS_DETECTED}; in an outage, to the tail loss probe, {AFTER_PROBE}",
        ("REPAIR",),
        (*DETECTION, *REDUCTION, *REPAIRED, PROBE_TIMER, PROBE),
    ),
    Rule(
        (LOST, LOST_REPAIRING),
        "RACK detects the loss; the flight has another loss.",
        "(1 - o) * (1 - q) * m",
        LOSS_DETECTED,
        ("REPAIR_MORE",),
        (*DETECTION, *REDUCTION, FASTRETRANS, *REPAIRED),
    ),
    Rule(
        (LOST, LOST_REPAIRING),
        "The retransmission is lost, and RACK will detect it.",
        "(1 - o) * q * (1 - t)",
        LOSS_DETECTED,
        ("REPAIR_AGAIN",),
        (*DETECTION, *REDUCTION, *REPAIRED),
    ),
    Rule(
        (LOST, LOST_REPAIRING),
        "The retransmission is lost and no later segment arrives; or an outage takes the tail loss probe too, or with "
        "correlated losses the first of the rounds of retransmissions.",
        "(1 - o) * q * t + o * (r + (1 - r) * z)",
        f"{LOSS_DETECTED}; in an outage, to the tail loss probe, and if a round of retransmissions is lost, RTT longer",
        ("TIMEOUT",),
        (RACK_DETECT, *REPAIRED, PROBE_TIMER, PROBE, *TIMED_OUT),
    ),
    Rule(
        (LOST_OPEN,),
        "RACK detects the loss and it is retransmitted; or a tail loss probe leaves before the next packet and repairs "
        "it. No other segment of the flight is lost, and the retransmission arrives.",
        "(1 - q) * (1 - m)",
        "RTT + d",
        ("REPAIR_OPEN",),
        (RACK_DETECT, PROBE_ACK, *DETECTION[1:], *REDUCTION, PACKETS_IN_FLIGHT, RETRANSMIT, PROBE_TIMER, PROBE),
        deciding=2,
    ),
    Rule(
        (LOST_BURST,),
        "RACK detects the losses, or the tail loss probe shows them; the flight has no further loss. REPAIR if packets "
        "had to wait meanwhile, otherwise REPAIR_OPEN.",
        "(1 - q) * (1 - m)",
        "RTT + d + s * i",
        ("REPAIR", "REPAIR_OPEN"),
        (*DETECTION, *REDUCTION, PACKETS_IN_FLIGHT, *REPAIRED, PROBE_TIMER, PROBE),
    ),
    Rule(
        (LOST_OPEN, LOST_BURST),
        "RACK detects the loss; the flight has another loss.",
        "(1 - q) * m",
        "RTT + d + s * i",
        ("REPAIR_MORE",),
        (*DETECTION, *REDUCTION, FASTRETRANS, *REPAIRED),
    ),
    Rule(
        (LOST_OPEN, LOST_BURST),
        "The retransmission is lost, and RACK will detect it.",
        "q * (1 - t)",
        "RTT + d + s * i",
        ("REPAIR_AGAIN",),
        (*DETECTION, *REDUCTION, *REPAIRED),
    ),
    Rule(
        (LOST_OPEN, LOST_BURST),
        "The retransmission is lost, and no later segment arrives.",
        "q * t",
        "RTT + d + s * i",
        ("TIMEOUT",),
        (RACK_DETECT, *REPAIRED, *TIMED_OUT),
    ),
    Rule(
        (LOST_TWO,),
        "RACK detects the first loss, later the second one. Both retransmissions arrive; the "
        "probability that one is lost is 2p.",
        "1 - max(min(2 * p, 0.9), 1 - (1 - p * t)**2)",
        "RTT + d",
        ("REPAIR_MORE",),
        (*DETECTION, *REDUCTION, FASTRETRANS),
    ),
    Rule(
        (LOST_TWO,),
        "One of the two retransmissions is lost, and RACK will detect it.",
        "max(min(2 * p, 0.9) - (1 - (1 - p * t)**2), 0)",
        "RTT + d",
        ("REPAIR_AGAIN",),
        (*DETECTION, *REDUCTION, RETRANSMIT),
    ),
    Rule(
        (LOST_TWO,),
        "One of the two retransmissions is lost, and no later segment arrives.",
        "1 - (1 - p * t)**2",
        "RTT + d",
        ("TIMEOUT",),
        (RACK_DETECT, RETRANSMIT, *TIMED_OUT),
    ),
    Rule(
        (OUTAGE,),
        "The tail loss probe arrives, and its ACK shows the losses. Each later ACK lets PRR retransmit two segments.",
        "(1 - r) * (1 - z)",
        f"{TO_PROBE}; {AFTER_PROBE}",
        ("REPAIR",),
        (PROBE_TIMER, PROBE, *REDUCTION, *REPAIRED),
    ),
    Rule(
        (OUTAGE,),
        "The tail loss probe is lost too; or with correlated losses, a round of retransmissions. The chain takes the "
        "first of these rounds as the lost one.",
        "r + (1 - r) * z",
        f"{TO_PROBE}; in the second case RTT longer",
        ("TIMEOUT",),
        (GILBERT, DROP_TAIL, PROBE_TIMER, PROBE, *TIMED_OUT),
        deciding=2,
    ),
    Rule(
        (REPAIR_MORE, REPAIR_AGAIN),
        "The retransmission and the new segments arrive.",
        NO_FURTHER_LOSS,
        RETRANSMITTED,
        ("REPAIR",),
        (FASTRETRANS, RACK_DETECT, RACK_WINDOW, PRR, RETRANSMIT),
    ),
    Rule(
        (REPAIR_MORE, REPAIR_AGAIN),
        "The retransmission or a new segment is lost, and RACK will detect it.",
        f"1 - q * t - {NO_FURTHER_LOSS}",
        RETRANSMITTED,
        ("REPAIR_AGAIN",),
        (RACK_DETECT, RACK_WINDOW, RETRANSMIT),
    ),
    Rule(
        (REPAIR_MORE, REPAIR_AGAIN),
        "The retransmission is lost, and no later segment arrives.",
        "q * t",
        RETRANSMITTED,
        ("TIMEOUT",),
        (RACK_DETECT, RETRANSMIT, *TIMED_OUT),
    ),
    Rule(
        (REPAIR, REPAIR_OPEN),
        "No loss. The ACK reaches the recovery point; with full segments the phase ends one ACK earlier (`y`). Rounds "
        "begin with the reduced window, with BBR with the restored window.",
        "(1 - f)**n",
        "RTT + a - y",
        ("ROUND",),
        (*RECOVERED, PRR, BBR_PACING),
    ),
    Rule(
        (REPAIR, REPAIR_OPEN),
        "A new segment is lost.",
        f"({LOSS_IN_RECOVERY}) * (1 - h)",
        "mean time to the ACK that releases the lost segment, for each third of the RTT; in REPAIR_OPEN RTT / 2",
        ("LOST_REPAIRING",),
        (*RELEASED, WRITE_XMIT),
    ),
    Rule(
        (REPAIR, REPAIR_OPEN),
        "A new segment is lost, and with it the rest of the round.",
        f"({LOSS_IN_RECOVERY}) * h",
        FIRST_LOST,
        ("LOST_REST",),
        (DROP_TAIL, *RELEASED, WRITE_XMIT),
    ),
    Rule(
        (REPAIR_NOT_LIMITED,),
        "No loss: the ACK reaches the recovery point. Rounds begin if a backlog remains, otherwise the window is open.",
        "(1 - f)**n",
        "RTT",
        ("ROUND", "OPEN"),
        (*RECOVERED, PRR, BBR_PACING),
    ),
    Rule(
        (REPAIR_OPEN_NOT_LIMITED,),
        "No loss: the ACK reaches the recovery point.",
        "(1 - f)**n",
        "RTT, and on to the next write",
        ("OPEN",),
        (*RECOVERED, PRR, BBR_PACING),
    ),
    Rule(
        RECOVERY_NOT_LIMITED,
        "A new packet is lost.",
        f"({LOSS_IN_RECOVERY}) * b",
        PACKET_LOST,
        ("LOST_OPEN",),
        (*RELEASED, WRITE_XMIT),
    ),
    Rule(
        RECOVERY_NOT_LIMITED,
        f"{SEGMENTS_LOST}: {BY_BURST_OR_QUEUE}",
        f"({LOSS_IN_RECOVERY}) * (1 - b - o)",
        PACKET_LOST,
        ("LOST_BURST",),
        (GILBERT, DROP_TAIL, *RELEASED),
        deciding=2,
    ),
    Rule(
        RECOVERY_NOT_LIMITED,
        f"{WINDOW_LOST}, {BY_BURST_OR_QUEUE}",
        f"({LOSS_IN_RECOVERY}) * o",
        PACKET_LOST,
        ("OUTAGE",),
        (GILBERT, DROP_TAIL, *RELEASED),
        deciding=2,
    ),
    Rule(
        (TIMEOUT,),
        f"The retransmission arrives. {AFTER_TIMEOUT}",
        "(1 - r) * (1 - z)",
        "RTO * 2**k + RTT * (1 / 2 + c)",
        ("ROUND", "OPEN"),
        (*TIMED_OUT, SLOW_START, BBR_WINDOW),
    ),
    Rule(
        (TIMEOUT,),
        "The retransmission is lost: the RTO doubles (k + 1). Or with correlated losses, a later round of slow start "
        "is lost: the ACKs before have reset the RTO (k = 0). The chain takes the first of these rounds as the lost "
        "one.",
        "r + (1 - r) * z",
        "RTO 2^k; if a round of slow start is lost, RTT longer",
        ("TIMEOUT",),
        (RTO, DROP_TAIL, SET_RTO, ENTER_LOSS, SLOW_START),
        deciding=2,
    ),
    Rule(
        (LAST_TIMEOUT,),
        f"The retransmission arrives: further timeouts are too rare to matter. {AFTER_TIMEOUT}",
        "1 - z",
        "RTO * 2**k + RTT * (1 / 2 + c)",
        ("ROUND", "OPEN"),
        (*TIMED_OUT, SLOW_START, BBR_WINDOW),
    ),
    Rule(
        (LAST_TIMEOUT,),
        "With correlated losses, a later round of slow start is lost: the ACKs before have reset the RTO (k = 0). The "
        "chain takes the first of these rounds as the lost one.",
        "z",
        "RTO 2^k + RTT",
        ("TIMEOUT",),
        (DROP_TAIL, *TIMED_OUT, SLOW_START),
    ),
)
"""All rules. In each state their probabilities add up to 1, and each leads to phases to which no other one leads."""
