"""The scenario: source, path, TCP stack and target; application presets and encapsulations."""

from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, NewReno2008, Stack
from tcpdelay.scenario.target import Target

__all__ = ["Flow", "InvalidValueError", "Linux", "NewReno2008", "Path", "Scenario", "Stack", "Target"]
