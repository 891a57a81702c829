"""Voice and a download, for `examples/shared-link.toml`: an echo and its caller, a sender of data and its receiver."""

import socket
import sys
import threading
import time

PACKET, INTERVAL, COUNT = 200, 0.02, 500
"""Size of a packet of voice [bytes], time between two packets [s], and their number."""
DATA = 4_000_000
"""Size of the download [bytes]."""


def received(stream: socket.socket, size: int) -> bool:
    """Return whether so many bytes arrived before the end of the stream."""
    while size > 0 and (data := stream.recv(min(size, 65536))):
        size -= len(data)
    return size == 0


def echo() -> None:
    """Send all data of one connection back."""
    stream, _ = socket.create_server(("", 7000)).accept()
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := stream.recv(4096):
        stream.sendall(data)


def call() -> None:
    """Write packets to the echo, and print how long they take."""
    stream = socket.create_connection(("server", 7000))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    begin = time.monotonic()

    def write() -> None:
        for number in range(COUNT):
            time.sleep(max(begin + number * INTERVAL - time.monotonic(), 0))
            stream.sendall(bytes(PACKET))

    writer = threading.Thread(target=write)
    writer.start()
    times = []
    for number in range(COUNT):
        received(stream, PACKET)
        times.append(time.monotonic() - begin - number * INTERVAL)
    writer.join()
    times.sort()
    print(f"echo: median {1e3 * times[COUNT // 2]:.0f} ms, 95 % within {1e3 * times[int(0.95 * COUNT)]:.0f} ms")


def send() -> None:
    """Send the data to one client."""
    stream, _ = socket.create_server(("", 7001)).accept()
    stream.sendall(bytes(DATA))


def download() -> None:
    """Receive the data."""
    stream = socket.create_connection(("server", 7001))
    print("download: complete" if received(stream, DATA) else "download: broken off")


if __name__ == "__main__":
    {"echo": echo, "call": call, "send": send, "download": download}[sys.argv[1]]()
