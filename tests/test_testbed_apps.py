import itertools
import re
import shutil
import socket
import subprocess
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from event_loop_driver import MILLISECOND, Stingy, fill, open_descriptors, run_for, run_until
from tcpdelay.testbed import flows
from tcpdelay.testbed.event_loop import READABLE, EventLoop
from tcpdelay.testbed.flows import (
    BULK_WRITE,
    LOSS_STATE,
    NOT_READ,
    READ_SIZE,
    ConstantBitRateSource,
    DatagramSource,
    GreedySource,
    MessageSource,
    PacketLog,
    ReceivingStream,
    SendingStream,
    StreamPackets,
    WebUser,
    adaptive_source,
    bulk_source,
    split_evenly,
    tcp_info,
    unacknowledged_bytes,
    writer_to_stream,
)

# Streams


def test_what_the_send_buffer_does_not_take_waits_and_follows(loop, connect):
    sender, receiver = connect(send_buffer=32768)
    descriptors = open_descriptors()
    told = []
    stream = SendingStream(loop, sender)
    for _ in range(5):
        stream.write(READ_SIZE)
    assert 0 < stream.waiting < 5 * READ_SIZE
    reading = ReceivingStream(loop, receiver, lambda *now: told.append(now), quick_ack=True)
    run_until(loop, lambda: reading.received == 5 * READ_SIZE)
    assert stream.waiting == 0
    assert told == sorted(told)
    assert told[-1][0] == 5 * READ_SIZE
    # With nothing to write nobody waits for room, or the loop would spin.
    before = time.thread_time()
    run_for(loop, 0.1)
    assert time.thread_time() - before < 0.03
    stream.close()
    reading.close()
    assert open_descriptors() == descriptors - 2


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=12),
    st.lists(st.sampled_from([0, 1, 7, 100, 3000, 10**6]), max_size=25),
)
def test_every_byte_is_written_once_however_little_is_taken(writes, amounts):
    loop = EventLoop()
    end, other = socket.socketpair()
    end.setblocking(False)
    other.setblocking(False)
    connection = Stingy(end, amounts)
    stream = SendingStream(loop, connection)
    reading = ReceivingStream(loop, other, lambda received, now: None, quick_ack=False)
    written = 0
    for size in writes:
        stream.write(size)
        written += size
        assert connection.taken + stream.waiting == written
    run_until(loop, lambda: reading.received == written)
    assert (connection.taken, stream.waiting) == (written, 0)
    stream.close()
    reading.close()
    loop.close()


def test_the_end_of_a_stream_is_told_and_ends_the_watch(loop, connect):
    sender, receiver = connect()
    told = []
    reading = ReceivingStream(loop, receiver, lambda received, now: told.append(received), quick_ack=False)
    sender.send(b"abc")
    run_until(loop, lambda: reading.received == 3)
    assert not reading.ended
    sender.close()
    run_until(loop, lambda: reading.ended)
    assert told == [3, 3]
    reading.close()


def test_closing_while_bytes_wait_leaves_no_watch(loop, connect):
    sender, _ = connect(send_buffer=4096)
    stream = SendingStream(loop, sender)
    for _ in range(5):
        stream.write(READ_SIZE)
    assert stream.waiting
    stream.close()
    run_for(loop, 0.01)


@pytest.mark.parametrize("quick_ack", [True, False])
def test_acknowledging_at_once_is_asked_for_after_every_read(loop, connect, quick_ack):
    sender, receiver = connect()
    asked = []

    class Watched:
        def setsockopt(self, *arguments):
            asked.append(arguments)
            receiver.setsockopt(*arguments)

        def __getattr__(self, name):
            return getattr(receiver, name)

    reading = ReceivingStream(loop, Watched(), lambda received, now: None, quick_ack)
    for count in range(1, 4):
        sender.send(b"x")
        run_until(loop, lambda count=count: reading.received == count)
    assert asked == [(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)] * (4 if quick_ack else 0)
    reading.close()


# Packets


@given(st.integers(1, 2000), st.integers(1, 16))
def test_pieces_add_up_and_differ_by_a_byte_at_most(size, pieces):
    split = split_evenly(size, pieces)
    assert (len(split), sum(split)) == (pieces, size)
    assert max(split) - min(split) <= 1


def test_a_log_keeps_the_first_arrival_of_each_packet():
    log = PacketLog()
    assert [log.write(10), log.write(20), log.write(30)] == [0, 1, 2]
    log.arrive(1, 50)
    log.arrive(1, 60)
    log.arrive(0, 70)
    assert (log.written.tolist(), log.read.tolist()) == ([10, 20, 30], [70, 50, NOT_READ])
    assert log.outstanding == 1


class Arrivals:
    """Stands in for a log."""

    def __init__(self):
        self.arrived = []

    def arrive(self, number, when):
        self.arrived.append((number, when))


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 3000)), max_size=30), st.data())
def test_any_reads_give_each_packet_once_and_in_order(written, data):
    numbers, sizes = [number for number, _ in written], [size for _, size in written]
    size = sum(sizes)
    reads = [*sorted(data.draw(st.lists(st.integers(0, size), max_size=40))), size]
    log = Arrivals()
    packets = StreamPackets(log)
    for number, packet_size in written:
        packets.append(number, packet_size)
    for now, received in enumerate(reads):
        packets.on_data(received, now)
    # A packet has arrived with the first read that brings its last byte.
    ends = list(itertools.accumulate(sizes))
    expected = [next(now for now, received in enumerate(reads) if received >= end) for end in ends]
    assert log.arrived == list(zip(numbers, expected, strict=True))


# Sources


def receive(loop, log, receivers):
    """Return what counts the packets of some connections, and the streams that read them."""
    readers = [StreamPackets(log) for _ in receivers]
    streams = [
        ReceivingStream(loop, receiver, reader.on_data, quick_ack=True)
        for receiver, reader in zip(receivers, readers, strict=True)
    ]
    return readers, streams


@pytest.mark.parametrize("intelligent", [True, False])
@pytest.mark.parametrize(("connections", "pieces"), [(1, 1), (1, 4), (3, 2)])
def test_every_packet_of_a_constant_bit_rate_arrives(loop, connect, connections, pieces, intelligent):
    log = PacketLog()
    senders, receivers = zip(*[connect() for _ in range(connections)], strict=True)
    readers, reading = receive(loop, log, receivers)
    streams = [SendingStream(loop, sender) for sender in senders]
    source = ConstantBitRateSource(log, streams, readers, 174, pieces, intelligent)
    ticks = loop.every(MILLISECOND, time.monotonic_ns(), source.tick)
    run_until(loop, lambda: len(log.written) >= 50)
    loop.cancel(ticks)
    run_until(loop, lambda: log.outstanding == 0)
    assert all(read >= written for written, read in zip(log.written, log.read, strict=True))
    assert list(log.written) == sorted(log.written)
    assert sum(stream.received for stream in reading) == 174 * len(log.written)


class FakeStream:
    """Stands in for a stream: remembers what was written."""

    def __init__(self, connection=None, waiting=0):
        self.connection = connection
        self.waiting = waiting
        self.writes = []

    def write(self, size):
        self.writes.append(size)


def source_over(streams, intelligent, pieces=1):
    log = PacketLog()
    readers = [StreamPackets(log) for _ in streams]
    return ConstantBitRateSource(log, streams, readers, 10, pieces, intelligent)


def test_blind_scheduling_goes_round_with_whole_packets_in_pieces():
    streams = [FakeStream() for _ in range(3)]
    source = source_over(streams, intelligent=False, pieces=4)
    source.tick(1)
    source.tick(3)
    assert [stream.writes for stream in streams] == [[3, 3, 2, 2] * 2, [3, 3, 2, 2], [3, 3, 2, 2]]


def test_intelligent_scheduling_takes_the_connection_with_the_least_unacknowledged(connect):
    ends = [connect(send_buffer=4096) for _ in range(3)]
    for sender, _ in ends[:2]:
        # What nobody reads fills the receive buffer and then stays in the send buffer, unacknowledged.
        fill(sender)
    wait_until_settled(sender for sender, _ in ends)
    streams = [FakeStream(sender, waiting) for (sender, _), waiting in zip(ends, (500_000, 0, 0), strict=True)]
    assert unacknowledged_bytes(ends[1][0]) > 0
    source = source_over(streams, intelligent=True)
    source.tick(2)
    assert [len(stream.writes) for stream in streams] == [0, 0, 2]
    streams[2].waiting = unacknowledged_bytes(ends[1][0]) + 1
    source.tick(1)
    assert [len(stream.writes) for stream in streams] == [0, 1, 2]


def test_intelligent_scheduling_avoids_timeouts(connect, monkeypatch):
    streams = [FakeStream(connect()[0], waiting) for waiting in (0, 1000, 2000)]
    in_timeout = {streams[0].connection}

    def state(connection):
        return SimpleNamespace(ca_state=LOSS_STATE if connection in in_timeout else 0)

    monkeypatch.setattr(flows, "tcp_info", state)
    source = source_over(streams, intelligent=True)
    source.tick(1)
    in_timeout.add(streams[1].connection)
    source.tick(1)
    in_timeout.add(streams[2].connection)
    source.tick(1)
    assert [len(stream.writes) for stream in streams] == [1, 1, 1]


def test_messages_are_written_at_their_times_and_read_with_their_last_byte(loop, connect):
    log = PacketLog()
    sender, receiver = connect()
    (reader,), (reading,) = receive(loop, log, [receiver])
    times = [0, 5 * MILLISECOND, 5 * MILLISECOND, 40 * MILLISECOND]
    sizes = [1, 3 * READ_SIZE + 7, 2, 1448]
    messages = iter(zip(times, sizes, [0] * 4, strict=True))
    source = MessageSource(loop, messages, writer_to_stream(log, SendingStream(loop, sender), reader))
    first = time.monotonic_ns() + 10 * MILLISECOND
    source.start(first)
    run_until(loop, lambda: len(log.written) == 4 and log.outstanding == 0)
    late = [written - first - when for written, when in zip(log.written, times, strict=True)]
    assert 0 <= min(late) <= max(late) < 30 * MILLISECOND
    assert reading.received == sum(sizes)
    assert all(read >= written for written, read in zip(log.written, log.read, strict=True))
    assert log.read.tolist() == sorted(log.read)


def test_a_stopped_source_of_messages_writes_no_more(loop, connect):
    log, taken = PacketLog(), []
    sender, receiver = connect()
    (reader,), _ = receive(loop, log, [receiver])

    def messages():
        for number in range(1000):
            taken.append(number)
            yield number * MILLISECOND, 100, 0

    source = MessageSource(loop, messages(), writer_to_stream(log, SendingStream(loop, sender), reader))
    source.start(time.monotonic_ns())
    run_until(loop, lambda: len(log.written) >= 5)
    # One message is taken in advance, not all.
    assert len(taken) == len(log.written) + 1
    source.stop()
    written = len(log.written)
    run_for(loop, 0.02)
    assert len(log.written) == written


def test_datagrams_are_found_by_their_numbers(loop):
    receiver = socket.socket(type=socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    receiver.bind(("127.0.0.1", 0))
    sender = socket.socket(type=socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sender.connect(receiver.getsockname())
    log = PacketLog()
    source = DatagramSource(loop, log, sender, receiver, 174)
    source.tick(3)
    run_until(loop, lambda: log.outstanding == 0)
    assert all(read >= written for written, read in zip(log.written, log.read, strict=True))
    # Lost, overtaken and doubled ones.
    numbers = [log.write(time.monotonic_ns()) for _ in range(3)]
    for number in (numbers[2], numbers[0], numbers[2]):
        sender.send(number.to_bytes(8, "big") + bytes(166))
    run_until(loop, lambda: log.outstanding == 1)
    run_for(loop, 0.01)
    assert [read == NOT_READ for read in log.read] == [False] * 4 + [True, False]
    assert log.read[5] <= log.read[3]
    source.close()


def test_the_smallest_datagram_holds_its_number_alone(loop):
    receiver = socket.socket(type=socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    receiver.bind(("127.0.0.1", 0))
    sender = socket.socket(type=socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sender.connect(receiver.getsockname())
    source = DatagramSource(loop, PacketLog(), sender, receiver, 8)
    source.tick(1)
    assert receiver.recv(100) == bytes(8)
    source.close()


def test_a_greedy_source_fills_the_buffer_and_goes_on_with_room(loop, connect):
    sender, receiver = connect()
    packets = []
    source = GreedySource(loop, sender, 1000, packets.append)
    source.start()
    run_for(loop, 0.3)
    full = len(packets)
    run_for(loop, 0.1)
    assert len(packets) == full > 50
    reading = ReceivingStream(loop, receiver, lambda received, now: None, quick_ack=True)
    run_until(loop, lambda: len(packets) > full + 100)
    source.stop()
    source.stop()
    written = len(packets)
    run_for(loop, 0.05)
    assert len(packets) == written
    assert packets == sorted(packets)
    # Of the last packet perhaps a part.
    assert 1000 * (written - 1) < reading.received <= 1000 * written
    reading.close()


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0, 1, 3, 99, 100]), max_size=30))
def test_a_packet_taken_in_parts_is_one_packet(amounts):
    loop = EventLoop()
    end, other = socket.socketpair()
    end.setblocking(False)
    connection = Stingy(end, amounts)
    noted = []
    source = GreedySource(loop, connection, 100, lambda now: noted.append(connection.taken))
    source.start()
    run_until(loop, lambda: connection.taken >= 1000)
    source.stop()
    # Noted once a first part is taken: before that the packet is none, and after it never again.
    assert [(taken - 1) // 100 for taken in noted] == list(range(len(noted)))
    assert len(noted) == -(-connection.taken // 100)
    end.close()
    other.close()
    loop.close()


@pytest.mark.parametrize("notsent_lowat", [None, 4096])
def test_an_adaptive_source_notes_its_packets(loop, connect, notsent_lowat):
    sender, receiver = connect()
    default = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
    log = PacketLog()
    (reader,), (reading,) = receive(loop, log, [receiver])
    source = adaptive_source(loop, log, reader, sender, 1448, notsent_lowat)
    assert sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == (notsent_lowat or default)
    source.start()
    run_until(loop, lambda: reading.received > 500_000)
    source.stop()
    run_until(loop, lambda: log.outstanding <= 1 and reading.received > 1448 * (len(log.written) - 1))
    arrived = [read for read in log.read if read != NOT_READ]
    assert arrived == sorted(arrived)
    assert len(arrived) == reading.received // 1448
    assert all(read >= written for written, read in zip(log.written, arrived, strict=False))
    reading.close()


def test_little_unsent_data_keeps_what_is_written_fresh(loop, connect):
    """With nobody reading, the send buffer fills; with a limit on what is unsent, little more than that is written."""
    unsent = []
    for notsent_lowat in (4096, None):
        sender, receiver = connect()
        log = PacketLog()
        (reader,), (reading,) = receive(loop, log, [receiver])
        loop.forget(receiver.fileno())
        source = adaptive_source(loop, log, reader, sender, 1448, notsent_lowat)
        source.start()
        run_for(loop, 0.1)
        source.stop()
        unsent.append(tcp_info(sender).notsent_bytes)
        loop.watch(receiver.fileno(), READABLE, lambda _: None)
        reading.close()
    assert unsent[0] < 4096 + 2 * 1448 < 10 * 4096 < unsent[1]


def test_a_bulk_transfer_is_not_measured(loop, connect):
    sender, receiver = connect()
    reading = ReceivingStream(loop, receiver, lambda received, now: None, quick_ack=False)
    source = bulk_source(loop, sender)
    source.start()
    run_until(loop, lambda: reading.received > 20 * BULK_WRITE)
    source.stop()
    reading.close()


# Web users


class FakeWorld:
    """A loop, connections and streams in which a web user's time passes at once."""

    def __init__(self, monkeypatch):
        self.pauses = []
        self.sizes = []
        self.due = []
        monkeypatch.setattr(flows, "SendingStream", lambda loop, connection: self)
        monkeypatch.setattr(flows, "ReceivingStream", self._receiving)
        monkeypatch.setattr(flows.time, "monotonic_ns", lambda: 0)

    def at(self, when, handler):
        self.pauses.append(when / 1e9)
        self.due.append(handler)

    def connect(self, established):
        self.sizes.append(0)
        established(None, None)
        self.on_data(self.sizes[-1], 0)

    def _receiving(self, loop, connection, on_data, quick_ack):
        assert not quick_ack
        self.on_data = on_data
        return self

    def write(self, size):
        assert 0 < size <= READ_SIZE
        self.sizes[-1] += size

    def close(self):
        pass


def fetches(monkeypatch, seed, count):
    with monkeypatch.context() as patched:
        world = FakeWorld(patched)
        user = WebUser(world, world.connect, seed)
        user.think()
        while user.fetched < count:
            world.due.pop(0)()
        user.stop()
        return world.sizes, world.pauses


def test_objects_are_pareto_and_pauses_exponential(monkeypatch):
    sizes, pauses = fetches(monkeypatch, 1, 20_000)
    smallest = 12_000 * 0.2 / 1.2
    assert (min(sizes), max(sizes)) == (pytest.approx(smallest, rel=0.01), 1_000_000)
    for factor in (1.5, 3, 10, 100):
        later = sum(size > factor * smallest for size in sizes) / len(sizes)
        assert later == pytest.approx(factor**-1.2, abs=0.012)
    assert sum(pauses) / len(pauses) == pytest.approx(1.0, abs=0.03)
    assert sum(pause > 2 for pause in pauses) / len(pauses) == pytest.approx(0.1353, abs=0.01)


def test_a_user_follows_from_the_seed(monkeypatch):
    assert fetches(monkeypatch, 5, 20) == fetches(monkeypatch, 5, 20) != fetches(monkeypatch, 6, 20)


def test_a_user_fetches_until_stopped(loop, connect, monkeypatch):
    monkeypatch.setattr(flows, "MEAN_THINK_TIME", 0.001)
    user = WebUser(loop, lambda established: established(*connect()), 3)
    descriptors = open_descriptors()
    user.think()
    run_until(loop, lambda: user.fetched >= 20)
    user.stop()
    fetched = user.fetched
    run_for(loop, 0.05)
    assert user.fetched == fetched
    assert open_descriptors() == descriptors


def test_stopping_gives_up_an_object_under_way(loop, connect):
    connections = []
    user = WebUser(loop, connections.append, 3)
    loop.at(0, user.fetch)
    run_until(loop, lambda: bool(connections))
    sender, receiver = connect()
    connections[0](sender, receiver)
    user.stop()
    assert (sender.fileno(), receiver.fileno()) == (-1, -1)
    run_for(loop, 0.02)
    assert user.fetched == 0


# What the kernel says


def wait_until_settled(connections):
    """Wait until no connection sends or acknowledges any more."""
    connections = list(connections)
    for _ in range(100):
        before = [tcp_info(connection)._replace(rto=0) for connection in connections]
        time.sleep(0.02)
        if before == [tcp_info(connection)._replace(rto=0) for connection in connections]:
            return
    raise AssertionError("the connections do not settle")


@pytest.mark.skipif(shutil.which("ss") is None, reason="compares with the program ss")
def test_tcp_info_agrees_with_ss(connect):
    sender, receiver = connect(send_buffer=65536)
    for _ in range(20):
        sender.send(bytes(1000))
        time.sleep(0.001)
        receiver.recv(1000)
    # A closed window leaves bytes that are sent and bytes that are not.
    fill(sender)
    wait_until_settled([sender])
    # Probes of the closed window change the timer alone.
    for _ in range(10):
        before = tcp_info(sender)
        queued = unacknowledged_bytes(sender)
        command = ["ss", "-tinH", "sport", "=", f":{sender.getsockname()[1]}"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if tcp_info(sender) == before:
            break
    info = before._asdict()

    def number(pattern, absent=0.0):
        found = re.search(rf"(?:^|\s){pattern}", said)
        return float(found.group(1)) if found else absent

    compared = {
        "snd_cwnd": number(r"cwnd:(\d+)"),
        "snd_mss": number(r"mss:(\d+)"),
        "unacked": number(r"unacked:(\d+)"),
        "total_retrans": number(r"retrans:\d+/(\d+)"),
        "notsent_bytes": number(r"notsent:(\d+)"),
        "delivered": number(r"delivered:(\d+)"),
        "data_segs_out": number(r"data_segs_out:(\d+)"),
        "backoff": number(r"backoff:(\d+)"),
        "reordering": number(r"reordering:(\d+)", absent=3),
    }
    assert {name: info[name] for name in compared} == compared
    assert info["rtt"] / 1000 == pytest.approx(number(r"rtt:([\d.]+)"), abs=0.001)
    assert info["rttvar"] / 1000 == pytest.approx(number(r"rtt:[\d.]+/([\d.]+)"), abs=0.001)
    assert info["rto"] / 1000 == pytest.approx(number(r"rto:([\d.]+)"), abs=1)
    assert 8 * info["delivery_rate"] == pytest.approx(number(r"delivery_rate (\d+)bps"), abs=8)
    assert info["notsent_bytes"] > 0
    assert info["delivered"] >= 20
    send_queue = int(said.split()[2] if said.split()[0] == "ESTAB" else said.split()[1])
    assert queued == send_queue > 0


def test_unacknowledged_bytes_are_those_that_the_peer_has_not(connect):
    sender, receiver = connect(send_buffer=65536)
    assert unacknowledged_bytes(sender) == 0
    sent = fill(sender)
    wait_until_settled([sender])
    waiting = unacknowledged_bytes(sender)
    received = 0
    assert waiting > 0
    while received < sent:
        try:
            received += len(receiver.recv(READ_SIZE))
        except BlockingIOError:
            time.sleep(0.001)
    wait_until_settled([sender])
    assert unacknowledged_bytes(sender) == 0
