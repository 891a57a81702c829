"""Ends for `validation/accecn.py`: one transfer with a congestion control for some seconds."""

from __future__ import annotations

import socket
import sys
import time

PORT = 7000
CHUNK = 16_384


def receive(congestion_control: str) -> None:
    """Read a connection, and print the number of bytes read."""
    with socket.create_server(("", PORT)) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
        stream, _ = listening.accept()
        read = 0
        while data := stream.recv(65_536):
            read += len(data)
    print(read)


def send(congestion_control: str, seconds: float) -> None:
    """Write as much as the connection takes."""
    with socket.socket() as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
        stream.connect(("server", PORT))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stream.sendall(bytes(CHUNK))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], float(sys.argv[3]))
