"""The control of a running proxy by HTTP: read and change the path, list the connections, read the summary."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from tcpdelay.addresses import Address, http_server
from tcpdelay.proxy.server import Proxy
from tcpdelay.scenario.fields import InvalidValueError, declarations
from tcpdelay.scenario.path import Path

LONGEST_BODY = 10_000
"""Longest body of a request [bytes]."""
POLL_INTERVAL = 0.05
"""Time within which the control ends [s]."""
PATIENCE = 10.0
"""Longest time for a request of a client, and for an answer of the proxy [s]."""


def changed_path(path: Path, changes: object) -> Path:
    """Return a path with changed fields.

    Parameters
    ----------
    path : Path
        The path.
    changes : object
        The new values by the names of the fields: texts with a unit, or numbers in seconds and fractions.

    Raises
    ------
    ValueError
        If the changes are not an object, a field is unknown, or a value is out of its range.

    Examples
    --------
    >>> changed_path(Path(rtt=0.080, loss=0.01), {"loss": "3%"}).loss
    0.03
    >>> changed_path(Path(rtt=0.080, loss=0.01), {"loss": "130%"})
    Traceback (most recent call last):
    ValueError: loss: '130%' is not below 100%; write 2% or 0.02
    """
    fields = declarations(Path)
    if not isinstance(changes, dict):
        raise InvalidValueError("path", changes, 'be an object such as {"loss": "3%"}')
    for name in changes:
        if name not in fields:
            raise InvalidValueError("path", name, f"have the fields {', '.join(fields)}")
    values: dict[str, Any] = {name: fields[name].read(name, value) for name, value in changes.items()}
    return replace(path, **values)


@contextmanager
def controlled(proxy: Proxy, address: Address) -> Iterator[tuple[str, int]]:
    """Serve the control of a proxy that runs in the event loop of the caller; return its address.

    Raises
    ------
    OSError
        If the address cannot be used.
    """
    loop = asyncio.get_running_loop()

    def in_loop(function: Callable[[], Any]) -> Any:
        async def called() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), loop).result(PATIENCE)

    class Control(BaseHTTPRequestHandler):
        timeout = PATIENCE
        error_content_type = "application/json"
        error_message_format = '{"error": "%(message)s"}\n'

        def do_GET(self) -> None:
            read = {
                "/path": lambda: asdict(proxy.path),
                "/connections": proxy.connections,
                "/summary": proxy.summary,
            }.get(self.path)
            if read is None:
                self._answer(HTTPStatus.NOT_FOUND, {"error": "the control has /path, /connections and /summary"})
            else:
                self._answer(HTTPStatus.OK, in_loop(read))

        def do_PUT(self) -> None:
            if self.path != "/path":
                self._answer(HTTPStatus.NOT_FOUND, {"error": "only /path can be changed"})
                return
            try:
                length = min(int(self.headers.get("Content-Length", 0)), LONGEST_BODY)
                changes = json.loads(self.rfile.read(length))
                in_loop(lambda: proxy.change_path(changed_path(proxy.path, changes)))
            # Arrays within arrays may be deeper than Python reads.
            except (ValueError, RecursionError) as error:
                self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            else:
                self._answer(HTTPStatus.OK, in_loop(lambda: asdict(proxy.path)))

        def log_message(self, format: str, *args: Any) -> None:
            """Print no line for each request."""

        def _answer(self, status: HTTPStatus, content: Any) -> None:
            body = json.dumps(content).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_server(address, Control) as server:
        server.block_on_close = False
        serving = threading.Thread(target=server.serve_forever, args=(POLL_INTERVAL,), daemon=True)
        serving.start()
        try:
            yield address.host, int(server.server_address[1])
        finally:
            # The threads of requests end with the process: they may wait for the loop, which waits here.
            server.shutdown()
