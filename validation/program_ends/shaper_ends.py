"""Ends for `validation/variable_link.py`: bursts of datagrams, and an emulator of a link between them and a sink.

The emulator is the algorithm of mahimahi's `LinkQueue` on the clock of the machine; it shares no code with the package.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path

PORT = 7002
HEADERS, OPPORTUNITY = 28, 1500
"""Bytes of the headers of IP and UDP, and of an opportunity."""
END = b"end"


def send(seconds: float, packets_per_second: float) -> None:
    """Send bursts of datagrams of random sizes at random times."""
    draw = random.Random(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.connect(("server", PORT))
        now = begin = time.monotonic()
        while now < begin + seconds:
            burst = draw.choice((1, 1, 2, 10))
            for _ in range(burst):
                own.send(bytes(draw.randint(12, 1472)))
            time.sleep(draw.expovariate(packets_per_second / 3.5))
            now = time.monotonic()
        time.sleep(5)
        own.send(END)


def emulate(trace: str) -> None:
    """Read datagrams, let each leave at an opportunity, and write arrivals, departures [ns] and sizes to `passed`."""
    schedule = [int(line) * 1_000_000 for line in Path(trace).read_text(encoding="ascii").split()]
    waiting: deque[list[int]] = deque()
    rows: list[tuple[int, int, int]] = []
    place = cycles = 0
    ended = False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        own.bind(("", PORT))
        own.setblocking(False)
        begin = time.monotonic_ns()
        while not ended or waiting:
            due = begin + cycles * schedule[-1] + schedule[place]
            now = time.monotonic_ns()
            if due > now:
                # Sleep to the opportunity, or up to the next datagram.
                if select.select([own], [], [], (due - now) / 1e9)[0]:
                    data = own.recv(2048)
                    arrival = time.monotonic_ns()
                    ended = ended or data == END
                    if data != END:
                        waiting.append([arrival - begin, len(data) + HEADERS, len(data) + HEADERS])
                continue
            place, budget = place + 1, OPPORTUNITY
            if place == len(schedule):
                place, cycles = 0, cycles + 1
            while budget and waiting:
                sent = min(budget, waiting[0][2])
                waiting[0][2] -= sent
                budget -= sent
                if waiting[0][2] == 0:
                    arrival, size, _ = waiting.popleft()
                    rows.append((arrival, time.monotonic_ns() - begin, size))
    Path("passed").write_bytes(b"".join(struct.pack("3q", *row) for row in rows))


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(float(sys.argv[2]), float(sys.argv[3]))
    else:
        emulate(sys.argv[2])
