"""A packet-level simulator of TCP and QUIC, of single connections and of several over shared links."""
