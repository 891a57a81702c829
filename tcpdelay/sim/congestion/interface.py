"""How the functions of an interface reach a congestion control: by the connection's field `control`, its number."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from tcpdelay.compiling.compilation import kernel

Event = TypeVar("Event", bound=Callable[..., Any])


def by_control(controls: Mapping[str, ModuleType]) -> Callable[[Event], Event]:
    """Return a decorator: the function becomes a kernel that calls the function of this name of a control's module.

    The number of a control is its place in `controls`. The first one, and each one whose module lacks the function,
    does what the decorated function says. The kernel is written as text, because Numba stores no function that takes
    others from around it: `if c.control == 1: return own_1(c, rtt)`, and so on.
    """

    def decorate(default: Event) -> Event:
        name, parameters = default.__name__, ", ".join(inspect.signature(default).parameters)
        own = {
            number: getattr(module, name)
            for number, module in enumerate(controls.values())
            if number and hasattr(module, name)
        }
        lines = [f" if c.control == {number}: return own_{number}({parameters})" for number in own]
        text = "\n".join([f"def {name}({parameters}):", *lines, f" return default({parameters})"])
        names: dict[str, Any] = {f"own_{number}": function for number, function in own.items()}
        names |= {"default": kernel()(default), "__name__": default.__module__}
        exec(compile(text, default.__code__.co_filename, "exec"), names)
        dispatched: Event = names[name]
        dispatched.__doc__ = default.__doc__
        return kernel()(dispatched)

    return decorate
