"""The chain compared with simulated random scenarios: errors, tables of groups and of the largest errors, the map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, PowerNorm

from scoring.error_map import SINGLE_SEGMENT_SIZE, MapScenario, SimulatedScenario
from scoring.figures import INK, draw_svg
from scoring.spreads import spread_of
from tcpdelay.accuracy.errors import QUANTILES as HELD
from tcpdelay.accuracy.errors import WRONG_CALL, ErrorTable, features_of
from tcpdelay.accuracy.throughput import LARGEST_SUSTAINABLE_UTILIZATION
from tcpdelay.delays import Spread
from tcpdelay.report.charts import LABEL_SIZE, ORANGE, tidy
from tcpdelay.report.document import Cell, Column, ResultTable
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.study.validation.predictions import (
    UTILIZATION_BANDS,
    Prediction,
    error_beyond,
    relative_error,
    rtt_group,
    solve,
)
from tcpdelay.units import format_fraction, format_time, quantile_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


QUANTITIES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
STATISTICS = tuple(field.name for field in fields(Spread))
WORST = 25
LOSS_EDGES = (0.001, 0.01)
EXPECTED_EDGES = (0.005, 0.02, 0.05, 0.1, 0.2)
ROUNDING = 1e-4
"""Difference of two errors that results from rounding times to microseconds."""
LATER = 1.001
"""Ratio to the network's delay above which TCP counts as the cause of the 95th percentile."""
FIGURE = "error-map.svg"
SIZE = (12.0, 5.0)
LARGEST_SHOWN = 0.30
"""Error with the deepest colour."""
ROUNDED_FROM = 9.95
"""Smallest percentage that is shown without decimals."""
FEW = 5
"""With fewer cases than this, the number in a cell is drawn faintly."""
ERROR_COLORS = LinearSegmentedColormap.from_list("errors", ["white", ORANGE])


@dataclass(frozen=True)
class MapScore:
    """The chain's prediction for one simulated scenario."""

    simulated: SimulatedScenario
    prediction: Prediction

    @property
    def scenario(self) -> MapScenario:
        """The scenario."""
        return self.simulated.scenario

    @property
    def both_carried(self) -> bool:
        """Whether TCP carries the flow in chain and simulator, so that delays can be compared."""
        return self.simulated.sustainable and self.prediction.sustainable

    @property
    def call_right(self) -> bool:
        """Whether chain and simulator agree on whether TCP carries the flow."""
        return self.simulated.sustainable == self.prediction.sustainable

    @property
    def comparable(self) -> bool:
        """Whether delays can be compared, and the utilization is below 0.9."""
        return self.both_carried and self.scenario.utilization < LARGEST_SUSTAINABLE_UTILIZATION

    def predicted(self, quantity: str) -> float:
        """Return the predicted delay [s], one of `QUANTITIES` or "mean"."""
        return self.prediction.mean if quantity == "mean" else self.prediction.quantile(QUANTITIES[quantity])

    def error(self, quantity: str) -> float:
        """Return the relative error; `WRONG_CALL` for a wrong call, 0 if TCP carries the flow in neither model."""
        if not self.call_right:
            return WRONG_CALL if self.simulated.sustainable else -WRONG_CALL
        return relative_error(self.predicted(quantity), self.simulated.times[quantity]) if self.both_carried else 0.0


def score_map(
    simulated: Sequence[SimulatedScenario],
    answer: Callable[[Scenario], Prediction] = solve,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[MapScore]:
    """Predict the simulated scenarios with the chain, without those that it does not solve or that have not settled."""
    scores = []
    for done, one in enumerate(simulated):
        on_progress(done, len(simulated))
        if not one.settled:
            continue
        prediction = answer(Scenario(one.scenario.flow, one.scenario.path, one.scenario.stack))
        if prediction.distribution is not None:
            scores.append(MapScore(one, prediction))
    return scores


def error_table(scores: Sequence[MapScore]) -> ErrorTable:
    """Return the errors by scenario, as the table in which predictions look them up."""
    scenarios = [score.scenario for score in scores]
    return ErrorTable(
        features=np.array([features_of(one.flow, one.path, one.stack) for one in scenarios]),
        cubic=np.array([one.stack.congestion_control == "cubic" for one in scenarios]),
        carried=np.array([score.prediction.sustainable for score in scores]),
        quantiles={held: np.array([score.error(quantile_name(held)) for score in scores]) for held in HELD},
        mean=np.array([score.error("mean") for score in scores]),
    )


def expected_table(scores: Sequence[MapScore]) -> ResultTable:
    """Return expected and actual errors: half of the scenarios is looked up in a table of the other half."""
    known, asked = ([score for score in scores if score.scenario.number % 2 == half] for half in (0, 1))
    table = error_table(known)
    bands: dict[tuple[int, str], list[tuple[float, float, bool]]] = {}
    for score in asked:
        scenario, carried = score.scenario, score.prediction.sustainable
        features = features_of(scenario.flow, scenario.path, scenario.stack)
        expected = table.expected(features, scenario.stack.congestion_control == "cubic", carried)
        if carried and expected.cases:
            size = abs(score.error("p95"))
            band = _band("", expected.mean, EXPECTED_EDGES, format_fraction)
            bands.setdefault(band, []).append((expected.mean, size, size <= expected.p90 + ROUNDING))
    rows: list[dict[str, Cell]] = []
    for (_, name), own in sorted(bands.items()):
        expected_means, sizes, within = np.array(own).T
        rows.append(
            {
                "expected": name.strip(),
                "cases": len(own),
                "expected_mean": float(expected_means.mean()),
                "mean": float(sizes.mean()),
                "median": float(np.median(sizes)),
                "within_p90": float(within.mean()),
            }
        )
    columns = (
        Column("expected", "expected error of p95"),
        Column("cases", "cases", "count"),
        Column("expected_mean", "expected, mean", "distance"),
        Column("mean", "found, mean", "distance"),
        Column("median", "found, median", "distance"),
        Column("within_p90", "within the expected p90", "fraction"),
    )
    note = "Scenarios with odd numbers, looked up in a table of the scenarios with even numbers."
    return ResultTable("error-map-expected", "Expected errors beside errors", columns, rows, note)


def groups_table(scores: Sequence[MapScore]) -> ResultTable:
    """Return the errors by group, and how often chain and simulator agree on whether TCP carries the flow."""
    groups: dict[tuple[int, int, str], list[MapScore]] = {}
    for score in scores:
        for place, group in enumerate(_groups_of(score)):
            if group is not None:
                groups.setdefault((place, *group), []).append(score)
    rows = [{"group": name, **_group_row(own)} for (_, _, name), own in sorted(groups.items(), key=lambda one: one[0])]
    spreads = [
        Column(f"{statistic}_{quantity}", f"{quantity}: {statistic}", "distance")
        for quantity in ("p95", "mean")
        for statistic in STATISTICS
    ]
    columns = (
        Column("group", "scenarios"),
        Column("cases", "cases", "count"),
        *spreads,
        Column("mean_p95_beyond_interval", "p95 beyond interval: mean", "distance"),
        Column("median_p50", "p50: median", "distance"),
        Column("median_p99", "p99: median", "distance"),
        Column("call_right", "carried or not: same", "fraction"),
        Column("wrongly_carried", "chain alone says carried", "count"),
        Column("wrongly_not_carried", "simulator alone says carried", "count"),
    )
    return ResultTable(
        "error-map",
        "The chain beside the simulator in random scenarios",
        columns,
        rows,
        "Cases: TCP carries the flow in chain and simulator. Errors are |chain / simulator - 1|; 'p90' is not exceeded "
        "in nine of ten cases, and 'beyond interval' is the distance from the nearest end of the simulator's 95 % "
        "interval.",
    )


def _groups_of(score: MapScore) -> Iterable[tuple[int, str] | None]:
    """Return rank and name of the group of a scenario in each grouping."""
    scenario = score.scenario
    below = scenario.utilization < LARGEST_SUSTAINABLE_UTILIZATION
    later = score.simulated.times["p95"] > LATER * scenario.path.forward_delay
    single = scenario.flow.packet_size <= SINGLE_SEGMENT_SIZE[1]
    rtt_place, rtt_name = rtt_group(scenario.path.rtt)
    return (
        (0, "all"),
        (0, "utilization below 0.9") if below else None,
        (0, "utilization below 0.9, p95 beyond the network's delay") if below and later else None,
        (rtt_place, f"RTT {rtt_name}"),
        _band("loss", scenario.path.loss, LOSS_EDGES, format_fraction),
        (0, scenario.stack.congestion_control),
        (0, "packets of one segment") if single else (1, "packets of several segments"),
        _band("utilization", scenario.utilization, UTILIZATION_BANDS, lambda edge: f"{edge:.2g}"),
    )


def _band(name: str, value: float, edges: Sequence[float], shown: Callable[[float], str]) -> tuple[int, str]:
    """Return rank and name of the band of a value."""
    place = sum(value >= edge for edge in edges)
    if place == 0:
        return place, f"{name} below {shown(edges[0])}"
    upper = f"to {shown(edges[place])}" if place < len(edges) else "and more"
    return place, f"{name} {shown(edges[place - 1])} {upper}"


def _group_row(scores: Sequence[MapScore]) -> dict[str, Cell]:
    carried = [score for score in scores if score.both_carried]
    row: dict[str, Cell] = {"scenarios": len(scores), "cases": len(carried)}
    for quantity in ("p50", "p95", "p99", "mean"):
        spread = spread_of(np.array([score.error(quantity) for score in carried])) if carried else None
        for statistic in STATISTICS:
            row[f"{statistic}_{quantity}"] = None if spread is None else getattr(spread, statistic)
    beyond = [abs(error_beyond(score.predicted("p95"), score.simulated.p95)) for score in carried]
    row["mean_p95_beyond_interval"] = float(np.mean(beyond)) if beyond else None
    wrong = [score for score in scores if not score.call_right]
    row["call_right"] = 1 - len(wrong) / len(scores)
    row["wrongly_carried"] = sum(score.prediction.sustainable for score in wrong)
    row["wrongly_not_carried"] = sum(score.simulated.sustainable for score in wrong)
    return row


def worst_table(scores: Sequence[MapScore], count: int = WORST) -> ResultTable:
    """Return the scenarios below a utilization of 0.9 with the largest errors of the chain's 95th percentile."""
    comparable = [score for score in scores if score.comparable]
    worst = sorted(comparable, key=lambda score: -abs(score.error("p95")))[:count]
    rows: list[dict[str, Cell]] = []
    for score in worst:
        scenario, times = score.scenario, score.simulated.times
        rows.append(
            {
                "number": scenario.number,
                "congestion_control": scenario.stack.congestion_control,
                "hz": scenario.stack.hz,
                "rtt": scenario.path.rtt,
                "loss": scenario.path.loss,
                "packet_size": scenario.flow.packet_size,
                "interval": scenario.flow.interval,
                "utilization": scenario.utilization,
                "packets_per_rtt": scenario.packets_per_rtt,
                "simulated_p95": times["p95"],
                "simulated_p95_low": times["p95_low"],
                "simulated_p95_high": times["p95_high"],
                "predicted_p95": score.predicted("p95"),
                "simulated_mean": times["mean"],
                "predicted_mean": score.predicted("mean"),
                **{f"error_{quantity}": score.error(quantity) for quantity in ("p50", "p95", "p99", "mean")},
            }
        )
    columns = (
        Column("number", "number", "count"),
        Column("congestion_control", "control"),
        Column("hz", "HZ", "count"),
        Column("rtt", "RTT", "time"),
        Column("loss", "loss", "fraction"),
        Column("packet_size", "bytes", "count"),
        Column("interval", "interval", "time"),
        Column("utilization", "utilization", "ratio"),
        Column("packets_per_rtt", "packets per RTT", "ratio"),
        Column("simulated_p95", "simulated p95", "time", "simulated_p95_low", "simulated_p95_high"),
        Column("predicted_p95", "chain's p95", "time"),
        Column("error_p95", "p95", "error"),
        Column("error_mean", "mean", "error"),
        Column("error_p99", "p99", "error"),
    )
    note = "Scenarios with a utilization below 0.9 that TCP carries, by the size of the 95th percentile's error."
    return ResultTable("error-map-worst", "Largest errors of the chain", columns, rows, note)


@dataclass(frozen=True)
class Scale:
    """One axis of the map: its label, the value of a score, the edges of the cells, and an edge as text."""

    label: str
    of: Callable[[MapScore], float]
    edges: Sequence[float]
    shown: Callable[[float], str]

    def cell(self, score: MapScore) -> int:
        """Return the number of the cell of a score."""
        place = int(np.searchsorted(self.edges, self.of(score), side="right")) - 1
        return min(max(place, 0), len(self.edges) - 2)


UTILIZATION = Scale(
    "utilization",
    lambda score: score.scenario.utilization,
    (0.01, 0.03, 0.1, 0.2, 1 / 3, 0.5, 2 / 3, 0.9, 1.2),
    lambda edge: f"{edge:.2g}",
)
PACKETS_PER_RTT = Scale(
    "packets per round-trip time",
    lambda score: score.scenario.packets_per_rtt,
    (0.25, 0.5, 1, 2, 4, 8, 16, 32),
    lambda edge: f"{edge:g}",
)
RTT = Scale(
    "round-trip time", lambda score: score.scenario.path.rtt, (0.005, 0.010, 0.020, 0.050, 0.1, 0.16, 0.4), format_time
)
LOSS = Scale(
    "loss", lambda score: score.scenario.path.loss, (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1), format_fraction
)
PANELS = ((UTILIZATION, PACKETS_PER_RTT), (RTT, LOSS))


def error_map(scores: Sequence[MapScore]) -> bytes:
    """Return the map as SVG: mean |chain / simulator - 1| of the 95th percentile where TCP carries the flow in both."""
    return draw_svg(lambda figure: _draw_panels(figure, [one for one in scores if one.both_carried]), SIZE)


def _draw_panels(figure: Figure, scores: Sequence[MapScore]) -> None:
    panels: Sequence[Axes] = figure.subplots(1, len(PANELS))
    for ax, (across, up) in zip(panels, PANELS, strict=True):
        _draw_panel(ax, scores, across, up)
    panels[0].set_title("mean error of the 95th percentile [%]", fontsize=LABEL_SIZE, loc="left")


def _draw_panel(ax: Axes, scores: Sequence[MapScore], across: Scale, up: Scale) -> None:
    errors: dict[tuple[int, int], list[float]] = {}
    for score in scores:
        errors.setdefault((up.cell(score), across.cell(score)), []).append(abs(score.error("p95")))
    means = np.full((len(up.edges) - 1, len(across.edges) - 1), np.nan)
    for place, sizes in errors.items():
        means[place] = np.mean(sizes)
    tidy(ax)
    ax.pcolormesh(
        np.arange(len(across.edges)),
        np.arange(len(up.edges)),
        means,
        cmap=ERROR_COLORS,
        norm=PowerNorm(0.5, 0, LARGEST_SHOWN, clip=True),
        edgecolors="white",
    )
    for (row, column), sizes in errors.items():
        percent = 100 * means[row, column]
        ax.text(
            column + 0.5,
            row + 0.5,
            f"{percent:.0f}" if percent >= ROUNDED_FROM else f"{percent:.1f}",
            ha="center",
            va="center",
            fontsize=LABEL_SIZE,
            color=INK,
            alpha=1.0 if len(sizes) >= FEW else 0.5,
        )
    for axis, scale in ((ax.xaxis, across), (ax.yaxis, up)):
        _label(axis, scale)


def _label(axis: Axis, scale: Scale) -> None:
    inner = scale.edges[1:-1]
    axis.set_ticks(range(1, len(inner) + 1), [scale.shown(edge) for edge in inner])
    axis.set_label_text(scale.label)
