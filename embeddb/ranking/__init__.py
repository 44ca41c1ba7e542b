"""Ranking: from the measured runs and models that bear on a matrix to ranked configurations."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embeddb.ranking.query import Neighbour, Query
    from embeddb.ranking.recommendation import Candidate, Recommendation

__all__ = ["Candidate", "Neighbour", "Query", "Recommendation"]

#: Imported on first use: a stored answer is read without the index that `Query` needs.
_LAZY = {
    "Candidate": "embeddb.ranking.recommendation",
    "Neighbour": "embeddb.ranking.query",
    "Query": "embeddb.ranking.query",
    "Recommendation": "embeddb.ranking.recommendation",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'embeddb.ranking' has no attribute {name!r}")
