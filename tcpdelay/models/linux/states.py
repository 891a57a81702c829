"""The states of the chain of Linux as a table: what the connection does in each kind of phase, and what leaves when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    """A kind of phases with the same events.

    Attributes
    ----------
    kind : str
        Kind of the phases, as in `KIND_NAMES` but in capitals. Loss bursts and outages, which the kernels count as
        LOST_TWO, have names of their own, as has the first part of LOST with correlated losses.
    meaning : str
        What the connection does.
    departures : str
        What leaves, and when.
    case : str
        Which phases of the kind; empty for all.
    """

    kind: str
    meaning: str
    departures: str
    case: str = ""

    @property
    def name(self) -> str:
        """Kind and case."""
        return f"{self.kind}, {self.case}" if self.case else self.kind


ACK_CLOCK = "One segment per ACK (ACK clock), with the spacing of the last round. Waiting packets share segments."
PER_ACK = (
    "One segment per ACK, evenly spaced over the RTT (PRR; with BBR packet conservation). With BBR, segments leave at "
    "the pacing rate after the first round of a recovery."
)
PER_SACK = (
    "Packets as they are written, as each SACK takes a segment out of the flight (limited transmit). "
    "The receiver holds them back until the loss is repaired."
)
LIMITED, NOT_LIMITED = "cwnd-limited", "application-limited"

ROUND = State("ROUND", "One RTT of a cwnd-limited sender: w ACKs arrive.", ACK_CLOCK)
OPEN = State("OPEN", "One packet interval of an application-limited sender.", "The packet, as soon as it is written.")
LOST = State(
    "LOST",
    "From the first loss of a round to its detection, or in an outage to the last retransmission. With correlated "
    "losses, from the last ACK before the detection to the last retransmission.",
    f"{ACK_CLOCK} With correlated losses nothing.",
)
LOST_REST = State(
    "LOST_REST",
    "With correlated losses, from the first loss of a round to the last ACK that releases a segment. The rest of the "
    "round is lost too.",
    ACK_CLOCK,
)
LOST_OPEN = State("LOST_OPEN", "From the loss of a packet in an open window to its detection.", PER_SACK)
LOST_TWO = State(
    "LOST_TWO",
    "From the loss of a packet in an open window to its detection, if a packet that would detect it is lost too.",
    PER_SACK,
)
LOST_BURST = State(
    "LOST_BURST",
    "From the first of two or more consecutive losses in an open window to the last of their retransmissions.",
    PER_SACK,
)
OUTAGE = State(
    "OUTAGE",
    "From the first loss of an open window that is lost as a whole to the last retransmission, or to the tail loss "
    "probe if it is lost too.",
    "Packets until the window is full; all of them are lost.",
)
LOST_REPAIRING = State(
    "LOST_REPAIRING",
    "From the loss of a new segment during a recovery to its detection. The segment is beyond the recovery point, so a "
    "second recovery follows, with a reduction of its own.",
    ACK_CLOCK,
)
REPAIR_MORE = State(
    "REPAIR_MORE", "In recovery, until the last loss of the flight is detected and retransmitted.", PER_ACK
)
REPAIR_AGAIN = State(
    "REPAIR_AGAIN",
    "In recovery, until RACK has detected a lost retransmission or new segment, and it is sent again.",
    PER_ACK,
)
_TO_RECOVERY_POINT = "From the last retransmission to its ACK, which reaches the recovery point"
REPAIR = State(
    "REPAIR",
    f"{_TO_RECOVERY_POINT}. With full segments, from the last ACK before the detection (`a`) to one ACK before the "
    "recovery point (`y`).",
    PER_ACK,
    LIMITED,
)
REPAIR_NOT_LIMITED = State(
    "REPAIR", f"{_TO_RECOVERY_POINT}. The reduced window lets every new packet leave.", PER_ACK, NOT_LIMITED
)
REPAIR_OPEN = State(
    "REPAIR_OPEN", f"{_TO_RECOVERY_POINT}, after a loss at a known time: in an open window.", PER_ACK, LIMITED
)
REPAIR_OPEN_NOT_LIMITED = State(
    "REPAIR_OPEN",
    f"{_TO_RECOVERY_POINT}, after a loss in an open window. The reduced window lets every new packet leave.",
    "One packet per ACK (PRR).",
    NOT_LIMITED,
)
TIMEOUT = State("TIMEOUT", "Until the RTO expires and the first segment is retransmitted.", "Nothing.", "not the last")
LAST_TIMEOUT = State("TIMEOUT", "The last consecutive timeout that the chain follows.", "Nothing.", "the last")
STATES = (
    ROUND, OPEN, LOST, LOST_REST, LOST_OPEN, LOST_TWO, LOST_BURST, OUTAGE, LOST_REPAIRING, REPAIR_MORE, REPAIR_AGAIN,
    REPAIR, REPAIR_NOT_LIMITED, REPAIR_OPEN, REPAIR_OPEN_NOT_LIMITED, TIMEOUT, LAST_TIMEOUT,
)  # fmt: skip
"""The states, in the order of the documentation."""
