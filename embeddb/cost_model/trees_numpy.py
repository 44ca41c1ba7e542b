"""Boosted trees at query time, without LightGBM.

A member's t trees have n splits in all; tree i has `splits[i]` of them and one leaf more. Splits
and leaves of a tree are counted from 0 in it, the root is split 0:

- `splits` int16[t]: at most 31;
- `feature` int16[n], `threshold` float32[n]: a row goes left where its number is at most that;
- `left`, `right` int16[n]: a later split of the same tree, or ~leaf;
- `value` float32[n+t]: of the leaves.

A leaf is a bit. A split clears the leaves of the side that a row does not take, in any order of
the splits, and in the end one bit is left. So splits on the matrix are evaluated once for all
configurations, those on loop nests once for each distinct nest. Source: Lucchese et
al., "QuickScorer" (SIGIR 2015), whose splits clear one side only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    Ints = NDArray[np.int64]
    Bits = NDArray[np.uint32]

#: A leaf is a bit of 32.
MOST_SPLITS = 31
#: Tensors of a member and their types.
TENSORS = {
    "splits": np.int16,
    "feature": np.int16,
    "threshold": np.float32,
    "left": np.int16,
    "right": np.int16,
    "value": np.float32,
}
_ALL = np.uint32(0xFFFFFFFF)
#: Bounds of the memory: trees of all members; trees times rows that are scored at once, and that
#: each block caches.
_MOST_TREES, _CELLS = 1 << 16, 1 << 22
#: Splits times rows that are evaluated together, to fit in the processor's cache.
_TOGETHER = 1 << 18
#: Shift and bias of the exponent of a float32.
_EXPONENT, _BIAS = 23, 127


class Forest:
    """Checked members over the same columns. The partition of the columns into `blocks` affects
    the speed, not the result."""

    def __init__(self, members: Sequence[Arrays], blocks: Sequence[slice]) -> None:
        """Raises: ModelError for tensors of another type, no trees, or too many; KeyError for a
        tensor that is missing."""
        if sum(len(tensors["splits"]) for tensors in members) > _MOST_TREES:
            raise ModelError(f"it has more than {_MOST_TREES} trees")
        checked = [_read(tensors, i, blocks[-1].stop) for i, tensors in enumerate(members)]
        ends = np.cumsum([0, *(len(member["full"]) for member in checked)])
        for member, end in zip(checked, ends, strict=False):
            member["tree"] += end
        own = {name: np.concatenate([m[name] for m in checked], axis=-1) for name in checked[0]}
        self._first, self._full, self._value = ends[:-1], own["full"], own["value"]
        self._leaf = np.cumsum(own["leaves"]) - own["leaves"]
        tree, feature, threshold = own["tree"], own["feature"], own["threshold"]
        reachable = own["reachable"]
        self._blocks = []
        for block in blocks:
            at = np.flatnonzero((feature >= block.start) & (feature < block.stop))
            if at.size:
                first = np.flatnonzero(np.diff(tree[at], prepend=-1))
                which = feature[at] - block.start
                self._blocks.append(
                    _Block(block, which, threshold[at], reachable[:, at], tree[at[first]], first)
                )

    def score(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        """Sums float64[members,c] of each member's trees for rows float32[c,columns]."""
        out = np.empty((len(self._first), len(table)))
        trees = len(self._full)
        most = max(1, _CELLS // trees)
        for start in range(0, len(table), most):
            rows = table[start : start + most]
            bits = np.broadcast_to(self._full, (len(rows), trees)).copy()
            for block in self._blocks:
                leaves, at = block.leaves(rows, trees)
                bits &= leaves[at]
            # One bit is left, and a power of two is its exponent.
            leaf = (bits.astype(np.float32).view(np.int32) >> _EXPONENT) - _BIAS
            leaf += self._leaf.astype(np.int32)
            sums = np.add.reduceat(self._value[leaf], self._first, axis=1, dtype=np.float64)
            out[:, start : start + len(rows)] = sums.T
        return out


@dataclass(slots=True, eq=False)
class _Block:
    """The splits on some columns, by tree: `feature` int64[n] is a position among these columns,
    `reachable` uint32[2,n] the leaves that remain where a row goes left and right; `trees` are
    those with such splits, which begin at `first`. `seen` caches rows (by their bytes) and their
    leaves uint32[r,trees], since columns of configurations recur from matrix to matrix. It is
    replaced, never changed: threads may share a forest."""

    columns: slice
    feature: Ints
    threshold: NDArray[np.float32]
    reachable: Bits
    trees: Ints
    first: Ints
    seen: tuple[dict[bytes, int], Bits] = ({}, np.zeros((0, 0), np.uint32))

    def leaves(self, rows: NDArray[np.float32], trees: int) -> tuple[Bits, Ints]:
        """Leaves uint32[r,trees] that remain after these splits, and the index int64[c] among them
        of each row float32[c,columns]; int64[1] if all rows are equal."""
        distinct, at = _distinct(rows[:, self.columns])
        keys = [row.tobytes() for row in distinct]
        places, cached = self.seen
        new = [i for i, key in enumerate(keys) if key not in places]
        if len(new) == len(keys) or (len(places) + len(new)) * trees > _CELLS:
            places = {key: i for i, key in enumerate(keys)}
            cached = self._remaining(distinct, trees)
        elif new:
            places = {**places, **{keys[i]: len(cached) + n for n, i in enumerate(new)}}
            cached = np.concatenate([cached, self._remaining(distinct[new], trees)])
        self.seen = places, cached
        own = np.array([places[key] for key in keys])
        return cached, own if len(own) == 1 else own[at]

    def _remaining(self, rows: NDArray[np.float32], trees: int) -> Bits:
        """Leaves uint32[r,trees] that distinct rows can still reach after these splits."""
        leaves = np.full((len(rows), trees), _ALL)
        most = max(1, _TOGETHER // len(self.feature))
        for start in range(0, len(rows), most):
            left = rows[start : start + most].T[self.feature] <= self.threshold[:, None]
            each = np.where(left, self.reachable[0][:, None], self.reachable[1][:, None])
            leaves[start : start + most, self.trees] = np.bitwise_and.reduceat(
                each, self.first, axis=0
            ).T
        return leaves


def _distinct(rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], Ints]:
    """Rows that differ in their bytes, and the place of each row among them. (With an axis,
    `np.unique` compares number by number, which takes longer than the trees.)"""
    own = np.ascontiguousarray(rows)
    whole = own.view(np.dtype((np.void, own.shape[1] * own.itemsize))).reshape(-1)
    _, first, at = np.unique(whole, return_index=True, return_inverse=True)
    return own[first], at.reshape(-1)


def _read(tensors: Arrays, member: int, columns: int) -> dict[str, NDArray[Any]]:
    """Checked trees by name: `feature`, `threshold` and `value` as they are, `tree` int64[n] of
    each split, `reachable` uint32[2,n], `leaves` int64[t] and the bits of all of them, `full`
    uint32[t]. Raises: ModelError, or KeyError for a tensor that is missing."""
    for name, dtype in TENSORS.items():
        array = tensors[name]
        if array.dtype != dtype or array.ndim != 1:
            raise _wrong(member, f"{name!r} is {array.dtype}{list(array.shape)}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise _wrong(member, f"{name!r} is not finite")
    splits, feature, left, right = (
        tensors[name].astype(np.int64) for name in ("splits", "feature", "left", "right")
    )
    if not len(splits) or splits.min() < 0 or splits.max() > MOST_SPLITS:
        raise _wrong(member, f"'splits' are not 0..{MOST_SPLITS} of at least one tree")
    n, t = int(splits.sum()), len(splits)
    for name in TENSORS:
        wanted = {"splits": t, "value": n + t}.get(name, n)
        if len(tensors[name]) != wanted:
            raise _wrong(member, f"{name!r} has {len(tensors[name])} numbers, not {wanted}")
    if n and (feature.min() < 0 or feature.max() >= columns):
        raise _wrong(member, f"'feature' is not within the {columns} columns")
    tree = np.repeat(np.arange(t), splits)
    reachable = _reachable(splits, tree, left, right, member)
    full = ((np.uint64(1) << (splits + 1).astype(np.uint64)) - np.uint64(1)).astype(np.uint32)
    return {
        "feature": feature,
        "threshold": tensors["threshold"],
        "value": tensors["value"],
        "tree": tree,
        "reachable": reachable,
        "leaves": splits + 1,
        "full": full,
    }


def _reachable(splits: Ints, tree: Ints, left: Ints, right: Ints, member: int) -> Bits:
    """Leaves uint32[2,n] of the tree that remain where a row goes left and right at a split.

    Raises: ModelError unless every split but the roots, and every leaf, has one parent, which
    comes before it: only then these are trees.
    """
    first = (np.cumsum(splits) - splits)[tree]
    own = np.arange(len(tree)) - first
    parents = np.zeros(len(tree), dtype=np.int64)
    seen = np.zeros(len(tree) + len(splits), dtype=np.int64)
    for child in (left, right):
        inner = child >= 0
        if np.any(inner & ((child <= own) | (child >= splits[tree]))):
            raise _wrong(member, "a split leads back, or out of its tree")
        if np.any(~inner & (~child > splits[tree])):
            raise _wrong(member, "a split leads to a leaf that is not there")
        parents += np.bincount((first + child)[inner], minlength=len(parents))
        # A tree has one leaf more than splits: leaves are shifted by the trees before.
        seen += np.bincount((first + tree + ~child)[~inner], minlength=len(seen))
    leaves_of = np.repeat(splits, splits + 1)
    if np.any(parents != (own > 0)) or np.any(seen != (leaves_of > 0)):
        raise _wrong(member, "a split or a leaf has no parent, or several")
    sides = np.zeros((2, len(tree)), dtype=np.uint32)
    for place in range(int(splits.max(initial=0)) - 1, -1, -1):
        at = np.flatnonzero(own == place)
        for side, child in enumerate((left[at], right[at])):
            below = sides[:, np.where(child >= 0, first[at] + child, at)]
            bit = np.uint32(1) << np.where(child < 0, ~child, 0).astype(np.uint32)
            sides[side, at] = np.where(child >= 0, below[0] | below[1], bit)
    return ~sides[::-1]


def _wrong(member: int, what: str) -> ModelError:
    return ModelError(f"the trees of member {member}: {what}")
