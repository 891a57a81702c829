"""Options that take a range: two quantities with `..` between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import typer

from tcpdelay.cli.options import PATH

if TYPE_CHECKING:
    from collections.abc import Callable

BETWEEN = ".."


@dataclass(frozen=True)
class Range:
    """Two ends of a range, in seconds or as fractions."""

    low: float
    high: float


def parse_range(text: str, name: str, parse: Callable[..., float]) -> Range:
    """Read two quantities with `..` between them.

    Raises
    ------
    ValueError
        If there are not two, or the second is not the larger one.

    Examples
    --------
    >>> from tcpdelay.units import parse_fraction, parse_time
    >>> parse_range("10ms..400ms", "--rtt", parse_time)
    Range(low=0.01, high=0.4)
    >>> parse_range("2%", "--loss", parse_fraction)
    Traceback (most recent call last):
    ValueError: --loss: '2%' is no range; write two values with .. between them
    """
    first, between, last = text.partition(BETWEEN)
    if not between:
        raise ValueError(f"{name}: {text[:64]!r} is no range; write two values with {BETWEEN} between them")
    low, high = parse(first, name), parse(last, name)
    if not low < high:
        raise ValueError(f"{name}: in {text[:64]!r} the first value is not below the second")
    return Range(low, high)


def range_option(
    name: str, parse: Callable[..., float], metavar: str, description: str, default: str
) -> typer.models.OptionInfo:
    """Return an option with a range of the path."""
    option: typer.models.OptionInfo = typer.Option(
        name,
        parser=partial(parse_range, name=name, parse=parse),
        metavar=f"{metavar}{BETWEEN}{metavar}",
        help=description,
        rich_help_panel=PATH,
        show_default=default,
    )
    return option
