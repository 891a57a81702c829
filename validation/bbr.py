"""Compare simulations of BBR with captures: `python validation/bbr.py CAPTURES`.

It writes `results/bbr.csv` and `.md`, and prints the simulator's error (`tcpdelay.accuracy.errors.BBR_ERROR`).
`validation/specs/bbr.toml` makes the captures again.
"""

from __future__ import annotations

import pandas as pd

from scoring.capture_comparison import error_in_captures, write_comparison
from tcpdelay.accuracy.errors import BBR_ERROR
from tcpdelay.delays import ExpectedError, Spread
from tcpdelay.scenario.stack import Stack, kernel_of_release
from tcpdelay.sim.simulation import simulate
from tcpdelay.study.validation.captures import MeasuredDelay
from tcpdelay.study.validation.predictions import SIMULATOR, error_beyond, simulated_flow

MICROSECOND_DIGITS = 6


def compared(measured: MeasuredDelay) -> dict[str, object]:
    """Return a capture's delays beside a prediction, and beside a simulation with the testbed's clock and queue."""
    stack = Stack.linux("bbr", hz=measured.hz, kernel=kernel_of_release(measured.kernel))
    predicted = simulate(measured.flow, measured.path, stack, seed=1)
    question = simulated_flow(measured)
    assert question is not None
    repeated = SIMULATOR.answer(question)
    figures = {
        "p95": measured.p95.value,
        "p95_low": measured.p95.low,
        "p95_high": measured.p95.high,
        "predicted_p95": predicted.quantile(0.95),
        "repeated_p95": repeated.quantile(0.95),
        "mean": measured.mean.value,
        "mean_low": measured.mean.low,
        "mean_high": measured.mean.high,
        "predicted_mean": predicted.mean,
        "repeated_mean": repeated.mean,
    }
    rounded = {name: round(float(value), MICROSECOND_DIGITS) for name, value in figures.items()}
    errors = {
        "p95_error": predicted.quantile(0.95) / measured.p95.value - 1,
        "p95_beyond": abs(error_beyond(predicted.quantile(0.95), measured.p95)),
        "repeated_p95_beyond": abs(error_beyond(repeated.quantile(0.95), measured.p95)),
        "mean_error": predicted.mean / measured.mean.value - 1,
        "repeated_mean_error": repeated.mean / measured.mean.value - 1,
    }
    return {"capture": measured.name} | rounded | {name: round(float(error), 4) for name, error in errors.items()}


def error_of(table: pd.DataFrame) -> ExpectedError:
    """Return the error of the predictions, as in `tcpdelay.accuracy.errors.BBR_ERROR`."""
    found = (error_in_captures(table[f"predicted_{name}"], table, name) for name in ("p95", "mean"))
    figures = [Spread(*(round(value, 4) for value in vars(spread).values())) for spread in found]
    return ExpectedError(**vars(figures[0]), mean_delay=figures[1], cases=len(table), source=BBR_ERROR.source)


def summary(table: pd.DataFrame) -> str:
    """Return the mean errors in words."""
    sizes = table[["p95_error", "p95_beyond", "repeated_p95_beyond", "mean_error", "repeated_mean_error"]].abs().mean()
    return (
        f"{len(table)} captures of 20 minutes.\n"
        f"Predictions: p95 differs by {sizes['p95_error']:.1%} in the mean, and by {sizes['p95_beyond']:.1%} beyond "
        f"the capture's interval; the mean delay differs by {sizes['mean_error']:.1%}.\n"
        f"With the testbed's clock and queue: p95 differs by {sizes['repeated_p95_beyond']:.1%} beyond the interval, "
        f"the mean delay by {sizes['repeated_mean_error']:.1%}.\n"
    )


def main() -> None:
    """Write the comparison of all captures of a folder, and print the error that predictions quote."""
    print(error_of(write_comparison("bbr", __doc__ or "", compared, summary)))


if __name__ == "__main__":
    main()
