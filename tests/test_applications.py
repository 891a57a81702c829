"""The name of an application stands for its flow and its target in every question."""

import pandas as pd
import pytest

import tcpdelay as td
from tcpdelay import Path, Stack, Target
from tcpdelay.scenario import InvalidValueError
from tcpdelay.scenario.scenario import APPLICATIONS, application

PATH = Path(rtt=0.050, loss=0.01)
GAME = application("game")
QUESTIONS = {
    "largest_bitrate": lambda flow, *target: td.largest_bitrate(flow, PATH, None, *target).value,
    "largest_packet_rate": lambda flow, *target: td.largest_packet_rate(flow, PATH, None, *target).value,
    "largest_loss": lambda flow, *target: td.largest_loss(flow, PATH, None, *target).value,
    "largest_rtt": lambda flow, *target: td.largest_rtt(flow, PATH, None, *target).value,
    "loss_rtt_frontier": lambda flow, *target: td.loss_rtt_frontier(flow, PATH, None, *target, rtts=(0.05,)).losses,
    "sensitivities": lambda flow, *target: td.sensitivities(flow, PATH, None, *target).entries,
    "best_split": lambda flow, *target: td.best_split(flow, PATH, None, *target).candidates,
    "best_connections": lambda flow, *target: td.best_connections(flow, PATH, None, *target).candidates,
    "compare": lambda flow, *target: [
        row.result.mean_interval for row in td.compare(flow, PATH, None, *target, duration=20).rows
    ],
    "guideline": lambda flow, *target: td.guideline(flow, PATH, None, *target).margins,
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_a_name_stands_for_flow_and_target(ask):
    assert ask("game") == ask(GAME.flow, GAME.target)


def test_a_name_stands_for_the_flow_where_there_is_no_target():
    assert td.predict_delay("game", PATH).mean == td.predict_delay(GAME.flow, PATH).mean
    assert td.predict_delay("voip", rtt=0.05, loss=0.01).scenario[0] == application("voip").flow
    assert td.simulate("game", PATH, packets=2000).mean == td.simulate(GAME.flow, PATH, packets=2000).mean
    named, given = (td.playout_for_late_fraction(flow, PATH, None, 0.01) for flow in ("game", GAME.flow))
    assert named.value == given.value
    assert td.playout_for_call("voip", PATH).value == td.playout_for_call(application("voip").flow, PATH).value


def test_a_guideline_by_name_rates_the_call():
    assert td.guideline("voip", rtt=0.1, loss=0.02).call is not None
    assert td.guideline("voip", rtt=0.1, loss=0.02, target=Target(limit=0.3)).target.limit == 0.3


@pytest.mark.parametrize("ask", [*QUESTIONS.values(), lambda flow: td.predict_delay(flow, PATH)])
def test_an_unknown_name_is_refused_with_the_known_ones(ask):
    with pytest.raises(
        InvalidValueError,
        match=r"flow must be a Source, .*, or one of voip, opus, .*, got 'chess'",
    ):
        ask("chess")


@pytest.mark.parametrize("ask", [td.simulate, td.guideline, td.largest_loss, td.video_stalls])
@pytest.mark.parametrize("count", [1, 5000])
def test_a_trace_without_duration_is_refused_in_one_line(ask, count):
    with pytest.raises(InvalidValueError, match=r"^source must have a message later than the time 0, or a period, got"):
        ask(td.Trace([0.0] * count, [1000] * count), PATH)


@pytest.mark.parametrize("several", [[0.1, 0.2], pd.Series([0.1, 0.2])])
def test_several_values_at_once_point_to_the_function_for_tables(several):
    with pytest.raises(InvalidValueError, match=r"rtt must be a number in s, got .*; .* call tcpdelay\.predict_many"):
        td.predict_delay("voip", rtt=several, loss=0.02)


def test_the_limit_has_one_name_in_all_grids():
    rows = {"rtt": [0.1], "loss": [0.02]}
    assert not td.predict_many(rows, flow="voip", limit=0.1, cached=False)["works"][0]
    assert td.working_region("voip", rtt=0.1, loss=0.02, limit=0.3).attrs["limit"] == 0.3
    assert td.working_boundary("voip", Stack.linux(), rtt=0.1, limit=0.3).target == Target(0.3)


OTHER_SOURCES = {"live-video": td.Video, "voice-agent-reply": td.Utterances, "remote-desktop": td.Messages}


def test_applications_whose_rate_is_not_constant_are_the_sources_that_they_are():
    found = {name: type(preset.source) for name, preset in APPLICATIONS.items() if not preset.constant_rate}
    assert found == OTHER_SOURCES
    assert APPLICATIONS["live-video"].source.mean_bitrate == 2_500_000
    # A frame of a WebSocket server with 126 to 65535 bytes has a header of 4 bytes, RFC 6455.
    assert APPLICATIONS["voice-agent-reply"].source == td.Utterances(960 + 4, 0.020)
    assert APPLICATIONS["remote-desktop"].source.mean_bitrate == pytest.approx(1e6)


ASKING_FOR_A_FLOW = ("largest_packet_rate", "sensitivities", "best_split", "best_connections")


@pytest.mark.parametrize("name", OTHER_SOURCES)
@pytest.mark.parametrize("question", ASKING_FOR_A_FLOW)
def test_questions_about_a_constant_rate_refuse_the_others_in_one_line(question, name):
    with pytest.raises(InvalidValueError, match="flow must be a Flow, which has a constant rate") as raised:
        QUESTIONS[question](name)
    assert "\n" not in str(raised.value)


def test_a_chain_refuses_and_auto_simulates():
    with pytest.raises(ValueError, match="must be a Flow, which has a constant rate, in the chain"):
        td.predict_delay("remote-desktop", PATH, method="chain")
    found = td.predict_delay("remote-desktop", PATH, packets=2000)
    assert found.mean == td.simulate(APPLICATIONS["remote-desktop"].source, PATH, packets=2000).mean


def test_an_application_at_constant_rate_has_the_mean_and_says_so():
    video = APPLICATIONS["live-video"].at_constant_rate
    assert video.flow == td.Flow.from_bitrate(2_500_000, 1448)
    assert video.title == "Live video uplink, 2.5 Mbit/s, as a constant rate"
    assert GAME.at_constant_rate is GAME
    with pytest.raises(InvalidValueError, match="constant rate"):
        _ = APPLICATIONS["live-video"].flow
    assert APPLICATIONS["live-video"].unlike(td.Flow(174, 0.020)) == "69.6 kbit/s, but live-video sends 2.5 Mbit/s"
