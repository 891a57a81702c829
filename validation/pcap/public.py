"""Compare losses and spurious retransmissions of public captures with tshark, packet by packet.

    python validation/pcap/public.py FOLDER

FOLDER holds one folder per public repository with captures of it, which are read and not kept. Of each capture, the
connection with the most packets that tshark calls repeated counts, or else the connection with the most packets; of a
repository, the largest captures count. The script writes a row per capture and the reasons of the differences to
validation/results/public-captures.csv and public-captures.md. It needs tshark.
"""

from __future__ import annotations

import csv
import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any
from unittest.mock import patch

from compare import FLAGS

from tcpdelay.capture.pcap import measurement
from tcpdelay.capture.pcap.analysis import analyze_directions
from tcpdelay.capture.pcap.trace import Coverage, Trace

RESULTS = Path(__file__).parents[1] / "results"
SMALLEST_FILE = 2000
FEWEST_PACKETS = 10
MOST_PER_REPOSITORY = 30
PATIENCE = 60
"""Time after which tshark is stopped [s]."""
REPETITIONS = FLAGS[:4]
COUNTS = ("packets", "repeated", "tshark_repeated", "spurious", "tshark_spurious")
PROBES = ("keep_alive", "zero_window_probe")

Key = tuple[int, int, str]
"""Time [ns], sequence number and sender of a packet."""
AGREED = {
    ("new", ""),
    ("new", "keep_alive"),
    ("new", "zero_window_probe"),
    ("repeated", "retransmission"),
    ("repeated", "fast_retransmission+retransmission"),
    ("spurious", "retransmission+spurious_retransmission"),
    ("overtaken", "out_of_order"),
}
"""Kinds by `analyze` and flags of tshark that say the same."""
REASONS = {
    ("new", "retransmission+spurious_retransmission"): "captured after its acknowledgement, and never before",
    ("repeated", "out_of_order"): "sent again within tshark's limit of 3 ms or of a round-trip time",
    ("overtaken", "retransmission"): "older by its identification or timestamp than the packet that overtook it",
    ("repeated", "keep_alive"): "a byte sent again that no acknowledgement covered before",
    ("repeated", ""): "a repetition that continues with new data",
    ("spurious", "keep_alive"): "a byte sent again that was acknowledged before",
    ("spurious", "retransmission at sender"): "reported by SACK or D-SACK, or acknowledged with an older timestamp",
    ("spurious", "retransmission at receiver"): "all bytes had arrived before and were not acknowledged yet",
    ("spurious", "out_of_order at receiver"): "all bytes had arrived before, within tshark's limit of 3 ms",
    ("spurious", "out_of_order"): "reported by SACK or D-SACK, or acknowledged with an older timestamp",
    ("absent", ""): "a second copy of a packet, or a packet that is far too late",
}
"""Reasons of the differences; a place of capture counts where it is named."""


@dataclass
class Connection:
    """The packets with payload of a connection, with the flags of tshark's analysis."""

    client: str
    flags: dict[Key, set[str]] = field(default_factory=dict)

    def count(self, *names: str) -> int:
        """Return the number of packets with one of these flags."""
        return sum(not flags.isdisjoint(names) for flags in self.flags.values())


def connections(file: Path) -> list[Connection]:
    """Return the connections with payload of a capture."""
    ends = [f"{layer}.{end}" for end in ("src", "dst") for layer in ("ip", "ipv6")]
    columns = ["tcp.stream", "frame.time_epoch", "tcp.seq_raw", *ends, "tcp.srcport", "tcp.dstport"]
    marks = [f"tcp.analysis.{flag}" for flag in (*REPETITIONS, *PROBES)]
    command = ["tshark", "-n", "-r", str(file), "-Y", "tcp.len > 0", "-T", "fields", "-E", "occurrence=f"]
    command += [part for name in (*columns, *marks) for part in ("-e", name)]
    printed = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE).stdout
    found: dict[str, Connection] = {}
    for line in printed.splitlines():
        stream, time, seq, source, source6, target, target6, port, to_port, *marked = line.split("\t")
        seconds, _, rest = time.partition(".")
        sender = f"{source or f'[{IPv6Address(source6).compressed}]'}:{port}"
        receiver = f"{target or f'[{IPv6Address(target6).compressed}]'}:{to_port}"
        # The higher port is most often the client's, which belongs to one connection.
        client = max((int(port), sender), (int(to_port), receiver))[1]
        flags = {name for name, mark in zip((*REPETITIONS, *PROBES), marked, strict=True) if mark}
        key = int(seconds) * 10**9 + int(rest.ljust(9, "0")[:9]), int(seq), sender
        found.setdefault(stream, Connection(client)).flags.setdefault(key, set()).update(flags)
    return list(found.values())


def chosen(file: Path) -> Connection | None:
    """Return the connection of a capture with the most repeated packets; None without enough packets with payload."""
    try:
        found = [each for each in connections(file) if len(each.flags) >= FEWEST_PACKETS]
    except subprocess.TimeoutExpired:
        return None
    return max(found, key=lambda each: (each.count(*REPETITIONS), len(each.flags)), default=None)


def recorded(
    classify: Callable[[Trace, Coverage], Any], kinds: dict[tuple[int, int], str]
) -> Callable[[Trace, Coverage], Any]:
    """Return `classify`, which also adds the kind of each segment to `kinds`, by its time and sequence number."""

    def wrapped(trace: Trace, pieces: Coverage) -> Any:
        found = classify(trace, pieces)
        masks = {"overtaken": getattr(found, "reordered", None), "repeated": found.repetition}
        masks["spurious"] = getattr(found, "spurious", getattr(found, "duplicate", None))
        for place, (time, seq) in enumerate(zip(trace.data.time, (trace.base + trace.data.start) % 2**32, strict=True)):
            kinds[int(time), int(seq)] = "new"
            for kind, mask in masks.items():
                if mask is not None and mask[place]:
                    kinds[int(time), int(seq)] = kind
        return found

    return wrapped


def row(file: Path, connection: Connection) -> dict[str, Any]:
    """Return the comparison for one capture, in the directions that `analyze` measures."""
    kinds: dict[tuple[int, int], str] = {}
    result: dict[str, Any] = {"repository": file.parent.name.replace("+", "/"), "capture": file.name}
    result["connection"] = connection.client
    with ExitStack() as patches:
        for name in ("at_sender", "at_receiver"):
            classify = recorded(getattr(measurement, name), kinds)
            patches.enter_context(patch.object(measurement, name, classify))
        try:
            found = analyze_directions([file], connection.client)
        except ValueError as error:
            return result | {"refused": str(error).replace(str(file), file.name)}
    senders = {each.sender: each.captured_at[0] for each in found}
    measured = {key: flags for key, flags in connection.flags.items() if key[2] in senders}
    seen = Connection(connection.client, measured)
    counted = Counter(kinds.get(key[:2], "absent") for key in measured)
    result |= {"captured_at": found[0].captured_at[0], "packets": len(measured)}
    result |= {"repeated": counted["repeated"] + counted["spurious"], "tshark_repeated": seen.count(*REPETITIONS)}
    result |= {"spurious": counted["spurious"], "tshark_spurious": seen.count(FLAGS[2])}
    result["loss"] = f"{sum(each.lost for each in found)} of {sum(each.sent for each in found)}"
    lost = seen.count(*REPETITIONS[:2], REPETITIONS[3]) - seen.count(FLAGS[2])
    result["tshark_loss"] = f"{lost} of {len(measured)}"
    differences: Counter[str] = Counter()
    for key, flags in measured.items():
        pair = kinds.get(key[:2], "absent"), "+".join(sorted(flags))
        if pair not in AGREED:
            differences[_reason(*pair, senders[key[2]])] += 1
    result["differences"] = "; ".join(f"{count}: {reason}" for reason, count in differences.items())
    return result


def _reason(kind: str, flags: str, place: str) -> str:
    """Return why `analyze` and tshark differ on a packet."""
    if kind == "absent":
        return REASONS["absent", ""]
    last = (
        "out_of_order" if "out_of_order" in flags else "retransmission" if "spurious" not in flags and flags else flags
    )
    for name in (f"{last} at {place}", last, flags):
        if (kind, name) in REASONS:
            return REASONS[kind, name]
    return f"{kind}, tshark: {flags or 'new'}"


def write_tables(table: list[dict[str, Any]]) -> None:
    """Write a row for each capture, and the differences with their reasons."""
    names = list(dict.fromkeys(name for each in table for name in each))
    with (RESULTS / "public-captures.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    compared = [each for each in table if "refused" not in each]
    packets, captures = Counter[str](), Counter[str]()
    for each in compared:
        for part in filter(None, each["differences"].split("; ")):
            count, _, reason = part.partition(": ")
            packets[reason] += int(count)
            captures[reason] += 1
    sums = {name: sum(each[name] for each in compared) for name in COUNTS}
    equal = sum(not each["differences"] for each in compared)
    repositories = len({each["repository"] for each in table})
    lines = [
        f"{len(table)} captures of {repositories} repositories, {len(compared)} analysed; {sums['packets']} packets "
        f"with payload. Repeated: analyze {sums['repeated']}, tshark {sums['tshark_repeated']}; spurious: analyze "
        f"{sums['spurious']}, tshark {sums['tshark_spurious']}. {equal} captures have no difference. The others:",
        "",
        "| packets | captures | reason |",
        "|---|---|---|",
        *(f"| {count} | {captures[reason]} | {reason} |" for reason, count in packets.most_common()),
        "",
        "| repository | capture | made at | lost: analyze, tshark | spurious: analyze, tshark | packets: reason |",
        "|---|---|---|---|---|---|",
        *(
            f"| {each['repository']} | {each['capture']} | {each['captured_at']} | {each['loss']}, "
            f"{each['tshark_loss']} | {each['spurious']}, {each['tshark_spurious']} | {each['differences']} |"
            for each in compared
            if each["differences"]
        ),
        "",
        "| repository | capture | refused |",
        "|---|---|---|",
        *(f"| {each['repository']} | {each['capture']} | {each['refused']} |" for each in table if "refused" in each),
    ]
    (RESULTS / "public-captures.md").write_text("\n".join(lines) + "\n")


def main(folder: Path) -> int:
    """Write the comparison."""
    seen: set[bytes] = set()
    table = []
    for repository in sorted(folder.iterdir()):
        rows: list[dict[str, Any]] = []
        for file in sorted(repository.iterdir(), key=lambda each: (-each.stat().st_size, each.name)):
            digest = hashlib.sha256(file.read_bytes()).digest()
            if digest in seen or file.stat().st_size < SMALLEST_FILE or len(rows) == MOST_PER_REPOSITORY:
                continue
            seen.add(digest)
            connection = chosen(file)
            if connection is not None:
                rows.append(row(file, connection))
        table += rows
        print(repository.name, len(rows), file=sys.stderr)
    write_tables(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
