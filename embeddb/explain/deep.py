"""Deep diagnostics of an answer: partial dependence on parameters and counterfactuals of features,
by hundreds of queries against arrays in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.errors import EmbeddbError
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.core.reports import Progress
from embeddb.core.row_lengths import RowLengths
from embeddb.core.wording import value_text
from embeddb.core.workload import Workload
from embeddb.cost_model import Problem
from embeddb.featurizers.base import Explained, Featurizer, Occluding
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.lookup import Lookup
from embeddb.index.view import View
from embeddb.ranking.alternatives import Deepen
from embeddb.ranking.build import Coordinates, coordinates, split_legal
from embeddb.ranking.fallback import RankedCandidates
from embeddb.ranking.kernel_view import MOST_SHOWN
from embeddb.ranking.posterior import Posterior
from embeddb.ranking.prediction import over_default, tempered
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker, posterior_of
from embeddb.ranking.recommendation import Counterfactual, Diagnostics, Occluded, ParameterEffect
from embeddb.tensors.tensor_graph import TensorGraph

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel


def deepening(
    lookup: Lookup,
    pattern: Workload | WorkloadInfo,
    *,
    progress: Progress | None = None,
) -> Deepen:
    """Function that adds deep diagnostics to an answer: parameter effects; for matrices
    counterfactuals (`moves`) and the occlusion map (`attention`, only if `pattern` or the store has
    the structure); for tensor kernels `occluded` parts. It takes up to some seconds."""

    def deepened(plain: Diagnostics, ranked: RankedCandidates) -> Diagnostics:
        ranker = ranked.rankers.chosen
        parts = ranker.query.op.workload.occluded(ranker, lookup, pattern, progress)
        return msgspec.structs.replace(
            plain,
            deep=True,
            effects=partial_dependence(posterior_of(ranker, ranked.source, ranked.first)),
            moves=counterfactuals(ranker, lookup, pattern, ranked.first, progress=progress),
            **parts,
        )

    return deepened


Floats = NDArray[np.float64]

#: Best values of one parameter that are kept; a tile size may have hundreds.
_MOST_VALUES = 12
#: Values of one feature that are tried on either side, without and with a cost model.
_STEPS, _STEPS_OF_MODEL = 8, 3
#: Largest distance of tried values from the query, in standard deviations.
_FARTHEST = 3.0
#: Configurations compared when a cost model is queried hundreds of times.
_MOST_RACING = 512
_MOST_MOVES = 8


def partial_dependence(posterior: Posterior) -> list[ParameterEffect]:
    """Effect of every value of every free parameter, over all ranked configurations; best first
    within a parameter. Empty if gains over the default are unknown."""
    there = np.flatnonzero(np.isfinite(posterior.mean))
    if not posterior.over_default:
        return []
    configs, gains = [posterior.configs[i] for i in there], np.exp(posterior.mean[there])
    effects = []
    for name in sorted({name for config in configs for name in config}):
        by_value: dict[str, list[float]] = {}
        for config, gain in zip(configs, gains, strict=True):
            by_value.setdefault(value_text(config.get(name)), []).append(float(gain))
        if len(by_value) > 1:
            rows = [
                ParameterEffect(
                    parameter=name,
                    value=value,
                    configs=len(own),
                    best_gain=max(own),
                    median_gain=float(np.median(own)),
                )
                for value, own in by_value.items()
            ]
            rows.sort(key=lambda e: (-e.best_gain, e.value))
            effects += rows[:_MOST_VALUES]
    return effects


# -- which feature -----------------------------------------------------------------------------


def counterfactuals(
    ranker: Ranker,
    db: Lookup,
    workload: Workload | WorkloadInfo,
    answer: Config,
    *,
    progress: Progress | None = None,
) -> list[Counterfactual]:
    """Counterfactuals: per feature and direction the nearest tried value, out of those in the
    partition, at which neighbours and model choose another configuration than the answer that is
    better by more than the noise; the nearest first. Measurements of the pattern are ignored.

    Empty without neighbours, and for kinds of workload whose configurations need a transfer.
    """
    if ranker.query.op.workload.transfers:
        return []
    race = _Race.of(ranker, db, workload)
    if race is None:
        return []
    here, names = race.shown.vector, race.shown.featurizer.names
    start, changes = race.winner(here, beside=answer), []
    for at, name in enumerate(names):
        if progress is not None:
            progress("counterfactuals", at, len(names))
        changes += [
            Counterfactual(
                feature=name,
                start=float(here[at]),
                end=float(value),
                deviations=float((value - here[at]) / race.shown.scale[at]),
                winner=dict(winner),
            )
            for value, winner in race.changes(at, start)
            if winner != answer
        ]
    return sorted(changes, key=lambda m: (abs(m.deviations), m.feature))[:_MOST_MOVES]


@dataclass(frozen=True, slots=True, eq=False)
class _Race:
    """Re-ranks by neighbours and cost model for another vector of the coordinates `shown`, of which
    `seen` float32[p,e] are the partition's; `columns` int64[c] are the positions of the query's
    configurations in the view."""

    ranker: Ranker
    shown: Coordinates
    seen: NDArray[np.float32]
    plug: Featurizer
    partition: AnswerIndex
    model: CostModel | None
    view: View
    columns: NDArray[np.int64]
    lengths: RowLengths | None

    @classmethod
    def of(cls, ranker: Ranker, db: Lookup, workload: Workload | WorkloadInfo) -> _Race | None:
        query = ranker.query
        partition = db.answering(query.op, query.platform, nest_id=query.pattern.id)
        shown = coordinates(db, query, workload)
        if partition is None or shown is None or not query.vote.neighbours:
            return None
        model = db.cost_model(query.platform, query.op) if ranker.by_model else None
        if ranker.by_model and model is None:
            model = db.models.learned(query.platform, query.op)
        if model is not None:
            if query.prediction.featurizer != shown.featurizer.name and not ranker.by_vote:
                return None
            ranker = ranker.again(_narrowed(ranker))
        partition = db.around(partition, query.vote.vector, query.pattern.id, query.platform)
        view = partition.view(query.platform, calls=query.calls)
        stored, places, _ = split_legal(partition, query.space)
        place = dict(zip(stored, places.tolist(), strict=True))
        columns = np.array([place[c] for c in ranker.query.vote.configs], dtype=np.int64)
        plug, seen = db.featurizers().named(query.vote.featurizer), partition.vectors
        if shown.featurizer is not plug:
            by_id = db.store.vectors.get(*shown.by, partition.ids, dim=len(shown.vector))
            seen = np.array([*by_id.values(), shown.vector])
        lengths = db.lengths(query.pattern)
        return cls(ranker, shown, seen, plug, partition, model, view, columns, lengths)

    def changes(self, feature: int, start: Config) -> Iterator[tuple[float, Config]]:
        """The nearest tried value that changes the winner, below and above, with the new winner."""
        seen, here = np.unique(self.seen[:, feature]), self.shown.vector[feature]
        seen = seen[np.abs(seen - here) <= _FARTHEST * self.shown.scale[feature]]
        steps = _STEPS if self.model is None else _STEPS_OF_MODEL
        for side in (seen[seen < here][::-1], seen[seen > here]):
            evenly = np.unique(np.arange(1, steps + 1) * side.size // steps)
            tried = side[evenly[evenly > 0] - 1]
            for value in tried:
                vector = self.shown.vector.copy()
                vector[feature] = value
                winner = self.winner(vector, beside=start)
                if winner != start:
                    yield float(value), winner
                    break

    def winner(self, vector: NDArray[np.float32], *, beside: Config) -> Config:
        """The top-ranked configuration for a vector float32[e]; `beside` if it is ranked, unless
        another one is better by more than the noise."""
        ranked = self.ranker.again(self._query_at(vector))
        configs, score = ranked.configs, ranked.score
        best = int(np.nanargmax(score))
        if beside in configs:
            behind = score[best] - score[configs.index(beside)]
            if behind <= ranked.query.vote.noise:
                return beside
        return configs[best]

    def _query_at(self, vector: NDArray[np.float32]) -> Query:
        query = self.ranker.query
        if self.ranker.by_vote:
            exclude = {query.pattern.id} if query.own.timings else set[str]()
            exclude |= self.partition.generated
            view, policy = self.view, self.view.policy
            raw = self.plug.join([vector]) if isinstance(self.plug, Explained) else vector
            ids, far = self.partition.nearest(raw, count=policy.k, exclude=exclude)
            rows = self.partition.places_of(ids)
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
        if self.model is not None and query.prediction.featurizer == self.shown.featurizer.name:
            configs, sizes = query.prediction.configs, query.pattern.sizes
            problem = Problem(vector, query.platform, query.op, sizes, self.lengths)
            predicted = tempered(*self.model.score(problem, (query.default, *configs)))
            gain, spread = over_default(query, configs, *predicted)
            query = query.with_prediction(gain=gain, spread=spread)
        return query


def _narrowed(ranker: Ranker) -> Query:
    """The query restricted to its top-ranked configurations."""
    query, configs, score = ranker.query, ranker.configs, ranker.score
    if len(configs) <= _MOST_RACING:
        return query
    ahead = {configs[i] for i in np.argsort(-score, kind="stable")[:_MOST_RACING]}
    ran = np.array([c in ahead for c in query.vote.configs], dtype=np.bool_)
    predicted = np.array([c in ahead for c in query.prediction.configs], dtype=np.bool_)
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
            gain=query.prediction.gain[predicted],
            spread=query.prediction.spread[predicted],
        ),
    )


# Occlusion (Zeiler and Fergus 2014, Section 4.2): effect of removing one cell of a matrix, or one
# operation of a kernel.

#: Candidate grid sides, the finest within the time limit is used, and the limit in seconds.
_SIDES, _MOST_S = (8, 4), 4.0


def occlusion(
    query: Query, db: Lookup, pattern: Pattern | None, *, progress: Progress | None = None
) -> tuple[int, list[float]]:
    """Occlusion map: side of a grid, and row by row how far the embedding moves in the partition's
    metric without the non-zeros of one cell (Zeiler and Fergus 2014, Section 4.2).

    (0, []) without neighbours or structure, if the featurizer fails, or if even the coarser grid
    would take too long.
    """
    partition = db.answering(query.op, query.platform)
    structure = pattern if pattern is not None else db.store.structure(query.pattern.id)
    if partition is None or structure is None or partition.featurizer != query.vote.featurizer:
        return 0, []
    plug = db.featurizers().named(query.vote.featurizer)

    def placed(shown: Pattern) -> Floats:
        raw = np.asarray(plug.embed(shown), dtype=np.float32)
        at: Floats = partition.metric.apply(raw[None])[0].astype(np.float64)
        return at

    try:
        whole = placed(structure)
        began = time.perf_counter()
        placed(without_cell(structure, 0, 0, side=_SIDES[-1]))
        each = time.perf_counter() - began
        side = next((s for s in _SIDES if s * s * each <= _MOST_S), 0)
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
            progress("occlusion map", cell, side * side)
        left = without_cell(structure, cell // side, cell % side, side=side)
        same = left.nnz == structure.nnz
        yield 0.0 if same else float(np.linalg.norm(placed(left) - whole))


def without_cell(pattern: Pattern, row: int, column: int, *, side: int) -> Pattern:
    """The pattern without the non-zeros in one cell of a side x side grid; it has no id."""
    m, n = pattern.shape
    top, bottom = m * row // side, m * (row + 1) // side
    left, right = n * column // side, n * (column + 1) // side
    first, last = int(pattern.indptr[top]), int(pattern.indptr[bottom])
    inside = pattern.indices[first:last]
    keep = (inside < left) | (inside >= right)
    offsets = np.concatenate([[0], np.cumsum(keep)])
    indptr = pattern.indptr.copy()
    indptr[top : bottom + 1] = first + offsets[pattern.indptr[top : bottom + 1] - first]
    indptr[bottom + 1 :] -= int(keep.size - offsets[-1])
    indices = np.concatenate([pattern.indices[:first], inside[keep], pattern.indices[last:]])
    return Pattern("", pattern.shape, indptr, indices)


_MOST_SIZES = 12


def kernel_occlusion(
    ranker: Ranker, db: Lookup, kernel: TensorGraph | None
) -> tuple[str, list[Occluded]]:
    """The method (`Diagnostics.occluded_by`) and the parts, largest effect first; ("", []) if the
    method does not apply. Kernels of more than `MOST_SHOWN` operations are not occluded.
    """
    few = kernel if kernel is not None and len(kernel.operations) <= MOST_SHOWN else None
    try:
        if ranker.by_model and few is not None:
            return "model", _by_model(ranker.query, db, few)
        return _by_neighbours(ranker.query, db, few)
    except EmbeddbError:
        return "", []


def _by_model(query: Query, db: Lookup, kernel: TensorGraph) -> list[Occluded]:
    """Change of the best tile's predicted gain over the default without an operation."""
    model, _ = db.graph_model(query.platform, query.op)
    if model is None or query.default not in query.prediction.configs:
        return []
    others = [c for c in query.prediction.configs if c != query.default]
    if not others:
        return []
    gain = dict(zip(query.prediction.configs, query.prediction.gain.tolist(), strict=True))
    pair = (query.default, max(others, key=lambda c: gain[c]))
    slope = float(model.card["calibration"]["slope"])
    whole = model.predict(kernel, pair)
    without = model.without(kernel, pair)
    moved = slope * ((without[:, 0] - without[:, 1]) - (whole[0] - whole[1]))
    return _operations(kernel, moved)


def _by_neighbours(
    query: Query, db: Lookup, kernel: TensorGraph | None
) -> tuple[str, list[Occluded]]:
    partition = db.answering(query.op, query.platform)
    if partition is None or partition.featurizer != query.vote.featurizer:
        return "", []
    plug = db.featurizers().named(partition.featurizer)
    whole = partition.metric.apply(query.vote.vector[None])[0]
    if isinstance(plug, Occluding):
        if kernel is None:
            return "", []
        placed = partition.metric.apply(np.array(plug.without(kernel), dtype=np.float32))
        return "operations", _operations(kernel, np.linalg.norm(placed - whole, axis=1))
    usual = np.repeat(query.vote.vector[None], len(plug.names), axis=0)
    usual[np.diag_indices(len(plug.names))] = partition.metric.center
    moved = np.linalg.norm(partition.metric.apply(usual) - whole, axis=1)
    parts = [Occluded(what=n, moved=float(m)) for n, m in zip(plug.names, moved, strict=True)]
    return "sizes", sorted(parts, key=lambda one: -one.moved)[:_MOST_SIZES]


def _operations(kernel: TensorGraph, moved: NDArray[np.float64]) -> list[Occluded]:
    parts = [
        Occluded(what=op.opcode, place=at, moved=float(moved[at]))
        for at, op in enumerate(kernel.operations)
    ]
    return sorted(parts, key=lambda one: -abs(one.moved))
