"""The TCP of a Linux kernel: sender, receiver, loss detection and congestion control."""
