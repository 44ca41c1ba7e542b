"""A tensor kernel and its tiles as arrays, and the network over them without torch."""
