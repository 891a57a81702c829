"""The results of a run as Markdown: `python benchmarks/summary.py RESULTS.json [--into FILE.md]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- {} begin -->", "<!-- {} end -->"
"""Marks around a text that a script writes into a page, with the name of the text."""


def duration(seconds: float) -> str:
    """Return a duration with three digits and its unit.

    Examples
    --------
    >>> duration(0.00004567), duration(0.123), duration(12.34)
    ('45.7 µs', '123 ms', '12.3 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            return f"{three_digits(seconds / size)} {unit}"
    raise AssertionError


def three_digits(number: float) -> str:
    """Return a number with three digits, or with all digits before the decimal point.

    Examples
    --------
    >>> three_digits(1.2345), three_digits(45.67), three_digits(1234.5)
    ('1.23', '45.7', '1234')
    """
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"


COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "states": ("states", str),
    "sustainable": ("sustainable", lambda carried: "yes" if carried else "no"),
    "min": ("min", duration),
    "median": ("median", duration),
    "processor": ("processor time", duration),
    "rounds": ("rounds", str),
    "packets_per_second": ("million packets/s", lambda rate: three_digits(rate / 1e6)),
    "ratio": ("ratio", three_digits),
    "error": ("sum of errors", lambda error: f"{error:.0e}"),
    "relative_error": ("relative error", lambda error: f"{error:.0e}"),
    "peak_mib_before": ("peak before [MiB]", lambda size: f"{size:.0f}"),
    "peak_mib": ("peak [MiB]", lambda size: f"{size:.0f}"),
}


def table(benchmarks: list[dict[str, Any]]) -> list[str]:
    """Return the lines of one group's table, beginning with the fastest; columns without any value are left out."""
    rows = [b["stats"] | b["extra_info"] for b in sorted(benchmarks, key=lambda b: b["stats"]["median"])]
    used = [column for column in COLUMNS if any(column in row for row in rows)]
    lines = ["| " + " | ".join(["", *(COLUMNS[column][0] for column in used)]) + " |"]
    lines.append("| --- |" + " ---: |" * len(used))
    for row in rows:
        cells = [COLUMNS[column][1](row[column]) if column in row else "" for column in used]
        lines.append("| " + " | ".join([row["what"], *cells]) + " |")
    return lines


def summary(results: dict[str, Any]) -> str:
    """Return all groups of a run of pytest-benchmark, after a description of the machine."""
    machine = results["machine_info"]
    versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
    lines = [
        f"{machine['cpu'].get('brand_raw', machine['machine'])}, {machine['cores']} cores; "
        f"Python {machine['python_version']}; {versions}; load average {machine['load']:.1f}; "
        f"{results['datetime'][:10]}."
    ]
    for group in dict.fromkeys(b["group"] for b in results["benchmarks"]):
        lines += ["", f"**{group}**", "", *table([b for b in results["benchmarks"] if b["group"] == group])]
    return "\n".join(lines) + "\n"


def put_into(page: Path, text: str, name: str = "results") -> None:
    """Replace the text between the two marks of a page that have this name."""
    begin, end = BEGIN.format(name), END.format(name)
    before, rest = page.read_text(encoding="utf-8").split(begin)
    page.write_text(f"{before}{begin}\n{text}{end}{rest.split(end)[1]}", encoding="utf-8")


def main() -> None:
    """Print the tables, or put them into a file between the two marks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="file written by --benchmark-json")
    parser.add_argument("--into", type=Path, metavar="FILE.md", help="replace the text between the marks of a page")
    arguments = parser.parse_args()
    text = summary(json.loads(arguments.results.read_text(encoding="utf-8")))
    if arguments.into is None:
        print(text, end="")
        return
    put_into(arguments.into, text)


if __name__ == "__main__":
    main()
