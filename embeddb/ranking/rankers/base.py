"""The interface of rankers, and the ranker by mean gain."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.ranking.posterior import Posterior, anchored, over_default_of
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.order import (
    behind_default,
    order_to_try,
    position,
    ran_first,
    settled,
)
from embeddb.ranking.recommendation import Candidate, default_proposal

Floats = NDArray[np.float64]
#: Factors over the default that bound a gain; None where they are unknown.
Interval = tuple[float | None, float | None]

#: The 90th percentile of a standard normal: an interval from the 10th to the 90th.
NINETIETH = 1.2815515655446004
#: Largest distance, as a logarithm, of the ends of an interval from the gain.
_MOST_REACH = 200.0
#: Names of rankers in the cards of cost models, where they differ.
_IN_CARDS = {"transfer-rank": "transfer+rank", "search": "rank"}


class Ranker(ABC):
    """Ranks the configurations of one query. One ranker serves the whole query, so that the answer,
    its confidence and its alternatives come from the same numbers.

    `name` is also that of the tuner with its order; `source` is its evidence, one of `LINKS`;
    `by_vote` and `by_model`: it uses the neighbours' vote, a cost model.
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
        """The u ranked configurations."""

    @property
    @abstractmethod
    def score(self) -> Floats:
        """Log gain float64[u] up to a constant, higher is faster; nan where unknown."""

    @property
    @abstractmethod
    def spread(self) -> Floats:
        """Standard deviations float64[u] of the gains over the default; nan where unknown."""

    @abstractmethod
    def candidates(self) -> Iterator[Candidate]:
        """Yield candidates, best first, each once. Later ones may complement the first as a set."""

    @abstractmethod
    def posterior(self, answer: Config) -> Posterior:
        """Mean and spread of every configuration's gain, and of its difference to the answer."""

    @classmethod
    def card_name(cls) -> str:
        """Name of this ranker in the card of a cost model."""
        return _IN_CARDS.get(cls.name, cls.name)

    def again(self, query: Query) -> Ranker:
        """The same ranker for another query."""
        return type(self)(query)

    @property
    def held_out(self) -> float:
        """Share of the optimum of its first answers with groups held out; nan if unknown."""
        if not self.by_model:
            return self.query.vote.quality.of_optimum
        return self.query.prediction.judged[self.card_name()]

    @property
    def first(self) -> Config:
        """The configuration with the best score, without guards."""
        return self.configs[int(np.nanargmax(self.score))]

    @property
    def voters(self) -> NDArray[np.int64]:
        """Number int64[u] of neighbours that ran each."""
        return np.zeros(len(self.configs), dtype=np.int64)

    def _origin(self, voters: int) -> str:
        """The evidence of a configuration with a number of voters, in words."""
        return "cost model"

    @cached_property
    def _gain(self) -> Floats:
        """Log gain float64[u] over the default's."""
        default = position(self.configs, self.query.default)
        return self.score - (self.score[default] if default >= 0 else 0.0)

    def _interval(self, at: int) -> Interval:
        """The 10th and 90th percentile of the gain at a position."""
        is_default = self.configs[at] == self.query.default
        return between(self.query, float(self._gain[at]), 0.0 if is_default else self.spread[at])

    def _as_a_set(self, spread: Floats, guard: float) -> Iterator[Candidate]:
        """Candidates by predictions with standard deviations float64[u] (`order_to_try`)."""
        prediction = self.query.prediction
        order = order_to_try(self.configs, self.score, spread, prediction.correlate)
        order = self._guarded(order, guard, unrun_first=prediction.unrun_first)
        return self._in_order(order, self._gain)

    def _guarded(
        self, order: Sequence[int] | NDArray[np.int64], guard: float, *, unrun_first: bool = False
    ) -> NDArray[np.int64]:
        """The order with ties settled (`settled`) and first a configuration that ran (`ran_first`)
        or the default (`behind_default`)."""
        query, configs, score = self.query, self.configs, self.score
        order = settled(query, configs, order, score)
        order = ran_first(query, configs, order, score, unrun_first=unrun_first)
        at = position(configs, query.default)
        return behind_default(order, score, at if at >= 0 and np.isfinite(score[at]) else -1, guard)

    def _in_order(
        self, order: NDArray[np.int64], gain: Floats, score: Floats | None = None
    ) -> Iterator[Candidate]:
        """Candidates with log gains float64[u] over the default. Their scores follow the order: a
        guard or a tie may have put a smaller gain first (`score` float64[u], if not `gain`)."""
        score, voters = gain if score is None else score, self.voters.tolist()
        for at in order.tolist():
            low, high = self._interval(at)
            yield Candidate(
                config=dict(self.configs[at]),
                score=-float(min(score[at], score[order[0]])),
                origin=self._origin(voters[at]),
                expected_gain=math.exp(gain[at]) if self.query.vote.knows_default else None,
                gain_low=low,
                gain_high=high,
                voters=voters[at],
            )


def posterior_of(ranker: Ranker, source: str, answer: Config) -> Posterior:
    """The posterior of the ranker; on a measured pattern shifted and scaled to the measurements
    there (`anchored`)."""
    query = ranker.query
    if source in ("static-best", "default"):
        return StaticBest(query).posterior(answer)
    posterior = ranker.posterior(answer)
    if source == "measured":
        return anchored(posterior, query, query.own.timings, exact=True)
    if source == "other-width":
        return anchored(posterior, query, query.own.other_width, exact=False)
    return posterior


def default_candidate(query: Query) -> Candidate:
    """The platform's default as a candidate, with gain 1."""
    return default_proposal(query.default)


def between(query: Query, gain: float, spread: float) -> Interval:
    """The 10th and 90th percentile of a lognormal factor over the default; None where the default
    was never run or the spread is unknown."""
    if not query.vote.knows_default or not math.isfinite(spread):
        return None, None
    reach = min(NINETIETH * spread, _MOST_REACH)
    return math.exp(gain - reach), math.exp(gain + reach)


def by_score(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Positions of the finite scores, ascending; equal scores keep the configurations' order."""
    order = np.argsort(scores, kind="stable")
    return order[np.isfinite(scores[order])]


class StaticBest(Ranker):
    """Ranks by the mean gain over all measured patterns."""

    name, source = "static-best", "static-best"
    by_vote = False

    @property
    def configs(self) -> tuple[Config, ...]:
        return self.query.vote.configs

    @property
    def score(self) -> Floats:
        return self.query.vote.mean

    @property
    def spread(self) -> Floats:
        return np.full(len(self.configs), np.nan)

    def candidates(self) -> Iterator[Candidate]:
        return self._in_order(by_score(-self.score), self.score)

    def _origin(self, voters: int) -> str:
        return "best on average over the platform's patterns"

    def _interval(self, at: int) -> Interval:
        return None, None

    def posterior(self, answer: Config) -> Posterior:
        return over_default_of(self.query, self.configs, self.score, self.spread)
