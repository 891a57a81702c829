"""The events of every chain: whole shifts with the same mean, phases without events, events that never occur."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.chain.events import begin, finished, new_events, put, put_repeat


@given(st.floats(-1e6, 1e6), st.floats(1e-9, 1.0), st.floats(0.0, 1e3))
def test_whole_shifts_have_the_mean_and_the_probability_of_the_event(shift, probability, duration):
    events = new_events(2, 2)
    begin(events, 0, 5, 1)
    put(events, 1, 0, shift, probability, duration)
    phases, transitions = finished(events)
    assert (phases["window"][0], phases["recovery"][0]) == (5, 1)
    assert 1 <= transitions.size <= 2
    assert transitions["probability"].sum() == pytest.approx(probability, rel=1e-8)
    mean = (transitions["probability"] * transitions["shift"]).sum() / probability
    assert mean == pytest.approx(shift, rel=1e-8, abs=1e-8)
    assert set(transitions["shift"]) <= {math.floor(shift), math.floor(shift) + 1}
    assert set(transitions["duration"]) == {duration}
    assert set(zip(transitions["target"], transitions["target_when_empty"], strict=True)) == {(1, 0)}


def test_events_belong_to_the_phase_that_has_begun_and_other_phases_have_none():
    events = new_events(4, 3)
    begin(events, 1, 0, 0)
    put(events, 2, 2, 0.0, 0.5, 1.0)
    put(events, 3, 3, 1.0, 0.0, 1.0)
    put(events, 3, 3, 1.0, 0.5, 1.0)
    begin(events, 3, 0, 0)
    put(events, 0, 0, 0.0, 1.0, 1.0)
    phases, transitions = finished(events)
    # The event without a probability is left out.
    assert phases["first_transition"].tolist() == [0, 0, 2, 2, 3]
    assert transitions["target"].tolist() == [2, 3, 0]


@pytest.mark.parametrize(("shift", "sent", "whole", "duration"), [(2.5, 3.0, 3, 6.0), (-4.4, 1.0, -4, 0.0)])
def test_an_event_that_stays_in_its_phase_is_one_event(shift, sent, whole, duration):
    events = new_events(1, 1)
    begin(events, 0, 0, 0)
    put_repeat(events, 0, shift, 0.25, sent)
    _, (event,) = finished(events)
    assert (event["target"], event["target_when_empty"]) == (0, 0)
    assert (event["shift"], event["probability"], event["duration"]) == (whole, 0.25, duration)
