"""What would change an answer: the effect of every parameter, of every feature, of every part of
the pattern. Asked for with `deep`; hundreds of queries against the arrays at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.errors import EmbeddbError
from embeddb.core.pattern import Pattern
from embeddb.database import Database
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.view import View
from embeddb.query.build import shared_out
from embeddb.query.diagnostics import Counterfactual, ParameterEffect
from embeddb.query.fallback import method_of
from embeddb.query.posterior import Posterior
from embeddb.query.query import Query
from tuners.rank import over_default
from tuners.transfer import scores
from tuners.transfer_rank import joined

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel

__all__ = ["attention", "effects", "moves", "without_cell"]

Floats = NDArray[np.float64]
Progress = Callable[[str, int, int], None]

#: Values of one parameter that are told of, the best; a tile size may have hundreds.
_MOST_VALUES = 12
#: Values of one feature that are tried on either side, without and with a cost model to ask.
_STEPS, _STEPS_OF_MODEL = 8, 3
#: How far from the query they are at most, in standard deviations: beyond it is another matrix.
_FARTHEST = 3.0
#: Configurations that stay in the race when a cost model is asked hundreds of times.
_MOST_RACING = 512
_MOST_MOVES = 8
#: Cells along a side of the grid of the occlusion: the finest that takes no longer than the limit.
_SIDES, _ATTENTION_S = (8, 4), 4.0


def effects(held: Posterior) -> list[ParameterEffect]:
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
            by_value.setdefault(_text(config.get(name)), []).append(float(gain))
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


def _text(value: object) -> str:
    if value is None:
        return "(not used)"
    return " ".join(value) if isinstance(value, tuple) else str(value)


# -- which feature -----------------------------------------------------------------------------


def moves(query: Query, db: Database, *, progress: Progress | None = None) -> list[Counterfactual]:
    """Per feature and direction the smallest of the tried values, all of them seen in the
    partition, at which neighbours and model answer something else that they hold better by more
    than the noise; the nearest first. What was measured on the pattern itself does not count.

    Empty where no neighbours were looked up.
    """
    race = _Race.of(query, db)
    if race is None:
        return []
    names = db.featurizers().named(query.featurizer).names
    start, found = race.winner(query.vector), []
    for at, name in enumerate(names):
        if progress is not None:
            progress("what would change the answer", at, len(names))
        found += [
            Counterfactual(
                feature=name,
                start=float(query.vector[at]),
                end=float(value),
                deviations=float((value - query.vector[at]) / race.partition.metric.scale[at]),
                winner=dict(winner),
            )
            for value, winner in race.changes(at, start)
        ]
    return sorted(found, key=lambda m: (abs(m.deviations), m.feature))[:_MOST_MOVES]


@dataclass(frozen=True, slots=True, eq=False)
class _Race:
    """Asks neighbours and cost model again for another vector; `columns` int64[c] are the places of
    the query's configurations in the view."""

    query: Query
    partition: AnswerIndex
    model: CostModel | None
    method: str
    view: View
    columns: NDArray[np.int64]

    @classmethod
    def of(cls, query: Query, db: Database) -> _Race | None:
        partition = db.answering(query.op, query.platform)
        if partition is None or partition.featurizer != query.featurizer or not query.neighbours:
            return None
        method = method_of(query)
        model = None if method == "transfer" else db.cost_model(query.platform, query.op)
        if model is not None:
            if query.model_featurizer != query.featurizer and method == "rank":
                return None
            query = _narrowed(query, method)
        view = partition.view(query.platform, calls=query.calls)
        return cls(query, partition, model, method, view, _columns(query, partition))

    def changes(self, feature: int, start: Config) -> Iterator[tuple[float, Config]]:
        """Downwards and upwards, the nearest tried value that changes the winner, and to what."""
        seen = np.unique(self.partition.vectors[:, feature])
        here = self.query.vector[feature]
        seen = seen[np.abs(seen - here) <= _FARTHEST * self.partition.metric.scale[feature]]
        steps = _STEPS if self.model is None else _STEPS_OF_MODEL
        for side in (seen[seen < here][::-1], seen[seen > here]):
            evenly = np.unique(np.arange(1, steps + 1) * side.size // steps)
            tried = side[evenly[evenly > 0] - 1]
            for value in tried:
                vector = self.query.vector.copy()
                vector[feature] = value
                winner = self.winner(vector, beside=start)
                if winner != start:
                    yield float(value), winner
                    break

    def winner(self, vector: NDArray[np.float32], *, beside: Config | None = None) -> Config:
        """The first of the ranking for raw features float32[d]; `beside` itself unless that is
        beaten by more than the noise."""
        asked = self._asked(vector)
        if self.method == "transfer":
            configs, score = asked.configs, scores(asked)[0]
        elif self.method == "rank":
            configs, score = asked.predicted_configs, over_default(asked)[0]
        else:
            both = joined(asked)
            configs, score = both.configs, both.score
        best = int(np.nanargmax(score))
        if beside is not None and score[best] - score[configs.index(beside)] <= self.query.noise:
            return beside
        return configs[best]

    def _asked(self, vector: NDArray[np.float32]) -> Query:
        query = self.query
        if self.method != "rank":
            exclude = {query.pattern.id} if query.own else ()
            view, policy = self.view, self.view.policy
            ids, far = self.partition.nearest(vector, count=policy.k, exclude=exclude)
            rows = np.array([self.partition.place_of(i) for i in ids], dtype=np.int64)
            query = replace(
                query,
                gains=view.gains[rows][:, self.columns],
                trust=view.trust[rows][:, self.columns],
                levels=view.averages.level[rows],
                weights=policy.weights(far),
            )
        if self.model is not None and query.model_featurizer == query.featurizer:
            info = query.pattern
            configs = query.predicted_configs
            told = self.model.score(
                vector,
                query.platform,
                query.op,
                (query.default, *configs),
                (info.m, info.n, info.nnz),
            )
            told = shared_out(query, configs, told[0][1:] - told[0][0], told[1][1:])
            query = replace(query, predicted=told[0], predicted_spread=told[1])
        return query


def _columns(query: Query, partition: AnswerIndex) -> NDArray[np.int64]:
    """Where the evidence has the query's configurations int64[c]; of two that are one choice on
    this matrix the one that was run more often."""
    runs = np.bincount(partition.evidence.column, minlength=len(partition.evidence.configs))
    place: dict[Config, int] = {}
    for at, config in enumerate(partition.evidence.configs):
        stored = query.space.canonical(config)
        if config not in query.rejected and (stored not in place or runs[at] > runs[place[stored]]):
            place[stored] = at
    return np.array([place[config] for config in query.configs], dtype=np.int64)


def _narrowed(query: Query, method: str) -> Query:
    """The query with only those configurations that are ahead."""
    if method == "rank":
        configs, score = query.predicted_configs, query.predicted
    else:
        both = joined(query)
        configs, score = both.configs, both.score
    if len(configs) <= _MOST_RACING:
        return query
    ahead = {configs[i] for i in np.argsort(-score, kind="stable")[:_MOST_RACING]}
    ran = np.array([c in ahead for c in query.configs], dtype=np.bool_)
    told = np.array([c in ahead for c in query.predicted_configs], dtype=np.bool_)
    return replace(
        query,
        configs=tuple(c for c in query.configs if c in ahead),
        gains=query.gains[:, ran],
        trust=query.trust[:, ran],
        prior=query.prior[ran],
        machine_effects=query.machine_effects[:, ran],
        mean=query.mean[ran],
        predicted_configs=tuple(c for c in query.predicted_configs if c in ahead),
        predicted=query.predicted[told],
        predicted_spread=query.predicted_spread[told],
    )


# -- which part of the pattern -----------------------------------------------------------------


def attention(
    query: Query, db: Database, pattern: Pattern | None, *, progress: Progress | None = None
) -> tuple[int, list[float]]:
    """Side of a grid, and row by row how far the pattern moves in the partition's metric when the
    non-zeros of one cell are left out (occlusion: Zeiler and Fergus 2014, Section 4.2).

    (0, []) where neighbours were not looked up, the structure is not at hand, the featurizer
    cannot tell, or even the coarser grid would take too long.
    """
    partition = db.answering(query.op, query.platform)
    structure = pattern if pattern is not None else db.store.structure(query.pattern.id)
    if partition is None or structure is None or partition.featurizer != query.featurizer:
        return 0, []
    plug = db.featurizers().named(query.featurizer)

    def placed(shown: Pattern) -> Floats:
        raw = np.asarray(plug.embed(shown), dtype=np.float32)
        at: Floats = partition.metric.apply(raw[None])[0].astype(np.float64)
        return at

    try:
        whole = placed(structure)
        began = time.perf_counter()
        placed(without_cell(structure, 0, 0, side=_SIDES[-1]))
        each = time.perf_counter() - began
        side = next((s for s in _SIDES if s * s * each <= _ATTENTION_S), 0)
        moved = list(_moved(structure, placed, whole, side=side, progress=progress))
    except EmbeddbError:
        return 0, []
    return (side, moved) if side and np.isfinite(moved).all() else (0, [])


def _moved(
    structure: Pattern,
    placed: Callable[[Pattern], Floats],
    whole: Floats,
    *,
    side: int,
    progress: Progress | None,
) -> Iterator[float]:
    for cell in range(side * side):
        if progress is not None:
            progress("which part of the pattern counts", cell, side * side)
        left = without_cell(structure, cell // side, cell % side, side=side)
        same = left.nnz == structure.nnz
        yield 0.0 if same else float(np.linalg.norm(placed(left) - whole))


def without_cell(pattern: Pattern, row: int, column: int, *, side: int) -> Pattern:
    """The pattern less the non-zeros in one cell of a side x side grid; it has no id."""
    m, n = pattern.shape
    top, bottom = m * row // side, m * (row + 1) // side
    left, right = n * column // side, n * (column + 1) // side
    first, last = int(pattern.indptr[top]), int(pattern.indptr[bottom])
    inside = pattern.indices[first:last]
    keep = (inside < left) | (inside >= right)
    kept = np.concatenate([[0], np.cumsum(keep)])
    indptr = pattern.indptr.copy()
    indptr[top : bottom + 1] = first + kept[pattern.indptr[top : bottom + 1] - first]
    indptr[bottom + 1 :] -= int(keep.size - kept[-1])
    indices = np.concatenate([pattern.indices[:first], inside[keep], pattern.indices[last:]])
    return Pattern("", pattern.shape, indptr, indices)
