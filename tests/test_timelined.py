"""Time-lined TCP: packet scripts worked out by hand from the published rules, against Reno, and invariants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.models.simulator.records import NEVER, RING
from tcpdelay.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.network.literature import classic
from tcpdelay.network.literature.timelined import PRESUMED_LOST
from tcpdelay.network.preparation import prepare
from tcpdelay.network.records import FLOW
from tcpdelay.network.result import SlicedDelays
from tcpdelay.network.simulation import simulate_network
from tcpdelay.network.sources import Bulk, ConstantRate, Sections, Transfers
from tcpdelay.network.stacks import Classic, TimeLined

FAST = Bottleneck(1e12, 60_000)
PATH = SharedPath(0.05)
TEN = 10 * 1000
"""Bytes of a section of ten packets."""


class Script:
    """A sender whose acknowledgements are written by hand: section k of ten packets is written after k seconds."""

    def __init__(self, window=10, deadline=2.5, rto_min=60.0):
        stack = TimeLined(
            mss=1000, receiver_window=window, initial_window=window, deadline=deadline, rto_min=rto_min, tick=0.001
        )
        source = Sections(path=PATH, stack=stack, size=TEN, interval=1.0)
        self.network = prepare([source], FAST, 0, 0.0, 50.0)
        self.flow, self.wire = self.network.flows[0], self.network.wires[0]
        self.sender = self.network.connections[0]

    def _step(self):
        """Let one event happen, and return the messages of the segments that leave, without their answers."""
        sender = self.sender
        before = sender.first_ack
        classic.step(self.flow, sender, self.wire, self.network.link[0], self.network.samples[0])
        answered = range(max(before, sender.first_ack), sender.next_ack)
        numbers = [self.wire.acknowledgements[place % RING].segment for place in answered]
        sender.next_ack = sender.first_ack
        return [int(self.wire.segments[number % RING].start) for number in numbers]

    def wait(self, time):
        """Return what leaves up to and at a time [s] if no acknowledgement comes."""
        left = []
        while classic.next_time(self.flow, self.sender, self.wire) <= round(time * 1e6):
            left += self._step()
        return left

    def acknowledge(self, time, *numbers):
        """Return what leaves when acknowledgements come at a time [s] of all segments before these."""
        assert self.wait(time - 1e-6) == []
        left = []
        for number in numbers:
            place = self.sender.first_ack % RING
            self.sender.next_ack = self.sender.first_ack + 1
            self.wire.acknowledgements[place].arrival = round(time * 1e6)
            self.wire.acknowledgements[place].acknowledged = number
            left += self._step()
        return left

    def two_sections(self):
        """Send and acknowledge 0 to 9, and send 10 to 19; 20 to 29 are written, and no deadline has passed."""
        assert self.wait(0.0) == list(range(10))
        assert self.acknowledge(0.1, *range(1, 11)) == []
        assert self.wait(2.2) == list(range(10, 20))
        return self


# Sections 10-19 and 20-29 have the deadlines 3.5 and 4.5 s.


def test_acknowledgements_of_obsolete_data_clock_new_data():
    script = Script().two_sections()
    assert script.acknowledge(3.3, 11, 12, 13) == [20, 21, 22]
    # The window moves, but what is under way still fills it.
    assert script.wait(3.55) == []
    assert script.sender.first_live == 20
    assert script.acknowledge(3.6, *range(14, 21)) == list(range(23, 30))
    assert script.sender.cwnd == 10
    # From 20 on all is live; section 3 follows.
    assert script.acknowledge(3.7, 21, 22) == [30, 31]


def test_a_loss_before_the_deadline_found_after_it_is_answered_with_live_data():
    script = Script().two_sections()
    assert script.acknowledge(3.3, 11, 12, 13) == [20, 21, 22]
    # 13 is lost; 14 and 15 are duplicates, and with 16 the deadline has passed.
    assert script.acknowledge(3.4, 13, 13) == []
    assert script.wait(3.55) == []
    assert script.acknowledge(3.6, 13) == [20]
    # Ten were outstanding, so the window is five; three segments have left the network.
    assert (script.sender.ssthresh, script.sender.cwnd) == (5, 8)
    # 17 to 22, sent before the deadline, are duplicates too; the receiver's window ends at 23.
    assert script.acknowledge(3.7, *[13] * 6) == []
    # The second 20 says that 20 is next; the receiver has up to 22.
    assert script.acknowledge(3.8, 23) == [23, 24, 25, 26, 27]
    assert script.sender.cwnd == 5


def test_the_same_loss_before_the_deadline_is_repaired():
    script = Script().two_sections()
    assert script.acknowledge(3.3, 11, 12, 13) == [20, 21, 22]
    assert script.acknowledge(3.4, 13, 13, 13) == [13]
    assert (script.sender.ssthresh, script.sender.cwnd) == (5, 8)


def test_a_loss_found_when_live_data_has_been_clocked_out_after_the_deadline():
    script = Script().two_sections()
    assert script.wait(3.55) == []
    assert script.acknowledge(3.6, 11, 12, 13) == [20, 21, 22]
    assert script.acknowledge(3.61, 13, 13) == []
    assert script.acknowledge(3.62, 13) == [20]
    assert script.acknowledge(3.63, 13, 13, 13) == []
    # The first 20 lets the receiver skip 13 to 19, and ends the recovery: 21 and 22 of five are under way.
    assert script.acknowledge(3.7, 21) == [23, 24, 25]
    assert script.sender.cwnd == 5
    assert script.acknowledge(3.71, 22, 23) == [26, 27]
    # The second 20 is a duplicate, and alone means nothing.
    assert script.acknowledge(3.72, 23) == []


def test_a_loss_found_before_any_live_data_was_sent_is_answered_with_the_first():
    script = Script().two_sections()
    assert script.wait(3.55) == []
    assert script.acknowledge(3.6, 10, 10, 10) == [20]
    assert script.flow.retransmissions == script.sender.segments_retransmitted == 0
    assert (script.sender.ssthresh, script.sender.cwnd, script.sender.snd_nxt) == (5, 8, 21)
    assert script.acknowledge(3.61, *[10] * 6) == []
    assert script.acknowledge(3.7, 21) == [21, 22, 23, 24, 25]


def test_a_loss_that_a_seq_update_hides_goes_unseen():
    script = Script().two_sections()
    assert script.wait(3.55) == []
    assert script.acknowledge(3.6, *range(11, 19)) == list(range(20, 28))
    # 18 is lost, 19 the only duplicate; then comes 20, which skips 18.
    assert script.acknowledge(3.61, 18) == []
    assert script.acknowledge(3.7, 21) == [28, 29, 30]
    assert script.sender.cwnd == 10
    assert script.sender.recoveries == 0


def test_what_was_not_sent_before_the_deadline_is_never_sent():
    script = Script(window=4)
    assert script.wait(0.0) == [0, 1, 2, 3]
    assert script.acknowledge(2.4, 1, 2) == [4, 5]
    # The deadline of section 0: of its packets 2 to 5 are under way, and 6 to 9 will not be sent.
    assert script.wait(2.55) == []
    assert (script.sender.skipped, script.sender.first_live) == (4, 6)
    assert script.acknowledge(2.6, 3, 4) == [10, 11]
    # Section 1 ends before its others are sent: of the window, 4, 5, 10 and 11 are under way.
    assert script.wait(3.55) == []
    assert script.sender.skipped == 4 + 8
    assert script.flow.lost == 4
    assert script.acknowledge(3.6, 5, 6, 7, 8) == [20, 21, 22, 23]
    # The harness lets the receiver have all at once: it has skipped both, and read the others.
    assert script.flow.lost == 4 + 8
    assert script.flow.delivered == 12


def test_a_timeout_after_the_deadline_begins_with_live_data():
    script = Script(rto_min=2.8).two_sections()
    assert script.wait(3.6) == []
    assert script.wait(4.0) == [20]
    assert (script.sender.cwnd, script.sender.ssthresh, script.sender.timeouts) == (1, 5, 1)
    # Whatever comes late of the obsolete section is no duplicate of anything.
    assert script.acknowledge(4.1, 11, 12, 13, 14) == []
    assert script.sender.dupacks == 0
    assert script.acknowledge(4.2, 21) == [21, 22]


def test_a_timeout_with_nothing_live_waits_for_the_next_section():
    script = Script(deadline=0.5, rto_min=0.6)
    assert script.wait(0.0) == list(range(10))
    # The handshake has not timed the path: the first timeout is three seconds.
    assert script.wait(0.9) == []
    assert script.sender.first_live == 10
    assert script.wait(2.9) == []
    # The timeout finds nothing to send: sections 1 and 2 have expired unsent.
    assert script.wait(3.0) == [30]
    assert script.sender.cwnd == 1


def test_what_a_timeout_has_written_off_does_not_fill_the_window():
    script = Script(rto_min=2.0).two_sections()
    assert script.wait(3.2) == [10]
    assert script.acknowledge(3.4, 11) == [11, 12]
    # At the deadline 11 and 12 are under way again; 13 to 19 count as lost.
    assert script.wait(3.55) == []
    assert (script.sender.snd_nxt, script.sender.written_off) == (20, 7)
    assert script.acknowledge(3.6, 12) == [20, 21]
    # Had 13 to 19 arrived in the first place, their acknowledgement would come now.
    assert script.acknowledge(3.7, 20) == [22, 23]
    assert script.sender.written_off == 0


def test_the_lifetime_timer_follows_the_oldest_section():
    script = Script().two_sections()
    assert script.sender.expires_at == 2_500_000
    for deadline in (3_500_000, 4_500_000):
        script.wait(deadline / 1e6 - 0.5)
        assert script.sender.expires_at == deadline
    short = Script(deadline=0.3)
    short.wait(0.5)
    assert short.sender.expires_at == NEVER
    short.wait(1.0)
    assert short.sender.expires_at == 1_300_000


def delays_after_a_loss(deadline, lost=50, packets=100):
    """Return how many packets had which delay [ms], the flow and the connection, with one packet lost."""
    stack = TimeLined(deadline=deadline, receiver_window=60, initial_window=10)
    source = ConstantRate(flow=td.Flow(200, 0.020), path=PATH, stack=stack, stop=packets * 0.020)
    network = prepare([source], FAST, 0, 0.0, source.stop)
    network.flows[0].until_loss = lost + 1
    delays = SlicedDelays()
    network.advance(100.0, delays)
    delays.end_slice()
    values, counts = delays.histogram(0)
    return dict(zip((values / 1e3).tolist(), counts.tolist(), strict=True)), network


def test_the_receiver_skips_a_lost_packet_when_its_deadline_has_passed():
    # The last packets are 55 and 56: further ones would have to wait for the halved window.
    delays, network = delays_after_a_loss(0.1, packets=57)
    # Packet 50 expires when 55 is written, which arrives 50 ms later, and lets 51 to 54 be read with it.
    assert delays == {50.0: 52, 70.0: 1, 90.0: 1, 110.0: 1, 130.0: 1}
    assert network.flows[0].lost == 1
    # The third duplicate has come, 10 ms after what skips the packet has reached the receiver: 54 is sent once more.
    sender = network.connections[0]
    assert (sender.recoveries, sender.segments_retransmitted, sender.timeouts) == (1, 1, 0)


def test_the_receiver_waits_for_a_packet_that_is_repaired_in_time():
    delays, network = delays_after_a_loss(0.25)
    assert network.flows[0].lost == 0
    # As Reno: three packets later, a round-trip time, and half of one.
    assert max(delays) == 3 * 20 + 100 + 50


def test_with_a_deadline_of_two_packets_no_loss_is_ever_seen():
    delays, network = delays_after_a_loss(0.035)
    # 52 is sent after the deadline: 51 is read with it.
    assert delays == {50.0: 98, 70.0: 1}
    assert network.flows[0].lost == 1
    assert network.connections[0].recoveries == 0


parameters = {
    "mss": st.just(1000),
    "receiver_window": st.integers(2, 40),
    "initial_window": st.integers(1, 2),
    "limited_transmit": st.booleans(),
    "ack_delay": st.sampled_from([0.0, 0.2]),
    "tick": st.sampled_from([0.01, 0.5]),
    "rto_min": st.sampled_from([0.2, 1.0]),
}
paths = st.builds(
    SharedPath,
    access_delay=st.floats(0.0, 0.1),
    exit_delay=st.floats(0.0, 0.1),
    loss=st.sampled_from([0.0, 0.02, 0.1]),
    loss_burst=st.sampled_from([1.0, 3.0]),
    return_jitter=st.sampled_from([0.0, 0.01]),
)
applications = st.one_of(
    st.tuples(
        st.just(ConstantRate),
        st.fixed_dictionaries({"flow": st.builds(td.Flow, st.integers(40, 1000), st.floats(0.005, 0.2))}),
    ),
    st.tuples(
        st.just(Sections), st.fixed_dictionaries({"size": st.integers(1, 200_000), "interval": st.floats(0.05, 3.0)})
    ),
)
described = st.tuples(applications, paths, st.fixed_dictionaries(parameters), st.floats(0.0, 3.0))
links = st.builds(Bottleneck, rate=st.sampled_from([2e5, 2e6]), capacity=st.integers(2, 60))


def build(description, kind, **more):
    (application, settings_of_it), path, transport, start = description
    return application(path=path, stack=kind(recovery="reno", **transport, **more), start=start, **settings_of_it)


def departures(sources, link, seed):
    """Return every packet's departure from the link, and all counts of the flows."""
    network = prepare(sources, link, seed, 1.0, 20.0)
    delays = SlicedDelays()
    network.advance(60.0, delays)
    # Where the generators are in memory tells nothing.
    counts = [network.flows[name].copy() for name in FLOW.names if name not in ("next_double", "random_state")]
    return [network.link.departures.copy(), *delays.current_slice, *counts]


@settings(deadline=None, max_examples=25)
@given(st.lists(described, min_size=1, max_size=4), links, st.integers(0, 1000))
def test_with_deadlines_never_reached_it_is_reno_packet_by_packet(descriptions, link, seed):
    plain = departures([build(one, Classic) for one in descriptions], link, seed)
    lined = departures([build(one, TimeLined, deadline=1e5) for one in descriptions], link, seed)
    for one, other in zip(plain, lined, strict=True):
        np.testing.assert_array_equal(one, other)


deadlines = st.sampled_from([0.001, 0.02, 0.1, 0.3, 1.0, 4.0])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(described, deadlines), min_size=1, max_size=4), links, st.integers(0, 1000))
def test_every_message_counts_once_and_none_is_read_long_after_its_deadline(descriptions, link, seed):
    sources = [build(one, TimeLined, deadline=deadline) for one, deadline in descriptions]
    result = simulate_network(sources, link, duration=15.0, warm_up=2.0, seed=seed)
    longest_queue = link.capacity * 8 * (1000 + 40) / link.rate
    for source, flow in zip(sources, result.flows, strict=True):
        assert flow.offered == flow.delivered + flow.lost + flow.unfinished
        assert min(flow.lost, flow.unfinished) >= 0
        if flow.delays is not None:
            # What is read was live when the segment was sent whose arrival releases it.
            latest = source.stack.deadline + source.path.there + longest_queue
            assert flow.delays.values.max() <= latest + 3e-6
            assert flow.delays.values.min() >= source.path.there - 1e-6


@settings(deadline=None, max_examples=15)
@given(described, deadlines, st.integers(0, 100))
def test_the_window_holds_and_obsolete_data_stays_obsolete(description, deadline, seed):
    network = prepare([build(description, TimeLined, deadline=deadline)], Bottleneck(2e6, 20), seed, 0.0, 6.0)
    flow, wire, sender = network.flows[0], network.wires[0], network.connections[0]
    for _ in range(3000):
        if classic.next_time(flow, sender, wire) == NEVER:
            break
        before = sender.next_ack
        network.samples[0].used = 0
        classic.step(flow, sender, wire, network.link[0], network.samples[0])
        for place in range(before, sender.next_ack):
            assert wire.acknowledgements[place % RING].segment >= sender.first_live
        assert sender.first_live <= sender.snd_nxt <= sender.snd_max
        assert sender.snd_max <= sender.written
        assert sender.skipped + sender.written == flow.packets_written
        written_off = [
            number
            for number in range(sender.snd_una, sender.snd_nxt)
            if wire.segments["state"][number % RING] & PRESUMED_LOST
        ]
        assert sender.written_off == len(written_off)
        # One more may be the answer to a loss.
        assert sender.snd_nxt - sender.snd_una - sender.written_off <= sender.receiver_window + 1
        assert flow.packets_read <= flow.packets_written


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TimeLined(recovery="sack"), "recovery must be one of 'reno', got 'sack'"),
        (lambda: TimeLined(deadline=0.0), "deadline must lie between 0.001 and 100000 s, got 0"),
        (lambda: Bulk(path=PATH, stack=TimeLined()), "stack of Bulk must be Linux or Dctcp or Classic or Scp"),
        (lambda: Transfers(path=PATH, stack=TimeLined()), "stack of Transfers must be Linux or Dctcp or Classic"),
        (lambda: Sections(path=PATH, stack=td.Stack.linux(), size=1000, interval=1.0), "stack of Sections must be"),
        (lambda: Sections(path=PATH, stack=TimeLined(), size=0, interval=1.0), "size must lie between 1"),
        (lambda: Sections(path=PATH, stack=TimeLined(), size=1000, interval=0.0), "interval must lie between 0.001"),
    ],
)
def test_what_cannot_be_simulated_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
