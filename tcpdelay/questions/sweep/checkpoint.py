"""Files of finished runs: each says which sweep and which program they are from, and shows whether it is whole.

What a sweep has finished so far, in a folder beside its result: every part on the disk before the next is begun.
"""

from __future__ import annotations

import io
import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from tcpdelay.files import UNFINISHED, locked, written_durably
from tcpdelay.questions.sweep.evaluation import Rows, program
from tcpdelay.questions.sweep.specification import SweepSpecification

CHECKSUM_SIZE = sha256().digest_size


@dataclass(frozen=True)
class Origin:
    """What finished runs follow from.

    Attributes
    ----------
    specification : str
        SHA-256 of the specification, as `SweepSpecification.digest` has it.
    program : str
        What evaluated them, as `tcpdelay.questions.sweep.evaluation.program` has it.
    """

    specification: str
    program: str


@dataclass(frozen=True)
class Part:
    """What a file of finished runs holds.

    Attributes
    ----------
    rows : Rows
        The runs.
    origin : Origin
        What they follow from.
    """

    rows: Rows
    origin: Origin


def write_part(file: Path, part: Part) -> None:
    """Write finished runs: an npz file with its checksum behind it, which programs that read npz skip.

    Parameters
    ----------
    file : Path
        The file; it is there in whole or not at all.
    part : Part
        What to write.

    Raises
    ------
    OSError
        If it cannot be written.
    """
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
    content = packed.getvalue()
    with written_durably(file) as unfinished:
        unfinished.write_bytes(content + sha256(content).digest())


def read_part(file: Path) -> Part | None:
    """Read finished runs.

    Parameters
    ----------
    file : Path
        What `write_part` has written.

    Returns
    -------
    Part or None
        None if the file is damaged.

    Raises
    ------
    ValueError
        If it cannot be read at all.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from tcpdelay.questions.sweep.evaluation import row_type
    >>> from tcpdelay.questions.sweep.specification import Evaluation
    >>> rows = Rows(3, np.zeros(2, row_type(Evaluation())), np.array(["", ""]))
    >>> with TemporaryDirectory() as directory:
    ...     file = Path(directory, "runs.npz")
    ...     write_part(file, Part(rows, Origin("0f", "tcpdelay 1.0")))
    ...     whole = read_part(file)
    ...     _ = file.write_bytes(file.read_bytes()[:-1])
    ...     cut_short = read_part(file)
    >>> whole.origin, whole.rows.stop, cut_short
    (Origin(specification='0f', program='tcpdelay 1.0'), 5, None)
    """
    try:
        written = file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{file}: cannot be read: {error.strerror or error}; mend that, or remove it to have its runs done again"
        ) from None
    content, checksum = written[:-CHECKSUM_SIZE], written[-CHECKSUM_SIZE:]
    if sha256(content).digest() != checksum:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as held:
        rows = Rows(int(held["start"]), held["values"], held["refusals"])
        return Part(rows, Origin(str(held["specification"]), str(held["program"])))


MANIFEST = "sweep.json"
PARTS = "runs-*.npz"


class DamagedCheckpointWarning(UserWarning):
    """Files of an unfinished sweep were damaged; the sweep goes on without them."""


def checkpoint_folder(output: Path) -> Path:
    """Return the folder that belongs to a result.

    Examples
    --------
    >>> checkpoint_folder(Path("voip.nc")).name
    'voip.nc.parts'
    """
    return output.with_name(f"{output.name}.parts")


class Checkpoint:
    """The parts of one sweep.

    Parameters
    ----------
    folder : Path
        Where they are.
    specification : SweepSpecification
        The sweep that they belong to.
    """

    def __init__(self, folder: Path, specification: SweepSpecification) -> None:
        self.folder = folder
        self._specification = specification
        self._origin = Origin(specification.digest, program())

    def store(self, rows: Rows) -> None:
        """Keep the results of some runs.

        Raises
        ------
        OSError
            If they cannot be written.
        """
        write_part(self.folder / f"runs-{rows.start:010}-{rows.stop:010}.npz", Part(rows, self._origin))

    def stored(self) -> Iterator[Rows]:
        """Return all that has been kept; damaged parts are removed with a warning, to be made again.

        Raises
        ------
        ValueError
            If a part belongs to something else, or cannot be read.
        """
        files, damaged = self._files(), 0
        for file in files:
            part = read_part(file)
            if part is None:
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
        shutil.rmtree(self.folder)

    def claim(self) -> None:
        """Mark the folder as this sweep's, or find that it is.

        Every part says what it belongs to. So where what marks the folder is damaged or gone, the parts decide.

        Raises
        ------
        ValueError
            If it belongs to another specification, or was begun by another version of the program.
        """
        manifest = self.folder / MANIFEST
        marked = _marked(manifest)
        if marked == self._origin:
            return
        was_there = manifest.exists()
        origins = {part.origin for part in map(read_part, self._files()) if part is not None}
        for origin in origins or ({marked} if marked is not None else set()):
            self._require_own(origin)
        if not origins and marked is None and self._holds_anything_else():
            raise ValueError(f"{self.folder}: is no folder of a sweep; name another output")
        with written_durably(manifest) as unfinished:
            mark = {"program": self._origin.program, "specification": json.loads(self._specification.canonical)}
            unfinished.write_text(json.dumps(mark, indent=1), encoding="utf-8")
        if was_there or origins:
            wrong = "damaged" if was_there else "missing"
            warnings.warn(
                f"{manifest}: was {wrong}, and is written anew; every part is checked by itself",
                DamagedCheckpointWarning,
                stacklevel=2,
            )

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(PARTS))

    def _holds_anything_else(self) -> bool:
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
    """Return what a folder is marked as; None if it is not, or nobody can tell any more."""
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
    """Give the checkpoint of a result, which no other process uses meanwhile.

    Parameters
    ----------
    output : Path
        The file of the result.
    specification : SweepSpecification
        The sweep.

    Raises
    ------
    ValueError
        If the folder cannot be made, is in use, or belongs to something else.
    """
    folder = checkpoint_folder(output)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be made: {error.strerror or error}") from None
    with locked(folder, "another sweep writes its points there"):
        kept = Checkpoint(folder, specification)
        kept.claim()
        for unfinished in folder.glob(UNFINISHED):
            unfinished.unlink()
        yield kept
