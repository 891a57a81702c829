"""The scenario: source, path, TCP stack and target; application presets and encapsulations."""

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.sources.message_trace import Trace
from tcpdelay.scenario.sources.sizes import EmpiricalSizes, LognormalSizes, Messages, ParetoSizes
from tcpdelay.scenario.sources.speech import Speech, Utterances
from tcpdelay.scenario.sources.video import Video
from tcpdelay.scenario.stack import Linux, NewReno2008, Stack
from tcpdelay.scenario.target import Target

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
