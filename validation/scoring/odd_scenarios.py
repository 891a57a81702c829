"""Random scenarios far beyond the validated range, and what every answer to them must satisfy.

Sizes, intervals, round-trip times and losses are uniform in the logarithm. A scenario is drawn from its number alone,
so that a run can be continued, and a fault repeated.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tcpdelay.accuracy.errors import WRONG_CALL
from tcpdelay.accuracy.validity import ValidityWarning
from tcpdelay.ask import Answer, Requested
from tcpdelay.budget import MOST_SECONDS
from tcpdelay.models.predict import predict
from tcpdelay.scenario.media import Speech, Utterances, Video
from tcpdelay.scenario.messages import LognormalSizes, Messages, ParetoSizes, Trace
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import Stack

Method = Literal["chain", "auto", "simulation"]
Sources = Literal["flow", "other"]
"""Whether the sources are flows of a constant rate, or speech, replies, video, random messages and recordings."""

SIZE, INTERVAL, RTT, LOSS = (1, 1_000_000), (1e-4, 60.0), (1e-5, 5.0), (1e-9, 0.9)
"""Ranges of packet sizes [bytes], intervals [s], round-trip times [s] and losses."""
SHARE_OF_PUBLISHED, SHARE_OF_REFINEMENTS = 0.15, 0.1
"""Share of scenarios with the published chain, and of those with one of the unusual losses or delays of a path."""
LOSS_GROWTH = (1.1, 4.0)
"""Range of the factors by which the loss of a second question is larger."""
SHARES = np.array([0.0, 0.01, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0])
"""Shares of the quantiles that are compared."""
MESSAGES_OF_A_RECORDING = 500
SEED = 19
ROUNDING = 1e-6
"""Relative difference that rounding and the microseconds of the simulator explain."""
CLOCK = 1e-6
"""Resolution of the simulator's times [s]."""
LARGE_ERROR = 0.5
"""Expected error of answers whose error is not known."""


@dataclass(frozen=True)
class OddScenario:
    """A scenario, the method that is asked, and a larger loss for a second question."""

    scenario: Scenario
    method: Method
    larger_loss: float

    def in_words(self) -> str:
        """Return the scenario as Python arguments, in one line."""
        return f"{self.scenario.source}, {self.scenario.path}, {self.scenario.stack}, method={self.method!r}"


def odd_scenario(number: int, method: Method, sources: Sources = "flow") -> OddScenario:
    """Return the scenario of a number, 0 or more."""
    rng = np.random.default_rng([SEED, number])

    def draw(low: float, high: float) -> float:
        return float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.3g}")

    size, interval, rtt, loss = round(draw(*SIZE)), draw(*INTERVAL), draw(*RTT), draw(*LOSS)
    path = Path(rtt=rtt, loss=loss)
    stack: Stack
    if rng.random() < SHARE_OF_PUBLISHED and method != "simulation":
        flags = rng.random(2) < 0.5
        variant, bound = str(rng.choice(["newreno", "sack", "reno"])), str(rng.choice(["published", "grow"]))
        stack = Stack.newreno_2008(variant, bool(flags[0]), bool(flags[1]), backlog_bound=bound)  # type: ignore[arg-type]
    else:
        control = str(rng.choice(["cubic", "reno", "bbr"]))
        delayed, validated = (rng.random(2) < (0.3, 0.7)).tolist()
        hz, rto_min = int(rng.choice([100, 250, 300, 1000])), float(rng.choice([0.2, 0.2, 0.03, 0.005]))
        stack = Stack.linux(control, delayed, validated, hz, rto_min, int(rng.choice([1448, 1448, 536, 8948])))  # type: ignore[arg-type]
        if rng.random() < SHARE_OF_REFINEMENTS:
            path = replace(path, **_refinement(rng, draw, rtt, loss))
    larger = min(loss * draw(*LOSS_GROWTH), LOSS[1])
    source: Source = Flow(size, interval)
    if sources == "other":
        source = _other_source(rng, draw, size, interval)
    return OddScenario(Scenario(source, path, stack), method, larger)


def _other_source(
    rng: np.random.Generator, draw: Callable[[float, float], float], size: int, interval: float
) -> Source:
    """Return speech, replies, video, random messages or a recording of about this size [bytes] and interval [s]."""
    kind, spread = int(rng.integers(6)), draw(0.01, 3.0)
    if kind == 0:
        return Speech(size, interval, talk=draw(0.001, 1000.0), silence=draw(0.001, 1000.0))
    if kind == 1:
        pauses = {"length": draw(0.001, 1000.0), "pause": draw(0.001, 1000.0)}
        return Utterances(size, interval, speed=draw(1.0, 1000.0), **pauses)
    if kind == 2:
        # The smaller frames of a video need a byte each.
        ratio, frame_rate = draw(1.0, 1000.0), min(max(1 / interval, 0.1), 1000.0)
        bitrate = 8 * frame_rate * (size + ratio)
        return Video(bitrate, frame_rate, key_interval=draw(0.001, 3600.0), key_ratio=ratio, variation=spread)
    if kind == 3:
        return Messages(1 / interval, LognormalSizes(size, spread))
    if kind == 4:
        return Messages(1 / interval, ParetoSizes(size, draw(1.1, 10.0)))
    times = np.cumsum(rng.exponential(interval, MESSAGES_OF_A_RECORDING))
    recorded = np.clip(size * rng.lognormal(0.0, spread, times.size), *SIZE).astype(int)
    return Trace(times, recorded, period=float(times[-1]) + interval)


def _refinement(
    rng: np.random.Generator, draw: Callable[[float, float], float], rtt: float, loss: float
) -> dict[str, Any]:
    """Return one unusual setting of a path."""
    kind = int(rng.integers(6))
    refinements: list[dict[str, Any]] = [
        {"jitter": draw(1e-5, 1.0)},
        {"ack_loss": draw(1e-4, 0.5)},
        {"loss_burst": draw(1.01, 2.0)} if loss < 0.3 else {},
        {"loss_pattern": "correlated"},
        {"bottleneck": "bytes"},
        {"one_way_delay": rtt * float(rng.uniform(0.05, 0.95))},
    ]
    return refinements[kind]


@dataclass(frozen=True)
class Outcome:
    """What came of a scenario."""

    status: str  # Status of the first answer, or "refused"
    fault: str = ""  # What is wrong, in one line
    method: str = ""  # The model that answered
    p95: float = np.nan  # [s]; NaN without an answer
    seconds: float = 0.0  # Processor time of the longer of its calls [s]


def outcome(
    odd: OddScenario, max_seconds: float = MOST_SECONDS, start_clock: Callable[[], object] = lambda: None
) -> Outcome:
    """Ask about a scenario, and about the same with a larger loss; return what came of it.

    Each call may take `max_seconds`. `start_clock` is called before each of the two calls.
    """
    seconds = [0.0]

    def ask(scenario: Scenario) -> Answer:
        start_clock()
        begun = time.process_time()
        try:
            answer = predict(scenario, Requested(max_seconds=max_seconds), odd.method)
            # The error of an answer may take a chain of its own.
            _ = answer.expected_error
            return answer
        finally:
            seconds.append(time.process_time() - begun)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ValidityWarning)
        try:
            first = ask(odd.scenario)
            faults = list(_faults(first))
            if not faults and first.answered and odd.larger_loss > odd.scenario.path.loss:
                second = ask(replace(odd.scenario, path=replace(odd.scenario.path, loss=odd.larger_loss)))
                faults = [f"with loss {odd.larger_loss:.4g}: {fault}" for fault in _faults(second)]
                faults += _falls(first, second, odd.larger_loss)
        except Exception as error:  # Every kind of error is a finding here.
            return Outcome("error", _fault_of(error), seconds=max(seconds))
    p95 = first.distribution.quantile(0.95) if first.distribution is not None else np.nan
    return Outcome(first.status, faults[0] if faults else "", first.method, p95, max(seconds))


def _fault_of(error: Exception) -> str:
    """Return an error in one line, or an empty text where it is a refusal in one line."""
    told = str(error)
    if isinstance(error, ValueError) and told and "\n" not in told:
        return ""
    return f"{type(error).__name__}: {told}".replace("\n", " / ")


def _faults(answer: Answer) -> Iterator[str]:
    """Yield what is wrong with an answer alone."""
    if answer.refusal is not None:
        fault = _fault_of(answer.refusal)
        if fault:
            yield fault
        return
    found = answer.require()
    repr(found)
    quantiles = found.quantile(SHARES)
    if np.isnan(quantiles).any() or (quantiles[1:] < quantiles[:-1]).any():
        yield f"quantiles {quantiles.tolist()} are not ascending"
    late = found.late_fraction(np.append(quantiles[np.isfinite(quantiles)], [0.0, 1e-6, 1.0, 30.0]))
    if not ((late >= 0) & (late <= 1)).all():
        yield f"late fractions {late.tolist()} are not between 0 and 1"
    least = found.one_way_delay * (1 - ROUNDING) - CLOCK
    if not found.mean >= least or not quantiles[0] >= least:
        yield f"mean {found.mean} or smallest delay {quantiles[0]} is below the one-way delay {found.one_way_delay}"
    error = answer.expected_error
    if error is not None and (np.isinf(error.mean) or error.mean < 0):
        yield f"expected error {error.mean}"


def _falls(first: Answer, second: Answer, larger: float) -> Iterator[str]:
    """Yield where the delay falls, or TCP begins to carry the flow, as the loss rises."""
    if not (first.answered and second.answered):
        return
    if second.sustainable and not first.sustainable:
        # Near the capacity a chain says that it may be wrong about whether TCP carries the flow.
        if max(_error(first), _error(second)) < WRONG_CALL:
            yield f"not carried, but carried with loss {larger:.4g}"
        return
    if not second.sustainable or not first.sustainable:
        return
    low, high = (answer.require().quantile(0.95) for answer in (first, second))
    allowed = sum(_error(answer) for answer in (first, second))
    if high < low * (1 - allowed - ROUNDING) - CLOCK:
        yield f"p95 falls from {low:.4g} s to {high:.4g} s with loss {larger:.4g} (expected error {allowed:.2g})"


def _error(answer: Answer) -> float:
    """Return the error that nine of ten answers of this kind do not exceed, as a fraction."""
    error = answer.expected_error
    return LARGE_ERROR if error is None or np.isnan(error.p90) else error.p90
