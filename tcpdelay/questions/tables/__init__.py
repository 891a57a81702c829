"""Predictions for tables of paths."""
