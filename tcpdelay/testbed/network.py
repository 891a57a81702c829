"""The network of an experiment: namespaces joined by veth pairs, their queueing disciplines, and packet traces.

The namespaces have no names. Only open descriptors hold them, so the kernel removes the namespaces, their devices and
their queues at any end of this process.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pyroute2 import IPRoute
from pyroute2.ethtool.ethtool import Ethtool

from tcpdelay.testbed.event_loop import die_with_parent, enter_network, unshare_network
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.link import Link
from tcpdelay.testbed.queues import add_bottleneck, packet_counts, set_netem

PORT = 5001
OFFLOADS = ("tx-tcp-segmentation", "tx-generic-segmentation", "rx-gro")
COMMON_SYSCTLS = {
    "net.ipv4.ip_forward": "1",
    # Otherwise a flow inherits slow-start threshold and RTT from an earlier flow to the same address.
    "net.ipv4.tcp_no_metrics_save": "1",
    # Router solicitations and similar packets would be counted as packets of the flow.
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
}
RTAX_RTO_MIN = 13
"""Number of the metric of a route (linux/rtnetlink.h)."""
SNAP_LENGTH = 128
"""Number of captured bytes of each packet: all headers and the options of TCP."""


@dataclass
class Node:
    """One network namespace and a netlink socket in it."""

    descriptor: int
    netlink: IPRoute

    @classmethod
    def create(cls, sysctls: dict[str, str]) -> Node:
        """Move the calling thread into a new, empty namespace, and return the namespace."""
        unshare_network()
        for name, value in sysctls.items():
            file = Path("/proc/sys", *name.split("."))
            # A kernel without IPv6 does not have the sysctls of IPv6.
            if file.exists() or ".ipv6." not in name:
                file.write_text(value, encoding="ascii")
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

    def close(self) -> None:
        """Close the namespace."""
        self.netlink.close()
        os.close(self.descriptor)


@dataclass
class Network:
    """The path of one experiment.

    Attributes
    ----------
    sender, receiver : Node
        The two ends. There are nodes between them if there is a bottleneck or packets are traced.
    receiver_address : str
        Address at which the receiver listens, on `PORT`.
    sender_address : str
        Address of the sender.
    """

    sender: Node
    receiver: Node
    receiver_address: str
    sender_address: str
    _forward: Link
    _queues: dict[str, tuple[Node, int]]
    _nodes: list[Node]
    _ends: tuple[tuple[Node, int], tuple[Node, int]]

    @classmethod
    def build(cls, experiment: Experiment, traced: bool = False) -> Network:
        """Return the namespaces, devices and queues of an experiment; needs root.

        Parameters
        ----------
        experiment : Experiment
            The experiment whose path is built.
        traced : bool
            Whether packets will be traced at both ends, as in `join`.

        Raises
        ------
        OSError, pyroute2.NetlinkError
            If the kernel refuses because a privilege or a module is missing.
        """
        loss = 0.0 if experiment.bad_time > 0 else experiment.loss
        delay = experiment.rtt / 2
        forward = Link(
            delay,
            loss,
            experiment.loss_burst,
            rate=experiment.bottleneck_rate,
            queue_packets=experiment.queue_packets,
            queue_bytes=experiment.queue_bytes,
        )
        return cls.join(forward, Link(delay, experiment.ack_loss), _sysctls(experiment), traced)

    @classmethod
    def join(cls, forward: Link, backward: Link, sysctls: dict[str, str], traced: bool = False) -> Network:
        """Return the namespaces, devices and queues of a path; needs root.

        Parameters
        ----------
        forward, backward : Link
            The way from the sender to the receiver, and the way back.
        sysctls : dict
            Settings of the kernel for all namespaces, beside those that all networks have.
        traced : bool
            Whether packets will be traced at both ends. A trace shows the packets that leave a device's queue, so a
            separate node between the ends then applies delay and loss.

        Raises
        ------
        OSError, pyroute2.NetlinkError
            If the kernel refuses because a privilege or a module is missing.
        """
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        nodes: list[Node] = []
        routed = forward.rate is not None or backward.rate is not None
        try:
            for _ in range(2 + traced + routed):
                nodes.append(Node.create(COMMON_SYSCTLS | sysctls))
            onward, back = _chain(nodes)
            sender, receiver = nodes[0], nodes[-1]
            queues = {
                "data": (nodes[1], onward[1]) if traced else (sender, onward[0]),
                "ack": (nodes[1], back[1]) if traced else (receiver, back[-1]),
            }
            for queue, link in (("data", forward), ("ack", backward)):
                netlink, device = _device(queues[queue])
                set_netem(netlink, "add", device, link)
            for queue, link, device in (("bottleneck", forward, onward[-2]), ("bottleneck_back", backward, back[-2])):
                if link.rate is not None:
                    queues[queue] = (nodes[-2], device)
                    add_bottleneck(nodes[-2].netlink, device, link)
            ends = (sender, onward[0]), (receiver, back[-1])
            return cls(sender, receiver, f"10.0.{len(nodes) - 1}.2", "10.0.1.1", forward, queues, nodes, ends)
        except BaseException:
            for node in nodes:
                node.close()
            raise
        finally:
            enter_network(home)
            os.close(home)

    def device_of(self, end: Node) -> str:
        """Return the name of the device of the sender or the receiver."""
        (index,) = [device for node, device in self._ends if node is end]
        return str(end.netlink.link("get", index=index)[0].get_attr("IFLA_IFNAME"))

    def set_loss(self, loss: float) -> None:
        """Change the probability that a packet from the sender to the receiver is dropped, 0 to 1."""
        netlink, device = _device(self._queues["data"])
        set_netem(netlink, "change", device, Link(self._forward.delay, loss))

    def set_rto_min(self, rto_min: float) -> None:
        """Set the smallest retransmission timeout [s] of later connections of the sender to the receiver."""
        ((_, device),) = [end for end in self._ends if end[0] is self.sender]
        # Only a locked metric counts (tcp_rto_min).
        metrics = {"rto_min": math.ceil(1e3 * rto_min), "lock": 1 << RTAX_RTO_MIN}
        gateway = {"gateway": "10.0.1.2"} if len(self._nodes) > 2 else {}
        destination = f"{self.receiver_address}/32"
        self.sender.netlink.route("replace", dst=destination, oif=device, metrics=metrics, **gateway)

    def packet_counts(self) -> dict[str, int]:
        """Return the numbers of packets that each queue has sent and dropped, by names such as "data_dropped"."""
        counts = {}
        for name, (node, device) in self._queues.items():
            for what, count in packet_counts(node.netlink, device).items():
                counts[f"{name}_{what}"] = count
        return counts

    def close(self) -> None:
        """Remove the network."""
        for node in self._nodes:
            node.close()


def _sysctls(experiment: Experiment) -> dict[str, str]:
    return {
        "net.ipv4.tcp_sack": str(int(experiment.sack)),
        "net.ipv4.tcp_recovery": str(experiment.recovery),
        "net.ipv4.tcp_early_retrans": str(experiment.early_retrans),
        "net.ipv4.tcp_slow_start_after_idle": str(int(experiment.slow_start_after_idle)),
    }


def _device(queue: tuple[Node, int]) -> tuple[IPRoute, int]:
    node, device = queue
    return node.netlink, device


def _chain(nodes: list[Node]) -> tuple[list[int], list[int]]:
    """Join nodes in a row, with routes from end to end.

    Returns the devices of each node towards the next node and towards the previous node; 0 at the ends of the row.
    """
    links = [
        _join(left, f"10.0.{number}.1", right, f"10.0.{number}.2")
        for number, (left, right) in enumerate(pairwise(nodes), start=1)
    ]
    last = len(links)
    for place, node in enumerate(nodes):
        if place < last - 1:
            node.netlink.route("add", dst=f"10.0.{last}.0/24", gateway=f"10.0.{place + 1}.2")
        if place > 1:
            node.netlink.route("add", dst="10.0.1.0/24", gateway=f"10.0.{place}.1")
    return [left for left, _ in links] + [0], [0] + [right for _, right in links]


def _join(left: Node, left_address: str, right: Node, right_address: str) -> tuple[int, int]:
    """Join two nodes by a veth pair without segmentation offload, and return the indices of its ends."""
    # The hardware addresses are fixed: they feed the kernel's entropy, so a repeated run needs the same addresses.
    name = f"to-{right_address}"
    ends = [(left, left_address), (right, right_address)]
    hardware = [f"02:00:00:00:{address.split('.')[2]:0>2}:{address.split('.')[3]:0>2}" for _, address in ends]
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
    return indices[0], indices[1]


def kernel_counters(node: Node) -> dict[str, int]:
    """Return the TCP counters of a namespace that are not zero, as in `nstat`: "RetransSegs", "TCPTimeouts", ..."""
    counters: dict[str, int] = {}
    with node.entered():
        for file in ("snmp", "netstat"):
            lines = Path("/proc/thread-self/net", file).read_text(encoding="ascii").splitlines()
            for names, values in zip(lines[::2], lines[1::2], strict=True):
                if names.startswith(("Tcp:", "TcpExt:")):
                    for name, value in zip(names.split()[1:], values.split()[1:], strict=True):
                        if int(value) > 0:
                            counters[name] = int(value)
    return counters


class PacketTraces:
    """Traces the packets of the sender's and the receiver's device, until stopped.

    Parameters
    ----------
    network : Network
        The network of the experiment.
    path : Path
        Path of the traces, without the suffixes `.sender.pcap` and `.receiver.pcap`; time stamps are in nanoseconds.

    Raises
    ------
    OSError
        If tcpdump cannot be run.
    """

    def __init__(self, network: Network, path: Path) -> None:
        program = shutil.which("tcpdump", path="/usr/bin:/usr/sbin:/bin:/sbin")
        if program is None:
            raise FileNotFoundError("packet traces need tcpdump; run: sudo apt-get install tcpdump")
        self._processes = []
        for end, node in (("sender", network.sender), ("receiver", network.receiver)):
            file = path.with_name(f"{path.name}.{end}.pcap")
            options = ["-Z", "root", "-n", "-U", "--immediate-mode", "--time-stamp-precision=nano"]
            # tcpdump would make root the owner of a file that it opens. A guest of an ordinary user refuses this.
            command = [program, *options, "-s", str(SNAP_LENGTH), "-i", network.device_of(node), "-w", "-"]
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
