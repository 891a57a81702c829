"""The front door: one call from flow and path to the delay distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from tcpdelay.scenario import Flow, Linux, Path, Stack
from tcpdelay.validity import KnownStack, validated_range, warn_outside

if TYPE_CHECKING:
    from tcpdelay.distribution import DelayDistribution

StackName = Literal["linux", "newreno_2008"]
AnsweredBy = Literal["chain", "simulation", "auto"]

PROFILES: dict[StackName, KnownStack] = {
    "linux": Stack.linux(),
    "newreno_2008": Stack.newreno_2008(backlog_bound="grow"),
}
"""The stacks by name, with the settings that are assumed where none are given."""
DEFAULT_STACK: KnownStack = PROFILES["linux"]
"""The stack that is assumed where none is given: a current Linux kernel."""
LARGEST_CHAIN_ERROR = 0.10
"""Expected error of the chain's 95th percentile from which on "auto" simulates: its mean, a fraction."""

_FLOW_OPTIONS = ("packet_size", "interval")
_PATH_OPTIONS = ("rtt", "loss", "loss_pattern", "bottleneck", "one_way_delay", "loss_burst", "ack_loss", "jitter")


def default_profile_name() -> StackName:
    """Return the name of the profile that `DEFAULT_STACK` is."""
    return next(name for name, stack in PROFILES.items() if stack is DEFAULT_STACK)


def scenario_from_options(flow: Flow | None, path: Path | None, options: dict[str, Any]) -> tuple[Flow, Path]:
    """Return flow and path, each as given or made from its own keyword arguments in `options`.

    Raises
    ------
    ValueError
        If an argument is unknown, missing, given twice, or something else than a flow and a path.
    """
    unknown = set(options) - set(_FLOW_OPTIONS) - set(_PATH_OPTIONS)
    if unknown:
        allowed = ", ".join(_FLOW_OPTIONS + _PATH_OPTIONS)
        raise ValueError(f"unknown argument {sorted(unknown)[0]!r}; allowed are {allowed}")
    flow_options = {name: options[name] for name in _FLOW_OPTIONS if name in options}
    path_options = {name: options[name] for name in _PATH_OPTIONS if name in options}
    for name, given, parts, needed in (
        ("flow", flow, flow_options, _FLOW_OPTIONS),
        ("path", path, path_options, _PATH_OPTIONS[:2]),
    ):
        if given is not None and parts:
            raise ValueError(f"give either {name} or {', '.join(parts)}, not both")
        missing = [option for option in needed if option not in parts]
        if given is None and missing:
            raise ValueError(f"{' and '.join(missing)} missing: give {name}, or {' and '.join(needed)}")
    flow = Flow(**flow_options) if flow is None else flow
    path = Path(**path_options) if path is None else path
    if not isinstance(flow, Flow):
        raise ValueError(f"flow must be a Flow, got {flow!r}")
    if not isinstance(path, Path):
        raise ValueError(f"path must be a Path, got {path!r}")
    return flow, path


def predict_delay(
    flow: Flow | None = None,
    path: Path | None = None,
    stack: Stack | None = None,
    *,
    method: AnsweredBy = "chain",
    packets: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> DelayDistribution:
    """Predict the delay from write to in-order read of a flow over TCP.

    Parameters
    ----------
    flow : Flow, optional
        Packet size [bytes] and interval [s]; instead, give `packet_size` and `interval`.
    path : Path, optional
        Round-trip time [s] and loss; instead, give `rtt`, `loss` and any other parameter of `Path`.
    stack : Stack, optional
        The TCP implementation; by default that of a current Linux kernel.
    method : {"chain", "simulation", "auto"}
        What answers: the Markov chain in less than a millisecond, or `simulate`, of `Stack.linux` alone, to 2 % in some
        seconds, or to what it has reached after 20 million packets. "auto" asks the chain where its expected error is
        below 10 %, and else simulates what can be simulated: also lost acknowledgements and jitter, which the chain
        does not know, and bursts of losses that are too long for it.
    packets : int, optional
        Packets of a simulation, 1000 to 1e9, whatever precision they reach; not with "chain".
    on_progress : callable, optional
        Called in a simulation with the packets that are done and the most that there will be.
    **options
        The parameters of `Flow` and `Path` by name.

    Returns
    -------
    DelayDistribution
        All delays and their probabilities. Its `method` says what answered, and its `expected_error` how far that is
        probably off; of a simulation it is a `tcpdelay.sim.simulation.Simulation`.

    Raises
    ------
    ValueError
        If an argument is missing, unknown or out of its range, or the method does not go with the scenario.

    Warns
    -----
    ValidityWarning
        If the chain answers for a scenario outside the range in which it has been checked.

    Examples
    --------
    >>> d = predict_delay(rtt=0.100, loss=0.02, packet_size=174, interval=0.020)
    >>> round(d.mean, 4), round(d.quantile(0.95), 3), round(d.late_fraction(0.200), 3)
    (0.0635, 0.14, 0.005)
    >>> d.method, d.expected_error.median < 0.10
    ('chain', True)
    """
    if method not in get_args(AnsweredBy):
        raise ValueError(f"method must be one of {', '.join(map(repr, get_args(AnsweredBy)))}, got {method!r}")
    if method == "chain" and packets is not None:
        raise ValueError(f"packets must be left out unless something is simulated, got {packets} with method 'chain'")
    flow, path = scenario_from_options(flow, path, options)
    stack = DEFAULT_STACK if stack is None else stack
    if method == "simulation":
        return _simulation(flow, path, stack, packets, on_progress)
    simulable = isinstance(stack, Linux) and path.loss_pattern == "random" and path.bottleneck == "packets"
    if method == "auto" and simulable and (_unknown_to_chain(path) or validated_range(stack).exceeded_by(flow, path)):
        return _simulation(flow, path, stack, packets, on_progress)
    if method == "chain":
        # Before the chain is solved, which may take long.
        warn_outside(flow, path, stack)
    from tcpdelay.chain.linux.parameters import BurstsBeyondChainError
    from tcpdelay.chain.model import ChainTooLargeError, DelayModel

    try:
        distribution = DelayModel(flow, path, stack).delay_distribution()
    except (ChainTooLargeError, BurstsBeyondChainError):
        if method == "auto" and simulable:
            return _simulation(flow, path, stack, packets, on_progress)
        raise
    predicted = replace(distribution, scenario=(flow, path, stack))
    if method == "auto" and simulable:
        expected = predicted.expected_error
        if expected is None or not expected.mean < LARGEST_CHAIN_ERROR:
            return _simulation(flow, path, stack, packets, on_progress)
    if method == "auto":
        warn_outside(flow, path, stack)
    return predicted


def _unknown_to_chain(path: Path) -> bool:
    return path.ack_loss > 0 or path.jitter > 0


def require_simulable(path: Path, stack: Stack) -> Linux:
    """Return the stack, or say in a ValueError what about it or the path cannot be simulated.

    Examples
    --------
    >>> require_simulable(Path(0.1, 0.02), Stack.linux()).hz
    250
    """
    if not isinstance(stack, Linux):
        raise ValueError(f"method must be 'chain' with {stack!r}: what is simulated is Stack.linux() alone")
    if path.bottleneck != "packets":
        raise ValueError(f"bottleneck must be 'packets' in a simulation, got {path.bottleneck!r}")
    return stack


def _simulation(
    flow: Flow, path: Path, stack: Stack, packets: int | None, on_progress: Callable[[int, int], None] | None
) -> DelayDistribution:
    simulated = require_simulable(path, stack)
    from tcpdelay.sim.simulation import simulate

    found = simulate(flow, path, simulated, packets=packets, on_progress=on_progress)
    return replace(found, scenario=(flow, path, stack))
