"""Runs of all models in a process of their own: `python kernel_runs.py figures` or `variants` prints JSON.

`variants` prints nothing if kernels were stored: those do not say for which types the kernels were compiled that
they call. `store` prints the same, and writes all kernels into the package, compiled for more processors than this one;
if this processor cannot run them, the kernels are in the cache of this machine instead.
"""

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import warnings

import numpy as np
from numba import types
from numba.core.dispatcher import Dispatcher

import tcpdelay.accuracy
import tcpdelay.chain
import tcpdelay.quality
import tcpdelay.sim
from tcpdelay import (
    DelayModel,
    Flow,
    Path,
    Speech,
    Stack,
    Video,
    predict_delay,
    simulate,
    simulate_network,
    simulate_relay,
)
from tcpdelay.accuracy.errors import linux_table
from tcpdelay.ask import Requested
from tcpdelay.chain.linux.chain import LinuxChain
from tcpdelay.chain.published import PublishedChain
from tcpdelay.chain.quic_chain import QuicChain
from tcpdelay.compiling import stored_kernels
from tcpdelay.quality.player import Player, play
from tcpdelay.scenario.scenario import Scenario, Target
from tcpdelay.sim import connections
from tcpdelay.sim.engine import LiveConnection
from tcpdelay.sim.network.bottleneck import MANAGED, Bottleneck, SharedPath
from tcpdelay.sim.network.link_trace import LinkTrace
from tcpdelay.sim.network.sources import Bulk, ConstantRate, Web
from tcpdelay.sim.network.stacks import Classic, Dctcp, Scp, Udp

VOICE, EXACT = Flow(174, 0.020), Flow(174, 0.020, write_jitter=0)
TRACES = (
    LinkTrace.of_opportunities([3, 7, 8, 40]),
    LinkTrace.of_rates([0, 0.1, 0.3], [2e5, 0, 1e6], [0.01, 0, 0]),
)
STACKS = (Stack.linux(), Stack.linux(congestion_control="reno"), Stack.newreno_2008())

NEAR_CAPACITY = {
    "published near the capacity": (
        Flow(1570, 0.0219, write_jitter=0),
        Path(rtt=0.032, loss=0.0103),
        Stack.newreno_2008(backlog_bound="grow"),
    ),
    "linux near the capacity": (
        Flow(427, 0.0268, write_jitter=0),
        Path(rtt=0.0208, loss=0.0486),
        Stack.linux(congestion_control="bbr"),
    ),
}
"""Small chains in which one cell stands for all backlogs beyond the bound."""


def chain_figures(flow, path, stack):
    """The distribution of a chain, in a few numbers that hardly depend on the order of sums."""
    model = DelayModel(flow, path, stack)
    found = model.delay_distribution()
    return {
        "mean": found.mean,
        "median": float(found.quantile(0.5)),
        "late": [float(found.late_fraction(limit)) for limit in (0.05, 0.1, 0.3)],
        "states": len(model.states),
        "entries": model.transition_matrix.nnz,
        "stationary": [float(value) for value in model.stationary_distribution[:50]],
        "parts": list(vars(model.delay_parts).values()),
    }


def expected_errors():
    """The expected error of scenarios within a table and beyond it; a single one is looked up in plain Python."""
    asked = np.array([[0.1, 0.02, 0.3, 5.0], [1e3, 1e-9, 20.0, 1e3]])
    return linux_table().expected_of_many(asked, cubic=True, carried=True).tolist()


def live_figures():
    """When the bytes of writes that become known one by one are readable, and the state after each write."""
    connection = LiveConnection(Path(rtt=0.04, loss=0.05), Stack.linux(), seed=1)
    return [connection.advance(20_000 * number, 3000) for number in range(200)]


def figures():
    """Small runs of every model."""
    # Plain Python would take a minute and a half for packets that no figure counts, and that no other code carries.
    connections.WARM_UP = 100
    network = simulate_network(
        [
            ConstantRate(flow=VOICE, path=SharedPath(0.01), stack=stack)
            for stack in (Stack.linux(), Classic(), Scp(), Udp())
        ],
        Bottleneck(rate=2e5, capacity=10),
        duration=2,
    )
    call = ConstantRate(flow=VOICE, path=SharedPath(0.01), stack=Stack.linux())
    varied = [
        simulate_network([call], Bottleneck(rate=trace.mean_rate, capacity=10, trace=trace), duration=2)
        for trace in TRACES
    ]
    bucketed = [
        simulate_network([call], Bottleneck(rate=5e4, burst=3000, **settings), duration=2)
        for settings in ({"discipline": "policer"}, {"capacity": 10, "peak_rate": 1e5})
    ]
    managed = [
        simulate_network(
            [ConstantRate(flow=VOICE, path=SharedPath(0.01), stack=stack) for stack in (Stack.linux(), Udp())],
            Bottleneck(rate=1e5, discipline=discipline),
            duration=2,
        )
        for discipline in MANAGED
    ]
    simulated = simulate(VOICE, Path(rtt=0.04, loss=0.05, loss_burst=1.5, ack_loss=0.01), packets=1000, seed=1)
    video = simulate(Video(500_000), Path(rtt=0.04, loss=0.02), Stack.linux(delayed_ack=True), packets=1000, seed=1)
    quic = [
        simulate(Video(500_000), Path(rtt=0.04, loss=0.02, ack_loss=0.01), stack, packets=1000, seed=1)
        for stack in (
            Stack.quic(congestion_control="cubic"),
            Stack.quic(congestion_control="bbr"),
            Stack.quic("aioquic", congestion_control="cubic"),
            Stack.quic("aioquic", delivery="stream_per_group"),
            Stack.quic("quic-go", delivery="stream_per_message"),
            Stack.quic(delivery="datagram"),
        )
    ]
    reordered = Path(rtt=0.04, loss=0.02, jitter=0.030, reordering=0.01)
    quic.append(simulate(VOICE, reordered, Stack.quic(), packets=1000, seed=1))
    return {
        "published": chain_figures(EXACT, Path(rtt=0.02, loss=0.02), Stack.newreno_2008()),
        "linux": chain_figures(Flow(700, 0.040, write_jitter=0), Path(rtt=0.04, loss=0.02), Stack.linux()),
        "late writes": chain_figures(VOICE, Path(rtt=0.04, loss=0.02), Stack.linux()),
        **{name: chain_figures(*scenario) for name, scenario in NEAR_CAPACITY.items()},
        "correlated": chain_figures(EXACT, Path(rtt=0.04, loss=0.02, loss_pattern="correlated"), Stack.linux()),
        "simulation": [[found.values.tolist(), found.weights.tolist(), found.counts] for found in (simulated, video)],
        "quic chain": [
            QuicChain()
            .answer(
                Scenario(Flow(size, 0.020), Path(rtt=0.1, loss=0.01), Stack.quic(name, delivery="stream_per_message")),
                Requested(),
            )
            .mean
            for size, name in (
                (700, "rfc9002"),
                (700, "aioquic"),
                (2000, "quic-go"),
            )
        ],
        "quic": [[found.values.tolist(), found.weights.tolist(), found.counts] for found in quic],
        "live": live_figures(),
        "expected errors": expected_errors(),
        "network": [
            [
                flow.delivered,
                flow.segments_sent,
                flow.segments_dropped,
                flow.delays and flow.delays.values.tolist(),
            ]
            for result in (network, *varied, *bucketed, *managed)
            for flow in result.flows
        ],
    }


def call_all_kernels():
    """Call the models as users do, with whole numbers and with fractions."""
    warnings.simplefilter("ignore")
    path, bursts = Path(rtt=0.1, loss=0.02), Path(rtt=0.1, loss=0.01, loss_burst=2)
    bbr = Stack.linux(congestion_control="bbr")
    scenarios = [(flow, path, stack) for flow in (VOICE, Flow(3000, 1)) for stack in STACKS]
    scenarios += [(VOICE, Path(rtt=1, loss=0), stack) for stack in STACKS]
    scenarios += [(VOICE, Path(rtt=0.1, loss=0.01, loss_pattern="correlated"), stack) for stack in STACKS]
    scenarios += [(VOICE, bursts, Stack.linux()), (VOICE, Path(rtt=0.1, loss=0.18), Stack.linux())]
    for scenario in scenarios:
        predict_delay(*scenario, method="chain")
        if scenario[1].loss < 0.18:
            chain_figures(*scenario)
    for scenario in NEAR_CAPACITY.values():
        chain_figures(*scenario)
    shares = np.array([0.5, 0.95])
    shares.flags.writeable = False
    requested = Requested(distribution=False, quantiles=tuple(shares), late_after=(1,), parts=True)
    for chain, stack in ((LinuxChain(), STACKS[0]), (PublishedChain(), STACKS[2])):
        scenario = Scenario(VOICE, path, stack)
        chain.answer(scenario, requested)
        chain.answer(scenario, Requested(precision="decision", target=Target(0.2)))
        chain.capacity(scenario)
    # A decision that asks how the backlog decays.
    heavy = Scenario(Flow(1200, 0.02), Path(rtt=0.15, loss=0.015), STACKS[0])
    LinuxChain().answer(heavy, Requested(precision="decision", target=Target(1, 0.99)))
    for source in (Speech(174, 0.020), Video(500_000)):
        predict_delay(source, Path(rtt=0.02, loss=0.005), STACKS[0], method="chain")
    simulate(VOICE, bursts, packets=2000, trace=True)
    simulate(VOICE, Path(rtt=0.1, loss=0.01, loss_pattern="correlated", bottleneck="bytes"), packets=2000)
    simulate(Video(500_000), bursts, packets=2000, trace=True)
    for stack in (Stack.quic(), Stack.quic(congestion_control="bbr"), bbr):
        simulate(VOICE, path, stack, packets=2000)
    LinuxChain().answer(Scenario(VOICE, path, bbr), Requested())
    expected_errors()
    QuicChain().answer(Scenario(VOICE, path, Stack.quic(delivery="stream_per_message")), Requested())
    play(np.arange(3.0), np.arange(3.0), Player(startup=0.2))
    simulate_relay(VOICE, (path, Udp()), (bursts, Stack.linux()), buffer=1000, packets=1000)
    live_figures()
    simulate_network(
        [
            ConstantRate(flow=VOICE, path=SharedPath(0.05), stack=Stack.linux(), connections=2),
            ConstantRate(flow=VOICE, path=SharedPath(0.05), stack=Classic()),
            ConstantRate(flow=VOICE, path=SharedPath(0.05), stack=Udp()),
            ConstantRate(flow=VOICE, path=SharedPath(0.05), stack=Stack.quic()),
            Bulk(path=SharedPath(0.05), stack=Scp()),
            Web(path=SharedPath(0.05), stack=Stack.linux()),
        ],
        Bottleneck(rate=3e6, capacity=50),
        duration=5,
    )
    for trace in TRACES:
        link = Bottleneck(rate=trace.mean_rate, capacity=10, trace=trace)
        simulate_network([Bulk(path=SharedPath(0.05), stack=Stack.linux())], link, duration=5)
    for discipline in MANAGED:
        sources = [
            ConstantRate(flow=VOICE, path=SharedPath(0.05), stack=stack)
            for stack in (Stack.linux(), Stack.quic(), Udp())
        ]
        sources += [
            ConstantRate(flow=VOICE, path=SharedPath(0.05), stack=stack, l4s=True) for stack in (Dctcp(True), Udp())
        ]
        # With so few places the longest queue is shortened.
        simulate_network(sources, Bottleneck(rate=1e5, capacity=3, discipline=discipline), duration=3)


def without_record_types(signature):
    """The types of a kernel's arguments, all records being alike."""
    return ", ".join("record" if isinstance(kind, types.Record) else str(kind) for kind in signature)


def kernels():
    """All kernels of the package."""
    for package in (tcpdelay.accuracy, tcpdelay.chain, tcpdelay.sim, tcpdelay.quality):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, Dispatcher) and value.py_func.__module__.startswith("tcpdelay."):
                    yield value


def variants():
    """Of each kernel, the types for which it was compiled, and the number of its variants for different records.

    None if a kernel was stored.
    """
    call_all_kernels()
    found = {}
    cached = 0
    for value in kernels():
        # As a function that Python calls, and as a part of other kernels.
        compiled = {*value.signatures, *value.part.signatures}
        signatures = sorted({without_record_types(signature) for signature in compiled})
        name = f"{value.py_func.__module__}.{value.py_func.__name__}"
        found[name] = [signatures, len(compiled)]
        cached += len(value.stats.cache_hits)
    return None if cached else found


def store():
    """The same, in a process that compiles for the processors of the package's kernels."""
    if not stored_kernels.can_store():
        return variants()
    if "NUMBA_CPU_NAME" in os.environ:
        found = variants()
        stored_kernels.store(kernels())
        return found
    with tempfile.TemporaryDirectory() as cache:
        own = {
            **os.environ,
            **stored_kernels.compiler_environment(),
            "NUMBA_CACHE_DIR": cache,
            "TCPDELAY_KERNELS": "compile",
        }
        done = subprocess.run([sys.executable, *sys.argv], env=own, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    result = {"figures": figures, "variants": variants, "store": store}[sys.argv[1]]()
    if result is not None:
        print(json.dumps(result))
