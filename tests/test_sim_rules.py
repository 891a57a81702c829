"""Each of the kernel's rules, left out, changes what it is said to change."""

from dataclasses import fields, replace

import pytest

import tcpdelay as td
from tcpdelay.sim.records import CONNECTION, Rules
from tcpdelay.sim.simulation import simulate

VOICE, VIDEO = td.Flow(174, 0.020), td.Flow(1448, 0.020)
PATH = td.Path(rtt=0.100, loss=0.02)
LOADED = td.Path(rtt=0.100, loss=0.01)


def with_and_without(rule, flow, path, packets=200_000, **more):
    # Newer versions have no recovery without RACK.
    stack = td.Stack.linux(kernel="6.12")
    return (
        simulate(flow, path, stack, packets=packets, rules=rules, **more) for rules in (Rules(), Rules(**{rule: False}))
    )


def test_every_rule_is_a_field_of_the_connection():
    assert {field.name for field in fields(Rules)} <= set(CONNECTION.names)
    assert all(Rules().switches().values())


def test_without_rack_a_loss_waits_for_three_sacks():
    # They come after 3 * 20 ms, RACK after 20 ms and a quarter of the RTT: the captures without RACK have 190 ms.
    rack, three_sacks = with_and_without("rack", VOICE, PATH)
    assert rack.quantile(0.95) == pytest.approx(0.140, abs=0.002)
    assert three_sacks.quantile(0.95) == pytest.approx(0.190, abs=0.001)
    assert three_sacks.counts["reordering_timeouts"] == 0
    # A retransmission that is lost is left to the timeout.
    assert rack.counts["timeouts"] < 5 < 50 < three_sacks.counts["timeouts"]


def test_without_the_reordering_window_the_first_sack_repairs():
    patient, hasty = with_and_without("reordering_window", VOICE, PATH)
    assert hasty.counts["reordering_timeouts"] == 0 < patient.counts["reordering_timeouts"]
    assert hasty.quantile(0.95) == pytest.approx(0.130, abs=0.001)
    jittery = replace(PATH, loss=0.0, jitter=0.06)
    patient, hasty = with_and_without("reordering_window", VOICE, jittery, packets=20_000)
    assert hasty.counts["segments_retransmitted"] > 100 > patient.counts["segments_retransmitted"]


def test_without_rack_for_retransmissions_they_take_a_timeout():
    found, left = with_and_without("retransmissions_found_lost_by_rack", VOICE, PATH)
    assert left.counts["timeouts"] > 10 + 10 * found.counts["timeouts"]
    assert left.quantile(0.999) > 1.3 * found.quantile(0.999)


def test_without_proportional_reduction_the_window_falls_at_once():
    gradual, at_once = with_and_without("proportional_reduction", VIDEO, LOADED)
    assert at_once.sender_delay > gradual.sender_delay


def test_a_window_that_need_not_bind_grows_without_the_rule():
    kernel, unbounded = with_and_without("application_limited_rule", VIDEO, LOADED)
    assert unbounded.sender_delay < 0.5 * kernel.sender_delay
    assert unbounded.mean < kernel.mean


def test_without_coalescing_small_writes_wait_for_windows_of_small_segments():
    kernel, separate = with_and_without("coalescing", VOICE, PATH)
    packets = separate.packets + 2000
    first_sent = separate.counts["segments_sent"] - separate.counts["segments_retransmitted"]
    assert first_sent == pytest.approx(packets, abs=100)
    assert kernel.counts["segments_sent"] < packets
    assert separate.sender_delay > 3 * kernel.sender_delay


def test_without_ticks_timers_are_exact():
    # 20 ms for the next packet, RTT, half an RTT back: the reordering timer needs 5 ms + 2 ms after the SACK.
    kernel, exact = with_and_without("ticks", replace(VOICE, write_jitter=0), PATH, tick_offset=0.0013)
    assert exact.quantile(0.95) == pytest.approx(0.137, abs=2e-5)
    assert kernel.quantile(0.95) > exact.quantile(0.95) + 0.001


def test_without_a_probe_a_lone_loss_waits_for_the_timeout():
    # Two packets are under way, and after the second nothing follows for long.
    kernel, without = with_and_without("tail_loss_probe", td.Flow(2000, 1.0), PATH, packets=50_000)
    assert without.counts["probes"] == 0 < kernel.counts["probes"]
    assert without.counts["timeouts"] > kernel.counts["timeouts"]


def test_without_f_rto_a_timeout_is_believed_though_originals_arrive():
    # A packet is lost, and the next is in the host's queue when its probe is due: no probe leaves, and the timeout
    # comes a tick later. Then the next one is SACKed.
    kernel, without = with_and_without(
        "f_rto", td.Flow(1448, 0.290), PATH, packets=20_000, exact_ties=True, tick_offset=0.0
    )
    assert kernel.counts["timeouts"] > 300 > 30 > kernel.counts["probes"]
    assert kernel.counts["undone"] > 0.97 * kernel.counts["timeouts"]
    assert without.counts["undone"] == 0


def test_without_collapsing_every_lost_segment_is_sent_again():
    kernel, without = with_and_without("collapsing", VOICE, PATH)
    assert kernel.counts["segments_retransmitted"] < kernel.counts["segments_lost"]
    assert without.counts["segments_retransmitted"] == without.counts["segments_lost"]


def test_a_rule_is_true_or_false():
    with pytest.raises(ValueError, match=r"^rack must be True or False, got 1$"):
        Rules(rack=1)
