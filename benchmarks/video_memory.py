"""Peak memory of the 50 Mbit/s video chain in a process of its own: `python -m benchmarks.video_memory published`."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from benchmarks.chains import SCENARIOS, Scenario


def peak_mib() -> float:
    """Return the peak resident memory of this process [MiB].

    `ru_maxrss` is no substitute: after a fork it begins with the size of the parent.
    """
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, "/proc/self/status has no VmHWM"
    return int(found.group(1)) / 1024


def peaks(bound: str) -> dict[str, float]:
    """Return the peak before and after the video's chain is solved; a voice call's chain loads the kernels first."""

    def chosen(scenario: Scenario) -> Scenario:
        return scenario.growing() if bound == "growing" else scenario

    chosen(SCENARIOS["voip"]).model().delay_distribution()
    before = peak_mib()
    chosen(SCENARIOS["50 Mbit/s video"]).model().delay_distribution()
    return {"peak_mib_before": before, "peak_mib": peak_mib()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bound", choices=("published", "growing"), help="of the backlog")
    print(json.dumps(peaks(parser.parse_args().bound)))
