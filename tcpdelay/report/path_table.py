"""The presets of paths: a table of their parameters, and the sources of one of them."""

from __future__ import annotations

from collections.abc import Sequence

from tcpdelay.report.content import preset_rows, preset_section
from tcpdelay.report.result_table import Column, ResultTable
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.path_presets import WARNING, PathPreset

FIELDS = ("rtt", "one_way_delay", "jitter", "in_order", "loss", "bad_time", "bad_loss")
"""Fields of a path that presets set."""


def presets_table(presets: Sequence[PathPreset]) -> ResultTable:
    """Return the parameters of presets, one row for each; seconds and fractions in files."""
    rows = []
    for preset in presets:
        path = Path.preset(preset.name)
        values = {name: getattr(path, name) for name in FIELDS} | {"one_way_delay": path.forward_delay}
        if not path.jitter:
            values["in_order"] = None
        if not path.bad_time:
            values |= {"bad_time": None, "bad_loss": None}
        rows.append({"name": preset.name, "title": preset.title, **values})
    columns = [
        Column("name", "path"),
        Column("title", "what it is"),
        Column("rtt", "RTT", "time"),
        Column("jitter", "jitter", "time"),
        Column("in_order", "in order"),
        Column("loss", "loss", "fraction"),
        Column("bad_time", "bad time", "time"),
        Column("bad_loss", "bad loss", "fraction"),
    ]
    note = (
        f"Take care: {WARNING}. The jitter is the largest additional delay; in order, no segment overtakes another "
        "one. All losses are in bad states of this mean duration, or random without a bad time. tcpdelay paths "
        "NAME has the source of each value."
    )
    return ResultTable("paths", "Paths that people have", columns, rows, note)


def preset_text(preset: PathPreset) -> str:
    """Return the values of a preset with their sources, as text."""
    path = Path.preset(preset.name)
    lines = [*preset_section(preset, path).paragraphs, ""]
    for values, statement, source in preset_rows(preset, path):
        lines += [values, f"    {statement}", *([] if source == "none" else [f"    {source}"])]
    return "\n".join(lines) + "\n"
