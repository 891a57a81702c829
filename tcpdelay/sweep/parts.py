"""Files of finished runs: each says which sweep and which program they are from, and shows whether it is whole."""

from __future__ import annotations

import io
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from tcpdelay.durable import written_durably
from tcpdelay.sweep.evaluation import Rows

CHECKSUM_SIZE = sha256().digest_size


@dataclass(frozen=True)
class Origin:
    """What finished runs follow from.

    Attributes
    ----------
    specification : str
        SHA-256 of the specification, as `SweepSpecification.digest` has it.
    program : str
        What evaluated them, as `tcpdelay.sweep.evaluation.program` has it.
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
    >>> from tcpdelay.sweep.evaluation import row_type
    >>> from tcpdelay.sweep.specification import Evaluation
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
