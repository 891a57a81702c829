"""Programs that speak QUIC with a library, and measured flows with such a program at each end."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from tcpdelay.testbed.event_loop import READABLE, EventLoop, die_with_parent
from tcpdelay.testbed.experiment import QUIC_CONGESTION_CONTROLS, Experiment, Implementation
from tcpdelay.testbed.flows import PacketLog
from tcpdelay.testbed.network import PORT, Network, Node
from tcpdelay.testbed.virtual_kernel import cache_directory

# The programs of the testbed that speak QUIC with a library: their sources, and their builds.

MISSING_AIOQUIC = "the package aioquic is missing; run: pip install 'tcpdelay[quic]'"
BUILD_TIME = 900.0
"""Longest time of a build, which first fetches the library [s]."""


class QuicBuildError(RuntimeError):
    """The program could not be built; the message is one line."""


@dataclass(frozen=True)
class QuicProgram:
    """A program that speaks QUIC with a library; `build` makes `product` of the sources in `folder`."""

    folder: str
    sources: tuple[str, ...]
    build: tuple[str, ...]
    build_settings: Mapping[str, str]
    product: str
    tool_hint: str
    settings: Mapping[str, str]
    """Environment in which the program runs."""

    @property
    def missing(self) -> str | None:
        """What the build lacks, in one line; None if it can run, or the program has been built."""
        if self.path.is_file() or shutil.which(self.build[0]) is not None:
            return None
        library = self.folder.replace("_", "-")
        return f"the program {self.build[0]} is missing, which builds {library}; install {self.tool_hint}"

    @property
    def path(self) -> Path:
        """Path of the program in the user's cache; its name has a hash of its sources, so a change is built."""
        content = hashlib.sha256()
        for name, text in self.texts():
            content.update(f"{name}\0{len(text)}\0{text}".encode())
        return cache_directory().parent / "quic" / f"{self.folder}-{content.hexdigest()[:8]}"

    def texts(self) -> list[tuple[str, str]]:
        """Return the names and texts of the sources."""
        folder = resources.files("tcpdelay.testbed") / self.folder
        return [(name, (folder / name).read_text(encoding="utf-8")) for name in self.sources]


PROGRAMS: Mapping[Implementation, QuicProgram] = {
    "quic-go": QuicProgram(
        folder="quic_go",
        sources=("go.mod", "go.sum", "main.go", "messages.go", "receiver.go", "sender.go"),
        build=("go", "build", "-o", "quic_go", "."),
        # Without cgo the program is one static file. -mod=readonly refuses what go.sum does not list.
        build_settings={"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false"},
        product="quic_go",
        tool_hint="Go 1.24 or later, such as Debian's golang-go",
        settings={
            # netem would delay and drop several packets as one.
            "QUIC_GO_DISABLE_GSO": "true",
            "QUIC_GO_DISABLE_ECN": "true",
            "QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING": "true",
        },
    ),
    "quinn": QuicProgram(
        folder="quinn",
        sources=("Cargo.toml", "Cargo.lock", "src/main.rs", "src/messages.rs"),
        # --locked refuses what Cargo.lock does not list.
        build=("cargo", "build", "--release", "--locked", "--quiet", "--target-dir", "target"),
        build_settings={},
        product="target/release/quinn_flow",
        tool_hint="Rust 1.85 or later from rustup.rs",
        settings={},
    ),
}
"""The programs by implementation; aioquic runs in the session's own process."""


def build_quic_program(implementation: Implementation) -> Path:
    """Build the program of an implementation unless it has been built from the same sources, and return its path.

    The first build fetches the library from Go's module proxy or crates.io, and checks it against `go.sum` or
    `Cargo.lock`. It takes a minute or two.
    """
    program = PROGRAMS[implementation]
    path = program.path
    if path.is_file():
        return path
    if program.missing is not None:
        raise QuicBuildError(program.missing)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            for name, text in program.texts():
                file = Path(work, name)
                file.parent.mkdir(exist_ok=True)
                file.write_text(text, encoding="utf-8")
            environment = {**os.environ, **program.build_settings}
            done = subprocess.run(
                program.build,
                cwd=work,
                env=environment,
                capture_output=True,
                text=True,
                timeout=BUILD_TIME,
                check=False,
            )
            if done.returncode != 0:
                lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
                raise QuicBuildError(f"the build of {implementation} failed: {lines[-1]}")
            Path(work, program.product).replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QuicBuildError(f"{implementation} cannot be built in {path.parent}: {error}") from error
    return path


def quic_problems(experiments: Iterable[Experiment]) -> list[str]:
    """Return what is missing for the QUIC implementations of experiments, one line each; empty if nothing is."""
    needed = {experiment.implementation for experiment in experiments if experiment.application == "quic"}
    problems = []
    if "aioquic" in needed and find_spec("aioquic") is None:
        problems.append(MISSING_AIOQUIC)
    return problems + [
        program.missing for name, program in PROGRAMS.items() if name in needed and program.missing is not None
    ]


# A measured flow over QUIC with a program at each end, which the session starts and stops.

ENDS = ("sender", "receiver")


@dataclass(eq=False)
class QuicProgramFlow:
    """A measured flow between two programs."""

    loop: EventLoop
    log: PacketLog  # The log of the messages; it is filled when both programs have ended
    experiment: Experiment  # Implementation, delivery and groups
    network: Network  # The network of the experiment
    program: Path  # The program that `build_quic_program` has built
    messages: Path  # File with the messages of the flow
    number: int  # Number of the flow within the experiment
    on_ready: Callable[[], None]  # Called once, when the handshake is complete at both ends
    qlog: Path | None = None  # Path of the qlogs of both ends; `.sender.qlog` and `.receiver.qlog` are appended

    def __post_init__(self) -> None:
        self.complete = False
        self._files = {end: self.messages.with_suffix(f".{end}.times") for end in ENDS}
        self._errors = {end: self.messages.with_suffix(f".{end}.error") for end in ENDS}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._buffers = dict.fromkeys(ENDS, b"")
        self._ready = 0
        self._implementation = self.experiment.implementation
        key_kind = self.experiment.key_kind
        self._command = [
            str(self.program),
            f"-address={self.network.receiver_address}:{PORT + self.number}",
            f"-messages={self.messages}",
            f"-delivery={self.experiment.delivery}",
            f"-group={self.experiment.group}",
            f"-key-kind={-1 if key_kind is None else key_kind}",
        ]
        if len(QUIC_CONGESTION_CONTROLS[self.experiment.implementation]) > 1:
            self._command.append(f"-congestion-control={self.experiment.congestion_control}")

    def connect(self) -> None:
        """Start the receiver; the sender starts when the receiver listens."""
        self._start("receiver", self.network.receiver)

    def _start(self, end: str, node: Node) -> None:
        options = [f"-times={self._files[end]}"]
        if end == "sender":
            options.append("-sender")
        if self.qlog is not None:
            options.append(f"-qlog={self.qlog.with_name(f'{self.qlog.name}.{end}.qlog')}")
        with self._errors[end].open("wb") as errors, node.entered():
            process = subprocess.Popen(
                [*self._command, *options],
                env={**os.environ, **PROGRAMS[self._implementation].settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL),
            )
        self._processes[end] = process
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        os.set_blocking(descriptor, False)
        self.loop.watch(descriptor, READABLE, lambda _: self._read(end, descriptor))

    def _read(self, end: str, descriptor: int) -> None:
        data = os.read(descriptor, 4096)
        if not data:
            self.loop.forget(descriptor)
            self._end(end)
            return
        *lines, self._buffers[end] = (self._buffers[end] + data).split(b"\n")
        for line in lines:
            if line == b"listening":
                self._start("sender", self.network.sender)
            elif line == b"ready":
                self._ready += 1
                if self._ready == len(ENDS):
                    self.on_ready()
            elif line == b"complete":
                self.complete = True

    def _end(self, end: str) -> None:
        process = self._processes.pop(end)
        if process.wait() != 0:
            lines = self._errors[end].read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise OSError(
                f"{self._implementation}'s {end} failed: {lines[-1] if lines else f'status {process.returncode}'}"
            )
        if not self._processes:
            times = {}
            for side, file in self._files.items():
                times[side] = array("q", file.read_bytes())
            self.log.written, self.log.read = times["sender"], times["receiver"][: len(times["sender"])]

    @property
    def ended(self) -> bool:
        """Whether both programs have ended, and the log is filled."""
        return not self._processes

    def start(self, first: int) -> None:
        """Let the sender begin to write at a time [ns, monotonic clock]."""
        self._tell("sender", str(first))

    def stop(self) -> None:
        """Let both programs end."""
        for end in tuple(self._processes):
            self._tell(end, "stop")

    def _tell(self, end: str, line: str) -> None:
        process = self._processes[end]
        assert process.stdin is not None
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()

    def close(self) -> None:
        """End the programs, if they still run."""
        for process in self._processes.values():
            assert process.stdout is not None
            self.loop.forget(process.stdout.fileno())
            process.kill()
            process.wait()
        self._processes.clear()
