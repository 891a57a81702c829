"""The settings of a link, each declared once: how losses come together, random delays, rate and queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from functools import partial
from typing import Annotated, Any, Literal, Self, get_args

from tcpdelay.declare import (
    Choice,
    Flag,
    InvalidValueError,
    Quantity,
    declarations,
    described,
    in_bytes,
    in_seconds,
    number,
)
from tcpdelay.scenario.jitter import JitterDistribution

# What a rate and the queue before it are. The testbed narrows a range to that of the kernel.

Discipline = Literal["drop-tail", "red", "dred", "codel", "fq_codel", "pie", "cake", "dualpi2", "policer"]
"""Queue disciplines of a shared link."""
LONGEST_QUEUE = 65_000
"""Longest queue [packets]."""
SMALLEST_PACKET = 40
"""Size of the smallest packet [bytes]; a queue limited in bytes holds up to `LONGEST_QUEUE` such packets."""
RATE = Quantity(
    kind="rate",
    meaning="Rate of the link.",
    low=1e2,
    high=1e12,
    unit="bit/s",
    example="3Mbit/s",
    default_words="no limit",
)
CAPACITY = Quantity(
    kind="count",
    meaning="Largest queue length, with the packet that is being sent.",
    details="In `unit`: 1 to 65 000 packets, or 1 to 2 600 000 bytes; absent with a policer. Of codel, fq_codel, pie, "
    "cake and dualpi2 1 to 10 240 packets, by default as in Linux: 1000 packets, 10 240 for fq_codel, 10 000 for "
    "dualpi2, and 4 MiB of memory for cake, taken for 1820 packets.",
    low=1,
    high=LONGEST_QUEUE * SMALLEST_PACKET,
    unit="packets or bytes",
    example="100",
)
DISCIPLINE = Choice(
    words=get_args(Discipline),
    meaning="Packets that the queue drops: the last (drop-tail), some early (red), those beyond a threshold (dred), "
    "or those that keep its delay short (codel, fq_codel, pie, cake, dualpi2). A policer has no queue: it drops what "
    "exceeds the token bucket of the burst.",
)
QUEUE_TARGET = in_seconds(
    "Queueing delay at which codel, fq_codel, pie, cake and dualpi2 aim.",
    1e-4,
    5,
    example="5ms",
    hint="the delay is given in seconds: 5 ms is 0.005",
    default_words="5ms, or 15ms for pie and dualpi2",
)
BURST = in_bytes(
    "Token bucket of the rate: bytes that leave at once after an idle time.", 0, 1_000_000, example="20000B"
)
PEAK_RATE = replace(
    RATE,
    meaning="Rate at which a burst leaves the token bucket.",
    details="Above the rate of the link; without it they leave at once. It needs a `burst`, and does not go with cake "
    "or a policer.",
    example="50Mbit/s",
    default_words="they leave at once",
)

# How data is lost and delayed.

fraction = partial(Quantity, kind="fraction", low=0.0, high=1.0, high_excluded=True)


@described
class LossBursts:
    """How losses come together: the settings that a path, a shared link and the testbed have alike."""

    _: KW_ONLY
    loss_burst: Annotated[
        float,
        number(
            "Mean number of losses in a row, counted in segments, not in time: netem's Gilbert model. "
            "For Wi-Fi and cellular links give a bad time instead.",
            1.0,
            100.0,
            "segments",
            details="Such a burst only ends with further segments: it has no duration, and waits for the next "
            "retransmission of an idle flow.",
            example="2",
        ),
    ] = 1.0
    bad_time: Annotated[
        float,
        in_seconds(
            "Mean duration of a bad state, in which all losses occur: fading or interference on Wi-Fi and "
            "cellular links.",
            0.0,
            60.0,
            details="Above 0 the losses come from a Gilbert model in time: a good state without losses and a bad state "
            "alternate, each with an exponentially distributed duration. Their mean durations are such that "
            "`loss` is the mean loss over time.",
            example="100ms",
            hint="the duration is given in seconds: 100 ms is 0.100",
        ),
    ] = 0.0
    bad_loss: Annotated[
        float,
        fraction(
            meaning="Probability of a loss in the bad state. The good state loses nothing.",
            details="It must be above `loss`.",
            low_excluded=True,
            high_excluded=False,
            unit="fraction of segments",
            example="50%",
            allowed="be a fraction above 0, up to 1",
        ),
    ] = 1.0

    def _check_losses(self, loss: float) -> None:
        """Raise InvalidValueError if the settings, or a probability of losses, contradict each other."""
        burst, bad_time, bad_loss = self.loss_burst, self.bad_time, self.bad_loss
        if burst > 1 and loss > (largest := burst / (1 + burst)):
            raise InvalidValueError("loss", loss, f"be at most {largest:g} with a loss_burst of {burst:g}")
        if bad_time > 0 and burst > 1:
            raise InvalidValueError("loss_burst", burst, f"be 1 with a bad_time of {bad_time:g} s")
        if bad_time > 0 and loss >= bad_loss:
            raise InvalidValueError("loss", loss, f"be below the bad_loss of {bad_loss:g}")
        if bad_time == 0 and bad_loss != 1:
            raise InvalidValueError("bad_loss", bad_loss, "be 1 without a bad_time")


@described
class LinkSettings(LossBursts):
    """Losses and random delays: the settings that a path and a link of the testbed have alike.

    A class that inherits them has them as fields, and so as options, as keys of files and as axes. What does not honour
    a new setting refuses it: a model by the names of fields that it knows, the testbed by `EMULATED`.
    """

    _: KW_ONLY
    jitter: Annotated[
        float,
        in_seconds(
            "Largest additional delay: each delay is drawn uniformly from 0 to this maximum, so the mean is "
            "half of it, and data may overtake earlier data.",
            0.0,
            1.0,
            details="With another distribution, half of this value is netem's jitter.",
            example="5ms",
            hint="the jitter is given in seconds: 5 ms is 0.005",
        ),
    ] = 0.0
    jitter_distribution: Annotated[
        JitterDistribution,
        Choice(
            meaning="Distribution of the additional delay: uniform from 0 to the jitter, or one of netem's tables, "
            "whose mean and standard deviation are about half of the jitter.",
            details="A delay from a table is up to 2.3 to 2.5 times the jitter, and a normal one may be negative; a "
            "delay below 0 is 0.",
        ),
    ] = "uniform"
    jitter_correlation: Annotated[
        float,
        fraction(
            meaning="Correlation between the additional delays of a segment and the segment ahead.",
            details="Each delay has the same distribution as without correlation. netem's own correlation has no "
            "effect on delays.",
            unit="correlation",
            example="90%",
            allowed="be a fraction from 0 to below 1",
        ),
    ] = 0.0
    in_order: Annotated[
        bool,
        Flag(
            meaning="Keep the order of segments despite the jitter: a segment waits for the segments ahead, as on "
            "radio links and in queues."
        ),
    ] = False

    def _check_jitter(self, reordering: float = 0.0) -> None:
        """Raise InvalidValueError if the settings, or a share of reordered segments, contradict each other."""
        if self.jitter == 0 and self.jitter_distribution != "uniform":
            raise InvalidValueError("jitter_distribution", self.jitter_distribution, "be 'uniform' without a jitter")
        if self.jitter == 0 and self.jitter_correlation > 0:
            raise InvalidValueError("jitter_correlation", self.jitter_correlation, "be 0 without a jitter")
        if self.in_order and reordering > 0:
            raise InvalidValueError("reordering", reordering, "be 0 where segments keep their order (in_order)")

    def without_jitter(self, **changes: Any) -> Self:
        """Return the same settings with constant delays, and with other settings changed."""
        constant = {name: LINK_DEFAULTS[name] for name in _JITTER}
        return replace(self, **{**constant, **changes})


LINK_DEFAULTS: Mapping[str, Any] = {name: declared.default for name, declared in declarations(LinkSettings).items()}
"""The settings of a link with values that have no effect, by name."""
_JITTER = ("jitter", "jitter_distribution", "jitter_correlation", "in_order")


def link_settings(link: object) -> dict[str, Any]:
    """Return the settings of a link that a path, or a link of the testbed, has."""
    return {name: getattr(link, name) for name in LINK_DEFAULTS}
