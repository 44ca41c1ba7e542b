"""How a kernel is computed tile by tile: its elements as functions of their indices, and what is
kept in scratch memory beside a tile."""
