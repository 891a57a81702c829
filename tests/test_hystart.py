"""HyStart, acknowledgement by acknowledgement: a window of 20 segments, RTT 100 ms."""

import pytest

import tcpdelay as td
from tcpdelay.sim.engine import new_connection
from tcpdelay.sim.records import ticks_now
from tcpdelay.sim.tcp.constants import INFINITE_THRESHOLD, SECOND
from tcpdelay.sim.tcp.window import forget_rounds, in_slow_start, note_rtt

START, RTT, MSS = 10_000_000, 100_000, 1448


def connection(window=20, control="cubic"):
    """Return a connection at the beginning of a round."""
    c, _ = new_connection(
        td.Flow(MSS, 0.02, write_jitter=0), td.Path(rtt=0.1, loss=0.0), td.Stack.linux(control), seed=1
    )
    c.now, c.snd_cwnd, c.snd_nxt = START, window, window * MSS
    note_rtt(c, RTT)
    c.snd_una = MSS
    note_rtt(c, RTT)
    assert c.snd_ssthresh == INFINITE_THRESHOLD
    return c


def next_round():
    """Return a connection whose second round begins with the next acknowledgement."""
    c = connection()
    c.snd_una, c.snd_nxt = c.hystart_end_seq + 1, 2 * c.hystart_end_seq
    return c


def acknowledge(c, milliseconds, rtt=RTT):
    c.now = START + round(milliseconds * 1000)
    note_rtt(c, rtt)
    return not in_slow_start(c)


def test_a_train_of_half_the_delay_ends_slow_start():
    c = connection()
    # (100 ms + 1 ms) / 2 = 50.5 ms after the round's beginning.
    assert not any(acknowledge(c, time) for time in range(2, 51, 2))
    assert acknowledge(c, 50.501)
    assert (c.snd_ssthresh, c.hystart_found) == (20, 1)


def test_a_gap_of_more_than_two_milliseconds_breaks_the_train():
    c = connection()
    assert not any(acknowledge(c, time) for time in (2, 4, 6.001, 8, 10, 60, 70))


def test_a_rise_of_an_eighth_ends_slow_start_at_the_ninth_sample():
    c = next_round()
    assert not any(acknowledge(c, time, RTT + 12_501) for time in range(100, 180, 10))
    assert acknowledge(c, 180, RTT + 12_501)


def test_one_short_sample_tells_that_there_is_no_queue_yet():
    c = next_round()
    samples = [RTT + 20_000] * 7 + [RTT + 12_500] + [RTT + 20_000] * 7
    assert not any(acknowledge(c, 100 + 10 * number, rtt) for number, rtt in enumerate(samples))


@pytest.mark.parametrize(("window", "control"), [(15, "cubic"), (20, "reno")])
def test_small_windows_and_reno_are_left_alone(window, control):
    c = connection(window, control)
    assert not any(acknowledge(c, time, 2 * RTT) for time in range(2, 100, 2))


def test_samples_of_the_first_second_after_a_reduction_do_not_count():
    c = connection()
    c.cubic_epoch = ticks_now(c)
    assert not any(acknowledge(c, time) for time in range(2, 999, 2))
    c.hystart_last_ack = START + 999_000
    assert acknowledge(c, 1000.5)


def test_a_timeout_begins_anew():
    c = connection()
    acknowledge(c, 2)
    c.hystart_found = 1
    forget_rounds(c)
    assert (c.hystart_found, c.cubic_delay_min, c.hystart_samples) == (0, 0, 0)
    assert c.hystart_round_start == START + 2 * SECOND // 1000
