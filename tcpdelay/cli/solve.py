"""`tcpdelay solve`: what a flow or its path may be like, for a target to be met."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, get_args

import typer

from tcpdelay.cli.errors import ERASE_LINE, argument_errors, counting, predicting
from tcpdelay.cli.options import OUTPUT, ScenarioOptions, quantity, with_scenario
from tcpdelay.cli.scenario import Scenario, read_scenario
from tcpdelay.scenario.stack import Linux
from tcpdelay.units import parse_fraction, parse_size, parse_time

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
]
Growth = Literal["segments", "size", "rate"]
Format = Literal["text", "json", "csv"]

ASKED = "What is asked in particular"
LATE_FRACTION = 0.01
CALLS: tuple[Question, ...] = ("playout", "interval", "split", "connections")
GOES_WITH: dict[str, tuple[Question, ...]] = {
    "--grow": ("bitrate",),
    "--late-fraction": ("playout",),
    "--codec": CALLS,
    "--mos": CALLS,
    "--intervals": ("interval",),
    "--header": ("interval",),
    "--pieces": ("split",),
    "--connections": ("connections",),
    "--rtts": ("frontier",),
    "--step": ("sensitivity",),
}
"""The questions that each option belongs to."""
WITHOUT_OVER: dict[Question, str] = {
    "bitrate": "does not go with solve bitrate, whose answer counts all bytes that are written to TCP",
    "interval": "does not go with solve interval; give the bytes around the data as --header",
}
"""Why questions about the size of packets do not take --over."""
SUMMARY = "Ask the other way round: which bitrate, loss, buffer ... will do?"
EXAMPLES = """
\b
Questions:
  bitrate      the largest that meets the target
  packet-rate  the largest, of packets of --packet-size
  playout      the smallest buffer for a share of late packets, or for a call
  loss, rtt    the largest that the path may have
  frontier     the largest loss at each round-trip time
  interval     how much data to put into one packet
  split        into how many pieces to write each packet
  connections  over how many of them to spread the packets
  sensitivity  what the delay depends on

\b
What is asked for need not be given, and does not count if it is.

\b
Examples:
  tcpdelay solve loss --rtt 100ms --app voip
  tcpdelay solve rtt --loss 2% --app voip --limit 150ms
  tcpdelay solve bitrate --rtt 60ms --loss 0.5% --limit 1s --quantile 99%
  tcpdelay solve playout --rtt 100ms --loss 2% --app voip --late-fraction 1%
  tcpdelay solve playout --rtt 100ms --loss 2% --app voip --codec g729a
  tcpdelay solve interval --rtt 100ms --loss 2% --bitrate 64kbit/s
  tcpdelay solve sensitivity --rtt 100ms --loss 2% --app voip --format csv
"""


def _questions() -> list[str]:
    """Return what can be asked."""
    return list(get_args(Question))


def _question(text: str) -> str:
    """Return the question, if it is one."""
    if text not in _questions():
        raise ValueError(f"{text!r} is none of {', '.join(_questions())}")
    return text


def _listed(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return what reads a list of quantities, with commas between them."""
    return lambda text: tuple(parse(part) for part in text.split(","))


def _count(text: str) -> int:
    """Read a whole number."""
    if not text.strip().isdecimal() or len(text) > 4:
        raise ValueError(f"{text[:20]!r} is no small whole number; write 1,2,4")
    return int(text)


def _list_option(name: str, parse: Callable[[str], Any], metavar: str, description: str, default: str) -> Any:
    """Return an option that takes several values."""
    return typer.Option(
        name, parser=_listed(parse), metavar=metavar, help=description, rich_help_panel=ASKED, show_default=default
    )


def _times(name: str, description: str, default: str) -> Any:
    """Return an option that takes several times."""
    return _list_option(name, partial(parse_time, name=name), "TIMES", description, default)


def _counts(name: str, description: str) -> Any:
    """Return an option that takes several whole numbers."""
    return _list_option(name, _count, "NUMBERS", description, "1,2,4")


@with_scenario
def solve(
    options: ScenarioOptions,
    question: Annotated[
        Any,
        typer.Argument(
            parser=_question,
            autocompletion=_questions,
            metavar="QUESTION",
            help="Which one; see below.",
            rich_help_panel=ASKED,
            show_default=False,
        ),
    ],
    grow: Annotated[
        Growth | None,
        typer.Option(
            "--grow",
            help="Of bitrate: larger packets up to one segment, then more of them; larger ones; or more of them.",
            rich_help_panel=ASKED,
            show_default="segments, or rate if no interval is known",
        ),
    ] = None,
    late_fraction: Annotated[
        float | None,
        quantity("--late-fraction", parse_fraction, "SHARE", ASKED, "Of playout: packets that may be late.", "1%"),
    ] = None,
    codec: Annotated[
        str | None,
        typer.Option(
            "--codec",
            help="Ask for a call's score (E-model) with this codec: g711, g729a, opus-wb-15 ...",
            metavar="NAME",
            rich_help_panel=ASKED,
            show_default="the delay is asked for",
        ),
    ] = None,
    mos: Annotated[
        float | None,
        typer.Option(
            "--mos", help="Least score of a call.", metavar="NUMBER", rich_help_panel=ASKED, show_default="the best"
        ),
    ] = None,
    intervals: Annotated[Any, _times("--intervals", "Of interval: what to choose from.", "10ms,20ms,...,60ms")] = None,
    header: Annotated[
        int | None,
        quantity(
            "--header",
            partial(parse_size, allow_zero=True),
            "SIZE",
            ASKED,
            "Of interval: what the application puts before the data.",
            "14, RTP and framing",
        ),
    ] = None,
    pieces: Annotated[Any, _counts("--pieces", "Of split: what to choose from.")] = None,
    connections: Annotated[Any, _counts("--connections", "Of connections: what to choose from.")] = None,
    rtts: Annotated[Any, _times("--rtts", "Of frontier: round-trip times.", "twelve of them")] = None,
    step: Annotated[
        float | None,
        quantity("--step", parse_fraction, "SHARE", ASKED, "Of sensitivity: by which inputs are changed.", "10%"),
    ] = None,
    output_format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="json and csv hold seconds, bytes, bit/s and fractions; infinite is null in json, inf in csv.",
            rich_help_panel=OUTPUT,
        ),
    ] = "text",
) -> None:
    """Search for the value that just meets a target, or choose the best one; say what limits it."""
    given = {
        "--grow": grow,
        "--late-fraction": late_fraction,
        "--codec": codec,
        "--mos": mos,
        "--intervals": intervals,
        "--header": header,
        "--pieces": pieces,
        "--connections": connections,
        "--rtts": rtts,
        "--step": step,
    }
    _refuse_strangers(question, given)
    if options.over is not None and question in WITHOUT_OVER:
        raise typer.BadParameter(f"--over: {WITHOUT_OVER[question]}")
    scenario = read_scenario(_with_what_is_asked(question, options))
    particulars = {name: value for name, value in given.items() if value is not None}
    if question == "bitrate":
        known = options.app is not None or options.interval is not None
        particulars.setdefault("--grow", "segments" if known else "rate")
    with argument_errors():
        try:
            with predicting():
                from tcpdelay.report.answers import print_answer

                answer = _answer(question, scenario, options, particulars)
        finally:
            if sys.stderr.isatty():
                print(ERASE_LINE, end="", file=sys.stderr, flush=True)
    print_answer(answer, output_format)


def _refuse_strangers(question: Question, given: dict[str, Any]) -> None:
    """Raise typer.BadParameter if an option has nothing to do with the question, or contradicts another."""
    for option, value in given.items():
        if value is not None and question not in GOES_WITH[option]:
            raise typer.BadParameter(f"{option}: goes with solve {' or '.join(GOES_WITH[option])}, not with {question}")
    if given["--late-fraction"] is not None and (given["--codec"] or given["--mos"]) is not None:
        raise typer.BadParameter("--late-fraction and --codec or --mos: give one of them, a share or a call")


def _with_what_is_asked(question: Question, options: ScenarioOptions) -> ScenarioOptions:
    """Return the options with something in place of what is asked for, which a scenario cannot do without."""
    measured = options.ping is not None or options.ss is not None
    if question in ("loss", "frontier") and options.loss is None and not measured:
        options = replace(options, loss=0.0)
    if question in ("rtt", "frontier") and options.rtt is None and not measured:
        if options.one_way_delay is not None:
            raise typer.BadParameter("--one-way-delay: needs --rtt, of which it keeps its share")
        options = replace(options, rtt=0.1)
    if question in ("bitrate", "packet-rate"):
        options = replace(options, bitrate=None)
        if options.app is None:
            full = options.mss or Linux().mss
            size = options.packet_size or (full if options.over is None else options.over.largest_payload(full))
            interval = options.interval or 0.020
            options = replace(options, packet_size=size, interval=interval)
    return options


def _answer(question: Question, scenario: Scenario, options: ScenarioOptions, particulars: dict[str, Any]) -> object:
    """Return the answer to a question."""
    from tcpdelay.quality.voice import CallTarget
    from tcpdelay.questions.largest import (
        largest_bitrate,
        largest_loss,
        largest_packet_rate,
        largest_rtt,
        loss_rtt_frontier,
    )
    from tcpdelay.questions.playout import playout_for_call, playout_for_late_fraction
    from tcpdelay.questions.sensitivity import sensitivities
    from tcpdelay.questions.ways import best_connections, best_interval, best_split

    flow, path, stack, target = scenario.flow, scenario.path, scenario.stack, scenario.target
    own = {name.removeprefix("--").replace("-", "_"): value for name, value in particulars.items()}
    codec, mos = own.pop("codec", None), own.pop("mos", None)
    call = None if codec is None and mos is None else CallTarget(codec or "g711", mos)
    wanted = call or target
    shown = counting("Tried", "points")
    if question == "playout":
        if call is not None:
            return playout_for_call(flow, path, stack, call)
        return playout_for_late_fraction(flow, path, stack, own.get("late_fraction", LATE_FRACTION))
    if question == "interval":
        data = _data_rate(scenario, options, own.get("header"))
        return best_interval(data, path, stack, wanted, **own, on_progress=shown)
    solvers: dict[Question, Callable[[], object]] = {
        "bitrate": lambda: largest_bitrate(flow, path, stack, target, **own),
        "packet-rate": lambda: largest_packet_rate(flow, path, stack, target),
        "loss": lambda: largest_loss(flow, path, stack, target),
        "rtt": lambda: largest_rtt(flow, path, stack, target),
        "frontier": lambda: loss_rtt_frontier(flow, path, stack, target, **own, on_progress=shown),
        "split": lambda: best_split(flow, path, stack, wanted, **own, on_progress=shown),
        "connections": lambda: best_connections(flow, path, stack, wanted, **own, on_progress=shown),
        "sensitivity": lambda: sensitivities(flow, path, stack, target, **own, on_progress=shown),
    }
    return solvers[question]()


def _data_rate(scenario: Scenario, options: ScenarioOptions, header: int | None) -> float:
    """Return the bitrate without headers: that of --bitrate, or of the packets that are given, less theirs."""
    from tcpdelay.questions.ways import RTP_HEADER

    if options.bitrate is not None:
        return options.bitrate
    taken = RTP_HEADER if header is None else header
    size = scenario.flow.packet_size - taken
    if size < 1:
        raise typer.BadParameter(f"--header: {taken} bytes leave nothing of packets of {scenario.flow.packet_size}")
    return 8 * size / scenario.flow.interval
