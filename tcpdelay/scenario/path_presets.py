"""Presets of paths that people have: their parameters, where each comes from, and what they leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.link import Discipline

WARNING = "real paths of this kind differ widely: measure yours with ping"
"""Said wherever a preset is used."""


@dataclass(frozen=True)
class Basis:
    """Where parameters of a preset come from."""

    fields: tuple[str, ...]  # The parameters
    statement: str  # What the source says, or that the values are assumed
    source: str = ""  # The source: authors, title and address; empty for an assumption
    # Year, and month or quarter if known, of the measurement or else of the publication; empty for an assumption.
    date: str = ""


@dataclass(frozen=True)
class PresetLink:
    """The bottleneck of a preset, for simulations of a shared link, where losses come from the queue alone."""

    rtt: float  # Round-trip time without queueing [s]
    rate: float  # Rate of the link [bit/s]
    queue: int | None  # Longest queue [packets]; None for the default of the discipline in Linux
    bulk: int  # Number of long transfers on the link
    discipline: Discipline = "drop-tail"  # Queue discipline of the link


@dataclass(frozen=True)
class PathPreset:
    """A path that people have."""

    name: str
    title: str  # The path in a few words
    values: Mapping[str, float | bool]  # Parameters of `tcpdelay.Path` [s, fractions]
    basis: tuple[Basis, ...]  # Where the parameters come from; each parameter has an entry
    not_modelled: str  # What such paths do that the model leaves out
    link: PresetLink | None = None  # The bottleneck, if queueing there is a part of the delay

    def changed(self, **changes: Any) -> dict[str, Any]:
        """Return the parameters of `tcpdelay.Path` with some of them changed.

        Without a `one_way_delay`, another `rtt` is taken to be alike in both directions.
        """
        own = {name: value for name, value in self.values.items() if name != "one_way_delay" or "rtt" not in changes}
        return own | changes


HOME_QUEUES = "validation/results/home-queues.md: datagrams beside one CUBIC upload, Linux 6.1, 10 Mbit/s, 20 ms"
COMCAST = (
    "A. Flickinger, C. Klatsky, A. Ledesma, J. Livingood, S. Ozer, Improving Latency with Active Queue Management "
    "(AQM) During COVID-19, https://arxiv.org/abs/2107.13968"
)
HUSTON = (
    "G. Huston, A transport protocol's view of Starlink, "
    "https://blog.apnic.net/2024/05/17/a-transport-protocols-view-of-starlink/"
)
HOME_LOSS = Basis(
    ("loss",), "assumed: 0.1 % on the rest of the path; the queue drops almost no packet of a sparse flow"
)

ONE_QUEUE = Basis(("in_order",), "assumed: the packets of a connection wait in one queue, which is first in, first out")

_PRESETS = (
    PathPreset(
        "same-city",
        "Fibre at home, server in the same city",
        {"rtt": 0.010, "loss": 0.0005},
        (
            Basis(
                ("rtt",),
                "9 ms from the customers of the quickest large US provider, mostly on fibre, to the nearest server",
                "Ookla, US speed tests, https://potsandpansbyccg.com/tag/ookla/",
                "2019, second quarter",
            ),
            Basis(("loss",), "assumed: 0.05 %"),
        ),
        "the home's own Wi-Fi, and queues while the line is full",
    ),
    PathPreset(
        "transatlantic",
        "Western Europe to the east of North America, wired",
        {"rtt": 0.090, "loss": 0.001},
        (
            Basis(
                ("rtt",),
                "at most 90 ms in the mean of a month between routers in London and New York",
                "Verizon, Network Latency Guarantees, https://www.verizon.com/business/terms/asiapac/sg/colocation/",
                "read in 2026",
            ),
            Basis(
                ("rtt",),
                "78 ms between servers in New York and Paris",
                "WonderProxy, Miles per Millisecond, https://wonderproxy.com/blog/miles-per-milisecond/",
                "2011, February",
            ),
            Basis(("loss",), "assumed: 0.1 %; providers guarantee that no more than 0.5 % are lost in a month"),
        ),
        "detours of routes, and losses that come together in busy hours",
    ),
    PathPreset(
        "home-fq-codel",
        "Home router with FQ-CoDel, during an upload",
        {"rtt": 0.020, "loss": 0.001, "one_way_delay": 0.010, "jitter": 0.0015, "in_order": True},
        (
            Basis(
                ("rtt", "one_way_delay", "jitter"),
                "20 ms without queueing are assumed; in the queue, 95 % of the datagrams wait for at most 1.5 ms, "
                "about as long as one full packet of the upload takes",
                HOME_QUEUES,
                "2026",
            ),
            ONE_QUEUE,
            Basis(
                ("rtt",),
                "for comparison: 15 to 30 ms under load with the AQM of cable modems (DOCSIS-PIE), which has no queue "
                "for each flow",
                COMCAST,
                "2020 to 2021",
            ),
            HOME_LOSS,
        ),
        "flows that send more than their share of the link: they wait in a queue of their own, and lose packets; "
        "`compare` and `simulate_network` simulate the queue",
        PresetLink(rtt=0.020, rate=10e6, queue=None, bulk=1, discipline="fq_codel"),
    ),
    PathPreset(
        "home-bufferbloat",
        "Home router with a long FIFO queue, during an upload",
        {"rtt": 0.190, "loss": 0.001, "one_way_delay": 0.180, "jitter": 0.060, "in_order": True},
        (
            Basis(
                ("rtt", "one_way_delay", "jitter"),
                "20 ms without queueing are assumed; in a FIFO of 250 ms, 90 % of the datagrams take 190 to 250 ms "
                "there and back",
                HOME_QUEUES,
                "2026",
            ),
            ONE_QUEUE,
            Basis(
                ("rtt",),
                "about 250 ms under load in the mean of cable modems without AQM",
                COMCAST,
                "2020 to 2021",
            ),
            HOME_LOSS,
        ),
        "the slow rise and fall of the queue: the model draws the delay of each segment by itself; `compare` and "
        "`simulate_network` simulate the queue",
        PresetLink(rtt=0.020, rate=10e6, queue=206, bulk=1),
    ),
    PathPreset(
        "wifi-busy",
        "Busy Wi-Fi, server nearby",
        {"rtt": 0.010, "loss": 0.01, "jitter": 0.040, "in_order": True, "bad_time": 0.100, "bad_loss": 0.5},
        (
            Basis(
                ("jitter",),
                "the Wi-Fi hop takes over 20 ms for half of the TCP packets, and over 100 ms for a tenth of them: the "
                "jitter has the median",
                "C. Pei et al., WiFi Can Be the Weakest Link of Round Trip Network Latency in the Wild, INFOCOM 2016",
                "2016",
            ),
            Basis(
                ("in_order",),
                "the receiver of a block acknowledgement puts the frames in order before it passes them on",
                "IEEE Std 802.11-2020, HT-immediate block ack extensions: receive reordering buffer control",
                "2021, February",
            ),
            Basis(("rtt",), "assumed: the rest of the path is that of same-city"),
            Basis(
                ("loss", "bad_time", "bad_loss"),
                "losses come in bursts with a long tail; their share and duration are assumed: half of the packets for "
                "100 ms, every 5 s in the mean",
                "L. Carvalho, J. Angeja, A. Navarro, A New Packet Loss Model of the IEEE 802.11g Wireless Network for "
                "Multimedia Communications, doi 10.1109/TCE.2005.1510488",
                "2005, August",
            ),
        ),
        "the tail beyond 40 ms; aggregation, which lets segments arrive together",
    ),
    PathPreset(
        "lte",
        "LTE, moving",
        {"rtt": 0.045, "loss": 0.002, "jitter": 0.020, "in_order": True, "bad_time": 0.050},
        (
            Basis(
                ("rtt", "jitter"),
                "a mean latency of 44 to 66 ms in the states of the USA, the middle of which is the mean here; that "
                "20 ms of it vary is assumed: a retransmission of the radio link takes 8 ms, and waiting for a grant "
                "to send some more",
                "Opensignal, State of Mobile USA, https://www.opensignal.com/2019/05/31/"
                "state-of-mobile-usa-quantifying-the-bar-for-5g-to-beat",
                "2019, first quarter",
            ),
            Basis(
                ("in_order",),
                "the receiver of the radio link delivers in sequence: it holds packets until those ahead are repeated",
                "3GPP TS 36.322, Radio Link Control (RLC) protocol specification, and TS 36.323, PDCP",
                "2009 and later",
            ),
            Basis(
                ("bad_time",),
                "handovers within a frequency interrupt for 30 to 80 ms",
                "5G/6G Academy, Mobility analysis, "
                "https://www.5g6gacademy.com/courses/drive-testing-benchmarking/lesson-12.3.5",
                "read in 2026",
            ),
            Basis(
                ("loss",), "assumed: such a handover every 25 s in the mean; the radio link repeats all other losses"
            ),
        ),
        "a rate that changes from millisecond to millisecond, and queues of seconds (simulate a link with a trace)",
    ),
    PathPreset(
        "5g",
        "5G, moving",
        {"rtt": 0.025, "loss": 0.002, "jitter": 0.010, "in_order": True, "bad_time": 0.100},
        (
            Basis(
                ("rtt", "jitter"),
                "medians of 32 to 33 ms of three US operators",
                "Ookla, https://www.rcrwireless.com/20210416/test-and-measurement/"
                "ookla-speed-tests-peg-t-mo-as-having-fastest-5g",
                "2021, first quarter",
            ),
            Basis(
                ("rtt", "jitter"),
                "below 7 ms down at best and 18 ms up at worst, to a server nearby: some 10 ms of 30 ms vary",
                "M. Kottkamp, 5G NR and LTE latency analysis in a public network, Rohde & Schwarz",
                "2022, August",
            ),
            Basis(
                ("in_order",),
                "PDCP reorders: it delivers in sequence unless out-of-order delivery is configured",
                "3GPP TS 38.323, Packet Data Convergence Protocol (PDCP) specification, 5.2.2",
                "2018 and later",
            ),
            Basis(
                ("bad_time",),
                "handovers of 5G interrupt for 50 to 150 ms",
                "5G/6G Academy, Mobility analysis, "
                "https://www.5g6gacademy.com/courses/drive-testing-benchmarking/lesson-12.3.5",
                "read in 2026",
            ),
            Basis(
                ("loss",), "assumed: such a handover every 50 s in the mean; the radio link repeats all other losses"
            ),
        ),
        "a rate that changes from millisecond to millisecond, changes between 5G and LTE, and millimetre waves that a "
        "hand blocks",
    ),
    PathPreset(
        "starlink",
        "Starlink, fixed dish",
        {"rtt": 0.030, "loss": 0.01, "jitter": 0.020, "in_order": True, "bad_time": 0.300, "bad_loss": 0.5},
        (
            Basis(
                ("rtt", "jitter"),
                "a minimum of 30 ms, and 6.7 ms between successive round-trip times in the mean: a third of the jitter",
                HUSTON,
                "2024, May",
            ),
            Basis(("in_order",), "assumed: all packets take the same satellite, and wait in one queue for their slots"),
            Basis(("loss",), "1 to 2 % lost without congestion", HUSTON, "2024, May"),
            Basis(
                ("bad_time", "bad_loss"),
                "up to half of the packets are lost around changes of the satellite, which are 15 s apart: 300 ms of "
                "them lose 1 %",
                "M. M. Kassem, A. Raman, D. Perino, N. Sastry, A Browser-side View of Starlink Connectivity, IMC 2022",
                "2022",
            ),
        ),
        "the fixed 15 s: bad states come at random times, 15 s apart in the mean; steps of 30 to 50 ms in the "
        "round-trip time at these times, rain and obstructions",
    ),
    PathPreset(
        "geo-satellite",
        "Geostationary satellite",
        {"rtt": 0.600, "loss": 0.005},
        (
            Basis(
                ("rtt",),
                "about 600 ms: at least 477 ms for the way up and down twice, and the rest of the path",
                "G. Huston, Testing LEO and GEO satellite services in Australia, "
                "https://blog.apnic.net/2022/05/02/testing-leo-and-geo-satellite-services-in-australia/",
                "2022, May",
            ),
            Basis(
                ("loss",),
                "assumed: between none and 1 %, which comparisons of QUIC implementations emulate",
                "S. Endres, J. Deutschmann, K.-S. Hielscher, R. German, Performance of QUIC Implementations Over "
                "Geostationary Satellite Links, https://arxiv.org/abs/2202.08228",
                "2022, February",
            ),
        ),
        "proxies of the operator that split TCP connections (RFC 3135), and slots that the terminal waits for",
    ),
)

PATH_PRESETS = {preset.name: preset for preset in _PRESETS}
"""The presets by name."""


def path_preset(name: object) -> PathPreset:
    """Return the preset called `name`."""
    if not isinstance(name, str) or name not in PATH_PRESETS:
        raise InvalidValueError("path", name, f"be one of {', '.join(PATH_PRESETS)}")
    return PATH_PRESETS[name]
