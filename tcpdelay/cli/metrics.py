"""The latest metrics of a running command, served over HTTP for Prometheus.

The standard library suffices: one page of gauges in the text format. The library prometheus_client would add a registry
of metrics that are counted while the program runs, which a page rendered from the latest record does not use.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import typer

from tcpdelay.addresses import Address, address_in_words, http_server

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@contextmanager
def metrics_server(address: Address) -> Iterator[Callable[[str], None]]:
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
        server = http_server(address, Metrics)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise typer.BadParameter(f"--prometheus: cannot listen on {address_in_words(address)}: {reason}") from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    print(f"metrics at http://{address_in_words(server.server_address)}/metrics", file=sys.stderr, flush=True)
    try:
        yield publish
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
