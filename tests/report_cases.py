"""Guidelines whose reports and charts are tested."""

from functools import cache

from tcpdelay import guideline
from tcpdelay.capture.estimate import PathEstimate
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.target import Target

VOIP = Flow(174, 0.020)
NOTHING_LOST = PathEstimate(source="ping", rtt=0.1, sent=20, lost=0, rtt_interval=(0.098, 0.102))
CASES = {
    "works": lambda: guideline(VOIP, Path(rtt=0.100, loss=0.02)),
    "fails": lambda: guideline(VOIP, Path(rtt=0.250, loss=0.03), target=Target(0.3, 0.99)),
    "never": lambda: guideline(Flow(968, 0.020), Path(rtt=0.250, loss=0.2)),
    "estimated": lambda: guideline(VOIP, NOTHING_LOST.path(), estimate=NOTHING_LOST),
    "lossless": lambda: guideline(VOIP, Path(rtt=0.100, loss=0)),
}


@cache
def guidelines():
    return {name: make() for name, make in CASES.items()}
