"""`tcpdelay solve`: the largest quantity, or the best choice, with which a target is met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from tcpdelay.cli.options import (
    Destination,
    Options,
    ScenarioOptions,
    Share,
    Size,
    Time,
    command,
    method_option,
    option,
)
from tcpdelay.cli.output import argument_errors, counting, option_name, predicting
from tcpdelay.cli.predict import Format, number_format_option
from tcpdelay.cli.scenario import RequestedScenario, SourceOptions, in_frames, read_scenario, varying_source
from tcpdelay.declare import InvalidValueError
from tcpdelay.models.predict import AnsweredBy, supports
from tcpdelay.scenario.media import Speech, Utterances
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

ASKED, PLAYER = "Details of the question", "Details of a player"
LATE_FRACTION = 0.01
ANY_BITRATE = 1e6
"""Placeholder of a bitrate that is searched for [bit/s]."""
QUESTIONS: tuple[Question, ...] = get_args(Question)
PLAYER_QUESTIONS: tuple[Question, ...] = get_args(PlayerQuestion)
OF_ANY_SOURCE: tuple[Question, ...] = ("bitrate", "playout", "loss", "rtt", "frontier", *PLAYER_QUESTIONS)
"""The questions that have a meaning for sources whose rate is not constant."""
CALLS: tuple[Question, ...] = ("playout", "interval", "split", "connections")
ARGUMENTS = {"stalls": "stalls_per_hour", "gap_fraction": "gap_share", "playout_buffer": "buffer"}
"""The arguments of the library that have another name than their option."""


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


def _for(questions: str, meaning: str, shown: str | bool = False, **more: Any) -> Any:
    """Return the option for a detail of some `questions`, which have "and" between them."""
    goes_with = questions.split(" and ")
    panel = PLAYER if goes_with[0] in PLAYER_QUESTIONS else ASKED
    return option(f"For {questions}: {meaning}", shown, panel=panel, goes_with=goes_with, **more)


def _several(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return a function that reads several values with commas between them."""
    return lambda text: tuple(parse(part) for part in text.split(","))


class Details(Options, panel=ASKED):
    """The details of questions; `given` has those that are given, by name."""

    grow: Growth | None = _for(
        "bitrate",
        "how it grows. segments: larger packets up to one segment, then more packets; size: larger packets or frames; "
        "rate: more packets.",
        "segments, size with --fps or over rtmp, rate if no interval is known",
    )
    late_fraction: Share | None = _for("playout", "largest share of late packets.", "1%", zero=True)
    codec: str | None = option(
        "Rate calls with this codec (E-model): g711, g729a, opus-wb-15 ...",
        "the delay counts, not a call's score",
        metavar="NAME",
        goes_with=CALLS,
    )
    mos: float | None = option("Smallest score (MOS) of a call.", "the best score", goes_with=CALLS)
    intervals: Any = _for(
        "interval",
        "candidates.",
        "10ms,20ms,...,60ms",
        metavar="TIMES",
        parse=_several(partial(parse_time, name="--intervals")),
    )
    header: Size | None = _for(
        "interval", "bytes that the application adds to the data of each packet.", "14, RTP and framing", zero=True
    )
    pieces: Any = _for("split", "candidates.", "1,2,4", metavar="NUMBERS", parse=_several(_count))
    connections: Any = _for("connections", "candidates.", "1,2,4", metavar="NUMBERS", parse=_several(_count))
    rtts: Any = _for(
        "frontier",
        "round-trip times.",
        "twelve round-trip times",
        metavar="TIMES",
        parse=_several(partial(parse_time, name="--rtts")),
    )
    step: Share | None = _for("sensitivity", "relative change of each input.", "10%", zero=True)
    stalls: float | None = _for("startup", "largest number of stalls per hour.", "1")
    startup: Time | None = _for(
        "startup", "judge this start-up buffer, instead of the smallest that suffices. Example: 2s.", zero=True
    )
    rebuffer: Time | None = _for("startup", "buffer after a stall.", "as at the start", zero=True)
    catch_up: Share | None = _for("startup", "faster playback after a stall. Example: 5%.", "0%")
    session: Time | None = _for("startup", "length of a session.", "600s")
    hours: float | None = _for("startup", "hours of video that are simulated.", "20")
    gap_fraction: Share | None = _for("gaps", "largest share of talk spurts or replies with a gap.", "1%")
    playout_buffer: Time | None = _for(
        "interruption", "time from the arrival of a reply's first chunk to its playout.", "0s", zero=True
    )
    notsent_lowat: Size | None = _for("interruption", "TCP_NOTSENT_LOWAT of the socket.", "not set")
    bursts: int | None = _for("gaps and interruption", "talk spurts or replies that are simulated.", "10000")

    def __init__(self, **values: Any) -> None:
        self.given = {name: value for name, value in values.items() if value is not None}


class SolveOutput(Destination):
    """How a question is answered and written."""

    output_format: Format = number_format_option()
    method: AnsweredBy = method_option(
        ", and the simulator where the chain refuses the scenario, or does not decide whether a playout buffer or "
        "a choice meets the target."
    )


@command(
    "Find the largest bitrate, loss ... or the smallest buffer for a target.",
    """
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

An option for the quantity in question is not necessary; its value is ignored.

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
""",
)
def solve(
    options: ScenarioOptions,
    source: SourceOptions,
    details: Details,
    result: SolveOutput,
    question: Annotated[
        Any,
        typer.Argument(
            parser=_question,
            autocompletion=lambda: list(QUESTIONS),
            metavar="QUESTION",
            help="One of the questions below.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Find the largest or smallest value that meets a target, or the best choice, and what limits it."""
    if question is None:
        raise typer.BadParameter(f"QUESTION is missing; ask for one of {', '.join(QUESTIONS)} (--help explains them)")
    given, method = details.given, result.method
    _refuse_unrelated(question, given)
    varying = varying_source(options, source)
    if varying:
        _refuse_source(question, varying, given)
    if options.over is not None and question == "interval":
        raise typer.BadParameter("--over: does not go with solve interval; give the bytes around the data as --header")
    if method == "chain" and question in PLAYER_QUESTIONS:
        raise typer.BadParameter(f"--method: solve {question} needs a simulation")
    if question in PLAYER_QUESTIONS:
        with argument_errors(), predicting():
            from tcpdelay.report.answers import answer_text

            found = _solve_player(question, options, source, given)
            text = answer_text(found, result.output_format, {})
        print(text, end="")
        return
    if question == "bitrate":
        given.setdefault("grow", "size" if varying else _growth(options))
    with argument_errors():
        asked = _without_quantity(question, options, given.get("grow"), source)
    scenario = read_scenario(asked, source)
    with argument_errors(), predicting():
        from tcpdelay.report.answers import answer_text

        answer = _answer(question, scenario, options, given, method)
        ignored = supports(scenario, "chain" if answer.method == "chain" else "simulation").ignored
        text = answer_text(answer, result.output_format, ignored, options.over, scenario.preset_record)
    print(text, end="")


def _refuse_unrelated(question: Question, given: dict[str, Any]) -> None:
    """Raise typer.BadParameter if an option does not belong to the question, or contradicts another option."""
    for name in given:
        if question not in (others := Details.declared()[name].goes_with):
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
    known = options.ping is not None or options.ss is not None or options.path is not None
    if question in ("loss", "frontier") and options["loss"] is None and not known:
        options = options.changed(loss=0.0)
    if question in ("rtt", "frontier") and options["rtt"] is None and not known:
        if options["one_way_delay"] is not None:
            raise typer.BadParameter("--one-way-delay: needs --rtt; their ratio is kept")
        options = options.changed(rtt=0.1)
    of_packets = source.needs_packets and (options.app is None or options.app.constant_rate)
    if question == "bitrate" and varying_source(options, source) and not of_packets:
        # The bitrate of a video is scaled; a trace has its own.
        needs_rate = source.file is None and options.bitrate is None and options.app is None
        return options.changed(bitrate=ANY_BITRATE) if needs_rate else options
    if question == "bitrate":
        size = options["packet_size"]
        options = in_frames(options.changed(bitrate=ANY_BITRATE if size is None else None))
        # The packets of the answer have their headers in them, unless only their number grows.
        options = options if grow == "rate" else options.changed(over=None)
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
    from tcpdelay.study.largest import largest_bitrate, largest_loss, largest_packet_rate, largest_rtt
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
