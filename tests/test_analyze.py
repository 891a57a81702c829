import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from pcap_files import ACK, MILLISECOND, PSH, START, SYN, Connection, Packet, pcap
from tcpdelay.capture.flow_capture import read_capture
from tcpdelay.capture.pcap.analysis import analyze_captures
from tcpdelay.capture.pcap.round_trips import LowerHull
from tcpdelay.capture.pcap.stretches import unwrapped
from tcpdelay.capture.pcap.trace import NEVER, Acknowledgements, DataSegments, coverage

KEPT = Path(__file__).parents[1] / "validation" / "pcap"


@pytest.fixture
def analyze(tmp_path):
    """Write the packets of one or two captures into files and analyse these."""

    def analyze(*captures, **options):
        files = [tmp_path / f"{number}.pcap" for number in range(len(captures))]
        for file, packets in zip(files, captures, strict=True):
            file.write_bytes(pcap(packets))
        return analyze_captures(files, **options)

    return analyze


def test_an_undisturbed_flow_at_the_sender(analyze):
    analysis = analyze(Connection().sender)
    assert (analysis.sender, analysis.receiver) == ("10.0.0.1:4000", "10.0.0.2:5001")
    assert analysis.captured_at == ("sender",)
    assert (analysis.payload, analysis.messages, analysis.unfinished) == (200 * 174, 200, 0)
    # The receiver takes a microsecond to answer.
    assert analysis.rtt == analysis.rtt_base == pytest.approx(0.050001, abs=1e-9)
    assert (analysis.sent, analysis.lost, analysis.retransmissions) == (200, 0, 0)
    assert analysis.constant_rate
    assert analysis.flow().packet_size == 174
    assert analysis.flow().interval == 0.020
    assert (analysis.mss, analysis.mss_known, analysis.window_scale) == (1448, True, (7, 7))
    assert (analysis.sack, analysis.timestamps, analysis.delayed_ack) == (True, True, False)
    assert analysis.smallest_receive_window == 500 * 128
    # 50 ms after it was sent, a segment has been followed by two more.
    assert analysis.largest_flight == 3 * 174
    assert analysis.delay_kind == "write to read"
    assert analysis.delays.quantile([0.01, 0.99]) == pytest.approx([0.025, 0.025], abs=1e-6)


LOST = frozenset({20, 57, 58, 130})


@pytest.mark.parametrize("ends", [("sender", "receiver"), ("sender",), ("receiver",)])
def test_the_messages_of_a_connection_are_a_source(analyze, ends):
    connection = Connection(lost=LOST)
    trace = analyze(*(getattr(connection, end) for end in ends)).trace(period=4.0)
    assert trace.period == 4.0
    np.testing.assert_allclose(trace.times, 0.020 * np.arange(200), atol=1e-6)
    assert set(trace.sizes) == {174}
    assert trace.mean_bitrate == pytest.approx(69_600)


def test_a_trace_holds_so_many_messages(analyze, monkeypatch):
    monkeypatch.setattr("tcpdelay.capture.pcap.measurement.MOST_TRACED", 199)
    with pytest.raises(ValueError, match=r"^a trace holds 1 to 1048576 messages, and the connection carried 200$"):
        analyze(Connection().sender).trace()


@pytest.mark.parametrize("stamps", [True, False])
@pytest.mark.parametrize("ends", [("sender", "receiver"), ("sender",), ("receiver",)])
def test_losses_are_counted_and_delays_measured_from_either_end(analyze, ends, stamps):
    connection = Connection(lost=LOST, stamps=stamps)
    analysis = analyze(*(getattr(connection, end) for end in ends))
    assert analysis.captured_at == ends
    assert (analysis.lost, analysis.sent) == (4, 204)
    assert analysis.retransmissions == 4
    assert analysis.spurious_retransmissions == 0
    assert analysis.delay_samples == pytest.approx(connection.delays(), abs=2e-6)
    assert analysis.estimate().rtt == pytest.approx(0.050, rel=0.01)
    assert analysis.estimate().loss == 4 / 204
    if "receiver" in ends:
        assert (analysis.reordered, analysis.duplicates) == (0, 0)


def test_the_order_of_the_files_does_not_matter(analyze):
    connection = Connection(lost=LOST)
    one, other = analyze(connection.sender, connection.receiver), analyze(connection.receiver, connection.sender)
    assert one.captured_at == other.captured_at == ("sender", "receiver")
    assert (one.delay_samples == other.delay_samples).all()
    with pytest.raises(ValueError, match="captured at the same place"):
        analyze(connection.sender, connection.sender)


def test_needless_repetitions_are_told_by_reports_of_duplicates(analyze):
    connection = Connection(lost=frozenset({20}), needless=frozenset({50, 90}), stamps=False)
    at_sender = analyze(connection.sender)
    assert (at_sender.retransmissions, at_sender.spurious_retransmissions, at_sender.lost) == (3, 2, 1)
    at_receiver = analyze(connection.receiver)
    assert (at_receiver.duplicates, at_receiver.lost, at_receiver.sent) == (2, 1, 203)
    both = analyze(connection.sender, connection.receiver)
    assert (both.lost, both.sent) == (1, 203)


def test_needless_repetitions_are_told_by_old_timestamps(analyze):
    # The acknowledgement of the original is on its way when the segment is sent again; no D-SACK is reported.
    connection = Connection(needless=frozenset({50}), dsack=False)
    early = START + 50 * 20 * MILLISECOND + 30 * MILLISECOND
    packets = [
        replace(packet, time=early, tsval=early // MILLISECOND)
        if packet.forward and packet.seq == 1001 + 50 * 174 and packet.time > early
        else packet
        for packet in connection.sender
    ]
    analysis = analyze(sorted(packets, key=lambda packet: packet.time))
    assert (analysis.retransmissions, analysis.spurious_retransmissions, analysis.lost) == (1, 1, 0)
    without = [replace(packet, tsval=None) for packet in packets]
    analysis = analyze(sorted(without, key=lambda packet: packet.time))
    assert (analysis.retransmissions, analysis.spurious_retransmissions, analysis.lost) == (1, 0, 1)


def acknowledged_and_sent_again(lost, again, acknowledged_by="ack", stamps=False):
    """Return the sender's packets of a connection that sends some messages again after they are acknowledged.

    The capture is at the sender, but the acknowledgements are lost behind it. Duplicates are not reported.
    """
    packets = list(Connection(lost=lost, dsack=False, stamps=stamps).sender)
    for k in again:
        first = next(packet for packet in packets if packet.forward and packet.seq == 1001 + k * 174)
        if acknowledged_by == "SACK":
            # The acknowledgements hold back a lower message, which arrives late.
            packets = [
                replace(packet, ack=1001 + (k - 1) * 174, sack=((1001 + k * 174, 1001 + (k + 1) * 174),))
                if not packet.forward
                and first.time < packet.time < first.time + 100 * MILLISECOND
                and packet.ack > 1001
                else packet
                for packet in packets
            ]
        time = first.time + 90 * MILLISECOND
        packets.append(replace(first, time=time, ip_id=30000 + k, tsval=time // MILLISECOND if stamps else None))
    return sorted(packets, key=lambda packet: packet.time)


@pytest.mark.parametrize("stamps", [True, False])
@pytest.mark.parametrize("acknowledged_by", ["ack", "SACK"])
def test_data_that_were_acknowledged_before_are_sent_again_needlessly(analyze, acknowledged_by, stamps):
    again = range(40, 190, 30)
    analysis = analyze(acknowledged_and_sent_again(frozenset({20}), again, acknowledged_by, stamps))
    assert analysis.captured_at == ("sender",)
    assert (analysis.retransmissions, analysis.spurious_retransmissions) == (1 + len(again), len(again))
    assert (analysis.lost, analysis.sent) == (1, 201 + len(again))


def test_a_repetition_before_the_acknowledgement_is_a_loss(analyze):
    analysis = analyze(Connection(lost=LOST, dsack=False, stamps=False).sender)
    assert (analysis.retransmissions, analysis.spurious_retransmissions, analysis.lost) == (4, 0, 4)


def test_a_capture_at_the_receiver_that_lacks_the_first_arrival_shows_the_duplicate(analyze):
    connection = Connection(needless=frozenset({50}), dsack=False)
    first, again = [
        k for k, packet in enumerate(connection.receiver) if packet.forward and packet.seq == 1001 + 50 * 174
    ]
    analysis = analyze([packet for k, packet in enumerate(connection.receiver) if k != first])
    assert again > first
    assert (analysis.duplicates, analysis.lost) == (1, 0)


def needless_by_hand():
    """Return 60 messages of 100 B; every fourth one is sent again 220 ms after its acknowledgement passed."""
    packets = []
    for k in range(60):
        start = START + k * 500 * MILLISECOND
        data = Packet(start, True, 1 + 100 * k, 1, 100, ACK | PSH, ip_id=2 * k + 1)
        answer = Packet(start + 40 * MILLISECOND, False, 1, 101 + 100 * k, ip_id=2 * k + 1)
        packets += [data, answer]
        if k % 4 == 3:
            late = 260 * MILLISECOND
            packets += [replace(data, time=start + late, ip_id=2 * k + 2)]
            packets += [replace(answer, time=answer.time + late, ip_id=2 * k + 2)]
    return packets


def test_a_path_without_loss_whose_acknowledgements_are_lost(analyze):
    analysis = analyze(needless_by_hand())
    assert (analysis.lost, analysis.retransmissions, analysis.spurious_retransmissions) == (0, 15, 15)
    assert analysis.rtt == pytest.approx(0.040)


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_a_byte_beyond_a_closed_window_is_no_transmission(analyze, end):
    # A BSD sender probes a closed window with a byte of new data, which the receiver drops.
    connection = Connection(stamps=False)
    packets = list(getattr(connection, end))
    for k in range(40, 190, 10):
        (place,) = [n for n, each in enumerate(packets) if each.forward and each.seq == 1001 + k * 174]
        data = packets[place]
        closed = Packet(data.time - 3 * MILLISECOND, False, 900, data.seq, window=0, ip_id=20000 + k)
        probe = replace(data, time=data.time - 2 * MILLISECOND, length=1, ip_id=30000 + k)
        refused = replace(closed, time=data.time - 2 * MILLISECOND + 1000, ip_id=21000 + k)
        opened = replace(closed, time=data.time - MILLISECOND, window=500, ip_id=22000 + k)
        packets += [closed, probe, refused, opened]
    analysis = analyze(sorted(packets, key=lambda packet: packet.time))
    assert (analysis.lost, analysis.retransmissions) == (0, 0)


def test_a_coarse_clock_is_named(analyze):
    # A clock of 10 ms, as of an old kernel; the round-trip time is 0.6 ms.
    step = 10 * MILLISECOND
    packets = Connection(rtt=600_000, interval=7 * MILLISECOND).sender
    coarse = [replace(packet, time=packet.time // step * step) for packet in packets]
    expected = (
        "the clock of the capture advances in steps of 10 ms: round-trip times and delays are known only to within"
    )
    assert any(note.startswith(expected) for note in analyze(coarse).notes)
    for fine in (packets, [replace(packet, time=packet.time // 1000 * 1000) for packet in packets]):
        assert not any("clock of the capture" in note for note in analyze(fine).notes)


@pytest.mark.parametrize("stamps", [True, False])
def test_reordering_is_no_loss(analyze, stamps):
    connection = Connection(overtaken=frozenset({30, 31, 100}), lost=frozenset({60}), stamps=stamps)
    analysis = analyze(connection.receiver)
    # 31 and 100: no later one overtakes 30.
    assert (analysis.reordered, analysis.lost) == (2, 1)
    both = analyze(connection.sender, connection.receiver)
    assert (both.reordered, both.lost, both.retransmissions) == (2, 1, 1)
    assert both.delay_samples == pytest.approx(connection.delays(), abs=2e-6)


@pytest.mark.parametrize("stamps", [True, False])
def test_sequence_numbers_wrap(analyze, stamps):
    connection = Connection(isn=2**32 - 5000, lost=LOST, stamps=stamps)
    analysis = analyze(connection.sender, connection.receiver)
    assert (analysis.lost, analysis.payload) == (4, 200 * 174)
    assert analysis.delay_samples == pytest.approx(connection.delays(), abs=2e-6)


@given(st.lists(st.integers(-(2**31) + 1, 2**31 - 1), max_size=30), st.integers(0, 2**32 - 1))
def test_unwrapping_undoes_the_wrap(steps, first):
    numbers = np.cumsum([first, *steps])
    assert (unwrapped((numbers % 2**32).astype(np.uint32)) == numbers).all()


@pytest.mark.parametrize("offset", [0.0, 1234.5678, -0.75])
@pytest.mark.parametrize("skew", [0.0, 30e-6, -80e-6])
def test_offset_and_skew_of_the_clocks_are_taken_out(analyze, offset, skew):
    connection = Connection(count=1500, lost=LOST, offset=round(offset * 1e9), skew=skew)
    analysis = analyze(connection.sender, connection.receiver)
    # The offset holds where the fit begins, a tenth of a second before the first data.
    assert analysis.clocks.offset == pytest.approx(offset, abs=30e-6)
    assert analysis.clocks.skew == pytest.approx(skew, abs=1e-8)
    assert analysis.clocks.residual < 1e-6
    assert analysis.delay_samples == pytest.approx(connection.delays(), abs=5e-6)
    assert analysis.lost == 4
    if offset == 0 and skew == 0:
        same = analyze(connection.sender, connection.receiver, same_clock=True)
        assert same.clocks.offset == same.clocks.skew == 0
        assert same.delay_samples == pytest.approx(connection.delays(), abs=1e-6)


@pytest.mark.parametrize(
    ("same_clock", "early"), [(False, r"290 ms .* a clock was set"), (True, r"590 ms .* one clock")]
)
def test_a_packet_that_arrives_before_it_is_sent_is_refused(analyze, same_clock, early):
    # One packet of a path of 10 ms has a time stamp of the receiver that is 600 ms early.
    connection = Connection(count=200, rtt=20 * MILLISECOND)
    last = max(k for k, packet in enumerate(connection.receiver) if packet.length)
    damaged = replace(connection.receiver[last], time=connection.receiver[last].time - 600 * MILLISECOND)
    arrived = sorted([*connection.receiver[:last], damaged, *connection.receiver[last + 1 :]], key=lambda p: p.time)
    with pytest.raises(ValueError, match=rf"arrives? {early}"):
        analyze(connection.sender, arrived, same_clock=same_clock)


points = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=2, max_size=40)


@given(points)
def test_the_lower_line_is_the_solution_of_the_linear_program(points):
    x, y = np.array(sorted(points), np.float64).T
    hull = LowerHull()
    hull.add(x, y)
    height, slope = hull.line()
    assert (height + slope * x <= y + 1e-6).all()
    if x[0] < x[-1]:
        below = np.column_stack([np.ones_like(x), x])
        best = linprog([-x.size, -x.sum()], below, y, bounds=[(None, None)] * 2)
        assert x.size * height + x.sum() * slope == pytest.approx(-best.fun, rel=1e-6, abs=1e-4)


segments = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=25)


def data_segments(segments):
    start, length = np.array(segments, np.int64).T
    size = len(segments)
    none = np.zeros(size, np.uint32)
    off = np.zeros(size, np.bool_)
    return DataSegments(10 * np.arange(size), start, start + length, none, none, np.zeros(size, np.int64), off, off)


NO_ACKS = Acknowledgements(
    *(np.empty(0, np.int64),) * 2, *(np.empty((0, 2), np.int64),) * 2, *(np.empty(0, np.int64),) * 7
)


@given(segments)
def test_coverage_agrees_with_a_byte_by_byte_receiver(segments):
    pieces = coverage(data_segments(segments), NO_ACKS, "capture")
    begin, end = min(start for start, _ in segments), max(start + length for start, length in segments)
    arrived = {}
    for number, (start, length) in enumerate(segments):
        for byte in range(start, start + length):
            arrived.setdefault(byte, 10 * number)
    for position in range(begin + 1, end + 1):
        place = pieces.holding(np.array([position]))
        assert pieces.time[place] == arrived.get(position - 1, NEVER)
        assert pieces.complete[place] == max(arrived.get(byte, NEVER) for byte in range(begin, position))


def test_segments_left_whole_by_offloading_are_counted_as_packets(analyze):
    mss, rtt = 1448, 40 * MILLISECOND
    sender, receiver = [], []
    handshake = Connection(count=0, rtt=rtt)
    for k in range(60):
        time, seq = START + k * 100 * MILLISECOND, 1001 + 4 * mss * k
        stamp = {"tsval": time // MILLISECOND}
        sender.append(Packet(time, True, seq, 900, 4 * mss, ACK | PSH, **stamp))
        # Of every tenth burst the second packet is lost; of the others the first two arrive as one.
        parts = [(0, 1), (2, 4)] if k % 10 == 5 else [(0, 2), (2, 3), (3, 4)]
        for low, high in parts:
            receiver.append(Packet(time + rtt // 2, True, seq + low * mss, 900, (high - low) * mss, **stamp))
        if k % 10 == 5:
            again = time + 50 * MILLISECOND
            packet = Packet(again, True, seq + mss, 900, mss, tsval=again // MILLISECOND)
            sender.append(packet)
            receiver.append(replace(packet, time=again + rtt // 2))
        end = START + k * 100 * MILLISECOND + (70 if k % 10 == 5 else 20) * MILLISECOND
        ack = Packet(end, False, 900, seq + 4 * mss, tsval=end // MILLISECOND)
        receiver.append(ack)
        sender.append(replace(ack, time=end + rtt // 2))
    analysis = analyze(handshake.sender + sender, handshake.receiver + receiver)
    assert (analysis.sent, analysis.lost) == (60 * 4 + 6, 6)
    assert analysis.packet_size == 4 * mss
    assert analysis.interval == pytest.approx(0.1, abs=1e-9)
    assert analysis.delays.quantile([0.5, 0.95]) == pytest.approx([0.020, 0.070], abs=1e-6)


def test_without_a_handshake_the_scale_of_the_windows_is_not_known(analyze):
    connection = Connection(handshake=False, lost=LOST)
    analysis = analyze(connection.sender)
    assert analysis.window_scale is None
    assert math.isnan(analysis.smallest_receive_window)
    assert not analysis.mss_known
    assert (analysis.lost, analysis.sent, analysis.sack) == (4, 204, True)
    assert analysis.delay_samples == pytest.approx(connection.delays(), abs=2e-6)


def test_captures_that_ran_for_different_times_share_what_both_saw(analyze):
    connection = Connection(lost=LOST)
    begin, end = START + 1000 * MILLISECOND, START + 3000 * MILLISECOND
    part = [packet for packet in connection.receiver if begin <= packet.time <= end]
    analysis = analyze(connection.sender, part)
    # Message 130 and the times outside 1 to 3 s: 100 messages and the two lost in there, sent again.
    assert (analysis.lost, analysis.sent) == (3, 103)


def test_bytes_that_a_capture_lacks_are_filled_in_by_their_acknowledgement(analyze):
    connection = Connection()
    thin = [packet for packet in connection.receiver if not (packet.forward and packet.seq == 1001 + 80 * 174)]
    analysis = analyze(thin)
    assert any("lacks 174 bytes that were acknowledged" in note for note in analysis.notes)
    assert analysis.delay_samples == pytest.approx(connection.delays(), abs=2e-6)


def test_delayed_acknowledgements_do_not_lengthen_the_round_trip_time(analyze):
    connection = Connection(count=400)
    # Of every three acknowledgements the first waits, the second is saved, and the third stands for two segments.
    kept = [packet for packet in connection.sender if packet.forward or packet.flags & SYN]
    for number, packet in enumerate(ack for ack in connection.sender if not (ack.forward or ack.flags & SYN)):
        if number % 3 != 1:
            kept.append(replace(packet, time=packet.time + (15 * MILLISECOND if number % 3 == 0 else 0)))
    analysis = analyze(sorted(kept, key=lambda packet: packet.time))
    assert analysis.delayed_ack
    assert analysis.several_acknowledged == pytest.approx(0.5, abs=0.01)
    assert analysis.rtt == pytest.approx(0.050, rel=0.01)


def test_messages_of_no_fixed_interval_are_measured_from_their_transmission(analyze):
    connection = Connection()
    shift = np.cumsum(np.random.default_rng(1).exponential(30, 200) * MILLISECOND).astype(int).tolist()

    def spread(packets):
        for packet in packets:
            of = packet.seq - 1001 if packet.forward else packet.ack - 1001 - 174
            yield packet if of < 0 or packet.time < START else replace(packet, time=packet.time + shift[of // 174])

    analysis = analyze(list(spread(connection.sender)), list(spread(connection.receiver)))
    assert (analysis.fixed_size, analysis.fixed_interval) == (True, False)
    assert analysis.delay_kind == "transmission to read"
    assert analysis.flow().interval == pytest.approx(0.020 + (shift[-1] - shift[0]) / 199e9, rel=1e-5)
    assert analysis.delay_samples == pytest.approx(0.025, abs=1e-6)
    assert analysis.notes == ("the messages have no fixed interval; the flow takes the mean",)
    written = 0.020 * np.arange(200) + np.array(shift) / 1e9
    np.testing.assert_allclose(analysis.trace().times, written - written[0], atol=1e-6)
    replayed = analysis.source()
    np.testing.assert_array_equal(replayed.times, analysis.trace().times)
    assert replayed.period == pytest.approx(200 * analysis.interval, rel=1e-5)


def test_messages_of_various_sizes_are_measured_from_their_transmission(analyze):
    connection = Connection(lost=LOST)
    sizes = np.random.default_rng(1).integers(1, 174, 200)
    ends = np.cumsum(sizes)
    begins = ends - sizes

    def resized(packets):
        for packet in packets:
            k = (packet.seq - 1001) // 174
            if packet.forward and packet.length:
                yield replace(packet, seq=1001 + int(begins[k]), length=int(sizes[k]))
            elif not packet.forward and packet.ack > 1001:
                blocks = tuple(
                    tuple(1001 + int(np.append(begins, ends[-1])[(edge - 1001) // 174]) for edge in block)
                    for block in packet.sack
                )
                yield replace(packet, ack=1001 + int(ends[(packet.ack - 1001) // 174 - 1]), sack=blocks)
            else:
                yield packet

    analysis = analyze(list(resized(connection.sender)), list(resized(connection.receiver)))
    assert not analysis.constant_rate
    assert analysis.messages == 200
    assert analysis.packet_size == pytest.approx(sizes.mean())
    assert analysis.delay_samples == pytest.approx(connection.delays(), abs=2e-6)
    assert any("no fixed size" in note for note in analysis.notes)
    trace = analysis.trace()
    assert trace.sizes.tolist() == sizes.tolist()
    np.testing.assert_allclose(trace.times, 0.020 * np.arange(200), atol=1e-6)


@pytest.mark.parametrize("name", ["voice", "video-near"])
@pytest.mark.parametrize("ends", [("sender", "receiver"), ("sender",), ("receiver",)])
def test_the_kernels_own_tcp_is_measured_as_its_applications_logged(name, ends):
    log = read_capture(KEPT / f"{name}.parquet")
    analysis = analyze_captures([KEPT / f"{name}.{end}.pcap.gz" for end in ends])
    assert analysis.captured_at == ends
    # A capture does not show when a program meant to write.
    assert analysis.flow() == replace(log.flow, write_jitter=0.001)
    trace, written = analysis.trace(), log.runs[0].written / 1e6
    assert set(trace.sizes) == {log.flow.packet_size}
    np.testing.assert_allclose(trace.times, (written - written[0])[: trace.times.size], atol=2e-3)
    assert analysis.estimate().rtt == pytest.approx(log.path.rtt, rel=0.01)
    quantiles = [0.5, 0.95, 0.99]
    logged = log.delay_distribution().quantile(quantiles)
    assert analysis.delays.quantile(quantiles) == pytest.approx(logged, abs=0.5e-3)
    packets = log.runs[0].packets
    if len(ends) == 2:
        # In "voice" two reports of duplicates are of a part of a repetition, whose rest was needed.
        assert analysis.spurious_retransmissions == analysis.duplicates
        assert analysis.lost == packets["data_dropped"]
        assert analysis.sent - analysis.lost <= packets["data_sent"]
    else:
        assert analysis.lost == pytest.approx(packets["data_dropped"], rel=0.05)
    if "sender" in ends:
        assert analysis.retransmissions == log.runs[0].counters["RetransSegs"]


def test_a_stream_of_more_than_four_gibibytes(analyze):
    size, count = 60_000, 80_000
    packets = []
    for k in range(count):
        time, seq = START + k * MILLISECOND, 1 + k * size
        packets.append(Packet(time, True, seq, 1, size, ACK | PSH, payload=b"", total_length=40 + size))
        if k >= 10:
            packets.append(Packet(time + 1000, False, 1, seq - 9 * size))
    analysis = analyze(packets)
    assert analysis.payload == size * count > 2**32
    assert (analysis.retransmissions, analysis.packet_size) == (0, size)
    assert analysis.rtt == pytest.approx(0.010001)


def test_packets_that_the_network_doubles_are_no_losses(analyze):
    connection = Connection(lost=frozenset({57}))
    (doubled,) = (packet for packet in connection.receiver if packet.forward and packet.seq == 1001 + 80 * 174)
    again = replace(doubled, time=doubled.time + MILLISECOND)
    arrived = sorted([*connection.receiver, again], key=lambda packet: packet.time)
    analysis = analyze(connection.sender, arrived)
    assert (analysis.lost, analysis.sent, analysis.duplicates) == (1, 201, 1)
    assert analysis.notes == ("1 packets arrived that the capture at the sender does not show",)


def test_a_second_capture_on_the_way_is_said_to_be_one(analyze):
    connection = Connection()
    halfway = [
        replace(packet, time=packet.time + (10 if packet.forward else -10) * MILLISECOND)
        for packet in connection.sender
    ]
    analysis = analyze(connection.sender, sorted(halfway, key=lambda packet: packet.time))
    assert any("was not made at the receiver" in note for note in analysis.notes)
    assert analysis.one_way_delay == pytest.approx(0.010, abs=1e-6)


def test_coverage_goes_on_where_the_stretch_before_ended():
    later = replace(data_segments([(15, 10), (30, 5), (25, 5)]), reached=20)
    pieces = coverage(later, NO_ACKS, "capture", before=15)
    # What lies before byte 20 had come at 15; of the first segment only what lies behind counts.
    assert pieces.edges.tolist() == [20, 25, 30, 35]
    assert pieces.time.tolist() == [0, 20, 10]
    assert pieces.complete.tolist() == [15, 20, 20]
    assert [pieces.complete_at(position) for position in (20, 25, 30, 35)] == [15, 15, 20, 20]
    hole = coverage(replace(later, reached=10), NO_ACKS, "capture", before=15)
    assert hole.complete.tolist() == [NEVER] * 4
