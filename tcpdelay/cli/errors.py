"""What goes wrong, said in one line that names the option, the value and what is allowed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from tcpdelay.cli.progress import ERASE_LINE
from tcpdelay.validity import ValidityWarning

_ARGUMENT = re.compile(r"([a-z]+(?:_[a-z]+)*) must ")


@contextmanager
def argument_errors(option: str | None = None) -> Iterator[None]:
    """Turn a ValueError of the library into an error of the command line.

    Parameters
    ----------
    option : str, optional
        The option at fault; by default that of the argument which the message names first.

    Examples
    --------
    >>> from tcpdelay.scenario import Flow
    >>> try:
    ...     with argument_errors():
    ...         Flow(packet_size=0, interval=0.020)
    ... except typer.BadParameter as error:
    ...     print(error.message)
    --packet-size: must lie between 1 and 1e+07 bytes, got 0
    """
    try:
        yield
    except ValueError as error:
        message = str(error)
        argument = _ARGUMENT.match(message)
        if option is not None:
            message = f"{option}: {message}"
        elif argument is not None:
            # Behind the semicolon stands how Python wants the unit.
            allowed = message[argument.end(1) + 1 :].partition("; ")[0]
            message = f"--{argument.group(1).replace('_', '-')}: {allowed}"
        raise typer.BadParameter(message) from error


def one_line(error: typer.TyperException, command: str) -> str:
    """Return the command, the option and what is wrong with it."""
    # A missing argument has no message of its own.
    if isinstance(error, typer.BadParameter) and error.message:
        message = error.message.removeprefix("Value error, ")
        if error.param is not None and not message.startswith("--"):
            message = f"{error.param.opts[0]}: {message}"
    else:
        message = error.format_message()
        message = message[:1].lower() + message[1:]
    return printable(f"{command}: {message.rstrip('.')}")


def print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Stand in for `warnings.showwarning`: no category, no place in the source."""
    text = str(message).replace("_", " ") if isinstance(message, ValidityWarning) else str(message)
    # What shows the progress stands in the way.
    before = ERASE_LINE if sys.stderr.isatty() else ""
    print(before + printable(f"warning: {text}"), file=sys.stderr)


def printable(line: str) -> str:
    r"""Escape what would break the line or drive the terminal.

    Examples
    --------
    >>> print(printable("a\nb"))
    a\nb
    """
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)
