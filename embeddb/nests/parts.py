"""Parts of a loop nest: loops, statements, expressions, arrays and accesses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from embeddb.core.errors import NestError

#: Largest depth: the number of loops that a platform file can name.
MOST_LOOPS = 6

#: Size of an element in bytes, by type.
DTYPES = {"f32": 4, "f64": 8, "i32": 4, "i64": 8}

#: Operators that return 1 or 0.
COMPARISONS = ("<", "<=", "==", "!=")
#: Operators of an expression and their number of operands.
OPERATORS = {
    **dict.fromkeys(("+", "-", "*", "/", "min", "max", *COMPARISONS), 2),
    **dict.fromkeys(("neg", "abs", "sqrt", "exp", "log", "tanh"), 1),
    "select": 3,
}

#: Operators between a statement's target and value; all but the first are reductions, whose order
#: is free.
COMBINES = ("=", "+=", "*=", "min=", "max=")


@dataclass(frozen=True, slots=True)
class Affine:
    """`constant` + the sum of `coefs[l]` x the index of loop l; loops counted from the outermost,
    from 0, without trailing zeros."""

    constant: int = 0
    coefs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        used = len(self.coefs)
        while used and not self.coefs[used - 1]:
            used -= 1
        object.__setattr__(self, "coefs", tuple(self.coefs[:used]))

    @classmethod
    def of_loop(cls, loop: int, constant: int = 0) -> Affine:
        """The index of one loop, plus a constant."""
        return cls(constant, (*(0,) * loop, 1))

    def __add__(self, other: Affine) -> Affine:
        coefs = zip_longest(self.coefs, other.coefs, fillvalue=0)
        return Affine(self.constant + other.constant, tuple(a + b for a, b in coefs))

    def __sub__(self, other: Affine) -> Affine:
        return self + other * -1

    def __mul__(self, by: int) -> Affine:
        return Affine(self.constant * by, tuple(c * by for c in self.coefs))

    def coef(self, loop: int) -> int:
        return self.coefs[loop] if loop < len(self.coefs) else 0

    @property
    def loops(self) -> tuple[int, ...]:
        """Loops on which it depends."""
        return tuple(at for at, c in enumerate(self.coefs) if c)


@dataclass(frozen=True, slots=True)
class Access:
    """One element of an array: a number of the nest's arrays, and an index for each dimension."""

    array: int
    at: tuple[Index, ...]

    @property
    def affine(self) -> bool:
        """Return true if no index is read from another array."""
        return all(index.of is None for index in self.at)

    @property
    def loops(self) -> frozenset[int]:
        """Every loop on which an index depends, through other arrays too."""
        return frozenset(at for index in self.at for at in index.loops)

    def inner(self) -> Iterator[Access]:
        """Accesses from which its indices are read, innermost first."""
        for index in self.at:
            yield from index.reads()

    def mapped(self, change: Callable[[Access], Access]) -> Access:
        """`change` applied to an access, after those from which its indices are read."""
        return change(Access(self.array, tuple(index.mapped(change) for index in self.at)))


@dataclass(frozen=True, slots=True)
class Index:
    """An index or a bound: affine, plus the element of an integer array that `of` names."""

    affine: Affine = Affine()
    of: Access | None = None

    def __add__(self, other: Index | int) -> Index:
        """Raises: NestError if both contain elements of arrays."""
        more = Index(Affine(other)) if isinstance(other, int) else other
        if self.of is not None and more.of is not None:
            raise NestError(
                "an index is the sum of two elements of arrays: at most one is supported"
            )
        return Index(self.affine + more.affine, self.of or more.of)

    def __sub__(self, other: Index) -> Index:
        return self + other * -1

    def __mul__(self, by: int) -> Index:
        """Raises: NestError for a multiple of an element of an array."""
        if self.of is not None and by != 1:
            raise NestError("an index is a multiple of an element of an array")
        return Index(self.affine * by, self.of)

    @property
    def loops(self) -> frozenset[int]:
        through = self.of.loops if self.of is not None else frozenset[int]()
        return through | frozenset(self.affine.loops)

    def reads(self) -> Iterator[Access]:
        """Accesses that it needs; those from which indices are read precede those that use them."""
        if self.of is not None:
            yield from self.of.inner()
            yield self.of

    def mapped(self, change: Callable[[Access], Access]) -> Index:
        """The index with `change` applied to every access in it."""
        return Index(self.affine, self.of and self.of.mapped(change))


@dataclass(frozen=True, slots=True)
class Const:
    """A number."""

    value: int | float


@dataclass(frozen=True, slots=True)
class LoopIndex:
    """The value of a loop's index."""

    loop: int


@dataclass(frozen=True, slots=True)
class Read:
    """An element of an array."""

    access: Access


@dataclass(frozen=True, slots=True)
class Call:
    """An operator of `OPERATORS` and its operands."""

    op: str
    args: tuple[Expr, ...]


Expr = Const | LoopIndex | Read | Call


@dataclass(frozen=True, slots=True)
class Statement:
    """`target` is combined with `value` by one of `COMBINES`, where `where` is not 0."""

    target: Access
    combine: str
    value: Expr
    where: Expr | None = None

    @property
    def reduction(self) -> bool:
        return self.combine != "="

    def reads(self) -> list[Access]:
        """Accesses that it reads, in the order of the text, without the target of a reduction;
        accesses from which indices are read precede those that use them."""
        return [*self.target.inner(), *reads(self.where), *reads(self.value)]

    def mapped(
        self,
        change: Callable[[Access], Access],
        leaf: Callable[[Expr], Expr] = lambda expression: expression,
    ) -> Statement:
        """The statement with its accesses changed, and its other leaves by `leaf`."""

        def both(one: Expr) -> Expr:
            return Read(one.access.mapped(change)) if isinstance(one, Read) else leaf(one)

        where = self.where and mapped(self.where, both)
        target = self.target.mapped(change)
        return Statement(target, self.combine, mapped(self.value, both), where)


@dataclass(frozen=True, slots=True)
class Loop:
    """From `lower` up to and without `upper`; both may depend on outer loops."""

    lower: Index
    upper: Index
    step: int = 1

    @property
    def bounds(self) -> tuple[Index, Index]:
        return self.lower, self.upper

    @property
    def of_data(self) -> bool:
        """Return true if a bound is read from an array."""
        return any(bound.of is not None for bound in self.bounds)


@dataclass(frozen=True, slots=True)
class Array:
    """Elements in row-major order. `fill` describes the initial values: `uniform` (in [0, 1)),
    `zero`, `range` (0, 1, 2, ...), `permutation` (of the same), `below:N` (integers from 0 to N -
    1), `offsets:T:S` (ascending from 0 to T, where row lengths are S times as uneven as random
    ones; the rows of a sparse matrix). With a matrix's id appended, `offsets:T:S:ID` and
    `below:N:ID` are the row offsets and the columns of that matrix (`embeddb.nests.nest.fills_of`).
    `transient`: not read after the nest."""

    dtype: str
    shape: tuple[int, ...]
    fill: str = "uniform"
    transient: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPES[self.dtype]

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next, by dimension."""
        return tuple(math.prod(self.shape[d + 1 :]) for d in range(len(self.shape)))

    @property
    def unevenness(self) -> float:
        """The S of `offsets:T:S`; 0 where it is absent."""
        kind, *arguments = self.fill.split(":")
        return float(arguments[1]) if kind == "offsets" and len(arguments) > 1 else 0.0


def reads(expression: Expr | None) -> Iterator[Access]:
    """Every access in an expression, each after those from which its indices are read."""
    if isinstance(expression, Read):
        yield from expression.access.inner()
        yield expression.access
    elif isinstance(expression, Call):
        for argument in expression.args:
            yield from reads(argument)


def mapped(expression: Expr, leaf: Callable[[Expr], Expr]) -> Expr:
    """An expression with its leaves (all but calls) changed."""
    if isinstance(expression, Call):
        return Call(expression.op, tuple(mapped(a, leaf) for a in expression.args))
    return leaf(expression)
