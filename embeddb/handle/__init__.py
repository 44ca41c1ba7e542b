"""`embeddb.compile(A, "spmm", k=100)` and the handle that it returns."""
