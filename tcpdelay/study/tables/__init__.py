"""Tables of paths: reading them, and predicting every row."""
