"""The expected error of a prediction: its error in similar scenarios."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path as FilePath

import numpy as np
from numpy.typing import NDArray

from tcpdelay.confidence import Interval
from tcpdelay.distribution import USUAL_QUANTILE, DelayDistribution, ExpectedError, Spread
from tcpdelay.models.error_table import WRONG_CALL, ErrorTable
from tcpdelay.models.throughput import connection_utilization, utilization_map
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownTcp, Linux, NewReno2008, Quic, Stack, checked_profile
from tcpdelay.units import format_fraction, quantile_name

TABLES = {1.0: "linux-errors.csv", 1.5: "linux-errors-burst1.5.csv", 2.0: "linux-errors-burst2.csv"}
"""Files with the errors of the chain of `Stack.linux`, by the longest mean burst of losses [segments] they apply to.

`validation/error_map.py score` writes the first file, `validation/bursts.py` the other two.
"""
CORRELATED_TABLE = "linux-errors-correlated.csv"
"""File with the errors of the chain of `Stack.linux` with correlated losses.

`validation/drop_tail_patterns.py` writes it.
"""
SPEECH_TABLE, VIDEO_TABLE = "linux-errors-speech.csv", "linux-errors-video.csv"
"""Files with the errors of the chains of speech and video, from `validation/speech.py` and `validation/video.py`."""
JITTER_TABLE = "linux-errors-jitter.csv"
"""File with the errors of the chain of `Stack.linux` with jitter; `validation/jitter.py` writes it."""
BBR_TABLE = "linux-errors-bbr.csv"
"""File with the errors of the chain of BBR; `validation/bbr_chain.py` writes it."""
SIMULATED_RATE_ERROR = 0.047
"""If packets always wait to be sent, Linux 6.1 sends up to this share more packets a second than the simulator.

`validation/near_capacity.py` compares both rates on eight paths.
"""
CAPACITY_ERROR = 0.075 + SIMULATED_RATE_ERROR
"""Error of the largest rate that the chain says TCP carries.

Nine of ten are within 7.5 % of a simulation (`validation/capacity.py`). The simulation itself may be too slow.
"""
LARGEST_CAPACITY_ERROR = 0.215 + SIMULATED_RATE_ERROR
"""Error by which that rate is too small at most: the largest of `validation/capacity.py`, and the simulation's own."""
SHARE_ERROR = 0.05
"""Relative error of a share of late messages.

Where it would move p95 by 5 % or more, half of the p95 of the chains of sources were so wrong.
"""
LARGEST_TOOTH = 0.99
"""Largest error from a tooth: from `WRONG_CALL` on, an error would say that TCP may not carry the flow."""
SIMULATED_BURSTS = "simulations of losses in bursts in scenarios like this one"
SIMULATED_JITTER = "simulations of jitter in scenarios like this one"
SIMULATED_CORRELATED = "simulations of correlated losses in scenarios like this one"
STUDENT_95 = 2.09
"""Half width of a 95 % interval in standard errors: Student's quantile for 20 batches."""
NORMAL_MEDIAN, NORMAL_MEAN, NORMAL_P90 = 0.674, 0.798, 1.645
"""Median, mean and 90 % quantile of the size of the error of an estimate, in standard errors."""


PUBLISHED_ERROR = ExpectedError(
    median=0.67,
    mean=1.54,
    p90=4.28,
    mean_delay=Spread(0.27, 0.59, 1.60),
    cases=432,
    source="captures of Linux 6.1 under random losses, predictions being too high as a rule",
)

BEYOND_CAPACITY = ExpectedError(
    median=0.0,
    mean=0.0,
    p90=0.0,
    mean_delay=Spread(0.0, 0.0, 0.0),
    cases=250,
    source="simulations of the largest rate that TCP carries",
)
"""The chain's error if a flow's rate is far above the rate that TCP carries: the delay is infinite."""

SIMULATOR_ERROR = ExpectedError(
    median=0.0001,
    mean=0.0164,
    p90=0.0557,
    mean_delay=Spread(0.0065, 0.0157, 0.0346),
    cases=432,
    source="captures of Linux 6.1 under random losses, with their own statistical error",
)
"""The simulator's error in captures (`validation/results/scores.csv`), the lower bound of errors measured with it."""

BBR_ERROR = ExpectedError(
    median=0.0021,
    mean=0.0232,
    p90=0.0758,
    mean_delay=Spread(0.0055, 0.0125, 0.0379),
    cases=41,
    source="captures of BBR in Linux 6.1, 20 minutes each",
)
"""The simulator's error in captures of BBR; `validation/bbr.py` computes these figures."""

QUIC_ERROR = ExpectedError(
    median=0.0,
    mean=0.0007,
    p90=0.0004,
    mean_delay=Spread(0.0, 0.0007, 0.0),
    cases=191,
    source="captures of aioquic and quic-go, 2 to 20 minutes each",
)
"""The simulator's error of p95 beyond the intervals of captures of QUIC, below 0.9 of what Reno over TCP carries.

`validation/quic.py` writes the captures' errors to `validation/results/quic.csv`."""

BACKLOG_ERRORS = (
    (1.0, ExpectedError(0.097, 0.146, 0.302, Spread(0.061, 0.113, 0.230), 53, "captures of Linux 6.1 with backlogs")),
    (4.0, ExpectedError(0.357, 0.317, 0.541, Spread(0.315, 0.313, 0.514), 33, "captures near TCP's capacity")),
)
"""The simulator's error in captures, by the shortest mean delay beyond the network's own, in round-trip times.

Near the capacity, a small error of the rate makes a large error of the delay. `backlog_errors` in
`validation/near_capacity.py` computes these figures.
"""


def expected_error_map(
    flow: Flow,
    rtt: NDArray[np.float64],
    loss: NDArray[np.float64],
    stack: KnownTcp,
    carried: NDArray[np.bool_],
    quantile: float = USUAL_QUANTILE,
) -> NDArray[np.float64]:
    """Return `expected_error` of a quantile of the delay at each round-trip time and loss.

    Parameters
    ----------
    flow, stack
        The flow and its TCP.
    rtt, loss : ndarray, one-dimensional
        Round-trip times [s] and losses.
    carried : ndarray of bool, shape (rtt, loss)
        Whether the chain says that TCP carries the flow.
    quantile : float
        The quantile, above 0 and below 1.

    Returns
    -------
    ndarray, shape (rtt, loss, 3)
        Median, mean and 90 % quantile of the error, as fractions.

    Examples
    --------
    >>> at, lost = np.array([0.1]), np.array([0.02])
    >>> expected_error_map(Flow(174, 0.020), at, lost, Stack.newreno_2008(), np.array([[True]]))
    array([[[0.67, 1.54, 4.28]]])
    """
    if isinstance(stack, NewReno2008):
        return np.broadcast_to(_figures(PUBLISHED_ERROR), (*carried.shape, 3))
    utilizations = utilization_map(flow, rtt, loss, stack)
    rtts, losses = np.broadcast_arrays(rtt[:, None], loss)
    features = np.stack([rtts, losses, utilizations, rtts / flow.interval], axis=-1)
    found = np.empty((*carried.shape, 3))
    cubic = stack.congestion_control == "cubic"
    expected = linux_table(bbr=stack.congestion_control == "bbr").expected_of_many
    found[~carried] = expected(features[~carried], cubic, False, quantile)
    found[carried] = np.maximum(expected(features[carried], cubic, True, quantile), _figures(_least_error(stack)))
    return found


def _figures(spread: Spread) -> NDArray[np.float64]:
    """Return median, mean and 90 % quantile as an array."""
    return np.array([spread.median, spread.mean, spread.p90])


def features_of(flow: Flow, path: Path, stack: Linux) -> NDArray[np.float64]:
    """Return the `FEATURES` of a scenario.

    Examples
    --------
    >>> features_of(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Linux()).round(3).tolist()
    [0.1, 0.02, 0.118, 5.0]
    """
    rtt = path.mean_rtt
    return np.array([rtt, path.loss, connection_utilization(flow, path, stack), rtt / flow.interval])


def linux_table_file(burst: float = 1.0, bbr: bool = False, correlated: bool = False) -> FilePath:
    """Return the file with the errors of the chain of `Stack.linux` for a mean burst of losses [segments], or of BBR.

    It is the table of the next longer burst, or the last table for a burst longer than all of them. Correlated losses
    have a table of their own.
    """
    known = next((longest for longest in sorted(TABLES) if burst <= longest), max(TABLES))
    name = BBR_TABLE if bbr else CORRELATED_TABLE if correlated else TABLES[known]
    return FilePath(__file__).parent / "data" / name


@cache
def linux_table(burst: float = 1.0, bbr: bool = False, correlated: bool = False) -> ErrorTable:
    """Return the errors in `linux_table_file`; the file is read once."""
    return ErrorTable.read(linux_table_file(burst, bbr, correlated))


def _least_error(stack: Linux) -> ExpectedError:
    """Return the simulator's own error with the stack's congestion control."""
    return BBR_ERROR if stack.congestion_control == "bbr" else SIMULATOR_ERROR


def simulator_error(statistical: ExpectedError, added: float, congestion_control: str = "cubic") -> ExpectedError:
    """Return the expected error of a simulation: the statistical error, or the error in captures with such delays.

    The larger of both counts. With BBR the error in captures of BBR counts too, and with QUIC that in captures of QUIC.

    Parameters
    ----------
    statistical : ExpectedError
        The statistical error.
    added : float
        Mean delay beyond the network's own delay, in round-trip times.
    congestion_control : str
        Congestion control of the sender; "newreno" is that of QUIC.

    Examples
    --------
    >>> exact = ExpectedError(0.01, 0.01, 0.02, Spread(0.01, 0.01, 0.02), 0, "the statistical error")
    >>> [simulator_error(exact, added).p90 for added in (0.1, 2, 10)]
    [0.02, 0.302, 0.541]
    """
    least = [known for control, known in (("bbr", BBR_ERROR), ("newreno", QUIC_ERROR)) if control == congestion_control]
    least += [known for shortest, known in BACKLOG_ERRORS if added >= shortest][-1:]
    found = statistical
    for known in least:
        found = replace(_no_less(known, found), quantile=statistical.quantile)
    return found


def is_near_capacity(share: float) -> bool:
    """Return whether the chain may be wrong about whether TCP carries a flow.

    Parameters
    ----------
    share : float
        Largest rate that TCP carries by the chain, relative to the flow's rate; NaN if it is not known.

    Examples
    --------
    >>> is_near_capacity(0.95), is_near_capacity(1.5)
    (True, False)
    """
    return abs(share - 1) < CAPACITY_ERROR


def is_beyond_capacity(share: float) -> bool:
    """Return whether a flow's rate is above any rate that TCP may carry, so that the chain is not wrong about it.

    Parameters
    ----------
    share : float
        Largest rate that TCP carries by the chain, relative to the flow's rate; NaN if it is not known.

    Examples
    --------
    >>> is_beyond_capacity(0.5), is_beyond_capacity(0.9)
    (True, False)
    """
    return share * (1 + LARGEST_CAPACITY_ERROR) < 1


def expected_error(
    flow: Flow,
    path: Path,
    stack: Stack,
    carried: bool = True,
    capacity: float = math.nan,
    quantile: float = USUAL_QUANTILE,
) -> ExpectedError:
    """Return the expected error of a chain's prediction.

    Parameters
    ----------
    flow, path, stack
        The scenario. Of a Linux stack only congestion control and segment size are used.
    carried : bool
        Whether the chain says that TCP carries the flow.
    capacity : float
        Largest packet rate [1/s] that TCP carries by the chain; NaN if it is not known.
    quantile : float
        Quantile of the delay whose error is asked for, above 0 and below 1. Errors are known of p95, p99 and p99.9: the
        next higher of these is quoted.

    Returns
    -------
    ExpectedError
        For `Stack.linux`, the error in the most similar of the simulated scenarios. Where TCP carries the flow, it is
        at least the simulator's own error. Near the capacity, `p90` is at least `WRONG_CALL`. Far beyond the capacity
        it is 0. With losses in bursts, correlated losses or jitter, each figure is the larger of the errors with and
        without them. For the published chain, the error over all captures.

    Raises
    ------
    ValueError
        If `stack` is of no known profile, or QUIC.

    Examples
    --------
    >>> expected_error(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.newreno_2008()).median
    0.67
    """
    stack = checked_profile(stack)
    if isinstance(stack, Quic):
        raise InvalidValueError("stack", stack, "be a TCP, whose chain has an expected error")
    if isinstance(stack, NewReno2008):
        return PUBLISHED_ERROR
    correlated = path.loss_pattern == "correlated"
    independent = path.loss_burst == 1 and not correlated
    if independent and is_beyond_capacity(capacity / flow.packet_rate):
        return BEYOND_CAPACITY
    scenario = features_of(flow, path, stack), stack.congestion_control == "cubic", carried, quantile
    bbr = stack.congestion_control == "bbr"
    found = linux_table(path.loss_burst, bbr, correlated).expected(*scenario)
    # BBR adapts the rate that it carries to the flow's.
    if not bbr and is_near_capacity(capacity / flow.packet_rate):
        found = replace(found, p90=max(found.p90, WRONG_CALL))
    if not carried:
        return found
    found = _no_less(found, _least_error(stack))
    if path.jitter > 0:
        return _no_less(replace(found, source=SIMULATED_JITTER), _named_table(JITTER_TABLE).expected(*scenario))
    if independent:
        return found
    source = SIMULATED_CORRELATED if correlated else SIMULATED_BURSTS
    return _no_less(replace(found, source=source), linux_table().expected(*scenario))


@cache
def _named_table(name: str) -> ErrorTable:
    return ErrorTable.read(table_file(name))


def table_file(name: str) -> FilePath:
    """Return the file with the errors of a chain, by its name."""
    return linux_table_file().with_name(name)


def source_error(table: str, flow: Flow, path: Path, stack: Linux, quantile: float = USUAL_QUANTILE) -> ExpectedError:
    """Return the expected error of the chain of a source that is no constant rate.

    Parameters
    ----------
    table : str
        File with the errors of the chain.
    flow : Flow
        The flow by which its scenarios are compared: the packets of a talk spurt, or the mean frames of a video.
    path, stack
        The rest of the scenario.
    quantile : float
        As for `expected_error`.

    Examples
    --------
    >>> source_error(SPEECH_TABLE, Flow(174, 0.020), Path(rtt=0.100, loss=0.01), Linux()).mean < 0.05
    True
    """
    cubic = stack.congestion_control == "cubic"
    found = _named_table(table).expected(features_of(flow, path, stack), cubic, True, quantile)
    return _no_less(found, SIMULATOR_ERROR)


def no_less_than_teeth(found: ExpectedError, delays: DelayDistribution, quantile: float) -> ExpectedError:
    """Return the expected error of a quantile of delays that are a comb, where it is at the edge of a tooth.

    There, a small error of the share of late messages moves the quantile by a whole tooth. So the error is at least
    half of this distance in the mean, and the distance in nine of ten, but no more than 99 %.

    Parameters
    ----------
    found : ExpectedError
        The error elsewhere.
    delays : DelayDistribution
        The predicted delays.
    quantile : float
        The quantile, above 0 and below 1.

    Examples
    --------
    >>> comb = DelayDistribution(np.array([0.1, 0.15]), np.array([0.951, 0.049]), 0.1)
    >>> found = no_less_than_teeth(SIMULATOR_ERROR, comb, 0.95)
    >>> round(found.mean, 3), round(found.p90, 3)
    (0.25, 0.5)
    """
    late = (1 - quantile) * np.array([1 - SHARE_ERROR, 1 + SHARE_ERROR])
    at, beside = delays.quantile(quantile), delays.quantile(1 - late)
    if math.isinf(at):
        moved = 0.0 if np.isinf(beside).all() else LARGEST_TOOTH
    else:
        moved = min(float(np.abs(beside / at - 1).max()), LARGEST_TOOTH)
    return replace(found, mean=max(found.mean, moved / 2), p90=max(found.p90, moved))


def _no_less(found: ExpectedError, least: ExpectedError) -> ExpectedError:
    """Return the larger of two expected errors, figure by figure."""
    return replace(found, **vars(_at_least(found, least)), mean_delay=_at_least(found.mean_delay, least.mean_delay))


def _at_least(found: Spread, least: Spread) -> Spread:
    """Return the larger of two spreads, figure by figure; NaN where `found` is."""
    return Spread(*(max(getattr(found, name), getattr(least, name)) for name in ("median", "mean", "p90")))


def statistical_error(quantile: Interval, mean: Interval, packets: int, probability: float = 0.95) -> ExpectedError:
    """Return the expected error of an estimate from its 95 % intervals.

    Parameters
    ----------
    quantile, mean : Interval
        Quantile and mean delay [s] with their 95 % intervals.
    packets : int
        Number of packets in the estimate, 1 or more.
    probability : float
        Probability of the quantile, above 0 and below 1.

    Returns
    -------
    ExpectedError
        The error of a normally distributed estimate.

    Examples
    --------
    >>> found = statistical_error(Interval(0.200, 0.196, 0.204), Interval(0.1, 0.1, 0.1), 1000)
    >>> round(found.median, 4), found.mean_delay.p90
    (0.0065, 0.0)
    """

    def normal(interval: Interval) -> Spread:
        error = interval.relative_half_width / STUDENT_95
        return Spread(NORMAL_MEDIAN * error, NORMAL_MEAN * error, NORMAL_P90 * error)

    found, words = normal(quantile), f"the statistical error of {packets} simulated packets"
    return ExpectedError(**vars(found), mean_delay=normal(mean), cases=0, source=words, quantile=probability)


def in_words(error: ExpectedError, of: float | str | None = None) -> str:
    """Describe an expected error in words.

    Parameters
    ----------
    error : ExpectedError
        The error.
    of : float or str, optional
        The quantile that is asked for, or the name of another result; if the error was measured at another quantile,
        the words say so.

    Examples
    --------
    >>> in_words(ExpectedError(0.021, 0.0345, 0.1, Spread(0.01, 0.02, 0.05), 40, "simulations"), 0.99)
    'p95, not p99, 2.1 % off in the median, 3.5 % in the mean, up to 10 % in nine of ten: 40 simulations'
    >>> in_words(ExpectedError(0.021, 0.0345, 0.1, Spread(0.01, 0.02, 0.05), 40, "simulations"))
    'p95 2.1 % off in the median, 3.5 % in the mean, up to 10 % in nine of ten: 40 simulations'
    """
    if math.isnan(error.median):
        return "not known"
    median, mean, p90 = (format_fraction(float(f"{share:.2g}")) for share in (error.median, error.mean, error.p90))
    basis = f"{error.cases} {error.source}" if error.cases else error.source
    other = "" if of is None or of == error.quantile else f", not {of if isinstance(of, str) else quantile_name(of)},"
    measured = f"{quantile_name(error.quantile)}{other}"
    return f"{measured} {median} off in the median, {mean} in the mean, up to {p90} in nine of ten: {basis}"
