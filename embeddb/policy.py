"""How neighbours vote: a metric and two numbers, both fitted to the evidence itself.

With g_i(c) = log(t_default / t_c) on neighbour i, level_i that neighbour's own mean gain, and d_k
the distance of the k-th neighbour, the score of configuration c is

    score(c) = (sum_i w_i (g_i(c) - level_i) + shrink * prior(c)) / (sum_i w_i + shrink)
    w_i = 1 / (d_i / d_k + 0.1)

summed over the neighbours that ran c. `shrink` is the number of pseudo-neighbours the platform's
average counts as; infinite, it is the static best. k and shrink are those with the least loss when
every matrix of the evidence is asked with its whole group held out, and the static best wins
unless it is beaten by more than a standard error: so neighbours are believed exactly as far as
they were right before. The metric is the standardised features, or these stretched along the
directions from which a ridge regression foretells the gains, whichever has the least loss on
groups it was not fitted to; either is a distance between patterns that an explanation can show.
docs/decisions/neighbour-vote.md has the alternatives and their figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Metric",
    "Policy",
    "effects",
    "fit_policy",
    "greedy_cover",
    "mean_gain",
    "plain_metric",
    "surely_positive",
    "votes",
]

Floats = NDArray[np.float64]

#: Bounds the weight of a neighbour at distance zero to 11 times that of the k-th.
_SOFTEN = 0.1
#: Weight of the foretold gains in the metric against the plain features.
_STRETCH = 1.0
#: Ridge penalty per pattern, on standardised features.
_RIDGE = 0.1
#: Log gains beyond it count as it, so that one hopeless schedule does not outvote what matters.
_CLIP = 1.5
#: Pseudo-runs with which a configuration's mean gain is drawn to zero.
_PSEUDO_RUNS = 1.0
_NEIGHBOURS = (3, 5, 8, 12, 20, 40)
#: Parts in which a learned metric is tried on groups it was not fitted to.
_FOLDS = 5
_SHRINKS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, np.inf)
#: What is used where nothing can be judged: records of winners only, or one group of matrices.
_UNPROVEN_K, _UNPROVEN_SHRINK = 8, 4.0
#: Numbers gathered at once in the fit: bounds its memory to about 32 MB.
_BLOCK = 4_000_000
#: Patterns beyond it are left out of the fit (a pairwise distance matrix is made), not of answers.
_MOST_FITTED = 4000


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """Raw features to coordinates in which plain L2 distance is the learned one.

    Shapes: `center`, `scale` float64[d] of the features (heavy-tailed ones are logarithms
    already: a featurizer's duty), `stretch` float64[d,d].
    """

    center: Floats
    scale: Floats
    stretch: Floats

    def standardised(self, raw: NDArray[np.float32]) -> Floats:
        """float64[p,d]: centred and scaled."""
        scaled: Floats = (raw.astype(np.float64) - self.center) / self.scale
        return scaled

    def apply(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32[p,d] coordinates of raw features float32[p,d]."""
        return np.ascontiguousarray(self.standardised(raw) @ self.stretch, dtype=np.float32)

    def arrays(self) -> dict[str, Floats]:
        return {"center": self.center, "scale": self.scale, "stretch": self.stretch}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Floats]) -> Metric:
        """Raises: KeyError, ValueError for missing or ill-shaped arrays."""
        d = arrays["center"].size
        if arrays["scale"].shape != (d,) or arrays["stretch"].shape != (d, d):
            raise ValueError("the metric's arrays do not fit together")
        return cls(arrays["center"], arrays["scale"], arrays["stretch"])


def plain_metric(raw: NDArray[np.float32]) -> Metric:
    """Standardised features and nothing learned: the baseline's metric."""
    x = raw.astype(np.float64)
    scale = x.std(axis=0) if len(x) else np.ones(x.shape[1])
    center = x.mean(axis=0) if len(x) else np.zeros(x.shape[1])
    return Metric(center, np.where(scale > 1e-9, scale, 1.0), np.eye(x.shape[1]))


@dataclass(frozen=True, slots=True)
class Policy:
    """How many neighbours are asked, how far the platform's average is kept, and how well both
    did when groups were held out: mean log loss to the oracle, beside the static best's."""

    k: int
    shrink: float
    loss: float = float("nan")
    static_loss: float = float("nan")
    fitted_on: int = 0

    def weights(self, distances: Floats) -> Floats:
        """Votes float64[k] of neighbours at ascending distances float64[k]."""
        return weigh(distances[None, :])[0] if distances.size else np.zeros(0)

    def describe(self) -> dict[str, Any]:
        return {
            "neighbours": self.k,
            "shrink": None if np.isinf(self.shrink) else self.shrink,
            "of_optimum_held_out": _share(self.loss),
            "static_best_held_out": _share(self.static_loss),
        }

    def to_json(self) -> str:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({k: repr(v) if isinstance(v, float) else v for k, v in fields.items()})

    @classmethod
    def from_json(cls, text: str) -> Policy:
        read = json.loads(text)
        return cls(
            int(read["k"]),
            float(read["shrink"]),
            float(read["loss"]),
            float(read["static_loss"]),
            int(read["fitted_on"]),
        )


def _share(loss: float) -> float | None:
    return float(np.exp(-loss)) if np.isfinite(loss) else None


def weigh(distances: Floats) -> Floats:
    """Votes float64[q,k] of ascending distances float64[q,k]; an infinite distance has none."""
    finite = np.isfinite(distances)
    far = np.max(distances, axis=1, where=finite, initial=0.0)
    near = np.where(finite, distances, 0.0) / np.maximum(far, 1e-12)[:, None]
    return np.where(finite, 1.0 / (near + _SOFTEN), 0.0)


def votes(gains: Floats) -> Floats:
    """Gains as they vote: what is slower than a limit counts as that limit; nan stays."""
    return np.maximum(gains, -_CLIP)


def effects(gains: Floats) -> tuple[Floats, Floats]:
    """Two-way additive fit of float64[r,c]: level[r] of each row, prior[c] of each configuration.

    With everything run everywhere these are the means; with few runs a row, it keeps patterns
    that gain much from lifting whatever happened to run on them.
    """
    ran = np.isfinite(gains)
    values = np.where(ran, gains, 0.0)
    level, prior = np.zeros(len(gains)), np.zeros(gains.shape[1])
    for _ in range(8):
        level = (values - ran * prior).sum(axis=1) / np.maximum(ran.sum(axis=1), 1)
        prior = (values - ran * level[:, None]).sum(axis=0) / (ran.sum(axis=0) + _PSEUDO_RUNS)
    return level, prior


def mean_gain(gains: Floats) -> Floats:
    """float64[c] mean gain over all rows; what a row did not run counts as its default."""
    known = np.where(np.isfinite(gains), gains, 0.0)
    mean: Floats = known.mean(axis=0) if len(known) else np.zeros(known.shape[1])
    return mean


def greedy_cover(gains: Floats, most: int = 64) -> NDArray[np.int64]:
    """Positions of a fixed set, best first: each next one adds most to the mean best gain.

    What a row did not run counts as its default.
    """
    known = np.where(np.isfinite(gains), gains, 0.0)
    chosen: list[int] = []
    best = np.full(len(known), -np.inf)
    for _ in range(min(most, known.shape[1]) if len(known) else 0):
        value = np.maximum(best[:, None], known).mean(axis=0)
        value[chosen] = -np.inf
        chosen.append(int(np.argmax(value)))
        best = np.maximum(best, known[:, chosen[-1]])
    return np.array(chosen, dtype=np.int64)


def fit_policy(
    raw: NDArray[np.float32], gains: Floats, groups: NDArray[np.str_]
) -> tuple[Metric, Policy, Floats, Floats]:
    """Metric, policy, ascending leave-one-group-out nearest distances, and the log loss float64[r]
    of each row with its group held out (nan: not judged).

    `raw` float32[r,d] features, `gains` float64[r,c] and `groups` str[r] of the same rows; rows
    with a single run cannot be judged and are left out. Where none can be judged the vote is an
    unproven but moderate one.
    """
    taught = np.flatnonzero(np.isfinite(gains).sum(axis=1) >= 2)
    if taught.size > _MOST_FITTED:
        taught = taught[np.linspace(0, taught.size - 1, _MOST_FITTED).astype(np.int64)]
    metric, losses = plain_metric(raw), np.full(len(gains), np.nan)
    if taught.size < 2 or np.unique(groups[taught]).size < 2:
        return metric, Policy(_UNPROVEN_K, _UNPROVEN_SHRINK), np.zeros(0), losses
    g, group = votes(gains[taught]), np.unique(groups[taught], return_inverse=True)[1]
    level, _ = effects(g)
    z, centred = metric.standardised(raw[taught]), g - level[:, None]
    found = {learned: _held_out(z, centred, group, learned=learned) for learned in (False, True)}
    table = {
        (k, shrink, learned): loss
        for learned, near in found.items()
        for (k, shrink), loss in _losses(*near, g, group).items()
    }
    k, shrink, learned = _chosen(table, group)
    if learned:
        metric = Metric(metric.center, metric.scale, _learned(z, centred))
    static = float(table[k, np.inf, learned].mean())
    losses[taught] = table[k, shrink, learned]
    loss = float(table[k, shrink, learned].mean())
    nearest = found[learned][1][:, 0]
    policy = Policy(k, shrink, loss, static, int(taught.size))
    return metric, policy, np.sort(nearest[np.isfinite(nearest)]), losses


def _held_out(
    z: Floats, centred: Floats, group: NDArray[np.int64], *, learned: bool
) -> tuple[NDArray[np.int64], Floats]:
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
    return np.concatenate(near)[order], np.concatenate(distances)[order]


def _learned(z: Floats, centred: Floats) -> Floats:
    """(I + s W W^T)^(1/2), W the ridge weights from features z[r,d] to gains [r,c]."""
    rows, d = z.shape
    y = np.clip(np.where(np.isfinite(centred), centred, 0.0), -_CLIP, _CLIP)
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


def _losses(
    near: NDArray[np.int64], distances: Floats, gains: Floats, group: NDArray[np.int64]
) -> dict[tuple[int, float], Floats]:
    """Log loss [r] to the best run of each row with its group held out, per (k, shrink)."""
    ran = np.isfinite(gains)
    level, _ = effects(gains)
    centred = gains - level[:, None]
    prior = _others_prior(centred, group)
    ks = sorted({min(k, near.shape[1]) for k in _NEIGHBOURS})
    known = np.where(ran, gains, -np.inf)
    best = known.max(axis=1)
    table = {(k, shrink): np.empty(len(gains)) for k in ks for shrink in _SHRINKS}
    step = max(1, _BLOCK // (ks[-1] * gains.shape[1]))
    for start in range(0, len(gains), step):
        rows = np.arange(start, min(start + step, len(gains)))
        gathered = centred[near[rows]]
        for k in ks:
            votes = _vote(weigh(distances[rows, :k]), gathered[:, :k])
            for shrink in _SHRINKS:
                score = np.where(ran[rows], _shrunk(*votes, prior[rows], shrink), -np.inf)
                table[k, shrink][rows] = best[rows] - known[rows, score.argmax(axis=1)]
    return table


def _others_prior(centred: Floats, group: NDArray[np.int64]) -> Floats:
    """The prior [r,c] each row would have if its own group had never been measured."""
    ran = np.isfinite(centred)
    sums, counts = np.zeros((2, int(group.max()) + 1, centred.shape[1]))
    np.add.at(sums, group, np.where(ran, centred, 0.0))
    np.add.at(counts, group, ran)
    prior: Floats = ((sums.sum(0) - sums) / (counts.sum(0) - counts + _PSEUDO_RUNS))[group]
    return prior


def _vote(weights: Floats, centred: Floats) -> tuple[Floats, Floats]:
    """Weighted sum of gains [q,k,c] and the weight that ran each: both [q,c]."""
    ran = np.isfinite(centred)
    total = np.matmul(weights[:, None], np.where(ran, centred, 0.0))[:, 0]
    return total, np.matmul(weights[:, None], ran.astype(np.float64))[:, 0]


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


def surely_positive(gain: Floats, group: NDArray[np.int64], *, errors: float = 1.0) -> bool:
    """Whether the mean of gain float64[r] exceeds so many standard errors, over groups int64[r]."""
    error = float(np.sqrt((np.bincount(group, gain - gain.mean()) ** 2).sum())) / len(gain)
    return bool(gain.mean() > errors * error)
