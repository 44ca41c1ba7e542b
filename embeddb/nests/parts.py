"""Parts of a loop nest: loops, statements, expressions, arrays and accesses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

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
            if index.of is not None:
                yield from index.of.inner()
                yield index.of


@dataclass(frozen=True, slots=True)
class Index:
    """An index or a bound: affine, plus the element of an integer array that `of` names."""

    affine: Affine = Affine()
    of: Access | None = None

    @property
    def loops(self) -> frozenset[int]:
        through = self.of.loops if self.of is not None else frozenset[int]()
        return through | frozenset(self.affine.loops)


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
        accesses: list[Access] = list(self.target.inner())
        for expression in (self.where, self.value):
            for access in _accesses(expression):
                accesses += [*access.inner(), access]
        return accesses


@dataclass(frozen=True, slots=True)
class Loop:
    """From `lower` up to and without `upper`; both may depend on outer loops."""

    lower: Index
    upper: Index
    step: int = 1


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


def _accesses(expression: Expr | None) -> Iterator[Access]:
    if isinstance(expression, Read):
        yield expression.access
    elif isinstance(expression, Call):
        for argument in expression.args:
            yield from _accesses(argument)
