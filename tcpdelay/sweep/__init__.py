"""Sweeps: a model or the simulator over a grid of any parameters, on one machine or on many."""
