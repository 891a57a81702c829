"""Single connections: each control and version of TCP, QUIC, each kind of source and of path; and exchanges."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from recording import Cases, attributes, recorded

import tcpdelay as td

SIMULATIONS, EXCHANGES = 200, 20
SEED = 43
KIND_FIGURES = ("mean_interval", "quantile_interval", "probability", "settled", "carried", "packets")
FIGURES = (
    *("packets", "counts", "settled", "ended_by_clock", "carried", "work_seconds", "rtt", "congestion_control"),
    *("compared", "mean_interval", "quantile_interval", "sender_delay", "head_of_line_delay", "late_errors"),
    *("by_kind", "messages", "sent_after", "read_after", "events", "unsettled_note"),
)


def draw(random: np.random.Generator, low: float, high: float) -> float:
    """Draw a number with four digits, uniform in the logarithm."""
    return float(f"{np.exp(random.uniform(np.log(low), np.log(high))):.4g}")


def source(random: np.random.Generator, number: int) -> Any:
    """Return a source; its kind follows from the number."""
    late = float(random.choice([0.0, 0.0, 0.002]))
    times = np.sort(random.uniform(0, 40, 5000)).round(6)
    sizes = random.integers(1, 6000, 5000)
    return (
        td.Flow(int(draw(random, 60, 4000)), draw(random, 0.005, 0.05), late),
        td.Flow(174, 0.020),
        td.Video(draw(random, 2e5, 3e6), variation=0.4, write_jitter=late),
        td.Speech(174, 0.020, write_jitter=late),
        td.Utterances(968, 0.020, speed=float(random.choice([1.0, 3.0, 8.0]))),
        td.Messages(draw(random, 5, 100), td.ParetoSizes(300), write_jitter=late),
        td.Messages(draw(random, 5, 100), td.LognormalSizes(2000, 0.8)),
        td.Messages(draw(random, 5, 100), td.EmpiricalSizes([100, 100, 700, 9000])),
        td.Trace(times, sizes, period=40.5, labels=["small" if size < 1448 else "large" for size in sizes]),
        td.Trace(times, sizes),
        td.Video(8e5, 25, key_ratio=4, frame_sizes="weibull"),
        td.Flow(int(draw(random, 8000, 60_000)), 0.1),
    )[number % 12]


def path(random: np.random.Generator, number: int) -> td.Path:
    """Return a path; its kind follows from the number."""
    rtt, loss = draw(random, 0.004, 0.3), draw(random, 5e-4, 0.05)
    bad = float(random.choice([0.3, 0.8, 1.0]))
    settings: dict[str, Any] = (
        {},
        {"jitter": draw(random, 0.001, 0.05)},
        {"loss_burst": float(random.choice([1.5, 3.0]))},
        {"ack_loss": draw(random, 0.001, 0.2)},
        {"bad_time": draw(random, 0.01, 0.5), "bad_loss": bad},
        {"reordering": draw(random, 0.001, 0.1)},
        {"loss_pattern": "correlated"},
        {"one_way_delay": 0.3 * rtt, "bottleneck": "bytes"},
        {"jitter": 0.01, "ack_loss": 0.05, "reordering": 0.01, "loss_burst": 2.0},
    )[number % 9]
    return td.Path(rtt, 0.0 if number % 40 == 39 else loss, **settings)


def stack(random: np.random.Generator, number: int) -> Any:
    """Return a stack of Linux, with each control in turn; every fourth is QUIC."""
    if number % 4 == 3:
        implementation, controls = (
            ("rfc9002", ("newreno", "cubic", "bbr")),
            ("aioquic", ("newreno", "cubic")),
            ("quic-go", ("newreno",)),
            ("quinn", ("newreno", "cubic")),
        )[number // 4 % 4]
        delivery = ("stream", "stream_per_message", "stream_per_group", "datagram")[number // 16 % 4]
        ack_delay = float(random.choice([0.025, 0.005]))
        return td.Stack.quic(implementation, str(random.choice(controls)), delivery, ack_delay)  # type: ignore[arg-type]
    return td.Stack.linux(
        ("cubic", "reno", "bbr")[number % 4],  # type: ignore[arg-type]
        delayed_ack=bool(random.random() < 0.3),
        window_validation=bool(random.random() < 0.8),
        hz=int(random.choice([100, 250, 1000])),
        rto_min=float(random.choice([0.2, 0.2, 0.03])),
        mss=int(random.choice([1448, 1448, 536])),
        **(
            {"kernel": ("6.1", "6.12")[number % 2]}
            if number % 6 < 2
            else {"rto_max": float(random.choice([120.0, 5.0]))}
        ),
    )


def options(random: np.random.Generator, number: int, of_linux: bool) -> dict[str, Any]:
    """Return options of `simulate`: of Linux, a trace, ticks, ties, and rules that are left out."""
    found: dict[str, Any] = {"packets": 3000, "seed": number, "quantile": float(random.choice([0.95, 0.99]))}
    rule = list(vars(td.Rules()) if hasattr(td.Rules(), "__dict__") else td.Rules.__slots__)[number % 10]
    if of_linux:
        found |= {"trace": True, "exact_ties": number % 6 == 5}
        if number % 10 == 4:
            found["tick_offset"] = 0.001
        if number % 8 == 6:
            found["rules"] = td.Rules(**{rule: False})
    if number % 25 == 24:  # ends by its precision
        found |= {"packets": None, "max_seconds": 0.5, "trace": False}
    return found


def simulated(source: Any, path: td.Path, stack: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return all figures of a simulation, to the last bit."""
    found = td.simulate(source, path, stack, **options)
    kinds = {kind: attributes(of_kind, KIND_FIGURES) for kind, of_kind in found.by_kind.items()}
    return recorded(found, exact=True) | attributes(found, FIGURES) | {"of_kinds": kinds}  # type: ignore[no-any-return]


def exchanged(number: int) -> dict[str, Any]:
    """Return the figures of exchanges."""
    random = np.random.default_rng([SEED, 2, number])
    over = stack(random, number % 3)
    line = td.Path(draw(random, 0.001, 0.2), draw(random, 1e-3, 0.05), ack_loss=draw(random, 1e-3, 0.05))
    sizes = int(draw(random, 1, 50_000)), int(draw(random, 1, 50_000))
    writes = min(1 + number % 3, *sizes)
    found = td.simulate_exchanges(
        *sizes,
        line,
        over,
        think_time=(0.0, 0.05)[number % 2],
        answer_time=0.01,
        writes=writes,
        exchanges=2000,
        seed=number,
    )
    figures = attributes(found, ("request", "response", "exchanges", "quantile_interval", "mean_interval"))
    return recorded(found, exact=True) | figures  # type: ignore[no-any-return]


def cases() -> Cases:
    """Return the simulations of single connections, and the exchanges."""
    found: Cases = {}
    for number in range(SIMULATIONS):
        random = np.random.default_rng([SEED, number])
        sent, line, over = source(random, number // 3), path(random, number // 2), stack(random, number)
        asked = options(random, number, number % 4 != 3)
        if not asked.get("rules", td.Rules()).rack:
            over = td.Stack.linux(kernel="6.12")  # the newest with another recovery
        words = repr(sent) if not isinstance(sent, td.Trace) else f"Trace(period={sent.period})"
        found[f"{number}: {words}, {line!r}, {over!r}"] = partial(simulated, sent, line, over, asked)
    return found


def exchange_cases() -> Cases:
    """Return the exchanges."""
    return {f"exchanges {number}": partial(exchanged, number) for number in range(EXCHANGES)}
