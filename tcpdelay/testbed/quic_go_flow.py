"""A measured flow over QUIC with the library quic-go: a program at each end, which the session starts and stops."""

from __future__ import annotations

import os
import signal
import subprocess
from array import array
from collections.abc import Callable
from pathlib import Path

from tcpdelay.testbed.event_loop import READABLE, EventLoop, die_with_parent
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.testbed.flow_log import PacketLog
from tcpdelay.testbed.network import PORT, Network, Node

ENVIRONMENT = {
    # netem would delay and drop several packets as one.
    "QUIC_GO_DISABLE_GSO": "true",
    "QUIC_GO_DISABLE_ECN": "true",
    "QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING": "true",
}
ENDS = ("sender", "receiver")


class QuicGoFlow:
    """A measured flow between two programs.

    Parameters
    ----------
    loop : EventLoop
        The event loop.
    log : PacketLog
        The log of the messages; it is filled when both programs have ended.
    experiment : Experiment
        Delivery and groups.
    network : Network
        The network of the experiment.
    program : Path
        The program that `build_quic_program` has built.
    messages : Path
        File with the messages of the flow.
    number : int
        Number of the flow within the experiment.
    on_ready : callable
        Called once, when the handshake is complete at both ends.
    qlog : Path, optional
        Path of the qlogs of both ends; `.sender.qlog` and `.receiver.qlog` are appended.
    """

    def __init__(
        self,
        loop: EventLoop,
        log: PacketLog,
        experiment: Experiment,
        network: Network,
        program: Path,
        messages: Path,
        number: int,
        on_ready: Callable[[], None],
        qlog: Path | None = None,
    ) -> None:
        self.complete = False
        self._loop = loop
        self._log = log
        self._network = network
        self._on_ready = on_ready
        self._files = {end: messages.with_suffix(f".{end}.times") for end in ENDS}
        self._errors = {end: messages.with_suffix(f".{end}.error") for end in ENDS}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._buffers = dict.fromkeys(ENDS, b"")
        self._ready = 0
        key_kind = experiment.key_kind
        self._command = [
            str(program),
            f"-address={network.receiver_address}:{PORT + number}",
            f"-messages={messages}",
            f"-delivery={experiment.delivery}",
            f"-group={experiment.group}",
            f"-key-kind={-1 if key_kind is None else key_kind}",
        ]
        self._qlog = qlog

    def connect(self) -> None:
        """Start the receiver; the sender starts when the receiver listens."""
        self._start("receiver", self._network.receiver)

    def _start(self, end: str, node: Node) -> None:
        options = [f"-times={self._files[end]}"]
        if end == "sender":
            options.append("-sender")
        if self._qlog is not None:
            options.append(f"-qlog={self._qlog.with_name(f'{self._qlog.name}.{end}.qlog')}")
        with self._errors[end].open("wb") as errors, node.entered():
            process = subprocess.Popen(
                [*self._command, *options],
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL),
            )
        self._processes[end] = process
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        os.set_blocking(descriptor, False)
        self._loop.watch(descriptor, READABLE, lambda _: self._read(end, descriptor))

    def _read(self, end: str, descriptor: int) -> None:
        data = os.read(descriptor, 4096)
        if not data:
            self._loop.forget(descriptor)
            self._end(end)
            return
        *lines, self._buffers[end] = (self._buffers[end] + data).split(b"\n")
        for line in lines:
            if line == b"listening":
                self._start("sender", self._network.sender)
            elif line == b"ready":
                self._ready += 1
                if self._ready == len(ENDS):
                    self._on_ready()
            elif line == b"complete":
                self.complete = True

    def _end(self, end: str) -> None:
        process = self._processes.pop(end)
        if process.wait() != 0:
            lines = self._errors[end].read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise OSError(f"quic-go's {end} failed: {lines[-1] if lines else f'status {process.returncode}'}")
        if not self._processes:
            times = {}
            for side, file in self._files.items():
                times[side] = array("q", file.read_bytes())
            self._log.written, self._log.read = times["sender"], times["receiver"][: len(times["sender"])]

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
            self._loop.forget(process.stdout.fileno())
            process.kill()
            process.wait()
        self._processes.clear()
