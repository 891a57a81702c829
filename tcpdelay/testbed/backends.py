"""Where experiments can run: this machine's kernel, or a User-Mode Linux guest in real or in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from tcpdelay.testbed.session import Plan

BackendName = Literal["uml-virtual", "uml", "host"]

OnProgress = Callable[[float], None]


class SessionFailedError(RuntimeError):
    """A session did not finish its plan; the message says why."""


class Backend(Protocol):
    """A kernel that can run sessions.

    Attributes
    ----------
    name : str
        Its name in specifications and captures.
    real_time : bool
        Whether a second of the experiment takes a second.
    """

    name: BackendName
    real_time: bool

    def problems(self) -> list[str]:
        """Return what stands in the way of running here, one line each; none if it works."""
        ...

    def hz(self) -> int:
        """Return the kernel's timer interrupts per second, 0 if it is not known."""
        ...

    def kernel(self, directory: Path) -> str:
        """Return the release of the kernel that ran the session in a directory."""
        ...

    def run(self, plan: Plan, directory: Path, core: int, on_progress: OnProgress) -> None:
        """Run a session whose results are handed over in a directory of its own.

        Parameters
        ----------
        plan : Plan
            What to run.
        directory : Path
            An empty directory.
        core : int
            The processor to use, where the backend can choose.
        on_progress : callable
            Called with the done part of the run, 0 to 1, a few times a second.

        Raises
        ------
        SessionFailedError
            If the session did not finish; what it had handed over until then is whole.
        """
        ...


def session_progress(directory: Path) -> float:
    """Return how much of the session in a directory is done, 0 to 1."""
    try:
        return float((directory / "progress").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0.0
