"""Analytical model of a tensor kernel's time from its arithmetic and memory traffic: of one tile,
and of a whole fused kernel."""
