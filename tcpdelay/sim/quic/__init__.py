"""QUIC: loss recovery, congestion control, streams and datagrams."""
