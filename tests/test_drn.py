"""The exported chain, read again by an independent parser and solved by SciPy: it is the chain that was solved."""

from collections import defaultdict

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

from tcpdelay.chain.delay_model import DelayModel, write_drn
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

VOICE = Flow(packet_size=174, interval=0.020)
MODELS = {
    "published": DelayModel(VOICE, Path(rtt=0.100, loss=0.02), Stack.newreno_2008()),
    "voip, CUBIC": DelayModel(VOICE, Path(rtt=0.100, loss=0.02), Stack.linux()),
    "voip, Reno": DelayModel(VOICE, Path(rtt=0.100, loss=0.02), Stack.linux(congestion_control="reno")),
    "1200 B": DelayModel(Flow(packet_size=1200, interval=0.020), Path(rtt=0.100, loss=0.005), Stack.linux()),
    "several segments": DelayModel(Flow(packet_size=3000, interval=0.040), Path(rtt=0.050, loss=0.01), Stack.linux()),
    "thin flow": DelayModel(Flow(packet_size=160, interval=0.200), Path(rtt=0.050, loss=0.01), Stack.linux()),
}


def read_drn(path):
    """Return header, labels, rewards and transition matrix of a DRN file of a Markov chain."""
    header, _, body = path.read_text().partition("@model\n")
    labels, rewards, entries = [], [], ([], [], [])
    for line in body.splitlines():
        word, *rest = line.split()
        if word == "state":
            number, reward, *names = rest
            assert int(number) == len(labels)
            labels.append(names)
            rewards.append(float(reward.strip("[]")))
        elif word != "action":
            separator, probability = rest
            assert separator == ":"
            for values, value in zip(entries, (len(labels) - 1, int(word), float(probability)), strict=True):
                values.append(value)
    rows, columns, probabilities = entries
    shape = (len(labels), len(labels))
    return header, labels, np.array(rewards), scipy.sparse.coo_array((probabilities, (rows, columns)), shape).tocsr()


def stationary(matrix):
    """Solve the balance equations by SciPy's LU, with the last probability set to 1 and all scaled at the end."""
    balance = (scipy.sparse.eye_array(matrix.shape[0]) - matrix).T.tocsc()
    unscaled = np.append(scipy.sparse.linalg.spsolve(balance[:-1, :-1], -balance[:-1, [-1]].toarray().ravel()), 1.0)
    return unscaled / unscaled.sum()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_the_exported_chain_is_the_chain_that_is_solved(model, tmp_path):
    write_drn(model, tmp_path / "chain.drn")
    header, labels, rewards, matrix = read_drn(tmp_path / "chain.drn")
    states = len(model.states)
    assert header.startswith("@type: DTMC\n")
    assert f"@nr_states\n{states}\n@nr_choices\n{states}\n" in header
    assert np.abs(matrix.sum(axis=1) - 1).max() < 1e-12
    found = stationary(matrix)
    assert np.abs(found - model.stationary_distribution).max() < 1e-9
    of_kind = defaultdict(float)
    for state, (kind, window, backlog) in enumerate(names[-3:] for names in labels):
        assert window == f"window_{model.states[state]['w']}"
        assert backlog == f"backlog_{model.states[state]['b']}"
        of_kind[kind] += found[state]
    assert [state for state, names in enumerate(labels) if "init" in names] == [model.initial_state]
    assert of_kind == pytest.approx({kind: found[model.kinds == kind].sum() for kind in set(model.kinds)})
    assert rewards @ found == pytest.approx(model.step_durations @ model.stationary_distribution, rel=1e-9)


def test_steps_of_the_published_chain_last_as_long_as_published():
    model = MODELS["published"]
    open_steps = model.step_durations[model.kinds == "application_limited"]
    # One packet, lost with 2 %: a success takes an interval, a fast retransmit RTT + 3 intervals, a timeout T0.
    assert np.all(open_steps > 0.98 * 0.020)
    assert np.all(model.step_durations[model.kinds == "recovery"] == pytest.approx(0.100))
    timeouts = model.step_durations[model.kinds == "timeout"]
    # Stage l: RTT with probability 1 - p, else the back-off 2^l T0, T0 being 4 RTT.
    stages = model.states["l"][model.kinds == "timeout"]
    assert timeouts == pytest.approx(0.98 * 0.100 + 0.02 * 2.0**stages * 0.400)


def test_sets_of_states_become_labels(tmp_path):
    model = MODELS["thin flow"]
    sets = {"waiting": model.states["b"] > 0, "nowhere": np.zeros(len(model.states), bool)}
    write_drn(model, tmp_path / "chain.drn", sets)
    _, labels, _, _ = read_drn(tmp_path / "chain.drn")
    assert [state for state, names in enumerate(labels) if "waiting" in names] == np.flatnonzero(
        sets["waiting"]
    ).tolist()
    assert set().union(*labels) == {"init", "waiting"}


def test_a_flow_that_tcp_cannot_carry_is_refused(tmp_path):
    model = DelayModel(Flow(packet_size=1448, interval=0.005), Path(rtt=0.2, loss=0.05), Stack.linux())
    with pytest.raises(ValueError, match="TCP cannot carry it"):
        write_drn(model, tmp_path / "chain.drn")
    assert not list(tmp_path.iterdir())
