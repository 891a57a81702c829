"""Real, unmodified programs over an emulated path: `python validation/programs.py FOLDER`.

Each case runs a server and a client in the guest in virtual time, over 60 ms and 1 % loss in each direction, twice with
the same seed. It works if the client ends with status 0 and prints what it should. The table has the virtual time until
the client's end, the time that this took here, and whether the packets of both runs are alike to the last byte.

It needs Debian's packages iperf3, nginx-light, libnginx-mod-rtmp, curl, ffmpeg, coturn, mosquitto, mosquitto-clients,
python3-websockets, default-jdk-headless, a Node with npm, a Go compiler, and `tcpdelay testbed build-kernel --hz 250`.
FOLDER keeps what is built, and the runs. The script writes `results/programs.md`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tcpdelay.testbed.backends import SessionFailedError, VirtualTimeBackend
from tcpdelay.testbed.programs import ProgramRun, run_programs
from tcpdelay.testbed.topology import EmulatedPath

ENDS = Path(__file__).with_name("program_ends")
RESULTS = Path(__file__).parent / "results" / "programs.md"
HZ = 250
PATIENCE = 120.0
LONGEST = 120.0
PATH = EmulatedPath(rtt=0.060, loss=0.01)
DEBIAN_PYTHON = "/usr/bin/python3"
"""The interpreter to which python3-websockets belongs."""
PAGE = "/common-licenses/GPL-3"
"""A page below the root of nginx, `/usr/share`, that Debian always has."""
VERSIONS = {
    "iperf3": ["iperf3", "--version"],
    "nginx": ["nginx", "-v"],
    "curl": ["curl", "--version"],
    "node": ["node", "--version"],
    "Python": [DEBIAN_PYTHON, "--version"],
    "Java": ["java", "-version"],
    "Go": ["go", "version"],
    "ffmpeg": ["ffmpeg", "-version"],
    "coturn": ["turnserver", "--version"],
    "mosquitto": ["mosquitto", "-h"],
}


@dataclass(frozen=True)
class Case:
    """A server and a client, and a text in the output of the client if it works."""

    name: str
    server: Sequence[str]
    client: Sequence[str]
    expected: str


def cases(folder: Path) -> list[Case]:
    """Return all cases, of programs some of which are built in a folder."""
    nginx = ["sh", "-c", f'exec nginx -e stderr -p "$SCRATCH" -c {ENDS / "nginx.conf"}']
    picture = ["-f", "lavfi", "-i", "testsrc2=size=640x360:rate=30"]
    encoder = ["-c:v", "libx264", "-preset", "veryfast", "-tune", "zerolatency", "-b:v", "1M", "-g", "60"]
    stream = ["ffmpeg", "-nostdin", "-loglevel", "error", "-re", *picture, "-t", "20", *encoder]
    # The threads of relays would wait for each other without sleeping.
    turn = (
        "-n --relay-threads 0 --no-cli --no-tls --no-dtls --lt-cred-mech --user u:p --realm testbed --log-file stdout"
    )
    peer = "turnutils_peer -L 127.0.0.1"
    publish = "for i in $(seq 100); do echo message $i; sleep 0.1; done | mosquitto_pub -h server -t speech -q 1 -l"
    java = ["java", "-cp", str(folder)]
    return [
        Case("iperf3", ["iperf3", "-s", "-1"], ["iperf3", "-c", "server", "-t", "10"], "iperf Done"),
        Case(
            "curl, nginx",
            nginx,
            ["curl", "-sS", "-o", "/dev/null", "-w", "%{size_download} bytes", f"http://server{PAGE}"],
            f"{Path('/usr/share' + PAGE).stat().st_size} bytes",
        ),
        Case(
            "WebSocket echo, Node (ws)",
            ["node", str(folder / "ws_server.js")],
            ["node", str(folder / "ws_client.js")],
            "200 messages came back",
        ),
        Case(
            "WebSocket echo, Python (websockets)",
            [DEBIAN_PYTHON, str(ENDS / "websocket_ends.py"), "server"],
            [DEBIAN_PYTHON, str(ENDS / "websocket_ends.py"), "client"],
            "200 messages came back",
        ),
        Case(
            "TCP echo, Java (-Xint)",
            [*java, "-Xint", "Echo", "server"],
            [*java, "-Xint", "Echo", "client"],
            "200 messages",
        ),
        Case("TCP echo, Java", [*java, "Echo", "server"], [*java, "Echo", "client"], "200 messages came back"),
        Case("TCP echo, Go", [str(folder / "echo"), "server"], [str(folder / "echo"), "client"], "on each of 4"),
        Case(
            "ffmpeg to nginx over RTMP",
            nginx,
            ["sh", "-c", f"{' '.join(stream)} -f flv rtmp://server/live/video && echo sent"],
            "sent",
        ),
        Case(
            "TURN over TCP, coturn",
            ["sh", "-c", f"{peer} & exec turnserver {turn} --allow-loopback-peers --pidfile $SCRATCH/turn.pid"],
            ["sh", "-c", "turnutils_uclient -t -u u -w p -e 127.0.0.1 -n 50 -m 1 -l 160 $SERVER_ADDRESS"],
            "Total lost packets 0",
        ),
        Case(
            "MQTT, mosquitto",
            ["mosquitto", "-c", str(ENDS / "mosquitto.conf")],
            ["sh", "-c", f"({publish}) & exec mosquitto_sub -h server -t speech -q 1 -C 90"],
            "message 90",
        ),
    ]


def build(folder: Path) -> None:
    """Put the programs that no package has into a folder, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("ws_server.js", "ws_client.js"):
        shutil.copy(ENDS / name, folder / name)
    if not (folder / "node_modules" / "ws").exists():
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--prefix", folder, "ws"], check=True)
    if not (folder / "Echo.class").exists():
        subprocess.run(["javac", "-d", folder, ENDS / "Echo.java"], check=True)
    if not (folder / "echo").exists():
        subprocess.run(["go", "build", "-o", folder / "echo", ENDS / "echo.go"], check=True)


def run(case: Case, directory: Path) -> ProgramRun:
    """Return a run of a case, in a new directory."""
    shutil.rmtree(directory, ignore_errors=True)
    return run_programs(
        case.client,
        case.server,
        PATH,
        directory,
        VirtualTimeBackend(HZ, patience=PATIENCE),
        duration=LONGEST,
        seed=1,
        environment={"PATH": os.environ["PATH"]},
        linger=2.0,
    )


def outcome(case: Case, folder: Path) -> str:
    """Return the row of a case: what worked, virtual time, time here, and whether a second run is alike."""
    began = time.monotonic()
    try:
        first = run(case, folder / "first")
        took = time.monotonic() - began
        second = run(case, folder / "second")
    except SessionFailedError as error:
        return f"| {case.name} | no: {error} | | | |"
    status = first.status["client"]
    output = first.output("client")
    worked = "yes" if status == 0 and case.expected in output else f"no: status {status}"
    alike = all(a.read_bytes() == b.read_bytes() for a, b in zip(first.traces, second.traces, strict=True))
    virtual = first.ended.get("client", LONGEST)
    return f"| {case.name} | {worked} | {virtual:.2f} s | {took:.0f} s | {'yes' if alike else 'no'} |"


def versions() -> str:
    """Return the versions of the programs."""
    found = []
    for name, command in VERSIONS.items():
        printed = subprocess.run(command, capture_output=True, text=True, check=False)
        found.append(f"{name}: {(printed.stdout or printed.stderr).strip().splitlines()[0]}")
    return "; ".join(found)


def main() -> None:
    """Run the cases; print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for programs and runs")
    parser.add_argument("--case", help="only the cases with this text in their name; writes no table")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    build(folder)
    rows = []
    for case in cases(folder):
        if arguments.case is None or arguments.case in case.name:
            rows.append(outcome(case, folder / "runs" / case.name.replace(" ", "-").replace(",", "")))
            print(rows[-1], file=sys.stderr)
    head = "| programs | works | virtual time | time here | same packets twice |\n|---|---|---:|---:|---|\n"
    table = head + "\n".join(rows) + "\n"
    print(table, end="")
    if arguments.case is None:
        RESULTS.write_text(f"{table}\n{versions()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
