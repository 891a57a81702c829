"""What is asked: the flow, the path it takes and the TCP stack that carries it."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Literal, TypeGuard, get_args

LossPattern = Literal["random", "correlated"]
Bottleneck = Literal["packets", "bytes"]
Variant = Literal["newreno", "sack", "reno"]
BacklogBound = Literal["published", "grow"]
CongestionControl = Literal["cubic", "reno"]

MAX_PACKET_SIZE = 10_000_000
MAX_INTERVAL = 60.0
MIN_INTERVAL = 1e-7
MAX_RTT = 60.0
MIN_RTT = 1e-6
MAX_TIMEOUT = 120.0
MIN_MSS = 88
MAX_MSS = 65495
MAX_BURST = 100.0
MAX_JITTER = 1.0


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a real number, which neither a text nor True is.

    Examples
    --------
    >>> is_number(0.05), is_number("50ms"), is_number(True)
    (True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def shown(value: object) -> str:
    """Return a value as a message shows it, whatever was given.

    Examples
    --------
    >>> shown(0.05), shown("50ms")
    ('0.05', "'50ms'")
    """
    return f"{value:g}" if is_number(value) else repr(value)


def _number(name: str, value: object, unit: str) -> float:
    """Return `value` as a finite float, or say which argument is no number and in which unit it is wanted."""
    if not is_number(value):
        raise ValueError(f"{name} must be a number in {unit}, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number} {unit}")
    return number


def _in_range(name: str, value: object, low: float, high: float, unit: str, slip: str = "") -> float:
    number = _number(name, value, unit)
    if not low <= number <= high:
        hint = f"; {slip}" if slip and number > high else ""
        raise ValueError(f"{name} must lie between {low:g} and {high:g} {unit}, got {number:g}{hint}")
    return number


def _whole(name: str, value: object, low: int, high: int, unit: str) -> int:
    number = _in_range(name, value, low, high, unit)
    if number != int(number):
        raise ValueError(f"{name} must be a whole number of {unit}, got {number:g}")
    return int(number)


def _loss(name: str, value: object, what: str) -> float:
    loss = _number(name, value, f"fraction of {what}")
    if not 0 <= loss < 1:
        hint = f"; for {loss:g} % write {loss / 100:g}" if 1 <= loss < 100 else ""
        raise ValueError(f"{name} must be a fraction from 0 to below 1, got {loss:g}{hint}")
    return loss


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def require_flag(name: str, value: object) -> None:
    """Say which argument is neither True nor False, if it is not."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


@dataclass(frozen=True, slots=True)
class Flow:
    """A constant-bit-rate source: one packet of fixed size per interval.

    Parameters
    ----------
    packet_size : int
        Application bytes per packet [bytes], 1 to 10 000 000.
    interval : float
        Time between two packets [s], 1e-7 to 60.

    Raises
    ------
    ValueError
        If a value is no number or lies outside its range.

    Examples
    --------
    >>> Flow(packet_size=174, interval=0.020).bitrate
    69600.0
    """

    packet_size: int
    interval: float

    def __post_init__(self) -> None:
        size = _whole("packet_size", self.packet_size, 1, MAX_PACKET_SIZE, "bytes")
        slip = "the interval is given in seconds: 20 ms is 0.020"
        interval = _in_range("interval", self.interval, MIN_INTERVAL, MAX_INTERVAL, "s", slip)
        object.__setattr__(self, "packet_size", size)
        object.__setattr__(self, "interval", interval)

    @classmethod
    def from_bitrate(cls, bitrate: float, packet_size: int = 1448) -> Flow:
        """Return the flow that fills `bitrate` [bit/s, above 0] with packets of `packet_size` [bytes].

        Examples
        --------
        >>> Flow.from_bitrate(64_000, packet_size=160).interval
        0.02
        """
        size = _whole("packet_size", packet_size, 1, MAX_PACKET_SIZE, "bytes")
        rate = _number("bitrate", bitrate, "bit/s")
        if rate <= 0:
            raise ValueError(f"bitrate must be above 0 bit/s, got {rate:g}")
        interval = 8 * size / rate
        if not MIN_INTERVAL <= interval <= MAX_INTERVAL:
            raise ValueError(
                f"bitrate must lie between {8 * size / MAX_INTERVAL:g} and {8 * size / MIN_INTERVAL:g} bit/s "
                f"for packets of {size} bytes, got {rate:g}"
            )
        return cls(size, interval)

    @property
    def packet_rate(self) -> float:
        """Packets per second [1/s]."""
        return 1.0 / self.interval

    @property
    def bitrate(self) -> float:
        """Application bits per second [bit/s]."""
        return 8 * self.packet_size / self.interval


@dataclass(frozen=True, slots=True)
class Path:
    """The network between the two ends: round-trip time and loss.

    Bursts, lost acknowledgements and jitter are known to `simulate` alone; the chain refuses them.

    Parameters
    ----------
    rtt : float
        Round-trip time [s], 1e-6 to 60.
    loss : float
        Probability that a data segment is lost, a fraction from 0 to below 1.
    loss_pattern : {"random", "correlated"}
        Independent losses, or drop-tail losses, where the rest of a round is lost with its first loss.
    bottleneck : {"packets", "bytes"}
        Whether the bottleneck's queue is kept in packets or in bytes (small packets are then dropped less often).
    one_way_delay : float, optional
        Delay from sender to receiver without TCP [s], 0 to `rtt`; half the round-trip time by default.
    loss_burst : float
        Mean number of segments lost in a row, 1 to 100; above 1 the losses follow a Gilbert model.
    ack_loss : float
        Probability that an acknowledgement is lost, a fraction from 0 to below 1.
    jitter : float
        Largest additional delay of a data segment [s], 0 to 1: uniform from 0 on, and thus a cause of reordering.

    Raises
    ------
    ValueError
        If a value is no number, lies outside its range or is not one of the allowed words.

    Examples
    --------
    >>> Path(rtt=0.100, loss=0.02).forward_delay
    0.05
    """

    rtt: float
    loss: float
    loss_pattern: LossPattern = "random"
    bottleneck: Bottleneck = "packets"
    one_way_delay: float | None = None
    loss_burst: float = 1.0
    ack_loss: float = 0.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        slip = "the round-trip time is given in seconds: 100 ms is 0.100"
        rtt = _in_range("rtt", self.rtt, MIN_RTT, MAX_RTT, "s", slip)
        loss = _loss("loss", self.loss, "segments")
        object.__setattr__(self, "ack_loss", _loss("ack_loss", self.ack_loss, "acknowledgements"))
        burst = _in_range("loss_burst", self.loss_burst, 1.0, MAX_BURST, "segments")
        if burst > 1 and loss > burst / (1 + burst):
            raise ValueError(
                f"loss must be at most {burst / (1 + burst):g} with a loss_burst of {burst:g}, got {loss:g}"
            )
        object.__setattr__(self, "loss_burst", burst)
        slip_of_jitter = "the jitter is given in seconds: 5 ms is 0.005"
        object.__setattr__(self, "jitter", _in_range("jitter", self.jitter, 0.0, MAX_JITTER, "s", slip_of_jitter))
        _one_of("loss_pattern", self.loss_pattern, get_args(LossPattern))
        _one_of("bottleneck", self.bottleneck, get_args(Bottleneck))
        object.__setattr__(self, "rtt", rtt)
        object.__setattr__(self, "loss", loss)
        if self.one_way_delay is not None:
            delay = _in_range("one_way_delay", self.one_way_delay, 0.0, rtt, "s (the round-trip time)")
            object.__setattr__(self, "one_way_delay", delay)

    @property
    def forward_delay(self) -> float:
        """One-way delay from sender to receiver [s]: the given one, or half the round-trip time."""
        return self.rtt / 2 if self.one_way_delay is None else self.one_way_delay


@dataclass(frozen=True, slots=True)
class Stack:
    """A TCP implementation; made by one of the profiles, such as `Stack.newreno_2008`."""

    @staticmethod
    def newreno_2008(
        variant: Variant = "newreno",
        limited_transmit: bool = False,
        window_validation: bool = False,
        initial_timeout: float | None = None,
        mss: int = 1448,
        backlog_bound: BacklogBound = "published",
    ) -> NewReno2008:
        """Return the stack of the published chain; the parameters are those of `NewReno2008`.

        Examples
        --------
        >>> Stack.newreno_2008(limited_transmit=True).mss
        1448
        """
        return NewReno2008(variant, limited_transmit, window_validation, initial_timeout, mss, backlog_bound)

    @staticmethod
    def linux(
        congestion_control: CongestionControl = "cubic",
        delayed_ack: bool = False,
        window_validation: bool = True,
        hz: int = 250,
        rto_min: float = 0.2,
        mss: int = 1448,
    ) -> Linux:
        """Return the stack of a current Linux kernel; the parameters are those of `Linux`.

        Examples
        --------
        >>> Stack.linux(congestion_control="reno").hz
        250
        """
        return Linux(congestion_control, delayed_ack, window_validation, hz, rto_min, mss)


@dataclass(frozen=True, slots=True)
class Linux(Stack):
    """The TCP of a Linux kernel since 4.18, with SACK, timestamps, RACK, proportional rate reduction and F-RTO.

    Parameters
    ----------
    congestion_control : {"cubic", "reno"}
        How the window grows, and to which share a loss reduces it: 0.7 or a half.
    delayed_ack : bool
        Whether the receiver acknowledges by the kernel's rules for delayed ACKs; without, each segment at once.
    window_validation : bool
        Whether the window decays while the application does not fill it (sysctl net.ipv4.tcp_slow_start_after_idle).
    hz : int
        Timer interrupts per second (CONFIG_HZ), 100 to 1000: timers are rounded up to them.
    rto_min : float
        What the retransmission timeout adds to the smoothed round-trip time at least [s], 0.001 to 120.
    mss : int
        Largest segment payload [bytes], 88 to 65495.

    Raises
    ------
    ValueError
        If a value is no number, lies outside its range or is not one of the allowed words.

    References
    ----------
    RFC 8985 (RACK and tail loss probe), RFC 6937 (proportional rate reduction), RFC 9438 (CUBIC), RFC 5681, RFC 6298,
    RFC 5682 (F-RTO), RFC 2861 (window validation).
    """

    congestion_control: CongestionControl = "cubic"
    delayed_ack: bool = False
    window_validation: bool = True
    hz: int = 250
    rto_min: float = 0.2
    mss: int = 1448

    def __post_init__(self) -> None:
        _one_of("congestion_control", self.congestion_control, get_args(CongestionControl))
        require_flag("delayed_ack", self.delayed_ack)
        require_flag("window_validation", self.window_validation)
        object.__setattr__(self, "hz", _whole("hz", self.hz, 100, 1000, "interrupts per second"))
        rto_min = _in_range("rto_min", self.rto_min, 0.001, MAX_TIMEOUT, "s", "the timeout is given in seconds")
        object.__setattr__(self, "rto_min", rto_min)
        object.__setattr__(self, "mss", _whole("mss", self.mss, MIN_MSS, MAX_MSS, "bytes"))


@dataclass(frozen=True, slots=True)
class NewReno2008(Stack):
    """The TCP of the published Markov chain (Brosh et al. 2010).

    Parameters
    ----------
    variant : {"newreno", "sack", "reno"}
        How several losses of one window are repaired.
    limited_transmit : bool
        RFC 3042: the first two duplicate ACKs each release a new segment.
    window_validation : bool
        RFC 2861: the window returns to what the application uses once the backlog is gone.
    initial_timeout : float, optional
        First retransmission timeout [s], above 0 to 120; 4 round-trip times by default, as published.
    mss : int
        Largest segment payload [bytes], 88 to 65495.
    backlog_bound : {"published", "grow"}
        "published" cuts the backlog at 16 packets per packet of load, as printed; the result of a load that TCP
        cannot carry then depends on that cut. "grow" widens the bound until the mass cut off is below 1e-6, and
        answers with infinite delays where the load cannot be sustained.

    Raises
    ------
    ValueError
        If a value is no number, lies outside its range or is not one of the allowed words.

    References
    ----------
    Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic",
    IEEE/ACM Transactions on Networking, 2010, doi 10.1109/TNET.2010.2050780.
    """

    variant: Variant = "newreno"
    limited_transmit: bool = False
    window_validation: bool = False
    initial_timeout: float | None = None
    mss: int = 1448
    backlog_bound: BacklogBound = "published"

    def __post_init__(self) -> None:
        _one_of("variant", self.variant, get_args(Variant))
        _one_of("backlog_bound", self.backlog_bound, get_args(BacklogBound))
        require_flag("limited_transmit", self.limited_transmit)
        require_flag("window_validation", self.window_validation)
        if self.initial_timeout is not None:
            slip = "the timeout is given in seconds"
            timeout = _in_range("initial_timeout", self.initial_timeout, MIN_RTT, MAX_TIMEOUT, "s", slip)
            object.__setattr__(self, "initial_timeout", timeout)
        object.__setattr__(self, "mss", _whole("mss", self.mss, MIN_MSS, MAX_MSS, "bytes"))

    def first_timeout(self, rtt: float) -> float:
        """Return the first retransmission timeout [s] on a path of round-trip time `rtt` [s]."""
        return 4 * rtt if self.initial_timeout is None else self.initial_timeout
