"""Measures speed and memory of `tcpdelay analyze` on large captures that it writes first.

    python validation/pcap/throughput.py [MEGABYTES]

Two captures of one connection at its sender: of whole packets of 1514 bytes, and of their first 128 bytes. Prints the
size, the time, and the most memory of the process that analyses, beside what its imports alone take.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ANALYSIS = """
import json, resource, sys, time
from tcpdelay.capture.pcap import analyze_captures
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, start = peak(), time.monotonic()
analysis = analyze_captures(sys.argv[1:])
print(json.dumps([before, peak(), time.monotonic() - start, analysis.sent, analysis.lost, analysis.interval]))
"""
MSS = 1448
INTERVAL = 100_000
ONE_WAY = 10_000_000
LOST_EVERY = 1000


def write(file: Path, size: int, kept: int) -> int:
    """Write a capture of `size` bytes with `kept` bytes of each packet, and return the number of packets."""
    ports, back = struct.pack(">HH", 4000, 5001), struct.pack(">HH", 5001, 4000)
    hosts = bytes([10, 0, 0, 1, 10, 0, 0, 2])
    payload = bytes(MSS)
    # Acknowledgements come twice the one-way delay after the data; between two data segments lies one of them.
    behind = 2 * ONE_WAY // INTERVAL
    written = packets = number = 0
    repeated: list[tuple[int, int]] = []
    with file.open("wb") as out:
        out.write(struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, kept, 1))

        def put(at: int, source: bool, seq: int, ack: int, length: int, flags: int) -> None:
            nonlocal written, packets
            stamps = b"\x01\x01\x08\x0a" + struct.pack(">II", at // 10**6 % 2**32, 0)
            numbers = struct.pack(">IIHHHH", seq % 2**32, ack % 2**32, 0x8000 | flags, 500, 0, 0)
            ip = struct.pack(">BBHHHBBH", 0x45, 0, 52 + length, packets % 65536, 0x4000, 64, 6, 0)
            ip += hosts if source else hosts[4:] + hosts[:4]
            frame = bytes(12) + b"\x08\0" + ip + (ports if source else back) + numbers + stamps + payload[:length]
            head = struct.pack("<IIII", at // 10**9, at % 10**9, min(kept, len(frame)), len(frame))
            out.write(head + frame[:kept])
            written += 16 + min(kept, len(frame))
            packets += 1

        while written < size:
            at = 1_700_000_000_000_000_000 + number * INTERVAL
            put(at, True, 1 + number * MSS, 1, MSS, 0x18)
            if number % LOST_EVERY == LOST_EVERY // 2:
                repeated.append((number, number + 2 * behind))
            if repeated and repeated[0][1] <= number:
                put(at + 1000, True, 1 + repeated.pop(0)[0] * MSS, 1, MSS, 0x18)
            acknowledged = number - behind
            if acknowledged >= 0:
                # Between the loss and the repair of a segment the number stands still.
                gap = acknowledged % LOST_EVERY - LOST_EVERY // 2
                first = acknowledged - gap if 0 <= gap < 2 * behind else acknowledged + 1
                put(at + 2000, False, 1, 1 + first * MSS, 0, 0x10)
            number += 1
    return packets


def main(megabytes: int) -> None:
    """Write, analyse and print."""
    with tempfile.TemporaryDirectory() as directory:
        for name, kept in (("whole packets", 65535), ("128 bytes of each packet", 128)):
            file = Path(directory, "large.pcap")
            packets = write(file, megabytes * 10**6, kept)
            begun = time.monotonic()
            printed = subprocess.run(
                [sys.executable, "-c", ANALYSIS, str(file)], capture_output=True, text=True, check=True
            ).stdout
            before, peak, seconds, sent, lost, interval = json.loads(printed)
            print(
                f"{name}: {file.stat().st_size / 1e6:.0f} MB, {packets} packets in {seconds:.1f} s "
                f"({file.stat().st_size / 1e6 / seconds:.0f} MB/s, {1e6 * seconds / packets:.1f} us per packet), "
                f"at most {peak:.0f} MiB ({before:.0f} MiB of them imports, {(peak - before) * 2**20 / packets:.0f} "
                f"bytes per packet); {lost} of {sent} lost, interval {interval:.9g} s; "
                f"{time.monotonic() - begun:.1f} s in all"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
