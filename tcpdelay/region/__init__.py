"""Where a flow works: its delays over whole ranges of round-trip time and loss, and the edge of what its target bears."""
