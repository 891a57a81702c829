"""Losses of a drop-tail queue in the simulator: the rest of a round is lost, a queue in bytes spares small packets."""

import numpy as np
import pytest

import tcpdelay as td
from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.engine import advance, new_connection
from tcpdelay.sim.path import is_dropped
from tcpdelay.sim.tcp.window import LOST_ON_PATH, SENT, SENT_AGAIN

VOICE, FULL = td.Flow(174, 0.020, write_jitter=0), td.Flow(1448, 0.020, write_jitter=0)
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
    advance(connection, wire, 5_000)
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
