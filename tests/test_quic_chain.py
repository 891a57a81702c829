"""The chain of QUIC with a stream per message: closed forms, invariants, and the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.ask import UnsupportedError
from tcpdelay.budget import Budget, TooLargeError
from tcpdelay.chain.quic.message_chain import loss_recovery, message_repairs, quic_delays
from tcpdelay.chain.quic.window_chain import (
    OPEN,
    RECOVERING,
    grown,
    held,
    served,
    usable,
    window_chain,
    window_levels,
    window_parameters,
)
from tcpdelay.sim.quic.connection import IMPLEMENTATIONS
from tcpdelay.sim.simulation import simulate

FLOW, PATH = td.Flow(174, 0.020), td.Path(rtt=0.100, loss=0.02)
KNOWN = ("rfc9002", "aioquic", "quic-go")
"""The implementations that the chain knows."""
TIE = 1e-6
"""The simulator's round-trip time is longer by this [s]."""


def stack(implementation="rfc9002", delivery="stream_per_message", **settings):
    return td.Stack.quic(implementation=implementation, delivery=delivery, **settings)


def parameters(implementation, flow=FLOW, path=PATH):
    return window_parameters(IMPLEMENTATIONS[implementation], flow, path, 0.025, False, 0.12)


@pytest.mark.parametrize("implementation", KNOWN)
@pytest.mark.parametrize("delivery", ["stream_per_message", "datagram"])
def test_without_loss_every_message_takes_the_one_way_delay(implementation, delivery):
    found = quic_delays(FLOW, td.Path(rtt=0.1, loss=0, one_way_delay=0.03), stack(implementation, delivery))
    assert found.values.tolist() == [0.03]


@pytest.mark.parametrize(("implementation", "announced"), [("rfc9002", 25), ("aioquic", 25), ("quic-go", 26)])
def test_a_probe_finds_the_loss_of_a_sparse_flow(implementation, announced):
    # RFC 9002, 6.2.1: PTO = smoothed_rtt + max(4 * 0, kGranularity) + max_ack_delay, in ms 20 + 1 + 25; the second is
    # twice as long. quic-go sends two probes, so that one of four probe timeouts fails with half of the packets lost.
    timeout, lost = 0.020 + 0.001 + announced / 1000 + TIE, 0.1
    found = quic_delays(td.Flow(174, 0.5), td.Path(rtt=0.020, loss=lost), stack(implementation))
    failed = lost ** IMPLEMENTATIONS[implementation].probes
    assert found.values[:3] == pytest.approx([0.010, 0.010 + timeout, 0.010 + 3 * timeout], abs=1e-6)
    assert found.weights[:3] == pytest.approx([1 - lost, lost * (1 - failed), lost * failed * (1 - failed)])


def test_the_next_packet_shows_a_loss_after_nine_eighths_of_the_round_trip():
    # RFC 9002, 6.1.2: after a packet every 5 ms the timer of 9/8 * 100 ms decides; after one every 30 ms the ACK of the
    # next packet; after one every 1 ms the third packet (6.1.1).
    rules = IMPLEMENTATIONS["rfc9002"]
    for interval, expected in ((0.005, 0.1125), (0.030, 0.130), (0.001, 0.103)):
        late, share = message_repairs(loss_recovery(rules, td.Path(rtt=0.1, loss=1e-4), interval, (1, 0), 0.025))
        assert late[np.argsort(share)[-2]] == pytest.approx(expected, abs=2e-6)


def test_a_message_is_complete_with_its_last_packet():
    # Four packets: three follow the first, so that the threshold of packets shows its loss after a round trip; the
    # second and third wait for the timer, and the last for the next message.
    recovery = loss_recovery(IMPLEMENTATIONS["rfc9002"], td.Path(rtt=0.1, loss=0.01), 0.2, (4, 0), 0.025)
    late, share = message_repairs(recovery)
    assert share[0] == pytest.approx(0.99**4)
    first = share[np.isclose(late, 0.1, atol=2e-6)].sum()
    assert first == pytest.approx(0.01 * 0.99**4, rel=1e-6)
    probes = share[np.isclose(late, 0.126, atol=2e-6)].sum()
    assert probes == pytest.approx(0.01 * 0.99, rel=0.02)


def test_a_lost_datagram_never_arrives():
    found = quic_delays(td.Flow(3000, 0.05), td.Path(rtt=0.05, loss=0.05), stack(delivery="datagram"))
    assert found.late_fraction(100.0 * found.one_way_delay) == pytest.approx(1 - 0.95**3, abs=0.02)
    assert found.worst == np.inf
    assert found.weights[-1] == pytest.approx(1 - 0.95**3)


def test_windows_allow_what_the_rules_say():
    # RFC 9002, 7: a whole packet that fits, acknowledged in pairs; aioquic cuts a packet to fit; quic-go overshoots.
    assert usable(parameters("rfc9002"), 5.5 * 1200) == 4 * 1200
    assert usable(parameters("aioquic"), 5500.0) == 5500
    assert usable(parameters("quic-go"), 5.5 * 1280) == 6 * 1280
    # 7.3.3: a packet per round trip; 7.8: none while the application limits the sender.
    p = parameters("rfc9002", path=td.Path(rtt=0.1, loss=0))
    assert grown(p, 4800.0, True) == pytest.approx(1200)
    assert grown(p, 4800.0, False) == 0
    assert grown(parameters("aioquic"), 4800.0, False) > 0


def test_what_is_in_flight_for_longer_fills_the_window():
    # RFC 9002, 6.1.2: of four packets spread over a round trip, a lost one is found by the next, after 5/4 round trips;
    # of twenty, after 9/8.
    p = parameters("aioquic", path=td.Path(rtt=0.1, loss=0.1))
    assert served(p, 4800.0) == pytest.approx(4800 / (1 + 0.1 / 4))
    assert served(p, 24_000.0) == pytest.approx(24_000 / (1 + 0.1 / 8))
    # RFC 9000, 13.2.2: every second packet is acknowledged, the other one waits for a quarter of the round trip.
    rules, path = IMPLEMENTATIONS["quic-go"], td.Path(rtt=0.1, loss=0)
    datagrams = window_parameters(rules, FLOW, path, 0.025, True, 0.12)
    assert served(datagrams, 4 * 1280.0) == pytest.approx(4 * 1280 / (1 + 0.5 / 4))
    # The end of a stream is acknowledged at once, and every full packet has one.
    assert served(window_parameters(rules, FLOW, path, 0.025, False, 0.12), 4 * 1280.0) == 4 * 1280


def test_a_window_that_grows_by_packets_is_half_a_packet_below_its_line():
    p = parameters("quic-go")
    levels = window_levels(p, IMPLEMENTATIONS["quic-go"])
    assert held(p, levels, 5, OPEN) == levels[5] - 640
    assert held(p, levels, 5, RECOVERING) == levels[5]
    assert held(p, levels, 0, OPEN) == levels[0] == 2 * 1280
    assert held(parameters("rfc9002"), levels, 5, OPEN) == levels[5]


@given(
    size=st.integers(50, 5000),
    interval=st.floats(0.005, 0.1),
    rtt=st.floats(0.005, 0.15),
    loss=st.floats(1e-3, 0.05),
    implementation=st.sampled_from(KNOWN),
)
@settings(max_examples=25, deadline=None)
def test_delays_are_a_distribution_and_grow_with_the_loss(size, interval, rtt, loss, implementation):
    flow = td.Flow(size, interval)
    p = window_parameters(IMPLEMENTATIONS[implementation], flow, td.Path(rtt=rtt, loss=loss), 0.025, False, 1.2 * rtt)
    phases, transitions = window_chain(p, window_levels(p, IMPLEMENTATIONS[implementation]))
    sums = np.add.reduceat(transitions["probability"], phases["first_transition"][:-1])
    assert sums == pytest.approx(np.ones(sums.size))
    try:
        found = [
            quic_delays(flow, td.Path(rtt=rtt, loss=share * loss), stack(implementation), Budget(2.0, 2e8))
            for share in (0.3, 1.0)
        ]
    except TooLargeError:
        return
    for one in found:
        assert one.weights.sum() == pytest.approx(1)
        assert one.values[0] >= rtt / 2
        assert one.truncated_mass < 1e-6
    if found[1].sustainable:
        assert found[0].sustainable
        assert found[0].mean <= found[1].mean * (1 + 1e-9)
        assert found[0].late_fraction(rtt) <= found[1].late_fraction(rtt) + 1e-9


# Two packets: with rfc9002, a retransmission shifts the pairs of packets that are acknowledged, which is not modelled.
PAIRED = (td.Flow(1500, 0.030), td.Path(rtt=0.0096, loss=0.045))
FAR = [(FLOW, PATH), (td.Flow(300, 0.080), td.Path(rtt=0.030, loss=0.08))]


@pytest.mark.parametrize(
    ("implementation", "flow", "path"),
    [
        *((implementation, *case) for implementation in KNOWN for case in FAR),
        *((implementation, *PAIRED) for implementation in ("aioquic", "quic-go")),
    ],
)
def test_far_from_the_capacity_the_chain_is_the_simulator(implementation, flow, path):
    simulated = simulate(flow, path, stack(implementation), packets=60_000, seed=1)
    found = quic_delays(flow, path, stack(implementation))
    delays = np.array([1.01, 1.5, 3.0]) * path.rtt + path.forward_delay
    assert found.late_fraction(delays) == pytest.approx(simulated.late_fraction(delays), abs=0.006)
    assert found.mean == pytest.approx(simulated.mean, rel=0.03)


def test_near_the_capacity_the_chain_is_close_to_the_simulator():
    # Both values have a tenth of statistical and systematic error: `validation/results/quic-chain.md`.
    flow, path = td.Flow(8912, 0.0271), td.Path(rtt=0.0425, loss=0.00229)
    simulated = simulate(flow, path, stack("aioquic"), packets=300_000, seed=1)
    found = quic_delays(flow, path, stack("aioquic"))
    assert found.mean == pytest.approx(simulated.mean, rel=0.1)
    assert found.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=0.25)


def test_where_messages_wait_the_expected_error_is_larger():
    near = quic_delays(td.Flow(8912, 0.0271), td.Path(rtt=0.0425, loss=0.00229), stack("aioquic"))
    far = quic_delays(FLOW, PATH, stack("aioquic"))
    assert near.expected_error.mean > 0.1 > far.expected_error.mean
    assert far.expected_error_of(0.99).quantile == 0.99


def test_too_many_losses_are_refused():
    with pytest.raises(UnsupportedError, match=r"loss must be at most 0.25 in the chain of QUIC, got 0.3"):
        quic_delays(FLOW, td.Path(rtt=0.1, loss=0.3), stack())


def test_a_flow_beyond_the_capacity_is_not_carried():
    found = quic_delays(td.Flow(1200, 0.005), td.Path(rtt=0.2, loss=0.05), stack())
    assert not found.sustainable
    assert found.quantile(0.5) == np.inf


@pytest.mark.parametrize(
    ("flow", "path", "settings", "name"),
    [
        (FLOW, PATH, {"delivery": "stream"}, "delivery"),
        (FLOW, PATH, {"congestion_control": "cubic"}, "congestion_control"),
        (FLOW, td.Path(rtt=0.1, loss=0.01, loss_burst=2.0), {}, "loss_burst"),
        (FLOW, td.Path(rtt=0.1, loss=0.01, ack_loss=0.01), {}, "ack_loss"),
        (td.Flow(50_000, 0.1), PATH, {}, "packet_size"),
        (td.Video(1_000_000), PATH, {}, "source"),
    ],
)
def test_what_the_chain_does_not_model_is_refused(flow, path, settings, name):
    with pytest.raises(UnsupportedError) as refused:
        quic_delays(flow, path, stack(**settings))
    assert refused.value.name == name
