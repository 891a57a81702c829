"""The two ends of `validation/relay.py` in the guest: a TURN client, and the TURN server with the peer of the client.

The relay's end runs coturn, and the peer behind an emulated UDP path with a delay and a loss, on the loopback device.
One end sends the messages of the file `messages` in the working directory of both, and the other end reads them.

This runs with Debian's Python and its package python3-aioice, and so imports nothing of tcpdelay.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import subprocess
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

PORT = 3478
RELAYED, PEER = "10.9.0.1", ("10.9.0.2", 7000)
"""Address that coturn relays from, and address of the peer."""
USER, PASSWORD = "user", "password"
NUMBER = struct.Struct("!Q")
"""Number of a message, at its beginning."""
HELLO = b"hello"
DRAIN = 20.0
"""Time after the last message in which messages may still arrive [s]."""
PATIENCE = 0.2
"""Time after which an end tries again to reach the other end [s]."""


class Messages(asyncio.DatagramProtocol):
    """Logs the messages that arrive, and remembers who says hello."""

    def __init__(self) -> None:
        self.numbers, self.times = array("q"), array("q")
        self.partner: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, address: Any) -> None:
        """Log a message, or the sender of a hello."""
        now = time.monotonic_ns()
        if data == HELLO:
            if not self.partner.done():
                self.partner.set_result(address)
        else:
            self.numbers.append(NUMBER.unpack_from(data)[0])
            self.times.append(now)


async def send(to: Callable[[bytes], object]) -> None:
    """Send the messages at their times, and log the time of each write."""
    rows = [line.split(",") for line in Path("messages").read_text(encoding="ascii").splitlines()]
    written = array("q")
    start = time.monotonic()
    for number, (when, size) in enumerate(rows):
        if (ahead := start + float(when) - time.monotonic()) > 0:
            await asyncio.sleep(ahead)
        written.append(time.monotonic_ns())
        to(NUMBER.pack(number) + bytes(int(size) - NUMBER.size))
    Path("written").write_bytes(written.tobytes())
    await asyncio.sleep(DRAIN)


async def read(messages: Messages) -> None:
    """Wait until no message has arrived for a while, and write the log."""
    seen = -1
    while not messages.numbers or len(messages.numbers) > seen:
        seen = len(messages.numbers)
        await asyncio.sleep(DRAIN / 2)
    Path("read").write_bytes(messages.numbers.tobytes() + messages.times.tobytes())


async def client(action: str, address: str) -> None:
    """Allocate an address at the relay over TCP; send messages to the peer, or read them from it."""
    from aioice.turn import create_turn_endpoint

    while True:
        try:
            transport, messages = await create_turn_endpoint(Messages, (address, PORT), USER, PASSWORD, transport="tcp")
            break
        except OSError:
            await asyncio.sleep(PATIENCE)
    # The first message makes the client bind a channel to the peer.
    while action == "read" and not messages.numbers:
        transport.sendto(HELLO, PEER)
        await asyncio.sleep(PATIENCE)
    if action == "send":
        transport.sendto(HELLO, PEER)
        await asyncio.sleep(1.0)
        await send(lambda data: transport.sendto(data, PEER))
    else:
        await read(messages)


async def relay(action: str, address: str, delay: str, loss: str) -> None:
    """Run coturn; send messages to the client as its peer, or read them from it."""
    for own in (RELAYED, PEER[0]):
        subprocess.run(["ip", "address", "add", f"{own}/32", "dev", "lo"], check=True)
    netem = ["netem", "delay", delay, "loss", loss, "limit", "100000"]
    subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", *netem], check=True)
    listening = ["--listening-ip", address, "--listening-port", str(PORT), "--relay-ip", RELAYED]
    # In virtual time, the threads of relays would wait for each other for ever.
    plain = ["--no-cli", "--no-tls", "--no-dtls", "--relay-threads", "0"]
    users = ["--lt-cred-mech", "--user", f"{USER}:{PASSWORD}", "--realm", "testbed", "--userdb", "turn.db"]
    logs = ["--log-file", "stdout", "--pidfile", "turn.pid"]
    server = subprocess.Popen(["turnserver", "-n", *listening, *plain, *users, *logs])
    loop = asyncio.get_running_loop()
    transport, messages = await loop.create_datagram_endpoint(Messages, local_addr=PEER)
    if action == "send":
        relayed = await messages.partner
        await send(lambda data: transport.sendto(data, relayed))
    else:
        await read(messages)
    server.terminate()
    server.wait()


def main() -> None:
    """Run one end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("end", choices=("client", "relay"))
    parser.add_argument("action", choices=("send", "read"), help="what this end does with the messages")
    parser.add_argument(
        "path", nargs="*", help="delay and loss of the emulated UDP path, as netem reads them; relay only"
    )
    given = parser.parse_args()
    names = {"send": ("CLIENT_ADDRESS", "SERVER_ADDRESS"), "read": ("SERVER_ADDRESS", "CLIENT_ADDRESS")}
    own, other = (os.environ[name] for name in names[given.action])
    asyncio.run(client(given.action, other) if given.end == "client" else relay(given.action, own, *given.path))


if __name__ == "__main__":
    main()
