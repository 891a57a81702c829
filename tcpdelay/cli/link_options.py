"""Options of a link whose rate varies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcpdelay.cli.errors import argument_errors
from tcpdelay.cli.options import make_option, quantity
from tcpdelay.scenario.fields import InvalidValueError

if TYPE_CHECKING:
    from tcpdelay.network.link_trace import LinkTrace


def link_trace_option(panel: str) -> Any:
    """Return the option for the file of a trace."""
    meaning = (
        "Link whose rate varies: a trace of mahimahi (.up, .down), or a .csv with the columns time (s), rate "
        "(bit/s) and optionally delay (s). The trace repeats."
    )
    return make_option("--link-trace", panel, meaning, False, metavar="FILE")


def outage_every_option(panel: str) -> Any:
    """Return the option for the time between outages."""
    meaning = "Time between two outages of the link, such as handovers; the first is at the start. Example: 15s."
    return quantity("--outage-every", "time", panel, meaning, "none")


def outage_option(panel: str) -> Any:
    """Return the option for the duration of an outage."""
    return quantity("--outage", "time", panel, "Duration of each outage. Example: 300ms.", "none")


def read_varying_link(
    rate: float | None, file: Path | None, outage_every: float | None, outage: float | None
) -> LinkTrace | None:
    """Return the trace of a link by the options; None for a link that never varies."""
    # Imported here: it loads NumPy, which the help does without.
    from tcpdelay.network.link_trace import varying_link

    with argument_errors():
        try:
            return varying_link(rate, file, outage_every, outage)
        except InvalidValueError:
            raise
        except ValueError as error:
            raise ValueError(f"--link-trace: {error}") from error
