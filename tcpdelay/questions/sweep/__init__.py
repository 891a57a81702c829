"""A model over a grid of any parameters, on one machine or on many."""
