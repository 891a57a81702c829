"""Where a flow works: its delays over ranges of round-trip time and loss, and the edge of what works."""
