"""A WebSocket server and its client, with Debian's package python3-websockets: `websocket_ends.py server|client`."""

import argparse
import asyncio
import os

PORT, MESSAGES = 8765, 200


async def server() -> None:
    """Send every message back."""
    import websockets

    async def echo(socket, path=None):
        async for message in socket:
            await socket.send(message)

    async with websockets.serve(echo, "", PORT):
        await asyncio.Future()


async def client() -> None:
    """Send a message of 160 bytes every 20 ms; print how many came back."""
    import websockets

    async def send(socket):
        for _ in range(MESSAGES):
            await socket.send(bytes(160))
            await asyncio.sleep(0.020)

    async with websockets.connect(f"ws://{os.environ['SERVER_ADDRESS']}:{PORT}") as socket:
        sending = asyncio.ensure_future(send(socket))
        for _ in range(MESSAGES):
            await socket.recv()
        await sending
    print(f"{MESSAGES} messages came back")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("end", choices=("client", "server"))
    asyncio.run(server() if parser.parse_args().end == "server" else client())
