"""The command `tcpdelay`: parse, call, print."""

from tcpdelay.cli.program import main

__all__ = ["main"]
