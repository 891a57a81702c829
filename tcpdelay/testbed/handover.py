"""How measured flows reach the process that makes captures of them: plain files in a directory of the run.

The guest that measures has no business with Parquet: importing its library there takes longer than a short run.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".flow"


@dataclass(frozen=True)
class FlowRecord:
    """What was measured of one flow.

    Attributes
    ----------
    flow : int
        Its number within the experiment.
    started : int
        When writing began [ns, monotonic clock].
    epoch : int
        The same moment on the calendar [ns since 1970].
    counters : dict of int
        The kernel's TCP counters of the sender's namespace, by the names of `nstat`.
    packets : dict of int
        Packets that the queues of the path sent on and dropped.
    written, read : array of int
        Time of each packet's write and read [ns, monotonic clock]; -1 where it was not read.
    samples : dict of array of int
        Samples of TCP_INFO, by field.
    """

    flow: int
    started: int
    epoch: int
    counters: dict[str, int]
    packets: dict[str, int]
    written: array[int]
    read: array[int]
    samples: dict[str, array[int]]


def write_records(directory: Path, experiment: int, records: list[FlowRecord]) -> None:
    """Hand over the flows of the experiment of that number in the plan; all of them or none."""
    lines = []
    with (directory / f"{experiment}.bin").open("wb") as file:
        for record in records:
            columns = {"written": record.written, "read": record.read, **record.samples}
            for column in columns.values():
                column.tofile(file)
            lengths = {name: len(column) for name, column in columns.items()}
            lines.append([record.flow, record.started, record.epoch, record.counters, record.packets, lengths])
    # The index comes last and all at once: without it there is nothing to be taken for whole.
    unfinished = directory / f"{experiment}.part"
    unfinished.write_text(json.dumps(lines), encoding="utf-8")
    unfinished.replace(directory / f"{experiment}{SUFFIX}")


def is_handed_over(directory: Path, experiment: int) -> bool:
    """Return whether the flows of the experiment of that number are there."""
    return (directory / f"{experiment}{SUFFIX}").exists()


def read_records(directory: Path, experiment: int) -> list[FlowRecord] | None:
    """Return the flows handed over for the experiment of that number, or None if they are not there (yet)."""
    if not is_handed_over(directory, experiment):
        return None
    index = directory / f"{experiment}{SUFFIX}"
    records = []
    with (directory / f"{experiment}.bin").open("rb") as file:
        for flow, started, epoch, counters, packets, lengths in json.loads(index.read_text(encoding="utf-8")):
            columns = {name: array("q") for name in lengths}
            for name, column in columns.items():
                column.fromfile(file, lengths[name])
            written, read = columns.pop("written"), columns.pop("read")
            records.append(FlowRecord(flow, started, epoch, counters, packets, written, read, columns))
    return records
