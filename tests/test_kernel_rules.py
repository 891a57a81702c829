"""Rules of TCP: what differs between versions of Linux, and what each rule changes in the simulator."""

import re
from dataclasses import fields, replace

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.scenario.stack import KERNEL_RULES, NEWEST_VALIDATED, VALIDATED, Linux, version_numbers
from tcpdelay.sim.congestion.of_tcp import CONNECTION
from tcpdelay.sim.engine import new_connection
from tcpdelay.sim.records import Rules
from tcpdelay.sim.simulation import simulate

# Rules that differ between versions of Linux: their table, and how simulator and chain follow it

VOICE, PATH = td.Flow(174, 0.020, write_jitter=0), td.Path(rtt=0.100, loss=0.02)


def test_the_table_is_in_the_order_of_versions():
    versions = [version_numbers(rule.since) for rule in KERNEL_RULES]
    assert versions == sorted(versions)
    for rule in KERNEL_RULES:
        assert rule.holds(rule.read_in), rule.name
        assert rule.read_in in VALIDATED
        older = VALIDATED[: VALIDATED.index(rule.read_in)]
        assert not any(rule.holds(version) for version in older), rule.name
    assert all(rule.holds(NEWEST_VALIDATED) for rule in KERNEL_RULES)
    assert all(re.fullmatch(r"[0-9a-f]{12}", name) for rule in KERNEL_RULES for name in rule.commit.split(", "))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kernel": 6.12},
            'kernel must be a version of Linux of at least 4.18 in two numbers, such as "7.3", got 6.12',
        ),
        ({"kernel": "6.1.3"}, "kernel must .* got '6.1.3'"),
        ({"kernel": "4.17"}, "kernel must .* got '4.17'"),
        ({"kernel": "6.12", "rto_max": 5.0}, r"rto_max must be 120 s before Linux 6.15 \(kernel is 6.12\), got 5"),
        (
            {"kernel": "6.14", "delack_max": 0.02},
            "delack_max must be 0.2 s before Linux 6.15 .*, got 0.02",
        ),
        ({"delack_max": 0.004}, r"delack_max must exceed a tick of the kernel \(0.004 s\), got 0.004"),
        ({"rto_max": 0.5}, "rto_max must lie between 1 and 120 s, got 0.5"),
    ],
)
def test_what_a_kernel_lacks_is_refused_in_one_line(settings, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        td.Stack.linux(**settings)


def test_the_command_line_names_the_option(run):
    arguments = ["--rtt", "100ms", "--loss", "2%", "--app", "voip", "--kernel", "6.1", "--rto-max", "5s"]
    assert run("predict", *arguments) == (
        2,
        "",
        "tcpdelay predict: --rto-max: must be 120 s before Linux 6.15 (kernel is 6.1), got 5\n",
    )


@pytest.mark.parametrize(
    ("kernel", "rtt", "delay"),
    [("6.12", 0.010, 600), ("6.12", 0.1, 1100), ("7.3", 0.002, 670), ("7.3", 0.010, 1010), ("7.3", 0.1, 1010)],
)
def test_sacks_are_compressed_by_the_rule_of_the_version(kernel, rtt, delay):
    connection, _ = new_connection(VOICE, td.Path(rtt, 0.02), Linux(kernel=kernel), seed=1, exact_ties=True)
    assert connection["compression_delay"] == delay


@pytest.mark.parametrize(
    ("settings", "ticks"),
    [
        ({"kernel": "6.1"}, 50),
        ({"kernel": "6.1", "rto_min": 0.020}, 50),
        ({"kernel": "7.3"}, 49),
        ({"kernel": "7.3", "rto_min": 0.020}, 4),
        ({"kernel": "7.3", "delack_max": 0.020}, 5),
        ({"kernel": "7.3", "rto_min": 0.001}, 1),
    ],
)
def test_an_ack_is_delayed_no_longer_than_its_version_allows(settings, ticks):
    connection, _ = new_connection(VOICE, PATH, Linux(delayed_ack=True, **settings), seed=1)
    assert connection["delack_max"] == ticks


def test_a_shorter_delay_of_acks_shortens_delays():
    # Full segments that end no write are acknowledged late.
    flow, path = td.Flow(14_480, 0.4, write_jitter=0), td.Path(0.1, 0.02)
    slow, fast = (
        simulate(flow, path, Linux(delayed_ack=True, delack_max=longest), packets=20_000, seed=1)
        for longest in (0.2, 0.008)
    )
    assert fast.mean < slow.mean


@pytest.mark.filterwarnings("ignore::tcpdelay.ValidityWarning")
def test_the_largest_timeout_ends_the_doubling():
    flow, path = td.Flow(174, 10.0, write_jitter=0), td.Path(0.1, 0.2)
    for method in ("chain", "simulation"):
        usual, short = (
            td.predict_delay(flow, path, td.Stack.linux(rto_max=longest), method=method) for longest in (120.0, 1.0)
        )
        # Timeouts of 0.3, 0.6, 1, 1 ... s in place of 0.3, 0.6, 1.2, 2.4 ... s.
        assert usual.quantile(0.99) == pytest.approx(short.quantile(0.99), rel=0.02), method
        assert short.quantile(0.9999) < 0.75 * usual.quantile(0.9999), method


def test_the_chain_refuses_a_maximum_that_it_does_not_follow():
    stack = td.Stack.linux(rto_max=2.0)
    with pytest.raises(
        ValueError, match=r"^rto_max must be at least 19.2 s here in the chain, except for sparse flows"
    ):
        td.predict_delay(VOICE, PATH, stack, method="chain")
    assert td.predict_delay(VOICE, PATH, td.Stack.linux(rto_max=20.0), method="chain").mean > 0
    assert td.predict_delay(VOICE, td.Path(0.1, 0.0), stack, method="chain").mean == pytest.approx(0.05)


def test_the_chain_does_not_depend_on_the_version():
    old, new = (td.predict_delay(VOICE, PATH, Linux(kernel=kernel), method="chain") for kernel in ("6.1", "7.3"))
    # To rounding: until the kernels are compiled, the first of the two may be answered by plain Python.
    assert np.allclose(old.weights, new.weights, rtol=1e-12, atol=0)
    assert np.allclose(old.values, new.values, rtol=1e-12, atol=0)


def test_rack_cannot_be_switched_off_since_rfc_6675_is_gone():
    without = Rules(rack=False)
    with pytest.raises(ValueError, match=r"^rules.rack must be True with Linux 6.17, .* since 6.17, got False$"):
        simulate(VOICE, PATH, Linux(kernel="6.17"), packets=1000, rules=without)
    assert simulate(VOICE, PATH, Linux(kernel="6.16"), packets=1000, rules=without).packets == 1000


# Each of the kernel's rules, left out, changes what it is said to change

CALL, VIDEO = td.Flow(174, 0.020), td.Flow(1448, 0.020)
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
    rack, three_sacks = with_and_without("rack", CALL, PATH)
    assert rack.quantile(0.95) == pytest.approx(0.140, abs=0.002)
    assert three_sacks.quantile(0.95) == pytest.approx(0.190, abs=0.001)
    assert three_sacks.counts["reordering_timeouts"] == 0
    # A retransmission that is lost is left to the timeout.
    assert rack.counts["timeouts"] < 5 < 50 < three_sacks.counts["timeouts"]


def test_without_the_reordering_window_the_first_sack_repairs():
    patient, hasty = with_and_without("reordering_window", CALL, PATH)
    assert hasty.counts["reordering_timeouts"] == 0 < patient.counts["reordering_timeouts"]
    assert hasty.quantile(0.95) == pytest.approx(0.130, abs=0.001)
    jittery = replace(PATH, loss=0.0, jitter=0.06)
    patient, hasty = with_and_without("reordering_window", CALL, jittery, packets=20_000)
    assert hasty.counts["segments_retransmitted"] > 100 > patient.counts["segments_retransmitted"]


def test_without_rack_for_retransmissions_they_take_a_timeout():
    found, left = with_and_without("retransmissions_found_lost_by_rack", CALL, PATH)
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
    kernel, separate = with_and_without("coalescing", CALL, PATH)
    packets = separate.packets + 2000
    first_sent = separate.counts["segments_sent"] - separate.counts["segments_retransmitted"]
    assert first_sent == pytest.approx(packets, abs=100)
    assert kernel.counts["segments_sent"] < packets
    assert separate.sender_delay > 3 * kernel.sender_delay


def test_without_ticks_timers_are_exact():
    # 20 ms for the next packet, RTT, half an RTT back: the reordering timer needs 5 ms + 2 ms after the SACK.
    kernel, exact = with_and_without("ticks", replace(CALL, write_jitter=0), PATH, tick_offset=0.0013)
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
    kernel, without = with_and_without("collapsing", CALL, PATH)
    assert kernel.counts["segments_retransmitted"] < kernel.counts["segments_lost"]
    assert without.counts["segments_retransmitted"] == without.counts["segments_lost"]


def test_a_rule_is_true_or_false():
    with pytest.raises(ValueError, match=r"^rack must be True or False, got 1$"):
        Rules(rack=1)
