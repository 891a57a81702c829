"""Captures that are set aside: those that the design of a model must not have seen.

A model that is written while its errors on captures are being watched is, in effect, fitted to them: whatever is tried
and kept because it brings them down may describe these captures rather than TCP. About half of the captures are
therefore held out before anything of such a model is fixed. Its design looks at the other half only, and the error that
counts is that on the half held out; `evaluate` reports the two beside each other for every model that asks for it.

The split depends on nothing but the capture's name, so it can neither be chosen nor drift, and new captures fall into
one half or the other by themselves. The two timer rates of one experiment give nearly the same delays; they share a
half, as one of them would tell what the other holds.
"""

from __future__ import annotations

import hashlib
import re

_TIMER_RATE = re.compile(r"-hz\d+$")


def held_out(name: str) -> bool:
    """Say whether a capture is set aside from the design of models.

    Parameters
    ----------
    name : str
        Name of the capture: its file's, without the suffix.

    Returns
    -------
    bool
        True for about half of all names; the same for all timer rates of an experiment.

    Examples
    --------
    >>> [held_out(f"cbr-174B-20ms-rtt100ms-loss1pct-reno-hz{hz}") for hz in (250, 1000)]
    [True, True]
    >>> held_out("cbr-174B-20ms-rtt100ms-loss5pct-cubic-hz250")
    False
    """
    experiment = _TIMER_RATE.sub("", name)
    return hashlib.sha256(experiment.encode()).digest()[0] % 2 == 1
