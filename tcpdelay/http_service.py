"""Pages served over HTTP while a command runs, within limits of time, size and connections; addresses of sockets."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import socket
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application, HTTPError, RequestHandler

# Addresses of sockets: read, in words, and compared.

LARGEST_PORT = 65_535


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int


def parse_address(text: str, name: str) -> Address:
    """Read a host and a port; an IPv6 address is in brackets."""
    host, _, port = text.rpartition(":")
    is_port = port.isdecimal() and len(port) <= len(str(LARGEST_PORT)) and int(port) <= LARGEST_PORT
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or not is_port or (not bracketed and set(host) & set(":[] \t")):
        raise ValueError(f"{name}: must be HOST:PORT, such as 127.0.0.1:9000 or [::1]:9000, got {text[:64]!r}")
    return Address(host[1:-1] if bracketed else host, int(port))


def address_in_words(address: Sequence[Any]) -> str:
    """Return the address of a socket: host and port."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reaches(target: Sequence[Any], listening: Sequence[Any]) -> bool:
    """Return whether a connection to a target arrives at a listening socket of this machine.

    A socket at 0.0.0.0 or :: gets the connections to each of this machine's addresses, and a connection to 0.0.0.0 or
    :: goes to this machine (Linux: `ip_route_output_key_hash_rcu`, `tcp_v6_connect`).
    """
    to, at = _host(target), _host(listening)
    if target[1] != listening[1] or to.version != at.version:
        return False
    if to.is_unspecified:
        to = ipaddress.ip_address("127.0.0.1" if to.version == 4 else "::1")
    return to == at or (at.is_unspecified and _is_own(to, target))


def _host(address: Sequence[Any]) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the host; the IPv4 address that an IPv6 address maps."""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    return (isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped) or host


def _is_own(host: ipaddress.IPv4Address | ipaddress.IPv6Address, address: Sequence[Any]) -> bool:
    """Return whether a socket can have a host's address, which only the addresses of this machine allow."""
    with socket.socket(socket.AF_INET if host.version == 4 else socket.AF_INET6) as probe:
        try:
            # The scope of a link-local address is behind the port.
            probe.bind((str(host), 0, *(address[2:] if host.version == 6 else ())))
        except OSError:
            return False
    return True


# Pages served over HTTP while a command runs, within limits of time, size and connections.
#
# Tornado has these limits. aiohttp waits for a body without end, uvicorn for a header too, and both print a traceback
# when a client resets its connection.

PATIENCE = 10.0
"""Longest time for a connection [s]."""
LONGEST_BODY = 1 << 20
"""Longest body of a request [bytes]."""
MOST_CONNECTIONS = 16
"""Connections at a time; further ones are closed at once."""


class Page(RequestHandler):
    """A page for programs of this machine and for its own origin; its errors are JSON."""

    def prepare(self) -> None:
        """Refuse a website whose name resolves to this address (DNS rebinding), and requests of other websites."""
        host, origin = self.request.host, self.request.headers.get("Origin")
        if not _is_own_name(host, self.settings["host"]):
            self.refuse(403, f"the host {host[:64]!r} is another one; use an IP address, or localhost")
        elif origin is not None and origin.partition("://")[2] != host:
            self.refuse(403, f"no answer to requests of {origin[:64]!r}")

    def head(self) -> None:
        """Answer as to GET; tornado leaves out the body."""
        self.get()

    def answer(self, content: Any) -> None:
        """Answer with JSON."""
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(content) + "\n")

    def refuse(self, status: int, reason: str) -> None:
        """Answer with an error."""
        self.set_status(status)
        self.answer({"error": reason})

    def log_exception(self, kind: Any, error: Any, place: Any) -> None:
        """Print nothing about a faulty request, which its client is told; a fault of this program has a traceback."""
        if not isinstance(error, HTTPError):
            super().log_exception(kind, error, place)

    def write_error(self, status_code: int, **_: Any) -> None:
        """Answer with the error of a method that the page lacks."""
        self.answer({"error": self._reason})


class _NoPage(Page):
    def prepare(self) -> None:
        super().prepare()
        if not self._finished:
            self.refuse(404, f"there are only the pages {', '.join(self.settings['pages'])}")


class _Server(HTTPServer):
    def initialize(self, *arguments: Any, **settings: Any) -> None:
        super().initialize(*arguments, **settings)
        self.streams: weakref.WeakSet[IOStream] = weakref.WeakSet()

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        """Serve a connection for some time, unless there are many."""
        if sum(not each.closed() for each in self.streams) >= MOST_CONNECTIONS:
            stream.close()
            return
        self.streams.add(stream)
        asyncio.get_running_loop().call_later(PATIENCE, _close, weakref.ref(stream))
        super().handle_stream(stream, address)


def _close(stream: weakref.ref[IOStream]) -> None:
    if (found := stream()) is not None:
        found.close()


def _is_own_name(host: str, listening: str) -> bool:
    """Return whether the Host of a request is an address, which no website can have as its name, or this machine's.

    >>> [_is_own_name(host, "127.0.0.1") for host in ("127.0.0.1:9002", "[::1]:9002", "localhost", "evil.example")]
    [True, True, True, False]
    """
    name = re.sub(r":\d*$", "", host).strip("[]").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in ("localhost", listening.lower(), socket.gethostname().lower())
    return True


@contextmanager
def served(pages: Mapping[str, type[Page]], address: Address, **settings: Any) -> Iterator[tuple[Any, ...]]:
    """Serve pages by their paths in the running event loop; yield the address of the socket.

    The pages find the `settings` in their attribute of this name.
    """
    application = Application(
        list(pages.items()),
        default_handler_class=_NoPage,
        log_function=lambda page: None,
        host=address.host,
        pages=list(pages),
        **settings,
    )
    server = _Server(application, idle_connection_timeout=PATIENCE, body_timeout=PATIENCE, max_body_size=LONGEST_BODY)
    listening = socket.create_server(address, family=socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    listening.setblocking(False)
    server.add_socket(listening)
    try:
        yield listening.getsockname()
    finally:
        server.stop()
        for stream in list(server.streams):
            stream.close()
