"""A small forest of decision trees grown by the gain of a choice, not by its label.

Integers are added up, so C and Python decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Gains in a leaf are kept in thousandths of a natural logarithm, as int16.
SCALE = 1000
_LARGEST = 32000
_FEWEST_GAIN = 1e-9


class Shape(NamedTuple):
    """Shape of trees: their number, depth, least patterns per leaf, and the share of the features
    examined by a node. A single tree uses every pattern, several a bootstrap of groups each."""

    trees: int
    depth: int
    leaf: int
    features: float


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Trees before their values are set. Shapes, for t trees, v nodes and l leaves: `root`
    int64[t]; `feature` int64[v]; `threshold` float64[v]; `child` int64[v,2] (left where the feature
    is at most the threshold); per leaf `members`, its training rows int64[x]. Below 0 a root or
    child is a leaf, ~its number."""

    root: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    child: NDArray[np.int64]
    members: tuple[NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Trees (`Trees`) with `value` int16[l,c] by leaf, for c configurations: gains over the default
    in thousandths."""

    root: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    child: NDArray[np.int64]
    value: NDArray[np.int16]

    @classmethod
    def of(
        cls,
        trees: Trees,
        gains: NDArray[np.float64],
        groups: NDArray[np.int64],
        *,
        doubt: float,
    ) -> Forest:
        """With the value of each leaf for gains float64[r,c] of rows in groups int64[r].

        A leaf counts with its mean gain less `doubt` standard errors over groups, drawn to 0, the
        default's, as if one more group had gained nothing: few groups say little.
        """
        value = [_leaf(gains[rows], groups[rows], doubt) for rows in trees.members]
        table = trees.root, trees.feature, trees.threshold, trees.child
        return cls(*table, np.array(value, dtype=np.int16))

    @property
    def depth(self) -> int:
        """Depth of the deepest tree."""
        level, depth = self.root[self.root >= 0], 0
        while level.size:
            level, depth = self.child[level].ravel(), depth + 1
            level = level[level >= 0]
        return depth

    def sums(self, features: NDArray[np.float64]) -> NDArray[np.int64]:
        """int64[q,c] over the trees, of features float64[q,d]."""
        totals = np.zeros((len(features), self.value.shape[1]), dtype=np.int64)
        rows = np.arange(len(features))
        for root in self.root:
            at = np.full(len(features), root, dtype=np.int64)
            while (inner := at >= 0).any():
                node, row = at[inner], rows[inner]
                right = features[row, self.feature[node]] > self.threshold[node]
                at[inner] = self.child[node, right.astype(np.int64)]
            totals += self.value[~at]
        return totals

    def choose(self, features: NDArray[np.float64]) -> NDArray[np.int64]:
        """int64[q] positions of configurations; the first of the best ones, so the default where
        nothing is surely better."""
        best: NDArray[np.int64] = self.sums(features).argmax(axis=1)
        return best


def _leaf(
    gains: NDArray[np.float64], groups: NDArray[np.int64], doubt: float
) -> NDArray[np.float64]:
    names, member = np.unique(groups, return_inverse=True)
    means = np.zeros((names.size, gains.shape[1]))
    np.add.at(means, member, gains)
    means /= np.bincount(member)[:, None]
    some = names.size
    error = means.std(axis=0, ddof=1) / np.sqrt(some) if some > 1 else np.zeros(gains.shape[1])
    value = (gains.mean(axis=0) - doubt * error) * some / (some + 1)
    value[0] = 0.0
    whole: NDArray[np.float64] = np.clip(np.rint(value * SCALE), -_LARGEST, _LARGEST)
    return whole


def grow_trees(
    features: NDArray[np.float64],
    gains: NDArray[np.float64],
    groups: NDArray[np.int64],
    shape: Shape,
    *,
    rng: np.random.Generator,
) -> Trees:
    """Trees over features float64[r,d] for gains float64[r,c] of rows in groups int64[r].

    CART (Breiman 1984) with the gain of the best configuration on each side in place of purity, so
    that patterns count by what they lose; several as a random forest (Breiman 2001) over groups.
    """
    names, growing = np.unique(groups), _Growing(features, gains, shape, rng)
    roots = []
    for _ in range(shape.trees):
        rows = np.arange(len(features))
        if shape.trees > 1:
            drawn = rng.choice(names, names.size)
            rows = np.concatenate([np.flatnonzero(groups == name) for name in drawn])
        roots.append(growing.grow(rows, shape.depth))
    return growing.trees(roots)


class _Growing:
    """Builder of trees, whose nodes and leaves are numbered together."""

    def __init__(
        self,
        features: NDArray[np.float64],
        gains: NDArray[np.float64],
        shape: Shape,
        rng: np.random.Generator,
    ) -> None:
        self._features, self._gains, self._shape, self._rng = features, gains, shape, rng
        self._nodes: list[tuple[int, float, int, int]] = []
        self._leaves: list[NDArray[np.int64]] = []

    def trees(self, roots: list[int]) -> Trees:
        return Trees(
            np.array(roots, dtype=np.int64),
            np.array([node[0] for node in self._nodes], dtype=np.int64),
            np.array([node[1] for node in self._nodes], dtype=np.float64),
            np.array([node[2:] for node in self._nodes], dtype=np.int64).reshape(-1, 2),
            tuple(self._leaves),
        )

    def grow(self, rows: NDArray[np.int64], depth: int) -> int:
        """Add a tree of so many levels; the number of its root."""
        split = self._split(rows) if depth else None
        if split is None:
            self._leaves.append(rows)
            return ~(len(self._leaves) - 1)
        feature, threshold = split
        at = len(self._nodes)
        self._nodes.append((feature, threshold, 0, 0))
        left = self._features[rows, feature] <= threshold
        below = self.grow(rows[left], depth - 1)
        above = self.grow(rows[~left], depth - 1)
        self._nodes[at] = (feature, threshold, below, above)
        return at

    def _split(self, rows: NDArray[np.int64]) -> tuple[int, float] | None:
        """The feature and threshold with the largest gain of two choices over one; None if none has
        any."""
        leaf, width = self._shape.leaf, self._features.shape[1]
        if rows.size < 2 * leaf:
            return None
        some = max(1, round(self._shape.features * width))
        tried = np.sort(self._rng.choice(width, some, replace=False))
        gains = self._gains[rows]
        most, best_split = gains.sum(axis=0).max() + _FEWEST_GAIN, None
        for feature in tried.tolist():
            values = self._features[rows, feature]
            order = np.argsort(values, kind="stable")
            values = values[order]
            sums = np.cumsum(gains[order], axis=0)
            apart = slice(leaf - 1, rows.size - leaf)
            either = sums[apart].max(axis=1) + (sums[-1] - sums[apart]).max(axis=1)
            either[values[apart] >= values[leaf : rows.size - leaf + 1]] = -np.inf
            at = int(either.argmax())
            if either[at] > most:
                most, at = float(either[at]), at + leaf - 1
                best_split = feature, _between(float(values[at]), float(values[at + 1]))
        return best_split


def _between(low: float, high: float) -> float:
    """A number with few digits that is at least `low` and below `high`, near the middle."""
    middle = low + (high - low) / 2
    for digits in range(3, 17):
        short = float(f"{middle:.{digits}g}")
        if low <= short < high:
            return short
    return low
