"""What random nests are drawn from: sizes, orders, expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeVar

import numpy as np

from indexer.training.nests.draft import Draft, Value

T = TypeVar("T")

#: A way to fill a draft with a nest of about so many points.
Family = Callable[[Draft, np.random.Generator, int], None]


def chance(rng: np.random.Generator, share: float) -> bool:
    return bool(rng.random() < share)


def pick(rng: np.random.Generator, among: Sequence[T]) -> T:
    return among[int(rng.integers(len(among)))]


def size(rng: np.random.Generator, low: float, high: float) -> int:
    """Log-uniform; often a multiple of a vector's or a block's length, as sizes of programs are."""
    drawn = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    whole = pick(rng, (1, 4, 16, 32, 64))
    return max(round(drawn / whole) * whole, 1) if drawn > 2 * whole else max(round(drawn), 1)


def split(rng: np.random.Generator, points: float, rank: int) -> list[int]:
    """int[rank] of a product of about `points`, seldom far from a cube, each at least 2."""
    shares = rng.dirichlet(np.full(rank, 6.0))
    middles = [max(points ** float(share), 2.5) for share in shares]
    return [max(size(rng, middle / 1.05, middle * 1.05), 2) for middle in middles]


def order(rng: np.random.Generator, kept: int, rank: int, *, stays: float = 0.6) -> list[int]:
    """Which loop lies where, from the outermost, of which the first `kept` carry no dependence: as
    they come, or those `kept` among themselves and then the others, or seldom any order."""
    drawn = rng.random()
    if drawn < stays:
        return list(range(rank))
    if drawn < stays + 0.8 * (1 - stays):
        outer, inner = rng.permutation(kept), rng.permutation(rank - kept) + kept
        return [int(at) for at in (*outer, *inner)]
    return [int(at) for at in rng.permutation(rank)]


def total(values: Sequence[Value]) -> Value:
    """Their sum, in pairs: expressions of a file may not be nested deeply."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return total(values[:half]) + total(values[half:])


def expression(rng: np.random.Generator, terms: Sequence[Value]) -> Value:
    """Of each term once; it grows no faster than their product."""
    return reduce(lambda one, other: _joined(rng, one, other), (_dressed(rng, t) for t in terms))


def _joined(rng: np.random.Generator, one: Value, other: Value) -> Value:
    op = pick(rng, ("+", "+", "-", "*", "*", "/", "min", "max"))
    return one / (other.call("abs") + 1.0) if op == "/" else one.call(op, other)


def _dressed(rng: np.random.Generator, term: Value) -> Value:
    drawn = rng.random()
    if drawn < 0.55:
        return term
    if drawn < 0.75:
        return term * round(float(rng.uniform(0.1, 2.0)), 3)
    positive, op = term.call("abs") + 0.25, pick(rng, ("sqrt", "sqrt", "log", "tanh", "exp"))
    return (positive.call("neg") if op == "exp" else positive).call(op)
