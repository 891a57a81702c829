"""Several flows over shared links, simulated packet by packet."""
