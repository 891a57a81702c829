"""TOML files, with all that can be wrong with one said in a line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds.

    Raises
    ------
    ValueError
        If it cannot be read or is no TOML; the message names the file.

    Examples
    --------
    >>> read_toml(Path("nowhere.toml"))
    Traceback (most recent call last):
    ValueError: nowhere.toml: cannot be read: No such file or directory
    """
    try:
        with path.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is no TOML: {error}") from None
