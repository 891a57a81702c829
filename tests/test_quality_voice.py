"""Calls over TCP: the rating at a playout delay, and the best of all playout delays."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.delays import DelayDistribution
from tcpdelay.quality.emodel import Transmission, mos_from_rating
from tcpdelay.quality.voice import CODECS, Codec, best_playout_delay, voice_mos, voice_quality, voice_rating

codecs = st.sampled_from(sorted(CODECS))
distributions = st.lists(st.integers(1, 900).map(lambda n: n / 1000), min_size=1, max_size=60).map(
    lambda delays: DelayDistribution.from_samples(delays, one_way_delay=0.001)
)
TWO = DelayDistribution(np.array([0.05, 0.15]), np.array([0.95, 0.05]), one_way_delay=0.05)


def test_a_call_by_hand():
    quality = voice_quality(TWO, codec="g729a", playout_delay=0.1)
    assert quality.late_fraction == pytest.approx(0.05)
    assert quality.playout_delay == 0.1
    assert quality.mouth_to_ear == pytest.approx(0.125)  # a packet of 20 ms and 5 ms of lookahead
    assert quality.loss_impairment == pytest.approx(11 + 84 * 5 / 24)
    assert quality.delay_impairment == pytest.approx(0.024 * 125, abs=0.5)  # Cole and Rosenbluth
    assert quality.r == pytest.approx(93.2 + 0.149 - quality.delay_impairment - quality.loss_impairment, abs=0.01)
    assert quality.mos == mos_from_rating(quality.r)


def test_wideband_calls_are_rated_on_their_own_scale():
    quality = voice_quality(TWO, codec="amr-wb-23.05", playout_delay=0.15)
    assert quality.r == pytest.approx(129 - 8 - quality.delay_impairment)
    assert quality.mos == mos_from_rating(quality.r / 1.29)


@given(distributions, codecs, st.floats(1, 4))
def test_no_playout_delay_of_a_grid_is_better_than_the_best(distribution, codec, burst_ratio):
    best = best_playout_delay(distribution, codec, burst_ratio)
    grid = np.concatenate([np.arange(0, 1, 0.0005), distribution.values])
    grid = grid[grid >= distribution.values[0]]
    late = distribution.late_fraction(grid)
    ratings = voice_rating(grid + CODECS[codec].delay, late, codec, burst_ratio)
    assert best.r == pytest.approx(ratings.max(), abs=1e-9)
    assert best.playout_delay in distribution.values


@given(distributions, codecs)
def test_the_best_is_what_is_rated_when_no_delay_is_given(distribution, codec):
    best = best_playout_delay(distribution, codec)
    assert voice_quality(distribution, codec) == best
    assert astuple(voice_quality(distribution, codec, best.playout_delay)) == pytest.approx(astuple(best), rel=1e-9)


@given(distributions, st.floats(0, 1.5), st.floats(1, 8))
def test_maps_and_single_calls_agree(distribution, playout_delay, burst_ratio):
    quality = voice_quality(distribution, "g711", playout_delay, burst_ratio)
    assert voice_mos(quality.mouth_to_ear, quality.late_fraction, "g711", burst_ratio) == pytest.approx(quality.mos)


def test_bursts_make_waiting_longer_worth_it():
    many = DelayDistribution(np.array([0.05, 0.27]), np.array([0.95, 0.05]), one_way_delay=0.05)
    assert best_playout_delay(many).playout_delay == 0.05
    assert best_playout_delay(many, burst_ratio=8).playout_delay == 0.27


def test_users_that_mind_delay_less_have_longer_playout_delays():
    late = DelayDistribution(np.array([0.05, 0.30]), np.array([0.95, 0.05]), one_way_delay=0.05)
    patient = Transmission(minimum_delay=0.15, delay_sensitivity=0.4)
    assert best_playout_delay(late).playout_delay == 0.05
    assert best_playout_delay(late, transmission=patient).playout_delay == 0.30


def test_what_tcp_cannot_carry_is_as_bad_as_can_be():
    quality = best_playout_delay(DelayDistribution.unsustainable(0.05))
    assert quality.mos == 1
    assert quality.late_fraction == 1
    assert quality.playout_delay == quality.mouth_to_ear == math.inf
    assert math.isfinite(quality.r)


def test_packets_that_never_come_are_lost():
    half = DelayDistribution(np.array([0.05, np.inf]), np.array([0.98, 0.02]), one_way_delay=0.05)
    assert best_playout_delay(half).playout_delay == 0.05
    assert best_playout_delay(half).late_fraction == pytest.approx(0.02)


def test_a_codec_of_ones_own():
    mine = Codec("mine", ie=0, bpl=25.1, packet_interval=0.020)
    assert voice_quality(TWO, mine, 0.1) == voice_quality(TWO, "g711", 0.1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"playout_delay": -0.1}, "playout_delay must"),
        ({"playout_delay": math.inf}, "playout_delay must"),
        ({"playout_delay": math.nan}, "playout_delay must"),
        ({"burst_ratio": 0.5}, "burst_ratio must"),
        ({"burst_ratio": math.nan}, "burst_ratio must"),
        ({"codec": "mp3"}, "codec must be one of"),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        voice_quality(TWO, **wrong)


@pytest.mark.parametrize(("delay", "loss", "name"), [(-1, 0, "mouth_to_ear"), (0, 2, "loss"), (0, math.nan, "loss")])
def test_maps_refuse_what_is_no_delay_and_no_loss(delay, loss, name):
    with pytest.raises(ValueError, match=f"{name} must"):
        voice_mos(delay, loss)
