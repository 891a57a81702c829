"""Sources in the simulator: constant rates as before, windows that idle, coalescing, kinds, and sources that end."""

from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.ask import Requested, UnsupportedError
from tcpdelay.models.predict import predict
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.sim.engine import TCP, new_connection
from tcpdelay.sim.records import Rules
from tcpdelay.sim.simulation import simulate
from tcpdelay.sim.writes import WriteSchedule

MSS = 1448
RENO = td.Stack.linux("reno")
QUIET = td.Path(rtt=0.100, loss=0.0)


def as_trace(flow, messages=60_000):
    """Return the trace of a flow's packets."""
    written = next(flow.blocks(size=messages))
    return td.Trace(written["time"], written["size"], period=messages * flow.interval)


@pytest.mark.parametrize(
    ("flow", "path", "stack", "rules"),
    [
        (td.Flow(174, 0.020), td.Path(0.1, 0.02), td.Stack.linux(), Rules()),
        (td.Flow(174, 0.020), td.Path(0.1, 0.02), td.Stack.linux("reno", delayed_ack=True), Rules()),
        (td.Flow(174, 0.020), td.Path(0.1, 0.02), td.Stack.linux(), Rules(coalescing=False)),
        (td.Flow(5000, 0.033), td.Path(0.06, 0.01, jitter=0.004, ack_loss=0.02), td.Stack.linux(), Rules()),
        (td.Flow(20_000, 0.1), td.Path(0.03, 0.002, bad_time=0.05, bad_loss=0.3), td.Stack.linux(), Rules()),
        (td.Flow(1448, 0.010), td.Path(0.06, 0.005), td.Stack.linux("bbr"), Rules()),
        (td.Flow(6000, 0.020), td.Path(0.2, 0.01), td.Stack.linux(), Rules()),
        # Each message meets a window that has been idle for longer than the timeout.
        (td.Flow(60_000, 1.0), td.Path(0.05, 0.01), td.Stack.linux(), Rules()),
    ],
)
def test_a_trace_of_a_flow_has_the_delays_of_the_flow(flow, path, stack, rules):
    flow = replace(flow, write_jitter=0)
    constant, trace = (
        simulate(source, path, stack, packets=20_000, seed=3, rules=rules, trace=True)
        for source in (flow, as_trace(flow))
    )
    assert constant.sustainable == trace.sustainable
    assert constant.counts == trace.counts
    np.testing.assert_array_equal(constant.values, trace.values)
    np.testing.assert_array_equal(constant.weights, trace.weights)
    for name in ("sent_after", "read_after"):
        np.testing.assert_array_equal(getattr(constant, name), getattr(trace, name))
    np.testing.assert_array_equal(constant.events, trace.events)
    np.testing.assert_allclose(constant.messages["time"], trace.messages["time"], atol=1e-6)
    np.testing.assert_array_equal(constant.messages["size"], trace.messages["size"])


LATE = [td.Stack.linux(), td.Stack.linux("bbr"), td.Stack.quic()]


@pytest.mark.parametrize("stack", LATE, ids=["cubic", "bbr", "quic"])
def test_late_writes_are_those_of_the_source_and_exact_without_lateness(stack, monkeypatch):
    flow, path = td.Flow(500, 0.010, write_jitter=0), td.Path(0.040, 0.025)

    def delays(source):
        return simulate(source, path, stack, packets=20_000, seed=3)

    exact, late = delays(flow), delays(replace(flow, write_jitter=0.001))
    # Times are whole microseconds.
    punctual = delays(replace(flow, write_jitter=1e-9))
    assert punctual.counts == exact.counts
    np.testing.assert_array_equal(punctual.values, exact.values)
    written = replace(flow, write_jitter=0.001).messages(1000, seed=3)
    # A trace begins with its first message. Here the lateness of this one counts too.
    monkeypatch.setattr("tcpdelay.sim.simulation.source_of", lambda source: source)
    replayed = delays(td.Trace(written["time"], written["size"], period=1000))
    assert late.counts == replayed.counts != exact.counts
    np.testing.assert_array_equal(late.values, replayed.values)
    np.testing.assert_array_equal(late.weights, replayed.weights)


def test_late_writes_delay_a_flow_whose_round_trip_is_a_multiple_of_the_interval():
    # An ACK of an earlier write arrives before or after the next write, in turn. With exact writes it always finds the
    # next packet written; with late ones every second packet that waits for the window waits for another ACK.
    flow, path = td.Flow(500, 0.010), td.Path(0.040, 0.025)
    exact, late = (simulate(replace(flow, write_jitter=each), path, packets=200_000) for each in (0.0, 0.001))
    assert late.mean_interval.low > exact.mean_interval.high
    assert late.sender_delay - exact.sender_delay == pytest.approx(late.mean - exact.mean, rel=0.5)


CHAINS = {
    "newreno_2008": (td.Flow(174, 0.020), td.Stack.newreno_2008()),
    "video": (td.Video(300_000), td.Stack.linux()),
    "quic": (td.Flow(174, 0.020), td.Stack.quic("quic-go", delivery="datagram")),
}


@pytest.mark.parametrize(("source", "stack"), CHAINS.values(), ids=CHAINS)
def test_a_chain_ignores_usual_lateness_and_refuses_more(source, stack):
    scenario = Scenario(source, td.Path(0.060, 0.005), stack)
    usual = predict(scenario, method="chain")
    exact = predict(replace(scenario, source=replace(source, write_jitter=0)), method="chain")
    assert usual.mean == exact.mean
    assert (usual.ignored["write_jitter"], exact.ignored) == ("0 s", {})
    refusal = predict(replace(scenario, source=replace(source, write_jitter=0.002)), method="chain").refusal
    assert str(refusal).startswith("write_jitter must be at most 0.001 s in ")
    assert str(refusal).partition("; ")[2].startswith("tcpdelay.simulate takes it into account")


def carried(times, sizes, stack=RENO, **rules):
    """Return the connection after all messages, and the delay of each [s], from exact times."""
    connection, wire = new_connection(td.Trace(times, sizes), QUIET, stack, 0, Rules(**rules), exact_ties=True)
    schedule = WriteSchedule(td.Trace(times, sizes), 0)
    schedule.begin(connection)
    TCP.advance(connection, wire, len(times), schedule)
    return connection, wire.delays[0, : len(times)] / 1e6


@pytest.mark.parametrize(("segments", "rounds"), [(1, 0), (10, 0), (11, 1), (30, 1), (31, 2), (70, 2), (71, 3)])
def test_a_large_message_takes_the_rounds_of_slow_start(segments, rounds):
    # The initial window is ten segments, and doubles in each round trip (RFC 6928, RFC 5681).
    _, delays = carried([0.0], [segments * MSS])
    assert delays == pytest.approx([0.050 + 0.100 * rounds])


def test_the_window_stays_open_for_the_next_message():
    # After rounds of 10, 20 and 40 segments the window is 80 segments.
    kept = td.Stack.linux("reno", window_validation=False)
    _, delays = carried([0.0, 1.0, 2.0], [70 * MSS, 80 * MSS, 81 * MSS], stack=kept)
    assert delays == pytest.approx([0.250, 0.050, 0.050])


@pytest.mark.parametrize("idle", [0.25, 0.5, 0.7, 0.9, 1.1, 1.5, 3.0, 10.0])
def test_an_idle_window_is_halved_for_each_timeout(idle):
    # 150 segments leave in the rounds 10, 20, 40, 80: the window is 160 segments when the last is acknowledged.
    first, _ = carried([0.0], [150 * MSS])
    written = 0.3 + idle
    connection, delays = carried([0.0, written], [150 * MSS, 200 * MSS])
    # tcp_cwnd_restart (net/ipv4/tcp_output.c), in ticks of 4 ms since the last transmission, at 0.3 s.
    rto, delta, window = int(connection.rto), round(idle / 0.004), 160
    assert int(first.snd_cwnd) <= window
    if delta > rto:
        delta -= rto
        while delta > 0 and window > 10:
            window >>= 1
            delta -= rto
        window = max(window, 10)
    rounds, sent, size = -1, 0, window
    while sent < 200:
        rounds, sent, size = rounds + 1, sent + size, 2 * size
    assert delays[1] == pytest.approx(0.050 + 0.100 * rounds)


def test_after_idle_time_the_receiver_acknowledges_sixteen_segments_one_by_one():
    # Else the segments that arrive together have one ACK: two for the rounds of 10 and 20 segments. After three seconds
    # these are 10 ACKs, and then 6 and one for the other 14 segments (tcp_event_data_recv, TCP_MAX_QUICKACKS).
    for pause, acks in ((0.2, 1), (3.0, 17)):
        connection, _ = carried([0.0, 0.15 + pause], [30 * MSS, 30 * MSS])
        assert connection.acks_sent == 2 + acks


def test_messages_that_wait_share_segments():
    # Ten small messages fill the initial window; the other twenty wait for the first ACK, 2000 bytes in two segments.
    times, sizes = [0.0] * 30, [100] * 30
    connection, delays = carried(times, sizes)
    assert connection.segments_sent == 12
    np.testing.assert_allclose(delays, [0.050] * 10 + [0.150] * 20)
    connection, delays = carried(times, sizes, coalescing=False)
    assert connection.segments_sent == 30
    np.testing.assert_allclose(delays, [0.050] * 10 + [0.150] * 20)


def test_a_message_is_read_with_its_last_byte():
    # The second segment of the first message is lost, so that both messages wait for it.
    connection, wire = new_connection(td.Trace([0.0], [1]), QUIET, RENO, 0, exact_ties=True)
    schedule = WriteSchedule(td.Trace([0.0, 0.020, 0.040, 0.060, 1.0], [1000, 2 * MSS, 500, 400, 10]), 0)
    schedule.begin(connection)
    connection.until_loss = 3
    TCP.advance(connection, wire, 5, schedule)
    assert connection.segments_lost == 1
    delays = wire.delays[0, :5] / 1e6
    repaired = 0.020 + delays[1]
    assert delays[0] == delays[4] == 0.050
    assert repaired > 0.170
    np.testing.assert_allclose(delays[2:4], [repaired - 0.040, repaired - 0.060])


messages = st.lists(st.tuples(st.floats(0.0, 0.3), st.integers(1, 60_000)), min_size=50, max_size=400)


@settings(deadline=None, max_examples=40)
@given(messages, st.floats(0.0, 0.08), st.sampled_from(["reno", "cubic", "bbr"]), st.integers(0, 100))
def test_every_message_is_read_once_in_order_and_none_is_faster_than_the_network(gaps, loss, control, seed):
    times, sizes = np.cumsum([gap for gap, _ in gaps]), [size for _, size in gaps]
    trace, path = td.Trace(times, sizes), td.Path(rtt=0.08, loss=loss)
    connection, wire = new_connection(trace, path, td.Stack.linux(control), seed)
    schedule = WriteSchedule(trace, 0)
    schedule.begin(connection)
    TCP.advance(connection, wire, len(times), schedule)
    delays, waits, held = wire.delays[:, : len(times)]
    assert (held >= sizes).all()
    assert connection.packets_read == connection.packets_written == len(times)
    assert connection.rcv_nxt == connection.written == sum(sizes)
    assert delays.min() >= connection.one_way_delay
    assert waits.min() >= 0
    assert np.all(delays >= waits + connection.one_way_delay)
    assert np.all(np.diff(np.rint(times * 1e6) + delays) >= 0)


@dataclass(frozen=True)
class Regrouped(td.Source):
    """Another source in blocks of another size."""

    source: td.Source
    size: int

    @property
    def message_rate(self):
        return self.source.message_rate

    @property
    def mean_bitrate(self):
        return self.source.mean_bitrate

    def blocks(self, seed=0, size=0):
        return self.source.blocks(seed, self.size)

    def generate(self, seed):
        return self.source.generate(seed)


def test_the_size_of_blocks_changes_nothing():
    speech, path = td.Speech(174, 0.020), td.Path(0.1, 0.02)
    expected = simulate(speech, path, packets=20_000, seed=5)
    found = simulate(Regrouped(speech, 77), path, packets=20_000, seed=5)
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.weights, expected.weights)


def test_the_messages_of_a_trace_are_those_of_the_source():
    video = td.Video(1_000_000)
    delays = simulate(video, td.Path(0.06, 0.001), packets=5000, seed=8, trace=True)
    written = next(video.blocks(8, size=10_000))
    place = int(np.searchsorted(written["size"].cumsum(), written["size"][:2000].sum())) + 1
    assert delays.messages["time"][0] == 0
    counted = written[place:][: delays.messages.size]
    # A chunk may begin a few messages late, with the first message that was not read before.
    assert np.isin(delays.messages["size"], counted["size"]).mean() > 0.99
    assert np.all(np.diff(delays.messages["time"]) > 0)


def test_the_delays_by_kind_are_the_parts_of_all_delays():
    delays = simulate(td.Video(800_000), td.Path(0.1, 0.005), packets=60_000, seed=1, trace=True)
    key, other = (delays.by_kind[kind] for kind in ("key frame", "other frame"))
    assert key.packets + other.packets == delays.packets == 60_000
    assert key.packets == pytest.approx(1000, abs=2)
    assert (key.packets * key.mean + other.packets * other.mean) / 60_000 == pytest.approx(delays.mean)
    for number, kind in enumerate(("other frame", "key frame")):
        chosen = delays.read_after[delays.messages["kind"] == number]
        assert delays.by_kind[kind].quantile(0.9) == pytest.approx(np.quantile(chosen, 0.9, method="inverted_cdf"))
    # Of several segments, one is lost more often.
    assert key.mean_interval.low > other.mean_interval.high
    assert all(kind.quantile_interval.value == kind.quantile(kind.probability) for kind in (delays, key, other))
    assert other.quantile_interval.low <= other.quantile(0.95) <= other.quantile_interval.high
    assert simulate(td.Flow(174, 0.020), td.Path(0.1, 0.005), packets=2000).by_kind == {}


def test_datagrams_of_a_kind_that_are_lost_never_arrive():
    speech, path = td.Speech(174, 0.020), td.Path(0.020, 0.1)
    delays = simulate(speech, path, td.Stack.quic(delivery="datagram"), packets=5000, quantile=0.8)
    lost = {kind: of_kind.late_fraction(10.0) for kind, of_kind in delays.by_kind.items()}
    assert all(share == pytest.approx(0.1, abs=0.05) for share in lost.values())
    packets = {kind: of_kind.packets for kind, of_kind in delays.by_kind.items()}
    assert sum(lost[kind] * packets[kind] for kind in lost) == pytest.approx(5000 * delays.late_fraction(10.0))
    for found in (delays, delays.by_kind["packet"]):
        assert (found.mean, found.worst, found.mean_interval.value) == (np.inf, np.inf, np.inf)
        assert found.quantile_interval.value == found.quantile(0.8) == 0.01


def test_a_rare_kind_has_delays_without_an_interval():
    trace = td.Trace(np.arange(100) * 0.02, [174] * 100, period=2.0, labels=["rare"] + ["usual"] * 99)
    rare = simulate(trace, td.Path(0.1, 0.01), packets=2000).by_kind["rare"]
    assert rare.packets == 20
    assert rare.mean >= 0.05
    assert np.isnan(rare.quantile_interval.value)


def test_a_trace_that_ends_gives_all_but_its_first_messages():
    flow = td.Flow(174, 0.020)
    ending = td.Trace(*islice((flow.messages(120)[name] for name in ("time", "size")), 2))
    found = simulate(ending, td.Path(0.1, 0.02))
    # A chunk leaves out the packets that the chunk before has read beyond its end.
    assert 3900 < found.packets <= 4000
    assert found.mean == pytest.approx(simulate(flow, td.Path(0.1, 0.02), packets=4000).mean, rel=0.01)


def test_a_trace_that_ends_long_before_its_last_message_is_read_has_finite_delays():
    # TCP carries a small part of the rate: everything is written before the first counted message is read.
    trace = td.Trace(np.arange(4000) * 1e-3, np.full(4000, 5000))
    delays = td.simulate(trace, td.Path(rtt=0.060, loss=0.02))
    assert 1900 < delays.packets <= 2000
    assert 4 < delays.quantile(0.5) < delays.worst < np.inf


def test_a_connection_of_bbr_continues_where_the_last_has_stopped():
    flow = td.Flow(1000, 0.050)
    rising = td.Trace(next(flow.blocks(size=20_000))["time"], 1 + np.arange(20_000) % 1400, period=1000.0)
    found = simulate(rising, td.Path(0.05, 0.001), td.Stack.linux("bbr"), packets=6000, trace=True, connection_time=60)
    steps = np.diff(found.messages["size"]) % 1400
    # At the start of each connection, ten seconds and what the last has not read are left out.
    assert set(steps[steps > 20]) <= set(range(195, 215))
    assert 4 <= (steps > 20).sum() <= 8
    assert found.mean == pytest.approx(0.025, rel=0.1)


def test_a_backlog_of_very_many_messages_is_not_carried():
    found = simulate(td.Messages(9000, 1000), td.Path(0.1, 0.05), packets=20_000)
    assert not found.sustainable
    assert found.quantile(0.5) == np.inf


def test_bytes_count_for_what_tcp_carries_not_messages():
    # The same bitrate, in messages of random sizes: TCP carries about the same share of both.
    path = td.Path(0.1, 0.01)
    constant = simulate(td.Flow(2500, 0.010), path, packets=200_000)
    random = simulate(td.Messages(100, td.LognormalSizes(2500)), path, packets=200_000)
    assert not constant.sustainable
    assert not random.sustainable
    assert random.carried.value == pytest.approx(constant.carried.value, rel=0.06)


def test_the_method_auto_simulates_what_the_chain_refuses():
    scenario = Scenario(td.Utterances(960, 0.020), td.Path(0.1, 0.02))
    answer = predict(scenario, Requested(packets=5000))
    assert answer.status == "estimated"
    assert answer.simulated_because == "the chain does not model this scenario (source)"
    assert answer.distribution.scenario[0] is scenario.source
    refused = predict(scenario, method="chain")
    assert refused.status == "unsupported"
    found = td.predict_delay(scenario.source, scenario.path, packets=5000)
    assert found.mean == answer.mean
    with pytest.raises(
        UnsupportedError, match=r"^source must be a Flow, .*, got Utterances\(.*\); tcpdelay.simulate takes"
    ):
        td.predict_delay(scenario.source, scenario.path, method="chain")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: simulate(td.Trace([0, 1], [1, 2]), QUIET),
            "source must have at least 3000 messages, or a period, got",
        ),
        (
            lambda: simulate(as_trace(td.Flow(9, 0.1)), QUIET, packets=10),
            "packets must be a whole number from 1000 to 1e9",
        ),
        (
            lambda: simulate(td.Trace(np.arange(4000), [9] * 4000), QUIET, packets=3000),
            "source must have at least 5000 messages",
        ),
        (lambda: simulate(td.Messages(2e4, 9), td.Path(0.01, 0)), "source must have at most 10000 messages per"),
        (lambda: simulate(td.Video(2e9), td.Path(0.1, 0)), "rtt must span less than 1024 segments"),
        (lambda: td.sensitivities(td.Speech(174, 0.02), QUIET), "flow must be a Flow, which has a constant rate"),
        (lambda: Scenario("voip", QUIET), "source must be a Flow or another Source, got 'voip'"),
        (lambda: Scenario(td.Video(1e6), QUIET).flow, "flow must be a Flow, which has a constant rate, got Video"),
    ],
)
def test_what_cannot_be_answered_for_a_source_is_refused_in_one_line(ask, message):
    with pytest.raises(ValueError, match=f"^{message}") as error:
        ask()
    assert "\n" not in str(error.value)
