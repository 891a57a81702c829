"""Links with a trace against an emulator in the guest, and how long they take: `python validation/variable_link.py`.

Bursts of datagrams go to an emulator of `examples/link-traces/lte.up` in the guest: the algorithm of mahimahi's mm-link
on the guest's clock (`program_ends/shaper_ends.py`, which shares no code with the package). The simulated link gets the
same arrivals. A call over TCP and a long transfer share such a link in the guest and in the simulator. Then both are
simulated over a trace of ten minutes. It needs `tcpdelay testbed build-kernel --hz 250`, and writes
`results/variable-link.md`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from link_traces import SEED, lte
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath, enqueue, prepare_link
from tcpdelay.sim.network.link_trace import LinkTrace, read_link_trace
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate
from tcpdelay.sim.network.waiting import LINK
from tcpdelay.testbed.backends import VirtualTimeBackend
from tcpdelay.testbed.programs import run_programs, run_topology
from tcpdelay.testbed.topology import EmulatedPath, two_hosts

HERE = Path(__file__).parent
ENDS = HERE / "program_ends" / "shaper_ends.py"
TRACE = HERE.parent / "examples" / "link-traces" / "lte.up"
RESULTS = HERE / "results" / "variable-link.md"
HZ, SECONDS = 250, 120.0
LOADS = (50.0, 110.0, 150.0)
"""Mean numbers of datagrams per second, of half a full size in the mean; the trace carries 153 full packets."""
MINUTES = 10
CALL_ENDS = HERE / "program_ends" / "call_ends.py"
RTT, QUEUE, CALL_SECONDS, WARM_UP = 0.050, 100, 300.0, 10.0
"""Round-trip time [s], queue [packets], duration of a call, and the time at its beginning that does not count [s]."""
SHIFTS = 6
"""Phases of the trace at which a call begins, evenly spaced over its period."""
SEEDS = 4
"""Simulations of each phase."""
SHARES = (0.5, 0.95, 0.99)
BESIDE = ("none", "cubic", "bbr")
"""Congestion controls of the transfer beside the call."""


def shifted(trace: LinkTrace, phase: float) -> LinkTrace:
    """Return a trace of opportunities that begins at a phase of its period, 0 to below 1."""
    times = np.sort((trace.times - round(phase * trace.period)) % trace.period)
    return replace(trace, times=times)


def captured_call(trace: LinkTrace, beside: str) -> tuple[NDArray[np.float64], float]:
    """Return the quantiles of the delays of a call in the guest [s], and the rate of the transfer beside it [bit/s].

    As in the simulator, ACKs come back on a way whose rate does not vary.
    """
    command = [sys.executable, str(CALL_ENDS)]
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place, "run")
        varies, plain = EmulatedPath(rtt=RTT, trace=trace, queue_packets=QUEUE), EmulatedPath(rtt=RTT)
        ends = two_hosts([*command, "send", str(CALL_SECONDS), beside], [*command, "receive"], plain)
        link = replace(ends.links[0], forward=varies.forward)
        topology = replace(ends, links=[link])
        run = run_topology(topology, directory, VirtualTimeBackend(HZ), duration=2 * CALL_SECONDS, linger=20.0)
        if run.status["server"] != 0:
            raise RuntimeError((directory / "server.stderr").read_text(encoding="utf-8"))
        delays = np.fromfile(directory / "scratch" / "delays", np.int64) / 1e9
        transferred = int((directory / "scratch" / "transferred").read_text(encoding="ascii"))
    return np.quantile(delays[round(WARM_UP / 0.020) :], SHARES), 8 * transferred / CALL_SECONDS


def simulated_call(trace: LinkTrace, beside: str, seed: int) -> tuple[NDArray[np.float64], float]:
    """Return the quantiles of the delays of a simulated call [s], and the rate of the transfer beside it [bit/s]."""
    path, call = SharedPath(access_delay=RTT / 2), Stack.linux(delayed_ack=True)
    sources: list[ConstantRate | Bulk] = [ConstantRate(flow=Flow(174, 0.020, write_jitter=0.0), path=path, stack=call)]
    if beside != "none":
        sources.append(Bulk(path=path, stack=Stack.linux(delayed_ack=True, congestion_control=beside)))
    link = Bottleneck(rate=trace.mean_rate, capacity=QUEUE, trace=trace)
    found = simulate_network(sources, link, duration=CALL_SECONDS, warm_up=WARM_UP, seed=seed).flows
    quantiles = np.array([found[0].delays.quantile(share) for share in SHARES])
    return quantiles, 0.0 if beside == "none" else found[1].throughput


def call_rows(trace: LinkTrace) -> list[str]:
    """Return the rows of the table of calls."""
    rows = []
    phases = [shifted(trace, number / SHIFTS) for number in range(SHIFTS)]
    for beside in BESIDE:
        for name, found in (
            ("guest", [captured_call(each, beside) for each in phases]),
            ("simulated", [simulated_call(each, beside, seed) for each in phases for seed in range(SEEDS)]),
        ):
            seconds = np.array([quantiles for quantiles, _ in found])
            cells = [f"{np.median(one):.2f} s ({one.min():.2f} to {one.max():.2f})" for one in seconds.T]
            rate = np.mean([each for _, each in found]) / 1e6
            rows.append(f"| {beside} | {name} | {len(found)} | {' | '.join(cells)} | {rate:.2f} Mbit/s |")
            print(rows[-1], flush=True)
    return rows


def emulated(load: float) -> NDArray[np.int64]:
    """Return the arrivals and departures [ns] and the sizes [bytes] at the emulator in the guest."""
    command = [sys.executable, str(ENDS)]
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place, "run")
        client, server = [*command, "send", str(SECONDS), str(load)], [*command, "emulate", str(TRACE)]
        path = EmulatedPath(rtt=0.010)
        run = run_programs(client, server, path, directory, VirtualTimeBackend(HZ), duration=4 * SECONDS, linger=120.0)
        if run.status["server"] != 0:
            raise RuntimeError((directory / "server.stderr").read_text(encoding="utf-8"))
        return np.fromfile(directory / "scratch" / "passed", np.int64).reshape(-1, 3)


def simulated(trace: LinkTrace, passed: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the departures [ns] of the simulated link for the same arrivals."""
    links = np.zeros(1, LINK).view(np.recarray)
    bottleneck = Bottleneck(rate=trace.mean_rate, capacity=65_000, trace=trace)
    prepare_link(links[0], bottleneck, np.random.default_rng(0))
    return np.array([1e3 * enqueue(links[0], arrival // 1000, size, False) for arrival, _, size in passed.tolist()])


def main() -> None:
    """Compare, measure, print the results, and write them."""
    trace = read_link_trace(TRACE)
    lines = [
        "# Links with a trace",
        "",
        f"Bursts of datagrams for {SECONDS:g} s through `examples/link-traces/lte.up`: an emulator in the guest, and "
        "the simulated link with the same arrivals.",
        "",
        "| datagrams | p50 in the guest | p95 | p99 | p50 simulated | p95 | p99 | within 0.1 ms | largest difference |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for load in LOADS:
        passed = emulated(load)
        departures = simulated(trace, passed)
        delays = (passed[:, 1] - passed[:, 0]) / 1e6, (departures - passed[:, 0]) / 1e6
        cells = [f"{np.quantile(values, share):.1f} ms" for values in delays for share in (0.5, 0.95, 0.99)]
        apart = np.abs(departures - passed[:, 1]) / 1e6
        same = 100 * float((apart < 0.1).mean())
        lines.append(f"| {len(passed)} | {' | '.join(cells)} | {same:.2f} % | {apart.max():.1f} ms |")
        print(lines[-1])
    lines += [
        "",
        "A datagram that arrives in the microsecond of an opportunity may use it in one and miss it in the other; the "
        "difference is then the time to the next opportunity.",
        "",
        f"A call over TCP (174 B every 20 ms, CUBIC, {CALL_SECONDS:g} s, RTT {1e3 * RTT:g} ms) through the same trace, "
        f"with a queue of {QUEUE} packets, beside a long transfer from the same host. ACKs come back on a way whose "
        f"rate does not vary. Calls begin at {SHIFTS} phases of the trace, and are simulated {SEEDS} times at each: "
        "the median of the calls, the least and the largest.",
        "",
        "| transfer | | calls | p50 | p95 | p99 | rate of the transfer |",
        "|---|---|---:|---:|---:|---:|---:|",
        *call_rows(trace),
    ]
    long_trace = LinkTrace.of_opportunities(lte(np.random.default_rng(SEED), 60.0 * MINUTES))
    path, stack = SharedPath(access_delay=0.025), Stack.linux(delayed_ack=True)
    sources = [
        ConstantRate(flow=Flow(174, 0.020, write_jitter=0.0), path=path, stack=stack),
        Bulk(path=path, stack=stack),
    ]
    link = Bottleneck(rate=long_trace.mean_rate, capacity=200, trace=long_trace)
    # The transfer begins after the call, and its kernels are compiled then.
    simulate_network(sources, link, duration=10.0)
    begin = time.perf_counter()
    found = simulate_network(sources, link, duration=60.0 * MINUTES)
    lines += [
        "",
        f"A call and a long transfer over a trace of {MINUTES} minutes and {len(long_trace.times)} opportunities take "
        f"{time.perf_counter() - begin:.2f} s to simulate ({found.queue.offered} packets).",
    ]
    print(lines[-1])
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
