"""The chains: random scenarios in their validated ranges, and the public questions about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from recording import Cases, distribution, plain, recorded
from simulations import draw

import tcpdelay as td

SCENARIOS, BBR_SCENARIOS, OTHER_SCENARIOS = 500, 100, 80
SEED = 15
AT_ONCE = 5
"""Scenarios of a case."""
APPLICATIONS = ("voip", "opus", "voice-agent", "live-video", "remote-control", "game")
PATHS = ((0.100, 0.02), (0.030, 0.003))
Scenario = tuple[Any, td.Path, td.Stack]


def scenario(random: np.random.Generator) -> Scenario:
    """Draw a scenario of the chains of Linux and of 2008, uniform in the logarithms."""
    flow = td.Flow(round(draw(random, 60, 4000)), draw(random, 0.005, 0.1))
    burst = float(random.choice([1.0, 1.0, 1.0, 1.0, 1.5]))
    kind = int(random.integers(4))
    if kind < 3:
        path = td.Path(rtt=draw(random, 0.005, 0.4), loss=draw(random, 1e-4, 0.1), loss_burst=burst)
        hz, rto_min = int(random.choice([250, 1000])), float(random.choice([0.2, 0.03]))
        return flow, path, td.Stack.linux("cubic" if kind < 2 else "reno", hz=hz, rto_min=rto_min)
    pattern, queue = str(random.choice(["random", "correlated"])), str(random.choice(["packets", "bytes"]))
    path = td.Path(draw(random, 0.005, 0.4), draw(random, 1e-3, 0.1), pattern, queue)  # type: ignore[arg-type]
    variant = str(random.choice(["newreno", "sack", "reno"]))
    bound = str(random.choice(["published", "grow"]))
    flags = random.random(2) < 0.5
    stack = td.Stack.newreno_2008(variant, bool(flags[0]), bool(flags[1]), backlog_bound=bound)  # type: ignore[arg-type]
    return flow, path, stack


def bbr_scenario(random: np.random.Generator) -> Scenario:
    """Draw a scenario of the chain of BBR."""
    flow = td.Flow(round(draw(random, 60, 4000)), draw(random, 0.005, 0.1))
    path = td.Path(draw(random, 0.01, 0.4), draw(random, 1e-3, 0.05))
    return flow, path, td.Stack.linux("bbr", hz=int(random.choice([250, 1000])))


def other_scenario(random: np.random.Generator, number: int) -> Scenario:
    """Draw a scenario of the chains of video, speech and QUIC, and less usual ones of Linux."""
    rtt, loss = draw(random, 0.01, 0.2), draw(random, 1e-3, 0.03)
    path, voice, linux = td.Path(rtt, loss), td.Flow(174, 0.020), td.Stack.linux()
    per_message = td.Stack.quic("rfc9002", delivery="stream_per_message")
    scenarios: tuple[Scenario, ...] = (
        (td.Video(draw(random, 1e5, 1e6)), path, linux),
        (td.Speech(174, 0.020, talk=draw(random, 0.5, 3)), path, linux),
        (voice, path, per_message),
        (voice, td.Path(rtt, loss, jitter=draw(random, 0.001, 0.02)), linux),
        (td.Flow(1000, 0.005), td.Path(rtt, loss, "correlated"), linux),
        (voice, path, td.Stack.linux("reno", kernel="6.1", window_validation=False)),
        (td.Flow(100, 0.5), path, linux),
        (td.Flow(174, 0.020), td.Path(rtt, loss, one_way_delay=rtt / 5), td.Stack.linux(mss=536)),
    )
    return scenarios[number % len(scenarios)]


def solved(scenarios: list[Scenario]) -> list[dict[str, Any]]:
    """Return the figures of scenarios, or that they are refused."""
    return [_solved(*each) for each in scenarios]


def _solved(flow: Any, path: td.Path, stack: td.Stack) -> dict[str, Any]:
    try:
        if not isinstance(flow, td.Flow) or "Quic" in type(stack).__name__:
            found = td.predict_delay(flow, path, stack, method="chain")
            return distribution(found)
        model = td.DelayModel(flow, path, stack)
        delays = model.delay_distribution()
    except ValueError as error:
        return {"refused": plain(str(error))}
    if not delays.sustainable:
        return distribution(delays)
    return distribution(delays) | {
        "backlogged_time": model.backlogged_time_fraction,
        "parts": recorded(model.delay_parts),
        "states": int(model.stationary_distribution.size),
        "transitions": int(model.transition_matrix.nnz),
        "mass": float(np.square(model.stationary_distribution).sum()),
    }


def cases() -> Cases:
    """Return the scenarios of the chains, five in each case."""
    random, of_bbr, of_others = (np.random.default_rng(seed) for seed in (SEED, [SEED, BBR_SCENARIOS], [SEED, 1]))
    drawn: dict[str, list[Scenario]] = {
        "scenario": [scenario(random) for _ in range(SCENARIOS)],
        "BBR": [bbr_scenario(of_bbr) for _ in range(BBR_SCENARIOS)],
        "other": [other_scenario(of_others, number) for number in range(OTHER_SCENARIOS)],
    }
    found: Cases = {}
    for kind, scenarios in drawn.items():
        for first in range(0, len(scenarios), AT_ONCE):
            several = scenarios[first : first + AT_ONCE]
            found[f"{kind} {first}: {several[0]!r} ..."] = partial(solved, several)
    return found


def _guideline(name: str, rtt: float, loss: float) -> Any:
    """Return the report of an application, as data and in words."""
    found = td.guideline(name, td.Path(rtt, loss))
    return {"json": json.loads(found.to_json()), "markdown": plain(found.to_markdown())}


def _region() -> Any:
    region = td.working_region("voip", rtt=np.geomspace(0.01, 0.4, 12), loss=np.geomspace(0.001, 0.1, 12))
    return {str(name): np.asarray(values).ravel().tolist() for name, values in region.data_vars.items()}


def _boundary() -> Any:
    edge = td.working_boundary("voip", rtt=np.geomspace(0.01, 0.4, 12))
    return {"works": edge.works_up_to.tolist(), "fails": edge.fails_from.tolist()}


def _table() -> Any:
    random = np.random.default_rng([SEED, 2])
    table = {"rtt": random.uniform(0.01, 0.3, 300), "loss": random.uniform(0.0005, 0.06, 300)}
    answers = td.predict_many(table, flow="voip", cached=False)
    return {str(name): np.asarray(answers[name]).tolist() for name in answers}


def question_cases() -> Cases:
    """Return the public questions, each asked once or twice."""
    voip, path, other = "voip", td.Path(0.1, 0.02), td.Path(0.04, 0.005)
    flow, replies = td.Flow(174, 0.020), td.Utterances(960, 0.020, speed=3)
    grid = {
        "flow": {"packet_size": 174, "interval": "20ms"},
        "grid": {"loss": ["1%", "2%"], "rtt": ["50ms", "0.1s"], "congestion_control": ["cubic", "reno"]},
        "evaluate": {"method": "simulation", "packets": 2000, "seed": 1},
    }
    asked: dict[str, Callable[[], Any]] = {
        "region": _region,
        "boundary": _boundary,
        "table": _table,
        "sweep": partial(td.sweep, grid),
        "guidelines compared": lambda: plain(
            td.compare_guidelines(td.guideline(voip, path), td.guideline(voip, other)).to_markdown()
        ),
        "video stalls": partial(td.video_stalls, td.Video(8e5), td.Path(0.06, 0.01), hours=3.0),
        "startup": partial(td.startup_for_stalls, td.Video(8e5), td.Path(0.06, 0.01), hours=3.0),
        "gaps": partial(td.playout_without_gaps, replies, path, bursts=2000),
        "audio": partial(td.audio_not_stoppable, replies, path, bursts=2000),
        "interval": partial(td.best_interval, 64_000.0, path),
        "compare": partial(td.compare, flow, path, duration=60.0),
        "frontier": partial(td.loss_rtt_frontier, voip, path, rtts=[0.05, 0.1]),
        "playout for late fraction": partial(td.playout_for_late_fraction, voip, path, None, 0.01),
    }
    for function in (
        *(td.largest_bitrate, td.largest_loss, td.largest_packet_rate, td.largest_rtt, td.sensitivities),
        *(td.best_connections, td.best_split, td.playout_for_call),
    ):
        for place in (path, other):
            asked[f"{function.__name__} {place.rtt:g}"] = partial(function, voip, place)
    found: Cases = {name: partial(_recorded, question) for name, question in asked.items()}
    for name in APPLICATIONS:
        for rtt, loss in PATHS:
            found[f"report {name} {rtt} {loss}"] = partial(_guideline, name, rtt, loss)
    return found


def _recorded(question: Callable[[], Any]) -> Any:
    return recorded(question())
