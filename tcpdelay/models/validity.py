"""The ranges in which the models have been checked against measurements, and the warning for inputs outside them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TypeAlias

from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, NewReno2008, Stack


class ValidityWarning(UserWarning):
    """The inputs lie outside the range in which the model has been checked, or the result depends on a bound."""


KnownStack: TypeAlias = NewReno2008 | Linux
"""A stack whose predictions have been checked."""


@dataclass(frozen=True)
class ValidatedRange:
    """Range of scenarios, including both ends, in which a profile has been compared with measurements.

    Parameters
    ----------
    rtt, loss, packet_size, interval : tuple of float
        Smallest and largest round-trip time [s], loss [fraction], packet size [bytes] and interval [s].
    source : str
        The comparison: its measurements, and where it is published.
    """

    rtt: tuple[float, float]
    loss: tuple[float, float]
    packet_size: tuple[float, float]
    interval: tuple[float, float]
    source: str

    def exceeded_by(self, flow: Flow, path: Path) -> list[str]:
        """Return one sentence for each input outside the range.

        Examples
        --------
        >>> PUBLISHED_RANGE.exceeded_by(Flow(174, 0.020), Path(rtt=0.600, loss=0.02))
        ['rtt 0.6 s lies outside the validated range of 0.02 to 0.3 s']
        """
        inputs = [
            ("rtt", path.rtt, self.rtt, " s"),
            ("loss", path.loss, self.loss, ""),
            ("packet_size", flow.packet_size, self.packet_size, " bytes"),
            ("interval", flow.interval, self.interval, " s"),
        ]
        return [
            f"{name} {value:g}{unit} lies outside the validated range of {low:g} to {high:g}{unit}"
            for name, value, (low, high), unit in inputs
            if not low <= value <= high
        ]


PUBLISHED_RANGE = ValidatedRange(
    rtt=(0.020, 0.300),
    loss=(0.001, 0.10),
    packet_size=(174, 1448),
    interval=(0.020, 0.030),
    source="captures of Linux 6.1, validation/captures; for 2008's TCP Brosh et al., IEEE/ACM ToN 2010",
)
LINUX_RANGE = ValidatedRange(
    rtt=(0.005, 0.400),
    loss=(0.0001, 0.10),
    packet_size=(60, 15_000),
    interval=(0.005, 0.100),
    source="simulations of random scenarios, validation/error-map; the simulator itself in captures of Linux 6.1",
)


def checked_profile(stack: Stack) -> KnownStack:
    """Return the stack if it comes from one of the profiles.

    Raises
    ------
    ValueError
        If it is of no known profile.
    """
    if not isinstance(stack, KnownStack):
        raise InvalidValueError("stack", stack, "come from one of the profiles, such as Stack.newreno_2008()")
    return stack


def validated_range(stack: Stack) -> ValidatedRange:
    """Return the range in which the profile of `stack` has been checked.

    Raises
    ------
    ValueError
        If `stack` is of no known profile.
    """
    return LINUX_RANGE if isinstance(checked_profile(stack), Linux) else PUBLISHED_RANGE


def warn_outside(flow: Flow, path: Path, stack: Stack) -> None:
    """Issue a `ValidityWarning` if the scenario lies outside the validated range of its stack."""
    beyond = validated_range(stack).exceeded_by(flow, path)
    if beyond:
        warnings.warn("; ".join(beyond), ValidityWarning, stacklevel=3)
