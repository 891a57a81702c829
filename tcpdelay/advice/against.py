"""The comparison of the findings on two scenarios, as data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tcpdelay.advice.guideline import Findings


@dataclass(frozen=True)
class Changes:
    """The findings on two scenarios, and their differences.

    Parameters
    ----------
    before, after : Findings
        The findings on each.
    """

    before: Findings
    after: Findings

    def to_dict(self) -> dict[str, Any]:
        """Return both findings in the form of `Findings.to_dict`, and the names of the fields that differ."""
        before, after = self.before.to_dict(), self.after.to_dict()
        return {
            "differs": [
                f"{part}.{name}"
                for part in ("flow", "path", "stack", "target")
                for name in sorted({*before[part], *after[part]})
                if before[part].get(name) != after[part].get(name)
            ],
            "before": before,
            "after": after,
        }

    def to_json(self) -> str:
        """Return the comparison as JSON: delays in seconds, rates in bit/s, shares as fractions."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)
