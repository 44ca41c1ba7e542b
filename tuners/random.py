"""The baseline of luck: distinct legal configurations, uniformly."""

from __future__ import annotations

from collections.abc import Iterator

from embeddb.ranking.recommendation import Candidate
from tuners.ranking import RankedTuner

__all__ = ["PLUGIN", "RandomTuner"]

_MOST = 256


class RandomTuner(RankedTuner):
    """Draws from the configurations that evidence exists for, or from the space without any."""

    def rank(self) -> Iterator[Candidate]:
        pool = list(self.query.vote.configs)
        if pool:
            drawn = [pool[i] for i in self.rng.permutation(len(pool))[:_MOST]]
        else:
            drawn = self.query.space.sample(_MOST, rng=self.rng)
        for at, config in enumerate(drawn):
            yield Candidate(config=dict(config), score=float(at), origin="random draw")


PLUGIN = RandomTuner
