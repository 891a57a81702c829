"""Where the models have been checked against measurements, and the warning for inputs beyond."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from tcpdelay.scenario import Flow, NewReno2008, Path, Stack


class ValidityWarning(UserWarning):
    """The inputs lie outside the range in which the model has been checked, or the result depends on a bound."""


@dataclass(frozen=True)
class ValidatedRange:
    """Range of scenarios in which a profile has been compared with measurements; both ends belong to it.

    Parameters
    ----------
    rtt, loss, packet_size, interval : tuple of float
        Smallest and largest round-trip time [s], loss [fraction], packet size [bytes] and interval [s].
    source : str
        Where the comparison is published.
    known_error : float
        Median relative distance of the predicted 95th percentile from measured ones, without its sign.
    known_error_basis : str
        Which measurements those are.
    """

    rtt: tuple[float, float]
    loss: tuple[float, float]
    packet_size: tuple[float, float]
    interval: tuple[float, float]
    source: str
    known_error: float
    known_error_basis: str

    def exceeded_by(self, flow: Flow, path: Path) -> list[str]:
        """Return one sentence for each input that lies outside the range.

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
    known_error=0.67,
    known_error_basis="384 captures of Linux 6.1 under random losses, predictions being too high as a rule",
)


def validated_range(stack: Stack) -> ValidatedRange:
    """Return the range in which the profile of `stack` has been checked.

    Raises
    ------
    ValueError
        If `stack` is of no known profile.
    """
    if isinstance(stack, NewReno2008):
        return PUBLISHED_RANGE
    raise ValueError(f"stack must come from one of the profiles, such as Stack.newreno_2008(), got {stack!r}")


def known_error(stack: Stack) -> str:
    """Return in words how far predictions for `stack` have been from measurements."""
    valid = validated_range(stack)
    error = f"{valid.known_error * 100:.0f} %"
    return f"the 95th percentile was off by {error} in the median over {valid.known_error_basis}"


def warn_outside(flow: Flow, path: Path, stack: Stack) -> None:
    """Issue a `ValidityWarning` if the scenario lies outside the validated range of its stack."""
    beyond = validated_range(stack).exceeded_by(flow, path)
    if beyond:
        warnings.warn("; ".join(beyond), ValidityWarning, stacklevel=3)
