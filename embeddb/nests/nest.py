"""Loop nests: a chain of loops around statements, with affine and indirect accesses to arrays.

The unit of "Performance Embeddings" (Section 3.1): what is optimised by itself. A program is cut
into perfect nests first (`indexer.frontends`); why they are perfect, and why the representation is
our own, is in docs/explanation/decisions.md.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NestError
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.nests.code import code_text
from embeddb.nests.parts import Access, Affine, Array, Index, Loop, Statement


def loop_range(loops: Sequence[Loop], arrays: Sequence[Array], loop: int) -> tuple[int, int]:
    """The least index and the largest, over all turns of the loops around."""
    low = index_range(loops, arrays, loops[loop].lower)[0]
    return low, index_range(loops, arrays, loops[loop].upper)[1] - 1


def index_range(loops: Sequence[Loop], arrays: Sequence[Array], index: Index) -> tuple[int, int]:
    """The least and the largest value. Raises: NestError where an array's values are unknown."""
    low, high = (_furthest(loops, arrays, index.affine, up) for up in (False, True))
    if index.of is None:
        return low, high
    least, most = values_of(arrays[index.of.array])
    return low + least, high + most


def values_of(array: Array) -> tuple[int, int]:
    """The least and the largest value of an array of whole numbers, by its fill.

    Raises: NestError where that is not known.
    """
    kind, *told = array.fill.split(":")
    if array.dtype not in ("i32", "i64"):
        raise NestError(f"an index comes out of an array of {array.dtype}, not of whole numbers")
    if kind in ("range", "permutation"):
        return 0, array.elements - 1
    if kind == "below":
        return 0, int(told[0]) - 1
    if kind == "offsets":
        return 0, int(told[0])
    if kind == "zero":
        return 0, 0
    raise NestError(f"an index comes out of an array of which only {array.fill!r} is known")


def _furthest(loops: Sequence[Loop], arrays: Sequence[Array], affine: Affine, up: bool) -> int:
    """The largest value (or the least): the innermost loop is replaced by the bound at which the
    value is so, then the next one out. Where an outer loop lets an inner one run empty, this is
    further than any value."""
    constant, coefs = affine.constant, list(affine.coefs)
    for loop in range(len(coefs) - 1, -1, -1):
        coef = coefs[loop]
        if not coef:
            continue
        last = (coef > 0) == up
        bound = loops[loop].upper if last else loops[loop].lower
        constant += coef * (bound.affine.constant - last)
        for outer, by in enumerate(bound.affine.coefs):
            coefs[outer] += coef * by
        if bound.of is not None:
            constant += coef * values_of(arrays[bound.of.array])[last]
        coefs[loop] = 0
    return constant


def trips(loops: Sequence[Loop], arrays: Sequence[Array]) -> tuple[int, ...]:
    """By loop, the mean number of turns, rounded up; at least 0. Means of triangles are those of
    their middle."""
    found: list[int] = []
    middle: list[float] = []
    for loop in loops:
        low, high = (_mean(arrays, bound, middle) for bound in (loop.lower, loop.upper))
        row = _mean_row(loop, arrays)
        if row is not None:
            low, high = 0.0, row
        turns = max(0.0, (high - low) / loop.step)
        found.append(math.ceil(turns - 1e-9))
        middle.append(low + max(0.0, turns - 1) / 2 * loop.step)
    return tuple(found)


def _mean(arrays: Sequence[Array], index: Index, middle: Sequence[float]) -> float:
    told = zip(index.affine.coefs, middle, strict=False)
    mean = index.affine.constant + sum(coef * at for coef, at in told)
    return mean if index.of is None else mean + sum(values_of(arrays[index.of.array])) / 2


def _mean_row(loop: Loop, arrays: Sequence[Array]) -> float | None:
    """The mean length of a row, where the loop runs from one offset of an array to the next."""
    low, high = loop.lower.of, loop.upper.of
    if low is None or high is None or low.array != high.array:
        return None
    offsets = arrays[low.array]
    if not offsets.fill.startswith("offsets"):
        return None
    return int(offsets.fill.split(":")[1]) / max(offsets.elements - 1, 1)


#: Hexadecimal digits of a matrix's id.
_ID = 32


@dataclass(frozen=True, eq=False)
class Nest:
    """A perfect nest: loops from the outermost, statements in the innermost, arrays in the order
    they are met. `id` is the blake2b-128 hex digest of its code (`embeddb.nests.code`), of which
    the names of loops and arrays, `name` and `group` are no part. `group` names the program; its
    nests, at all sizes, are held out together in every evaluation. `matrices`: those that fills
    name, as far as they are there; they are no part of the id, as their ids are.
    """

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
        text = b"nest\0" + code_text(self.loops, self.arrays, self.body)
        return hashlib.blake2b(text, digest_size=16).hexdigest()

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
        """How often each loop runs for one turn of those around it: exact where that does not vary,
        else the mean, rounded up."""
        return trips(self.loops, self.arrays)

    @property
    def sizes(self) -> Sizes:
        """`DEPTH` and `TRIP_1`, ..., as the expressions of a platform file name them."""
        named = {"DEPTH": self.depth}
        named |= {f"TRIP_{at + 1}": trip for at, trip in enumerate(self.trips)}
        return UNKNOWN.naming(named)

    def loop_name(self, loop: int) -> str:
        return self.loop_names[loop] if loop < len(self.loop_names) else f"i{loop + 1}"

    def array_name(self, array: int) -> str:
        return self.array_names[array] if array < len(self.array_names) else f"a{array}"

    @property
    def written(self) -> frozenset[int]:
        """The arrays that statements write to."""
        return frozenset(s.target.array for s in self.body)

    def accesses(self) -> tuple[tuple[int, Access, bool], ...]:
        """(statement, access, whether it writes) in the order of the text; a reduction's target
        is a write; what bounds read belongs to statement -1."""
        return self._accesses

    @cached_property
    def _accesses(self) -> tuple[tuple[int, Access, bool], ...]:
        found: list[tuple[int, Access, bool]] = []
        for bound in (b for loop in self.loops for b in (loop.lower, loop.upper)):
            if bound.of is not None:
                found += [(-1, a, False) for a in (*bound.of.inner(), bound.of)]
        for at, statement in enumerate(self.body):
            found += [(at, access, False) for access in statement.reads()]
            found.append((at, statement.target, True))
        return tuple(found)

    @property
    def points(self) -> int:
        """How often the body runs, about."""
        return math.prod(self.trips)

    @cached_property
    def matrix_ids(self) -> dict[int, str]:
        """By array, the matrix that its fill names."""
        last = {at: array.fill.rpartition(":")[2] for at, array in enumerate(self.arrays)}
        return {at: text for at, text in last.items() if len(text) == _ID}

    def holding(self, matrices: Iterable[Pattern]) -> Nest:
        """The nest with those of the matrices that its fills name.

        Raises: NestError where a fill or a shape says otherwise than its matrix.
        """
        wanted = set(self.matrix_ids.values())
        held = {m.id: m for m in (*self.matrices, *matrices) if m.id in wanted}
        for at, matrix in self.matrix_ids.items():
            if matrix in held:
                self._check_held(at, held[matrix])
        return replace(self, matrices=tuple(held.values())) if held or self.matrices else self

    def held(self, array: int) -> NDArray[Any] | None:
        """What an array holds of the matrix that its fill names, int[elements]; None without one.

        Raises: NestError for a matrix that is not there.
        """
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
        """Raises: NestError unless every matrix that a fill names is there."""
        for at in self.matrix_ids:
            self.held(at)

    def _check_held(self, at: int, matrix: Pattern) -> None:
        array, name = self.arrays[at], self.array_name(at)
        fits = fills_of(matrix)
        if array.fill not in fits:
            raise NestError(f"{name}: fill {array.fill} is none of {', '.join(fits)}")
        size = _numbers(array, matrix).size
        if array.shape != (size,):
            raise NestError(f"{name}: has {array.elements} elements, its matrix {size}")


def fills_of(matrix: Pattern) -> tuple[str, str]:
    """The fills of arrays that hold the row offsets and the columns of a matrix. How uneven its
    rows are is rounded down to thousandths, in whole numbers: the same on every machine.

    Raises: NestError for a matrix without entries.
    """
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
