"""Queueing disciplines: netem with bursts of loss, and a rate limit with a drop-tail queue.

pyroute2 speaks netem without its loss models and tbf only with a string for every figure, so the option blocks of
both are filled here; framing, sockets and answers are pyroute2's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from pyroute2 import IPRoute
from pyroute2.netlink import nla
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_netem, sched_pfifo, sched_tbf

from tcpdelay.models.tcp import gilbert_probabilities

TICK = 64
"""Unit in which netem and tbf count time [ns] (include/net/pkt_sched.h, PSCHED_SHIFT)."""
CERTAIN = 2**32 - 1
NETEM_LIMIT = 200_000
"""Packets that netem may hold: far more than are ever in flight, so that it never drops for want of room."""
ROOT_HANDLE = 0x10000
TBF_BURST = 2000
"""Bucket of the rate limit [bytes]: one packet, so that it leaves at the link's rate and not in bursts."""


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
    "bfifo": sched_pfifo,
}
plugins.update(_OURS)


def add_netem(netlink: IPRoute, device: int, delay: float, loss: float = 0.0, loss_burst: float = 1.0) -> None:
    """Delay and drop what a device sends.

    Parameters
    ----------
    netlink : IPRoute
        A netlink socket in the device's namespace.
    device : int
        Index of the device.
    delay : float
        Constant delay [s], from 0 to 274.
    loss : float
        Probability that a packet is dropped, 0 to 1.
    loss_burst : float
        Mean number of packets dropped in a row, 1 or more; above 1 the losses follow a Gilbert model.
    """
    block: dict[str, Any] = {
        "delay": round(delay * 1e9 / TICK),
        "limit": NETEM_LIMIT,
        "loss": 0 if loss_burst > 1 else round(loss * CERTAIN),
        "gap": 0,
        "duplicate": 0,
        "jitter": 0,
        "attrs": [],
    }
    if loss_burst > 1:
        # Bad state: no packet passes (h = 0), left with probability r = 1 / burst; entered so that its share is `loss`.
        enter, leave = gilbert_probabilities(loss, loss_burst)
        model = {"p": round(enter * CERTAIN), "r": round(leave * CERTAIN), "h": 0, "k1": 0}
        block["attrs"].append(("TCA_NETEM_LOSS", {"attrs": [("NETEM_LOSS_GE", model)]}))
    _add(netlink, "netem", device, block)


def add_bottleneck(
    netlink: IPRoute, device: int, rate: float, queue_packets: int | None, queue_bytes: int | None
) -> None:
    """Limit the rate [bit/s] of a device and drop what does not fit its queue, kept in packets or in bytes."""
    bytes_per_second = round(rate / 8)
    parameters = {
        "rate_cell_log": 3,
        "rate___reserved": 1,  # the link layer: Ethernet
        "rate": bytes_per_second,
        "limit": 2**31,
        "buffer": round(TBF_BURST * 1e9 / bytes_per_second / TICK),
    }
    # pyroute2 fills the rate table from the parameters.
    block = {"attrs": [("TCA_TBF_PARMS", parameters), ("TCA_TBF_RTAB", True)]}
    _add(netlink, "tbf", device, block)
    kind, limit = ("pfifo", queue_packets) if queue_packets is not None else ("bfifo", queue_bytes)
    netlink.tc("replace", kind, device, handle=2 * ROOT_HANDLE, parent=ROOT_HANDLE + 1, limit=limit)


def _add(netlink: IPRoute, kind: str, device: int, block: dict[str, Any]) -> None:
    netlink.tc("add", kind, device, handle=ROOT_HANDLE, block=block)


def packet_counts(netlink: IPRoute, device: int) -> dict[str, int]:
    """Return what the device's root discipline has counted: the packets it sent on and those it dropped."""
    for message in netlink.get_qdiscs(device):
        if message["parent"] == sched_netem.parent:
            statistics = message.get_attr("TCA_STATS2")
            return {
                "sent": statistics.get_attr("TCA_STATS_BASIC")["packets"],
                "dropped": statistics.get_attr("TCA_STATS_QUEUE")["drops"],
            }
    raise OSError(f"device {device} has no queueing discipline")
