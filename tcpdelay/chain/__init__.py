"""Markov chains whose states are a window, a backlog and a phase of recovery."""
