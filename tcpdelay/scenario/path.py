"""The path between the two ends: the settings of a link, each declared once, the path, and presets of paths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path as FilePath
from typing import Any, Literal, Self, get_args

from tcpdelay.declare import (
    Choice,
    InvalidValueError,
    Quantity,
    choice,
    declarations,
    described,
    flag,
    fraction,
    in_bytes,
    in_seconds,
    number,
)
from tcpdelay.scenario.jitter import JitterDistribution, largest_jitter, mean_jitter
from tcpdelay.store import read_toml

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
QUEUE_TARGET: Quantity = in_seconds(
    "Queueing delay at which codel, fq_codel, pie, cake and dualpi2 aim.",
    1e-4,
    5,
    example="5ms",
    hint="the delay is given in seconds: 5 ms is 0.005",
    default_words="5ms, or 15ms for pie and dualpi2",
)
BURST: Quantity = in_bytes(
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


@described
class LossBursts:
    """How losses come together: the settings that a path, a shared link and the testbed have alike."""

    _: KW_ONLY
    loss_burst: float = number(
        "Mean number of losses in a row, counted in segments, not in time: netem's Gilbert model. "
        "For Wi-Fi and cellular links give a bad time instead.",
        1.0,
        100.0,
        "segments",
        details="Such a burst only ends with further segments: it has no duration, and waits for the next "
        "retransmission of an idle flow.",
        example="2",
        default=1.0,
    )
    bad_time: float = in_seconds(
        "Mean duration of a bad state, in which all losses occur: fading or interference on Wi-Fi and cellular links.",
        0.0,
        60.0,
        details="Above 0 the losses come from a Gilbert model in time: a good state without losses and a bad state "
        "alternate, each with an exponentially distributed duration. Their mean durations are such that "
        "`loss` is the mean loss over time.",
        example="100ms",
        hint="the duration is given in seconds: 100 ms is 0.100",
        default=0.0,
    )
    bad_loss: float = fraction(
        "Probability of a loss in the bad state. The good state loses nothing.",
        details="It must be above `loss`.",
        low_excluded=True,
        high_excluded=False,
        unit="fraction of segments",
        example="50%",
        allowed="be a fraction above 0, up to 1",
        default=1.0,
    )

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
    jitter: float = in_seconds(
        "Largest additional delay: each delay is drawn uniformly from 0 to this maximum, so the mean is "
        "half of it, and data may overtake earlier data.",
        0.0,
        1.0,
        details="With another distribution, half of this value is netem's jitter.",
        example="5ms",
        hint="the jitter is given in seconds: 5 ms is 0.005",
        default=0.0,
    )
    jitter_distribution: JitterDistribution = choice(
        "Distribution of the additional delay: uniform from 0 to the jitter, or one of netem's tables, "
        "whose mean and standard deviation are about half of the jitter.",
        details="A delay from a table is up to 2.3 to 2.5 times the jitter, and a normal one may be negative; a "
        "delay below 0 is 0.",
        default="uniform",
    )
    jitter_correlation: float = fraction(
        "Correlation between the additional delays of a segment and the segment ahead.",
        details="Each delay has the same distribution as without correlation. netem's own correlation has no "
        "effect on delays.",
        unit="correlation",
        example="90%",
        allowed="be a fraction from 0 to below 1",
        default=0.0,
    )
    in_order: bool = flag(
        "Keep the order of segments despite the jitter: a segment waits for the segments ahead, as on "
        "radio links and in queues.",
        default=False,
    )

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


# Presets of paths that people have: `path_presets.toml` has their parameters, sources and limits.

WARNING = "real paths of this kind differ widely, so measure yours with ping"
"""Said wherever a preset is used."""


@dataclass(frozen=True)
class Basis:
    """Where parameters of a preset come from."""

    fields: tuple[str, ...]  # The parameters
    statement: str  # What the source says, or that the values are assumed
    source: str = ""  # The source: authors, title and address; empty for an assumption
    # Year, and month or quarter if known, of the measurement or else of the publication; empty for an assumption.
    date: str = ""


@dataclass(frozen=True)
class PresetLink:
    """The bottleneck of a preset, for simulations of a shared link, where losses come from the queue alone."""

    rtt: float  # Round-trip time without queueing [s]
    rate: float  # Rate of the link [bit/s]
    bulk: int  # Number of long transfers on the link
    queue: int | None = None  # Longest queue [packets]; None for the default of the discipline in Linux
    discipline: Discipline = "drop-tail"  # Queue discipline of the link


@dataclass(frozen=True)
class PathPreset:
    """A path that people have."""

    name: str
    title: str  # The path in a few words
    values: Mapping[str, float | bool]  # Parameters of `tcpdelay.Path` [s, fractions]
    ranges: Mapping[str, tuple[float, float]]  # Best and worst value among paths of this kind [s, fractions]
    ranges_from: str  # Where the ranges come from
    basis: tuple[Basis, ...]  # Where the parameters come from; each parameter has an entry
    not_modelled: str  # What such paths do that the model leaves out
    link: PresetLink | None = None  # The bottleneck, if queueing there is a part of the delay

    def changed(self, **changes: Any) -> dict[str, Any]:
        """Return the parameters of `tcpdelay.Path` with some of them changed.

        Without a `one_way_delay`, another `rtt` is taken to be alike in both directions.
        """
        own = {name: value for name, value in self.values.items() if name != "one_way_delay" or "rtt" not in changes}
        return own | changes


def _presets() -> dict[str, PathPreset]:
    """Return the presets of `path_presets.toml`, by name."""
    found = {}
    for name, table in read_toml(FilePath(__file__).with_name("path_presets.toml")).items():
        basis = tuple(Basis(**{**each, "fields": tuple(each["fields"])}) for each in table.pop("basis"))
        link = table.pop("link", None)
        found[name] = PathPreset(name, basis=basis, link=link and PresetLink(**link), **table)
    return found


PATH_PRESETS = _presets()
"""The presets by name."""


def path_preset(name: object) -> PathPreset:
    """Return the preset called `name`."""
    if not isinstance(name, str) or name not in PATH_PRESETS:
        raise InvalidValueError("path", name, f"be one of {', '.join(PATH_PRESETS)}")
    return PATH_PRESETS[name]


# The path: there and back.

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

    rtt: float = in_seconds(
        "Round-trip time.", 1e-6, 60.0, example="100ms", hint="the round-trip time is given in seconds: 100 ms is 0.100"
    )
    loss: float = fraction(
        "Probability that a data segment is lost.",
        details="With correlated losses, the probability that a segment is lost while no earlier segment of its "
        "round is lost; the share of lost segments is larger.",
        unit="fraction of segments",
        example="2%",
    )
    loss_pattern: LossPattern = choice(
        "Loss pattern: independent (random), or the rest of a round after its first loss (correlated).",
        details="Correlated losses are the drop-tail losses of Padhye et al. (1998). A round lasts one "
        "round-trip time from its first segment on.",
        default="random",
    )
    bottleneck: Bottleneck = choice(
        "Unit of the bottleneck queue's limit: packets or bytes. "
        "A queue limited in bytes drops small packets less often.",
        default="packets",
    )
    one_way_delay: float | None = in_seconds(
        "Delay from sender to receiver without TCP.",
        0.0,
        60.0,
        details="At most `rtt`; half of it without a value.",
        example="40ms",
        default_words="half the round-trip time",
        default=None,
    )
    _: KW_ONLY
    ack_loss: float = fraction(
        "Probability that an acknowledgement is lost.", unit="fraction of acknowledgements", example="1%", default=0.0
    )
    reordering: float = fraction(
        "Share of the data segments that overtake the segment ahead.",
        unit="fraction of segments",
        example="1%",
        default=0.0,
    )

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
            Name of a preset; `tcpdelay.scenario.path` has all of them, with the source of each parameter.
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
