"""Results that have a report: in Markdown, as a page, and as a table for notebooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tcpdelay.report.content import Content
    from tcpdelay.report.html import Chart


class Reported(ABC):
    """A result with a report."""

    @abstractmethod
    def content(self) -> Content:
        """Return the content of the report."""

    @abstractmethod
    def charts(self) -> dict[str, list[Chart]]:
        """Return the charts of the report, by the key of their section."""

    def to_markdown(self) -> str:
        """Return the report in Markdown."""
        from tcpdelay.report.markdown import in_markdown

        return in_markdown(self.content())

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page."""
        from tcpdelay.report.html import as_page

        return as_page(self.content(), self.charts())

    def _repr_html_(self) -> str:
        """Return headline, explanation and key figures as a table for notebooks; `to_html` has the whole report."""
        from tcpdelay.report.notebook import html_table

        report = self.content()
        return html_table(report.headline, ("", ""), report.key_figures, " ".join(report.explanation))
