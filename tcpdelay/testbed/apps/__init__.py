"""The programs whose packets are measured, and those that share the path with them."""
