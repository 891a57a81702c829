"""Recordings of common tools, read into an estimate of the path."""

from tcpdelay.capture.estimate import PathEstimate
from tcpdelay.capture.ping import parse_ping, read_ping
from tcpdelay.capture.ss import Connection, parse_ss, read_connections, read_ss

__all__ = ["Connection", "PathEstimate", "parse_ping", "parse_ss", "read_connections", "read_ping", "read_ss"]
