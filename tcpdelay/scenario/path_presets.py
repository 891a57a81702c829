"""Presets of paths that people have: `path_presets.toml` has their parameters, sources and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.link import Discipline
from tcpdelay.store import read_toml

WARNING = "real paths of this kind differ widely: measure yours with ping"
"""Said wherever a preset is used."""


@dataclass(frozen=True)
class Basis:
    """Where parameters of a preset come from."""

    fields: tuple[str, ...]  # The parameters
    statement: str  # What the source says, or that the values are assumed
    source: str = ""  # The source: authors, title and address; empty for an assumption
    # Year, and month or quarter if known, of the measurement or else of the publication; empty for an assumption.
    date: str = ""


@dataclass(frozen=True)
class PresetLink:
    """The bottleneck of a preset, for simulations of a shared link, where losses come from the queue alone."""

    rtt: float  # Round-trip time without queueing [s]
    rate: float  # Rate of the link [bit/s]
    bulk: int  # Number of long transfers on the link
    queue: int | None = None  # Longest queue [packets]; None for the default of the discipline in Linux
    discipline: Discipline = "drop-tail"  # Queue discipline of the link


@dataclass(frozen=True)
class PathPreset:
    """A path that people have."""

    name: str
    title: str  # The path in a few words
    values: Mapping[str, float | bool]  # Parameters of `tcpdelay.Path` [s, fractions]
    ranges: Mapping[str, tuple[float, float]]  # Best and worst value among paths of this kind [s, fractions]
    ranges_from: str  # Where the ranges come from
    basis: tuple[Basis, ...]  # Where the parameters come from; each parameter has an entry
    not_modelled: str  # What such paths do that the model leaves out
    link: PresetLink | None = None  # The bottleneck, if queueing there is a part of the delay

    def changed(self, **changes: Any) -> dict[str, Any]:
        """Return the parameters of `tcpdelay.Path` with some of them changed.

        Without a `one_way_delay`, another `rtt` is taken to be alike in both directions.
        """
        own = {name: value for name, value in self.values.items() if name != "one_way_delay" or "rtt" not in changes}
        return own | changes


def _presets() -> dict[str, PathPreset]:
    """Return the presets of `path_presets.toml`, by name."""
    found = {}
    for name, table in read_toml(Path(__file__).with_suffix(".toml")).items():
        basis = tuple(Basis(**{**each, "fields": tuple(each["fields"])}) for each in table.pop("basis"))
        link = table.pop("link", None)
        found[name] = PathPreset(name, basis=basis, link=link and PresetLink(**link), **table)
    return found


PATH_PRESETS = _presets()
"""The presets by name."""


def path_preset(name: object) -> PathPreset:
    """Return the preset called `name`."""
    if not isinstance(name, str) or name not in PATH_PRESETS:
        raise InvalidValueError("path", name, f"be one of {', '.join(PATH_PRESETS)}")
    return PATH_PRESETS[name]
