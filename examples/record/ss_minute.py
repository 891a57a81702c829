"""Record `ss -tin` once a second, beside a voice flow over TCP, in a guest in virtual time.

tcpdelay run --rtt 100ms --loss 2% -o out -- \
    python3 examples/record/ss_minute.py server --client python3 examples/record/ss_minute.py client

The recording is then `out/client.stdout`; the packet captures in `out` show the true delays.
"""

import socket
import subprocess
import sys
import time

PORT, SIZE, INTERVAL, PACKETS = 5001, 174, 0.020, 3000
SAMPLED, PHASE = 50, 27
"""The packets between two calls of ss, and the number of the first of them before a call."""


def send() -> None:
    """Send the flow to the server, and print the time and what ss shows once a second."""
    with socket.create_connection(("server", PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = time.monotonic()
        for number in range(PACKETS):
            time.sleep(max(0.0, start + INTERVAL * number - time.monotonic()))
            connection.sendall(bytes(SIZE))
            if number % SAMPLED == PHASE:
                shown = subprocess.run(["ss", "-tin", "dst", "server"], capture_output=True, text=True, check=True)
                print(f"{time.time():.9f}\n{shown.stdout}", end="", flush=True)


def receive() -> None:
    """Read one connection to its end."""
    with socket.create_server(("", PORT)) as listener:
        connection, _ = listener.accept()
        while connection.recv(2**16):
            pass


if __name__ == "__main__":
    receive() if sys.argv[1:] == ["server"] else send()
