"""The signal of Eq. 3 to 5: how well a model orders samples that it was not trained on.

The paper's reward is the rank quality (ordered pair accuracy) of the cost model that is being
fine-tuned, on the newest schedules of a matrix: `indexer.campaign.budget.in_training`. Where no
model is trained, it is that of a ridge regression on the values of the parameters, additive, the
same for every matrix. It needs nothing but the samples, so a strategy works before there is any
cost model, and a matrix that it orders badly is one that does not behave like the others, which is
what the strategies look for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.index.run_matrix import FAILED_GAIN
from embeddb.index.vote import votes

__all__ = [
    "Judge",
    "Rewarded",
    "Rewards",
    "Scorer",
    "Told",
    "additive",
    "by_halves",
    "ordered_pairs",
    "rewarded",
    "round_rewards",
]

Floats = NDArray[np.float64]
#: Ridge penalty on a value's effect, in samples.
_RIDGE = 1.0


class Told(NamedTuple):
    """A sample and what became of it: seconds, infinite if it failed."""

    matrix: int
    config: Config
    seconds: float


#: Scores float64[c] of configurations on a matrix of the pool; higher is faster.
Scorer = Callable[[int, Sequence[Config]], Floats]
#: Learns from samples how to score others.
Judge = Callable[[Sequence[Told]], Scorer]
#: A matrix of a round, and how well its samples were foretold, 0..1.
Rewarded = list[tuple[int, float]]
#: What the last of all rounds earned; it has been told and not been learned from.
Rewards = Callable[[Sequence[Sequence[Told]]], Rewarded]


def by_halves(judge: Judge) -> Rewards:
    """Rewards by models that `judge` makes anew for each round, as `round_rewards` does."""

    def rewards(rounds: Sequence[Sequence[Told]]) -> Rewarded:
        *before, last = rounds
        return round_rewards([told for one in before for told in one], last, judge)

    return rewards


def rewarded(scorer: Scorer, told: Sequence[Told]) -> Rewarded:
    """Ordered pair accuracy on each matrix of what was told, by matrix. One without two samples
    that differ has none."""
    found = []
    for matrix in sorted({one.matrix for one in told}):
        mine = [one for one in told if one.matrix == matrix]
        scores = scorer(matrix, [one.config for one in mine])
        opa = ordered_pairs(scores, np.array([one.seconds for one in mine]))
        if opa is not None:
            found.append((matrix, opa))
    return found


def round_rewards(earlier: Sequence[Told], last: Sequence[Told], judge: Judge) -> Rewarded:
    """Ordered pair accuracy on each matrix of the `last` round by a model that has not seen it.

    Two models: each is taught all earlier samples and one half of the matrices of this round, and
    asked about the other half. That is our reading; the paper does not say when it judges. A matrix
    without two samples that differ has no reward.
    """
    matrices = list(dict.fromkeys(told.matrix for told in last))
    found: Rewarded = []
    for half in (0, 1):
        asked = matrices[half::2]
        if not asked:
            continue
        taught = [*earlier, *(told for told in last if told.matrix not in asked)]
        found += rewarded(judge(taught), [told for told in last if told.matrix in asked])
    return sorted(found)


def ordered_pairs(scores: Floats, seconds: Floats) -> float | None:
    """Share of pairs of different seconds [c] that scores [c] put in their order (higher: faster);
    equal scores count half. None without such a pair."""
    i, j = np.triu_indices(len(seconds), 1)
    differ = seconds[i] != seconds[j]
    i, j = i[differ], j[differ]
    if not len(i):
        return None
    agree = np.sign(scores[i] - scores[j]) * np.sign(seconds[j] - seconds[i])
    return float(np.mean((agree + 1) / 2))


def additive(told: Sequence[Told]) -> Scorer:
    """Log gain as the sum of an effect of every parameter's value, fitted by ridge regression to
    the samples' log gains over their matrix's mean."""
    place: dict[tuple[str, object], int] = {}
    for one in told:
        for item in one.config.items():
            place.setdefault(item, len(place))
    x = _indicators([one.config for one in told], place)
    penalty = _RIDGE * np.eye(len(place))
    weights = np.linalg.solve(x.T @ x + penalty, x.T @ _centred(told))

    def score(matrix: int, configs: Sequence[Config]) -> Floats:
        scores: Floats = _indicators(configs, place) @ weights
        return scores

    return score


def _indicators(configs: Sequence[Config], place: dict[tuple[str, object], int]) -> Floats:
    x = np.zeros((len(configs), len(place)))
    for row, config in enumerate(configs):
        for item in config.items():
            if item in place:
                x[row, place[item]] = 1.0
    return x


def _centred(told: Sequence[Told]) -> Floats:
    """float64[s] log gain over the mean of the same matrix; a failure counts as one does in votes,
    and a matrix where all failed tells nothing."""
    matrix = np.array([one.matrix for one in told], dtype=np.int64)
    seconds = np.array([one.seconds for one in told])
    out = np.zeros(len(told))
    for at in np.unique(matrix):
        mine = np.flatnonzero(matrix == at)
        ok = mine[np.isfinite(seconds[mine])]
        if len(ok):
            logs = np.log(seconds[ok])
            out[mine] = FAILED_GAIN
            out[ok] = logs.mean() - logs
    return votes(out)
