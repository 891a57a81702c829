"""Long captures: the same results stretch by stretch, and no more in memory than a stretch."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcap_files import MILLISECOND, START, Connection, Packet, pcap
from tcpdelay.capture.pcap import connection_analysis, stretches
from tcpdelay.capture.pcap.analysis import analyze_captures
from tcpdelay.capture.pcap.connection_analysis import Delays, RoundTripSeries, Series, Table
from tcpdelay.delays import DelayDistribution

KEPT = Path(__file__).parents[1] / "validation" / "pcap"


@pytest.fixture
def short_stretches(monkeypatch):
    """Let stretches be some hundred segments long."""

    def short_stretches(length=700, margin=400, at_a_time=256):
        monkeypatch.setattr(stretches, "LENGTH", length)
        monkeypatch.setattr(stretches, "MARGIN", margin)
        monkeypatch.setattr(stretches, "AT_A_TIME", at_a_time)

    return short_stretches


def assert_same(one, other):
    for field in fields(one):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if isinstance(first, DelayDistribution):
            assert second.quantile([0.05, 0.5, 0.99]) == pytest.approx(first.quantile([0.05, 0.5, 0.99]), abs=1e-9)
        elif isinstance(first, np.ndarray) and first.dtype.names:
            for name in first.dtype.names:
                np.testing.assert_array_equal(first[name], second[name])
        elif isinstance(first, float | np.ndarray):
            np.testing.assert_allclose(second, first, rtol=1e-9, atol=1e-9, err_msg=field.name)
        elif field.name == "clocks" and first is not None:
            assert second.offset == pytest.approx(first.offset, abs=1e-9)
        else:
            assert first == second, field.name


@pytest.mark.parametrize(
    ("name", "ends"),
    [("voice", ("sender", "receiver")), ("video-delayed-ack", ("sender",)), ("video-delayed-ack", ("receiver",))],
)
def test_stretches_give_what_the_whole_gives(short_stretches, name, ends):
    files = [KEPT / f"{name}.{end}.pcap.gz" for end in ends]
    whole = analyze_captures(files)
    short_stretches()
    assert_same(whole, analyze_captures(files))


def written(directory, packets, name="capture.pcap"):
    file = directory / name
    file.write_bytes(pcap(packets))
    return file


DISTURBED = Connection(
    count=1500,
    lost=frozenset(range(30, 1500, 97)),
    needless=frozenset(range(11, 1500, 211)),
    overtaken=frozenset(range(70, 1500, 301)),
    isn=2**32 - 200_000,
)


@pytest.mark.parametrize("length", [301, 1000])
def test_losses_repetitions_and_reordering_at_the_edges_of_stretches(short_stretches, tmp_path, length):
    files = [written(tmp_path, DISTURBED.sender, "sender"), written(tmp_path, DISTURBED.receiver, "receiver")]
    for captures in (files, files[:1], files[1:]):
        whole = analyze_captures(captures)
        short_stretches(length, 200, 128)
        assert_same(whole, analyze_captures(captures))
        short_stretches(2**18, 2**16, 2**16)
    assert whole.delay_samples == pytest.approx(DISTURBED.delays(), abs=2e-6)


def test_framed_messages_in_stretches(short_stretches, tmp_path):
    payload = (172).to_bytes(2) + bytes(172)
    packets = [replace(packet, payload=payload if packet.length else None) for packet in DISTURBED.sender]
    file = written(tmp_path, packets)
    whole = analyze_captures([file], framing="rfc4571")
    short_stretches()
    found = analyze_captures([file], framing="rfc4571")
    assert_same(whole, found)
    assert (found.messages, found.constant_rate) == (1500, True)


def test_a_receiver_that_was_captured_for_a_part_of_the_time(short_stretches, tmp_path):
    part = [packet for packet in DISTURBED.receiver if 5_000 <= (packet.time - START) / MILLISECOND <= 25_000]
    files = [written(tmp_path, DISTURBED.sender, "sender"), written(tmp_path, part, "receiver")]
    whole = analyze_captures(files)
    short_stretches()
    found = analyze_captures(files)
    assert (found.sent, found.lost, found.unfinished) == (whole.sent, whole.lost, whole.unfinished)
    assert found.delays.quantile(0.5) == pytest.approx(whole.delays.quantile(0.5), abs=1e-6)


def test_no_more_than_a_stretch_is_in_memory(short_stretches, tmp_path, monkeypatch):
    short_stretches(500, 100, 128)
    held = []
    original = stretches.StretchSource.stretch

    def stretch(source, cut, limit):
        held.append(source.in_memory)
        return original(source, cut, limit)

    monkeypatch.setattr(stretches.StretchSource, "stretch", stretch)
    # The receiver's capture ends early, and the sender's begins late.
    sender, receiver = DISTURBED.sender[1000:], DISTURBED.receiver[:2000]
    analyze_captures([written(tmp_path, sender, "a"), written(tmp_path, receiver, "b")])
    assert len(held) > 8
    assert max(held) <= 500 + 2 * 100 + 128


def test_segments_far_out_of_order_are_left_out_and_counted(short_stretches, tmp_path):
    packets = list(DISTURBED.sender)
    moved = packets.pop(100)
    file = written(tmp_path, [*packets, moved])
    short_stretches()
    found = analyze_captures([file])
    assert f"{file}: 1 packets are far behind later packets and are left out" in found.notes


def test_segments_of_one_time_do_not_stop_the_analysis(short_stretches, tmp_path):
    packets = [Packet(START, True, 1 + 100 * k, 1, 100) for k in range(1500)]
    short_stretches(200, 50, 64)
    found = analyze_captures([written(tmp_path, packets)])
    assert (
        found.data_segments + sum(int(note.split(": ")[1].split()[0]) for note in found.notes if "far" in note) == 1500
    )


def test_a_change_of_the_size_of_the_messages_is_said(short_stretches, tmp_path):
    first = Connection(count=900).sender
    # From there on each write is of 100 bytes.
    begin = 1001 + 900 * 174
    after = [
        packet
        for k in range(900)
        for packet in (
            Packet(START + (900 + k) * 20 * MILLISECOND, True, begin + 100 * k, 900, 100, 0x18),
            Packet(START + (900 + k) * 20 * MILLISECOND + 50 * MILLISECOND, False, 900, begin + 100 * (k + 1)),
        )
    ]
    file = written(tmp_path, sorted([*first, *after], key=lambda packet: packet.time))
    short_stretches()
    found = analyze_captures([file])
    assert not found.fixed_size
    assert "the size of the messages changes; the stream is divided into messages of the first size" in found.notes


samples = st.lists(st.lists(st.integers(1, 1000), max_size=30), max_size=30)


@given(samples)
@settings(max_examples=50)
def test_condensed_round_trips_keep_mean_deviation_and_extremes(parts):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connection_analysis, "MOST_VALUES", 8)
        series, number = RoundTripSeries(), 0
        for part in parts:
            series.add(np.arange(number, number + len(part), dtype=float), np.array(part, float))
            number += len(part)
    every = np.array([value for part in parts for value in part], float)
    assert series.count == every.size
    assert series.means.size <= 8
    if every.size:
        assert series.mean == pytest.approx(every.mean())
        assert series.deviation == pytest.approx(every.std(), abs=1e-6)
        assert (series.smallest, series.largest) == (every.min(), every.max())
        step = series.step
        blocks = [every[begin : begin + step] for begin in range(0, every.size, step)]
        assert series.means == pytest.approx([block.mean() for block in blocks])
        assert series.times.tolist() == list(range(0, every.size, step))


def test_a_series_keeps_what_each_column_asks_for(monkeypatch):
    monkeypatch.setattr(connection_analysis, "MOST_VALUES", 4)
    series = Series(np.minimum, np.maximum)
    for begin in range(0, 21, 3):
        values = np.arange(begin, begin + 3, dtype=float)
        series.add(values, -values)
    assert (series.step, series.count) == (8, 21)
    assert series.columns[0].tolist() == [0, 8, 16]
    assert series.columns[1].tolist() == [0, -8, -16]


def test_many_different_delays_are_known_to_two_hundredths_of_a_percent(monkeypatch):
    monkeypatch.setattr(connection_analysis, "MOST_VALUES", 12_000)
    dice = np.random.default_rng(1)
    delays, every = Delays(), []
    for _ in range(10):
        every.append(0.05 + dice.exponential(0.1, 1500))
        delays.add(every[-1])
    found = delays.distribution(0.05)
    assert found.values.size <= 12_000
    assert (found.method, found.packets) == ("measurement", 15_000)
    assert delays.samples.size <= 12_000
    quantiles = [0.01, 0.5, 0.95, 0.999]
    expected = np.quantile(np.concatenate(every), quantiles, method="inverted_cdf")
    assert found.quantile(quantiles) == pytest.approx(expected, rel=2.5e-4)
    assert found.mean == pytest.approx(np.concatenate(every).mean(), rel=1e-4)
    assert delays.samples.max() == np.concatenate(every).max()


def test_a_table_on_disk_returns_its_rows(monkeypatch):
    monkeypatch.setattr(connection_analysis, "TABLE_BYTES_IN_MEMORY", 100)
    monkeypatch.setattr(connection_analysis, "BLOCK", 7)
    table = Table()
    for begin in range(0, 50, 10):
        table.add(np.arange(begin, begin + 10), -np.arange(begin, begin + 10))
    for _ in range(2):
        blocks = list(table.blocks())
        assert max(first.size for first, _ in blocks) == 7
        assert np.concatenate([first for first, _ in blocks]).tolist() == list(range(50))
        assert np.concatenate([second for _, second in blocks]).tolist() == [-k for k in range(50)]
    table.close()
