"""The queueing disciplines of a path, and the process that applies what the kernel's cannot.

netem delays and loses packets, and a token bucket with a queue limits the rate. pyroute2 does not support the loss
models of netem, RED, PIE and DualPI2, and supports tbf only with a string for every number. This module therefore fills
the option blocks; pyroute2 does the rest.
"""

from __future__ import annotations

import errno
import math
import mmap
import random
import socket
import struct
import time
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from pyroute2 import IPRoute, NetlinkError
from pyroute2.netlink import NLA_F_NESTED, nla
from pyroute2.netlink.rtnl import TC_H_CLSACT
from pyroute2.netlink.rtnl.tcmsg import (
    act_police,
    common,
    common_act,
    plugins,
    sched_cake,
    sched_codel,
    sched_fq_codel,
    sched_netem,
    sched_pfifo,
    sched_tbf,
)

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.jitter import (
    RELEASE_OVERHEAD,
    RELEASE_RATE,
    TABLE_SIZE,
    JitterDistribution,
    jitter_table,
    table_delay,
)
from tcpdelay.sim.tcp.constants import gilbert_probabilities
from tcpdelay.testbed.event_loop import NANOSECONDS, READABLE, EventLoop, end_process, start_process
from tcpdelay.testbed.topology import Link, Schedule

TICK = 64
"""Unit in which netem and tbf count time [ns] (include/net/pkt_sched.h, PSCHED_SHIFT)."""
CERTAIN = 2**32 - 1
NETEM_LIMIT = 200_000
"""Limit of netem's queue [packets]: far above the number of packets in flight, so that the queue is never full."""
ROOT_HANDLE = 0x10000
TBF_BURST = 2000
"""Token bucket of the rate limit [bytes]: one packet, so that packets leave at the link's rate and not in bursts."""
EGRESS = TC_H_CLSACT & 0xFFFF0000 | 0xFFF3
"""Parent of filters for packets that leave a device (linux/pkt_sched.h, TC_H_MIN_EGRESS)."""
TC_POLICE_SHOT = 2
"""What a policer does with packets that exceed its rate (linux/pkt_cls.h): it drops them."""
FULL_PACKET = 1514
"""Bytes that the queues count for a full packet: the MTU and the Ethernet header."""
MICROSECONDS = 1e6
RED_TARGET, RED_FEWEST, RED_PROBABILITY = 0.005, 5, 0.1
"""Adaptive RED: default target [s], smallest lower threshold [packets], and largest probability at the start."""
TC_RED_ECN, TC_RED_ADAPTATIVE = 1, 4
"""Flags of RED (linux/pkt_sched.h)."""
MARKS = {"codel": "ecn_mark", "fq_codel": "ecn_mark", "pie": "ecn_mark", "red": "marked", "dualpi2": "ecn_mark"}
"""Name of the number of marked packets in the statistics of each discipline."""
REMEDIES = {
    "dualpi2": "it needs Linux 6.17 or later: run tcpdelay testbed build-kernel --kernel 7.3, and use this kernel"
}
"""What to do about a queue that the kernel lacks, unless `BUILD` helps."""
BUILD = "run tcpdelay testbed build-kernel, and use the backend uml-virtual"
ANY_ECT = 3
"""Codepoints that DualPI2 takes for L4S: ECT(1) and ECT(0) (linux/pkt_sched.h, TC_DUALPI2_ECN_MASK_ANY_ECT)."""
INTERVAL_OVER_TARGET = 20
"""Interval of CoDel over its target: RFC 8289, section 4.4, has 100 ms and 5 ms; `tc` has the same ratio for cake."""


class NetemOptions(sched_netem.options):  # type: ignore[misc]
    """netem's options with the Gilbert-Elliott loss model, and further ones of linux/pkt_sched.h."""

    nla_map = (
        *sched_netem.options.nla_map[:2],
        ("TCA_NETEM_DELAY_DIST", "cdata"),
        *sched_netem.options.nla_map[3:5],
        ("TCA_NETEM_LOSS", "loss_model"),
        *sched_netem.options.nla_map[6:],
        ("TCA_NETEM_ECN", "none"),
        ("TCA_NETEM_RATE64", "uint64"),
        ("TCA_NETEM_PAD", "none"),
        ("TCA_NETEM_LATENCY64", "none"),
        ("TCA_NETEM_JITTER64", "none"),
        ("TCA_NETEM_SLOT", "none"),
        ("TCA_NETEM_SLOT_DIST", "none"),
        ("TCA_NETEM_PRNG_SEED", "uint64"),
    )

    class loss_model(nla):  # type: ignore[misc]  # noqa: N801, D106 - pyroute2 finds it by this name
        nla_map = (("NETEM_LOSS_UNSPEC", "none"), ("NETEM_LOSS_GI", "hex"), ("NETEM_LOSS_GE", "gilbert_elliott"))

        class gilbert_elliott(nla):  # type: ignore[misc]  # noqa: N801, D106
            fields: ClassVar[Any] = (("p", "I"), ("r", "I"), ("h", "I"), ("k1", "I"))


def _fields(words: str, kind: str = "I") -> list[tuple[str, str]]:
    """Return the fields of a structure that have one type, by default 32 bits without a sign."""
    return [(word, kind) for word in words.split()]


def _attributes_of(kind: str, words: str, value: str) -> list[tuple[str, str]]:
    """Return the options of a discipline with values of one type, in the order of linux/pkt_sched.h."""
    return [(f"TCA_{kind}_{word}", value) for word in words.split()]


class PieOptions(nla):  # type: ignore[misc]
    """PIE's options of linux/pkt_sched.h."""

    nla_map = (("TCA_PIE_UNSPEC", "none"), *_attributes_of("PIE", "TARGET LIMIT TUPDATE ALPHA BETA ECN", "uint32"))


class DualPi2Options(nla):  # type: ignore[misc]
    """DualPI2's options of linux/pkt_sched.h, up to the last that is used here."""

    nla_flags = NLA_F_NESTED
    nla_map = (
        ("TCA_DUALPI2_UNSPEC", "none"),
        *_attributes_of("DUALPI2", "LIMIT MEMORY_LIMIT TARGET TUPDATE ALPHA BETA", "uint32"),
        *_attributes_of("DUALPI2", "STEP_THRESH_PKTS STEP_THRESH_US MIN_QLEN_STEP", "uint32"),
        *_attributes_of("DUALPI2", "COUPLING DROP_OVERLOAD DROP_EARLY C_PROTECTION ECN_MASK", "uint8"),
    )


class RedOptions(nla):  # type: ignore[misc]
    """RED's options of linux/pkt_sched.h."""

    nla_map = (
        ("TCA_RED_UNSPEC", "none"),
        ("TCA_RED_PARMS", "parameters"),
        ("TCA_RED_STAB", "cdata"),
        ("TCA_RED_MAX_P", "uint32"),
    )

    class parameters(nla):  # type: ignore[misc]  # noqa: N801, D106
        fields: ClassVar[Any] = (*_fields("limit qth_min qth_max"), *_fields("Wlog Plog Scell_log flags", "B"))


def _statistics(*fields: tuple[str, str]) -> Any:
    """Return the statistics of a discipline, whose own part is a structure with these fields."""
    # pyroute2 finds the structure by its name.
    return type("statistics", (common.stats2,), {"stats_app": type("stats_app", (nla,), {"fields": fields})})


def _plugin(options: Any, **more: Any) -> SimpleNamespace:
    """Return a plugin of pyroute2 that takes its options as they are, from the argument `block`."""
    return SimpleNamespace(
        parent=sched_netem.parent, options=options, get_parameters=lambda given: given["block"], **more
    )


_OURS = {
    "netem": _plugin(NetemOptions),
    "tbf": _plugin(sched_tbf.options),
    "codel": _plugin(sched_codel.options, stats2=sched_codel.stats2),
    "fq_codel": _plugin(sched_fq_codel.options, stats2=sched_fq_codel.stats2),
    # struct tc_red_xstats, tc_pie_xstats and tc_dualpi2_xstats of linux/pkt_sched.h
    "red": _plugin(RedOptions, stats2=_statistics(*_fields("early pdrop other marked"))),
    "pie": _plugin(
        PieOptions,
        stats2=_statistics(
            ("prob", "Q"),
            *_fields("delay avg_dq_rate dq_rate_estimating packets_in dropped overlimit maxq ecn_mark"),
        ),
    ),
    "cake": _plugin(sched_cake.options, stats2=sched_cake.stats2),
    "dualpi2": _plugin(
        DualPi2Options,
        stats2=_statistics(
            *_fields("prob delay_c delay_l packets_in_c packets_in_l maxq ecn_mark step_marks"),
            ("credit", "i"),
            *_fields("memory_used max_memory_used memory_limit"),
        ),
    ),
    "bfifo": sched_pfifo,
}
plugins.update(_OURS)
common_act.plugins["police"] = _plugin(act_police.options)


def set_netem(
    netlink: IPRoute,
    command: Literal["add", "change"],
    device: int,
    link: Link,
    seed: int | None = None,
    **place: int,
) -> None:
    """Delay and drop the packets that a device sends, as on a link; its rate has no effect here."""
    # netem draws a delay uniformly from the mean less the jitter to the mean plus the jitter. With a table, the jitter
    # is the standard deviation.
    spread = link.jitter / 2
    block: dict[str, Any] = {
        "delay": round((link.delay + spread) * 1e9 / TICK),
        "limit": NETEM_LIMIT,
        "loss": 0 if link.loss_burst > 1 else round(link.loss * CERTAIN),
        "gap": 1 if link.reordering else 0,
        "duplicate": 0,
        "jitter": round(spread * 1e9 / TICK),
        "attrs": [],
    }
    if seed is not None:
        block["attrs"].append(("TCA_NETEM_PRNG_SEED", seed))
    if link.jitter_distribution != "uniform":
        block["attrs"].append(("TCA_NETEM_DELAY_DIST", jitter_table(link.jitter_distribution).tobytes()))
    if link.in_order:
        # With a rate, netem keeps the order of packets (`netem_enqueue`).
        rate = {"rate": round(RELEASE_RATE / 8), "packet_overhead": RELEASE_OVERHEAD}
        block["attrs"].append(("TCA_NETEM_RATE", {**rate, "cell_size": 0, "cell_overhead": 0}))
    if link.reordering:
        block["attrs"].append(("TCA_NETEM_REORDER", {"prob_reorder": round(link.reordering * CERTAIN)}))
    if link.loss_burst > 1:
        # In the bad state, no packet passes (h = 0). It is left with probability r = 1 / burst, and entered with the
        # probability p at which its share of the packets is `loss`.
        enter, leave = gilbert_probabilities(link.loss, link.loss_burst)
        model = {"p": round(enter * CERTAIN), "r": round(leave * CERTAIN), "h": 0, "k1": 0}
        block["attrs"].append(("TCA_NETEM_LOSS", {"attrs": [("NETEM_LOSS_GE", model)]}))
    netlink.tc(command, "netem", device, **{"handle": ROOT_HANDLE, **place}, block=block)


def add_bottleneck(netlink: IPRoute, device: int, link: Link) -> None:
    """Limit the rate of a device to that of a link, with the queue of this link before it."""
    assert link.rate is not None
    if link.queue == "policer":
        _add_policer(netlink, device, link)
        return
    bytes_per_second = round(link.rate / 8)
    if link.queue == "cake":
        # cake limits the rate itself.
        attributes = [("TCA_CAKE_BASE_RATE64", bytes_per_second), *_codel_times("TCA_CAKE_RTT", link)]
        _add(netlink, "cake", device, handle=ROOT_HANDLE, block={"attrs": attributes})
        return
    # pyroute2 fills the rate tables from the parameters.
    tables: list[tuple[str, Any]] = [("TCA_TBF_RTAB", True)]
    parameters = _bucket("rate", link.rate) | {
        "limit": 2**31,
        "buffer": _bucket_time(link.burst or TBF_BURST, link.rate),
    }
    if link.peak_rate is not None:
        parameters |= _bucket("peak", link.peak_rate) | {"mtu": _bucket_time(TBF_BURST, link.peak_rate)}
        tables.append(("TCA_TBF_PTAB", True))
    block = {"attrs": [("TCA_TBF_PARMS", parameters), *tables]}
    _add(netlink, "tbf", device, handle=ROOT_HANDLE, block=block)
    place: dict[str, Any] = {"handle": 2 * ROOT_HANDLE, "parent": ROOT_HANDLE + 1}
    if link.queue == "fifo" and link.queue_packets is not None:
        _add(netlink, "pfifo", device, limit=link.queue_packets, **place)
    elif link.queue == "fifo":
        _add(netlink, "bfifo", device, limit=link.queue_bytes, **place)
    elif link.queue == "red":
        # RED notices that its queue is empty when it is asked for a packet (red_dequeue). tbf only peeks, and the mean
        # length would not shrink while the link is idle. netem, which delays nothing here, asks.
        set_netem(netlink, "add", device, Link(0), **place)
        place = {"handle": 3 * ROOT_HANDLE, "parent": 2 * ROOT_HANDLE + 1}
        _add(netlink, "red", device, block={"attrs": red_attributes(link)}, **place)
    else:
        _add(netlink, link.queue, device, block={"attrs": _attributes(link)}, **place)


def _add_policer(netlink: IPRoute, device: int, link: Link) -> None:
    """Drop the packets that a device sends and for which a token bucket has no tokens (net/sched/act_police.c)."""
    assert link.rate is not None
    parameters = _bucket("rate", link.rate) | {
        "action": TC_POLICE_SHOT,
        "burst": _bucket_time(link.burst or TBF_BURST, link.rate),
    }
    block = {"attrs": [("TCA_POLICE_TBF", parameters), ("TCA_POLICE_RATE", True)]}
    _add(netlink, "clsact", device, queue="policer")
    action = {"kind": "police", "block": block}
    _add(netlink, "matchall", device, "add-filter", "policer", parent=EGRESS, prio=1, action=action)


def _bucket(name: Literal["rate", "peak"], rate: float) -> dict[str, int]:
    """Return the parameters of a token bucket with a rate [bit/s], for the link layer Ethernet."""
    return {f"{name}_cell_log": 3, f"{name}___reserved": 1, name: round(rate / 8)}


def _bucket_time(size: int, rate: float) -> int:
    """Return the time in which a token bucket of a size [bytes] fills at a rate [bit/s], in ticks."""
    return round(size * 1e9 / round(rate / 8) / TICK)


def _add(
    netlink: IPRoute, kind: str, device: int, command: str = "replace", queue: str | None = None, **settings: Any
) -> None:
    """Add a discipline or a filter; an error names the `queue` of the link, by default the discipline."""
    try:
        netlink.tc(command, kind, device, **settings)
    except NetlinkError as error:
        if error.code != errno.ENOENT:
            raise
        queue = queue or kind
        raise InvalidValueError("queue", queue, f"be in the kernel ({REMEDIES.get(queue, BUILD)})") from None


def _attributes(link: Link) -> list[tuple[str, int]]:
    """Return the options of codel, fq_codel, pie or dualpi2; what is absent has the kernel's default."""
    prefix = f"TCA_{link.queue.upper()}"
    attributes = [(f"{prefix}_ECN", 1)] if link.ecn and link.queue != "dualpi2" else []
    if link.l4s:
        attributes.append((f"{prefix}_ECN_MASK", ANY_ECT))
    if link.queue_packets is not None:
        attributes.append((f"{prefix}_LIMIT", link.queue_packets))
    if link.queue in ("pie", "dualpi2") and link.queue_target is not None:
        return [*attributes, (f"{prefix}_TARGET", round(link.queue_target * MICROSECONDS))]
    return attributes + _codel_times(f"{prefix}_INTERVAL", link)


def _codel_times(interval: str, link: Link) -> list[tuple[str, int]]:
    """Return target and interval [us] of CoDel; `interval` is the name of its option."""
    if link.queue_target is None:
        return []
    target = round(link.queue_target * MICROSECONDS)
    return [(f"{interval.rpartition('_')[0]}_TARGET", target), (interval, INTERVAL_OVER_TARGET * target)]


def red_attributes(link: Link) -> list[tuple[str, Any]]:
    """Return the options of RED for a target of the queueing delay: Adaptive RED.

    RED drops packets with a probability that grows with the mean length of the queue, from 0 at the lower threshold.
    Adaptive RED adapts the largest probability, so that the mean stays halfway between both thresholds.

    S. Floyd, R. Gummadi, S. Shenker, "Adaptive RED: An Algorithm for Increasing the Robustness of RED's Active Queue
    Management", 2001, section 5. Binary logarithms of the weights: include/net/red.h.
    """
    assert link.rate is not None
    assert link.queue_packets is not None
    bytes_per_second = link.rate / 8
    target = RED_TARGET if link.queue_target is None else link.queue_target
    # min_th = max(5 packets, target * C / 2), max_th = 3 * min_th
    lowest = round(max(RED_FEWEST * FULL_PACKET, target * bytes_per_second / 2))
    highest = 3 * lowest
    # w_q = 1 - exp(-1 / C) with C in packets per second. The kernel's averages have 32 bits.
    weight = 1 - math.exp(-FULL_PACKET / bytes_per_second)
    weight_log = min(max(round(-math.log2(weight)), 1), 31 - highest.bit_length())
    parameters = {
        "limit": link.queue_packets * FULL_PACKET,
        "qth_min": lowest,
        "qth_max": highest,
        "Wlog": weight_log,
        "Plog": round(math.log2((highest - lowest) / RED_PROBABILITY)),
        "flags": TC_RED_ADAPTATIVE | (TC_RED_ECN if link.ecn else 0),
    }
    # After an idle time of m packets the mean has shrunk by (1 - w_q)^m. The table has the binary logarithms of this
    # factor, for 256 idle times in steps of 2^Scell_log microseconds.
    packet_time = FULL_PACKET / bytes_per_second * MICROSECONDS
    shrinking = -math.log2(1 - 2.0**-weight_log) / packet_time
    cell_log = max(math.ceil(math.log2(31 / shrinking / 256)), 0)
    table = bytes(min(round((cell << cell_log) * shrinking), 31) for cell in range(255)) + bytes([31])
    return [
        ("TCA_RED_PARMS", parameters | {"Scell_log": cell_log}),
        ("TCA_RED_STAB", table),
        ("TCA_RED_MAX_P", round(RED_PROBABILITY * CERTAIN)),
    ]


def packet_counts(netlink: IPRoute, device: int) -> dict[str, int]:
    """Return the numbers of packets that the device's disciplines have sent, dropped, and marked if they can mark."""
    counts: dict[str, int] = {}
    for message in netlink.get_qdiscs(device):
        statistics = message.get_attr("TCA_STATS2")
        if message["parent"] in (sched_netem.parent, TC_H_CLSACT):
            packets = statistics.get_attr("TCA_STATS_BASIC")["packets"]
            dropped = statistics.get_attr("TCA_STATS_QUEUE")["drops"]
            # A queue counts the packets that leave it, and a policer those that it looks at (sch_handle_egress).
            policer = message["parent"] == TC_H_CLSACT
            counts |= {"sent": packets - dropped if policer else packets, "dropped": dropped}
        kind, own = message.get_attr("TCA_KIND"), statistics.get_attr("TCA_STATS_APP")
        if kind in MARKS:
            counts["marked"] = own[MARKS[kind]]
        elif kind == "cake":
            tins = own.get_attr("TCA_CAKE_STATS_TIN_STATS")["attrs"]
            counts["marked"] = sum(tin.get_attr("TCA_CAKE_TIN_STATS_ECN_MARKED_PACKETS") for _, tin in tins)
    if "sent" not in counts:
        raise OSError(f"device {device} has no queueing discipline")
    return counts


# A link whose rate or delay varies: when packets leave it, and the process that carries them between two devices.

# When the packets of a queue leave a link whose rate varies, in plain Python: the guest has no compiled kernels.

OPPORTUNITY = 1500
"""Bytes that an opportunity carries."""


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
