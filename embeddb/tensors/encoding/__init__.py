"""Features of tensor kernels and tiles, and inference of the network without torch."""
