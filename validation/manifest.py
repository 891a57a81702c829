"""Write `validation/manifest.csv`, which lists every set of captures: `python validation/manifest.py`.

A set holds the captures of its specifications, no more and no fewer: a capture is added by a line of a specification
and `tcpdelay testbed run SPECIFICATION -o SET`, which makes what the set lacks.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pandas as pd

from tcpdelay.capture.flow_capture import CaptureFile, read_capture
from tcpdelay.testbed.backends import PREBUILT_HZ, UmlBackend
from tcpdelay.testbed.campaign import Target, read_specification, targets_of

HERE = Path(__file__).parent
MANIFEST = HERE / "manifest.csv"
SPECIFICATIONS = {
    "captures": "specs",
    "jitter-captures": "specs",
    "kernel-captures": "specs/kernels",
    "queue-captures": "specs/queues",
    "quic-captures": "specs/quic",
}
"""Folders of the sets, and of the specifications of the same names."""
FURTHER = {"kernel-captures/sparse": ["sparse-hz1000"]}
"""Further specifications of a set."""


def planned(file: Path) -> dict[str, str]:
    """Return the captures that a set must have by its specifications: the specification of each name."""
    folder = SPECIFICATIONS[file.parent.name]
    names = [file.stem, *FURTHER.get(f"{file.parent.name}/{file.stem}", [])]
    return {
        target.name: f"{folder}/{name}.toml"
        for name in names
        for target in map(by_debian, targets_of(read_specification(HERE / folder / f"{name}.toml")))
    }


def by_debian(target: Target) -> Target:
    """Return a capture as planned where Debian's kernel runs: the set in real time is from such a machine."""
    return replace(target, backend=DebianKernel()) if type(target.backend) is UmlBackend else target


class DebianKernel(UmlBackend):
    """Debian's kernel in real time, also where this processor needs a kernel of its own."""

    @property
    def label(self) -> str:
        """The tick of Debian's kernel."""
        return f"hz{PREBUILT_HZ}"


def described(file: Path) -> dict[str, object]:
    """Return the line of a set."""
    opened, plan = CaptureFile(file), planned(file)
    if sorted(opened.names) != sorted(plan):
        differing = sorted(set(opened.names) ^ set(plan))
        raise ValueError(
            f"{file}: {len(differing)} captures are not those of its specifications, such as {differing[0]}"
        )
    kernels = {run.kernel for run in read_capture(file, opened.names[0]).runs}
    return {
        "set": str(file.relative_to(HERE)),
        "specifications": " ".join(sorted(set(plan.values()))),
        "captures": len(opened.names),
        "kernel": " ".join(sorted(kernels)),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }


def sets() -> list[Path]:
    """Return all sets."""
    return [file for folder in SPECIFICATIONS for file in sorted((HERE / folder).glob("*.parquet"))]


if __name__ == "__main__":
    pd.DataFrame(map(described, sets())).to_csv(MANIFEST, index=False)
