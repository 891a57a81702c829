"""The analysis of a connection, as a row of numbers and as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tcpdelay.units import format_fraction, format_rate, format_time

if TYPE_CHECKING:
    from tcpdelay.capture.pcap.connection_analysis import ConnectionAnalysis


def record(analysis: ConnectionAnalysis) -> dict[str, Any]:
    """Return the analysis as one flat row, in seconds, bytes and fractions; None where something is not known."""
    from tcpdelay.advice.guideline import REPORTED_QUANTILES

    scales = analysis.window_scale or (None, None)
    clocks, delays = analysis.clocks, analysis.delays
    low, high = analysis.loss_interval
    row: dict[str, Any] = {
        "sender": analysis.sender,
        "receiver": analysis.receiver,
        "captured_at": " and ".join(analysis.captured_at),
        "duration": analysis.duration,
        "payload": analysis.payload,
        "data_segments": analysis.data_segments,
        "acknowledgements": analysis.acknowledgements,
        "rtt": analysis.rtt,
        "rtt_base": analysis.rtt_base,
        "rtt_samples": analysis.rtt_count,
        "loss": analysis.loss,
        "loss_low": low,
        "loss_high": high,
        "sent": analysis.sent,
        "lost": analysis.lost,
        "loss_counted": analysis.loss_counted,
        "retransmissions": analysis.retransmissions,
        "spurious_retransmissions": analysis.spurious_retransmissions,
        "reordered": analysis.reordered,
        "duplicates": analysis.duplicates,
        "duplicate_acks": analysis.duplicate_acks,
        "mss": analysis.mss,
        "mss_known": analysis.mss_known,
        "sack": analysis.sack,
        "timestamps": analysis.timestamps,
        "window_scale_sender": scales[0],
        "window_scale_receiver": scales[1],
        "delayed_ack": analysis.delayed_ack,
        "several_acknowledged": analysis.several_acknowledged,
        "largest_flight": analysis.largest_flight,
        "smallest_receive_window": analysis.smallest_receive_window,
        "packet_size": analysis.packet_size,
        "interval": analysis.interval,
        "fixed_size": analysis.fixed_size,
        "fixed_interval": analysis.fixed_interval,
        "messages": analysis.messages,
        "unfinished": analysis.unfinished,
        "one_way_delay": analysis.one_way_delay,
        "clock_offset": clocks and clocks.offset,
        "clock_skew": clocks and clocks.skew,
        "clock_residual": clocks and clocks.residual,
        "delay_kind": analysis.delay_kind,
        "delay_measured": analysis.delay_measured,
        "mean": delays and delays.mean,
        "jitter": delays and delays.jitter,
        **{f"p{100 * q:g}": delays and delays.quantile(q) for q in REPORTED_QUANTILES},
        "notes": "; ".join(analysis.notes),
    }
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}


def print_text(analysis: ConnectionAnalysis) -> None:
    """Print the analysis for people."""
    rows = [*_path_rows(analysis), *_tcp_rows(analysis), *_flow_rows(analysis), *_delay_rows(analysis)]
    print(
        f"{analysis.sender} -> {analysis.receiver}, captured at the {' and at the '.join(analysis.captured_at)}: "
        f"{analysis.payload} bytes in {format_time(analysis.duration)}"
    )
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        print(f"{label:<{width}}  {value}")
    for note in analysis.notes:
        print(f"note: {note}")


def _time(seconds: float) -> str:
    return "not known" if math.isnan(seconds) else format_time(seconds)


def _path_rows(analysis: ConnectionAnalysis) -> list[tuple[str, str]]:
    low, high = analysis.loss_interval
    rows = [
        ("round-trip time", f"{_time(analysis.rtt)}, at least {_time(analysis.rtt_base)}"),
        ("one-way delay", f"{_time(analysis.one_way_delay)} at least, if the way back takes as long"),
        (
            "loss",
            f"{format_fraction(analysis.loss)} ({analysis.lost} of {analysis.sent} packets; "
            f"95 % confidence {format_fraction(low)} to {format_fraction(high)})",
        ),
        ("counted as", analysis.loss_counted),
    ]
    if analysis.reordered is not None:
        rows.append(("reordered", f"{analysis.reordered} segments overtaken, {analysis.duplicates} duplicates"))
    if analysis.clocks is not None:
        clocks = analysis.clocks
        rows.append(
            (
                "clocks",
                f"the receiver's ahead by {clocks.offset:.6f} s, gaining {1e6 * clocks.skew:.3g} us/s; "
                f"the two ways disagree by {1e6 * clocks.residual:.3g} us",
            )
        )
    return rows


def _tcp_rows(analysis: ConnectionAnalysis) -> list[tuple[str, str]]:
    scales = analysis.window_scale
    known = "" if analysis.mss_known else ", as far as seen without the handshake"
    window = analysis.smallest_receive_window
    return [
        (
            "retransmitted",
            f"{analysis.retransmissions} packets, {analysis.spurious_retransmissions} of them in vain",
        ),
        ("duplicate ACKs", f"{analysis.duplicate_acks}"),
        ("segment size", f"{analysis.mss} B{known}"),
        (
            "options",
            f"SACK {'on' if analysis.sack else 'off'}, timestamps {'on' if analysis.timestamps else 'off'}, window "
            f"scales {'not known' if scales is None else f'{scales[0]} and {scales[1]}'}",
        ),
        (
            "delayed ACKs",
            f"{'yes' if analysis.delayed_ack else 'no'}: {format_fraction(analysis.several_acknowledged)} "
            "acknowledge two or more segments",
        ),
        ("largest flight", f"{analysis.largest_flight} B"),
        ("receive window", "not known" if math.isnan(window) else f"{window:.0f} B at least"),
    ]


def _flow_rows(analysis: ConnectionAnalysis) -> list[tuple[str, str]]:
    if math.isnan(analysis.interval):
        return [("messages", f"{analysis.messages}, too few to tell their interval")]
    size, interval = ("always" if fixed else "in the mean" for fixed in (analysis.fixed_size, analysis.fixed_interval))
    rate = format_rate(8 * analysis.packet_size / analysis.interval) if analysis.interval else "not known"
    return [
        ("messages", f"{analysis.messages}, {analysis.unfinished} not delivered within the capture"),
        ("packet size", f"{analysis.packet_size:.6g} B {size}"),
        ("interval", f"{format_time(analysis.interval)} {interval}, thus {rate}"),
    ]


def _delay_rows(analysis: ConnectionAnalysis) -> list[tuple[str, str]]:
    from tcpdelay.advice.guideline import REPORTED_QUANTILES

    delays = analysis.delays
    if delays is None or analysis.delay_kind is None:
        return [("delay", f"not known: {analysis.delay_measured}")]
    return [
        ("delay", f"{analysis.delay_kind}: {analysis.delay_measured}"),
        ("mean", format_time(delays.mean)),
        ("jitter", format_time(delays.jitter)),
        *((f"{format_fraction(q)} within", format_time(delays.quantile(q))) for q in REPORTED_QUANTILES),
    ]
