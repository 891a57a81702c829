"""Phases, transitions and solution of a chain, made from the public parts of the solver."""

import numpy as np

from tcpdelay.chain.linux.transitions import LinuxProfile
from tcpdelay.chain.published import PublishedProfile
from tcpdelay.chain.solver.state_space import reachable_rows
from tcpdelay.chain.solver.stationary import MAX_SWEEPS, NEGLIGIBLE_TRUNCATION, probability_at_bound, solve_by_sweeps
from tcpdelay.scenario.stack import NewReno2008


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
