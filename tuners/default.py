"""The baseline everything is measured against: the platform's default."""

from __future__ import annotations

from collections.abc import Iterator

from embeddb.ranking.recommendation import Candidate
from tuners.ranking import RankedTuner, default_candidate

__all__ = ["PLUGIN", "DefaultTuner"]


class DefaultTuner(RankedTuner):
    """Proposes the default, and nothing after it."""

    def rank(self) -> Iterator[Candidate]:
        yield default_candidate(self.query)


PLUGIN = DefaultTuner
