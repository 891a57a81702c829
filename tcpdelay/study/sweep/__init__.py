"""Sweeps: a model or the simulator at every point of a grid of any parameters, on one machine or on many."""
