"""Random ingredients of nests: sizes, orders, expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from typing import TypeVar

import numpy as np

from embeddb.nests.check import check
from embeddb.nests.nest import Nest
from embeddb.nests.parts import (
    Access,
    Affine,
    Array,
    Call,
    Const,
    Expr,
    Index,
    Loop,
    Read,
    Statement,
)


@dataclass(frozen=True, slots=True)
class At:
    """An affine index: a loop's, or a sum of such."""

    affine: Affine

    def __add__(self, other: At | int) -> At:
        more = Affine(other) if isinstance(other, int) else other.affine
        pairs = zip_longest(self.affine.coefs, more.coefs, fillvalue=0)
        return At(Affine(self.affine.constant + more.constant, tuple(a + b for a, b in pairs)))

    def __mul__(self, by: int) -> At:
        return At(Affine(by * self.affine.constant, tuple(by * c for c in self.affine.coefs)))


@dataclass(frozen=True, slots=True)
class Value:
    """An expression of a statement. One that is an array's element is a target or an index too."""

    expr: Expr

    def __add__(self, other: Value | float) -> Value:
        return self._with("+", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._with("-", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._with("*", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._with("/", other)

    def __lt__(self, other: Value | float) -> Value:
        return self._with("<", other)

    def call(self, op: str, *others: Value) -> Value:
        """Any operator of `embeddb.nests.parts.OPERATORS`, with this as its first operand."""
        return Value(Call(op, (self.expr, *(other.expr for other in others))))

    @property
    def access(self) -> Access:
        """The access of an array's element. Raises: TypeError for another expression."""
        if not isinstance(self.expr, Read):
            raise TypeError("not an array's element")
        return self.expr.access

    def _with(self, op: str, other: Value | float) -> Value:
        return self.call(op, other if isinstance(other, Value) else Value(Const(other)))


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """An array, by its index among a draft's."""

    place: int

    def __getitem__(self, at: At | Value | int | Sequence[At | Value | int]) -> Value:
        every = (at,) if isinstance(at, At | Value | int) else at
        return Value(Read(Access(self.place, tuple(map(_index, every)))))


class Draft:
    """Loops from the outermost, arrays and statements, as they are added. `dtype` is the type of
    every array that holds real numbers."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self._loops: list[Loop] = []
        self._arrays: list[Array] = []
        self._body: list[Statement] = []

    def loop(self, lower: At | Value | int, upper: At | Value | int, step: int = 1) -> At:
        """The next loop inwards."""
        self._loops.append(Loop(_index(lower), _index(upper), step))
        return At(Affine(0, (*(0,) * (len(self._loops) - 1), 1)))

    def loops(self, sizes: Sequence[int], order: Sequence[int] | None = None) -> list[At]:
        """A loop for each size, by size; `order[0]` becomes the outermost."""
        loop_of = {at: self.loop(0, sizes[at]) for at in order or range(len(sizes))}
        return [loop_of[at] for at in range(len(sizes))]

    def array(self, *shape: int, fill: str = "uniform") -> ArrayRef:
        """Add an array, of integers if the fill has these."""
        dtype = self.dtype if fill in ("uniform", "zero") else "i32"
        self._arrays.append(Array(dtype, shape, fill))
        return ArrayRef(len(self._arrays) - 1)

    def let(self, target: Value, combine: str, value: Value, where: Value | None = None) -> None:
        """The next statement."""
        masked = None if where is None else where.expr
        self._body.append(Statement(target.access, combine, value.expr, masked))

    def nest(self, *, name: str, group: str) -> Nest:
        """The checked nest. Raises: NestError."""
        loops, arrays, body = tuple(self._loops), tuple(self._arrays), tuple(self._body)
        return check(Nest(loops, arrays, body, name=name, group=group))


def _index(at: At | Value | int) -> Index:
    if isinstance(at, int):
        return Index(Affine(at))
    return Index(at.affine) if isinstance(at, At) else Index(of=at.access)


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


#: Share of nests whose loops stay in their order.
_STAYS = 0.6


def order(rng: np.random.Generator, free: int, rank: int) -> list[int]:
    """Order of loops from the outermost, of which the first `free` carry no dependence: unchanged,
    or those `free` among themselves and then the others, or rarely any order."""
    drawn = rng.random()
    if drawn < _STAYS:
        return list(range(rank))
    if drawn < _STAYS + 0.8 * (1 - _STAYS):
        outer, inner = rng.permutation(free), rng.permutation(rank - free) + free
        return [int(at) for at in (*outer, *inner)]
    return [int(at) for at in rng.permutation(rank)]


def total(values: Sequence[Value]) -> Value:
    """Sum of values, in pairs, since expressions of a file may not be nested deeply."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return total(values[:half]) + total(values[half:])


def expression(rng: np.random.Generator, terms: Sequence[Value]) -> Value:
    """Random expression with each term once; it grows no faster than their product."""
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
