"""Shared links with every queue and every transport, and relays of two legs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from recording import Cases, attributes, named
from simulations import draw, path, source, stack

import tcpdelay as td

NETWORKS, RELAYS = 40, 20
SEED = 44
FLOW_FIGURES = (
    *("delays", "all_delays", "mean_interval", "p95_interval", "offered", "delivered", "lost", "unfinished"),
    *("gap_bytes", "delivered_fraction", "name", "sender_delay", "network_delay", "receiver_delay", "throughput"),
    *("sustainable", "settled", "carried", "segments_sent", "segments_lost", "segments_dropped"),
    *("segments_carried", "retransmissions", "timeouts", "marks", "late_errors"),
)
QUEUE_FIGURES = ("mean_length", "mean_sojourn", "utilization", "offered", "dropped", "marked", "loss_fraction")
RELAY_FIGURES = (
    *("offered", "delivered", "lost", "dropped", "delays", "first", "second", "relay_delay", "buffer_needed"),
    *("mean_interval", "quantile_interval", "sustainable", "settled"),
)
KIND_FIGURES = (
    *("delays", "mean_interval", "p95_interval", "quantile_interval", "offered", "delivered", "lost", "unfinished"),
    *("gap_bytes", "dropped", "first", "second", "relay_delay", "buffer_needed"),
)
SETTLED = ("settled", "carried", "packets", "sustainable")


def queue(number: int) -> td.Bottleneck:
    """Return a link; its queue follows from the number."""
    rate = (2e6, 8e6, 5e5)[number // 13 % 3]
    settings: dict[str, Any] = (
        {"capacity": 40},
        {"capacity": 60_000, "unit": "bytes"},
        {"capacity": 60, "discipline": "red", "gentle": number % 2 == 0},
        {"capacity": 60_000, "unit": "bytes", "discipline": "red", "min_th": 5e3, "max_th": 15e3},
        {"capacity": 60, "discipline": "dred", "bandwidth_delay_product": 15.0},
        {"discipline": "codel"},
        {"discipline": "fq_codel", "flows": 16, "quantum": 300},
        {"discipline": "pie", "target": 0.02},
        {"discipline": "cake"},
        {"discipline": "dualpi2"},
        {"discipline": "policer", "burst": 20_000},
        {"capacity": 30, "burst": 10_000, "peak_rate": 4 * rate},
        {"capacity": 100},
    )[number % 13]
    if number % 13 == 12:
        trace = named("LinkTrace").of_opportunities(np.cumsum(np.arange(400) % 7 + 1).tolist())
        return td.Bottleneck(8 * 1504 * 1000 / 4, trace=trace, **settings)
    return td.Bottleneck(rate, **settings)


def transport(random: np.random.Generator, number: int, managed: bool) -> tuple[Any, dict[str, Any]]:
    """Return a stack and what its source must be told; the literature's stacks do not go over managed queues."""
    of_today: tuple[tuple[Any, dict[str, Any]], ...] = (
        (stack(random, 0), {"ecn": number % 2 == 0}),
        (stack(random, 1), {}),
        (stack(random, 2), {}),
        (stack(random, 4 * number + 3), {}),
        (td.Udp(parity=number % 2), {}),
        (named("Dctcp")(), {"l4s": True} if number % 2 else {"ecn": True}),
    )
    of_papers: tuple[tuple[Any, dict[str, Any]], ...] = (
        (td.Classic(("reno", "newreno", "sack")[number % 3], limited_transmit=number % 2 == 0), {}),  # type: ignore[arg-type]
        (td.Classic.of_2008(recovery="sack"), {}),
        (td.Classic("newreno"), {"forging": True}),
        (named("TimeLined")(deadline=0.3), {}),
        (named("Scp")(), {}),
    )
    known = of_today if managed else of_today + of_papers
    return known[number % len(known)]


def side(random: np.random.Generator, number: int) -> td.SharedPath:
    """Return a path to the link."""
    settings: dict[str, Any] = (
        {},
        {"loss": 0.01, "return_jitter": 0.001},
        {"loss": 0.02, "loss_burst": 2.0},
        {"loss": 0.005, "bad_time": 0.1, "bad_loss": 0.5, "exit_delay": 0.01},
        {"in_host": True, "return_delay": 0.05},
    )[number % 5]
    return td.SharedPath(draw(random, 0.003, 0.08), **settings)


def sources(random: np.random.Generator, number: int, managed: bool) -> list[Any]:
    """Return what shares a link: messages over several transports, and what others send."""
    found: list[Any] = []
    for place in range(3):
        over, told = transport(random, number + 3 * place, managed)
        messages = source(random, (0, 2, 3, 4, 8, 5)[(number + place) % 6])
        if type(over).__name__ == "Scp":
            messages = td.Flow(600, 0.01)
        more: dict[str, Any] = {"start": 0.1 * place}
        if place == 0 and not told and number % 4 == 1 and type(over).__name__ == "Linux":
            messages = td.Flow(600, 0.02)
            more |= {"connections": 2, "scheduling": "blind"} if number % 8 == 1 else {"pieces": 2}
        found.append(td.ConstantRate(flow=messages, path=side(random, number + place), stack=over, **more, **told))
    other = stack(random, number % 3)
    found += (
        [td.Bulk(path=side(random, number), stack=other)],
        [td.Transfers(path=side(random, number), stack=other, mean_size=30_000, mean_pause=0.5)],
        [td.Web(path=side(random, number), stack=other)],
        [td.Bulk(path=side(random, number), stack=other, notsent_lowat=16_384)],
    )[number % 4]
    return found


def figures(result: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the figures of messages, of all and of each kind, and whether their delays have settled."""
    judged = {} if result.delays is None else attributes(result.delays, SETTLED)
    kinds = getattr(result, "by_kind", {})
    return attributes(result, names) | {
        "of_delays": judged,
        "by_kind": {kind: figures(of_kind, KIND_FIGURES) for kind, of_kind in kinds.items()},
    }


def shared(number: int) -> dict[str, Any]:
    """Return all figures of a shared link, to the last bit."""
    random = np.random.default_rng([SEED, number])
    link = queue(number)
    managed = link.discipline in ("codel", "fq_codel", "pie", "cake", "dualpi2")
    found = td.simulate_network(sources(random, number, managed), link, duration=30.0, warm_up=5.0, seed=number)
    flows = {str(place): figures(flow, FLOW_FIGURES) for place, flow in enumerate(found.flows)}
    return {"flows": flows, "queue": attributes(found.queue, QUEUE_FIGURES), "fairness": found.fairness}


def relayed(number: int) -> dict[str, Any]:
    """Return all figures of two legs, to the last bit."""
    random = np.random.default_rng([SEED, 1, number])
    over_udp = number % 4
    legs = [
        (path(random, 0), td.Udp()) if over_udp == place else (path(random, kind), stack(random, (number + place) % 3))
        for place, kind in ((1, (0, 1, 2, 4)[number % 4]), (2, (0, 3, 5)[number % 3]))
    ]
    messages = source(random, (0, 1, 2, 3, 4, 5, 8)[number % 7])
    buffer = int(draw(random, 3000, 60_000)) if number % 3 == 0 and over_udp != 2 else None
    found = td.simulate_relay(messages, legs[0], legs[1], buffer=buffer, packets=3000, seed=number)
    return figures(found, RELAY_FIGURES)


def cases() -> Cases:
    """Return the shared links."""
    return {f"network {number}: {queue(number).discipline}": partial(shared, number) for number in range(NETWORKS)}


def relay_cases() -> Cases:
    """Return the relays."""
    return {f"relay {number}": partial(relayed, number) for number in range(RELAYS)}
