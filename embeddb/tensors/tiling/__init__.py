"""Tile-by-tile computation of a kernel: its elements as functions of their indices, and buffers in
scratch memory."""
