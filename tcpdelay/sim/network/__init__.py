"""Several connections that share one bottleneck, packet by packet, in compiled code."""
