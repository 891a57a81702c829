"""The path between the two ends: round-trip time, loss and queue."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

from tcpdelay.declare import Choice, InvalidValueError, described, in_seconds
from tcpdelay.scenario.jitter import largest_jitter, mean_jitter
from tcpdelay.scenario.link import LinkSettings, fraction
from tcpdelay.scenario.path_presets import path_preset

LossPattern = Literal["random", "correlated"]
Bottleneck = Literal["packets", "bytes"]


@described
class Path(LinkSettings):
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

    >>> Path(rtt=0.100, loss=0.5, bad_time=0.1, bad_loss=0.2)
    Traceback (most recent call last):
    tcpdelay.declare.InvalidValueError: loss must be below the bad_loss of 0.2, got 0.5

    A radio link that loses half of the segments for 100 ms in the mean, every 5 s:

    >>> round(Path(rtt=0.060, loss=0.01, bad_time=0.100, bad_loss=0.5).good_time, 3)
    4.9
    """

    rtt: Annotated[
        float,
        in_seconds(
            "Round-trip time.",
            1e-6,
            60.0,
            example="100ms",
            hint="the round-trip time is given in seconds: 100 ms is 0.100",
        ),
    ]
    loss: Annotated[
        float,
        fraction(
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
            in_seconds(
                "Delay from sender to receiver without TCP.",
                0.0,
                60.0,
                details="At most `rtt`; half of it without a value.",
                example="40ms",
                default_words="half the round-trip time",
            ),
        ]
        | None
    ) = None
    _: KW_ONLY
    ack_loss: Annotated[
        float,
        fraction(
            meaning="Probability that an acknowledgement is lost.", unit="fraction of acknowledgements", example="1%"
        ),
    ] = 0.0
    reordering: Annotated[
        float,
        fraction(
            meaning="Share of the data segments that overtake the segment ahead.",
            unit="fraction of segments",
            example="1%",
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        self._check_losses(self.loss)
        self._check_jitter(self.reordering)
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

    @property
    def good_time(self) -> float:
        """Mean duration of the good state [s], from which `loss` = `bad_loss` `bad_time` / (`bad_time` + `good_time`).

        Infinite without loss.
        """
        return math.inf if self.loss == 0 else self.bad_time * (self.bad_loss / self.loss - 1)


def checked_path(path: object) -> Path:
    """Return an argument that must be a `Path`; raise InvalidValueError if it is not."""
    if not isinstance(path, Path):
        raise InvalidValueError("path", path, "be a Path")
    return path
