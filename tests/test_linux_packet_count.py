"""The chain of a Linux kernel counts every packet once: as many have a delay as are written."""

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from chain_structure import profile_of, solved_rows
from tcpdelay.models.chain import DelayModel
from tcpdelay.models.linux.delays import delay_bins, packets_leaving, sums
from tcpdelay.models.linux.profile import beyond_backlog
from tcpdelay.models.solver.stationary import ACCEPTED_RESIDUAL
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

RESERVE = 0.05
"""What TCP carries beyond the examples' flows, as a share of them."""
SEGMENTS_PER_ROUND_TRIP = 8
"""Largest load of the examples, so that each takes milliseconds."""
FOLLOWED = 0.12
"""Largest share of the packets by which those that the delay sums follow may differ from those that are written."""


@st.composite
def scenarios(draw):
    controls = draw(st.sampled_from(["cubic", "reno", "bbr"]))
    size = draw(st.one_of(st.sampled_from([1, 485, 1200, 1448, 1449, 15_000]), st.integers(1, 15_000)))
    interval = draw(st.integers(5, 100).map(lambda n: n / 1000))
    longest = min(0.4, SEGMENTS_PER_ROUND_TRIP * interval / max(1, size / 1448))
    assume(longest >= 0.005 and (controls != "bbr" or size <= 1448))
    rtt = draw(st.one_of(st.floats(0.005, longest), st.integers(1, 8).map(lambda n: n * interval)))
    loss = draw(st.floats(-4, -1).map(lambda exponent: round(10**exponent, 5)))
    path = Path(round(min(max(rtt, 0.005), longest), 6), loss)
    return Flow(size, interval), path, Stack.linux(congestion_control=controls)


def counted(flow, path, stack):
    """Return, per packet written, the packets in all delays, followed, and leaving; and the residual."""
    profile = profile_of(flow, path, stack)
    phases, transitions = profile.structure
    rows, solution = solved_rows(profile)
    p, sending = profile.parameters, profile._made[2]
    states = np.add.reduceat(np.append(solution.probability, 0.0), rows["offset"][:-1])
    states[np.diff(rows["offset"]) == 0] = 0.0
    of_event = np.repeat(states, np.diff(phases["first_transition"]))
    written = of_event @ (transitions["probability"] * transitions["duration"])[: of_event.size] / flow.interval
    leaving = packets_leaving(p, phases, transitions, 1 / flow.interval, sending, rows, solution.probability)
    packets = [
        sums(delay_bins(p, phases, sending, rows, solution.probability, beyond_backlog(p), *scaled))[0]
        for scaled in (leaving, (0.0, 0.0))
    ]
    return [*(one / written for one in (*packets, sum(leaving))), solution.residual]


@settings(max_examples=40, deadline=None)
@given(scenarios())
@example((Flow(485, 0.010), Path(0.080, 0.0342), Stack.linux(hz=1000)))
@example((Flow(290, 0.005), Path(0.0362, 0.0992), Stack.linux(hz=1000)))
@example((Flow(15_000, 0.082), Path(0.075, 0.01), Stack.linux()))
@example((Flow(12_889, 0.014), Path(0.0054, 0.02404), Stack.linux(congestion_control="reno")))
def test_every_packet_is_counted_once(scenario):
    flow, *_ = scenario
    assume(-DelayModel(*scenario).backlog_drift > RESERVE / flow.interval)
    in_delays, followed, leaving, residual = counted(*scenario)
    # A chain that does not settle in these sweeps is solved directly by the model.
    assume(residual <= ACCEPTED_RESIDUAL)
    assert leaving == pytest.approx(1, abs=1e-9)
    assert in_delays == pytest.approx(1, abs=1e-9)
    assert followed == pytest.approx(1, abs=FOLLOWED)


@pytest.mark.parametrize("congestion_control", ["cubic", "reno"])
@pytest.mark.parametrize(("interval", "rtt"), [(0.1, 0.03), (0.05, 0.05), (0.1, 0.15), (0.05, 0.1), (0.02, 0.03)])
def test_every_packet_of_a_thin_flow_is_followed(interval, rtt, congestion_control):
    """Up to two packets per round-trip time a single loss is exact, so that only losses of losses are missing."""
    stack = Stack.linux(congestion_control=congestion_control)
    for loss in (1e-4, 1e-3, 1e-2):
        _, followed, *_ = counted(Flow(160, interval), Path(rtt, loss), stack)
        assert followed == pytest.approx(1, abs=6 * loss**2)
