"""Compare two files of figures part by part, and tell intended changes from others."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

TOLERANCES = {"simulations": 0.0, "exchanges": 0.0, "networks": 0.0, "relays": 0.0, "specifications": 0.0}
"""Largest relative difference of numbers, by part; of the others `TOLERANCE`."""
TOLERANCE = 1e-12
SMALLEST = 1e-15
"""Absolute difference of probabilities that is rounding."""
FULL_DIGITS = 12
"""Digits of a printed number from which it may differ by rounding; one with fewer is the same or not."""
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?|-?\d+e[-+]?\d+")
Figures = dict[str, Any]


def leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Return every number, word and flag of nested data by its place."""
    if not isinstance(value, (dict, list)) or not value:
        return {place: value}
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    return {at: leaf for key, entry in entries for at, leaf in leaves(entry, f"{place} / {key}").items()}


def same(before: Any, after: Any, tolerance: float) -> bool:
    """Return whether two leaves are the same; numbers may differ by a relative `tolerance`, also within a text."""
    if before == after or (before != before and after != after):
        return True
    if isinstance(before, str) and isinstance(after, str):
        return tolerance > 0 and _same_text(before, after, tolerance)
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (before, after))
    return numbers and tolerance > 0 and math.isclose(before, after, rel_tol=tolerance, abs_tol=SMALLEST)


def _same_text(before: str, after: str, tolerance: float) -> bool:
    old, new = NUMBER.findall(before), NUMBER.findall(after)
    if len(old) != len(new) or NUMBER.split(before) != NUMBER.split(after):
        return False
    return all(a == b or _same_printed(a, b, tolerance) for a, b in zip(old, new, strict=True))


def _same_printed(before: str, after: str, tolerance: float) -> bool:
    digits = max(len(re.sub(r"e.*|\D", "", number).lstrip("0")) for number in (before, after))
    return digits >= FULL_DIGITS and math.isclose(float(before), float(after), rel_tol=tolerance, abs_tol=SMALLEST)


def _shown(before: Any, after: Any) -> Iterator[str]:
    """Yield the lines that show a difference."""
    if isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
        changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        yield from (f"      {line[:200]}" for line in changed[:6])
        if len(changed) > 6:
            yield f"      ... {len(changed)} lines"
    else:
        yield f"      {before!r:.200} -> {after!r:.200}"


def differences(part: str, before: Figures, after: Figures) -> dict[str, list[str]]:
    """Return the places of a part that differ, are gone or are new, each with the lines that show it."""
    if part == "kernels":
        return of_kernels(before, after)
    tolerance = TOLERANCES.get(part, TOLERANCE)
    found: dict[str, list[str]] = {}
    for case in dict.fromkeys([*before, *after]):
        if case not in before or case not in after:
            found[case] = ["      gone" if case in before else "      new"]
            continue
        old, new = leaves(before[case]), leaves(after[case])
        for place in dict.fromkeys([*old, *new]):
            if place not in old:
                found[case + place] = [f"      new: {new[place]!r:.200}"]
            elif place not in new:
                found[case + place] = [f"      gone: {old[place]!r:.200}"]
            elif not same(old[place], new[place], tolerance):
                found[case + place] = list(_shown(old[place], new[place]))
    return found


def of_kernels(before: dict[str, list[list[str]]], after: dict[str, list[list[str]]]) -> dict[str, list[str]]:
    """Return the kernels that are gone, new or changed; a renamed one is found by its tree."""
    found: dict[str, list[str]] = {}
    gone, new = (
        {name: Counter(map(tuple, one[name])) - Counter(map(tuple, other.get(name, []))) for name in one}
        for one, other in ((before, after), (after, before))
    )
    old_names = {nameless: name for name, kernels in gone.items() for _, _, nameless in kernels}
    new_names = {nameless: name for name, kernels in new.items() for _, _, nameless in kernels}
    for name in dict.fromkeys([*gone, *new]):
        left, come = list(gone.get(name, Counter())), list(new.get(name, Counter()))
        if not left and not come:
            continue
        if left and come:
            alike = Counter(each[1] for each in left) == Counter(each[1] for each in come)
            found[name] = ["      only local names have changed" if alike else "      changed"]
        elif left:
            elsewhere = new_names.get(left[0][2])
            count = len(after.get(name, []))
            found[name] = [f"      is now {elsewhere}" if elsewhere else f"      {len(left)} gone, {count} left"]
        else:
            elsewhere = old_names.get(come[0][2])
            found[name] = [f"      was {elsewhere}" if elsewhere else "      new"]
    return found


def compare(before: dict[str, Figures], after: dict[str, Figures], intended: list[str], most: int) -> int:
    """Print the differences of each part that both files have; return the number of those that are not intended."""
    unused, unintended = set(intended), 0
    for part in [part for part in before if part in after]:
        found = differences(part, before[part], after[part])
        matching = {place: [each for each in intended if fnmatchcase(f"{part} / {place}", each)] for place in found}
        unused -= {each for several in matching.values() for each in several}
        others = [place for place in found if not matching[place]]
        unintended += len(others)
        count = len(leaves(after[part]))
        print(f"{part}: {count} figures, {len(found) - len(others)} intended differences, {len(others)} others")
        for place in others[:most]:
            short = place if len(place) < 200 else f"{place[:100]} ... {place[-90:]}"
            print(f"   {short}", *found[place], sep="\n")
        if len(others) > most:
            print(f"   ... and {len(others) - most} more")
    for part in sorted(before.keys() ^ after.keys()):
        print(f"{part}: only {'before' if part in before else 'after'}")
    for pattern in sorted(unused):
        print(f"no such difference: {pattern}")
    return unintended
