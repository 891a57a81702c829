"""The result of a sweep as a data set: every quantity over the axes, with its unit and what it means."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.sweep.evaluation import program
from tcpdelay.sweep.parameters import PARAMETERS, UNITS
from tcpdelay.sweep.results import Results
from tcpdelay.sweep.specification import SweepSpecification

if TYPE_CHECKING:
    import xarray as xr

MEANINGS = {
    "mean_delay": ("s", "mean delay"),
    "standard_deviation": ("s", "standard deviation of the delay"),
    "delay": ("s", "delay within which a share of the packets arrives"),
    "late_fraction": ("1", "share of the packets that come later"),
    "sustainable": (None, "whether TCP can carry the flow"),
    "utilization": ("1", "rate of the flow, on each connection, over the fair TCP rate"),
    "validated": (None, "whether the chain has been checked for scenarios like this one"),
    "mean_half_width": ("s", "half width of the 95 % interval of the mean delay of one connection"),
    "seed": (None, "seed of the simulation, a whole number"),
}
"""Units and meanings of what is worked out."""
FURTHER_DIMENSIONS = {"delay": "quantile", "late_fraction": "late_after"}
NOT_REFUSED = ""


def labelled(specification: SweepSpecification, results: Results) -> xr.Dataset:
    """Return the results of all runs by the values of the axes.

    Parameters
    ----------
    specification : SweepSpecification
        The sweep.
    results : Results
        Complete.

    Returns
    -------
    xarray.Dataset
        As `tcpdelay.sweep` describes it.

    Examples
    --------
    >>> from tcpdelay.sweep.specification import Axis, Evaluation
    >>> spec = SweepSpecification((("loss", 0.02),), (Axis("rtt", (0.1, 0.2)),), Evaluation())
    >>> labelled(spec, Results(spec)).delay.dims
    ('rtt', 'quantile')
    """
    import xarray as xr

    asked = specification.evaluation
    dimensions, shape = tuple(axis.name for axis in specification.axes), specification.shape
    if asked.replications > 1:
        dimensions, shape = (*dimensions, "replication"), (*shape, asked.replications)
    variables: dict[str, Any] = {}
    for name in results.values.dtype.names or ():
        column = results.values[name]
        further = (FURTHER_DIMENSIONS[name],) if name in FURTHER_DIMENSIONS else ()
        filled = np.ascontiguousarray(column).reshape(*shape, *column.shape[1:])
        variables[name] = ((*dimensions, *further), filled, _attributes(*MEANINGS[name]))
    numbers, texts = _numbered(results)
    meaning = {"long_name": "number of the reason in refusals why nothing was worked out, or 0"}
    variables["refused"] = (dimensions, numbers.reshape(shape), meaning)
    variables["refusals"] = ("refusal", texts, {"long_name": "reasons why nothing was worked out"})
    coordinates: dict[str, Any] = {
        axis.name: (axis.name, np.array(axis.values), _of_parameter(axis.name)) for axis in specification.axes
    }
    coordinates |= {name: ((), value, _of_parameter(name)) for name, value in specification.fixed}
    coordinates["quantile"] = ("quantile", np.array(asked.quantiles), _attributes("1", "share of the packets"))
    late = _attributes("s", "delay beyond which a packet counts as late")
    coordinates["late_after"] = ("late_after", np.array(asked.late_after), late)
    title = "Delay, from write to in-order read, of constant-bit-rate flows over TCP"
    attributes = {
        "title": title,
        "method": asked.method,
        "source": program(),
        "specification": json.dumps(json.loads(specification.canonical)),
        "specification_sha256": specification.digest,
    }
    return xr.Dataset(variables, coordinates, attributes)


def _numbered(results: Results) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Return the number of each run's reason, and the reasons in the order of the runs that they occur first in."""
    numbers = np.zeros(results.done.size, np.int32)
    known = {NOT_REFUSED: 0}
    for run in sorted(results.refusals):
        numbers[run] = known.setdefault(results.refusals[run], len(known))
    return numbers, np.array(list(known), object)


def _attributes(unit: str | None, meaning: str) -> dict[str, str]:
    return {"long_name": meaning, **({} if unit is None else {"units": unit})}


def _of_parameter(name: str) -> dict[str, str]:
    parameter = PARAMETERS[name]
    return _attributes(UNITS[parameter.kind], parameter.meaning)
