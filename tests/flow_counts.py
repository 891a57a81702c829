"""What holds for the counts and delays of every flow of a shared link, and flows on a link that is never full."""

import pytest
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.result import SlicedDelays
from tcpdelay.sim.network.simulation import prepare
from tcpdelay.sim.network.sources import ConstantRate

FAST = Bottleneck(1e12, 60_000)
RTT = 0.1
PATH = SharedPath(RTT / 2)
LINUX = td.Stack.linux()
shared_paths = st.builds(
    lambda losses, **fields: SharedPath(**losses, **fields),
    losses=st.sampled_from([{}, {"loss_burst": 3.0}, {"bad_time": 0.05, "bad_loss": 0.5}]),
    access_delay=st.floats(0.0, 0.2),
    exit_delay=st.floats(0.0, 0.1),
    return_delay=st.floats(0.0, 0.2),
    loss=st.sampled_from([0.0, 0.01, 0.1, 0.3]),
    return_jitter=st.sampled_from([0.0, 0.01, 0.02]),
)


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


def histograms(network, until=200.0):
    """Return the delays [us] of each flow, and how many packets had each."""
    delays = SlicedDelays()
    network.advance(until, delays)
    delays.end_slice()
    return [delays.of(number).histogram() for number in range(network.flows.size)]


def counted_delays(network, until=200.0):
    """Return how many packets of the first flow had which delay [ms]."""
    values, counts = histograms(network, until)[0]
    return dict(zip((values / 1e3).tolist(), counts.tolist(), strict=True))


def with_one_loss(stack, interval=0.020, one_way=RTT / 2, lost=50, packets=100, **options):
    """Return the network of a flow of 200 B, alone on a link that is never full, of which one packet is lost."""
    source = ConstantRate(
        flow=td.Flow(200, interval, write_jitter=0),
        path=SharedPath(one_way),
        stack=stack,
        stop=packets * interval,
        **options,
    )
    network = prepare([source], FAST, 0, 0.0, source.stop)
    network.flows[0].until_loss = lost + 1
    return network
