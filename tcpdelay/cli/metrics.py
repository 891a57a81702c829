"""The latest metrics of a running command, served over HTTP for Prometheus.

The standard library suffices: one page of gauges in the text format. The library prometheus_client would add a registry
of metrics that are counted while the program runs, which a page rendered from the latest record does not use.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import typer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ADDRESS = re.compile(r"(?P<host>[^:\s]+):(?P<port>\d{1,5})")
_LARGEST_PORT = 65535


def listening_address(text: str) -> tuple[str, int]:
    """Return host and port of an address to listen on.

    Raises
    ------
    typer.BadParameter
        If the text is no HOST:PORT with a port from 0 to 65535; the port 0 means any free port.

    Examples
    --------
    >>> listening_address("127.0.0.1:9108")
    ('127.0.0.1', 9108)
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > _LARGEST_PORT:
        raise typer.BadParameter(
            f"--prometheus: must be HOST:PORT with a port from 0 to {_LARGEST_PORT}, such as 127.0.0.1:9108, "
            f"got {text!r:.60}"
        )
    return match["host"], int(match["port"])


@contextmanager
def metrics_server(address: tuple[str, int]) -> Iterator[Callable[[str], None]]:
    """Serve metrics at `/metrics`, and print the address on stderr; yield the function that replaces the page.

    Raises
    ------
    typer.BadParameter
        If the address cannot be listened on.
    """
    page = b""

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] in ("/", "/metrics")
            content = page if found else b"metrics are at /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Log no request: the terminal belongs to the command."""

    def publish(text: str) -> None:
        nonlocal page
        page = text.encode()

    try:
        server = ThreadingHTTPServer(address, Metrics)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise typer.BadParameter(f"--prometheus: cannot listen on {address[0]}:{address[1]}: {reason}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    print(f"metrics at http://{address[0]}:{server.server_address[1]}/metrics", file=sys.stderr, flush=True)
    try:
        yield publish
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
