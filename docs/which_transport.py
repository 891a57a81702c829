"""Draw which transport meets an application's target on which path: python docs/which_transport.py.

It simulates each application over TCP, QUIC and UDP on a grid of round-trip times and losses, and writes
images/which-transport.csv and images/which-transport.svg. With --draw it only draws the table again. It takes some
minutes.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path as FilePath

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from tcpdelay.accuracy.validity import ValidityWarning
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import application
from tcpdelay.study.transports import Comparison, compare
from tcpdelay.units import format_fraction, format_time

IMAGES = FilePath(__file__).parent / "images"
TABLE, CHART = IMAGES / "which-transport.csv", IMAGES / "which-transport.svg"
RTTS = (0.020, 0.040, 0.080, 0.120, 0.180, 0.240, 0.320)
LOSSES = (0.001, 0.002, 0.005, 0.015, 0.030, 0.040, 0.060)
"""Losses beside the shares of packets that the targets allow to be late: there chance would decide for datagrams."""
DURATIONS = {"voip": 2000.0, "live-video": 1000.0, "remote-control": 2000.0}
"""Applications, and the time to simulate each [s]."""
CHOICES = {
    "tcp": ("T", "TCP", "#0072b2"),
    "quic-stream": ("Q", "QUIC, one stream", "#56b4e9"),
    "quic-streams": ("S", "QUIC, a stream per message", "#009e73"),
    "quic-datagram": ("D", "QUIC datagrams", "#f0e442"),
    "udp": ("U", "UDP", "#e69f00"),
    "none": ("\N{EN DASH}", "none", "#d9d9d9"),
}
"""Letter, words and colour of each contender, the simplest first, and of no contender."""
WAYS = [way for way in CHOICES if way != "none"]


def cells(name: str, comparison: Comparison) -> list[dict[str, str | float | bool]]:
    """Return one row of the table per transport."""
    return [
        {
            "application": name,
            "rtt": comparison.path.rtt,
            "loss": comparison.path.loss,
            "transport": row.contender.name,
            "meets_target": comparison.meets(row),
            "undecided": comparison.undecided(row) or comparison.unsettled(row),
            "late_fraction": comparison.missed(row),
            "late_error": comparison.missed_error(row),
            "sustainable": row.result.sustainable,
        }
        for row in comparison.rows
    ]


def simulated() -> pd.DataFrame:
    """Return the table: every application and transport on every path."""
    rows = []
    for name, duration in DURATIONS.items():
        for rtt in RTTS:
            for loss in LOSSES:
                found = compare(name, Path(rtt=rtt, loss=loss), duration=duration, seed=1, ways=WAYS)
                rows += cells(name, found)
            print(f"{name}, {1e3 * rtt:g} ms", file=sys.stderr)
    return pd.DataFrame(rows)


def simplest(transports: pd.DataFrame) -> tuple[str, bool]:
    """Return the simplest contender that meets the target, and whether chance may have decided about it."""
    known = transports.set_index("transport")
    chosen = next((way for way in WAYS if known.meets_target[way]), "none")
    considered = WAYS if chosen == "none" else WAYS[: WAYS.index(chosen) + 1]
    return chosen, bool(known.undecided[considered].any())


def draw(table: pd.DataFrame) -> Figure:
    """Return the chart: one panel per application, one square per path."""
    figure = Figure(figsize=(10, 4.3), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(DURATIONS), sharey=True), DURATIONS, strict=True):
        own = table[table.application == name]
        for column, rtt in enumerate(RTTS):
            for row, loss in enumerate(LOSSES):
                chosen, undecided = simplest(own[(own.rtt == rtt) & (own.loss == loss)])
                letter, _, colour = CHOICES[chosen]
                place = (column - 0.5, row - 0.5)
                axes.add_patch(Rectangle(place, 1, 1, facecolor=colour, edgecolor="white"))
                text_colour = "white" if chosen == "tcp" else "black"
                axes.text(column, row, letter + ("?" if undecided else ""), ha="center", va="center", color=text_colour)
        axes.set_xlim(-0.5, len(RTTS) - 0.5)
        axes.set_ylim(-0.5, len(LOSSES) - 0.5)
        axes.set_xticks(range(len(RTTS)), [f"{1e3 * rtt:g}" for rtt in RTTS])
        axes.set_yticks(range(len(LOSSES)), [format_fraction(loss) for loss in LOSSES])
        axes.set_xlabel("round-trip time [ms]")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        target = application(name).target
        axes.set_title(f"{name}\n{format_fraction(target.quantile)} within {format_time(target.limit)}", fontsize=11)
    figure.axes[0].set_ylabel("loss of packets")
    figure.legend(
        handles=[Patch(color=colour, label=f"{letter}  {words}") for letter, words, colour in CHOICES.values()],
        loc="outside lower center",
        ncols=len(CHOICES),
        columnspacing=1.4,
        handlelength=1.2,
        frameon=False,
    )
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="only draw the table again")
    if not parser.parse_args().draw:
        warnings.simplefilter("ignore", ValidityWarning)
        simulated().to_csv(TABLE, index=False, float_format="%.6g")
    mpl.rcParams |= {"svg.hashsalt": "which-transport", "svg.fonttype": "none"}
    draw(pd.read_csv(TABLE)).savefig(CHART, metadata={"Date": None})
