"""BBR: a congestion control that follows a model of the path instead of losses (net/ipv4/tcp_bbr.c, version 1).

BBR estimates the path's bandwidth, the largest delivery rate of the last rounds, and its round-trip time, the smallest
of the last ten seconds. The bandwidth gives the pacing rate, and the product of both gives the window. A round is the
time until a segment is acknowledged that was sent after the end of the last round.

Bandwidths are segments per microsecond in units of 2^-24, gains are in 256ths, as in the kernel. The pacing timer and
the samples of the delivery rate, on which BBR depends, are at the beginning.

References
----------
Cardwell, Cheng, Gunn, Hassas Yeganeh, Jacobson, "BBR: Congestion-Based Congestion Control", ACM Queue 14 (5), 2016.
"""

from __future__ import annotations

from typing import Protocol

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.random_numbers import Generator, uniform
from tcpdelay.sim.records import (
    LOSS,
    MASK,
    RECOVERY,
    BbrConnection,
    Connection,
    WireRecord,
    in_flight,
    ticks_now,
    to_ticks,
)
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.constants import BBR_BANDWIDTH, BBR_GAIN, NEVER

# Pacing by the timer of TCP itself, as without the queueing discipline fq (net/ipv4/tcp_output.c).
#
# The timer has a high resolution: it does not wait for a tick.

NANOSECONDS = 1000
"""Nanoseconds per microsecond."""


@kernel()
def bytes_per_second(c: BbrConnection, bandwidth: int, gain: int) -> int:
    """Return the rate of a bandwidth times a gain, less BBR's margin of 1 % (`bbr_rate_bytes_per_sec`)."""
    rate = bandwidth * c.mss * gain // tcp.BBR_GAIN
    return int(rate * (tcp.SECOND // 100 * (100 - tcp.BBR_PACING_MARGIN)) // tcp.BBR_BANDWIDTH)


@kernel()
def is_paced(c: BbrConnection) -> bool:
    """Return whether the next segment must wait, and if so, let the timer send it later (`tcp_pacing_check`)."""
    if c.tcp_wstamp_ns <= c.now * NANOSECONDS:
        return False
    if c.pacing_at == NEVER:
        c.pacing_at = -(-c.tcp_wstamp_ns // NANOSECONDS)
    return True


class PacedConnection(Protocol):
    """A connection, as pacing sees it."""

    now: int
    segments_sent: int
    pacing_rate: int
    tcp_wstamp_ns: int


@kernel()
def schedule_next(c: PacedConnection, size: int) -> None:
    """Set the earliest time of the next segment after one of `size` bytes that is sent now.

    The first segments are not paced, nor is any segment at a rate of 0, as after a minute of losses. A segment that is
    sent late makes up for at most half of the time to the next segment (`tcp_update_skb_after_send`).
    """
    now = c.now * NANOSECONDS
    credit = max(now - c.tcp_wstamp_ns, 0)
    c.tcp_wstamp_ns += credit
    if c.segments_sent + 1 < tcp.UNPACED_SEGMENTS or c.pacing_rate == 0:
        return
    duration = size * tcp.SECOND * NANOSECONDS // c.pacing_rate
    c.tcp_wstamp_ns += duration - min(duration // 2, credit)


# The delivery rate that an ACK shows, and its mark where the application limits the rate (net/ipv4/tcp_rate.c).
#
# A sample spans the time between two deliveries, and the segments delivered meanwhile. BBR estimates the path's
# bandwidth from these samples.
#
# References:
# Cheng, Cardwell, Hassas Yeganeh, Jacobson, "Delivery Rate Estimation", draft-cheng-iccrg-delivery-rate-estimation.

NO_SAMPLE = -1
"""Value in place of a rate sample's count, interval or RTT if the ACK shows none."""


@kernel()
def on_send(c: Connection, wire: WireRecord, number: int) -> None:
    """Pace the next segment, and store the state of delivery with this one (`tcp_rate_skb_sent`).

    A sample begins with the most recent ACK, or now if nothing is outstanding.
    """
    schedule_next(c, wire.segments[number & MASK].end - wire.segments[number & MASK].start)
    if c.packets_out == 0:
        c.first_tx_mstamp = c.delivered_mstamp = c.now
    snapshot = wire.snapshots[number & MASK]
    snapshot.first_tx_mstamp = c.first_tx_mstamp
    snapshot.delivered_mstamp = c.delivered_mstamp
    snapshot.delivered = c.delivered
    snapshot.app_limited = c.app_limited > 0


@kernel()
def before_ack(c: BbrConnection) -> None:
    """Begin the sample of an ACK that arrives now."""
    c.rs_prior_delivered = c.rs_last_end_seq = 0
    c.rs_prior_in_flight = in_flight(c)


@kernel()
def on_delivery(c: Connection, wire: WireRecord, number: int) -> None:
    """Use the latest sent segment that the ACK reports as the start of the sample (`tcp_rate_skb_delivered`)."""
    segment, snapshot = wire.segments[number & MASK], wire.snapshots[number & MASK]
    later = segment.sent > c.first_tx_mstamp or (segment.sent == c.first_tx_mstamp and segment.end > c.rs_last_end_seq)
    if c.rs_prior_delivered and not later:
        return
    c.rs_prior_delivered = snapshot.delivered
    c.rs_prior_mstamp = snapshot.delivered_mstamp
    c.rs_app_limited = snapshot.app_limited
    c.rs_last_end_seq = segment.end
    c.first_tx_mstamp = segment.sent
    c.rs_interval = segment.sent - snapshot.first_tx_mstamp


@kernel()
def end_sample(c: BbrConnection, acked: int, losses: int) -> None:
    """Complete the sample of an ACK (`tcp_rate_gen`).

    The interval is the longer one of the times in which the segments were sent and in which they were acknowledged. An
    interval below the smallest RTT is not possible: the ACK is not for the transmission that it seems to be for.
    """
    if c.delivered > c.app_limited:
        c.app_limited = 0
    if acked:
        c.delivered_mstamp = c.now
    c.rs_acked, c.rs_losses = acked, losses
    if c.rs_prior_delivered == 0:
        c.rs_delivered = c.rs_interval = NO_SAMPLE
        return
    c.rs_delivered = c.delivered - c.rs_prior_delivered
    c.rs_interval = max(c.rs_interval, c.now - c.rs_prior_mstamp)
    if c.rs_interval < c.min_rtt:
        c.rs_interval = NO_SAMPLE


@kernel()
def on_write(c: Connection) -> None:
    """Mark the rate as limited by the application if, before a write, it is (`tcp_rate_check_app_limited`)."""
    if c.written - c.snd_nxt < c.mss and in_flight(c) < c.snd_cwnd and c.lost_out <= c.retrans_out:
        c.app_limited = max(c.delivered + in_flight(c), 1)


# How BBR detects a policer, which drops what exceeds a rate: two intervals with many losses and about the same rate.
#
# Such an interval has at least four rounds (net/ipv4/tcp_bbr.c, "long-term" bandwidth sampling, `lt_bw`).
#
# References:
# Flach et al., "An Internet-Wide Analysis of Traffic Policing", SIGCOMM 2016.


@kernel()
def _begin_interval(c: BbrConnection) -> None:
    """Begin an interval of samples (`bbr_reset_lt_bw_sampling_interval`)."""
    c.bbr_lt_last_stamp = c.delivered_mstamp // tcp.MILLISECOND
    c.bbr_lt_last_delivered = c.delivered
    c.bbr_lt_last_lost = c.lost
    c.bbr_lt_rtt_cnt = 0


@kernel()
def reset_policer(c: BbrConnection) -> None:
    """Forget the policer (`bbr_reset_lt_bw_sampling`)."""
    c.bbr_lt_bw = c.bbr_lt_use_bw = c.bbr_lt_is_sampling = 0
    _begin_interval(c)


@kernel()
def sample_policer(c: BbrConnection, cycling: bool, losses: int, application_limited: int) -> bool:
    """Look for a policer; return whether to probe for bandwidth again (`bbr_lt_bw_sampling`)."""
    if c.bbr_lt_use_bw:
        if cycling and c.bbr_round_start:
            c.bbr_lt_rtt_cnt += 1
            if c.bbr_lt_rtt_cnt >= tcp.BBR_POLICED_ROUNDS:
                reset_policer(c)
                return True
        return False
    if not c.bbr_lt_is_sampling:
        if not losses:
            return False
        _begin_interval(c)
        c.bbr_lt_is_sampling = 1
    if application_limited:
        reset_policer(c)
        return False
    if c.bbr_round_start:
        c.bbr_lt_rtt_cnt += 1
    if c.bbr_lt_rtt_cnt > 4 * tcp.BBR_INTERVAL_ROUNDS:
        reset_policer(c)
    elif c.bbr_lt_rtt_cnt >= tcp.BBR_INTERVAL_ROUNDS and losses:
        _end_interval(c)
    return False


@kernel()
def _end_interval(c: BbrConnection) -> None:
    """End an interval if at least a fifth of its segments were lost (`bbr_lt_bw_interval_done`).

    Two intervals with about the same rate show a policer.
    """
    lost, delivered = c.lost - c.bbr_lt_last_lost, c.delivered - c.bbr_lt_last_delivered
    duration = c.delivered_mstamp // tcp.MILLISECOND - c.bbr_lt_last_stamp
    if delivered == 0 or lost * BBR_GAIN < tcp.BBR_POLICED_LOSS * delivered or duration < 1:
        return
    bandwidth = delivered * BBR_BANDWIDTH // (duration * tcp.MILLISECOND)
    if c.bbr_lt_bw and _is_alike(c, abs(bandwidth - c.bbr_lt_bw)):
        c.bbr_lt_bw = (bandwidth + c.bbr_lt_bw) >> 1
        c.bbr_lt_use_bw = 1
        c.bbr_pacing_gain = BBR_GAIN
        c.bbr_lt_rtt_cnt = 0
        return
    c.bbr_lt_bw = bandwidth
    _begin_interval(c)


@kernel()
def _is_alike(c: BbrConnection, difference: int) -> bool:
    """Return whether two rates differ by at most an eighth or 500 bytes per second."""
    if difference * BBR_GAIN <= tcp.BBR_POLICED_RATIO * c.bbr_lt_bw:
        return True
    return bool(bytes_per_second(c, difference, BBR_GAIN) <= tcp.BBR_POLICED_DIFFERENCE)


STARTUP, DRAIN, PROBE_BW, PROBE_RTT = range(4)
"""Modes of BBR (enum bbr_mode)."""


@kernel()
def sets_window(c: BbrConnection) -> bool:
    """Return that BBR sets the window (`bbr_main`)."""
    return True


@kernel()
def buffered_windows(c: BbrConnection) -> int:
    """Return a larger size of the send buffer (`bbr_sndbuf_expand`)."""
    return 3


@kernel()
def start(c: BbrConnection) -> None:
    """Begin with the state at the end of the handshake (`bbr_init`)."""
    # The handshake delivers the first segment.
    c.delivered = 1
    c.bbr_mode = STARTUP
    c.bbr_next_rtt_delivered = c.delivered
    c.bbr_min_rtt = c.min_rtt
    c.bbr_min_rtt_stamp = ticks_now(c)
    c.bbr_ack_epoch_mstamp = c.now
    reset_policer(c)
    _start_pacing(c)


@kernel()
def _start_pacing(c: BbrConnection) -> None:
    """Pace the initial window over the round-trip time, or over a millisecond (`bbr_init_pacing_rate_from_rtt`)."""
    rtt = tcp.MILLISECOND
    if c.srtt:
        rtt = max(c.srtt >> 3, 1)
        c.bbr_has_seen_rtt = 1
    c.pacing_rate = bytes_per_second(c, c.snd_cwnd * BBR_BANDWIDTH // rtt, tcp.BBR_HIGH_GAIN)


@kernel()
def _bandwidth(c: BbrConnection) -> int:
    """Return the estimated bandwidth: the policer's if there is one, else the largest of ten rounds (`bbr_bw`)."""
    return int(c.bbr_lt_bw if c.bbr_lt_use_bw else c.bbr_bw)


@kernel()
def _set_pacing_rate(c: BbrConnection, gain: int) -> None:
    """Set the pacing rate; in startup it only rises (`bbr_set_pacing_rate`)."""
    if not c.bbr_has_seen_rtt and c.srtt:
        _start_pacing(c)
    rate = bytes_per_second(c, _bandwidth(c), gain)
    if c.bbr_full_bw_reached or rate > c.pacing_rate:
        c.pacing_rate = rate


@kernel()
def _quantum(c: BbrConnection) -> int:
    """Return the segments that the kernel would like to send as one (`bbr_tso_segs_goal`)."""
    smallest = 1 if c.pacing_rate < tcp.BBR_MIN_TSO_RATE else 2
    size = min(c.pacing_rate >> tcp.PACING_SHIFT, tcp.LARGEST_SUPERSEGMENT)
    return int(min(max(size // c.mss, smallest), tcp.BBR_LARGEST_QUANTUM))


@kernel()
def _delay_product(c: BbrConnection, bandwidth: int, gain: int) -> int:
    """Return the product of bandwidth, round-trip time and gain in segments, rounded up (`bbr_bdp`)."""
    if c.bbr_min_rtt == NEVER:
        return int(tcp.INITIAL_WINDOW)
    return int((bandwidth * c.bbr_min_rtt * gain // BBR_GAIN + BBR_BANDWIDTH - 1) // BBR_BANDWIDTH)


@kernel()
def _with_quanta(c: BbrConnection, window: int) -> int:
    """Return a window with room for three quanta, rounded up to an even number (`bbr_quantization_budget`)."""
    window = (window + 3 * _quantum(c) + 1) // 2 * 2
    return int(window + 2 if c.bbr_mode == PROBE_BW and c.bbr_cycle_idx == 0 else window)


@kernel()
def _target_in_flight(c: BbrConnection, gain: int) -> int:
    """Return the segments in flight that the largest bandwidth and a gain require (`bbr_inflight`)."""
    return int(_with_quanta(c, _delay_product(c, c.bbr_bw, gain)))


@kernel()
def _at_next_departure(c: BbrConnection, now_in_flight: int) -> int:
    """Return the segments in flight when pacing allows the next segment (`bbr_packets_in_net_at_edt`)."""
    wait = max(c.tcp_wstamp_ns - c.now * NANOSECONDS, 0) // NANOSECONDS
    later = now_in_flight - _bandwidth(c) * wait // BBR_BANDWIDTH
    if c.bbr_pacing_gain > BBR_GAIN:
        later += _quantum(c)
    return int(max(later, 0))


@kernel()
def save_window(c: BbrConnection) -> None:
    """Save the window before a recovery, a timeout or a probe of the round-trip time reduces it (`bbr_save_cwnd`)."""
    if c.bbr_prev_ca_state < RECOVERY and c.bbr_mode != PROBE_RTT:
        c.bbr_prior_cwnd = c.snd_cwnd
    else:
        c.bbr_prior_cwnd = max(c.bbr_prior_cwnd, c.snd_cwnd)


@kernel()
def on_loss(c: BbrConnection) -> int:
    """Save the window; the threshold stays (`bbr_ssthresh`)."""
    save_window(c)
    return int(c.snd_ssthresh)


@kernel()
def on_idle(c: BbrConnection, wire: Generator) -> None:
    """Pace at the estimated bandwidth when sending begins again after idle time (`bbr_cwnd_event`)."""
    if not c.app_limited:
        return
    c.bbr_idle_restart = 1
    c.bbr_ack_epoch_mstamp = c.now
    c.bbr_ack_epoch_acked = 0
    if c.bbr_mode == PROBE_BW:
        _set_pacing_rate(c, BBR_GAIN)
    elif c.bbr_mode == PROBE_RTT:
        _check_probe_rtt_done(c, wire)


@kernel()
def on_timeout(c: BbrConnection, wire: Generator, first: bool) -> None:
    """Process a timeout as the end of a round and as a loss (`bbr_set_state`)."""
    c.bbr_prev_ca_state = LOSS
    c.bbr_full_bw = 0
    c.bbr_round_start = 1
    if sample_policer(c, c.bbr_mode == PROBE_BW, 1, 0):
        _enter_probe_bw(c, wire)


@kernel()
def on_undo(c: BbrConnection) -> None:
    """Look again for the end of startup after a needless recovery (`bbr_undo_cwnd`)."""
    c.bbr_full_bw = c.bbr_full_bw_cnt = 0
    reset_policer(c)


@kernel()
def set_window(c: BbrConnection, wire: Generator, delivered: int, lost: int, delayed: bool) -> None:
    """Complete the rate sample of an ACK, and follow it (`bbr_main`)."""
    c.rs_ack_delayed = delayed and c.rs_prior_delivered + 1 == c.delivered
    end_sample(c, delivered, lost)
    control(c, wire)


@kernel()
def control(c: BbrConnection, wire: Generator) -> None:
    """Update the model of the path, the pacing rate and the window with the rate sample of an ACK."""
    _update_bandwidth(c, wire)
    _update_aggregation(c)
    if c.bbr_mode == PROBE_BW and _is_phase_over(c):
        _next_phase(c)
    _check_full_bandwidth(c)
    _check_drain(c, wire)
    _update_min_rtt(c, wire)
    _update_gains(c)
    _set_pacing_rate(c, c.bbr_pacing_gain)
    _set_window(c)


@kernel()
def _update_bandwidth(c: BbrConnection, wire: Generator) -> None:
    """Count rounds, and put the sample into the maximum filter of ten rounds (`bbr_update_bw`).

    A sample that the application has limited counts only if it is at least as large as the estimate.
    """
    c.bbr_round_start = 0
    if c.rs_delivered < 0 or c.rs_interval <= 0:
        return
    if c.rs_prior_delivered >= c.bbr_next_rtt_delivered:
        c.bbr_next_rtt_delivered = c.delivered
        c.bbr_rtt_cnt += 1
        c.bbr_round_start = 1
        c.bbr_packet_conservation = 0
    if sample_policer(c, c.bbr_mode == PROBE_BW, c.rs_losses, c.rs_app_limited):
        _enter_probe_bw(c, wire)
    bandwidth = c.rs_delivered * BBR_BANDWIDTH // c.rs_interval
    if not c.rs_app_limited or bandwidth >= c.bbr_bw:
        _filter(c, bandwidth)


@kernel()
def _filter(c: BbrConnection, bandwidth: int) -> None:
    """Update the three largest samples of the bandwidth in ten rounds (`minmax_running_max`, lib/win_minmax.c)."""
    now, window = c.bbr_rtt_cnt, tcp.BBR_BANDWIDTH_ROUNDS
    if bandwidth >= c.bbr_bw or now - c.bbr_bw3_round > window:
        c.bbr_bw = c.bbr_bw2 = c.bbr_bw3 = bandwidth
        c.bbr_bw_round = c.bbr_bw2_round = c.bbr_bw3_round = now
        return
    if bandwidth >= c.bbr_bw2:
        c.bbr_bw2 = c.bbr_bw3 = bandwidth
        c.bbr_bw2_round = c.bbr_bw3_round = now
    elif bandwidth >= c.bbr_bw3:
        c.bbr_bw3, c.bbr_bw3_round = bandwidth, now
    age = now - c.bbr_bw_round
    if age > window:
        _forget_largest(c, bandwidth)
        if now - c.bbr_bw_round > window:
            _forget_largest(c, bandwidth)
    elif c.bbr_bw2_round == c.bbr_bw_round and age > window // 4:
        c.bbr_bw2 = c.bbr_bw3 = bandwidth
        c.bbr_bw2_round = c.bbr_bw3_round = now
    elif c.bbr_bw3_round == c.bbr_bw2_round and age > window // 2:
        c.bbr_bw3, c.bbr_bw3_round = bandwidth, now


@kernel()
def _forget_largest(c: BbrConnection, bandwidth: int) -> None:
    """Replace the largest sample, which is too old, by the next one, and add the latest sample."""
    c.bbr_bw, c.bbr_bw_round = c.bbr_bw2, c.bbr_bw2_round
    c.bbr_bw2, c.bbr_bw2_round = c.bbr_bw3, c.bbr_bw3_round
    c.bbr_bw3, c.bbr_bw3_round = bandwidth, c.bbr_rtt_cnt


@kernel()
def _update_aggregation(c: BbrConnection) -> None:
    """Keep the most segments that ACKs report beyond the bandwidth in 5 to 10 rounds (`bbr_update_ack_aggregation`)."""
    if c.rs_acked <= 0 or c.rs_delivered < 0 or c.rs_interval <= 0:
        return
    if c.bbr_round_start:
        c.bbr_extra_acked_rounds += 1
        if c.bbr_extra_acked_rounds >= tcp.BBR_EXTRA_ACKED_ROUNDS:
            c.bbr_extra_acked_rounds = 0
            c.bbr_earlier_extra_acked = c.bbr_extra_acked
            c.bbr_extra_acked = 0
    expected = _bandwidth(c) * (c.delivered_mstamp - c.bbr_ack_epoch_mstamp) // BBR_BANDWIDTH
    if c.bbr_ack_epoch_acked <= expected or c.bbr_ack_epoch_acked + c.rs_acked >= tcp.BBR_LONGEST_EPOCH:
        c.bbr_ack_epoch_acked = 0
        c.bbr_ack_epoch_mstamp = c.delivered_mstamp
        expected = 0
    c.bbr_ack_epoch_acked += c.rs_acked
    c.bbr_extra_acked = max(c.bbr_extra_acked, min(c.bbr_ack_epoch_acked - expected, c.snd_cwnd))


@kernel()
def _is_phase_over(c: BbrConnection) -> bool:
    """Return whether a phase of the gain cycle, a round-trip time, is over (`bbr_is_next_cycle_phase`).

    Probing goes on until the segments in flight have reached their target or are lost; draining ends once the queue is
    empty.
    """
    full_length = c.delivered_mstamp - c.bbr_cycle_mstamp > c.bbr_min_rtt
    if c.bbr_pacing_gain == BBR_GAIN:
        return bool(full_length)
    flight = _at_next_departure(c, c.rs_prior_in_flight)
    if c.bbr_pacing_gain > BBR_GAIN:
        return bool(full_length and (c.rs_losses or flight >= _target_in_flight(c, c.bbr_pacing_gain)))
    return bool(full_length or flight <= _target_in_flight(c, BBR_GAIN))


@kernel()
def _next_phase(c: BbrConnection) -> None:
    """Begin the next phase of the gain cycle (`bbr_advance_cycle_phase`)."""
    c.bbr_cycle_idx = (c.bbr_cycle_idx + 1) % tcp.BBR_CYCLE
    c.bbr_cycle_mstamp = c.delivered_mstamp


@kernel()
def _enter_probe_bw(c: BbrConnection, wire: Generator) -> None:
    """Begin the gain cycle in a random phase other than draining (`bbr_reset_probe_bw_mode`)."""
    c.bbr_mode = PROBE_BW
    c.bbr_cycle_idx = tcp.BBR_CYCLE - 1 - int(uniform(wire.next_double, wire.random_state) * (tcp.BBR_CYCLE - 1))
    _next_phase(c)


@kernel()
def _check_full_bandwidth(c: BbrConnection) -> None:
    """End startup after three rounds in which the bandwidth grew by less than a quarter (`bbr_check_full_bw_reached`).

    Rounds that the application has limited do not count.
    """
    if c.bbr_full_bw_reached or not c.bbr_round_start or c.rs_app_limited:
        return
    if c.bbr_bw >= c.bbr_full_bw * tcp.BBR_FULL_GROWTH // BBR_GAIN:
        c.bbr_full_bw = c.bbr_bw
        c.bbr_full_bw_cnt = 0
        return
    c.bbr_full_bw_cnt += 1
    c.bbr_full_bw_reached = c.bbr_full_bw_cnt >= tcp.BBR_FULL_ROUNDS


@kernel()
def _check_drain(c: BbrConnection, wire: Generator) -> None:
    """Drain the queue of startup, then begin the gain cycle (`bbr_check_drain`)."""
    if c.bbr_mode == STARTUP and c.bbr_full_bw_reached:
        c.bbr_mode = DRAIN
        c.snd_ssthresh = _target_in_flight(c, BBR_GAIN)
    if c.bbr_mode == DRAIN and _at_next_departure(c, in_flight(c)) <= _target_in_flight(c, BBR_GAIN):
        _enter_probe_bw(c, wire)


@kernel()
def _update_min_rtt(c: BbrConnection, wire: Generator) -> None:
    """Update the smallest RTT of ten seconds; if it is too old, measure it with four segments in flight.

    The probe lasts for 200 ms and a round. It is not needed after idle time (`bbr_update_min_rtt`).
    """
    now = ticks_now(c)
    expired = now > c.bbr_min_rtt_stamp + to_ticks(c, tcp.BBR_MIN_RTT_TIME)
    if c.rs_rtt >= 0 and (c.rs_rtt < c.bbr_min_rtt or (expired and not c.rs_ack_delayed)):
        c.bbr_min_rtt = c.rs_rtt
        c.bbr_min_rtt_stamp = now
    if expired and not c.bbr_idle_restart and c.bbr_mode != PROBE_RTT:
        c.bbr_mode = PROBE_RTT
        save_window(c)
        c.bbr_probe_rtt_done_stamp = 0
    if c.bbr_mode == PROBE_RTT:
        c.app_limited = max(c.delivered + in_flight(c), 1)
        if c.bbr_probe_rtt_done_stamp:
            if c.bbr_round_start:
                c.bbr_probe_rtt_round_done = 1
            if c.bbr_probe_rtt_round_done:
                _check_probe_rtt_done(c, wire)
        elif in_flight(c) <= tcp.BBR_SMALLEST_WINDOW:
            c.bbr_probe_rtt_done_stamp = now + to_ticks(c, tcp.BBR_PROBE_RTT_TIME)
            c.bbr_probe_rtt_round_done = 0
            c.bbr_next_rtt_delivered = c.delivered
    if c.rs_delivered > 0:
        c.bbr_idle_restart = 0


@kernel()
def _check_probe_rtt_done(c: BbrConnection, wire: Generator) -> None:
    """End the probe of the round-trip time once its time is over (`bbr_check_probe_rtt_done`)."""
    now = ticks_now(c)
    if not c.bbr_probe_rtt_done_stamp or now <= c.bbr_probe_rtt_done_stamp:
        return
    c.bbr_min_rtt_stamp = now
    c.snd_cwnd = max(c.snd_cwnd, c.bbr_prior_cwnd)
    if c.bbr_full_bw_reached:
        _enter_probe_bw(c, wire)
    else:
        c.bbr_mode = STARTUP


@kernel()
def _update_gains(c: BbrConnection) -> None:
    """Set the gains of the pacing rate and of the window by the mode (`bbr_update_gains`)."""
    c.bbr_pacing_gain = c.bbr_cwnd_gain = tcp.BBR_HIGH_GAIN
    if c.bbr_mode == DRAIN:
        c.bbr_pacing_gain = tcp.BBR_DRAIN_GAIN
    elif c.bbr_mode == PROBE_BW:
        c.bbr_pacing_gain = BBR_GAIN
        if not c.bbr_lt_use_bw and c.bbr_cycle_idx < len(tcp.BBR_PROBING_GAINS):
            c.bbr_pacing_gain = tcp.BBR_PROBING_GAINS[c.bbr_cycle_idx]
        c.bbr_cwnd_gain = tcp.BBR_WINDOW_GAIN
    elif c.bbr_mode == PROBE_RTT:
        c.bbr_pacing_gain = c.bbr_cwnd_gain = BBR_GAIN


@kernel()
def _set_window(c: BbrConnection) -> None:
    """Move the window towards its target, by at most the delivered segments (`bbr_set_cwnd`)."""
    if c.rs_acked:
        _restore_or_conserve(c)
        if not c.bbr_packet_conservation:
            target = _delay_product(c, _bandwidth(c), c.bbr_cwnd_gain) + _room_for_aggregation(c)
            target = _with_quanta(c, target)
            if c.bbr_full_bw_reached:
                c.snd_cwnd = min(c.snd_cwnd + c.rs_acked, target)
            elif c.snd_cwnd < target or c.delivered < tcp.INITIAL_WINDOW:
                c.snd_cwnd += c.rs_acked
            c.snd_cwnd = max(c.snd_cwnd, tcp.BBR_SMALLEST_WINDOW)
    if c.bbr_mode == PROBE_RTT:
        c.snd_cwnd = min(c.snd_cwnd, tcp.BBR_SMALLEST_WINDOW)


@kernel()
def _restore_or_conserve(c: BbrConnection) -> None:
    """Begin a recovery with packet conservation; restore the window after it (`bbr_set_cwnd_to_recover_or_restore`)."""
    conserved = in_flight(c) + c.rs_acked
    if c.rs_losses > 0:
        c.snd_cwnd = max(c.snd_cwnd - c.rs_losses, 1)
    if c.ca_state == RECOVERY and c.bbr_prev_ca_state != RECOVERY:
        c.bbr_packet_conservation = 1
        c.bbr_next_rtt_delivered = c.delivered
        c.snd_cwnd = conserved
    elif c.bbr_prev_ca_state >= RECOVERY and c.ca_state < RECOVERY:
        c.snd_cwnd = max(c.snd_cwnd, c.bbr_prior_cwnd)
        c.bbr_packet_conservation = 0
    c.bbr_prev_ca_state = c.ca_state
    if c.bbr_packet_conservation:
        c.snd_cwnd = max(c.snd_cwnd, conserved)


@kernel()
def _room_for_aggregation(c: BbrConnection) -> int:
    """Return the segments by which aggregated ACKs widen the window (`bbr_ack_aggregation_cwnd`)."""
    if not c.bbr_full_bw_reached:
        return 0
    largest = _bandwidth(c) * tcp.BBR_EXTRA_ACKED_TIME // BBR_BANDWIDTH
    return int(min(max(c.bbr_extra_acked, c.bbr_earlier_extra_acked), largest))
