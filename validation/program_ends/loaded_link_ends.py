"""Ends for `validation/home_queues.py`: datagrams that are echoed, beside a TCP upload."""

from __future__ import annotations

import socket
import struct
import sys
import time
from pathlib import Path

PROBE_PORT, BULK_PORT = 7000, 7001
PROBE_SIZE, INTERVAL = 172, 0.020
"""Size of a datagram [bytes], as of a voice packet, and the time between two datagrams [s]."""
CHUNK = 65536


def echo() -> None:
    """Send every datagram back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind(("", PROBE_PORT))
        while True:
            own.sendto(*own.recvfrom(2048))


def probe(seconds: float) -> None:
    """Send datagrams at a constant rate, and write their round-trip times [ns] to the file `times`; -1 if lost."""
    count = round(seconds / INTERVAL)
    times = [-1] * count
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.connect(("server", PROBE_PORT))
        begin = time.monotonic_ns()
        step = round(INTERVAL * 1e9)
        sent = 0
        while (now := time.monotonic_ns()) < begin + (count + 150) * step:
            if sent < count and now >= begin + sent * step:
                own.send(struct.pack("qq", sent, now) + bytes(PROBE_SIZE - 16))
                sent += 1
                continue
            due = begin + (sent if sent < count else count + 150) * step
            own.settimeout(max((due - now) / 1e9, 1e-6))
            try:
                number, written = struct.unpack_from("qq", own.recv(2048))
            except TimeoutError:
                continue
            times[number] = time.monotonic_ns() - written
    Path("times").write_bytes(struct.pack(f"{count}q", *times))


def sink() -> None:
    """Read the upload."""
    with socket.create_server(("", BULK_PORT)) as listening:
        stream, _ = listening.accept()
        while stream.recv(CHUNK):
            pass


def upload(seconds: float) -> None:
    """Write as fast as TCP takes the data."""
    with socket.create_connection(("server", BULK_PORT)) as stream:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stream.sendall(bytes(CHUNK))


if __name__ == "__main__":
    {"echo": echo, "sink": sink}[sys.argv[1]]() if len(sys.argv) == 2 else {"probe": probe, "upload": upload}[
        sys.argv[1]
    ](float(sys.argv[2]))
