"""Seconds of a tensor kernel from what it moves and computes, without learning: a tile of it, and a
fused kernel as a whole."""
