"""Sparse CPU kernels: generated C, formats of a matrix, the compiler and its cache."""
