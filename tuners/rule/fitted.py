"""What a rule learns from, and one fit of it: a portfolio, and trees that choose from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, product

import numpy as np
from numpy.typing import NDArray

from embeddb.index.held_out import split_groups
from tuners.rule.portfolio import greedy_portfolio
from tuners.rule.trees import Forest, Shape, grow_trees

__all__ = ["Fitted", "Measured", "fit"]

_INNER_FOLDS = 3


#: Simplest first; which one is used, held-out groups of the training part decide.
_SHAPES = (Shape(1, 2, 8, 1.0), Shape(1, 4, 8, 1.0), Shape(8, 6, 3, 0.6), Shape(10, 8, 2, 0.8))
_DOUBTS = (0.0, 1.0)
#: What a less simple setting must gain, in mean log gain.
_WORTH = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Shapes, for r patterns and c configurations of which the first is the default: `features`
    float64[r,d]; `gains` float64[r,c], log gains over the default, nan where not run; `groups`
    int64[r]."""

    features: NDArray[np.float64]
    gains: NDArray[np.float64]
    groups: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Measured:
        """Some of the patterns."""
        return Measured(self.features[rows], self.gains[rows], self.groups[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """`portfolio` are positions of configurations, the default's first; the forest's choice is a
    position in it."""

    portfolio: tuple[int, ...]
    forest: Forest

    def choose(self, features: NDArray[np.float64]) -> NDArray[np.int64]:
        """int64[q] positions of configurations for features float64[q,d]."""
        return np.array(self.portfolio, dtype=np.int64)[self.forest.choose(features)]


def fit(known: Measured, most: int, *, seed: int) -> Fitted:
    """A rule among at most `most` configurations; how its trees are grown, and how surely a leaf
    must gain, is what did best on groups held out of `known`."""
    shape, doubt = _best_setting(known, most, seed)
    return _fits(known, most, shape, [doubt], seed)[0]


def _fits(
    known: Measured, most: int, shape: Shape, doubts: Sequence[float], seed: int
) -> list[Fitted]:
    """One for each doubt, with the same trees."""
    portfolio = greedy_portfolio(known.gains, 0, most)
    gains = np.nan_to_num(known.gains[:, portfolio], nan=0.0)
    rng = np.random.default_rng(seed)
    trees = grow_trees(known.features, gains, known.groups, shape, rng=rng)
    forests = (Forest.of(trees, gains, known.groups, doubt=doubt) for doubt in doubts)
    return [Fitted(tuple(portfolio), forest) for forest in forests]


def _best_setting(known: Measured, most: int, seed: int) -> tuple[Shape, float]:
    settings = list(product(_SHAPES, _DOUBTS))
    folds = min(_INNER_FOLDS, np.unique(known.groups).size)
    if folds < 2:
        return settings[0]
    fold = split_groups(known.groups.astype(np.str_), folds, seed)
    got = np.zeros(len(settings))
    for held in range(folds):
        train, test = known.take(fold != held), known.take(fold == held)
        fits = chain.from_iterable(_fits(train, most, s, _DOUBTS, seed) for s in _SHAPES)
        got += [_gained(one, test) for one in fits]
    got /= len(known.groups)
    best = 0
    for at in range(1, len(settings)):
        if got[at] > got[best] + _WORTH:
            best = at
    return settings[best]


def _gained(one: Fitted, test: Measured) -> float:
    """Sum of log gains over the default; what was not run there counts as the default."""
    chosen = test.gains[np.arange(len(test.gains)), one.choose(test.features)]
    return float(np.nan_to_num(chosen, nan=0.0).sum())
