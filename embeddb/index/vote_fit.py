"""Fitting how neighbours vote: metric, k and shrink, with whole groups (and machines) held out, and
what promises were worth there.

`embeddb.index.vote` has the vote itself. Everything here judges by rows that are asked without
their group: how much each (k, shrink) loses to the best run, and what first choices got beside
what they were promised.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.index.guards import Limit, safe_guard, usual_guard
from embeddb.index.vote import (
    CLIP,
    PSEUDO_RUNS,
    Metric,
    VoteSettings,
    doubt,
    effects,
    is_default,
    plain_metric,
    surely_positive,
    votes,
    weigh,
)

__all__ = [
    "FIT_VERSION",
    "MOST_ASKED",
    "Fitted",
    "Judged",
    "LeftOut",
    "Near",
    "fit_policy",
    "leave_out",
    "losses_by",
    "refit",
    "with_itself",
]

Floats = NDArray[np.float64]

#: Raised with every change of how metric, policy and guard are found: saved ones are found again.
FIT_VERSION = "4"
#: Weight of the foretold gains in the metric against the plain features.
_STRETCH = 1.0
#: Ridge penalty per pattern, on standardised features.
_RIDGE = 0.1
_NEIGHBOURS = (3, 5, 8, 12, 20, 40)
#: No policy asks more of them.
MOST_ASKED = max(_NEIGHBOURS)
#: Parts in which a learned metric is tried on groups it was not fitted to.
_FOLDS = 5
_SHRINKS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, np.inf)
#: What is used where nothing can be judged: records of winners only, or one group of matrices.
_UNPROVEN_K, _UNPROVEN_SHRINK = 8, 4.0
#: Numbers gathered at once in the fit: bounds its memory to about 32 MB.
_BLOCK = 4_000_000
#: With fewer first choices judged nothing is said of what promises are worth.
_FEWEST_PROMISES = 8
#: Rows as which what leaving machines out has shown counts beside a machine's own.
_PSEUDO_ROWS, _PSEUDO_PROMISES = 20.0, 10.0
#: Patterns beyond it are left out of the fit (a pairwise distance matrix is made), not of answers.
_MOST_FITTED = 4000


class Near(NamedTuple):
    """Nearest patterns of other groups: `places` int64[p,k] (-1: none), `distances` float64[p,k]
    ascending (inf: none), in a metric that was fitted without the group asked about."""

    places: NDArray[np.int64]
    distances: Floats


class Fitted(NamedTuple):
    """`far` ascending leave-one-group-out nearest distances, `losses` float64[r] the log loss of
    each row with its group held out (nan: not judged), `groups` int64[r] in numbers."""

    metric: Metric
    policy: VoteSettings
    far: Floats
    losses: Floats
    near: Near
    groups: NDArray[np.int64]


class Judged(NamedTuple):
    """Rows to judge by: `rows` int64[q] positions, `truth` float64[q,c] what was measured there,
    and what is known of all patterns without them: `gains` and `trust` float64[p,c]."""

    rows: NDArray[np.int64]
    truth: Floats
    gains: Floats
    trust: Floats


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
    everyone = Judged(rows, g[rows], g, trusted)
    table = {
        (k, shrink, learned): loss
        for learned, near in found.items()
        for (k, shrink), loss in _losses(near, everyone, group).items()
    }
    k, shrink, learned = _chosen(table, group[rows])
    if learned:
        metric = Metric(metric.center, metric.scale, _learned(z, centred))
    chosen, near = table[k, shrink, learned], _only(found[learned], rows)
    losses = np.full(len(gains), np.nan)
    losses[taught[rows]] = chosen
    policy = VoteSettings(
        k,
        shrink,
        float(chosen.mean()),
        float(table[k, np.inf, learned].mean()),
        int(rows.size),
        *_kept([_promises(near, everyone, group, k, shrink)], most_slower),
    )
    nearest = near.distances[:, 0]
    far = np.sort(nearest[np.isfinite(nearest)])
    return Fitted(metric, policy, far, losses, _spread_out(near, taught, len(gains)), numbers)


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


def with_itself(near: Near) -> Near:
    """The same with each pattern the nearest to itself: others may have run it."""
    each = np.arange(len(near.places))[:, None]
    return Near(np.hstack([each, near.places]), np.hstack([np.zeros(each.shape), near.distances]))


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
    loss = {key: float(np.mean([table[key].mean() for _, table in shown])) for key in keys}
    off = [_promises(near, part, group, k, shrink) for part, _ in shown]
    policy = VoteSettings(
        k,
        shrink,
        loss[k, shrink],
        loss[k, np.inf],
        sum(part.rows.size for part, _ in shown),
        *_kept(off, most_slower),
        across=True,
    )
    return LeftOut(policy, means)


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
    off = np.concatenate([_promises(near, part, group, k, shrink) for part, _ in judged])
    mine = _kept([off], most_slower)
    part = rows / (rows + _PSEUDO_PROMISES)
    if left_out is None:
        mine = (*mine[:3], part * mine[3] + (1 - part) * base.guard)
    elif math.isfinite(left_out.policy.bias):
        p = left_out.policy
        part = part if math.isfinite(mine[0]) else 0.0
        pairs = zip(mine, (p.bias, p.low, p.high, p.guard), strict=True)
        mine = tuple(part * m + (1 - part) * t if part else t for m, t in pairs)  # type: ignore[assignment]
    return VoteSettings(
        k,
        shrink,
        float(joint[k, shrink].mean()),
        float(joint[k, np.inf].mean()),
        rows,
        *mine,
    )


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
            found.append((kept, _losses(near, kept, group)))
    return found


def _held_out(z: Floats, centred: Floats, group: NDArray[np.int64], *, learned: bool) -> Near:
    """Nearest rows of other groups, as `_nearest_others`, for all rows.

    A learned metric is fitted without the groups it is tried on: with as many features as patterns
    it would otherwise foretell any gains, and neighbours would be believed that are not alike.
    """
    folds = min(_FOLDS, int(group.max()) + 1)
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
    most = min(max(min(_NEIGHBOURS[-1], len(z) // 3), _NEIGHBOURS[0]), len(z))
    square = (z**2).sum(axis=1)
    d = np.sqrt(np.maximum(square[of, None] + square[None] - 2.0 * z[of] @ z.T, 0.0))
    d[group[of, None] == group[None]] = np.inf
    near = np.sort(np.argpartition(d, most - 1, axis=1)[:, :most], axis=1)
    order = np.argsort(np.take_along_axis(d, near, axis=1), axis=1, kind="stable")
    near = np.take_along_axis(near, order, axis=1)
    return near, np.take_along_axis(d, near, axis=1)


def _losses(near: Near, part: Judged, group: NDArray[np.int64]) -> dict[tuple[int, float], Floats]:
    """Log loss [q] to the best run of each judged row with its group held out, per (k, shrink)."""
    centred = part.gains - effects(part.gains)[0][:, None]
    prior = _others_prior(centred, group)
    said, weight = _weighed(centred, part.trust)
    ks = sorted({min(k, near.places.shape[1]) for k in _NEIGHBOURS})
    known = np.where(np.isfinite(part.truth), part.truth, -np.inf)
    best = known.max(axis=1)
    table = {(k, shrink): np.empty(len(known)) for k in ks for shrink in _SHRINKS}
    for at in _blocks(len(known), ks[-1] * part.gains.shape[1]):
        rows = part.rows[at]
        places = near.places[rows]
        near_said, near_weight = said[places], weight[places]
        for k in ks:
            weights = weigh(near.distances[rows, :k])
            votes = _vote(weights, near_said[:, :k], near_weight[:, :k])
            for shrink in _SHRINKS:
                score = _shrunk(*votes, prior[rows], shrink)
                score = np.where(np.isfinite(known[at]), score, -np.inf)
                taken = score.argmax(axis=1)
                table[k, shrink][at] = best[at] - known[at][np.arange(len(at)), taken]
    return table


def _promises(near: Near, part: Judged, group: NDArray[np.int64], k: int, shrink: float) -> Floats:
    """float64[q,2] log gain that the first choice of each judged row was promised over the default,
    and that it got (nan: its default did not run)."""
    centred = part.gains - effects(part.gains)[0][:, None]
    prior = _others_prior(centred, group)
    said, weight = _weighed(centred, part.trust)
    default = is_default(part.gains)
    found = np.full((len(part.rows), 2), np.nan)
    for at, (row, truth) in enumerate(zip(part.rows, part.truth, strict=True)):
        base = np.flatnonzero(default & (truth == 0.0))
        near_ones = np.isfinite(near.distances[row, :k])
        if not base.size or not near_ones.any():
            continue
        places = near.places[row, :k][near_ones]
        weights = weigh(near.distances[row, :k][near_ones][None])[0]
        votes, support = _vote(weights[None], said[places][None], weight[places][None])
        score = _shrunk(votes[0], support[0], prior[row], shrink)
        if not np.isinf(shrink):
            mass = support[0] + max(shrink, 1e-6)
            score = score - doubt(centred[places], weights, mass, prior[row], shrink)
        taken = int(np.where(np.isfinite(truth), score, -np.inf).argmax())
        found[at] = score[taken] - score[base[0]], truth[taken]
    return found


def _kept(
    by_machine: Sequence[Floats], most_slower: Limit | None = None
) -> tuple[float, float, float, float]:
    """Bias, low, high and guard of a policy from float64[q,2] of each machine that was judged; low
    <= bias <= high."""
    known = [first[np.isfinite(first).all(axis=1)] for first in by_machine]
    known = [first for first in known if len(first)]
    if not known:
        return (*_off(np.zeros(0)), 0.0)
    guard = usual_guard(known) if most_slower is None else safe_guard(known, most_slower)
    off = [(got - promised)[promised > guard] for promised, got in (first.T for first in known)]
    return (*(_off(off[0]) if len(off) == 1 else _off_across(off)), guard)


def _blocks(count: int, each: int) -> Iterator[NDArray[np.int64]]:
    """Positions in parts that gather at most `_BLOCK` numbers at once."""
    step = max(1, _BLOCK // max(each, 1))
    for start in range(0, count, step):
        yield np.arange(start, min(start + step, count))


def _off_across(by_machine: Sequence[Floats]) -> tuple[float, float, float]:
    """As `_off` for a machine that is none of these: rows of one machine err together, by as much
    as machines differ (a normal law for their means, with the t quantile of so few)."""
    known = [off[np.isfinite(off)] for off in by_machine]
    known = [off for off in known if off.size >= _FEWEST_PROMISES]
    if not known:
        return (float("nan"),) * 3
    means = np.array([off.mean() for off in known])
    within = float(np.mean([off.var() for off in known]))
    between = float(means.var(ddof=1)) * (1 + 1 / len(means)) if len(means) > 1 else within
    # 90th percentiles of Student's t with 1, 2, ... degrees of freedom over the normal's.
    wider = (2.40, 1.47, 1.28, 1.20, 1.15, 1.12, 1.10, 1.09, 1.08)[min(len(means), 10) - 2]
    reach = 1.2816 * math.sqrt(within + wider**2 * between)
    bias = float(means.mean())
    return bias, bias - reach, bias + reach


def _off(promised: Floats) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile of got less promised; nan where too few are known. The
    median, for a few answers that went far wrong move a mean out of the other two."""
    known = promised[np.isfinite(promised)]
    if known.size < _FEWEST_PROMISES:
        return (float("nan"),) * 3
    low, median, high = np.quantile(known, (0.1, 0.5, 0.9))
    return float(median), float(low), float(high)


def _others_prior(centred: Floats, group: NDArray[np.int64]) -> Floats:
    """The prior [r,c] each row would have if its own group had never been measured."""
    order = np.argsort(group, kind="stable")
    _, starts, place = np.unique(group[order], return_index=True, return_inverse=True)
    ran = np.isfinite(centred)[order]
    sums = np.add.reduceat(np.where(ran, centred[order], 0.0), starts)
    counts = np.add.reduceat(ran, starts, dtype=np.float64)
    by_group = (sums.sum(0) - sums) / (counts.sum(0) - counts + PSEUDO_RUNS)
    prior: Floats = np.empty(centred.shape)
    prior[order] = by_group[place]
    return prior


def _weighed(centred: Floats, trust: Floats) -> tuple[Floats, Floats]:
    """Gains times their trust and that trust, both [p,c]; 0 where nothing ran."""
    weight = np.where(np.isfinite(centred), trust, 0.0)
    return np.where(weight > 0, centred, 0.0) * weight, weight


def _vote(weights: Floats, said: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Weighted sum of what neighbours [q,k,c] said and the weight that ran each: both [q,c]."""
    total = np.matmul(weights[:, None], said)[:, 0]
    return total, np.matmul(weights[:, None], weight)[:, 0]


def _shrunk(total: Floats, weight: Floats, prior: Floats, shrink: float) -> Floats:
    if np.isinf(shrink):
        return prior
    return (total + max(shrink, 1e-6) * prior) / (weight + max(shrink, 1e-6))


def _chosen(
    table: dict[tuple[int, float, bool], Floats], group: NDArray[np.int64]
) -> tuple[int, float, bool]:
    """The least loss; the static best if that is not a standard error (over groups) better."""
    k, shrink, learned = min(table, key=lambda at: float(table[at].mean()))
    gain = table[k, np.inf, learned] - table[k, shrink, learned]
    return (k, shrink if surely_positive(gain, group) else np.inf, learned)
