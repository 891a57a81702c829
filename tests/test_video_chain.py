"""The chain of video: closed forms of single losses and waits, the chain of a flow, the simulator, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.ask import UnsupportedError
from tcpdelay.chain.video import (
    BINS,
    flights,
    growing_windows,
    key_frame_chain,
    key_sizes,
    lone_loss,
    segment_shares,
    video_parameters,
    window_waits,
)
from tcpdelay.models.predict import predict, supports
from tcpdelay.scenario.scenario import Scenario

# Closed forms hold for losses below the range in which random scenarios have been checked.
pytestmark = pytest.mark.filterwarnings("ignore::tcpdelay.accuracy.validity.ValidityWarning")
RENO = td.Stack.linux("reno")
VIDEO, PATH = td.Video(1_000_000), td.Path(rtt=0.020, loss=0.005)
SMALL = td.Video(240_000, key_ratio=1, variation=0)
"""Frames of 1000 bytes, 30 a second."""


def parameters(rtt, loss=0.001, video=VIDEO):
    """Return the chain's parameters."""
    return video_parameters(video, td.Path(rtt, loss), RENO)


def test_without_losses_every_frame_takes_the_one_way_delay():
    found = td.predict_delay(td.Video(2_000_000), td.Path(rtt=0.050, loss=0), method="chain")
    assert (found.values.tolist(), found.weights.tolist()) == ([0.025], [1.0])
    assert found.by_kind["key frame"].mean == 0.025


@pytest.mark.parametrize(
    ("segments", "lost", "later", "expected"),
    [
        # RTT of 0.6 frame intervals. Seven SACKs show the loss at 0.6. Four of them release a segment each, after the
        # retransmission. So a frame of three leaves at once, and one of eight with the retransmission's ACK at 1.2.
        (8, 1, 3, [0.6, 0.0]),
        (8, 1, 8, [0.6, 0.2]),
        # No SACK shows the loss of the last segment before the next frame's, at 1.6. Its three SACKs release the
        # retransmission and two segments. The ACK of the retransmission arrives at 2.2.
        (8, 8, 3, [1.6, 0.6, 0.2]),
        (8, 8, 2, [1.6, 0.6, 0.2]),
    ],
)
def test_a_lone_loss_delays_frames_until_it_is_repaired(segments, lost, later, expected):
    assert lone_loss(parameters(0.020), segments, lost, later) == pytest.approx(np.array(expected))


def test_rare_losses_make_teeth_of_known_height():
    # The frame after a lost one shows the loss, at 1.6 frame intervals. The frame after that waits for its repair, at
    # 2.2. So the delays have teeth 1.6, 0.6 and 0.2 intervals beyond the network's own delay.
    loss, interval = 1e-4, 1 / 30
    found = td.predict_delay(SMALL, td.Path(rtt=0.6 * interval, loss=loss), RENO, method="chain")
    for beyond, teeth in ((0.1, 3), (0.4, 2), (1.0, 1), (1.65, 0)):
        late = found.late_fraction((0.3 + beyond) * interval)
        assert late == pytest.approx(teeth * loss, rel=0.02, abs=loss / 50)


@pytest.mark.parametrize(("size", "load", "window"), [(3, 2.5, 8), (3, 2.5, 9), (5, 0.4, 3), (7, 1.3, 11)])
def test_waits_for_a_window_follow_from_the_acks(size, load, window):
    # Segment k leaves when it is written, and segment k - window is acknowledged.
    leaves = np.zeros(size * 400)
    for segment in range(leaves.size):
        released = leaves[segment - window] + load if segment >= window else 0.0
        leaves[segment] = max(segment // size, released)
    waits = leaves[size - 1 :: size] - np.arange(400)
    p = parameters(load / 30)._replace(largest_window=window)
    in_time, _ = window_waits(p, np.eye(size + 1)[size], 8 * BINS)
    for beyond in (0.05, 0.15, 0.33, 0.77, 1.2):
        expected = np.mean(waits[100:] <= beyond * load)
        assert in_time[window, round(beyond * BINS)] == pytest.approx(expected, abs=0.01)


def test_frames_of_one_size_are_a_flow():
    path = td.Path(rtt=0.050, loss=0.005)
    found = td.predict_delay(SMALL, path, RENO, method="chain")
    flow = td.predict_delay(td.Flow(1000, 1 / 30), path, RENO, method="chain")
    assert found.mean == pytest.approx(flow.mean, rel=0.01)
    assert found.late_fraction(0.030) == pytest.approx(flow.late_fraction(0.030), rel=0.1)
    assert set(found.by_kind) == {"other frame"}


@pytest.mark.parametrize(("control", "rtt"), [("reno", 0.020), ("cubic", 0.020), ("cubic", 0.050)])
def test_every_course_of_events_leads_to_the_next_key_frame(control, rtt):
    p = video_parameters(VIDEO, td.Path(rtt, 0.005), td.Stack.linux(control))
    shares = segment_shares(VIDEO, 1448)
    growing = growing_windows(p, window_waits(p, shares, BINS)[1])
    moves, delays, written, _ = key_frame_chain(p, key_sizes(VIDEO, 1448), flights(shares, p.flight), growing, 4000)
    assert moves.sum(axis=1) == pytest.approx(np.ones(moves.shape[0]))
    used = np.arange(moves.shape[0]) % (p.largest_window + 1) >= 2
    # Rare courses of events end before the key frame has left, and a frame at the edge of a round with a loss is in two
    # rounds. The distribution has weights that sum to 1 all the same.
    assert delays[used, 1].sum(axis=1) == pytest.approx(np.ones(used.sum()), abs=0.03)
    frames = delays[used, 0].sum(axis=1) + written[used].sum(axis=1)
    assert frames == pytest.approx(np.full(used.sum(), VIDEO.group - 1), rel=3e-3)


@pytest.mark.parametrize("control", ["cubic", "reno"])
def test_the_chain_agrees_with_the_simulator(control):
    stack = td.Stack.linux(control)
    found = td.predict_delay(VIDEO, PATH, stack, method="chain")
    simulated = td.simulate(VIDEO, PATH, stack, packets=200_000, seed=1)
    assert found.mean == pytest.approx(simulated.mean, rel=0.02)
    assert found.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=0.05)
    for kind, delays in simulated.by_kind.items():
        assert found.by_kind[kind].mean == pytest.approx(delays.mean, rel=0.05)
    assert found.expected_error.mean < 0.2


@pytest.mark.parametrize(
    ("video", "path", "stack", "message"),
    [
        (VIDEO, td.Path(0.02, 0.005, loss_burst=1.5), RENO, "loss_burst must be 1.0 in the chain of video"),
        (VIDEO, PATH, td.Stack.linux("bbr"), "congestion_control must be cubic or reno in the chain of video"),
        (td.Video.ieee80211ax(1e6), PATH, RENO, "frame_sizes must be 'lognormal' in the chain of video"),
        (td.Video(1e6, variation=1), PATH, RENO, "variation must be at most 0.6 in the chain of video"),
        (td.Video(1e5, frame_rate=5), PATH, RENO, "frame_rate must be at least 10 in the chain of video"),
        (td.Video(1e6, key_interval=60), PATH, RENO, "key_interval must be 2 to 300 frames in the chain of video"),
        (td.Video(4e6), PATH, RENO, "bitrate must be smaller in the chain of video: a key frame and the flight have"),
        (td.Video(3e6, 10, key_ratio=2), PATH, RENO, "bitrate must be smaller in the chain of video: frames other"),
        (VIDEO, td.Path(0.1, 0.02), RENO, "loss must be smaller in the chain of video: segments exceed 35% of the"),
    ],
)
def test_what_the_chain_refuses_is_said_in_one_line(video, path, stack, message):
    assert supports(Scenario(video, path, stack)).refused
    with pytest.raises(UnsupportedError, match=f"^{message}") as error:
        td.predict_delay(video, path, stack, method="chain")
    assert "\n" not in str(error.value)


@settings(max_examples=15, deadline=None)
@given(
    st.floats(1e5, 2e6),
    st.sampled_from([10.0, 25.0, 60.0]),
    st.floats(1, 20),
    st.floats(0, 0.6),
    st.floats(0.01, 0.1),
    st.floats(0, 0.02),
    st.sampled_from(["cubic", "reno"]),
)
def test_delays_are_a_distribution_above_the_network_delay(bitrate, rate, ratio, variation, rtt, loss, control):
    video = td.Video(bitrate, rate, key_ratio=ratio, variation=variation)
    answer = predict(Scenario(video, td.Path(rtt, loss), td.Stack.linux(control)), method="chain")
    if answer.answered:
        for delays in (answer.distribution, *answer.distribution.by_kind.values()):
            assert delays.weights.sum() == pytest.approx(1)
            assert delays.values[0] >= rtt / 2 - 1e-12
