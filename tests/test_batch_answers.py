"""Rows of tables beside predictions of the same paths, and rows that are only counted beside solved ones."""

import numpy as np
import pyarrow as pa
import pytest

import tcpdelay as td
from tcpdelay.ask import NotSettledError
from tcpdelay.study.tables.columns import find_sources
from tcpdelay.study.tables.lattice import EXACT_ROWS
from tcpdelay.study.tables.predict_many import demand_for
from tcpdelay.study.tables.rows import RowPredictor


def test_a_few_rows_have_the_figures_of_a_prediction_whoever_answers():
    # Not checked at this time and at this loss, checked and certain, a packet too large for the chain, and imprecise.
    rows = {"rtt": [0.6, 0.1, 0.1, 0.06, 0.076], "loss": [0.01, 0.12, 0.02, 0.001, 0.00982]}
    rows |= {"packet_size": [100, 100, 100, 20_000, 100], "interval": [1 / 30] * 5}
    found = td.predict_many(rows, columns={"loss": "loss:fraction"}, cached=False)
    methods = []
    for row, values in enumerate(zip(*rows.values(), strict=True)):
        delays = td.predict_delay(**dict(zip(rows, values, strict=True)))
        methods.append(delays.method)
        assert [found[name][row] for name in ("p50", "p95", "p99")] == delays.quantile([0.5, 0.95, 0.99]).tolist()
        assert (found["mean"][row], found["late"][row]) == (delays.mean, delays.late_fraction(0.2))
    assert methods == ["simulation", "simulation", "chain", "simulation", "simulation"]
    assert found["remark"].tolist() == found["reason"].tolist() == [None] * 5


def test_a_row_whose_simulation_does_not_settle_has_no_prediction():
    near = {"packet_size": 1448, "interval": 0.010, "rtt": 0.1, "loss": 0.01}
    with pytest.raises(NotSettledError):
        td.predict_delay(**near, max_seconds=0.05)
    found = td.predict_many({name: [value] for name, value in near.items()}, cached=False, max_seconds=0.05)
    assert found["reason"][0].startswith("the simulation does not settle")
    assert np.isnan(found["p95"][0])


@pytest.mark.parametrize(
    ("flow", "stack", "rtts", "losses"),
    [
        (td.Flow(174, 0.020), "linux", (0.05, 0.42), (1e-4, 0.13)),
        (td.Flow(174, 0.020), "newreno_2008", (0.05, 0.3), (1e-3, 0.03)),
        # TCP does not carry this flow in some of the rows, and in some it is near its capacity.
        (td.Flow(1448, 0.050), "linux", (0.1, 0.42), (1e-3, 0.12)),
    ],
)
def test_rows_that_are_only_counted_get_their_verdicts_from_few_chains(flow, stack, rtts, losses):
    rng = np.random.default_rng(2)
    rows = {
        "rtt": np.exp(rng.choice(np.linspace(*np.log(rtts), 6), EXACT_ROWS + 100)),
        "loss": np.exp(rng.uniform(*np.log(losses), EXACT_ROWS + 100)),
    }
    demand, table = demand_for(flow, stack, 0.2, 0.95), pa.RecordBatch.from_pydict(rows)

    def verdicts(counted):
        chains = []
        found = RowPredictor(demand, find_sources([*rows]), counted=counted).predict(
            table, lambda _, total: chains.append(total)
        )
        return found.column("verdict").to_pylist(), max(chains)

    (expected, all_chains), (found, few_chains) = verdicts(False), verdicts(True)
    assert found == expected
    assert set(expected) >= {"works", "fails"}
    assert few_chains < all_chains / 3
