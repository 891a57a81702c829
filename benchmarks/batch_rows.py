"""Rows per second of `predict_many` and `tcpdelay batch`, and differences between their answers and the chain.

`python benchmarks/batch_rows.py --app voip --rows 1e6 --json benchmarks/batch-voip.json`

The lattice is filled first, as by `tcpdelay prepare`. Rows are uniform in the logarithms of round-trip time and loss
over the range in which the chain has been checked. They are timed in memory and from file to file. For 10 000
other rows, and 10 000 rows of a busy range with large late fractions, the answers are compared with the chain.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tcpdelay.accuracy.validity import LINUX_RANGE
from tcpdelay.scenario.scenario import application
from tcpdelay.study.execution import processors
from tcpdelay.study.grid import Question, question
from tcpdelay.study.tables.columns import find_sources
from tcpdelay.study.tables.files import file_format
from tcpdelay.study.tables.lattice import (
    COLUMNS,
    EXACT_ROWS,
    TOLERANCE,
    Answers,
    Lattice,
    joined,
    lattice_path,
    load_lattice,
    prepare_surface,
)
from tcpdelay.study.tables.predict_many import Job, demand_for, predict_many, run_job
from tcpdelay.study.tables.rows import WorkingShares

COMPARED = 10_000
REPEATS = 5
BUSY = {"rtt": (0.060, 0.250), "loss": (0.005, 0.05)}
"""Round-trip times [s] and losses where many packets are late."""
ALLOWED = {"p50": (0.01, 1.0), "p95": (0.01, 1.0), "p99": (0.01, 1.0), "mean": (0.02, 0.1)}
"""Differences allowed: the larger of a fraction of the delay and a number of packet intervals."""


def drawn(rows: int, seed: int, ends: dict[str, tuple[float, float]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: np.exp(rng.uniform(*np.log(between), rows)) for name, between in ends.items()}


def timed(work: Callable[[], object], rows: int) -> dict[str, float]:
    """Return the medians of rows per second, by the clock and by processor time."""
    walls, cpus = [], []
    for _ in range(REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    wall, cpu = float(np.median(walls)), float(np.median(cpus))
    return {"wall_s": wall, "cpu_s": cpu, "rows_per_wall_s": rows / wall, "rows_per_cpu_s": rows / cpu}


def exact(asked: Question, rtt: np.ndarray, loss: np.ndarray) -> Answers:
    """Return the answers for exactly these paths."""
    answers = Lattice(asked).answer(rtt[:0], loss[:0])
    for first in range(0, rtt.size, EXACT_ROWS):
        part = slice(first, first + EXACT_ROWS)
        answers = joined(answers, Lattice(asked).answer(rtt[part], loss[part]))
    return answers


def compared(lattice: Lattice, ends: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """Return how many answers differ from the chain by more than `ALLOWED`."""
    rows = drawn(COMPARED, 999, ends)
    answers, truth = lattice.answer(**rows), exact(lattice.asked, **rows)
    interval = lattice.asked.flow.interval
    result: dict[str, Any] = {"rows": COMPARED, "tolerance": TOLERANCE}
    for name in COLUMNS:
        found, expected = answers[name], truth[name]
        known = np.isfinite(expected)
        error = np.abs(found[known] - expected[known])
        if name.startswith("late"):
            allowed = np.maximum(0.05 * expected[known], 0.0005)
        else:
            relative, intervals = ALLOWED[name]
            allowed = np.maximum(relative * expected[known], intervals * interval)
        result[name] = {
            "beyond": int((error > allowed).sum()) + int((np.isfinite(found) != known).sum()),
            "median_error": float(np.median(error)),
            "error_99": float(np.quantile(error, 0.99)),
            "largest_error": float(error.max()),
        }
    result["works"] = {"wrong": int((answers.works != truth.works).sum()), "share": float(truth.works.mean())}
    return result


def file_to_file(app: str, rows: dict[str, np.ndarray], suffix: str) -> Callable[[], object]:
    folder = tempfile.TemporaryDirectory()
    source, target = (Path(folder.name) / f"{name}{suffix}" for name in ("in", "out"))
    table = pa.table(rows)
    pq.write_table(table, source) if suffix == ".parquet" else pa.csv.write_csv(table, source)
    job = Job(source, file_format(source), target, file_format(target))

    def work(kept: object = folder) -> object:
        return run_job(job, demand_for(app, None, None, None), find_sources(rows), WorkingShares())

    return work


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--app", default="voip")
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--left", type=float, default=1e-4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, checked = int(options.rows), {"rtt": LINUX_RANGE.rtt, "loss": LINUX_RANGE.loss}
    asked = question(application(options.app).name, None, None, None)
    result: dict[str, Any] = {
        "app": options.app, "rows": rows, "machine": platform.processor() or platform.machine(),
        "processors": processors(), "paths_at_first": load_lattice(asked).size, "load_at_first": os.getloadavg()[0],
    }  # fmt: skip
    wall, cpu = time.perf_counter(), time.process_time()
    prepared = prepare_surface(options.app, **checked, left=options.left)
    result["prepared"] = {
        "left": prepared.left, "paths": prepared.chains,
        "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu,
    }  # fmt: skip
    print(json.dumps(result["prepared"]), flush=True)
    result["file_mb"] = lattice_path(asked).stat().st_size / 1e6
    lattice, table = load_lattice(asked), drawn(rows, 777, checked)
    lattice.answer(**table)
    result["in_memory"] = timed(lambda: lattice.answer(**table), rows)
    result["by_predict_many"] = timed(lambda: predict_many(pa.table(table), flow=options.app), rows)
    for suffix in (".parquet", ".csv"):
        work = file_to_file(options.app, table, suffix)
        work()
        result[f"file_to_file{suffix}"] = timed(work, rows)
    result["compared"] = compared(lattice, checked)
    result["compared_where_busy"] = compared(lattice, BUSY)
    result["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
