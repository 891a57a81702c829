"""TCP source and sink for the recordings: constant bit rate or bulk."""

import argparse
import socket
import time


def send(host: str, port: int, packet: int, interval: float, duration: float) -> str:
    """Write one packet per interval into a TCP connection with Nagle's algorithm off.

    Parameters
    ----------
    host, port
        Address of the receiver.
    packet
        Payload of one write [B], at least 1.
    interval
        Time between writes [s]; 0 writes as fast as the send buffer takes it (bulk).
    duration
        Time from the first write to the close [s].

    Returns
    -------
    str
        One line with the number of writes, how many of them were more than 10 ms behind schedule, and the largest
        lateness. A late write is a stall of the guest, or a full send buffer.
    """
    payload = bytes(packet)
    writes = 0
    late_writes = 0
    worst_lateness = 0.0
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = time.monotonic()
        while (now := time.monotonic()) < start + duration:
            due = start + writes * interval
            if now < due:
                time.sleep(due - now)
            if interval > 0:
                lateness = time.monotonic() - due
                late_writes += lateness > 0.01
                worst_lateness = max(worst_lateness, lateness)
            connection.sendall(payload)
            writes += 1
    schedule = f"{late_writes} more than 10 ms late, worst {1e3 * worst_lateness:.1f} ms" if interval > 0 else "bulk"
    return f"{host}:{port} {writes} writes of {packet} B, {schedule}"


def receive(port: int) -> None:
    """Accept one connection on a TCP port and read it to its end.

    Parameters
    ----------
    port
        Port to listen on, all addresses.
    """
    with socket.create_server(("", port)) as listener:
        listener.settimeout(60)
        connection, _ = listener.accept()
    with connection:
        connection.settimeout(60)
        while connection.recv(65536):
            pass


def main() -> None:
    """Run the source or the sink as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    receiver = roles.add_parser("receive", help="accept one connection and read it to its end")
    receiver.add_argument("--port", type=int, required=True)
    sender = roles.add_parser("send", help="write packets into one connection")
    sender.add_argument("--host", required=True)
    sender.add_argument("--port", type=int, required=True)
    sender.add_argument("--packet", type=int, required=True, help="payload of one write [B]")
    sender.add_argument("--interval", type=float, required=True, help="time between writes [s]; 0 is bulk")
    sender.add_argument("--duration", type=float, required=True, help="[s]")
    arguments = parser.parse_args()
    if arguments.role == "receive":
        receive(arguments.port)
    else:
        print(
            send(arguments.host, arguments.port, arguments.packet, arguments.interval, arguments.duration), flush=True
        )


if __name__ == "__main__":
    main()
