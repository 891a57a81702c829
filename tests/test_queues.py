"""Options of the queues of an emulated path. `test_programs.py` runs all queues in a guest."""

import errno

import pytest
from pyroute2 import NetlinkError

from tcpdelay.testbed.queues import add_bottleneck, red_attributes
from tcpdelay.testbed.topology import Link


def parameters(**settings):
    link = Link(0.03, **{"rate": 10e6, "queue": "red", "queue_packets": 1000, **settings})
    return dict(red_attributes(link))["TCA_RED_PARMS"]


def test_red_has_the_thresholds_of_adaptive_red():
    # Floyd, Gummadi and Shenker 2001, section 5.1: min_th = target * C / 2, max_th = 3 * min_th.
    found = parameters(queue_target=0.05)
    assert (found["qth_min"], found["qth_max"]) == (31_250, 93_750)
    # ... but min_th is at least five packets.
    assert parameters()["qth_min"] == 5 * 1514
    assert parameters()["limit"] == 1000 * 1514


@pytest.mark.parametrize(("rate", "weight"), [(10e6, 0.0012), (100e6, 0.00012)])
def test_red_averages_over_about_a_second_of_packets(rate, weight):
    # Section 5.2 with 1514 B packets: w_q = 1 - exp(-1 / C).
    assert 2.0 ** -parameters(rate=rate)["Wlog"] == pytest.approx(weight, rel=0.42)


@pytest.mark.parametrize("rate", [1e4, 1e6, 1e9])
def test_the_kernel_accepts_the_parameters_at_every_rate(rate):
    # red_check_params: thresholds of up to 32 bits after the scaling by the weight, and shifts below 32.
    for target in (0.001, 1.0):
        found = parameters(rate=rate, queue_target=target)
        assert found["qth_max"].bit_length() + found["Wlog"] < 32
        assert 0 <= found["Scell_log"] < 32
        assert 1 <= found["Wlog"] < 32


def test_the_mean_queue_shrinks_while_the_link_is_idle():
    link = Link(0.03, rate=10e6, queue="red", queue_packets=1000)
    options = dict(red_attributes(link))
    table, cell = options["TCA_RED_STAB"], 2 ** options["TCA_RED_PARMS"]["Scell_log"] * 1e-6
    # After an idle time of m packets the mean is (1 - w_q)^m times what it was, here after half the table's times.
    packets = 128 * cell * 10e6 / 8 / 1514
    assert 2.0 ** -table[128] == pytest.approx((1 - 2.0 ** -options["TCA_RED_PARMS"]["Wlog"]) ** packets, rel=0.42)
    assert len(table) == 256
    assert list(table) == sorted(table)


class KernelWithoutQueues:
    """A kernel that refuses all queueing disciplines, or one, for one reason."""

    def __init__(self, code, lacking=None):
        self.code, self.lacking = code, lacking

    def tc(self, command, kind, device, **settings):
        if self.lacking in (None, kind):
            raise NetlinkError(self.code, "refused")


class Recorder:
    """A kernel that notes the options of each queueing discipline, and the actions of filters."""

    def __init__(self):
        self.options = {}

    def tc(self, command, kind, device, **settings):
        block = settings.get("action", settings).get("block")
        self.options[kind] = block and block["attrs"]


def test_a_token_bucket_and_its_peak_rate_have_times_in_ticks():
    kernel = Recorder()
    link = Link(0.03, rate=8e6, queue_packets=9, burst=64_000, peak_rate=16e6)
    add_bottleneck(kernel, 1, link)
    (_, parameters), *tables = kernel.options["tbf"]
    # 64 kB take 64 ms at 8 Mbit/s, and the 2000 B of the peak rate 1 ms; a tick is 64 ns.
    assert (parameters["buffer"], parameters["mtu"]) == (1_000_000, 15_625)
    assert (parameters["rate"], parameters["peak"]) == (1_000_000, 2_000_000)
    assert [name for name, _ in tables] == ["TCA_TBF_RTAB", "TCA_TBF_PTAB"]


def test_a_policer_drops_and_has_no_queue():
    kernel = Recorder()
    add_bottleneck(kernel, 1, Link(0.03, rate=8e6, queue="policer", burst=64_000))
    assert set(kernel.options) == {"clsact", "matchall"}
    (_, parameters), _table = kernel.options["matchall"]
    # TC_POLICE_SHOT is 2 in linux/pkt_cls.h.
    assert (parameters["action"], parameters["burst"], parameters["rate"]) == (2, 1_000_000, 1_000_000)


def test_a_kernel_without_policers_is_named_with_the_remedy():
    link = Link(0.03, rate=8e6, queue="policer", burst=64_000)
    with pytest.raises(
        ValueError, match=r"^queue must be in the kernel \(run tcp.* build-kernel, .*\), got 'policer'$"
    ):
        add_bottleneck(KernelWithoutQueues(errno.ENOENT, "matchall"), 1, link)


def test_dualpi2_has_the_kernels_defaults_unless_told_otherwise():
    kernel = Recorder()
    add_bottleneck(kernel, 1, Link(0.03, rate=1e6, queue="dualpi2", ecn=True))
    # It always marks packets with ECN, and has no option for this.
    assert kernel.options["dualpi2"] == []
    add_bottleneck(kernel, 1, Link(0.03, rate=1e6, queue="dualpi2", queue_target=0.02, queue_packets=50, l4s=True))
    # TC_DUALPI2_ECN_MASK_ANY_ECT is 3 in linux/pkt_sched.h; times are in microseconds.
    assert dict(kernel.options["dualpi2"]) == {
        "TCA_DUALPI2_ECN_MASK": 3,
        "TCA_DUALPI2_LIMIT": 50,
        "TCA_DUALPI2_TARGET": 20_000,
    }


def test_a_queue_that_the_kernel_lacks_is_named_with_the_remedy():
    # A kernel without a discipline answers with ENOENT (qdisc_create in net/sched/sch_api.c).
    link = Link(0.03, rate=1e6, queue="cake")
    with pytest.raises(
        ValueError, match=r"^queue must be in the kernel \(run tcpdelay testbed build-ker.*, got 'cake'$"
    ):
        add_bottleneck(KernelWithoutQueues(errno.ENOENT), 1, link)
    newer = Link(0.03, rate=1e6, queue="dualpi2")
    with pytest.raises(ValueError, match=r"\(it needs Linux 6.17 or later: run .* --kernel 7.3, .*\), got 'dualpi2'$"):
        add_bottleneck(KernelWithoutQueues(errno.ENOENT, "dualpi2"), 1, newer)
    with pytest.raises(NetlinkError):
        add_bottleneck(KernelWithoutQueues(errno.EPERM), 1, link)
