"""Phases, transitions and solution of a chain, made from the public parts of the solver."""

import numpy as np
import pytest

from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.chain.linux.transitions import LinuxProfile
from tcpdelay.chain.published import PublishedProfile
from tcpdelay.chain.solver.state_space import reachable_rows
from tcpdelay.chain.solver.stationary import MAX_SWEEPS, NEGLIGIBLE_TRUNCATION, probability_at_bound, solve_by_sweeps
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import NewReno2008, Stack

VOICE = Flow(packet_size=174, interval=0.020)


def linux_models():
    """Return chains of Linux that are exported for other programs."""
    scenarios = {
        "voip, CUBIC": (VOICE, Path(rtt=0.100, loss=0.02), Stack.linux()),
        "voip, Reno": (VOICE, Path(rtt=0.100, loss=0.02), Stack.linux("reno")),
        "1200 B": (Flow(packet_size=1200, interval=0.020), Path(rtt=0.100, loss=0.005), Stack.linux()),
        "several segments": (Flow(packet_size=3000, interval=0.040), Path(rtt=0.050, loss=0.01), Stack.linux()),
        "thin flow": (Flow(packet_size=160, interval=0.200), Path(rtt=0.050, loss=0.01), Stack.linux()),
    }
    return {name: DelayModel(*scenario) for name, scenario in scenarios.items()}


def profile_of(flow, path, stack):
    """Return the chain of a scenario in the form that the solver takes."""
    return (PublishedProfile if isinstance(stack, NewReno2008) else LinuxProfile)(flow, path, stack)


def rows_within(profile, bound):
    """Return the rows of backlogs up to a bound."""
    return reachable_rows(*profile.structure, profile.start, bound)


def solved_rows(profile):
    """Return rows and solution of a chain that TCP carries; the bound doubles until it cuts off next to nothing."""
    bound = profile.first_bound
    while True:
        rows = rows_within(profile, bound)
        solution = solve_by_sweeps(*profile.structure, rows, profile.start, MAX_SWEEPS)
        if probability_at_bound(profile.structure[0], rows, solution.probability) < NEGLIGIBLE_TRUNCATION:
            return rows, solution
        bound *= 2


def assert_complete(phases, transitions):
    """Check that the events of every phase have probabilities that add up to one, and lead to phases."""
    first = phases["first_transition"]
    sums = np.add.reduceat(transitions["probability"], first[:-1][np.diff(first) > 0])
    assert np.abs(sums - 1).max() <= 1e-12
    assert transitions["probability"].min() >= 0
    assert transitions["duration"].min() >= 0
    targets = np.stack([transitions["target"], transitions["target_when_empty"]])
    assert targets.min() >= 0
    assert targets.max() < phases.size - 1


def assert_one_event_stays(phases, transitions):
    """Check that at most one event of each phase leads back to it, which the solver eliminates."""
    first, targets = phases["first_transition"], np.stack([transitions["target"], transitions["target_when_empty"]])
    for phase in range(phases.size - 1):
        assert np.any(targets[:, first[phase] : first[phase + 1]] == phase, axis=0).sum() <= 1


def assert_solution(model, rounding, least_part=0.0):
    """Check a chain's matrix, stationary distribution and delays, whose parts add up to their mean."""
    matrix, pi = model.transition_matrix, model.stationary_distribution
    assert np.abs(matrix.sum(axis=1) - 1).max() <= rounding
    assert matrix.data.min() >= 0
    assert np.abs(pi @ matrix - pi).sum() <= 1e-13
    assert model.residual <= 1e-13
    assert pi.sum() == pytest.approx(1, abs=10 * rounding)
    assert pi.min() >= 0
    delays = model.delay_distribution()
    assert delays.values[0] >= model.path.forward_delay
    assert np.all(np.diff(delays.values) > 0)
    assert delays.weights.sum() == pytest.approx(1, abs=1e-12)
    assert 0 <= model.backlogged_time_fraction <= 1
    if np.isfinite(delays.mean):
        parts = model.delay_parts
        total = parts.network + parts.backlog + parts.head_of_line + parts.timeouts
        assert total == pytest.approx(delays.mean, rel=1e-9)
        assert min(parts.backlog, parts.timeouts) >= least_part
