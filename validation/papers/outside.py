"""Delays that others measured, in their laboratories and networks, beside the answers of the command line.

`python validation/papers outside` asks each question of `validation/published/outside.csv` as it stands there, and
writes `validation/results/papers/outside-published.csv`. Some questions are asked again with the likely cause of a
distance, in `outside-asked-again.csv`. It takes some eight minutes of processor time.
"""

from __future__ import annotations

import csv
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache

from comparison import PUBLISHED, Figure, published_figures, write_comparison, write_table

from tcpdelay.statistics import Interval

BURSTS = "tcpdelay predict --rtt 25ms --one-way-delay 25ms --loss {loss}% --packet-size 2184B --interval 17ms {options}"
"""The messages of eight topics at once."""
ECHO = "tcpdelay exchange --request-size 804B --response-size 804B"
KEYS = {
    "mean": "mean",
    "p50": "p50",
    "p80 (below)": "target_quantile",
    "p90": "target_quantile",
    "p95": "p95",
    "p99": "p99",
    "share later than 200 ms": "late_fraction",
}
"""Where the answer to a quantity is in the output of --format json."""
ASKED_AGAIN = {
    ("MQTT to a subscriber over QUIC", "one stream, loss 1 %"): BURSTS.format(loss=1, options="--stack quic"),
    ("MQTT to a subscriber over QUIC", "one stream, loss 5 %"): BURSTS.format(loss=5, options="--stack quic"),
    ("MQTT over TCP and QUIC", "QUIC, one stream, loss 1 %"): BURSTS.format(loss=1, options="--stack quic"),
    ("MQTT over TCP and QUIC", "TCP, loss 5 %"): BURSTS.format(loss=5, options="--kernel 6.1"),
    ("Echo of a game library", "5 ms and 1 % each way, median of 13 runs"): f"{ECHO} --rtt 10ms --loss 1% --writes 2",
    ("Echo of a game library", "no delay, 5 % each way"): f"{ECHO} --rtt 0.0158ms --loss 5% --writes 2",
    ("Zenoh between two virtual machines", "10 KB, 5 %"): (
        "tcpdelay predict --rtt 1ms --loss 5% --packet-size 10280B --interval 11.36ms --mss 14480B"
    ),
    ("Request of 5 kB and response of 100 kB", "10 ms and 10 % in all"): (
        "tcpdelay exchange --rtt 10ms --loss 5% --request-size 5kB --response-size 100kB --quantile 80% --mss 16344B"
    ),
}
"""Measurements whose answers are off, and the question with the likely cause: bursts, two writes, larger segments."""
REASONS = {
    "MQTT to a subscriber over QUIC": (
        "The broker's QUIC is Quinn, whose delays are about half of those of RFC 9002 as simulated. The timers of the "
        "topics start together, so that messages may come in bursts and share packets: with all eight at once the "
        "answer is closer, but still too long. The smallest window in the broker's logs is 2840 B, two datagrams of "
        "1420 B; ours have 1200 B. The rest is not explained."
    ),
    "MQTT over TCP and QUIC": (
        "TCP: the broker has set TCP_NODELAY since 2026-08-05 only, after the measurement. Messages waited for "
        "acknowledgements even without losses, and no option asks for that. QUIC: as for the subscriber."
    ),
    "Echo of a game library": (
        "The server writes the length of a response and then its payload, so that the acknowledgement of "
        "one soon tells that the other is lost; a lost request, of one write, costs 222 ms. The command has one number "
        "of writes for both. Of the 13 runs, eight have a p99 of 34 to 44 ms and five of 222 to 224 ms. p50 and p95 "
        "contain the programs' own time. The runs without delay have 300 exchanges, and few losses."
    ),
    "Zenoh between two virtual machines": (
        "The medians contain about 1 ms of Python and of the virtual machines. A message of 10 KB may reach the rule "
        "that drops as one merged segment: with seven segments the answer is too long, with one too short."
    ),
    "Ping-pong of actors in Mininet": (
        "The program adds 0.6 ms to an exchange without losses. At 5 and 10 % some of the ten runs took up to a third "
        "longer than the others: both hosts had a share of one machine's processor, and its kernel, of 2018 or before, "
        "is older than those that the simulator follows."
    ),
    "Voice terminals on Wi-Fi": (
        "The losses likely came in stretches, which the share of lost pings does not tell: retransmission timeouts had "
        "grown to 500 to 800 ms. The connection also carried 32 kB/s of audio, and a request waited behind it."
    ),
    "Video frames over QUIC in Mininet": (
        "3 Mbit/s are at the limit of what the congestion control carries here, or beyond. There, delays grow as long "
        "as the flow lasts, and the runs lasted 20 s. The programs number frames in the order in which they end, which "
        "shortens delays."
    ),
    "Time stamps over a loopback device": (
        "TCP does not carry 12 Mbit/s at these losses. The measurement ends after 1000 writes, when the backlog has "
        "grown for a few seconds only."
    ),
    "Request of 5 kB and response of 100 kB": (
        "The loopback device of a Mac has an MTU of 16384 B: the response has seven segments, not 70."
    ),
}
"""Why the answers about an item are off by more than the item's own spread."""


@cache
def answer(question: str) -> dict[str, float | None]:
    """Return what a command line answers, as data."""
    command = [sys.executable, "-m", *shlex.split(question), "--format", "json"]
    print(question, file=sys.stderr)
    found: dict[str, float | None] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def predicted(figure: Figure, question: str) -> Interval:
    """Return the answer in the unit of a figure, in ms or a share; infinite if TCP does not carry the flow."""
    value = answer(question)[KEYS[figure.quantity]]
    scale = 1e3 if figure.unit == "ms" else 1.0
    shown = math.inf if value is None else scale * value
    return Interval(shown, shown, shown)


def asked_again(ours: Mapping[Figure, Interval]) -> Iterator[dict[str, object]]:
    """Yield a row for each figure whose question is asked again with the likely cause of its distance."""
    for figure, found in ours.items():
        question = ASKED_AGAIN.get(figure[:2])
        if question is not None:
            with_cause = predicted(figure, question).value
            yield {**figure._asdict(), "ours": found.value, "with_cause": with_cause, "question": question}


def main() -> None:
    """Ask all questions, and write the answers beside the measurements."""
    with (PUBLISHED / "outside.csv").open(newline="", encoding="utf-8") as file:
        questions = [row["question"] for row in csv.DictReader(file)]
    figures = published_figures("outside")
    ours = {figure: predicted(figure, question) for figure, question in zip(figures, questions, strict=True)}
    write_comparison("outside", ours, REASONS)
    write_table("outside-asked-again", asked_again(ours))


if __name__ == "__main__":
    main()
