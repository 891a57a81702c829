"""The options of a source whose rate is not constant: a trace, a video, speech, or a voice agent's replies.

They are derived from the declarations of the sources' fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from tcpdelay.cli.errors import argument_errors, option_name
from tcpdelay.cli.options import FLOW, ScenarioOptions, declared_option, described, file_name, make_option, option_type
from tcpdelay.cli.output import Named
from tcpdelay.scenario.scenario import SOURCE_FIELDS
from tcpdelay.scenario.source import USUAL_FRAME_RATE, Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.sources.message_trace import Trace
from tcpdelay.scenario.sources.speech import Speech, Utterances
from tcpdelay.scenario.sources.video import Video

_MAKES: Mapping[type[Source], str] = {
    Video: "Makes --bitrate a video with key frames.",
    Speech: "Makes the packets speech with silences.",
    Utterances: "Makes the packets a voice agent's replies.",
    Trace: "With --source.",
}
"""What an option of a source does, for its help."""


def _option(name: str) -> Any:
    """Return the annotation of a field of a source: its type and its option."""
    source, declaration = SOURCE_FIELDS[name]
    shown = declaration.default_words or declaration.written(declaration.default).replace(" ", "")
    help_text = f"{described(declaration)} {_MAKES[source]}"
    return Annotated[option_type(declaration) | None, declared_option(name, declaration, FLOW, help_text, shown)]


SOURCE_OPTIONS: Mapping[str, Any] = {
    "source": Annotated[
        str | None,
        make_option(
            "--source",
            FLOW,
            "Messages to send: a CSV or Parquet file with the columns time (seconds) and size (bytes), "
            "and optionally kind.",
            False,
            metavar="FILE",
            parser=file_name,
        ),
    ],
    **{name: _option(name) for name in SOURCE_FIELDS},
}
"""The options, by the name of their parameter."""


@dataclass(frozen=True)
class SourceOptions:
    """The given options of a source whose rate is not constant.

    Parameters
    ----------
    file : str, optional
        The file of a trace.
    values : mapping of str to value
        The given fields by name, in seconds and numbers.
    """

    file: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> bool:
        """Whether any option is given."""
        return self.file is not None or bool(self.values)

    @property
    def files(self) -> list[Named]:
        """The option and the file of a trace."""
        return [("--source", self.file)]

    @property
    def names(self) -> str:
        """The spellings of the given options."""
        return " and ".join([*(["--source"] if self.file is not None else []), *map(option_name, self.values)])

    @property
    def kind(self) -> type[Source] | None:
        """The source that the options describe; None if no option is given.

        Raises
        ------
        typer.BadParameter
            If they describe several sources, or --period stands alone.
        """
        kinds = {SOURCE_FIELDS[name][0] for name in self.values} | ({Trace} if self.file is not None else set())
        if len(kinds) > 1:
            raise typer.BadParameter(f"{self.names}: are options of different sources")
        if kinds == {Trace} and self.file is None:
            raise typer.BadParameter("--period: goes with --source")
        return next(iter(kinds), None)

    @property
    def needs_packets(self) -> bool:
        """Whether the source has packets of one size and interval."""
        return self.kind in (Speech, Utterances)

    def of_packets(self, flow: Flow) -> Source:
        """Return the source that writes the packets of a flow in bursts."""
        source: Callable[..., Source] | None = self.kind
        assert source is not None
        return source(flow.packet_size, flow.interval, **self.values)

    def of_messages(self, options: ScenarioOptions) -> Source:
        """Return the trace or the video.

        Raises
        ------
        typer.BadParameter, ValueError
            If an option is missing or does not go with the others, or the file cannot be used.
        """
        bitrate, fps = options.bitrate, options.fps
        if self.file is not None:
            for spelling, value in (("--bitrate", bitrate), ("--fps", fps)):
                if value is not None:
                    raise typer.BadParameter(f"{spelling}: does not go with --source")
            with argument_errors("--source"):
                return Trace.read(self.file, **self.values)
        if bitrate is None:
            raise typer.BadParameter(f"{self.names}: needs --bitrate, or --app of a video")
        return Video(bitrate, USUAL_FRAME_RATE if fps is None else fps, **self.values)


NO_SOURCE = SourceOptions()


def with_source(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a source; its second parameter, `source`, receives them as `SourceOptions`."""
    hints = get_type_hints(command, include_extras=True)
    options, _, *own = inspect.signature(command).parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in SOURCE_OPTIONS.items()
    ]

    @wraps(command)
    def take_source(options: ScenarioOptions, **values: Any) -> None:
        file, given = values.pop("source"), {name: values.pop(name) for name in SOURCE_FIELDS}
        chosen = SourceOptions(file, {name: value for name, value in given.items() if value is not None})
        command(options, chosen, **values)

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    take_source.__signature__ = inspect.Signature([options, *added, *keyword_only])  # type: ignore[attr-defined]
    take_source.__annotations__ = {**hints, **SOURCE_OPTIONS}
    return take_source
