"""MIN_BUF and TCP_NOTSENT_LOWAT: what the send buffer takes, step by step, and what that does to delay and rate."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from flow_counts import FAST
from tcpdelay.sim.literature import classic
from tcpdelay.sim.network import linux
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.linux import MinBuf
from tcpdelay.sim.network.simulation import prepare, simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate
from tcpdelay.sim.network.stacks import Classic

LINUX = td.Stack.linux("reno")
MSS = LINUX.mss


class Sender:
    """One bulk source, advanced event by event."""

    def __init__(self, stack, loss=0.0, seed=0, **options):
        source = Bulk(path=SharedPath(0.05, loss=loss), stack=stack, **options)
        self.network = prepare([source], FAST, seed, 0.0, 1000.0)
        self.flow, self.wire = self.network.flows[0], self.network.wires[0]
        self.is_classic = isinstance(stack, Classic)
        self.connection = self.network.connections[0]
        if not self.is_classic:
            # The receiver acknowledges each segment at once, also segments of the same instant.
            self.connection.quick = 1000

    def step(self):
        step = classic.step if self.is_classic else linux.step
        step(self.flow, self.connection, self.wire, self.network.link[0], self.network.samples[0])

    @property
    def held(self):
        """Packets in the send buffer."""
        c = self.connection
        return int(c.written - (c.acknowledged_to if self.is_classic else c.snd_una)) / int(c.mss)

    @property
    def window(self):
        return int(self.connection.cwnd if self.is_classic else self.connection.snd_cwnd)

    @property
    def sacked_out(self):
        if not self.is_classic:
            return int(self.connection.sacked_out)
        flags = self.wire.segments["state"]
        outstanding = range(self.connection.snd_una, self.connection.snd_max)
        return sum(int(flags[number % flags.size]) & classic.SACKED for number in outstanding)


@pytest.mark.parametrize(("multiple", "extra"), [(1, 0), (1, 1), (1, 3), (2, 0)])
def test_the_classic_buffer_follows_the_window(multiple, extra):
    # Two segments at first, three after an ACK, four after two: in slow start the window grows by one with each.
    sender = Sender(Classic(initial_window=2), min_buf=MinBuf(multiple, extra))
    for number, window in enumerate(range(2, 6)):
        sender.step()
        assert sender.connection.snd_una == number
        assert sender.held == multiple * window + min(extra, window)
        # Nothing waits that the window would let go.
        assert sender.connection.snd_nxt - number == number + 2


@pytest.mark.parametrize(("multiple", "extra"), [(1, 0), (1, 3), (1, 20), (2, 0)])
def test_the_linux_buffer_follows_the_window(multiple, extra):
    sender = Sender(LINUX, min_buf=MinBuf(multiple, extra))
    for number, window in enumerate((10, 11)):
        sender.step()
        assert (sender.connection.snd_una, sender.connection.snd_cwnd) == (number * MSS, window)
        assert sender.held == multiple * window + min(extra, window)


@pytest.mark.parametrize(
    ("limit", "unsent"),
    # Half of the limit is when `poll` falls silent: 724 B are less than a packet, 8192 B less than six, 65 536 than 46.
    [(1448, 1), (16_384, 6), (131_072, 46)],
)
def test_poll_lets_linux_write_while_half_of_the_limit_is_unsent(limit, unsent):
    sender = Sender(LINUX, notsent_lowat=limit, send_buffer=1 << 20)
    sender.step()
    assert sender.connection.packets_out == 10
    assert sender.held == 10 + unsent
    sender.step()
    assert sender.connection.packets_out == 11
    assert sender.held == 11 + unsent


@pytest.mark.parametrize(("segments", "held"), [(10, 7), (30, 21), (31, 21), (32, 22)])
def test_poll_lets_linux_write_while_a_third_of_its_buffer_is_free(segments, held):
    # sk_stream_is_writeable: what is free must be half of what is held. The packet that passes two thirds is the last.
    sender = Sender(LINUX, send_buffer=segments * MSS)
    sender.step()
    assert sender.held == held
    sender.step()
    # One packet more has been acknowledged.
    assert sender.connection.snd_una == MSS
    assert sender.held == held


def test_linux_makes_its_buffer_twice_the_window():
    sender = Sender(LINUX)
    sender.step()
    assert (sender.window, sender.held) == (10, 14)
    sender.step()
    # Twice 11, of which 14 are two thirds nearly.
    assert (sender.window, sender.held) == (11, 15)


@pytest.mark.parametrize("stack", [Classic(recovery="sack", initial_window=10, receiver_window=100), LINUX])
def test_what_sacks_report_makes_room(stack):
    sender = Sender(stack, min_buf=MinBuf(1, 0))
    sender.flow.until_loss = 1
    sender.step()
    assert (sender.held, sender.flow.segments_lost) == (10, 1)
    sender.step()
    # One packet has arrived out of order. It has left the network, so one more may be written.
    assert sender.connection.snd_una == 0
    assert sender.held == 11
    sender.step()
    assert sender.held == 12


@settings(max_examples=10)
@given(
    stack=st.sampled_from([Classic(recovery="sack", receiver_window=200), LINUX]),
    multiple=st.integers(1, 3),
    extra=st.integers(0, 8),
    loss=st.sampled_from([0.01, 0.1]),
    seed=st.integers(0, 100),
)
def test_the_buffer_is_full_at_any_time_and_never_beyond_its_limit(stack, multiple, extra, loss, seed):
    min_buf = MinBuf(multiple, extra)
    sender = Sender(stack, loss, seed, min_buf=min_buf)
    before = 0
    for _ in range(250):
        sender.step()
        limit = min_buf.limit(sender.window, sender.sacked_out)
        # A window that has shrunk leaves what it had admitted.
        assert limit <= sender.held <= max(limit, before)
        before = sender.held


@pytest.mark.parametrize("stack", [Classic(initial_window=2), LINUX])
def test_a_source_writes_when_its_process_has_been_scheduled(stack):
    sender = Sender(stack, min_buf=MinBuf(1, 0), wake_up=0.005)
    sender.step()
    admitted = sender.held
    while sender.connection.snd_una == 0:
        sender.step()
    acknowledged_at = sender.connection.now
    assert sender.held < admitted
    while sender.connection.now < acknowledged_at + 5000:
        sender.step()
    assert sender.connection.now == acknowledged_at + 5000
    assert sender.held == MinBuf(1, 0).limit(sender.window)


@pytest.mark.parametrize(("multiple", "wait"), [(1, 0.020), (2, 0.0)])
def test_a_late_process_costs_rate_only_where_the_buffer_holds_one_window(multiple, wait):
    stack = Classic(receiver_window=10)
    source = Bulk(path=SharedPath(0.05), stack=stack, min_buf=MinBuf(multiple, 0), wake_up=0.020)
    flow = simulate_network([source], FAST, duration=60, warm_up=10).flows[0]
    # A full window is sent per round trip, and after a wait if no data is in the buffer when the ACKs come.
    assert flow.throughput == pytest.approx(8 * 10 * stack.mss / (0.1 + wait), rel=0.01)


@pytest.mark.parametrize("multiple", [1, 2])
def test_a_write_larger_than_the_window_does_not_block_a_bulk_source(multiple):
    sender = Sender(LINUX, min_buf=MinBuf(multiple, 0), packet_size=30 * MSS)
    sender.step()
    # The window is ten segments: one segment has room, and the rest of the write follows.
    assert (sender.window, sender.held) == (10, 30)


@pytest.mark.parametrize("pieces", [3, 9])
def test_a_message_larger_than_the_window_does_not_block_a_constant_rate(pieces):
    stack = Classic(recovery="sack", mss=1448, initial_window=1)
    source = ConstantRate(
        flow=td.Flow(1448, 0.2), path=SharedPath(0.05), stack=stack, pieces=pieces, min_buf=MinBuf(1, 0)
    )
    carried = simulate_network([source], Bottleneck(1e9, 1000), duration=20).flows[0]
    assert carried.delivered > 0.9 * carried.offered


def simulated(stack, loss=0.01, **options):
    source = Bulk(path=SharedPath(0.05, loss=loss), stack=stack, **options)
    return simulate_network([source], Bottleneck(1e9, 60_000), duration=300, warm_up=5, seed=2).flows[0]


@pytest.mark.parametrize("stack", [Classic(recovery="sack", receiver_window=200), LINUX])
def test_the_delay_grows_with_the_buffer(stack):
    results = [simulated(stack, min_buf=MinBuf(*sizes)) for sizes in ((1, 0), (1, 3), (2, 0), (3, 0))]
    results.append(simulated(stack, send_buffer=1 << 20))
    means = [flow.delays.mean for flow in results]
    assert means == sorted(means)
    # A window beyond the first one waits for a round trip.
    assert means[2] - means[0] == pytest.approx(0.1, rel=0.25)
    # Behind a window alone a packet waits only for the repair of others.
    assert results[0].sender_delay < 0.012
    rates = [flow.throughput for flow in results]
    assert min(rates) > 0.8 * max(rates)


def test_fresher_data_with_a_lower_limit_of_what_is_unsent():
    results = [simulated(LINUX, notsent_lowat=limit) for limit in (1448, 16_384, 131_072)]
    means = [flow.delays.mean for flow in results]
    assert means == sorted(means)
    assert results[0].throughput > 0.9 * results[2].throughput


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MinBuf(0, 0), "multiple must"),
        (lambda: MinBuf(1, -1), "extra must"),
        (lambda: Bulk(path=SharedPath(0.05), stack=LINUX, min_buf=(1, 0)), r"min_buf must be a MinBuf, got \(1, 0\)"),
        (lambda: Bulk(path=SharedPath(0.05), stack=LINUX, notsent_lowat=0), "notsent_lowat must"),
        (lambda: Bulk(path=SharedPath(0.05), stack=LINUX, wake_up=2.0), "wake_up must"),
        (lambda: Bulk(path=SharedPath(0.05), stack=Classic(), notsent_lowat=1448), "notsent_lowat must"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("stack", [td.Stack.linux(), Classic(recovery="sack", mss=1448)])
def test_a_constant_rate_gives_up_what_the_buffer_has_no_room_for(stack):
    def carried(**buffer):
        source = ConstantRate(flow=td.Flow(1448, 0.020), path=SharedPath(0.05, loss=0.02), stack=stack, **buffer)
        return simulate_network([source], Bottleneck(1e9, 1000), duration=400, warm_up=10, seed=1).flows[0]

    plain, tight, roomy = carried(), carried(min_buf=MinBuf(1, 0)), carried(min_buf=MinBuf(2, 0))
    for flow in (tight, roomy):
        assert flow.offered == flow.delivered + flow.lost + flow.unfinished
    # What is written at all fits the window, so it leaves at once but in a recovery.
    assert tight.sender_delay < 0.1 * roomy.sender_delay < plain.sender_delay
    assert plain.lost == 0 < roomy.lost < tight.lost
