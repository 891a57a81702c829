"""Which of the kernel's rules a simulation follows: each can be left out, to see what it does."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tcpdelay.scenario import require_flag


@dataclass(frozen=True, slots=True)
class Rules:
    """The kernel's rules, all followed unless set to False.

    Parameters
    ----------
    rack : bool
        Time tells what is lost (RFC 8985). Without: three SACKed segments beyond it (RFC 6675), and a lost
        retransmission is left to the timeout (sysctl net.ipv4.tcp_recovery = 0).
    reordering_window : bool
        RACK waits a quarter of the smallest RTT for reordered segments while fewer than three are SACKed.
    retransmissions_found_lost_by_rack : bool
        RACK finds lost retransmissions too; without, they are left to the timeout.
    proportional_reduction : bool
        A recovery sends in proportion to what is delivered (RFC 6937); without, as far as the reduced window goes.
    application_limited_rule : bool
        Only a window that binds may grow (`tcp_is_cwnd_limited`).
    coalescing : bool
        Writes fill up segments while they wait; without, no segment holds bytes of two writes.
    ticks : bool
        Timers fire at ticks of the kernel's clock and its wheel; without, exactly when they are due.
    tail_loss_probe : bool
        A probe is sent when acknowledgements stay away (RFC 8985).
    f_rto : bool
        A timeout may turn out to be spurious (RFC 5682).
    collapsing : bool
        A retransmission takes in the small segments behind it that are lost as well (`tcp_retrans_try_collapse`).

    Raises
    ------
    ValueError
        If a value is neither True nor False.

    Examples
    --------
    >>> Rules(rack=False).switches()["rack"]
    0
    """

    rack: bool = True
    reordering_window: bool = True
    retransmissions_found_lost_by_rack: bool = True
    proportional_reduction: bool = True
    application_limited_rule: bool = True
    coalescing: bool = True
    ticks: bool = True
    tail_loss_probe: bool = True
    f_rto: bool = True
    collapsing: bool = True

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            require_flag(name, value)

    def switches(self) -> dict[str, int]:
        """Return the rules as fields of a connection: 1 if followed, else 0."""
        return {name: int(value) for name, value in asdict(self).items()}
