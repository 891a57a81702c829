"""What a rule of the guideline is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tcpdelay.rules.situation import Effect, Situation

Level = Literal["tcp", "application"]
Status = Literal["set", "default", "built in", "gone", "not a setting"]

NOT_THERE = "cannot be set there"
"""What stands where a system has no such setting."""

NO_EVIDENCE = "none here; it follows from the flow control of TCP (RFC 9293)"
"""What stands where nothing in the repository shows a rule."""


@dataclass(frozen=True)
class Settings:
    """How each system is told; where it cannot be, that is said.

    Parameters
    ----------
    linux, macos, windows, browser : str
        The socket option, sysctl, command or programming interface. In braces stand numbers of the scenario:
        `{load}`, packets per round-trip time; `{segment}`, bytes of the whole packets that fit into a segment.
    """

    linux: str
    macos: str = NOT_THERE
    windows: str = NOT_THERE
    browser: str = NOT_THERE

    def filled_in(self, load: int | str, segment: int | str) -> Settings:
        """Return the settings with a scenario's numbers, or with letters that stand for them.

        Examples
        --------
        >>> Settings("ip route change … initcwnd {load}").filled_in(load=12, segment=1392).linux
        'ip route change … initcwnd 12'
        """
        return Settings(*(text.format(load=load, segment=segment) for text in self.texts))

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """The four settings: Linux, macOS, Windows, browser."""
        return self.linux, self.macos, self.windows, self.browser


@dataclass(frozen=True)
class Rule:
    """One rule of the guideline.

    Parameters
    ----------
    key : str
        Stable name.
    level : {"tcp", "application"}
        Who follows it.
    title, reason : str
        What to do, and why.
    condition : str
        When it holds, in words.
    holds : callable
        Whether it holds in a situation.
    effect : callable
        What it does in a situation, computed; None where nothing can be said.
    status : {"set", "default", "built in", "gone", "not a setting"}
        Whether it has to be set on today's Linux.
    settings : Settings
        How each system is told.
    evidence : str
        Page, table or captures in this repository that show it, as a path from its root; or `NO_EVIDENCE`.
    finding : callable, optional
        What else is to be said of a situation, in a sentence.
    """

    key: str
    level: Level
    title: str
    reason: str
    condition: str
    holds: Callable[[Situation], bool]
    effect: Callable[[Situation], Effect | None]
    status: Status
    settings: Settings
    evidence: str
    finding: Callable[[Situation], str] | None = None


def always(_: Situation) -> bool:
    """Hold in every situation."""
    return True
