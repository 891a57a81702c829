"""Make the traces of links in `examples/link-traces`: `python validation/link_traces.py`.

They are made, not measured; the public traces of mahimahi (Verizon, AT&T, T-Mobile) have the same format.

- `lte.up`: the model of Winstein, Sivaraman and Balakrishnan (NSDI 2013, section 3.1): opportunities come as a Poisson
  process, whose rate does a Brownian motion of 200 packets/s per root second, and an outage ends at a rate of 1 per
  second. The motion is reflected at 0 and at 800 packets/s, and begins at 300.
- `starlink.csv`: every 15 s another rate and delay, and an outage of 100 ms. Rates are lognormal around 100 Mbit/s, and
  delays beyond the smallest are uniform up to 20 ms.
- `wifi-busy.csv`: a share of the channel drawn every 100 ms, uniform from 2 to 40 Mbit/s; one share in twenty is 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parents[1] / "examples" / "link-traces"
SEED = 1
LTE_SECONDS, LTE_STEP = 30.0, 0.020
LTE_START, LTE_VOLATILITY, LTE_MOST, LTE_OUTAGE_END = 300.0, 200.0, 800.0, 1.0
STARLINK_SLOTS, STARLINK_SLOT, STARLINK_OUTAGE = 20, 15.0, 0.1
WIFI_SECONDS, WIFI_STEP = 60.0, 0.1


def lte(random: np.random.Generator, seconds: float = LTE_SECONDS) -> NDArray[np.int64]:
    """Return the times of opportunities [ms]."""
    rate, times = LTE_START, []
    for step in range(round(seconds / LTE_STEP)):
        if rate > 0 or random.random() < LTE_OUTAGE_END * LTE_STEP:
            rate += LTE_VOLATILITY * LTE_STEP**0.5 * random.standard_normal()
            rate = LTE_MOST - abs(LTE_MOST - rate) if rate > 0 else 0.0
        count = random.poisson(rate * LTE_STEP)
        times.append(step * LTE_STEP + LTE_STEP * random.random(count))
    milliseconds = np.sort((1e3 * np.concatenate(times)).astype(np.int64))
    return np.append(milliseconds, round(1e3 * seconds))


def starlink(random: np.random.Generator) -> str:
    """Return the rows of a trace of rates and delays."""
    rows = ["time,rate,delay"]
    for slot in range(STARLINK_SLOTS):
        begin, rate, delay = (
            slot * STARLINK_SLOT,
            100e6 * np.exp(0.4 * random.standard_normal()),
            0.02 * random.random(),
        )
        rows += [f"{begin:g},0,{delay:.4f}", f"{begin + STARLINK_OUTAGE:g},{rate:.0f},{delay:.4f}"]
    # The last row of a trace holds as long as the one before it: each has half of what is left.
    middle = STARLINK_SLOTS * STARLINK_SLOT - (STARLINK_SLOT - STARLINK_OUTAGE) / 2
    rows.append(f"{middle:g},{rate:.0f},{delay:.4f}")
    return "\n".join(rows) + "\n"


def wifi(random: np.random.Generator) -> str:
    """Return the rows of a trace of rates."""
    rows = ["time,rate"]
    for step in range(round(WIFI_SECONDS / WIFI_STEP)):
        rate = 0.0 if random.random() < 0.05 else random.uniform(2e6, 40e6)
        rows.append(f"{step * WIFI_STEP:g},{rate:.0f}")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Write the traces."""
    FOLDER.mkdir(exist_ok=True)
    milliseconds = lte(np.random.default_rng(SEED))
    (FOLDER / "lte.up").write_text("".join(f"{time}\n" for time in milliseconds), encoding="ascii")
    (FOLDER / "starlink.csv").write_text(starlink(np.random.default_rng(SEED)), encoding="ascii")
    (FOLDER / "wifi-busy.csv").write_text(wifi(np.random.default_rng(SEED)), encoding="ascii")


if __name__ == "__main__":
    main()
