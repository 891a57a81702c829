"""The chains of speech and video: single losses in closed form, the simulator, and what the chains refuse."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from chain_structure import assert_complete, assert_one_event_stays
from tcpdelay.ask import UnsupportedError
from tcpdelay.chain.linux.delays import delay_bins
from tcpdelay.chain.linux.departures import WEIGHT
from tcpdelay.chain.linux.parameters import linux_parameters
from tcpdelay.chain.linux.phases import make_layout, start_phase
from tcpdelay.chain.linux.transitions import beyond_backlog, first_bound, linux_transitions
from tcpdelay.chain.solver.state_space import reachable_rows
from tcpdelay.chain.solver.stationary import MAX_SWEEPS, solve_by_sweeps
from tcpdelay.chain.speech import Alternation, first_packets, speech_chain
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

# Speech

VOICE, PATH = td.Speech(174, 0.020), td.Path(rtt=0.100, loss=0.01)


def chain_of(speech, path, stack):
    """Return parameters, alternation and chain of a scenario."""
    p = linux_parameters(td.Flow(speech.packet_size, speech.interval), path, stack)
    p = p._replace(continuation=math.exp(-speech.interval / speech.talk))
    rates = speech.interval / speech.talk, speech.interval / speech.silence
    source = Alternation(rates[1] / sum(rates), sum(rates))
    return p, source, speech_chain(p, source, *linux_transitions(p))


def test_one_loss_delays_the_packets_that_the_talk_spurt_still_writes():
    # The RTT is 2.5 intervals and a quarter of it less than one, so the next packet shows the loss: the lost packet is
    # 3.5 intervals late, and packet j behind it 3.5 - j, if the talk spurt is still going on.
    loss, interval, talk = 1e-5, 0.020, 0.3
    speech, path = td.Speech(174, interval, talk, silence=1000), td.Path(rtt=0.050, loss=loss)
    found = td.predict_delay(speech, path, method="chain")
    goes_on = math.exp(-interval / talk)
    for beyond in (1.4, 2.4, 3.4):
        teeth = [goes_on**j for j in range(4) if 3.5 - j > beyond]
        assert found.late_fraction(0.025 + beyond * interval) == pytest.approx(loss * sum(teeth), rel=0.01)


def test_the_last_packet_of_a_talk_spurt_waits_for_the_probe():
    # With a single segment in flight the probe follows after the RTO, RTT + 200 ms, counted from the last ACK, which
    # the packet before the lost one brings an RTT after its write.
    loss, interval, talk, rtt = 1e-5, 0.020, 0.2, 0.050
    speech = td.Speech(174, interval, talk, silence=1000, write_jitter=0)
    found = td.predict_delay(speech, td.Path(rtt=rtt, loss=loss), method="chain")
    latest = rtt / 2 + rtt + 0.2 + rtt - interval
    ends = 1 - math.exp(-interval / talk)
    assert found.late_fraction(latest - 1e-4) == pytest.approx(loss * ends, rel=0.01)
    assert found.late_fraction(latest + 1e-4) < 1e-3 * loss


def test_a_first_packet_is_late_if_it_is_lost_itself():
    speech, path = td.Speech(174, 0.020, silence=1000), td.Path(rtt=0.050, loss=1e-4)
    first = td.predict_delay(speech, path, method="chain").by_kind["first packet"]
    assert first.late_fraction(0.0251) == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize("stack", [td.Stack.linux(), RENO])
@pytest.mark.parametrize(("rtt", "loss"), [(0.020, 0.02), (0.100, 0.005), (0.130, 0.01)])
def test_speech_that_hardly_ever_pauses_is_a_flow(stack, rtt, loss):
    path = td.Path(rtt=rtt, loss=loss)
    speech = td.predict_delay(td.Speech(174, 0.020, talk=1000, silence=1000), path, stack, method="chain")
    flow = td.predict_delay(td.Flow(174, 0.020), path, stack, method="chain")
    assert speech.mean == pytest.approx(flow.mean, rel=1e-3)
    for late in path.forward_delay + 0.02 * np.arange(0.25, 12, 0.5):
        assert speech.late_fraction(late) == pytest.approx(flow.late_fraction(late), rel=0.02, abs=1e-5)


def test_each_phase_leads_on_with_probability_one():
    for stack in (td.Stack.linux(), RENO):
        _, _, chain = chain_of(VOICE, td.Path(rtt=0.150, loss=0.02), stack)
        assert_complete(chain.phases, chain.transitions)
        # The solver eliminates one event of a phase that stays in it.
        assert_one_event_stays(chain.phases, chain.transitions)


@pytest.mark.parametrize("talk", [0.3, 1.0, 4.0])
def test_the_chain_counts_the_packets_of_a_talk_spurt(talk):
    speech = td.Speech(174, 0.020, talk)
    p, source, chain = chain_of(speech, PATH, td.Stack.linux())
    start = start_phase(p, make_layout(p))
    rows = reachable_rows(chain.phases, chain.transitions, start, first_bound(p))
    probability = solve_by_sweeps(chain.phases, chain.transitions, rows, start, MAX_SWEEPS).probability
    every = delay_bins(p, chain.phases, chain.sending, rows, probability, beyond_backlog(p))
    sending, begun = first_packets(chain, source, rows, probability)
    first = delay_bins(p, chain.phases, sending, rows, begun, beyond_backlog(p))
    assert every[WEIGHT, :-1].sum() / first[WEIGHT, :-1].sum() == pytest.approx(speech.packets_per_burst, rel=0.02)


def test_all_packets_are_first_packets_and_others():
    found = td.predict_delay(VOICE, PATH, method="chain")
    assert tuple(found.by_kind) == VOICE.kinds
    share = 1 / VOICE.packets_per_burst
    others, first = found.by_kind.values()
    for late in (0.055, 0.1, 0.15, 0.2):
        mixed = share * first.late_fraction(late) + (1 - share) * others.late_fraction(late)
        assert found.late_fraction(late) == pytest.approx(mixed, rel=1e-3)


def test_the_method_auto_asks_the_chain_where_it_is_right():
    inside, outside = Scenario(VOICE, PATH), Scenario(VOICE, td.Path(rtt=0.300, loss=0.01))
    assert predict(inside).method == "chain"
    assert predict(inside).expected_error.mean < 0.10
    found = td.predict_delay(outside.source, outside.path, method="auto", packets=5000)
    assert found.method == "simulation"


def test_the_expected_error_grows_where_a_quantile_is_at_the_edge_of_a_tooth():
    found = td.predict_delay(VOICE, PATH, method="chain")
    shares = [found.late_fraction(value) for value in found.values if 0.002 < found.late_fraction(value) < 0.5]
    at_edge, inside = (
        found.expected_error_of(1 - share * factor).p90 for share, factor in ((shares[2], 1.001), (shares[2], 0.5))
    )
    assert at_edge > inside


# Video

VIDEO, VIDEO_PATH = td.Video(1_000_000), td.Path(rtt=0.020, loss=0.005)
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


@pytest.mark.parametrize(
    ("source", "rtt", "loss", "stack"),
    [
        (td.Speech(174, 0.020, write_jitter=0), 0.060007, 0.03, RENO),
        (td.Speech(60, 0.010, 0.4, 0.6, write_jitter=0), 0.060007, 0.01, td.Stack.linux()),
        (td.Speech(480, 0.030, 2.0, 1.0, write_jitter=0), 0.150007, 0.01, RENO),
        (td.Speech(174, 0.060, write_jitter=0), 0.300007, 0.03, td.Stack.linux()),
        (td.Speech(174, 0.020), 0.100, 0.02, td.Stack.linux()),
        (td.Speech(174, 0.020), 0.107, 0.02, td.Stack.linux()),
        (VIDEO, 0.020, 0.005, td.Stack.linux()),
        (VIDEO, 0.020, 0.005, RENO),
    ],
)
def test_delays_are_those_of_the_simulator(source, rtt, loss, stack):
    path = td.Path(rtt=rtt, loss=loss)
    chain = td.predict_delay(source, path, stack, method="chain")
    simulated = td.simulate(source, path, stack, packets=400_000, seed=3)
    assert chain.mean == pytest.approx(simulated.mean, rel=0.02)
    assert chain.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=0.05)
    assert chain.by_kind.keys() == simulated.by_kind.keys()
    for kind, delays in simulated.by_kind.items():
        assert chain.by_kind[kind].mean == pytest.approx(delays.mean, rel=0.03 if source is not VIDEO else 0.05)
    assert source is not VIDEO or chain.expected_error.mean < 0.2


sources = st.one_of(
    st.builds(
        td.Speech,
        st.integers(40, 700),
        st.sampled_from([0.01, 0.02, 0.03, 0.06]),
        st.floats(0.2, 5),
        st.floats(0.2, 5),
    ),
    st.builds(
        td.Video,
        st.floats(1e5, 2e6),
        st.sampled_from([10.0, 25.0, 60.0]),
        key_ratio=st.floats(1, 20),
        variation=st.floats(0, 0.6),
    ),
)


@settings(max_examples=30, deadline=None)
@given(sources, st.floats(0.01, 0.1), st.floats(0, 0.02), st.sampled_from(["cubic", "reno"]))
def test_delays_are_a_distribution_above_the_network_delay(source, rtt, loss, control):
    answer = predict(Scenario(source, td.Path(rtt, loss), td.Stack.linux(control)), method="chain")
    if answer.answered:
        for delays in (answer.distribution, *answer.distribution.by_kind.values()):
            assert delays.weights.sum() == pytest.approx(1)
            assert delays.values[0] >= rtt / 2 - 1e-12


# Refusals


@pytest.mark.parametrize(
    ("source", "path", "stack", "message"),
    [
        (
            VOICE,
            td.Path(rtt=0.3, loss=0.01),
            td.Stack.linux(),
            "rtt must be at most 0.2 in the chain of speech, got 0.3",
        ),
        (td.Speech(1000, 0.02), PATH, td.Stack.linux(), "packet_size must be at most 724 in the chain of speech"),
        (td.Speech(174, 0.02, talk=0.1), PATH, td.Stack.linux(), "talk must be at least 0.2 s in the chain of speech"),
        (td.Speech(174, 0.02, silence=0.1), PATH, td.Stack.linux(), "silence must be at least 0.2 s in the chain"),
        (VOICE, PATH, td.Stack.linux("bbr"), "congestion_control must be cubic or reno in the chain of speech"),
        (VOICE, td.Path(0.1, 0.01, loss_burst=1.5), td.Stack.linux(), "loss_burst must be 1.0 in the chain of speech"),
        (VOICE, td.Path(0.1, 0.01, jitter=0.01), td.Stack.linux(), "jitter must be 0.0 in the chain of speech"),
        (td.Speech(700, 0.02), td.Path(0.19, 0.05), td.Stack.linux(), "loss must be smaller in the chain of speech: "),
        (VOICE, PATH, td.Stack.newreno_2008(), "source must be a Flow"),
        (VIDEO, td.Path(0.02, 0.005, loss_burst=1.5), RENO, "loss_burst must be 1.0 in the chain of video"),
        (VIDEO, VIDEO_PATH, td.Stack.linux("bbr"), "congestion_control must be cubic or reno in the chain of video"),
        (td.Video.ieee80211ax(1e6), VIDEO_PATH, RENO, "frame_sizes must be 'lognormal' in the chain of video"),
        (td.Video(1e6, variation=1), VIDEO_PATH, RENO, "variation must be at most 0.6 in the chain of video"),
        (td.Video(1e5, frame_rate=5), VIDEO_PATH, RENO, "frame_rate must be at least 10 in the chain of video"),
        (
            td.Video(1e6, key_interval=60),
            VIDEO_PATH,
            RENO,
            "key_interval must be 2 to 300 frames in the chain of video",
        ),
        (
            td.Video(4e6),
            VIDEO_PATH,
            RENO,
            "bitrate must be smaller in the chain of video: a key frame and the flight have",
        ),
        (
            td.Video(3e6, 10, key_ratio=2),
            VIDEO_PATH,
            RENO,
            "bitrate must be smaller in the chain of video: frames other",
        ),
        (VIDEO, td.Path(0.1, 0.02), RENO, "loss must be smaller in the chain of video: segments exceed 35% of the"),
    ],
)
def test_what_the_chains_refuse_is_said_in_one_line(source, path, stack, message):
    assert supports(Scenario(source, path, stack)).refused
    with pytest.raises(UnsupportedError, match=f"^{message}") as error:
        td.predict_delay(source, path, stack, method="chain")
    assert "\n" not in str(error.value)
