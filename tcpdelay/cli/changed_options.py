"""A scenario but for some options, as `--against OPTION=VALUE` asks for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, get_type_hints

import typer

from tcpdelay.cli.errors import one_line
from tcpdelay.cli.options import ScenarioOptions, with_scenario

_PAIR = re.compile(r"(?:--)?([a-z_-]+)=(.+)", re.DOTALL)
_FLAGS = {name for name, hint in get_type_hints(ScenarioOptions).items() if hint == bool | None}
_ON_OFF = {"on": "", "off": "no-"}


def changed_options(options: ScenarioOptions, changes: Sequence[str]) -> ScenarioOptions:
    """Return `options` with those changed that `changes` name, each read as the option of the command is.

    Parameters
    ----------
    options : ScenarioOptions
        What was asked for.
    changes : sequence of str
        Such as "loss=1%"; the last word on an option counts. A flag takes "on" or "off".

    Returns
    -------
    ScenarioOptions
        The other scenario's options.

    Raises
    ------
    typer.BadParameter
        If a change is no OPTION=VALUE, names no option of a scenario, or its value is none.

    Examples
    --------
    >>> changed_options(ScenarioOptions(rtt=0.1, loss=0.02), ["loss=1%"]).loss
    0.01
    """
    known = {field.name for field in fields(ScenarioOptions)}
    values: dict[str, Any] = {}
    for change in changes:
        pair = _PAIR.fullmatch(change)
        if pair is None:
            raise typer.BadParameter(f"--against: must be OPTION=VALUE, such as loss=1%, got {change!r}")
        name = pair[1].replace("-", "_")
        if name not in known:
            near = get_close_matches(name, sorted(known), n=1)
            meant = f"; did you mean {near[0].replace('_', '-')}?" if near else ""
            raise typer.BadParameter(f"--against: {pair[1]!r} is no option of a scenario{meant}")
        values[name] = _read(name, pair[2])
    return replace(options, **values)


def _read(name: str, value: str) -> object:
    """Return the value of one option, read by the same declaration as on the command line."""
    option, words = name.replace("_", "-"), [value]
    if name in _FLAGS:
        if value not in _ON_OFF:
            raise typer.BadParameter(f"--against: {option} must be on or off, got {value!r}")
        option, words = f"{_ON_OFF[value]}{option}", []
    read: list[ScenarioOptions] = []
    reader = typer.Typer(add_completion=False)

    def keep(options: ScenarioOptions) -> None:
        read.append(options)

    reader.command()(with_scenario(keep))
    try:
        typer.main.get_command(reader).main([f"--{option}", *words], standalone_mode=False)
    except typer.BadParameter as error:
        said = one_line(error, "").partition("--")[2]
        raise typer.BadParameter(f"--against: {said}") from error
    return getattr(read[0], name)
