"""What errors are grouped by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tcpdelay.units import format_fraction, format_time
from tcpdelay.validation.measured import MeasuredDelay

RTT_GROUPS = (0.050, 0.160)
UTILIZATION_BANDS = (0.1, 1 / 3, 2 / 3, 0.9)

_Grouping = tuple[str, Callable[[MeasuredDelay], tuple[float, str]]]


def rtt_group(rtt: float) -> tuple[int, str]:
    """Return the place and the name of the group of round-trip times [s] that `rtt` belongs to.

    Examples
    --------
    >>> rtt_group(0.020), rtt_group(0.160)
    ((0, 'below 50 ms'), (1, '50 ms to 160 ms'))
    """
    low, high = (format_time(edge) for edge in RTT_GROUPS)
    if rtt < RTT_GROUPS[0]:
        return 0, f"below {low}"
    return (1, f"{low} to {high}") if rtt <= RTT_GROUPS[1] else (2, f"above {high}")


def _utilization_band(measured: MeasuredDelay) -> tuple[float, str]:
    below = 0.0
    for place, edge in enumerate(UTILIZATION_BANDS):
        if measured.utilization < edge:
            return place, f"{below:.2g} to {edge:.2g}"
        below = edge
    return len(UTILIZATION_BANDS), f"{below:.2g} and more"


GROUPINGS: Sequence[_Grouping] = (
    ("RTT", lambda measured: rtt_group(measured.path.rtt)),
    ("loss", lambda measured: (measured.experiment.loss, format_fraction(measured.experiment.loss))),
    ("packet size", lambda measured: (measured.flow.packet_size, f"{measured.flow.packet_size} B")),
    ("interval", lambda measured: (measured.flow.interval, format_time(measured.flow.interval))),
    ("utilization", _utilization_band),
    ("HZ", lambda measured: (measured.hz, str(measured.hz))),
    ("congestion control", lambda measured: (0, measured.experiment.congestion_control)),
)
"""What errors are grouped by: each capture's place and name within the groups."""
