"""What answers: the published chain, the chain of Linux, the simulator, and their accuracy."""
