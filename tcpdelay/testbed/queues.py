"""The queueing disciplines of a path: netem for delay and loss, a token bucket with a queue for a limited rate.

pyroute2 does not support the loss models of netem, and supports tbf only with a string for every number. This module
therefore fills the option blocks; pyroute2 does the rest.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from pyroute2 import IPRoute
from pyroute2.netlink import nla
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_codel, sched_fq_codel, sched_netem, sched_pfifo, sched_tbf

from tcpdelay.models.tcp import gilbert_probabilities
from tcpdelay.testbed.link import Link

TICK = 64
"""Unit in which netem and tbf count time [ns] (include/net/pkt_sched.h, PSCHED_SHIFT)."""
CERTAIN = 2**32 - 1
NETEM_LIMIT = 200_000
"""Limit of netem's queue [packets]: far above the number of packets in flight, so that the queue is never full."""
ROOT_HANDLE = 0x10000
TBF_BURST = 2000
"""Token bucket of the rate limit [bytes]: one packet, so that packets leave at the link's rate and not in bursts."""


class NetemOptions(sched_netem.options):  # type: ignore[misc]
    """netem's options with the Gilbert-Elliott loss model of linux/pkt_sched.h (NETEM_LOSS_GE)."""

    nla_map = (*sched_netem.options.nla_map[:5], ("TCA_NETEM_LOSS", "loss_model"), *sched_netem.options.nla_map[6:])

    class loss_model(nla):  # type: ignore[misc]  # noqa: N801, D106 - pyroute2 finds it by this name
        nla_map = (("NETEM_LOSS_UNSPEC", "none"), ("NETEM_LOSS_GI", "hex"), ("NETEM_LOSS_GE", "gilbert_elliott"))

        class gilbert_elliott(nla):  # type: ignore[misc]  # noqa: N801, D106
            fields: ClassVar[Any] = (("p", "I"), ("r", "I"), ("h", "I"), ("k1", "I"))


def _passed_on(options: dict[str, Any]) -> Any:
    return options["block"]


_OURS = {
    "netem": SimpleNamespace(parent=sched_netem.parent, options=NetemOptions, get_parameters=_passed_on),
    "tbf": SimpleNamespace(parent=sched_tbf.parent, options=sched_tbf.options, get_parameters=_passed_on),
    "codel": SimpleNamespace(parent=sched_codel.parent, options=sched_codel.options, get_parameters=_passed_on),
    "fq_codel": SimpleNamespace(
        parent=sched_fq_codel.parent, options=sched_fq_codel.options, get_parameters=_passed_on
    ),
    "bfifo": sched_pfifo,
}
plugins.update(_OURS)


def set_netem(netlink: IPRoute, command: Literal["add", "change"], device: int, link: Link) -> None:
    """Delay and drop the packets that a device sends, as on a link; its rate has no effect here.

    Parameters
    ----------
    netlink : IPRoute
        A netlink socket in the device's namespace.
    command : {"add", "change"}
        Whether to add the queueing discipline, or to change it; a change keeps the packets in its queue.
    device : int
        Index of the device.
    link : Link
        Delay, jitter and losses.
    """
    # netem draws a delay uniformly from the mean less the jitter to the mean plus the jitter.
    spread = link.jitter / 2
    block: dict[str, Any] = {
        "delay": round((link.delay + spread) * 1e9 / TICK),
        "limit": NETEM_LIMIT,
        "loss": 0 if link.loss_burst > 1 else round(link.loss * CERTAIN),
        "gap": 0,
        "duplicate": 0,
        "jitter": round(spread * 1e9 / TICK),
        "attrs": [],
    }
    if link.loss_burst > 1:
        # In the bad state, no packet passes (h = 0). It is left with probability r = 1 / burst, and entered with the
        # probability p at which its share of the packets is `loss`.
        enter, leave = gilbert_probabilities(link.loss, link.loss_burst)
        model = {"p": round(enter * CERTAIN), "r": round(leave * CERTAIN), "h": 0, "k1": 0}
        block["attrs"].append(("TCA_NETEM_LOSS", {"attrs": [("NETEM_LOSS_GE", model)]}))
    netlink.tc(command, "netem", device, handle=ROOT_HANDLE, block=block)


def add_bottleneck(netlink: IPRoute, device: int, link: Link) -> None:
    """Limit the rate of a device to that of a link, with the queue of this link before it."""
    assert link.rate is not None
    bytes_per_second = round(link.rate / 8)
    parameters = {
        "rate_cell_log": 3,
        "rate___reserved": 1,  # the link layer: Ethernet
        "rate": bytes_per_second,
        "limit": 2**31,
        "buffer": round(TBF_BURST * 1e9 / bytes_per_second / TICK),
    }
    # pyroute2 fills the rate table from the parameters.
    block = {"attrs": [("TCA_TBF_PARMS", parameters), ("TCA_TBF_RTAB", True)]}
    netlink.tc("add", "tbf", device, handle=ROOT_HANDLE, block=block)
    kind: str = link.queue
    settings: dict[str, Any]
    if kind == "fifo":
        kind, limit = ("pfifo", link.queue_packets) if link.queue_packets is not None else ("bfifo", link.queue_bytes)
        settings = {"limit": limit}
    else:
        limits = [] if link.queue_packets is None else [(f"TCA_{kind.upper()}_LIMIT", link.queue_packets)]
        settings = {"block": {"attrs": limits}}
    netlink.tc("replace", kind, device, handle=2 * ROOT_HANDLE, parent=ROOT_HANDLE + 1, **settings)


def packet_counts(netlink: IPRoute, device: int) -> dict[str, int]:
    """Return the numbers of packets that the device's root discipline has sent and dropped."""
    for message in netlink.get_qdiscs(device):
        if message["parent"] == sched_netem.parent:
            statistics = message.get_attr("TCA_STATS2")
            return {
                "sent": statistics.get_attr("TCA_STATS_BASIC")["packets"],
                "dropped": statistics.get_attr("TCA_STATS_QUEUE")["drops"],
            }
    raise OSError(f"device {device} has no queueing discipline")
