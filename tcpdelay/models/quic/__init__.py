"""The packet simulator of QUIC: loss recovery, congestion control, streams and datagrams."""
