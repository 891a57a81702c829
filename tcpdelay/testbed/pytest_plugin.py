"""A plugin of pytest: the fixture `tcpdelay_path`, with which a test runs a client and a server over a bad path.

pytest loads it by itself where tcpdelay is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tcpdelay.testbed.backends import UmlBackend
    from tcpdelay.testbed.programs import ProgramRun
    from tcpdelay.testbed.topology import EmulatedPath

MARKER = "tcpdelay"
PATIENCE = 60.0
"""Time without progress after which a run is given up [s]."""


@dataclass(frozen=True)
class BadPath:
    """A path over which a test runs programs; the same seed gives the same packets.

    Attributes
    ----------
    path : EmulatedPath
        Round-trip time, losses, rate and queue.
    seed : int
        Seed of the losses, 0 or more.
    hz : int
        Timer interrupts per second of the guest's kernel.
    kernel : str
        Version of the guest's kernel, such as "7.3".
    duration : float
        Longest time from the start of the client in the guest [s].
    """

    path: EmulatedPath
    seed: int
    hz: int
    kernel: str
    duration: float
    _new_directory: Callable[[], Path]

    def over(self, **settings: Any) -> BadPath:
        """Return the same path with other settings: those of `EmulatedPath`, and the other attributes."""
        return _with(self, settings)

    def run(self, server: Sequence[str], client: Sequence[str], **settings: Any) -> ProgramRun:
        """Run a server and a client at the two ends of this path.

        Parameters
        ----------
        server, client : sequence of str
            Command lines. The client finds the server by the name `server`. Both start in the directory of the test.
        **settings
            Further arguments of `tcpdelay.testbed.programs.run_programs`.

        Returns
        -------
        ProgramRun
            Exit statuses, output with times, and packet traces.
        """
        from tcpdelay.testbed.programs import run_programs

        settings = {"working_directory": Path.cwd(), "linger": 5.0, **settings}
        directory, guest = self._new_directory(), _guest(self.hz, self.kernel)
        return run_programs(
            client, server, self.path, directory, guest, duration=self.duration, seed=self.seed, **settings
        )


def _with(path: BadPath, settings: dict[str, Any]) -> BadPath:
    own = {name: settings.pop(name) for name in ("seed", "hz", "kernel", "duration") if name in settings}
    return replace(path, path=replace(path.path, **settings), **own)


def _guest(hz: int, kernel: str) -> UmlBackend:
    from tcpdelay.testbed.backends import VirtualTimeBackend

    return VirtualTimeBackend(hz, kernel, patience=PATIENCE)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(rtt=..., loss=..., seed=...): path of the fixture tcpdelay_path; the settings of "
        "tcpdelay.testbed.topology.EmulatedPath, and seed, hz, kernel and duration.",
    )


@pytest.fixture
def tcpdelay_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BadPath:
    """Return a path between a client and a server in a guest in virtual time.

    It has a round-trip time of 100 ms and loses 1 %, unless the marker `tcpdelay` says otherwise. The test is skipped
    if the guest does not work here.
    """
    if sys.platform != "linux":
        pytest.skip(f"tcpdelay_path: the guest runs on Linux only, not on {sys.platform!r}")
    pytest.importorskip("pyroute2", reason="tcpdelay_path: needs the package tcpdelay[testbed]")
    from tcpdelay.testbed.topology import EmulatedPath
    from tcpdelay.testbed.virtual_kernel import DEFAULT_KERNEL

    def new_directory() -> Path:
        return tmp_path_factory.mktemp("tcpdelay")

    path = BadPath(EmulatedPath(rtt=0.1, loss=0.01), 0, 250, DEFAULT_KERNEL, 600.0, new_directory)
    marker = request.node.get_closest_marker(MARKER)
    if marker is not None:
        path = _with(path, dict(marker.kwargs))
    for problem in _guest(path.hz, path.kernel).problems():
        pytest.skip(f"tcpdelay_path: {problem}")
    return path
