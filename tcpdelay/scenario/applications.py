"""Presets of typical real-time applications: what they send, and their target."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.encapsulation import encapsulation
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.sources.sizes import LognormalSizes, Messages
from tcpdelay.scenario.sources.speech import Utterances
from tcpdelay.scenario.sources.video import Video
from tcpdelay.scenario.target import DEFAULT_LIMIT, Target
from tcpdelay.units import format_rate, format_time

CLEAR_DIFFERENCE = 1.5
"""Factor from which packet sizes, intervals or bitrates differ clearly."""


@dataclass(frozen=True)
class Application:
    """A preset: the source of a typical application, its encapsulation, and the target.

    `content` is the output of the codec: a `Flow`, or any other source. `over` is the name of the encapsulation that is
    added to each packet; a video, and messages of other sizes, are carried as they are.
    """

    name: str
    title: str
    content: Source
    over: str
    target: Target
    basis: str
    codec: str | None = None
    """Key of `tcpdelay.quality.voice.CODECS` for the rating of a call; None if the application is no call, or if no
    codec with published values is close to the codec in use."""
    stands_in: bool = False
    """Whether `codec` is the closest codec that can be rated, not the codec in use."""
    video: bool = False
    """Whether the application is a video, which plays from a buffer as long as the target's limit."""

    @property
    def source(self) -> Source:
        """What TCP carries: the content, with the headers of the encapsulation."""
        return encapsulation(self.over).around(self.content)

    @property
    def constant_rate(self) -> bool:
        """Whether the application sends packets of one size at one interval."""
        return isinstance(self.content, Flow)

    @property
    def flow(self) -> Flow:
        """The flow that TCP carries."""
        return constant_rate(self.source)

    @property
    def at_constant_rate(self) -> Application:
        """The application with full segments at its mean bitrate, unless its rate is constant; the title says so."""
        if self.constant_rate:
            return self
        flow = Flow.from_bitrate(self.source.mean_bitrate)
        return replace(self, title=f"{self.title}, as a constant rate", content=flow, over="tcp")

    def unlike(self, flow: Flow) -> str:
        """Return how the packets of a flow differ clearly from those of the application; else an empty text.

        A difference is clear from a factor of `CLEAR_DIFFERENCE` on: other headers change small packets by less. Of an
        application whose rate is not constant, only the mean bitrate is compared.
        """
        own = self.source
        pairs = [(flow.bitrate, own.mean_bitrate)]
        if isinstance(own, Flow):
            pairs = [(flow.packet_size, own.packet_size), (flow.interval, own.interval)]
        if all(max(pair) < CLEAR_DIFFERENCE * min(pair) for pair in pairs):
            return ""
        if not isinstance(own, Flow):
            return f"{format_rate(flow.bitrate)}, but {self.name} sends {format_rate(own.mean_bitrate)}"
        given, usual = (f"{each.packet_size} B every {format_time(each.interval)}" for each in (flow, own))
        return f"{given}, but {self.name} sends {usual}"


_PRESETS = (
    Application(
        "voip",
        "Telephony, G.711",
        Flow(160, 0.020),
        "rtp-tcp",
        Target(0.200, 0.95),
        "160 B of G.711 every 20 ms, 12 B RTP and 2 B framing (RFC 4571); 95 % within 200 ms (Brosh et al. 2010)",
        codec="g711",
    ),
    Application(
        "opus",
        "Voice, Opus 24 kbit/s",
        Flow(60, 0.020),
        "rtp-tcp",
        Target(0.200, 0.95),
        "60 B of Opus every 20 ms (RFC 6716), 12 B RTP and 2 B framing; 95 % within 200 ms",
        codec="opus-wb-15",
        stands_in=True,
    ),
    Application(
        "voice-agent",
        "Voice agent over WebSocket, PCM",
        Flow(960, 0.020),
        "websocket",
        Target(0.300, 0.95),
        # No call is rated: ITU-T publishes no planning values for uncompressed wideband speech.
        "960 B of 16-bit PCM at 24 kHz every 20 ms and an 8 B masked WebSocket header (RFC 6455); 95 % within 300 ms",
    ),
    Application(
        "voice-agent-reply",
        "Replies of a voice agent over WebSocket, PCM",
        Utterances(960, 0.020),
        "websocket-down",
        Target(0.300, 0.95),
        "960 B of 16-bit PCM at 24 kHz per chunk of 20 ms and a 4 B WebSocket header (RFC 6455), written three times "
        "faster than it plays, replies and pauses of 4 s in the mean (assumed); 95 % of the chunks within 300 ms",
    ),
    Application(
        "live-video",
        "Live video uplink, 2.5 Mbit/s",
        Video(2_500_000),
        "tcp",
        Target(5.0, 0.999),
        "30 frames a second, every 2 s a key frame eight times as large as other frames (assumed); all but one frame "
        "in a thousand within a start-up delay of 5 s",
        video=True,
    ),
    Application(
        "remote-control",
        "Remote control, 50 commands a second",
        Flow(64, 0.020),
        "tcp",
        Target(0.150, 0.99),
        "64 B every 20 ms; 99 % within 150 ms",
    ),
    Application(
        "remote-desktop",
        "Screen updates of a remote desktop, 1 Mbit/s",
        Messages(25, LognormalSizes(5000, 2.0)),
        "tcp",
        Target(0.150, 0.95),
        "25 updates a second at random times, lognormal sizes of 5000 B in the mean with a standard deviation of twice "
        "the mean: most updates are a few lines, some a whole window (all assumed, not measured); 95 % within 150 ms",
    ),
    Application(
        "game",
        "Game state, 30 updates a second",
        Flow(100, 1 / 30),
        "tcp",
        Target(0.100, 0.95),
        "100 B every 33 ms; 95 % within 100 ms",
    ),
)

APPLICATIONS = {application.name: application for application in _PRESETS}
"""The presets by name."""


def application(name: str) -> Application:
    """Return the preset called `name`."""
    if name not in APPLICATIONS:
        raise InvalidValueError("app", name, f"be one of {', '.join(APPLICATIONS)}")
    return APPLICATIONS[name]


def source_of(flow: Source | str, name: str = "flow") -> Source:
    """Return a source that is given as a `Source` or as the name of an application, in the argument called `name`."""
    preset = APPLICATIONS.get(flow) if isinstance(flow, str) else None
    if preset is not None:
        return preset.source
    if not isinstance(flow, Source):
        sources = "a Source, such as a Flow, a Video or a Trace"
        raise InvalidValueError(name, flow, f"be {sources}, or one of {', '.join(APPLICATIONS)}")
    # A trace whose messages all have the time 0 has no rate, and no model answers without one.
    if math.isnan(flow.message_rate):
        raise InvalidValueError("source", flow, "have a message later than the time 0, or a period")
    return flow


def constant_rate(source: Source) -> Flow:
    """Return a source that must be a `Flow`."""
    if not isinstance(source, Flow):
        hint = "tcpdelay.simulate and predict_delay(method='simulation') take any source"
        raise InvalidValueError("flow", source, "be a Flow, which has a constant rate", hint)
    return source


def flow_of(flow: Source | str) -> Flow:
    """Return a flow that is given as a `Flow` or as the name of an application.

    Examples
    --------
    >>> flow_of("game").packet_size, flow_of(Flow(174, 0.020)).packet_size
    (100, 174)
    """
    return constant_rate(source_of(flow))


def target_of(flow: Source | str, target: Target | None = None) -> Target:
    """Return the target; if it is not given, the target of the application, or 95 % within 200 ms for a `Flow`.

    Examples
    --------
    >>> target_of("game"), target_of(Flow(174, 0.020)), target_of("game", Target(0.15)).limit
    (Target(limit=0.1), Target(limit=0.2), 0.15)
    """
    if target is not None:
        return target
    preset = APPLICATIONS.get(flow) if isinstance(flow, str) else None
    return Target(DEFAULT_LIMIT) if preset is None else preset.target
