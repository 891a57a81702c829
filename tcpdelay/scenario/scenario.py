"""One scenario: the flow, the path, the TCP stack, and the target of the delay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tcpdelay.scenario.applications import flow_of
from tcpdelay.scenario.fields import Field, InvalidValueError, declarations
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import DEFAULT_STACK, KnownStack, Linux, NewReno2008, Stack, checked_profile
from tcpdelay.scenario.target import Target

Part = Literal["flow", "path", "stack", "target"]


@dataclass(frozen=True)
class Scenario:
    """The input of a model.

    Parameters
    ----------
    flow : Flow
        The source.
    path : Path
        The network.
    stack : Stack
        The TCP implementation; a current Linux kernel by default.
    target : Target, optional
        The demand on the delay.

    Raises
    ------
    InvalidValueError
        If a part has the wrong type.

    Examples
    --------
    >>> Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02)).stack.hz
    250
    """

    flow: Flow
    path: Path
    stack: KnownStack = DEFAULT_STACK
    target: Target | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.flow, Flow):
            raise InvalidValueError("flow", self.flow, "be a Flow")
        if not isinstance(self.path, Path):
            raise InvalidValueError("path", self.path, "be a Path")
        checked_profile(self.stack)

    def value(self, name: str) -> Any:
        """Return the value of a field of the flow, the path or the stack; None if none of them has this field."""
        parts: tuple[Any, ...] = (self.flow, self.path, self.stack)
        part = next((part for part in parts if name in declarations(type(part))), None)
        return None if part is None else getattr(part, name)


_PARTS: tuple[tuple[Part, type], ...] = (
    ("flow", Flow),
    ("path", Path),
    ("stack", Linux),
    ("stack", NewReno2008),
    ("target", Target),
)
FIELDS: Mapping[str, tuple[Part, Field]] = {
    name: (part, field) for part, described in _PARTS for name, field in declarations(described).items()
}
"""The part and the declaration of every field of a scenario, by the field's name."""


def scenario_from_options(
    flow: Flow | str | None, path: Path | None, stack: Stack | None, options: Mapping[str, Any]
) -> Scenario:
    """Return the scenario; if the flow or the path is not given, make it from the keyword arguments in `options`.

    The flow may be the name of an application.

    Raises
    ------
    ValueError
        If an argument is unknown, missing, given twice or of the wrong type.

    Examples
    --------
    >>> scenario_from_options(Flow(174, 0.020), None, None, {"rtt": 0.1, "loss": 0.02}).path.rtt
    0.1
    """
    flow = None if flow is None else flow_of(flow)
    if flow is None or path is None or options:
        flow, path = _flow_and_path(flow, path, options)
    return Scenario(flow, path, checked_profile(stack))


def _flow_and_path(flow: Flow | None, path: Path | None, options: Mapping[str, Any]) -> tuple[Flow, Path]:
    """Return flow and path, each as given or made from its keyword arguments."""
    known = {"flow": tuple(declarations(Flow)), "path": tuple(declarations(Path))}
    allowed = known["flow"] + known["path"]
    if unknown := set(options).difference(allowed):
        raise ValueError(f"unknown argument {min(unknown)!r}; allowed are {', '.join(allowed)}")
    needed = {"flow": ("packet_size", "interval"), "path": ("rtt", "loss")}
    for name, given in (("flow", flow), ("path", path)):
        parts = [option for option in known[name] if option in options]
        if given is not None and parts:
            raise ValueError(f"give either {name} or {', '.join(parts)}, not both")
        missing = [option for option in needed[name] if option not in options]
        if given is None and missing:
            raise ValueError(f"{' and '.join(missing)} missing: give {name}, or {' and '.join(needed[name])}")
    if flow is None:
        flow = Flow(**{name: options[name] for name in known["flow"] if name in options})
    if path is None:
        path = Path(**{name: options[name] for name in known["path"] if name in options})
    return flow, path
