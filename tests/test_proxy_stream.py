"""The stream of a proxy: it delivers all bytes in order, exactly when the simulator does, and holds back the writer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpdelay import Flow, Path, Stack
from tcpdelay.proxy.stream import LARGEST_SEND_BUFFER, Activity, Delivery, Stream
from tcpdelay.sim.engine import MOST_WRITES, TCP, LiveConnection, new_connection

MSS = Stack.linux().mss
MINUTE = 60_000_000


def drained(stream, now=0):
    """Take everything from a stream as it asks to be asked; return the times with the bytes, and the deliveries."""
    taken, deliveries = [], []
    while stream.wake is not None:
        assert len(taken) < 100_000
        now = max(now, stream.wake)
        data, complete = stream.take(now)
        taken.append((now, data))
        deliveries += complete
        if stream.is_finished(now):
            break
    return taken, deliveries


@pytest.mark.parametrize("congestion_control", ["cubic", "bbr"])
@pytest.mark.parametrize("more", [{}, {"jitter": 0.004}, {"loss_burst": 2.0, "ack_loss": 0.01}])
def test_writes_that_become_known_one_by_one_are_read_when_the_simulator_reads_them(congestion_control, more):
    flow, path = Flow(900, 0.020, write_jitter=0), Path(rtt=0.080, loss=0.03, **more)
    stack, packets = Stack.linux(congestion_control=congestion_control), 2000
    known, wire = new_connection(flow, path, stack, seed=7)
    TCP.advance(known, wire, packets)
    live = LiveConnection(path, stack, seed=7)
    readable = []
    for number in range(packets + 500):
        readable += live.advance(number * 20_000, flow.packet_size).readable
    times, positions = np.array(readable).T
    numbers = np.arange(packets)
    read = times[np.searchsorted(positions, (numbers + 1) * flow.packet_size)]
    assert (read - numbers * 20_000).tolist() == wire.delays_of(0, packets)[0].tolist()


writes = st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 20_000)), min_size=1, max_size=40)
paths = st.builds(
    Path,
    rtt=st.floats(1e-6, 1),
    loss=st.floats(0, 0.4),
    ack_loss=st.floats(0, 0.3),
    jitter=st.sampled_from([0, 0.02]),
    reordering=st.sampled_from([0, 0.1]),
)


@settings(max_examples=60)
@given(writes, paths, st.one_of(st.none(), paths), st.integers(0, 2**64 - 1), st.sampled_from(["cubic", "reno", "bbr"]))
def test_every_byte_arrives_once_in_order_and_not_before_its_time(writes, path, later_path, seed, congestion_control):
    stream = Stream(path, Stack.linux(congestion_control=congestion_control), seed)
    random = np.random.default_rng(seed)
    given_bytes, received, deliveries, now = b"", b"", [], 0
    fastest = min(each.forward_delay for each in (path, later_path) if each is not None)
    for number, (pause, size) in enumerate(writes):
        now += pause
        if later_path is not None and number == len(writes) // 2:
            stream.change_path(later_path, now)
        data, complete = stream.take(now)
        received += data
        deliveries += complete
        if size <= stream.free:
            written = random.bytes(size)
            given_bytes += written
            stream.write(written, now)
        assert stream.held == len(given_bytes) - len(received)
    stream.end(now)
    taken, last = drained(stream, now)
    deliveries += last
    assert received + b"".join(data for _, data in taken) == given_bytes
    assert stream.is_finished(taken[-1][0])
    assert stream.held == 0
    assert sum(delivery.size for delivery in deliveries) == len(given_bytes)
    dues = [delivery.due for delivery in deliveries]
    assert dues == sorted(dues)
    assert all(delivery.due >= delivery.written + round(fastest * 1e6) for delivery in deliveries)


def test_a_loss_holds_back_what_follows_it():
    stream = Stream(Path(rtt=0.100, loss=0.01), Stack.linux(), seed=3)
    deliveries = []
    for number in range(5000):
        stream.write(bytes(100), number * 20_000)
        deliveries += stream.take(number * 20_000)[1]
    due = np.array([delivery.due for delivery in deliveries])
    held = np.array([delivery.due - delivery.written for delivery in deliveries]) > 50_000
    # Each of the 50 expected losses holds back its own write and about eight that follow.
    assert 250 < held.sum() < 1000
    # A repair takes a round trip and longer, in which five more writes come: they become readable together.
    assert np.unique(due[held], return_counts=True)[1].max() > 5


def test_the_end_arrives_after_the_delay_of_the_path_and_behind_all_data():
    stream = Stream(Path(rtt=0.100, loss=0.0, one_way_delay=0.030), Stack.linux(), seed=1)
    assert stream.wake is None
    stream.end(1_000_000)
    assert stream.wake == 1_030_000
    assert not stream.is_finished(1_029_999)
    assert stream.is_finished(1_030_000)
    stream = Stream(Path(rtt=0.100, loss=0.0), Stack.linux(), seed=1)
    stream.write(bytes(20 * MSS), 0)
    stream.end(0)
    taken, _ = drained(stream)
    # Ten segments, and ten more when the first are acknowledged.
    assert [(time, len(data)) for time, data in taken if data] == [(50_000, 10 * MSS), (150_001, 10 * MSS)]
    assert stream.is_finished(taken[-1][0])


def test_the_send_buffer_grows_with_the_window_up_to_that_of_the_kernel():
    stream = Stream(Path(rtt=0.100, loss=0.0), Stack.linux(), seed=1)
    # tcp_sndbuf_expand: twice the initial window of ten segments.
    assert stream.free == 20 * MSS
    now, spaces = 0, set()
    while now < MINUTE // 6:
        if stream.free:
            stream.write(bytes(stream.free), now)
        now = stream.wake
        stream.take(now)
        spaces.add(stream.held)
    assert 1_000_000 < max(spaces) <= LARGEST_SEND_BUFFER


def test_a_full_send_buffer_takes_bytes_again_when_a_third_is_free():
    stream = Stream(Path(rtt=0.100, loss=0.0), Stack.linux(), seed=1, send_buffer=30 * MSS)
    stream.write(bytes(29 * MSS), 0)
    assert stream.free == MSS
    stream.write(bytes(MSS), 0)
    assert stream.free == 0
    # ACKs of the first window come from 100 ms on, one after the other.
    spaces = {now: stream.take(now) and stream.free for now in range(100_000, 100_020)}
    opened = min(now for now, free in spaces.items() if free)
    assert spaces[opened] == 10 * MSS
    assert spaces[opened - 1] == 0


def test_notsent_lowat_bounds_what_waits_unsent():
    stream = Stream(Path(rtt=0.100, loss=0.0), Stack.linux(), seed=1, notsent_lowat=4 * MSS)
    assert stream.free == 4 * MSS
    for _ in range(3):
        stream.write(bytes(4 * MSS), 0)
    # Ten segments are in flight, two wait.
    assert stream.free == 2 * MSS
    stream.write(bytes(2 * MSS), 0)
    assert stream.free == 0
    stream.take(99_999)
    assert stream.free == 0
    stream.take(100_010)
    assert stream.free == 4 * MSS


def test_no_more_writes_wait_than_the_simulator_keeps():
    stream = Stream(Path(rtt=60.0, loss=0.0), Stack.linux(), seed=1, send_buffer=10**9)
    count = 0
    while stream.free:
        stream.write(b"x", 0)
        count += 1
    assert MOST_WRITES - 3 <= count < MOST_WRITES
    assert b"".join(data for _, data in drained(stream)[0]) == b"x" * count


def test_a_shorter_path_lets_nothing_overtake():
    stream = Stream(Path(rtt=0.200, loss=0.0), Stack.linux(), seed=1)
    stream.write(b"first", 0)
    stream.change_path(Path(rtt=0.020, loss=0.0), 50_000)
    stream.write(b"second", 60_000)
    stream.write(b"third", 200_000)
    assert drained(stream)[1] == [
        Delivery(0, 100_000, 5),
        Delivery(60_000, 100_000, 6),
        Delivery(200_000, 210_000, 5),
    ]


def test_the_summary_has_the_delays_of_all_writes():
    activity = Activity()
    for number in range(100):
        late = 1_000 if number % 10 == 0 else 0
        delivery = Delivery(number * 20_000, number * 20_000 + 40_000, 174)
        activity.deliver(1, "to target", [delivery], delivery.due + late, 0.0)
    found = activity.summary({"to target": 0.040, "to client": 0.040})
    ahead = found["directions"]["to target"]
    assert found["directions"]["to client"] == {"writes": 0, "bytes": 0, "pauses": 0}
    assert (ahead["writes"], ahead["bytes"]) == (100, 17_400)
    assert ahead["mean"] == pytest.approx(0.0401)
    assert (ahead["quantiles"]["0.5"], ahead["quantiles"]["0.95"]) == (0.04, 0.041)
    assert ahead["late"] == {"mean": 0.0001, "0.95": 0.001, "largest": 0.001}
    assert activity.delays["to target"].mean_interval == pytest.approx(0.020)


def test_losses_end_with_the_path_that_loses_the_rest_of_a_round():
    path = Path(rtt=0.020, loss=0.5, loss_pattern="correlated")
    for seed in range(20):
        stream = Stream(path, Stack.linux(), seed)
        stream.write(bytes(1000), 0)
        stream.change_path(Path(rtt=0.020, loss=0.0), 1000)
        # One retransmission timeout of at least 200 ms, or none.
        while stream.held and stream.wake is not None and stream.wake < 2_000_000:
            stream.take(stream.wake)
        assert stream.held == 0
