"""The simulator: against patterns worked out by hand, against captures of the kernel, and what must hold always."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.ask import NotSettledError, Requested
from tcpdelay.capture.flow_capture import read_capture
from tcpdelay.models.predict import predict
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import is_exact
from tcpdelay.sim.batches import Batches, merge
from tcpdelay.sim.congestion.cubic import cube_root
from tcpdelay.sim.engine import TCP, new_connection
from tcpdelay.sim.records import wheel_expiry
from tcpdelay.sim.simulation import simulate
from tcpdelay.sim.writes import WriteSchedule
from tcpdelay.statistics import quantile_interval

CAPTURES = Path(__file__).parents[1] / "validation" / "captures" / "random-loss.parquet"


def delays_after_one_loss(interval=0.020, rtt=0.100, lost=100, packets=200):
    """Return the delays [ms] from the packet on that is lost, with no other loss."""
    connection, wire = new_connection(
        td.Flow(174, interval, write_jitter=0), td.Path(rtt=rtt, loss=0.0), td.Stack.linux(hz=1000), 0, exact_ties=True
    )
    # Every packet is a segment here, as the window does not bind.
    connection.until_loss = lost + 1
    TCP.advance(connection, wire, packets)
    assert connection.segments_lost == connection.segments_retransmitted == 1
    assert np.all(wire.delays[0, :lost] == connection.one_way_delay)
    return wire.delays[0, lost:packets] / 1e3


def test_a_single_loss_leaves_the_comb_that_the_kernel_leaves():
    # The ACK of the next packet comes 20 ms + RTT after the loss; RTT/4 of reordering is not over, so a timer runs for
    # the 5 ms that are missing, 2 ms and a tick. The retransmission is read half an RTT later, and all that waited
    # behind it with it: 20 ms less for every packet.
    delays = delays_after_one_loss()
    assert 177 <= delays[0] <= 178.001
    np.testing.assert_allclose(delays[1:4], delays[0] - 20 * np.arange(1, 4), atol=0.002)
    assert delays[-1] == 50


def test_with_many_packets_per_round_the_third_sack_repairs():
    # Three packets later their SACKs are in: 3 * 5 ms after the RTT.
    connection, wire = new_connection(
        td.Flow(174, 0.005, write_jitter=0), td.Path(rtt=0.1, loss=0.0), td.Stack.linux(), 0, exact_ties=True
    )
    # The window has to open first.
    TCP.advance(connection, wire, 2000)
    connection.until_loss = 1
    TCP.advance(connection, wire, 2200)
    assert connection.segments_lost == 1
    assert wire.delays[0, 2000:2200].max() / 1e3 == pytest.approx(50 + 100 + 15, abs=0.01)


@pytest.mark.parametrize(("ticks", "late"), [(0, 1), (62, 1), (63, 8), (70, 8), (503, 8), (504, 64), (600, 64)])
def test_a_timer_is_never_early_and_at_most_one_step_of_its_level_late(ticks, late):
    for now in range(1000, 1100):
        assert now + ticks < wheel_expiry(now, ticks) <= now + ticks + late


@given(st.integers(0, 10**15))
def test_thecube_root_is_the_nearest(value):
    root = cube_root(value)
    assert (root - 0.5001) ** 3 <= value <= (root + 0.5001) ** 3


def any_scenario(seed):
    """Return a source of any kind, and a path and a TCP of any parameters, where segments arrive in order."""
    rng = np.random.default_rng(seed)
    source = [
        lambda: td.Flow(int(rng.integers(40, 1448)), rng.uniform(0.003, 0.1), write_jitter=0),
        lambda: td.Flow(int(rng.integers(40, 6000)), rng.uniform(0.003, 0.1), write_jitter=0.003),
        lambda: td.Speech(int(rng.integers(60, 400)), 0.020),
        lambda: td.Video(rng.uniform(2e5, 3e6)),
        lambda: td.Messages(rate=rng.uniform(5, 80), sizes=int(rng.integers(60, 3000))),
    ][seed % 5]()
    rtt = rng.uniform(0.004, 0.4)
    bursts = [{}, {}, {"bad_time": rng.uniform(0.02, 0.3)}, {"loss_burst": rng.uniform(1.1, 3)}][seed // 3 % 4]
    jitter = {"jitter": rng.uniform(0, 0.05), "in_order": True} if seed % 2 else {}
    path = td.Path(rtt=rtt, loss=10 ** rng.uniform(-4, -1.3), one_way_delay=rtt * rng.uniform(), **jitter, **bursts)
    stack = td.Stack.linux(
        congestion_control=["reno", "cubic"][seed % 2],
        hz=[100, 250, 1000][seed % 3],
        delayed_ack=seed % 7 == 0,
        rto_min=0.02 if seed % 11 == 0 else 0.2,
        window_validation=seed % 4 > 0,
    )
    return source, path, stack


@pytest.mark.parametrize("seed", range(120))
def test_undisturbed_time_leaves_the_state_that_its_events_leave(seed):
    source, path, stack = any_scenario(seed)
    states, delays, passed = [], [], []
    for leaping in (0, 1):
        connection, wire = new_connection(source, path, stack, seed)
        connection.leaping = leaping
        schedule = None
        if not is_exact(source):
            schedule = WriteSchedule(source, seed)
            schedule.begin(connection)
        for packets in (1500, 3000):
            TCP.advance(connection, wire, packets, schedule)
        # What an ACK sets to use it itself is not set, nor what only BBR uses.
        left_out = {"leaping", "skipped", "reord", "delivered_at_sending", "rs_rtt"}
        states.append({name: connection[name] for name in connection.dtype.names if name not in left_out})
        delays.append(wire.delays_of(0, 3000))
        passed.append(int(connection.skipped))
    assert states[0] == states[1]
    np.testing.assert_array_equal(*delays)
    assert passed[0] == 0


def test_most_time_is_undisturbed_where_little_is_lost():
    flow, path = td.Flow(174, 0.020, write_jitter=0), td.Path(rtt=0.1, loss=0.001)
    connection, wire = new_connection(flow, path, td.Stack.linux(), 1, exact_ties=True)
    TCP.advance(connection, wire, 50_000)
    assert connection.skipped > 40_000


@pytest.mark.parametrize(
    "name",
    [
        "cbr-174B-20ms-rtt100ms-loss2pct-cubic-hz1000",
        "cbr-174B-30ms-rtt100ms-loss5pct-reno-hz1000",
        "cbr-724B-20ms-rtt300ms-loss0.5pct-reno-hz1000",
        "cbr-1448B-20ms-rtt20ms-loss3pct-cubic-hz1000",
    ],
)
def test_the_kernel_agrees(name):
    capture = read_capture(CAPTURES, name)
    measured = capture.delays()
    stack = td.Stack.linux(congestion_control=capture.settings["congestion_control"], hz=1000)
    simulated = simulate(capture.flow, capture.path, stack, packets=400_000, seed=1)
    assert simulated.mean == pytest.approx(np.concatenate(measured).mean(), rel=0.05)
    low, high = quantile_interval(measured, 0.95, confidence=0.999)[1:]
    assert 0.98 * low <= simulated.quantile(0.95) <= 1.02 * high


def test_a_simulation_says_how_sure_it_is():
    flow, path = td.Flow(174, 0.020, write_jitter=0), td.Path(rtt=0.100, loss=0.03)
    precise = simulate(flow, path, half_width=0.01, seed=3)
    assert precise.quantile_interval.relative_half_width <= 0.01
    assert precise.mean_interval.low <= precise.mean <= precise.mean_interval.high
    assert precise.mean == pytest.approx(0.05 + precise.sender_delay + precise.head_of_line_delay)


def test_a_trace_holds_every_packet():
    traced = simulate(td.Flow(1448, 0.02, write_jitter=0), td.Path(rtt=0.1, loss=0.01), packets=20_000, trace=True)
    assert traced.read_after.shape == traced.sent_after.shape == (20_000,)
    assert traced.read_after.mean() == pytest.approx(traced.mean)


NEAR_CAPACITY = td.Flow(1448, 0.0046336, write_jitter=0), td.Path(rtt=0.078, loss=0.005)


@pytest.mark.parametrize("seed", range(3))
def test_delays_that_depend_on_the_length_of_a_simulation_are_not_settled(seed):
    found = simulate(*NEAR_CAPACITY, packets=200_000, seed=seed)
    assert not found.settled
    assert found.expected_error is None
    assert found.carried.low < 1 < found.carried.high


@pytest.mark.parametrize("seed", range(3))
def test_a_longer_simulation_near_capacity_does_not_contradict_a_shorter_one(seed):
    flow, path = td.Flow(1448, 0.0046336, write_jitter=0), td.Path(rtt=0.080, loss=0.005)
    found = [simulate(flow, path, packets=packets, seed=seed) for packets in (500_000, 2_000_000)]
    # TCP carries about 98 % of this rate, so no simulation may show a delay.
    assert not any(simulated.sustainable and simulated.settled for simulated in found)
    low, high = (np.array([simulated.carried[end] for simulated in found]) for end in (1, 2))
    assert low[0] < low[1] < 1 < high[1] < high[0]


@pytest.mark.parametrize("packets", [20_000, 200_000])
def test_the_delays_of_a_light_load_are_settled(packets):
    for seed in range(10):
        found = simulate(td.Flow(174, 0.020, write_jitter=0), td.Path(rtt=0.100, loss=0.02), packets=packets, seed=seed)
        assert found.settled
        assert found.carried.value == pytest.approx(1, abs=0.01)


def test_a_short_simulation_of_a_flow_that_tcp_carries_does_not_call_it_endless():
    # Losses make TCP read several packets at once, so that more packets are read than a chunk has.
    for seed in range(10):
        assert simulate(
            td.Flow(160, 0.020, write_jitter=0), td.Path(rtt=0.300, loss=0.05), packets=2000, seed=seed
        ).sustainable


def test_the_share_that_tcp_carries_is_that_of_its_capacity():
    # Four times the rate of a flow that TCP carries at about its capacity.
    flow, path = NEAR_CAPACITY
    found = simulate(td.Flow(flow.packet_size, flow.interval / 4, write_jitter=0), path, packets=200_000)
    assert not found.sustainable
    assert found.carried.low < 0.25 < found.carried.high


def test_the_answer_of_a_simulation_that_has_not_settled_has_no_delays():
    answer = predict(Scenario(*NEAR_CAPACITY), Requested(packets=200_000), "simulation")
    assert (answer.status, answer.answered, answer.meets(td.Target(10.0))) == ("not settled", False, False)
    with pytest.raises(NotSettledError, match="TCP carries between"):
        answer.require()


def test_correlated_batches_count_as_fewer():
    rng = np.random.default_rng(1)
    independent, correlated = Batches(), Batches()
    for level in np.repeat(rng.integers(50_000, 60_000, 16), 4):
        independent.add(rng.integers(50_000, 60_000, 1000))
        correlated.add(np.full(1000, level))
    # 16 independent levels, not 64 batches.
    levels = np.unique(correlated.histogram()[0]) / 1e6
    expected = 2.1314 * levels.std(ddof=1) / 4
    low, high = correlated.mean()[1:]
    assert (high - low) / 2 == pytest.approx(expected, rel=1e-3)
    assert independent.mean().relative_half_width < 0.001


def test_more_loss_means_more_delay():
    means = [
        simulate(td.Flow(174, 0.02, write_jitter=0), td.Path(rtt=0.1, loss=p), packets=200_000).mean
        for p in (0.0, 0.01, 0.03, 0.1)
    ]
    assert means[0] == pytest.approx(0.05)
    assert means == sorted(means)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stack": td.Stack.newreno_2008()}, r"stack must be one of Stack.linux\(...\) or Stack.quic"),
        ({"packets": 10}, "packets must"),
        ({"quantile": 1.5}, "quantile must"),
        ({"half_width": 0.0}, "half_width must"),
        ({"trace": True}, "packets must"),
        ({"tick_offset": 2.0}, "tick_offset must"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments, message):
    given_arguments = {"flow": td.Flow(174, 0.02, write_jitter=0), "path": td.Path(rtt=0.1, loss=0.01)} | arguments
    with pytest.raises(ValueError, match=message):
        simulate(**given_arguments)


def test_batches_hold_what_was_put_in():
    rng = np.random.default_rng(1)
    batches, all_delays = Batches(), []
    for _ in range(150):
        all_delays.append(rng.integers(50_000, 60_000, 1000))
        batches.add(all_delays[-1])
    values, counts = batches.histogram()
    expected = np.unique(np.concatenate(all_delays), return_counts=True)
    np.testing.assert_array_equal(values, expected[0])
    np.testing.assert_array_equal(counts, expected[1])
    assert batches.quantile(0.95).value == pytest.approx(np.quantile(np.concatenate(all_delays), 0.95) / 1e6, rel=1e-4)


def test_a_chunk_that_time_has_cut_to_a_few_packets_is_counted():
    batches = Batches()
    for delays in ([5, 6, 7, 8], [9, 9], []):
        batches.add(np.array(delays, np.int64))
    values, counts = batches.histogram()
    assert (values.tolist(), counts.tolist()) == ([5, 6, 7, 8, 9], [1, 1, 1, 1, 2])


@pytest.mark.parametrize("longest", [100, 1_000_000])
def test_histograms_are_added_whatever_their_range_and_order(longest):
    rng = np.random.default_rng(3)
    delays = [rng.integers(longest, size=size) for size in (500, 1, 300)]
    singles = [(part, np.ones(part.size, np.int64)) for part in delays]
    values, counts = merge([*singles, np.unique(delays[0], return_counts=True)])
    expected = np.unique(np.concatenate([*delays, delays[0]]), return_counts=True)
    np.testing.assert_array_equal(values, expected[0])
    np.testing.assert_array_equal(counts, expected[1])


def test_a_backlog_is_simulated_no_more_precisely_than_its_error_in_captures_requires():
    # Captures near the capacity differ by 54 % from the simulator in nine of ten cases.
    flow, path = td.Flow(16_684, 1 / 30), td.Path(rtt=0.060, loss=0.003)
    usual = simulate(flow, path)
    assert 0.02 < usual.quantile_interval.relative_half_width <= 0.3 * 0.541
    assert usual.settled
    assert usual.expected_error.p90 == pytest.approx(0.541, rel=0.03)
    with pytest.raises(ValueError, match="half_width must"):
        simulate(flow, path, half_width=1.0)


def test_very_many_different_delays_are_rounded_and_none_is_lost(monkeypatch):
    monkeypatch.setattr("tcpdelay.sim.batches.MOST_VALUES", 5000)
    rng = np.random.default_rng(2)
    delays = np.rint(1e6 * 0.05 * (1 + rng.pareto(0.7, (150, 6000)))).astype(np.int64)
    batches = Batches()
    for some in delays:
        batches.add(some)
    values, counts = batches.histogram()
    assert counts.sum() == delays.size
    assert values.size < delays.size / 20
    for probability in (0.5, 0.95, 0.999):
        exact = np.quantile(delays, probability, method="inverted_cdf") / 1e6
        assert batches.quantile(probability).value == pytest.approx(exact, rel=2.0**-11)


@pytest.mark.parametrize(("packet_size", "most"), [(174, 300_000), (2000, 200_000)])
def test_a_simulation_that_does_not_settle_ends_all_the_same(monkeypatch, packet_size, most):
    monkeypatch.setattr("tcpdelay.sim.simulation.CHUNK", 5000)
    monkeypatch.setattr("tcpdelay.sim.simulation.MOST_PACKETS", 300_000)
    monkeypatch.setattr("tcpdelay.sim.simulation.MOST_SEGMENTS", 400_000)
    looked, quantile = [], Batches.quantile
    monkeypatch.setattr(Batches, "quantile", lambda self, share: looked.append(share) or quantile(self, share))
    progress = []
    delays = simulate(
        td.Flow(packet_size, 0.020, write_jitter=0),
        td.Path(rtt=0.1, loss=0.02, loss_burst=4),
        on_progress=lambda *seen: progress.append(seen),
    )
    assert delays.packets == most
    assert delays.quantile_interval.relative_half_width > 0.02
    assert progress == [(done, most) for done in range(5000, most + 1, 5000)]
    # A look costs as much as there are packets, so that their number may grow with its logarithm alone.
    assert len(looked) <= 1 + np.log(most / 100_000) / np.log(1.1) + 1
