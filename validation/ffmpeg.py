"""Compare simulations with the frames of a real ffmpeg: `python validation/ffmpeg.py FOLDER`.

An unmodified ffmpeg sends a video as an MPEG transport stream over TCP to another ffmpeg, in a guest in virtual time.
The delay of a frame is the time from its write to the read of its last byte. Both come from strace: the sender's
`sendto` and the receiver's `recvfrom`. ffmpeg looks at the clock every 10 ms, so it writes a frame up to 10 ms earlier
or later than in another run. Where it writes later than that, it was held up by a full send buffer; then the delay
counts from the write of this frame in a run without loss or delay. Beside these delays stand simulations of the trace
of these frames, and of the `Video` that is fitted to them.

It needs the packages ffmpeg, strace and tcpdump, and `tcpdelay testbed build-kernel`. FOLDER keeps the video and the
runs; a repeated call makes only what is missing there. The script writes `results/ffmpeg.csv`, the figures of all
paths, and `results/ffmpeg.svg`, the distributions.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tcpdelay.scenario.media import Video
from tcpdelay.scenario.messages import Trace
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.simulation import Simulation, simulate
from tcpdelay.statistics import mean_interval, quantile_interval
from tcpdelay.testbed.backends import VirtualTimeBackend
from tcpdelay.testbed.program_session import RESULT
from tcpdelay.testbed.programs import ProgramRun, read_program_run, run_programs
from tcpdelay.testbed.topology import EmulatedPath
from tcpdelay.testbed.virtual_kernel import DEFAULT_KERNEL

RESULTS = FilePath(__file__).parent / "results"
FRAME_RATE = 30
HZ = 250
STACK = Stack.linux(delayed_ack=True, hz=HZ, kernel=DEFAULT_KERNEL)
ENCODER = ["-c:v", "libx264", "-preset", "veryfast", "-tune", "zerolatency", "-threads", "1"]
GROUPS = ["-g", "60", "-sc_threshold", "0", "-b:v", "1500k"]
PORT = 5000
POLL_INTERVAL = 0.010
"""Time between two looks of ffmpeg at the clock [s]."""
WARM_UP = 300
"""Frames at the start of a run that are left out: those of the first slow start."""
PACKET = 188
"""Size of a packet of a transport stream [bytes] (ISO/IEC 13818-1)."""
VIDEO_PID = 256
"""Identifier of the video's packets that ffmpeg chooses for the first stream."""
QUANTILES = (0.5, 0.95, 0.99)
_CALL = re.compile(r"\d+\s+(\d+)\.(\d{6}) .*?(-?\d+)(?: E\w+ \(.*\))?$")
_REQUESTED = re.compile(r"sendto\(\d+, .*?, (\d+), ")


@dataclass(frozen=True)
class Case:
    """A path, the number of runs, and whether ffmpeg sets TCP_NODELAY; by default it does not."""

    rtt: float
    loss: float
    runs: int = 1
    nodelay: bool = True

    @property
    def name(self) -> str:
        """Name of the case in words."""
        nagle = "" if self.nodelay else ", Nagle"
        return f"{1e3 * self.rtt:g} ms, {100 * self.loss:g} %{nagle}"


UNDISTURBED = Case(1e-6, 0.0)
CASES = (
    Case(0.02, 0.01),
    Case(0.06, 0.001),
    Case(0.06, 0.005, runs=2),
    Case(0.15, 0.001),
    Case(0.06, 0.005, nodelay=False),
)


class Calls(NamedTuple):
    """System calls: their times [s], and the position in the stream behind each."""

    times: NDArray[np.float64]
    ends: NDArray[np.int64]


class Frames(NamedTuple):
    """The frames of the stream: their first byte, and the byte behind their last."""

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]


def encode(folder: FilePath, duration: float) -> tuple[FilePath, FilePath]:
    """Return the video and its transport stream, encoded from an artificial picture unless they exist."""
    video, stream = folder / "video.mp4", folder / "video.ts"
    program = ["ffmpeg", "-nostdin", "-loglevel", "error", "-y"]
    if not stream.exists():
        picture = ["-f", "lavfi", "-i", f"testsrc2=size=640x360:rate={FRAME_RATE}", "-vf", "noise=alls=10:allf=t"]
        subprocess.run([*program, *picture, "-t", f"{duration:g}", *ENCODER, *GROUPS, video], check=True)
        unfinished = stream.with_suffix(".part")
        subprocess.run([*program, "-i", video, "-c", "copy", "-f", "mpegts", unfinished], check=True)
        unfinished.rename(stream)
    return video, stream


def frames_of(stream: FilePath) -> Frames:
    """Return the frames in a transport stream; tables of the stream belong to the frame that they precede."""
    packets = np.fromfile(stream, np.uint8).reshape(-1, PACKET)
    identifiers = (packets[:, 1].astype(int) & 0x1F) << 8 | packets[:, 2]
    start = (packets[:, 1] & 0x40 > 0) & (identifiers == VIDEO_PID)
    # The frame begins behind the last packet of video before its start.
    video = np.flatnonzero(identifiers == VIDEO_PID)
    first = np.flatnonzero(start)
    place = np.searchsorted(video, first)
    begins = np.where(place > 0, video[place - 1] + 1, 0) * PACKET
    return Frames(begins, np.append(begins[1:], packets.size))


def run(folder: FilePath, video: FilePath, case: Case, duration: float, seed: int) -> ProgramRun:
    """Return the run of a case, which is made unless it exists."""
    directory = folder / f"rtt{1e3 * case.rtt:g}ms-loss{100 * case.loss:g}pct-nodelay{case.nodelay:d}-seed{seed}"
    if not (directory / RESULT).exists():
        shutil.rmtree(directory, ignore_errors=True)
        traced = ["strace", "-f", "-ttt", "-s", "0", "-e", "signal=none", "-e"]
        program = ["ffmpeg", "-nostdin", "-nostats", "-hide_banner"]
        send = ["-re", "-i", str(video.resolve()), "-c", "copy", "-f", "mpegts"]
        to = f"tcp://server:{PORT}?tcp_nodelay={case.nodelay:d}"
        receive = ["-i", f"tcp://0.0.0.0:{PORT}?listen=1", "-c", "copy", "-f", "null", "-"]
        run_programs(
            [*traced, "trace=sendto", "-o", "writes", *program, *send, to],
            [*traced, "trace=recvfrom", "-o", "reads", *program, *receive],
            EmulatedPath(rtt=case.rtt, loss=case.loss, server_loss=0.0),
            directory,
            VirtualTimeBackend(HZ),
            duration=duration + 30,
            seed=seed,
        )
    found = read_program_run(directory)
    if any(found.status.values()):
        raise RuntimeError(f"{directory}: a program failed, with the status {found.status}")
    return found


def calls_of(log: FilePath) -> Calls:
    """Return the calls in a log of strace. The end of a write is the end of what it tried to write."""
    times, ends, position = [], [], 0
    for line in log.read_text(encoding="utf-8").splitlines():
        call = _CALL.match(line)
        if call is None:
            continue
        done = max(int(call[3]), 0)
        requested = _REQUESTED.search(line)
        times.append(int(call[1]) + int(call[2]) / 1e6)
        ends.append(position + (int(requested[1]) if requested else done))
        position += done
    return Calls(np.array(times), np.array(ends))


def writes_of(found: ProgramRun, frames: Frames) -> NDArray[np.float64]:
    """Return the time at which ffmpeg first tried to write each frame [s]."""
    calls = calls_of(found.directory / "scratch" / "writes")
    return calls.times[np.searchsorted(calls.ends, frames.begins, side="right")]


def reads_of(found: ProgramRun, frames: Frames) -> NDArray[np.float64]:
    """Return the time at which the receiver read the last byte of each frame [s]."""
    calls = calls_of(found.directory / "scratch" / "reads")
    if calls.ends[-1] != frames.ends[-1]:
        raise RuntimeError(f"{found.directory}: {calls.ends[-1]} bytes were read, not {frames.ends[-1]}")
    return calls.times[np.searchsorted(calls.ends, frames.ends)]


@dataclass(frozen=True)
class Measured:
    """The frames of all runs of a case."""

    delays: list[NDArray[np.float64]]  # Delays of the frames of each run [s]
    held_up: float  # Share of the frames that a full send buffer held up
    lost: float  # Share of the data segments that the network dropped


@dataclass(frozen=True)
class Comparison:
    """The measured frames of a case, and simulations of it by name."""

    case: Case
    measured: Measured
    simulated: Mapping[str, Simulation]

    def rows(self) -> list[dict[str, object]]:
        """Return the mean and the quantiles, each measured with its interval and simulated, as rows of a table."""
        delays = self.measured.delays
        rows: list[dict[str, object]] = []
        for share in (None, *QUANTILES):
            interval = mean_interval(delays) if share is None else quantile_interval(delays, share)
            figure = "mean" if share is None else f"p{100 * share:g}"
            row = {"path": self.case.name, "figure": figure, "frames": sum(part.size for part in delays)}
            row |= {"measured": interval.value, "low": interval.low, "high": interval.high}
            for name, found in self.simulated.items():
                row[name] = found.mean if share is None else float(found.quantile(share))
            rows.append(row | {"held_up": self.measured.held_up, "lost": self.measured.lost})
        return rows


def measure(runs: Sequence[ProgramRun], frames: Frames, due: NDArray[np.float64]) -> Measured:
    """Return the delays of the frames in some runs; `due` is the time of each write in a run without loss or delay [s].

    The delay of a frame that was held up counts from its time without loss or delay.
    """
    delays, held_up = [], []
    for found in runs:
        begun = writes_of(found, frames)
        expected = begun[0] + due
        late = begun > expected + POLL_INTERVAL
        delays.append((reads_of(found, frames) - np.where(late, expected, begun))[WARM_UP:])
        held_up.append(late[WARM_UP:])
    sent, dropped = (sum(found.packets[name] for found in runs) for name in ("data_sent", "data_dropped"))
    return Measured(delays, float(np.concatenate(held_up).mean()), dropped / (sent + dropped))


def compare(case: Case, measured: Measured, trace: Trace, fitted: Video, packets: int) -> Comparison:
    """Simulate a case: the trace, the fitted video, and the trace with the loss of the runs."""
    simulated = {
        name: simulate(source, Path(case.rtt, loss), STACK, packets=packets, seed=1)
        for name, source, loss in (
            ("trace", trace, case.loss),
            ("fitted video", fitted, case.loss),
            ("trace, loss of the runs", trace, measured.lost),
        )
    }
    return Comparison(case, measured, simulated)


def drawn(compared: Sequence[Comparison], file: FilePath) -> None:
    """Draw the share of frames later than a delay, measured and simulated, a panel for each path."""
    figure, axes = plt.subplots(1, len(compared), figsize=(2.6 * len(compared), 3), sharey=True, layout="constrained")
    shares = np.geomspace(1e-3, 1, 300)
    for ax, found in zip(axes, compared, strict=True):
        delays = np.concatenate(found.measured.delays)
        ax.semilogy(1e3 * np.quantile(delays, 1 - shares), shares, color="black", lw=2.5, label="ffmpeg, measured")
        for (name, simulation), style in zip(found.simulated.items(), ("-", "--", ":"), strict=True):
            ax.semilogy(1e3 * np.asarray(simulation.quantile(1 - shares)), shares, style, label=f"simulated, {name}")
        ax.set(title=found.case.name, xlabel="delay [ms]", ylim=(1e-3, 1))
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("share of later frames")
    axes[0].legend(fontsize="x-small")
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Run what is missing, and write the table and the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=FilePath, help="folder of the video and the runs")
    parser.add_argument("--duration", type=float, default=300.0, help="length of the video [s] (%(default)s)")
    parser.add_argument("--packets", type=int, default=300_000, help="simulated frames (%(default)s)")
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results (%(default)s)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    video, stream = encode(arguments.folder, arguments.duration)
    frames = frames_of(stream)
    written = writes_of(run(arguments.folder, video, UNDISTURBED, arguments.duration, 0), frames)
    due = written - written[0]
    times = due[WARM_UP:] - due[WARM_UP]
    trace = Trace(times, (frames.ends - frames.begins)[WARM_UP:], float(times[-1]) + 1 / FRAME_RATE)
    fitted = Video.fit(trace)
    print(fitted)
    compared = []
    for case in CASES:
        runs = [run(arguments.folder, video, case, arguments.duration, seed) for seed in range(case.runs)]
        compared.append(compare(case, measure(runs, frames, due), trace, fitted, arguments.packets))
        print(pd.DataFrame(compared[-1].rows()).to_string(), flush=True)
    rows = [row for found in compared for row in found.rows()]
    pd.DataFrame(rows).to_csv(arguments.output / "ffmpeg.csv", index=False, float_format="%.6f")
    drawn(compared, arguments.output / "ffmpeg.svg")


if __name__ == "__main__":
    main()
