"""Compute the published figures of SCP anew, and test its analysis of two flows.

`python validation/papers scp` writes `validation/results/papers/scp-*.csv`. Published figures: Cen, Pu, Walpole, "Flow
and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from comparison import interval_over_seeds, published_figures, with_interval, write_comparison, write_table

import tcpdelay as td
from tcpdelay.delays import DelayDistribution
from tcpdelay.sim.literature.scp import scp_share
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.link_trace import LinkTrace
from tcpdelay.sim.network.simulation import Network, prepare, simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate
from tcpdelay.sim.network.stacks import Classic, Scp, Udp

SEEDS = range(1, 11)
JITTER = 0.005
"""Random delay of the acknowledgements [s]."""
PACKET = 8 * 1500
"""Bits of a packet with its IP header (Section 5)."""
BACKLOG = 3
"""The paper's W_D [packets]."""
SOCKET_BUFFER = 65_536
"""Sockets of the paper [bytes]."""
RTT = 0.100
STEP, LENGTH = 2.0, 150
"""Length of a part of the time on the modem [s], and number of parts."""
SETTLED = 500.0
"""Time before the share of two flows is measured, and time during which it is measured [s]."""
Row = dict[str, str | float]
Key = tuple[str, str, str]
"""Item, condition and quantity of a published figure."""


def tcp_with(window: int) -> Classic:
    """Return a TCP with the timers and delayed acknowledgements of 4.3BSD and a receive buffer of so many segments."""
    return Classic(recovery="reno", receiver_window=window, tick=0.5, ack_delay=0.2)


HPUX = tcp_with(SOCKET_BUFFER // 1460)
MODEM = Bottleneck(rate=28_800, capacity=15 * 28_800 // 8, unit="bytes")
"""The PPP link, with 15 s of buffer in its server."""
MODEM_PATH = SharedPath(RTT / 2, return_jitter=JITTER)
LINUX = tcp_with(18)
"""A TCP with sockets of 18 segments, so that it buffers 7 s on the modem, as the paper measured with Linux."""
ETHERNET = Bottleneck(rate=10e6, capacity=1000)
ETHERNET_PATH = SharedPath(0.0005, return_jitter=0.0001)
FRAME = 38
"""Bytes of preamble, header and checksum of an Ethernet frame, and of the gap between frames."""
ROUTER = Bottleneck(rate=380 * PACKET, capacity=100)
"""The path through a router, with the rate that TCP has alone in Table 2; its queue takes all that the sockets hold."""
T1 = 1.5e6


def path_of(base_rtt: float, rate: float, **settings: float) -> SharedPath:
    """Return a path with a base round-trip time [s] that includes the transmission of a packet."""
    return SharedPath((base_rtt - PACKET / rate) / 2, return_jitter=0.001, **settings)


# The base RTTs follow from the printed windows and rates by Equation 1: T_brtt = (W_l - W_D) / r. The window of 320
# packets/s and 22 ms is 7.
ANQUETIL = path_of((320 * 0.022 - BACKLOG) / 320, ROUTER.rate)
BARTALI = path_of((5 - BACKLOG) / 230, ROUTER.rate)
WAN_RTT = (18 - BACKLOG) / 115
WAN_PATH = path_of(WAN_RTT, T1)
WAN = Bottleneck(rate=T1, capacity=round(WAN_RTT * T1 / PACKET))
"""The T1 line; its buffer, one bandwidth-delay product, is not printed."""
BUSY_PATH = path_of(WAN_RTT, T1, loss=0.10)

LATER = 10.0
"""Time between the starts of two sessions that do not begin together [s]."""

REASONS = {
    "Section 5.1": "The modem of the paper carries 93 % of its 28.8 kbit/s; ours has no PPP framing and no escaped "
    "bytes. How the Linux of 1997 limits its delay to 7 s is not said; ours has sockets of 18 segments. The rates "
    "depend on which session begins first, which is not printed (scp-order.csv): with SCP later they are those of the "
    "paper. TCP with 64 KB loses packets of the modem, and SCP uses its timeouts.",
    "Figure 3": "A full send buffer of 64 KB takes 18.2 s on a link of 28.8 kbit/s, from which the smallest delay is "
    'subtracted. The buffers of the paper have "up to" 64 KB.',
    "Figure 4": "The first packets of both sessions meet on the empty modem, and one waits for the other: a base RTT "
    "that is a packet too large, for which Equation 2 gives 0.459.",
    "Section 5.2": "Our link is full-duplex. On the paper's Ethernet the acknowledgements and the collisions take part "
    "of the time. TCP's delay is that of a full send buffer of 64 KB.",
    "Table 2": "The rate of the link is that of TCP alone. The paper suspects that SCP alone loses rate to its "
    "acknowledgements on the half-duplex Ethernet. Our hosts are equally fast, so two sessions begun together have "
    "equal rates; if that of bartali begins later, the rates are close to those of the paper (scp-order.csv). The "
    "delays of the paper vary with other traffic.",
    "Section 5.3": "The paper's sessions have the same window and round-trip times that differ by 13 ms; it suspects "
    "hosts of different speed, which ours are not. SCP's share beside TCP is smaller than that of the paper "
    "if SCP begins first and larger if it begins later (scp-order.csv); the order is not printed.",
    "Figure 6": "Our T1 carries 1.5 Mbit/s of IP packets; the paper's 1.4 Mbit/s are what framing and other traffic "
    "leave.",
    "Figure 7": "The losses by other traffic on the paper's path are not printed; ours has none. Its delays of seconds "
    "are timeouts and retransmissions.",
    "Figure 8": "The extreme is a session that begins 10 s after the other, the even end are two begun together. In "
    "some runs the slow start of the later session overflows the buffer, the queue drains, and both sessions measure "
    "the base RTT anew; with a larger buffer the later one keeps the larger share (scp-order.csv).",
    "Figure 9": "The buffer of the T1 is not printed, and the shares depend on it (scp-order.csv). Other traffic "
    "causes losses on the paper's path, which take more of TCP's rate than of SCP's.",
    "Figure 10": "The round-trip time of the busy path is not printed; ours is that of the lightly loaded one, and "
    "SCP's rate is inversely proportional to it. TCP's largest delay is that of 800 s.",
    "Section 5.5": "The paper's window is about 5. By Equation 1 it depends on the round-trip time without the modem's "
    "transmission, which is not printed; ours is 1 ms in this experiment.",
}
"""The likely reasons of the distances."""


class Session(NamedTuple):
    """The packet rate of a session [packets/s], its delays [s], and the smallest delay [s]."""

    rate: float
    delays: DelayDistribution
    smallest: float

    @property
    def mean(self) -> float:
        """Mean buffering delay [s]."""
        return self.delays.mean - self.smallest

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest buffering delay [s]."""
        return float(self.delays.values[0]) - self.smallest, float(self.delays.values[-1]) - self.smallest

    def within(self, limit: float) -> float:
        """Return the share of the packets read whose buffering delay is at most `limit` [s]."""
        return self.delays.cdf(self.smallest + limit)


def random_start(seed: int) -> float:
    """Return a start within the first second [s]."""
    return float(np.random.default_rng(seed).uniform(0, 1))


def scp(path: SharedPath, start: float = 0.0, stop: float = np.inf, frame: int = 0) -> Bulk:
    """Return an SCP session; `frame` are the bytes of a frame around a packet."""
    return Bulk(path=path, stack=Scp(), start=start, stop=stop, header=32 + frame)


def tcp(path: SharedPath, stack: Classic = HPUX, start: float = 0.0, frame: int = 0) -> Bulk:
    """Return a TCP session with a send buffer as large as the receive buffer."""
    send_buffer = SOCKET_BUFFER if stack is HPUX else stack.receiver_window * stack.mss
    return Bulk(path=path, stack=stack, start=start, header=40 + frame, send_buffer=send_buffer)


def smallest_delay(source: Bulk, link: Bottleneck) -> float:
    """Return the delay of a packet on the empty path [s]."""
    return source.path.there + 8 * (source.stack.mss + source.header_size) / link.rate


def run(sources: Sequence[Bulk], link: Bottleneck, seed: int) -> list[Session]:
    """Return the sessions from 200 s to 1000 s."""
    flows = simulate_network(sources, link, duration=1000, warm_up=200, seed=seed).flows
    found = []
    for source, flow in zip(sources, flows, strict=True):
        assert flow.delays is not None
        rate = flow.throughput / (8 * source.stack.mss)
        found.append(Session(rate, flow.delays, smallest_delay(source, link)))
    return found


def advanced_counts(network: Network, times: Sequence[float]) -> Iterator[Any]:
    """Yield the packets that each flow has brought over the link between each time [s] and the next."""
    network.advance(times[0])
    for until in times[1:]:
        before = network.flows.segments_carried.copy()
        network.advance(until)
        yield network.flows.segments_carried - before


def over_ppp(seed: int) -> dict[Key, float]:
    """Return our figures of Section 5.1."""
    start = random_start(seed)
    (alone,) = run([scp(MODEM_PATH, start)], MODEM, seed)
    (bulk,) = run([tcp(MODEM_PATH, start=start)], MODEM, seed)
    first, second = run([scp(MODEM_PATH, start), scp(MODEM_PATH, start)], MODEM, seed)
    beside_hpux, hpux = run([scp(MODEM_PATH, start), tcp(MODEM_PATH, start=start)], MODEM, seed)
    beside_linux, linux = run([scp(MODEM_PATH, start), tcp(MODEM_PATH, LINUX, start)], MODEM, seed)
    return {
        ("Section 5.1", "SCP alone over PPP", "packet rate"): alone.rate,
        ("Figure 3", "SCP alone over PPP", "steady buffering delay"): alone.mean,
        ("Figure 3", "TCP (HP-UX) alone over PPP", "steady buffering delay"): bulk.mean,
        ("Figure 4", "two SCP sessions over PPP begun together", "share of the first"): first.rate
        / (first.rate + second.rate),
        ("Section 5.1", "SCP beside TCP (Linux) over PPP", "packet rate of SCP"): beside_linux.rate,
        ("Section 5.1", "SCP beside TCP (Linux) over PPP", "packet rate of TCP"): linux.rate,
        ("Section 5.1", "SCP beside TCP (HP-UX) over PPP", "share of SCP"): beside_hpux.rate
        / (beside_hpux.rate + hpux.rate),
    }


def over_ethernet(seed: int) -> dict[Key, float]:
    """Return our figures of single sessions of Section 5.2."""
    (alone,) = run([scp(ETHERNET_PATH, random_start(seed), frame=FRAME)], ETHERNET, seed)
    (bulk,) = run([tcp(ETHERNET_PATH, start=random_start(seed), frame=FRAME)], ETHERNET, seed)
    return {
        ("Section 5.2", "SCP alone on an Ethernet", "packet rate"): alone.rate,
        ("Section 5.2", "SCP alone on an Ethernet", "largest buffering delay"): 1e3 * alone.range[1],
        ("Section 5.2", "TCP alone on an Ethernet", "packet rate"): bulk.rate,
        ("Section 5.2", "TCP alone on an Ethernet", "largest buffering delay"): 1e3 * bulk.range[1],
    }


def through_router(seed: int) -> dict[Key, float]:
    """Return our figures of Section 5.3."""
    start = random_start(seed)
    (alone,) = run([scp(ANQUETIL, start)], ROUTER, seed)
    (other,) = run([scp(BARTALI, start)], ROUTER, seed)
    (bulk,) = run([tcp(ANQUETIL, LINUX, start)], ROUTER, seed)
    first, second = run([scp(ANQUETIL, start), scp(BARTALI, start)], ROUTER, seed)
    beside, rival = run([scp(ANQUETIL, start), tcp(BARTALI, LINUX, start)], ROUTER, seed)
    base = {path: path.there + path.back + PACKET / ROUTER.rate for path in (ANQUETIL, BARTALI)}
    found: dict[Key, float] = {
        ("Section 5.3", "SCP alone from bartali", "round-trip time"): 1e3 * (base[BARTALI] + other.mean),
        ("Section 5.3", "SCP alone from anquetil", "round-trip time"): 1e3 * (base[ANQUETIL] + alone.mean),
        ("Section 5.3", "two SCP sessions", "round-trip time of bartali → blue"): 1e3 * (base[BARTALI] + second.mean),
        ("Section 5.3", "two SCP sessions", "round-trip time of anquetil → yellow"): 1e3
        * (base[ANQUETIL] + first.mean),
        ("Section 5.3", "two SCP sessions", "window of each"): first.rate * (base[ANQUETIL] + first.mean),
        ("Section 5.3", "SCP beside TCP", "share of SCP"): beside.rate / (beside.rate + rival.rate),
    }
    table: dict[str, dict[str, float]] = {
        "SCP alone": {
            "packet rate": alone.rate,
            "buffering delay": 1e3 * alone.mean,
            "largest buffering delay": 1e3 * alone.range[1],
        },
        "TCP alone": {
            "packet rate": bulk.rate,
            "buffering delay": 1e3 * bulk.mean,
            "largest buffering delay": 1e3 * bulk.range[1],
        },
        "two SCP sessions": {
            "packet rate of anquetil → yellow": first.rate,
            "packet rate of bartali → blue": second.rate,
            "buffering delay": 1e3 * (first.mean + second.mean) / 2,
            "largest buffering delay": 1e3 * max(first.range[1], second.range[1]),
        },
        "SCP beside TCP": {
            "packet rate of SCP": beside.rate,
            "packet rate of TCP": rival.rate,
            "largest buffering delay of SCP": 1e3 * beside.range[1],
            "smallest buffering delay of TCP": 1e3 * rival.range[0],
            "largest buffering delay of TCP": 1e3 * rival.range[1],
        },
    }
    for condition, values in table.items():
        found |= {("Table 2", condition, quantity): value for quantity, value in values.items()}
    return found


def across_internet(seed: int) -> dict[Key, float]:
    """Return our figures of Section 5.4."""
    start = random_start(seed)
    light = "over the lightly loaded Internet"
    (alone,) = run([scp(WAN_PATH, start)], WAN, seed)
    (bulk,) = run([tcp(WAN_PATH, start=start)], WAN, seed)
    later, earlier = run([scp(WAN_PATH, start + LATER), scp(WAN_PATH, start)], WAN, seed)
    together = run([scp(WAN_PATH, start), scp(WAN_PATH, start)], WAN, seed)
    beside, rival = run([scp(WAN_PATH, start), tcp(WAN_PATH, start=start)], WAN, seed)
    (busy,) = run([scp(BUSY_PATH, start)], WAN, seed)
    (busy_tcp,) = run([tcp(BUSY_PATH, start=start)], WAN, seed)
    within_50 = "share of packets with at most 50 ms of buffering delay"
    within_100 = within_50.replace("50", "100")
    return {
        ("Figure 6", f"SCP alone {light}", "window"): alone.rate * (WAN_RTT + alone.mean),
        ("Figure 6", f"SCP alone {light}", "packet rate"): alone.rate,
        ("Figure 6", f"SCP alone {light}", within_50): alone.within(0.05),
        ("Figure 7", f"TCP alone {light}", "largest buffering delay"): bulk.range[1],
        ("Figure 8", f"two SCP sessions {light}", "packet rate of the first at the extreme"): later.rate,
        ("Figure 8", f"two SCP sessions {light}", "packet rate of the second at the extreme"): earlier.rate,
        ("Figure 8", f"two SCP sessions {light}", "packet rate of each at the even end"): together[0].rate,
        ("Figure 8", f"two SCP sessions {light}", within_100): together[0].within(0.1),
        ("Figure 9", f"SCP beside TCP {light}", "packet rate of SCP"): beside.rate,
        ("Figure 9", f"SCP beside TCP {light}", "packet rate of TCP"): rival.rate,
        ("Figure 9", f"SCP beside TCP {light}", within_100.replace("packets", "packets of SCP")): beside.within(0.1),
        ("Figure 10", "SCP over the busy Internet", "packet rate"): busy.rate,
        ("Figure 10", "SCP over the busy Internet", within_100): busy.within(0.1),
        ("Figure 10", "TCP over the busy Internet", "packet rate"): busy_tcp.rate,
        ("Figure 10", "TCP over the busy Internet", "largest buffering delay"): busy_tcp.range[1],
    }


def switching(fast: float, delay: float, reset: bool, seed: int) -> dict[str, float]:
    """Return what an SCP session does at a switch from the modem to a link with a rate and a further delay, and back.

    The links change every 60 s. The windows are the packets sent and not acknowledged 10 s before each switch.
    """
    trace = LinkTrace.of_rates([0, 60], [MODEM.rate, fast], [0, delay])
    link = Bottleneck(rate=trace.mean_rate, capacity=MODEM.capacity, unit="bytes", trace=trace)
    stack = Scp(reset_interval=60.0) if reset else Scp()
    source = Bulk(path=ETHERNET_PATH, stack=stack, start=random_start(seed))
    network = prepare([source], link, seed, 0.0, 240.0)
    (connection,) = network.connections
    network.advance(50.0)
    slow_window = float(connection.window)
    (at_once,), (later,), (settled,) = advanced_counts(network, (60.0, 61.0, 70.0, 110.0))
    fast_window = float(connection.window)
    (modem,) = next(iter(advanced_counts(network, (140.0, 180.0))))
    share = PACKET / fast
    return {
        "window_over_modem": slow_window,
        "window_over_other": fast_window,
        "used_in_1s": at_once * share,
        "used_in_10s": (at_once + later) * share / 10,
        "used_after_10s": settled * share / 40,
        "used_on_return": modem * PACKET / MODEM.rate / 40,
    }


def switches() -> Iterator[Row]:
    """Switch an SCP session between the modem and another link, with a reset or without."""
    for name, fast, delay in (("Ethernet", 10e6, 0.0), ("WAN, 10 Mbit/s", 10e6, WAN_RTT)):
        for reset in (False, True):
            runs = [switching(fast, delay, reset, seed) for seed in SEEDS]
            row: Row = {"other": name, "reset": "yes" if reset else "no"}
            for measure in runs[0]:
                row |= with_interval(measure, [found[measure] for found in runs])
            yield row


def over_switch(seed: int) -> dict[Key, float]:
    """Return our figures of Section 5.5."""
    found = switching(10e6, 0.0, False, seed)
    condition = "switch between PPP and Ethernet"
    return {
        ("Section 5.5", condition, "window over PPP"): found["window_over_modem"],
        ("Section 5.5", condition, "window over Ethernet"): found["window_over_other"],
    }


def compare() -> Path:
    """Write every published figure that a simulation can give beside ours."""
    ours: dict[Key, list[float]] = {}
    for experiment in (over_ppp, over_ethernet, through_router, across_internet, over_switch):
        for seed in SEEDS:
            for key, value in experiment(seed).items():
                ours.setdefault(key, []).append(value)
        print(experiment.__name__, file=sys.stderr)
    figures = {(figure.item, figure.condition, figure.quantity): figure for figure in published_figures("scp")}
    compared = {figures[key]: interval_over_seeds(values) for key, values in ours.items()}
    in_order = {figure: compared[figure] for figure in figures.values() if figure in compared}
    return write_comparison("scp", in_order, REASONS)


def orders() -> Iterator[Row]:
    """Let an SCP session share a link with another, where they begin together or one after the other."""
    t1 = {buffer: Bottleneck(T1, buffer) for buffer in (10, WAN.limit, 40)}
    pairs: list[tuple[str, Bottleneck, Bulk, Bulk]] = [
        ("PPP", MODEM, scp(MODEM_PATH), tcp(MODEM_PATH, LINUX)),
        ("PPP, TCP with 64 KB", MODEM, scp(MODEM_PATH), tcp(MODEM_PATH)),
        ("router", ROUTER, scp(ANQUETIL), scp(BARTALI)),
        ("router", ROUTER, scp(ANQUETIL), tcp(BARTALI, LINUX)),
        *((f"T1, {buffer} packets", link, scp(WAN_PATH), scp(WAN_PATH)) for buffer, link in t1.items()),
        *((f"T1, {buffer} packets", link, scp(WAN_PATH), tcp(WAN_PATH)) for buffer, link in t1.items()),
    ]
    for network, link, one, other in pairs:
        for order, late, other_late in (("together", 0, 0), ("SCP first", 0, LATER), ("SCP later", LATER, 0)):
            rates = []
            for seed in SEEDS:
                start = random_start(seed)
                sources = [replace(one, start=start + late), replace(other, start=start + other_late)]
                rates.append([session.rate for session in run(sources, link, seed)])
            row: Row = {"network": network, "other": type(other.stack).__name__, "order": order}
            own, others = (list(values) for values in zip(*rates, strict=True))
            yield row | with_interval("rate", own) | with_interval("other_rate", others)


def buffering(source: Bulk, seed: int) -> list[float]:
    """Return the mean buffering delay of the packets read in each part of the time [s], NaN if none was read."""
    network = prepare([source], MODEM, seed, 0.0, LENGTH * STEP)
    flow, before, delays = network.flows[0], np.zeros(2), []
    for end in np.arange(1, LENGTH + 1) * STEP:
        network.advance(end)
        counts = np.array([(flow.sender_delay + flow.network_delay + flow.receiver_delay) / 1e6, flow.delivered])
        total, packets = counts - before
        before = counts
        delays.append(total / packets - smallest_delay(source, MODEM) if packets else np.nan)
    return delays


def backlog() -> Iterator[Row]:
    """Compare the buffering delay of SCP and of TCP on a modem, over time, with the settled delays of Figure 3."""
    settled = [figure.value for figure in published_figures("scp") if figure.item == "Figure 3"]
    for name, session, value in zip(("SCP", "Classic TCP"), (scp, tcp), settled, strict=True):
        runs = np.array([buffering(session(MODEM_PATH, start=random_start(seed)), seed) for seed in SEEDS])
        for part, delays in enumerate(runs.T):
            row: Row = {"transport": name, "time": (part + 0.5) * STEP, "published_settled": value}
            # During a timeout of TCP nothing is read.
            yield row | (with_interval("delay", delays.tolist()) if np.isfinite(delays).all() else {})


def sharing_ppp(seed: int) -> dict[str, float]:
    """Return the shares of a long session on the modem beside an earlier and beside a later short one, as in Figure 4.

    The short sessions last from 0 to 300 s and from 450 to 750 s, and the long one begins at 60 s.
    """
    start = random_start(seed)
    sources = [
        scp(MODEM_PATH, start, 300.0),
        scp(MODEM_PATH, start + 60, 900.0),
        scp(MODEM_PATH, start + 450, 750.0),
    ]
    network = prepare(sources, MODEM, seed, 0.0, 900.0)
    first, _, second = advanced_counts(network, (150.0, 300.0, 600.0, 750.0))
    return {
        "beside_the_earlier": first[1] / (first[0] + first[1]),
        "beside_the_later": second[1] / (second[1] + second[2]),
    }


def three_sessions() -> Iterator[Row]:
    """Let a long session share the modem with an earlier and a later short one."""
    runs = [sharing_ppp(seed) for seed in SEEDS]
    for measure in runs[0]:
        yield {"part": measure.replace("_", " ")} | with_interval("share", [found[measure] for found in runs])


def share_of_first(link: Bottleneck, one_way: float, offset: float, seed: int) -> dict[str, float]:
    """Return the shares of two SCP flows and the errors of their base RTTs; the second flow begins later."""
    path = SharedPath(one_way, return_jitter=0.001)
    start = float(np.random.default_rng(seed).uniform(0, 0.1))
    sources = [scp(path, start), scp(path, start + offset)]
    network = prepare(sources, link, seed, 0.0, 2 * SETTLED)
    (carried,) = advanced_counts(network, (SETTLED, 2 * SETTLED))
    base_rtts = np.array([float(connection.base_rtt) for connection in network.connections]) / 1e6
    errors = base_rtts - (2 * one_way + PACKET / link.rate)
    return {
        "error": float(errors[0]),
        "other_error": float(errors[1]),
        "share": carried[0] / carried.sum(),
        # The link counts in nanoseconds, so a base RTT may be too small by one nanosecond.
        "closed_form": float(scp_share(link.rate / PACKET, *np.maximum(errors, 0.0))),
        "fairness": carried.sum() ** 2 / (2 * (carried**2.0).sum()),
    }


def shares() -> Iterator[Row]:
    """Let two SCP flows share a link, and compare their shares with the closed form."""
    for rate, one_way in ((500e3, 0.050), (1e6, 0.050), (2e6, 0.020), (10e6, 0.050)):
        for offset in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 5.0, 30.0):
            runs = [share_of_first(Bottleneck(rate, 2000), one_way, offset, seed) for seed in SEEDS]
            row: Row = {"rate": rate, "rtt": 2 * one_way, "offset": offset}
            for name in runs[0]:
                row |= with_interval(name, [run[name] for run in runs])
            yield row | with_interval("difference", [run["share"] - run["closed_form"] for run in runs])


def beside_tcp() -> Iterator[Row]:
    """Let an SCP flow and another flow share a link of 2 Mbit/s, with buffers of several sizes."""
    rate = 2e6
    stacks = {
        "Classic TCP": Classic(recovery="reno", receiver_window=1000),
        "Linux TCP (CUBIC)": td.Stack.linux(congestion_control="cubic"),
        "SCP": Scp(),
    }
    for name, stack in stacks.items():
        for depth in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0):
            link = Bottleneck(rate, round(depth * RTT * rate / 8), unit="bytes")
            part, sojourn, loss = [], [], []
            for seed in SEEDS:
                path = SharedPath(RTT / 2, return_jitter=JITTER)
                start = float(np.random.default_rng(seed).uniform(0, 1))
                sources = [Bulk(path=path, stack=Scp(), start=start), Bulk(path=path, stack=stack)]
                result = simulate_network(sources, link, duration=600, warm_up=100, seed=seed)
                first, second = result.flows
                part.append(first.throughput / (first.throughput + second.throughput))
                sojourn.append(result.queue.mean_sojourn)
                loss.append(first.segments_dropped / first.segments_sent)
            row: Row = {"other": name, "buffer_in_bdp": depth}
            yield (
                row | with_interval("share", part) | with_interval("sojourn", sojourn) | (with_interval("loss", loss))
            )


def constant_rate() -> Iterator[Row]:
    """Compare voice over SCP, Linux TCP and datagrams where 2 % of the packets are lost at random."""
    stacks = {
        "SCP": Scp(),
        "SCP, r not filtered": Scp(rate_gain=1.0),
        "Linux TCP (CUBIC)": td.Stack.linux(congestion_control="cubic"),
        "datagrams": Udp(),
    }
    fast = Bottleneck(1e9, 60_000)
    for interval in (0.010, 0.020, 0.040, 0.080):
        for name, stack in stacks.items():
            values: dict[str, list[float]] = {"mean": [], "p95": [], "lost": [], "unfinished": [], "late": []}
            for seed in SEEDS:
                path = SharedPath(RTT / 2, return_jitter=JITTER, loss=0.02)
                source = ConstantRate(flow=td.Flow(174, interval, write_jitter=0.0), path=path, stack=stack)
                flow = simulate_network([source], fast, duration=2000, warm_up=100, seed=seed).flows[0]
                assert flow.delays is not None
                values["mean"].append(flow.delays.mean)
                values["p95"].append(flow.delays.quantile(0.95))
                values["lost"].append(flow.lost / flow.offered)
                values["unfinished"].append(flow.unfinished / flow.offered)
                values["late"].append(flow.late_fraction(0.200))
            row: Row = {"transport": name, "interval": interval}
            for measure, runs in values.items():
                row |= with_interval(measure, runs)
            yield row


EXPERIMENTS: dict[str, Callable[[], Iterator[Row]]] = {
    "scp-backlog": backlog,
    "scp-three-sessions": three_sessions,
    "scp-order": orders,
    "scp-switches": switches,
    "scp-shares": shares,
    "scp-beside-tcp": beside_tcp,
    "scp-constant-rate": constant_rate,
}


def main() -> None:
    """Write all tables."""
    print(compare())
    for name, experiment in EXPERIMENTS.items():
        print(write_table(name, experiment()))


if __name__ == "__main__":
    main()
