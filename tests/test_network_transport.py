"""The interface of transports: a transport that is defined in this file runs in the engine as it is."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numba import njit

import tcpdelay as td
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.network import simulation, sources
from tcpdelay.sim.network.bottleneck import DROPPED, Bottleneck, SharedPath
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate, Transfers
from tcpdelay.sim.network.transport import (
    BULK,
    IP_HEADER,
    UDP_HEADER,
    Transport,
    cross,
    is_write_due,
    note_lost,
    note_read,
    note_write,
)
from tcpdelay.sim.records import RING
from tcpdelay.sim.tcp.constants import NEVER

FAST = Bottleneck(1e9, 1000)
PATH = SharedPath(0.05)


@dataclass(frozen=True, slots=True)
class FixedWindow(Stack):
    """Datagrams that are acknowledged one by one and never sent again; at most `window` of them are in transit."""

    window: int = 10
    mss: int = 1000


STATE = np.dtype([(name, np.int64) for name in ("now", "window", "sent", "first_ack", "next_ack")])


@njit
def next_time(flow, s, wire):
    arrival = wire.acknowledgements[s.first_ack % RING].arrival if s.first_ack < s.next_ack else NEVER
    return min(arrival, flow.next_write)


@njit
def step(flow, s, wire, link, samples):
    s.now = next_time(flow, s, wire)
    if s.now < flow.next_write:
        s.first_ack += 1
    elif is_write_due(flow, link):
        note_write(flow, s.now)
    while s.next_ack - s.first_ack < s.window and (flow.application == BULK or s.sent < flow.packets_written):
        if flow.application == BULK:
            note_write(flow, s.now)
        s.sent += 1
        arrival = cross(flow, link, s.now, flow.message)
        if arrival == DROPPED:
            note_lost(flow, 0)
        else:
            note_read(flow, samples, s.now, arrival, arrival)
            wire.acknowledgements[s.next_ack % RING].arrival = arrival + flow.return_delay
            s.next_ack += 1
    return next_time(flow, s, wire)


def prepare(stack, path, flow, connection, phase):
    connection.window = stack.window


@pytest.fixture(autouse=True, scope="module")
def fixed_window():
    transport = Transport(
        state=STATE,
        header=IP_HEADER + UDP_HEADER,
        features=frozenset({"constant rate", "bulk"}),
        prepare=prepare,
        next_time=next_time,
        step=step,
    )
    sources.register(FixedWindow, transport)
    yield transport
    del sources.TRANSPORTS[FixedWindow]


@pytest.mark.parametrize("window", [1, 10, 40])
def test_a_transport_of_ones_own_sends_a_window_per_round_trip(window):
    result = simulate_network([Bulk(path=PATH, stack=FixedWindow(window))], FAST, duration=100, warm_up=10)
    (flow,) = result.flows
    assert flow.name == "Bulk over FixedWindow"
    assert flow.throughput == pytest.approx(8000 * window / 0.1, rel=0.02)
    assert flow.delays.mean == pytest.approx(0.05, abs=0.001)


def test_it_shares_the_link_with_transports_that_it_does_not_know():
    voice = ConstantRate(flow=td.Flow(160, 0.020), path=SharedPath(0.05, loss=0.1), stack=FixedWindow(20))
    bulk = Bulk(path=PATH, stack=td.Stack.linux())
    result = simulate_network([voice, bulk], Bottleneck(2e6, 30), duration=200, warm_up=10)
    flow = result.flows[0]
    assert flow.offered == flow.delivered + flow.lost + flow.unfinished == 9500
    # A tenth is lost at random, and some packets find the queue full.
    assert 0.1 < flow.lost / flow.offered < 0.2
    assert result.queue.utilization > 0.95


def test_a_further_transport_does_not_compile_the_engine_again():
    simulate_network([Bulk(path=PATH, stack=td.Stack.linux())], FAST, duration=1)
    compiled = len(simulation.advance.signatures)
    simulate_network([Bulk(path=PATH, stack=FixedWindow())], FAST, duration=1)
    assert compiled == len(simulation.advance.signatures) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Transfers(path=PATH, stack=FixedWindow()), "stack of Transfers must be Linux or Dctcp or Classic"),
        (lambda: Bulk(path=PATH, stack=FixedWindow(), send_buffer=10_000), "send_buffer must be None with"),
        (lambda: Bulk(path=PATH, stack=FixedWindow(), ecn=True), "ecn must be False with FixedWindow"),
        (
            lambda: ConstantRate(flow=td.Flow(160, 0.02), path=PATH, stack=FixedWindow(), pieces=2),
            "stack must be Linux",
        ),
        (lambda: Bulk(path=PATH, stack=Stack()), "stack of Bulk must be Linux or Dctcp or Classic or Scp or Fixed"),
    ],
)
def test_what_it_does_not_carry_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_kernel_must_return_what_the_engine_expects(fixed_window):
    wrong = Transport(state=STATE, header=0, features=fixed_window.features, prepare=prepare, next_time=half, step=step)
    with pytest.raises(TypeError, match="kernel next_time must return int64, returns float64"):
        dict(wrong.addresses)


@njit
def half(flow, s, wire):
    return 0.5


def test_an_error_in_a_kernel_is_raised():
    class Dividing(FixedWindow):
        pass

    sources.register(
        Dividing,
        Transport(
            state=STATE,
            header=0,
            features=frozenset({"bulk"}),
            prepare=lambda stack, path, flow, connection, phase: None,
            next_time=next_time,
            step=divide,
        ),
    )
    with pytest.raises(ZeroDivisionError):
        simulate_network([Bulk(path=PATH, stack=Dividing())], FAST, duration=1)
    del sources.TRANSPORTS[Dividing]


@njit
def divide(flow, s, wire, link, samples):
    return 1 // s.window


def test_only_the_list_of_transports_names_the_literature():
    package = Path(simulation.__file__).parents[2]
    naming = set()
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "sim/literature"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any("literature" in module for module in modules):
                naming.add(path.relative_to(package).as_posix())
    assert naming == {"sim/network/sources.py"}


CACHED = """
import tcpdelay as td
from tcpdelay.sim.network import linux
from tcpdelay.sim.network import simulation
path = td.SharedPath(0.05)
sources = [td.Bulk(path=path, stack=td.Stack.linux()), td.Bulk(path=path, stack=td.Classic())]
td.simulate_network(sources, td.Bottleneck(1e9, 1000), duration=1)
for kernel in (simulation.advance, linux.step, linux.next_time):
    print(sum(kernel.stats.cache_misses.values()))
"""


def test_another_process_compiles_nothing():
    runs = [
        subprocess.run([sys.executable, "-c", CACHED], capture_output=True, text=True, check=True) for _ in range(2)
    ]
    assert runs[1].stdout.split() == ["0", "0", "0"]
