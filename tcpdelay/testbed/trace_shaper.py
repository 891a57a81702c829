"""A link whose rate or delay varies: when packets leave it, and the process that carries them between two devices."""

from __future__ import annotations

import math
import mmap
import random
import socket
import struct
import time
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import NormalDist

from tcpdelay.scenario.jitter import (
    RELEASE_OVERHEAD,
    RELEASE_RATE,
    TABLE_SIZE,
    JitterDistribution,
    jitter_table,
    table_delay,
)
from tcpdelay.testbed.event_loop import NANOSECONDS, READABLE, EventLoop, end_process, start_process

# When the packets of a queue leave a link whose rate varies, in plain Python: the guest has no compiled kernels.

OPPORTUNITY = 1500
"""Bytes that an opportunity carries."""


@dataclass(frozen=True)
class Schedule:
    """What a link carries over time; it repeats."""

    times: list[int]  # Times of the opportunities, or times from which on the rates hold [ns], ascending
    period: int  # Time after which the schedule repeats [ns]
    # Rates [bit/s]; if it is empty, each time is an opportunity to send 1500 bytes.
    rates: list[int] = field(default_factory=list)
    # Further delays after the link while each rate holds [ns]; empty without rates.
    delays: list[int] = field(default_factory=list)


class Departures:
    """The departures of packets from a link with a schedule, by the rules of `tcpdelay.sim.network.link_trace`."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._place = self._departed = self._arrived = 0
        self._left = OPPORTUNITY

    def after(self, time: int, size: int) -> tuple[int, int]:
        """Return when a packet of `size` bytes that comes at a time [ns] has left the link, and when it has arrived."""
        departed, delay = (self._by_rates if self._schedule.rates else self._by_opportunities)(time, size)
        self._departed = departed
        self._arrived = max(self._arrived, departed + delay)
        return departed, self._arrived

    def _by_opportunities(self, time: int, size: int) -> tuple[int, int]:
        """Return the time of the opportunity that carries the last byte; what an empty queue leaves is lost."""
        times, period = self._schedule.times, self._schedule.period
        cycle, offset = divmod(time, period)
        later = cycle * len(times) + bisect_right(times, offset)
        if later > self._place:
            self._place, self._left = later, OPPORTUNITY
        while size > self._left:
            size -= self._left
            self._place, self._left = self._place + 1, OPPORTUNITY
        self._left -= size
        cycle, place = divmod(self._place, len(times))
        return cycle * period + times[place], 0

    def _by_rates(self, time: int, size: int) -> tuple[int, int]:
        """Return when all bits are sent at the rates of the schedule, and the delay then."""
        times, rates, period = self._schedule.times, self._schedule.rates, self._schedule.period
        now, bits = max(time, self._departed), 8.0 * size
        while True:
            cycle, offset = divmod(now, period)
            place = bisect_right(times, offset) - 1
            end = cycle * period + (times[place + 1] if place + 1 < len(times) else period)
            carried = rates[place] * ((end - now) / NANOSECONDS)
            if carried >= bits:
                return min(now + round(bits / rates[place] * NANOSECONDS), end), self._schedule.delays[place]
            bits -= carried
            now = end


class JitterDraw:
    """Draws the delays [ns] of the packets of a link from its delay and jitter [s]."""

    def __init__(
        self, delay: float, jitter: float, distribution: JitterDistribution, correlation: float, seed: int | str
    ) -> None:
        self._delay, self._jitter = round(delay * 1e9), round(jitter * 1e9)
        self._table = None if distribution == "uniform" else jitter_table(distribution)
        self._correlation, self._independent = correlation, math.sqrt(1 - correlation**2)
        self._random, self._normal = random.Random(seed), NormalDist()
        self._state = self._random.gauss(0, 1)

    def __call__(self) -> int:
        """Return the delay of the next packet [ns]."""
        self._state = self._correlation * self._state + self._independent * self._random.gauss(0, 1)
        share = self._normal.cdf(self._state)
        if self._table is None:
            return self._delay + int(share * self._jitter)
        entry = self._table[min(int(share * TABLE_SIZE), TABLE_SIZE - 1)]
        return table_delay(self._delay + self._jitter // 2, self._jitter // 2, entry)


class JitteredDelays:
    """The departures of packets from a link with jitter and without a rate.

    netem does the same in the kernel, except that its correlation has no effect (`tcpdelay.scenario.jitter`). In order,
    no packet overtakes another one, and packets that have waited leave at a rate of 1 Gbit/s.
    """

    def __init__(self, draw: JitterDraw, in_order: bool) -> None:
        self._draw, self._in_order = draw, in_order
        self._arrived = 0

    def after(self, time: int, size: int) -> tuple[int, int]:
        """Return when a packet that comes at a time [ns] has left the link, and when it has arrived: both are equal."""
        arrival = time + self._draw()
        if self._in_order:
            spacing = round(8 * (size + RELEASE_OVERHEAD) / RELEASE_RATE * NANOSECONDS)
            arrival = self._arrived = max(arrival, self._arrived) + spacing
        return arrival, arrival


# A router's way over such a link: a process takes packets at one device and sends them at another.

ETH_P_IP = 0x0800
SO_RCVBUFFORCE = 33
SOL_PACKET, PACKET_VNET_HDR = 263, 15
"""Option of packet(7): before each frame is a header with the state of its checksum, which veth does not compute."""
STATE, ETHERNET, ADDRESS = 10, 14, 6
"""Bytes of that header, of the header of Ethernet, and of each of the two hardware addresses with which it begins."""
RECEIVE_BUFFER = 1 << 26
"""Room for frames that this process has not read yet [bytes]."""
LONGEST_FRAME = 2048


@dataclass(frozen=True)
class Crossing:
    """The way of packets through a router."""

    # entry, exit: Names of the devices at which packets come and leave.
    entry: str
    exit: str
    # source, target: Hardware addresses of the exit, and of the next router or host.
    source: bytes
    target: bytes


class Shaper:
    """A process that forwards packets in place of the kernel, when a link lets them pass; its time begins now.

    The process must be made in the router's namespace; it ends with its parent. Its queue holds `limit` packets.
    """

    def __init__(self, crossing: Crossing, link: Departures | JitteredDelays, limit: int) -> None:
        # The kernel must not forward them too.
        Path("/proc/sys/net/ipv4/conf", crossing.entry, "forwarding").write_text("0", encoding="ascii")
        # Sent, and dropped.
        self._counts = mmap.mmap(-1, 16)
        incoming, outgoing = (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol)) for protocol in (ETH_P_IP, 0)
        )
        with incoming, outgoing:
            incoming.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
            outgoing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, RECEIVE_BUFFER)
            for own, device, protocol in ((incoming, crossing.entry, ETH_P_IP), (outgoing, crossing.exit, 0)):
                own.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
                own.setblocking(False)
                own.bind((device, protocol))
            addresses = crossing.target + crossing.source
            self._process = start_process(partial(self._forward, incoming, outgoing, addresses, link, limit))

    def _forward(
        self,
        incoming: socket.socket,
        outgoing: socket.socket,
        addresses: bytes,
        link: Departures | JitteredDelays,
        limit: int,
    ) -> None:
        """Forward packets for ever."""
        loop, begin = EventLoop(), time.monotonic_ns()
        waiting: deque[int] = deque()
        sent = dropped = 0

        def arrived(_: int) -> None:
            nonlocal sent, dropped
            while True:
                try:
                    frame = incoming.recv(LONGEST_FRAME)
                except BlockingIOError:
                    break
                now = time.monotonic_ns() - begin
                while waiting and waiting[0] <= now:
                    waiting.popleft()
                if len(waiting) >= limit:
                    dropped += 1
                    continue
                departed, arrives = link.after(now, len(frame) - STATE - ETHERNET)
                waiting.append(departed)
                sent += 1
                passed = frame[:STATE] + addresses + frame[STATE + 2 * ADDRESS :]
                loop.at(begin + arrives, partial(outgoing.send, passed))
            self._counts[:] = struct.pack("qq", sent, dropped)

        loop.watch(incoming.fileno(), READABLE, arrived)
        loop.run(lambda: False)

    def packet_counts(self) -> dict[str, int]:
        """Return the numbers of packets that the queue has taken and dropped."""
        return dict(zip(("sent", "dropped"), struct.unpack("qq", self._counts), strict=True))

    def close(self) -> None:
        """End the process."""
        end_process(self._process)
