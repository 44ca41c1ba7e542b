"""Tensor kernels built from the descriptions in run logs of other programs."""
