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
docs/explanation/decisions.md has the alternatives and their figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Bounds the weight of a neighbour at distance zero to 11 times that of the k-th.
_SOFTEN = 0.1
#: Log gains beyond it count as it, so that one hopeless schedule does not outvote what matters.
CLIP = 1.5
#: A log loss or gain beyond it is none that was found by judging.
_MOST_LOG = 300.0
#: Pseudo-runs with which a configuration's mean gain is drawn to zero.
PSEUDO_RUNS = 1.0


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
class VoteSettings:
    """How many neighbours are asked, how far the platform's average is kept, and how well both
    did when groups were held out: mean log loss to the oracle, beside the static best's.

    A first choice must promise more than `guard` (log gain) over the default, or the default goes
    first: the guard under which the fewest held-out answers were slower than the default, of those
    that cost next to nothing. Of the first choices that are then not the default, `bias` is the
    mean of what was got less what was promised (log gains over the default), `low` and `high`
    the 10th and 90th percentile of the same, which contain it; nan where too few were judged.
    `across`: judged by leaving whole machines out, as well as groups. `groups` counts those that
    were judged, `short` is the upper 90 % bound of the part of answers that fall short of
    `embeddb.index.guards.GOOD`, and `half_loss` the loss where half of the groups vote (None: not
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
        """Raises: ValueError, and of nonsense TypeError or KeyError."""
        read = json.loads(text)
        found = cls(
            int(read["k"]),
            float(read["shrink"]),
            float(read["loss"]),
            float(read["static_loss"]),
            int(read["fitted_on"]),
            float(read["bias"]),
            float(read["low"]),
            float(read["high"]),
            float(read["guard"]),
            bool(read["across"]),
            int(read["groups"]),
            float(read["short"]),
            None if read["half_loss"] is None else float(read["half_loss"]),
        )
        logs = [found.loss, found.static_loss, found.bias, found.low, found.high, found.guard]
        logs += [found.half_loss or 0.0]
        sensible = found.k >= 1 and found.shrink >= 0.0 and found.groups >= 0
        if not (sensible and 0.0 <= found.guard < _MOST_LOG):
            raise ValueError("settings of a vote that make no sense")
        if found.low > found.bias or found.bias > found.high:
            raise ValueError("settings of a vote whose bias is outside its interval")
        if any(abs(log) > _MOST_LOG for log in logs):  # nan: too few were judged
            raise ValueError("settings of a vote that promise the impossible")
        return found


def _share(loss: float | None) -> float | None:
    return float(np.exp(-loss)) if loss is not None and np.isfinite(loss) else None


def weigh(distances: Floats) -> Floats:
    """Votes float64[q,k] of ascending distances float64[q,k]; an infinite distance has none."""
    finite = np.isfinite(distances)
    far = np.max(distances, axis=1, where=finite, initial=0.0)
    near = np.where(finite, distances, 0.0) / np.maximum(far, 1e-12)[:, None]
    return np.where(finite, 1.0 / (near + _SOFTEN), 0.0)


def votes(gains: Floats) -> Floats:
    """Gains as they vote: what is slower than a limit counts as that limit; nan stays."""
    return np.maximum(gains, -CLIP)


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
        prior = (values - ran * level[:, None]).sum(axis=0) / (ran.sum(axis=0) + PSEUDO_RUNS)
    return level, prior


def is_default(gains: Floats) -> NDArray[np.bool_]:
    """bool[c]: gained exactly nothing wherever it ran, as the default does; but for a row or two
    on which the default itself failed, whose gains are told otherwise."""
    found: NDArray[np.bool_] = 2 * (gains == 0.0).sum(axis=0) > np.isfinite(gains).sum(axis=0)
    return found


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


def doubt(
    centred: Floats, weights: Floats, support: Floats, prior: Floats, shrink: float
) -> Floats:
    """By how much the standard error of a vote with the weight of support float64[...,s] exceeds
    that of a configuration that all neighbours ran; 0 where all did. `centred` float64[...,k,c] are
    gains less each neighbour's level, `weights` float64[...,k] (0: no neighbour), `prior`
    float64[...,c].

    Where configurations are sampled per pattern, the best of hundreds of votes by one or two
    neighbours each would mostly be the luckiest.
    """
    there = weights > 0
    ran = np.isfinite(centred) & there[..., None]
    off = np.where(ran, centred - prior[..., None, :], 0.0)
    spread = np.sqrt((off**2).sum(axis=(-2, -1)) / np.maximum(ran.sum(axis=(-2, -1)), 1))
    total = weights.sum(axis=-1)
    one, full = total / np.maximum(there.sum(axis=-1), 1), total + max(shrink, 1e-6)
    # One nobody ran, where shrink is 0, is doubted like one that only the farthest neighbour ran.
    farthest = np.where(there, weights, np.inf).min(axis=-1)
    least = np.maximum(support, farthest[..., None])
    found: Floats = spread[..., None] * (
        np.sqrt(one[..., None] / least) - np.sqrt(one / full)[..., None]
    )
    return found


def surely_positive(gain: Floats, group: NDArray[np.int64], *, errors: float = 1.0) -> bool:
    """Whether the mean of gain float64[r] exceeds so many standard errors, over groups int64[r]."""
    return bool(gain.mean() > errors * standard_error(gain, group))


def standard_error(values: Floats, group: NDArray[np.int64]) -> float:
    """Standard error of the mean of values float64[r], whose groups int64[r] vary together."""
    off = np.bincount(group, values - values.mean())
    return float(np.sqrt((off**2).sum())) / len(values)
