"""The ranges in which the models have been checked against measurements, and the warning for inputs outside them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tcpdelay.declare import bounds
from tcpdelay.scenario.media import Speech, Video
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import constant_rate
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import LOSS_BASED_CONTROLS, Linux, Quic, QuicImplementation, Stack, checked_profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


class ValidityWarning(UserWarning):
    """The inputs lie outside the range in which the model has been checked, or the result depends on a bound."""


@dataclass(frozen=True)
class ValidatedRange:
    """Range of scenarios, including both ends, in which a profile has been compared with measurements.

    A path without loss is in the range: every packet then takes the one-way delay, in the models as on the path.
    """

    # rtt, loss, packet_size, interval: Smallest and largest round-trip time [s], loss [fraction], packet size [bytes]
    # and interval [s].
    rtt: tuple[float, float]
    loss: tuple[float, float]
    packet_size: tuple[float, float]
    interval: tuple[float, float]
    source: str  # The comparison: its measurements, and where it is published
    # With correlated losses, largest share of round-trip times with a loss if every packet leaves at once.
    lost_rounds: float = 1.0

    def exceeded_by(self, source: Source, path: Path) -> list[str]:
        """Return one sentence for each input outside the range; only `Flow` and `Speech` have size and interval."""
        inputs = [("rtt", path.rtt, self.rtt, " s"), ("loss", path.loss, self.loss, "")]
        if isinstance(source, Flow | Speech):
            inputs += [
                ("packet_size", source.packet_size, self.packet_size, " bytes"),
                ("interval", source.interval, self.interval, " s"),
            ]
        beyond = [
            f"{name} {value:g}{unit} lies outside the validated range of {low:g} to {high:g}{unit}"
            for name, value, (low, high), unit in inputs
            if not (low <= value <= high or (name == "loss" and value == 0))
        ]
        if path.loss_pattern == "correlated":
            packets = path.rtt // source.mean_interval + 1
            lost = 1 - (1 - path.loss) ** packets
            if lost > self.lost_rounds:
                most = f"{lost:.0%} of the rounds lose packets, and at most {self.lost_rounds:.0%} are validated"
                beyond.append(f"loss {path.loss:g} lies outside the validated range: {most}")
        return beyond

    def exceeded_by_paths(self, source: Source, rtt: ArrayLike, loss: ArrayLike) -> NDArray[np.bool_]:
        """Return whether the scenario lies outside the range, for each round-trip time [s] and loss."""
        # Not needed, and not loaded, where the command line only prints its help.
        import numpy as np

        rtts, losses = np.asarray(rtt, np.float64), np.asarray(loss, np.float64)
        known = (rtts >= self.rtt[0]) & (rtts <= self.rtt[1])
        known &= ((losses >= self.loss[0]) & (losses <= self.loss[1])) | (losses == 0)
        if isinstance(source, Flow | Speech):
            known &= self.packet_size[0] <= source.packet_size <= self.packet_size[1]
            known &= self.interval[0] <= source.interval <= self.interval[1]
        return ~known


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
    # Validated by `validation/drop_tail_patterns.py`.
    lost_rounds=0.10,
)
SPEECH_RANGE = ValidatedRange(
    rtt=(0.010, 0.400),
    loss=(0.0005, 0.05),
    packet_size=(40, 724),
    interval=(0.010, 0.100),
    source="simulations of random scenarios, validation/speech.py",
)
VIDEO_RANGE = ValidatedRange(
    rtt=(0.010, 0.300),
    loss=(0.0005, 0.02),
    packet_size=(100, 30_000),
    interval=(1 / 60, 1 / 10),
    source="simulations of random scenarios, validation/video.py",
)


QUIC_RANGE = ValidatedRange(
    rtt=(0.020, 0.150),
    loss=(0.001, 0.05),
    packet_size=(100, 1100),
    interval=(0.007, 0.500),
    source="captures of aioquic and quic-go, validation/quic-captures",
)
"""The range of the captures of QUIC with which the simulator has been compared, and of their videos of 1 Mbit/s."""
MOST_CAPTURED = {"jitter": 0.050, "ack_loss": 0.10, "reordering": 0.0, "loss_burst": 3.0, "bad_time": 0.0}
"""The largest values of the other settings of a path in captures of QUIC."""
QUIC_CHAIN_RANGE = ValidatedRange(
    rtt=(0.005, 0.300),
    loss=(0.0001, 0.10),
    packet_size=(50, 9600),
    interval=(0.005, 0.100),
    source="simulations of random scenarios, validation/quic_chain.py; the simulator itself in captures of QUIC",
)
"""The range of the simulations with which the chain of QUIC has been compared."""
CAPTURED: tuple[QuicImplementation, ...] = ("aioquic", "quic-go")
"""The implementations of QUIC whose captures have been compared with the simulator."""
CAPTURED_CONTROLS = (*LOSS_BASED_CONTROLS, "bbr")
"""The congestion controls of Linux whose captures have been compared with the simulator."""


LARGEST_PACKET = bounds(Flow, "packet_size")[1]


def packet_size(size: float) -> int:
    """Return a mean size [bytes] as the size of a packet, which is whole and within the range of `Flow`."""
    return int(min(max(round(size), 1), LARGEST_PACKET))


def compared_flow(source: Source) -> Flow:
    """Return the flow by which the scenarios of a chain are compared: packets of a talk spurt, or mean frames."""
    if isinstance(source, Speech):
        return source.without_silence
    if isinstance(source, Video):
        return Flow(packet_size(source.mean_size), source.mean_interval, source.write_jitter)
    return constant_rate(source)


def validated_range(stack: Stack, source: type[Source] = Flow, method: str = "chain") -> ValidatedRange:
    """Return the range in which a profile's chain, or QUIC's simulator, has been checked for a class of sources."""
    if isinstance(checked_profile(stack), Quic):
        return QUIC_RANGE if method == "simulation" else QUIC_CHAIN_RANGE
    if not isinstance(stack, Linux):
        return PUBLISHED_RANGE
    return {Speech: SPEECH_RANGE, Video: VIDEO_RANGE}.get(source, LINUX_RANGE)


def beyond_validation(source: Source, path: Path, stack: Stack, method: str = "chain") -> list[str]:
    """Return one sentence for each input outside the range in which the model of the method has been checked."""
    if isinstance(stack, Quic) and method == "simulation":
        return [*_beyond_captures_of_quic(source, path, stack)]
    return validated_range(stack, type(source)).exceeded_by(compared_flow(source), path)


def uncaptured_over_quic(path: Path) -> list[str]:
    """Return the names of the settings of a path whose values are larger than in any capture of QUIC."""
    return [name for name, most in MOST_CAPTURED.items() if getattr(path, name) > most]


def _beyond_captures_of_quic(source: Source, path: Path, stack: Quic) -> Iterator[str]:
    """Yield one sentence for each reason for which no capture of QUIC is like this scenario."""
    # Not needed, and not loaded, where the command line only prints its help.
    from tcpdelay.accuracy.throughput import LARGEST_SUSTAINABLE_UTILIZATION, reno_utilization

    if stack.implementation not in CAPTURED:
        yield (
            f"implementation {stack.implementation} lies outside the validated range: "
            f"only {' and '.join(CAPTURED)} have been captured"
        )
    yield from QUIC_RANGE.exceeded_by(source, path)
    for name in uncaptured_over_quic(path):
        known = f"of up to {MOST_CAPTURED[name]:g}" if MOST_CAPTURED[name] else "without it"
        yield f"{name} {getattr(path, name):g} lies outside the validated range: captures of QUIC are {known}"
    used = reno_utilization(source, path)
    if used >= LARGEST_SUSTAINABLE_UTILIZATION:
        yield (
            f"the rate is {used:.3g} of the fair TCP rate, and lies outside the validated range of below "
            f"{LARGEST_SUSTAINABLE_UTILIZATION:g}"
        )


def warn_outside(source: Source, path: Path, stack: Stack, method: str = "chain") -> None:
    """Issue a `ValidityWarning` if the model that answers has not been checked in this scenario."""
    beyond = beyond_validation(source, path, stack, method)
    if beyond:
        warnings.warn("; ".join(beyond), ValidityWarning, stacklevel=3)
