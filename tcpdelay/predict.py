"""The front door: one call from flow and path to the delay distribution."""

from __future__ import annotations

from typing import Any

from tcpdelay.chain.model import DelayModel
from tcpdelay.distribution import DelayDistribution
from tcpdelay.scenario import Flow, Path, Stack
from tcpdelay.validity import warn_outside

DEFAULT_STACK: Stack = Stack.newreno_2008(backlog_bound="grow")
"""The stack that is assumed where none is given: the published chain, with infinite delays where it cannot keep up."""

_FLOW_OPTIONS = ("packet_size", "interval")
_PATH_OPTIONS = ("rtt", "loss", "loss_pattern", "bottleneck", "one_way_delay")


def scenario_from_options(flow: Flow | None, path: Path | None, options: dict[str, Any]) -> tuple[Flow, Path]:
    """Return flow and path, each as given or made from its own keyword arguments in `options`.

    Raises
    ------
    ValueError
        If an argument is unknown, missing, or given twice.
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
    return flow or Flow(**flow_options), path or Path(**path_options)


def predict_delay(
    flow: Flow | None = None, path: Path | None = None, stack: Stack | None = None, **options: Any
) -> DelayDistribution:
    """Predict the delay from write to in-order read of a flow over TCP.

    Parameters
    ----------
    flow : Flow, optional
        Packet size [bytes] and interval [s]; instead, give `packet_size` and `interval`.
    path : Path, optional
        Round-trip time [s] and loss; instead, give `rtt`, `loss` and any other parameter of `Path`.
    stack : Stack, optional
        The TCP implementation; by default the published chain with a backlog bound that grows as needed.
    **options
        The parameters of `Flow` and `Path` by name.

    Returns
    -------
    DelayDistribution
        All delays and their probabilities.

    Raises
    ------
    ValueError
        If an argument is missing, unknown or out of its range.

    Warns
    -----
    ValidityWarning
        If the scenario lies outside the range in which the model has been compared with measurements.

    Examples
    --------
    >>> d = predict_delay(rtt=0.100, loss=0.02, packet_size=174, interval=0.020)
    >>> round(d.mean, 4), round(d.quantile(0.95), 3), round(d.late_fraction(0.200), 4)
    (0.0694, 0.19, 0.0341)
    """
    flow, path = scenario_from_options(flow, path, options)
    stack = DEFAULT_STACK if stack is None else stack
    warn_outside(flow, path, stack)
    return DelayModel(flow, path, stack).delay_distribution()
