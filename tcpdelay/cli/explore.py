"""`tcpdelay explore`: a page with sliders that works without a server."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcpdelay.cli.errors import announce_prediction, counting, erase_progress, interrupted_once
from tcpdelay.cli.options import FLOW, OUTPUT, make_option, path_preset_option, result_option
from tcpdelay.cli.output import refuse_directory, refuse_missing_folder, write_atomically
from tcpdelay.scenario.applications import APPLICATIONS, Application, application

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tcpdelay.scenario.path_presets import PathPreset

Points = Literal["coarse", "fine"]

ALL = "all"
DEFAULT = "voip"
DEFAULT_POINTS: Points = "fine"
SUFFIXES = (".html", ".htm")
SUMMARY = "Write a page with sliders for paths and bitrates."
EXAMPLES = """
\b
Examples:
  tcpdelay explore --points coarse
  tcpdelay explore --path lte --points coarse
  tcpdelay explore --app game --points coarse -o game.html

\b
The page is one file for any browser. It needs no server and no network.
Fine points take about a minute for voip and much longer for live-video.
"""


OFFERED = [preset for preset in APPLICATIONS.values() if preset.constant_rate or preset.video]
"""Applications of a constant rate, and videos, which the page takes as a constant rate and says so."""
NAMES = [*(preset.name for preset in OFFERED), ALL]


def _applications(name: str) -> tuple[Application, ...]:
    """Return the applications that a page has, by the value of --app."""
    if name == ALL:
        return tuple(preset.at_constant_rate for preset in OFFERED)
    if name not in NAMES:
        raise typer.BadParameter(f"must be one of {', '.join(NAMES[:-1])} or {ALL}, got {name!r}")
    return (application(name).at_constant_rate,)


def explore(
    app: Annotated[
        Any,
        make_option(
            "--app",
            FLOW,
            "A typical application: its packets and its target.",
            DEFAULT,
            metavar="|".join(NAMES),
            parser=_applications,
            autocompletion=lambda: NAMES,
        ),
    ] = None,
    path: Annotated[
        Any, path_preset_option("The path at which the page opens, one of tcpdelay paths: its mean RTT and its loss.")
    ] = None,
    points: Annotated[
        Points | None,
        make_option(
            "--points", OUTPUT, "Spacing of the points that are predicted; the page interpolates.", DEFAULT_POINTS
        ),
    ] = None,
    output: Annotated[Path, result_option("File of the page.", True)] = Path("explorer.html"),
) -> None:
    """Write a page with sliders for round-trip time, loss and bitrate: what works, and the delays."""
    refuse_directory(output, "--output")
    if output.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(f"--output: {str(output)!r} does not end in one of {', '.join(SUFFIXES)}")
    refuse_missing_folder(output, "--output")
    from tcpdelay.report.explorer import in_range

    if path is not None and not in_range(path):
        raise typer.BadParameter(f"--path: the page has no round-trip time or loss as that of {path.name}")
    if app is None and points is None:
        print(
            f"predicting {DEFAULT}, {DEFAULT_POINTS} points, for {output}; --app chooses another application, "
            "--points coarse is quicker, --help has examples",
            file=sys.stderr,
        )
    page = _page(app or _applications(DEFAULT), points or DEFAULT_POINTS, path).encode()
    write_atomically(output, page, "--output")
    print(f"{output}: {len(page) / 1e6:.1f} MB, for any browser")


def _page(applications: Sequence[Application], points: Points, path: PathPreset | None) -> str:
    announce_prediction()
    try:
        # The processes that predict end with this one, and release what they share.
        with interrupted_once():
            from tcpdelay.report.explorer import to_html
            from tcpdelay.study.explorer import COARSE, FINE, compute_surfaces, measure_accuracy

            grid, processes = {"coarse": COARSE, "fine": FINE}[points], os.cpu_count() or 1
            explored = []
            for chosen in applications:
                show = counting("Predicting", f"points for {chosen.name}")
                surfaces = compute_surfaces(chosen, grid, processes, show)
                show = counting("Checking", f"points for {chosen.name}")
                explored.append((surfaces, measure_accuracy(surfaces, processes=processes, on_progress=show)))
            return to_html(explored, path)
    finally:
        erase_progress()
