"""Loop nests: a chain of loops around statements, with affine and indirect accesses to arrays.

The unit of optimisation of "Performance Embeddings" (Section 3.1). A program is cut into perfect
nests first (`indexer.frontends`); docs/explanation/decisions.md has the reasons for perfect nests
and for a representation of our own.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NestError
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.nests.parts import (
    Access,
    Affine,
    Array,
    Call,
    Const,
    Expr,
    Index,
    Loop,
    LoopIndex,
    Read,
    Statement,
)


def loop_range(loops: Sequence[Loop], arrays: Sequence[Array], loop: int) -> tuple[int, int]:
    """Smallest and largest index over all iterations of the outer loops."""
    low = index_range(loops, arrays, loops[loop].lower)[0]
    return low, index_range(loops, arrays, loops[loop].upper)[1] - 1


def ending_at_last(loop: Loop) -> Loop:
    """The loop with the same iterations that ends right behind the last, where bounds are a number
    apart, so that the range of its index is exact (`0:64:32` never is above 32)."""
    low, high = loop.bounds
    apart = high.affine.constant - low.affine.constant
    alike = low.affine.coefs == high.affine.coefs and not loop.of_data
    if loop.step < 2 or not alike or apart < 1:
        return loop
    last = (apart - 1) // loop.step * loop.step
    return Loop(low, low + (last + 1), loop.step)


def index_range(loops: Sequence[Loop], arrays: Sequence[Array], index: Index) -> tuple[int, int]:
    """Smallest and largest value. Raises: NestError where an array's values are unknown."""
    low, high = (furthest(loops, arrays, index.affine, up).constant for up in (False, True))
    if index.of is None:
        return low, high
    least, most = values_of(arrays[index.of.array])
    return low + least, high + most


def values_of(array: Array) -> tuple[int, int]:
    """Smallest and largest value of an integer array, from its fill. Raises: NestError where they
    are unknown."""
    kind, *arguments = array.fill.split(":")
    if array.dtype not in ("i32", "i64"):
        raise NestError(f"an index is read from an array of {array.dtype}, not of integers")
    if kind in ("range", "permutation"):
        return 0, array.elements - 1
    if kind == "below":
        return 0, int(arguments[0]) - 1
    if kind == "offsets":
        return 0, int(arguments[0])
    if kind == "zero":
        return 0, 0
    raise NestError(f"an index is read from an array whose fill {array.fill!r} does not bound it")


def furthest(
    loops: Sequence[Loop],
    arrays: Sequence[Array],
    affine: Affine,
    up: bool,
    fixed: Mapping[int, int] = MappingProxyType({}),
) -> Affine:
    """Largest (or smallest) value, affine in the loops of `fixed`, whose own indices are at most so
    much larger: the others are replaced, from the innermost outwards, by the bound that attains it.
    Where an outer loop makes an inner one empty, this exceeds any actual value."""
    constant, coefs = affine.constant, list(affine.coefs)
    coefs += [0] * (len(loops) - len(coefs))
    for at in range(len(coefs) - 1, -1, -1):
        coef = coefs[at]
        far = (coef > 0) == up
        if not coef:
            continue
        if at in fixed:
            constant += coef * fixed[at] * far
            continue
        bound = loops[at].upper if far else loops[at].lower
        constant += coef * (bound.affine.constant - far)
        coefs[at] = 0
        for outer, by in enumerate(bound.affine.coefs):
            coefs[outer] += coef * by
        if bound.of is not None:
            constant += coef * values_of(arrays[bound.of.array])[far]
    return Affine(constant, tuple(coefs))


def trips(loops: Sequence[Loop], arrays: Sequence[Array]) -> tuple[int, ...]:
    """Mean trip count by loop, rounded up; at least 0. A triangular loop has the trip count at the
    middle of its outer loop."""
    counts: list[int] = []
    middle: list[float] = []
    for loop in loops:
        low, high = (_mean(arrays, bound, middle) for bound in loop.bounds)
        row = _mean_row(loop, arrays)
        if row is not None:
            low, high = 0.0, row
        turns = max(0.0, (high - low) / loop.step)
        counts.append(math.ceil(turns - 1e-9))
        middle.append(low + max(0.0, turns - 1) / 2 * loop.step)
    return tuple(counts)


def most_turns(loops: Sequence[Loop], arrays: Sequence[Array], loop: int) -> int:
    """Upper bound on the iterations of a loop of step 1, over all iterations of the outer loops; at
    most 0 if it never runs."""
    low, high = loops[loop].bounds
    most = furthest(loops, arrays, high.affine - low.affine, True).constant
    if high.of is not None:
        most += values_of(arrays[high.of.array])[1]
    return most if low.of is None else most - values_of(arrays[low.of.array])[0]


#: Most iterations that are enumerated.
_MOST_ENUMERATED = 1_000_000


def iterations(loops: Sequence[Loop]) -> tuple[int, ...] | None:
    """Exact number of iterations of each loop in a run of all; None where bounds come from arrays,
    or too many iterations bound others."""
    bounding = {at for loop in loops for bound in loop.bounds for at in bound.loops}
    if any(loop.of_data for loop in loops):
        return None
    points: dict[int, NDArray[np.int64]] = {}
    times, totals = np.ones(1, np.int64), list[int]()
    for at, loop in enumerate(loops):
        low, high = (
            sum((c * points[k] for k, c in enumerate(b.affine.coefs) if c), b.affine.constant)
            + np.zeros_like(times)
            for b in loop.bounds
        )
        turns = np.maximum(0, -(-(high - low) // loop.step))
        totals.append(int(times @ turns))
        if at not in bounding:
            times = times * turns
            continue
        if turns.sum() > _MOST_ENUMERATED:
            return None
        around = np.repeat(np.arange(times.size), turns)
        within = np.arange(around.size) - np.repeat(np.cumsum(turns) - turns, turns)
        points = {k: v[around] for k, v in points.items()}
        points[at] = low[around] + loop.step * within
        times = times[around]
    return tuple(totals)


def _mean(arrays: Sequence[Array], index: Index, middle: Sequence[float]) -> float:
    terms = zip(index.affine.coefs, middle, strict=False)
    mean = index.affine.constant + sum(coef * at for coef, at in terms)
    return mean if index.of is None else mean + sum(values_of(arrays[index.of.array])) / 2


def _mean_row(loop: Loop, arrays: Sequence[Array]) -> float | None:
    """Mean length of a row, where the loop runs from one offset of an array to the next."""
    low, high = loop.lower.of, loop.upper.of
    if low is None or high is None or low.array != high.array:
        return None
    offsets = arrays[low.array]
    if not offsets.fill.startswith("offsets"):
        return None
    return int(offsets.fill.split(":")[1]) / max(offsets.elements - 1, 1)


#: Number of hexadecimal digits of a matrix's id.
_ID = 32


@dataclass(frozen=True, eq=False)
class Nest:
    """A perfect nest: loops from the outermost, statements in the innermost, arrays in the order of
    their first access. `id` is the blake2b-128 hex digest of its code (`embeddb.nests.nest`),
    without the names of loops and arrays, `name` and `group`. `group` names the program; its nests,
    at all sizes, are held out together in every evaluation. `matrices`: the available ones of those
    that fills name; only their ids are part of the nest's id."""

    loops: tuple[Loop, ...]
    arrays: tuple[Array, ...]
    body: tuple[Statement, ...]
    name: str = ""
    group: str = ""
    loop_names: tuple[str, ...] = ()
    array_names: tuple[str, ...] = field(default=())
    matrices: tuple[Pattern, ...] = ()

    kind: ClassVar[str] = "nest"

    @cached_property
    def id(self) -> str:
        code = code_of(self.loops, self.arrays, self.body)
        text = json.dumps(code, separators=(",", ":"), allow_nan=False)
        return hashlib.blake2b(f"nest\0{text}".encode(), digest_size=16).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nest) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Nest({self.name or self.id[:12]!r}, {' x '.join(map(str, self.trips))})"

    @property
    def depth(self) -> int:
        return len(self.loops)

    @cached_property
    def trips(self) -> tuple[int, ...]:
        """Trip count of each loop for fixed outer loops: where it varies, that at their middle,
        rounded up and at least 1."""
        return tuple(max(1, trip) for trip in trips(self.loops, self.arrays))

    @property
    def sizes(self) -> Sizes:
        """`DEPTH` and `TRIP_1`, ..., under the names of expressions in a platform file."""
        named = {"DEPTH": self.depth}
        named |= {f"TRIP_{at + 1}": trip for at, trip in enumerate(self.trips)}
        return UNKNOWN.naming(named)

    def loop_name(self, loop: int) -> str:
        return self.loop_names[loop] if loop < len(self.loop_names) else f"i{loop + 1}"

    def array_name(self, array: int) -> str:
        return self.array_names[array] if array < len(self.array_names) else f"a{array}"

    @property
    def written(self) -> frozenset[int]:
        """Arrays that statements write."""
        return frozenset(s.target.array for s in self.body)

    def accesses(self) -> tuple[tuple[int, Access, bool], ...]:
        """(statement, access, true if it writes) in the order of the text; a reduction's target is
        a write; reads of bounds have statement -1."""
        return self._accesses

    @cached_property
    def _accesses(self) -> tuple[tuple[int, Access, bool], ...]:
        accesses: list[tuple[int, Access, bool]] = []
        for bound in (bound for loop in self.loops for bound in loop.bounds):
            accesses += [(-1, access, False) for access in bound.reads()]
        for at, statement in enumerate(self.body):
            accesses += [(at, access, False) for access in statement.reads()]
            accesses.append((at, statement.target, True))
        return tuple(accesses)

    @property
    def points(self) -> int:
        """Approximate number of executions of the body."""
        return math.prod(self.trips)

    @cached_property
    def matrix_ids(self) -> dict[int, str]:
        """Id of the matrix that an array's fill names, by array."""
        last = {at: array.fill.rpartition(":")[2] for at, array in enumerate(self.arrays)}
        return {at: text for at, text in last.items() if len(text) == _ID}

    def with_matrices(self, matrices: Iterable[Pattern]) -> Nest:
        """The nest with those of the matrices that its fills name. Raises: NestError where a fill
        or a shape contradicts its matrix."""
        wanted = set(self.matrix_ids.values())
        available = {m.id: m for m in (*self.matrices, *matrices) if m.id in wanted}
        for at, matrix in self.matrix_ids.items():
            if matrix in available:
                self._check_matrix(at, available[matrix])
        if not (available or self.matrices):
            return self
        return replace(self, matrices=tuple(available.values()))

    def matrix_values(self, array: int) -> NDArray[Any] | None:
        """Values of an array from the matrix that its fill names, int[elements]; None without one.
        Raises: NestError for a missing matrix."""
        wanted = self.matrix_ids.get(array)
        if wanted is None:
            return None
        matrix = next((m for m in self.matrices if m.id == wanted), None)
        if matrix is None:
            raise NestError(
                f"{self.array_name(array)} holds matrix {wanted}, which is not here",
                hint="give its file beside the program: --matrix A.mtx",
            )
        return _numbers(self.arrays[array], matrix)

    def require_matrices(self) -> None:
        """Check that every matrix that a fill names is available. Raises: NestError."""
        for at in self.matrix_ids:
            self.matrix_values(at)

    def _check_matrix(self, at: int, matrix: Pattern) -> None:
        array, name = self.arrays[at], self.array_name(at)
        fits = fills_of(matrix)
        if array.fill not in fits:
            raise NestError(f"{name}: fill {array.fill} must be one of {', '.join(fits)}")
        size = _numbers(array, matrix).size
        if array.shape != (size,):
            raise NestError(f"{name}: has {array.elements} elements, its matrix {size}")


def fills_of(matrix: Pattern) -> tuple[str, str]:
    """Fills of the arrays of row offsets and columns of a matrix. The unevenness of its rows is
    rounded down to thousandths, in integers: the same on every machine. Raises: NestError for a
    matrix without entries."""
    (rows, columns), entries = matrix.shape, matrix.nnz
    if not entries:
        raise NestError(f"matrix {matrix.name or matrix.id} has no entries")
    lengths = np.diff(matrix.indptr)
    spread = rows * int(lengths @ lengths) - entries * entries
    uneven = min(math.isqrt(10**6 * spread // (rows * entries)), 999_999)
    offsets = f"offsets:{entries}:{uneven // 1000}.{uneven % 1000:03d}:{matrix.id}"
    return offsets, f"below:{columns}:{matrix.id}"


def _numbers(array: Array, matrix: Pattern) -> NDArray[Any]:
    return matrix.indptr if array.fill.startswith("offsets") else matrix.indices


# -- The code of a nest as plain JSON values: input of its id, and main part of its file ----------


def code_of(
    loops: Sequence[Loop], arrays: Sequence[Array], body: Sequence[Statement]
) -> dict[str, Any]:
    """Loops, arrays and statements, as `embeddb.nests.nest_text` describes."""
    return {
        "loops": [[_index(at.lower), _index(at.upper), at.step] for at in loops],
        "arrays": [[a.dtype, list(a.shape), a.fill, int(a.transient)] for a in arrays],
        "body": [
            [s.combine, _access(s.target), _expr(s.value), s.where and _expr(s.where)] for s in body
        ],
    }


def _index(index: Index) -> Any:
    plain = [index.affine.constant, *index.affine.coefs]
    return plain if index.of is None else {"plus": plain, "of": _access(index.of)}


def _access(access: Access) -> list[Any]:
    return [access.array, *map(_index, access.at)]


def _expr(expression: Expr) -> Any:
    match expression:
        case Const(value):
            whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
            return int(value) if whole else value
        case LoopIndex(loop):
            return ["loop", loop]
        case Read(access):
            return ["read", *_access(access)]
        case Call(op, args):
            return [op, *map(_expr, args)]
