"""A packet-level simulator of the TCP of a Linux kernel."""
