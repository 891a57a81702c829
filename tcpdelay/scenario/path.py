"""The path between the two ends: round-trip time, loss and queue."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from tcpdelay.declare import Choice, InvalidValueError, Quantity, described
from tcpdelay.scenario.jitter import (
    CorrelationOfJitter,
    DistributionOfJitter,
    InOrder,
    check_jitter,
    largest_jitter,
    mean_jitter,
)
from tcpdelay.scenario.path_presets import path_preset

LossPattern = Literal["random", "correlated"]
Bottleneck = Literal["packets", "bytes"]
_fraction = partial(Quantity, kind="fraction", low=0.0, high=1.0, high_excluded=True)


BadTime: TypeAlias = Annotated[
    float,
    Quantity(
        kind="time",
        meaning="Mean duration of a bad state, in which all losses occur: fading or interference on Wi-Fi and "
        "cellular links.",
        details="Above 0 the losses come from a Gilbert model in time: a good state without losses and a bad state "
        "alternate, each with an exponentially distributed duration. Their mean durations are such that "
        "`loss` is the mean loss over time.",
        low=0.0,
        high=60.0,
        unit="s",
        example="100ms",
        hint="the duration is given in seconds: 100 ms is 0.100",
    ),
]


def check_losses(loss: float, loss_burst: float, bad_time: float, bad_loss: float) -> None:
    """Raise InvalidValueError if parameters of the losses, each in its own range, contradict each other.

    Examples
    --------
    >>> check_losses(0.5, loss_burst=1.0, bad_time=0.1, bad_loss=0.2)
    Traceback (most recent call last):
    tcpdelay.declare.InvalidValueError: loss must be below the bad_loss of 0.2, got 0.5
    """
    if loss_burst > 1 and loss > (largest := loss_burst / (1 + loss_burst)):
        raise InvalidValueError("loss", loss, f"be at most {largest:g} with a loss_burst of {loss_burst:g}")
    if bad_time > 0 and loss_burst > 1:
        raise InvalidValueError("loss_burst", loss_burst, f"be 1 with a bad_time of {bad_time:g} s")
    if bad_time > 0 and loss >= bad_loss:
        raise InvalidValueError("loss", loss, f"be below the bad_loss of {bad_loss:g}")
    if bad_time == 0 and bad_loss != 1:
        raise InvalidValueError("bad_loss", bad_loss, "be 1 without a bad_time")


@described
class Path:
    """The network between the two ends: round-trip time, loss and queue.

    A model may ignore or refuse some of the fields: the chains do not model lost acknowledgements, and only the chain
    of Linux models jitter. The prediction reports the ignored fields.

    References
    ----------
    J. Padhye, V. Firoiu, D. Towsley, J. Kurose, "Modeling TCP throughput: a simple model and its empirical
    validation", SIGCOMM 1998, section II: rounds and correlated losses.

    E. N. Gilbert, "Capacity of a burst-noise channel", Bell System Technical Journal 39 (1960); E. O. Elliott,
    "Estimates of error rates for codes on burst-noise channels", Bell System Technical Journal 42 (1963), adds losses
    in the good state, which this path does not have.

    Examples
    --------
    >>> Path(rtt=0.100, loss=0.02).forward_delay
    0.05

    A radio link that loses half of the segments for 100 ms in the mean, every 5 s:

    >>> round(Path(rtt=0.060, loss=0.01, bad_time=0.100, bad_loss=0.5).good_time, 3)
    4.9
    """

    rtt: Annotated[
        float,
        Quantity(
            kind="time",
            meaning="Round-trip time.",
            low=1e-6,
            high=60.0,
            unit="s",
            example="100ms",
            hint="the round-trip time is given in seconds: 100 ms is 0.100",
        ),
    ]
    loss: Annotated[
        float,
        _fraction(
            meaning="Probability that a data segment is lost.",
            details="With correlated losses, the probability that a segment is lost while no earlier segment of its "
            "round is lost; the share of lost segments is larger.",
            unit="fraction of segments",
            example="2%",
        ),
    ]
    loss_pattern: Annotated[
        LossPattern,
        Choice(
            meaning="Loss pattern: independent (random), or the rest of a round after its first loss (correlated).",
            details="Correlated losses are the drop-tail losses of Padhye et al. (1998). A round lasts one "
            "round-trip time from its first segment on.",
        ),
    ] = "random"
    bottleneck: Annotated[
        Bottleneck,
        Choice(
            meaning="Unit of the bottleneck queue's limit: packets or bytes. "
            "A queue limited in bytes drops small packets less often."
        ),
    ] = "packets"
    one_way_delay: (
        Annotated[
            float,
            Quantity(
                kind="time",
                meaning="Delay from sender to receiver without TCP.",
                details="At most `rtt`; half of it without a value.",
                low=0.0,
                high=60.0,
                unit="s",
                example="40ms",
                default_words="half the round-trip time",
            ),
        ]
        | None
    ) = None
    loss_burst: Annotated[
        float,
        Quantity(
            kind="number",
            meaning="Mean number of segments lost in a row, counted in segments, not in time: netem's Gilbert model. "
            "For Wi-Fi and cellular links give a bad time instead.",
            details="Such a burst only ends with further segments: it has no duration, and waits for the next "
            "retransmission of an idle flow.",
            low=1.0,
            high=100.0,
            unit="segments",
            example="2",
        ),
    ] = 1.0
    ack_loss: Annotated[
        float,
        _fraction(
            meaning="Probability that an acknowledgement is lost.", unit="fraction of acknowledgements", example="1%"
        ),
    ] = 0.0
    jitter: Annotated[
        float,
        Quantity(
            kind="time",
            meaning="Largest additional delay of a data segment: each delay is drawn uniformly from 0 to this maximum, "
            "so the mean is half of it, and segments may overtake each other.",
            details="With another distribution, half of this value is netem's jitter.",
            low=0.0,
            high=1.0,
            unit="s",
            example="5ms",
            hint="the jitter is given in seconds: 5 ms is 0.005",
        ),
    ] = 0.0
    reordering: Annotated[
        float,
        _fraction(
            meaning="Share of the data segments that overtake the segment ahead.",
            unit="fraction of segments",
            example="1%",
        ),
    ] = 0.0
    bad_time: BadTime = 0.0
    bad_loss: Annotated[
        float,
        Quantity(
            kind="fraction",
            meaning="Probability that a segment is lost in the bad state. The good state loses nothing.",
            details="It must be above `loss`.",
            low=0.0,
            low_excluded=True,
            high=1.0,
            unit="fraction of segments",
            example="50%",
            allowed="be a fraction above 0, up to 1",
        ),
    ] = 1.0
    jitter_distribution: DistributionOfJitter = "uniform"
    jitter_correlation: CorrelationOfJitter = 0.0
    in_order: InOrder = False

    def __post_init__(self) -> None:
        check_losses(self.loss, self.loss_burst, self.bad_time, self.bad_loss)
        check_jitter(self.jitter, self.jitter_distribution, self.jitter_correlation, self.in_order, self.reordering)
        if self.loss_pattern == "correlated":
            hint = "loss_pattern 'random' allows bursts of a given length"
            for name, value, single in (("loss_burst", self.loss_burst, 1), ("bad_time", self.bad_time, 0)):
                if value > single:
                    raise InvalidValueError(name, value, f"be {single} with correlated losses", hint)
        if self.one_way_delay is not None and self.one_way_delay > self.rtt:
            allowed = f"lie between 0 and {self.rtt:g} s (the round-trip time)"
            raise InvalidValueError("one_way_delay", self.one_way_delay, allowed)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Path:
        """Return a path that people have, such as "lte" or "home-bufferbloat".

        Parameters
        ----------
        name : str
            Name of a preset; `tcpdelay.scenario.path_presets` has all of them, with the source of each parameter.
        **changes
            Parameters of `Path` that replace those of the preset.

        Raises
        ------
        InvalidValueError
            If there is no such preset, or a value is out of its range; a ValueError.

        Examples
        --------
        >>> path = Path.preset("transatlantic", loss=0.01)
        >>> path.rtt, path.loss
        (0.09, 0.01)
        """
        return cls(**path_preset(name).changed(**changes))

    @property
    def forward_delay(self) -> float:
        """Delay from sender to receiver [s]: `one_way_delay` if given, or half the round-trip time."""
        return self.rtt / 2 if self.one_way_delay is None else self.one_way_delay

    @property
    def mean_rtt(self) -> float:
        """Mean round-trip time of a segment and its acknowledgement [s]: `rtt` and the `mean_jitter`."""
        return self.rtt + self.mean_jitter

    @property
    def mean_jitter(self) -> float:
        """Mean additional delay of a segment [s] that no segment ahead holds: half of the `jitter` if uniform."""
        return mean_jitter(self.forward_delay, self.jitter, self.jitter_distribution)

    @property
    def largest_jitter(self) -> float:
        """Largest additional delay of a segment [s]: the `jitter` if uniform."""
        return largest_jitter(self.jitter, self.jitter_distribution)

    def without_jitter(self, **changes: Any) -> Path:
        """Return the path with constant delays, and with other parameters changed."""
        plain: dict[str, Any] = {"jitter_distribution": "uniform", "jitter_correlation": 0.0, "in_order": False}
        return replace(self, **{"jitter": 0.0, **plain, **changes})

    @property
    def good_time(self) -> float:
        """Mean duration of the good state [s], from which `loss` = `bad_loss` `bad_time` / (`bad_time` + `good_time`).

        Infinite without loss.
        """
        return math.inf if self.loss == 0 else self.bad_time * (self.bad_loss / self.loss - 1)


def checked_path(path: object) -> Path:
    """Return an argument that must be a `Path`; raise InvalidValueError if it is not.

    Examples
    --------
    >>> checked_path(0.1)
    Traceback (most recent call last):
    tcpdelay.declare.InvalidValueError: path must be a Path, got 0.1
    """
    if not isinstance(path, Path):
        raise InvalidValueError("path", path, "be a Path")
    return path
