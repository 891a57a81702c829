"""Published figures beside ours, shown on a page of the documentation from the files of `python validation/papers`."""

import csv
import math
from pathlib import Path

from IPython.display import Markdown, display

VALIDATION = Path(__file__).resolve().parents[1] / "validation"
RESULTS = VALIDATION / "results" / "papers"


def show_published(paper: str, *items: str) -> None:
    """Display the rows of some items of a paper, such as "Table 2"; of all items by default.

    Raises
    ------
    ValueError
        If the paper has no such item.
    """
    with (RESULTS / f"{paper}-published.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for item in items:
        if all(row["item"] != item for row in rows):
            raise ValueError(f"item must be one of {sorted({row['item'] for row in rows})}, got {item!r}")
    rows = [row for row in rows if not items or row["item"] in items]
    header = ["", "condition", "quantity", "published", "ours", "distance"]
    lines = [header, ["---"] * 3 + ["---:"] * 3]
    for row in rows:
        published = _with_error(float(row["value"]), float(row["error"]), row["unit"])
        half = (float(row["ours_high"]) - float(row["ours_low"])) / 2
        ours = _with_error(float(row["ours"]), half, row["unit"])
        distance = f"{float(row['distance']):+.0%}" if float(row["value"]) else ""
        lines.append([row["item"], row["condition"], row["quantity"], published, ours, distance])
    reasons = {row["item"]: row["reason"] for row in rows if row["reason"]}
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    display(Markdown("\n".join([table, "", *(f"- **{item}**: {reason}" for item, reason in reasons.items())])))


def show_questions(item: str) -> None:
    """Display where a measurement by others is published, what is assumed, and the command lines that ask for it."""
    with (VALIDATION / "published" / "outside.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["item"] == item]
    sources = dict.fromkeys(f"<{row['source']}> ({row['date']})" for row in rows)
    assumptions = dict.fromkeys(row["assumption"] for row in rows)
    parts = [f"Source: {', '.join(sources)}.", *(f"Assumed: {text}." for text in assumptions)]
    parts.append("\n".join(["```sh", *dict.fromkeys(row["question"] for row in rows), "```"]))
    display(Markdown("\n\n".join(parts)))


def _with_error(value: float, error: float, unit: str) -> str:
    """Return a value with its error and its unit."""
    text = _number(value, 3) if math.isnan(error) or error == 0 else f"{_number(value, 3)} ± {_number(error, 2)}"
    return f"{text} {unit}".strip()


def _number(value: float, digits: int) -> str:
    """Return a value with some significant digits, and without an exponent if it is large."""
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"
