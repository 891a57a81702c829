"""A session of experiments: connections, applications and logs in an event loop, handed over at its end."""

from __future__ import annotations

import errno
import json
import socket
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tcpdelay.testbed.event_loop import NANOSECONDS, READABLE, WRITABLE, EventLoop, moment_of, sleep_until, wake_exactly
from tcpdelay.testbed.experiment import CongestionControl, Experiment
from tcpdelay.testbed.flows import (
    ConstantBitRateSource,
    DatagramSource,
    FlowRecord,
    GreedySource,
    MessageSource,
    PacketLog,
    ReceivingStream,
    SendingStream,
    StreamPackets,
    TcpInfo,
    WebUser,
    adaptive_source,
    bulk_source,
    is_handed_over,
    message_file,
    read_messages,
    tcp_info,
    write_records,
    writer_to_stream,
)
from tcpdelay.testbed.network import PORT, LossChannel, Network, PacketTraces, kernel_counters
from tcpdelay.testbed.quic_program import QuicProgramFlow

SEND_BUFFER = 2**20
RECEIVE_BUFFER = 4 * 2**20
DATAGRAM_BUFFER = 16 * 2**20
"""Buffer of a UDP socket of QUIC, which netem's packets in flight must not fill [bytes]."""
SAMPLE_INTERVAL = NANOSECONDS // 10
DRAIN_ROUND_TRIPS = 20
SHORTEST_DRAIN = 2 * NANOSECONDS
LONGEST_DRAIN = 20 * NANOSECONDS
# Socket options of asm-generic/socket.h. They need CAP_NET_ADMIN; the sysctls do not limit their values.
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33

DCTCP = "dctcp"
ECT_1 = 1
"""ECN codepoint in the type of service of a datagram: its sender responds to marks as L4S requires (RFC 9331)."""
TCP_RTO_MIN_US = 45
"""Socket option of linux/tcp.h, since Linux 6.15; it takes at most 200 ms."""

Established = Callable[[socket.socket, socket.socket], None]


class MeasuredFlow:
    """One measured flow: its log, its connections, and the samples of their TCP_INFO."""

    def __init__(self) -> None:
        self.log = PacketLog()
        self.connections: list[socket.socket] = []
        self.samples = {name: array("q") for name in ("time", "connection", *TcpInfo._fields)}

    def sample(self, now: int) -> None:
        """Add a sample of each connection with the time `now` [ns]."""
        for number, connection in enumerate(self.connections):
            info = tcp_info(connection)
            self.samples["time"].append(now)
            self.samples["connection"].append(number)
            for name, value in zip(TcpInfo._fields, info, strict=True):
                self.samples[name].append(value)


@dataclass(eq=False)
class Measurement:
    """Runs one experiment in an event loop that several experiments share."""

    loop: EventLoop
    experiment: Experiment
    seed: int  # Seed of the applications' random numbers
    # For each measured flow, the file with the messages of its source; empty for other applications.
    messages: Sequence[Path] = ()
    trace: Path | None = None  # Path of the packet traces; `.sender.pcap` and `.receiver.pcap` are appended
    quic_program: Path | None = None  # The program of the implementation, unless this is aioquic
    qlog: Path | None = None  # Path of the qlogs of QUIC; the flow's number, the end and `.qlog` are appended

    def __post_init__(self) -> None:
        self._stopped = False
        self._programs: list[QuicProgramFlow] = []
        self._network = Network.build(self.experiment, seed=self.seed)
        self._on_close = ExitStack()
        self._on_close.callback(self._network.close)
        if self.trace is not None:
            self._on_close.callback(PacketTraces(self._network, self.trace).stop)
        self._expected: dict[int, Callable[[socket.socket], None]] = {}
        self._flows: list[MeasuredFlow] = []
        self._ticks: list[Callable[[int], None]] = []
        self._sources: list[MessageSource] = []
        self._greedy: list[GreedySource] = []
        self._web_users: list[WebUser] = []
        self._opening = 0
        self._repetitions: list[int] = []
        self._deadline = 0
        self.started = 0

    def open(self) -> None:
        """Listen, and open all connections of the experiment; call `start` when `ready` is true."""
        if (
            self.experiment.application not in ("udp", "quic")
            or self.experiment.bulk_flows
            or self.experiment.web_flows
        ):
            self._listen()
        for number in range(self.experiment.flows):
            flow = MeasuredFlow()
            self._flows.append(flow)
            if self.experiment.application == "udp":
                self._open_datagrams(flow)
            elif self.experiment.application == "quic":
                self._open_quic(flow, number)
            else:
                self._open_streams(flow, number)
        for _ in range(self.experiment.bulk_flows):
            self._opening += 1
            self._connect_beside(self._begin_bulk)
        for user in range(self.experiment.web_flows):
            self._web_users.append(WebUser(self.loop, self._connect_beside, self.seed * 1000 + user))

    @property
    def ready(self) -> bool:
        """Whether every connection is established."""
        return self._opening == 0

    def start(self, first: int) -> None:
        """Begin to write at a time [ns, monotonic clock]."""
        interval = round(self.experiment.interval * NANOSECONDS)
        self.started = first
        for number, tick in enumerate(self._ticks):
            # The flows of one experiment write at times that are spread evenly over the interval.
            offset = interval * number // len(self._ticks)
            self._repetitions.append(self.loop.every(interval, first + offset, tick))
        for number, source in enumerate(self._sources):
            source.start(first + interval * number // len(self._sources))
        for number, program in enumerate(self._programs):
            program.start(first + interval * number // len(self._programs))
        for greedy in self._greedy:
            self._on_close.callback(greedy.stop)
            self.loop.at(first, greedy.start)
        for user in self._web_users:
            self._on_close.callback(user.stop)
            self.loop.at(first, user.think)
        if self.experiment.bad_time > 0 and self.experiment.loss > 0:
            # Experiments side by side have states of their own.
            seed = f"{self.seed}/{self.experiment.digest}"
            channel = LossChannel(self.loop, self.experiment.lossy_path, self._network.set_loss, seed)
            self._on_close.callback(channel.stop)
            channel.start(first)
        # Samples are taken between two ticks, so that a sample never delays a packet.
        self._repetitions.append(self.loop.every(max(SAMPLE_INTERVAL, interval), first + interval // 3, self._sample))
        end = first + round(self.experiment.duration * NANOSECONDS)
        self.loop.at(end, lambda: self._stop(end))

    def _sample(self, _: int) -> None:
        now = time.monotonic_ns()
        for flow in self._flows:
            flow.sample(now)
        if self._deadline and (now > self._deadline or self._all_read):
            self._finish()

    @property
    def _all_read(self) -> bool:
        return not any(flow.log.outstanding for flow in self._flows) and all(
            program.complete for program in self._programs
        )

    def _stop(self, end: int) -> None:
        """Stop writing once all is written that was due before `end` [ns], and wait for the packets in flight."""
        for repetition in self._repetitions[:-1]:
            self.loop.cancel(repetition, end)
        for source in self._sources:
            source.stop()
        for greedy in self._greedy:
            greedy.stop()
        for user in self._web_users:
            user.stop()
        drain = round(DRAIN_ROUND_TRIPS * self.experiment.rtt * NANOSECONDS)
        self._deadline = time.monotonic_ns() + min(max(drain, SHORTEST_DRAIN), LONGEST_DRAIN)

    def _finish(self) -> None:
        self.loop.cancel(self._repetitions[-1])
        for program in self._programs:
            program.stop()
        self._stopped = True

    @property
    def finished(self) -> bool:
        """Whether the experiment is over, and the programs of its flows have ended."""
        return self._stopped and all(program.ended for program in self._programs)

    def records(self) -> list[FlowRecord]:
        """Return the measurements of each flow, with the kernel's counters of the whole experiment."""
        counters = kernel_counters(self._network.sender) | {
            f"receiver_{name}": count for name, count in kernel_counters(self._network.receiver).items()
        }
        epoch = time.time_ns() - (time.monotonic_ns() - self.started)
        counts = self._network.packet_counts()
        return [
            FlowRecord(number, self.started, epoch, counters, counts, flow.log.written, flow.log.read, flow.samples)
            for number, flow in enumerate(self._flows)
        ]

    def close(self) -> None:
        """Close all sockets and the network."""
        self._on_close.close()

    def _listen(self) -> None:
        listener = self._network.receiver.open_socket(socket.SOCK_STREAM)
        # The buffer is set before the handshake, which fixes the scale of the window.
        listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
        if DCTCP in (self.experiment.congestion_control, self.experiment.cross_control):
            # The kernel agrees to ECN, and echoes each mark, only if the receiver has the control too.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, DCTCP.encode())
        listener.bind(("", PORT))
        listener.listen(1024)

        def accept(_: int) -> None:
            connection, (_, port) = listener.accept()
            connection.setblocking(False)
            self._expected.pop(port)(connection)

        self.loop.watch(listener.fileno(), READABLE, accept)
        self._on_close.callback(listener.close)
        self._on_close.callback(self.loop.forget, listener.fileno())

    def _connect_beside(self, established: Established) -> None:
        """Open a connection of the cross traffic."""
        self._connect(established, self.experiment.cross_control)

    def _connect(self, established: Established, control: CongestionControl | None = None) -> None:
        """Open a connection; `established` is called with its sending and its receiving socket."""
        sender = self._network.sender.open_socket(socket.SOCK_STREAM)
        control = control or self.experiment.congestion_control
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(self.experiment.nodelay))
        if self.experiment.application in ("cbr", "source"):
            # A source with times of its own must not wait for buffers. A greedy source keeps the kernel's default.
            sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER)
        if self.experiment.rto_min is not None:
            self._set_rto_min(sender, self.experiment.rto_min)
        sender.bind(("", 0))
        receiver: list[socket.socket] = []

        def accepted(connection: socket.socket) -> None:
            receiver.append(connection)
            established(sender, connection)

        def writable(_: int) -> None:
            self.loop.forget(sender.fileno())
            error = sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, "no connection to the receiver")

        self._expected[sender.getsockname()[1]] = accepted
        sender.connect_ex((self._network.receiver_address, PORT))
        self.loop.watch(sender.fileno(), WRITABLE, writable)

    def _set_rto_min(self, sender: socket.socket, rto_min: float) -> None:
        try:
            sender.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MIN_US, round(1e6 * rto_min))
        except OSError as error:
            if error.errno not in (errno.ENOPROTOOPT, errno.EINVAL):
                raise
            self._network.set_rto_min(rto_min)

    def _open_streams(self, flow: MeasuredFlow, number: int) -> None:
        experiment = self.experiment
        streams: list[SendingStream] = []
        readers: list[StreamPackets] = []

        def established(sender: socket.socket, receiver: socket.socket) -> None:
            self._opening -= 1
            reader = StreamPackets(flow.log)
            flow.connections.append(sender)
            readers.append(reader)
            streams.append(SendingStream(self.loop, sender))
            self._on_close.callback(streams[-1].close)
            receiving = ReceivingStream(self.loop, receiver, reader.on_data, not experiment.delayed_ack)
            self._on_close.callback(receiving.close)
            if experiment.application == "adaptive":
                size, lowat = experiment.packet_size, experiment.notsent_lowat
                self._greedy.append(adaptive_source(self.loop, flow.log, reader, sender, size, lowat))
            elif experiment.application == "source":
                write = writer_to_stream(flow.log, streams[-1], reader)
                self._sources.append(MessageSource(self.loop, read_messages(self.messages[number]), write))
            elif len(streams) == experiment.connections:
                intelligent = experiment.scheduling == "intelligent"
                constant = ConstantBitRateSource(
                    flow.log, streams, readers, experiment.packet_size, experiment.pieces, intelligent
                )
                self._ticks.append(constant.tick)

        for _ in range(experiment.connections):
            self._opening += 1
            self._connect(established)

    def _open_datagrams(self, flow: MeasuredFlow) -> None:
        receiver = self._network.receiver.open_socket(socket.SOCK_DGRAM)
        receiver.bind(("", 0))
        sender = self._network.sender.open_socket(socket.SOCK_DGRAM)
        sender.connect((self._network.receiver_address, receiver.getsockname()[1]))
        if self.experiment.l4s:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ECT_1)
        source = DatagramSource(self.loop, flow.log, sender, receiver, self.experiment.packet_size)
        self._on_close.callback(source.close)
        self._ticks.append(source.tick)

    def _open_quic(self, flow: MeasuredFlow, number: int) -> None:
        self._opening += 1
        qlog = None if self.qlog is None else self.qlog.with_name(f"{self.qlog.name}.{number}")
        file = self.messages[number]
        if self.quic_program is not None:
            program = QuicProgramFlow(
                self.loop,
                flow.log,
                self.experiment,
                self._network,
                self.quic_program,
                file,
                number,
                self._quic_ready,
                qlog,
            )
            self._programs.append(program)
            self._on_close.callback(program.close)
            program.connect()
            return
        # aioquic is an optional dependency, and its import takes longer than a short run.
        from tcpdelay.testbed.aioquic_flow import AioquicFlow

        sender, receiver = (
            node.open_socket(socket.SOCK_DGRAM) for node in (self._network.sender, self._network.receiver)
        )
        for end in (sender, receiver):
            end.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, DATAGRAM_BUFFER)
            end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, DATAGRAM_BUFFER)
        address = self._network.receiver_address, PORT + number
        receiver.bind(address)
        quic = AioquicFlow(self.loop, flow.log, self.experiment, sender, receiver, address, self._quic_ready, qlog)
        self._on_close.callback(quic.close)
        self._sources.append(MessageSource(self.loop, read_messages(file), quic.write))
        quic.connect()

    def _quic_ready(self) -> None:
        self._opening -= 1

    def _begin_bulk(self, sender: socket.socket, receiver: socket.socket) -> None:
        self._opening -= 1
        self._greedy.append(bulk_source(self.loop, sender))
        self._on_close.callback(sender.close)
        receiving = ReceivingStream(self.loop, receiver, lambda received, now: None, quick_ack=False)
        self._on_close.callback(receiving.close)


# A session: run the experiments of a plan side by side on this kernel, and hand over their flows.

HEARTBEAT = 10_000_000
STALL = 5_000_000
"""Delay from which a heartbeat counts as a stall [ns]."""
LEAD = NANOSECONDS // 2
LONGEST_OPENING = 120 * NANOSECONDS
PROGRESS_STEPS = 200


@dataclass(frozen=True)
class Plan:
    """The plan of a session: experiments that run side by side, and the seed of their applications."""

    experiments: list[Experiment]  # The experiments, each on a network of its own
    seed: int = 0  # Seed, 0 or more
    heartbeat: bool = True  # Whether to watch for stalls; there are no stalls in virtual time
    pcap: bool = False  # Whether to trace the packets at both ends
    qlog: bool = False  # Whether both ends of QUIC log their events
    # Paths of the programs that experiments with QUIC need, by implementation.
    quic_programs: dict[str, str] = field(default_factory=dict)

    @property
    def duration(self) -> float:
        """Time during which packets are written, of the longest experiment [s]."""
        return max(experiment.duration for experiment in self.experiments)

    def is_finished(self, directory: Path) -> bool:
        """Return whether the flows of all experiments have been handed over in a directory."""
        return all(is_handed_over(directory, number) for number in range(len(self.experiments)))

    def run(self, directory: Path) -> None:
        """Run the session, and hand over its flows in a directory; needs root in its namespace."""
        run_session(self, directory)


def run_session(plan: Plan, directory: Path) -> None:
    """Run the experiments of a plan side by side."""
    wake_exactly()
    sleep_until(moment_of(plan.seed, time.monotonic_ns()))
    loop = EventLoop()
    running: dict[int, Measurement] = {}
    try:
        for number, experiment in enumerate(plan.experiments):
            place = directory / str(number)
            flows = range(experiment.flows if experiment.messages is not None else 0)
            messages = [message_file(directory, number, flow) for flow in flows]
            program = plan.quic_programs.get(experiment.implementation)
            running[number] = Measurement(
                loop,
                experiment,
                plan.seed,
                messages,
                place if plan.pcap else None,
                None if program is None else Path(program),
                place if plan.qlog else None,
            )
        for measurement in running.values():
            measurement.open()
        _wait_until_ready(loop, list(running.values()))
        first = moment_of(plan.seed, time.monotonic_ns() + LEAD)
        stalls = _watch_stalls(loop, first) if plan.heartbeat else array("q")
        for number, measurement in running.items():
            interval = plan.experiments[number].interval * NANOSECONDS
            # Experiments start at different times: flows that write at the same instant would wait for each other.
            measurement.start(first + round(interval * number / len(running)))
        _report_progress(loop, plan, directory, first)
        while running:
            loop.run(lambda: any(measurement.finished for measurement in running.values()))
            for number in [number for number, measurement in running.items() if measurement.finished]:
                (directory / "stalls").write_text(json.dumps(stalls.tolist()), encoding="ascii")
                records = running[number].records()
                # Closing completes the traces, so it comes before the flows are handed over.
                running.pop(number).close()
                write_records(directory, number, records)
    finally:
        for measurement in running.values():
            measurement.close()
        loop.close()


def _wait_until_ready(loop: EventLoop, measurements: list[Measurement]) -> None:
    deadline = time.monotonic_ns() + LONGEST_OPENING
    loop.at(deadline, lambda: None)
    loop.run(lambda: all(measurement.ready for measurement in measurements) or time.monotonic_ns() >= deadline)
    if not all(measurement.ready for measurement in measurements):
        raise TimeoutError("the connections of an experiment were not established within two minutes")


def _watch_stalls(loop: EventLoop, first: int) -> array[int]:
    """Return a growing array of the time and length of each stall: nothing ran although a timer was due."""
    stalls = array("q")
    due = first

    def beat(expirations: int) -> None:
        nonlocal due
        now = time.monotonic_ns()
        if now - due > STALL:
            stalls.extend((due, now - due))
        due += expirations * HEARTBEAT

    loop.every(HEARTBEAT, due, beat)
    return stalls


def _report_progress(loop: EventLoop, plan: Plan, directory: Path, first: int) -> None:
    duration = plan.duration * NANOSECONDS
    file = directory / "progress"

    def report(_: int) -> None:
        file.write_text(f"{min((time.monotonic_ns() - first) / duration, 1.0):.4f}", encoding="ascii")

    loop.every(max(round(duration / PROGRESS_STEPS), NANOSECONDS // 5), first, report)
