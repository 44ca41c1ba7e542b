"""C of a kernel and a tile, its worker, and what its results are checked by."""
