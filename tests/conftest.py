"""Hypothesis profiles, processes that can be interrupted, and compiled kernels never older than their sources."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from browser_page import FLAGS, Elements
from tcpdelay.compiling import compilation

# No deadline: the first call of a compiled kernel takes seconds, every later one microseconds.
settings.register_profile("local", deadline=None, print_blob=True)
# CI repeats the same examples, so that a pass says the same twice.
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "local"))


KERNELS = ("accuracy", "chain", "compiling", "models", "sim")
"""Folders of the package with compiled kernels, and with the constants that they use."""


def pytest_configure() -> None:
    """Heed interrupts again, and remove compiled kernels that a changed source has made stale.

    What a shell runs in the background ignores interrupts, and hands that on to each process it starts.

    Numba compares a cached kernel with its own source file only, not with those of the kernels and constants it uses.
    All of these are in the folders of `KERNELS`.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    package = Path(__file__).parents[1] / "tcpdelay"
    newest = max(source.stat().st_mtime for folder in KERNELS for source in (package / folder).rglob("*.py"))
    for cached in package.rglob("*.nb[ic]"):
        if cached.stat().st_mtime < newest:
            cached.unlink(missing_ok=True)
    # Which test is the first to call a kernel depends on the tests that run: none may find the notice in its output.
    compilation.QUIET_TIME = 1e6


@pytest.fixture
def no_search(monkeypatch):
    """Take the scenario itself for each margin, where the question is about other parts of a report."""
    # Imported here and below, as most files of tests need no report.
    from tcpdelay.study.margins import Margin

    def at_hand(scenario, target, model, on_margin=None):
        now = {"loss": scenario.path.loss, "rtt": scenario.path.rtt, "bitrate": scenario.source.bitrate}
        return tuple(Margin(quantity, value, value) for quantity, value in now.items())

    monkeypatch.setattr("tcpdelay.advice.judged_delays.margins", at_hand)


FEW_PACKETS = {
    "models.predict.COMPARED_PACKETS": 4000,
    "advice.guideline.COMPARED_PACKETS": 4000,
    "sim.simulation.MOST_PACKETS": 8000,
    "study.transports.PACKETS": 10_000,
    "study.transports.LINK_PACKETS": 20_000,
}
"""Lengths of simulations by default, where no figure is checked."""


@pytest.fixture
def brief_simulations():
    """Return a context in which simulations are short unless their length is given."""

    @contextmanager
    def brief():
        with pytest.MonkeyPatch.context() as patched:
            for name, packets in FEW_PACKETS.items():
                patched.setattr(f"tcpdelay.{name}", packets)
            yield

    return brief


@pytest.fixture
def temporary_directory(tmp_path, monkeypatch):
    """Keep the sessions of a test apart from all others on this machine."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.fixture
def written(tmp_path):
    """Write a file of bytes, by default a capture's, and return its path."""

    def written(content, name="capture.pcap"):
        file = tmp_path / name
        file.write_bytes(content)
        return file

    return written


@pytest.fixture
def loop():
    """An event loop, closed at the end."""
    # Imported here, as the loop needs Linux.
    from tcpdelay.testbed.event_loop import EventLoop

    loop = EventLoop()
    yield loop
    loop.close()


@pytest.fixture
def connect():
    """A function that opens a TCP connection to this machine and returns its two non-blocking ends."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def connect(send_buffer=None):
            sender = stack.enter_context(socket.create_connection(listener.getsockname()))
            receiver = stack.enter_context(listener.accept()[0])
            for end in (sender, receiver):
                end.setblocking(False)
            if send_buffer:
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
            return sender, receiver

        yield connect


@pytest.fixture
def run(capfd, tmp_path, monkeypatch):
    """Run a command in an empty directory; return its exit status, what it printed, and its errors."""
    from tcpdelay.cli.program import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        return status, *capfd.readouterr()

    return run


@pytest.fixture
def refused(run):
    """Run a command that is refused with the status 2 and one line; return the line, with its end."""

    def refused(*arguments):
        status, printed, errors = run(*arguments)
        assert (status, printed) == (2, "")
        assert errors.count("\n") == 1
        return errors

    return refused


@pytest.fixture(scope="session")
def browser():
    found = shutil.which("chromium")
    if found is None and os.environ.get("TCPDELAY_REQUIRE_BROWSER") != "1":
        pytest.skip("needs chromium")
    assert found is not None, "chromium is missing"
    return found


@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens a file at a fragment and returns the page's elements, its complaints, its requests."""

    def open_page(file, fragment="", *flags):
        log = tmp_path / "requests.json"
        command = [browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--log-net-log={log}", *flags]
        done = subprocess.run(
            [*command, "--dump-dom", f"file://{file}#{fragment}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        complaints = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
        events = json.loads(log.read_text())["events"]
        parameters = [event.get("params", {}) for event in events]
        # What the browser asks of its own accord has no origin.
        asked = {
            p["url"] for p in parameters if p.get("url") and p.get("initiator", "not an origin") != "not an origin"
        }
        return Elements(done.stdout), complaints, asked

    return open_page


@pytest.fixture(scope="session")
def findings():
    """Return the guidelines whose reports are tested, by name."""
    from report_cases import guidelines

    return guidelines()


@pytest.fixture(scope="session")
def pages(findings):
    """Return the pages of these guidelines."""
    return {name: found.to_html() for name, found in findings.items()}
