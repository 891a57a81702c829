"""Time-lined TCP: packet scripts worked out by hand from the published rules, against Reno, and invariants."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from flow_counts import FAST, PATH, assert_counted, counted_delays, histograms, shared_paths, with_one_loss
from tcpdelay.sim.literature import classic
from tcpdelay.sim.literature.timelined import PRESUMED_LOST
from tcpdelay.sim.network.bottleneck import Bottleneck
from tcpdelay.sim.network.result import SlicedDelays
from tcpdelay.sim.network.simulation import prepare, simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate, Sections, Transfers
from tcpdelay.sim.network.stacks import Classic, TimeLined
from tcpdelay.sim.network.transport import FLOW
from tcpdelay.sim.records import RING
from tcpdelay.sim.tcp.constants import NEVER

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
        """Let one event happen, and return the packets of 1000 B in the segments that leave, without their answers."""
        sender = self.sender
        before = sender.first_ack
        classic.step(self.flow, sender, self.wire, self.network.link[0], self.network.samples[0])
        answered = range(max(before, sender.first_ack), sender.next_ack)
        numbers = [self.wire.acknowledgements[place % RING].segment for place in answered]
        sender.next_ack = sender.first_ack
        return [int(self.wire.segments[number % RING].start) // 1000 for number in numbers]

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
    assert (script.sender.first_live, script.sender.live_from) == (6, TEN)
    assert script.acknowledge(2.6, 3, 4) == [10, 11]
    # Section 1 ends before its others are sent: of the window, 4, 5, 10 and 11 are under way.
    assert script.wait(3.55) == []
    assert (script.sender.first_live, script.sender.live_from) == (8, 2 * TEN)
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


def test_the_lifetime_timer_follows_the_oldest_data_in_the_window():
    script = Script()
    script.wait(0.0)
    assert script.sender.expires_at == 2_500_000
    script.acknowledge(0.1, *range(1, 11))
    assert script.sender.expires_at == NEVER
    # Sections 1, 2 and 3.
    script.wait(3.4)
    assert script.sender.expires_at == 3_500_000
    script.wait(3.6)
    assert script.sender.expires_at == 4_500_000
    short = Script(deadline=0.3)
    short.wait(0.5)
    assert short.sender.expires_at == NEVER
    short.wait(1.0)
    assert short.sender.expires_at == 1_300_000


def test_the_example_of_the_thesis():
    """Sections 3.2.2 and 3.2.4: 10 to 14 are sent when their deadline passes, and the window is 10."""
    script = Script()
    assert script.wait(0.0) == list(range(10))
    assert script.acknowledge(0.1, *range(1, 6)) == []
    assert script.wait(3.55) == list(range(10, 15))
    assert script.acknowledge(3.6, 10) == list(range(20, 25))
    # The ACK of number 12 is the one that asks for 13.
    assert script.acknowledge(3.7, 13) == [25, 26, 27]


def test_a_loss_of_obsolete_data_is_answered_when_tcp_would_resend_it():
    """Figure 3.3: with a window of 5, packet 10 is lost, and 20 is sent in its place."""
    script = Script(window=5)
    assert script.wait(0.0) == list(range(5))
    assert script.acknowledge(0.1, *range(1, 11)) == list(range(5, 10))
    assert script.wait(3.55) == list(range(10, 15))
    assert script.acknowledge(3.6, 10, 10) == []
    assert script.acknowledge(3.61, 10) == [20]
    assert script.sender.recoveries == 1


def delays_after_a_loss(deadline, packets=100):
    """Return how many packets had which delay [ms], and the network, with one packet lost."""
    stack = TimeLined(deadline=deadline, receiver_window=60, initial_window=10)
    network = with_one_loss(stack, packets=packets)
    return counted_delays(network, 100.0), network


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


def media(frames, deadlines, window, lost=NEVER, **settings):
    """Return the result and the network of frames (time, bytes, kind) over a path with a round-trip time of 100 ms."""
    times, sizes, kinds = zip(*frames, strict=True)
    stack = TimeLined(mss=1000, receiver_window=window, initial_window=min(window, 10), rto_min=60.0, **settings)
    source = ConstantRate(flow=td.Trace(times, sizes, labels=kinds), path=PATH, stack=stack, deadlines=deadlines)
    network = prepare([source], FAST, 0, 0.0, 10.0)
    network.flows[0].until_loss = lost
    ((values, _),) = histograms(network, 20.0)
    return values / 1e6, network.flows[0]


def test_frames_in_the_order_of_storage_have_deadlines_in_the_order_of_display():
    """Section 3.3.1: B1 has the deadline of I1 and P1, although it is sent after I2."""
    frames = [(0, 2000, "I1"), (0, 2000, "P1"), (0, 2000, "I2"), (0, 1000, "B1"), (0, 1000, "P2")]
    deadlines = {"I1": 0.25, "P1": 0.25, "B1": 0.25, "I2": 1.0, "P2": 1.0}
    # A segment per 0.1 s: two of I1, one of P1 until 0.25 s, two of I2 from 0.3 s on, and P2, without B1.
    delays, flow = media(frames, deadlines, window=1)
    np.testing.assert_allclose(delays, [0.15, 0.45, 0.55])
    kinds = ["B1", "I1", "I2", "P1", "P2"]
    assert [int(flow.lost_by_kind[kinds.index(kind)]) for kind in kinds] == [1, 0, 0, 1, 0]
    assert [int(flow.gap_bytes_by_kind[kinds.index(kind)]) for kind in kinds] == [1000, 0, 0, 1000, 0]
    # With four segments per round trip, all is sent in time.
    _, flow = media(frames, deadlines, window=4)
    assert (flow.delivered, flow.lost, flow.gap_bytes) == (5, 0, 0)


def test_a_gap_is_what_has_not_arrived_of_a_section():
    # The third of five segments is lost; the deadline passes before the loss is detected.
    _, flow = media([(0, 5000, "frame"), (1, 1000, "frame")], {}, window=10, lost=3, deadline=0.05)
    assert (flow.lost, flow.delivered, flow.gap_bytes) == (1, 1, 1000)
    # As five messages of one section, four are read: 3 and 4 when the next section skips 2.
    stack = TimeLined(mss=1000, initial_window=10, deadline=0.05, rto_min=60.0)
    network = prepare([Sections(path=PATH, stack=stack, size=5000, interval=1.0, stop=1.5)], FAST, 0, 0.0, 1.5)
    network.flows[0].until_loss = 3
    assert counted_delays(network, 20.0) == {50: 2 + 5, 1050: 2}
    assert (network.flows[0].lost, network.flows[0].gap_bytes) == (1, 1000)


def test_gaps_are_reported_by_kind():
    frames = td.Trace([0.0, 1.0, 2.0, 3.0], [5000, 3000, 2000, 1000], labels=["key frame", "other", "other", "other"])
    stack = TimeLined(mss=1000, receiver_window=1, initial_window=1, deadline=0.25)
    source = ConstantRate(flow=frames, path=PATH, stack=stack, deadlines={"other": 0.05})
    flow = simulate_network([source], FAST, duration=10.0).flows[0]
    # A segment per 0.1 s: three of the key frame, and one of each other frame, which is all of the last.
    assert {kind: part.gap_bytes for kind, part in flow.by_kind.items()} == {"key frame": 2000, "other": 2000 + 1000}
    assert (flow.lost, flow.gap_bytes) == (3, 5000)


parameters = {
    "mss": st.just(1000),
    "receiver_window": st.integers(2, 40),
    "initial_window": st.integers(1, 2),
    "limited_transmit": st.booleans(),
    "ack_delay": st.sampled_from([0.0, 0.2]),
    "tick": st.sampled_from([0.01, 0.5]),
    "rto_min": st.sampled_from([0.2, 1.0]),
}
applications = st.one_of(
    st.tuples(
        st.just(ConstantRate),
        st.fixed_dictionaries({"flow": st.builds(td.Flow, st.integers(40, 1000), st.floats(0.005, 0.2))}),
    ),
    st.tuples(
        st.just(Sections), st.fixed_dictionaries({"size": st.integers(1, 200_000), "interval": st.floats(0.05, 3.0)})
    ),
)
described = st.tuples(applications, shared_paths, st.fixed_dictionaries(parameters), st.floats(0.0, 3.0))
links = st.builds(Bottleneck, rate=st.sampled_from([2e5, 2e6]), capacity=st.integers(2, 60))


def build(description, kind, header=None, **more):
    (application, settings_of_it), path, transport, start = description
    stack = kind(recovery="reno", **transport, **more)
    return application(path=path, stack=stack, start=start, header=header, **settings_of_it)


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
    # Only the option with `seq_update` would differ.
    lined = departures([build(one, TimeLined, header=40, deadline=1e5) for one in descriptions], link, seed)
    for one, other in zip(plain, lined, strict=True):
        np.testing.assert_array_equal(one, other)


deadlines = st.sampled_from([0.001, 0.02, 0.1, 0.3, 1.0, 4.0])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(described, deadlines), min_size=1, max_size=4), links, st.integers(0, 1000))
def test_every_message_counts_once_and_without_losses_none_is_read_long_after_its_deadline(descriptions, link, seed):
    sources = [build(one, TimeLined, deadline=deadline) for one, deadline in descriptions]
    result = simulate_network(sources, link, duration=15.0, warm_up=2.0, seed=seed)
    longest_queue = link.capacity * 8 * (1000 + 48) / link.rate
    for source, flow in zip(sources, result.flows, strict=True):
        assert_counted(flow, source.path)
        if flow.delays is not None:
            # What is sent last is live. Data behind a gap waits for the packet that skips the gap.
            latest = source.stack.deadline + source.path.there + longest_queue
            if flow.segments_lost == flow.segments_dropped == 0:
                assert flow.delays.values.max() <= latest + 3e-6


def check_steps(source, seed):
    """Let events happen one by one: obsolete data is never sent, and what is outstanding fits the window."""
    network = prepare([source], Bottleneck(2e6, 20), seed, 0.0, 6.0)
    flow, wire, sender = network.flows[0], network.wires[0], network.connections[0]
    for _ in range(3000):
        if classic.next_time(flow, sender, wire) == NEVER:
            break
        before = sender.next_ack
        network.samples[0].used = 0
        classic.step(flow, sender, wire, network.link[0], network.samples[0])
        for place in range(before, sender.next_ack):
            number = wire.acknowledgements[place % RING].segment
            assert number >= sender.first_live
            assert sender.obsolete_at[number % RING] > sender.now
        assert sender.first_live <= sender.snd_nxt <= sender.snd_max
        assert sender.read_to <= sender.assembled <= sender.written
        written_off = [
            number
            for number in range(sender.snd_una, sender.snd_nxt)
            if wire.segments["state"][number % RING] & PRESUMED_LOST
        ]
        assert sender.written_off == len(written_off)
        # One more may be the answer to a loss.
        assert sender.snd_nxt - sender.snd_una - sender.written_off <= sender.receiver_window + 1
        assert flow.packets_read <= flow.packets_written
    return flow, sender


@settings(deadline=None, max_examples=15)
@given(described, deadlines, st.integers(0, 100))
def test_the_window_holds_and_obsolete_data_stays_obsolete(description, deadline, seed):
    flow, sender = check_steps(build(description, TimeLined, deadline=deadline), seed)
    assert sender.written == flow.packets_written * flow.message


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 9000), st.sampled_from("abc")), min_size=1, max_size=12),
    st.fixed_dictionaries(dict.fromkeys("abc", deadlines)),
    shared_paths,
    st.fixed_dictionaries(parameters),
    st.integers(0, 100),
)
def test_frames_with_deadlines_in_any_order_are_not_sent_when_obsolete(frames, lifetimes, path, transport, seed):
    sizes, kinds = zip(*frames, strict=True)
    trace = td.Trace(0.02 * np.arange(len(frames)), sizes, 0.02 * len(frames), kinds)
    own = {kind: lifetimes[kind] for kind in set(kinds)}
    check_steps(ConstantRate(flow=trace, path=path, stack=TimeLined(**transport), deadlines=own), seed)


def call(stack, deadlines):
    return ConstantRate(flow=td.Flow(200, 0.020), path=PATH, stack=stack, deadlines=deadlines)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TimeLined(recovery="sack"), "recovery must be one of 'reno', got 'sack'"),
        (lambda: TimeLined(deadline=0.0), "deadline must lie between 0.001 and 100000 s, got 0"),
        (lambda: call(Classic(), {"message": 1.0}), "stack must be TimeLined with deadlines, got Classic"),
        (lambda: call(TimeLined(), {"frame": 1.0}), "deadlines must have only the kinds message, got 'frame'"),
        (
            lambda: call(TimeLined(), {"message": 0}),
            r"deadlines\['message'\] must lie between 0.001 and 100000 s, got 0",
        ),
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


def test_the_measures_of_the_thesis_have_its_definitions(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "validation" / "papers")
    paper = importlib.import_module("timelined")
    rates = np.array([4.0, 2.0, 1.0, 8.0, 5.0, 4.0])
    # (4 + 1 + 5) / (2 + 8 + 4), and 8 / 1.
    assert paper.friendliness_ratio(rates) == pytest.approx(10 / 14)
    assert paper.separation_index(rates) == 8
    # Ranked 1 2 4 4 5 8: odd ranks 1 + 4 + 5, even ranks 2 + 4 + 8; halves 1 + 2 + 4 and 4 + 5 + 8.
    best, worst = paper.friendliness_of_tcp(rates)
    assert best == pytest.approx(14 / 10)
    assert worst == pytest.approx(17 / 7)
