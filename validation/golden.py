"""Write the figures that a change of the code must keep, or compare two files of them.

    python validation/golden.py write before.json
    python validation/golden.py compare before.json after.json --tolerance 1e-12

`write` only uses the public interface, so that it also runs on an older checkout. The figures are 14 statistics of 500
random scenarios and of 100 with BBR, the JSON report of each application on two paths, one region, and one table of
paths.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections import Counter
from pathlib import Path as FilePath
from typing import Any

import numpy as np

import tcpdelay as td

SCENARIOS, BBR_SCENARIOS = 500, 100
SEED = 15
TOLERANCE = 1e-9
APPLICATIONS = ("voip", "opus", "voice-agent", "live-video", "remote-control", "game")
PATHS = ((0.100, 0.02), (0.030, 0.003))


def draw(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a number with four digits, uniform in the logarithm."""
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.4g}")


def random_scenario(rng: np.random.Generator) -> tuple[td.Flow, td.Path, td.Stack]:
    """Draw a scenario within the validated range, uniform in the logarithms."""
    flow = td.Flow(round(draw(rng, 60, 4000)), draw(rng, 0.005, 0.1))
    burst = float(rng.choice([1.0, 1.0, 1.0, 1.0, 1.5]))
    kind = int(rng.integers(4))
    if kind < 3:
        path = td.Path(rtt=draw(rng, 0.005, 0.4), loss=draw(rng, 1e-4, 0.1), loss_burst=burst)
        control = "cubic" if kind < 2 else "reno"
        return (
            flow,
            path,
            td.Stack.linux(control, hz=int(rng.choice([250, 1000])), rto_min=float(rng.choice([0.2, 0.03]))),
        )
    pattern, queue = str(rng.choice(["random", "correlated"])), str(rng.choice(["packets", "bytes"]))
    path = td.Path(rtt=draw(rng, 0.005, 0.4), loss=draw(rng, 1e-3, 0.1), loss_pattern=pattern, bottleneck=queue)
    variant = str(rng.choice(["newreno", "sack", "reno"]))
    bound = str(rng.choice(["published", "grow"]))
    flags = rng.random(2) < 0.5
    return flow, path, td.Stack.newreno_2008(variant, bool(flags[0]), bool(flags[1]), backlog_bound=bound)


def bbr_scenario(rng: np.random.Generator) -> tuple[td.Flow, td.Path, td.Stack]:
    """Draw a scenario with BBR within the validated range."""
    flow, path = (
        td.Flow(round(draw(rng, 60, 4000)), draw(rng, 0.005, 0.1)),
        td.Path(draw(rng, 0.01, 0.4), draw(rng, 1e-3, 0.05)),
    )
    return flow, path, td.Stack.linux("bbr", hz=int(rng.choice([250, 1000])))


def statistics(flow: td.Flow, path: td.Path, stack: td.Stack) -> dict[str, Any]:
    """Return the statistics of one scenario, or that it is refused."""
    try:
        model = td.DelayModel(flow, path, stack)
        delays = model.delay_distribution()
    except ValueError:
        return {"refused": True}
    parts = model.delay_parts
    return {
        "mean": delays.mean,
        "std": delays.std if delays.sustainable else math.inf,
        "p50": delays.quantile(0.5),
        "p90": delays.quantile(0.9),
        "p95": delays.quantile(0.95),
        "p99": delays.quantile(0.99),
        "p99.9": delays.quantile(0.999),
        "late_200ms": delays.late_fraction(0.2),
        "sustainable": delays.sustainable,
        "truncated_mass": delays.truncated_mass,
        "backlogged_time": model.backlogged_time_fraction,
        "backlog_part": parts.backlog,
        "head_of_line_part": parts.head_of_line,
        "timeouts_part": parts.timeouts,
    }


def report(name: str, rtt: float, loss: float) -> dict[str, Any]:
    """Return the JSON report of an application on a path."""
    try:
        from tcpdelay.scenario.applications import application
    except ImportError:
        from tcpdelay.applications import application
    preset = application(name)
    flow = getattr(preset, "at_constant_rate", preset).flow
    found = td.guideline(flow, td.Path(rtt, loss), target=preset.target, application=preset)
    return dict(json.loads(found.to_json()))


def figures() -> dict[str, Any]:
    """Return all figures."""
    rng = np.random.default_rng(SEED)
    found: dict[str, Any] = {}
    for number in range(SCENARIOS):
        scenario = random_scenario(rng)
        print(f"\rscenario {number}", end="", file=sys.stderr, flush=True)
        found[f"scenario {number}: {scenario!r}"] = statistics(*scenario)
    of_bbr = np.random.default_rng([SEED, BBR_SCENARIOS])
    for number in range(BBR_SCENARIOS):
        scenario = bbr_scenario(of_bbr)
        print(f"\rBBR scenario {number}", end="", file=sys.stderr, flush=True)
        found[f"BBR scenario {number}: {scenario!r}"] = statistics(*scenario)
    for name in APPLICATIONS:
        for rtt, loss in PATHS:
            print(f"\rreport {name}          ", end="", file=sys.stderr, flush=True)
            found[f"report {name} {rtt} {loss}"] = report(name, rtt, loss)
    region = td.working_region("voip", rtt=np.geomspace(0.01, 0.4, 12), loss=np.geomspace(0.001, 0.1, 12))
    found["region"] = {str(name): np.asarray(values).ravel().tolist() for name, values in region.data_vars.items()}
    edge = td.working_boundary("voip", rtt=np.geomspace(0.01, 0.4, 12))
    found["boundary"] = {"works": edge.works_up_to.tolist(), "fails": edge.fails_from.tolist()}
    table = {"rtt": rng.uniform(0.01, 0.3, 300), "loss": rng.uniform(0.0005, 0.06, 300)}
    answers = td.predict_many(table, flow="voip", cached=False)
    found["table"] = {
        name: np.asarray(answers[name]).tolist() for name in ("p50", "p95", "p99", "mean", "late", "works")
    }
    print(file=sys.stderr)
    return found


def leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Return every number, word and flag of nested data by its place."""
    if not isinstance(value, (dict, list)):
        return {place: value}
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    return {at: leaf for key, entry in entries for at, leaf in leaves(entry, f"{place} / {key}").items()}


def same(before: Any, after: Any, tolerance: float) -> bool:
    """Return whether two leaves are the same; numbers may differ by a relative `tolerance`."""
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (before, after))
    if not numbers:
        return bool(before == after)
    return math.isclose(before, after, rel_tol=tolerance, abs_tol=1e-12) or (math.isnan(before) and math.isnan(after))


def compare(before: dict[str, Any], after: dict[str, Any], tolerance: float) -> int:
    """Print the differences by kind; return the number of figures that differ."""
    old, new = leaves(before), leaves(after)
    common = old.keys() & new.keys()
    moved = [place for place in old if place in common and not same(old[place], new[place], tolerance)]
    gone, new_ones = len(old) - len(common), len(new) - len(common)
    print(f"{len(common)} figures in both, {len(moved)} differ; {gone} gone, {new_ones} new")
    kinds = Counter(place.split(" / ")[1].split(" ")[0] + " … " + place.split(" / ")[-1] for place in moved)
    for kind, count in kinds.most_common(60):
        print(f"{count:6d}  {kind}")
    for place in moved[:40]:
        print(f"{place[:160]}: {old[place]!r:.80} -> {new[place]!r:.80}")
    for place in sorted(old.keys() ^ new.keys())[:40]:
        print("only in", "before:" if place in old else "after:", place[:160])
    return len(moved)


def main() -> None:
    """Run the command line."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write").add_argument("file", type=FilePath)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=FilePath)
    comparing.add_argument("after", type=FilePath)
    allowed = "relative difference up to which numbers are the same (%(default)s)"
    comparing.add_argument("--tolerance", type=float, default=TOLERANCE, help=allowed)
    asked = parser.parse_args()
    if asked.command == "write":
        asked.file.write_text(json.dumps(figures(), indent=0), encoding="utf-8")
        return
    before, after = (json.loads(file.read_text(encoding="utf-8")) for file in (asked.before, asked.after))
    compare(before, after, asked.tolerance)


if __name__ == "__main__":
    main()
