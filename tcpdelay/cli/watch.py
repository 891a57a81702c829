"""`tcpdelay watch`: the running prediction for a live connection, and its metrics for Prometheus."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, get_args

import typer

from tcpdelay.cli.options import (
    OUTPUT,
    Options,
    ScenarioOptions,
    Time,
    command,
    file_name,
    option,
    options_only_of,
)
from tcpdelay.cli.output import announce_prediction, argument_errors, erase_progress
from tcpdelay.cli.scenario import read_demand, read_source
from tcpdelay.http_service import Address, address_in_words, parse_address
from tcpdelay.scenario.media import Video
from tcpdelay.scenario.scenario import FIELDS, Target, constant_rate
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import DEFAULT_PROFILE, CongestionControl, KnownStack, profiles_with
from tcpdelay.units import format_duration

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from tcpdelay.advice.guideline import Observation, Transport, WatchedPath
    from tcpdelay.capture.estimate import PathSample
    from tcpdelay.capture.ss import Connection

    Sampled = tuple[PathSample, Connection | None]


# The latest metrics of a running command, served over HTTP for Prometheus.


@contextmanager
def metrics_server(address: Address) -> Iterator[Callable[[CollectorRegistry], None]]:
    """Serve metrics at `/metrics`, and print the address on stderr; yield the function that replaces them."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    from tcpdelay.http_service import Page, served

    metrics = CollectorRegistry()
    listening: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, tuple[Any, ...]]] = Future()

    class MetricsPage(Page):
        def get(self) -> None:
            """Answer with the latest metrics, in the version of the format that the client accepts."""
            encode, content_type = choose_encoder(self.request.headers.get("Accept", ""))
            self.set_header("Content-Type", content_type)
            self.finish(encode(metrics))

    def publish(latest: CollectorRegistry) -> None:
        nonlocal metrics
        metrics = latest

    async def serve() -> None:
        ended = asyncio.Event()
        try:
            with served({"/metrics": MetricsPage, "/": MetricsPage}, address) as at:
                listening.set_result((asyncio.get_running_loop(), ended, at))
                await ended.wait()
        except (OSError, UnicodeError) as error:
            listening.set_exception(error)

    # The command itself waits and computes in the main thread.
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        loop, ended, at = listening.result()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise typer.BadParameter(f"--prometheus: cannot listen on {address_in_words(address)}: {reason}") from error
    print(f"metrics at http://{address_in_words(at)}/metrics", file=sys.stderr, flush=True)
    try:
        yield publish
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


# `tcpdelay watch`: the running prediction for a live connection, beside what is measured of it.

Format = Literal["text", "jsonl"]
WATCHED = "What is watched"
STANDARD_INPUT = "-"
INTERVAL = 1.0
"""Default of --every [s]."""
_OF_CONNECTION = ("path", "rtt", "loss", "one_way_delay", "ping", "ss", "connection")
"""Options of a scenario that the watched connection replaces."""


class Watched(Options, panel=WATCHED):
    """The connection, how it is watched, and the output."""

    ss: int | None = option("Process ID: samples its TCP connection with 'ss -tin'.")
    dst: str | None = option("Host at the other end, or HOST:PORT: samples its connection.", metavar="HOST")
    get_stats: str | None = option(
        "Statistics of a browser: the file of chrome://webrtc-internals, or reports of getStats() as JSON, one per "
        "line; - reads standard input.",
        metavar="FILE",
        parse=file_name,
    )
    replay: str | None = option(
        "Recorded outputs of 'ss -tin', each after a line with its time in seconds, or a capture of the testbed.",
        metavar="FILE",
        parse=file_name,
    )
    connection: str | None = option(
        "Connection, if there are several: the address of either end, or a part of it. With --get-stats: the kind "
        "or the SSRC of the stream.",
        metavar="ADDRESS",
    )
    every: Time | None = option("Mean time between two samples of ss.", "1s")
    longest: Time | None = option("End after this time.", "until Ctrl-C or the connection's end", name="--for")
    window: Time | None = option("Only samples of this time count for the prediction.", "5min")
    whole_connection: bool = option(
        "Count losses since the connection began, as report --ss does, not those of --window.", default=False
    )
    hold: Time | None = option("The advice changes after a verdict has held for this time.", "30s", zero=True)
    transport: Literal["tcp", "udp"] | None = option(
        "Transport that carries the flow now.", "udp with --get-stats, else tcp", name="--now-on"
    )
    output_format: Format = option(
        "A table that is redrawn, or one JSON object per line.", default="text", panel=OUTPUT, name="--format"
    )
    prometheus: Address | None = option(
        "Serve metrics at this address; port 0 is any free port.",
        panel=OUTPUT,
        metavar="HOST:PORT",
        parse=partial(parse_address, name="--prometheus"),
    )


@command(
    "Watch a live connection: the running prediction, and when to move.",
    """
Examples:
  tcpdelay watch --dst 198.51.100.7:5001 --app voip
  tcpdelay watch --ss 4711 --app remote-control --format jsonl
  tcpdelay watch --ss 4711 --app voip --prometheus 127.0.0.1:9108
  tcpdelay watch --get-stats webrtc_internals_dump.txt --connection audio \\
      --app opus --over turn-tcp
  tcpdelay watch --replay examples/ss-minute.txt --app voip

To record a connection for --replay:
  while sleep 1; do date +%s.%N; ss -tin dst HOST; done > ss-minute.txt
""",
    without=(*_OF_CONNECTION, *options_only_of("quic")),
)
def watch(options: ScenarioOptions, asked: Watched) -> None:
    """Predict the delay over TCP from a live connection, beside what is measured, and say when a move is advised."""
    if options.stack == "quic":
        raise typer.BadParameter("--stack: watch predicts the delays over TCP, got 'quic'")
    sources = {"--ss": asked.ss, "--dst": asked.dst, "--get-stats": asked.get_stats, "--replay": asked.replay}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        found = f"got {' and '.join(given)}" if given else "none is given"
        raise typer.BadParameter(f"{', '.join(sources)}: give exactly one of them; {found}")
    samples: Iterator[Sampled]
    if asked.get_stats is not None:
        samples = _browser_samples(asked.get_stats, asked.connection)
    elif asked.replay is not None:
        from tcpdelay.capture.flow_capture import read_replay

        samples = read_replay(asked.replay, asked.connection)
    else:
        samples = _live_samples(asked.ss, asked.dst, asked.connection, asked.every or INTERVAL)
    now_on: Transport = asked.transport or ("udp" if asked.get_stats is not None else "tcp")

    def watched_path(first: Connection | None) -> WatchedPath:
        from tcpdelay.advice.guideline import HOLD, WINDOW, WatchedPath

        flow, stack, target = _demand(_with_settings_of(options, first))
        others = {name: value for name, value in options.values.items() if FIELDS[name][0] == "path"}
        window, hold = asked.window or WINDOW, HOLD if asked.hold is None else asked.hold
        return WatchedPath(flow, stack, target, now_on, window, hold, asked.whole_connection, others)

    on_screen = asked.output_format == "text" and sys.stdout.isatty()
    output = _Screen() if on_screen else _Output(asked.output_format == "jsonl")
    _watch(samples, given[0], watched_path, asked.longest, output, asked.prometheus)


def _with_settings_of(options: ScenarioOptions, connection: Connection | None) -> ScenarioOptions:
    """Return the options with segment size, timeout and congestion control of a connection, unless they are given."""
    if connection is None:
        return options
    found: dict[str, float | str | None] = {"mss": connection.mss, "rto_min": connection.timeout_beyond_rtt}
    if connection.congestion_control in get_args(CongestionControl):
        found["congestion_control"] = connection.congestion_control
    profile = options.stack or DEFAULT_PROFILE
    return options.changed(
        **{name: value for name, value in found.items() if options[name] is None and profile in profiles_with(name)}
    )


def _demand(options: ScenarioOptions) -> tuple[Flow, KnownStack, Target]:
    """Return flow, stack and target; frames of a video get one size: the chain predicts messages of one size."""
    source, stack, target = read_source(options) if options.app and options.app.video else read_demand(options)
    if isinstance(source, Video):
        print("frames of one size: the delay of key frames is not predicted", file=sys.stderr)
        with argument_errors():
            source = Flow(round(source.mean_size), source.mean_interval, write_jitter=source.write_jitter)
    return constant_rate(source), stack, target


def _live_samples(process: int | None, host: str | None, requested: str | None, interval: float) -> Iterator[Sampled]:
    """Yield samples of a live connection, one at a random moment of each interval, until it ends."""
    from tcpdelay.capture.ss import SsQuery

    query = SsQuery.of_process(process, requested) if process is not None else SsQuery.of_host(host or "", requested)
    connection = query.find()
    started = time.monotonic()
    for number_of_interval in count():
        # Samples at regular times would meet a regular flow always in the same phase.
        due = started + interval * (number_of_interval + (random.random() if number_of_interval else 0.0))
        if (rest := due - time.monotonic()) > 0:
            time.sleep(rest)
        elif rest < -interval:
            continue
        sampled = query.sample(connection)
        if sampled is None:
            print(f"the connection {connection.local} -> {connection.peer} has ended", file=sys.stderr)
            return
        yield sampled


def _browser_samples(file: str, requested: str | None) -> Iterator[Sampled]:
    """Yield the samples in a dump of a browser's statistics."""
    from tcpdelay.capture.get_stats import read_reports, stream_samples

    with ExitStack() as opened:
        lines: Iterable[str] = sys.stdin
        name = "standard input"
        if file != STANDARD_INPUT:
            name = file
            try:
                lines = opened.enter_context(open(file, encoding="utf-8-sig", errors="replace"))  # noqa: PTH123
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise ValueError(f"{file}: cannot be read: {reason}") from None
        try:
            for sample in stream_samples(read_reports(lines, name), name, requested):
                yield sample, None
        except OSError as error:
            raise ValueError(f"{name}: cannot be read: {error.strerror or error}") from None


class _Output:
    """Where the observations go: here, a line each, in JSON or not."""

    def __init__(self, in_json: bool = False) -> None:
        self._in_json = in_json

    def show(self, seen: Observation, watched: WatchedPath) -> None:
        """Show what is known now."""
        from tcpdelay.report.analysis import json_line, watch_line, watch_record

        record = watch_record(seen, watched.target)
        print(json_line("sample", record) if self._in_json else watch_line(seen, watched), flush=True)

    def end(self, seen: Observation, watched: WatchedPath, samples: int) -> None:
        """Show the summary."""
        from tcpdelay.report.analysis import json_line, summary_record, summary_text

        record = summary_record(seen, watched, samples)
        text = f"{json_line('summary', record)}\n" if self._in_json else f"\n{summary_text(seen, watched, samples)}"
        print(text, end="", flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""


class _Screen(_Output):
    """A table on the terminal that is redrawn."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(), auto_refresh=False, transient=True)

    def show(self, seen: Observation, watched: WatchedPath) -> None:
        from tcpdelay.report.analysis import watch_table

        self._live.start()
        self._live.update(watch_table(seen, watched), refresh=True)

    def end(self, seen: Observation, watched: WatchedPath, samples: int) -> None:
        self.close()
        super().end(seen, watched, samples)

    def close(self) -> None:
        self._live.stop()


def _watch(
    samples: Iterator[Sampled],
    source: str,
    watched_path: Callable[[Connection | None], WatchedPath],
    longest: float | None,
    output: _Output,
    address: Address | None,
) -> None:
    """Predict and show each sample, until the samples end, the time is over, or the command is interrupted."""
    watched: WatchedPath | None = None
    seen: Observation | None = None
    taken = 0
    with ExitStack() as running, _interruptible_waits() as waiting:
        running.callback(output.close)
        publish = None if address is None else running.enter_context(metrics_server(address))
        try:
            while longest is None or seen is None or seen.elapsed < longest:
                with argument_errors(source), waiting():
                    sampled = next(samples, None)
                if sampled is None:
                    break
                sample, connection = sampled
                if watched is None:
                    with argument_errors():
                        watched = watched_path(connection)
                    # The first prediction may wait for the compilation of the kernels.
                    announce_prediction()
                with argument_errors(source):
                    seen = watched.add(sample)
                if not taken:
                    erase_progress()
                taken += 1
                output.show(seen, watched)
                if publish is not None:
                    from tcpdelay.report.analysis import prometheus_metrics, watch_record

                    publish(prometheus_metrics(watch_record(seen, watched.target)))
        except KeyboardInterrupt:
            pass
        if seen is None or watched is None:
            print(f"{source}: no sample was taken in {format_duration(longest or 0.0)}", file=sys.stderr)
        else:
            output.end(seen, watched, taken)


@contextmanager
def _interruptible_waits() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt, but only while the command waits; a second one kills it.

    Compiled code must not be interrupted, and a prediction takes a moment only: it is finished first.
    """
    interrupted = is_waiting = False

    def interrupt(number_of_signal: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(number_of_signal, signal.SIG_DFL)
        if is_waiting:
            raise KeyboardInterrupt

    @contextmanager
    def waiting() -> Iterator[None]:
        nonlocal is_waiting
        is_waiting = True
        try:
            if interrupted:
                raise KeyboardInterrupt
            yield
        finally:
            is_waiting = False

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield waiting
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
