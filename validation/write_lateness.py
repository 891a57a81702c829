"""Measure how late programs write on this machine: `python validation/write_lateness.py [--seconds 60]`.

Each program sends a datagram every 20 ms over the loopback device. The kernel stamps a datagram when it arrives, which
on this device is within the sender's system call. ffmpeg sends the frames of a generated video, 25 a second, in one or
more datagrams each; the first of a frame counts. The lateness of a write is the time since its place in the evenest
schedule with the program's own mean interval before which no write comes.

Python is always measured; node, go and ffmpeg are where they are installed. The environment variable FFMPEG names
another ffmpeg. The figures go to `results/write-lateness.csv`.
A busy machine adds waits of its own: there, start the command with `chrt --rr 10`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from numpy.typing import NDArray

RESULTS = Path(__file__).parent / "results" / "write-lateness.csv"
INTERVAL, FRAME = 0.020, 0.040
"""Intervals of the programs, and of the frames of ffmpeg [s]."""
SAME_FRAME = 0.010
"""Time within which datagrams belong to the same frame [s]."""
WARM_UP = 1.0
"""Time at the beginning that does not count [s]."""
ASYNCIO = """
import asyncio, socket, sys
async def main():
    to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    to.connect(("127.0.0.1", int(sys.argv[-1])))
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        to.send(b"x")
        due += 0.020
        await asyncio.sleep(due - loop.time())
asyncio.run(main())
"""
NODE = """
const to = require("dgram").createSocket("udp4");
setInterval(() => to.send("x", Number(process.argv[2]), "127.0.0.1"), 20);
"""
GO = """
package main
import ("net"; "os"; "time")
func main() {
    to, _ := net.Dial("udp", "127.0.0.1:" + os.Args[1])
    for range time.NewTicker(20 * time.Millisecond).C { to.Write([]byte("x")) }
}
"""


def commands(folder: Path, port: int) -> dict[str, tuple[list[str], float]]:
    """Return the command and the interval [s] of each program that is installed."""
    found = {"Python asyncio, sleep until the next time": ([sys.executable, "-c", ASYNCIO, str(port)], INTERVAL)}
    if node := shutil.which("node"):
        (folder / "write.js").write_text(NODE)
        found["node, setInterval"] = [node, str(folder / "write.js"), str(port)], INTERVAL
    if go := shutil.which("go"):
        (folder / "write.go").write_text(GO)
        built = folder / "write"
        environment = {**os.environ, "CGO_ENABLED": "0"}
        subprocess.run([go, "build", "-o", built, folder / "write.go"], check=True, env=environment)
        found["Go, time.Ticker"] = [str(built), str(port)], INTERVAL
    if ffmpeg := os.environ.get("FFMPEG") or shutil.which("ffmpeg"):
        video = "-re -f lavfi -i testsrc=size=320x180:rate=25 -c:v mpeg2video -b:v 500k -flush_packets 1 -f mpegts"
        found["ffmpeg -re"] = [ffmpeg, "-loglevel", "error", *video.split(), f"udp://127.0.0.1:{port}"], FRAME
    return found


def sent_by(command: list[str], receiver: socket.socket, seconds: float) -> NDArray[np.float64]:
    """Return the times at which a program sends datagrams [s]."""
    times = []
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as program:
        ends = time.monotonic() + seconds + WARM_UP
        while time.monotonic() < ends:
            _, stamps, _, _ = receiver.recvmsg(2048, 64)
            whole, part = struct.unpack("qq", stamps[0][2])
            times.append(whole + part * 1e-9)
        program.kill()
    found = np.array(times)
    return found[found > found[0] + WARM_UP]


def lateness(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much writes are later than the evenest schedule that is never late [s]."""
    number = np.arange(times.size)
    since = times - times[0]
    rest = since - np.polyval(np.polyfit(number, since, 1), number)
    return rest - rest.min()


def main() -> None:
    """Measure the programs one after another, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="time of each program (%(default)s)")
    seconds = parser.parse_args().seconds
    rows = []
    with TemporaryDirectory() as folder, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
        receiver.settimeout(10)
        receiver.bind(("127.0.0.1", 0))
        for name, (command, interval) in commands(Path(folder), receiver.getsockname()[1]).items():
            times = sent_by(command, receiver, seconds)
            if interval == FRAME:
                times = times[np.append(True, np.diff(times) > SAME_FRAME)]
            late = lateness(times)
            row = {"program": name, "interval": interval, "mean_interval": (times[-1] - times[0]) / (times.size - 1)}
            row["sd_of_interval"] = np.diff(times).std()
            row |= {f"p{share}": np.quantile(late, share / 100) for share in (5, 25, 50, 75, 95, 99)}
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    pd.DataFrame(rows).round(6).to_csv(RESULTS, index=False)


if __name__ == "__main__":
    main()
