"""Programs over an emulated path: `tcpdelay run` in a guest in virtual time, `tcpdelay proxy` on any system."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcpdelay.cli.captures import find_expected, find_target
from tcpdelay.cli.options import (
    FLOW_OPTIONS,
    OTHER_STACKS,
    OUTPUT,
    PATH,
    TRANSPORT,
    Options,
    ScenarioOptions,
    Size,
    Time,
    VaryingLink,
    command,
    declared_parameter,
    option,
    read_varying_link,
    result_option,
    written_options,
)
from tcpdelay.cli.output import (
    ERASE_LINE,
    argument_errors,
    erase_progress,
    option_name,
    predicting,
    print_warning,
    refuse_directory,
    refuse_missing_folder,
)
from tcpdelay.cli.scenario import read_path
from tcpdelay.declare import InvalidValueError, declarations
from tcpdelay.http_service import Address, address_in_words, parse_address, reaches
from tcpdelay.scenario.stack import Linux
from tcpdelay.store import error_in_words
from tcpdelay.testbed.topology import CLIENT, SERVER, EmulatedPath, Topology, read_topology, two_hosts
from tcpdelay.testbed.virtual_kernel import DEFAULT_KERNEL
from tcpdelay.units import format_duration, format_size, format_time, printable, quantile_name

if TYPE_CHECKING:
    from tcpdelay.proxy.server import Proxy
    from tcpdelay.proxy.stream import Delays
    from tcpdelay.testbed.backends import UmlBackend
    from tcpdelay.testbed.program_session import Line
    from tcpdelay.testbed.programs import ProgramRun

# `tcpdelay run`: unmodified programs at the ends of emulated paths, in a guest in virtual time.

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


class PathOfPrograms(VaryingLink, panel=PATH):
    """The options of the path: `given` has the arguments of `EmulatedPath`, where a link that varies is a trace."""

    def __init__(self, **values: Any) -> None:
        trace = read_varying_link(*(values[name] for name in ("rate", "link_trace", "outage_every", "outage")))
        settings = {name: values[name] for name in declarations(EmulatedPath) if name != "trace"}
        settings |= {} if trace is None else {"rate": None, "trace": trace}
        self.given = {name: value for name, value in settings.items() if value is not None and value is not False}

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """Return the options of the path as parameters of a command; those of a varying link replace its trace."""
        found: list[Parameter] = []
        for name, declaration in declarations(EmulatedPath).items():
            if name == "trace":
                found += super().parameters()
            else:
                found.append(declared_parameter(name, declaration, PATH))
        return found


class Guest(Options, panel=GUEST):
    """The TCP of the programs, their guest, and what is kept."""

    congestion_control: Literal["cubic", "reno", "bbr", "vegas", "westwood"] = option(
        "Congestion control of both ends, unless a program sets its own.", default="cubic", panel=TRANSPORT
    )
    sysctl: list[str] | None = option(
        "Setting of the kernel at both ends. Example: net.ipv4.tcp_sack=0. May be repeated.",
        panel=TRANSPORT,
        metavar="NAME=VALUE",
    )
    hz: int = option(declarations(Linux)["hz"].meaning, default=250)
    kernel: str = option(
        "Linux of the guest in virtual time, which tcpdelay testbed build-kernel has built. Example: 7.3.",
        default=DEFAULT_KERNEL,
        metavar="VERSION",
    )
    backend: Literal["uml-virtual", "uml"] = option(
        "A guest in virtual time, or Debian's guest in real time.", default="uml-virtual"
    )
    seed: int = option("Seed of losses, jitter and reordering, which the same seed repeats.", default=0)
    longest: Time | None = option(
        "End the programs at this time after the client's start.", format_duration(LONGEST), name="--for"
    )
    charge_cpu: bool = option(
        "Let computation take as long in virtual time as it does here. A run is then not repeatable.", default=False
    )
    patience: Time | None = option(
        "Give up if virtual time stands still for this time of the machine.", format_duration(PATIENCE)
    )
    output: Path | None = result_option(
        "New or empty directory for the packets (pcapng), the output and the files of the programs.",
        "none is kept",
        "DIR",
        panel=OUTPUT,
    )
    analysis: bool = option(
        "Measure path and delays of the connection, and predict the delays.", default=True, panel=OUTPUT
    )


@command(
    "Run unmodified programs over an emulated path, in virtual time.",
    """
Examples:
  tcpdelay run --rtt 100ms --loss 1% -- iperf3 -s -1 --client iperf3 -c server
  tcpdelay run --rtt 60ms --rate 5Mbit/s --queue fq_codel -o out -- \\
      python3 -m http.server 80 --client curl -sO http://server/big.bin
  tcpdelay run --rtt 80ms --loss 2% --seed 7 --for 10min -- \\
      node server.js --client node client.js
  tcpdelay run -o out examples/shared-link.toml
""",
)
def run(
    commands: Annotated[
        list[str],
        typer.Argument(
            metavar="SERVER ... --client CLIENT ... | FILE.toml",
            help="The command line of the server, --client, and the command line of the client. The client finds the "
            "server by the name server. Or a file with programs on several hosts, and the links between them.",
        ),
    ],
    path: PathOfPrograms,
    asked: Guest,
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
    topology = find_topology(commands, path.given)
    settings = read_settings(asked.sysctl or [])
    if asked.seed < 0:
        raise typer.BadParameter(f"--seed: must be 0 or more, got {asked.seed}")
    from tcpdelay.testbed.backends import SessionFailedError
    from tcpdelay.testbed.programs import run_topology

    longest = LONGEST if asked.longest is None else asked.longest
    with ExitStack() as stack:
        directory = asked.output or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tcpdelay-run-")))
        with argument_errors():
            guest = _guest(asked)
        try:
            with argument_errors(), errors_of_links(commands):
                found = run_topology(
                    topology,
                    directory,
                    guest,
                    duration=longest,
                    seed=asked.seed,
                    congestion_control=asked.congestion_control,
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
            if asked.output is not None and _concerns(error, asked.output):
                raise typer.BadParameter(f"--output: {error_in_words(error)}") from error
            raise GuestFailedError(f"guest: {error_in_words(error)}") from error
        for file in found.left_out:
            print_warning(f"not copied: {file}")
        print(ends_in_words(found))
        if asked.analysis:
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
    for name, given in (("SERVER", server), ("CLIENT", client)):
        if not given:
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


def _guest(asked: Guest) -> UmlBackend:
    from tcpdelay.testbed.backends import UmlBackend, VirtualTimeBackend

    if asked.backend == "uml":
        return UmlBackend()
    patience = PATIENCE if asked.patience is None else asked.patience
    return VirtualTimeBackend(asked.hz, asked.kernel, patience=patience, charges_work=asked.charge_cpu)


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


# `tcpdelay proxy`: programs on any system, whose data arrives as late as over TCP on a lossy path.

PROXY = "The proxy"
REPORT_INTERVAL = 1.0
"""Time between two reports of clients that were turned away [s]."""
COMPILED_AT_ONCE = 3.0
"""Time of loading or compiling the simulator that is not worth a line [s]."""


def _address(name: str, meaning: str, **more: Any) -> Any:
    parse = partial(parse_address, name=name)
    return option(meaning, False, metavar="HOST:PORT", parse=parse, **more)


class ProxyOptions(Options, panel=PROXY):
    """The addresses of the proxy, its simulated connections, and its log."""

    listen: Address = _address("--listen", "Address to which the clients connect.", default=...)
    to: Address = _address("--to", "Address of the server; the proxy connects to it for each client.", default=...)
    control: Address | None = _address(
        "--control", "Address for the control by HTTP: GET and PUT /path, GET /connections, GET /summary."
    )
    send_buffer: Size | None = option(
        "Send buffer of each simulated connection; if it is full, the writer waits.",
        "grows with the window, to 4 MiB",
        panel=TRANSPORT,
        name="--send-buffer",
    )
    notsent_lowat: Size | None = option(
        "Bytes that may wait unsent in the send buffer (TCP_NOTSENT_LOWAT).", "no limit", panel=TRANSPORT
    )
    seed: int = option("Seed of the losses.", "0", default=0)
    longest: Time | None = option("End after this time.", "at Ctrl-C", name="--for")
    log: Path | None = option("Write what happens, and every delay, as JSON lines.", False, panel=OUTPUT)


@command(
    "Let real programs talk through a simulated TCP, without root.",
    """
Examples:
  tcpdelay proxy --listen 127.0.0.1:9000 --to 127.0.0.1:9001 --rtt 80ms --loss 1%
  tcpdelay proxy --listen 127.0.0.1:9000 --to example.org:80 \\
      --rtt 60ms --loss 1% --bad-time 100ms --log delays.jsonl
  tcpdelay proxy --listen 127.0.0.1:9000 --to 127.0.0.1:9001 --rtt 80ms --loss 0 \\
      --control 127.0.0.1:9002
  curl -X PUT -d '{"loss": "3%"}' http://127.0.0.1:9002/path
""",
    without=(*FLOW_OPTIONS, *OTHER_STACKS, "limit", "quantile"),
)
def proxy(options: ScenarioOptions, asked: ProxyOptions) -> None:
    """Pass TCP connections on to a server, and deliver their data when a simulated TCP would deliver them.

    Each direction of each connection is a connection of the simulator: it loses segments and repairs them as Linux
    does, so a loss also holds back what follows it. The path holds for both directions. If the simulated send buffer
    is full, the writer has to wait. At the end, the measured delays are printed.
    """
    refuse_missing_folder(asked.log, "--log")
    if asked.log is not None:
        refuse_directory(asked.log, "--log")
    path, stack, _ = read_path(options)
    assert isinstance(stack, Linux)
    if asked.seed < 0:
        raise typer.BadParameter(f"--seed: must be 0 or more, got {asked.seed}")
    if asked.to.port == 0:
        raise typer.BadParameter("--to: the port of the server must be 1 or more, got 0")
    from tcpdelay.proxy.server import Proxy
    from tcpdelay.proxy.stream import Activity

    log_is_whole = True

    def end_log(error: OSError) -> None:
        nonlocal log_is_whole
        log_is_whole = False
        _report(f"warning: --log: {error.strerror}: {asked.log} ends here")

    with ExitStack() as open_files:
        try:
            file = (
                None
                if asked.log is None
                else open_files.enter_context(asked.log.open("w", encoding="utf-8", buffering=1))
            )
        except OSError as error:
            raise typer.BadParameter(f"--log: {error_in_words(error)}") from error
        limits = asked.send_buffer, asked.notsent_lowat
        with argument_errors():
            running = Proxy(path, stack, Activity(file, end_log), asked.seed, *limits, refusal_reports(asked.to))
        # Where a loop has no handlers of signals, Ctrl-C is an exception.
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(running, asked.listen, asked.to, asked.control, asked.longest))
        # After a change, the delays are those of several paths.
        unchanged = running.path == path
        print(_summary_text(running, [*written_options(path), *written_options(stack)] if unchanged else None))
    if not log_is_whole:
        raise typer.Exit(1)


async def _serve(running: Proxy, listen: Address, to: Address, control: Address | None, longest: float | None) -> None:
    """Run the proxy until a signal or the end of its time."""
    from tcpdelay.proxy.server import controlled, fault_in_words

    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(_report_fault)
    for each in (signal.SIGINT, signal.SIGTERM):
        # asyncio has no signal handlers on Windows, where an interrupt ends the program.
        if sys.platform != "win32":
            loop.add_signal_handler(each, ended.set)
    option, address = "--to", to
    try:
        targets = {found[4] for found in await loop.getaddrinfo(*to, type=socket.SOCK_STREAM)}
        option, address = "--listen", listen
        server = await running.listen(*listen, to)
        with ExitStack() as controls:
            controls.callback(server.close)
            if any(reaches(target, each.getsockname()) for target in targets for each in server.sockets):
                raise typer.BadParameter(f"--to: {address_in_words(to)} is the proxy itself, at --listen")
            option = "--control"
            if control is not None:
                address = control
                at = controls.enter_context(controlled(running, control))
                _report(f"Control: http://{address_in_words(at)}")
            _report(f"Listening at {address_in_words(server.sockets[0].getsockname())}; Ctrl-C ends")
            running.compiled.add_done_callback(partial(_report_compiled, time.monotonic()))
            option = ""
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), longest)
        await running.close()
    # Names that no host can have are a UnicodeError.
    except (OSError, UnicodeError) as error:
        if not option:
            raise
        raise typer.BadParameter(f"{option}: {address_in_words(address)}: {fault_in_words(error)}") from error


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _report_compiled(began: float, compiled: asyncio.Future[None]) -> None:
    """Report the end of a compilation that the user was told of."""
    if not compiled.cancelled() and time.monotonic() - began > COMPILED_AT_ONCE:
        _report("Compiled; connections are served now")


def _report_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report what the system refuses to the event loop in one line; a fault of this program has a traceback."""
    if isinstance(error := context.get("exception"), OSError):
        _report(f"warning: {context['message']}: {error_in_words(error)}")
    else:
        loop.default_exception_handler(context)


def refusal_reports(to: Address) -> Callable[[str], None]:
    """Return a function that reports why clients are turned away, once a second at most."""
    reported, waiting = -math.inf, 0

    def refused(fault: str) -> None:
        nonlocal reported, waiting
        waiting += 1
        if (now := time.monotonic()) < reported + REPORT_INTERVAL:
            return
        who = "a client was" if waiting == 1 else f"{waiting} clients were"
        _report(printable(f"warning: {who} turned away: {address_in_words(to)}: {fault}"))
        reported, waiting = now, 0

    return refused


def _summary_text(running: Proxy, options: list[str] | None) -> str:
    """Return the summary of a proxy: the delays of each direction, and the prediction to compare them with.

    `options` are those of `tcpdelay predict` for the path and the stack; None if they changed.
    """
    activity = running.activity
    noun = "connection" if activity.connections == 1 else "connections"
    lines = [f"{activity.connections} {noun}"]
    if activity.refused:
        lines[0] += f", of which {activity.refused} turned away"
    for direction, delays in activity.delays.items():
        if delays.writes:
            delay = running.paths[direction].forward_delay
            lines += [f"{direction}: {delays.writes} writes, {format_size(delays.bytes)}", _delays_text(delays, delay)]
            if options is not None:
                lines += _comparison(delays, options)
    return "\n".join(lines)


def _delays_text(delays: Delays, one_way_delay: float) -> str:
    found, late = delays.distribution(one_way_delay), delays.lateness
    quantiles = (f"{quantile_name(q)} {format_time(found.quantile(q))}" for q in (0.5, 0.95, 0.99))
    lines = [
        f"  delay: mean {format_time(found.mean)}, {', '.join(quantiles)}",
        f"  of which the proxy itself: mean {format_time(late.mean)}, p95 {format_time(late.quantile(0.95))}",
    ]
    if delays.pauses:
        times = "once" if delays.pauses == 1 else f"{delays.pauses} times"
        lines.append(f"  the writer had to wait {times}")
    return "\n".join(lines)


def _comparison(delays: Delays, options: list[str]) -> list[str]:
    """Return the command that predicts the delays of writes of equal size."""
    if len(delays.sizes) != 1 or delays.mean_interval is None:
        return []
    (size,) = delays.sizes
    flow = f"--packet-size {size}B --interval {format_time(delays.mean_interval).replace(' ', '')}"
    return [f"  compare with: tcpdelay predict {' '.join(options)} {flow} --method simulation"]
