"""The network of an experiment: namespaces joined by veth pairs, their queues and losses, and packet traces."""

from __future__ import annotations

import errno
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path as FilePath

from pyroute2 import IPRoute
from pyroute2.ethtool.ethtool import Ethtool

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.testbed.event_loop import (
    NANOSECONDS,
    EventLoop,
    die_with_parent,
    end_process,
    enter_network,
    start_process,
    unshare_network,
)
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.queues import (
    NETEM_LIMIT,
    Crossing,
    Departures,
    JitterDraw,
    JitteredDelays,
    Shaper,
    add_bottleneck,
    packet_counts,
    set_netem,
)
from tcpdelay.testbed.topology import DEVICE_LIMIT, DuplexLink, Link

# Losses in time: a timer switches the loss of an experiment's path between a good and a bad state.


class LossChannel:
    """Gilbert's channel with exponentially distributed times in its states (`tcpdelay.Path`, `bad_time`)."""

    def __init__(self, loop: EventLoop, path: Path, set_loss: Callable[[float], None], seed: str) -> None:
        self._loop = loop
        self._path = path
        self._set_loss = set_loss
        self._random = random.Random(seed)
        self._stopped = False
        self._bad = self._random.random() < path.loss / path.bad_loss
        self._end = 0

    def start(self, first: int) -> None:
        """Begin with a state in the stationary distribution at a time [ns, monotonic clock]."""
        self._end = first
        self._loop.at(first, self._enter)

    def _enter(self) -> None:
        """Enter the state that begins now, and set the timer for its end."""
        if self._stopped:
            return
        self._set_loss(self._path.bad_loss if self._bad else 0.0)
        mean = self._path.bad_time if self._bad else self._path.good_time
        self._end += round(self._random.expovariate(1 / mean) * NANOSECONDS)
        self._loop.at(self._end, self._leave)

    def _leave(self) -> None:
        self._bad = not self._bad
        self._enter()

    def stop(self) -> None:
        """End the switching."""
        self._stopped = True


def switch_losses(device: int, link: Link, seed: str) -> None:
    """Switch the losses of a device, whose root is netem, from now on and for ever."""
    netlink, loop = IPRoute(), EventLoop()

    def set_loss(loss: float) -> None:
        set_netem(netlink, "change", device, replace(link, loss=loss))

    path = Path(1.0, link.loss, bad_time=link.bad_time, bad_loss=link.bad_loss)
    LossChannel(loop, path, set_loss, seed).start(time.monotonic_ns())
    loop.run(lambda: False)


# The network of an experiment: namespaces joined by veth pairs, their queueing disciplines, and packet traces.
#
# The namespaces have no names. Only open descriptors hold them, so the kernel removes the namespaces, their devices and
# their queues at any end of this process.

LONGEST_LINKWATCH = 5000
"""Longest time until a device is up [ms]; the kernel looks once a second at most (net/core/link_watch.c)."""
PORT = 5001
SENDER, RECEIVER = "sender", "receiver"
"""Hosts of the network of an experiment."""
OFFLOADS = ("tx-tcp-segmentation", "tx-generic-segmentation", "rx-gro")
COMMON_SYSCTLS = {
    "net.ipv4.ip_forward": "1",
    # Otherwise a flow inherits slow-start threshold and RTT from an earlier flow to the same address.
    "net.ipv4.tcp_no_metrics_save": "1",
    # Router solicitations and similar packets would be counted as packets of the flow.
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
}
ECN = "net.ipv4.tcp_ecn"
"""Sysctl: whether TCP asks for ECN and accepts it (1), or only accepts it (2, the default)."""
RTAX_RTO_MIN = 13
"""Number of the metric of a route (linux/rtnetlink.h)."""
SNAP_LENGTH = 128
"""Number of captured bytes of each packet: all headers and the options of TCP."""


@dataclass(eq=False)
class Node:
    """One network namespace and a netlink socket in it."""

    descriptor: int
    netlink: IPRoute

    @classmethod
    def create(cls, sysctls: dict[str, str]) -> Node:
        """Move the calling thread into a new, empty namespace, and return the namespace."""
        unshare_network()
        for name, value in sysctls.items():
            file = FilePath("/proc/sys", *name.split("."))
            # A kernel without IPv6 does not have the sysctls of IPv6.
            if file.exists() or ".ipv6." not in name:
                _write_sysctl(name, file, value)
        netlink = IPRoute()
        netlink.link("set", index=netlink.link_lookup(ifname="lo")[0], state="up")
        return cls(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC), netlink)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move the calling thread into this namespace for the duration of a with block."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        enter_network(self.descriptor)
        try:
            yield
        finally:
            enter_network(before)
            os.close(before)

    def open_socket(self, kind: int) -> socket.socket:
        """Return a new non-blocking socket in this namespace."""
        with self.entered():
            return socket.socket(type=kind | socket.SOCK_NONBLOCK)

    def close(self) -> None:
        """Close the namespace."""
        self.netlink.close()
        os.close(self.descriptor)


def _write_sysctl(name: str, file: FilePath, value: str) -> None:
    setting = f"{name}={value}"
    if not file.exists():
        raise InvalidValueError("sysctl", setting, "name a setting that a network of this kernel has")
    try:
        file.write_text(value, encoding="utf-8")
    except OSError as error:
        # The kernel answers with ENOENT if it lacks a congestion control, and with EPERM if only root may use it.
        if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ERANGE, errno.EPERM):
            raise
        raise InvalidValueError("sysctl", setting, "have a value that this kernel takes") from None


@dataclass(frozen=True)
class Segment:
    """A veth pair: the two nodes, the indices of the devices, and the number, which gives the addresses."""

    left: Node
    right: Node
    left_device: int
    right_device: int
    number: int

    def address(self, node: Node) -> str:
        """Return the address of one of both nodes."""
        return f"10.0.{self.number}.{1 if node is self.left else 2}"

    def device(self, node: Node) -> int:
        """Return the index of the device of one of both nodes."""
        return self.left_device if node is self.left else self.right_device

    def device_name(self, node: Node) -> str:
        """Return the name of the device of one of both nodes."""
        return str(node.netlink.link("get", index=self.device(node))[0].get_attr("IFLA_IFNAME"))


class Network:
    """Hosts and routers, joined by up to 32 links; a node with one link is a host. It needs root, and netem.

    A separate node in each link applies delay and loss, and not the hosts' own devices. On a real path too, a segment
    leaves its host at once. A sender whose own device still holds a segment knows this: it does not retransmit the
    segment (`TCPSpuriousRtxHostQueues`), and does not collapse it into a retransmission. A trace at a host shows only
    the packets that leave the queue of its device.
    """

    def __init__(self, links: Sequence[DuplexLink], sysctls: dict[str, str], seed: int | str = 0) -> None:
        self.nodes: dict[str, Node] = {}
        self.addresses: dict[str, str] = {}  # Of the hosts alone
        self._between: list[Node] = []
        self._segments: list[Segment] = []
        self._queues: dict[str, tuple[Node, int]] = {}
        self._shapers: dict[str, Shaper] = {}
        self._switches: list[int] = []
        self._seed = seed
        self._forward = _part_of_netem(links[0].forward)
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for name in dict.fromkeys(end for link in links for end in (link.first, link.second)):
                self.nodes[name] = Node.create(COMMON_SYSCTLS | sysctls)
            for link in links:
                self._add(link, sysctls)
            for name, node in self.nodes.items():
                own = [segment for segment in self._segments if node in (segment.left, segment.right)]
                if len(own) == 1:
                    self.addresses[name] = own[0].address(node)
                    _add_routes(self._segments, node, own[0])
            for segment in self._segments:
                for node in (segment.left, segment.right):
                    _await_carrier(node.netlink, segment.device(node))
        except BaseException:
            self.close()
            raise
        finally:
            enter_network(home)
            os.close(home)

    @classmethod
    def build(cls, experiment: Experiment, seed: int = 0) -> Network:
        """Return the namespaces, devices and queues of an experiment; needs root."""
        # A timer of the measurement switches the losses in time.
        loss = 0.0 if experiment.bad_time > 0 else experiment.loss
        limit = experiment.queue_packets or (DEVICE_LIMIT if experiment.queue == "red" else None)
        plain = {"loss": loss, "bad_time": 0.0, "bad_loss": 1.0}
        delay, rate = experiment.rtt / 2, experiment.bottleneck_rate
        forward = Link.of(experiment, delay=delay, rate=rate, queue_packets=limit, **plain)
        link = DuplexLink(SENDER, RECEIVER, forward, Link(delay, experiment.ack_loss))
        return cls([link], _sysctls(experiment), f"{seed}/{experiment.digest}")

    def _add(self, link: DuplexLink, sysctls: dict[str, str]) -> None:
        """Add the nodes, devices and queues of a link between two nodes."""
        ways = (link.forward, link.backward)
        routed = any(way.rate is not None or way.trace is not None for way in ways)
        # netem cannot correlate delays: a process in a node of its own adds them.
        correlated = any(way.jitter_correlation > 0 for way in ways)
        between = [Node.create(COMMON_SYSCTLS | sysctls) for _ in range(1 + correlated + routed)]
        self._between += between
        chain = [
            _join(left, right, number)
            for number, (left, right) in enumerate(
                pairwise([self.nodes[link.first], *between, self.nodes[link.second]]), start=len(self._segments) + 1
            )
        ]
        self._segments += chain
        last = chain[-1]
        # The segment before the router of a bottleneck; without a router it is not used.
        ahead = chain[-2] if routed else last
        queues = {"data": (chain[1].left, chain[1].left_device), "ack": (chain[0].right, chain[0].right_device)}
        for queue, way in (("data", link.forward), ("ack", link.backward)):
            node, device = queues[queue]
            seed = f"{self._seed}/{link.name}/{queue}"
            own = _part_of_netem(way)
            good = replace(own, loss=0.0) if way.bad_time > 0 else own
            set_netem(node.netlink, "add", device, good, random.Random(seed).getrandbits(64))
            if way.bad_time > 0 and way.loss > 0:
                with node.entered():
                    self._switches.append(start_process(partial(switch_losses, device, own, seed)))
        before = f"{link.name}_" if link.name else ""
        if correlated:
            entry, exit_ = chain[1], chain[2]
            for queue, way, crossing in (
                ("jitter", link.forward, _crossing(entry.right, entry, exit_)),
                ("jitter_back", link.backward, _crossing(entry.right, exit_, entry)),
            ):
                if way.jitter_correlation > 0:
                    seed = f"{self._seed}/{link.name}/{queue}"
                    draw = JitterDraw(way.delay, way.jitter, way.jitter_distribution, way.jitter_correlation, seed)
                    with entry.right.entered():
                        delays = JitteredDelays(draw, way.in_order)
                        self._shapers[before + queue] = Shaper(crossing, delays, NETEM_LIMIT)
        # The router of the bottleneck is the last node before the second end.
        for queue, way, entry, exit_ in (
            ("bottleneck", link.forward, ahead, last),
            ("bottleneck_back", link.backward, last, ahead),
        ):
            if way.rate is not None:
                device = exit_.device(last.left)
                queues[queue] = (last.left, device)
                add_bottleneck(last.left.netlink, device, way)
            if way.trace is not None:
                with last.left.entered():
                    crossing = _crossing(last.left, entry, exit_)
                    limit = way.queue_packets or DEVICE_LIMIT
                    self._shapers[before + queue] = Shaper(crossing, Departures(way.trace), limit)
        self._queues |= {f"{before}{queue}": place for queue, place in queues.items()}

    @property
    def sender(self) -> Node:
        """The sender of an experiment."""
        return self.nodes[SENDER]

    @property
    def receiver(self) -> Node:
        """The receiver of an experiment; it listens on `PORT`."""
        return self.nodes[RECEIVER]

    @property
    def receiver_address(self) -> str:
        """Address of the receiver of an experiment."""
        return self.addresses[RECEIVER]

    def device_of(self, host: str) -> str:
        """Return the name of the device of a host."""
        node = self.nodes[host]
        (own,) = [one for one in self._segments if node in (one.left, one.right)]
        return own.device_name(node)

    def set_loss(self, loss: float) -> None:
        """Change the probability that a packet from the sender to the receiver is dropped, 0 to 1."""
        node, device = self._queues["data"]
        set_netem(node.netlink, "change", device, replace(self._forward, loss=loss))

    def set_rto_min(self, rto_min: float) -> None:
        """Set the smallest retransmission timeout [s] of later connections of the sender to the receiver."""
        device = self._segments[0].left_device
        # Only a locked metric counts (tcp_rto_min).
        metrics = {"rto_min": math.ceil(1e3 * rto_min), "lock": 1 << RTAX_RTO_MIN}
        destination = f"{self.receiver_address}/32"
        self.sender.netlink.route("replace", dst=destination, oif=device, metrics=metrics, gateway="10.0.1.2")

    def packet_counts(self) -> dict[str, int]:
        """Return the numbers of packets that each queue has sent and dropped, by names such as "data_dropped"."""
        counts = {}
        for name, (node, device) in self._queues.items():
            for what, count in packet_counts(node.netlink, device).items():
                counts[f"{name}_{what}"] = count
        for name, shaper in self._shapers.items():
            counts |= {f"{name}_{what}": count for what, count in shaper.packet_counts().items()}
        return counts

    def close(self) -> None:
        """Remove the network."""
        for shaper in self._shapers.values():
            shaper.close()
        for switch in self._switches:
            end_process(switch)
        for node in (*self.nodes.values(), *self._between):
            node.close()


def _await_carrier(netlink: IPRoute, device: int) -> None:
    """Wait until the kernel has noticed that the other end of a device is up: it drops packets before (linkwatch)."""
    for _ in range(LONGEST_LINKWATCH):
        if netlink.link("get", index=device)[0].get_attr("IFLA_OPERSTATE") == "UP":
            return
        time.sleep(0.001)
    raise TimeoutError(f"the device {device} is not up")


def _part_of_netem(way: Link) -> Link:
    """Return what netem does of a direction: with correlated jitter only the losses, as a process adds the delays."""
    if way.jitter_correlation == 0:
        return way
    return way.without_jitter(delay=0.0)


def _sysctls(experiment: Experiment) -> dict[str, str]:
    return {
        "net.ipv4.tcp_sack": str(int(experiment.sack)),
        "net.ipv4.tcp_recovery": str(experiment.recovery),
        "net.ipv4.tcp_early_retrans": str(experiment.early_retrans),
        "net.ipv4.tcp_slow_start_after_idle": str(int(experiment.slow_start_after_idle)),
        **({ECN: "1"} if experiment.ecn else {}),
    }


def _add_routes(segments: Sequence[Segment], host: Node, own: Segment) -> None:
    """Give every node that is not at the segment of a host the route with the fewest segments to it."""
    reached, waiting = [host], deque([host])
    while waiting:
        gateway = waiting.popleft()
        for segment in segments:
            if gateway not in (segment.left, segment.right):
                continue
            node = segment.right if gateway is segment.left else segment.left
            if node not in reached:
                reached.append(node)
                waiting.append(node)
                if node not in (own.left, own.right):
                    node.netlink.route("add", dst=f"10.0.{own.number}.0/24", gateway=segment.address(gateway))


def _hardware_address(address: str) -> str:
    """Return the hardware address of the device with an address, whose third number is below 160."""
    _, _, segment, device = map(int, address.split("."))
    return f"02:00:00:00:{segment // 10:x}{segment % 10}:{device:02d}"


def _crossing(router: Node, entry: Segment, exit_: Segment) -> Crossing:
    """Return the way through a router from one segment to another."""
    after = exit_.right if router is exit_.left else exit_.left
    source, target = (
        bytes.fromhex(_hardware_address(exit_.address(node)).replace(":", "")) for node in (router, after)
    )
    return Crossing(entry.device_name(router), exit_.device_name(router), source, target)


def _join(left: Node, right: Node, number: int) -> Segment:
    """Join two nodes by a veth pair without segmentation offload."""
    left_address, right_address = f"10.0.{number}.1", f"10.0.{number}.2"
    # The hardware addresses are fixed: they feed the kernel's entropy, so a repeated run needs the same addresses.
    name = f"to-{right_address}"
    ends = [(left, left_address), (right, right_address)]
    hardware = [_hardware_address(address) for _, address in ends]
    peer = {"ifname": name, "address": hardware[1], "net_ns_fd": right.descriptor}
    left.netlink.link("add", ifname=name, kind="veth", address=hardware[0], peer=peer)
    indices = []
    for node, address in ends:
        index = node.netlink.link_lookup(ifname=name)[0]
        # Otherwise TCP builds segments of several packets, which netem delays and drops as one.
        node.netlink.link("set", index=index, gso_max_segs=1)
        with node.entered(), Ethtool() as ethtool:
            features = ethtool.get_features(name)
            for offload in OFFLOADS:
                if offload in features.features:
                    features.features[offload].enable = False
            ethtool.set_features(name, features)
        node.netlink.addr("add", index=index, address=address, prefixlen=24)
        node.netlink.link("set", index=index, state="up")
        indices.append(index)
    for (node, _), index, (_, address), lladdr in zip(ends, indices, ends[::-1], hardware[::-1], strict=True):
        # Resolving a neighbour would cost the first packet a round trip, or a second if the request is lost.
        node.netlink.neigh("add", dst=address, lladdr=lladdr, ifindex=index, state="permanent")
    return Segment(left, right, indices[0], indices[1], number)


def kernel_counters(node: Node) -> dict[str, int]:
    """Return the TCP counters of a namespace that are not zero, as in `nstat`: "RetransSegs", "TCPTimeouts", ..."""
    counters: dict[str, int] = {}
    with node.entered():
        for file in ("snmp", "netstat"):
            lines = FilePath("/proc/thread-self/net", file).read_text(encoding="ascii").splitlines()
            for names, values in zip(lines[::2], lines[1::2], strict=True):
                if names.startswith(("Tcp:", "TcpExt:")):
                    for name, value in zip(names.split()[1:], values.split()[1:], strict=True):
                        if int(value) > 0:
                            counters[name] = int(value)
    return counters


class PacketTraces:
    """Traces the packets of the devices of all hosts, until stopped, into files such as `PATH.sender.pcap`."""

    def __init__(self, network: Network, path: FilePath) -> None:
        program = shutil.which("tcpdump", path="/usr/bin:/usr/sbin:/bin:/sbin")
        if program is None:
            raise FileNotFoundError("packet traces need tcpdump; run: sudo apt-get install tcpdump")
        self._processes = []
        for host in network.addresses:
            node, file = network.nodes[host], path.with_name(f"{path.name}.{host}.pcap")
            options = ["-Z", "root", "-n", "-U", "--immediate-mode", "--time-stamp-precision=nano"]
            # tcpdump would make root the owner of a file that it opens. A guest of an ordinary user refuses this.
            command = [program, *options, "-s", str(SNAP_LENGTH), "-i", network.device_of(host), "-w", "-"]
            with file.open("wb") as trace, node.entered():
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=trace,
                    stderr=subprocess.PIPE,
                    preexec_fn=lambda: die_with_parent(signal.SIGKILL),
                )
            # tcpdump prints that it listens, or prints an error.
            assert process.stderr is not None
            line = process.stderr.readline().decode(errors="replace").strip()
            if "listening" not in line:
                process.kill()
                raise OSError(f"tcpdump: {line}")
            self._processes.append(process)

    def stop(self) -> None:
        """End the traces and complete their files."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.communicate()
