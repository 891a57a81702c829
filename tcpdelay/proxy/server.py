"""The proxy: it passes bytes on when they are due, and is controlled by HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np

from tcpdelay.ask import unknown_fields
from tcpdelay.declare import InvalidValueError, declarations
from tcpdelay.http_service import Address, Page, address_in_words, served
from tcpdelay.proxy.stream import DIRECTIONS, Activity, Delivery, Direction, Stream
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.stack import Linux
from tcpdelay.sim.path import PATH_FIELDS
from tcpdelay.sim.tcp.constants import SECOND

READ_SIZE = 1 << 16
"""Most bytes of one read, and the receive buffer of the sockets: few bytes beyond the send buffer are on their way."""
BACKLOG = 1024
"""Connections that may wait to be accepted."""
RESERVED_FILES = 48
"""Open files that connections leave to the control, the log and the interpreter."""
FLUSH_TIME = 30.0
"""Time for a reader to take the last bytes of a connection that has ended [s]."""


def reversed_path(path: Path) -> Path:
    """Return the path in the other direction; losses and jitter are the same."""
    return path if path.one_way_delay is None else replace(path, one_way_delay=path.rtt - path.one_way_delay)


def fault_in_words(error: OSError | UnicodeError) -> str:
    """Return what is wrong with an address, without the address."""
    if isinstance(error, UnicodeError):
        return "no host can have this name"
    # The errors of asyncio repeat the address; those of the resolver have numbers of their own.
    if error.errno is None or isinstance(error, socket.gaierror):
        text = str(error.strerror or error)
    else:
        text = os.strerror(error.errno)
    return text[:1].lower() + text[1:]


def most_ends() -> float:
    """Raise the limit of open files, and return how many sockets of connections it allows; at least two."""
    if sys.platform == "win32":
        return math.inf
    import resource

    limit, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Without a highest limit, the system has one of its own that is not known here.
    if limit < highest or (highest == resource.RLIM_INFINITY != limit):
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
            limit = highest
    return math.inf if limit == resource.RLIM_INFINITY else max(limit - RESERVED_FILES, 2)


def reset(transport: asyncio.Transport) -> None:
    """Close a connection by a reset; `abort` alone sends the end of the stream."""
    immediately = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
    with suppress(OSError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, immediately)
    transport.abort()


class Proxy:
    """A proxy between clients and a target, whose methods are called in the event loop that runs it.

    Each direction of each connection has losses of its own. They depend on the segments too, so that two runs with the
    same seed are alike only as far as the writes come at the same times.
    """

    def __init__(
        self,
        path: Path,
        stack: Linux,
        activity: Activity,
        seed: int = 0,
        # Limits of the send buffers [bytes], as for `Stream`.
        send_buffer: int | None = None,
        notsent_lowat: int | None = None,
        # Called with the fault if a client cannot be connected to the target.
        on_refusal: Callable[[str], None] | None = None,
    ) -> None:
        self.stack, self.activity = stack, activity
        self._on_refusal = on_refusal
        self._seed, self._limits = seed, (send_buffer, notsent_lowat)
        self._connections: dict[int, _Connection] = {}
        self.open_ends = 0
        self._starts: set[asyncio.Task[None]] = set()
        self._set_path(path)

    async def listen(self, host: str, port: int, target: tuple[str, int]) -> asyncio.Server:
        """Begin to listen, and to pass connections on to the host and port of a target."""
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()
        self._target, self._most_ends = target, most_ends()
        # The event loop accepts as many connections at once as may wait, before it asks whether there are too many.
        listening = await self._loop.create_server(lambda: _End(self, accepts=True), host, port, backlog=1)
        for each in listening.sockets:
            with each.dup() as same:
                same.listen(BACKLOG)
            # Accepted sockets inherit it.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_SIZE)
        self.compiled = self._compile()
        return listening

    def _compile(self) -> asyncio.Future[None]:
        """Compile the simulator in another thread; the first connections wait for the future that is returned."""
        compiled: asyncio.Future[None] = self._loop.create_future()

        def finish(fault: BaseException | None) -> None:
            if compiled.done():
                return
            if fault is None:
                compiled.set_result(None)
            else:
                compiled.set_exception(fault)

        def run() -> None:
            fault = None
            try:
                self._stream(0, "to target")
            except Exception as error:
                fault = error
            # The loop is closed if the proxy has ended meanwhile.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(finish, fault)

        # Unlike those of an executor, a daemon ends with the process.
        threading.Thread(target=run, daemon=True).start()
        return compiled

    async def close(self) -> None:
        """End all connections at once."""
        for start in self._starts:
            start.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        for connection in list(self._connections.values()):
            connection.abort()
        self.activity.note("summary", self.time, **self.summary())

    @property
    def time(self) -> float:
        """Time since the proxy listens [s]."""
        return self._loop.time() - self._origin

    @property
    def path(self) -> Path:
        """The path from the clients to the target."""
        return self.paths["to target"]

    def change_path(self, path: Path) -> None:
        """Put all connections, also later ones, on another path."""
        self._set_path(path)
        self.activity.note("path", self.time, rtt=path.rtt, loss=path.loss)
        # A connection may end meanwhile.
        for connection in list(self._connections.values()):
            connection.change_path()

    def connections(self) -> list[dict[str, Any]]:
        """Return the open connections as records: number, address of the client, age [s], and bytes held."""
        return [connection.record() for connection in self._connections.values()]

    def summary(self) -> dict[str, Any]:
        """Return the summary of the activity."""
        return self.activity.summary({name: path.forward_delay for name, path in self.paths.items()})

    def accept(self, client: _End) -> None:
        """Connect a new client to the target."""
        if self.open_ends + len(self._starts) >= self._most_ends:
            self._refuse(client, self._new_number(), "the limit of open files (ulimit -n) allows no more connections")
            return
        start = self._loop.create_task(self._connect(client))
        self._starts.add(start)
        start.add_done_callback(self._starts.discard)

    def forget(self, number: int) -> None:
        """Forget a connection that has ended."""
        del self._connections[number]
        for delays in self.activity.delays.values():
            delays.forget(number)

    async def _connect(self, client: _End) -> None:
        number, target = self._new_number(), _End(self)
        try:
            await asyncio.shield(self.compiled)
            transport, _ = await self._loop.create_connection(lambda: target, *self._target)
        except OSError as error:
            self._refuse(client, number, fault_in_words(error))
            return
        except asyncio.CancelledError:
            reset(client.transport)
            raise
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_SIZE)
        streams = {direction: self._stream(number, direction) for direction in DIRECTIONS}
        self._connections[number] = _Connection(self, number, client, target, streams)

    def _new_number(self) -> int:
        self.activity.connections += 1
        return self.activity.connections

    def _refuse(self, client: _End, number: int, fault: str) -> None:
        """Reset a client that is not connected to the target."""
        reset(client.transport)
        self.activity.refused += 1
        self.activity.note("refused", self.time, connection=number, fault=fault)
        if self._on_refusal is not None:
            self._on_refusal(fault)

    def _stream(self, number: int, direction: Direction) -> Stream:
        drawn = np.random.SeedSequence([self._seed, number, DIRECTIONS.index(direction)])
        seed = int(drawn.generate_state(1, np.uint64)[0])
        return Stream(self.paths[direction], self.stack, seed, *self._limits)

    def _set_path(self, path: Path) -> None:
        for refused in unknown_fields(path, PATH_FIELDS, "in the proxy"):
            raise refused
        self.paths: dict[Direction, Path] = {"to target": path, "to client": reversed_path(path)}


class _End(asyncio.BufferedProtocol):
    """The socket of one end of a connection: of a client that the proxy accepts, or of the target."""

    def __init__(self, proxy: Proxy, accepts: bool = False) -> None:
        self._proxy, self._accepts = proxy, accepts
        self.transport: asyncio.Transport
        self.carrier: _Carrier | None = None
        """Carries what this end writes."""
        self.to_here: _Carrier | None = None
        """Carries what the other end writes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Read nothing before both ends are connected."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.pause_reading()
        self._proxy.open_ends += 1
        if self._accepts:
            self._proxy.accept(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return a buffer for as many bytes as the simulated send buffer takes."""
        assert self.carrier is not None
        return self.carrier.buffer[: self.carrier.stream.free]

    def buffer_updated(self, nbytes: int) -> None:
        """Take what this end has written."""
        assert self.carrier is not None
        self.carrier.write(self.carrier.buffer[:nbytes])

    def eof_received(self) -> bool:
        """Take the end of what this end writes; it may still read."""
        assert self.carrier is not None
        self.carrier.end()
        return True

    def pause_writing(self) -> None:
        """Let the other end wait, because this end does not read."""
        self._let_wait(True)

    def resume_writing(self) -> None:
        """Let the other end go on."""
        self._let_wait(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the other end too."""
        self._proxy.open_ends -= 1
        if self.carrier is not None:
            self.carrier.connection.abort()

    def _let_wait(self, waits: bool) -> None:
        if self.to_here is not None:
            self.to_here.reader_is_slow = waits
            self.to_here.heed_space()


class _Carrier:
    """Carries what one end of a connection writes to the other end."""

    def __init__(self, connection: _Connection, direction: Direction, stream: Stream, source: _End, sink: _End) -> None:
        self.connection, self.stream = connection, stream
        self.buffer = memoryview(bytearray(READ_SIZE))
        self._direction, self._source, self._sink = direction, source, sink
        self.reader_is_slow = False
        self.has_ended = self.is_finished = False
        self._timer: asyncio.TimerHandle | None = None
        source.carrier = sink.to_here = self

    def write(self, data: memoryview) -> None:
        """Take bytes from the source."""
        self.stream.write(data, self.connection.now)
        self.update()

    def end(self) -> None:
        """Take the end of the source's bytes."""
        self.has_ended = True
        self.stream.end(self.connection.now)
        self.update()

    def update(self) -> None:
        """Pass on what is due, and wait for what comes next."""
        if self.is_finished:
            return
        now = self.connection.now
        data, deliveries = self.stream.take(now)
        if data:
            self._sink.transport.write(data)
            self.connection.deliver(self._direction, deliveries, now)
        if self.stream.is_finished(now):
            self.is_finished = True
            try:
                self._sink.transport.write_eof()
            except OSError:
                # The sink has reset the connection, which only a read would show.
                self.connection.abort()
            self.connection.close_if_finished()
        self.heed_space()
        self._wait()

    def heed_space(self) -> None:
        """Read from the source as long as the send buffer has space and the reader keeps up."""
        if self.has_ended:
            return
        waits = self.reader_is_slow or self.stream.free == 0
        if waits and self._source.transport.is_reading():
            self._source.transport.pause_reading()
            self.connection.note_pause(self._direction)
        elif not waits:
            self._source.transport.resume_reading()

    def stop(self) -> None:
        """Pass nothing more on."""
        self.is_finished = True
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        """Set the timer for the next change of the stream."""
        wake = None if self.is_finished else self.stream.wake
        due = None if wake is None else self.connection.loop_time(wake)
        if self._timer is not None:
            if due == self._timer.when() and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = None if due is None else self.connection.loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.update()


class _Connection:
    """A connection of a client and the target, with a carrier for each direction."""

    def __init__(
        self, proxy: Proxy, number: int, client: _End, target: _End, streams: Mapping[Direction, Stream]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._proxy, self._number, self._ends = proxy, number, (client, target)
        self._origin, self._start = self.loop.time(), proxy.time
        self._closed = False
        self._peer = address_in_words(client.transport.get_extra_info("peername"))
        self._carriers: dict[Direction, _Carrier] = {
            "to target": _Carrier(self, "to target", streams["to target"], client, target),
            "to client": _Carrier(self, "to client", streams["to client"], target, client),
        }
        proxy.activity.note("opened", self._start, connection=number, client=self._peer)
        for carrier in list(self._carriers.values()):
            carrier.update()

    @property
    def now(self) -> int:
        """Time since the start of the connection [us], rounded up: a timer may fire some nanoseconds early."""
        return math.ceil((self.loop.time() - self._origin) * SECOND)

    def loop_time(self, time: int) -> float:
        """Return the time of the event loop [s] for a time since the start of the connection [us]."""
        return self._origin + time / SECOND

    def deliver(self, direction: Direction, deliveries: list[Delivery], now: int) -> None:
        """Count writes that were passed on."""
        self._proxy.activity.deliver(self._number, direction, deliveries, now, self._start)

    def note_pause(self, direction: Direction) -> None:
        """Count that a writer has to wait."""
        self._proxy.activity.delays[direction].pauses += 1

    def change_path(self) -> None:
        """Continue on the path that the proxy has now."""
        for direction, carrier in list(self._carriers.items()):
            carrier.stream.change_path(self._proxy.paths[direction], self.now)
            carrier.update()

    def record(self) -> dict[str, Any]:
        """Return number, address of the client, age [s], and the bytes held in each direction."""
        held = {direction: carrier.stream.held for direction, carrier in self._carriers.items()}
        age = round(self._proxy.time - self._start, 3)
        return {"connection": self._number, "client": self._peer, "age": age, "held": held}

    def close_if_finished(self) -> None:
        """Close both ends if neither has anything more to write."""
        if all(carrier.is_finished for carrier in self._carriers.values()):
            self._end("closed", self._close)

    def _close(self, transport: asyncio.Transport) -> None:
        transport.close()
        if transport.get_write_buffer_size():
            self.loop.call_later(FLUSH_TIME, transport.abort)

    def abort(self) -> None:
        """Reset both ends, unless the connection has ended."""
        self._end("reset", reset)

    def _end(self, event: str, end: Callable[[asyncio.Transport], None]) -> None:
        if self._closed:
            return
        self._closed = True
        self._proxy.activity.note(event, self._proxy.time, connection=self._number)
        self._proxy.forget(self._number)
        for carrier in self._carriers.values():
            carrier.stop()
        # Without cycles, the arrays of the streams are freed at once.
        self._carriers.clear()
        for each in self._ends:
            each.carrier = each.to_here = None
            end(each.transport)


# The control of a running proxy by HTTP: read and change the path, list the connections, read the summary.


def changed_path(path: Path, changes: object) -> Path:
    """Return a path with changed fields."""
    fields = declarations(Path)
    if not isinstance(changes, dict):
        raise InvalidValueError("path", changes, 'be an object such as {"loss": "3%"}')
    for name in changes:
        if name not in fields:
            raise InvalidValueError("path", name, f"have the fields {', '.join(fields)}")
    values: dict[str, Any] = {
        name: fields[name].default if value is None else fields[name].read(name, value)
        for name, value in changes.items()
    }
    return replace(path, **values)


class _ProxyPage(Page):
    @property
    def proxy(self) -> Proxy:
        """The proxy that is controlled."""
        found: Proxy = self.settings["proxy"]
        return found


class _PathPage(_ProxyPage):
    def get(self) -> None:
        """Answer with the path."""
        self.answer(asdict(self.proxy.path))

    def put(self) -> None:
        """Change the path, and answer with it."""
        try:
            self.proxy.change_path(changed_path(self.proxy.path, json.loads(self.request.body)))
        # Arrays within arrays may be deeper than Python reads.
        except (ValueError, RecursionError) as error:
            self.refuse(400, str(error))
        else:
            self.get()


class _ConnectionsPage(_ProxyPage):
    def get(self) -> None:
        """Answer with the open connections."""
        self.answer(self.proxy.connections())


class _SummaryPage(_ProxyPage):
    def get(self) -> None:
        """Answer with the summary."""
        self.answer(self.proxy.summary())


def controlled(proxy: Proxy, address: Address) -> AbstractContextManager[tuple[Any, ...]]:
    """Serve the control of a proxy in the event loop that runs it; return its address."""
    pages = {"/path": _PathPage, "/connections": _ConnectionsPage, "/summary": _SummaryPage}
    return served(pages, address, proxy=proxy)
