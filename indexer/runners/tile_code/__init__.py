"""C of a kernel and a tile, its worker, and the reference of its results."""
