import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.capture.ss import Connection, parse_ss, read_connections, read_ss

EXAMPLES = Path(__file__).parents[1] / "examples"

HEADER = "State Recv-Q Send-Q Local Address:Port  Peer Address:PortProcess\n"
SENDER = "ESTAB 0      870         10.0.0.1:38590     10.0.0.2:5001"
INFORMATION = (
    "cubic wscale:6,6 rto:310 rtt:101/1.287 mss:1448 pmtu:1500 rcvmss:536 advmss:1448 cwnd:4 ssthresh:2 "
    "bytes_sent:543228 bytes_retrans:9918 bytes_acked:532441 segs_out:2885 segs_in:2822 data_segs_out:2883 "
    "send 458772bps lastrcv:61300 pacing_rate 550520bps delivery_rate 326336bps delivered:2829 app_limited "
    "busy:61300ms unacked:3 retrans:1/50 lost:2 dsack_dups:4 rcv_space:14480 minrtt:100 snd_wnd:1246144"
)
PLAIN = f"{HEADER}{SENDER}\n\t {INFORMATION}\n"
USERS = 'users:(("rtt:1/1 cwnd:x ))",pid=7,fd=3),("b",pid=8,fd=3))'


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.removeprefix(HEADER),
        PLAIN.replace("State", "Netid State").replace("ESTAB", "tcp   ESTAB"),
        PLAIN.replace("ESTAB ", ""),
        PLAIN.replace("\n\t ", f" {USERS} timer:(on,310ms,0) uid:1000 ino:5 sk:2 cgroup:/a <->\n\t "),
        PLAIN.replace("cubic", "skmem:(r0,rb131072,t0,tb87040,f0,w0,o0,bl0,d0) ts sack ecn cubic"),
        f"{SENDER} {USERS} ts sack {INFORMATION}\n",
        PLAIN.replace(" bytes_sent", "\nbytes_sent").replace(" busy", "\n   busy"),
        PLAIN.replace("\n", "\r\n"),
        "    " + PLAIN.replace("\n", "\n    "),
        PLAIN.rstrip("\n"),
        f"$ ss -tin\n{PLAIN}\n$ exit",
    ],
)
def test_every_way_to_print_says_the_same(text):
    (connection,) = parse_ss(text)
    assert connection == Connection(
        local="10.0.0.1:38590",
        peer="10.0.0.2:5001",
        congestion_control="cubic",
        rtt=0.101,
        rtt_deviation=0.001287,
        rtt_min=0.1,
        retransmission_timeout=0.31,
        mss=1448,
        congestion_window=4,
        slow_start_threshold=2,
        bytes_sent=543228,
        bytes_retransmitted=9918,
        segments_out=2885,
        data_segments_out=2883,
        retransmissions_in_flight=1,
        retransmissions=50,
        unacknowledged=3,
        marked_lost=2,
        spurious_retransmissions=4,
        delivered=2829,
        send_rate=458772.0,
        delivery_rate=326336.0,
        app_limited=True,
        send_queue=870,
        bytes_acknowledged=532441,
    )


def test_estimate_counts_what_was_sent_and_neither_arrived_nor_is_in_flight():
    (connection,) = parse_ss(PLAIN)
    estimate = connection.estimate()
    # The kernel's bytes agree: 9918 B in 50 retransmissions are 57 packets of 174 B, 4 of them were duplicates.
    assert (estimate.source, estimate.sent, estimate.lost, estimate.loss) == ("ss", 2883, 53, 53 / 2883)
    assert (estimate.rtt, estimate.rtt_min, estimate.rtt_deviation) == (0.101, 0.1, 0.001287)
    assert (estimate.mss, estimate.congestion_window) == (1448, 4)
    assert estimate.path().loss == 53 / 2883


def test_without_the_count_of_deliveries_retransmissions_less_duplicates_are_losses():
    old = PLAIN.replace(" delivered:2829", "")
    assert parse_ss(old)[0].estimate().lost == 46
    (more_reported_than_sent,) = parse_ss(old.replace("dsack_dups:4", "dsack_dups:60"))
    assert more_reported_than_sent.estimate().lost == 0


def test_the_backlog_is_read_and_payload_not_sent_yet():
    (connection,) = parse_ss(PLAIN.replace(" minrtt", " notsent:348 minrtt"))
    assert (connection.send_queue, connection.unsent_bytes) == (870, 348)


def test_no_retransmission_printed_means_none():
    (connection,) = parse_ss(PLAIN.replace(" retrans:1/50", "").replace(" dsack_dups:4", ""))
    assert connection.estimate().lost == 0
    assert connection.estimate().loss_for_prediction == pytest.approx(0.2275 / 2883, rel=0.01)


def test_an_old_kernel_counts_all_segments():
    (connection,) = parse_ss(PLAIN.replace(" data_segs_out:2883", ""))
    assert connection.estimate().sent == 2885


def test_rates_are_read_with_and_without_prefix():
    (connection,) = parse_ss(PLAIN.replace("458772bps", "2.31Gbps").replace("326336bps", "326Kbps"))
    assert (connection.send_rate, connection.delivery_rate) == (2.31e9, 326e3)


def test_ipv6_and_interfaces_are_part_of_an_end():
    text = PLAIN.replace("10.0.0.1:38590", "[fe80::1%eth0]:38590").replace("10.0.0.2:5001", "[::ffff:10.0.0.2]:5001")
    (connection,) = parse_ss(text)
    assert (connection.local, connection.peer) == ("[fe80::1%eth0]:38590", "[::ffff:10.0.0.2]:5001")


def test_other_congestion_controls_are_read():
    for name, information in [
        ("bbr", "bbr wscale:7,7 rto:310 rtt:101/1 bbr:(bw:4.5Mbps,mrtt:100.1,pacing_gain:2.88) cwnd:4"),
        ("reno", "ts sack reno rto:310 rtt:101/1 cwnd:4"),
        (None, "ts sack rto:310 rtt:101/1 cwnd:4"),
    ]:
        (connection,) = parse_ss(f"{SENDER}\n\t {information} data_segs_out:9\n")
        assert connection.congestion_control == name
        assert (connection.rtt, connection.congestion_window) == (0.101, 4)


def test_listening_sockets_are_left_out():
    listening = "LISTEN 0 128 0.0.0.0:22 0.0.0.0:*\n\t cubic cwnd:10\nLISTEN 0 128 [::]:22 [::]:*\n\t cubic cwnd:10\n"
    assert parse_ss(listening + PLAIN) == parse_ss(PLAIN)
    with pytest.raises(ValueError, match="no TCP connection as 'ss -tin' prints it"):
        parse_ss(listening)


def test_the_last_of_several_states_counts():
    later = PLAIN.replace("data_segs_out:2883", "data_segs_out:5000").replace("retrans:1/50", "retrans:0/90")
    (connection,) = parse_ss(PLAIN + later)
    assert (connection.data_segments_out, connection.retransmissions) == (5000, 90)


@pytest.mark.parametrize("name", ["ss.txt", "ss-several.txt"])
def test_recordings_hold_what_a_plain_search_finds(name):
    text = (EXAMPLES / name).read_text()
    connections = read_connections(EXAMPLES / name)
    assert [connection.peer for connection in connections] == re.findall(r"^ESTAB.* (\S+:\d+)\s*$", text, re.MULTILINE)
    assert [connection.rtt for connection in connections] == [
        pytest.approx(float(rtt) / 1000) for rtt in re.findall(r" rtt:([\d.]+)/", text)
    ]
    assert [connection.data_segments_out for connection in connections] == [
        int(count) for count in re.findall(r" data_segs_out:(\d+)", text)
    ]
    totals = [re.search(r" retrans:\d+/(\d+)", line) for line in text.splitlines() if " rtt:" in line]
    assert [connection.retransmissions for connection in connections] == [int(m[1]) if m else 0 for m in totals]
    assert all(connection.estimate().path().rtt == connection.rtt for connection in connections)


def test_one_recorded_connection_is_taken_and_several_are_listed():
    assert read_ss(EXAMPLES / "ss.txt").peer == "10.0.0.2:5001"
    with pytest.raises(ValueError, match=r"ss-several.txt: 4 connections, choose one by its address: ") as caught:
        read_ss(EXAMPLES / "ss-several.txt")
    assert str(caught.value).count(" -> ") == 4
    assert read_ss(EXAMPLES / "ss-several.txt", "10.0.3.2:5003").peer == "10.0.3.2:5003"
    assert read_ss(EXAMPLES / "ss-several.txt", "10.0.1.").peer == "10.0.1.2:5001"


@pytest.fixture
def recording(tmp_path):
    def write(*rows):
        path = tmp_path / "ss.txt"
        path.write_text("".join(f"ESTAB 0 0 {local} {peer}\n\t {information}\n" for local, peer, information in rows))
        return path

    return write


SENT = "cubic rto:300 rtt:100/1 segs_out:90 data_segs_out:80"
RECEIVED = "cubic rto:300 rtt:100/1 segs_out:90 data_segs_in:80"


def test_the_only_connection_with_data_is_taken(recording):
    rows = ("a:1", "b:22", RECEIVED), ("a:2", "c:80", SENT), ("a:3", "d:80", "")
    assert read_ss(recording(*rows)).peer == "c:80"
    assert read_ss(recording(*rows), ":80").peer == "c:80"


def test_a_whole_end_goes_before_a_part(recording):
    rows = ("a:1", "b:8", SENT), ("a:2", "b:80", SENT), ("a:3", "b:800", SENT)
    assert read_ss(recording(*rows), "b:80").local == "a:2"
    with pytest.raises(ValueError, match="3 connections that match 'b:', choose one by its address: a:1 -> b:8, a:2"):
        read_ss(recording(*rows), "b:")


@pytest.mark.parametrize(
    ("rows", "wanted", "message"),
    [
        ([("a:1", "b:2", "")], None, "the connection a:1 -> b:2 shows no round-trip time (was it recorded with the"),
        ([("a:1", "b:2", RECEIVED)], None, "the connection a:1 -> b:2 has sent no data, so its loss is unknown"),
        ([("a:1", "b:2", "cubic rto:300 rtt:100/1")], None, "the connection a:1 -> b:2 shows no numbers of segments"),
        ([("a:1", "b:2", f"{SENT} retrans:0/80")], None, "the connection a:1 -> b:2 has sent 80 segments, 80 of them"),
        ([("a:1", "b:2", SENT)], "c", "no connection matches 'c'; it holds a:1 -> b:2"),
        (
            [("a:1", "b:2", ""), ("a:3", "b:4", "")],
            None,
            "no path can be estimated from any of 2 connections; the first",
        ),
        ([(f"a:{i}", "b:2", SENT) for i in range(25)], None, "a:9 -> b:2 and 15 more"),
    ],
)
def test_a_choice_that_cannot_be_made_is_explained(recording, rows, wanted, message):
    with pytest.raises(ValueError, match=f"ss.txt: .*{re.escape(message)}"):
        read_ss(recording(*rows), wanted)


def test_a_connection_without_data_gives_no_estimate():
    with pytest.raises(ValueError, match="the connection a:1 -> b:2 has sent no data"):
        Connection(local="a:1", peer="b:2", rtt=0.1, segments_out=0).estimate()


# Forms of ss before Linux 4.2, which does not count segments, with the counters that show that it sends.
OLD_KERNEL = """\
State       Recv-Q Send-Q     Local Address:Port          Peer Address:Port
ESTAB       0      1448       192.0.2.80:45322            192.0.2.7:5001
\t ts sack cubic wscale:7,7 rto:304 rtt:99.25/1.5 ato:40 mss:1448 cwnd:10 send 1.2Mbps retrans:0/52 rcv_space:14600
"""


@pytest.mark.parametrize("text", [OLD_KERNEL, OLD_KERNEL.replace(" retrans:0/52", " bytes_acked:5321"), OLD_KERNEL * 2])
def test_a_kernel_that_does_not_count_segments_is_named(text):
    with pytest.raises(
        ValueError, match=r"shows no numbers of segments, .* \(before Linux 4.2\): measure with ping or"
    ):
        parse_ss(text)[0].estimate()


WIDE = """\
State  Recv-Q  Send-Q       Local Address:Port         Peer Address:Port   Process
ESTAB  0       0               192.0.2.80:51912           192.0.2.7:5001    users:(("curl",pid=4711,fd=5))
\t ts sack cubic wscale:7,7 rto:304 rtt:99.275/1.21 mss:1448 pmtu:1500 cwnd:10 ssthresh:7 bytes_sent:42049920 \
bytes_retrans:2030096 bytes_acked:40019825 segs_out:29052 data_segs_out:29040 send 1166889bps lastsnd:12 \
pacing_rate 2333778bps delivery_rate 1166Kbps delivered:27639 busy:290448ms unacked:1 retrans:0/1402 \
dsack_dups:11 rcv_space:14480 minrtt:98.5
"""


def wrapped(text, width):
    """Return a text as a terminal of a width shows it."""
    lines = [line.expandtabs() for line in text.splitlines()]
    return [line[place : place + width] for line in lines for place in range(0, max(len(line), 1), width)]


@pytest.mark.parametrize("kept", ["spaces", "words", "indented"])
@pytest.mark.parametrize("text", [WIDE, WIDE[WIDE.index("ESTAB") :], WIDE.replace("192.0.2.80", "[2001:db8::80%eth0]")])
def test_a_terminal_may_wrap_the_lines_at_any_width(text, kept):
    expected = parse_ss(text)
    for width in range(30, 240):
        lines = wrapped(text, width)
        if kept != "spaces":
            lines = [line.rstrip() for line in lines]
        if kept == "indented":
            lines = [f"    {line}" for line in lines]
        assert parse_ss("\n".join(lines) + "\n") == expected, width


def test_words_that_are_wrapped_between_are_not_joined():
    expected = parse_ss(WIDE)
    words = WIDE[WIDE.index("ts sack") :].split()
    start = WIDE[: WIDE.index("ts sack")]
    for place in range(1, len(words)):
        for indent in ("", "\t "):
            text = start + " ".join(words[:place]) + f"\n{indent}" + " ".join(words[place:]) + "\n"
            assert parse_ss(text) == expected, words[place]


@pytest.mark.parametrize(
    "broken",
    ["retrans:0/1 \n402 rcv_space:14480", "retrans:0/1 402 rcv_space:14480", "data_segs_out:290 40 retrans:0/1402"],
)
def test_a_number_without_a_name_is_refused(broken):
    text = f"{SENDER}\n\t cubic wscale:7,7 rto:304 rtt:99.275/1.21 mss:1448 {broken} minrtt:98.5\n"
    with pytest.raises(
        ValueError, match=r"follows '.*', as where a terminal wrapped the lines within a number; record"
    ):
        parse_ss(text)


@pytest.mark.parametrize(
    ("words", "beyond"),
    [
        ("rto:204 rtt:3.5/1", None),
        ("rto:310 rtt:101/1.287", None),
        # A call over Wi-Fi, whose round-trip times vary much.
        ("rto:613 rtt:5.5/120", 0.6075),
        ("rto:1226 backoff:1 rtt:5.5/120", 0.6075),
        ("rto:55 rtt:50/1", 0.005),
        ("rtt:50/1", None),
    ],
)
def test_the_timeout_is_part_of_the_estimate(words, beyond):
    (connection,) = parse_ss(f"{SENDER}\n\t cubic {words} data_segs_out:80 minrtt:1\n")
    assert connection.estimate().timeout_beyond_rtt == (None if beyond is None else pytest.approx(beyond))


@pytest.mark.parametrize(
    ("word", "damaged", "message"),
    [
        ("cwnd:4", "cwnd:4x", "line 3: 'cwnd:4x' is malformed: a whole number is expected"),
        ("cwnd:4", "cwnd:-4", "line 3: 'cwnd:-4' is malformed: a whole number is expected"),
        ("cwnd:4", "cwnd:", "line 3: 'cwnd:' is malformed: a whole number is expected"),
        ("segs_out:2885", "segs_out:" + "9" * 99, "is malformed: a whole number is expected"),
        ("retrans:1/50", "retrans:1", "line 3: 'retrans:1' is malformed: a whole number is expected"),
        ("rtt:101/1.287", "rtt:101", "line 3: 'rtt:101' is malformed: a number of milliseconds is expected"),
        ("rtt:101/1.287", "rtt:nan/1", "line 3: 'rtt:nan/1' is malformed: a number of milliseconds is expected"),
        ("rto:310", "rto:1e999", "line 3: 'rto:1e999' is malformed: a number of milliseconds is expected"),
        ("458772bps", "fast", "line 3: 'fast' is malformed: a rate in bps is expected"),
    ],
)
def test_a_malformed_number_is_named_with_its_line(word, damaged, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_ss(PLAIN.replace(word, damaged))


@pytest.mark.parametrize("kept", ["data_segs_out:2883", "retrans:1/5", "delivered:28"])
def test_an_output_cut_off_before_the_losses_is_refused(kept):
    with pytest.raises(ValueError, match="line 3: the output of ss is cut off here"):
        parse_ss(PLAIN[: PLAIN.index(kept) + len(kept)])


@pytest.mark.parametrize(
    "text", ["\n", HEADER, "Netid State\n1 2 3 4\n", "PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data."]
)
def test_other_text_holds_no_connection(text):
    with pytest.raises(ValueError, match="no TCP connection as 'ss -tin' prints it"):
        parse_ss(text)


def test_unreadable_files_are_named(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty.txt: is empty; the text that ss prints is expected"):
        read_ss(tmp_path / "empty.txt")
    with pytest.raises(ValueError, match=r"missing.txt: cannot be read"):
        read_connections(tmp_path / "missing.txt")


@given(
    cut=st.integers(0, len(PLAIN)),
    place=st.integers(0, len(PLAIN)),
    inserted=st.text(max_size=8)
    | st.sampled_from(["9" * 30, ":", "/", " rtt:", "\n", "bps", "e+99", "-1", "users:((", "*"]),
)
def test_damaged_output_gives_connections_or_one_line(cut, place, inserted):
    damaged = (PLAIN[:place] + inserted + PLAIN[place + len(inserted) // 2 :])[:cut]
    try:
        connections = parse_ss(damaged)
        losses = [connection.estimate().loss for connection in connections if connection.shortcoming is None]
    except ValueError as mistake:
        message = str(mistake)
        assert message.startswith("ss output: ")
        assert "\n" not in message
    else:
        assert connections
        assert all(0 <= loss < 1 for loss in losses)


@pytest.mark.parametrize(
    "piece", ["users:((", "))", "a:1 ", "0 0 a:1 b:2 ", ":", "\n", "send ", f"{SENDER}\n", "rtt:1/1 "]
)
def test_long_nonsense_takes_bounded_time(piece):
    text = f"{SENDER}\n" + piece * (2**20 // len(piece)) + "\n"
    started = time.perf_counter()
    try:
        found = len(parse_ss(text))
    except ValueError:
        found = 0
    assert time.perf_counter() - started < 4
    assert found <= 2


CUT_AT_80 = (
    "ESTAB      0      0      192.0.2.80:51912      192.0.2.7:5001\n"
    "\t cubic rto:304 rtt:99.275/1.21 mss:1448 cwnd:10 data_segs_out:29040 retrans:0/1\n"
)


@pytest.mark.parametrize("title", ["Every 2.0s: ss -tin", "Alle 2,0s: ss -tin dst 192.0.2.7", "Toutes les 2.0s: ss -i"])
def test_lines_that_watch_has_cut_are_refused(title):
    # Of 1402 retransmissions, the screen shows the first digit.
    whole = f"{title}    host: Fri Nov 27 02:00:00 2026\n\n{CUT_AT_80}"
    with pytest.raises(ValueError, match=r"has cut the lines of ss at the edge .*ss -tin > ss.txt"):
        parse_ss(whole)
    (found,) = parse_ss(whole.rstrip("\n") + "402 rcv_space:14480\n")
    assert found.segments_lost == 1402


@pytest.mark.parametrize("mark", ["> ", "# ", "| ", "+"])
@pytest.mark.parametrize("width", [30, 57, 80])
def test_quoted_lines_are_read_without_their_marks(tmp_path, mark, width):
    text = CUT_AT_80.rstrip("\n").expandtabs() + "402 rcv_space:14480 minrtt:98.5\n"
    parts = [line[at : at + width] for line in text.splitlines() for at in range(0, len(line), width)]
    (tmp_path / "ss.txt").write_text("".join(f"{mark}{part}\n" for part in parts))
    found = read_ss(tmp_path / "ss.txt")
    assert (found.segments_lost, found.data_segments_out, found.mss, found.rtt_min) == (1402, 29040, 1448, 0.0985)
