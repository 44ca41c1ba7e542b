"""How good the learned model of tiles is beside neighbours, on families that it never learned from:
what its card says, and queries choose by.

The rankers are the product's, asked on every held-out kernel about the tiles that ran there. Guards
and the weight of the model beside the vote are found on other held-out families than those they are
judged on. The families did decide when the training stopped: that is a little in the model's
favour.
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
from embeddb.index.vote import surely_positive
from embeddb.platforms.platform import Platform
from embeddb.ranking.kernels.prediction import with_tiles
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.joint import JointRanker
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote
from embeddb.tensors.tensor_graph import TensorGraph
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import Truth, judge

_OP, _K = Op("tile"), 5
#: How far the model counts beside the vote, where both do.
_WEIGHTS = (0.25, 0.5, 0.75)
#: Parts of the held-out families, each judged by what the others have shown.
_PARTS = 5
#: Featurizers that learned from these very runs would not be held out.
_LEARNED = ("kernel-embedding",)


class Tried(NamedTuple):
    """What a ranker would try on a kernel if it had no guard: the first six, the log gain over the
    default that the first promises, and what it gets."""

    first: tuple[Config, ...]
    promised: float
    got: float


@dataclass(frozen=True, eq=False)
class Held:
    """A held-out kernel: what is asked, with the model's predictions, and what was measured."""

    query: Query
    truth: Truth

    @property
    def group(self) -> str:
        return self.query.pattern.group or self.query.pattern.id

    def tried(self, weight: float, *, unrun_first: bool) -> Tried:
        """By the vote (weight 0; its guard is its own), the model (1) or both."""
        if (weight, unrun_first) not in self._tried:
            self._tried[weight, unrun_first] = self._asked(self._ranker(weight, unrun_first))
        return self._tried[weight, unrun_first]

    @cached_property
    def _tried(self) -> dict[tuple[float, bool], Tried]:
        return {}

    def _ranker(self, weight: float, unrun_first: bool) -> Ranker:
        if weight == 0.0:
            return NeighbourVote(self.query)
        told = replace(
            self.query.prediction,
            weight=weight,
            unrun_first=unrun_first,
            guard=-math.inf,
            joint_guard=-math.inf,
        )
        query = replace(self.query, prediction=told)
        return CostModelRanker(query) if weight == 1.0 else JointRanker(query)

    def _asked(self, ranker: Ranker) -> Tried:
        first = tuple(Config(c.config) for c in islice(ranker.candidates(), _K + 1))
        gain = dict(zip(ranker.configs, ranker.score.tolist(), strict=True))
        got = self.truth.default_s / self.truth.times.get(first[0], math.inf)
        # Where no neighbour ran the default, nor any other tile, the default is all that is said.
        promised = gain.get(first[0], 0.0) - gain.get(self.query.default, 0.0)
        return Tried(first, promised, math.log(max(got, 1e-12)))

    def shares(self, tried: Tried, guard: float) -> tuple[float, float]:
        """Log shares of the optimum at 1 and at 5 under a guard."""
        order = tried.first
        if not tried.promised > guard:
            order = (self.query.default, *(c for c in order if c != self.query.default))
        found = judge(self.truth, order[:_K])
        return found.of_optimum_1, found.of_optimum_5


def held_kernels(
    db: Lookup, model: GraphModel, platform: Platform, groups: Collection[str]
) -> list[Held]:
    """The kernels of these families that can be judged by, as they look to neighbours of all other
    families and to the model."""
    several = len({p.platform for p in scope_partitions(db.store, _OP, scope_of(platform))}) > 1
    bench = Bench(db, _OP, scope_of(platform), instance=platform.id if several else "")
    bench.vectors = {n: v for n, v in bench.vectors.items() if n not in _LEARNED}
    held = np.isin(bench.evidence.groups, sorted(groups))
    train, test = np.flatnonzero(~held), bench.counted[held[bench.counted]]
    if not train.size or not test.size or not bench.vectors:
        return []
    asked = bench.queries_of(train, test)
    seen = (_seen(bench, model, row, query) for row, query in asked)
    return [one for one in seen if one is not None]


def _seen(bench: Bench, model: GraphModel, row: int, query: Query) -> Held | None:
    kernel, truth = bench.subjects[bench.evidence.rows[row].pattern_id], bench.truth(row)
    legal = [c for c in truth.times if c != query.default and query.space.reason(c) is None]
    if not isinstance(kernel, TensorGraph) or query.default not in truth.times or not legal:
        return None
    return Held(with_tiles(query, model, kernel, (query.default, *legal)), truth)


@dataclass(frozen=True)
class TileJudgement:
    """What was found out about a model on held-out kernels."""

    held: Sequence[Held]

    def document(self) -> dict[str, Any]:
        """`held_out` as cards have it, of `transfer`, `rank` and `transfer+rank`; `guard` of the
        model alone; `hidden`, whether a tile that no other kernel ran may go first."""
        hidden = self._hidden()
        unrun = bool(hidden["unrun_first"])
        groups = np.array([one.group for one in self.held])
        parts = split_groups(groups, min(_PARTS, np.unique(groups).size), 0)
        shares: dict[str, list[tuple[float, float]]] = {}
        for at in range(int(parts.max()) + 1):
            others = [one for one, part in zip(self.held, parts, strict=True) if part != at]
            mine = [one for one, part in zip(self.held, parts, strict=True) if part == at]
            for name, (weight, guard) in _settings(others, unrun_first=unrun).items():
                shares.setdefault(name, []).extend(_shares(mine, weight, guard, unrun_first=unrun))
        whole = _settings(self.held, unrun_first=unrun)
        figures = {name: _figures(found) for name, found in shares.items()}
        weight, guard = whole["transfer+rank"]
        figures["transfer+rank"] |= {"weight": weight, "guard": guard}
        return {"held_out": figures, "guard": whole["rank"][1], "hidden": hidden}

    def _hidden(self) -> dict[str, float | bool]:
        """Shares of the optimum at 1 by the model without a guard, where only tiles that measured
        kernels ran may go first (`known`), and where any may (`all`)."""
        known, free = (
            np.array(_shares(self.held, 1.0, -math.inf, unrun_first=unrun))[:, 0]
            for unrun in (False, True)
        )
        group = np.unique([one.group for one in self.held], return_inverse=True)[1]
        return {
            "known": math.exp(float(known.mean())),
            "all": math.exp(float(free.mean())),
            "unrun_first": bool(surely_positive(free - known, group)),
        }


def _shares(
    held: Sequence[Held], weight: float, guard: float, *, unrun_first: bool
) -> list[tuple[float, float]]:
    return [one.shares(one.tried(weight, unrun_first=unrun_first), guard) for one in held]


def _settings(held: Sequence[Held], *, unrun_first: bool) -> dict[str, tuple[float, float]]:
    """By method the weight of the model and the guard, as these kernels have shown them."""
    guards, limit = {}, Op("tile").workload.max_slower
    assert limit is not None
    for weight in (*_WEIGHTS, 1.0):
        tried = [one.tried(weight, unrun_first=unrun_first) for one in held]
        pairs = np.array([(one.promised, one.got) for one in tried])
        guards[weight] = safe_guard([pairs], limit)
    reached = {w: np.sum(_shares(held, w, guards[w], unrun_first=unrun_first)) for w in _WEIGHTS}
    best = max(_WEIGHTS, key=lambda w: reached[w])
    return {
        # The vote has a guard of its own, fitted with it.
        "transfer": (0.0, -math.inf),
        "rank": (1.0, guards[1.0]),
        "transfer+rank": (best, guards[best]),
    }


def _figures(shares: Sequence[tuple[float, float]]) -> dict[str, float]:
    at_1, at_5 = np.array(shares).T
    return {
        "of_optimum@1": math.exp(float(at_1.mean())),
        "of_optimum@5": math.exp(float(at_5.mean())),
    }


def judged_tiles(
    db: Lookup, model: GraphModel, platform: Platform, groups: Collection[str]
) -> dict[str, Any]:
    """What a card says of a model of tiles that never learned from these families: empty where they
    are fewer than two, or have no kernels to judge by.

    Raises: UsageError for a model of something else.
    """
    if model.network.task != "tile":
        raise UsageError(f"a model of {model.network.task} ranks no tiles")
    held = held_kernels(db, model, platform, groups)
    if len({h.query.pattern.group for h in held}) < 2:
        return {}
    return {**TileJudgement(held).document(), "kernels": len(held)}
