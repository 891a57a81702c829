"""Measure a transfer over DualPI2 with classic ECN and with AccECN: `python validation/accecn.py`.

It needs the guest of Linux 7.3, and writes `results/accecn.md`. AccECN (RFC 9768) lets a receiver report each mark,
where classic ECN reports one mark in each round trip; `net.ipv4.tcp_ecn=3` asks for it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tcpdelay.testbed.backends import VirtualTimeBackend
from tcpdelay.testbed.programs import run_programs
from tcpdelay.testbed.topology import EmulatedPath

HERE = Path(__file__).parent
ENDS = HERE / "program_ends" / "transfer_ends.py"
PATH = EmulatedPath(rtt=0.03, rate=1e7, queue="dualpi2", ecn=True)
SECONDS = 60
CONTROLS = ("cubic", "dctcp")
MODES = {"classic ECN": "1", "AccECN": "3"}


def measure(control: str, mode: str, seed: int) -> str:
    """Return a line of the table: one transfer."""
    command = [sys.executable, str(ENDS)]
    client, server = [*command, "send", control, str(SECONDS)], [*command, "receive", control]
    with tempfile.TemporaryDirectory() as folder:
        found = run_programs(
            client,
            server,
            PATH,
            Path(folder, "run"),
            VirtualTimeBackend(250, "7.3"),
            duration=SECONDS + 30,
            seed=seed,
            sysctls={"net.ipv4.tcp_ecn": MODES[mode]},
            # The kernel lets only root use DCTCP.
            trusted=True,
        )
        rate = 8e-6 * int(found.output("server")) / SECONDS
        sent, marked = (found.packets[f"bottleneck_{what}"] for what in ("sent", "marked"))
        dropped = found.packets["bottleneck_dropped"]
        retransmitted = found.counters["client"].get("RetransSegs", 0)
    return f"| {control} | {mode} | {rate:.2f} Mbit/s | {marked / sent:.2%} | {dropped} | {retransmitted} |"


def main() -> None:
    """Write the table."""
    lines = ["| control | feedback | rate | marked | dropped packets | retransmissions |", "|---|---|---|---|---|---|"]
    for control in CONTROLS:
        for mode in MODES:
            lines.append(measure(control, mode, seed=1))
            print(lines[-1], file=sys.stderr)
    (HERE / "results" / "accecn.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
