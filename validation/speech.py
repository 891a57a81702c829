"""Compare the chain of speech with the simulator in random scenarios: `python validation/speech.py`.

The script takes some ten minutes. It writes `results/speech-chain.csv` with one line per scenario that the chain
supports, and the errors that predictions quote (`tcpdelay/models/data`). It prints the errors of all packets, and of
the first packets of talk spurts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from scoring.chain_errors import errors, measures
from tcpdelay.models.accuracy import speech_table_file
from tcpdelay.models.predict import predict
from tcpdelay.models.simulator.simulation import simulate
from tcpdelay.models.speech_model import SpeechDelays
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.sources.speech import Speech
from tcpdelay.scenario.stack import Stack

RESULTS = FilePath(__file__).parent / "results"
TABLE = "speech-chain.csv"
RANDOM = 150
SEED = 59
SEEDS = (1, 2)
PACKETS = 300_000
NUDGE = 7e-6
"""Time that is added to a round-trip time that is a multiple of the interval [s], as in the error map."""
RTT = (0.010, 0.400)
LOSS = (0.0005, 0.05)
SIZE = (40, 724)
INTERVAL = (0.010, 0.100)
LENGTH = (0.2, 5.0)
"""Ranges of the random scenarios, uniform in the logarithm; `LENGTH` is that of mean talk spurts and silences [s]."""
INTERVALS = (0.010, 0.020, 0.030, 0.040, 0.060)
"""Packet intervals of usual codecs [s]: half of the scenarios have one of them."""
STEPS = 20
"""Number of scenarios between two lines of progress."""
PARTS = {"": "all packets", "first_": "first packets of talk spurts"}


def scenarios(number: int) -> Iterator[tuple[Speech, Path, str]]:
    """Yield random scenarios that the chain supports: the speech, the path and the congestion control."""
    random = np.random.default_rng(SEED)
    while number:
        rtt, loss, size, interval, talk, silence = (
            float(np.exp(random.uniform(*np.log(ends)))) for ends in (RTT, LOSS, SIZE, INTERVAL, LENGTH, LENGTH)
        )
        usual = float(random.choice(INTERVALS))
        interval = usual if random.random() < 0.5 else interval
        speech = Speech(round(size), round(interval, 4), round(talk, 2), round(silence, 2))
        path = Path(rtt=round(rtt, 3) + NUDGE, loss=float(f"{loss:.2g}"))
        cubic = random.random() < 0.5
        if predict(Scenario(speech, path, Stack.linux("cubic" if cubic else "reno")), method="chain").answered:
            number -= 1
            yield speech, path, "cubic" if cubic else "reno"


def predicted(speech: Speech, path: Path, control: str) -> dict[str, float]:
    """Return the figures of the chain, of all packets and of first packets."""
    chain = predict(Scenario(speech, path, Stack.linux(control)), method="chain").require()
    assert isinstance(chain, SpeechDelays)
    return measures(chain, "chain") | measures(chain.by_kind[speech.kinds[1]], "first_chain")


def row(speech: Speech, path: Path, control: str) -> dict[str, float | str]:
    """Return the figures of the chain and of one simulation per seed."""
    figures = predicted(speech, path, control)
    for seed in SEEDS:
        simulated = simulate(speech, path, Stack.linux(control), packets=PACKETS, seed=seed)
        figures |= measures(simulated, f"seed{seed}")
        figures |= measures(simulated.by_kind[speech.kinds[1]], f"first_seed{seed}")
    source = {name: getattr(speech, name) for name in ("packet_size", "interval", "talk", "silence")}
    return {**source, "rtt": path.rtt, "loss": path.loss, "congestion_control": control, **figures}


def predicted_again(table: pd.DataFrame) -> pd.DataFrame:
    """Return a comparison with new figures of the chain."""
    again = [
        predicted(Speech(one.packet_size, one.interval, one.talk, one.silence), Path(one.rtt, one.loss), control)
        for one, control in zip(table.itertuples(), table["congestion_control"], strict=True)
    ]
    return table.assign(**pd.DataFrame(again, index=table.index))


def compared(number: int) -> pd.DataFrame:
    """Return one row per scenario."""
    rows = []
    for place, scenario in enumerate(scenarios(number)):
        if place % STEPS == 0:
            print(f"{place} scenarios ...", file=sys.stderr, flush=True)
        rows.append(row(*scenario))
    return pd.DataFrame(rows)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return median, mean, 90 % quantile and largest size of the errors, in percent."""
    found = {}
    for prefix, part in PARTS.items():
        for measure in ("mean", "p95", "p99"):
            simulated = np.mean([table[f"{prefix}seed{seed}_{measure}"] for seed in SEEDS], axis=0)
            off = 100 * (table[f"{prefix}chain_{measure}"] / simulated - 1).abs()
            found[part, measure] = [off.median(), off.mean(), off.quantile(0.9), off.max()]
    return pd.DataFrame(found, index=["median", "mean", "p90", "largest"]).T


def main() -> None:
    """Write the comparison, and the errors that predictions quote; print their summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--random", type=int, default=RANDOM, help="number of random scenarios (%(default)s)")
    parser.add_argument("--again", action="store_true", help="predict again, and keep the simulations")
    arguments = parser.parse_args()
    file = RESULTS / TABLE
    table = predicted_again(pd.read_csv(file)) if arguments.again else compared(arguments.random)
    table.to_csv(file, index=False)
    speech_table_file().write_text(errors(table, SEEDS).to_csv())
    print(summary(table).round(2).to_string())


if __name__ == "__main__":
    main()
