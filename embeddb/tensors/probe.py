"""Probes: kernels that are made up to be learned from. Nobody runs them for what they compute, so
no figure is about them."""

from __future__ import annotations

__all__ = ["PROBE", "is_probe"]

#: How their groups begin.
PROBE = "probe."


def is_probe(group: str) -> bool:
    """Whether a group of kernels is of probes."""
    return group.startswith(PROBE)
