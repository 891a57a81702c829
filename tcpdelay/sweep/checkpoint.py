"""What a sweep has finished so far, in a folder beside its result: every part on the disk before the next is begun."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tcpdelay.durable import UNFINISHED, written_durably
from tcpdelay.locking import locked
from tcpdelay.sweep.evaluation import Rows, program, row_type
from tcpdelay.sweep.specification import SweepSpecification

MANIFEST = "sweep.json"
PARTS = "runs-*.npz"


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

    def store(self, rows: Rows) -> None:
        """Keep the results of some runs."""
        part = self.folder / f"runs-{rows.start:010}-{rows.stop:010}.npz"
        with written_durably(part) as unfinished, unfinished.open("wb") as file:
            np.savez(file, values=rows.values, refusals=rows.refusals)

    def stored(self) -> Iterator[Rows]:
        """Return all that has been kept; parts that cannot be read are removed, to be made again."""
        expected = row_type(self._specification.evaluation)
        for part in sorted(self.folder.glob(PARTS)):
            start, stop = (int(number) for number in part.stem.split("-")[1:])
            try:
                with part.open("rb") as file, np.load(file, allow_pickle=False) as held:
                    rows = Rows(start, held["values"], held["refusals"])
                sound = rows.values.dtype == expected and rows.stop == stop and rows.refusals.size == stop - start
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
                sound = False
            if sound:
                yield rows
            else:
                part.unlink()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)

    def claim(self) -> None:
        """Mark the folder as this sweep's, or find that it is.

        Raises
        ------
        ValueError
            If it belongs to another specification, or was begun by another version of the program.
        """
        manifest = self.folder / MANIFEST
        mine = {"program": program(), "specification": json.loads(self._specification.canonical)}
        if not manifest.exists():
            if any(self.folder.iterdir()):
                raise ValueError(f"{self.folder}: is no folder of a sweep; name another output")
            with written_durably(manifest) as unfinished:
                unfinished.write_text(json.dumps(mine, indent=1), encoding="utf-8")
            return
        try:
            held = json.loads(manifest.read_text(encoding="utf-8"))
            specification, other = held["specification"], held["program"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{manifest}: cannot be read; remove {self.folder} to begin anew") from None
        if specification != mine["specification"]:
            raise ValueError(f"{self.folder}: holds another specification's points; remove it, or name another output")
        if other != mine["program"]:
            raise ValueError(
                f"{self.folder}: was begun by {other}, but this is {mine['program']}; finish it there, or remove it"
            )


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
        for unfinished in folder.glob(UNFINISHED):
            unfinished.unlink()
        kept.claim()
        yield kept
