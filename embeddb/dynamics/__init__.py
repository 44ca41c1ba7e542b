"""Dynamic features: hardware counts of a kernel on a workload, simulated or measured.

Source: the 19 performance counters of the performance-embeddings paper ("Performance Embeddings: A
Similarity-based Approach to Automatic Performance Optimization", Section 3.2 and Table 5).
docs/reference/dynamics.md describes how each one is obtained and which are absent.
"""

from __future__ import annotations

from embeddb.dynamics.profile import profile
from embeddb.dynamics.record import TABLE_5, Cache, Counter, Dynamics, caches_of
from embeddb.dynamics.walk import execution_of

__all__ = [
    "TABLE_5",
    "Cache",
    "Counter",
    "Dynamics",
    "caches_of",
    "execution_of",
    "profile",
]
