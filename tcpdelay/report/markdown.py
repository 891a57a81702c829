"""The report in Markdown."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from tcpdelay.report import phrases

if TYPE_CHECKING:
    from tcpdelay.report.content import Content

_SPECIAL = re.compile(r"([\\`*\[\]<>|&]|(?<!\w)_|_(?!\w))")
_BLOCK_START = re.compile(r"^([#+=~-]|\d+(?=[.)](?:\s|$)))")


class Verbatim(str):
    """Text that is already Markdown, so that nothing in it is escaped."""

    __slots__ = ()


def in_markdown(report: Content) -> str:
    """Return the content of a report in GitHub's Markdown.

    Examples
    --------
    >>> from tcpdelay import guideline
    >>> found = guideline(rtt=0.100, loss=0.02, packet_size=174, interval=0.020)
    >>> in_markdown(found.content()).splitlines()[0]
    '# Works, with 60 ms to spare'
    """
    return _environment().get_template("report.md.j2").render(report=report)


def escape(text: object) -> object:
    r"""Return Markdown that displays `text` literally, on one line.

    Examples
    --------
    >>> print(escape("< 0.001 % of a*b"))
    \< 0.001 % of a\*b
    """
    if not isinstance(text, str) or isinstance(text, Verbatim):
        return text
    line = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    return _BLOCK_START.sub(lambda start: f"{start[1]}\\" if start[1].isdigit() else f"\\{start[1]}", line)


def code(text: str) -> Verbatim:
    """Return a setting in Markdown, with its literal parts as code."""
    parts = []
    for part, typed in phrases.code_spans(" ".join(text.split())):
        if typed:
            parts.append(f"`{part}`")
        else:
            # `escape` removes the spaces next to code; restore them.
            before, after = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
            parts.append(f"{before}{escape(part)}{after}")
    return Verbatim("".join(parts))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tcpdelay.report"),
        autoescape=False,
        finalize=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = code
    environment.filters["verbatim"] = Verbatim
    return environment
