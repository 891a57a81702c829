"""The simulator on any path: what must hold always, lost ACKs, jitter, bursts, drop-tail queues, the packet trace."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.engine import TCP, new_connection
from tcpdelay.sim.path import is_dropped
from tcpdelay.sim.records import COLLAPSED, MARKED_LOST, MOST_EVENTS, RETRANSMITTED, RING, SACKED, Rules
from tcpdelay.sim.simulation import simulate
from tcpdelay.sim.tcp.window import KINDS, LOST_ON_PATH, SENT, SENT_AGAIN

VOICE, HUNDRED_MS = td.Flow(174, 0.020, write_jitter=0), td.Path(rtt=0.100, loss=0.0)
PACKETS = 2000

flows = st.builds(td.Flow, st.integers(40, 4000), st.floats(0.005, 0.1), write_jitter=st.just(0.0))
LOSSES = [
    {},
    {"loss_burst": 3.0},
    {"bad_time": 0.1},
    {"bad_time": 0.01, "bad_loss": 0.5},
    {"loss_pattern": "correlated"},
    {"loss_pattern": "correlated", "bottleneck": "bytes"},
]
paths = st.builds(
    lambda losses, **fields: td.Path(**losses, **fields),
    losses=st.sampled_from(LOSSES),
    rtt=st.floats(0.005, 0.4),
    loss=st.floats(0.0, 0.1),
    ack_loss=st.sampled_from([0.0, 0.05, 0.3]),
    jitter=st.sampled_from([0.0, 0.002, 0.05, 0.5]),
    reordering=st.sampled_from([0.0, 0.02, 0.5]),
)
stacks = st.builds(
    td.Stack.linux,
    congestion_control=st.sampled_from(["reno", "cubic"]),
    delayed_ack=st.booleans(),
    hz=st.sampled_from([100, 250, 1000]),
)
rules = st.builds(Rules, **dict.fromkeys(Rules.__dataclass_fields__, st.booleans()))


@settings(deadline=None, max_examples=150)
@given(flows, paths, stacks, rules, st.booleans(), st.integers(0, 1000))
def test_nothing_is_lost_from_view_and_nothing_is_faster_than_the_network(flow, path, stack, followed, ties, seed):
    connection, wire = new_connection(flow, path, stack, seed, followed, ties)
    TCP.advance(connection, wire, PACKETS)
    delays, waits, _ = wire.delays_of(0, PACKETS)
    assert delays.min() >= connection.one_way_delay
    assert waits.min() >= 0
    assert np.all(delays >= waits + connection.one_way_delay)
    # Packets are read in order, and each as soon as its last byte and all before it are there.
    assert np.all(np.diff(np.arange(PACKETS) * connection.interval + delays) >= 0)
    assert connection.packets_read * flow.packet_size <= connection.rcv_nxt
    assert (connection.packets_read + 1) * flow.packet_size > connection.rcv_nxt
    # What was sent is lost, has arrived, also to be discarded, or is on its way.
    in_transit = connection.next_transit - connection.first_transit
    arrived = connection.arrivals + connection.paws_discards
    assert connection.segments_sent == connection.segments_lost + arrived + in_transit
    assert connection.snd_una <= connection.rcv_nxt <= connection.snd_nxt <= connection.written
    # The counters agree with the retransmission queue.
    queue = wire.record.segments[np.arange(connection.first_segment, connection.next_segment) % RING]
    flags = queue["state"][(queue["state"] & COLLAPSED) == 0]
    assert connection.packets_out == flags.size
    assert connection.sacked_out == np.count_nonzero(flags & SACKED)
    assert connection.lost_out == np.count_nonzero(flags & MARKED_LOST)
    assert connection.sacked_out + connection.lost_out <= connection.packets_out
    # As in the kernel, what is sent again after an undone timeout has taken its loss back counts twice.
    counted_twice = connection.retrans_out - np.count_nonzero(flags & RETRANSMITTED)
    assert counted_twice == 0 or (counted_twice > 0 and connection.undone > 0)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"ack_loss": 0.1},
        {"jitter": 0.03},
        {"loss_burst": 4.0},
        {"bad_time": 0.1},
        {"bottleneck": "bytes"},
        {"loss_pattern": "correlated"},
    ],
)
def test_a_seed_gives_one_result(change):
    path = replace(HUNDRED_MS, loss=0.02, **change)
    first, again, other = (simulate(VOICE, path, packets=20_000, seed=seed, trace=True) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.read_after, again.read_after)
    np.testing.assert_array_equal(first.events, again.events)
    assert first.counts == again.counts
    assert not np.array_equal(first.read_after, other.read_after)


def test_lost_acknowledgements_alone_delay_nothing():
    delays = simulate(VOICE, replace(HUNDRED_MS, ack_loss=0.05), packets=100_000)
    assert delays.quantile(1.0) == pytest.approx(0.050)
    assert delays.counts["segments_retransmitted"] == 0
    share = delays.counts["acks_lost"] / delays.counts["acks_sent"]
    assert share == pytest.approx(0.05, abs=0.003)


def test_a_later_acknowledgement_reports_what_a_lost_one_would_have():
    # Without the SACKs of the lost ACKs, what has arrived would be sent again.
    delays = simulate(
        td.Flow(1448, 0.020, write_jitter=0), td.Path(rtt=0.05, loss=0.005, ack_loss=0.1), packets=200_000
    )
    counts = delays.counts
    assert counts["segments_lost"] > 800
    assert counts["segments_retransmitted"] - counts["segments_lost"] <= counts["probes"] + counts["timeouts"] < 40


def test_lost_acknowledgements_make_repairs_later():
    means = [simulate(VOICE, td.Path(0.1, 0.02, ack_loss=share), packets=200_000).mean for share in (0.0, 0.1, 0.3)]
    assert means == sorted(means)
    assert means[2] > 1.1 * means[0]


@pytest.mark.parametrize("jitter", [0.001, 0.015])
def test_jitter_below_the_interval_only_adds_itself(jitter):
    delays = simulate(VOICE, replace(HUNDRED_MS, jitter=jitter), packets=100_000)
    assert delays.counts["segments_retransmitted"] == delays.counts["recoveries"] == 0
    assert delays.quantile(1e-9) == pytest.approx(0.050, abs=1e-5)
    assert delays.quantile(1.0) == pytest.approx(0.050 + jitter, abs=1e-5)
    assert delays.mean == pytest.approx(0.050 + jitter / 2, rel=0.005)
    assert delays.head_of_line_delay == pytest.approx(0.0, abs=0.005 * jitter)


def test_no_part_of_the_delay_is_below_zero_if_less_jitter_is_drawn_than_its_mean():
    found = [simulate(VOICE, replace(HUNDRED_MS, jitter=0.001), packets=1000, seed=seed) for seed in range(6)]
    assert any(each.mean < each.sender_delay + 0.0505 for each in found)
    assert all(each.head_of_line_delay >= 0 for each in found)


def test_jitter_that_reorders_makes_packets_wait_for_each_other_and_rack_patient():
    delays = simulate(VOICE, replace(HUNDRED_MS, jitter=0.060), packets=100_000)
    counts = delays.counts
    # A few recoveries are needless until D-SACKs have widened the reordering window, and all are taken back.
    assert 0 < counts["recoveries"] < 20
    assert counts["undone"] == counts["recoveries"]
    assert delays.quantile(1.0) <= 0.110 + 1e-6
    assert delays.head_of_line_delay > 0.001


def test_a_segment_that_is_overtaken_arrives_after_the_next_and_is_not_taken_for_lost():
    delays = simulate(VOICE, replace(HUNDRED_MS, reordering=0.02), packets=100_000)
    overtaken = delays.late_fraction(0.051)
    assert overtaken == pytest.approx(0.02, abs=4 * np.sqrt(0.02 * 0.98 / 100_000))
    # It waits for the segment behind it, sent one interval later; r of those again for the next, and so on.
    assert delays.quantile(0.999) == pytest.approx(0.070, abs=1e-5)
    assert delays.mean == pytest.approx(0.050 + 0.020 * overtaken / (1 - 0.02), abs=2e-5)
    # Only one that is overtaken twice can look lost, by its 40 ms above the reordering window of a quarter of the RTT.
    assert delays.counts["segments_retransmitted"] < 2 * 0.02**2 * 100_000


@pytest.mark.parametrize("interval", [0.060, 0.5])
def test_no_segment_overtakes_one_that_has_arrived(interval):
    delays = simulate(td.Flow(174, interval, write_jitter=0), replace(HUNDRED_MS, reordering=0.5), packets=1000)
    assert delays.quantile(1.0) == pytest.approx(0.050)


def test_bursts_lose_the_same_share_in_fewer_recoveries():
    flow = td.Flow(1000, 0.020, write_jitter=0)
    single, bursts = (simulate(flow, td.Path(0.05, 0.005, loss_burst=burst), packets=300_000) for burst in (1, 4))
    for delays in (single, bursts):
        assert delays.counts["segments_lost"] / delays.counts["segments_sent"] == pytest.approx(0.005, rel=0.15)
    assert bursts.counts["recoveries"] < 0.6 * single.counts["recoveries"]
    assert bursts.mean != single.mean


def test_ties_are_reproduced_only_when_asked_for():
    # The RTT is a multiple of the interval: what is sent again in the microsecond of a write is taken for lost.
    flow, path = td.Flow(1448, 0.020, write_jitter=0), td.Path(rtt=0.020, loss=0.03)
    real, tied = (simulate(flow, path, packets=50_000, exact_ties=ties).counts for ties in (False, True))
    assert real["segments_retransmitted"] == real["segments_lost"] > 1000
    assert real["undone"] == 0 < real["recoveries"]
    assert tied["segments_retransmitted"] > 1.3 * tied["segments_lost"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss_burst": 0.5}, r"^loss_burst must lie between 1 and 100 segments, got 0\.5$"),
        ({"loss_burst": 101}, r"^loss_burst must lie between 1 and 100 segments, got 101$"),
        ({"loss": 0.8, "loss_burst": 2}, r"^loss must be at most 0\.666667 with a loss_burst of 2, got 0\.8$"),
        ({"ack_loss": 1.0}, r"^ack_loss must be a fraction from 0 to below 1, got 1; for 1 % write 0\.01$"),
        ({"ack_loss": -0.1}, r"^ack_loss must be a fraction from 0 to below 1, got -0\.1$"),
        ({"jitter": 5}, r"^jitter must lie between 0 and 1 s, got 5; the jitter is given in seconds: 5 ms is 0\.005$"),
        ({"jitter": "5 ms"}, r"^jitter must be a number in s, got '5 ms'$"),
    ],
)
def test_a_path_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        td.Path(**{"rtt": 0.1, "loss": 0.01} | arguments)


@pytest.mark.parametrize(
    "change", [{"loss_burst": 2.5}, {"ack_loss": 0.01}, {"jitter": 0.03}, {"reordering": 0.1}, {"bad_time": 0.1}]
)
def test_the_chain_refuses_what_only_the_simulator_knows(change):
    (name,), (value,), path = change.keys(), change.values(), td.Path(rtt=0.1, loss=0.01, **change)
    end = f" chain, got {value}; .*tcpdelay.simulate takes it into account"
    for stack in (td.Stack.newreno_2008(), td.Stack.newreno_2008(variant="sack")):
        with pytest.raises(ValueError, match=f"^{name} must be [01] in a Markov{end}$"):
            td.DelayModel(VOICE, path, stack)
    with pytest.raises(ValueError, match=f"^{name} must be .* in (the chain|one DelayModel), got {value}; "):
        td.DelayModel(VOICE, path, td.Stack.linux())
    with pytest.raises(ValueError, match=f"^{name} must be .* in the{end}"):
        td.predict_delay(packet_size=174, interval=0.02, rtt=0.1, loss=0.01, **change, method="chain")


# A drop-tail queue: the rest of a round is lost, a queue in bytes spares small packets

FULL = td.Flow(1448, 0.020, write_jitter=0)
MOST_ERRORS = 4.0
"""Standard errors by which a figure may differ from its expectation."""


@kernel()
def draw_losses(connection, wire, times, sizes, lost):
    """Draw for each of the `times` [us] whether a segment is lost."""
    for number in range(times.size):
        connection.now = times[number]
        lost[number] = is_dropped(connection, wire, sizes[number])


def losses(path, times, sizes, seed=1):
    """Return whether segments that are sent at `times` [us] are lost in the simulator."""
    connection, wire = new_connection(VOICE, path, td.Stack.linux(), seed)
    lost = np.empty(len(times), bool)
    draw_losses(connection, wire.record, np.asarray(times), np.broadcast_to(sizes, len(times)), lost)
    return lost, int(connection.rtt)


def rounds(times, rtt):
    """Return the round of each segment by the definition: it lasts one RTT from its first segment on."""
    number, until, found = -1, -np.inf, []
    for time in times:
        if time >= until:
            number, until = number + 1, time + rtt
        found.append(number)
    return np.array(found)


def check_rounds(lost, numbers, loss):
    """Check that in each round the rest is lost from the first loss on, and that first losses have the probability."""
    exposed = first = 0
    for place in np.split(np.arange(lost.size), np.flatnonzero(np.diff(numbers)) + 1):
        until = int(np.argmax(lost[place])) if lost[place].any() else place.size
        assert lost[place[until:]].all()
        first += until < place.size
        exposed += min(until + 1, place.size)
    assert first / exposed == pytest.approx(loss, abs=MOST_ERRORS * np.sqrt(loss * (1 - loss) / exposed))


@pytest.mark.parametrize("interval", [500, 7_000, 20_000, 250_000])
def test_the_rest_of_a_round_is_lost_with_its_first_loss(interval):
    random = np.random.default_rng(1)
    # Segments in groups at one instant, as a packet of several segments, and at random distances.
    times = np.repeat(np.cumsum(random.exponential(interval, 30_000).astype(np.int64)), random.integers(1, 4, 30_000))
    path = td.Path(rtt=0.100, loss=0.03, loss_pattern="correlated")
    lost, rtt = losses(path, times, 1448)
    check_rounds(lost, rounds(times, rtt), path.loss)


@pytest.mark.parametrize("flow", [VOICE, FULL, td.Flow(4000, 0.100, write_jitter=0)])
@pytest.mark.parametrize("exact_ties", [False, True])
def test_a_connection_loses_the_rest_of_its_rounds_also_in_recovery(flow, exact_ties):
    path = td.Path(rtt=0.100, loss=0.02, loss_pattern="correlated")
    connection, wire = new_connection(flow, path, td.Stack.linux(), seed=1, exact_ties=exact_ties)
    connection.tracing = 1
    TCP.advance(connection, wire, 5_000)
    events = wire.record.events[: connection.events]
    sent = np.isin(events["kind"], [SENT, SENT_AGAIN])
    # A segment that is lost has its event right behind that of its transmission.
    lost = np.append(events["kind"][1:] == LOST_ON_PATH, False)[sent]
    assert lost.sum() == connection.segments_lost > 100
    check_rounds(lost, rounds(events["time"][sent], connection.rtt), path.loss)


def test_the_share_of_lost_segments_follows_from_the_segments_of_a_round():
    # Six packets are written from the first one of a round until its ACK arrives. If the k-th is lost first, 7 - k are.
    counts = td.simulate(VOICE, td.Path(0.1, 0.001, loss_pattern="correlated"), packets=2_000_000, seed=1).counts
    per_round = sum(0.001 * 0.999 ** (k - 1) * (7 - k) for k in range(1, 7))
    share = counts["segments_lost"] / counts["segments_sent"]
    # Each round is lost or not by itself; the number of lost segments has a mean square of 91 / 6.
    error = MOST_ERRORS * np.sqrt(0.006 * 91 / 6 * counts["segments_sent"] / 6) / counts["segments_sent"]
    assert share == pytest.approx(per_round / 6, abs=error)


def test_a_packet_per_second_has_independent_losses():
    # Probes and retransmissions leave between the writes, more than a round-trip time after any other segment.
    flow, path = td.Flow(174, 1.0, write_jitter=0), td.Path(0.1, 0.05)
    single = td.simulate(flow, path, packets=300_000, seed=1)
    correlated = td.simulate(flow, td.Path(0.1, 0.05, loss_pattern="correlated"), packets=300_000, seed=2)
    assert correlated.mean == pytest.approx(single.mean, rel=0.01)
    assert correlated.quantile(0.99) == pytest.approx(single.quantile(0.99), rel=0.01)


def test_whole_windows_are_lost_more_often_than_with_independent_losses():
    path = td.Path(0.1, 0.02)
    single = td.simulate(VOICE, path, packets=200_000, seed=1)
    correlated = td.simulate(VOICE, td.Path(0.1, 0.02, loss_pattern="correlated"), packets=200_000, seed=1)
    timeouts = [delays.counts["timeouts"] + delays.counts["probes"] for delays in (single, correlated)]
    assert timeouts[1] > 10 * timeouts[0]
    assert correlated.mean > single.mean


@pytest.mark.parametrize("pattern", ["random", "correlated"])
@pytest.mark.parametrize("size", [60, 174, 724, 1448, 4000])
def test_a_queue_limited_in_bytes_loses_segments_by_their_size(pattern, size):
    path = td.Path(rtt=0.100, loss=0.2, loss_pattern=pattern, bottleneck="bytes")
    # One segment per round, so that no rest is lost with it.
    lost, _ = losses(path, np.arange(1, 100_001) * 200_000, size)
    share = 0.2 * min(size / 1448, 1)
    assert lost.mean() == pytest.approx(share, abs=MOST_ERRORS * np.sqrt(share * (1 - share) / lost.size))


def test_a_queue_limited_in_bytes_spares_a_flow_of_small_packets():
    counts = td.simulate(VOICE, td.Path(0.1, 0.05, bottleneck="bytes"), packets=200_000, seed=1).counts
    # A packet has 174 of 1448 bytes; packets that waited share a segment, and are lost a little more often.
    assert 0.05 * 174 / 1448 < counts["segments_lost"] / counts["segments_sent"] < 0.05 * 200 / 1448


@pytest.mark.parametrize(
    ("bursts", "message"),
    [
        ({"loss_burst": 2}, "^loss_burst must be 1 with correlated losses, got 2; loss_pattern 'random' allows bursts"),
        ({"bad_time": 0.1}, "^bad_time must be 0 with correlated losses, got 0.1; loss_pattern 'random' allows bursts"),
    ],
)
def test_correlated_losses_have_no_bursts_of_a_given_length(bursts, message):
    with pytest.raises(ValueError, match=message):
        td.Path(rtt=0.1, loss=0.01, loss_pattern="correlated", **bursts)


# The packet trace: it agrees with the counts, and is bounded


def traced(packets=10_000, loss=0.02, **path):
    return simulate(VOICE, td.Path(0.1, loss, **path), packets=packets, seed=1, trace=True)


def test_the_events_follow_each_other_and_cover_the_stream():
    events = traced().events
    assert set(events["kind"]) <= set(KINDS)
    assert np.all(np.diff(events["time"]) >= 0)
    assert np.all(events["in_flight"] >= 0)
    assert np.all(events["cwnd"] > 0)
    sent = events[events["kind"] == "sent"]
    np.testing.assert_array_equal(sent["start"][1:], sent["end"][:-1])
    acknowledged = events[events["kind"] == "acknowledged"]
    np.testing.assert_array_equal(acknowledged["start"][1:], acknowledged["end"][:-1])
    assert sent["end"][-1] >= 10_000 * VOICE.packet_size


def test_each_loss_is_repaired():
    events = traced(jitter=0.005).events
    lost = events[events["kind"] == "lost"]
    again = events[events["kind"] == "retransmitted"]
    assert lost.size > 100
    for loss in lost[:-5]:
        later = again[again["time"] > loss["time"]]
        assert np.any((later["start"] <= loss["start"]) & (loss["start"] < later["end"]))


def test_undisturbed_time_leaves_the_trace_complete():
    events = traced(packets=5000, loss=0.001).events
    sent = events[events["kind"] == "sent"]
    whole = sent[sent["end"] - sent["start"] == VOICE.packet_size]
    assert whole.size > 4500
    on_time = np.isclose(whole["time"], whole["start"] / VOICE.packet_size * VOICE.interval, atol=1e-9)
    assert on_time.mean() > 0.95


def test_a_trace_is_bounded_and_changes_nothing():
    long = traced(packets=100_000)
    assert long.events.size == MOST_EVENTS
    untraced = simulate(VOICE, td.Path(0.1, 0.02), packets=100_000, seed=1)
    assert untraced.events.size == 0
    assert untraced.mean == pytest.approx(long.mean, rel=1e-12)
    assert untraced.counts == long.counts
