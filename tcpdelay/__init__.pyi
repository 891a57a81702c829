from .accuracy.validity import ValidityWarning
from .chain.delay_model import DelayModel
from .delays import DelayDistribution
from .models.predict import predict_delay
from .quality.player import Player
from .quality.voice import CallTarget
from .report.guideline import Guideline, GuidelineComparison, SourceGuideline, compare_guidelines, guideline
from .report.region_charts import plot_boundaries, plot_region
from .scenario.media import Speech, Utterances, Video
from .scenario.messages import EmpiricalSizes, LognormalSizes, Messages, ParetoSizes, Trace
from .scenario.path import Path
from .scenario.scenario import Target
from .scenario.source import Flow, Source
from .scenario.stack import Stack
from .sim.exchanges import Exchanges, simulate_exchanges
from .sim.network.bottleneck import Bottleneck, SharedPath
from .sim.network.relay import RelayedMessages, RelayResult, simulate_relay
from .sim.network.result import FlowResult, MessageResult, NetworkResult, QueueStatistics
from .sim.network.simulation import simulate_network
from .sim.network.sources import Bulk, ConstantRate, Transfers, Web
from .sim.network.stacks import Classic, Udp
from .sim.records import Rules
from .sim.simulation import Simulation, simulate
from .study.best import best_connections, best_interval, best_split
from .study.boundary import WorkingBoundary, loss_rtt_frontier, working_boundary
from .study.largest import largest_bitrate, largest_loss, largest_packet_rate, largest_rtt
from .study.margins import sensitivities
from .study.playback import audio_not_stoppable, playout_without_gaps, startup_for_stalls, video_stalls
from .study.playout import playout_for_call, playout_for_late_fraction
from .study.region import working_region
from .study.sweep.run import sweep
from .study.tables.lattice import prepare_surface
from .study.tables.predict_many import predict_many
from .study.transports import Comparison, compare

__all__ = [
    "Bottleneck",
    "Bulk",
    "CallTarget",
    "Classic",
    "Comparison",
    "ConstantRate",
    "DelayDistribution",
    "DelayModel",
    "EmpiricalSizes",
    "Exchanges",
    "Flow",
    "FlowResult",
    "Guideline",
    "GuidelineComparison",
    "LognormalSizes",
    "MessageResult",
    "Messages",
    "NetworkResult",
    "ParetoSizes",
    "Path",
    "Player",
    "QueueStatistics",
    "RelayResult",
    "RelayedMessages",
    "Rules",
    "SharedPath",
    "Simulation",
    "Source",
    "SourceGuideline",
    "Speech",
    "Stack",
    "Target",
    "Trace",
    "Transfers",
    "Udp",
    "Utterances",
    "ValidityWarning",
    "Video",
    "Web",
    "WorkingBoundary",
    "audio_not_stoppable",
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
    "playout_without_gaps",
    "plot_boundaries",
    "plot_region",
    "predict_delay",
    "predict_many",
    "prepare_surface",
    "sensitivities",
    "simulate",
    "simulate_exchanges",
    "simulate_network",
    "simulate_relay",
    "startup_for_stalls",
    "sweep",
    "video_stalls",
    "working_boundary",
    "working_region",
]

__version__: str
