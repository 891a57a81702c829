"""Transports of the literature: TCP of 1990 to 2008, SCP, Time-lined TCP, TCP-RC, MIN_BUF."""
