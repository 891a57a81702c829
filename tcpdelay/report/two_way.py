"""The report on both directions of a connection: the guideline for each, one after the other."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

from tcpdelay.models.verdict import Verdict
from tcpdelay.report.content import Content, Section, content
from tcpdelay.report.guideline import Reported
from tcpdelay.report.result_table import to_json

if TYPE_CHECKING:
    from tcpdelay.report.guideline import Guideline
    from tcpdelay.report.html import Chart


@dataclass(frozen=True)
class TwoWayGuideline(Reported):
    """The guidelines for both directions of a connection.

    Parameters
    ----------
    forward, backward : Guideline
        The guideline for the data of the first end, and for the data of the second end.
    ends : tuple of str
        Addresses of the first and the second end.

    Examples
    --------
    >>> from tcpdelay import guideline
    >>> call = {"rtt": 0.100, "packet_size": 174, "interval": 0.020}
    >>> both = TwoWayGuideline(guideline(loss=0.02, **call), guideline(loss=0.15, **call), ("a", "b"))
    >>> both.content().headline, both.content().verdict
    ('Forward: works, with 59.7 ms to spare; backward: does not work: 290 ms too late', 'fails')
    """

    forward: Guideline
    backward: Guideline
    ends: tuple[str, str]

    def content(self) -> Content:
        """Return the content of the report: the worse verdict, and the sections of both directions."""
        first, second = self.ends
        reports = [("forward", content(self.forward)), ("backward", content(self.backward))]
        # From the best verdict to the worst.
        order = get_args(Verdict)
        return Content(
            verdict=max((report.verdict for _, report in reports), key=order.index),
            headline="; ".join(
                f"{way}: {report.headline[0].lower()}{report.headline[1:]}"
                for way, (_, report) in zip(("Forward", "backward"), reports, strict=True)
            ),
            explanation=(
                f"Forward is from {first} to {second}, backward from {second} to {first}.",
                *(f"{way.capitalize()}: {sentence}" for way, report in reports for sentence in report.explanation),
            ),
            key_figures=tuple(
                (f"{label}, {way}", value) for way, report in reports for label, value in report.key_figures
            ),
            sections=tuple(
                _of_direction(section, way, number)
                for number, (way, report) in enumerate(reports)
                for section in report.sections
            ),
        )

    def charts(self) -> dict[str, list[Chart]]:
        """Return the charts of both directions, by the key of their section."""
        from tcpdelay.report.html import charts
        from tcpdelay.report.phrases import verdict

        return {
            f"{key}{_SUFFIXES[number]}": of_section
            for number, found in enumerate((self.forward, self.backward))
            for key, of_section in charts(found, verdict(found), suffix=_SUFFIXES[number]).items()
        }

    def to_json(self) -> str:
        """Return the guideline for the first direction, with the guideline for the other direction as `backward`."""
        forward, backward = (json.loads(found.to_json()) for found in (self.forward, self.backward))
        return to_json({**forward, "backward": backward})


_SUFFIXES = ("", "-backward")
"""Suffixes of the keys of sections and charts of each direction."""


def _of_direction(section: Section, way: str, number: int) -> Section:
    return replace(section, key=f"{section.key}{_SUFFIXES[number]}", title=f"{section.title}, {way}")
