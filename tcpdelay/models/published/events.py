"""The events that end a visit to a state: no loss, a fast retransmit, or a timeout.

The sums over loss patterns have closed forms. B_p(n, i) is the binomial probability. The term of i losses whose
retransmissions all survive is T(i) = B_p(w, i) (1-p)^i. Over all i these terms add up to (1-p^2)^w. So the patterns
that are not repaired are summed directly. The difference P_loss - P_FR would lose digits at small loss.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.compilation import kernel
from tcpdelay.models.tcp import DUPLICATE_THRESHOLD

NEWRENO, SACK, RENO = 0, 1, 2
VARIANT_CODES = {"newreno": NEWRENO, "sack": SACK, "reno": RENO}

RENO_TWO_LOSS_WINDOW = 10
"""Smallest window in which Reno repairs two losses of one window (Fall and Floyd 1996)."""


class LossEvents(NamedTuple):
    """Probabilities of the events of a visit, indexed by the congestion window."""

    success: NDArray[np.float64]
    fast_retransmit: NDArray[np.float64]
    timeout: NDArray[np.float64]


@kernel()
def _repaired_pattern(trials: int, losses: int, loss: float) -> float:
    """Return B_p(trials, losses) (1-p)^losses: the probability of the losses, and that all retransmissions arrive."""
    if losses < 0 or losses > trials:
        return 0.0
    coefficient = 1.0
    few = min(losses, trials - losses)
    for i in range(few):
        coefficient *= (trials - i) / (i + 1.0)
    return coefficient * (loss * (1 - loss)) ** losses * (1 - loss) ** (trials - losses)


@kernel()
def timeout_share_correlated(window: int, loss: float) -> float:
    """Return Q(w): the share of loss indications that end in a timeout under drop-tail losses (Padhye et al. 1998)."""
    if window <= DUPLICATE_THRESHOLD:
        return 1.0
    three_arrive = (1 - loss) ** 3
    rest_arrives = -math.expm1((window - 3) * math.log1p(-loss))
    any_lost = -math.expm1(window * math.log1p(-loss))
    return min(1.0, -math.expm1(3 * math.log1p(-loss)) * (1 + three_arrive * rest_arrives) / any_lost)


@kernel()
def loss_events(
    largest_window: int, loss: float, one_packet: bool, variant: int, correlated: bool, limited_transmit: bool
) -> LossEvents:
    """Return the probabilities of success, fast retransmit and timeout for each window from 0 to `largest_window`.

    With `one_packet` the chain is application limited: a visit covers one packet. This packet is lost with probability
    p, and other packets of its window may be lost too. Otherwise a visit covers a whole window.
    """
    success = np.zeros(largest_window + 1)
    fast_retransmit = np.zeros(largest_window + 1)
    timeout = np.zeros(largest_window + 1)
    if loss <= 0.0:
        success[:] = 1.0
        return LossEvents(success, fast_retransmit, timeout)
    log_survival = math.log1p(-loss)
    log_repair = math.log1p(-loss * loss)
    for window in range(1, largest_window + 1):
        if one_packet:
            # The packet is the first of i lost packets: p B_p(w-1, i-1) (1-p)^i = (1-p) p T'(i-1).
            others, first = window - 1, loss * (1 - loss)
            any_lost = loss
            unrepaired = -loss * math.expm1(log_survival + others * log_repair)
        else:
            others, first = window, 1.0
            any_lost = -math.expm1(window * log_survival)
            unrepaired = -math.expm1(window * log_repair)
        offset = window - others
        all_but_none = first * _repaired_pattern(others, window - offset, loss)
        all_but_one = first * _repaired_pattern(others, window - 1 - offset, loss) if window > 1 else 0.0
        all_but_two = first * _repaired_pattern(others, window - 2 - offset, loss) if window > 2 else 0.0

        if variant == RENO:
            repaired = 0.0
            if window > DUPLICATE_THRESHOLD:
                repaired += first * _repaired_pattern(others, 1 - offset, loss)
            if window >= RENO_TWO_LOSS_WINDOW:
                repaired += first * _repaired_pattern(others, 2 - offset, loss)
            ends_in_timeout = any_lost - repaired
        else:
            ends_in_timeout = unrepaired + all_but_none + all_but_one + all_but_two
        if correlated:
            ends_in_timeout = timeout_share_correlated(window, loss) * any_lost

        if limited_transmit:
            # One or two survivors each release a new segment, whose ACKs complete the three duplicates (RFC 3042).
            # Reno repairs only a single loss in these small windows.
            if window > 1 and (variant != RENO or window == 2):
                ends_in_timeout -= all_but_one * (1 - loss) ** 2
            if window > 2 and (variant != RENO or window == 3):
                ends_in_timeout -= all_but_two * (1 - loss**2)
        if window == 1 or (window <= DUPLICATE_THRESHOLD and not limited_transmit):
            # There are too few duplicate ACKs for a fast retransmit. Its probability is exactly 0, as in the equations.
            ends_in_timeout = any_lost
        timeout[window] = min(max(ends_in_timeout, 0.0), any_lost)
        fast_retransmit[window] = any_lost - timeout[window]
        success[window] = 1 - any_lost if one_packet else math.exp(window * log_survival)
    return LossEvents(success, fast_retransmit, timeout)
