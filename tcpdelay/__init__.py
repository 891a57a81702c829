"""tcpdelay: how late the packets of a real-time flow are over TCP."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tcpdelay.applications import Target
    from tcpdelay.batch.predict_many import predict_many
    from tcpdelay.batch.preparation import prepare_surface
    from tcpdelay.chain.model import DelayModel
    from tcpdelay.compare import Comparison, compare
    from tcpdelay.distribution import DelayDistribution
    from tcpdelay.guideline import Guideline, guideline
    from tcpdelay.guideline_comparison import GuidelineComparison, compare_guidelines
    from tcpdelay.inverse.bitrate import largest_bitrate
    from tcpdelay.inverse.call import CallTarget
    from tcpdelay.inverse.connections import best_connections
    from tcpdelay.inverse.frontier import loss_rtt_frontier
    from tcpdelay.inverse.interval import best_interval
    from tcpdelay.inverse.loss import largest_loss
    from tcpdelay.inverse.packet_rate import largest_packet_rate
    from tcpdelay.inverse.playout import playout_for_call, playout_for_late_fraction
    from tcpdelay.inverse.rtt import largest_rtt
    from tcpdelay.inverse.sensitivity import sensitivities
    from tcpdelay.inverse.split import best_split
    from tcpdelay.predict import predict_delay
    from tcpdelay.region.boundary import WorkingBoundary, working_boundary
    from tcpdelay.region.dataset import working_region
    from tcpdelay.scenario import Flow, Path, Stack
    from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
    from tcpdelay.sim.network.result import FlowResult, NetworkResult, QueueStatistics
    from tcpdelay.sim.network.simulation import simulate_network
    from tcpdelay.sim.network.sources import Bulk, ConstantRate, Transfers, Web
    from tcpdelay.sim.network.stacks import Classic, Udp
    from tcpdelay.sim.rules import Rules
    from tcpdelay.sim.simulation import Simulation, simulate
    from tcpdelay.sweep.run import sweep
    from tcpdelay.validity import ValidityWarning

__all__ = [
    "Bottleneck",
    "Bulk",
    "CallTarget",
    "Classic",
    "Comparison",
    "ConstantRate",
    "DelayDistribution",
    "DelayModel",
    "Flow",
    "FlowResult",
    "Guideline",
    "GuidelineComparison",
    "NetworkResult",
    "Path",
    "QueueStatistics",
    "Rules",
    "SharedPath",
    "Simulation",
    "Stack",
    "Target",
    "Transfers",
    "Udp",
    "ValidityWarning",
    "Web",
    "WorkingBoundary",
    "__version__",
    "best_connections",
    "best_interval",
    "best_split",
    "compare",
    "compare_guidelines",
    "guideline",
    "largest_bitrate",
    "largest_loss",
    "largest_packet_rate",
    "largest_rtt",
    "loss_rtt_frontier",
    "playout_for_call",
    "playout_for_late_fraction",
    "predict_delay",
    "predict_many",
    "prepare_surface",
    "sensitivities",
    "simulate",
    "simulate_network",
    "sweep",
    "working_boundary",
    "working_region",
]
__version__ = "0.1.0"

# Loaded when first asked for: the solver's compiler alone takes longer to import than `tcpdelay --help` may take.
_HOME = {
    "Bottleneck": "tcpdelay.sim.network.bottleneck",
    "Bulk": "tcpdelay.sim.network.sources",
    "CallTarget": "tcpdelay.inverse.call",
    "Classic": "tcpdelay.sim.network.stacks",
    "Comparison": "tcpdelay.compare",
    "ConstantRate": "tcpdelay.sim.network.sources",
    "DelayDistribution": "tcpdelay.distribution",
    "DelayModel": "tcpdelay.chain.model",
    "Flow": "tcpdelay.scenario",
    "FlowResult": "tcpdelay.sim.network.result",
    "Guideline": "tcpdelay.guideline",
    "GuidelineComparison": "tcpdelay.guideline_comparison",
    "NetworkResult": "tcpdelay.sim.network.result",
    "Path": "tcpdelay.scenario",
    "QueueStatistics": "tcpdelay.sim.network.result",
    "Rules": "tcpdelay.sim.rules",
    "SharedPath": "tcpdelay.sim.network.bottleneck",
    "Simulation": "tcpdelay.sim.simulation",
    "Stack": "tcpdelay.scenario",
    "Target": "tcpdelay.applications",
    "Transfers": "tcpdelay.sim.network.sources",
    "Udp": "tcpdelay.sim.network.stacks",
    "ValidityWarning": "tcpdelay.validity",
    "Web": "tcpdelay.sim.network.sources",
    "WorkingBoundary": "tcpdelay.region.boundary",
    "best_connections": "tcpdelay.inverse.connections",
    "best_interval": "tcpdelay.inverse.interval",
    "best_split": "tcpdelay.inverse.split",
    "compare": "tcpdelay.compare",
    "compare_guidelines": "tcpdelay.guideline_comparison",
    "guideline": "tcpdelay.guideline",
    "largest_bitrate": "tcpdelay.inverse.bitrate",
    "largest_loss": "tcpdelay.inverse.loss",
    "largest_packet_rate": "tcpdelay.inverse.packet_rate",
    "largest_rtt": "tcpdelay.inverse.rtt",
    "loss_rtt_frontier": "tcpdelay.inverse.frontier",
    "playout_for_call": "tcpdelay.inverse.playout",
    "playout_for_late_fraction": "tcpdelay.inverse.playout",
    "predict_delay": "tcpdelay.predict",
    "predict_many": "tcpdelay.batch.predict_many",
    "prepare_surface": "tcpdelay.batch.preparation",
    "sensitivities": "tcpdelay.inverse.sensitivity",
    "simulate": "tcpdelay.sim.simulation",
    "simulate_network": "tcpdelay.sim.network.simulation",
    "sweep": "tcpdelay.sweep.run",
    "working_boundary": "tcpdelay.region.boundary",
    "working_region": "tcpdelay.region.dataset",
}


class _Package(ModuleType):
    """The package, whose public names stay what they are when a submodule of the same name is imported.

    Importing a submodule sets it as an attribute of its package; `tcpdelay.guideline` is the function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


if not TYPE_CHECKING:  # so that type checkers go on to report names that do not exist

    def __getattr__(name: str) -> object:
        """Import a public name from the module that defines it."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
