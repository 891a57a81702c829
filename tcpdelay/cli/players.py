"""The questions of `tcpdelay solve` about players: stalls, gaps, and audio that cannot be stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from tcpdelay.cli.errors import counting
from tcpdelay.cli.options import ScenarioOptions, number, quantity
from tcpdelay.cli.scenario import RequestedScenario, SourceOptions, read_scenario
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.sources.speech import Speech, Utterances

if TYPE_CHECKING:
    from tcpdelay.questions.playback import GaplessPlayout, StartupBuffer, UnstoppableAudio, VideoStalls

PlayerAnswer: TypeAlias = "StartupBuffer | VideoStalls | GaplessPlayout | UnstoppableAudio"
PlayerQuestion = Literal["startup", "gaps", "interruption"]

PANEL = "Details of a player"

OPTIONS: Mapping[str, Any] = {
    "stalls": Annotated[float | None, number("--stalls", PANEL, "Of startup: largest number of stalls per hour.", "1")],
    "startup": Annotated[
        float | None,
        quantity(
            "--startup",
            "time",
            PANEL,
            "Of startup: judge this start-up buffer, instead of the smallest that suffices. Example: 2s.",
            zero=True,
        ),
    ],
    "rebuffer": Annotated[
        float | None,
        quantity("--rebuffer", "time", PANEL, "Of startup: buffer after a stall.", "as at the start", zero=True),
    ],
    "catch_up": Annotated[
        float | None,
        quantity("--catch-up", "fraction", PANEL, "Of startup: faster playback after a stall. Example: 5%.", "0%"),
    ],
    "session": Annotated[
        float | None, quantity("--session", "time", PANEL, "Of startup: length of a session.", "600s")
    ],
    "hours": Annotated[float | None, number("--hours", PANEL, "Of startup: hours of video that are simulated.", "20")],
    "gap_fraction": Annotated[
        float | None,
        quantity(
            "--gap-fraction", "fraction", PANEL, "Of gaps: largest share of talk spurts or replies with a gap.", "1%"
        ),
    ],
    "playout_buffer": Annotated[
        float | None,
        quantity(
            "--playout-buffer",
            "time",
            PANEL,
            "Of interruption: time from the arrival of a reply's first chunk to its playout.",
            "0s",
            zero=True,
        ),
    ],
    "notsent_lowat": Annotated[
        int | None,
        quantity("--notsent-lowat", "size", PANEL, "Of interruption: TCP_NOTSENT_LOWAT of the socket.", "not set"),
    ],
    "bursts": Annotated[
        int | None,
        number("--bursts", PANEL, "Of gaps and interruption: talk spurts or replies that are simulated.", "10000"),
    ],
}
"""The options of a player by name."""
GOES_WITH: Mapping[str, tuple[PlayerQuestion, ...]] = {
    **dict.fromkeys(("--stalls", "--startup", "--rebuffer", "--catch-up", "--session", "--hours"), ("startup",)),
    "--gap-fraction": ("gaps",),
    "--playout-buffer": ("interruption",),
    "--notsent-lowat": ("interruption",),
    "--bursts": ("gaps", "interruption"),
}
"""The questions for which each option can be given."""
ARGUMENTS = {"stalls": "stalls_per_hour", "gap_fraction": "gap_share", "playout_buffer": "buffer"}
"""The arguments of the library that have another name than their option."""
EXAMPLES = """\
  tcpdelay solve startup --rtt 60ms --loss 0.5% --bitrate 1Mbit/s \\
      --key-ratio 8 --hours 4
  tcpdelay solve gaps --rtt 100ms --loss 1% --speed 3 \\
      --packet-size 960 --interval 20ms --bursts 2000
  tcpdelay solve interruption --rtt 100ms --loss 1% --speed 3 \\
      --packet-size 960 --interval 20ms --notsent-lowat 4kB --bursts 2000
"""


def solve_player(
    question: PlayerQuestion, options: ScenarioOptions, source: SourceOptions, given: Mapping[str, Any]
) -> PlayerAnswer:
    """Return the answer to a question about a player; `given` has the details by their option."""
    for name in ("limit", "quantile"):
        if options[name] is not None:
            raise typer.BadParameter(f"--{name}: does not go with solve {question}, which has its own demand")
    scenario = read_scenario(options, source)
    if question != "startup" and not isinstance(scenario.source, Speech | Utterances):
        other = type(scenario.source).__name__.lower()
        kinds = "speech (--talk, --silence) or a voice agent's replies (--speed, --length, --pause)"
        raise typer.BadParameter(f"{question} is for {kinds}, not for a {other}")
    names = [name.removeprefix("--").replace("-", "_") for name in given]
    own = {ARGUMENTS.get(name, name): value for name, value in zip(names, given.values(), strict=True)}
    try:
        return _answer(question, scenario, own | {"on_progress": counting("Simulating", "messages")})
    except InvalidValueError as error:
        option = next((name for name, argument in ARGUMENTS.items() if argument == error.name), error.name)
        raise InvalidValueError(option, error.value, error.allowed, error.hint) from error


def _answer(question: PlayerQuestion, scenario: RequestedScenario, own: dict[str, Any]) -> PlayerAnswer:
    """Return the answer to a question, given the details by the names of the library."""
    from tcpdelay.quality.player import Player
    from tcpdelay.questions.playback import audio_not_stoppable, playout_without_gaps, startup_for_stalls, video_stalls

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
