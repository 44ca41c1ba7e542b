"""C code of a loop nest with a schedule."""
