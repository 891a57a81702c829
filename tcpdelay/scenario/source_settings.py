"""A source as settings of an experiment or a sweep: its kind, its parameters and its seed."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tcpdelay.declare import (
    Content,
    InvalidValueError,
    Quantity,
    declarations,
    effective_fields,
    is_number,
    require_keys,
    whole_number,
)
from tcpdelay.scenario.media import Speech, Utterances, Video
from tcpdelay.scenario.messages import EmpiricalSizes, LognormalSizes, Messages, ParetoSizes, SizeDistribution, Trace
from tcpdelay.scenario.source import Flow, Source, with_rate
from tcpdelay.units import parse_size

KINDS: Mapping[str, type[Source]] = {
    "flow": Flow,
    "video": Video,
    "speech": Speech,
    "utterances": Utterances,
    "messages": Messages,
}
"""Sources that have parameters, by their kind."""
TRACE = "trace"
"""Kind of a source that is read from a file."""
DISTRIBUTIONS: Mapping[str, type[SizeDistribution]] = {
    "lognormal": LognormalSizes,
    "pareto": ParetoSizes,
    "empirical": EmpiricalSizes,
}
"""Distributions of message sizes, by the word for them."""
MAX_SEED = 2**31 - 1
HIGHEST_RATE = 1000.0
"""Largest mean number of messages per second in the testbed [1/s], as of its flows with the shortest interval."""
DIGEST = 12
"""Hexadecimal digits of a digest."""
_OF_TRACE = tuple(name for name, declared in declarations(Trace).items() if not isinstance(declared, Content))
"""Settings of a trace beside its file."""


@dataclass(frozen=True)
class TraceFile:
    """A trace in a file. The digest of the file stands for its content, so that a moved file is the same trace."""

    name: str  # Name of the file, without its folder
    digest: str  # First digits of the SHA-256 of the file
    period: float | None = None  # Time after which the messages repeat [s]
    write_jitter: float = 0.0  # Largest lateness of a write [s]
    path: Path | None = field(default=None, compare=False)  # Place of the file; None in the settings of a capture

    def read(self) -> Trace:
        """Return the trace; raise ValueError if the file cannot be read or has changed."""
        if self.path is None:
            raise ValueError(f"the trace {self.name!r} is not at hand; a capture has its messages")
        return dataclasses.replace(_read_trace(self.path, self.digest, self.period), write_jitter=self.write_jitter)


@lru_cache(maxsize=1)
def _read_trace(path: Path, digest: str, period: float | None) -> Trace:
    """Return the trace in a file; experiments with one trace follow each other, so the last trace is kept."""
    if _digest(path) != digest:
        raise ValueError(f"{path}: has changed since it was read first")
    return Trace.read(path, period)


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()[:DIGEST]
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None


@dataclass(frozen=True)
class SourceSettings:
    """A source of messages, or the file of a trace, and the seed of its random numbers."""

    content: Source | TraceFile
    seed: int = 0  # 0 to 2147483647; the flows of an experiment, and the runs that prolong it, take the next seeds

    @classmethod
    def from_table(
        cls, table: object, folder: Path = Path(), highest_rate: float = HIGHEST_RATE, *, recorded: bool = False
    ) -> SourceSettings:
        """Return the settings in a table of a specification in `folder`, or with `recorded` in the table of a capture.

        The table has `kind`, `seed` and the parameters of the source; values may be texts with units. The table of a
        capture leaves out what has no effect. The `file` of a trace is relative to `folder`; with a `digest` it is not
        read. `highest_rate` is the largest mean number of messages per second [1/s].
        """
        if not isinstance(table, dict):
            raise InvalidValueError("source", table, "be a table with the keys kind and seed, and the source's own")
        values = dict(table)
        kind, seed = values.pop("kind", None), values.pop("seed", cls.seed)
        if not isinstance(kind, str) or kind not in (*KINDS, TRACE):
            raise InvalidValueError("source.kind", kind, f"be one of {', '.join(map(repr, (*KINDS, TRACE)))}")
        whole_number("", 0, MAX_SEED).require("source.seed", seed)
        try:
            if kind == TRACE:
                content: Source | TraceFile = _trace_file(values, folder)
            else:
                content = _described(KINDS[kind], kind, {**(_left_out(KINDS[kind]) if recorded else {}), **values})
            settings = cls(content, seed)
            if "digest" not in values:
                settings.check_rate(highest_rate)
        except ValueError as error:
            raise ValueError(f"source: {error}") from None
        return settings

    @property
    def source(self) -> Source:
        """The source; a trace is read from its file."""
        return self.content.read() if isinstance(self.content, TraceFile) else self.content

    @property
    def kind(self) -> str:
        """The word for the source in specifications, such as "video"."""
        return TRACE if isinstance(self.content, TraceFile) else _word_of(KINDS, self.content)

    def check_rate(self, highest: float) -> None:
        """Raise ValueError if the mean number of messages per second [1/s] is too large or not known."""
        rate = with_rate(self.source).message_rate
        if rate > highest:
            raise ValueError(f"at most {highest:g} messages per second are allowed in the mean, got {rate:.6g}")

    @property
    def table(self) -> dict[str, Any]:
        """All settings, as a table for `from_table`."""
        if isinstance(self.content, TraceFile):
            kept = {name: value for name in _OF_TRACE if (value := getattr(self.content, name))}
            return {
                "kind": self.kind,
                "seed": self.seed,
                "file": self.content.name,
                "digest": self.content.digest,
                **kept,
            }
        return {"kind": self.kind, "seed": self.seed, **_parameters(self.content)}

    @property
    def label(self) -> str:
        """A part of a file name that distinguishes sources: the kind, and the parameters that are not the default."""
        if isinstance(self.content, TraceFile):
            stem = re.sub(r"[^A-Za-z0-9]+", "", Path(self.content.name).stem)[:40]
            parts = [self.kind, *([stem] if stem else []), self.content.digest]
            own = ((name.replace("_", ""), getattr(self.content, name)) for name in _OF_TRACE)
            parts += [f"{name}{value:.10g}" for name, value in own if value]
        else:
            parts = [self.kind, *_labels(self.content)]
        return "-".join(parts + ([f"seed{self.seed}"] if self.seed else []))


def _word_of(words: Mapping[str, type], described: object) -> str:
    return next(word for word, cls in words.items() if type(described) is cls)


def _left_out(cls: type[Any]) -> dict[str, Any]:
    """Return the values that have no effect, which a record leaves out."""
    declared = declarations(cls).items()
    return {name: each.no_effect for name, each in declared if each.no_effect is not None}


def _described(cls: type[Any], word: str, values: Mapping[str, object]) -> Any:
    """Return the source or the distribution of sizes with the values of a table."""
    defaults = {each.name: each.default for each in dataclasses.fields(cls)}
    require_keys(values, sorted(defaults), f"parameter of {word!r}")
    missing = [name for name, default in defaults.items() if default is dataclasses.MISSING and name not in values]
    if missing:
        raise ValueError(f"{' and '.join(missing)} missing for {word!r}")
    return cls(**{key: _value(cls, key, value) for key, value in values.items()})


def _value(cls: type[Any], name: str, value: object) -> Any:
    declared = declarations(cls)[name]
    if cls is Messages and name == "sizes":
        return _sizes(value)
    if isinstance(declared, Content):
        return value
    if isinstance(declared, Quantity) and declared.unit == "bytes" and isinstance(value, str):
        return parse_size(value, name)
    return declared.read(name, value)


def _sizes(value: object) -> SizeDistribution:
    """Return a distribution of sizes from one size, or from a table with the word for the distribution."""
    if isinstance(value, dict):
        parameters = dict(value)
        word = parameters.pop("distribution", None)
        if not isinstance(word, str) or word not in DISTRIBUTIONS:
            raise InvalidValueError("sizes.distribution", word, f"be one of {', '.join(map(repr, DISTRIBUTIONS))}")
        found: SizeDistribution = _described(DISTRIBUTIONS[word], word, parameters)
        return found
    size = parse_size(value, "sizes") if isinstance(value, str) else value
    if not is_number(size):
        raise InvalidValueError("sizes", value, "be one size, or a table with the key distribution")
    return EmpiricalSizes([size])


def _trace_file(values: Mapping[str, Any], folder: Path) -> TraceFile:
    """Return the file of a trace; it is read once, unless its digest is known."""
    require_keys([key for key in values if key != "digest"], ("file", *_OF_TRACE), f"parameter of {TRACE!r}")
    file = values.get("file")
    if not isinstance(file, str) or not file:
        raise InvalidValueError("file", file, "be the name of a CSV or Parquet file")
    own = {name: _value(Trace, name, values[name]) for name in _OF_TRACE if name in values}
    if "digest" in values:
        return TraceFile(Path(file).name, str(values["digest"]), **own)
    path = folder / file
    return TraceFile(path.name, _digest(path), path=path, **own)


def source_parameters(source: Source) -> dict[str, Any]:
    """Return the kind and the parameters of a source, as values of JSON; of a trace its extent."""
    kind = {"kind": type(source).__name__.lower()}
    if isinstance(source, Trace):
        late = {"write_jitter": source.write_jitter} if source.write_jitter else {}
        return {**kind, "messages": source.times.size, "duration": source.duration, "period": source.period, **late}
    return {**kind, **(_parameters(source) if type(source) in KINDS.values() else {})}


def _parameters(described: object) -> dict[str, Any]:
    """Return the parameters of a source or a distribution, as values of JSON, without those that have no effect."""
    found: dict[str, Any] = {}
    for name, value in effective_fields(described).items():
        if isinstance(value, SizeDistribution):
            value = {"distribution": _word_of(DISTRIBUTIONS, value), **_parameters(value)}
        found[name] = value.tolist() if hasattr(value, "tolist") else value
    return found


def _labels(described: object) -> list[str]:
    """Return the parameters that differ from their defaults and have an effect, as parts of a file name."""
    parts, effective, declared = [], effective_fields(described), declarations(type(described))
    for each in dataclasses.fields(described):  # type: ignore[arg-type]
        value = getattr(described, each.name)
        if isinstance(value, SizeDistribution):
            parts += [_word_of(DISTRIBUTIONS, value), *_labels(value)]
        elif isinstance(described, EmpiricalSizes):
            digest = hashlib.sha256(value.tobytes()).hexdigest()[:DIGEST]
            parts.append(f"{value[0]}B" if value.size == 1 else f"{value.size}sizes{digest}")
        elif each.name in effective and (declared[each.name].no_effect is not None or value != each.default):
            parts.append(each.name.replace("_", "") + (value if isinstance(value, str) else f"{value:.10g}"))
    return parts
