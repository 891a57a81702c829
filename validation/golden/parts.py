"""The parts of the figures, and a share of one of them as one process computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chains
import commands
import errors
import kernel_trees
import networks
import simulations
import specifications
from recording import Cases, outcome

PARTS: dict[str, Callable[[], Cases]] = {
    "simulations": simulations.cases,
    "exchanges": simulations.exchange_cases,
    "networks": networks.cases,
    "relays": networks.relay_cases,
    "chains": chains.cases,
    "questions": chains.question_cases,
    "help": commands.help_cases,
    "examples": commands.example_cases,
    "captures": commands.capture_cases,
    "specifications": specifications.cases,
    "errors": errors.cases,
    "kernels": kernel_trees.cases,
}


def outcomes(part: str, share: int, shares: int) -> dict[str, Any]:
    """Return what the cases of a part give, every one of `shares` cases."""
    cases = PARTS[part]()
    return {name: outcome(cases[name]) for name in list(cases)[share::shares]}
