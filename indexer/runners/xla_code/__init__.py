"""Tensor kernels compiled by XLA, in a process and, if need be, an interpreter of their own."""
