"""Congestion controls, a file each, behind one interface for TCP, `of_tcp`, and one for QUIC, `of_quic`."""
