"""`tcpdelay solve`: the largest quantity, or the best choice, with which a target is met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

import typer

from tcpdelay.cli.errors import argument_errors, counting, option_name, predicting
from tcpdelay.cli.options import (
    OUTPUT,
    ScenarioOptions,
    make_option,
    method_option,
    number,
    quantity,
    with_options,
    with_scenario,
)
from tcpdelay.cli.predict import FORMAT_HELP
from tcpdelay.cli.scenario import (
    RequestedScenario,
    SourceOptions,
    in_frames,
    read_scenario,
    varying_source,
    with_source,
)
from tcpdelay.declare import WHOLE, InvalidValueError, Kind
from tcpdelay.models.predict import AnsweredBy, supports
from tcpdelay.scenario.sources.speech import Speech, Utterances
from tcpdelay.scenario.stack import Linux
from tcpdelay.units import parse_time

if TYPE_CHECKING:
    from tcpdelay.report.answers import PlayerSolution, Solution

PlayerQuestion = Literal["startup", "gaps", "interruption"]
Question = Literal[
    "bitrate",
    "packet-rate",
    "playout",
    "loss",
    "rtt",
    "frontier",
    "interval",
    "split",
    "connections",
    "sensitivity",
    PlayerQuestion,
]
Growth = Literal["segments", "size", "rate"]
Format = Literal["text", "json", "csv"]

ASKED, PLAYER = "Details of the question", "Details of a player"
LATE_FRACTION = 0.01
ANY_BITRATE = 1e6
"""Placeholder of a bitrate that is searched for [bit/s]."""
PLAYER_QUESTIONS: tuple[Question, ...] = get_args(PlayerQuestion)
OF_ANY_SOURCE: tuple[Question, ...] = ("bitrate", "playout", "loss", "rtt", "frontier", *PLAYER_QUESTIONS)
"""The questions that have a meaning for sources whose rate is not constant."""
CALLS: tuple[Question, ...] = ("playout", "interval", "split", "connections")
ARGUMENTS = {"stalls": "stalls_per_hour", "gap_fraction": "gap_share", "playout_buffer": "buffer"}
"""The arguments of the library that have another name than their option."""
SUMMARY = "Find the largest bitrate, loss ... or the smallest buffer for a target."
EXAMPLES = """
\b
Questions:
  bitrate      largest bitrate that meets the target
  packet-rate  largest packet rate that meets the target (--packet-size)
  playout      smallest playout buffer for a share of late packets or a call
  loss, rtt    largest loss or round-trip time that meets the target
  frontier     largest loss at each round-trip time
  interval     best packet interval, and so the best packet size
  split        best number of pieces to write each packet in
  connections  best number of connections to spread the packets over
  sensitivity  how the delay depends on each input
  startup      smallest start-up buffer of a video for few stalls per hour
  gaps         smallest buffer that plays speech or replies without a gap
  interruption audio of a reply that can no longer be stopped

\b
An option for the quantity in question is not necessary; its value is ignored.

\b
Examples:
  tcpdelay solve loss --rtt 100ms --app voip
  tcpdelay solve bitrate --path transatlantic --app voip
  tcpdelay solve rtt --loss 2% --app voip --limit 150ms
  tcpdelay solve bitrate --rtt 60ms --loss 0.5% --limit 1s --quantile 99%
  tcpdelay solve playout --rtt 60ms --loss 0.5% --bitrate 300kbit/s \\
      --key-ratio 8
  tcpdelay solve playout --rtt 100ms --loss 2% --app voip --late-fraction 1%
  tcpdelay solve playout --rtt 100ms --loss 2% --app voip --codec g729a
  tcpdelay solve interval --rtt 100ms --loss 2% --bitrate 64kbit/s
  tcpdelay solve sensitivity --rtt 100ms --loss 2% --app voip --format csv
  tcpdelay solve startup --rtt 60ms --loss 0.5% --bitrate 1Mbit/s \\
      --key-ratio 8 --hours 4
  tcpdelay solve gaps --rtt 100ms --loss 1% --speed 3 \\
      --packet-size 960 --interval 20ms --bursts 2000
  tcpdelay solve interruption --rtt 100ms --loss 1% --speed 3 \\
      --packet-size 960 --interval 20ms --notsent-lowat 4kB --bursts 2000
"""


QUESTIONS = list(get_args(Question))


def _question(text: str) -> str:
    """Return a question; raise ValueError for any other text."""
    if text not in QUESTIONS:
        raise ValueError(f"{text!r} is none of {', '.join(QUESTIONS)}")
    return text


def _count(text: str) -> int:
    """Read a whole number."""
    if not text.strip().isdecimal() or len(text) > 4:
        raise ValueError(f"{text[:20]!r} is no small whole number; write 1,2,4")
    return int(text)


class Detail(NamedTuple):
    """A detail of some questions: its name, the questions, the type of its value, and its option."""

    name: str
    questions: tuple[Question, ...]
    type: Any
    option: Any


def _several(
    name: str, parse: Callable[[str], Any], metavar: str, meaning: str, default: str, question: Question
) -> Detail:
    """Return a detail that has several values, with commas between them."""

    def parse_all(text: str) -> tuple[Any, ...]:
        return tuple(parse(part) for part in text.split(","))

    described = f"For {question}: {meaning}"
    option = make_option(option_name(name), ASKED, described, default, metavar=metavar, parser=parse_all)
    return Detail(name, (question,), Any, option)


def _times(name: str, meaning: str, default: str, question: Question) -> Detail:
    """Return a detail that has several times."""
    return _several(name, partial(parse_time, name=option_name(name)), "TIMES", meaning, default, question)


def _counts(name: str, question: Question) -> Detail:
    """Return a detail that has several whole numbers."""
    return _several(name, _count, "NUMBERS", "candidates.", "1,2,4", question)


def _amount(
    name: str, kind: Kind, meaning: str, default: str | bool, *questions: Question, zero: bool = False
) -> Detail:
    """Return a detail that is a quantity, or a number without a unit."""
    panel = PLAYER if questions[0] in PLAYER_QUESTIONS else ASKED
    described = f"For {' and '.join(questions)}: {meaning}"
    if kind in ("number", "count"):
        option = number(option_name(name), panel, described, default)
    else:
        option = quantity(option_name(name), kind, panel, described, default, zero=zero)
    return Detail(name, questions, int if kind in WHOLE else float, option)


_GROW = (
    "For bitrate: how it grows. segments: larger packets up to one segment, then more packets; size: larger packets or "
    "frames; rate: more packets."
)
_HEADER = "bytes that the application adds to the data of each packet."
_STARTUP = "judge this start-up buffer, instead of the smallest that suffices. Example: 2s."
_BUFFER = "time from the arrival of a reply's first chunk to its playout."
_CODEC = "Rate calls with this codec (E-model): g711, g729a, opus-wb-15 ..."
_NO_CALL = "the delay counts, not a call's score"
_GROWTH = "segments, size with --fps or over rtmp, rate if no interval is known"
DETAILS: Mapping[str, Detail] = {
    detail.name: detail
    for detail in (
        Detail("grow", ("bitrate",), Growth, make_option("--grow", ASKED, _GROW, _GROWTH)),
        _amount("late_fraction", "fraction", "largest share of late packets.", "1%", "playout", zero=True),
        Detail("codec", CALLS, str, make_option("--codec", ASKED, _CODEC, _NO_CALL, metavar="NAME")),
        Detail("mos", CALLS, float, number("--mos", ASKED, "Smallest score (MOS) of a call.", "the best score")),
        _times("intervals", "candidates.", "10ms,20ms,...,60ms", "interval"),
        _amount("header", "size", _HEADER, "14, RTP and framing", "interval", zero=True),
        _counts("pieces", "split"),
        _counts("connections", "connections"),
        _times("rtts", "round-trip times.", "twelve round-trip times", "frontier"),
        _amount("step", "fraction", "relative change of each input.", "10%", "sensitivity", zero=True),
        _amount("stalls", "number", "largest number of stalls per hour.", "1", "startup"),
        _amount("startup", "time", _STARTUP, False, "startup", zero=True),
        _amount("rebuffer", "time", "buffer after a stall.", "as at the start", "startup", zero=True),
        _amount("catch_up", "fraction", "faster playback after a stall. Example: 5%.", "0%", "startup"),
        _amount("session", "time", "length of a session.", "600s", "startup"),
        _amount("hours", "number", "hours of video that are simulated.", "20", "startup"),
        _amount("gap_fraction", "fraction", "largest share of talk spurts or replies with a gap.", "1%", "gaps"),
        _amount("playout_buffer", "time", _BUFFER, "0s", "interruption", zero=True),
        _amount("notsent_lowat", "size", "TCP_NOTSENT_LOWAT of the socket.", "not set", "interruption"),
        _amount("bursts", "count", "talk spurts or replies that are simulated.", "10000", "gaps", "interruption"),
    )
}
"""The details of questions by name."""
_OPTIONS = {name: Annotated[detail.type | None, detail.option] for name, detail in DETAILS.items()}


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Return the given details by name."""
    return {name: value for name, value in values.items() if value is not None}


@with_scenario
@with_source
@partial(with_options, bundle="details", options=_OPTIONS, gather=_given)
def solve(
    options: ScenarioOptions,
    source: SourceOptions,
    details: dict[str, Any],
    question: Annotated[
        Any,
        typer.Argument(
            parser=_question,
            autocompletion=lambda: QUESTIONS,
            metavar="QUESTION",
            help="One of the questions below.",
            rich_help_panel=ASKED,
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[Format, make_option("--format", OUTPUT, FORMAT_HELP)] = "text",
    method: Annotated[
        AnsweredBy,
        method_option(
            ", and the simulator where the chain refuses the scenario, or does not decide whether a playout buffer or "
            "a choice meets the target."
        ),
    ] = "auto",
) -> None:
    """Find the largest or smallest value that meets a target, or the best choice, and what limits it."""
    if question is None:
        raise typer.BadParameter(f"QUESTION is missing; ask for one of {', '.join(QUESTIONS)} (--help explains them)")
    _refuse_unrelated(question, details)
    varying = varying_source(options, source)
    if varying:
        _refuse_source(question, varying, details)
    if options.over is not None and question == "interval":
        raise typer.BadParameter("--over: does not go with solve interval; give the bytes around the data as --header")
    if method == "chain" and question in PLAYER_QUESTIONS:
        raise typer.BadParameter(f"--method: solve {question} needs a simulation")
    if question in PLAYER_QUESTIONS:
        with argument_errors(), predicting():
            from tcpdelay.report.answers import answer_text

            found = _solve_player(question, options, source, details)
            text = answer_text(found, output_format, {})
        print(text, end="")
        return
    if question == "bitrate":
        details.setdefault("grow", "size" if varying else _growth(options))
    scenario = read_scenario(_without_quantity(question, options, details.get("grow"), source), source)
    with argument_errors(), predicting():
        from tcpdelay.report.answers import answer_text

        answer = _answer(question, scenario, options, details, method)
        ignored = supports(scenario, "chain" if answer.method == "chain" else "simulation").ignored
        text = answer_text(answer, output_format, ignored, options.over, scenario.preset_record)
    print(text, end="")


def _refuse_unrelated(question: Question, given: dict[str, Any]) -> None:
    """Raise typer.BadParameter if an option does not belong to the question, or contradicts another option."""
    for name in given:
        if question not in (others := DETAILS[name].questions):
            allowed = " or ".join(others)
            raise typer.BadParameter(f"{option_name(name)}: goes with solve {allowed}, not with {question}")
    if "late_fraction" in given and not given.keys().isdisjoint(("codec", "mos")):
        raise typer.BadParameter("--late-fraction and --codec or --mos: give one of them, a share or a call")


def _refuse_source(question: Question, varying: str, given: dict[str, Any]) -> None:
    """Raise typer.BadParameter if a question, or the rating of a call, has no meaning for a source.

    `varying` has the options by which its rate is not constant.
    """
    if question not in OF_ANY_SOURCE:
        allowed = ", ".join(OF_ANY_SOURCE)
        raise typer.BadParameter(f"{varying}: goes with solve {allowed}, not with {question}")
    for name in ("codec", "mos"):
        if name in given:
            raise typer.BadParameter(f"--{name}: does not go with {varying}")


def _growth(options: ScenarioOptions) -> Growth:
    """Return how the bitrate grows by default: frames and packets with a known interval become larger."""
    framed = options.over is not None and options.over.whole_frames and options["packet_size"] is None
    if options.fps is not None or framed:
        return "size"
    return "rate" if options.app is None and options["interval"] is None else "segments"


def _without_quantity(
    question: Question, options: ScenarioOptions, grow: Growth | None, source: SourceOptions
) -> ScenarioOptions:
    """Return the options with a placeholder for the quantity in question, because a scenario needs a value."""
    measured = options.ping is not None or options.ss is not None
    if question in ("loss", "frontier") and options["loss"] is None and not measured:
        options = options.changed(loss=0.0)
    if question in ("rtt", "frontier") and options["rtt"] is None and not measured:
        if options["one_way_delay"] is not None:
            raise typer.BadParameter("--one-way-delay: needs --rtt; their ratio is kept")
        options = options.changed(rtt=0.1)
    if question == "bitrate" and varying_source(options, source) and not source.needs_packets:
        # The bitrate of a video is scaled; a trace has its own.
        needs_rate = source.file is None and options.bitrate is None and options.app is None
        return options.changed(bitrate=ANY_BITRATE) if needs_rate else options
    if question == "bitrate":
        size = options["packet_size"]
        options = in_frames(options.changed(bitrate=ANY_BITRATE if size is None else None))
    if question == "bitrate" and grow != "rate":
        # The packets of the answer have their headers in them.
        options = options.changed(over=None)
    if question in ("bitrate", "packet-rate"):
        options = options.changed(bitrate=None)
        if options.app is None:
            full = options["mss"] or Linux().mss
            size = options["packet_size"] or (full if options.over is None else options.over.largest_payload(full))
            options = options.changed(packet_size=size, interval=options["interval"] or 0.020)
    return options


def _answer(
    question: Question,
    scenario: RequestedScenario,
    options: ScenarioOptions,
    details: dict[str, Any],
    method: AnsweredBy,
) -> Solution:
    """Return the answer to a question."""
    from tcpdelay.quality.voice import CallTarget
    from tcpdelay.study.best import best_connections, best_interval, best_split
    from tcpdelay.study.boundary import loss_rtt_frontier
    from tcpdelay.study.edge import largest_bitrate, largest_loss, largest_packet_rate, largest_rtt
    from tcpdelay.study.margins import sensitivities
    from tcpdelay.study.playout import playout_for_call, playout_for_late_fraction

    source, path, stack, target = scenario.source, scenario.path, scenario.stack, scenario.target
    own = dict(details)
    codec, mos = own.pop("codec", None), own.pop("mos", None)
    call = None if codec is None and mos is None else CallTarget(codec or "g711", mos)
    demand = call or target
    if question == "playout":
        own |= {"method": method, "on_progress": counting("Simulating", "packets at most")}
        if call is not None:
            return playout_for_call(scenario.flow, path, stack, call, **own)
        return playout_for_late_fraction(source, path, stack, **{"late_fraction": LATE_FRACTION, **own})
    several = question not in ("bitrate", "packet-rate", "loss", "rtt")
    own |= {"method": method, "on_progress": counting("Tried", "points" if several else "values at most")}
    if question == "interval":
        data = _data_rate(scenario, options, own.get("header"))
        return best_interval(data, path, stack, demand, **own)
    solvers: dict[Question, Callable[[], Solution]] = {
        "bitrate": lambda: largest_bitrate(source, path, stack, target, **own),
        "packet-rate": lambda: largest_packet_rate(scenario.flow, path, stack, target, **own),
        "loss": lambda: largest_loss(source, path, stack, target, **own),
        "rtt": lambda: largest_rtt(source, path, stack, target, **own),
        "frontier": lambda: loss_rtt_frontier(source, path, stack, target, **own),
        "split": lambda: best_split(scenario.flow, path, stack, demand, **own),
        "connections": lambda: best_connections(scenario.flow, path, stack, demand, **own),
        "sensitivity": lambda: sensitivities(scenario.flow, path, stack, target, **own),
    }
    return solvers[question]()


def _data_rate(scenario: RequestedScenario, options: ScenarioOptions, header: int | None) -> float:
    """Return the bitrate of the data without headers: --bitrate, or the bitrate of the packets without headers."""
    from tcpdelay.study.best import RTP_HEADER

    if options.bitrate is not None:
        return options.bitrate
    header = RTP_HEADER if header is None else header
    size = scenario.flow.packet_size - header
    if size < 1:
        raise typer.BadParameter(f"--header: {header} bytes leave no data in packets of {scenario.flow.packet_size}")
    return 8 * size / scenario.flow.interval


def _solve_player(
    question: PlayerQuestion, options: ScenarioOptions, source: SourceOptions, given: Mapping[str, Any]
) -> PlayerSolution:
    """Return the answer to a question about a player; `given` has its details."""
    for name in ("limit", "quantile"):
        if options[name] is not None:
            raise typer.BadParameter(f"--{name}: does not go with solve {question}, which has its own demand")
    scenario = read_scenario(options, source)
    if question != "startup" and not isinstance(scenario.source, Speech | Utterances):
        other = type(scenario.source).__name__.lower()
        kinds = "speech (--talk, --silence) or a voice agent's replies (--speed, --length, --pause)"
        raise typer.BadParameter(f"{question} is for {kinds}, not for a {other}")
    own = {ARGUMENTS.get(name, name): value for name, value in given.items()}
    try:
        return _player_answer(question, scenario, own | {"on_progress": counting("Simulating", "messages")})
    except InvalidValueError as error:
        option = next((name for name, argument in ARGUMENTS.items() if argument == error.name), error.name)
        raise InvalidValueError(option, error.value, error.allowed, error.hint) from error


def _player_answer(question: PlayerQuestion, scenario: RequestedScenario, own: dict[str, Any]) -> PlayerSolution:
    """Return the answer to a question, given the details by the names of the library."""
    from tcpdelay.quality.player import Player
    from tcpdelay.study.playback import audio_not_stoppable, playout_without_gaps, startup_for_stalls, video_stalls

    asked = (scenario.source, scenario.path, scenario.stack)
    if question == "gaps":
        return playout_without_gaps(*asked, **own)
    if question == "interruption":
        return audio_not_stoppable(*asked, **own)
    if "startup" not in own:
        return startup_for_stalls(*asked, **own)
    if "stalls_per_hour" in own:
        raise typer.BadParameter("--startup and --stalls: give one of them, a buffer or a demand")
    player = Player(**{name: own.pop(name) for name in ("startup", "rebuffer", "catch_up") if name in own})
    return video_stalls(*asked, player, **own)
