"""Wrong inputs and what is said about them: to each public function, each option, and each key of a specification."""

from __future__ import annotations

import inspect
import math
import re
import shlex
from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import xarray as xr
from commands import commands, ran, working_directory
from recording import ROOT, Cases, parameters, plain

import tcpdelay as td

FLOW, PATH = td.Flow(174, 0.020), td.Path(0.100, 0.02)
LEG = (PATH, td.Stack.linux())
SHARED = td.SharedPath(0.01)


class Anything:
    """An object of no use."""

    def __repr__(self) -> str:
        return "an object"


VALID: dict[str, Any] = {
    "flow": FLOW,
    "source": td.Utterances(960, 0.020, speed=3),
    "path": PATH,
    "stack": None,
    "bitrate": 64_000.0,
    "late_fraction": 0.01,
    "request_size": 100,
    "response_size": 100,
    "sources": [td.ConstantRate(path=SHARED, stack=td.Stack.linux(), flow=FLOW)],
    "bottleneck": td.Bottleneck(1e6, capacity=50),
    "duration": 10.0,
    "first": LEG,
    "second": LEG,
    "table": {"rtt": [0.1], "loss": [0.02]},
    "specification": {"flow": {"packet_size": 174, "interval": "20ms"}, "grid": {"loss": ["1%"], "rtt": ["0.1s"]}},
    "before": object.__new__(td.Guideline),
    "after": object.__new__(td.Guideline),
    "boundaries": {},
    "region": xr.Dataset(coords={"rtt": [0.05, 0.1], "loss": [0.01, 0.02]}),
}
"""Arguments of functions."""
VALID_SETTINGS: dict[str, dict[str, Any]] = {
    "Bottleneck": {"rate": 1e6, "capacity": 50},
    "Bulk": {"path": SHARED, "stack": td.Stack.linux()},
    "ConstantRate": {"path": SHARED, "stack": td.Stack.linux(), "flow": FLOW},
    "EmpiricalSizes": {"values": [100, 200]},
    "Flow": {"packet_size": 174, "interval": 0.02},
    "LognormalSizes": {"mean": 500},
    "Messages": {"rate": 10, "sizes": td.ParetoSizes(300)},
    "ParetoSizes": {"smallest": 300},
    "Path": {"rtt": 0.1, "loss": 0.02},
    "Player": {"startup": 1.0},
    "SharedPath": {"access_delay": 0.01},
    "Speech": {"packet_size": 174, "interval": 0.02},
    "Target": {"limit": 0.2},
    "Trace": {"times": [0.0, 1.0], "sizes": [100, 100]},
    "Transfers": {"path": SHARED, "stack": td.Stack.linux()},
    "Utterances": {"packet_size": 174, "interval": 0.02},
    "Video": {"bitrate": 1e6},
    "Web": {"path": SHARED, "stack": td.Stack.linux()},
    **{name: {} for name in ("CallTarget", "Classic", "Udp", "Stack.linux", "Stack.newreno_2008", "Stack.quic")},
}
"""Settings of classes."""
TOGETHER: dict[str, dict[str, list[Any]]] = {
    "Path": {
        "loss": [0.5],
        "loss_pattern": ["correlated"],
        "one_way_delay": [0.2],
        "loss_burst": [2.0],
        "bad_time": [0.1],
        "bad_loss": [0.3, 0.01],
    },
    "SharedPath": {"loss": [0.5], "loss_burst": [2.0], "bad_time": [0.1], "bad_loss": [0.3]},
    "Bottleneck": {
        "capacity": [None, 100_000],
        "unit": ["bytes"],
        "discipline": ["red", "dred", "codel", "cake", "policer"],
        "bandwidth_delay_product": [20.0],
        "burst": [5000],
        "peak_rate": [2e6, 5e5],
        "target": [0.01],
        "max_th": [3.0],
    },
    "Stack.linux": {
        "congestion_control": ["bbr"],
        "delayed_ack": [True],
        "kernel": ["6.1", "6.12"],
        "rto_max": [5.0],
        "delack_max": [0.04],
    },
    "Stack.newreno_2008": {"variant": ["reno", "sack"], "limited_transmit": [True], "backlog_bound": ["grow"]},
    "Stack.quic": {
        "implementation": ["aioquic", "quic-go", "quinn"],
        "congestion_control": ["cubic", "bbr"],
        "delivery": ["stream_per_group", "datagram"],
        "group": [5],
    },
    "ConstantRate": {
        "stack": [td.Udp(), td.Classic(), td.Stack.quic()],
        "flow": [td.Video(1e6)],
        "ecn": [True],
        "l4s": [True],
        "forging": [True],
        "pieces": [2],
        "connections": [2],
        "scheduling": ["aware"],
        "discard_after": [0.1],
        "talk": [1.0],
        "silence": [1.0],
        "keepalive_size": [10],
    },
    "Bulk": {"stack": [td.Udp(), td.Classic()], "packet_size": [500], "send_buffer": [9000], "notsent_lowat": [16_384]},
}
"""Values that are right alone, and that some others contradict."""
WRONG: dict[str, Any] = {
    "an object": Anything(),
    "1j": 1j,
    "['chain']": ["chain"],
    "'1000'": "1000",
    "None": None,
    "nan": math.nan,
    "-1": -1,
}
OUT_OF_RANGE: dict[str, Any] = {"0": 0, "1e300": 1e300, "inf": math.inf, "1.5": 1.5, "True": True, "''": ""}
WRONG_WORDS = ("abc", "-1", "nan", "")
NOWHERE = ["-o", "no/such/out.csv"]
"""A folder that does not exist: a value that is not refused does not start a long computation."""
VOIP = ["--rtt", "100ms", "--loss", "2%", "--app", "voip"]
BASES: dict[str, list[str]] = {
    **dict.fromkeys(("report", "predict", "solve"), VOIP),
    "compare": [*VOIP, *NOWHERE],
    "relay": [*VOIP, "--packets", "1000"],
    "exchange": [*VOIP[:4], "--request-size", "800B", "--response-size", "800B", "--exchanges", "1000"],
    **{name: ["--app", "voip", *NOWHERE] for name in ("region", "playout", "explore")},
    "analyze": ["no/such.pcap"],
    "batch": ["examples/users.csv", "--app", "voip", *NOWHERE],
    "prepare": ["--app", "voip", "--left", "500%"],
    "sweep": ["examples/sweep.toml", *NOWHERE],
    "watch": ["--app", "voip"],
    "proxy": ["--listen", "127.0.0.1:9000"],
    "validate": ["--captures", "no/such"],
    "run": ["--rtt", "80ms", "no-such.toml"],
    "testbed run": ["examples/first-capture.toml", "--dry-run"],
    "testbed show": ["no/such.parquet"],
}
"""Arguments with which a command does little, or ends with an error of its own."""
SPECIFICATIONS = {
    "sweep.toml": ("sweep", "FILE", "--dry-run"),
    "first-capture.toml": ("testbed", "run", "FILE", "--dry-run"),
    "shared-link.toml": ("run", "FILE"),
}
"""Files of `examples`, and commands that read them. Without a kernel in the cache, `run` ends after reading."""


def is_wrong(value: Any, annotation: str) -> bool:
    """Return whether a value is of a wrong type by the words of an annotation."""
    if value is None:
        return "None" not in annotation and annotation != "Any"
    if isinstance(value, str):
        return "str" not in annotation
    return not isinstance(value, (int, float)) or "Sequence[" not in annotation


def said(function: Callable[..., Any], given: dict[str, Any]) -> str:
    """Return the error of a call, or what it returns."""
    try:
        found = function(**given)
    except Exception as error:
        return plain(f"{type(error).__name__}: {error}")
    return f"accepted: {plain(repr(found))[:300]}"


def _of_functions() -> Cases:
    found: Cases = {}
    for name in td.__all__:
        function = getattr(td, name)
        if not inspect.isfunction(function):
            continue
        known = parameters(function)
        given = {
            each.name: VALID[each.name]
            for each in known.values()
            if (each.default is inspect.Parameter.empty or each.name in ("flow", "path")) and each.name in VALID
        }
        for parameter in known.values():
            for words, value in WRONG.items():
                if is_wrong(value, str(parameter.annotation)):
                    call = partial(said, function, given | {parameter.name: value})
                    found[f"{name}({parameter.name}={words})"] = call
    return found


def _of_classes() -> Cases:
    found: Cases = {}
    for name, given in VALID_SETTINGS.items():
        made: Any = td
        for part in name.split("."):
            made = getattr(made, part)
        for parameter in parameters(made):
            for words, value in (WRONG | OUT_OF_RANGE).items():
                found[f"{name}({parameter}={words})"] = partial(said, made, given | {parameter: value})
        settings = [(parameter, value) for parameter, values in TOGETHER.get(name, {}).items() for value in values]
        for several in (*combinations(settings, 2), *combinations(settings, 3)):
            chosen = dict(several)
            words = ", ".join(f"{parameter}={value!r}" for parameter, value in chosen.items())
            if len(chosen) == len(several):
                found[f"{name}({words})"] = partial(said, made, given | chosen)
    return found


def _command(arguments: list[str], text: str = "") -> dict[str, Any]:
    """Run a command, with a text as its FILE; return what it says, without a long output."""
    with working_directory() as folder:
        if text:
            (folder / "file.toml").write_text(text, encoding="utf-8")
        found = ran(*("file.toml" if word == "FILE" else word for word in arguments))
    if found["status"] == 0:
        return found
    return {"status": found["status"], "errors": found["errors"]}


def _without(option: str, arguments: list[str]) -> list[str]:
    """Return arguments without an option, which would replace its wrong value."""
    names = (option, "-o") if option == "--output" else (option,)
    place = next((place for place, word in enumerate(arguments) if word in names), len(arguments))
    return arguments[:place] + arguments[place + 2 :]


def _of_options() -> Cases:
    found: Cases = {}
    for command, text in commands().items():
        base = BASES.get(" ".join(command))
        if base is None:
            continue
        # A flag has no value: its line has a description after at least two spaces, or none.
        options = re.findall(r"^  (?:-\w, )?(--[\w-]+) (?=[A-Z<][^ ]*)", text, flags=re.MULTILINE)
        for option in dict.fromkeys(options):
            for words in WRONG_WORDS:
                asked = [*command, option, words, *_without(option, base)]
                found[shlex.join(asked)] = partial(_command, asked)
        for wrong in (["--nonsense"], [], ["one", "too", "many"]):
            asked = [*command, *wrong] if not wrong or wrong[0] != "--nonsense" else [*command, *base, *wrong]
            if asked != [*command] or command[0] not in ("explore", "validate"):
                found[shlex.join(asked)] = partial(_command, asked)
    return found


def _of_specifications() -> Cases:
    found: Cases = {}
    for name, command in SPECIFICATIONS.items():
        lines = (ROOT / "examples" / name).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            key, equals, _ = line.partition(" = ")
            values = ('"abc"', "-1", "[]", "{}")
            changes = [f"{key}x = 1", *(f"{key} = {value}" for value in values)] if equals else []
            if equals and "--dry-run" in command and name != "sweep.toml":  # whose dry run takes five seconds
                changes.append("")
            if line.startswith("["):
                changes = [line.replace("]", "x]", 1), ""]
            for changed in changes:
                text = "\n".join([*lines[:number], changed, *lines[number + 1 :]])
                found[f"{name}, line {number + 1}: {changed}"] = partial(_command, list(command), text)
    return found


def cases() -> Cases:
    """Return all wrong inputs."""
    return _of_functions() | _of_classes() | _of_options() | _of_specifications()
