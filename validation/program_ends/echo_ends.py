"""A TCP echo and its client, which asks again as soon as it is answered: `echo_ends.py server|client MESSAGES WRITES`.

A message of 800 bytes goes in one write, or in two: 4 bytes, then 796. The server may take a time for each answer. The
client writes the time of each answer [ns]
to the file `times` in its working directory.
"""

import argparse
import socket
import time
from array import array
from pathlib import Path

PORT, SIZE, HEADER = 7000, 800, 4


def send(stream: socket.socket, data: bytes, writes: int) -> None:
    """Send a message in one write or in two."""
    if writes == 2:
        stream.sendall(data[:HEADER])
        data = data[HEADER:]
    stream.sendall(data)


def receive(stream: socket.socket) -> bytes:
    """Return one message; empty at the end of the connection."""
    data = b""
    while len(data) < SIZE:
        part = stream.recv(SIZE - len(data))
        if not part:
            return b""
        data += part
    return data


def main(end: str, messages: int, writes: int, answer_time: float) -> None:
    """Answer until the client ends, or ask `messages` times."""
    if end == "server":
        stream, _ = socket.create_server(("", PORT)).accept()
    else:
        stream = socket.create_connection(("server", PORT))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if end == "server":
        while data := receive(stream):
            time.sleep(answer_time)
            send(stream, data, writes)
        return
    times = array("q")
    for _ in range(messages):
        begun = time.monotonic_ns()
        send(stream, bytes(SIZE), writes)
        receive(stream)
        times.append(time.monotonic_ns() - begun)
    with Path("times").open("wb") as file:
        times.tofile(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("end", choices=("client", "server"))
    parser.add_argument("messages", type=int, help="number of messages that the client sends")
    parser.add_argument("writes", type=int, choices=(1, 2), help="writes for each message")
    parser.add_argument("answer_time", type=float, help="time that the server takes for an answer [s]")
    given = parser.parse_args()
    main(given.end, given.messages, given.writes, given.answer_time)
