"""The Markov chain of QUIC."""
