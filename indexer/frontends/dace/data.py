"""Arrays of an `.sdfg` file, the parts of them that its graphs pass on, and places in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from embeddb.core.errors import NestError
from embeddb.nests.parts import Access, Array, Expr, Index, Loop
from indexer.frontends.tree import Refused, Scope, added, scaled, whole


@dataclass
class Registry:
    """The arrays of a whole program, those that are not results (`local`), and notes on omitted
    parts."""

    arrays: list[Array] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    local: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, array: Array, *, local: bool) -> int:
        number = len(self.arrays)
        self.names.append(f"{name}_{number}" if name in self.names else name)
        self.arrays.append(array)
        if local:
            self.local.add(number)
        return number


@dataclass(frozen=True, slots=True)
class Part:
    """The elements of one dimension from `start` to `end`, inclusive."""

    start: Index
    end: Index

    @property
    def single(self) -> bool:
        return self.start == self.end

    @property
    def size(self) -> Index:
        return added(added(self.end, scaled(self.start, -1)), whole(1))


@dataclass(frozen=True, slots=True)
class View:
    """A part of an array that is used as an array of `rank` dimensions. `at`: for each dimension of
    the array the start of the part, and the dimension of the part that runs along it, if any."""

    array: int
    at: tuple[tuple[Index, int | None], ...]
    rank: int

    @classmethod
    def whole(cls, array: int, rank: int) -> View:
        return cls(array, tuple((Index(), at) for at in range(rank)), rank)

    @property
    def single(self) -> bool:
        """True if it is one element."""
        return all(of is None for _, of in self.at)

    def access(self, at: Sequence[Index]) -> Access:
        """An element. Indices of a single element are ignored.

        Raises: NestError if the number of indices is not that of the dimensions.
        """
        if self.single:
            return Access(self.array, tuple(start for start, _ in self.at))
        if len(at) != self.rank:
            raise NestError(f"{len(at)} subscripts for {self.rank} dimensions")
        return Access(
            self.array,
            tuple(start if of is None else added(start, at[of]) for start, of in self.at),
        )

    def part(self, parts: Sequence[Part], *, ones: Sequence[bool] | None = None) -> View:
        """The part of a part. Dimensions of one element are dropped, unless `ones` gives the
        dimensions of the result, True for one element.

        Raises: NestError if the numbers of dimensions do not fit.
        """
        if not self.at:
            return self
        if self.single and all(part.single for part in parts):
            return replace(self, rank=self.rank if ones is None else len(ones))
        if len(parts) != self.rank:
            raise NestError(f"{len(parts)} ranges for {self.rank} dimensions")
        dimensions = _dimensions_used(parts, ones)
        place = {d: at for at, d in enumerate(dimensions)}
        at = tuple(
            (start, None) if of is None else (added(start, parts[of].start), place.get(of))
            for start, of in self.at
        )
        return View(self.array, at, len(dimensions) if ones is None else len(ones))


def _dimensions_used(parts: Sequence[Part], ones: Sequence[bool] | None) -> list[int]:
    """The dimensions of a part in its use: all, if their number fits; else those of more than one
    element, and between them as many of one element as required."""
    if ones is not None and len(ones) == len(parts):
        return list(range(len(parts)))
    dimensions = [d for d, part in enumerate(parts) if not part.single]
    if ones is None or len(ones) == len(dimensions) or (len(ones) == 1 and not dimensions):
        return dimensions
    dimensions = []
    for d, part in enumerate(parts):
        if not part.single or (len(dimensions) < len(ones) and ones[len(dimensions)]):
            dimensions.append(d)
    if [parts[d].single for d in dimensions] != list(ones):
        raise NestError(f"a part of {len(parts)} dimensions is used as one of {len(ones)}")
    return dimensions


class Views(Protocol):
    """The arrays of one (nested) program by name."""

    def view(self, name: str, place: Place) -> View: ...

    def alias(
        self, name: str, part: Callable[[Mapping[str, Any], Place], View], place: Place
    ) -> None: ...


@dataclass(frozen=True)
class Place:
    """Symbols, loops around from the outermost, and the arrays of the program around."""

    registry: Registry
    views: Views
    scope: Scope
    loops: tuple[Loop, ...] = ()
    depth: int = 0

    @property
    def nested(self) -> bool:
        """True in a nested program."""
        return self.depth > 0

    def view(self, name: str) -> View:
        """The view of an array. Raises: NestError for an unknown array, or one of an unsupported
        kind."""
        return self.views.view(name, self)

    def within(self, name: str, loop: Loop, index: Index) -> Place:
        """The place in the body of a loop."""
        inner = replace(self.deeper(), loops=(*self.loops, loop))
        inner.scope.names[name] = index
        return inner

    def deeper(self) -> Place:
        """The place with a scope of its own for symbols."""
        return replace(self, scope=self.scope.inner())

    def inside(self, views: Views, symbols: Mapping[str, Index | Expr | Refused]) -> Place:
        """The place in a nested program, which has only its own symbols."""
        scope = Scope(self.scope.arrays)
        scope.names.update(symbols)
        return replace(self, views=views, scope=scope, depth=self.depth + 1)
