"""The scenario and the expected error, which the answers to all questions about players have."""

from __future__ import annotations

from dataclasses import dataclass, field

from tcpdelay.distribution import ExpectedError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import Stack

MOST_MESSAGES = 20_000_000
"""Largest number of messages in the simulation of a question about players."""


@dataclass(frozen=True, kw_only=True)
class PlayerAnswer:
    """The scenario of a question about players, and the expected error of its simulation.

    Parameters
    ----------
    scenario : Scenario
        Source, path and stack.
    expected_error : ExpectedError
        Expected error of the simulated delays.
    """

    scenario: Scenario = field(repr=False)
    expected_error: ExpectedError = field(repr=False)

    @property
    def source(self) -> Source:
        """The source."""
        return self.scenario.source

    @property
    def path(self) -> Path:
        """The path."""
        return self.scenario.path

    @property
    def stack(self) -> Stack:
        """The TCP implementation."""
        return self.scenario.stack
