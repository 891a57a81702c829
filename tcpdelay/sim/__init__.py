"""Packet-level simulation of Linux TCP: what the kernel does, ACK by ACK, in compiled code."""
