"""Pairs of captures that differ in one setting on the same path, and their tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

from tcpdelay.report.document import Cell, Column, ResultTable, interval_cells
from tcpdelay.statistics import Interval
from tcpdelay.study.validation.captures import QUANTILES, VIRTUAL_TIME, MeasuredDelay
from tcpdelay.study.validation.predictions import difference, rtt_group
from tcpdelay.testbed.experiment import Experiment

SWITCHES = ("nodelay", "delayed_ack", "sack", "slow_start_after_idle", "recovery", "early_retrans")
HEURISTICS = ("pieces", "connections", "scheduling", "notsent_lowat")
SWITCHED_CONGESTION_CONTROLS = ("bbr", "vegas", "westwood")
DEFAULT_CONGESTION_CONTROL = "cubic"
BASE_HZ = 250
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Experiment)}


@dataclass(frozen=True)
class CapturePair:
    """A capture, the capture without a change as its reference, and the change in words."""

    changed: str
    measured: MeasuredDelay
    reference: MeasuredDelay

    def ratio(self, quantity: str) -> Interval:
        """Return measured / reference of "p50", "p95", "p99" or "mean", with its interval."""
        return ratio_interval(getattr(self.measured, quantity), getattr(self.reference, quantity))

    def apart(self, quantity: str) -> bool:
        """Return whether both captures differ by more than their intervals explain."""
        ratio = self.ratio(quantity)
        return not ratio.low <= 1 <= ratio.high


def ratio_interval(value: Interval, reference: Interval) -> Interval:
    """Return the ratio of two independent estimates with its interval, from their intervals on a logarithmic scale.

    Zou, Donner, "Construction of confidence limits about effect measures", Statistics in Medicine 27, 2008.
    """
    estimates = (*value, *reference)
    if not all(math.isfinite(number) and number > 0 for number in estimates):
        known = math.isfinite(value.value) and math.isfinite(reference.value) and reference.value > 0
        return Interval(value.value / reference.value if known else float("nan"), 0.0, float("inf"))
    ratio = value.value / reference.value
    below = math.hypot(math.log(value.value / value.low), math.log(reference.high / reference.value))
    above = math.hypot(math.log(value.high / value.value), math.log(reference.value / reference.low))
    return Interval(ratio, ratio * math.exp(-below), ratio * math.exp(above))


def switches(measured: Sequence[MeasuredDelay]) -> list[CapturePair]:
    """Return each capture of a changed stack, and the capture of the default stack on the same path."""

    def without(experiment: Experiment) -> Experiment:
        changed = {name: _DEFAULTS[name] for name in SWITCHES}
        if experiment.congestion_control in SWITCHED_CONGESTION_CONTROLS:
            changed["congestion_control"] = DEFAULT_CONGESTION_CONTROL
        return replace(experiment, **changed)

    return _beside_default(measured, without)


def heuristics(measured: Sequence[MeasuredDelay]) -> list[CapturePair]:
    """Return each capture of an application with heuristics, and the capture of the same application without them."""
    without = {name: _DEFAULTS[name] for name in HEURISTICS}
    return _beside_default(measured, lambda experiment: replace(experiment, **without))


def clock_rates(measured: Sequence[MeasuredDelay]) -> list[CapturePair]:
    """Return each capture with another timer rate than 250 Hz, and the same capture at 250 Hz."""
    virtual = [capture for capture in measured if capture.backend == VIRTUAL_TIME]
    others = [capture for capture in virtual if capture.hz != BASE_HZ]
    base = [capture for capture in virtual if capture.hz == BASE_HZ]
    return _pairs(
        others, base, lambda capture: (_settings(capture),), lambda capture: f"HZ {capture.hz} beside HZ {BASE_HZ}"
    )


def real_time(measured: Sequence[MeasuredDelay]) -> list[CapturePair]:
    """Return each capture in real time, and the capture in virtual time, preferably at the same timer rate."""
    real = [capture for capture in measured if capture.backend != VIRTUAL_TIME]
    virtual = sorted(
        (capture for capture in measured if capture.backend == VIRTUAL_TIME), key=lambda capture: capture.hz != BASE_HZ
    )
    same = _pairs(real, virtual, lambda capture: (_settings(capture), capture.hz), lambda capture: capture.backend)
    rest = [capture for capture in real if all(capture is not pair.measured for pair in same)]
    return same + _pairs(rest, virtual, lambda capture: (_settings(capture),), lambda capture: capture.backend)


def congestion_controls(measured: Sequence[MeasuredDelay]) -> list[CapturePair]:
    """Return each plain capture of CUBIC, and the same capture of Reno."""
    plain = [capture for capture in measured if capture.plain]
    cubic = [capture for capture in plain if capture.experiment.congestion_control == "cubic"]
    reno = [capture for capture in plain if capture.experiment.congestion_control == "reno"]

    def key(capture: MeasuredDelay) -> tuple[object, ...]:
        return replace(_settings(capture), congestion_control="reno"), capture.hz

    return _pairs(cubic, reno, key, lambda capture: "CUBIC beside Reno")


def _settings(capture: MeasuredDelay) -> Experiment:
    """Return the settings without the duration, which changes only the precision."""
    return replace(capture.experiment, duration=_DEFAULTS["duration"])


def _beside_default(
    measured: Sequence[MeasuredDelay], without: Callable[[Experiment], Experiment]
) -> list[CapturePair]:
    """Return each capture whose settings `without` changes, and the capture of the changed settings."""
    by_settings = _index(measured, lambda capture: (_settings(capture), capture.hz, capture.backend))
    found = []
    for capture in measured:
        settings = _settings(capture)
        default = without(settings)
        reference = by_settings.get((default, capture.hz, capture.backend))
        if default != settings and reference is not None:
            found.append(CapturePair(difference(settings, default), capture, reference))
    return found


def _pairs(
    measured: Iterable[MeasuredDelay],
    references: Iterable[MeasuredDelay],
    key: Callable[[MeasuredDelay], tuple[object, ...]],
    name: Callable[[MeasuredDelay], str],
) -> list[CapturePair]:
    by_key = _index(references, key)
    return [CapturePair(name(capture), capture, by_key[key(capture)]) for capture in measured if key(capture) in by_key]


def _index(
    captures: Iterable[MeasuredDelay], key: Callable[[MeasuredDelay], tuple[object, ...]]
) -> dict[tuple[object, ...], MeasuredDelay]:
    """Return the first capture of each key."""
    index: dict[tuple[object, ...], MeasuredDelay] = {}
    for capture in captures:
        index.setdefault(key(capture), capture)
    return index


def capture_pairs_table(name: str, title: str, pairs: Sequence[CapturePair], note: str = "") -> ResultTable:
    """Return pairs of captures with the ratios of their quantiles."""
    rows = []
    for pair in pairs:
        experiment = pair.measured.experiment
        row: dict[str, Cell] = {
            "changed": pair.changed,
            "packet_size": experiment.packet_size,
            "interval": experiment.interval,
            "rtt": experiment.rtt,
            "loss": experiment.loss,
            "congestion_control": experiment.congestion_control,
            "hz": pair.measured.hz,
        }
        for quantity in QUANTILES:
            row |= interval_cells(quantity, getattr(pair.measured, quantity))
            row |= interval_cells(f"reference_{quantity}", getattr(pair.reference, quantity))
            row |= interval_cells(f"ratio_{quantity}", pair.ratio(quantity))
            row[f"apart_{quantity}"] = pair.apart(quantity)
        rows.append(row)
    columns = (
        Column("changed", "changed"),
        Column("packet_size", "bytes", "count"),
        Column("interval", "interval", "time"),
        Column("rtt", "RTT", "time"),
        Column("loss", "loss", "fraction"),
        Column("congestion_control", "control"),
        Column("hz", "Hz", "count"),
        Column("p95", "p95", "time", "p95_low", "p95_high"),
        Column("reference_p95", "beside", "time", "reference_p95_low", "reference_p95_high"),
        Column("ratio_p50", "ratio of p50", "ratio", "ratio_p50_low", "ratio_p50_high"),
        Column("ratio_p95", "ratio of p95", "ratio", "ratio_p95_low", "ratio_p95_high"),
        Column("apart_p95", "apart"),
    )
    return ResultTable(name, title, columns, rows, note)


def pairs_table(pairs: Sequence[CapturePair]) -> ResultTable:
    """Return median ratios, and the share of pairs that differ, by kind and round-trip time."""
    groups: dict[tuple[str, tuple[int, str]], list[CapturePair]] = {}
    for pair in pairs:
        # If TCP does not carry the flow, the delays depend only on the length of the run.
        if pair.measured.sustainable and pair.reference.sustainable:
            groups.setdefault((pair.changed, rtt_group(pair.measured.path.rtt)), []).append(pair)
    rows = []
    for (kind, (_, rtt)), own in sorted(groups.items(), key=lambda item: item[0]):
        row: dict[str, Cell] = {"kind": kind, "rtt": rtt, "pairs": len(own)}
        for quantity in QUANTILES:
            known = [ratio for pair in own if math.isfinite(ratio := pair.ratio(quantity).value)]
            row[f"ratio_{quantity}"] = median(known) if known else None
            row[f"apart_{quantity}"] = sum(pair.apart(quantity) for pair in own) / len(own)
        rows.append(row)
    columns = (
        Column("kind", "pairs of"),
        Column("rtt", "RTT"),
        Column("pairs", "pairs", "count"),
        *(
            column
            for name in QUANTILES
            for column in (
                Column(f"ratio_{name}", f"median ratio of {name}", "ratio"),
                Column(f"apart_{name}", "apart", "fraction"),
            )
        ),
    )
    return ResultTable(
        "pairs",
        "Timer rates and congestion controls",
        columns,
        rows,
        "Pairs on the same path where TCP carried both flows; 'apart' is the share of pairs that differ by more than "
        "their 95 % intervals explain, which one in twenty does by chance.",
    )
