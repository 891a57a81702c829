import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.capture.estimate import PathEstimate
from tcpdelay.capture.ping import parse_ping, read_ping

EXAMPLES = Path(__file__).parents[1] / "examples"

IPUTILS = """\
PING example.net (192.0.2.7) 56(84) bytes of data.
64 bytes from 192.0.2.7 (192.0.2.7): icmp_seq=1 ttl=53 time=28.0 ms
64 bytes from 192.0.2.7 (192.0.2.7): icmp_seq=3 ttl=53 time=32.8 ms

--- example.net ping statistics ---
3 packets transmitted, 2 received, 33.3333% packet loss, time 2003ms
rtt min/avg/max/mdev = 28.015/30.432/32.849/2.417 ms
"""
WITH_EXTRAS = IPUTILS.replace("PING", "PATTERN: 0xff\nPING").replace(
    "2.417 ms", "2.417 ms, pipe 3, ipg/ewma 1.9/0.04 ms"
)
IPV6 = """\
PING 2001:db8::7(2001:db8::7) 56 data bytes
[1700000000.123456] 64 bytes from 2001:db8::7: icmp_seq=1 ttl=64 time=28.0 ms
[1700000001.123456] no answer yet for icmp_seq=2
[1700000002.123456] 64 bytes from 2001:db8::7: icmp_seq=3 ttl=64 time=32.8 ms

--- 2001:db8::7 ping statistics ---
3 packets transmitted, 2 received, 33.3333% packet loss, time 2003ms
rtt min/avg/max/mdev = 28.015/30.432/32.849/2.417 ms
"""
GERMAN = """\
--- example.net ping-Statistiken ---
3 Pakete übertragen, 2 empfangen, 33,3333% Paketverlust, Zeit 2003ms
rtt min/avg/max/mdev = 28.015/30.432/32.849/2.417 ms
"""
FRENCH = """\
--- statistiques ping example.net ---
3 paquets transmis, 2 reçus, 33,3333 % paquets perdus, temps 2003 ms
rtt min/moy/max/mdev = 28,015/30,432/32,849/2,417 ms
"""
TURKISH = """\
--- example.net ping istatistikleri ---
3 paket iletildi, 2 alındı, %33,3333 paket kaybı, zaman 2003ms
rtt en düşük/ortalama/en yüksek/mdev = 28.015/30.432/32.849/2.417 ms
"""  # noqa: RUF001
JAPANESE = """\
--- example.net ping 統計 ---
送信パケット数 3, 受信パケット数 2, パケット損失 33.3333%, 時間 2003ミリ秒
rtt 最小/平均/最大/mdev = 28.015/30.432/32.849/2.417ミリ秒
"""
CHINESE = """\
--- example.net ping 统计 ---
已发送 3 个包， 已接收 2 个包, 33.3333% 包丢失, 耗时 2003 毫秒
rtt 最小/平均/移动平均/最大 = 28.015/30.432/32.849/2.417 ms
"""  # noqa: RUF001
MACOS = """\
--- example.net ping statistics ---
3 packets transmitted, 2 packets received, 33.3% packet loss
round-trip min/avg/max/stddev = 28.015/30.432/32.849/2.417 ms
"""
BUSYBOX = """\
--- example.net ping statistics ---
3 packets transmitted, 2 packets received, 33% packet loss
round-trip min/avg/max = 28.015/30.432/32.849 ms
"""
WITH_ERRORS = IPUTILS.replace("2 received,", "2 received, +4 duplicates, +1 corrupted, +9 errors,")
IN_A_TERMINAL = (
    "user@host:~$ ping -c 3 example.net\r\n" + IPUTILS.replace("\n", "\r\n") + "user@host:~$ exit\r\n\r\n\r\n"
)


@pytest.mark.parametrize(
    "text",
    [IPUTILS, WITH_EXTRAS, IPV6, GERMAN, FRENCH, TURKISH, JAPANESE, CHINESE, MACOS, WITH_ERRORS, IN_A_TERMINAL],
)
def test_every_kind_of_summary_says_the_same(text):
    estimate = parse_ping(text)
    assert (estimate.source, estimate.sent, estimate.lost, estimate.loss) == ("ping", 3, 1, 1 / 3)
    assert (estimate.rtt_min, estimate.rtt, estimate.rtt_max) == (0.028015, 0.030432, 0.032849)
    assert estimate.rtt_deviation == 0.002417


def test_busybox_prints_no_deviation():
    estimate = parse_ping(BUSYBOX)
    assert (estimate.rtt, estimate.lost) == (0.030432, 1)
    assert estimate.rtt_deviation is None
    assert estimate.rtt_interval is None


@pytest.mark.parametrize("name", ["ping.txt", "ping-clean.txt"])
def test_recordings_agree_with_their_own_replies(name):
    estimate = read_ping(EXAMPLES / name)
    times = [float(value) for value in re.findall(r"time=([\d.]+) ms", (EXAMPLES / name).read_text())]
    assert estimate.sent - estimate.lost == len(times)
    # The replies are printed with three digits.
    assert estimate.rtt == pytest.approx(sum(times) / len(times) / 1000, rel=0.005)
    assert estimate.rtt_max == pytest.approx(max(times) / 1000, rel=0.005)
    assert estimate.rtt_min <= estimate.rtt_interval[0] < estimate.rtt < estimate.rtt_interval[1]
    assert estimate.path().rtt == estimate.rtt
    assert estimate.path(loss_pattern="correlated").loss_pattern == "correlated"


def test_interval_of_the_mean_is_students():
    # t(0.975; 1) = 12.706 and t(0.975; 4) = 2.776, from the tables; ping's deviation divides by n, not n - 1.
    five = parse_ping(
        "--- h ping statistics ---\n5 packets transmitted, 5 received, 0% packet loss, time 1ms\n"
        "rtt min/avg/max/mdev = 90.000/100.000/110.000/4.000 ms\n"
    )
    assert five.rtt_interval == pytest.approx((0.1 - 2.776 * 0.002, 0.1 + 2.776 * 0.002), abs=1e-6)
    low, high = parse_ping(IPUTILS).rtt_interval
    assert low == 0.028015
    assert high == pytest.approx(0.030432 + 12.706 * 0.002417, rel=1e-4)


def test_one_reply_has_no_interval():
    one = IPUTILS.replace("2 received, 33.3333%", "1 received, 66.6667%")
    assert parse_ping(one).rtt_interval is None


@pytest.mark.parametrize(
    ("lost", "sent", "low", "high"),
    # 0 of n: 1 - 0.025^(1/n). 1 of 10 and 10 of 100: Clopper and Pearson's limits as tabulated for 95 %.
    [(0, 20, 0.0, 0.16843), (1, 10, 0.00253, 0.44502), (10, 100, 0.04900, 0.17622), (20, 20, 0.83157, 1.0)],
)
def test_loss_interval_is_clopper_and_pearsons(lost, sent, low, high):
    interval = PathEstimate(source="ping", rtt=0.1, sent=sent, lost=lost).loss_interval
    assert interval == pytest.approx((low, high), abs=6e-6)


@given(sent=st.integers(1, 10**7), share=st.floats(0, 0.999))
def test_loss_to_predict_with_lies_inside_its_interval(sent, share):
    estimate = PathEstimate(source="ss", rtt=0.1, sent=sent, lost=int(share * sent))
    low, high = estimate.loss_interval
    assert 0 <= low <= estimate.loss <= high <= 1
    assert low <= estimate.loss_for_prediction <= high
    assert estimate.loss_for_prediction > 0
    assert estimate.path().loss == estimate.loss_for_prediction


def test_no_loss_seen_is_not_predicted_as_no_loss():
    estimate = PathEstimate(source="ping", rtt=0.1, sent=100, lost=0)
    assert estimate.loss == 0
    # The median of Beta(1/2, n + 1/2) tends to that of chi-squared with one degree of freedom, 0.4549, over 2 n.
    assert estimate.loss_for_prediction == pytest.approx(0.4549 / 200, rel=0.01)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rtt": 0.0, "sent": 1, "lost": 0}, "rtt must be above 0 s, got 0"),
        ({"rtt": 0.1, "sent": 0, "lost": 0}, "sent must be at least 1, got 0"),
        ({"rtt": 0.1, "sent": 3, "lost": 4}, "lost must lie between 0 and sent = 3, got 4"),
    ],
)
def test_an_impossible_estimate_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        PathEstimate(source="ping", **fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (IPUTILS[: IPUTILS.index("---")], "no summary as ping prints it at its end"),
        (IPUTILS[: IPUTILS.index("3 packets")], "the summary is cut off: the line with packets"),
        (IPUTILS[: IPUTILS.index("33.3333")], "the summary is cut off: the line with packets"),
        (IPUTILS[: IPUTILS.index("rtt min")], "2 packets received, but no complete line 'rtt min/avg/max/mdev"),
        (IPUTILS[: IPUTILS.index("17 ms")], "2 packets received, but no complete line 'rtt min/avg/max/mdev"),
        (IPUTILS[: IPUTILS.index("/2.417 ms")], "2 packets received, but no complete line 'rtt min/avg/max/mdev"),
        (IPUTILS + IPUTILS, "2 ping summaries; give one run per file"),
        (IPUTILS.replace("2 received, 33.3333%", "0 received, +3 errors, 100%"), "none of 3 packets came back"),
        (IPUTILS.replace("3 packets transmitted, 2", "0 packets transmitted, 0"), "ping sent no packet"),
        (IPUTILS.replace("2 received", "1 received"), "contradicts itself: 3 sent, 1 received, 33.3333 % lost"),
        (IPUTILS.replace("2 received", "4 received"), "contradicts itself: 3 sent, 4 received, 33.3333 % lost"),
        (IPUTILS.replace("28.015/", "31.000/"), "round-trip times are not in order: 31.000/30.432/32.849 ms"),
        (re.sub(r"28.015/30.432", "0.000/0.000", IPUTILS), "the mean round-trip time is 0 ms"),
    ],
)
def test_an_unusable_output_is_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=f"office.txt: .*{re.escape(message)}") as caught:
        parse_ping(text, "office.txt")
    assert "\n" not in str(caught.value)


def test_a_tiny_loss_is_printed_with_an_exponent():
    text = IPUTILS.replace(
        "3 packets transmitted, 2 received, 33.3333%", "10000000 packets transmitted, 9999999 received, 1e-05%"
    )
    assert parse_ping(text).loss == 1e-7


def test_unreadable_files_are_named(tmp_path):
    for name, content, message in [
        ("empty.txt", b" \n", "is empty"),
        ("binary.pcap", b"\xd4\xc3\xb2\xa1\x02\x00\x04\x00", "holds binary data, not the text that ping prints"),
        ("noise.txt", bytes(range(1, 256)) * 50, "no summary as ping prints it"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}: {message}"):
            read_ping(tmp_path / name)
    with pytest.raises(ValueError, match=r"missing.txt: cannot be read: No such file"):
        read_ping(tmp_path / "missing.txt")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        read_ping(tmp_path)
    with pytest.raises(ValueError, match="is no valid file name"):
        read_ping("a\0b")


def test_a_huge_file_is_refused_unread(tmp_path):
    huge = tmp_path / "huge.txt"
    huge.touch()
    os.truncate(huge, 3 * 2**30)
    with pytest.raises(ValueError, match=r"huge.txt: 3072 MiB are too many for the output of ping; at most 64 MiB"):
        read_ping(huge)


def test_a_device_without_end_is_refused():
    with pytest.raises(ValueError, match="/dev/zero: 64 MiB are too many"):
        read_ping("/dev/zero")


def test_latin_1_words_do_not_matter(tmp_path):
    (tmp_path / "ping.txt").write_bytes(GERMAN.encode("latin-1"))
    assert read_ping(tmp_path / "ping.txt").sent == 3


@given(
    cut=st.integers(0, len(IPUTILS)),
    place=st.integers(0, len(IPUTILS)),
    inserted=st.text(max_size=8) | st.sampled_from(["9" * 30, "%", "/", " ms", "\n", "--- x ---", "e-99", "-1", ","]),
    text=st.sampled_from([IPUTILS, IPV6, FRENCH, TURKISH, BUSYBOX]),
)
def test_damaged_output_gives_an_estimate_or_one_line(text, cut, place, inserted):
    damaged = (text[:place] + inserted + text[place + len(inserted) // 2 :])[:cut]
    try:
        estimate = parse_ping(damaged)
    except ValueError as mistake:
        message = str(mistake)
        assert message.startswith("ping output: ")
        assert "\n" not in message
    else:
        assert estimate.rtt > 0
        assert 0 <= estimate.loss < 1


@pytest.mark.parametrize("piece", ["--- ", "1/", "= 1.000/1.000/1.000/", "9", "\n", "1 ", "--- x ---\n", "1%,"])
def test_long_nonsense_is_refused_at_once(piece):
    text = "--- x ---\n3 packets, 2 received, 33% loss\n" + piece * (2**20 // len(piece))
    started = time.perf_counter()
    with pytest.raises(ValueError, match="ping output: "):
        parse_ping(text)
    assert time.perf_counter() - started < 2
