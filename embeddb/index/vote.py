"""Vote of neighbours: a metric and two numbers, both fitted to the evidence itself.

With g_i(c) = log(t_default / t_c) on neighbour i, level_i that neighbour's own mean gain, and d_k
the distance of the k-th neighbour, the score of configuration c is

    score(c) = (sum_i w_i (g_i(c) - level_i) + shrink * prior(c)) / (sum_i w_i + shrink)
    w_i = 1 / (d_i / d_k + 0.1)

summed over the neighbours that ran c. `shrink` is the number of pseudo-neighbours the platform's
average counts as; infinite, the static best answers. k and shrink minimise the loss on every matrix
of the evidence with its whole group held out; the static best wins unless it is beaten by more than
a standard error, and wherever its answers to groups left out of the fit are better. The metric is
the standardised features, or these stretched along the directions from which a ridge regression
predicts the gains, whichever has the least loss on groups it was not fitted to; either is a
distance between patterns that an explanation can show.
docs/explanation/decisions.md has the alternatives and their figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Bounds the weight of a neighbour at distance zero to 11 times that of the k-th.
_SOFTEN = 0.1
#: Log gains are clipped here, so that one hopeless schedule does not dominate the votes.
CLIP = 1.5
#: Bound of log losses and gains in a stored policy.
_MOST_LOG = 300.0
#: Pseudo-runs with which a configuration's mean gain is drawn to zero.
PSEUDO_RUNS = 1.0
#: Rounds of a two-way fit.
FIT_ROUNDS = 8
#: Standard errors that are subtracted from the estimate of a missing run. Four lose 16 points on a
#: public log of SpMV tiles, two lose 5 on loop nests; elsewhere they choose alike.
_CAUTIOUS = 3.0


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


def plain_metric(raw: NDArray[np.float32]) -> Metric:
    """Standardised features without a learned stretch: the baseline's metric."""
    x = raw.astype(np.float64)
    scale = x.std(axis=0) if len(x) else np.ones(x.shape[1])
    center = x.mean(axis=0) if len(x) else np.zeros(x.shape[1])
    return Metric(center, np.where(scale > 1e-9, scale, 1.0), np.eye(x.shape[1]))


@dataclass(frozen=True, slots=True)
class VoteSettings:
    """Policy of a vote: number of neighbours `k`, weight of the platform's average `shrink`, and
    the figures with groups held out: mean log loss to the oracle, and that of the static best.

    A first choice whose predicted log gain over the default does not exceed `guard` is replaced by
    the default; the guard minimises held-out answers slower than the default at next to no loss of
    gain. `bias` is the mean error of the other first choices (measured less predicted log gain),
    `low` and `high` their 10th and 90th percentile, which contain it; nan where too few were
    judged. `across`: whole machines were left out as well as groups. `groups` is the number of
    judged groups, `short` the upper 90 % bound of the share of answers below
    `embeddb.index.guards.GOOD`, `half_loss` the loss where half of the groups vote (None: not
    judged).
    """

    k: int
    shrink: float
    loss: float = float("nan")
    static_loss: float = float("nan")
    fitted_on: int = 0
    bias: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    guard: float = 0.0
    across: bool = False
    groups: int = 0
    short: float = float("nan")
    half_loss: float | None = None

    def weights(self, distances: Floats) -> Floats:
        """Votes float64[k] of neighbours at ascending distances float64[k]."""
        return weigh(distances[None, :])[0] if distances.size else np.zeros(0)

    def describe(self) -> dict[str, Any]:
        return {
            "neighbours": self.k,
            "shrink": None if np.isinf(self.shrink) else self.shrink,
            "of_optimum_held_out": _share(self.loss),
            "of_optimum_of_half": _share(self.half_loss),
            "static_best_held_out": _share(self.static_loss),
            "groups_held_out": self.groups,
        }

    def to_json(self) -> str:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({k: repr(v) if isinstance(v, float) else v for k, v in fields.items()})

    @classmethod
    def from_json(cls, text: str) -> VoteSettings:
        """Raises: ValueError, and for nonsense TypeError or KeyError."""
        types = {"k": int, "fitted_on": int, "groups": int, "across": bool}
        raw = json.loads(text)
        fields = {name: types.get(name, float)(raw[name]) for name in cls.__slots__[:-1]}
        half_loss = None if raw["half_loss"] is None else float(raw["half_loss"])
        policy = cls(**fields, half_loss=half_loss)
        logs = [policy.loss, policy.static_loss, policy.bias, policy.low, policy.high, policy.guard]
        logs += [half_loss or 0.0]
        sensible = policy.k >= 1 and policy.shrink >= 0.0 and policy.groups >= 0
        if not (sensible and 0.0 <= policy.guard < _MOST_LOG):
            raise ValueError("settings of a vote that make no sense")
        if policy.low > policy.bias or policy.bias > policy.high:
            raise ValueError("settings of a vote whose bias is outside its interval")
        if any(abs(log) > _MOST_LOG for log in logs):  # nan: too few were judged
            raise ValueError("settings of a vote with impossible gains")
        return policy


def _share(loss: float | None) -> float | None:
    return float(np.exp(-loss)) if loss is not None and np.isfinite(loss) else None


def weigh(distances: Floats) -> Floats:
    """Votes float64[q,k] of ascending distances float64[q,k]; an infinite distance has none."""
    finite = np.isfinite(distances)
    far = np.max(distances, axis=1, where=finite, initial=0.0)
    near = np.where(finite, distances, 0.0) / np.maximum(far, 1e-12)[:, None]
    return np.where(finite, 1.0 / (near + _SOFTEN), 0.0)


def votes(gains: Floats) -> Floats:
    """Gains as they vote, clipped from below; nan stays."""
    return np.maximum(gains, -CLIP)


def effects(gains: Floats) -> tuple[Floats, Floats]:
    """Two-way additive fit of float64[r,c]: level[r] of each row, prior[c] of each configuration.

    With everything run everywhere these are the means; with few runs a row, it keeps patterns
    that gain much from lifting whatever happened to run on them.
    """
    ran = np.isfinite(gains)
    values = np.where(ran, gains, 0.0)
    level, prior = np.zeros(len(gains)), np.zeros(gains.shape[1])
    for _ in range(FIT_ROUNDS):
        level = (values - ran * prior).sum(axis=1) / np.maximum(ran.sum(axis=1), 1)
        prior = (values - ran * level[:, None]).sum(axis=0) / (ran.sum(axis=0) + PSEUDO_RUNS)
    return level, prior


def _total(values: Floats) -> Floats:
    total: Floats = values.sum(axis=0)
    return total


def is_default(gains: Floats) -> NDArray[np.bool_]:
    """bool[c]: the gain is exactly zero on most rows that ran it, as that of the default is (except
    on rows where the default failed)."""
    ran = np.isfinite(gains).sum(axis=0)
    zero: NDArray[np.bool_] = 2 * (gains == 0.0).sum(axis=0) > ran
    return zero


def mean_gain(gains: Floats, total: Callable[[Floats], Floats] = _total) -> Floats:
    """float64[c] mean of log gains float64[r,c] (nan: not run), by which the best fixed
    configuration is chosen. The missing gain of a configuration on a row is estimated: the row's
    mean gain, plus how far the configuration is from the mean of rows that ran it, less
    `_CAUTIOUS` standard errors, since the best of many that ran once each is mostly the luckiest.
    The default has 0, as has what never ran. `total` sums over rows: all, to float64[c], or for
    each row those of other groups, to float64[r,c]."""
    ran: NDArray[np.bool_] = np.isfinite(gains)
    runs = ran.sum(axis=1, keepdims=True)
    level = np.where(ran, gains, 0.0).sum(axis=1, keepdims=True) / np.maximum(runs, 1)
    rows = total(np.minimum(runs, 1.0))
    centred, count = np.where(ran, gains - level, 0.0), total(ran.astype(np.float64))
    least = np.maximum(count, 1.0)
    beside = total(centred) / least
    square = (total(centred**2) - count * beside**2).sum(axis=-1, keepdims=True)
    spread = np.sqrt(np.maximum(square, 0.0) / least.sum(axis=-1, keepdims=True))
    guess = beside - _CAUTIOUS * spread / np.sqrt(least)
    whole = total(np.where(ran, gains, level)) + (rows - count) * guess
    some = total((ran & (gains != 0.0)).astype(np.float64)) > 0
    mean: Floats = np.where(some, whole / np.maximum(rows, 1.0), 0.0)
    return mean


def greedy_cover(gains: Floats, most: int = 64) -> NDArray[np.int64]:
    """Positions of a fixed set, best first: each next one adds most to the mean best gain, where
    configurations that a row did not run count as 0."""
    values = np.where(np.isfinite(gains), gains, 0.0)
    chosen: list[int] = []
    best = np.full(len(values), -np.inf)
    for _ in range(min(most, values.shape[1]) if len(values) else 0):
        mean = np.maximum(best[:, None], values).mean(axis=0)
        mean[chosen] = -np.inf
        chosen.append(int(np.argmax(mean)))
        best = np.maximum(best, values[:, chosen[-1]])
    return np.array(chosen, dtype=np.int64)


def doubt(
    centred: Floats, weights: Floats, support: Floats, prior: Floats, shrink: float
) -> Floats:
    """Excess of the standard error of a vote with the weight of support float64[...,s] over that of
    a configuration that all neighbours ran. `centred` float64[...,k,c] are gains less each
    neighbour's level, `weights` float64[...,k] (0: no neighbour), `prior` float64[...,c].

    Where configurations are sampled per pattern, the best of hundreds of votes by one or two
    neighbours each would mostly be the luckiest.
    """
    there = weights > 0
    ran = np.isfinite(centred) & there[..., None]
    off = np.where(ran, centred - prior[..., None, :], 0.0)
    spread = np.sqrt((off**2).sum(axis=(-2, -1)) / np.maximum(ran.sum(axis=(-2, -1)), 1))
    total = weights.sum(axis=-1)
    one, full = total / np.maximum(there.sum(axis=-1), 1), total + max(shrink, 1e-6)
    # Where shrink is 0, one that none ran has the doubt of one that only the farthest ran.
    farthest = np.where(there, weights, np.inf).min(axis=-1)
    least = np.maximum(support, farthest[..., None])
    excess = np.sqrt(one[..., None] / least) - np.sqrt(one / full)[..., None]
    doubts: Floats = spread[..., None] * excess
    return doubts


def surely_positive(gain: Floats, group: NDArray[np.int64], *, errors: float = 1.0) -> bool:
    """Return true if the mean of gain float64[r] exceeds a number of standard errors over groups
    int64[r]."""
    return bool(gain.mean() > errors * standard_error(gain, group))


def standard_error(values: Floats, group: NDArray[np.int64]) -> float:
    """Standard error of the mean of values float64[r], whose groups int64[r] vary together."""
    off = np.bincount(group, values - values.mean())
    return float(np.sqrt((off**2).sum())) / len(values)
