"""Tensor kernels and programs: graphs of operations, in the form used by tensor compilers."""
