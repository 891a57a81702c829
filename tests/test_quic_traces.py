"""The replay of a qlog in the simulator's loss detection."""

import json

import pytest

import quic_traces

RTT, INTERVAL = 60.0, 20.0
PACKETS, LOST = range(10), 4


@pytest.fixture
def log(tmp_path):
    """A log in quic-go's form: a packet every 20 ms, of which one is lost; each ACK comes after a round-trip time."""
    estimates = {"min_rtt": RTT, "latest_rtt": RTT, "smoothed_rtt": RTT, "rtt_variance": RTT / 2}
    events = [(0.0, "recovery:metrics_updated", estimates)]
    for number in PACKETS:
        header = {"packet_type": "1RTT", "packet_number": number}
        frame = {"frame_type": "stream", "length": 174}
        sent = {"header": header, "raw": {"length": 201}, "frames": [frame]}
        events.append((1 + INTERVAL * number, "transport:packet_sent", sent))
        if number != LOST:
            ranges = [[LOST + 1, number], [0, LOST - 1]] if number > LOST else [[0, number]]
            ack = {"frame_type": "ack", "acked_ranges": ranges}
            received = {"header": header, "frames": [ack]}
            events.append((1 + INTERVAL * number + RTT, "transport:packet_received", received))
    found = {"header": {"packet_type": "1RTT", "packet_number": LOST}, "trigger": "time_threshold"}
    events.append((1 + INTERVAL * (LOST + 1) + RTT, "recovery:packet_lost", found))
    events.sort(key=lambda event: event[0])
    texts = [{}, *({"time": time, "name": name, "data": data} for time, name, data in events)]
    file = tmp_path / "quic-go-stream-174B-20ms.flow0.sender.qlog"
    file.write_text("".join(f"\x1e{json.dumps(text)}\n" for text in texts))
    return file


def test_the_simulator_finds_the_loss_of_a_log_at_the_same_time(log):
    trace = quic_traces.read_trace(log, "quic-go")
    ((when, number, elapsed, _),) = trace.losses
    assert (number, elapsed) == (LOST, INTERVAL + RTT)
    assert list(trace.simulated) == [LOST]
    assert trace.simulated[LOST][0] == pytest.approx(when)
    assert trace.simulated[LOST][1] == pytest.approx(RTT)


def test_the_page_counts_the_losses_that_both_find(log):
    page = quic_traces.report(log.parent)
    assert "1 losses, of which the simulator finds 1, and 0 more; largest difference" in page
    assert "| packet threshold | K_PACKET_THRESHOLD = 3 | packetThreshold = 3 | 3 |" in page


def test_the_rtt_is_sampled_if_the_largest_packet_is_newly_acknowledged():
    # RFC 9002, 5.1: the first packet is overtaken by the second, whose ACK gives a sample of 70 ms; the ACK of both,
    # 80 ms after the first was sent, gives none.
    replay = quic_traces.Replay("rfc9002", dict.fromkeys(quic_traces.ESTIMATES, RTT))
    replay.begin(0)
    for number in range(2):
        replay.send(number, 5.0 * number, 201)
    replay.acknowledge([[1, 1]], 0.0, 75.0)
    sampled = replay.estimate
    assert sampled == pytest.approx(7 / 8 * RTT + 70 / 8)
    replay.acknowledge([[0, 1]], 0.0, 80.0)
    assert replay.estimate == sampled
    assert not replay.lost
