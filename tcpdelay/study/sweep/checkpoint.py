"""Finished runs of a sweep, in a folder beside its result: every part is on the disk before it counts as done.

A part is a NumPy archive inside gzip, whose checksum covers the whole content. Parquet files would have the same size,
but the checksums of their pages do not cover the footer. Of all flips of one bit in a small Parquet file, 5 % were not
detected and changed values or origin; with gzip, all were detected.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from tcpdelay.store import UNFINISHED, locked, written_durably
from tcpdelay.study.execution import Rows, SweepFailedError, program
from tcpdelay.study.sweep.specification import SweepSpecification

MANIFEST = "sweep.json"
PARTS = "runs-*.npz.gz"


class DamagedCheckpointWarning(UserWarning):
    """Files of an unfinished sweep were damaged; the sweep goes on without them."""


@dataclass(frozen=True)
class Origin:
    """Origin of finished runs: a specification and a program."""

    specification: str  # SHA-256 of the specification, as in `SweepSpecification.digest`
    program: str  # The program that evaluated them, as in `tcpdelay.study.execution.program`


@dataclass(frozen=True)
class Part:
    """Content of a file of finished runs."""

    rows: Rows  # The runs
    origin: Origin  # The specification and the program of the runs


def write_part(file: Path, part: Part) -> None:
    """Write finished runs to a file; after an interrupt, the file is complete or missing."""
    packed = io.BytesIO()
    rows, origin = part.rows, part.origin
    np.savez(
        packed,
        start=np.array(rows.start),
        values=rows.values,
        refusals=rows.refusals,
        specification=np.array(origin.specification),
        program=np.array(origin.program),
    )
    with written_durably(file) as unfinished:
        unfinished.write_bytes(gzip.compress(packed.getvalue(), compresslevel=1, mtime=0))


def read_part(file: Path) -> Part | None:
    """Read finished runs."""
    try:
        written = file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{file}: cannot be read: {error.strerror or error}; make it readable, or remove it to repeat its runs"
        ) from None
    try:
        content = gzip.decompress(written)
    except (OSError, EOFError, zlib.error):
        return None
    if not content:
        # An empty file is damaged too; gzip reads it as empty content.
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as held:
        rows = Rows(int(held["start"]), held["values"], held["refusals"])
        return Part(rows, Origin(str(held["specification"]), str(held["program"])))


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn an OSError, for example on a full disk, into a SweepFailedError that names the file or folder."""
    try:
        yield
    except OSError as error:
        raise SweepFailedError(f"{place}: cannot be written: {error.strerror or error}") from error


def checkpoint_folder(output: Path) -> Path:
    """Return the folder that belongs to a result.

    Examples
    --------
    >>> checkpoint_folder(Path("voip.nc")).name
    'voip.nc.parts'
    """
    return output.with_name(f"{output.name}.parts")


class Checkpoint:
    """The finished parts of one sweep.

    Parameters
    ----------
    folder : Path
        The folder of the parts.
    specification : SweepSpecification
        The sweep.
    """

    def __init__(self, folder: Path, specification: SweepSpecification) -> None:
        self.folder = folder
        self._specification = specification
        self._origin = Origin(specification.digest, program())

    def store(self, rows: Rows) -> None:
        """Keep the results of some runs."""
        with writing(self.folder):
            write_part(self.folder / f"runs-{rows.start:010}-{rows.stop:010}.npz.gz", Part(rows, self._origin))

    def stored(self) -> Iterator[Rows]:
        """Yield all kept results; damaged parts are removed with a warning, and their runs are done again."""
        files, damaged = self._files(), 0
        for file in files:
            part = read_part(file)
            if part is None:
                with writing(self.folder):
                    file.unlink()
                damaged += 1
            else:
                self._require_own(part.origin)
                yield part.rows
        if damaged:
            warnings.warn(
                f"{self.folder}: {damaged} of {len(files)} parts were damaged; their runs are done again",
                DamagedCheckpointWarning,
                stacklevel=2,
            )

    def remove(self) -> None:
        """Remove the folder."""
        with writing(self.folder):
            shutil.rmtree(self.folder)

    def claim(self) -> None:
        """Mark the folder as the folder of this sweep.

        Every part names its sweep. If the file that marks the folder is damaged or missing, the parts decide.
        """
        manifest = self.folder / MANIFEST
        marked = _marked(manifest)
        if marked == self._origin:
            return
        was_there = manifest.exists()
        origins = {part.origin for part in map(read_part, self._files()) if part is not None}
        for origin in origins or ({marked} if marked is not None else set()):
            self._require_own(origin)
        if not origins and marked is None and self._holds_other_files():
            raise ValueError(f"{self.folder}: is not the folder of a sweep; name another output")
        with written_durably(manifest) as unfinished:
            mark = {"program": self._origin.program, "specification": json.loads(self._specification.canonical)}
            unfinished.write_text(json.dumps(mark, indent=1), encoding="utf-8")
        if was_there or origins:
            wrong = "damaged" if was_there else "missing"
            warnings.warn(
                f"{manifest}: was {wrong}, and is written again; every part is checked separately",
                DamagedCheckpointWarning,
                stacklevel=2,
            )

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(PARTS))

    def _holds_other_files(self) -> bool:
        own = (MANIFEST, PARTS, UNFINISHED)
        return not all(any(file.match(pattern) for pattern in own) for file in self.folder.iterdir())

    def _require_own(self, origin: Origin) -> None:
        if origin.specification != self._origin.specification:
            raise ValueError(f"{self.folder}: holds another specification's points; remove it, or name another output")
        if origin.program != self._origin.program:
            raise ValueError(
                f"{self.folder}: was begun by {origin.program:.200}, but this is {self._origin.program}; "
                "finish it there, or remove it"
            )


def _marked(manifest: Path) -> Origin | None:
    """Return the origin that marks a folder; None if the mark is missing or damaged."""
    try:
        held = json.loads(manifest.read_text(encoding="utf-8"))
        specification, begun_by = json.dumps(held["specification"], sort_keys=True), held["program"]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{manifest}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return Origin(sha256(specification.encode()).hexdigest(), begun_by) if isinstance(begun_by, str) else None


@contextmanager
def checkpoint(output: Path, specification: SweepSpecification) -> Iterator[Checkpoint]:
    """Open the checkpoint of a result, and lock out other processes."""
    folder = checkpoint_folder(output)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be created: {error.strerror or error}") from None
    with locked(folder, "another sweep writes its points there"):
        kept = Checkpoint(folder, specification)
        with writing(folder):
            kept.claim()
            for unfinished in folder.glob(UNFINISHED):
                unfinished.unlink()
        yield kept
