"""The chain of a Linux kernel against the simulator, which follows the kernel ACK by ACK, and against captures."""

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path as File

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.chain.linux.detection import detection_wait, mean_detection_wait
from tcpdelay.chain.linux.losses import detection_in_round, last_ack, open_window, sacks_before
from tcpdelay.chain.linux.parameters import linux_parameters
from tcpdelay.chain.linux.windows import AckClock, window_before
from tcpdelay.models.predict import predict, predict_delay
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.congestion.of_tcp import on_ack, on_rtt, on_timeout
from tcpdelay.sim.engine import new_connection
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.link_trace import LinkTrace
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import Bulk
from tcpdelay.sim.records import EVER_RETRANSMITTED, FOUND_LOST, MARKED_LOST, OPEN, RETRANSMITTED
from tcpdelay.sim.tcp.acknowledgement import take_cumulative
from tcpdelay.sim.tcp.constants import MILLISECOND, SECOND
from tcpdelay.sim.tcp.recovery import detect_losses, undo_reduction
from tcpdelay.sim.tcp.sender import retransmit_lost

PACKETS = 300_000


@cache
def chain_and_simulation(size, interval, rtt, loss, congestion_control, seed=1, packets=PACKETS, **lateness):
    flow, path = td.Flow(size, interval, **lateness), td.Path(rtt, loss)
    stack = td.Stack.linux(congestion_control=congestion_control)
    chain = td.DelayModel(flow, path, stack).delay_distribution()
    return chain, td.simulate(flow, path, stack, packets=packets, seed=seed)


@pytest.mark.parametrize("congestion_control", ["cubic", "reno"])
@pytest.mark.parametrize(
    ("size", "interval", "rtt", "loss", "mean_error", "p95_error"),
    [
        # Errors are those measured, 0.05, 0.03, 0.02, 0.035; 0.05, 0.045, 0.028 of the mean, and a reserve. In the last
        # case p95 is 0.12 off: of the chain's packets 4.9 % are later than 100 ms, of the simulator's 6.6 %.
        (174, 0.020, 0.100, 0.02, 0.045, 0.01),
        (174, 0.020, 0.200, 0.02, 0.065, 0.01),
        (174, 0.020, 0.030, 0.05, 0.030, 0.01),
        (60, 0.005, 0.050, 0.01, 0.045, 0.01),
        (1200, 0.020, 0.100, 0.01, 0.070, 0.15),
        (1200, 0.020, 0.150, 0.005, 0.060, 0.15),
        (1448, 0.020, 0.100, 0.005, 0.030, 0.13),
    ],
)
def test_delays_are_those_of_the_simulator(size, interval, rtt, loss, mean_error, p95_error, congestion_control):
    chain, simulated = chain_and_simulation(size, interval, rtt, loss, congestion_control)
    assert chain.mean == pytest.approx(simulated.mean, rel=mean_error)
    assert chain.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=p95_error)


@pytest.mark.parametrize("rtt", [0.0002, 0.0007, 0.002])
def test_a_window_of_a_short_path_grows_again(rtt):
    # CUBIC updates the growth of an unchanged window every 1/32 s, 44 round trips of 0.7 ms. The chain had no room for
    # so many, and its window of three segments limited the sender for ever: p95 was a whole round trip.
    chain, simulated = chain_and_simulation(30, rtt / 4.5, rtt, 1e-3, "cubic", write_jitter=0)
    assert simulated.quantile(0.95) == pytest.approx(rtt / 2, rel=0.01)
    assert chain.quantile(0.95) == pytest.approx(rtt / 2, rel=0.01)


@pytest.mark.parametrize("congestion_control", ["cubic", "reno"])
@pytest.mark.parametrize(("rtt", "loss", "apart"), [(0.03, 0.05, 0.013), (0.11, 0.02, 0.065), (0.1, 0.001, 0.002)])
def test_the_share_that_is_late_is_that_of_the_simulator(rtt, loss, apart, congestion_control):
    # As many losses in each case, so that the shares are known equally well.
    packets = int(PACKETS * max(0.01 / loss, 1))
    chain, simulated = chain_and_simulation(174, 0.020, rtt, loss, congestion_control, packets=packets)
    # Beyond half an interval, as the chain averages over many times of the writes, and between the teeth of the comb.
    for limit in rtt / 2 + np.arange(0.013, 0.2, 0.010):
        assert chain.late_fraction(limit) == pytest.approx(simulated.late_fraction(limit), abs=apart)


@pytest.mark.parametrize(("congestion_control", "apart"), [("cubic", 0.01), ("reno", 0.02)])
def test_mean_and_late_share_of_packets_of_several_segments_are_those_of_the_simulator(congestion_control, apart):
    chain, simulated = chain_and_simulation(5000, 0.040, 0.050, 0.01, congestion_control, packets=1_000_000)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.025)
    for limit in (0.065, 0.0725, 0.083, 0.095, 0.110, 0.125):
        assert chain.late_fraction(limit) == pytest.approx(simulated.late_fraction(limit), abs=apart)


EDGE = "p95 is at the edge of a tooth of the comb, where 0.006 more late packets move it by 8 ms"


@pytest.mark.parametrize(
    "congestion_control",
    [pytest.param("cubic", marks=pytest.mark.xfail(reason=EDGE, strict=True, raises=AssertionError)), "reno"],
)
def test_p95_of_packets_of_several_segments_is_that_of_the_simulator(congestion_control):
    chain, simulated = chain_and_simulation(5000, 0.040, 0.050, 0.01, congestion_control, packets=1_000_000)
    assert chain.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=0.03)


@pytest.mark.parametrize("congestion_control", ["cubic", "reno"])
@pytest.mark.parametrize(
    ("rtt", "loss", "apart"),
    [
        (0.1, 0.005, 0.03),
        (0.1, 0.02, 0.03),
        (0.1001, 0.02, 0.03),
        # The receiver delays the SACKs after the third by 1.1 ms, which the chain leaves out.
        (0.101, 0.02, 0.045),
        (0.14, 0.02, 0.03),
        (0.2, 0.02, 0.03),
    ],
)
def test_acks_that_meet_writes_leave_no_packet_waiting_between(rtt, loss, apart, congestion_control):
    chain, simulated = chain_and_simulation(174, 0.020, rtt, loss, congestion_control, write_jitter=0)
    # Up to twice the wait for a write: an average over all times of the writes is too low by 0.04 to 0.4 here.
    for limit in rtt / 2 + np.arange(0.0065, 0.04, 0.004):
        assert chain.late_fraction(limit) == pytest.approx(simulated.late_fraction(limit), abs=apart)


@pytest.mark.parametrize(
    ("size", "rtt", "loss"), [(174, 0.1, 0.02), (174, 0.2, 0.02), (174, 0.09, 0.02), (1448, 0.1, 0.005)]
)
def test_time_with_a_backlog_is_that_of_the_simulator(size, rtt, loss):
    flow, path = td.Flow(size, 0.020), td.Path(rtt, loss)
    model = td.DelayModel(flow, path, td.Stack.linux())
    simulated = td.simulate(flow, path, packets=PACKETS, seed=1, trace=True)
    # Packets leave in the order of writing: a packet is in the send buffer as long as the packet written last.
    backlogged = np.minimum(simulated.sent_after / flow.interval, 1).mean()
    assert model.backlogged_time_fraction == pytest.approx(backlogged, rel=0.2)
    parts = model.delay_parts
    assert model.backlogged_time_fraction <= (parts.backlog + parts.timeouts) / flow.interval


@pytest.mark.parametrize("interval", [0.35, 1.0])
def test_a_probe_repairs_before_the_next_packet_comes(interval):
    chain, simulated = chain_and_simulation(160, interval, 0.100, 0.01, "cubic")
    assert simulated.counts["probes"] > 2500
    # The wheel of the kernel's timers lets the probe come up to 24 ms late, which the chain leaves out.
    assert chain.quantile(0.995) == pytest.approx(simulated.quantile(0.995), abs=0.025)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.01)


def test_congestion_controls_differ_as_in_the_simulator():
    """At 724 B and 200 ms windows bind for long, and CUBIC keeps more of them."""
    for pair in zip(*(chain_and_simulation(724, 0.020, 0.200, 0.01, name) for name in ("cubic", "reno")), strict=True):
        assert 1.05 < pair[1].mean / pair[0].mean < 1.2


def test_what_the_simulator_cannot_carry_neither_can_the_chain():
    for size, rtt, loss in ((1448, 0.300, 0.05), (724, 0.300, 0.10)):
        chain, simulated = chain_and_simulation(size, 0.020, rtt, loss, "reno")
        assert not chain.sustainable
        assert not simulated.sustainable


@pytest.mark.parametrize(
    ("size", "rtt", "loss", "congestion_control"),
    [
        (1448, 0.16, 0.005, "cubic"),
        (1448, 0.1, 0.02, "cubic"),
        (300, 0.3, 0.01, "cubic"),
        (4000, 0.2, 0.005, "cubic"),
        (1448, 0.16, 0.005, "reno"),
        (300, 0.3, 0.01, "reno"),
    ],
)
def test_tcp_carries_as_much_as_in_the_simulator(size, rtt, loss, congestion_control):
    stack, path = td.Stack.linux(congestion_control=congestion_control), td.Path(rtt, loss)
    rough = td.DelayModel(td.Flow(size, 0.005), path, stack).capacity
    flow = td.Flow(size, 1 / (1.4 * rough))
    simulated = td.simulate(flow, path, stack, packets=1_600_000, seed=1).carried.value * flow.packet_rate
    # The simulated rate is known to 2 %. CUBIC was off by 4 to 160 % before its growth followed the time.
    assert td.DelayModel(flow, path, stack).capacity == pytest.approx(simulated, rel=0.05)


@pytest.mark.parametrize(
    ("size", "interval", "rtt", "loss", "jitter", "error"),
    [
        # The errors are those measured and a reserve. With exact writes the chain is 0.02 to 0.08 too low in the first
        # five cases, whose round-trip time is a multiple of the interval.
        (174, 0.020, 0.020, 0.03, 0.001, 0.015),
        (1000, 0.020, 0.020, 0.02, 0.001, 0.015),
        (174, 0.020, 0.060, 0.02, 0.001, 0.018),
        (174, 0.020, 0.080, 0.02, 0.001, 0.010),
        (500, 0.010, 0.040, 0.025, 0.001, 0.030),
        (174, 0.020, 0.107, 0.02, 0.001, 0.020),
        (174, 0.020, 0.013, 0.03, 0.001, 0.025),
        (174, 0.020, 0.200, 0.02, 0.001, 0.012),
        (174, 0.020, 0.060, 0.02, 0.010, 0.030),
        (174, 0.020, 0.100, 0.02, 0.020, 0.030),
    ],
)
def test_late_writes_delay_as_in_the_simulator(size, interval, rtt, loss, jitter, error):
    chain, simulated = chain_and_simulation(size, interval, rtt, loss, "cubic", write_jitter=jitter)
    assert chain.mean == pytest.approx(simulated.mean, rel=error)
    if jitter < 0.5 * interval:
        # Between the delays that whole numbers of intervals make.
        for limit in rtt / 2 + 0.5 * interval + interval * np.arange(0, 8):
            assert chain.late_fraction(limit) == pytest.approx(simulated.late_fraction(limit), abs=0.03)


def test_hardly_late_writes_are_nearly_exact_unless_an_ack_comes_with_a_write():
    # In the chain the second of eight evenly spaced ACKs comes with the end of RACK's reordering window, RTT / 4. Any
    # lateness decides which of them detects a loss. For full segments this moves p95 by 0.01.
    for size, interval, rtt, loss in ((174, 0.020, 0.10713, 0.02), (1448, 0.020, 0.10513, 0.005)):
        path = td.Path(rtt, loss)
        exact, late = (
            td.DelayModel(td.Flow(size, interval, write_jitter=jitter), path, td.Stack.linux()).delay_distribution()
            for jitter in (0.0, 1e-7)
        )
        assert late.mean == pytest.approx(exact.mean, rel=2e-3)
        assert late.quantile(0.95) == pytest.approx(exact.quantile(0.95), rel=0.015)


@pytest.mark.parametrize(
    ("jitter", "path", "control", "message"),
    [
        (0.021, td.Path(0.1, 0.02), "cubic", "be at most 0.02 s, the interval, in the chain"),
        (0.021, td.Path(0.1, 0.02), "bbr", "be at most 0.02 s, the interval, in the chain"),
        (0.002, td.Path(0.1, 0.01, loss_burst=1.5), "cubic", "be at most 0.001 s in the chain with loss bursts"),
        (0.002, td.Path(0.1, 0.01, "correlated"), "cubic", "be at most 0.001 s in the chain with correlated losses"),
        (0.002, td.Path(0.1, 0.01, jitter=0.01), "cubic", "be at most 0.001 s in the chain with jitter"),
    ],
)
def test_some_late_writes_are_refused_and_the_usual_ones_ignored(jitter, path, control, message):
    flow = td.Flow(174, 0.020, write_jitter=jitter)
    answer = predict(Scenario(flow, path, td.Stack.linux(control)), method="chain")
    assert str(answer.refusal).startswith(f"write_jitter must {message}")
    assert str(answer.refusal).endswith("tcpdelay.simulate takes it into account")
    usual, exact = (
        predict(Scenario(replace(flow, write_jitter=each), path, td.Stack.linux(control)), method="chain")
        for each in (0.001, 0.0)
    )
    ignores = jitter < flow.interval
    assert usual.ignored == ({"write_jitter": "0 s"} if ignores else {})
    assert (usual.mean == exact.mean) == ignores


# Packets that span several segments


def test_a_packet_leaves_at_once_only_if_all_its_segments_fit_into_the_window():
    chain, simulated = chain_and_simulation(1719, 0.0162, 0.0835, 0.0065, "cubic", packets=1_000_000)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.04)


@pytest.mark.parametrize(
    ("size", "interval", "rtt", "loss", "congestion_control", "p99_error"),
    [(2599, 0.0108, 0.0089, 0.0184, "cubic", 0.02), (2606, 0.0095, 0.0062, 0.0182, "reno", 0.02)],
)
def test_later_segments_of_a_packet_detect_losses_and_lost_retransmissions(
    size, interval, rtt, loss, congestion_control, p99_error
):
    chain, simulated = chain_and_simulation(size, interval, rtt, loss, congestion_control, packets=400_000)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.08)
    assert chain.quantile(0.99) == pytest.approx(simulated.quantile(0.99), rel=p99_error)


@pytest.mark.parametrize(
    ("size", "interval", "rtt", "loss"), [(8877, 0.0573, 0.0329, 0.0018), (10291, 0.0103, 0.0061, 0.0013)]
)
def test_an_open_window_grows_as_in_the_simulator(size, interval, rtt, loss):
    """The window that a loss leaves is too small for a packet for a few packets: too few for the 95th percentile."""
    chain, simulated = chain_and_simulation(size, interval, rtt, loss, "cubic", packets=400_000)
    for limit in (rtt / 2 + 1e-4, rtt + 1e-4):
        assert chain.late_fraction(limit) == pytest.approx(simulated.late_fraction(limit), abs=0.013)
    assert chain.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=0.01)


def test_packets_beyond_the_initial_window_are_refused_and_simulated():
    # A window of ten segments takes a packet of twelve in two rounds after each pause: the simulator's median is 1.5
    # round-trip times, and the chain's was 0.5. Nor does the chain know up to which rate such packets are carried: of
    # flows that the simulator carries it said that TCP does not.
    path, interval = td.Path(0.1, 4e-4), 0.333
    fits, larger, endless = td.Flow(14_480, interval), td.Flow(17_376, interval), td.Flow(400_000, 0.02)
    answers = [predict(Scenario(flow, path), method="chain") for flow in (fits, larger, endless)]
    assert [answer.status for answer in answers] == ["exact", "unsupported", "not carried"]
    assert str(answers[1].refusal).startswith("packet_size must be at most 14480 bytes in the chain")
    assert td.simulate(larger, path, packets=20_000, seed=1).quantile(0.5) > 0.14


# After a loss while the window limits the sender, and against captures at high load

CAPTURES = File(__file__).parents[1] / "validation" / "results" / "high-load.csv"
RENO = Stack.linux(congestion_control="reno")
SPACINGS = st.sampled_from([0.0, 0.5, 1.0, 2.5])


def parameters(size=1448, rtt=0.1, loss=0.01, stack=RENO):
    return linux_parameters(Flow(size, 0.01), Path(rtt, loss), stack)


@pytest.mark.parametrize(
    ("size", "full"),
    [(174, False), (724, False), (1303, False), (1304, True), (1448, True), (1449, False), (2896, False)],
)
def test_segments_are_full_from_nine_tenths_on(size, full):
    assert parameters(size).full_segments is full


def test_the_window_of_bbr_does_not_limit_full_segments():
    assert not parameters(stack=Stack.linux(congestion_control="bbr")).full_segments


@given(st.integers(0, 4), SPACINGS, st.sampled_from([0.5, 1.0, 4.0, 10.0]))
def testsacks_before_the_detection_are_those_that_arrive_earlier(close, near, far):
    wait = detection_wait(parameters(), close, near, far)
    arrivals = np.cumsum([near if place < close else far for place in range(3)])
    # SACKs that come at the due time come one after another, so that each of the first two releases a segment.
    earlier = sum(1 for time in arrivals[:2] if time < wait - 1e-9 or time == 0)
    assert sacks_before(wait, close, near, far) == sacks_before.py_func(wait, close, near, far) == earlier


@given(st.integers(1, 12), st.integers(0, 12), SPACINGS, st.sampled_from([0.5, 1.0, 4.0]))
def test_detection_is_the_mean_over_the_places_of_the_lost_segment(run, others, near, far):
    p, window = parameters(), run + others
    for in_run, places in ((True, range(run)), (False, range(run, window))):
        waits, sacks = [], []
        for place in places:
            # Segments that leave close behind the lost one: the rest of the run, or the next round's run.
            close = run - 1 - place if in_run else (run + 1 if place == window - 1 else 0)
            wait = detection_wait(p, close, near, far)
            waits.append(mean_detection_wait(p, wait, near if close else far))
            sacks.append(sacks_before(wait, close, near, far))
        if waits:
            found = detection_in_round(p, in_run, window, AckClock(run, near, far))
            assert found == pytest.approx((np.mean(waits), np.mean(sacks)))
            assert found == detection_in_round.py_func(p, in_run, window, AckClock(run, near, far))


def test_the_last_ack_before_the_detection_has_the_clock_of_the_window_before():
    p = parameters()
    o = open_window(p)
    for reduced in range(2, 12):
        expected = p.load / window_before(p, reduced) if reduced < o.needed else 0.0
        assert last_ack(p, o, reduced) == pytest.approx(max(expected, 1.0) if expected else 0.0)
    assert last_ack(parameters(1000), o, 3) == 0.0


def test_a_loss_in_the_run_is_detected_at_once():
    p = parameters()
    # Three segments of the run follow the first of four: the third SACK comes at the due time.
    assert detection_wait(p, 3, 0.0, 1.0) == 0
    wait, sacks = detection_in_round(p, True, 40, AckClock(30, 0.0, 1.0))
    assert wait < detection_wait(p, 0, 1.0, 1.0)
    assert sacks > 1.8


def flows_at_high_load():
    """Return every third carried flow up to a utilization of 0.7, and the limits of its p95 [s]."""
    with CAPTURES.open() as file:
        rows = [row for row in csv.DictReader(file) if row["carried"] == "True" and float(row["utilization"]) < 0.7]
    for row in rows[::3]:
        interval = float(row["capture"].split("-")[2].removesuffix("ms")) / 1e3
        if interval <= 0.1:
            stack = Stack.linux(congestion_control=row["congestion_control"], hz=250)
            path = Path(float(row["rtt"]), float(row["loss"]))
            yield Flow(1448, interval), path, stack, float(row["p95_low"]), float(row["p95_high"])


def test_high_load_is_within_a_few_percent_of_captures():
    beyond = []
    for flow, path, stack, low, high in flows_at_high_load():
        predicted = predict_delay(flow, path, stack, method="chain").quantile(0.95)
        beyond.append(max(predicted / high - 1, 1 - predicted / low, 0.0))
    assert len(beyond) >= 8
    # Without the ACK clock through recoveries, the mean of these flows is 5 %.
    assert np.mean(beyond) < 0.03


# What a sender learns from the ACKs of originals that arrive after an outage, beside their retransmissions

MSS, RTT = 1448, 50 * MILLISECOND


def flight(segments=4, control="cubic"):
    """Return a connection with a flight that was sent at 1 s; it is 5 s now."""
    c, rings = new_connection(
        td.Flow(MSS, 0.02, write_jitter=0), td.Path(rtt=0.05, loss=0.0), td.Stack.linux(control), seed=1
    )
    wire = rings.record
    c.now, c.min_rtt, c.rack_rtt, c.snd_cwnd = 5 * SECOND, RTT, RTT, 20
    for number in range(segments):
        segment = wire.segments[number]
        segment.start, segment.end, segment.sent = number * MSS, (number + 1) * MSS, SECOND
    c.next_segment = c.packets_out = segments
    c.snd_nxt = c.written = segments * MSS
    return c, wire


@pytest.mark.parametrize(("echoed", "learns"), [(SECOND, False), (4 * SECOND, True)])
def test_rack_learns_nothing_from_a_retransmission_whose_original_is_acknowledged(echoed, learns):
    # tcp_skb_spurious_retrans (net/ipv4/tcp_input.c). Otherwise all segments that were sent before the retransmission
    # would be overdue, though their originals arrive next.
    c, wire = flight()
    wire.segments[0].sent, wire.segments[0].state = 4 * SECOND, EVER_RETRANSMITTED | RETRANSMITTED
    c.retrans_out, c.snd_una = 1, MSS
    take_cumulative(c, wire, 0, echoed)
    assert c.packets_out == 3
    assert bool(c.rack_mstamp == 4 * SECOND) is learns
    detect_losses(c, wire)
    assert c.lost_out == (3 if learns else 0)


def test_rack_looks_at_a_segment_once_after_each_transmission():
    # tcp_rack_detect_loss takes a segment off its list (tcp_tsorted_anchor); a transmission puts it on again.
    c, wire = flight()
    c.rack_mstamp = 4 * SECOND
    detect_losses(c, wire)
    assert c.lost_out == 4
    c.prior_ssthresh, c.prior_cwnd, c.undo_marker = 10, 20, 1
    undo_reduction(c, wire, True)
    detect_losses(c, wire)
    assert c.lost_out == 0
    first = wire.segments[0]
    first.state |= MARKED_LOST
    c.lost_out = 1
    retransmit_lost(c, wire)
    assert first.state & RETRANSMITTED
    assert not first.state & FOUND_LOST


def test_a_retransmission_that_is_lost_after_an_undone_timeout_waits_for_the_next_timeout():
    # tcp_mark_skb_lost: without the mark of a loss, which the undo has removed, the retransmission stays outstanding.
    c, wire = flight()
    head = wire.segments[0]
    head.state, head.sent, c.retrans_out = EVER_RETRANSMITTED | RETRANSMITTED, 2 * SECOND, 1
    c.rack_mstamp = 4 * SECOND
    for _ in range(2):
        detect_losses(c, wire)
        assert head.state & (MARKED_LOST | RETRANSMITTED) == MARKED_LOST | RETRANSMITTED
    c.ca_state = OPEN
    retransmit_lost(c, wire)
    assert head.sent == 2 * SECOND


def test_after_a_timeout_cubic_takes_the_delay_of_the_outage_for_that_of_the_path():
    # bictcp_reset forgets delay_min, and cubictcp_acked takes no sample in the first second of an epoch: the window
    # grows by a segment per two ACKs, as if the epoch were as old as the outage was long.
    windows = {}
    for delay in (8 * SECOND, RTT):
        c, wire = flight(control="cubic")
        c.snd_ssthresh, c.is_cwnd_limited = 10, 1
        on_timeout(c, wire, True)
        on_rtt(c, delay)
        on_ack(c, 1)
        for step in range(20):
            c.now += 10 * MILLISECOND
            on_rtt(c, RTT)
            on_ack(c, 1)
            assert c.cubic_delay_min == delay, step
        windows[delay] = int(c.snd_cwnd)
    assert windows[8 * SECOND] == pytest.approx(20 + 10, abs=1)
    assert windows[RTT] <= 20 + 2


def test_a_fade_without_drops_costs_the_retransmissions_of_its_timeouts_only():
    # All data arrive in the end. A transfer sends its oldest segment again at each timeout, and nothing else.
    opportunities = [*range(1, 12_000, 4), *range(15_000, 30_001, 4)]
    trace = LinkTrace.of_opportunities(opportunities)
    path = SharedPath(access_delay=0.025)
    link = Bottleneck(rate=trace.mean_rate, capacity=1000, trace=trace)
    bulk = Bulk(path=path, stack=td.Stack.linux("bbr"))
    (flow,) = simulate_network([bulk], link, duration=29.0, seed=1).flows
    assert np.isfinite(flow.throughput)
    assert 1 <= flow.retransmissions <= 10
