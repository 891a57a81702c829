"""The Markov chain of a current Linux kernel."""
