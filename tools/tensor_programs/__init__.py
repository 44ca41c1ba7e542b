"""Model families as plain JAX functions, each from its published definition; by area a table.

What is shipped is their HLO text (`indexer.programs.tensors`): JAX is needed only to make it anew.
"""
