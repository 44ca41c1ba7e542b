"""Loop nests: a chain of loops around statements, with affine and indirect accesses to arrays.

The unit of "Performance Embeddings" (Section 3.1): what is optimised by itself. A program is cut
into perfect nests first (`indexer.frontends`); why they are perfect, and why the representation is
our own, is in docs/decisions/nests.md.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.nests.code import code_text
from embeddb.nests.extents import trips
from embeddb.nests.parts import Access, Array, Loop, Statement

__all__ = ["Nest"]


@dataclass(frozen=True, eq=False)
class Nest:
    """A perfect nest: loops from the outermost, statements in the innermost, arrays in the order
    they are met. `id` is the blake2b-128 hex digest of its code (`embeddb.nests.code`), of which
    the names of loops and arrays, `name` and `group` are no part. `group` names the program; its
    nests, at all sizes, are held out together in every evaluation.
    """

    loops: tuple[Loop, ...]
    arrays: tuple[Array, ...]
    body: tuple[Statement, ...]
    name: str = ""
    group: str = ""
    loop_names: tuple[str, ...] = ()
    array_names: tuple[str, ...] = field(default=())

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

    def accesses(self) -> list[tuple[int, Access, bool]]:
        """(statement, access, whether it writes) in the order of the text; a reduction's target
        is a write; what bounds read belongs to statement -1."""
        found: list[tuple[int, Access, bool]] = []
        for bound in (b for loop in self.loops for b in (loop.lower, loop.upper)):
            if bound.of is not None:
                found += [(-1, a, False) for a in (*bound.of.inner(), bound.of)]
        for at, statement in enumerate(self.body):
            found += [(at, access, False) for access in statement.reads()]
            found.append((at, statement.target, True))
        return found

    @property
    def points(self) -> int:
        """How often the body runs, about."""
        return math.prod(self.trips)
