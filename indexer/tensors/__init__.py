"""Tensor kernels measured."""
