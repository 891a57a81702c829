"""The chain of a source against the simulator, in random scenarios that the chain supports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pandas as pd

from scoring.chain_errors import MEASURES, errors, measures
from tcpdelay.accuracy.errors import table_file
from tcpdelay.accuracy.validity import compared_flow
from tcpdelay.models.predict import predict
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Source
from tcpdelay.scenario.stack import CongestionControl, Stack
from tcpdelay.sim.simulation import simulate

RESULTS = FilePath(__file__).parents[1] / "results"
SEEDS = (1, 2)
PACKETS = 300_000
NUDGE = 7e-6
"""Time that is added to a round-trip time that is a multiple of the interval [s], as in the error map."""
STEPS = 20
"""Number of scenarios between two lines of progress."""


def uniform_logarithm(random: np.random.Generator, ends: tuple[float, float]) -> float:
    """Return a random number between two ends, uniform in the logarithm."""
    return float(np.exp(random.uniform(*np.log(ends))))


@dataclass(frozen=True)
class ChainComparison:
    """A comparison of the chain of a source with the simulator."""

    source: Callable[..., Source]
    fields: tuple[str, ...]  # Names of its parameters that differ between the scenarios
    draw: Callable[[np.random.Generator], tuple[Source, Path]]
    # By the prefix of columns, the number of the kind of messages or None for all, and their name.
    parts: Mapping[str, tuple[int | None, str]]
    seed: int
    results: str  # File in `results/` with one line per scenario
    table: str  # File with the errors that predictions quote

    def scenarios(self, number: int) -> Iterator[tuple[Source, Path, CongestionControl]]:
        """Yield random scenarios that the chain supports: the source, the path and the congestion control."""
        random = np.random.default_rng(self.seed)
        while number:
            source, path = self.draw(random)
            control: CongestionControl = "cubic" if random.random() < 0.5 else "reno"
            if predict(Scenario(source, path, Stack.linux(control)), method="chain").answered:
                number -= 1
                yield source, path, control

    def _figures(self, delays: Any, source: Source, name: str) -> dict[str, float]:
        figures: dict[str, float] = {}
        for prefix, (kind, _) in self.parts.items():
            found = delays if kind is None else delays.by_kind.get(source.kinds[kind])
            figures |= measures(found, f"{prefix}{name}")
        return figures

    def predicted(self, source: Source, path: Path, control: CongestionControl) -> dict[str, float]:
        """Return the figures of the chain, of all messages and of each part."""
        chain = predict(Scenario(source, path, Stack.linux(control)), method="chain").require()
        return self._figures(chain, source, "chain")

    def row(self, source: Source, path: Path, control: CongestionControl) -> dict[str, Any]:
        """Return the figures of the chain and of one simulation per seed."""
        figures = self.predicted(source, path, control)
        for seed in SEEDS:
            simulated = simulate(source, path, Stack.linux(control), packets=PACKETS, seed=seed)
            figures |= self._figures(simulated, source, f"seed{seed}")
        flow = compared_flow(source)
        size = {"packet_size": flow.packet_size, "interval": flow.interval}
        parameters = size | {name: getattr(source, name) for name in self.fields}
        return {**parameters, "rtt": path.rtt, "loss": path.loss, "congestion_control": control, **figures}

    def predicted_again(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a comparison with new figures of the chain."""
        again = [
            self.predicted(
                self.source(**{name: getattr(one, name) for name in self.fields}), Path(one.rtt, one.loss), control
            )
            for one, control in zip(table.itertuples(), table["congestion_control"], strict=True)
        ]
        return table.assign(**pd.DataFrame(again, index=table.index))

    def compared(self, number: int) -> pd.DataFrame:
        """Return one row per scenario."""
        rows = []
        for place, scenario in enumerate(self.scenarios(number)):
            if place % STEPS == 0:
                print(f"{place} scenarios ...", file=sys.stderr, flush=True)
            rows.append(self.row(*scenario))
        return pd.DataFrame(rows)

    def summary(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return median, mean, 90 % quantile and largest size of the errors, in percent."""
        found = {}
        for prefix, (_, part) in self.parts.items():
            for measure in MEASURES:
                simulated = np.mean([table[f"{prefix}seed{seed}_{measure}"] for seed in SEEDS], axis=0)
                off = 100 * (table[f"{prefix}chain_{measure}"] / simulated - 1).abs()
                found[part, measure] = [off.median(), off.mean(), off.quantile(0.9), off.max()]
        return pd.DataFrame(found, index=["median", "mean", "p90", "largest"]).T

    def run(self, words: str | None, random: int) -> None:
        """Write the comparison, and the errors that predictions quote; print their summary."""
        parser = argparse.ArgumentParser(description=(words or "").partition("\n")[0])
        parser.add_argument("--random", type=int, default=random, help="number of random scenarios (%(default)s)")
        parser.add_argument("--again", action="store_true", help="predict again, and keep the simulations")
        arguments = parser.parse_args()
        file = RESULTS / self.results
        table = self.predicted_again(pd.read_csv(file)) if arguments.again else self.compared(arguments.random)
        table.to_csv(file, index=False)
        table_file(self.table).write_text(errors(table, SEEDS).to_csv())
        print(self.summary(table).round(2).to_string())
