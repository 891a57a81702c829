"""Repeated calls of `ss -tin` for one live connection, found by its process or by the host at the other end."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

from tcpdelay.capture.path_sample import PathSample
from tcpdelay.capture.ss import Connection, choose_connection, parse_ss

_COMMAND = ("ss", "--tcp", "--info", "--numeric", "--processes", "--no-header", "--oneline")
_PATIENCE = 10.0
"""Time after which a call of `ss` counts as failed [s]; it usually takes some milliseconds."""
_HOST_AND_PORT = re.compile(r"\[(?P<bracketed>[^]]+)\](?::(?P<port6>\d+))?|(?P<host>[^:\s]+)(?::(?P<port4>\d+))?")
_LARGEST_PORT = 65535


@dataclass(frozen=True)
class SsQuery:
    """The search for a live TCP connection.

    Parameters
    ----------
    filters : tuple of str
        Filter of `ss`, as words; empty: all connections.
    process : int, optional
        The process that holds the connection.
    requested : str, optional
        Address of either end, or a part of it, if several connections match.
    what : str
        The search in words, for messages.
    """

    filters: tuple[str, ...] = ()
    process: int | None = None
    requested: str | None = None
    what: str = "ss"

    @classmethod
    def of_process(cls, process: int, requested: str | None = None) -> SsQuery:
        """Return the search for a connection of a process.

        Parameters
        ----------
        process : int
            The process ID.
        requested : str, optional
            Address of either end, or a part of it.

        Raises
        ------
        ValueError
            If there is no such process.
        """
        if process < 1 or not FilePath(f"/proc/{process}").exists():
            raise ValueError(f"there is no process {process}")
        return cls(process=process, requested=requested, what=f"process {process}")

    @classmethod
    def of_host(cls, host: str, requested: str | None = None) -> SsQuery:
        """Return the search for a connection to a host.

        Parameters
        ----------
        host : str
            Name or address of the host at the other end, with `:PORT` if the port matters; an IPv6 address with a port
            is in brackets.
        requested : str, optional
            Address of either end, or a part of it.

        Raises
        ------
        ValueError
            If the name is not known, or the port is not from 1 to 65535.

        Examples
        --------
        >>> SsQuery.of_host("127.0.0.1:5001").filters
        ('dst', '127.0.0.1:5001')
        """
        match = _HOST_AND_PORT.fullmatch(host)
        name = host if match is None else match["bracketed"] or match["host"]
        port = None if match is None else match["port6"] or match["port4"]
        if port is not None and not 1 <= int(port) <= _LARGEST_PORT:
            raise ValueError(f"{host!r:.60}: the port must lie between 1 and {_LARGEST_PORT}")
        try:
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "no valid name"
            raise ValueError(f"{host!r:.60}: no such host: {reason}") from None
        words: list[str] = []
        for address in dict.fromkeys(str(each[4][0]) for each in found):
            bare = f"[{address}]" if ":" in address else address
            words += [*(["or"] if words else []), "dst", bare if port is None else f"{bare}:{port}"]
        return cls(tuple(words), requested=requested, what=f"connections to {host:.60}")

    def connections(self) -> list[Connection]:
        """Return the connections that match, without the choice by address; none if there is none.

        Raises
        ------
        ValueError
            If `ss` is missing or fails, or its output is malformed.
        """
        return _parsed(_of_process(_output([*_COMMAND, *self.filters]), self.process), self.what)

    def find(self) -> Connection:
        """Return the only connection that matches and from which a path can be estimated.

        Raises
        ------
        ValueError
            If `ss` is missing or fails, or if no connection or several connections match.
        """
        found = self.connections()
        if not found:
            hint = "; of other users' processes, only root sees the connections" if self.process is not None else ""
            raise ValueError(f"{self.what}: no TCP connection{hint}")
        return choose_connection(found, self.requested, self.what)

    def sample(self, connection: Connection) -> tuple[PathSample, Connection] | None:
        """Return a sample of a connection that `find` returned, and its state; None if the connection has ended.

        Raises
        ------
        ValueError
            If `ss` is missing or fails, or its output is malformed.
        """
        ends = connection.local, connection.peer
        for found in self.connections():
            if (found.local, found.peer) == ends:
                return PathSample.of_connection(found, time.time()), found
        return None


def _output(command: Sequence[str]) -> str:
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_PATIENCE
        )
    except FileNotFoundError:
        raise ValueError("the program ss is missing; Linux has it in the package iproute2") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"the program ss failed: {error}") from None
    if ended.returncode:
        raise ValueError(f"the program ss failed: {' '.join(ended.stderr.split())[:200]}")
    return ended.stdout


def _of_process(output: str, process: int | None) -> str:
    """Return the lines of `ss --oneline` that name a process; all lines for None."""
    named = re.compile(rf"\bpid={process},")
    return "".join(line for line in output.splitlines(keepends=True) if process is None or named.search(line))


def _parsed(output: str, what: str) -> list[Connection]:
    return parse_ss(output, what) if output.strip() else []
