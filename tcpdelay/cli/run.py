"""`tcpdelay run`: unmodified programs at the ends of emulated paths, in a guest in virtual time."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcpdelay.cli.errors import (
    ERASE_LINE,
    argument_errors,
    erase_progress,
    option_name,
    predicting,
    print_warning,
)
from tcpdelay.cli.options import (
    OUTPUT,
    PATH,
    TRANSPORT,
    annotated_option,
    make_option,
    number,
    quantity,
    read_varying_link,
    result_option,
    varying_link_options,
    with_options,
)
from tcpdelay.declare import InvalidValueError, declarations
from tcpdelay.scenario.stack import Linux
from tcpdelay.store import error_in_words
from tcpdelay.testbed.emulated_path import EmulatedPath
from tcpdelay.testbed.topology import CLIENT, SERVER, Topology, read_topology, two_hosts
from tcpdelay.testbed.virtual_kernel import DEFAULT_KERNEL
from tcpdelay.units import format_duration, printable

if TYPE_CHECKING:
    from tcpdelay.testbed.backends import UmlBackend
    from tcpdelay.testbed.program_session import Line
    from tcpdelay.testbed.programs import ProgramRun

GUEST = "The guest"
SEPARATOR = "--client"
LONGEST, PATIENCE = 600.0, 60.0
"""Defaults of --for and --patience [s]."""
LINGER = 5.0
"""Time that the server has to end by itself when the client has ended [s]."""
STILL = 10.0
"""Time after which a standstill of virtual time is reported [s]."""
STILL_RUNNING, GUEST_FAILED, SIGNALLED = 124, 125, 128
"""Exit statuses: of a client that --for ended, as of timeout; of a guest that failed; the first of signals."""
SUMMARY = "Run unmodified programs over an emulated path, in virtual time."
EXAMPLES = """
\b
Examples:
  tcpdelay run --rtt 100ms --loss 1% -- iperf3 -s -1 --client iperf3 -c server
  tcpdelay run --rtt 60ms --rate 5Mbit/s --queue fq_codel -o out -- \\
      python3 -m http.server 80 --client curl -sO http://server/big.bin
  tcpdelay run --rtt 80ms --loss 2% --seed 7 --for 10min -- \\
      node server.js --client node client.js
  tcpdelay run -o out examples/shared-link.toml
"""


def _path_options() -> dict[str, Any]:
    """Return the annotations of the options of a path, by name; those of a link that varies stand for its trace."""
    options: dict[str, Any] = {}
    for name, declaration in declarations(EmulatedPath).items():
        if name == "trace":
            options |= varying_link_options(PATH)
            continue
        options[name] = annotated_option(name, declaration, PATH)
    return options


def _path_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `EmulatedPath` that are given by its options."""
    rate, *varying = (values[name] for name in ("rate", "link_trace", "outage_every", "outage"))
    trace = read_varying_link(rate, *varying)
    settings = {name: values[name] for name in declarations(EmulatedPath) if name != "trace"}
    settings |= {} if trace is None else {"rate": None, "trace": trace}
    return {name: value for name, value in settings.items() if value is not None and value is not False}


@partial(with_options, bundle="path", options=_path_options(), gather=_path_settings)
def run(
    commands: Annotated[
        list[str],
        typer.Argument(
            metavar="SERVER ... --client CLIENT ... | FILE.toml",
            help="The command line of the server, --client, and the command line of the client. The client finds the "
            "server by the name server. Or a file with programs on several hosts, and the links between them.",
        ),
    ],
    path: dict[str, Any],
    congestion_control: Annotated[
        Literal["cubic", "reno", "bbr", "vegas", "westwood"],
        make_option(
            "--congestion-control", TRANSPORT, "Congestion control of both ends, unless a program sets its own."
        ),
    ] = "cubic",
    sysctl: Annotated[
        list[str] | None,
        make_option(
            "--sysctl",
            TRANSPORT,
            "Setting of the kernel at both ends. Example: net.ipv4.tcp_sack=0. May be repeated.",
            False,
            metavar="NAME=VALUE",
        ),
    ] = None,
    hz: Annotated[int, number("--hz", GUEST, declarations(Linux)["hz"].meaning)] = 250,
    kernel: Annotated[
        str,
        make_option(
            "--kernel",
            GUEST,
            "Linux of the guest in virtual time, which tcpdelay testbed build-kernel has built. Example: 7.3.",
            metavar="VERSION",
        ),
    ] = DEFAULT_KERNEL,
    backend: Annotated[
        Literal["uml-virtual", "uml"],
        make_option("--backend", GUEST, "A guest in virtual time, or Debian's guest in real time."),
    ] = "uml-virtual",
    seed: Annotated[
        int, number("--seed", GUEST, "Seed of losses, jitter and reordering, which the same seed repeats.")
    ] = 0,
    longest: Annotated[
        float | None,
        quantity(
            "--for",
            "time",
            GUEST,
            "End the programs at this time after the client's start.",
            format_duration(LONGEST),
        ),
    ] = None,
    charge_cpu: Annotated[
        bool,
        make_option(
            "--charge-cpu",
            GUEST,
            "Let computation take as long in virtual time as it does here. A run is then not repeatable.",
        ),
    ] = False,
    patience: Annotated[
        float | None,
        quantity(
            "--patience",
            "time",
            GUEST,
            "Give up if virtual time stands still for this time of the machine.",
            format_duration(PATIENCE),
        ),
    ] = None,
    output: Annotated[
        Path | None,
        result_option(
            "New or empty directory for the packets (pcapng), the output and the files of the programs.",
            "none is kept",
            "DIR",
        ),
    ] = None,
    analysis: Annotated[
        bool,
        make_option(
            "--analysis/--no-analysis", OUTPUT, "Measure path and delays of the connection, and predict the delays."
        ),
    ] = True,
) -> None:
    """Run a server and a client at the two ends of an emulated path, in a guest of this machine.

    A TOML file describes more programs, hosts and links. The programs are unmodified, and see the files of this
    machine. They can write only into the directory that SCRATCH and HOME name in their environment. They have no
    network to the outside. Their lines are printed with the time since the client's start. The exit status is that
    of the client, or of a server that failed.
    """
    if sys.platform != "linux":
        raise typer.BadParameter(f"the guest runs on Linux only, not on {sys.platform!r}")
    if find_spec("pyroute2") is None:
        raise typer.BadParameter("the guest needs the package pyroute2; run: pip install 'tcpdelay[testbed]'")
    topology = find_topology(commands, path)
    settings = read_settings(sysctl or [])
    if seed < 0:
        raise typer.BadParameter(f"--seed: must be 0 or more, got {seed}")
    from tcpdelay.testbed.backends import SessionFailedError
    from tcpdelay.testbed.programs import run_topology

    longest = LONGEST if longest is None else longest
    with ExitStack() as stack:
        directory = output or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tcpdelay-run-")))
        with argument_errors():
            guest = _guest(backend, hz, kernel, PATIENCE if patience is None else patience, charge_cpu)
        try:
            with argument_errors(), errors_of_links(commands):
                found = run_topology(
                    topology,
                    directory,
                    guest,
                    duration=longest,
                    seed=seed,
                    congestion_control=congestion_control,
                    sysctls=settings,
                    environment={"PATH": os.environ.get("PATH", os.defpath)},
                    working_directory=Path.cwd(),
                    linger=LINGER,
                    on_progress=standstill_reports(longest),
                    on_line=print_line,
                )
        except SessionFailedError as error:
            raise GuestFailedError(f"guest: {error}") from error
        except OSError as error:
            if output is not None and _concerns(error, output):
                raise typer.BadParameter(f"--output: {error_in_words(error)}") from error
            raise GuestFailedError(f"guest: {error_in_words(error)}") from error
        for file in found.left_out:
            print_warning(f"not copied: {file}")
        print(ends_in_words(found))
        if analysis:
            print(analysed(found, topology), end="")
    raise typer.Exit(exit_status(found))


def _concerns(error: OSError, output: Path) -> bool:
    """Return whether an error names a folder, a file in it, or a folder around it."""
    if error.filename is None:
        return False
    file = Path(os.fsdecode(error.filename))
    return file.is_relative_to(output) or output.is_relative_to(file)


class GuestFailedError(typer.BadParameter):
    """The guest did not finish; the exit status is none of the programs'."""

    exit_code = GUEST_FAILED


def is_file(words: list[str]) -> bool:
    """Return whether a file describes the programs and links."""
    return words[0].endswith(".toml") and SEPARATOR not in words


@contextmanager
def errors_of_links(words: list[str]) -> Iterator[None]:
    """Say that a queue which the kernel lacks is in the file, if a file describes the links."""
    try:
        yield
    except InvalidValueError as error:
        if error.name == "queue" and is_file(words):
            raise ValueError(f"{words[0]}: {error}") from error
        raise


def find_topology(words: list[str], given: dict[str, Any]) -> Topology:
    """Return the topology of a file, or of two command lines and the given settings of the path between them."""
    if is_file(words):
        if len(words) > 1:
            raise typer.BadParameter(f"{words[1]}: must be in front of {words[0]}, as all options")
        for name in given:
            name = "link_trace" if name == "trace" else name
            raise typer.BadParameter(f"{option_name(name)}: belongs into {words[0]}, which describes the links")
        with argument_errors():
            return read_topology(Path(words[0]))
    server, client = split_commands(words)
    if "rtt" not in given:
        raise typer.BadParameter("--rtt: is missing")
    with argument_errors():
        return two_hosts(client, server, EmulatedPath(**given))


def split_commands(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the command lines of the server and of the client."""
    if SEPARATOR not in words:
        raise typer.BadParameter(f"{SEPARATOR}: is missing; write -- SERVER ... {SEPARATOR} CLIENT ...")
    place = words.index(SEPARATOR)
    server, client = words[:place], words[place + 1 :]
    for name, command in (("SERVER", server), ("CLIENT", client)):
        if not command:
            raise typer.BadParameter(f"{name}: is missing; write -- SERVER ... {SEPARATOR} CLIENT ...")
    return server, client


def read_settings(texts: list[str]) -> dict[str, str]:
    """Return settings of the kernel, from texts like NAME=VALUE."""
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("net.") or "/" in name:
            raise typer.BadParameter(f"--sysctl: must be like net.ipv4.tcp_sack=0, got {text!r}")
        settings[name] = value
    return settings


def _guest(
    backend: Literal["uml-virtual", "uml"], hz: int, kernel: str, patience: float, charge_cpu: bool
) -> UmlBackend:
    from tcpdelay.testbed.backends import UmlBackend, VirtualTimeBackend

    if backend == "uml":
        return UmlBackend()
    return VirtualTimeBackend(hz, kernel, patience=patience, charges_work=charge_cpu)


def print_line(line: Line) -> None:
    """Print a line of a program with its time and its end."""
    stream = sys.stdout if line.stream == "stdout" else sys.stderr
    print(f"{line.time:10.3f} s  {line.end}  {printable(line.text)}", file=stream, flush=True)


def standstill_reports(longest: float) -> Callable[[float], None]:
    """Return a function that warns root at first, and reports each standstill of virtual time once.

    It takes the share of `longest` that is over.
    """
    done, since, reported = 0.0, time.monotonic(), False
    warns_root = os.getuid() == 0

    def progressed(share: float) -> None:
        nonlocal done, since, reported, warns_root
        if warns_root:
            print_warning("root runs the programs: they can read all files of this machine that root can read")
            warns_root = False
        if share != done:
            done, since, reported = share, time.monotonic(), False
        elif done > 0 and not reported and time.monotonic() - since >= STILL:
            reported = True
            before = ERASE_LINE if sys.stderr.isatty() else ""
            where = f"virtual time stands still near {done * longest:.1f} s"
            print(f"{before}tcpdelay run: {where}: a program computes, or waits without sleeping", file=sys.stderr)

    return progressed


def ends_in_words(found: ProgramRun) -> str:
    """Return how the programs ended, the clients first."""
    parts = []
    for name in sorted(found.status, key=lambda name: name not in found.clients):
        status = found.status[name]
        shown = f"the {name}" if name in (CLIENT, SERVER) else name
        if status is None:
            how = "was still running" if (found.directory / f"{name}.stdout").exists() else "was not started"
            parts.append(f"{shown} {how}")
        else:
            how = f"status {status}" if status >= 0 else f"signal {-status}"
            parts.append(f"{shown} ended at {found.ended[name]:.3f} s with {how}")
    text = "; ".join(parts)
    return text[0].upper() + text[1:] if text.startswith("the ") else text


def exit_status(found: ProgramRun) -> int:
    """Return the exit status of the first client that failed, else of the first server that failed before its stop."""
    of_clients = [found.status[name] for name in found.clients]
    if None in of_clients:
        return STILL_RUNNING
    status = next(filter(None, [*of_clients, *found.status.values()]), 0)
    return status if status >= 0 else SIGNALLED - status


def analysed(found: ProgramRun, topology: Topology) -> str:
    """Return the measured and the predicted delays between the hosts of each client and of its servers.

    Between two hosts they are those of the connection with the most payload.
    """
    hosts = {program.name: program.host for program in topology.programs}
    pairs = dict.fromkeys((program.host, hosts[other]) for program in topology.programs for other in program.after)
    texts = []
    for client, server in pairs:
        title = "" if len(pairs) == 1 else f"\n{client} and {server}:\n"
        texts.append(title + _analysed_pair(found, client, server))
    return "".join(texts)


def _analysed_pair(found: ProgramRun, client: str, server: str) -> str:
    from tcpdelay.capture.pcap.analysis import analyze_directions
    from tcpdelay.cli.analyze import find_expected, find_target
    from tcpdelay.report.analysis import analysis_text

    try:
        traces = (found.trace(client), found.trace(server))
        analyses = analyze_directions(traces, f"{found.addresses[client]}:", same_clock=True)
        with predicting():
            target = find_target(None, None, None)
            return "".join("\n" + analysis_text(each, find_expected(each, None, target)) for each in analyses)
    except ValueError as error:
        # The packets may be in a folder that is deleted at the end.
        return f"No analysis: {str(error).replace(f'{found.directory}{os.sep}', '')}\n"
    finally:
        erase_progress()
