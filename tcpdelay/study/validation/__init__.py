"""Errors of the models' predictions, measured with captures of real TCP."""
