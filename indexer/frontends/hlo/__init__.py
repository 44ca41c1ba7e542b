"""HLO, the text form of XLA's modules, as tensor kernels and programs, and back."""
