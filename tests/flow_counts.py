"""What holds for the counts and delays of every flow of a shared link."""

import pytest


def assert_counted(flow, path):
    """Check that each message is counted once, and that the delay has the path's length and the sum of its parts."""
    assert flow.offered == flow.delivered + flow.lost + flow.unfinished
    assert min(flow.offered, flow.delivered, flow.lost, flow.unfinished, flow.retransmissions, flow.marks) >= 0
    assert flow.segments_sent == flow.segments_lost + flow.segments_dropped + flow.segments_carried
    if flow.delays is not None:
        assert flow.delays.values.min() >= path.there - 2e-6
        parts = (flow.sender_delay, flow.network_delay, flow.receiver_delay)
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(flow.delays.mean, rel=1e-9, abs=1e-9)
        assert flow.network_delay >= path.there - 1e-6
