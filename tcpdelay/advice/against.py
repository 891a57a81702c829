"""Two guidelines side by side: the same report for another stack, path or flow."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tcpdelay.advice.guideline import Guideline


@dataclass(frozen=True)
class GuidelineComparison:
    """What changes between two scenarios.

    Parameters
    ----------
    before, after : Guideline
        The findings for each.
    """

    before: Guideline
    after: Guideline

    def to_dict(self) -> dict[str, Any]:
        """Return both guidelines as `Guideline.to_dict` does, and what differs of what is asked."""
        before, after = self.before.to_dict(), self.after.to_dict()
        asked = ("flow", "path", "stack", "target")
        return {
            "differs": [
                f"{part}.{name}"
                for part in asked
                for name in sorted({*before[part], *after[part]})
                if before[part].get(name) != after[part].get(name)
            ],
            "before": before,
            "after": after,
        }

    def to_json(self) -> str:
        """Return the comparison as JSON; delays in seconds, rates in bit/s, shares as fractions."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_markdown(self) -> str:
        """Return the comparison in Markdown."""
        from tcpdelay.report.against import comparison_content
        from tcpdelay.report.markdown import in_markdown

        return in_markdown(comparison_content(self))

    def to_html(self) -> str:
        """Return the comparison as one self-contained HTML page."""
        from tcpdelay.report.against import comparison_charts, comparison_content
        from tcpdelay.report.html import as_page

        return as_page(comparison_content(self), comparison_charts(self))


def compare_guidelines(before: Guideline, after: Guideline) -> GuidelineComparison:
    """Put two guidelines side by side, such as those for two stacks, or before and after a change.

    Parameters
    ----------
    before, after : Guideline
        As `guideline` returns them.

    Returns
    -------
    GuidelineComparison
        With `to_markdown()`, `to_html()` and `to_json()`.

    Examples
    --------
    >>> from tcpdelay.scenario.stack import Stack
    >>> from tcpdelay import guideline
    >>> call = {"rtt": 0.100, "loss": 0.02, "packet_size": 174, "interval": 0.020}
    >>> then, now = guideline(stack=Stack.newreno_2008(), **call), guideline(**call)
    >>> print(compare_guidelines(then, now).to_markdown().splitlines()[0])
    # p95 190 ms → 140 ms, 50 ms sooner
    """
    return GuidelineComparison(before, after)
