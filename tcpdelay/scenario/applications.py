"""Typical real-time applications: what they send, and their target; the presets are in `applications.toml`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.encapsulation import encapsulation
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source, with_rate
from tcpdelay.scenario.sources.source_settings import SourceSettings
from tcpdelay.scenario.target import DEFAULT_LIMIT, Target
from tcpdelay.store import read_toml
from tcpdelay.units import format_rate, format_time

CLEAR_DIFFERENCE = 1.5
"""Factor from which packet sizes, intervals or bitrates differ clearly."""


@dataclass(frozen=True)
class Application:
    """A preset: the source of a typical application, its encapsulation, and the target."""

    name: str
    title: str
    content: Source  # Output of the codec
    target: Target
    basis: str  # Where the values come from
    over: str = "tcp"  # Encapsulation that is added to each packet
    codec: str | None = None  # Key of `tcpdelay.quality.voice.CODECS` for the rating of a call; None without rating
    stands_in: bool = False  # Whether `codec` is the closest codec that can be rated, not the codec in use
    video: bool = False  # Whether the application is a video, which plays from a buffer as long as the target's limit

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


def _presets() -> dict[str, Application]:
    """Return the presets of `applications.toml`, by name."""
    found = {}
    for name, table in read_toml(Path(__file__).with_suffix(".toml")).items():
        content = SourceSettings.from_table(table.pop("content")).source
        found[name] = Application(name=name, content=content, target=Target(**table.pop("target")), **table)
    return found


APPLICATIONS = _presets()
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
    return with_rate(flow)


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
