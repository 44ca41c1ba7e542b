"""Dynamic features: what running a kernel on a pattern would make the hardware count.

Source: the 19 performance counters of the performance-embeddings paper ("Performance Embeddings:
A Similarity-based Approach to Automatic Performance Optimization", Section 3.2 and Table 5).
docs/dynamics.md says how each one is obtained and which stay absent.
"""

from __future__ import annotations

from embeddb.dynamics.caches import Cache, caches_of
from embeddb.dynamics.execution import Execution, execution_of
from embeddb.dynamics.profile import MAX_ACCESSES, profile
from embeddb.dynamics.record import SOURCES, TABLE_5, Counter, Dynamics, ReuseHistogram

__all__ = [
    "MAX_ACCESSES",
    "SOURCES",
    "TABLE_5",
    "Cache",
    "Counter",
    "Dynamics",
    "Execution",
    "ReuseHistogram",
    "caches_of",
    "execution_of",
    "profile",
]
