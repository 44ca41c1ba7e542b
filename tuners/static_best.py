"""The baseline of one good schedule for all: configurations by their mean gain."""

from __future__ import annotations

import math
from collections.abc import Iterator

from embeddb.query.query import Candidate
from tuners.ranking import RankedTuner, by_score

__all__ = ["PLUGIN", "StaticBestTuner"]


class StaticBestTuner(RankedTuner):
    """First the configuration with the highest mean gain over all measured patterns."""

    def rank(self) -> Iterator[Candidate]:
        mean = self.query.mean
        for at in by_score(-mean):
            yield Candidate(
                config=dict(self.query.configs[at]),
                score=-float(mean[at]),
                origin="best on average over the platform's patterns",
                expected_gain=math.exp(mean[at]) if self.query.knows_default else None,
            )


PLUGIN = StaticBestTuner
