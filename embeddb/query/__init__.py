"""Asking: from what is known of a matrix and a platform to ranked configurations."""

from embeddb.query.query import Candidate, Neighbour, Query, Recommendation

__all__ = ["Candidate", "Neighbour", "Query", "Recommendation"]
