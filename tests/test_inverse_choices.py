"""Playout buffers, intervals, pieces, connections and sensitivities, each checked by the prediction."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.models.heuristics import parallel_delay, split_delay
from tcpdelay.quality.voice import CODECS, voice_quality
from tcpdelay.study.margins import Sensitivity

VOIP, LINUX, PATH = td.Flow(174, 0.020), td.Stack.linux(), td.Path(rtt=0.100, loss=0.02)
FULL, TARGET = td.Flow(1448, 0.020), td.Target(0.2)
OVERLOAD = td.Flow(1448, 0.005)


@pytest.fixture(scope="module")
def delays():
    return td.predict_delay(VOIP, PATH, method="chain")


@settings(max_examples=50)
@given(share=st.floats(0, 0.3))
def test_the_playout_buffer_is_the_smallest(delays, share):
    found = td.playout_for_late_fraction(VOIP, PATH, LINUX, share, method="chain")
    assert delays.late_fraction(found.value) == found.late_fraction <= share + 1e-12
    if found.fails is not None:
        assert delays.late_fraction(found.fails) == found.late_beyond > share
        # All between the two are as bad as the lower one.
        between = np.linspace(found.fails, found.value, 5)[1:-1]
        assert np.all(delays.late_fraction(between) > share)


def test_a_share_that_the_network_alone_keeps_is_limited_by_it(delays):
    found = td.playout_for_late_fraction(VOIP, PATH, LINUX, 0.9)
    assert (found.value, found.fails, found.limited_by) == (pytest.approx(0.05), None, "network")


@pytest.mark.parametrize("codec", ["g711", "g729a", "opus-wb-15"])
def test_the_best_playout_for_a_call_beats_all_others(delays, codec):
    found = td.playout_for_call(VOIP, PATH, LINUX, td.CallTarget(codec))
    scores = [voice_quality(delays, codec, wait).mos for wait in np.arange(0.05, 0.5, 0.001)]
    assert found.quality.mos >= max(scores)
    assert found.quality_beyond.mos < found.quality.mos


@settings(max_examples=25)
@given(mos=st.floats(1.5, 4.1))
def test_a_score_asked_for_is_reached_with_the_smallest_buffer(delays, mos):
    found = td.playout_for_call(VOIP, PATH, LINUX, td.CallTarget("g711", mos))
    shorter = delays.values[delays.values < found.value - 1e-9]
    assert voice_quality(delays, "g711", found.value).mos >= mos
    assert all(voice_quality(delays, "g711", float(wait)).mos < mos for wait in shorter)


def test_no_buffer_is_one_line_with_the_best():
    with pytest.raises(ValueError, match=r"no playout buffer gives a score of 4.4: at best, with 180 ms, it is 4.14"):
        td.playout_for_call(VOIP, PATH, LINUX, td.CallTarget("g711", 4.4))
    for solve in (lambda *asked: td.playout_for_late_fraction(*asked, 0.01), td.playout_for_call):
        with pytest.raises(ValueError, match="TCP cannot carry this flow"):
            solve(OVERLOAD, PATH, LINUX)
    with pytest.raises(ValueError, match="late_fraction must be a share from 0 to below 1"):
        td.playout_for_late_fraction(VOIP, PATH, LINUX, 1.5)
    with pytest.raises(ValueError, match=r"mos must lie between 1 and 4\.5, got 5"):
        td.CallTarget("g711", 5)
    with pytest.raises(ValueError, match="codec must be one of"):
        td.CallTarget("tin cans")


def test_the_best_interval_has_the_youngest_first_byte():
    found = td.best_interval(64_000, PATH, LINUX, TARGET, intervals=(0.010, 0.020, 0.030))
    for candidate, interval in zip(found.candidates, (0.010, 0.020, 0.030), strict=True):
        size = round(64_000 * interval / 8) + 14
        assert candidate.flow == td.Flow(size, interval)
        assert candidate.delay == td.predict_delay(candidate.flow, PATH, method="chain").quantile(0.95)
        assert candidate.age == interval + candidate.delay
        assert candidate.wire_rate == pytest.approx(64_000 + 8 * (14 + 52) / interval)
    assert found.best.age == min(candidate.age for candidate in found.candidates)
    assert (found.value, found.limited_by, found.fails) == (0.030, "candidates", None)


def test_an_interval_that_misses_the_target_is_not_the_best():
    found = td.best_interval(64_000, PATH, LINUX, td.Target(0.13))
    assert found.best.delay <= 0.13
    missed = [candidate.value for candidate in found.candidates if not candidate.meets_target]
    assert missed == [0.010, 0.020]
    assert found.fails == 0.020


def test_the_interval_of_a_call_is_part_of_its_score():
    found = td.best_interval(64_000, PATH, LINUX, td.CallTarget("g711"))
    for candidate in found.candidates:
        codec = replace(CODECS["g711"], packet_interval=candidate.value)
        assert candidate.mos == voice_quality(td.predict_delay(candidate.flow, PATH, method="chain"), codec).mos
    assert found.best.mos == max(candidate.mos for candidate in found.candidates)
    assert (found.value, found.limited_by) == (0.020, "rank")


def test_pieces_and_connections_are_those_of_the_heuristics():
    path = td.Path(rtt=0.100, loss=0.0125)
    for solve, ways in ((td.best_split, split_delay), (td.best_connections, parallel_delay)):
        found = solve(FULL, path, LINUX, TARGET, method="chain")
        assert [one.value for one in found.candidates] == [1, 2, 4]
        assert [one.delay for one in found.candidates] == [
            ways(FULL, path, LINUX, number).quantile(0.95) for number in (1, 2, 4)
        ]
        assert found.best.delay <= 0.2 < found.candidates[0].delay
        assert found.fails == 1
        assert found.lead > 0
        assert found.certain == (found.lead > found.expected_error.median)


def test_headers_of_each_piece_are_counted():
    found = td.best_split(FULL, td.Path(rtt=0.100, loss=0.01), LINUX, TARGET)
    assert [one.wire_rate for one in found.candidates] == [8 * (1448 + 52 * number) / 0.020 for number in (1, 2, 4)]


@pytest.mark.parametrize(
    ("solve", "message"),
    [
        (lambda: td.best_split(FULL, PATH, LINUX, TARGET), r"with 2, 95 % come within 355 ms, and not within 200 ms"),
        (lambda: td.best_split(FULL, PATH, LINUX, TARGET, ()), "pieces must hold whole numbers above 0"),
        (lambda: td.best_connections(FULL, PATH, LINUX, TARGET, (0,)), "connections must hold whole numbers above 0"),
        (lambda: td.best_connections(FULL, PATH, LINUX, TARGET, (65,)), "connections must be a whole number from 1"),
        (lambda: td.best_interval(64_000, PATH, LINUX, td.CallTarget(mos=4.4)), "the score is 4.14, and not 4.4"),
        (lambda: td.best_interval(64e6, PATH, LINUX, TARGET, (0.02,)), "TCP cannot carry the flow with any of them"),
        (lambda: td.best_interval(0, PATH, LINUX, TARGET), "bitrate must be a number above 0 bit/s, got 0"),
        (lambda: td.best_interval(64_000, PATH, LINUX, TARGET, ()), "intervals must hold at least one"),
        (lambda: td.best_interval(64_000, PATH, LINUX, TARGET, (-1.0,)), "intervals must lie above 0 s, got -1"),
        (lambda: td.best_interval(64_000, PATH, LINUX, TARGET, header=-1), "header must be a whole number of bytes"),
        (lambda: td.sensitivities(VOIP, PATH, LINUX, TARGET, 0.9), "step must lie between 0.001 and 0.5, got 0.9"),
    ],
)
def test_bad_input_and_targets_out_of_reach_are_one_line(solve, message):
    with pytest.raises(ValueError, match=message) as refused:
        solve()
    assert "\n" not in str(refused.value)


def test_sensitivities_are_changes_of_predictions(delays):
    seen = []
    found = td.sensitivities(VOIP, PATH, LINUX, TARGET, on_progress=lambda *done: seen.append(done))
    assert seen == [(done, 9) for done in range(1, 10)]
    assert len(found.entries) == 12
    rtt = found.of("rtt")
    longer = td.predict_delay(VOIP, td.Path(rtt=0.110, loss=0.02), method="chain").quantile(0.95)
    shorter = td.predict_delay(VOIP, td.Path(rtt=0.090, loss=0.02), method="chain").quantile(0.95)
    assert rtt.outputs == (pytest.approx(shorter), delays.quantile(0.95), pytest.approx(longer))
    assert rtt.changes[1] == pytest.approx(longer / delays.quantile(0.95) - 1)
    assert rtt.elasticity == pytest.approx(math.log(longer / shorter) / math.log(1.1 / 0.9))
    assert found.of("loss", "mean").direction == found.of("loss", "late_fraction").direction == "rises"
    assert found.of("packet_size").inputs == (157, 174, 191)


def test_directions_of_made_up_changes():
    def made(*outputs):
        return Sensitivity("loss", "mean", (0.9, 1.0, 1.1), outputs)

    assert [made(*outputs).direction for outputs in ((1, 2, 3), (3, 2, 2), (2, 2, 2), (1, 2, 1))] == [
        "rises",
        "falls",
        "stays",
        "turns",
    ]
    assert made(1.0, 2.0, math.inf).direction == made(2.0, 2.0, math.inf).direction == "rises"
    assert made(1.0, 2.0, math.inf).changes == (-0.5, math.inf)
    assert math.isnan(made(1.0, 2.0, math.inf).elasticity)
    assert all(map(math.isnan, made(0.0, 0.0, 1.0).changes))
    assert made(0.9**2, 1.0, 1.1**2).elasticity == pytest.approx(2)


def test_a_path_without_loss_has_sensitivities_too():
    found = td.sensitivities(VOIP, td.Path(rtt=0.1, loss=0), LINUX, TARGET)
    assert found.of("loss").direction == "stays"
    assert math.isnan(found.of("loss").elasticity)
    assert found.of("rtt").elasticity == pytest.approx(1)
    assert all(entry.outputs[1] == 0 for entry in found.entries if entry.output == "late_fraction")
    assert list(itertools.islice((entry.input for entry in found.entries), 0, 12, 3)) == [
        "rtt",
        "loss",
        "packet_size",
        "interval",
    ]
