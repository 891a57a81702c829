"""The path between the two ends: round-trip time, loss and queue."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from tcpdelay.scenario.fields import Choice, InvalidValueError, Quantity, described

LossPattern = Literal["random", "correlated"]
Bottleneck = Literal["packets", "bytes"]
_fraction = partial(Quantity, kind="fraction", low=0.0, high=1.0, high_excluded=True)


@described
class Path:
    """The network between the two ends: round-trip time, loss and queue.

    A model may ignore some of the fields; the chains do not model lost acknowledgements and jitter. The prediction
    reports the ignored fields.

    Parameters
    ----------
    rtt : float
        Round-trip time [s], 1e-6 to 60.
    loss : float
        Probability that a data segment is lost, a fraction from 0 to below 1.
    loss_pattern : {"random", "correlated"}
        Independent losses, or the losses of a drop-tail queue: after the first loss in a round, the rest is lost too.
    bottleneck : {"packets", "bytes"}
        Unit of the bottleneck queue's limit. A queue limited in bytes drops small packets less often.
    one_way_delay : float, optional
        Delay from sender to receiver without TCP [s], 0 to `rtt`; half the round-trip time by default.
    loss_burst : float
        Mean number of segments lost in a row, 1 to 100; above 1 the losses follow a Gilbert model.
    ack_loss : float
        Probability that an acknowledgement is lost, a fraction from 0 to below 1.
    jitter : float
        Largest additional delay of a data segment [s], 0 to 1. The additional delay is uniformly distributed from 0 to
        this value, so it also reorders segments.
    reordering : float
        Share of the data segments that overtake the segment ahead, a fraction from 0 to below 1.

    Raises
    ------
    InvalidValueError
        If a value is not a number, is out of its range or is not one of the allowed words; a ValueError.

    Examples
    --------
    >>> Path(rtt=0.100, loss=0.02).forward_delay
    0.05
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
        _fraction(meaning="Probability that a data segment is lost.", unit="fraction of segments", example="2%"),
    ]
    loss_pattern: Annotated[
        LossPattern,
        Choice(meaning="Loss pattern: independent (random), or the rest of a round after its first loss (correlated)."),
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
            meaning="Mean number of segments lost in a row.",
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
            meaning="Largest additional delay of a data segment, which also reorders segments.",
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

    def __post_init__(self) -> None:
        burst = self.loss_burst
        if burst > 1 and self.loss > burst / (1 + burst):
            raise InvalidValueError(
                "loss", self.loss, f"be at most {burst / (1 + burst):g} with a loss_burst of {burst:g}"
            )
        if self.one_way_delay is not None and self.one_way_delay > self.rtt:
            allowed = f"lie between 0 and {self.rtt:g} s (the round-trip time)"
            raise InvalidValueError("one_way_delay", self.one_way_delay, allowed)

    @property
    def forward_delay(self) -> float:
        """Delay from sender to receiver [s]: `one_way_delay` if given, or half the round-trip time."""
        return self.rtt / 2 if self.one_way_delay is None else self.one_way_delay
