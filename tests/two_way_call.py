"""A call whose media flow in both directions over one TCP connection: every acknowledgement is carried on data."""

from dataclasses import dataclass, field, replace

from pcap_files import ACK, MILLISECOND, PSH, START, SYN, Packet


@dataclass
class TwoWayCall:
    """Two sources that write at fixed intervals; each segment acknowledges all that has arrived by then.

    `caller` and `called` are the packets that a capture at either end shows. Nothing is lost. `first` is the time after
    the caller's first write at which the called end begins to write, `answer_time` the time from a SYN to its answer.
    Times in ns; timestamps count milliseconds.
    """

    count: int = 300
    size: int = 174
    interval: int = 20 * MILLISECOND
    size_back: int = 120
    interval_back: int = 30 * MILLISECOND
    first: int = 7 * MILLISECOND
    rtt: int = 50 * MILLISECOND
    stamps: bool = True
    handshake: bool = False
    answer_time: int = 1000
    offset: int = 0
    caller: list = field(default_factory=list)
    called: list = field(default_factory=list)

    def __post_init__(self):
        one_way = self.rtt // 2
        end = START + self.count * self.interval
        times = {True: list(range(START, end, self.interval)), False: []}
        times[False] = list(range(START + self.first, end, self.interval_back))
        sizes = {True: self.size, False: self.size_back}
        isn = {True: 1001, False: 901}
        if self.handshake:
            self._handshake(one_way)
        for forward, own in times.items():
            other = times[not forward]
            for k, time in enumerate(own):
                arrived = sum(sent + one_way <= time for sent in other[: (time - START) // MILLISECOND])
                # The newest segment that has arrived is echoed.
                echo = other[arrived - 1] // MILLISECOND if arrived else 0
                stamp = {"tsval": time // MILLISECOND, "tsecr": echo} if self.stamps else {}
                seq, ack = isn[forward] + k * sizes[forward], isn[not forward] + arrived * sizes[not forward]
                self._send(Packet(time, forward, seq, ack, sizes[forward], ACK | PSH, ip_id=k + 1, **stamp), one_way)
        self.caller.sort(key=lambda packet: packet.time)
        self.called.sort(key=lambda packet: packet.time)

    def _send(self, packet, one_way):
        at, to = (self.caller, self.called) if packet.forward else (self.called, self.caller)
        for packets, time in ((at, packet.time), (to, packet.time + one_way)):
            packets.append(replace(packet, time=time + (self.offset if packets is self.called else 0)))

    def _handshake(self, one_way):
        begin = START - 2 * self.rtt
        options = b"\x02\x04\x05\xb4\x04\x02\x01\x03\x03\x07"
        stamp = {"tsval": begin // MILLISECOND} if self.stamps else {}
        self._send(Packet(begin, True, 1000, 0, flags=SYN, options=options, **stamp), one_way)
        self._send(
            Packet(begin + one_way + self.answer_time, False, 900, 1001, flags=SYN | ACK, options=options, **stamp),
            one_way,
        )
        self._send(Packet(begin + self.rtt + self.answer_time, True, 1001, 901, **stamp), one_way)
