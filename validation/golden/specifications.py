"""All specifications of the checkout as they are read: campaigns, sweeps and topologies of programs."""

from __future__ import annotations

import json
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from commands import in_directory
from recording import ROOT, Cases, digest, named, recorded

FOLDERS = ("examples", "validation", "tests", "docs")


def read(file: Path, reader: str) -> Any:
    """Return a specification as its reader returns it, and as the dry run of its command prints it."""
    found: dict[str, Any] = {"read": recorded(named(reader)(file))}
    command = {"read_specification": ("testbed", "run"), "read_sweep": ("sweep",)}.get(reader)
    if command is not None:
        found["dry run"] = in_directory([*command, str(file.relative_to(ROOT)), "--dry-run"])
    if reader == "read_specification":
        found["read"] = [json.loads(experiment.to_json()) for experiment in named(reader)(file).experiments]
    return found


def reader_of(content: dict[str, Any]) -> str | None:
    """Return the name of the function that reads a specification with this content."""
    readers = {"experiments": "read_specification", "grid": "read_sweep", "links": "read_topology"}
    return next((reader for key, reader in readers.items() if key in content), None)


def cases() -> Cases:
    """Return the specifications, by name and content: a file that only moves keeps its key."""
    found: Cases = {}
    for file in sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.toml")):
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        reader = reader_of(content)
        if reader is not None:
            key = f"{file.name} {digest(json.dumps(content, sort_keys=True, default=str))}"
            found[key] = partial(read, file, reader)
    return found
