"""The request for a guideline: scenario, target and model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tcpdelay.models.predict import AnsweredBy
from tcpdelay.scenario.applications import Application
from tcpdelay.scenario.path_presets import PathPreset
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.target import Target

if TYPE_CHECKING:
    from tcpdelay.capture.estimate import PathEstimate


@dataclass(frozen=True)
class GuidelineRequest:
    """A scenario, the demand on its delay, and the model that judges whether the demand is met.

    Parameters
    ----------
    scenario : Scenario
        The scenario.
    target : Target
        The demand on the delay.
    estimate : PathEstimate, optional
        The measurement from which the path was made.
    application : Application, optional
        The application that sends the messages.
    method : {"chain", "simulation", "auto"}
        The model of the verdict and the delays.
    on_progress : callable, optional
        Function that a simulation calls with the number of packets simulated and the largest number of packets.
    on_margin : callable, optional
        Function called with the number of margins found and the number of all margins.
    path_preset : PathPreset, optional
        The preset from which the path was made.
    """

    scenario: Scenario
    target: Target
    estimate: PathEstimate | None = None
    application: Application | None = None
    method: AnsweredBy = "auto"
    on_progress: Callable[[int, int], None] | None = None
    on_margin: Callable[[int, int], None] | None = None
    path_preset: PathPreset | None = None
