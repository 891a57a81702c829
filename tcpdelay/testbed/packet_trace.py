"""Packet traces of both ends of an experiment, by tcpdump."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

from tcpdelay.testbed.network import Network
from tcpdelay.testbed.system_calls import die_with_parent

SNAP_LENGTH = 128
"""Bytes kept of each packet: all headers and the options of TCP."""


class PacketTraces:
    """Traces what the sender's and the receiver's devices send and receive, until stopped.

    Parameters
    ----------
    network : Network
        The network of the experiment.
    path : Path
        Where to write, to which `.sender.pcap` and `.receiver.pcap` are appended; times are in nanoseconds.

    Raises
    ------
    OSError
        If tcpdump cannot be run.
    """

    def __init__(self, network: Network, path: Path) -> None:
        program = shutil.which("tcpdump", path="/usr/bin:/usr/sbin:/bin:/sbin")
        if program is None:
            raise FileNotFoundError("packet traces need tcpdump; run: sudo apt-get install tcpdump")
        self._processes = []
        for end, node in (("sender", network.sender), ("receiver", network.receiver)):
            file = path.with_name(f"{path.name}.{end}.pcap")
            options = ["-Z", "root", "-n", "-U", "--immediate-mode", "--time-stamp-precision=nano"]
            # A file that it opens itself it wants to give to root, which in a guest of an ordinary user is refused.
            command = [program, *options, "-s", str(SNAP_LENGTH), "-i", network.device_of(node), "-w", "-"]
            with file.open("wb") as trace, node.entered():
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=trace,
                    stderr=subprocess.PIPE,
                    preexec_fn=lambda: die_with_parent(signal.SIGKILL),
                )
            # It says so once it listens, or why it does not.
            assert process.stderr is not None
            line = process.stderr.readline().decode(errors="replace").strip()
            if "listening" not in line:
                process.kill()
                raise OSError(f"tcpdump: {line}")
            self._processes.append(process)

    def stop(self) -> None:
        """End the traces and finish their files."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.communicate()
