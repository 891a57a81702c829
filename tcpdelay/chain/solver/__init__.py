"""State spaces, stationary distributions and what is measured on them."""
