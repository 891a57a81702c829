"""Delays beside an upload through the queue of a home router, in the guest: `python validation/home_queues.py`.

A datagram as large as a voice packet goes to a server and back every 20 ms, beside one upload over TCP CUBIC, over a
path of 20 ms with an uplink of 10 Mbit/s. The queue before the uplink is a FIFO that holds 250 ms of full packets, or
fq_codel with the kernel's defaults. It needs `tcpdelay testbed build-kernel --hz 250`, and writes
`results/home-queues.md`. The presets home-bufferbloat and home-fq-codel rest on the figures.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tcpdelay.testbed.backends import VirtualTimeBackend
from tcpdelay.testbed.programs import run_topology
from tcpdelay.testbed.topology import DuplexLink, Link, Program, Topology

ENDS = Path(__file__).with_name("program_ends") / "loaded_link_ends.py"
RESULTS = Path(__file__).parent / "results" / "home-queues.md"
HZ = 250
RTT, RATE = 0.020, 10e6
FULL_PACKET = 1514
FIFO_PACKETS = round(0.250 * RATE / 8 / FULL_PACKET)
WARM_UP = 10.0
"""Time at the beginning that does not count [s]."""
QUEUES: dict[str, Link] = {
    f"FIFO of {FIFO_PACKETS} packets": Link(0.0, rate=RATE, queue="fifo", queue_packets=FIFO_PACKETS),
    "fq_codel": Link(0.0, rate=RATE, queue="fq_codel"),
}
SHARES = (0.05, 0.5, 0.95, 0.99)


def measured(uplink: Link, seconds: float) -> NDArray[np.float64]:
    """Return the round-trip times of the datagrams [s]; NaN where one was lost."""
    command = [sys.executable, str(ENDS)]
    programs = [
        Program("echo", [*command, "echo"], "server", [], port=7000),
        Program("sink", [*command, "sink"], "server", [], port=7001),
        Program("probe", [*command, "probe", str(seconds)], "home", ["echo", "sink"]),
        Program("upload", [*command, "upload", str(seconds + 1)], "home", ["sink"]),
    ]
    links = [
        DuplexLink("home", "router", uplink, Link(0.0, rate=100e6, queue_packets=1000)),
        DuplexLink("router", "far", Link(RTT / 2), Link(RTT / 2)),
        DuplexLink("far", "server", Link(0.0), Link(0.0)),
    ]
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place, "run")
        run = run_topology(
            Topology(programs, links), directory, VirtualTimeBackend(HZ), duration=seconds + 60, linger=1.0
        )
        if run.status["probe"] != 0:
            raise RuntimeError((directory / "probe.stderr").read_text(encoding="utf-8"))
        times = np.fromfile(directory / "scratch" / "times", np.int64).astype(np.float64)
    times[times < 0] = np.nan
    return times[round(WARM_UP / 0.020) :] / 1e9


def main() -> None:
    """Measure, print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="duration of a run")
    arguments = parser.parse_args()
    heads = " | ".join(f"p{100 * share:g}" for share in SHARES)
    lines = [
        "# A datagram every 20 ms beside one upload, round trip",
        "",
        f"Path of {1e3 * RTT:g} ms, uplink of {RATE / 1e6:g} Mbit/s, {arguments.seconds:g} s, of which the first "
        f"{WARM_UP:g} s do not count. Nothing is random: each run gives the same figures.",
        "",
        f"| queue of the uplink | {heads} | lost |",
        f"|---|{'---:|' * (len(SHARES) + 1)}",
    ]
    for name, uplink in QUEUES.items():
        times = measured(uplink, arguments.seconds)
        cells = [f"{1e3 * float(np.nanquantile(times, share)):.1f} ms" for share in SHARES]
        lines.append(f"| {name} | {' | '.join(cells)} | {100 * float(np.isnan(times).mean()):.2f} % |")
        print(lines[-1])
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
