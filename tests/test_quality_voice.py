"""Calls: the E-model against the Recommendations' own values, and the rating of calls over TCP by playout delay."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.delays import DelayDistribution
from tcpdelay.quality.emodel import (
    BASIC_RATING,
    Transmission,
    absolute_delay_impairment,
    delay_impairment,
    equipment_impairment,
    listener_echo_impairment,
    mos_from_rating,
    narrowband_terms,
    rating_from_mos,
    sidetone_impairment,
    talker_echo_impairment,
    wideband_delay_impairment,
    wideband_echo_rating,
    wideband_terms,
)
from tcpdelay.quality.voice import (
    CODECS,
    Codec,
    best_playout_delay,
    codec_named,
    voice_mos,
    voice_quality,
    voice_rating,
)

# The E-model

DEFAULT = Transmission()
LOWEST_RATING = 80 - 5400**0.5  # where the polynomial is 1, solved by hand
codecs = st.sampled_from(sorted(CODECS))


def test_default_values_give_the_rating_of_the_recommendation():
    # ITU-T G.107 (06/2015), 7.7: "a rating factor of R = 93.2".
    assert DEFAULT.nominal_rating == pytest.approx(93.2, abs=0.05)
    assert mos_from_rating(DEFAULT.nominal_rating) == pytest.approx(4.41, abs=0.005)


def test_terms_at_default_values_are_those_of_other_implementations():
    # Two other programs for ITU-T G.107 print R = 93.206208, the second Ro, Is and Id too.
    assert DEFAULT.nominal_rating == pytest.approx(93.206208, abs=1e-6)
    assert DEFAULT.basic_rating == pytest.approx(94.768822, abs=1e-6)
    sidetone = sidetone_impairment(np.zeros(1), DEFAULT)[0]
    total = DEFAULT.loudness_impairment + sidetone + DEFAULT.quantizing_impairment
    assert total == pytest.approx(1.413568, abs=1e-6)
    assert delay_impairment(np.zeros(1), DEFAULT)[0] == pytest.approx(0.149046, abs=1e-6)


@pytest.mark.parametrize(("delay", "rating"), [(0.100, 90.663730), (0.150, 89.539132), (0.250, 79.177101)])
def test_ratings_with_delay_are_those_of_another_implementation(delay, rating):
    given_, taken = narrowband_terms(np.array([delay]), DEFAULT)
    # That one leaves the echo's part of the sidetone in at T = Ta, as here.
    assert given_[0] - taken[0] == pytest.approx(rating, abs=1e-5)


@pytest.mark.parametrize(("rating", "mos"), [(90, 4.34), (80, 4.03), (70, 3.60), (60, 3.10), (50, 2.58)])
def test_scores_are_those_of_table_b1(rating, mos):
    assert mos_from_rating(rating) == pytest.approx(mos, abs=0.0065)


def test_delay_costs_what_cole_and_rosenbluth_fitted():
    # ACM CCR 31(2), 2001: Id = 0.024 d + 0.11 (d - 177.3) H(d - 177.3), d in ms, fitted up to 400 ms.
    ms = np.arange(0, 401, 10.0)
    fitted = 0.024 * ms + 0.11 * np.maximum(ms - 177.3, 0)
    difference = np.abs(delay_impairment(ms / 1e3, DEFAULT) - fitted)
    assert difference[ms <= 350].max() < 1.5
    assert difference.max() < 3


def test_delay_is_not_noticed_up_to_its_minimum_and_costs_three_at_twice_that():
    at = absolute_delay_impairment(np.array([50.0, 100.0, 200.0]), DEFAULT)
    by_hand = 25 * (2 ** (1 / 6) - 3 * (730 / 729) ** (1 / 6) + 2)  # X = 1
    assert at == pytest.approx([0, 0, by_hand], abs=1e-12)


def test_an_echo_below_a_millisecond_is_sidetone():
    below, above = talker_echo_impairment(np.array([0.5, 2.0]), basis=95.0, rating=np.array([50.0, 50.0]))
    assert below == 0
    assert above > 10


def test_users_of_low_sensitivity_mind_delay_less():
    low = Transmission(minimum_delay=0.12, delay_sensitivity=0.55)
    very_low = Transmission(minimum_delay=0.15, delay_sensitivity=0.4)
    at = [absolute_delay_impairment(np.array([300.0]), users)[0] for users in (DEFAULT, low, very_low)]
    assert at[0] > at[1] > at[2] > 0


def test_losses_cost_what_the_formula_says():
    assert equipment_impairment(11, 19, np.array([0.02]))[0] == pytest.approx(11 + 84 * 2 / 21)
    assert equipment_impairment(0, 25.1, np.array([0.05]), burst_ratio=2)[0] == pytest.approx(95 * 5 / 27.6)
    # ITU-T G.113 Table IV.3 and IV.4 for AMR-WB at 12.65 kbit/s.
    assert equipment_impairment(20, 4.3, np.array([0.02]))[0] == pytest.approx(43.8095, abs=1e-4)


@pytest.mark.parametrize(
    "worse",
    [{"slr": 15}, {"telr": 40}, {"wepl": 20}, {"qdu": 4}, {"nc": -50}, {"nfor": -50}, {"ps": 70}, {"pr": 70}],
)
def test_worse_connections_are_rated_lower(worse):
    def rating(transmission):
        given_, taken = narrowband_terms(np.array([0.05]), transmission)
        return given_[0] - taken[0]

    assert rating(Transmission(**worse)) < rating(DEFAULT) - 0.5


def test_echo_is_rated_against_the_basic_rating():
    # Roe = Ro + 1.5 (SLR + RLR) - 15, on which the wideband model's Roe,WB rests.
    for each in (DEFAULT, Transmission(slr=12, rlr=-2, nc=-60)):
        assert each.echo_basis == pytest.approx(each.basic_rating + 1.5 * (each.slr + each.rlr) - 15)


def test_wideband_scale():
    given_, taken = wideband_terms(np.zeros(1), DEFAULT)
    assert given_[0] == 129
    assert taken[0] == pytest.approx(0.153685, abs=1e-6)  # Idle alone, also by another implementation
    # Without delay impairments: AMR-WB at 12.65 and at 6.6 kbit/s, Ie,WB 13 and 41.
    assert mos_from_rating((129 - 13) / 1.29) == pytest.approx(4.3371, abs=5e-5)
    assert mos_from_rating((129 - 41) / 1.29) == pytest.approx(3.5123, abs=5e-5)


def test_wideband_terms_are_those_of_another_implementation():
    # It takes Roe,WB = 106.2083 from the narrowband noise formula with a noise floor of -96 dBmp.
    t = np.array([50.0, 150.0])
    echo = talker_echo_impairment(t, 106.2083, wideband_echo_rating(t, telr=65))
    assert echo == pytest.approx([0.092907, 0.355448], abs=1e-5)
    assert listener_echo_impairment(2 * t, BASIC_RATING, 110) == pytest.approx([0.652075, 1.012266], abs=1e-5)
    assert 1.29 * absolute_delay_impairment(np.array([200.0]), DEFAULT)[0] == pytest.approx(3.927294, abs=1e-6)


def test_wideband_delay_is_all_of_its_terms():
    t = np.array([200.0])
    parts = (
        talker_echo_impairment(t, BASIC_RATING, wideband_echo_rating(t, telr=65)),
        listener_echo_impairment(2 * t, BASIC_RATING, 110),
        1.29 * absolute_delay_impairment(t, DEFAULT),
    )
    assert wideband_delay_impairment(t / 1e3, DEFAULT) == pytest.approx(sum(parts))


@given(codecs, st.floats(0.0025, 5), st.floats(0, 5), st.floats(0, 1), st.floats(0, 1), st.floats(1, 8))
def test_rating_falls_with_delay_and_with_loss(codec, delay, more_delay, loss, more_loss, burst_ratio):
    ratings = voice_rating([delay, delay + more_delay], [[loss], [loss + (1 - loss) * more_loss]], codec, burst_ratio)
    assert np.all(np.diff(ratings, axis=0) <= 1e-9)
    assert np.all(np.diff(ratings, axis=1) <= 1e-9)


@given(codecs, st.floats(0, 1), st.floats(0.001, 1), st.floats(1, 8))
def test_bursts_are_worse_than_single_losses(codec, delay, loss, burst_ratio):
    assert voice_rating(delay, loss, codec, burst_ratio) <= voice_rating(delay, loss, codec)


@given(st.floats(-200, 200))
def test_scores_are_those_that_opinions_can_give(rating):
    assert 1 <= mos_from_rating(rating) <= 4.5


@given(st.floats(1, 4.5))
def test_score_to_rating_and_back(mos):
    assert mos_from_rating(rating_from_mos(mos)) == pytest.approx(mos, abs=1e-9)


@given(st.floats(LOWEST_RATING + 1e-3, 100))
def test_rating_to_score_and_back(rating):
    assert rating_from_mos(mos_from_rating(rating)) == pytest.approx(rating, abs=1e-6)


def test_arrays_keep_their_shape():
    assert mos_from_rating([[50.0], [200.0]]).tolist() == [[2.575], [4.5]]
    assert rating_from_mos([1.0, 4.5]) == pytest.approx([LOWEST_RATING, 100])
    assert isinstance(mos_from_rating(50), float)
    assert isinstance(rating_from_mos(3), float)


def test_planning_values_of_g113():
    values = {name: (codec.ie, codec.bpl) for name, codec in CODECS.items() if not codec.approximate}
    assert values == {
        "g711": (0, 25.1),
        "g711-no-plc": (0, 4.3),
        "g729a": (11, 19),
        "g723.1": (15, 16.1),
        "gsm-efr": (5, 10),
        "amr-wb-12.65": (20, 4.3),
        "amr-wb-23.05": (8, 4.6),
        "amr-wb-23.85": (10, 4.9),
    }
    assert all(codec.basis for codec in CODECS.values())


def test_unknown_codecs_are_refused():
    with pytest.raises(ValueError, match=r"codec must be one of g711, .*got 'mp3'"):
        codec_named("mp3")


@pytest.mark.parametrize(
    "wrong", [{"ie": -1}, {"ie": 95}, {"bpl": 0}, {"bpl": np.inf}, {"packet_interval": 0.001}, {"lookahead": np.nan}]
)
def test_what_is_no_codec_is_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} must"):
        Codec(**({"name": "x", "ie": 0, "bpl": 10, "packet_interval": 0.02} | wrong))


@pytest.mark.parametrize(
    "wrong", [{"slr": 19}, {"telr": 70}, {"advantage": -1}, {"minimum_delay": 100}, {"pr": np.nan}]
)
def test_what_the_recommendation_does_not_allow_is_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} must lie between"):
        Transmission(**wrong)


@pytest.mark.parametrize("mos", [0.9, 4.6, np.nan])
def test_scores_that_do_not_exist_are_refused(mos):
    with pytest.raises(ValueError, match=r"mos must lie between 1 and 4\.5"):
        rating_from_mos(mos)


# Calls over TCP

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
