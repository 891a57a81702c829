"""The path between the two ends: round-trip time, loss, queue."""

from __future__ import annotations

from typing import Annotated, Literal

from tcpdelay.scenario.fields import Choice, InvalidValueError, Quantity, described

LossPattern = Literal["random", "correlated"]
Bottleneck = Literal["packets", "bytes"]


@described
class Path:
    """The network between the two ends: round-trip time and loss.

    `supports` of a model says which fields it honours: the chains do not know lost acknowledgements and jitter.

    Parameters
    ----------
    rtt : float
        Round-trip time [s], 1e-6 to 60.
    loss : float
        Probability that a data segment is lost, a fraction from 0 to below 1.
    loss_pattern : {"random", "correlated"}
        Independent losses, or drop-tail losses, where the rest of a round is lost with its first loss.
    bottleneck : {"packets", "bytes"}
        Whether the limit of the bottleneck's queue counts packets or bytes (small packets are then dropped less often).
    one_way_delay : float, optional
        Delay from sender to receiver without TCP [s], 0 to `rtt`; half the round-trip time by default.
    loss_burst : float
        Mean number of segments lost in a row, 1 to 100; above 1 the losses follow a Gilbert model.
    ack_loss : float
        Probability that an acknowledgement is lost, a fraction from 0 to below 1.
    jitter : float
        Largest additional delay of a data segment [s], 0 to 1: uniform from 0, which also reorders segments.
    reordering : float
        Share of the data segments that overtake the segment ahead, a fraction from 0 to below 1.

    Raises
    ------
    InvalidValueError
        If a value is no number, is out of its range or is not one of the allowed words; a ValueError.

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
        Quantity(
            kind="fraction",
            meaning="Probability that a data segment is lost.",
            low=0.0,
            high=1.0,
            high_excluded=True,
            unit="fraction of segments",
            example="2%",
        ),
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
        Quantity(
            kind="fraction",
            meaning="Probability that an acknowledgement is lost.",
            low=0.0,
            high=1.0,
            high_excluded=True,
            unit="fraction of acknowledgements",
            example="1%",
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
        Quantity(
            kind="fraction",
            meaning="Share of the data segments that overtake the segment ahead.",
            low=0.0,
            high=1.0,
            high_excluded=True,
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
        """One-way delay from sender to receiver [s]: the given one, or half the round-trip time."""
        return self.rtt / 2 if self.one_way_delay is None else self.one_way_delay
