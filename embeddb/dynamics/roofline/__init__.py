"""Seconds of a configuration from a pattern and a machine's constants, nothing fitted: the larger
of transfer and compute, as in the analytical model of "A Learned Performance Model for Tensor
Processing Units" (Appendix A), for the C that the cpu platform generates."""

from __future__ import annotations

from embeddb.dynamics.roofline.machine import Machine
from embeddb.dynamics.roofline.model import Roofline

__all__ = ["Machine", "Roofline"]
