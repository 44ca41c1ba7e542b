"""Asking: from what is known of a matrix and a platform to ranked configurations."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embeddb.query.query import Neighbour, Query
    from embeddb.query.recommendation import Candidate, Recommendation

__all__ = ["Candidate", "Neighbour", "Query", "Recommendation"]

#: A stored answer is read without the index that `Query` needs, so each is fetched on first use.
_LAZY = {
    "Candidate": "embeddb.query.recommendation",
    "Neighbour": "embeddb.query.query",
    "Query": "embeddb.query.query",
    "Recommendation": "embeddb.query.recommendation",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'embeddb.query' has no attribute {name!r}")
