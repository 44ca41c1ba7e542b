"""One way to rank the configurations of a question: what all rankers have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.ranking.posterior import Posterior, anchored, over_default_of
from embeddb.ranking.query import Query
from embeddb.ranking.recommendation import Candidate

Floats = NDArray[np.float64]

#: The 90th percentile of a standard normal: an interval from the 10th to the 90th.
NINETIETH = 1.2815515655446004
#: Largest distance, as a logarithm, of the ends of an interval from the gain.
_MOST_REACH = 200.0
#: Rankers that the card of a cost model has under another name.
_IN_CARDS = {"transfer-rank": "transfer+rank", "search": "rank"}


class Ranker(ABC):
    """Ranks the configurations of one question; made once for it, so that the answer, how sure it
    is and what else might have been said come from the same numbers.

    `name` is also that of the tuner that asks in its order; `source` is the evidence that it ranks
    by, one of `LINKS`; `by_vote` and `by_model` say whether neighbours and a cost model take part.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    by_vote: ClassVar[bool] = True
    by_model: ClassVar[bool] = False

    def __init__(self, query: Query) -> None:
        self.query = query

    @property
    @abstractmethod
    def configs(self) -> tuple[Config, ...]:
        """The u configurations that it ranks."""

    @property
    @abstractmethod
    def score(self) -> Floats:
        """float64[u] log gain up to a constant, higher is faster; nan where it says nothing."""

    @abstractmethod
    def candidates(self) -> Iterator[Candidate]:
        """Worth proposing, best first, each once; made as they are asked for. Later ones may
        complement the first as a set."""

    @abstractmethod
    def posterior(self, answer: Config) -> Posterior:
        """What is believed of every configuration, and of how it differs from the answer."""

    @classmethod
    def card_name(cls) -> str:
        """The name under which the card of a cost model judges it."""
        return _IN_CARDS.get(cls.name, cls.name)

    def again(self, query: Query) -> Ranker:
        """The same way of ranking for another question."""
        return type(self)(query)

    @property
    def held_out(self) -> float:
        """The share of the optimum that its first answers reached with groups held out; nan where
        that is not known."""
        return (
            self.query.prediction.judged[self.card_name()]
            if self.by_model
            else self.query.vote.quality.of_optimum
        )

    @property
    def first(self) -> Config:
        """The configuration with the best score, whatever guards would put before it."""
        return self.configs[int(np.nanargmax(self.score))]


def posterior_of(ranker: Ranker, source: str, answer: Config) -> Posterior:
    """By what ranked; on a measured pattern shifted to what was measured there, with the spread
    that the ranking shows against it."""
    query = ranker.query
    if source in ("static-best", "default"):
        unknown = np.full(len(query.vote.configs), np.nan)
        return over_default_of(query, query.vote.configs, query.vote.mean, unknown)
    found = ranker.posterior(answer)
    if source == "measured":
        return anchored(found, query, query.own.timings, exact=True)
    if source == "other-width":
        return anchored(found, query, query.own.other_width, exact=False)
    return found


def default_candidate(query: Query) -> Candidate:
    """The platform's default: gain 1 by definition."""
    return Candidate(
        config=dict(query.default), score=0.0, origin="platform default", expected_gain=1.0
    )


def between(query: Query, gain: float, spread: float) -> tuple[float | None, float | None]:
    """The 10th and 90th percentile of a factor over the default whose logarithm is normal; None
    where the default was never run or the spread is not known."""
    if not query.vote.knows_default or not math.isfinite(spread):
        return None, None
    reach = min(NINETIETH * spread, _MOST_REACH)
    return math.exp(gain - reach), math.exp(gain + reach)


def by_score(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Positions of the finite scores, ascending; equal scores keep the configurations' order."""
    order = np.argsort(scores, kind="stable")
    return order[np.isfinite(scores[order])]


class StaticBest(Ranker):
    """First the configuration with the highest mean gain over all measured patterns."""

    name, source = "static-best", "static-best"
    by_vote = False

    @property
    def configs(self) -> tuple[Config, ...]:
        return self.query.vote.configs

    @property
    def score(self) -> Floats:
        return self.query.vote.mean

    def candidates(self) -> Iterator[Candidate]:
        mean = self.query.vote.mean
        for at in by_score(-mean):
            yield Candidate(
                config=dict(self.query.vote.configs[at]),
                score=-float(mean[at]),
                origin="best on average over the platform's patterns",
                expected_gain=math.exp(mean[at]) if self.query.vote.knows_default else None,
            )

    def posterior(self, answer: Config) -> Posterior:
        unknown = np.full(len(self.configs), np.nan)
        return over_default_of(self.query, self.configs, self.score, unknown)
