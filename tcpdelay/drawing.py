"""How a result is drawn: by a chart or table of the reports, which is looked up when a method asks for it.

Results stand below the reports, and reports import results. So no class imports what draws it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def drawn(how: str, *given: object, **options: object) -> Any:
    """Return what a function of `tcpdelay.report` makes of a result; `how` has its module and its name.

    Examples
    --------
    >>> drawn("document.html_table", "Delays", ("", "p95"), [("tcp", "140 ms")])[:40]
    '<table><caption>Delays</caption><thead><'
    """
    module, _, name = how.partition(".")
    return getattr(import_module(f"tcpdelay.report.{module}"), name)(*given, **options)
