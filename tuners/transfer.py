"""Nearest-neighbour transfer: what was fast on similar patterns, relative to their defaults."""

from __future__ import annotations

from collections.abc import Iterator

from embeddb.ranking.rankers.neighbour_vote import NeighbourVote
from embeddb.ranking.recommendation import Candidate
from tuners.ranking import RankedTuner

__all__ = ["PLUGIN", "TransferTuner"]


class TransferTuner(RankedTuner):
    """Asks in the order of `NeighbourVote`."""

    def rank(self) -> Iterator[Candidate]:
        return NeighbourVote(self.query).candidates()


PLUGIN = TransferTuner
