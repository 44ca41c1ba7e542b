"""C code of a tensor kernel with a tile."""
