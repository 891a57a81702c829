"""A proxy that delivers the data of TCP connections when a simulated TCP would deliver them."""
