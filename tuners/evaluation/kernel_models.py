"""Held-out figures of a learned model of tiles beside neighbours, for its card and for queries.

The rankers are the product's, on the tiles that ran on every held-out kernel. Guards and the weight
of the model beside the vote are fitted on other held-out families than those they are judged on.
The families also decided when the training stopped, a small bias in the model's favour.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.cost_model.graph_model import GraphModel
from embeddb.index.guards import safe_guard
from embeddb.index.held_out import split_groups
from embeddb.index.lookup import Lookup
from embeddb.index.scopes import scope_of, scope_partitions
from embeddb.platforms.platform import Platform
from embeddb.ranking.kernel_prediction import with_tiles
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.joint import JointRanker
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote
from embeddb.tensors.tensor_graph import TensorGraph
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import Truth, judge
from tuners.evaluation.learned import hidden_document, share_figures

_OP, _K = Op("tile"), 5
#: Candidates for the weight of the model beside the vote.
_WEIGHTS = (0.25, 0.5, 0.75)
#: Parts of the held-out families, each judged with settings fitted on the others.
_PARTS = 5
#: Featurizers trained on these runs, which would not be held out.
_LEARNED = ("kernel-embedding",)


class Proposals(NamedTuple):
    """The first six tiles of a ranker without a guard, and the predicted and the measured log gain
    of the first over the default."""

    first: tuple[Config, ...]
    predicted: float
    measured: float


@dataclass(frozen=True, eq=False)
class HeldOutKernel:
    """A held-out kernel: its query, with the model's predictions, and its measurements."""

    query: Query
    truth: Truth

    @property
    def group(self) -> str:
        return self.query.pattern.group or self.query.pattern.id

    def proposals(self, weight: float, *, unrun_first: bool) -> Proposals:
        """Proposals of the vote (weight 0; with its own guard), the model (1) or both, cached."""
        key = (weight, unrun_first)
        if key not in self._cache:
            ranker = self._ranker(weight, unrun_first)
            first = tuple(Config(c.config) for c in islice(ranker.candidates(), _K + 1))
            gain = dict(zip(ranker.configs, ranker.score.tolist(), strict=True))
            measured = self.truth.default_s / self.truth.times.get(first[0], math.inf)
            # Without a neighbour that ran the default, or any other tile, only the default is
            # proposed.
            predicted = gain.get(first[0], 0.0) - gain.get(self.query.default, 0.0)
            self._cache[key] = Proposals(first, predicted, math.log(max(measured, 1e-12)))
        return self._cache[key]

    @cached_property
    def _cache(self) -> dict[tuple[float, bool], Proposals]:
        return {}

    def _ranker(self, weight: float, unrun_first: bool) -> Ranker:
        if weight == 0.0:
            return NeighbourVote(self.query)
        prediction = replace(
            self.query.prediction,
            weight=weight,
            unrun_first=unrun_first,
            guard=-math.inf,
            joint_guard=-math.inf,
        )
        query = replace(self.query, prediction=prediction)
        return CostModelRanker(query) if weight == 1.0 else JointRanker(query)

    def shares(self, proposals: Proposals, guard: float) -> tuple[float, float]:
        """Log shares of the optimum at 1 and at 5 under a guard."""
        order = proposals.first
        if not proposals.predicted > guard:
            order = (self.query.default, *(c for c in order if c != self.query.default))
        outcome = judge(self.truth, order[:_K])
        return outcome.of_optimum_1, outcome.of_optimum_5


def held_out_kernels(
    db: Lookup, model: GraphModel, platform: Platform, groups: Collection[str]
) -> list[HeldOutKernel]:
    """The measured kernels of these families, with the votes of all other families and the model's
    predictions."""
    several = len({p.platform for p in scope_partitions(db.store, _OP, scope_of(platform))}) > 1
    bench = Bench(db, _OP, scope_of(platform), instance=platform.id if several else "")
    bench.vectors = {n: v for n, v in bench.vectors.items() if n not in _LEARNED}
    train, test = bench.split(groups)
    if not train.size or not test.size or not bench.vectors:
        return []
    kernels = (_kernel(bench, model, row, query) for row, query in bench.queries_of(train, test))
    return [one for one in kernels if one is not None]


def _kernel(bench: Bench, model: GraphModel, row: int, query: Query) -> HeldOutKernel | None:
    kernel, truth = bench.subjects[bench.evidence.rows[row].pattern_id], bench.truth(row)
    legal = [c for c in truth.times if c != query.default and query.space.reason(c) is None]
    if not isinstance(kernel, TensorGraph) or query.default not in truth.times or not legal:
        return None
    return HeldOutKernel(with_tiles(query, model, kernel, (query.default, *legal)), truth)


def judgement(kernels: Sequence[HeldOutKernel]) -> dict[str, Any]:
    """Figures on held-out kernels: `held_out` as cards have it, of `transfer`, `rank` and
    `transfer+rank`; `guard` of the model alone; `hidden` (`_hidden`)."""
    hidden = _hidden(kernels)
    unrun = bool(hidden["unrun_first"])
    groups = np.array([one.group for one in kernels])
    parts = split_groups(groups, min(_PARTS, np.unique(groups).size), 0)
    shares: dict[str, list[tuple[float, float]]] = {}
    for at in range(int(parts.max()) + 1):
        others = [one for one, part in zip(kernels, parts, strict=True) if part != at]
        own = [one for one, part in zip(kernels, parts, strict=True) if part == at]
        there = bool(_hidden(others)["unrun_first"])
        for name, (weight, guard) in _settings(others, unrun_first=there).items():
            shares.setdefault(name, []).extend(_shares(own, weight, guard, unrun_first=there))
    whole = _settings(kernels, unrun_first=unrun)
    figures = {name: share_figures(pairs) for name, pairs in shares.items()}
    weight, guard = whole["transfer+rank"]
    figures["transfer+rank"] |= {"weight": weight, "guard": guard}
    return {"held_out": figures, "guard": whole["rank"][1], "hidden": hidden}


def _hidden(kernels: Sequence[HeldOutKernel]) -> dict[str, float | bool]:
    """Shares of the optimum at 1 of the model without a guard, if only tiles that measured kernels
    ran may go first (`known`), and if any may (`all`); `unrun_first` if the latter is better."""
    others, both = (
        np.array(_shares(kernels, 1.0, -math.inf, unrun_first=unrun))[:, 0]
        for unrun in (False, True)
    )
    return hidden_document(others, both, [one.group for one in kernels])


def _shares(
    kernels: Sequence[HeldOutKernel], weight: float, guard: float, *, unrun_first: bool
) -> list[tuple[float, float]]:
    return [one.shares(one.proposals(weight, unrun_first=unrun_first), guard) for one in kernels]


def _settings(
    kernels: Sequence[HeldOutKernel], *, unrun_first: bool
) -> dict[str, tuple[float, float]]:
    """The weight of the model and the guard of each method, fitted to these kernels."""
    guards, limit = {}, Op("tile").workload.max_slower
    assert limit is not None
    for weight in (*_WEIGHTS, 1.0):
        proposals = [one.proposals(weight, unrun_first=unrun_first) for one in kernels]
        pairs = np.array([(one.predicted, one.measured) for one in proposals])
        guards[weight] = safe_guard([pairs], limit)
    reached = {w: np.sum(_shares(kernels, w, guards[w], unrun_first=unrun_first)) for w in _WEIGHTS}
    best = max(_WEIGHTS, key=lambda w: reached[w])
    return {
        # The guard of the vote is fitted with the vote.
        "transfer": (0.0, -math.inf),
        "rank": (1.0, guards[1.0]),
        "transfer+rank": (best, guards[best]),
    }


def judged_tiles(
    db: Lookup, model: GraphModel, platform: Platform, groups: Collection[str]
) -> dict[str, Any]:
    """The card's figures of a model of tiles that was trained without these families; empty with
    kernels of fewer than two families.

    Raises: UsageError for a model of something else.
    """
    if model.network.task != "tile":
        raise UsageError(f"a model of {model.network.task} ranks no tiles")
    kernels = held_out_kernels(db, model, platform, groups)
    if len({one.query.pattern.group for one in kernels}) < 2:
        return {}
    return {**judgement(kernels), "kernels": len(kernels)}
