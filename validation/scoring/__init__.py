"""Scores of the models against captures and simulations: tables and figures of the documentation."""
