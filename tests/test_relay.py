"""A relay between two legs: closed forms of delays, losses and a full buffer; messages count once; the command."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpdelay as td
from tcpdelay.sim.network.relay import over_tcp, over_udp

VOICE = td.Flow(100, 0.020)
TCP, UDP = td.Stack.linux(), td.Udp()


def path(rtt: float, loss: float = 0.0, **more: float) -> td.Path:
    return td.Path(rtt=rtt, loss=loss, **more)


@pytest.mark.parametrize("first", [TCP, UDP])
@pytest.mark.parametrize("second", [TCP, UDP])
def test_without_loss_each_delay_is_the_sum_of_both_one_way_delays(first, second):
    legs = (path(0.040, one_way_delay=0.015), first), (path(0.100), second)
    relayed = td.simulate_relay(VOICE, *legs, packets=2000)
    assert relayed.delays.values.tolist() == [0.065]
    assert (relayed.first.mean, relayed.second.mean, relayed.relay_delay) == (0.015, 0.050, 0.0)
    assert (relayed.offered, relayed.delivered, relayed.lost, relayed.dropped) == (2000, 2000, (0, 0), 0)


@pytest.mark.parametrize(("legs", "place"), [((UDP, TCP), 0), ((TCP, UDP), 1)])
def test_the_udp_leg_loses_its_share(legs, place):
    paths = [path(0.040), path(0.060)]
    paths[place] = path(0.040, 0.03)
    relayed = td.simulate_relay(VOICE, (paths[0], legs[0]), (paths[1], legs[1]), packets=100_000, seed=3)
    # Binomial: the standard deviation is sqrt(0.03 * 0.97 / 100 000) = 0.00054.
    assert relayed.lost_share == pytest.approx(0.03, abs=4 * 0.00054)
    assert relayed.lost[1 - place] == relayed.dropped == 0


def test_a_message_of_several_datagrams_is_lost_with_any_of_them():
    legs = (path(0.040, 0.02), UDP), (path(0.060), TCP)
    relayed = td.simulate_relay(td.Flow(3 * UDP.largest_payload, 0.020), *legs, packets=100_000)
    assert relayed.lost_share == pytest.approx(1 - 0.98**3, abs=0.003)


def test_parity_recovers_a_lost_datagram():
    times, sizes = np.arange(200_000) * 1000, np.full(200_000, 2 * UDP.largest_payload)
    carried = over_udp(times, sizes, path(0.040, 0.1), td.Udp(parity=1), seed=1)
    # Of three datagrams, two or three must arrive.
    assert (carried.delays >= 0).mean() == pytest.approx(0.9**3 + 3 * 0.9**2 * 0.1, abs=0.003)


def test_jitter_of_a_udp_leg_is_uniform_and_may_reorder_messages():
    legs = (path(0.040, jitter=0.050), UDP), (path(0.060), UDP)
    relayed = td.simulate_relay(VOICE, *legs, packets=100_000)
    assert relayed.delays.mean == pytest.approx(0.020 + 0.025 + 0.030, abs=2e-4)
    # A reliable second leg delivers in the order of arrival at the relay: nothing waits for an earlier message.
    ordered = td.simulate_relay(VOICE, (path(0.040, jitter=0.050), UDP), (path(0.060), TCP), packets=100_000)
    assert ordered.delays.quantile([0.1, 0.5, 0.9]) == pytest.approx(relayed.delays.quantile([0.1, 0.5, 0.9]))


@pytest.mark.parametrize(
    ("interval", "buffer"), [(0.020, 100), (0.030, 100), (0.060, 100), (0.020, 200), (0.020, 299), (0.020, 300)]
)
def test_a_full_buffer_drops_what_comes_within_a_round_trip_time(interval, buffer):
    # A message of 100 bytes leaves the buffer after 50 ms; until then, it takes room from those that arrive.
    accepted = min(buffer // 100 / math.ceil(0.050 / interval), 1)
    legs = (path(0.040), UDP), (path(0.050), TCP)
    relayed = td.simulate_relay(td.Flow(100, interval), *legs, buffer=buffer, packets=6000)
    assert relayed.dropped_share == pytest.approx(1 - accepted, abs=2 / 6000)
    assert relayed.delays.values.tolist() == [0.045]
    assert relayed.sustainable


@pytest.mark.parametrize("room", [1, 2])
def test_a_full_buffer_lets_messages_from_tcp_wait_in_their_order(room):
    # Five messages at once: each `room` of them wait one round-trip time of the second leg longer.
    times = np.repeat(np.arange(1000.0), 5)
    burst = td.Trace(times, np.full(times.size, 100))
    legs = (path(0.040), TCP), (path(0.050), TCP)
    relayed = td.simulate_relay(burst, *legs, buffer=100 * room, packets=3000)
    expected = 0.045 + 0.050 * (np.arange(5) // room)
    assert relayed.delays.quantile([0.2, 0.4, 0.6, 0.8, 1.0]) == pytest.approx(expected, abs=1e-5)
    assert relayed.delays.mean == pytest.approx(expected.mean(), abs=1e-5)
    assert relayed.relay_delay == pytest.approx(expected.mean() - 0.045, abs=1e-5)
    assert relayed.dropped == 0


def test_back_pressure_bounds_the_rate_to_one_buffer_per_round_trip_time():
    legs = (path(0.040), TCP), (path(0.050), TCP)
    assert not td.simulate_relay(td.Flow(100, 0.045), *legs, buffer=100, packets=20_000).sustainable
    assert td.simulate_relay(td.Flow(100, 0.055), *legs, buffer=100, packets=20_000).sustainable


def test_the_buffer_that_is_needed_is_the_smallest_that_drops_nothing():
    # Within the round-trip time of 50 ms three messages of 100 bytes arrive.
    legs = (path(0.040), UDP), (path(0.050), TCP)
    assert td.simulate_relay(replace(VOICE, write_jitter=0), *legs, packets=2000).buffer_needed == 300
    legs = (path(0.020), UDP), (path(0.060, 0.01), TCP)
    relay = partial(td.simulate_relay, td.Video(600_000, write_jitter=0), *legs, packets=5000, seed=4)
    free = relay()
    needed = {kind: messages.buffer_needed for kind, messages in free.by_kind.items()}
    assert free.buffer_needed == max(needed.values())
    assert relay(buffer=free.buffer_needed).dropped == 0 < relay(buffer=free.buffer_needed - 1).dropped
    of_key_frames = relay(buffer=needed["key frame"])
    assert of_key_frames.by_kind["key frame"].dropped == 0
    assert of_key_frames.buffer_needed is None
    assert td.simulate_relay(VOICE, legs[1], (path(0.020), UDP), packets=2000).buffer_needed is None


def test_a_buffer_that_never_fills_changes_nothing():
    legs = (path(0.040, 0.01), UDP), (path(0.080, 0.01), TCP)
    free, bounded = (td.simulate_relay(VOICE, *legs, packets=20_000, buffer=buffer) for buffer in (None, 1_000_000))
    assert bounded.delays.values.tolist() == free.delays.values.tolist()
    assert bounded.delays.weights.tolist() == free.delays.weights.tolist()


def test_the_second_leg_alone_is_a_simulation_of_the_trace():
    # Without loss and jitter on the first leg, its messages are the source's, 20 ms later.
    relayed = td.simulate_relay(VOICE, (path(0.040), TCP), (path(0.100, 0.02), TCP), packets=200_000)
    alone = td.simulate(VOICE, path(0.100, 0.02), TCP, packets=200_000)
    assert relayed.second.mean == pytest.approx(alone.mean, rel=0.03)
    assert relayed.second.quantile(0.95) == pytest.approx(alone.quantile(0.95), rel=0.03)
    first, second = relayed.quantile_interval, alone.quantile_interval
    assert first.low < 0.020 + second.high
    assert 0.020 + second.low < first.high


def test_the_intervals_of_both_legs_add_up_to_that_of_all():
    leg = td.Path(rtt=0.060, loss=0.01), td.Stack.linux()
    found = td.simulate_relay(VOICE, leg, leg, packets=20_000)
    parts = [found.first.mean_interval, found.second.mean_interval]
    assert found.mean_interval == found.delays.mean_interval
    assert sum(part.value for part in parts) == pytest.approx(found.mean_interval.value)
    assert all(
        part.low < delays.mean < part.high for part, delays in zip(parts, (found.first, found.second), strict=True)
    )
    assert found.quantile_interval.value == found.delays.quantile(found.probability)


def test_key_frames_are_counted_by_kind():
    legs = (path(0.020), UDP), (path(0.080, 0.01), TCP)
    relayed = td.simulate_relay(td.Video(2_000_000), *legs, buffer=30_000, packets=20_000)
    assert set(relayed.by_kind) == {"key frame", "other frame"}
    for name in ("offered", "delivered", "dropped"):
        assert sum(getattr(of_kind, name) for of_kind in relayed.by_kind.values()) == getattr(relayed, name)
    # A key frame needs more room than another frame.
    assert relayed.by_kind["key frame"].dropped_share > relayed.by_kind["other frame"].dropped_share > 0


legs_of_any_kind = st.tuples(
    st.builds(path, st.floats(0.001, 0.2), st.floats(0, 0.1)), st.sampled_from([TCP, UDP, td.Udp(parity=1)])
)


@settings(max_examples=40, deadline=None)
@given(
    first=legs_of_any_kind,
    second=legs_of_any_kind,
    buffer=st.none() | st.integers(1, 20_000),
    source=st.sampled_from([VOICE, td.Flow(3000, 0.010), td.Speech(160, 0.020), td.Video(500_000)]),
    seed=st.integers(0, 1000),
)
def test_every_message_is_delivered_lost_or_dropped_once(first, second, buffer, source, seed):
    over_udp_at_last = isinstance(second[1], td.Udp)
    relayed = td.simulate_relay(
        source, first, second, buffer=None if over_udp_at_last else buffer, packets=1000, seed=seed
    )
    assert relayed.offered == 1000 == relayed.delivered + sum(relayed.lost) + relayed.dropped
    for place, (_, stack) in enumerate((first, second)):
        assert relayed.lost[place] == 0 or isinstance(stack, td.Udp)
    if not isinstance(first[1], td.Udp) or buffer is None:
        assert relayed.dropped == 0
    if relayed.sustainable:
        # A delay is that of both legs, and no message is faster than light.
        assert relayed.delays.values[0] >= first[0].forward_delay + second[0].forward_delay - 2e-6
        assert relayed.delays.mean == pytest.approx(relayed.first.mean + relayed.second.mean)


def test_the_buffer_holds_what_is_not_acknowledged():
    rng = np.random.default_rng(5)
    times, sizes = np.sort(rng.integers(0, 60_000_000, 10_000)), rng.integers(1, 3000, 10_000)
    on = path(0.080, 0.02)
    carried = over_tcp(times, sizes, on, TCP, seed=2, buffer=20_000, drops_when_full=True)
    accepted = carried.delays >= 0
    read = (times + carried.delays)[accepted]
    # The messages not read are in the buffer, except the acknowledged part of the oldest.
    written, through = np.cumsum(sizes[accepted]), np.searchsorted(read, times[accepted], side="right")
    unread = written - np.concatenate([[0], written])[through]
    assert (unread < 20_000 + 3000).all()
    assert 0.05 < 1 - accepted.mean() < 0.95


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"buffer": 0}, "buffer must be a whole number from 1 to 1e+09 bytes, got 0"),
        ({"buffer": 1.5}, "buffer must be a whole number"),
        ({"packets": 10}, "packets must be a whole number between 1000 and 1000000, got 10"),
        ({"packets": 2000.5}, "packets must be a whole number between 1000 and 1000000, got 2000.5"),
        ({"buffer": float("inf")}, "buffer must be a whole number from 1 to 1e+09 bytes, got inf"),
        ({"quantile": 1.0}, "quantile must lie between 0 and 1"),
        ({"first": path(0.1)}, "first must be a pair of a Path and a Stack"),
        ({"first": (path(0.1), td.Classic())}, "stack of the first leg must be one of"),
        ({"first": (path(0.1, ack_loss=0.1), UDP)}, "ack_loss of the first leg must be 0 with UDP"),
        ({"second": (path(0.1, reordering=0.1), UDP)}, "reordering of the second leg must be 0 with UDP"),
        ({"second": (path(0.1), UDP), "buffer": 1000}, "buffer must be left out with UDP on the second leg"),
        ({"source": td.Trace([0.0, 1.0], [10, 10])}, "have at least 3000 messages"),
        ({"source": "nothing"}, "source must be a Source, such as a Flow, a Video or a Trace, or one of"),
    ],
)
def test_a_wrong_argument_gets_one_line(change, message):
    arguments = {"source": VOICE, "first": (path(0.1), UDP), "second": (path(0.1), TCP)} | change
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        td.simulate_relay(**arguments)
    assert "\n" not in str(error.value)


# `tcpdelay relay`: its text, its records, its chart, and its errors

VOIP = ["relay", "--app", "voip", "--rtt", "40ms", "--loss", "3%", "--first", "udp", "--second-rtt", "60ms"]
VOIP += ["--second-loss", "1%"]
VIDEO = ["relay", "--bitrate", "1Mbit/s", "--key-ratio", "8", "--rtt", "20ms", "--loss", "0", "--second-rtt", "60ms"]
VIDEO += ["--second-loss", "0", "--packets", "2000"]


def test_json_has_the_figures_of_the_simulation(run):
    status, printed, _ = run(*VOIP, "--buffer", "1kB", "--packets", "5000", "--format", "json")
    record = json.loads(printed)
    legs = (td.Path(0.040, 0.03), td.Udp()), (td.Path(0.060, 0.01), td.Stack.linux())
    expected = td.simulate_relay("voip", *legs, buffer=1000, packets=5000)
    assert status == 0
    assert (record["lost_share"], record["dropped_share"]) == (expected.lost_share, expected.dropped_share)
    assert (record["mean"], record["p95"]) == (expected.delays.mean, expected.delays.quantile(0.95))
    assert (record["mean_first"], record["mean_second"]) == (expected.first.mean, expected.second.mean)
    assert (record["first_transport"], record["second_transport"]) == ("udp", "tcp")


def test_text_names_legs_losses_and_kinds(run, tmp_path):
    chart = tmp_path / "delays.svg"
    status, printed, _ = run(*VIDEO, "--chart", str(chart))
    assert status == 0
    lines = {line[:13].strip(): line[13:].strip() for line in printed.splitlines()}
    assert lines["second leg"] == "TCP, round-trip time 60 ms, loss 0 %"
    assert lines["lost"] == "0 % of 2000 messages on a leg over UDP"
    assert {"key frame", "other frame"} <= lines.keys()
    assert lines["key frame"].endswith(", 0 % dropped")
    assert chart.read_text(encoding="utf-8").startswith("<?xml")


def test_csv_has_a_row_for_all_messages_and_for_each_kind(run):
    status, printed, _ = run(*VIDEO, "--quantile", "90%", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert status == 0
    assert [row["kind"] for row in rows] == ["all", "other frame", "key frame"]
    assert int(rows[0]["offered"]) == 2000 == sum(int(row["offered"]) for row in rows[1:])
    # Without loss, the delay is half of both round-trip times.
    assert [float(row["mean"]) for row in rows] == pytest.approx([0.04] * 3)
    assert {row["second_rtt"] for row in rows} == {"0.06"}
    assert rows[0]["source"].startswith("kind=video; bitrate=1000000.0; ")
    # Of 33 key frames, three are expected beyond the 90th percentile.
    assert (rows[2]["target_quantile"], rows[2]["p50"] == "") == ("", False)
    _, printed, _ = run(*VIDEO, "--quantile", "90%")
    assert re.search(r"^key frame +90 %: too few messages, 0 % dropped$", printed, flags=re.M)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--second-loss", "120%"], "--second-loss"),
        (["--second", "udp", "--buffer", "1kB"], "--buffer: must be left out with UDP on the second leg"),
        (["--second", "udp", "--congestion-control", "reno"], "--congestion-control: does not go with UDP on both"),
        (["--first", "sctp"], "--first"),
        (["--stack", "newreno_2008"], "must be one of Stack.linux(...), or Udp()"),
    ],
)
def test_wrong_options_get_one_line_and_status_2(refused, options, message):
    assert message in refused(*VOIP, *options)
