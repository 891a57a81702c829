"""Delays over ranges of round-trip time and loss, and the edge of what works."""
