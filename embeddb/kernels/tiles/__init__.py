"""C of a tile of a tensor kernel."""
