"""The answers of `tcpdelay solve` about players: stalls, gaps, and audio that cannot be stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tcpdelay.confidence import Interval
from tcpdelay.models.accuracy import in_words
from tcpdelay.questions.playback import StartupBuffer, VideoStalls
from tcpdelay.questions.player_answer import PlayerAnswer
from tcpdelay.questions.replies import STAGES, GaplessPlayout, UnstoppableAudio
from tcpdelay.report.answers import RenderedAnswer, Row, answer_text, rendered
from tcpdelay.report.prediction import expected_errors, scenario_in_words, scenario_record
from tcpdelay.scenario.target import REPORTED_QUANTILES
from tcpdelay.units import format_fraction, format_size, format_time, quantile_name


def player_text(
    answer: StartupBuffer | VideoStalls | GaplessPlayout | UnstoppableAudio, chosen: Literal["text", "json", "csv"]
) -> str:
    """Return an answer about a player as text, JSON or CSV."""
    return answer_text(answer, chosen, {})


@rendered.register
def _(stalls: VideoStalls) -> RenderedAnswer:
    player = stalls.player
    after = f"resumes with {format_time(player.resumes_at)}"
    catches_up = f"catches up at {format_fraction(player.catch_up)}" if player.catch_up else "does not catch up"
    lengths = [stalls.stall_quantile(probability) for probability in REPORTED_QUANTILES]
    facts = [
        ("player", f"starts with {format_time(player.startup)} of media time, {after}, {catches_up}"),
        ("first picture", f"{_range(stalls.startup_delay, format_time)} after the write of its frame"),
        ("stalls per hour", _range(stalls.stalls_per_hour, _number)),
        ("time stalled", _range(stalls.stalled_share, format_fraction)),
        ("length of a stall", _in_words(lengths) if stalls.stall_lengths.size else "no stall occurred"),
        ("without a stall", f"{_range(stalls.undisturbed, format_fraction)} of the sessions"),
        ("simulated", f"{stalls.sessions} sessions of {format_time(stalls.session)}"),
        *_scenario(stalls),
    ]
    record = {
        "question": "startup",
        "startup": player.startup,
        "rebuffer": player.resumes_at,
        "catch_up": player.catch_up,
        **_interval("startup_delay", stalls.startup_delay),
        **_interval("stalls_per_hour", stalls.stalls_per_hour),
        **_interval("stalled_share", stalls.stalled_share),
        **_interval("undisturbed_share", stalls.undisturbed),
    }
    simulated = {"session": stalls.session, "sessions": stalls.sessions, **_record(stalls)}
    return RenderedAnswer(facts, record | _quantiles("stall", lengths) | simulated)


@rendered.register
def _(buffer: StartupBuffer) -> RenderedAnswer:
    low, high = buffer.value_range
    beyond = "more than is simulated" if np.isinf(high) else format_time(high)
    with_it = rendered(buffer.stalls)
    facts = [
        ("start-up buffer", f"{format_time(buffer.value)} of media time"),
        ("within the error", f"{format_time(low)} to {beyond}"),
        ("for", f"at most {_number(buffer.stalls_per_hour)} stalls per hour"),
        *with_it.facts,
    ]
    record = {
        "question": "startup",
        "value": buffer.value,
        "value_low": low,
        "value_high": high,
        "allowed_stalls_per_hour": buffer.stalls_per_hour,
    }
    return RenderedAnswer(facts, {**record, **with_it.record})


@rendered.register
def _(found: GaplessPlayout) -> RenderedAnswer:
    buffer = found.value.value
    with_it, without = found.gaps(buffer), found.gaps(0.0)
    starts = [found.start_quantile(probability, buffer) for probability in REPORTED_QUANTILES]
    facts = [
        ("playout buffer", f"{_range(found.value, format_time)} from the first arrival to the playout"),
        ("with a gap", f"{_range(with_it, format_fraction)}, asked for {format_fraction(found.gap_share)}"),
        ("without a buffer", f"{_range(without, format_fraction)} have a gap"),
        ("starts after", f"{_in_words(starts)} from the first write to the playout"),
        ("simulated", f"{found.bursts} talk spurts or replies"),
        *_scenario(found),
    ]
    record = {
        "question": "gaps",
        **_interval("value", found.value),
        "allowed_gap_share": found.gap_share,
        **_interval("gap_share", with_it),
        **_interval("gap_share_without_buffer", without),
    }
    return RenderedAnswer(facts, record | _quantiles("start", starts) | {"bursts": found.bursts, **_record(found)})


@rendered.register
def _(audio: UnstoppableAudio) -> RenderedAnswer:
    limit = "not set" if audio.notsent_lowat is None else format_size(audio.notsent_lowat)
    facts = [
        ("playout buffer", format_time(audio.buffer)),
        ("TCP_NOTSENT_LOWAT", limit),
        *_scenario(audio),
    ]
    rows: list[Row] = []
    cells: list[list[str]] = []
    for stage in STAGES:
        row: Row = {"stage": stage}
        cell = [stage]
        for probability in REPORTED_QUANTILES:
            seconds, size = audio.seconds(stage, probability), audio.bytes(stage, probability)
            name = quantile_name(probability)
            row |= {**_interval(f"seconds_{name}", seconds), **_interval(f"bytes_{name}", size)}
            cell.append(f"{format_time(seconds.value)}, {format_size(size.value)}")
        rows.append(row)
        cells.append(cell)
    record = {
        "question": "interruption",
        "buffer": audio.buffer,
        "notsent_lowat": audio.notsent_lowat,
        **_record(audio),
    }
    headings = ["audio", *map(quantile_name, REPORTED_QUANTILES)]
    return RenderedAnswer(facts, record, "stages", rows, headings, cells)


def _in_words(quantiles: Sequence[Interval]) -> str:
    """Return times at `REPORTED_QUANTILES` in words, without their intervals."""
    return ", ".join(
        f"{quantile_name(probability)} {format_time(time.value)}"
        for probability, time in zip(REPORTED_QUANTILES, quantiles, strict=True)
    )


def _quantiles(name: str, quantiles: Sequence[Interval]) -> dict[str, float]:
    """Return times at `REPORTED_QUANTILES` as entries of a record, with their intervals."""
    record: dict[str, float] = {}
    for probability, time in zip(REPORTED_QUANTILES, quantiles, strict=True):
        record |= _interval(f"{name}_{quantile_name(probability)}", time)
    return record


def _scenario(found: PlayerAnswer) -> list[tuple[str, str]]:
    """Return the scenario and the expected error as labels and values."""
    return [
        ("scenario", scenario_in_words(found.source, found.path)),
        ("error of delays", in_words(found.expected_error)),
    ]


def _record(found: VideoStalls | GaplessPlayout | UnstoppableAudio) -> dict[str, Any]:
    """Return method, scenario and expected error as entries of a record."""
    return {
        "method": found.method,
        **scenario_record(found.source, found.path),
        **expected_errors(found.expected_error),
    }


def _interval(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _range(interval: Interval, written: Any) -> str:
    """Return a value and its interval in words."""
    value, low, high = map(written, interval)
    return value if low == high else f"{value} ({low} to {high})"


def _number(value: float) -> str:
    return f"{value:.3g}"
