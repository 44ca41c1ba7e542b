"""C of a loop nest under a schedule."""
