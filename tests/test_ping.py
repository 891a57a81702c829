"""Outputs of ping, of Linux and of other programs; the forms are those of recordings in public repositories."""

import codecs
import json
import os
import re
import time
from dataclasses import astuple
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


# Other programs than the ping of Linux

WINDOWS_ENGLISH = """
Pinging 192.0.2.10 with 32 bytes of data:
Reply from 192.0.2.10: bytes=32 time=48ms TTL=52
Reply from 192.0.2.10: bytes=32 time=51ms TTL=52
Request timed out.
Reply from 192.0.2.10: bytes=32 time=49ms TTL=52

Ping statistics for 192.0.2.10:
    Packets: Sent = 4, Received = 3, Lost = 1 (25% loss),
Approximate round trip times in milli-seconds:
    Minimum = 48ms, Maximum = 51ms, Average = 49ms
"""
WINDOWS_GERMAN = """
Ping wird ausgeführt für 192.0.2.10 mit 32 Bytes Daten:
Antwort von 192.0.2.10: Bytes=32 Zeit=48ms TTL=52
Zeitüberschreitung der Anforderung.

Ping-Statistik für 192.0.2.10:
    Pakete: Gesendet = 4, Empfangen = 3, Verloren = 1
    (25% Verlust),
Ca. Zeitangaben in Millisek.:
    Minimum = 48ms, Maximum = 51ms, Mittelwert = 49ms
"""
WINDOWS_FRENCH = """
Envoi d’une requête 'Ping'  192.0.2.10 avec 32 octets de données :
Réponse de 192.0.2.10 : octets=32 temps=48 ms TTL=52

Statistiques Ping pour 192.0.2.10:
    Paquets : envoyés = 4, reçus = 3, perdus = 1 (perte 25%),
Durée approximative des boucles en millisecondes :
    Minimum = 48ms, Maximum = 51ms, Moyenne = 49ms
"""  # noqa: RUF001
SPANISH = """
Haciendo ping a 192.0.2.10 con 32 bytes de datos:
Respuesta desde 192.0.2.10: bytes=32 tiempo=48ms TTL=52

Estadísticas de ping para 192.0.2.10:
    Paquetes: enviados = 4, recibidos = 3, perdidos = 1
    (25% perdidos),
Tiempos aproximados de ida y vuelta en milisegundos:
    Mínimo = 48ms, Máximo = 51ms, Media = 49ms
"""
PORTUGUESE = """
Estatísticas do Ping para 192.0.2.10:
    Pacotes: Enviados = 4, Recebidos = 3, Perdidos = 1 (25% de
             perda),
Aproximar um número redondo de vezes em milissegundos:
    Mínimo = 48ms, Máximo = 51ms, Média = 49ms
"""
ITALIAN = """
Risposta da 192.0.2.10: byte=32 durata=48ms TTL=52

Statistiche Ping per 192.0.2.10:
    Pacchetti: Trasmessi = 4, Ricevuti = 3,
    Persi = 1 (25% persi),
Tempo approssimativo percorsi andata/ritorno in millisecondi:
    Minimo = 48ms, Massimo =  51ms, Medio =  49ms
"""
WINDOWS_TURKISH = """
192.0.2.10 için Ping istatistiği:
    Paket: Giden = 4, Gelen = 3, Kaybolan = 1 (%25 kayıp),
Mili saniye türünden yaklaşık tur süreleri:
    En Az = 48ms, En Çok = 51ms, Ortalama = 49ms
"""  # noqa: RUF001
RUSSIAN = """
Ответ от 192.0.2.10: число байт=32 время=48мс TTL=52

Статистика Ping для 192.0.2.10:
    Пакетов: отправлено = 4, получено = 3, потеряно = 1
    (25% потерь)
Приблизительное время приема-передачи в мс:
    Минимальное = 48мсек, Максимальное = 51 мсек, Среднее = 49 мсек
"""  # noqa: RUF001
WINDOWS_JAPANESE = """
192.0.2.10 からの応答: バイト数 =32 時間 =48ms TTL=52

192.0.2.10 の ping 統計:
    パケット数: 送信 = 4、受信 = 3、損失 = 1 (25% の損失)、
ラウンド トリップの概算時間 (ミリ秒):
    最小 = 48ms、最大 = 51ms、平均 = 49ms
"""
WINDOWS_CHINESE = """
来自 192.0.2.10 的回复: 字节=32 时间=48ms TTL=52

192.0.2.10 的 Ping 统计信息:
    数据包: 已发送 = 4，已接收 = 3，丢失 = 1 (25% 丢失)，
往返行程的估计时间(以毫秒为单位):
    最短 = 48ms，最长 = 51ms，平均 = 49ms
"""  # noqa: RUF001
IN_POWERSHELL = "PS C:\\> ping -n 4 192.0.2.10\n" + WINDOWS_ENGLISH + "Control-C\nPS C:\\> exit\n"
WINDOWS = {
    "en": WINDOWS_ENGLISH,
    "de": WINDOWS_GERMAN,
    "fr": WINDOWS_FRENCH,
    "es": SPANISH,
    "pt": PORTUGUESE,
    "it": ITALIAN,
    "tr": WINDOWS_TURKISH,
    "ru": RUSSIAN,
    "ja": WINDOWS_JAPANESE,
    "zh": WINDOWS_CHINESE,
    "terminal": IN_POWERSHELL,
    "crlf": WINDOWS_ENGLISH.replace("\n", "\r\n"),
}


def four_sent(estimate):
    times = [estimate.rtt_min, estimate.rtt, estimate.rtt_max]
    return (estimate.source, estimate.sent, estimate.lost, times) == ("ping", 4, 1, [0.048, 0.049, 0.051])


@pytest.mark.parametrize("language", WINDOWS)
def test_windows_ping_is_read_in_every_language(language):
    assert four_sent(parse_ping(WINDOWS[language]))


@pytest.mark.parametrize(
    ("language", "encoding", "mark"),
    [
        # PowerShell 5 redirects in UTF-16; cmd.exe in the code page of the console.
        ("en", "utf-16-le", codecs.BOM_UTF16_LE),
        ("fr", "utf-16-be", codecs.BOM_UTF16_BE),
        ("de", "utf-16-le", b""),
        ("ru", "utf-16-le", codecs.BOM_UTF16_LE),
        ("es", "utf-16-be", b""),
        ("ja", "utf-16-le", b""),
        ("ru", "utf-16-be", b""),
        ("zh", "utf-16-le", b""),
        ("en", "utf-8", codecs.BOM_UTF8),
        ("de", "cp850", b""),
        ("es", "cp1252", b""),
        ("ru", "cp866", b""),
        ("ja", "cp932", b""),
        ("zh", "gbk", b""),
        ("tr", "cp857", b""),
    ],
)
def test_files_of_windows_are_read_in_their_encodings(tmp_path, language, encoding, mark):
    file = tmp_path / "ping.txt"
    file.write_bytes(mark + WINDOWS[language].encode(encoding))
    assert four_sent(read_ping(file))


@pytest.mark.parametrize(
    ("language", "encoding", "unreachable"),
    [
        ("ru", "cp866", "Ответ от 192.0.2.1: Заданный узел недоступен."),
        ("ja", "cp932", "192.0.2.1 からの応答: 宛先ホストに到達できません。"),
        ("zh", "gbk", "来自 192.0.2.1 的回复: 无法访问目标主机。"),
        ("tr", "cp857", "192.0.2.1 cevabı: Hedef ana bilgisayara erişilemiyor."),  # noqa: RUF001
    ],
    ids=["ru", "ja", "zh", "tr"],
)
def test_an_unreachable_host_is_lost_in_every_code_page(tmp_path, language, encoding, unreachable):
    file = tmp_path / "ping.txt"
    file.write_bytes((unreachable + WINDOWS[language]).encode(encoding))
    assert (read_ping(file).sent, read_ping(file).lost) == (4, 2)


def test_windows_counts_error_messages_as_replies_and_they_are_lost():
    text = WINDOWS_ENGLISH.replace("Request timed out.", "Reply from 192.0.2.1: Destination host unreachable.").replace(
        "Received = 3, Lost = 1 (25%", "Received = 4, Lost = 0 (0%"
    )
    assert four_sent(parse_ping(text))
    for answer in ("来自 192.0.2.1 的回复: 无法访问目标主机。", "Antwort von 2001:db8::1: Zielhost nicht erreichbar."):
        none = f"{answer}\n" * 4 + "\nx:\n    A: B = 4, C = 4, D = 0 (0% E),\n"
        with pytest.raises(ValueError, match="none of 4 packets came back"):
            parse_ping(none)


SOLARIS = """\
PING www.example.com: 56 data bytes
64 bytes from host (192.0.2.10): icmp_seq=0. time=31.6 ms

----www.example.com PING Statistics----
200 packets transmitted, 196 packets received, 2% packet loss
round-trip (ms)  min/avg/max/stddev = 31.600/33.500/41.900/0.083
"""
HPING = """\
HPING 192.0.2.10 (eth0 192.0.2.10): S set, 40 headers + 0 data bytes
len=44 ip=192.0.2.10 ttl=64 DF id=0 sport=22 flags=SA seq=0 win=29200 rtt=31.6 ms

--- 192.0.2.10 hping statistic ---
200 packets transmitted, 196 packets received, 2% packet loss
round-trip min/avg/max = 31.6/33.5/41.9 ms
"""
BUSYBOX_200_PACKETS = """\
--- 192.0.2.10 ping statistics ---
200 packets transmitted, 196 packets received, 2% packet loss
round-trip min/avg/max = 31.6/33.5/41.9 ms
"""
ROUTER = "!!!!.\nSuccess rate is 98 percent (196/200), round-trip min/avg/max = 31.6/33.5/41.9 ms\n"
FPING = "192.0.2.10 : xmt/rcv/%loss = 200/196/2%, min/avg/max = 31.6/33.5/41.9\n"
MTR = """\
Start: 2026-05-19T10:00:00+0000
HOST: proxmox-01                  Loss%   Snt   Last   Avg  Best  Wrst StDev
  1.|-- 10.10.10.1                 0.0%   200    0.4   0.4   0.3   0.6   0.1
  2.|-- ???                       100.0   200    0.0   0.0   0.0   0.0   0.0
  3.|-- 192.0.2.10                 2.0%   200    9.1  33.5  31.6  41.9   0.2
"""
HUB = {"Loss%": 2.0, "Snt": 200, "Last": 30.0, "Avg": 33.5, "Best": 31.6, "Wrst": 41.9, "StDev": 0.2}
MTR_JSON = json.dumps({"report": {"mtr": {"dst": "192.0.2.10", "tests": 200}, "hubs": [{"count": 1, **HUB}]}})
OLDER_MTR_JSON = json.dumps({"report": {"mtr": {"hubs": [{"count": 1, **HUB}]}}})


MTR_ORDER = """\
HOST: proxmox-01                  Loss%  Drop   Rcv   Snt   Last   Avg  Best  Wrst StDev
  1.|-- 192.0.2.10                 2.0%     4   196   200    9.1  33.5  31.6  41.9   0.2
"""
MTR_CSV = """\
Mtr_Version,Start_Time,Status,Host,Hop,Ip,Loss%,Snt, ,Last,Avg,Best,Wrst,StDev,
MTR.0.95,1700000000,OK,192.0.2.10,1,10.0.0.1,0.00,200,0,0.40,0.40,0.30,0.60,0.10
MTR.0.95,1700000000,OK,192.0.2.10,2,192.0.2.10,2.00,200,4,49.10,33.50,31.60,41.90,0.20
"""
FPING_STATISTICS = """\
192.0.2.10 is alive (33.5 ms)

       1 targets
     200 ICMP Echos sent
     196 ICMP Echo Replies received

 31.6 ms (min round trip time)
 33.5 ms (avg round trip time)
 41.9 ms (max round trip time)
        0.123 sec (elapsed real time)
"""
FPING_JSON = """\
{"resp": {"host":"192.0.2.10","seq":0,"size":64,"rtt":31.6}}
{"summary": {"host":"192.0.2.10","xmt":200,"rcv":196,"loss":2,"rttMin":31.6,"rttAvg":33.5,"rttMax":41.9}}
"""
NPING = """\
Max rtt: 41.900ms | Min rtt: 31.600ms | Avg rtt: 33.500ms
Raw packets sent: 200 (8.4KB) | Rcvd: 196 (8.2KB) | Lost: 4 (2.00%)
"""
MIKROTIK = """\
  SEQ HOST                                     SIZE TTL TIME       STATUS
    0 192.0.2.10                                 56  52 31ms600us
    sent=20 received=20 packet-loss=0% min-rtt=31ms600us avg-rtt=32ms max-rtt=33ms
    1 192.0.2.10                                 56  52 41ms900us
    sent=200 received=196 packet-loss=2% min-rtt=31ms600us avg-rtt=33ms500us max-rtt=41ms900us
"""
HUAWEI = """\
  --- 192.0.2.10 ping statistics ---
    200 packet(s) transmitted
    196 packet(s) received
    2.00% packet loss
    round-trip min/avg/max = 31.6/33.5/41.9 ms
"""
PROGRAMS = [
    SOLARIS,
    HPING,
    BUSYBOX_200_PACKETS,
    ROUTER,
    FPING,
    FPING_STATISTICS,
    FPING_JSON,
    MTR,
    MTR_ORDER,
    MTR_CSV,
    MTR_JSON,
]
PROGRAMS += [OLDER_MTR_JSON, NPING, MIKROTIK, HUAWEI]


@pytest.mark.parametrize("text", PROGRAMS)
def test_programs_with_fewer_decimals_and_other_probes_say_the_same(text):
    estimate = parse_ping(text)
    assert (estimate.sent, estimate.lost, estimate.source) == (200, 4, "ping")
    assert (estimate.rtt_min, estimate.rtt, estimate.rtt_max) == pytest.approx((0.0316, 0.0335, 0.0419), abs=1e-12)


def test_whole_milliseconds_of_toybox_and_lists_of_fping():
    toybox = BUSYBOX_200_PACKETS.replace("31.6/33.5/41.9", "31/33/41")
    assert astuple(parse_ping(toybox))[:4] == ("ping", 0.033, 200, 4)
    listed = parse_ping("192.0.2.10 : 30.0 - 33.0 36.0\n")
    assert (listed.sent, listed.lost, listed.rtt) == (4, 1, pytest.approx(0.033))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            WINDOWS_ENGLISH[: WINDOWS_ENGLISH.index("Ping statistics")],
            r"'Ping statistics for host:'\); record again .*ping -n 100 HOST",
        ),
        ("hello\n", "ping -c 100 HOST, on Windows ping -n 100 HOST"),
        (WINDOWS_ENGLISH[: WINDOWS_ENGLISH.index(", Average")], "3 packets received, but no complete line"),
        (WINDOWS_ENGLISH + WINDOWS_GERMAN, "2 ping summaries; give one run per file"),
        (
            WINDOWS_ENGLISH.replace("Lost = 1 (25%", "Lost = 1 (50%"),
            "contradicts itself: 4 sent, 3 received, 50 % lost",
        ),
        (
            WINDOWS_ENGLISH.replace("48ms", "0ms").replace("51ms", "0ms").replace("49ms", "0ms"),
            "mean round-trip time is 0 ms",
        ),
        (BUSYBOX_200_PACKETS[: BUSYBOX_200_PACKETS.index(" ms")], "196 packets received, but no complete line"),
        (SOLARIS.rstrip("\n")[:-5] + "/", "196 packets received, but no complete line"),
        (FPING + FPING.replace("192.0.2.10", "192.0.2.11"), "2 results of fping; give one run to one host per file"),
        ("192.0.2.10 : xmt/rcv/%loss = 5/0/100%\n", "none of 5 packets came back"),
        (MTR[: MTR.index("  1.|--")], "no hop as mtr prints it"),
        (MTR[: MTR.index("  3.|--")], "the last hop of mtr did not answer"),
        (MTR_JSON[:-5], "the JSON is cut off or damaged"),
        ("{}", "no JSON as 'mtr --json' or 'iperf3 --json' prints it"),
        ('{"report": 5}', "no JSON as mtr or iperf3 prints it"),
        ("Success rate is 0 percent (0/5)\n", "none of 5 packets came back"),
        ("sent=5 received=0 packet-loss=100%\n", "none of 5 packets came back"),
        ('{"summary": {"host":"h","xmt":5,"rcv":0,"loss":100}}', "none of 5 packets came back"),
        (FPING_JSON + FPING_JSON, "2 results of fping"),
        ("traceroute to h (192.0.2.10), 30 hops max\n 1  10.0.0.1  0.4 ms\n", "three packets to each hop; record ping"),
        ("[  5]  0.00-10.00 sec  112 MBytes  94.1 Mbits/sec  12  sender\n", "record iperf3 --json"),
        ("\nSource        Destination     IPV4Address      IPV6Address\n", "record ping -n 100 HOST"),
        ("x 0 1\nh 0 192.0.2.10\np 0 48000 1\n", "record mtr --json or mtr --report"),
    ],
)
def test_other_unusable_outputs_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_ping(text)


def iperf(**sender):
    """Return the JSON of iperf3, as version 3.9 prints it, with some of its members."""
    sent = {"bytes": 1448_000, "retransmits": 10, "max_rtt": 195254, "min_rtt": 90000, "mean_rtt": 100000, **sender}
    return {
        "start": {"version": "iperf 3.9", "tcp_mss_default": 1448, "test_start": {"protocol": "TCP"}},
        "intervals": [],
        "end": {"streams": [{"sender": sent, "receiver": {"bytes": 0}}]},
    }


def test_iperf3_shows_retransmissions_and_round_trip_times():
    estimate = parse_ping(json.dumps(iperf()))
    assert (estimate.source, estimate.sent, estimate.lost, estimate.mss) == ("iperf3", 1010, 10, 1448)
    assert (estimate.rtt_min, estimate.rtt, estimate.rtt_max) == (0.09, 0.1, 0.195254)
    with pytest.raises(ValueError, match="shows no round-trip times and retransmissions of its sender"):
        parse_ping(json.dumps(iperf(mean_rtt=0)))
    udp = iperf() | {"start": {"test_start": {"protocol": "UDP"}}}
    with pytest.raises(ValueError, match="no round-trip time over UDP"):
        parse_ping(json.dumps(udp))
    with pytest.raises(ValueError, match="iperf3 ended with an error: unable to connect"):
        parse_ping(json.dumps(iperf() | {"error": "unable to connect"}))


def broadcast(listed):
    """Return a ping of 3 packets to a broadcast address, which 21 hosts answer; the nearest first."""
    lines = []
    for number in (1, 2, 3):
        lines.append(f"64 bytes from 192.0.2.1: icmp_seq={number} ttl=64 time=0.3 ms")
        lines += [f"64 bytes from 192.0.2.9: icmp_seq={number} ttl=64 time=200 ms (DUP!)"] * 20
    summary = """
--- 192.0.2.255 ping statistics ---
3 packets transmitted, 3 received, +60 duplicates, 0% packet loss, time 2003ms
rtt min/avg/max/mdev = 0.300/190.490/200.000/42.5 ms
"""
    return "\n".join(lines) * listed + summary


def test_duplicate_replies_do_not_count_in_the_round_trip_times():
    estimate = parse_ping(broadcast(listed=True))
    assert (estimate.sent, estimate.lost) == (3, 0)
    assert (estimate.rtt_min, estimate.rtt, estimate.rtt_max) == pytest.approx((0.0003,) * 3)
    assert estimate.rtt_deviation == pytest.approx(0.0)
    for text in (broadcast(listed=False), broadcast(listed=False).replace("duplicates", "Duplikate")):
        with pytest.raises(ValueError, match="the times include 60 duplicate replies, as to a broadcast address"):
            parse_ping(text)


def test_a_rare_duplicate_and_error_messages_change_nothing():
    text = """\
--- 192.0.2.10 ping statistics ---
1000 packets transmitted, 990 received, +{}, 1% packet loss, time 2003ms
rtt min/avg/max/mdev = 30.000/40.000/80.000/5.000 ms
"""
    assert parse_ping(text.format("1 duplicates")).rtt == 0.04
    assert parse_ping(text.format("10 errors")).rtt == 0.04
