"""Captures of the testbed: Parquet files of one experiment or of several, with one row per flow and run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tcpdelay.capture.estimate import PathEstimate, PathSample, read_recording, times_between
from tcpdelay.capture.ss import Connection, recorded_samples
from tcpdelay.declare import InvalidValueError, documented, meaning
from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.messages import Trace
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.store import one_line, written_durably

NOT_READ = -1
MICROSECONDS = 1e6
COMPRESSION_LEVEL = 19
SAMPLE_FIELDS = (
    "time",
    "connection",
    "cwnd",
    "ssthresh",
    "unacked",
    "rtt",
    "retransmits",
    "reordering",
    "delivery_rate",
)

_LIST = pa.list_(pa.int64())
_COUNTS = pa.map_(pa.string(), pa.int64())
_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("settings", pa.string()),
    ("run", pa.int32()),
    ("flow", pa.int32()),
    ("backend", pa.string()),
    ("seed", pa.int64()),
    ("hz", pa.int32()),
    ("kernel", pa.string()),
    ("tool", pa.string()),
    ("recorded", pa.string()),
    ("offered", pa.int64()),
    ("counters", _COUNTS),
    ("packets", _COUNTS),
    ("written", _LIST),
    ("delay", _LIST),
    *[(f"sample_{name}", _LIST) for name in SAMPLE_FIELDS],
    ("stall_time", _LIST),
    ("stall_length", _LIST),
    ("epoch", pa.int64()),
]
SCHEMA = pa.schema(_COLUMNS)
"""Columns of a capture of packets of one size."""
MESSAGE_SCHEMA = pa.schema(
    [*_COLUMNS, ("message_size", _LIST), ("message_kind", _LIST), ("kinds", pa.list_(pa.string()))]
)
"""Columns of a capture of messages."""
SET_SCHEMA = pa.schema([("name", pa.string()), *MESSAGE_SCHEMA])
"""Columns of a set of captures; those of messages are null in captures of packets of one size."""
SUFFIX = ".parquet"


@dataclass(frozen=True)
class WrittenMessages:
    """Sizes and kinds of the messages of a source, in the order of writing."""

    sizes: NDArray[np.int64]  # Size of each message [bytes]
    kind_numbers: NDArray[np.int64]  # Number of each message's kind in `kinds`
    kinds: tuple[str, ...]  # The kinds, such as "key frame"


@dataclass(frozen=True)
class FlowRun:
    """One flow in one run of an experiment; all times in us."""

    run: int
    flow: int  # Number of the flow within the run
    backend: str  # "uml-virtual", "uml" or "host"
    seed: int
    hz: int  # Timer interrupts per second of the kernel (CONFIG_HZ); 0 if unknown
    kernel: str  # Release of Linux
    tool: str  # Version of tcpdelay
    recorded: str  # Time of the recording (UTC, ISO 8601)
    # TCP counters of the sender's namespace by the names of `nstat`, without counters of 0. Those of the receiver's
    # namespace have `receiver_` in front; earlier captures lack them.
    counters: dict[str, int]
    packets: dict[str, int]  # Packets that the queues of the path sent and dropped
    written: NDArray[np.int64]  # Time of each packet's write since the start of writing
    delay: NDArray[np.int64]  # From each packet's write to its read; `NOT_READ` if not read before the end of the run
    samples: dict[str, NDArray[np.int64]]  # TCP_INFO by the names in `SAMPLE_FIELDS`; windows in segments
    stall_time: NDArray[np.int64]  # Start of each stall: nothing ran although a timer was due
    stall_length: NDArray[np.int64]  # Length of each stall
    epoch: int = 0  # Calendar time of the start of writing, for packet traces [ns since 1970]
    messages: WrittenMessages | None = None  # Sizes and kinds of the messages; None: packets of one size

    @property
    def unordered_delays(self) -> NDArray[np.float64]:
        """Delay of each packet until it was read [s]; infinite if it was not read."""
        return np.where(self.delay == NOT_READ, np.inf, self.delay / MICROSECONDS)

    @property
    def delays(self) -> NDArray[np.float64]:
        """Delay of each packet until it and all earlier packets were read [s]; infinite from the first unread packet.

        Over several connections, a packet can be read before an earlier packet; the application gets them in order.
        """
        delays = self.unordered_delays
        written = self.written / MICROSECONDS
        # For packets in order, an addition and a subtraction would change the last digits.
        read = np.maximum.accumulate(written + delays)
        return np.where(read > written + delays, read - written, delays)


@documented()
class FlowCapture:
    """The measurements of one experiment."""

    name: str = meaning("Name of the capture: that in its set, or its file name without the suffix.")
    settings: dict[str, Any] = meaning("Settings of the experiment, as in `tcpdelay.testbed.experiment.Experiment`.")
    runs: Sequence[FlowRun] = meaning("The measured flows.")

    @property
    def flow(self) -> Flow:
        """The measured flow, for the models; raises InvalidValueError for a capture of messages."""
        if self.runs[0].messages is not None:
            hint = "use `trace` and tcpdelay.simulate"
            raise InvalidValueError("capture", self.name, "have packets of one size and interval", hint)
        return Flow(self.settings["packet_size"], self.settings["interval"], write_jitter=0.0)

    def trace(self, period: float | None = None) -> Trace:
        """Return the messages of the first flow and run as a source.

        Parameters
        ----------
        period : float, optional
            Time after which the messages repeat [s], later than the last message; by default the trace ends.

        Raises
        ------
        ValueError
            If the capture has no message, or `period` is too short.
        """
        first = self.runs[0]
        times = (first.written - first.written.min(initial=0)) / MICROSECONDS
        if first.messages is None:
            return Trace(times, np.full(times.size, self.settings["packet_size"]), period)
        labels = np.array(first.messages.kinds)[first.messages.kind_numbers]
        return Trace(times, first.messages.sizes, period, labels)

    @property
    def path(self) -> Path:
        """The configured path, for the models: without queueing."""
        return Path(self.settings["rtt"], self.settings["loss"])

    @property
    def offered(self) -> int:
        """Number of packets that were written."""
        return sum(run.written.size for run in self.runs)

    def estimate(self) -> PathEstimate:
        """Return the measured path: the kernel's round-trip times, and the packets that the queues dropped.

        Returns
        -------
        PathEstimate
            The mean of the sampled round-trip times, or the configured round-trip time if there are no samples, and
            the counts of packets.

        Raises
        ------
        ValueError
            If the queues counted no packet.
        """
        sampled = np.concatenate([run.samples.get("rtt", np.empty(0, np.int64)) for run in self.runs]) / MICROSECONDS
        # The flows of one run share the queues of the path.
        of_runs = {run.run: run.packets for run in self.runs}.values()
        lost = sum(packets["data_dropped"] for packets in of_runs)
        return PathEstimate(
            source="testbed",
            rtt=float(sampled.mean()) if sampled.size else self.settings["rtt"],
            sent=lost + sum(packets["data_sent"] for packets in of_runs),
            lost=lost,
            rtt_min=float(sampled.min()) if sampled.size else None,
            rtt_max=float(sampled.max()) if sampled.size else None,
        )

    def delays(self, skip: float = 0.0) -> list[NDArray[np.float64]]:
        """Return the delays [s] of each flow and run in the order of writing.

        Parameters
        ----------
        skip : float
            Packets written within this time of the start are left out [s], 0 or more.

        Returns
        -------
        list of ndarray
            The delays; infinite if a packet was not read. Datagrams are not put in order.
        """
        application = self.settings["application"]
        ordered = application != "udp" and (application != "quic" or self.settings["delivery"] == "stream")
        return [
            (run.delays if ordered else run.unordered_delays)[run.written / MICROSECONDS >= skip] for run in self.runs
        ]

    def delays_by_kind(self, skip: float = 0.0) -> dict[str, list[NDArray[np.float64]]]:
        """Return the delays [s] of each kind of messages, of each flow and run in the order of writing.

        Parameters
        ----------
        skip : float
            Messages written within this time of the start are left out [s], 0 or more.

        Returns
        -------
        dict
            By the name of the kind; empty if there is only one kind. Kinds without a message are left out.
        """
        found: dict[str, list[NDArray[np.float64]]] = {}
        for run, delays in zip(self.runs, self.delays(skip), strict=True):
            if run.messages is not None and len(run.messages.kinds) > 1:
                numbers = run.messages.kind_numbers[run.written / MICROSECONDS >= skip]
                for number, kind in enumerate(run.messages.kinds):
                    found.setdefault(kind, []).append(delays[numbers == number])
        return {kind: parts for kind, parts in found.items() if any(part.size for part in parts)}

    def delay_distribution(self, skip: float = 0.0) -> DelayDistribution:
        """Return the measured delays as a distribution; infinite delays are packets that were not read.

        Parameters
        ----------
        skip : float
            Packets written within this time of the start are left out [s], 0 or more.

        Raises
        ------
        ValueError
            If no packet remains.
        """
        return DelayDistribution.from_samples(np.concatenate(self.delays(skip)), self.path.forward_delay)


def write_capture(file: str | os.PathLike[str], capture: FlowCapture) -> None:
    """Write a capture to a Parquet file, atomically."""
    schema = SCHEMA if capture.runs[0].messages is None else MESSAGE_SCHEMA
    _write(FilePath(file), schema, [_table(capture, schema)])


def write_captures(file: str | os.PathLike[str], captures: Iterable[FlowCapture]) -> None:
    """Write captures to one Parquet file, atomically; each capture has a row group, so that it can be read alone."""
    _write(FilePath(file), SET_SCHEMA, (_table(capture, SET_SCHEMA) for capture in captures))


def _write(file: FilePath, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    delta = {f"{name}.list.element": "DELTA_BINARY_PACKED" for name in schema.names if schema.field(name).type == _LIST}
    with (
        written_durably(file) as unfinished,
        pq.ParquetWriter(
            unfinished,
            schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=False,
            column_encoding=delta,
            write_statistics=[name for name in schema.names if name == "name"],
            write_page_checksum=True,
        ) as writer,
    ):
        for table in tables:
            writer.write_table(table)


def _table(capture: FlowCapture, schema: pa.Schema) -> pa.Table:
    """Return the rows of a capture, one per flow and run."""
    settings = json.dumps(capture.settings, sort_keys=True)
    rows = []
    for run in capture.runs:
        row = {
            "name": capture.name,
            "settings": settings,
            "offered": run.written.size,
            "counters": list(run.counters.items()),
            "packets": list(run.packets.items()),
            **{f"sample_{name}": run.samples.get(name, np.empty(0, np.int64)) for name in SAMPLE_FIELDS},
        }
        if (messages := run.messages) is not None:
            row |= {"message_size": messages.sizes, "message_kind": messages.kind_numbers, "kinds": messages.kinds}
        rows.append(row | {name: getattr(run, name) for name in SCHEMA.names if name not in row})
    return pa.Table.from_pylist(rows, schema=schema)


def read_capture(file: str | os.PathLike[str], name: str | None = None) -> FlowCapture:
    """Read a capture of the testbed.

    Parameters
    ----------
    file : str or path-like
        A Parquet file of one capture, or of a set of captures.
    name : str, optional
        The name of the capture in a set; a file of one capture needs none.

    Returns
    -------
    FlowCapture
        The capture.

    Raises
    ------
    ValueError
        If the file cannot be read, is no capture, or does not hold exactly one of this name.

    Examples
    --------
    >>> read_capture("no-such-capture.parquet")
    Traceback (most recent call last):
    ValueError: no-such-capture.parquet: cannot be read: No such file or directory
    """
    opened = CaptureFile(file)
    found = [own for own in opened.names if name in (None, own)]
    if len(found) != 1:
        known = f"one of its {len(opened.names)} captures, such as {opened.names[0]!r}"
        raise ValueError(f"{opened.path}: name must be {known}, got {name!r}")
    return opened.read(found[0])


def read_captures(place: str | os.PathLike[str], names: str = "*") -> Iterator[FlowCapture]:
    """Read the captures of a file, or of all files in a folder and below, one after another.

    Parameters
    ----------
    place : str or path-like
        A Parquet file of one capture or of a set of captures, or a folder of such files.
    names : str
        Only captures of these names, with ``*`` and ``?`` as in file names.

    Yields
    ------
    FlowCapture
        Each capture, in the order of files and names.

    Raises
    ------
    ValueError
        If a file cannot be read or is no capture, or a folder holds none.

    Examples
    --------
    >>> [capture.name for capture in read_captures("captures/calls", "*-rtt100ms-*")]  # doctest: +SKIP
    """
    files = capture_files(FilePath(place))
    if not files:
        raise ValueError(f"{place}: holds no capture, that is, no file ending in {SUFFIX}")
    for file in map(CaptureFile, files):
        yield from map(file.read, filter(partial(fnmatchcase, pat=names), file.names))


def capture_files(place: FilePath) -> list[FilePath]:
    """Return a file as it is, or the files in a folder and below that are named as captures."""
    if not place.is_dir():
        return [place]
    return sorted(file for file in place.rglob(f"*{SUFFIX}") if not file.name.startswith("."))


class CaptureFile:
    """A file of one capture or of a set of captures, which are read one by one; ValueError if it is damaged."""

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self.path = FilePath(file)
        self._metadata = None
        with self._opened() as opened:
            schema, self._metadata = opened.schema_arrow, opened.metadata
            if not any(map(schema.equals, (SCHEMA, MESSAGE_SCHEMA, SET_SCHEMA))) or opened.metadata.num_rows == 0:
                raise ValueError(f"{self.path}: is no capture of the testbed: its columns differ, or it has no row")
            self.is_set = "name" in schema.names
            if not self.is_set:
                self.names = [self.path.name.removesuffix(SUFFIX)]
                return
            groups = [opened.read_row_group(group, ["name"])["name"] for group in range(opened.num_row_groups)]
        self.names = [group[0].as_py() for group in groups]
        if any(len(group.unique()) != 1 for group in groups) or len(set(self.names)) < len(self.names):
            raise ValueError(f"{self.path}: is a damaged set: each row group must have one name of its own")

    def read(self, name: str) -> FlowCapture:
        """Read the capture of a name in `names`; raises ValueError if it is damaged."""
        with self._opened() as opened:
            table = opened.read_row_group(self.names.index(name)) if self.is_set else opened.read()
        try:
            settings = json.loads(table["settings"][0].as_py())
            runs = [_flow_run(table, row) for row in range(table.num_rows)]
            capture = FlowCapture(name, settings, runs)
            # A damaged file raises here, where its errors can be distinguished from errors of the program.
            _ = runs[0].messages is not None or capture.flow, capture.path, settings["application"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            place = f"{self.path}: {name}" if self.is_set else self.path
            raise ValueError(f"{place}: is a damaged capture: {error}") from None
        return capture

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        """Open the file; its errors become one line that names it."""
        try:
            with (
                self.path.open("rb") as file,
                pq.ParquetFile(file, metadata=self._metadata, page_checksum_verification=True) as opened,
            ):
                yield opened
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise ValueError(f"{self.path}: cannot be read: {os.strerror(error.errno)}") from None
            raise ValueError(f"{self.path}: is no Parquet file: {one_line(error)}") from None


def _flow_run(table: pa.Table, row: int) -> FlowRun:
    def numbers(name: str) -> NDArray[np.int64]:
        values = table[name][row].values
        if values is None or values.null_count:
            raise ValueError(f"column {name!r} has gaps")
        return np.asarray(values.to_numpy(), np.int64)

    written, delay = numbers("written"), numbers("delay")
    if written.size != delay.size or written.size != table["offered"][row].as_py():
        raise ValueError(f"row {row} has {written.size} writes and {delay.size} delays")
    samples = {name: numbers(f"sample_{name}") for name in SAMPLE_FIELDS}
    if len({sampled.size for sampled in samples.values()}) > 1:
        raise ValueError(f"row {row} has samples without some of their values")
    messages = None
    if "kinds" in table.schema.names and table["kinds"][row].is_valid:
        sizes, kinds = numbers("message_size"), numbers("message_kind")
        names = tuple(map(str, table["kinds"][row].as_py()))
        if not sizes.size == kinds.size == written.size or not ((kinds >= 0) & (kinds < len(names))).all():
            raise ValueError(f"row {row} has {written.size} writes, {sizes.size} sizes and {kinds.size} kinds")
        messages = WrittenMessages(sizes, kinds, names)
    return FlowRun(
        **{name: table[name][row].as_py() for name in SCHEMA.names[1:9]},
        counters=dict(table["counters"][row].as_py()),
        packets=dict(table["packets"][row].as_py()),
        written=written,
        delay=delay,
        samples=samples,
        stall_time=numbers("stall_time"),
        stall_length=numbers("stall_length"),
        epoch=table["epoch"][row].as_py(),
        messages=messages,
    )


# Recordings replayed: captures of the testbed, and repeated outputs of `ss -tin`, as samples in the order of time.

_CAPTURE_BEGINNING = b"PAR1"


def read_replay(file: str, requested: str | None = None) -> Iterator[tuple[PathSample, Connection | None]]:
    """Yield the samples of one connection in a recording."""
    if _is_capture(file):
        capture = read_capture(file)
        for sample in run_samples(capture, capture.runs[0]):
            yield sample, None
        return
    yield from recorded_samples(read_recording(file, "ss"), file, requested)


def _is_capture(file: str) -> bool:
    try:
        with FilePath(file).open("rb") as opened:
            return opened.read(len(_CAPTURE_BEGINNING)) == _CAPTURE_BEGINNING
    except (OSError, ValueError):
        # `read_recording` says why.
        return False


def run_samples(capture: FlowCapture, run: FlowRun, start: float = 0.0, interval: float = 1.0) -> list[PathSample]:
    """Return what `ss` would have shown of a measured flow, once at a random moment of each interval.

    Round-trip time and retransmissions are the sampled TCP_INFO. A capture does not hold the numbers of segments sent
    and delivered at a time. The segments sent are the share of the packets written, times the number of segments of the
    run (OutSegs), and the retransmissions. The losses are the share of the retransmissions, times the losses of the
    run: all segments sent that the kernel does not count as delivered, less one for the SYN. The backlog holds the
    packets that are not read, or whose acknowledgement takes its way back.
    """
    columns = run.samples
    if run.messages is not None:
        raise ValueError(f"{capture.name}: has messages of several sizes; a replay needs packets of one size")
    if not columns.get("time", np.empty(0)).size:
        raise ValueError(f"{capture.name}: holds no samples of TCP_INFO")
    if columns["connection"].max():
        raise ValueError(f"{capture.name}: has several connections; a replay follows one")
    size, way_back = capture.settings["packet_size"], Path(capture.settings["rtt"], 0.0).forward_delay
    sampled, written = columns["time"] / MICROSECONDS, run.written / MICROSECONDS
    # The application reads in order, so times of acknowledgements are sorted.
    acknowledged = np.maximum.accumulate(written + run.delays) + way_back
    segments = run.counters.get("OutSegs", written.size) / written.size
    losses_per_retransmission = _losses_per_retransmission(run.counters)
    found = []
    for time in times_between(max(start, sampled[0]), min(sampled[-1], written[-1]), interval, run.seed):
        place = int(np.searchsorted(sampled, time, side="right")) - 1
        before, done = np.searchsorted(written, time, side="right"), np.searchsorted(acknowledged, time, side="right")
        retransmitted = int(columns["retransmits"][place])
        found.append(
            PathSample(
                source="testbed",
                time=float(time),
                rtt=float(columns["rtt"][place]) / MICROSECONDS or None,
                sent=round(int(before) * segments) + retransmitted,
                lost=round(retransmitted * losses_per_retransmission),
                backlog=int(before - done) * size,
                acknowledged=int(done) * size,
                congestion_window=int(columns["cwnd"][place]),
            )
        )
    return found


def _losses_per_retransmission(counters: Mapping[str, int]) -> float:
    """Return the quotient of the kernel's counters; 1 if it did not count them."""
    sent, delivered, again = (counters.get(name, 0) for name in ("TCPOrigDataSent", "TCPDelivered", "RetransSegs"))
    return max(sent + again - delivered + 1, 0) / again if sent and delivered and again else 1.0
