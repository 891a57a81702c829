"""Surfaces in the user's cache, so that the next table of the same flow, TCP and target begins where the last ended."""

from __future__ import annotations

import hashlib
import os
import secrets
import zipfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tcpdelay import __version__
from tcpdelay.batch.interpolation import Cells
from tcpdelay.batch.outcome import Nodes
from tcpdelay.batch.surface import SHARE_AT_PROBES, STATED, Surface
from tcpdelay.region.question import Question

_REFINEMENT = ("outcome.py", "interpolation.py", "surface.py")


def surface_path(asked: Question) -> Path:
    """Return where the surface of a question is kept, or would be.

    That is `tcpdelay/surfaces` in `$XDG_CACHE_HOME` or `~/.cache`. The name changes with the question, the promised
    errors, and the source of the chain and of the refinement.

    Examples
    --------
    >>> from tcpdelay.region.question import question
    >>> voip, opus = (surface_path(question(name, None, None, None)) for name in ("voip", "opus"))
    >>> voip.suffix, voip == opus
    ('.npz', False)
    """
    # The XDG base directory specification ignores a relative path.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (base if base.is_absolute() else Path.home() / ".cache") / "tcpdelay" / "surfaces"
    key = repr((asked, STATED, SHARE_AT_PROBES, __version__, _source_digest()))
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"


@cache
def _source_digest() -> str:
    """Return a digest of what surfaces depend on."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    sources = [*(package / "chain").rglob("*.py"), *(package / "batch" / name for name in _REFINEMENT)]
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def load_surface(asked: Question) -> Surface:
    """Return the surface of a question as far as it has been kept, or a new one.

    Examples
    --------
    >>> from tcpdelay.region.question import question
    >>> load_surface(question("voip", None, 0.123, 0.9)).asked.target.limit
    0.123
    """
    surface = Surface(asked)
    # A file that cannot be read is as good as none.
    with (
        suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile),
        surface_path(asked).open("rb") as file,
        np.load(file) as kept,
    ):
        nodes = Nodes(*(kept[f"nodes_{name}"] for name in Nodes._fields))
        cells = Cells(*(kept[f"cells_{name}"] for name in Cells._fields))
        keys, places = kept["keys"], kept["places"]
        origin, depth, rows = kept["origin"], kept["depth"], kept["rows_left"]
        surface.nodes, surface.cells, surface.origin, surface.depth, surface.rows_left = (
            nodes, cells, origin, depth, rows,
        )  # fmt: skip
        surface.node_at = dict(zip(keys.tolist(), places.tolist(), strict=True))
    return surface


def save_surface(surface: Surface) -> bool:
    """Keep a surface for later, whole or not at all; return whether that was possible.

    Examples
    --------
    >>> from tcpdelay.region.question import question
    >>> save_surface(Surface(question("voip", None, 0.123, 0.9)))
    True
    """
    if not surface.whole:
        return False
    path = surface_path(surface.asked)
    temporary = path.with_name(f".{secrets.token_hex(8)}.npz")
    arrays: dict[str, Any] = {f"nodes_{name}": array for name, array in zip(Nodes._fields, surface.nodes, strict=True)}
    arrays |= {f"cells_{name}": array for name, array in zip(Cells._fields, surface.cells, strict=True)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            np.savez(
                temporary,
                keys=np.fromiter(surface.node_at, np.int64, len(surface.node_at)),
                places=np.fromiter(surface.node_at.values(), np.int64, len(surface.node_at)),
                origin=surface.origin,
                depth=surface.depth,
                rows_left=surface.rows_left,
                **arrays,
            )
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError:
        return False
    return True
