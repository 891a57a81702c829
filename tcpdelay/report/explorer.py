"""The explorer: an HTML page with predictions for a range of paths and bitrates, and sliders to select a scenario."""

from __future__ import annotations

import base64
import hashlib
import json
import wave
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from tcpdelay.accuracy.validity import LINUX_RANGE
from tcpdelay.report.html import environment
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.path_presets import PATH_PRESETS, PathPreset
from tcpdelay.scenario.stack import DEFAULT_STACK
from tcpdelay.study.explorer import CODECS, PROBABILITIES, knots
from tcpdelay.units import format_fraction, quantile_name

if TYPE_CHECKING:
    from tcpdelay.study.explorer import Accuracy, Surfaces

SCRIPTS = ("explorer_surfaces.js", "explorer_charts.js", "explorer_sound.js", "explorer.js")
LARGEST_CODE = 65_534
"""Largest 16-bit code of a known value; the code above means that the value is not known."""
SPOKEN = ("voip", "opus", "voice-agent")
"""Applications whose packets can be heard: they carry speech without pauses."""
SENTENCES = "spoken_sentences.wav"
"""Two spoken sentences, 8000 samples of 8 bits per second; `docs/spoken_sentence.py` makes the file."""
FIGURES = (
    ("mean", "mean delay"),
    *((quantile_name(q), f"{format_fraction(q)} come within") for q in (0.5, 0.9, 0.95, 0.99, 0.999)),
    ("late", "later than the limit"),
    ("mos", "mean opinion score, G.711"),
    ("headroom", "TCP could carry, in times the bitrate"),
    ("expected-error", "expected error of the chain's p95"),
)


def to_html(explored: Sequence[tuple[Surfaces, Accuracy]], path: PathPreset | None = None) -> str:
    """Return the explorer as a self-contained page; the page's content security policy forbids all other sources."""
    if not explored:
        raise ValueError("explored must hold one application or more")
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = {
        "probabilities": PROBABILITIES.tolist(),
        "packetSizes": LINUX_RANGE.packet_size,
        "intervals": LINUX_RANGE.interval,
        "speech": _speech() if any(surfaces.application.name in SPOKEN for surfaces, _ in explored) else "",
        "paths": [
            {"name": preset.name, "title": preset.title, **_place(preset)}
            for preset in PATH_PRESETS.values()
            if in_range(preset)
        ],
        "start": {"rtt": 0.1, "loss": 0.02} if path is None else _place(path),
        "applications": [_record(surfaces, accuracy) for surfaces, accuracy in explored],
    }
    return (
        environment()
        .get_template("explorer.html.j2")
        .render(
            applications=[surfaces.application for surfaces, _ in explored],
            figures=FIGURES,
            paths=[preset for preset in PATH_PRESETS.values() if in_range(preset)],
            data=Markup(json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")),
            script=Markup(script),
            script_hash=f"sha256-{digest}",
        )
    )


def _place(preset: PathPreset) -> dict[str, float]:
    """Return the mean round-trip time [s] and the loss of a preset; the page has no jitter and no bad states."""
    path = Path.preset(preset.name)
    return {"rtt": path.mean_rtt, "loss": path.loss}


def in_range(preset: PathPreset) -> bool:
    """Return whether the page has the round-trip time and the loss of a preset."""
    place = _place(preset)
    ranges = (LINUX_RANGE.rtt, place["rtt"]), (LINUX_RANGE.loss, place["loss"])
    return all(low <= value <= high for (low, high), value in ranges)


def _script() -> str:
    """Return the page's scripts as one script, in a function so that it defines no global names."""
    loader = environment().loader
    assert loader is not None
    sources = [loader.get_source(environment(), name)[0] for name in SCRIPTS]
    return "\n".join(['"use strict";', "(() => {", *sources, "})();"])


def _speech() -> str:
    """Return the samples of the spoken sentences, in base 64."""
    with files("tcpdelay.report").joinpath("templates", SENTENCES).open("rb") as file, wave.open(file) as spoken:
        return base64.b64encode(spoken.readframes(spoken.getnframes())).decode()


def _record(surfaces: Surfaces, accuracy: Accuracy) -> dict[str, Any]:
    application, known = surfaces.application, knots(surfaces)
    stored = {name: values for name, values in known._asdict().items() if name != "mos" or application.name in CODECS}
    return {
        "name": application.name,
        "title": application.title,
        "spoken": application.name in SPOKEN,
        "basis": application.basis,
        "limit": application.target.limit,
        "quantile": application.target.quantile,
        "packetSize": application.flow.packet_size,
        "interval": application.flow.interval,
        "bitrateOfApp": application.flow.bitrate,
        "mss": DEFAULT_STACK.mss,
        "bitrate": surfaces.bitrate.tolist(),
        "rtt": surfaces.rtt.tolist(),
        "loss": surfaces.loss.tolist(),
        "surfaces": {name: encoded(values, surfaces.cells.ndim) for name, values in stored.items()},
        "accuracy": in_words(accuracy, application.target.quantile),
    }


def encoded(values: NDArray[np.float64], dimensions: int) -> dict[str, float | int | str]:
    """Return values as 16-bit codes from the smallest to the largest value, in base 64."""
    known = ~np.isnan(values)
    low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0.0, 0.0)
    span = high - low or 1.0
    codes = np.where(known, np.rint((np.where(known, values, low) - low) / span * LARGEST_CODE), LARGEST_CODE + 1)
    width = int(np.prod(values.shape[dimensions:]))
    return {
        "low": low,
        "high": low + span,
        "width": width,
        "codes": base64.b64encode(codes.astype("<u2").tobytes()).decode(),
    }


def in_words(accuracy: Accuracy, quantile: float) -> str:
    """Return the accuracy of the interpolation in words."""
    shown = [
        format_fraction(float(f"{error:.2g}"))
        for error in (*accuracy.quantile, *accuracy.mean, *accuracy.late_fraction)
    ]
    return (
        f"All figures above are interpolated. At {accuracy.points} random points of this range, "
        f"{quantile_name(quantile)} differed from the exact chain by {shown[0]} in the median and by up to {shown[1]} "
        f"at nine of ten points, the mean by {shown[2]} and {shown[3]}, the late fraction by {shown[4]} and {shown[5]} "
        f"of the packets. The verdict was wrong at {accuracy.wrong} points and left open at {accuracy.unsettled}. "
        "Where quantiles jump, the error is larger."
    )
