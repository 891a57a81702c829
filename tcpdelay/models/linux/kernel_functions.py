"""The functions of Linux 6.1 that the chain models, each with what it does and its section of an RFC.

Files are in net/ipv4, unless they have a folder.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A function of the kernel that a rule of the chain models.

    Attributes
    ----------
    function : str
        Name of the function.
    file : str
        File in net/ipv4, or with its folder.
    does : str
        What the function does, in one sentence.
    rfc : str
        Section of the RFC; empty if no RFC says it.
    """

    function: str
    file: str
    does: str
    rfc: str


CWND_TEST = Source(
    "tcp_cwnd_test",
    "tcp_output.c",
    "Returns how many segments may leave at once: the congestion window minus the flight, at most half of the window.",
    "RFC 5681, 3.1",
)
WRITE_XMIT = Source(
    "tcp_write_xmit",
    "tcp_output.c",
    "Sends waiting segments as long as `tcp_cwnd_test` lets them leave; ACKs and writes call it (ACK clock).",
    "RFC 5681, 3.1",
)
SENDMSG = Source(
    "tcp_sendmsg_locked",
    "tcp.c",
    "Appends a write to the last buffer that waits to be sent, so that waiting packets share segments.",
    "",
)
PACKETS_IN_FLIGHT = Source(
    "tcp_packets_in_flight",
    "include/net/tcp.h",
    "Does not count SACKed and lost segments as in flight, so that each SACK releases a segment (limited transmit).",
    "RFC 3042, 2; RFC 6675, 4",
)
CWND_LIMITED = Source(
    "tcp_is_cwnd_limited",
    "include/net/tcp.h",
    "Returns whether the window was the limit in the last flight; only then CUBIC and Reno grow it after slow start.",
    "RFC 9438, 5.8",
)
CWND_VALIDATE = Source(
    "tcp_cwnd_validate",
    "tcp_output.c",
    "Remembers that the window was the limit until all segments in flight at that time are acknowledged.",
    "RFC 9438, 5.8",
)
CUBIC_GROWTH = Source(
    "bictcp_update",
    "tcp_cubic.c",
    "Computes the ACKs per segment of growth, from the time since the last reduction, or from a Reno-friendly window "
    "that grows by one segment per `beta_scale` / 8 = 15/8 windows of ACKs.",
    "RFC 9438, 4.2 to 4.5",
)
CONG_AVOID = Source(
    "tcp_cong_avoid_ai",
    "tcp_cong.c",
    "Adds one segment to the window for every `w` acknowledged segments: with Reno, a window of ACKs.",
    "RFC 5681, 3.1",
)
CUBIC_REDUCTION = Source(
    "cubictcp_recalc_ssthresh",
    "tcp_cubic.c",
    "Returns 717/1024 of the window, at least 2; stores the window, or 85 % of it if it is below the stored window.",
    "RFC 9438, 4.6 and 4.7",
)
RENO_REDUCTION = Source("tcp_reno_ssthresh", "tcp_cong.c", "Returns half of the window, at least 2.", "RFC 5681, 3.1")
BBR_SSTHRESH = Source(
    "bbr_ssthresh",
    "tcp_bbr.c",
    "With BBR, stores the window (`bbr_save_cwnd`) in place of a reduction.",
    "",
)
RACK_DETECT = Source(
    "tcp_rack_detect_loss",
    "tcp_recovery.c",
    "Marks a segment or a retransmission lost if a segment sent later has arrived and the time since it was sent is at "
    "least the RTT plus the reordering window.",
    "RFC 8985, 6.2, step 5",
)
RACK_WINDOW = Source(
    "tcp_rack_reo_wnd",
    "tcp_recovery.c",
    "Returns RACK's reordering window: a quarter of the smallest RTT; 0 in recovery or with three segments SACKed.",
    "RFC 8985, 6.2, step 4",
)
RACK_TIMER = Source(
    "tcp_rack_mark_lost",
    "tcp_recovery.c",
    "Calls `tcp_rack_detect_loss` and starts a timer for the rest of the reordering window plus TCP_TIMEOUT_MIN_US.",
    "RFC 8985, 6.2, step 5",
)
RACK_TIMEOUT = Source(
    "tcp_rack_reo_timeout",
    "tcp_recovery.c",
    "Detects losses when RACK's timer fires, enters recovery, and retransmits.",
    "RFC 8985, 6.2, step 5",
)
ENTER_RECOVERY = Source(
    "tcp_init_cwnd_reduction",
    "tcp_input.c",
    "Sets the recovery point (`high_seq`) to the end of the flight and reduces ssthresh, once per recovery.",
    "RFC 6937, 3; RFC 6675, 5",
)
FASTRETRANS = Source(
    "tcp_fastretrans_alert",
    "tcp_input.c",
    "Looks for further losses at each ACK in recovery; ends it at the ACK that reaches the recovery point.",
    "RFC 6675, 5",
)
PRR = Source(
    "tcp_cwnd_reduction",
    "tcp_input.c",
    "Releases segments in proportion to delivered ones while the flight is above ssthresh (PRR); below it, one segment "
    "per delivered segment, and two if the ACK advances and shows no loss. BBR does not use it.",
    "RFC 6937, 3",
)
BBR_WINDOW = Source(
    "bbr_set_cwnd_to_recover_or_restore",
    "tcp_bbr.c",
    "With BBR, each ACK releases as much as it delivers in the first round of a recovery; restores the window at the "
    "end of a recovery or a timeout.",
    "",
)
BBR_PACING = Source(
    "bbr_set_pacing_rate",
    "tcp_bbr.c",
    "With BBR, sets the rate at which segments leave to 99 % of the measured bandwidth, times the gain of the phase.",
    "",
)
END_RECOVERY = Source(
    "tcp_end_cwnd_reduction",
    "tcp_input.c",
    "Sets the window to ssthresh at the end of a recovery; does nothing with BBR.",
    "RFC 6937, 3",
)
RETRANSMIT = Source(
    "tcp_xmit_retransmit_queue",
    "tcp_output.c",
    "Retransmits the segments marked lost in their order, as far as the window lets them leave; with the first of the "
    "flight it restarts the RTO.",
    "RFC 6675, 5",
)
COLLAPSE = Source(
    "tcp_retrans_try_collapse",
    "tcp_output.c",
    "Merges the following small segments into a retransmission, up to a full segment and to the first SACKed one.",
    "",
)
SET_RTO = Source(
    "tcp_set_rto",
    "tcp_input.c",
    "Sets the RTO to the smoothed RTT plus `rttvar_us`, which `tcp_rtt_estimator` keeps at TCP_RTO_MIN or above.",
    "RFC 6298, 2.3",
)
RTO = Source(
    "tcp_retransmit_timer",
    "tcp_timer.c",
    "Enters `tcp_enter_loss`, retransmits the first segment, and doubles the RTO up to TCP_RTO_MAX (backoff).",
    "RFC 6298, 5.4 to 5.6",
)
ENTER_LOSS = Source(
    "tcp_enter_loss",
    "tcp_input.c",
    "Marks the first segment and all overdue ones lost, reduces ssthresh unless a recovery has just done so, and sets "
    "the window to the flight plus one.",
    "RFC 5681, 3.1",
)
SLOW_START = Source(
    "tcp_slow_start",
    "tcp_cong.c",
    "Adds each acknowledged segment to the window, up to ssthresh.",
    "RFC 5681, 3.1",
)
PROBE_TIMER = Source(
    "tcp_schedule_loss_probe",
    "tcp_output.c",
    "Starts the timer of the tail loss probe: 2 smoothed RTTs + 2 ms, or + TCP_RTO_MIN after a lone segment; it fires "
    "at the RTO of the first segment at the latest. In a recovery and after a timeout it starts none.",
    "RFC 8985, 7.2",
)
PROBE = Source(
    "tcp_send_loss_probe",
    "tcp_output.c",
    "Sends a new segment as the tail loss probe, or else the last segment again, and restarts the RTO.",
    "RFC 8985, 7.3",
)
PROBE_ACK = Source(
    "tcp_process_tlp_ack",
    "tcp_input.c",
    "Learns from the first ACK beyond a retransmitted tail loss probe that the probe repaired a loss, and reduces the "
    "window to ssthresh at once (not with BBR).",
    "RFC 8985, 7.4",
)
GILBERT = Source(
    "loss_gilb_ell",
    "net/sched/sch_netem.c",
    "Draws losses of a path with bursts: a state with losses, and a state without (netem, Gilbert 1960).",
    "",
)
DROP_TAIL = Source(
    "pfifo_enqueue",
    "net/sched/sch_fifo.c",
    "Drops a packet that finds the queue full (drop-tail); in bytes `bfifo_enqueue`. With correlated losses, the queue "
    "stays full for the rest of a round.",
    "RFC 2309, 2",
)

DETECTION = (RACK_DETECT, RACK_WINDOW, RACK_TIMER, RACK_TIMEOUT)
"""Functions that detect a loss by time."""
REDUCTION = (ENTER_RECOVERY, CUBIC_REDUCTION, RENO_REDUCTION, BBR_SSTHRESH)
"""Functions that begin a recovery."""
GROWTH = (CWND_LIMITED, CUBIC_GROWTH, CONG_AVOID)
"""Functions that grow the window of a cwnd-limited sender."""
REPAIRED = (PRR, RETRANSMIT, COLLAPSE)
"""Functions that let the retransmissions of several losses leave."""
RECOVERED = (FASTRETRANS, END_RECOVERY, BBR_WINDOW)
"""Functions that end a recovery."""
RELEASED = (PRR, BBR_WINDOW, BBR_PACING)
"""Functions that let segments leave in a recovery."""
TIMED_OUT = (RTO, SET_RTO, ENTER_LOSS)
"""Functions of the RTO."""
