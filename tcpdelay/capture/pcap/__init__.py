"""Packet captures of a TCP connection: its path, its source and the delays of its messages."""

from tcpdelay.capture.pcap.analysis import analyze_captures
from tcpdelay.capture.pcap.connection_analysis import ConnectionAnalysis

__all__ = ["ConnectionAnalysis", "analyze_captures"]
