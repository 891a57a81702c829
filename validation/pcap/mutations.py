"""Damage captures at random and analyse them: each result must be an analysis, or one line that names the fault.

    python validation/pcap/mutations.py [COUNT] [SEED]

Bits are flipped, ends are cut off, parts of other captures are inserted, and parts are doubled, removed or overwritten.
Packets are dropped, doubled, swapped, cut, delayed or changed. Each analysis may take 20 s, and the process may use
3 GiB of addresses. The script prints the number of times that each line occurred. It shows the first other outcome, and
then ends with exit status 1.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tcpdelay.capture.pcap.analysis import analyze_captures
from tcpdelay.report.analysis import record

HERE = Path(__file__).parent
SECONDS_EACH = 20
MEMORY = 3 * 2**30
SHORTENED = 60_000
"""Bytes of each capture that are kept, so that a minute is enough for many mutations."""


def samples() -> list[bytes]:
    """Return captures to damage: the beginnings of the project's captures, and four of them as pcapng."""
    contents = [gzip.decompress(file.read_bytes())[:SHORTENED] for file in sorted(HERE.glob("*.pcap.gz"))]
    return [*contents, *(as_pcapng(content) for content in contents[:4])]


def as_pcapng(content: bytes) -> bytes:
    """Return a pcap with nanoseconds, in the byte order of this machine, as pcapng with options."""

    def block(kind: int, body: bytes) -> bytes:
        length = (len(body) + 12).to_bytes(4, "little")
        return kind.to_bytes(4, "little") + length + body + length

    parts = [
        block(0x0A0D0D0A, bytes.fromhex("4d3c2b1a01000000ffffffffffffffff")),
        # Ethernet, times in nanoseconds (if_tsresol 9), and a comment that is not UTF-8.
        block(1, bytes.fromhex("0100000000000400" + "0100020041ff0000" + "0900010009000000" + "00000000")),
    ]
    place = 24
    while place + 16 <= len(content):
        seconds, nano, captured, length = (
            int.from_bytes(content[i : i + 4], "little") for i in range(place, place + 16, 4)
        )
        data = content[place + 16 : place + 16 + captured]
        stamp = seconds * 10**9 + nano
        head = [0, stamp >> 32, stamp & 0xFFFFFFFF, len(data), length]
        padded = data + bytes(-len(data) % 4)
        parts.append(block(6, b"".join(number.to_bytes(4, "little") for number in head) + padded))
        place += 16 + captured
    return b"".join(parts)


def with_odd_packets(content: bytes, dice: random.Random) -> bytes:
    """Return a pcap whose packets were dropped, doubled, swapped, cut, delayed or changed in their headers."""
    packets, place = [], 24
    while place + 16 <= len(content):
        end = place + 16 + int.from_bytes(content[place + 8 : place + 12], "little")
        packets.append(bytearray(content[place:end]))
        place = end
    share = dice.choice((0.001, 0.01, 0.1, 0.5))
    for i in range(len(packets)):
        if dice.random() >= share:
            continue
        kind = dice.randrange(6)
        packet = packets[i]
        if kind == 0:
            packets[i] = bytearray()
        elif kind == 1:
            packets[i] = packet * 2
        elif kind == 2:
            j = min(i + dice.randrange(20), len(packets) - 1)
            packets[i], packets[j] = packets[j], packets[i]
        elif kind == 3 and len(packet) > 16:
            kept = dice.randrange(len(packet) - 16)
            packets[i] = packet[:8] + kept.to_bytes(4, "little") + packet[12 : 16 + kept]
        elif kind == 4 and packet:
            packet[dice.randrange(8)] ^= 1 << dice.randrange(8)
        elif len(packet) > 30:
            # After the Ethernet header: lengths, numbers, flags, windows, options.
            packet[dice.randrange(30, len(packet))] = dice.choice((0, 1, 127, 128, 255, dice.randrange(256)))
    return content[:24] + b"".join(packets)


def damaged(content: bytes, others: list[bytes], dice: random.Random) -> bytes:
    """Return a capture with odd packets, or with one to eight damages to the file."""
    if content[:4] != b"\x0a\x0d\x0d\x0a" and dice.random() < 0.5:
        return with_odd_packets(content, dice)
    spoilt = bytearray(content)
    for _ in range(dice.choice((1, 1, 1, 2, 4, 8))):
        size = len(spoilt)
        at = dice.randrange(dice.choice((64, 400, size))) % max(size, 1) if size else 0
        length = dice.choice((1, 4, 16, 100, 1000))
        kind = dice.randrange(7)
        if kind == 0 and size:
            for _ in range(dice.choice((1, 1, 10, 300))):
                where = at if dice.random() < 0.2 else dice.randrange(size)
                spoilt[where] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del spoilt[dice.randrange(size + 1) :]
        elif kind == 2:
            other = dice.choice(others)
            begin = dice.randrange(len(other))
            spoilt[at:at] = other[begin : begin + 20 * length]
        elif kind == 3:
            spoilt[at:at] = spoilt[at : at + length]
        elif kind == 4:
            del spoilt[at : at + length]
        elif kind == 5:
            spoilt[at : at + 4] = dice.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\0\0\x10\0"))
        else:
            spoilt[at : at + length] = dice.randbytes(length)
    return bytes(spoilt)


def arguments(dice: random.Random) -> dict[str, object]:
    """Return arguments of the analysis, mostly the defaults."""
    choice = dice.randrange(8)
    if choice == 0:
        return {"framing": dice.choice(("rfc4571", "length4", "websocket"))}
    return {"message_size": dice.choice((1, 174, 1448))} if choice == 1 else {}


def outcome(files: list[Path], options: dict[str, object]) -> str:
    """Return the outcome of an analysis: "analysed", or the line that refuses it, without names and numbers."""
    try:
        analysis = analyze_captures(files, **options)  # type: ignore[arg-type]
    except ValueError as error:
        line = str(error)
        assert line.isprintable(), line
        return re.sub(r"\d+", "N", line.replace(str(files[0].parent), ""))[:70]
    for derive in (analysis.estimate, analysis.flow):
        try:
            derive()
        except ValueError as error:
            line = str(error)
        else:
            line = ""
        assert not line or line.isprintable(), line
    assert record(analysis)["sent"] > 0
    assert analysis.delays is None or analysis.delays.mean >= 0
    assert 0 <= analysis.lost <= analysis.sent
    return "analysed"


def main(count: int, seed: int) -> int:
    """Run the mutations and print their outcomes."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, _too_long)
    dice, contents, ends = random.Random(seed), samples(), Counter[str]()
    started, longest = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory() as directory:
        for number in range(count):
            pair = dice.random() < 0.25
            which = dice.randrange(len(contents))
            files = [Path(directory, name) for name in ("a.pcap", "b.pcap")[: 1 + pair]]
            # The capture of the other end is next to the first capture in the list.
            for file, content in zip(files, (contents[which], contents[(which ^ 1) % len(contents)]), strict=False):
                file.write_bytes(damaged(content, contents, dice))
            options = arguments(dice)
            begun = time.monotonic()
            signal.alarm(SECONDS_EACH)
            try:
                ends[outcome(files, options)] += 1
            except BaseException:
                signal.alarm(0)
                for file in files:
                    Path(tempfile.gettempdir(), f"mutation-{number}-{file.name}").write_bytes(file.read_bytes())
                print(f"mutation {number} of seed {seed}, {options}:", file=sys.stderr)
                traceback.print_exc()
                return 1
            signal.alarm(0)
            longest = max(longest, time.monotonic() - begun)
            if number % 500 == 499:
                print(f"{number + 1} of {count}, {time.monotonic() - started:.0f} s", file=sys.stderr)
    for end, times in ends.most_common():
        print(f"{times:6}  {end}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{count} mutations, the longest took {longest:.2f} s; at most {peak:.0f} MiB of memory")
    return 0


def _too_long(*_: object) -> None:
    raise TimeoutError(f"an analysis took more than {SECONDS_EACH} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=10_000)
    parser.add_argument("seed", nargs="?", type=int, default=1)
    asked = parser.parse_args()
    sys.exit(main(asked.count, asked.seed))
