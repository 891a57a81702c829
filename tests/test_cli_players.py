"""`tcpdelay solve startup`, `gaps` and `interruption`: the answers are the library's, in every format."""

import csv
import io
import json

import pytest

import tcpdelay as td

PATH = ["--rtt", "100ms", "--loss", "1%"]
VIDEO = [*PATH, "--bitrate", "1Mbit/s", "--key-ratio", "8"]
SHORT = ["--session", "60s", "--hours", "1"]
REPLIES = [*PATH, "--packet-size", "960", "--interval", "20ms", "--speed", "3", "--bursts", "1000"]


def answer(run, *arguments):
    status, printed, errors = run("solve", *arguments, "--format", "json")
    assert (status, errors) == (0, "")
    return json.loads(printed)


def test_the_startup_buffer_is_that_of_the_library(run):
    found = answer(run, "startup", *VIDEO, *SHORT, "--stalls", "10", "--rebuffer", "100ms")
    video, path = td.Video(1e6), td.Path(rtt=0.1, loss=0.01)
    expected = td.startup_for_stalls(video, path, stalls_per_hour=10, rebuffer=0.1, session=60, hours=1)
    assert (found["value"], found["value_low"], found["value_high"]) == (expected.value, *expected.value_range)
    assert found["stalls_per_hour"] == expected.stalls.stalls_per_hour.value <= 10
    judged = answer(run, "startup", *VIDEO, *SHORT, "--startup", f"{found['value']}s", "--rebuffer", "100ms")
    for name in ("stalls_per_hour", "stalled_share", "stall_p95", "startup_delay", "undisturbed_share"):
        assert judged[name] == found[name]


def test_the_playout_without_gaps_is_that_of_the_library(run):
    found = answer(run, "gaps", *REPLIES, "--gap-fraction", "2%")
    expected = td.playout_without_gaps(
        td.Utterances(960, 0.020, speed=3), td.Path(rtt=0.1, loss=0.01), gap_share=0.02, bursts=1000
    )
    assert found["value"] == expected.value.value
    assert found["gap_share"] <= 0.02 < found["gap_share_without_buffer"]
    assert found["start_p95"] == expected.start_quantile(0.95, expected.value.value).value


def test_the_audio_that_cannot_be_stopped_is_that_of_the_library(run):
    found = answer(run, "interruption", *REPLIES, "--notsent-lowat", "4kB", "--playout-buffer", "100ms")
    expected = td.audio_not_stoppable(
        td.Utterances(960, 0.020, speed=3), td.Path(rtt=0.1, loss=0.01), buffer=0.1, notsent_lowat=4000, bursts=1000
    )
    for stage in found["stages"]:
        assert stage["seconds_p95"] == pytest.approx(expected.seconds(stage["stage"], 0.95).value)
        assert stage["bytes_p99"] == pytest.approx(expected.bytes(stage["stage"], 0.99).value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["startup", *VIDEO, *SHORT, "--stalls", "20"],
        ["startup", *VIDEO, *SHORT, "--startup", "10s"],
        ["gaps", *REPLIES],
        ["interruption", *REPLIES],
    ],
)
def test_text_and_csv_hold_the_answer(run, arguments):
    status, printed, errors = run("solve", *arguments)
    assert (status, errors) == (0, "")
    assert len(printed.splitlines()) > 5
    rows = list(csv.DictReader(io.StringIO(run("solve", *arguments, "--format", "csv")[1])))
    assert len(rows) == (5 if arguments[0] == "interruption" else 1)


def test_a_playout_buffer_for_the_frames_of_a_video(run, tmp_path):
    frames = tmp_path / "frames.csv"
    frames.write_text("time,size\n" + "".join(f"{number / 30},{3000}\n" for number in range(30)))
    found = answer(run, "playout", *PATH, "--source", str(frames), "--period", "1s", "--late-fraction", "5%")
    assert found["late_fraction"] <= 0.05 < found["late_beyond"]
    assert found["method"] == "simulation"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["startup", *VIDEO, "--bursts", "1000"], "--bursts: goes with solve gaps or interruption, not with startup"),
        (["startup", *VIDEO, "--limit", "2s"], "--limit: does not go with solve startup"),
        (["startup", *VIDEO, "--stalls", "1", "--startup", "2s"], "--startup and --stalls: give one of them"),
        (["startup", *VIDEO, "--method", "chain"], "--method: solve startup needs a simulation"),
        (["startup", *VIDEO, "--hours", "0"], "--hours: must lie above 0"),
        (
            ["startup", *VIDEO, "--hours", "0.2"],
            "--hours: must lie between 2.67 and 185.2, 16 sessions of 600 s",
        ),
        (["startup", *VIDEO, "--stalls", "-1"], "--stalls: must be a number from 0 on"),
        (["startup", *VIDEO, "--hours", "1", "--session", "300s"], "--session: must lie between 1 s and 225 s"),
        (["gaps", *VIDEO], "gaps is for speech (--talk, --silence) or a voice agent's replies"),
        (
            ["interruption", *REPLIES, "--playout-buffer", "2e9s"],
            "--playout-buffer: must be a number of seconds from 0 to 3600",
        ),
        (["gaps", *REPLIES, "--gap-fraction", "0%"], "--gap-fraction"),
        (["interruption", *REPLIES, "--bursts", "7"], "--bursts: must be a whole number between 1000"),
        (
            ["sensitivity", "--rtt", "100ms", "--loss", "1%", "--app", "voip", "--silence", "1s"],
            "--silence: goes with solve bitrate, ",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(run, arguments, words):
    status, printed, errors = run("solve", *arguments)
    assert (status, printed) == (2, "")
    assert words in errors
    assert len(errors.splitlines()) == 1
