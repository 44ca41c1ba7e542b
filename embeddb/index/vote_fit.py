"""Fitting how neighbours vote: metric, k and shrink, with whole groups (and machines) held out.

`embeddb.index.vote` has the vote itself, `embeddb.index.held_out` how rows are asked without their
group, and `embeddb.index.guards` what is expected of the next answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.kinds import Limit
from embeddb.index.guards import (
    GainErrors,
    errors_across_machines,
    gain_errors,
    margin_of,
    safe_guard,
    usual_guard,
)
from embeddb.index.held_out import (
    NEIGHBOURS,
    FirstChoices,
    Judged,
    Near,
    first_choices,
    losses_of,
)
from embeddb.index.vote import (
    CLIP,
    Metric,
    VoteSettings,
    effects,
    plain_metric,
    surely_positive,
    votes,
)

__all__ = [
    "FIT_VERSION",
    "MOST_ASKED",
    "Fitted",
    "LeftOut",
    "fit_policy",
    "leave_out",
    "losses_by",
    "refit",
]

Floats = NDArray[np.float64]

#: Raised with every change of how metric, policy and guard are found: saved ones are found again.
FIT_VERSION = "4"
#: Weight of the foretold gains in the metric against the plain features.
_STRETCH = 1.0
#: Ridge penalty per pattern, on standardised features.
_RIDGE = 0.1
#: No policy asks more neighbours.
MOST_ASKED = max(NEIGHBOURS)
#: Parts in which a learned metric is tried on groups it was not fitted to.
_FOLDS = 5
#: What is used where nothing can be judged: records of winners only, or one group of matrices.
_UNPROVEN_K, _UNPROVEN_SHRINK = 8, 4.0
#: Rows as which what leaving machines out has shown counts beside a machine's own.
_PSEUDO_ROWS, _PSEUDO_PROMISES = 20.0, 10.0
#: Patterns beyond it are left out of the fit (a pairwise distance matrix is made), not of answers.
_MOST_FITTED = 4000


class Fitted(NamedTuple):
    """`far` ascending leave-one-group-out nearest distances, `losses` float64[r] the log loss of
    each row with its group held out (nan: not judged), `groups` int64[r] in numbers."""

    metric: Metric
    policy: VoteSettings
    far: Floats
    losses: Floats
    near: Near
    groups: NDArray[np.int64]


class _Shown(NamedTuple):
    """First choices of one machine's rows [q], their groups int64[q], and the guard of each row
    float64[q] where it was found without that row (empty: the policy's)."""

    choices: FirstChoices
    group: NDArray[np.int64]
    guards: Floats = np.zeros(0)

    def of(self, rows: NDArray[np.bool_]) -> _Shown:
        guards = self.guards[rows] if self.guards.size else self.guards
        return _Shown(self.choices.of(rows), self.group[rows], guards)

    def counted(self) -> _Shown:
        return self.of(self.choices.counted)

    def lost(self, guard: float) -> Floats:
        """float64[q] log loss to the optimum."""
        return self.choices.lost(self.guards if self.guards.size else guard)


class _Expected(NamedTuple):
    """Expected errors and guard of the next first choice, from held-out ones."""

    errors: GainErrors = GainErrors()
    guard: float = 0.0

    @classmethod
    def of(cls, policy: VoteSettings) -> _Expected:
        return cls(GainErrors(policy.bias, policy.low, policy.high), policy.guard)

    def mixed(self, other: _Expected, part: float) -> _Expected:
        """Weighted means, this one with the weight `part` and alone with 1."""
        if part == 0.0:
            return other
        pairs = zip((*self.errors, self.guard), (*other.errors, other.guard), strict=True)
        *errors, guard = (part * mine + (1.0 - part) * theirs for mine, theirs in pairs)
        return _Expected(GainErrors(*errors), guard)


def fit_policy(
    raw: NDArray[np.float32],
    gains: Floats,
    groups: NDArray[np.str_],
    trust: Floats | None = None,
    *,
    most_slower: Limit | None = None,
    judged: NDArray[np.bool_] | None = None,
) -> Fitted:
    """Metric and policy for `raw` float32[r,d], `gains` float64[r,c] and `groups` str[r] of the
    same rows; `trust` float64[r,c] is what each gain counts as a vote, else 1.

    Rows with a single run cannot be judged and are left out. Where none can be judged the vote is
    an unproven but moderate one. With `most_slower` the guard keeps first choices to that limit,
    at whatever loss of gain. Rows that are not `judged` bool[r] vote alone: the features were
    learned from them.
    """
    taught = np.flatnonzero(np.isfinite(gains).sum(axis=1) >= 2)
    if taught.size > _MOST_FITTED:
        taught = taught[np.linspace(0, taught.size - 1, _MOST_FITTED).astype(np.int64)]
    metric = plain_metric(raw)
    numbers = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    rows = np.arange(taught.size) if judged is None else np.flatnonzero(judged[taught])
    if taught.size < 2 or np.unique(groups[taught]).size < 2 or not rows.size:
        return _unproven(metric, numbers)
    g, group = votes(gains[taught]), np.unique(groups[taught], return_inverse=True)[1]
    level, _ = effects(g)
    z, centred = metric.standardised(raw[taught]), g - level[:, None]
    found = {learned: _held_out(z, centred, group, learned=learned) for learned in (False, True)}
    trusted = np.ones(g.shape) if trust is None else trust[taught]
    everyone = Judged(rows, gains[taught][rows], g, trusted)
    table = {
        (k, shrink, learned): loss
        for learned, near in found.items()
        for (k, shrink), loss in losses_of(near, everyone, group).items()
    }
    k, shrink, learned = _chosen(table, group[rows])
    if learned:
        metric = Metric(metric.center, metric.scale, _learned(z, centred))
    chosen, near = table[k, shrink, learned], _only(found[learned], rows)
    losses = np.full(len(gains), np.nan)
    losses[taught[rows]] = chosen
    shown = _Shown(first_choices(near, everyone, group, k=k, shrink=shrink), group[rows])
    expected = _expected([shown], most_slower)
    validated = _cross_validated(found, everyone, group, table, shown, most_slower)
    policy = _settings((k, shrink), [validated], expected)
    lost_by_half = _lost_by_half(near, everyone, group, shown, policy)
    if lost_by_half is not None:
        policy = replace(policy, half_loss=policy.loss + lost_by_half)
    nearest = near.distances[:, 0]
    far = np.sort(nearest[np.isfinite(nearest)])
    return Fitted(metric, policy, far, losses, _spread_out(near, taught, len(gains)), numbers)


def _expected(by_machine: Sequence[_Shown], most_slower: Limit | None) -> _Expected:
    """Guard, and the errors of the promises that pass it."""
    known = [
        one.of(rows) for one in by_machine if (rows := np.isfinite(one.choices.promised)).any()
    ]
    if not known:
        return _Expected()
    pairs = [np.column_stack([one.choices.promised, one.choices.got]) for one in known]
    guard = usual_guard(pairs) if most_slower is None else safe_guard(pairs, most_slower)
    off = [np.where(one.choices.promised > guard, one.choices.off, np.nan) for one in known]
    if len(off) > 1:
        return _Expected(errors_across_machines(off), guard)
    return _Expected(gain_errors(off[0], known[0].group), guard)


def _settings(
    how: tuple[int, float], by_machine: Sequence[_Shown], expected: _Expected
) -> VoteSettings:
    """The policy (k, shrink) with what it loses on held-out rows; machines count alike."""
    judged = [one for shown in by_machine if (one := shown.counted()).group.size]
    if not judged:
        return VoteSettings(*how, **expected.errors._asdict(), guard=expected.guard)
    lost = [one.lost(expected.guard) for one in judged]
    static = [one.choices.best - one.choices.static for one in judged]
    groups, group = np.unique(np.concatenate([one.group for one in judged]), return_inverse=True)
    return VoteSettings(
        *how,
        loss=float(np.mean([of.mean() for of in lost])),
        static_loss=float(np.mean([of.mean() for of in static])),
        fitted_on=len(group),
        **expected.errors._asdict(),
        guard=expected.guard,
        groups=groups.size,
        margin=margin_of(np.concatenate(lost), group),
    )


def _cross_validated(
    found: Mapping[bool, Near],
    part: Judged,
    group: NDArray[np.int64],
    table: Mapping[tuple[int, float, bool], Floats],
    shown: _Shown,
    most_slower: Limit | None,
) -> _Shown:
    """First choices in folds of groups, each by a policy, guard and neighbours of the other folds
    alone: a policy looks better on the rows that it was chosen by."""
    folds, names = _fold_count(group), group[part.rows]
    choices, groups, guards = [], [], []
    for fold in range(folds):
        out = names % folds == fold
        if not out.any() or out.all():
            continue
        others = {key: losses[~out] for key, losses in table.items()}
        k, shrink, learned = _chosen(others, names[~out])
        kept = group % folds != fold
        gains = np.where(kept[:, None], part.gains, np.nan)
        rest = Judged(part.rows[out], part.truth[out], gains, part.trust)
        near = found[learned].among(kept)
        choices.append(first_choices(near, rest, group, k=k, shrink=shrink))
        groups.append(names[out])
        guard = _expected([shown.of(~out)], most_slower).guard
        guards.append(np.full(int(out.sum()), guard))
    if not choices:
        return _Shown(FirstChoices(*np.zeros((4, 0))), np.zeros(0, dtype=np.int64))
    return _Shown(FirstChoices.joined(choices), np.concatenate(groups), np.concatenate(guards))


def _lost_by_half(
    near: Near, part: Judged, group: NDArray[np.int64], shown: _Shown, policy: VoteSettings
) -> float | None:
    """By how much the log loss grows where only half of the groups are known, either half; None
    where it cannot be judged."""
    lost = []
    for side in (0, 1):
        kept = group % 2 == side
        half = part._replace(gains=np.where(kept[:, None], part.gains, np.nan))
        few = near.among(kept)
        choices = first_choices(few, half, group, k=policy.k, shrink=policy.shrink)
        lost.append(choices.of(choices.counted).lost(policy.guard))
    halves, whole = np.concatenate(lost), shown.counted().choices.lost(policy.guard)
    return float(halves.mean() - whole.mean()) if halves.size and whole.size else None


def _unproven(metric: Metric, numbers: NDArray[np.int64]) -> Fitted:
    """A moderate vote of rows of which none can be judged."""
    count = len(numbers)
    none = Near(np.zeros((count, 0), dtype=np.int64), np.zeros((count, 0)))
    policy = VoteSettings(_UNPROVEN_K, _UNPROVEN_SHRINK)
    return Fitted(metric, policy, np.zeros(0), np.full(count, np.nan), none, numbers)


def _only(near: Near, rows: NDArray[np.int64]) -> Near:
    """The same where other rows have no neighbours, so that nobody judges by them."""
    kept = np.zeros((len(near.places), 1), dtype=np.bool_)
    kept[rows] = True
    return Near(np.where(kept, near.places, -1), np.where(kept, near.distances, np.inf))


def _spread_out(near: Near, taught: NDArray[np.int64], count: int) -> Near:
    """The same over all rows; those that were not judged have none."""
    places = np.full((count, near.places.shape[1]), -1, dtype=np.int64)
    distances = np.full((count, near.places.shape[1]), np.inf)
    places[taught] = np.where(np.isfinite(near.distances), taught[near.places], -1)
    distances[taught] = near.distances
    return Near(places, distances)


class LeftOut(NamedTuple):
    """What leaving machines out has shown: the policy with the least loss, and the mean log loss of
    every (k, shrink); `known` the same where the others ran the very pattern asked about."""

    policy: VoteSettings
    table: Mapping[tuple[int, float], float]
    known: LeftOut | None = None

    def to_json(self) -> str:
        table = [[k, repr(shrink), repr(loss)] for (k, shrink), loss in self.table.items()]
        return json.dumps([self.policy.to_json(), table, self.known and self.known.to_json()])

    @classmethod
    def from_json(cls, text: str) -> LeftOut:
        policy, table, known = json.loads(text)
        losses = {(int(k), float(shrink)): float(loss) for k, shrink, loss in table}
        return cls(VoteSettings.from_json(policy), losses, cls.from_json(known) if known else None)


def leave_out(
    near: Near,
    parts: Sequence[Judged],
    group: NDArray[np.int64],
    *,
    promised: Sequence[Judged] = (),
    most_slower: Limit | None = None,
) -> LeftOut | None:
    """Policy for a machine that was never measured: the least loss on `parts`, each a machine's
    rows judged by all others, which count alike however many rows they have; `group` int64[p]. What
    such a policy promises, and its losses, are of `promised` where that is given. None where
    nothing can be judged."""
    judged = _tables(near, parts, group)
    shown = _tables(near, promised, group) or judged
    if not judged:
        return None
    keys = set.intersection(*(set(table) for _, table in (*judged, *shown)))
    means = {key: float(np.mean([table[key].mean() for _, table in judged])) for key in keys}
    k, shrink = min(sorted(keys), key=lambda key: means[key])
    asked = [
        _Shown(first_choices(near, part, group, k=k, shrink=shrink), group[part.rows])
        for part, _ in shown
    ]
    policy = _settings((k, shrink), asked, _expected(asked, most_slower))
    return LeftOut(replace(policy, across=True), means)


def refit(
    near: Near,
    parts: Sequence[Judged],
    group: NDArray[np.int64],
    *,
    base: VoteSettings,
    left_out: LeftOut | None,
    most_slower: Limit | None = None,
) -> VoteSettings:
    """The policy with the least loss on a machine's own rows, in parts that are each judged by what
    is known without them. What leaving machines out has shown counts as `_PSEUDO_ROWS` more rows;
    without it the static best wins unless it is beaten surely, as in `fit_policy`, and the guard of
    `base` counts as `_PSEUDO_PROMISES` rows. `base` where there is nothing to judge."""
    judged = _tables(near, parts, group)
    if not judged:
        return base
    keys = set.intersection(*(set(table) for _, table in judged))
    joint = {key: np.concatenate([table[key] for _, table in judged]) for key in keys}
    rows = sum(part.rows.size for part, _ in judged)
    if left_out is not None and keys <= set(left_out.table):

        def loss(key: tuple[int, float]) -> float:
            return float(joint[key].sum()) + _PSEUDO_ROWS * left_out.table[key]

        k, shrink = min(sorted(keys), key=loss)
    else:
        names = np.concatenate([group[part.rows] for part, _ in judged])
        group_of = np.unique(names, return_inverse=True)[1]
        k, shrink, _ = _chosen({(*key, False): found for key, found in joint.items()}, group_of)
    choices = [first_choices(near, part, group, k=k, shrink=shrink) for part, _ in judged]
    names = np.concatenate([group[part.rows] for part, _ in judged])
    shown = _Shown(FirstChoices.joined(choices), names)
    mine = _expected([shown], most_slower)
    part = rows / (rows + _PSEUDO_PROMISES)
    if left_out is None:
        mine = mine._replace(guard=part * mine.guard + (1 - part) * base.guard)
    elif math.isfinite(left_out.policy.bias):
        part = part if math.isfinite(mine.errors.bias) else 0.0
        mine = mine.mixed(_Expected.of(left_out.policy), part)
    return _settings((k, shrink), [shown], mine)


def losses_by(
    policy: VoteSettings, near: Near, parts: Sequence[Judged], group: NDArray[np.int64]
) -> dict[int, float]:
    """Log loss of the first choice to the best run by judged row, with its group held out; rows
    that cannot be judged are absent."""
    k = min(policy.k, near.places.shape[1])
    found: dict[int, float] = {}
    for part, table in _tables(near, parts, group):
        found.update(zip(part.rows.tolist(), table[k, policy.shrink].tolist(), strict=True))
    return found


def _tables(
    near: Near, parts: Sequence[Judged], group: NDArray[np.int64]
) -> list[tuple[Judged, dict[tuple[int, float], Floats]]]:
    """Each part, its rows that can be judged, and their losses; parts without such rows are left
    out."""
    found = []
    for part in parts:
        able = np.isfinite(part.truth).sum(axis=1) >= 2
        able &= np.isfinite(near.distances[part.rows, :1]).any(axis=1)
        kept = Judged(part.rows[able], part.truth[able], part.gains, part.trust)
        if kept.rows.size:
            found.append((kept, losses_of(near, kept, group)))
    return found


def _held_out(z: Floats, centred: Floats, group: NDArray[np.int64], *, learned: bool) -> Near:
    """Nearest rows of other groups, as `_nearest_others`, for all rows.

    A learned metric is fitted without the groups it is tried on: with as many features as patterns
    it would otherwise foretell any gains, and neighbours would be believed that are not alike.
    """
    folds = _fold_count(group)
    near: list[NDArray[np.int64]] = []
    distances: list[Floats] = []
    for fold in range(folds):
        rest = group % folds != fold
        seen = z @ _learned(z[rest], centred[rest]) if learned else z
        places, far = _nearest_others(seen, group, ~rest)
        near.append(places)
        distances.append(far)
    order = np.argsort(np.argsort(group % folds, kind="stable"), kind="stable")
    return Near(np.concatenate(near)[order], np.concatenate(distances)[order])


def _fold_count(group: NDArray[np.int64]) -> int:
    return min(_FOLDS, int(group.max()) + 1)


def _learned(z: Floats, centred: Floats) -> Floats:
    """(I + s W W^T)^(1/2), W the ridge weights from features z[r,d] to gains [r,c]."""
    rows, d = z.shape
    y = np.clip(np.where(np.isfinite(centred), centred, 0.0), -CLIP, CLIP)
    y = y - y.mean(axis=0)
    w = np.linalg.solve(z.T @ z + _RIDGE * rows * np.eye(d), z.T @ y)
    foretold = float(((z @ w) ** 2).sum()) / rows
    if foretold < 1e-12:
        return np.eye(d)
    root, axes = np.linalg.eigh(np.eye(d) + _STRETCH**2 * d / foretold * (w @ w.T))
    stretched: Floats = axes * np.sqrt(root) @ axes.T
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


def _chosen(
    table: dict[tuple[int, float, bool], Floats], group: NDArray[np.int64]
) -> tuple[int, float, bool]:
    """The least loss; the static best if that is not a standard error (over groups) better."""
    k, shrink, learned = min(table, key=lambda at: float(table[at].mean()))
    gain = table[k, np.inf, learned] - table[k, shrink, learned]
    return (k, shrink if surely_positive(gain, group) else np.inf, learned)
