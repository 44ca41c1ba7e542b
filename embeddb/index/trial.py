"""Trial of one featurizer: the best policy of a vote by it with groups held out, and its losses.

`embeddb.index.held_out` computes choices and losses with groups held out, `embeddb.index.vote_fit`
chooses the policy and its expected errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.kinds import Limit
from embeddb.index.features import WHOLE, Features
from embeddb.index.held_out import (
    NEIGHBOURS,
    FirstChoices,
    Judged,
    Near,
    centred_votes,
    first_choices,
    losses_of,
)
from embeddb.index.vectors import VectorIndex
from embeddb.index.vote import CLIP, Metric, VoteSettings, plain_metric
from embeddb.index.vote_fit import Key, chosen_key, expected, settings_of

Floats = NDArray[np.float64]

#: Weight of the predicted gains in the metric against the plain features.
_STRETCH = 1.0
#: Ridge penalty per pattern, on standardised features.
_RIDGE = 0.1
#: Largest number of neighbours of any policy.
MOST_NEIGHBOURS = max(NEIGHBOURS)
#: Folds of groups by which a learned metric is cross-validated.
_FOLDS = 5
#: Policy where nothing can be judged: records of winners only, or one group of matrices.
_UNPROVEN: Key = (8, 4.0, False)
#: More patterns are sampled for the fit (which computes all pairwise distances), not for answers.
_MOST_FITTED = 4000


#: Rows bool[t] with the positions and distances [o,k] of the nearest ones of each.
_Part = tuple[NDArray[np.bool_], NDArray[np.int64], Floats]


class Fitted(NamedTuple):
    """`far` ascending leave-one-group-out nearest distances."""

    metric: Metric
    policy: VoteSettings
    far: Floats
    near: Near


@dataclass(frozen=True, eq=False)
class Trial:
    """Losses of votes by the features of one kind, with groups held out, for every policy.

    Of r rows `voters` int64[t] vote, `near` are their nearest ones of other groups by the plain
    metric and (True) by a learned one, and `part` those of them that are judged: `table`
    float64[y,q] has their log losses by each of the y `keys` (k, shrink, learned), empty where
    nothing can be judged. Neighbours of a row are searched in the space of `Features.fold`.
    """

    features: Features
    gains: Floats
    groups: NDArray[np.str_]
    voters: NDArray[np.int64]
    group: NDArray[np.int64]
    trust: Floats
    part: Judged
    ids: Sequence[str]
    near: Mapping[bool, Near] = field(default_factory=dict)
    keys: tuple[Key, ...] = ()
    table: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    @classmethod
    def of(
        cls,
        features: Features,
        gains: Floats,
        groups: NDArray[np.str_],
        trust: Floats | None = None,
        ids: Sequence[str] = (),
        *,
        ways: Sequence[bool] = (False, True),
    ) -> Trial:
        """Try votes by features, `gains` float64[r,c] and `groups` str[r] of the same rows; `trust`
        float64[r,c] is the weight of each gain as a vote (default 1). Rows with a single run are
        left out; others that are not judged still vote. `ways` are the metrics that are tried: the
        plain one, a learned one (True)."""
        voters = np.flatnonzero(np.isfinite(gains).sum(axis=1) >= 2)
        if voters.size > _MOST_FITTED:
            voters = voters[np.linspace(0, voters.size - 1, _MOST_FITTED).astype(np.int64)]
        rows = np.flatnonzero(features.judged[voters])
        g, group = gains[voters], np.unique(groups[voters], return_inverse=True)[1]
        trust = np.ones(gains.shape) if trust is None else trust
        part = Judged(rows, g[rows], g, trust[voters])
        names = ids or [f"{row:09}" for row in range(len(gains))]
        trial = cls(features, gains, groups, voters, group, trust, part, names)
        if np.unique(group).size < 2 or not rows.size:
            return trial
        near = {way: trial._nearest(learned=way) for way in ways}
        table = {
            (k, shrink, learned): loss
            for learned, places in near.items()
            for (k, shrink), loss in losses_of(places, part, group).items()
        }
        return replace(trial, near=near, keys=tuple(table), table=np.array(list(table.values())))

    @property
    def raw(self) -> NDArray[np.float32]:
        """float32[r,d] features."""
        return self.features.raw

    def _nearest(self, *, learned: bool) -> Near:
        """Nearest rows [t] of other groups, each in the space that judges the row."""
        fold = self.features.fold[self.voters]
        parts = [(fold == at, self._standardised(int(at))) for at in np.unique(fold)]
        return _joined(
            _nearest_held_out(z, self._centred, self.group, rows, learned=learned)
            for rows, z in parts
        )

    def _standardised(self, fold: int) -> Floats:
        """Plain coordinates float64[t,d] of the voters, in the space of a fold."""
        raw = self.features.space(fold)
        return plain_metric(raw).standardised(raw[self.voters])

    @cached_property
    def _centred(self) -> Floats:
        """float64[t,c] gains of the voters less their level."""
        return centred_votes(self.part.gains)

    @cached_property
    def key(self) -> Key:
        """The best policy by all judged rows."""
        if len(self.keys) < 2:
            return self.keys[0] if self.keys else _UNPROVEN
        return chosen_key(self.keys, self.table, self.group[self.part.rows])

    @property
    def losses(self) -> Floats:
        """float64[r] log losses of the judged rows by the best policy; nan elsewhere."""
        losses = np.full(len(self.gains), np.nan)
        if self.keys:
            losses[self.voters[self.part.rows]] = self.table[self.keys.index(self.key)]
        return losses

    @cached_property
    def metric(self) -> Metric:
        """The metric of the best policy."""
        return self._metric(WHOLE)

    def _metric(self, fold: int) -> Metric:
        """The metric of the best policy in the space of a fold."""
        plain = plain_metric(self.features.space(fold))
        if not self.key[2]:
            return plain
        stretch = _learned(self._standardised(fold), self._centred)
        return Metric(plain.center, plain.scale, stretch)

    @cached_property
    def validation(self) -> FirstChoices:
        """First choices of all judged rows by the best policy, also chosen on these rows."""
        if not self.keys:
            return FirstChoices.joined([])
        k, shrink, learned = self.key
        choices = first_choices(self.near[learned], self.part, self.group, k=k, shrink=shrink)
        return choices._replace(group=self.groups[self.voters[self.part.rows]])

    def only(self, rows: NDArray[np.bool_]) -> Trial:
        """The trial of some rows bool[r]."""
        ids = [name for name, stays in zip(self.ids, rows, strict=True) if stays]
        judged = np.zeros(len(rows), dtype=np.bool_)
        judged[self.voters[self.part.rows]] = True
        features = replace(self.features, judged=judged).take(rows)
        return Trial.of(features, self.gains[rows], self.groups[rows], self.trust[rows], ids)

    def answers(
        self, other: Trial, out: NDArray[np.bool_], most_slower: Limit | None
    ) -> FirstChoices:
        """First choices for those of another trial's judged rows, bool[r], that this one lacks, and
        its guard: as queries are answered."""
        rows = other.voters[other.part.rows]
        rows = rows[out[rows]]
        k, shrink, _ = self.key
        own, count = len(self.ids), len(self.ids) + len(rows)
        near = Near.none(count, k)
        place = {name: at for at, name in enumerate(self.ids)}
        for fold in np.unique(other.features.fold[rows]):
            queries = np.flatnonzero(other.features.fold[rows] == fold)
            metric = self._metric(int(fold))
            index = VectorIndex(self.ids, metric.apply(self.features.space(fold)))
            vectors = metric.apply(other.features.space(fold)[rows[queries]])
            for at, names, far in zip(own + queries, *index.search(vectors, k), strict=True):
                near.places[at, : len(names)] = [place[name] for name in names]
                near.distances[at, : len(names)] = far[: len(names)]
        nothing = np.full((len(rows), self.gains.shape[1]), np.nan)
        gains, trust = np.vstack([self.gains, nothing]), np.vstack([self.trust, nothing])
        part = Judged(np.arange(own, count), other.gains[rows], gains, trust)
        group = np.maximum(np.arange(count) - own + 1, 0)
        choices = first_choices(near, part, group, k=k, shrink=shrink)
        guard = expected([self.validation], most_slower).guard
        return choices._replace(group=other.groups[rows], guard=np.full(len(rows), guard))

    def fitted(self, validated: FirstChoices, *, most_slower: Limit | None = None) -> Fitted:
        """Metric and policy of all rows, with the figures of `validated`, if it is not empty; a
        moderate policy without figures where nothing can be judged. With `most_slower` the guard
        keeps first choices to that limit, at whatever loss of gain."""
        k, shrink, learned = self.key
        judged, whole = [validated] if self.keys else [], self.validation
        policy = settings_of((k, shrink), judged, expected([whole], most_slower))
        if policy.static_loss < policy.loss and most_slower is None:
            near = self.near[learned]
            whole = first_choices(near, self.part, self.group, k=k, shrink=math.inf)
            policy = settings_of((k, math.inf), [whole], expected([whole], most_slower))
        policy = replace(policy, fitted_on=whole.counted().group.size)
        if self.keys and validated.group.size:
            extra = self._extra_half_loss(self.near[learned], policy, whole)
            if extra is not None:
                policy = replace(policy, half_loss=policy.loss + extra)
        return self._fitted(policy)

    def _extra_half_loss(
        self, near: Near, policy: VoteSettings, whole: FirstChoices
    ) -> float | None:
        """Mean log loss with the runs of half of the groups (either half) less that with all, of
        the `whole`; None where it cannot be judged."""
        lost = []
        for side in (0, 1):
            voting = self.group % 2 == side
            half = self.part._replace(gains=np.where(voting[:, None], self.part.gains, np.nan))
            few = near.among(voting)
            choices = first_choices(few, half, self.group, k=policy.k, shrink=policy.shrink)
            lost.append(choices.counted().lost(policy.guard))
        halves, all_of_them = np.concatenate(lost), whole.counted().lost(policy.guard)
        if not (halves.size and all_of_them.size):
            return None
        return float(halves.mean() - all_of_them.mean())

    def again(self, policy: VoteSettings, *, learned: bool) -> Fitted | None:
        """Return `fitted` with a policy and metric of an earlier fit; None if that policy is not
        among those tried."""
        key = (policy.k, policy.shrink, learned)
        if not self.keys:
            return self._fitted(policy)
        if key not in self.keys:
            return None
        table = self.table[[self.keys.index(key)]]
        return replace(self, keys=(key,), table=table)._fitted(policy)

    def _fitted(self, policy: VoteSettings) -> Fitted:
        """Metric, policy, and the neighbours of the judged rows; others have none."""
        count = len(self.gains)
        if not self.keys:
            return Fitted(self.metric, policy, np.zeros(0), Near.none(count))
        places, distances = (of[self.part.rows] for of in self.near[self.key[2]])
        far = np.sort(distances[np.isfinite(distances[:, 0]), 0])
        near = Near.none(count, places.shape[1])
        judged = self.voters[self.part.rows]
        near.places[judged] = np.where(np.isfinite(distances), self.voters[places], -1)
        near.distances[judged] = distances
        return Fitted(self.metric, policy, far, near)


def cross_validated(
    trials: Mapping[str, Trial],
    folds: Sequence[Mapping[str, int]],
    *,
    prefer: Callable[[Mapping[str, Trial]], str] = lambda trials: next(iter(trials)),
    most_slower: Limit | None = None,
) -> FirstChoices:
    """First choices by nested cross-validation: featurizer, metric, policy and guard are fitted to
    the other folds of groups. `folds` have the fold of each group, once for every repetition;
    `prefer` chooses among trials."""
    parts: list[FirstChoices] = []
    for fold_of in folds:
        for fold in sorted(set(fold_of.values())):
            here = [name for name, at in fold_of.items() if at == fold]
            out = {n: np.isin(trial.groups, here) for n, trial in trials.items()}
            if any(rows.all() for rows in out.values()):
                continue
            rest = {n: trial.only(~out[n]) for n, trial in trials.items()}
            name = prefer(rest)
            parts.append(rest[name].answers(trials[name], out[name], most_slower))
    return FirstChoices.joined(parts)


def _nearest_held_out(
    z: Floats,
    centred: Floats,
    group: NDArray[np.int64],
    rows: NDArray[np.bool_],
    *,
    learned: bool,
) -> Iterator[_Part]:
    """Nearest rows of other groups, as `_nearest_others`, for `rows` bool[t].

    A learned metric is fitted without the groups it is judged by: with as many features as patterns
    it would otherwise predict any gains exactly.
    """
    folds = min(_FOLDS, int(group.max()) + 1) if learned else 1
    for fold in range(folds):
        out = group % folds == fold
        if (own := out & rows).any():
            seen = z @ _learned(z[~out], centred[~out]) if learned else z
            yield own, *_nearest_others(seen, group, own)


def _joined(parts: Iterable[Iterable[_Part]]) -> Near:
    """The parts' rows in order."""
    own, places, distances = zip(*chain.from_iterable(parts), strict=True)
    order = np.argsort(np.concatenate([np.flatnonzero(rows) for rows in own]))
    return Near(np.concatenate(places)[order], np.concatenate(distances)[order])


def _learned(z: Floats, centred: Floats) -> Floats:
    """(I + s W W^T)^(1/2), W the ridge weights from features z[r,d] to gains [r,c]."""
    rows, d = z.shape
    y = np.clip(np.where(np.isfinite(centred), centred, 0.0), -CLIP, CLIP)
    y = y - y.mean(axis=0)
    penalty = _RIDGE * rows
    if rows < d:
        w = z.T @ np.linalg.solve(z @ z.T + penalty * np.eye(rows), y)
    else:
        w = np.linalg.solve(z.T @ z + penalty * np.eye(d), z.T @ y)
    predicted = float(((z @ w) ** 2).sum()) / rows
    if predicted < 1e-12:
        return np.eye(d)
    if w.shape[1] < d:
        axes, singular, _ = np.linalg.svd(w, full_matrices=False)
        square = singular**2
    else:
        square, axes = np.linalg.eigh(w @ w.T)
    longer = np.sqrt(1.0 + _STRETCH**2 * d / predicted * np.maximum(square, 0.0)) - 1.0
    stretched: Floats = np.eye(d) + axes * longer @ axes.T
    return stretched


def _nearest_others(
    z: Floats, group: NDArray[np.int64], of: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], Floats]:
    """Nearest rows of other groups than each row in `of` bool[r]: positions and distances [o,k],
    ascending, ties by position."""
    most = min(max(min(NEIGHBOURS[-1], len(z) // 3), NEIGHBOURS[0]), len(z))
    square = (z**2).sum(axis=1)
    d = np.sqrt(np.maximum(square[of, None] + square[None] - 2.0 * z[of] @ z.T, 0.0))
    d[group[of, None] == group[None]] = np.inf
    near = np.sort(np.argpartition(d, most - 1, axis=1)[:, :most], axis=1)
    order = np.argsort(np.take_along_axis(d, near, axis=1), axis=1, kind="stable")
    near = np.take_along_axis(near, order, axis=1)
    return near, np.take_along_axis(d, near, axis=1)
