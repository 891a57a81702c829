"""The scenario: source, path, TCP stack and target; application presets and encapsulations."""

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.media import Speech, Utterances, Video
from tcpdelay.scenario.messages import EmpiricalSizes, LognormalSizes, Messages, ParetoSizes, Trace
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario, Target
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import Linux, NewReno2008, Stack

__all__ = [
    "EmpiricalSizes",
    "Flow",
    "InvalidValueError",
    "Linux",
    "LognormalSizes",
    "Messages",
    "NewReno2008",
    "ParetoSizes",
    "Path",
    "Scenario",
    "Source",
    "Speech",
    "Stack",
    "Target",
    "Trace",
    "Utterances",
    "Video",
]
