"""`tcpdelay proxy`: programs on any system, whose data arrives as late as over TCP on a lossy path."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tcpdelay.cli.errors import argument_errors
from tcpdelay.cli.options import (
    FLOW_OPTIONS,
    OTHER_STACKS,
    OUTPUT,
    TRANSPORT,
    ScenarioOptions,
    make_option,
    number,
    quantity,
    with_scenario,
    written_options,
)
from tcpdelay.cli.output import refuse_directory, refuse_missing_folder
from tcpdelay.cli.scenario import read_path
from tcpdelay.http_service import Address, address_in_words, parse_address, reaches
from tcpdelay.scenario.stack import Linux
from tcpdelay.store import error_in_words
from tcpdelay.units import format_size, format_time, printable, quantile_name

if TYPE_CHECKING:
    from tcpdelay.proxy.server import Proxy
    from tcpdelay.proxy.stream import Delays

PROXY = "The proxy"
REPORT_INTERVAL = 1.0
"""Time between two reports of clients that were turned away [s]."""
COMPILED_AT_ONCE = 3.0
"""Time of loading or compiling the simulator that is not worth a line [s]."""
SUMMARY = "Let real programs talk through a simulated TCP, without root."
EXAMPLES = """
\b
Examples:
  tcpdelay proxy --listen 127.0.0.1:9000 --to 127.0.0.1:9001 --rtt 80ms --loss 1%
  tcpdelay proxy --listen 127.0.0.1:9000 --to example.org:80 \\
      --rtt 60ms --loss 1% --bad-time 100ms --log delays.jsonl
  tcpdelay proxy --listen 127.0.0.1:9000 --to 127.0.0.1:9001 --rtt 80ms --loss 0 \\
      --control 127.0.0.1:9002
  curl -X PUT -d '{"loss": "3%"}' http://127.0.0.1:9002/path
"""


def _address(name: str, description: str, default: str | bool = False) -> Any:
    return make_option(name, PROXY, description, default, metavar="HOST:PORT", parser=partial(parse_address, name=name))


@partial(with_scenario, left_out=(*FLOW_OPTIONS, *OTHER_STACKS, "limit", "quantile"))
def proxy(
    options: ScenarioOptions,
    listen: Annotated[Address, _address("--listen", "Address to which the clients connect.")],
    to: Annotated[Address, _address("--to", "Address of the server; the proxy connects to it for each client.")],
    control: Annotated[
        Address | None,
        _address("--control", "Address for the control by HTTP: GET and PUT /path, GET /connections, GET /summary."),
    ] = None,
    send_buffer: Annotated[
        float | None,
        quantity(
            "--send-buffer",
            "size",
            TRANSPORT,
            "Send buffer of each simulated connection; if it is full, the writer waits.",
            "grows with the window, to 4 MiB",
        ),
    ] = None,
    notsent_lowat: Annotated[
        float | None,
        quantity(
            "--notsent-lowat",
            "size",
            TRANSPORT,
            "Bytes that may wait unsent in the send buffer (TCP_NOTSENT_LOWAT).",
            "no limit",
        ),
    ] = None,
    seed: Annotated[int, number("--seed", PROXY, "Seed of the losses.", "0")] = 0,
    longest: Annotated[float | None, quantity("--for", "time", PROXY, "End after this time.", "at Ctrl-C")] = None,
    log: Annotated[
        Path | None,
        make_option("--log", OUTPUT, "Write what happens, and every delay, as JSON lines.", False, metavar="FILE"),
    ] = None,
) -> None:
    """Pass TCP connections on to a server, and deliver their data when a simulated TCP would deliver them.

    Each direction of each connection is a connection of the simulator: it loses segments and repairs them as Linux
    does, so a loss also holds back what follows it. The path holds for both directions. If the simulated send buffer
    is full, the writer has to wait. At the end, the measured delays are printed.
    """
    refuse_missing_folder(log, "--log")
    if log is not None:
        refuse_directory(log, "--log")
    path, stack, _ = read_path(options)
    assert isinstance(stack, Linux)
    if seed < 0:
        raise typer.BadParameter(f"--seed: must be 0 or more, got {seed}")
    if to.port == 0:
        raise typer.BadParameter("--to: the port of the server must be 1 or more, got 0")
    from tcpdelay.proxy.server import Proxy
    from tcpdelay.proxy.stream import Activity

    log_is_whole = True

    def end_log(error: OSError) -> None:
        nonlocal log_is_whole
        log_is_whole = False
        _report(f"warning: --log: {error.strerror}: {log} ends here")

    with ExitStack() as open_files:
        try:
            file = None if log is None else open_files.enter_context(log.open("w", encoding="utf-8", buffering=1))
        except OSError as error:
            raise typer.BadParameter(f"--log: {error_in_words(error)}") from error
        limits = _whole(send_buffer), _whole(notsent_lowat)
        with argument_errors():
            running = Proxy(path, stack, Activity(file, end_log), seed, *limits, refusal_reports(to))
        # Where a loop has no handlers of signals, Ctrl-C is an exception.
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(running, listen, to, control, longest))
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


def _whole(size: float | None) -> int | None:
    return None if size is None else int(size)


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
