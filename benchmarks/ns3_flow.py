"""Compare the simulator with ns-3, flow by flow: `python benchmarks/ns3_flow.py`, which prints a Markdown table.

ns-3 is compiled with the system's compiler: `apt-get install g++ pkg-config libns3-dev libgsl-dev libsqlite3-dev
libxml2-dev` on Debian. Both simulate the same number of packets on a path of one round-trip time, in turn, three times.
Times are processor times without the start of the program. ns-3's TCP has CUBIC and SACK, but neither RACK nor a tail
loss probe: its delays are those of another TCP.
"""

import json
import subprocess
import tempfile
import time
from pathlib import Path as FilePath

from tcpdelay import Flow, Path, Stack, simulate

SOURCE = FilePath(__file__).with_suffix(".cc")
PARTS = [f"ns3-{name}" for name in ("applications", "internet", "point-to-point", "network", "core")]
PACKETS, ROUNDS = 100_000, 3
SCENARIOS = (
    ("VoIP, loss 2 %", Flow(174, 0.020), Path(rtt=0.1, loss=0.02)),
    ("VoIP, loss 0.01 %", Flow(174, 0.020), Path(rtt=0.1, loss=0.0001)),
    ("1200 B every 20 ms, loss 0.5 %", Flow(1200, 0.020), Path(rtt=0.1, loss=0.005)),
)


def compiled(folder: str) -> str:
    """Compile the program for ns-3 and return its name."""
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", *PARTS], check=True, capture_output=True, text=True)
    program = f"{folder}/ns3_flow"
    subprocess.run(["g++", "-O2", "-o", program, str(SOURCE), *flags.stdout.split()], check=True)
    return program


def by_ns3(program: str, flow: Flow, path: Path) -> dict[str, float]:
    """Return packets, processor time and delays of ns-3."""
    arguments = (PACKETS, flow.packet_size, flow.interval, path.rtt, path.loss)
    run = subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(run.stdout)
    return found


def by_tcpdelay(flow: Flow, path: Path) -> dict[str, float]:
    """Return packets, processor time and delays of our simulator."""
    begin = time.process_time()
    found = simulate(flow, path, Stack.linux(), packets=PACKETS)
    return {"packets": PACKETS, "seconds": time.process_time() - begin, "mean": found.mean, "p95": found.quantile(0.95)}


def main() -> None:
    """Print a row for each scenario."""
    print("| flow, RTT 100 ms | ns-3, packets/s | ours, packets/s | ratio | p95 of ns-3 | p95 of ours |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(folder)
        for name, flow, path in SCENARIOS:
            by_tcpdelay(flow, path)
            pairs = [(by_ns3(program, flow, path), by_tcpdelay(flow, path)) for _ in range(ROUNDS)]
            rates = [max(one["packets"] / one["seconds"] for one in both) for both in zip(*pairs, strict=True)]
            delays = [f"{one['p95'] * 1e3:.0f} ms" for one in pairs[0]]
            print(f"| {name} | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[1] / rates[0]:.0f} | {' | '.join(delays)} |")


if __name__ == "__main__":
    main()
