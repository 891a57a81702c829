"""The door to the models: every question, report and command asks here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

from tcpdelay.accuracy.validity import beyond_validation, warn_outside
from tcpdelay.budget import MOST_SECONDS
from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.media import Speech, Video
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, checked_arguments, scenario_from_options
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import Linux, Quic, Stack, StackName, transport_name
from tcpdelay.units import format_fraction

if TYPE_CHECKING:
    from tcpdelay.ask import Answer, Model, Requested, Support, UnsupportedError
    from tcpdelay.delays import DelayDistribution
    from tcpdelay.sim.simulation import Simulation

AnsweredBy = Literal["chain", "simulation", "auto"]
_METHODS = get_args(AnsweredBy)

COMPARED_PACKETS = 200_000
"""Packets of each of the simulations whose results are compared; one takes some tenths of a second."""
LARGEST_CHAIN_ERROR = 0.10
"""Expected error of the chain's 95th percentile from which on "auto" simulates: its mean, a fraction."""
NOT_CHECKED, WRONG_ABOUT_CAPACITY, IMPRECISE = 1, 2, 3
DOUBTS = (
    "",
    "the chain is not checked here",
    "the chain may be wrong about whether {} carries the flow",
    f"the chain's expected error is {format_fraction(LARGEST_CHAIN_ERROR)} or more",
)
"""Why "auto" simulates although the chain has an answer, by number. The name of the transport replaces the braces."""


CHAINS: tuple[tuple[type[Any], type[Any], str], ...] = (
    (Linux, Speech, "speech.SpeechModel"),
    (Linux, Video, "video.VideoModel"),
    (Linux, Source, "linux.chain.LinuxChain"),
    (Quic, Source, "quic_chain.QuicChain"),
    (Stack, Source, "published.PublishedChain"),
)
"""The chains: stack and source of each, and its module and class in `tcpdelay.chain`. The first that fits is asked."""


def chain_model(scenario: Scenario) -> Model:
    """Return the chain of a scenario, which may refuse it."""
    stack, source = scenario.stack, scenario.source
    return _chain(next(name for of, kind, name in CHAINS if isinstance(stack, of) and isinstance(source, kind)))


@cache
def _chain(name: str) -> Model:
    """Return a chain by its module and class."""
    # Imported when first needed: the compiler that the chains use takes a second.
    module, _, own = name.rpartition(".")
    model: Model = getattr(import_module(f"tcpdelay.chain.{module}"), own)()
    return model


@cache
def simulator(
    packets: int | None = None, on_progress: Callable[[int, int], None] | None = None, because: str = ""
) -> Model:
    """Return the simulator, of as many packets as the precision requires by default; `because` says why it answers."""
    from tcpdelay.sim.simulation import Simulator

    return Simulator(packets, on_progress, because)


def model_for(scenario: Scenario, method: AnsweredBy | Model = "chain") -> Model:
    """Return the model that `method` names; "auto" names the chain, which "auto" asks first."""
    if not isinstance(method, str):
        return method
    if method not in _METHODS:
        raise InvalidValueError("method", method, f"be one of {', '.join(map(repr, _METHODS))}")
    if method == "simulation":
        return simulator()
    return chain_model(scenario)


def packets_to_count(scenario: Scenario, packets: int) -> int:
    """Return the number of packets of a simulation that takes about as long as one of `packets` small packets.

    Messages of several segments are fewer. A trace that ends has no more messages than its own.
    """
    if isinstance(scenario.source, Flow) or not isinstance(scenario.stack, Linux | Quic):
        return packets
    from tcpdelay.sim.simulation import messages_like

    return messages_like(packets, scenario.source, scenario.stack)


def model_to_compare(
    scenario: Scenario,
    method: AnsweredBy,
    on_progress: Callable[[int, int], None] | None = None,
    solved: bool = True,
) -> AnsweredBy | Model:
    """Return the model whose answers to a scenario and to its neighbours are compared, as in a report.

    Simulations to compare have the same number of packets and the same random numbers, so that the differences of their
    results come from the scenarios.
    """
    can_simulate = not simulator().supports(scenario).refused
    because = why_simulated(scenario, solved) if method == "auto" and can_simulate else ""
    if not isinstance(scenario.source, Flow):
        # The chains of speech and video have no capacity and are checked at single points, not along a search.
        if method == "chain":
            raise InvalidValueError("source", scenario.source, "be a Flow, which has a constant rate, in this question")
        because = because or "the chain does not model this scenario (source)"
    chosen = "simulation" if because else method
    for refusal in supports(scenario, chosen).refused:
        raise refusal
    return simulator(COMPARED_PACKETS, on_progress, because) if chosen == "simulation" else "chain"


def why_simulated(scenario: Scenario, solved: bool = True) -> str:
    """Return in words why the chain has no answer to a scenario; an empty text if it has one.

    With `solved` False, a chain is taken to have an answer if it refuses no field.
    """
    refused = supports(scenario).refused
    refusal: ValueError | None = refused[0] if refused else None
    if refusal is None and solved:
        refusal = predict(scenario, method="chain").refusal
    return _no_chain(scenario, refusal) if refusal else ""


def _no_chain(scenario: Scenario, refusal: ValueError | None) -> str:
    """Return in words why the chain refuses a scenario or cannot hold it."""
    refused = "; ".join(map(_refused_field, supports(scenario).refused))
    # Behind the semicolon is what to do if nothing else has an answer.
    return f"the chain does not model this scenario ({refused})" if refused else str(refusal).partition(";")[0]


def _refused_field(error: UnsupportedError) -> str:
    """Return the field that the chain refuses in words, with its limit if it has one."""
    field, limit = error.name.replace("_", " "), error.allowed.partition(" in the chain")[0].removesuffix(",")
    return f"{field} must {limit}" if limit.startswith(("be at most", "be at least")) else field


def supports(scenario: Scenario, method: AnsweredBy | Model = "chain") -> Support:
    """Return which fields of a scenario a model honours, ignores and refuses."""
    return model_for(scenario, method).supports(scenario)


def capacity(scenario: Scenario, method: AnsweredBy | Model = "chain") -> float:
    """Return the largest packet rate [1/s] that TCP carries for packets written like those of a scenario."""
    from tcpdelay.ask import found_so_far

    found = found_so_far.get()
    if found is None:
        return model_for(scenario, method).capacity(scenario)
    key = (scenario, method)
    if key not in found.capacities:
        found.capacities[key] = model_for(scenario, method).capacity(scenario)
    return found.capacities[key]


def carries(scenario: Scenario, method: AnsweredBy | Model = "chain") -> bool | None:
    """Return whether TCP carries a flow without a backlog that grows for as long as it sends; None if not known."""
    largest = capacity(scenario, method)
    return None if math.isnan(largest) else scenario.source.message_rate < largest


def predict(scenario: Scenario, requested: Requested | None = None, method: AnsweredBy | Model = "auto") -> Answer:
    """Ask a model about a scenario.

    Parameters
    ----------
    scenario : Scenario
        What is asked about.
    requested : Requested, optional
        What is asked for; the whole distribution by default.
    method : {"chain", "simulation", "auto"} or Model
        Which model answers. "auto" asks the chain where it supports the scenario, within its validated range, its
        expected error is below 10 %, and the flow's rate is not near the capacity; elsewhere the simulator, if it
        supports the scenario.

    Returns
    -------
    Answer
        The answer; its status says if there is none.

    Raises
    ------
    InvalidValueError
        If `method` is unknown.

    Examples
    --------
    >>> answer = predict(Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)))
    >>> answer.status, round(answer.distribution.quantile(0.95), 3)
    ('exact', 0.14)
    """
    from tcpdelay.ask import WHOLE_DISTRIBUTION, found_so_far

    asked = WHOLE_DISTRIBUTION if requested is None else requested
    found = found_so_far.get()
    if found is None:
        return _answer(scenario, asked, method)
    known = found.answers.setdefault((scenario, method), [])
    for answer in known:
        restated = answer.restated(asked)
        if restated is not None:
            return restated
    known.append(_answer(scenario, asked, method))
    return known[-1]


def _answer(scenario: Scenario, asked: Requested, method: AnsweredBy | Model) -> Answer:
    """Ask the model, or the models in turn for "auto"."""
    if method == "simulation":
        return _simulated(scenario, asked)
    chain = model_for(scenario, method)
    if method != "auto":
        return chain.answer(scenario, asked)
    simulated_anyway = not isinstance(scenario.source, Flow) or isinstance(scenario.stack, Quic)
    if simulated_anyway and chain.supports(scenario).refused:
        # Also if the simulator refuses it: the limits of the simulator are what the user can change.
        return _simulated(scenario, asked, why_simulated(scenario, solved=False))
    if simulator().supports(scenario).refused:
        return chain.answer(scenario, asked)
    if outside := beyond_validation(scenario.source, scenario.path, scenario.stack):
        return _simulated(scenario, asked, f"{DOUBTS[NOT_CHECKED]}: {outside[0]}")
    answer = predict(scenario, asked, "chain")
    if not answer.answered:
        return _simulated(scenario, asked, _no_chain(scenario, answer.refusal))
    doubt = doubt_about(answer)
    return _simulated(scenario, asked, DOUBTS[doubt].format(transport_name(scenario.stack))) if doubt else answer


def doubt_about(answer: Answer) -> int:
    """Return the number in `DOUBTS` of the reason why "auto" simulates although the chain has this answer, or 0."""
    from tcpdelay.accuracy.errors import WRONG_CALL

    # The error of the 95th percentile, whatever the target: one scenario has one model.
    of_p95 = replace(answer, requested=replace(answer.requested, target=None, precision="exact"))
    scenario, expected, doubt = answer.scenario, of_p95.expected_error, 0
    if beyond_validation(scenario.source, scenario.path, scenario.stack):
        doubt = NOT_CHECKED
    elif expected is not None and expected.p90 >= WRONG_CALL:
        doubt = WRONG_ABOUT_CAPACITY
    elif expected is None or not expected.mean < LARGEST_CHAIN_ERROR:
        doubt = IMPRECISE
    return 0 if doubt and simulator().supports(scenario).refused else doubt


def _simulated(scenario: Scenario, asked: Requested, because: str = "") -> Answer:
    """Ask the simulator; where it has not settled, the refusal also has the capacity by the chain."""
    from tcpdelay.ask import NotSettledError

    answer = simulator(because=because).answer(scenario, asked)
    if not isinstance(answer.refusal, NotSettledError):
        return answer
    share = capacity(scenario) / scenario.source.message_rate
    known = answer.refusal
    refusal = NotSettledError(known.packets, known.carried, share, known.transport, known.ended_by)
    return replace(answer, refusal=refusal)


@checked_arguments
def predict_delay(
    flow: Source | str | None = None,
    path: Path | None = None,
    stack: Stack | StackName | None = None,
    *,
    method: AnsweredBy = "auto",
    packets: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    max_seconds: float = MOST_SECONDS,
    max_memory: float | None = None,
    **options: Any,
) -> DelayDistribution:
    """Predict the delay from write to read of a flow over TCP or QUIC.

    Parameters
    ----------
    flow : Source or str, optional
        A `Flow` of a packet size [bytes] and an interval [s], or the name of an application in
        `tcpdelay.scenario.scenario`, such as "voip"; instead, give `packet_size` and `interval`. The chain also
        knows `Speech` and `Video`, within limits. Any other source is simulated.
    path : Path, optional
        Round-trip time [s] and loss; instead, give `rtt`, `loss` and any other parameter of `Path`.
    stack : Stack or {"linux", "newreno_2008", "quic"}, optional
        The transport, or its name on the command line; by default the TCP of a current Linux kernel. The chain of
        QUIC knows datagrams and a stream per message, with NewReno. Any other QUIC is simulated.
    method : {"auto", "chain", "simulation"}
        Which model answers. "chain": the Markov chain, in about a millisecond; it refuses what it does not know.
        "simulation": `simulate`, for `Stack.linux` and `Stack.quic`. It runs for some seconds, until the 95th
        percentile is known to 2 % (to 16 % with a backlog) or 20 million packets are simulated. "auto": the chain where
        its expected error is below 10 % and the flow's rate is not near the capacity; otherwise a simulation, if the
        scenario can be simulated. Lost acknowledgements, jitter above the packet interval, and loss bursts too long for
        the chain are always simulated.
    packets : int, optional
        Packets of a simulation, 1000 to 1e9, whatever precision they reach; not with "chain".
    on_progress : callable, optional
        Called in a simulation with the packets that are done and the most that there will be.
    max_seconds : float
        Processor time that the answer may take [s], 0.01 to 1e6, by an estimate that does not depend on the machine. A
        chain that needs more is too large: "auto" simulates then. A simulation without `packets` ends after this time.
    max_memory : float, optional
        Memory that the chain may take [bytes], 2**20 to 2**50; by default 1 GiB.
    **options
        The parameters of `Flow` and `Path` by name.

    Returns
    -------
    DelayDistribution
        All delays and their probabilities. Its `method` says what answered, and its `expected_error` how far that is
        probably off; of a simulation it is a `tcpdelay.sim.simulation.Simulation`.

    Raises
    ------
    NotSettledError
        If the delays of a simulation depend on its length, because the load is close to the rate that TCP carries; a
        ValueError.
    TooLargeError
        If the chain needs more time or memory than it may take; a ValueError.
    ValueError
        If an argument is missing, unknown or out of its range, or the method does not go with the scenario.

    Warns
    -----
    ValidityWarning
        If the chain answers for a scenario outside the range in which it has been checked, or QUIC is simulated outside
        the range of the captures of QUIC.

    Examples
    --------
    >>> d = predict_delay(rtt=0.100, loss=0.02, packet_size=174, interval=0.020)
    >>> round(d.mean, 4), round(d.quantile(0.95), 3), round(d.late_fraction(0.200), 3)
    (0.0618, 0.14, 0.004)
    >>> d.method, d.expected_error.median < 0.10
    ('chain', True)

    The same flow over QUIC, where no message waits for another:

    >>> quic = Stack.quic("quic-go", delivery="stream_per_message")
    >>> d = predict_delay(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), quic)
    >>> round(d.quantile(0.95), 3), d.method
    (0.05, 'chain')
    """
    scenario = scenario_from_options(flow, path, stack, options)
    return predict_with_warning(scenario, method, packets, on_progress, max_seconds, max_memory).require()


def predict_with_warning(
    scenario: Scenario,
    method: AnsweredBy,
    packets: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    max_seconds: float = MOST_SECONDS,
    max_memory: float | None = None,
) -> Answer:
    """Return the answer with the whole distribution; warn if the chain or QUIC is outside its validated range."""
    from tcpdelay.ask import Requested
    from tcpdelay.compiling.compilation import single_prediction

    if packets is not None:
        from tcpdelay.sim.simulation import PACKETS

        packets = PACKETS.require("packets", packets)
    if method == "chain" and packets is not None:
        raise InvalidValueError("packets", packets, "be left out unless something is simulated (method 'chain')")
    tcp = not isinstance(scenario.stack, Quic)
    if method == "chain" and tcp and isinstance(scenario.source, Flow | Speech | Video):
        # Before the chain is solved, which may take long.
        warn_outside(scenario.source, scenario.path, scenario.stack)
    with single_prediction():
        requested = Requested(packets=packets, on_progress=on_progress, max_seconds=max_seconds, max_memory=max_memory)
        answer = predict(scenario, requested, method)
    if (method == "auto" and answer.method == "chain") or (answer.answered and not tcp):
        warn_outside(scenario.source, scenario.path, scenario.stack, answer.method)
    return answer


def simulate_messages(
    scenario: Scenario, packets: int, seed: int = 0, on_progress: Callable[[int, int], None] | None = None
) -> Simulation:
    """Simulate a single connection, and return the times of every message in the order of writing."""
    from tcpdelay.ask import NotSettledError
    from tcpdelay.sim.engine import LONGEST_CONNECTION
    from tcpdelay.sim.simulation import simulate

    for refused in simulator().supports(scenario).refused:
        raise refused
    if isinstance(scenario.stack, Quic):
        raise InvalidValueError(
            "stack", scenario.stack, "be Stack.linux(...) where the times of every message are kept"
        )
    found = simulate(
        scenario.source,
        scenario.path,
        scenario.stack,
        packets=packets,
        seed=seed,
        trace=True,
        connection_time=LONGEST_CONNECTION,
        on_progress=on_progress,
    )
    if not found.sustainable:
        raise InvalidValueError("source", scenario.source, "have a rate that TCP can carry on this path")
    if not found.settled:
        raise NotSettledError(found.packets, found.carried, ended_by=found.ended_by)
    return found
