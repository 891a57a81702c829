"""Ends for `validation/variable_link.py`: a call over TCP beside a long transfer from the same host."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from pathlib import Path

CALL_PORT, BULK_PORT = 7003, 7004
SIZE, INTERVAL = 174, 0.020
"""Size of a message of the call [bytes], and the time between two messages [s]."""
CHUNK = 65536


def receive() -> None:
    """Read both connections, and write the delays of the messages of the call [ns] to `delays`, and the bytes read."""
    read = 0

    def transfer() -> None:
        nonlocal read
        with socket.create_server(("", BULK_PORT)) as listening:
            stream, _ = listening.accept()
            while data := stream.recv(CHUNK):
                read += len(data)

    with socket.create_server(("", CALL_PORT)) as listening:
        threading.Thread(target=transfer, daemon=True).start()
        stream, _ = listening.accept()
        delays, rest = [], b""
        while data := stream.recv(CHUNK):
            now = time.monotonic_ns()
            rest += data
            while len(rest) >= SIZE:
                # Both ends run on one clock.
                delays.append(now - struct.unpack_from("q", rest)[0])
                rest = rest[SIZE:]
    Path("delays").write_bytes(struct.pack(f"{len(delays)}q", *delays))
    Path("transferred").write_text(str(read), encoding="ascii")


def send(seconds: float, congestion_control: str) -> None:
    """Write the messages of the call beside a transfer with this congestion control; "none": without a transfer."""
    begin = time.monotonic_ns()
    step, count = round(INTERVAL * 1e9), round(seconds / INTERVAL)

    def transfer() -> None:
        with socket.create_connection(("server", BULK_PORT)) as stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
            while time.monotonic_ns() < begin + count * step:
                stream.sendall(bytes(CHUNK))

    if congestion_control != "none":
        threading.Thread(target=transfer, daemon=True).start()
    with socket.create_connection(("server", CALL_PORT)) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(count):
            due = begin + number * step
            time.sleep(max(due - time.monotonic_ns(), 0) / 1e9)
            # From the time at which it is due: a write may wait for room in the send buffer.
            stream.sendall(struct.pack("q", due) + bytes(SIZE - 8))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive()
    else:
        send(float(sys.argv[2]), sys.argv[3])
