"""Tensor kernels and programs: graphs of operations, as compilers of tensor programs see them."""
