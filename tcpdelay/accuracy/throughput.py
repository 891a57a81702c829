"""The rate of a bulk TCP transfer on a path, and the share of this rate that a flow uses.

The utilization of a connection is the flow's bit rate divided by the *fair TCP rate*. This is the rate that a bulk
transfer in full-sized segments reaches at the same round-trip time and loss. The module has three equations for the
rate: the full model of Padhye et al., its approximation in TFRC, and the square-root law, the limit of both at small
loss.

References
----------
.. [1] Padhye, Firoiu, Towsley, Kurose, "Modeling TCP Reno Performance: A Simple Model and Its Empirical Validation",
   IEEE/ACM Transactions on Networking 8(2), 2000, doi 10.1109/90.842137.
.. [2] Floyd, Handley, Padhye, Widmer, "TCP Friendly Rate Control (TFRC)", RFC 5348, 2008, section 3.1.
.. [3] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
   Transactions on Networking, 2010, doi 10.1109/TNET.2010.2050780.
.. [4] Mathis, Semke, Mahdavi, Ott, "The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm", ACM Computer
   Communication Review 27(3), 1997, doi 10.1145/263932.264023.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Source
from tcpdelay.scenario.stack import NewReno2008, Stack, checked_profile

Rate: TypeAlias = np.float64 | NDArray[np.float64]

RULE_OF_THUMB_UTILIZATION = 1 / 3
"""Largest share of the fair TCP rate at which TCP adds little delay to a flow; rule of thumb of Brosh et al."""

LARGEST_SUSTAINABLE_UTILIZATION = 0.9
"""Utilization below which TCP is expected to carry a flow."""
TIMEOUT_IN_RTTS = 4
"""Default retransmission timeout in round-trip times: the simplification of RFC 5348, section 4.3."""

_SMALLEST_LOSS = 1e-300
"""A smaller loss counts as this loss, because 1/p would overflow."""


def padhye_rate(
    rtt: ArrayLike,
    loss: ArrayLike,
    timeout: ArrayLike | None = None,
    mss: ArrayLike = 1448,
    segments_per_ack: ArrayLike = 1,
    max_window: ArrayLike | None = None,
) -> Rate:
    r"""Return the rate of a bulk TCP Reno transfer by the full model of Padhye et al. (2000).

    With p the loss, b the segments per ACK and T0 the timeout, the mean window before a loss is

    .. math:: W = \frac{2+b}{3b} + \sqrt{\frac{8(1-p)}{3bp} + \left(\frac{2+b}{3b}\right)^2},

    a loss at window w ends in a timeout with probability

    .. math:: Q(w) = \min\left(1, \frac{(1-(1-p)^3)(1+(1-p)^3(1-(1-p)^{w-3}))}{1-(1-p)^w}\right),

    and with :math:`f(p) = 1+p+2p^2+4p^3+8p^4+16p^5+32p^6` the rate in segments is

    .. math:: B = \frac{(1-p)/p + W + Q(W)/(1-p)}{RTT\,(bW/2 + 1) + Q(W)\,T_0\,f(p)/(1-p)}.

    Where :math:`W \ge W_{max}`, W becomes :math:`W_{max}`, and the factor of RTT becomes
    :math:`bW_{max}/8 + (1-p)/(pW_{max}) + 2`. The two published forms are equal at :math:`W = W_{max}` only for b = 2.
    At b = 1 and a small :math:`W_{max}` the rate rises by up to a tenth where the growing loss makes W smaller than
    :math:`W_{max}`. All arguments broadcast.

    Parameters
    ----------
    rtt : array_like
        Round-trip time [s], above 0.
    loss : array_like
        Probability of a loss indication per segment, 0 to below 1. At 0 the rate is infinite, or
        `max_window` per round-trip time.
    timeout : array_like, optional
        First retransmission timeout [s], above 0; 4 round-trip times by default.
    mss : array_like
        Segment payload [bytes], above 0.
    segments_per_ack : array_like
        Segments acknowledged per ACK, b, at least 1: 2 with delayed ACKs; 1 without them or with byte counting (Linux).
    max_window : array_like, optional
        Largest window [segments], at least 1; unlimited by default.

    Returns
    -------
    float or ndarray
        Payload rate [bytes/s].

    Raises
    ------
    ValueError
        If an argument is not a number or is out of its range.

    Examples
    --------
    >>> f"{padhye_rate(rtt=0.1, loss=0.02):.0f} bytes/s"
    '105041 bytes/s'
    """
    p, scale = _loss_and_scale(rtt, loss, mss)
    b = _checked("segments_per_ack", segments_per_ack, 1.0)
    first_timeout = _timeout_in_rtts(timeout, rtt)
    largest = np.asarray(np.inf) if max_window is None else _checked("max_window", max_window, 1.0)

    return _rate(loss, _padhye_segments(p, b, first_timeout, largest, np), scale, at_no_loss=largest)


Numbers: TypeAlias = float | NDArray[np.float64]
"""A number, or an array of numbers."""


class _SingleNumbers:
    """The functions of NumPy that the equation takes, for single numbers: in a tenth of the time of arrays."""

    sqrt, exp, expm1, log1p, minimum, maximum = math.sqrt, math.exp, math.expm1, math.log1p, min, max

    @staticmethod
    def where(condition: bool, if_true: float, if_false: float) -> float:
        return if_true if condition else if_false


def _padhye_segments(p: Numbers, b: Numbers, first_timeout: Numbers, largest: Numbers, of: Any) -> Any:
    """Return the rate of `padhye_rate` in segments per round-trip time; `of` is NumPy, or `_SingleNumbers`."""
    free_window = (2 + b) / (3 * b) + of.sqrt(8 * (1 - p) / (3 * b * p) + ((2 + b) / (3 * b)) ** 2)
    window = of.minimum(free_window, largest)
    rounds = of.where(free_window < largest, b * window / 2 + 1, b * window / 8 + (1 - p) / (p * window) + 2)
    timeouts = _timeout_probability(p, window, of)
    backoff = 1 + p + 2 * p**2 + 4 * p**3 + 8 * p**4 + 16 * p**5 + 32 * p**6
    segments = (1 - p) / p + window + timeouts / (1 - p)
    duration = rounds + timeouts * first_timeout * backoff / (1 - p)
    return segments / duration


def _timeout_probability(p: Numbers, window: Numbers, of: Any) -> Any:
    """Return the probability that a loss at `window` segments ends in a timeout; 1 up to 3 segments."""
    kept = of.log1p(-p)
    three_lost, all_lost = -of.expm1(3 * kept), -of.expm1(window * kept)
    rest_lost = -of.expm1(of.maximum(window - 3, 0) * kept)
    return of.where(window <= 3, 1.0, of.minimum(1.0, three_lost * (1 + of.exp(3 * kept) * rest_lost) / all_lost))


def tfrc_rate(
    rtt: ArrayLike,
    loss: ArrayLike,
    timeout: ArrayLike | None = None,
    mss: ArrayLike = 1448,
    segments_per_ack: ArrayLike = 1,
) -> Rate:
    r"""Return the rate of TCP by the throughput equation of TFRC, RFC 5348, section 3.1.

    .. math:: X = \frac{s}{R\sqrt{2bp/3} + t_{RTO}\,3\sqrt{3bp/8}\,p\,(1+32p^2)}

    The equation approximates `padhye_rate` without a limit of the window. All arguments broadcast.

    Parameters
    ----------
    rtt : array_like
        Round-trip time R [s], above 0.
    loss : array_like
        Loss event rate p, 0 to below 1; at 0 the rate is infinite.
    timeout : array_like, optional
        Retransmission timeout t_RTO [s], above 0; 4 round-trip times by default, as the RFC suggests.
    mss : array_like
        Segment size s [bytes], above 0.
    segments_per_ack : array_like
        Segments acknowledged per ACK, b, at least 1; the RFC recommends 1.

    Returns
    -------
    float or ndarray
        Rate [bytes/s].

    Raises
    ------
    ValueError
        If an argument is not a number or is out of its range.

    Examples
    --------
    >>> f"{tfrc_rate(rtt=0.1, loss=0.01):.0f} bytes/s"
    '162657 bytes/s'
    """
    p, scale = _loss_and_scale(rtt, loss, mss)
    b = _checked("segments_per_ack", segments_per_ack, 1.0)
    waiting = _timeout_in_rtts(timeout, rtt) * 3 * np.sqrt(3 * b * p / 8) * p * (1 + 32 * p**2)
    return _rate(loss, 1 / (np.sqrt(2 * b * p / 3) + waiting), scale)


def square_root_rate(rtt: ArrayLike, loss: ArrayLike, mss: ArrayLike = 1448, segments_per_ack: ArrayLike = 1) -> Rate:
    r"""Return the rate of TCP by the square-root law :math:`MSS / RTT \cdot \sqrt{3/(2bp)}` (Mathis et al. 1997).

    The law neglects timeouts, so it holds for losses of up to about 1 %. All arguments broadcast.
    """
    p, scale = _loss_and_scale(rtt, loss, mss)
    b = _checked("segments_per_ack", segments_per_ack, 1.0)
    return _rate(loss, np.sqrt(3 / (2 * b * p)), scale)


def connection_utilization(source: Source, path: Path, stack: Stack, segments_per_ack: float = 2) -> float:
    """Return the share of the fair TCP rate that a source uses in the mean.

    The share is the source's payload bytes divided by the payload bytes of a bulk transfer in full-sized segments.
    Bytes count, not packets, because small packets leave in full segments while the flow has a backlog. A comparison of
    packets with segments would overestimate the utilization of a voice flow eight times.

    By default the receiver of the bulk transfer acknowledges every second segment, as receivers of bulk data do. The
    utilization then differs by -15 to +22 % (median 7 %) from the 20 values that Brosh et al. published with their
    drop-tail measurements. The published values follow f a RTT sqrt(2 p) / MSS, a square-root law with b = 3 and
    without timeouts, to within 0.6 %, the rounding of the printed values. With `segments_per_ack` 1 the utilization is
    14 to 40 % below the published values, so the rule of thumb, which is based on them, would allow too high a rate.

    Parameters
    ----------
    source : Source
        The source, for example a `Flow`.
    path : Path
        The network; its round-trip time and loss are used.
    stack : Stack
        The TCP; its segment size and first timeout are used. For Linux the timeout is 4 round-trip times.
    segments_per_ack : float
        Segments acknowledged per ACK in the bulk transfer, at least 1.

    Returns
    -------
    float
        The utilization, 0 on a path without loss; above 1 the flow needs more than its fair share.

    Raises
    ------
    ValueError
        If `stack` is of no known profile, or `segments_per_ack` is out of its range.

    Examples
    --------
    >>> from tcpdelay.scenario.source import Flow
    >>> from tcpdelay.scenario.stack import Stack
    >>> connection_utilization(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.newreno_2008())
    0.11815
    """
    return float(source.mean_bitrate / 8 / _fair_rate(path.rtt, path.loss, stack, segments_per_ack))


def utilization_map(
    flow: Source, rtt: NDArray[np.float64], loss: NDArray[np.float64], stack: Stack, segments_per_ack: float = 2
) -> NDArray[np.float64]:
    """Return `connection_utilization` at each round-trip time [s] and loss, an array of shape (rtt, loss)."""
    rates = _fair_rate(rtt[:, None], loss, stack, segments_per_ack)
    return np.asarray(flow.mean_bitrate / 8 / rates, np.float64)


def largest_rule_of_thumb_rate(
    path: Path, stack: Stack, utilization: float = RULE_OF_THUMB_UTILIZATION, segments_per_ack: float = 2
) -> float:
    """Return the largest bit rate [bit/s] of a flow by the rule of thumb of Brosh et al.; infinite without loss.

    At one third of the fair TCP rate (`utilization`), TCP adds a delay of about one round-trip time. The size of the
    packets has no influence, because they leave in full segments while the flow has a backlog.
    """
    share = float(_checked("utilization", utilization, 0.0, exclusive=True))
    return float(8 * share * _fair_rate(path.rtt, path.loss, stack, segments_per_ack))


def reno_utilization(source: Source, path: Path) -> float:
    """Return the share that a source takes of the fair rate of TCP Reno with full segments; also a measure for QUIC."""
    return float(connection_utilization(source, path, NewReno2008()))


def _fair_rate(rtt: ArrayLike, loss: ArrayLike, stack: Stack, segments_per_ack: float) -> Rate:
    """Return the fair TCP rate [bytes/s]."""
    stack = checked_profile(stack)
    timeout = stack.initial_timeout if isinstance(stack, NewReno2008) else None
    if isinstance(rtt, float) and isinstance(loss, float) and loss > 0 and 1 <= segments_per_ack < math.inf:
        first_timeout = TIMEOUT_IN_RTTS if timeout is None else timeout / rtt
        p = max(loss, _SMALLEST_LOSS)
        segments = _padhye_segments(p, segments_per_ack, first_timeout, math.inf, _SingleNumbers)
        return np.float64(segments * (stack.mss / rtt))
    return padhye_rate(rtt, loss, timeout, stack.mss, segments_per_ack)


def _loss_and_scale(rtt: ArrayLike, loss: ArrayLike, mss: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the loss, at least `_SMALLEST_LOSS`, and the rate of one segment per round-trip time [bytes/s]."""
    p = _checked("loss", loss, 0.0)
    if np.any(p >= 1):
        raise InvalidValueError("loss", np.max(p), "be a fraction from 0 to below 1")
    scale = _checked("mss", mss, 0.0, exclusive=True) / _checked("rtt", rtt, 0.0, exclusive=True)
    return np.maximum(p, _SMALLEST_LOSS), scale


def _timeout_in_rtts(timeout: ArrayLike | None, rtt: ArrayLike) -> NDArray[np.float64] | float:
    """Return the retransmission timeout in round-trip times."""
    if timeout is None:
        return TIMEOUT_IN_RTTS
    return _checked("timeout", timeout, 0.0, exclusive=True) / _checked("rtt", rtt, 0.0, exclusive=True)


def _rate(
    loss: ArrayLike, segments: NDArray[np.float64], scale: NDArray[np.float64], at_no_loss: ArrayLike = np.inf
) -> Rate:
    """Return the rate [bytes/s] of `segments` per round-trip time, or of `at_no_loss` segments without loss."""
    lossless = np.asarray(loss, dtype=np.float64) == 0
    rate: Rate = (np.where(lossless, at_no_loss, segments) * scale)[()]
    return rate


def _checked(name: str, value: ArrayLike, low: float, *, exclusive: bool = False) -> NDArray[np.float64]:
    """Return `value` as an array of finite numbers of at least `low`, or above it; otherwise name the argument."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidValueError(name, value, "be a number or an array of numbers") from None
    wrong = ~np.isfinite(array) | (array <= low if exclusive else array < low)
    if np.any(wrong):
        relation = "above" if exclusive else "at least"
        raise InvalidValueError(name, array[wrong].flat[0], f"be finite and {relation} {low:g}")
    return array
