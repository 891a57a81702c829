"""How much faster than a video's bitrate must TCP be? `python validation/bitrate_reserve.py`.

The rule that TCP needs twice the bitrate is that of Wang, Kurose, Shenoy and Towsley, "Multimedia Streaming via TCP:
An Analytic Performance Study", ACM Multimedia 2004, for packets of a constant rate. For each path, it simulates the
throughput of a sender that always has data, and then live videos whose mean bitrate is this throughput divided by a
ratio. It writes the start-up delay with which 1e-4 of the frames are late to `results/bitrate-reserve.csv` and `.md`.
It takes some minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path as FilePath

import pandas as pd

from tcpdelay.models.predict import capacity
from tcpdelay.report.document import Column, ResultTable
from tcpdelay.scenario.media import Video
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.sim.simulation import simulate

RESULTS = FilePath(__file__).parent / "results"
PATHS = (Path(0.040, 0.01), Path(0.100, 0.02), Path(0.200, 0.01), Path(0.300, 0.04))
RATIOS = (1.2, 1.6, 2.0)
KEY_RATIOS = (1.0, 4.0, 8.0, 16.0)
MSS = 1448
LATE = 1e-4
FRAMES = 600_000
OVERLOAD = 1.4
"""Rate of the sender that always has data, relative to the capacity by the chain."""


def throughput(path: Path) -> float:
    """Return the bitrate of full segments that TCP carries [bit/s]."""
    largest = capacity(Scenario(Flow(MSS, 0.010, write_jitter=0.0), path))
    busy = Flow(MSS, 1 / (OVERLOAD * largest), write_jitter=0.0)
    return simulate(busy, path, packets=FRAMES, seed=1).carried.value * busy.bitrate


def sources(bitrate: float) -> Iterator[tuple[str, Source]]:
    """Yield the name of each kind of source, and the source."""
    yield "packets", Flow.from_bitrate(bitrate, MSS)
    for key_ratio in KEY_RATIOS:
        yield f"{key_ratio:g}", Video(bitrate, key_ratio=key_ratio, write_jitter=0.0)


def row(path: Path, carried: float, ratio: float, kind: str, source: Source) -> dict[str, float | str | bool | None]:
    """Return the start-up delay of one source."""
    found = simulate(source, path, packets=FRAMES, seed=2, quantile=1 - LATE)
    delay = found.quantile_interval
    return {
        "rtt": path.rtt,
        "loss": path.loss,
        "throughput": carried,
        "ratio": ratio,
        "key_ratio": kind,
        "bitrate": source.mean_bitrate,
        "startup_delay": delay.value,
        "startup_delay_low": delay.low,
        "startup_delay_high": delay.high,
        "settled": found.settled,
    }


def table(rows: pd.DataFrame) -> ResultTable:
    """Return the table for people: a row for each path and kind of source, a column for each ratio."""
    lines = []
    for (rtt, loss, carried, kind), group in rows.groupby(["rtt", "loss", "throughput", "key_ratio"], sort=False):
        line = {"path": f"{1e3 * rtt:g} ms, {100 * loss:g} %", "throughput": carried, "key_ratio": kind}
        for found in group.to_dict("records"):
            figures = {
                "": found["startup_delay"],
                "_low": found["startup_delay_low"],
                "_high": found["startup_delay_high"],
            }
            line |= {f"r{found['ratio']:g}{end}": value for end, value in figures.items() if found["settled"]}
        lines.append(line)
    columns = [
        Column("path", "path"),
        Column("throughput", "TCP carries", "rate"),
        Column("key_ratio", "key ratio"),
        *(Column(f"r{ratio:g}", f"at {ratio:g}", "time", f"r{ratio:g}_low", f"r{ratio:g}_high") for ratio in RATIOS),
    ]
    return ResultTable(
        "bitrate-reserve",
        "Start-up delay with which 1e-4 of the frames are late",
        columns,
        lines,
        "Start-up delay with which 1e-4 of the frames are late, with its 95 % interval, by the ratio of the throughput "
        'to the mean bitrate. A key ratio of 1 has no key frames; "packets" are full segments at a constant rate. A '
        "dash: the delays still depend on the length of the simulation.",
    )


def main() -> None:
    """Simulate, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results")
    output = parser.parse_args().output
    rows = []
    for path in PATHS:
        carried = throughput(path)
        for ratio in RATIOS:
            for kind, source in sources(carried / ratio):
                rows.append(row(path, carried, ratio, kind, source))
                print({name: rows[-1][name] for name in ("rtt", "loss", "ratio", "key_ratio", "startup_delay")})
    frame = pd.DataFrame(rows)
    frame.to_csv(output / "bitrate-reserve.csv", index=False, float_format="%.6g")
    (output / "bitrate-reserve.md").write_text(table(frame).to_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
