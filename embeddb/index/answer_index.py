"""One partition in memory: evidence, vectors in an index, and the policy of the vote.

A partition is everything measured for one op in one *scope*: a platform, or all instances of a
platform that declares itself portable. `embeddb.index.answer_file` serialises it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.blas import one_thread
from embeddb.core.config import Op
from embeddb.index.conversion import PreparationTable
from embeddb.index.evidence import FIT_VERSION
from embeddb.index.fit import FitInput, FitNote
from embeddb.index.held_out import Near
from embeddb.index.inverted_lists import InvertedLists
from embeddb.index.pooling import Source
from embeddb.index.run_matrix import WINNER_GAIN, RunMatrix
from embeddb.index.vectors import VectorIndex
from embeddb.index.view import (
    OwnPolicies,
    View,
    ViewInput,
    own_losses,
    policy_alone,
    query_view,
    shared_policy,
    view_of,
)
from embeddb.index.vote import Metric, VoteSettings
from embeddb.index.vote_fit import LeftOut
from embeddb.platforms.machines import Facts
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.quantity import EncodedConfigs

Floats = NDArray[np.float64]

#: Raised with every change of how a machine's own runs are fitted, if `FIT_VERSION` is not.
_OWN_VERSION = ".4"
#: Number of cached views, one per machine and number of calls.
_MOST_VIEWS = 8


@dataclass(frozen=True, eq=False)
class AnswerIndex:
    """A partition of one (featurizer, op, scope) in memory.

    Shapes: `ids` p patterns; `vectors` float32[p,d] raw features; `near` their nearest ones of
    other groups; `far` float64[p] ascending leave-one-group-out nearest distances.

    `policy` is judged on all rows together, `left_out` (None: too few machines) by leaving machines
    out; `facts` are the environments of the instances. `counters` is the platform instance whose
    counters its featurizer could read (empty: none): only nests counted there can be queried.

    With very many patterns it has a sample of them; `lists` has the vectors of all, in the metric's
    coordinates, from which a query's neighbours are read (`embeddb.index.large`): that query's own
    partition is `of` this one.
    """

    op: Op
    scope: str
    featurizer: str
    generation: int
    evidence: RunMatrix
    ids: tuple[str, ...]
    vectors: NDArray[np.float32]
    metric: Metric
    policy: VoteSettings
    left_out: LeftOut | None
    far: NDArray[np.float64]
    near: Near
    facts: Mapping[str, Facts]
    index: VectorIndex
    counters: str = ""
    lists: InvertedLists | None = None
    of: AnswerIndex | None = None
    _viewing: AbstractContextManager[Any] = field(default_factory=RLock, init=False, repr=False)
    _views: dict[tuple[str, float], View] = field(default_factory=dict, init=False, repr=False)
    _alone: dict[str, AnswerIndex | None] = field(default_factory=dict, init=False, repr=False)
    _shared_policies: dict[str, VoteSettings] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    @one_thread()
    def build(
        cls, inputs: FitInput, *, scope: str, held_out: bool = True, note: FitNote | None = None
    ) -> AnswerIndex:
        """Fit metric and policy, and index every pattern that has a vector.

        `inputs` may have the vectors of several featurizers, in order of preference: the one with
        the best held-out answers is used. One that is `COSTLY` must be better by more than two
        standard errors; none is judged by groups whose runs it was trained on. Without `held_out`
        the policy has no figures. A `note` is of an earlier fit to the same inputs.
        """
        chosen = (note and inputs.again(note)) or inputs.fitted(held_out=held_out)
        ids, raw = tuple(chosen.trial.ids), chosen.trial.raw
        return cls(
            op=inputs.runs.op,
            scope=scope,
            featurizer=chosen.featurizer,
            generation=0,
            evidence=inputs.runs,
            ids=ids,
            vectors=raw,
            left_out=chosen.left_out,
            facts=inputs.facts,
            index=VectorIndex(ids, chosen.fit.metric.apply(raw)),
            **chosen.fit._asdict(),
        )

    def fit_note(self, stamp: str, among: Mapping[str, str]) -> FitNote:
        """The note for `build` with the same inputs."""
        learned = not np.array_equal(self.metric.stretch, np.eye(len(self.metric.stretch)))
        left_out = self.left_out.to_json() if self.left_out else ""
        return FitNote(stamp, self.policy.to_json(), self.featurizer, learned, left_out, {**among})

    def nearest(
        self, vector: NDArray[np.float32], *, count: int = 0, exclude: Collection[str] = ()
    ) -> tuple[list[str], NDArray[np.float64]]:
        """The `count` (0: the policy's k) nearest patterns to raw features float32[d], and their
        distances."""
        ids, distances = self.index.search(
            self.metric.apply(vector[None, :]), count or self.policy.k, exclude=exclude
        )
        return ids[0], distances[0].astype(np.float64)

    def percentile(self, distance: float) -> float:
        """Share of leave-one-out nearest distances that are smaller than `distance`."""
        if not self.far.size:
            return math.nan
        return float(np.searchsorted(self.far, distance, side="left")) / self.far.size

    @cached_property
    def view_input(self) -> ViewInput:
        """The input of every view: the indexed patterns in order, then the others."""
        rest = sorted({row.pattern_id for row in self.evidence.rows} - set(self.ids))
        none = Near.none(len(rest), self.near.places.shape[1])
        places = np.vstack([self.near.places, none.places])
        near = Near(places, np.vstack([self.near.distances, none.distances]))
        return ViewInput.of(self.evidence, (*self.ids, *rest), near, self.facts)

    @cached_property
    def generated(self) -> frozenset[str]:
        """Indexed patterns that do not vote."""
        if self.of is not None:
            return self.of.generated
        inputs = self.view_input
        return frozenset(i for i, real in zip(inputs.ids, inputs.real, strict=True) if not real)

    def view(self, platform: Platform, *, calls: float = math.inf) -> View:
        """The partition as one instance sees it, cached; concurrent calls compute a view once."""
        key = (platform.id, calls)
        with self._viewing:
            if key not in self._views:
                self._views[key] = self._view(platform, calls)
                if len(self._views) > _MOST_VIEWS:
                    self._views.pop(next(iter(self._views)))
            return self._views[key]

    def _view(self, platform: Platform, calls: float) -> View:
        if self.of is not None:
            return query_view(self.of.view(platform, calls=calls), *self._newer(), calls=calls)
        inputs, target = self.view_input, Source(platform.id, self.op)
        if platform.id not in inputs.facts:
            inputs = replace(inputs, facts={**inputs.facts, platform.id: platform.environment})
        stored = self.policies.get(platform.id)
        policy = stored.policy if stored else None
        view = view_of(inputs, target, self.policy, self.left_out, calls=calls, policy=policy)
        if view.judged == "here" and stored is None:
            own = self._of_instance(platform.id)
            alone = None if own is None else policy_alone(inputs, view, own.view_input)
            self.policies[platform.id] = OwnPolicies(view.policy, alone)
        return replace(view, parts=())

    def for_query(self, platform: Platform, pattern_id: str) -> AnswerIndex:
        """The partition that answers a query for a pattern on an instance: that of the instance's
        own runs if these alone answer better and no other instance ran the pattern, else this."""
        rows = self._rows_by_pattern.get(pattern_id, [])
        if any(self.evidence.rows[at].platform != platform.id for at in rows):
            return self
        return self.alone(platform) or self

    def alone(self, platform: Platform) -> AnswerIndex | None:
        """The partition of an instance's own runs, if it answers better (cached)."""
        if self.of is not None:
            return None
        with self._viewing:
            self.view(platform)
            policies = self.policies.get(platform.id)
            if policies is None or policies.alone is None:
                return None
            if platform.id not in self._alone:
                own = self._of_instance(platform.id)
                self._alone[platform.id] = own and replace(own, policy=policies.alone)
            return self._alone[platform.id]

    def _of_instance(self, platform: str) -> AnswerIndex | None:
        """The partition of an instance's runs in the same metric, still with this policy; None of
        very many patterns, without other machines' runs or with hardly any groups."""
        several = len({row.platform for row in self.evidence.rows}) > 1
        if not several or self.evidence.winners or self.lists is not None:
            return None
        evidence = self.evidence.where(
            lambda row: (
                (row.platform, row.op) == (platform, "") and row.pattern_id not in self.generated
            )
        ).pruned()
        group = {row.pattern_id: row.group for row in evidence.rows}
        ids = tuple(i for i in self.ids if i in group)
        if len({group[i] for i in ids}) < 2:
            return None
        own = np.array([i in group for i in self.ids], dtype=np.bool_)
        # Searched without each pattern's own group, in what was fitted without it.
        near, place = self.near.among(own), np.append(np.cumsum(own) - 1, -1)
        near = Near(np.where(near.places < 0, -1, place[near.places])[own], near.distances[own])
        far = np.sort(near.distances[:, 0][np.isfinite(near.distances[:, 0])])
        raw = self.vectors[own]
        index = VectorIndex(ids, self.metric.apply(raw))
        return replace(
            self,
            evidence=evidence,
            ids=ids,
            vectors=raw,
            left_out=None,
            far=far,
            near=near,
            index=index,
        )

    def own_losses(self, platform: Platform) -> dict[str, float]:
        """Log loss of the vote's first choice to the best run, by pattern that the instance ran,
        with the pattern's group held out; patterns that cannot be judged are absent."""
        of = self.of or self
        losses = own_losses(of.view_input, of.view(platform), of.left_out)
        return {of.view_input.ids[row]: loss for row, loss in losses.items()}

    def shared_policy(self, platform: Platform) -> VoteSettings:
        """The policy for a pattern that other instances ran and this one did not."""
        if self.of is not None:
            return self.of.shared_policy(platform)
        if platform.id not in self._shared_policies:
            policy = shared_policy(self.view_input, self.view(platform), self.left_out)
            self._shared_policies[platform.id] = policy
        return self._shared_policies[platform.id]

    @cached_property
    def policies(self) -> dict[str, OwnPolicies]:
        """Policies judged on an instance's own runs."""
        return {} if self.of is None else self.of.policies

    @cached_property
    def preparation(self) -> PreparationTable | None:
        """Costs of preparation on the patterns of the views; None where no run has any."""
        if self.of is not None:
            table = self.of.preparation
            return None if table is None else table.beside(*self._newer())
        return PreparationTable.of(self.evidence, self.view_input.ids)

    @cached_property
    def configs(self) -> EncodedConfigs:
        """The evidence's configurations, prepared for checks of legality."""
        return EncodedConfigs(self.evidence.configs)

    @cached_property
    def stamp(self) -> str:
        """16 hex digits that change with the input of a fit to a machine's own runs."""
        versions = FIT_VERSION + _OWN_VERSION
        facts = sorted((name, sorted(of.items())) for name, of in self.facts.items())
        h = hashlib.blake2b(f"{versions}{self.policy.to_json()}{facts}".encode(), digest_size=8)
        e = self.evidence
        for array in (e.indptr, e.column, e.seconds, e.groups):
            h.update(array.tobytes())
        return h.hexdigest()

    def at(self, generation: int) -> AnswerIndex:
        """The same at a later generation, in which nothing of it has changed."""
        later = copy(self)  # with all that is cached
        object.__setattr__(later, "generation", generation)
        return later

    def grown(
        self,
        newer: RunMatrix,
        vectors: Mapping[str, NDArray[np.float32]],
        facts: Mapping[str, Facts],
    ) -> AnswerIndex:
        """With newer rows, and `vectors` float32[d] of their new patterns; metric and policies stay
        until it is built again."""
        evidence = self.evidence.merged(newer)
        ids, raw, index = self.ids, self.vectors, self.index
        new = vectors.keys() & evidence.neighbour_ids
        if new:
            ids = tuple(sorted({*ids, *new}))
            every = dict(zip(self.ids, self.vectors, strict=True)) | dict(vectors)
            raw = np.array([every[i] for i in ids], dtype=np.float32)
            index = VectorIndex(ids, self.metric.apply(raw))
        return replace(
            self,
            evidence=evidence,
            ids=ids,
            vectors=raw,
            near=_near_again(self, evidence, ids, raw),
            facts=facts,
            index=index,
        )

    def beside(self, newer: RunMatrix, vectors: Mapping[str, NDArray[np.float32]]) -> AnswerIndex:
        """The partition for one query: with the rows of its neighbours, and their raw vectors
        float32[d], which do not change metric and policies."""
        new = sorted(vectors.keys() & newer.neighbour_ids - set(self.ids))
        ids, raw = (*self.ids, *new), self.vectors
        if new:
            raw = np.concatenate([raw, np.array([vectors[i] for i in new], dtype=np.float32)])
        index = VectorIndex(ids, self.metric.apply(raw))
        evidence = self.evidence.followed_by(newer)
        partition = replace(self, evidence=evidence, ids=ids, vectors=raw, index=index, of=self)
        if len(evidence.configs) == len(self.evidence.configs):
            partition.__dict__["configs"] = self.configs
        return partition

    def _newer(self) -> tuple[RunMatrix, list[str]]:
        """The rows that a query's own partition adds, and their patterns in the view's order."""
        assert self.of is not None
        rows = np.arange(len(self.of.evidence.rows), len(self.evidence.rows))
        newer = self.evidence.take(rows)
        return newer, sorted({row.pattern_id for row in newer.rows})

    def listing(self, vectors: Mapping[str, NDArray[np.float32]]) -> AnswerIndex:
        """With newer raw vectors float32[d] in the lists of very many patterns."""
        if self.lists is None or not vectors:
            return self
        raw = np.array(list(vectors.values()), dtype=np.float32)
        at = dict(zip(vectors, self.metric.apply(raw), strict=True))
        return replace(self, lists=self.lists.including(at))

    @property
    def indexed(self) -> int:
        """Number of patterns that can be neighbours."""
        return len(self.ids) if self.lists is None else self.lists.count

    def places_of(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """The rows int64[k] of patterns in the views."""
        return np.array([self._places[i] for i in ids], dtype=np.int64)

    @cached_property
    def _places(self) -> dict[str, int]:
        if self.of is None:
            return {pattern_id: at for at, pattern_id in enumerate(self.view_input.ids)}
        first = len(self.of.view_input.ids)
        new = {pattern_id: first + at for at, pattern_id in enumerate(self._newer()[1])}
        return {**self.of._places, **new}

    def row_of(self, pattern_id: str, platform: str = "") -> int:
        """An evidence row of a pattern: the platform's, else the one with most configurations."""
        rows = self._rows_by_pattern[pattern_id]
        own = [i for i in rows if self.evidence.rows[i].platform == platform]
        lengths = np.diff(self.evidence.indptr)
        return max(own or rows, key=lambda i: (int(lengths[i]), -i))

    @cached_property
    def _rows_by_pattern(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for at, row in enumerate(self.evidence.rows):
            rows.setdefault(row.pattern_id, []).append(at)
        return rows

    def describe(self) -> dict[str, Any]:
        """Contents and held-out figures, for reports; of records of winners the hits."""
        hits: dict[str, float | None] = {}
        if self.evidence.winners:
            hits = {
                "of_optimum_held_out": None,
                "static_best_held_out": None,
                "winner_hits_held_out": 1.0 - self.policy.loss / WINNER_GAIN,
                "static_best_hits_held_out": 1.0 - self.policy.static_loss / WINNER_GAIN,
            }
        sample: dict[str, float] = {}
        if self.lists is not None:
            sample = {"fitted_on": len(self.ids), "recall": self.lists.recall.share}
        return {
            "op": str(self.op),
            "scope": self.scope,
            "featurizer": self.featurizer,
            "patterns": self.evidence.extent.patterns,
            "indexed": self.indexed,
            **sample,
            "configs": len(self.evidence.configs),
            "measured": len(self.evidence.seconds),
            "noise": self.evidence.noise,
            "disagreeing": int((self.evidence.spread > 0.2).sum()),
            "implausible": {str(c): n for c, n in self.evidence.implausible().most_common()},
            "without_default": int((~self.evidence.knows_default).sum()),
            **self.policy.describe(),
            **hits,
        }


def _near_again(
    partition: AnswerIndex, evidence: RunMatrix, ids: Sequence[str], raw: NDArray[np.float32]
) -> Near:
    """The nearest ones of other groups where patterns were added to `partition`: those of earlier
    patterns stay, those of new ones are searched."""
    count = partition.near.places.shape[1]
    old = np.array([*(ids.index(i) for i in partition.ids), -1], dtype=np.int64)
    places, distances = near = Near.none(len(ids), count)
    places[old[:-1]] = old[partition.near.places]
    distances[old[:-1]] = partition.near.distances
    group = {row.pattern_id: row.group for row in evidence.rows}
    groups = np.array([group.get(i, "") for i in ids])
    at = partition.metric.apply(raw).astype(np.float64)
    for new in np.setdiff1d(np.arange(len(ids)), old[:-1]):
        far = np.sqrt(((at - at[new]) ** 2).sum(axis=1))
        far[groups == groups[new]] = np.inf
        order = np.argsort(far, kind="stable")[:count]
        order = order[np.isfinite(far[order])]
        places[new, : len(order)], distances[new, : len(order)] = order, far[order]
    return near
