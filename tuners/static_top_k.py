"""The baseline of a small fixed set: the k schedules that together serve most patterns."""

from __future__ import annotations

import math
from collections.abc import Iterator

from embeddb.ranking.recommendation import Candidate
from tuners.ranking import RankedTuner

__all__ = ["PLUGIN", "StaticTopKTuner"]


class StaticTopKTuner(RankedTuner):
    """Greedy cover: each next configuration adds most to the mean of the best gain so far."""

    def rank(self) -> Iterator[Candidate]:
        for place, at in enumerate(self.query.vote.cover):
            yield Candidate(
                config=dict(self.query.vote.configs[at]),
                score=float(place),
                origin="fixed set that serves most patterns",
                expected_gain=_factor(float(self.query.vote.mean[at]))
                if self.query.vote.knows_default
                else None,
            )


def _factor(gain: float) -> float | None:
    return math.exp(gain) if math.isfinite(gain) else None


PLUGIN = StaticTopKTuner
