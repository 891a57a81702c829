"""QUIC: the packet simulator with loss recovery, congestion control, streams and datagrams, and a chain."""
