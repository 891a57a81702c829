"""Addresses of sockets: read, in words, compared, and served over HTTP."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

LARGEST_PORT = 65_535


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int


def parse_address(text: str, name: str) -> Address:
    """Read a host and a port; an IPv6 address is in brackets.

    Parameters
    ----------
    text : str
        HOST:PORT, with a port from 0 to 65535.
    name : str
        Name of the option in the message.

    Returns
    -------
    Address
        The host without brackets, and the port.

    Raises
    ------
    ValueError
        If the text has another form.

    Examples
    --------
    >>> parse_address("127.0.0.1:9000", "--listen")
    Address(host='127.0.0.1', port=9000)
    >>> parse_address("[::1]:9000", "--listen").host
    '::1'
    >>> parse_address("9000", "--listen")
    Traceback (most recent call last):
    ValueError: --listen: must be HOST:PORT, such as 127.0.0.1:9000 or [::1]:9000, got '9000'
    """
    host, _, port = text.rpartition(":")
    is_port = port.isdecimal() and len(port) <= len(str(LARGEST_PORT)) and int(port) <= LARGEST_PORT
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or not is_port or (not bracketed and set(host) & set(":[] \t")):
        raise ValueError(f"{name}: must be HOST:PORT, such as 127.0.0.1:9000 or [::1]:9000, got {text[:64]!r}")
    return Address(host[1:-1] if bracketed else host, int(port))


def address_in_words(address: Sequence[Any]) -> str:
    """Return the address of a socket: host and port.

    Examples
    --------
    >>> address_in_words(("127.0.0.1", 9000)), address_in_words(("::1", 9000, 0, 0))
    ('127.0.0.1:9000', '[::1]:9000')
    """
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reaches(target: Sequence[Any], listening: Sequence[Any]) -> bool:
    """Return whether a connection to a target arrives at a listening socket of this machine.

    A socket at 0.0.0.0 or :: gets the connections to each of this machine's addresses, and a connection to 0.0.0.0 or
    :: goes to this machine (Linux: `ip_route_output_key_hash_rcu`, `tcp_v6_connect`).

    Parameters
    ----------
    target, listening : sequence
        The addresses of the two sockets, with a numeric host, as `getaddrinfo` and `getsockname` return them.

    Examples
    --------
    >>> reaches(("127.0.0.1", 9000), ("0.0.0.0", 9000)), reaches(("127.0.0.1", 9001), ("0.0.0.0", 9000))
    (True, False)
    >>> reaches(("::ffff:127.0.0.1", 9000, 0, 0), ("127.0.0.1", 9000)), reaches(("192.0.2.1", 9000), ("0.0.0.0", 9000))
    (True, False)
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


def http_server(address: Address, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """Return an HTTP server that listens at an address, of IPv4 or IPv6; its threads end with the process.

    Raises
    ------
    OSError
        If the address cannot be listened on.
    """

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        daemon_threads = True

    return Server(address, handler)
