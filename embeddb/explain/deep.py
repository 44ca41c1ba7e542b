"""What would change an answer, asked for with `deep`: the effect of every parameter and of every
feature of the pattern, by hundreds of queries against the arrays at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.records import WorkloadInfo
from embeddb.core.reports import Progress
from embeddb.core.wording import value_text
from embeddb.core.workload import Workload
from embeddb.cost_model import Problem
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.lookup import Lookup
from embeddb.index.view import View
from embeddb.ranking.alternatives import Deepen
from embeddb.ranking.fallback import RankedCandidates
from embeddb.ranking.posterior import Posterior
from embeddb.ranking.prediction import shared_out, tempered
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker, posterior_of
from embeddb.ranking.recommendation import Counterfactual, Diagnostics, ParameterEffect

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel


def deepening(
    lookup: Lookup,
    pattern: Workload | WorkloadInfo,
    *,
    progress: Progress | None = None,
) -> Deepen:
    """What adds effects, moves and attention to an answer's diagnostics (the last only where
    `pattern` or the store holds the structure); it takes up to some seconds. Moves and attention
    are of matrices, what is `occluded` of tensor kernels."""

    def deepened(plain: Diagnostics, found: RankedCandidates) -> Diagnostics:
        ranker = found.rankers.chosen
        parts = ranker.query.op.workload.occluded(ranker, lookup, pattern, progress)
        return msgspec.structs.replace(
            plain,
            deep=True,
            effects=partial_dependence(posterior_of(ranker, found.source, found.first)),
            moves=counterfactuals(ranker, lookup, progress=progress),
            **parts,
        )

    return deepened


Floats = NDArray[np.float64]

#: Values of one parameter that are told of, the best; a tile size may have hundreds.
_MOST_VALUES = 12
#: Values of one feature that are tried on either side, without and with a cost model to ask.
_STEPS, _STEPS_OF_MODEL = 8, 3
#: How far from the query they are at most, in standard deviations: beyond it is another matrix.
_FARTHEST = 3.0
#: Configurations that stay in the race when a cost model is asked hundreds of times.
_MOST_RACING = 512
_MOST_MOVES = 8


def partial_dependence(held: Posterior) -> list[ParameterEffect]:
    """Every value of every parameter that is open, over all ranked configurations; best first in a
    parameter. Empty where no gain over the default is known."""
    there = np.flatnonzero(np.isfinite(held.mean))
    if not held.over_default:
        return []
    configs, gains = [held.configs[i] for i in there], np.exp(held.mean[there])
    found = []
    for name in sorted({name for config in configs for name in config}):
        by_value: dict[str, list[float]] = {}
        for config, gain in zip(configs, gains, strict=True):
            by_value.setdefault(value_text(config.get(name)), []).append(float(gain))
        if len(by_value) > 1:
            rows = [_effect(name, value, held_) for value, held_ in by_value.items()]
            rows.sort(key=lambda e: (-e.best_gain, e.value))
            found += rows[:_MOST_VALUES]
    return found


def _effect(name: str, value: str, gains: list[float]) -> ParameterEffect:
    return ParameterEffect(
        parameter=name,
        value=value,
        configs=len(gains),
        best_gain=max(gains),
        median_gain=float(np.median(gains)),
    )


# -- which feature -----------------------------------------------------------------------------


def counterfactuals(
    ranker: Ranker, db: Lookup, *, progress: Progress | None = None
) -> list[Counterfactual]:
    """Per feature and direction the smallest of the tried values, all of them seen in the
    partition, at which neighbours and model answer something else that they hold better by more
    than the noise; the nearest first. What was measured on the pattern itself does not count.

    Empty where no neighbours were looked up, and for kinds of workload to which configurations are
    transferred: those of other neighbours would have to be transferred first.
    """
    if ranker.query.op.workload.transfers:
        return []
    query, race = ranker.query, _Race.of(ranker, db)
    if race is None:
        return []
    names = db.featurizers().named(query.vote.featurizer).names
    start, found = race.winner(query.vote.vector), []
    for at, name in enumerate(names):
        if progress is not None:
            progress("what would change the answer", at, len(names))
        found += [
            Counterfactual(
                feature=name,
                start=float(query.vote.vector[at]),
                end=float(value),
                deviations=float((value - query.vote.vector[at]) / race.partition.metric.scale[at]),
                winner=dict(winner),
            )
            for value, winner in race.changes(at, start)
        ]
    return sorted(found, key=lambda m: (abs(m.deviations), m.feature))[:_MOST_MOVES]


@dataclass(frozen=True, slots=True, eq=False)
class _Race:
    """Asks neighbours and cost model again for another vector; `columns` int64[c] are the places of
    the query's configurations in the view."""

    ranker: Ranker
    partition: AnswerIndex
    model: CostModel | None
    view: View
    columns: NDArray[np.int64]

    @classmethod
    def of(cls, ranker: Ranker, db: Lookup) -> _Race | None:
        query = ranker.query
        partition = db.answering(query.op, query.platform, nest_id=query.pattern.id)
        if (
            partition is None
            or partition.featurizer != query.vote.featurizer
            or not query.vote.neighbours
        ):
            return None
        model = db.cost_model(query.platform, query.op) if ranker.by_model else None
        if model is not None:
            if query.prediction.featurizer != query.vote.featurizer and not ranker.by_vote:
                return None
            ranker = ranker.again(_narrowed(ranker))
        partition = db.around(partition, query.vote.vector, query.pattern.id, query.platform)
        view = partition.view(query.platform, calls=query.calls)
        return cls(ranker, partition, model, view, _columns(ranker.query, partition))

    def changes(self, feature: int, start: Config) -> Iterator[tuple[float, Config]]:
        """Downwards and upwards, the nearest tried value that changes the winner, and to what."""
        seen = np.unique(self.partition.vectors[:, feature])
        here = self.ranker.query.vote.vector[feature]
        seen = seen[np.abs(seen - here) <= _FARTHEST * self.partition.metric.scale[feature]]
        steps = _STEPS if self.model is None else _STEPS_OF_MODEL
        for side in (seen[seen < here][::-1], seen[seen > here]):
            evenly = np.unique(np.arange(1, steps + 1) * side.size // steps)
            tried = side[evenly[evenly > 0] - 1]
            for value in tried:
                vector = self.ranker.query.vote.vector.copy()
                vector[feature] = value
                winner = self.winner(vector, beside=start)
                if winner != start:
                    yield float(value), winner
                    break

    def winner(self, vector: NDArray[np.float32], *, beside: Config | None = None) -> Config:
        """The first of the ranking for raw features float32[d]; `beside` itself unless that is
        beaten by more than the noise."""
        asked = self.ranker.again(self._asked(vector))
        configs, score = asked.configs, asked.score
        best = int(np.nanargmax(score))
        if (
            beside is not None
            and score[best] - score[configs.index(beside)] <= asked.query.vote.noise
        ):
            return beside
        return configs[best]

    def _asked(self, vector: NDArray[np.float32]) -> Query:
        query = self.ranker.query
        if self.ranker.by_vote:
            exclude = {query.pattern.id} if query.own.timings else ()
            view, policy = self.view, self.view.policy
            ids, far = self.partition.nearest(vector, count=policy.k, exclude=exclude)
            rows = np.array([self.partition.place_of(i) for i in ids], dtype=np.int64)
            query = replace(
                query,
                vote=replace(
                    query.vote,
                    gains=view.gains[rows][:, self.columns],
                    trust=view.trust[rows][:, self.columns],
                    levels=view.averages.level[rows],
                    weights=policy.weights(far),
                ),
            )
        if self.model is not None and query.prediction.featurizer == query.vote.featurizer:
            info = query.pattern
            configs = query.prediction.configs
            problem = Problem(vector, query.platform, query.op, info.sizes)
            told = tempered(*self.model.score(problem, (query.default, *configs)))
            told = shared_out(query, configs, told[0][1:] - told[0][0], told[1][1:])
            query = replace(
                query, prediction=replace(query.prediction, gain=told[0], spread=told[1])
            )
        return query


def _columns(query: Query, partition: AnswerIndex) -> NDArray[np.int64]:
    """Where the evidence has the query's configurations int64[c]; of two that are one choice on
    this matrix the one that was run more often."""
    runs = np.bincount(partition.evidence.column, minlength=len(partition.evidence.configs))
    place: dict[Config, int] = {}
    for at, config in enumerate(partition.evidence.configs):
        stored = query.space.canonical(config)
        if config not in query.vote.rejected and (
            stored not in place or runs[at] > runs[place[stored]]
        ):
            place[stored] = at
    return np.array([place[config] for config in query.vote.configs], dtype=np.int64)


def _narrowed(ranker: Ranker) -> Query:
    """The question with only those configurations that are ahead."""
    query, configs, score = ranker.query, ranker.configs, ranker.score
    if len(configs) <= _MOST_RACING:
        return query
    ahead = {configs[i] for i in np.argsort(-score, kind="stable")[:_MOST_RACING]}
    ran = np.array([c in ahead for c in query.vote.configs], dtype=np.bool_)
    told = np.array([c in ahead for c in query.prediction.configs], dtype=np.bool_)
    return replace(
        query,
        vote=replace(
            query.vote,
            configs=tuple(c for c in query.vote.configs if c in ahead),
            gains=query.vote.gains[:, ran],
            trust=query.vote.trust[:, ran],
            prior=query.vote.prior[ran],
            machine_effects=query.vote.machine_effects[:, ran],
            mean=query.vote.mean[ran],
        ),
        prediction=replace(
            query.prediction,
            configs=tuple(c for c in query.prediction.configs if c in ahead),
            gain=query.prediction.gain[told],
            spread=query.prediction.spread[told],
        ),
    )
