"""The table of the chains' numeric constants has each of them, with its value; its page has the table's figures."""

import csv
from pathlib import Path

import numpy as np
import pytest

import chain_constants

PAGE = Path(__file__).parents[1] / "docs" / "appendix" / "chain-constants.md"


@pytest.fixture(scope="module")
def table():
    with chain_constants.TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_has_every_constant_with_its_value(table):
    found = {(row["where"], row["constant"]): (row["value"], row["kind"]) for row in table}
    for each in chain_constants.constants():
        assert found.pop((chain_constants.place_of(each), each.name)) == (
            str(each.value),
            chain_constants.kind_of(each),
        )
    assert not found


def test_no_kind_names_a_constant_that_is_gone():
    named = {name for names in chain_constants.KINDS.values() for name in names}
    assert named <= {each.name for each in chain_constants.constants()}


def change(row):
    """Return the largest change of p95 when a constant is halved or doubled; infinite where an answer is missing."""
    changes = [row["halved_p95"] or "0", row["doubled_p95"] or "0"]
    return max(float(each) if each[0].isdigit() and "refused" not in each else np.inf for each in changes)


def test_the_page_has_the_figures_of_the_table(table):
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    measured = [row for row in table if row["kind"] == chain_constants.MEASURED]
    changes = np.array([change(row) for row in measured if int(row["scenarios"])])
    counts = [np.count_nonzero(changes <= largest) for largest in (1e-3, 1e-2)]
    assert f"{len(table)} numeric constants" in page
    assert f"{len(measured)} are tuned" in page
    assert f"{changes.size} of the tuned constants take part in these scenarios" in page
    assert f"{counts[0]} of them change no p95 by more than 0.1 %, {counts[1]} by no more than 1 %" in page
