"""A digest of the sources of compiled kernels.

The build of a wheel loads this module alone, so it needs the standard library only.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
SOURCES = (
    *("compiling/**/*.py", "sim/**/*.py", "chain/**/*.py", "accuracy/**/*.py", "models/**/*.py", "quality/**/*.py"),
    *("scenario/jitter.py", "delays.py", "budget.py"),
)
"""Modules whose kernels call each other, and modules whose constants are a part of kernels."""


def source_digest() -> bytes:
    """Return a digest of `SOURCES`: of the names and contents of the modules, not of their times."""
    digest = hashlib.blake2b(digest_size=16)
    files = {file.relative_to(PACKAGE).as_posix(): file for pattern in SOURCES for file in PACKAGE.glob(pattern)}
    for name, file in sorted(files.items()):
        content = file.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.digest()
