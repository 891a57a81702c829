"""Wrong types in calls of the public functions: one line that names the argument."""

import inspect
import math
from dataclasses import fields

import numpy as np
import pytest
import xarray as xr

import tcpdelay as td
from tcpdelay.declare import InvalidValueError

FLOW, PATH = td.Flow(174, 0.020), td.Path(0.100, 0.02)
LEG = (PATH, td.Stack.linux())
VALID = {
    "flow": FLOW,
    "source": td.Utterances(960, 0.020, speed=3),
    "path": PATH,
    "stack": None,
    "bitrate": 64_000.0,
    "late_fraction": 0.01,
    "request_size": 100,
    "response_size": 100,
    "sources": [td.ConstantRate(path=td.SharedPath(0.01), stack=td.Stack.linux(), flow=FLOW)],
    "bottleneck": td.Bottleneck(1e6, capacity=50),
    "duration": 10.0,
    "first": LEG,
    "second": LEG,
    "table": {"rtt": [0.1], "loss": [0.02]},
    "specification": {
        "flow": {"packet_size": 174, "interval": "20ms"},
        "grid": {"loss": ["1%", "2%"], "rtt": ["0.1s"]},
    },
    "before": object.__new__(td.Guideline),
    "after": object.__new__(td.Guideline),
    "boundaries": {},
    "region": xr.Dataset(coords={"rtt": [0.05, 0.1], "loss": [0.01, 0.02]}),
}
WRONG = {
    "an object": object(),
    "a complex number": 1j,
    "a list": ["chain"],
    "a text": "1000",
    "None": None,
    "bytes": b"1",
    "no number": math.nan,
    "a number below 0": -1,
}
FUNCTIONS = {name: value for name in td.__all__ if inspect.isfunction(value := getattr(td, name))}
ARGUMENTS = [
    pytest.param(name, parameter, id=f"{name}-{parameter.name}")
    for name, function in FUNCTIONS.items()
    for parameter in inspect.signature(function).parameters.values()
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD
]


def is_wrong(value, annotation):
    """Whether a value is of a wrong type by the words of an annotation."""
    if value is None:
        return "None" not in annotation and annotation != "Any"
    if isinstance(value, str):
        return "str" not in annotation
    if isinstance(value, bytes):
        return "Sequence[" not in annotation
    # A number of a list is named by its own name.
    return not isinstance(value, (int, float)) or "Sequence[" not in annotation


@pytest.mark.parametrize(("name", "parameter"), ARGUMENTS)
def test_a_wrong_type_is_refused_in_one_line_that_names_the_argument(name, parameter):
    function = FUNCTIONS[name]
    given = {
        each.name: VALID[each.name]
        for each in inspect.signature(function).parameters.values()
        if (each.default is inspect.Parameter.empty or each.name in ("flow", "path")) and each.name in VALID
    }
    for kind, value in WRONG.items():
        if not is_wrong(value, parameter.annotation):
            continue
        with pytest.raises(InvalidValueError) as refused:
            function(**(given | {parameter.name: value}))
        said = str(refused.value)
        assert said.startswith(parameter.name), (kind, said)
        assert "\n" not in said


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: td.simulate(FLOW, PATH, packets="1000"),
            "packets must be a whole number from 1000 to 1e9, got '1000'",
        ),
        (lambda: td.simulate(FLOW, PATH, seed=1.5), "seed must be a whole number, 0 or more, got 1.5"),
        (
            lambda: td.best_split(FLOW, PATH, pieces=(1, "2")),
            "pieces must hold whole numbers above 0, one at least, got (1, '2')",
        ),
        (lambda: td.loss_rtt_frontier(FLOW, 0.1, rtts=[0.05]), "path must be a Path, got 0.1"),
        (lambda: td.guideline(FLOW, PATH, target="0.2"), "target must be a Target, got '0.2'"),
        (lambda: td.predict_delay(FLOW, PATH, method="chains"), "method must be one of 'chain', 'simulation', 'auto'"),
    ],
)
def test_the_error_says_what_is_allowed(call, said):
    with pytest.raises(InvalidValueError) as refused:
        call()
    assert str(refused.value).startswith(said)


RECORDS = {
    td.Bottleneck: {"rate": 1e6, "capacity": 50},
    td.SharedPath: {"access_delay": 0.01},
    td.CallTarget: {},
    **{source: {"path": td.SharedPath(0.01), "stack": LEG[1]} for source in (td.Bulk, td.Transfers, td.Web)},
    td.ConstantRate: {"path": td.SharedPath(0.01), "stack": LEG[1], "flow": FLOW},
}


@pytest.mark.parametrize(
    ("record", "field"),
    [(record, field) for record in RECORDS for field in fields(record)],
    ids=lambda value: getattr(value, "name", None) or value.__name__,
)
def test_a_field_of_a_wrong_type_is_refused_in_one_line_that_names_it(record, field):
    annotation = str(inspect.signature(record).parameters[field.name].annotation).replace("Optional", "None")
    for kind, value in (WRONG | {"a broken number": 1.5}).items():
        number = isinstance(value, (int, float))
        allowed = (value is None and "None" in annotation) or (isinstance(value, str) and "str" in annotation)
        if allowed or (number and "float" in annotation):
            continue
        with pytest.raises(InvalidValueError) as refused:
            record(**(RECORDS[record] | {field.name: value}))
        said = str(refused.value)
        assert said.startswith(f"{field.name} must "), (kind, said)
        assert "\n" not in said


DELAYS = td.DelayDistribution(np.array([0.05, 0.15]), np.array([0.7, 0.3]) * (1 - 1e-10), one_way_delay=0.05)


@pytest.mark.parametrize(
    "method", ["late_fraction", "cdf", "quantile", "known_quantile", "meets", "expected_error_of", "late_error"]
)
@pytest.mark.parametrize(
    "value", ["200ms", None, object(), [[0.1], [0.1, 0.2]]], ids=("text", "None", "object", "ragged")
)
def test_figures_of_a_distribution_refuse_what_is_no_number(method, value):
    with pytest.raises(InvalidValueError, match=r"^\w+ must be a (number|Target)"):
        getattr(DELAYS, method)(value)


@pytest.mark.parametrize("value", ["200ms", None, td.Target(0.2)], ids=("text", "None", "target"))
def test_errors_of_simulations_refuse_what_is_no_number(value):
    flow = td.ConstantRate(path=td.SharedPath(0.01), stack=td.Stack.linux(), flow=FLOW)
    shared = td.simulate_network([flow], td.Bottleneck(1e6, capacity=50), duration=5.0).flows[0]
    for found in (td.simulate(FLOW, PATH, packets=1000), shared):
        with pytest.raises(InvalidValueError, match=r"^\w+ must be a number of seconds"):
            found.late_error(value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: FLOW.messages(1.0, seed=math.inf), "seed must be a whole number, 0 or more, got inf"),
        (lambda: FLOW.scale_to(10**400), "bitrate must be a number of bit/s above 0, got 1e"),
        (lambda: td.Path.preset(["lte"]), r"path must be one of same-city, .*, got \['lte'\]"),
        (lambda: DELAYS.known_quantile([]), r"probability must be a number, 0 to 1, got \[\]"),
    ],
)
def test_huge_numbers_and_lists_are_refused_like_other_values(call, said):
    with pytest.raises(InvalidValueError, match=f"^{said}"):
        call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (td.Target(0.2).allows, "late_fraction must be a number"),
        (td.LognormalSizes(1000, 0.5).at, "probability must be a number"),
        (td.ParetoSizes(100, 1.5).at, "probability must be a number"),
        (td.EmpiricalSizes([100, 200]).at, "probability must be a number"),
        (lambda value: td.DelayModel(FLOW, PATH, LEG[1]).lateness(value, 0.95), "limit must be a number of seconds"),
    ],
)
def test_methods_refuse_what_is_no_number(call, said):
    for value in ("0.5", None, object(), 1j):
        with pytest.raises(InvalidValueError, match=f"^{said}"):
            call(value)


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_sizes_have_quantiles_of_probabilities_below_1(value):
    for sizes in (td.LognormalSizes(1000, 0.5), td.ParetoSizes(100, 1.5), td.EmpiricalSizes([100, 200])):
        with pytest.raises(InvalidValueError, match=r"^probability must be at least 0 and below 1"):
            sizes.at([0.5, value])


def test_every_packet_is_later_than_a_negative_delay():
    assert DELAYS.late_fraction(-1) == 1.0
    assert DELAYS.cdf(-1) == 0.0


def test_a_whole_number_may_be_written_as_a_float():
    assert td.simulate(FLOW, PATH, packets=2e3, seed=1.0).seed == 1
