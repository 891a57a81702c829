"""Compare `tcpdelay analyze` with the application's logs of the captures, and with tshark and tcptrace.

    python validation/pcap/compare.py

The testbed made each capture (`tcpdelay testbed run validation/pcap/captures.toml`). The Parquet file of the same run
has the application's times of every write and read, and the number of packets that the path's queue dropped. The script
writes results.csv, with one row for each capture and place of capture, and the tables of the documentation. It needs
tshark, editcap and tcptrace.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from scipy.stats import binom

from tcpdelay.capture.flow_capture import read_capture
from tcpdelay.capture.pcap.analysis import analyze_captures

HERE = Path(__file__).parent
QUANTILES = (0.5, 0.95, 0.99)
FLAGS = ("retransmission", "fast_retransmission", "spurious_retransmission", "out_of_order", "duplicate_ack")


def rows(log: Path) -> list[dict[str, Any]]:
    """Return a row for the captures of both ends together, and a row for the capture of each end."""
    capture = read_capture(log)
    (run,) = capture.runs
    settings, packets = capture.settings, run.packets
    logged = capture.delay_distribution().quantile(list(QUANTILES))
    files = {end: log.with_name(f"{log.stem}.{end}.pcap.gz") for end in ("sender", "receiver")}
    result = []
    for ends in (("sender", "receiver"), ("sender",), ("receiver",)):
        analysis = analyze_captures([files[end] for end in ends])
        assert analysis.captured_at == ends
        assert analysis.delays is not None
        flow = analysis.flow()
        low, high = binom.interval(0.95, analysis.sent, settings["loss"])
        row: dict[str, Any] = {
            "capture": log.stem,
            "ends": " and ".join(ends),
            "rtt_configured": settings["rtt"],
            "rtt": analysis.rtt,
            "rtt_error": analysis.rtt / settings["rtt"] - 1,
            "loss_configured": settings["loss"],
            "loss": analysis.loss,
            "lost": analysis.lost,
            "dropped": packets["data_dropped"],
            "binomial_low": int(low),
            "binomial_high": int(high),
            "packet_size": flow.packet_size,
            "interval": analysis.interval,
            "size_exact": flow.packet_size == settings["packet_size"],
            "interval_exact": flow.interval == settings["interval"],
        }
        for q, value in zip(QUANTILES, logged, strict=True):
            row |= {f"p{100 * q:g}_logged": value, f"p{100 * q:g}": analysis.delays.quantile(q)}
        row["largest_difference"] = max(abs(row[f"p{100 * q:g}"] - row[f"p{100 * q:g}_logged"]) for q in QUANTILES)
        row |= {
            "retransmissions": analysis.retransmissions,
            "spurious": analysis.spurious_retransmissions,
            "duplicate_acks": analysis.duplicate_acks,
            "kernel_retransmissions": run.counters.get("RetransSegs", 0),
        }
        if ends != ("receiver",):
            row |= by_tshark(files["sender"]) | by_tcptrace(files["sender"])
        result.append(row)
    return result


def by_tshark(file: Path) -> dict[str, Any]:
    """Return the number of packets with each flag of tshark's analysis, and the number that it counts as sent again."""
    fields = [part for flag in FLAGS for part in ("-e", f"tcp.analysis.{flag}")]
    command = ["tshark", "-n", "-r", file, "-T", "fields", *fields, "-e", "tcp.len"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counts: Counter[str] = Counter()
    for line in printed.splitlines():
        *flags, length = line.split("\t")
        counts.update(flag for flag, value in zip(FLAGS, flags, strict=True) if value)
        # At the sender, packets are never reordered: a packet that tshark calls out of order was sent again early.
        counts["again"] += length != "0" and any(flags[:4])
    return {f"tshark_{name}": counts[name] for name in (*FLAGS, "again")}


def by_tcptrace(file: Path) -> dict[str, Any]:
    """Return retransmitted packets, reports of duplicates and mean round-trip time by tcptrace."""
    with tempfile.TemporaryDirectory() as directory:
        plain = Path(directory, "plain.pcap")
        # tcptrace reads neither nanoseconds nor gzip.
        subprocess.run(["editcap", "-F", "pcap", file, plain], check=True)
        printed = subprocess.run(
            ["tcptrace", "-l", "-r", "-n", plain], capture_output=True, text=True, check=True, errors="replace"
        ).stdout

    def first(label: str, column: int) -> float:
        found = re.search(rf"{re.escape(label)}:\s+([\d.]+).*?{re.escape(label)}:\s+([\d.]+)", printed)
        assert found, label
        return float(found[column])

    return {
        "tcptrace_retransmissions": int(first("rexmt data pkts", 1)),
        "tcptrace_duplicates_reported": int(first("dsack pkts sent", 2)),
        "tcptrace_duplicate_acks": int(first("duplicate acks", 1)),
        "tcptrace_rtt": first("RTT avg", 1) / 1000,
    }


def milliseconds(row: dict[str, Any], what: str) -> str:
    """Return quantiles of a row in milliseconds."""
    return " / ".join(f"{1000 * row[f'p{100 * q:g}{what}']:.3f}" for q in QUANTILES)


def write_tables(table: list[dict[str, Any]]) -> None:
    """Write the tables of the documentation."""
    lines = [
        "| capture | made at | round-trip time [ms], error | lost, of which the queue dropped | interval [ms] | "
        "p50 / p95 / p99 [ms] | as logged | largest difference [us] |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        cells = (
            row["capture"],
            row["ends"],
            f"{1000 * row['rtt']:.4f}, {100 * row['rtt_error']:+.3f} %",
            f"{row['lost']}, {row['dropped']}",
            f"{1000 * row['interval']:.6f}",
            milliseconds(row, ""),
            milliseconds(row, "_logged"),
            f"{1e6 * row['largest_difference']:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    (HERE / "results.md").write_text("\n".join(lines) + "\n")
    lines = [
        "| capture | retransmitted: analyze, kernel, tcptrace, tshark | duplicates reported: analyze, tcptrace | "
        "duplicate ACKs: analyze, tcptrace, tshark | mean round-trip time [ms]: analyze, tcptrace |",
        "|---|---|---|---|---|",
    ]
    for row in table:
        if row["ends"] != "sender":
            continue
        again = ("retransmissions", "kernel_retransmissions", "tcptrace_retransmissions", "tshark_again")
        repeated = ("duplicate_acks", "tcptrace_duplicate_acks", "tshark_duplicate_ack")
        cells = (
            row["capture"],
            ", ".join(str(row[name]) for name in again),
            f"{row['spurious']}, {row['tcptrace_duplicates_reported']}",
            ", ".join(str(row[name]) for name in repeated),
            f"{1000 * row['rtt']:.2f}, {1000 * row['tcptrace_rtt']:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    (HERE / "results-tools.md").write_text("\n".join(lines) + "\n")


def main() -> int:
    """Write the comparison; return 1 if it contradicts the documentation."""
    table = []
    for log in sorted(HERE.glob("*.parquet")):
        print(log.stem, file=sys.stderr)
        table += rows(log)
    with (HERE / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    write_tables(table)
    misses = [
        f"{row['capture']}, {row['ends']}: {what}"
        for row in table
        for what, kept in (
            ("round-trip time", abs(row["rtt_error"]) < 0.01),
            ("loss", row["binomial_low"] <= row["lost"] <= row["binomial_high"]),
            ("size and interval", row["size_exact"] and row["interval_exact"]),
            ("delays", row["largest_difference"] < 0.5e-3),
        )
        if not kept
    ]
    for miss in misses:
        print(f"missed: {miss}")
    return bool(misses)


if __name__ == "__main__":
    sys.exit(main())
