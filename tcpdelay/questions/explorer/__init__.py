"""Predictions on a grid for the explorer's page, and how well they hold in between."""
