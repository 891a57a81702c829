"""The findings on a source whose rate is not constant, as data; all delays are simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tcpdelay.advice.judged_delays import JudgedDelays
from tcpdelay.advice.request import GuidelineRequest
from tcpdelay.models.interface import Requested
from tcpdelay.models.predict import model_to_compare, solved_once
from tcpdelay.models.validity import beyond_validation
from tcpdelay.models.verdict import judge
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import Quic, transport_name
from tcpdelay.scenario.target import REPORTED_QUANTILES
from tcpdelay.units import quantile_name

NOT_FOR_SOURCES = (
    "the fair TCP rate",
    "the time with a backlog",
    "playout buffers for single losses",
    "the ranges of margins",
    "rules on packets of one size",
)
"""Contents of a report on a flow of constant rate that a report on another source does not have."""


@dataclass(frozen=True, kw_only=True)
class SourceFindings(JudgedDelays):
    """The findings on a source whose rate is not constant, all simulated; `JudgedDelays` has the other fields.

    What `JudgedDelays` says of packets holds for the messages of the source.

    Parameters
    ----------
    source : Source
        The source.
    compared : int
        Number of messages in each simulation of the search for the margins.
    """

    source: Source
    compared: int

    recorded = (
        *("source", "path", "stack", "target", "works", "late_range", "parts", "verdict", "margins", "recommendations"),
        *(
            "alternatives",
            "compared",
            "expected_error",
            "notes",
            "ignored",
            "loss_curve",
            "transports",
            "simulated_because",
        ),
    )

    def quantile_of_kind(self, kind: str, share: float) -> float:
        """Return the delay [s] within which a share of the messages of a kind arrives; NaN if these are too few."""
        return self.by_kind[kind].known_quantile(share)

    def other_entries(self) -> dict[str, Any]:
        """Return the rates and sizes of the source as its entry, and the delays of each kind of message."""
        source = {
            "kind": type(self.source).__name__,
            "text": repr(self.source),
            "mean_bitrate": self.source.mean_bitrate,
            "peak_bitrate": self.source.peak_bitrate,
            "message_rate": self.source.message_rate,
            "mean_size": self.source.mean_size,
        }
        shares = dict.fromkeys((*REPORTED_QUANTILES, self.target.quantile))
        by_kind = {
            kind: {
                "messages": delays.packets,
                "mean": delays.mean,
                **{quantile_name(share): self.quantile_of_kind(kind, share) for share in shares},
                "late_fraction": delays.late_fraction(self.target.limit),
            }
            for kind, delays in self.by_kind.items()
        }
        return {"source": source, "by_kind": by_kind}


def source_findings(request: GuidelineRequest) -> SourceFindings:
    """Simulate a source whose rate is not constant, and return the findings: verdict, margins and recommendations.

    Raises
    ------
    InvalidValueError
        If the method is "chain", or the simulator refuses the scenario.

    Examples
    --------
    >>> from tcpdelay.scenario import Path, Scenario, Speech, Target
    >>> speech = Scenario(Speech(174, 0.020), Path(rtt=0.100, loss=0.02))
    >>> found = source_findings(GuidelineRequest(speech, Target(0.2)))
    >>> found.verdict, list(found.by_kind)
    ('works', ['packet', 'first packet'])
    """
    if request.method == "chain":
        allowed = "be 'simulation' or 'auto' for a source whose rate is not constant"
        raise InvalidValueError("method", request.method, allowed)
    with solved_once():
        return _findings(request)


def _findings(request: GuidelineRequest) -> SourceFindings:
    scenario, target, on_progress = request.scenario, request.target, request.on_progress
    model = model_to_compare(scenario, "simulation", on_progress)
    judgement = judge(scenario, target, "simulation", Requested(parts=True, target=target), on_progress)
    answer = judgement.answer
    carried = answer.sustainable or not answer.answered
    carrier = transport_name(scenario.stack)
    endless = f"{carrier} cannot carry this source on this path: the backlog grows for as long as it sends"
    quic = isinstance(scenario.stack, Quic)
    beyond = beyond_validation(scenario.source, scenario.path, scenario.stack, "simulation") if quic else []
    return SourceFindings.of(
        request,
        judgement,
        answer,
        answer,
        model,
        source=scenario.source,
        compared=getattr(model, "packets", 0),
        notes=(*beyond, *(() if carried else (endless,))),
        simulated_because="the rate of the source is not constant",
    )
