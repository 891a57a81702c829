"""The figures of a verdict: quantiles, late packets and the mean of the delays that it rests on."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from typing import Any

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.interface import Answer, NotSettledError, settled_record
from tcpdelay.models.verdict import Verdict
from tcpdelay.questions.margins import Margin
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.stack import KnownStack
from tcpdelay.scenario.target import Target
from tcpdelay.units import quantile_name

REPORTED_QUANTILES = (0.5, 0.95, 0.99)


class JudgedDelays(ABC):
    """The delays of findings, and the verdict on them; the fields are those of `tcpdelay.advice.guideline.Findings`."""

    path: Path
    stack: KnownStack
    target: Target
    works: bool
    answer: Answer
    late_range: tuple[float, float]
    verdict: Verdict
    margins: tuple[Margin, ...]
    simulated_because: str
    unsettled: NotSettledError | None

    @property
    def settled(self) -> bool:
        """Whether the expected error of the prediction stays on one side of the limit."""
        fewest, most = (self.target.allows(share) for share in self.late_range)
        return fewest == most

    @property
    def distribution(self) -> DelayDistribution:
        """The predicted delays.

        Raises
        ------
        NotSettledError
            If the simulation has not settled, and the chain has no answer either.
        """
        return self.answer.require()

    def quantile_of(self, share: float) -> float:
        """Return the delay [s] within which a share of the packets arrives; NaN if the simulation has not settled."""
        return self.distribution.quantile(share) if self.answer.answered else math.nan

    def late_after(self, delay: float) -> float:
        """Return the share of packets later than a delay [s]; NaN if the simulation has not settled."""
        return self.distribution.late_fraction(delay) if self.answer.answered else math.nan

    @property
    def mean(self) -> float:
        """Mean delay [s]; NaN if the simulation has not settled."""
        return self.distribution.mean if self.answer.answered else math.nan

    @property
    def jitter(self) -> float:
        """Standard deviation of the delay [s]; NaN if the simulation has not settled."""
        return self.distribution.jitter if self.answer.answered else math.nan

    @property
    def quantile(self) -> float:
        """The target's quantile of the delay [s]; NaN if the simulation has not settled."""
        return self.quantile_of(self.target.quantile)

    @property
    def late_fraction(self) -> float:
        """Share of the packets that arrive later than the target's limit; NaN if the simulation has not settled."""
        return self.late_after(self.target.limit)

    def delay_record(self) -> dict[str, Any]:
        """Return the figures of the delay as entries of a record, in seconds and fractions."""
        answer, refusal = self.answer, self.unsettled or self.answer.refusal
        return {
            "mean": self.mean,
            "jitter": self.jitter,
            **{quantile_name(q): self.quantile_of(q) for q in REPORTED_QUANTILES},
            "target_quantile": self.quantile,
            "late_fraction": self.late_fraction,
            "method": answer.method,
            "sustainable": answer.sustainable if answer.answered else None,
            **settled_record(refusal if isinstance(refusal, NotSettledError) else None),
        }

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain numbers, strings, lists and dictionaries."""

    def to_json(self) -> str:
        """Return the findings as JSON: delays in seconds, rates in bit/s, shares as fractions."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)
