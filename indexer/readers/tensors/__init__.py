"""Tensor kernels made from what run logs of others say of them."""
