"""First choices on held-out matrices: by any scores, and by the vote for comparison.

Choices are among the configurations that ran on the matrix, with its whole group held out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.index.held_out import centred_votes, shrunk, split_groups
from embeddb.index.vote import PSEUDO_RUNS, plain_metric, standard_error, weigh
from embeddb.learning import LEAST_GROUPS
from embeddb.learning.samples import Samples

Floats = NDArray[np.float64]
#: Choices that count.
COUNT = 5
_FOLDS = 10


class HeldOutChoices(NamedTuple):
    """Choices on r held-out rows. Shapes: `at_1` and `at_5` float64[r], log share of the optimum of
    the first choice and of the best of five; `gain` float64[r], log gain of the first choice over
    the default; `group` str[r]."""

    at_1: Floats
    at_5: Floats
    gain: Floats
    group: NDArray[np.str_]

    def figures(self) -> dict[str, float]:
        """Geometric means, and the standard error of `of_optimum@1` over groups."""
        groups, of = np.unique(self.group, return_inverse=True)
        share = float(np.exp(self.at_1.mean()))
        return {
            "of_optimum@1": share,
            "error@1": share * standard_error(self.at_1, of),
            "of_optimum@5": float(np.exp(self.at_5.mean())),
            "groups": float(groups.size),
        }

    def ahead_of(self, lost: Floats) -> dict[str, float]:
        """The mean log gain of these first choices over others with log losses float64[r] (nan:
        unknown) on the same rows, and its standard error over groups. Empty without rows of
        `LEAST_GROUPS` groups."""
        both = np.isfinite(lost)
        groups, of = np.unique(self.group[both], return_inverse=True)
        if groups.size < LEAST_GROUPS:
            return {}
        ahead = (lost + self.at_1)[both]
        return {"ahead": float(ahead.mean()), "ahead_error": standard_error(ahead, of)}


def judge(samples: Samples, scores: Mapping[int, Floats]) -> HeldOutChoices:
    """Choices by scores float64[x] (higher is faster) of the entries of each row, in the order of
    the rows."""
    at_1, at_5, first = list[float](), list[float](), list[float]()
    for row, score in sorted(scores.items()):
        gain = samples.gain[samples.part(row)]
        order = np.argsort(-score, kind="stable")[:COUNT]
        first.append(gain[order[0]])
        at_1.append(gain[order[0]] - gain.max())
        at_5.append(gain[order].max() - gain.max())
    group = samples.groups[sorted(scores)]
    return HeldOutChoices(np.array(at_1), np.array(at_5), np.array(first), group)


def group_folds(groups: NDArray[np.str_]) -> Iterator[NDArray[np.bool_]]:
    """Masks bool[r] of the rows that are held out together, whole groups; none with one group."""
    folds = min(_FOLDS, np.unique(groups).size)
    if folds < 2:
        return
    fold = split_groups(groups, folds, 0)
    for at in range(folds):
        yield fold == at


def vote_scores(samples: Samples, *, k: int, shrink: float) -> dict[int, Floats]:
    """Scores float64[c] of all configurations for each row by the vote of the `k` nearest rows of
    other groups, with the mean of all of them as `shrink` pseudo-neighbours (infinite: the best
    fixed configuration)."""
    gains = np.full((len(samples.rows), len(samples.configs)), np.nan)
    of = np.repeat(np.arange(len(samples.rows)), np.diff(samples.indptr))
    gains[of, samples.column] = samples.gain
    centred = centred_votes(gains)
    ran = np.isfinite(centred)
    centred = np.where(ran, centred, 0.0)
    scores: dict[int, Floats] = {}
    for out in group_folds(samples.groups):
        rest = np.flatnonzero(~out)
        prior = centred[rest].sum(axis=0) / (ran[rest].sum(axis=0) + PSEUDO_RUNS)
        metric = plain_metric(samples.vectors[rest])
        at = metric.apply(samples.vectors).astype(np.float64)
        for row in np.flatnonzero(out).tolist():
            distance = np.sqrt(((at[rest] - at[row]) ** 2).sum(axis=1))
            near = np.argsort(distance, kind="stable")[:k]
            weight = weigh(distance[near][None, :])[0]
            total, support = weight @ centred[rest[near]], weight @ ran[rest[near]]
            scores[row] = shrunk(total, support, prior, shrink)
    return scores
