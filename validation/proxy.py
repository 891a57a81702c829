"""The proxy beside captures of Linux: `python validation/proxy.py --output FOLDER`.

A flow of the size and interval of a capture goes through `tcpdelay proxy` on the loopback interface, over several
connections side by side, in real time. Its delays are compared with those of the capture, measured in the guest on the
same path. Two distances are given: of the delays that the proxy aims at, and of those between the application's write
and read, to which the machine adds its own. A further run has 200 connections. Nothing is fitted. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.flow_capture import read_capture

CAPTURES = Path(__file__).with_name("captures") / "random-loss.parquet"
LOCAL = "127.0.0.1"
SETTLING = 5.0
"""Time at the beginning of each connection that is not counted [s]."""
TOLERANCE, MACHINE_TOLERANCE = 0.0005, 0.005
"""Shifts of a delay that do not count in the distances: of the aim, and with the machine's own delay [s]."""
DRAWS = 200
"""Samples of a capture beside the rest of it, for the chance level."""


@dataclass
class Case:
    """A flow of a capture, over several connections."""

    # rtt, loss: Round-trip time and loss, as on the command line and in the capture's name.
    rtt: str
    loss: str
    connections: int
    measured: list[tuple[int, float]] = field(default_factory=list)
    """Number of each message of any connection, and its delay from write to read [s]."""
    work: float = 0.0
    """Processor time of the proxy [s]."""


CASES = (Case("20ms", "2%", 8), Case("100ms", "1%", 8), Case("100ms", "5%", 8), Case("300ms", "2%", 8))
HEADINGS = (
    *("RTT", "loss", "captured", "through the proxy", "aim", "chance", "write to read"),
    *("p95 captured", "p95 aim", "p95 write to read", "work"),
)
SIZE, INTERVAL = 174, 0.020


def distance(first: NDArray[np.float64], second: NDArray[np.float64], tolerance: float) -> float:
    """Return the Kolmogorov-Smirnov distance of two samples, without differences of at most `tolerance` in time."""
    first, second = np.sort(first), np.sort(second)

    def excess(some: NDArray[np.float64], others: NDArray[np.float64]) -> float:
        share = np.arange(1, some.size + 1) / some.size
        return float((share - np.searchsorted(others, some + tolerance, "right") / others.size).max())

    return max(excess(first, second), excess(second, first), 0.0)


def chance_level(captured: list[NDArray[np.float64]], connections: int, packets: int) -> float:
    """Return the 95 % quantile of the distance of a part of a capture, as long as the proxy's run, to the rest."""
    random = np.random.default_rng(1)
    blocks = [run[start : start + packets] for run in captured for start in range(0, run.size - packets + 1, packets)]
    found = []
    for _ in range(DRAWS):
        order = random.permutation(len(blocks))
        # At most half of the capture.
        count = min(connections, len(blocks) // 2)
        parts = [np.concatenate([blocks[number] for number in part]) for part in (order[:count], order[count:])]
        found.append(distance(parts[0], parts[1], TOLERANCE))
    return float(np.quantile(found, 0.95))


def processor_time(pid: int) -> float:
    """Return the processor time that a process has taken [s]."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def send(port: int, case: Case, number: int, duration: float) -> None:
    """Send a flow over one connection; the first bytes of a message are its number and the time of its write."""
    loop = asyncio.get_running_loop()
    _, writer = await asyncio.open_connection(LOCAL, port)
    begin = loop.time() + INTERVAL * number / case.connections
    for packet in range(round(duration / INTERVAL)):
        await asyncio.sleep(begin + packet * INTERVAL - loop.time())
        writer.write(f"{packet} {loop.time():.6f} ".encode().ljust(SIZE))
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def measure(case: Case, duration: float, log: Path | None) -> str:
    """Run a case through a proxy in a process of its own; return the summary that the proxy prints."""
    loop, ended = asyncio.get_running_loop(), asyncio.Semaphore(0)

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                packet, written, *_ = (await reader.readexactly(SIZE)).split()
                case.measured.append((int(packet), loop.time() - float(written)))
        except asyncio.IncompleteReadError:
            pass
        writer.close()
        ended.release()

    target = await asyncio.start_server(receive, LOCAL, 0)
    port = target.sockets[0].getsockname()[1]
    words = ["--listen", f"{LOCAL}:0", "--to", f"{LOCAL}:{port}", "--rtt", case.rtt, "--loss", case.loss, "--seed", "1"]
    words += [] if log is None else ["--log", str(log)]
    proxy = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tcpdelay", "proxy", *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert proxy.stdout is not None
    assert proxy.stderr is not None
    # The line before may say that kernels are compiled.
    listening = (await proxy.stderr.readuntil(b"Ctrl-C ends\n")).decode().splitlines()[-1].split(";")[0]
    before = processor_time(proxy.pid)
    entry = int(listening.rpartition(":")[2])
    await asyncio.gather(*(send(entry, case, number, duration) for number in range(case.connections)))
    for _ in range(case.connections):
        await ended.acquire()
    case.work = processor_time(proxy.pid) - before
    proxy.terminate()
    summary = (await proxy.stdout.read()).decode()
    await proxy.wait()
    target.close()
    return summary


def aims(log: Path) -> NDArray[np.float64]:
    """Return the delays that the proxy aimed at [s], after the settling time of each connection."""
    found, opened = [], {}
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "opened":
            opened[event["connection"]] = event["time"]
        elif event["event"] == "delivered" and event["time"] - event["delay"] > opened[event["connection"]] + SETTLING:
            # Writes that the machine has read together are one write.
            found += [event["delay"] - event["late"]] * round(event["size"] / SIZE)
    return np.array(found)


def row(case: Case, log: Path, duration: float) -> str:
    """Return a case as a row of the table."""
    loss = case.loss.replace("%", "pct")
    capture = read_capture(CAPTURES, f"cbr-{SIZE}B-20ms-rtt{case.rtt}-loss{loss}-cubic-hz250")
    runs = [run.delays[round(SETTLING / INTERVAL) :] for run in capture.runs]
    captured = np.concatenate(runs)
    aimed = aims(log)
    measured = np.array([delay for packet, delay in case.measured if packet * INTERVAL > SETTLING])
    chance = chance_level(runs, case.connections, round((duration - SETTLING) / INTERVAL))
    p95 = [1e3 * np.quantile(delays, 0.95) for delays in (captured, aimed, measured)]
    own = distance(measured, captured, MACHINE_TOLERANCE)
    return (
        f"| {case.rtt} | {case.loss} | {captured.size} | {measured.size} | {distance(aimed, captured, TOLERANCE):.3f} "
        f"| {chance:.3f} | {own:.3f} | {p95[0]:.1f} | {p95[1]:.1f} | {p95[2]:.1f} "
        f"| {1e3 * case.work / duration / case.connections:.1f} |"
    )


async def main() -> None:
    """Measure all cases and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results"))
    parser.add_argument("--duration", type=float, default=120.0, help="length of each run [s]")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load, rows = [], []
        for number, case in enumerate(CASES):
            log = folder / f"{number}.jsonl"
            await measure(case, options.duration, log)
            load.append(os.getloadavg()[0])
            rows.append(row(case, log, options.duration))
            print(rows[-1], flush=True)
        many = Case("100ms", "1%", 200)
        summary = await measure(many, 20.0, None)
        load.append(os.getloadavg()[0])
    expected = many.connections * round(20.0 / INTERVAL)
    text = f"""# The proxy beside captures of Linux

`python validation/proxy.py`, {time.strftime("%Y-%m-%d")}, Python {platform.python_version()},
{os.cpu_count()} processors, load average {min(load):.1f} to {max(load):.1f} meanwhile.
{SIZE} B every 20 ms, CUBIC, 250 Hz, {CASES[0].connections}
connections of {options.duration:g} s, of which the first {SETTLING:g} s do not count.

- *aim*: distance (Kolmogorov-Smirnov) of the delays that the proxy aims at to those of the capture; differences of at
  most {1e3 * TOLERANCE:g} ms in time do not count.
- *chance*: the 95 % quantile of the same distance of a random part of the capture, as long as the proxy's run but at
  most half of the capture, to the rest of it.
- *write to read*: distance of the delays between the program's write and the other program's read; differences of at
  most {1e3 * MACHINE_TOLERANCE:g} ms in time do not count.
- *p95* [ms] of the capture, of the aim, and from write to read.
- *work*: processor time of the proxy per connection and second [ms].

| {" | ".join(HEADINGS)} |
|---|---|---|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

{many.connections} connections at once, RTT {many.rtt}, loss {many.loss}, each for 20 s, sender and receiver in one
process on the same machine: {len(many.measured)} of {expected} messages arrived, {many.work / 20:.2f} s of processor
time of the proxy per second. It printed:

```text
{summary.strip()}
```
"""
    (options.output / "proxy.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
