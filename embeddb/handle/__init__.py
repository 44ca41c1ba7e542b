"""An answer that runs: `embeddb.compile(A, "spmm", k=100)` and what it returns."""
