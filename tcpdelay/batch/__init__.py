"""Predictions for tables of paths: surfaces that answer a million rows a second, and the files around them."""
