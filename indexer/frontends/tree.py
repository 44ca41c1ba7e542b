"""A program as front ends read it: a tree of loops over statements, not yet split into nests.

Indices and bounds are those of `embeddb.nests.parts`, where loops are counted along the path from
the root, so that a statement keeps its indices when the loops around it are distributed. Arrays are
numbered for the whole program; a scalar is an array without dimensions.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from embeddb.core.errors import NestError
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Access, Array, Call, Expr, Index, Loop, Read, Statement


@dataclass(frozen=True, slots=True)
class Step:
    """A statement and its place: a line, or in words."""

    statement: Statement
    place: int | str


@dataclass(frozen=True, slots=True)
class Block:
    """A loop, its name and place, and its body."""

    name: str
    loop: Loop
    inside: tuple[Node, ...]
    place: int | str


Node = Step | Block


@dataclass(frozen=True, slots=True)
class Program:
    """A tree, with all arrays of the program.

    An array with an empty `fill` is filled by the nest: with zero where it is overwritten first,
    else uniformly. `local`: arrays that are not results. `strict`: an unsupported part is an error;
    else it is left out, with a note.
    """

    name: str
    arrays: tuple[Array, ...]
    array_names: tuple[str, ...]
    body: tuple[Node, ...]
    local: frozenset[int] = frozenset()
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Extraction:
    """The nests of a program, and one line for each part that was left out or cut off. `lines` are
    the first and the last line of each nest of a text, `partial` the places of loops and statements
    that the nests do not run in full."""

    nests: tuple[Nest, ...]
    notes: tuple[str, ...] = field(default=())
    lines: tuple[tuple[int, int], ...] = field(default=())
    partial: tuple[int | str, ...] = field(default=())


def walk(
    nodes: Sequence[Node], path: tuple[Block, ...] = ()
) -> Iterator[tuple[tuple[Block, ...], Node]]:
    """Every node in the order of the text, with the loops around it; loops before their bodies."""
    for node in nodes:
        yield path, node
        if isinstance(node, Block):
            yield from walk(node.inside, (*path, node))


def accesses(node: Node) -> Iterator[tuple[Access, bool]]:
    """Accesses of a statement, or of the bounds of a loop; True: it writes. Reads of a statement
    come before its write; a reduction's target is a write."""
    if isinstance(node, Step):
        yield from ((access, False) for access in node.statement.reads())
        yield node.statement.target, True
        return
    for bound in (node.loop.lower, node.loop.upper):
        if bound.of is not None:
            yield from ((access, False) for access in (*bound.of.inner(), bound.of))


def reads(expression: Expr | None) -> Iterator[Access]:
    """Every access in an expression, those inside of indices too."""
    if isinstance(expression, Read):
        yield from expression.access.inner()
        yield expression.access
    elif isinstance(expression, Call):
        for argument in expression.args:
            yield from reads(argument)


@dataclass(frozen=True, slots=True)
class StoredArray:
    """A name of an array of the program, or of a stored scalar."""

    array: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A name that may not be used here, and the reason; with a type, it may be written. `line` is
    that of its declaration."""

    why: str
    dtype: str = ""
    line: int = 0


@dataclass
class Scope:
    """Names at a place of a program. `arrays` is that of the whole program."""

    arrays: list[Array]
    names: ChainMap[str, Index | Expr | StoredArray | Refused] = field(default_factory=ChainMap)

    def inner(self) -> Scope:
        return Scope(self.arrays, self.names.new_child())

    def home(self, name: str) -> Scope:
        """The scope in which a name is declared."""
        depth = next(at for at, one in enumerate(self.names.maps) if name in one)
        return Scope(self.arrays, ChainMap(*self.names.maps[depth:]))

    def of(self, name: str) -> Index | Expr | StoredArray:
        """The meaning of a name. Raises: NestError for an unknown or refused one."""
        meaning = self.names.get(name)
        if meaning is None:
            raise NestError(f"{name} is undefined: give a size by #define or with -D {name}=64")
        if isinstance(meaning, Refused):
            raise NestError(f"{name} {meaning.why}")
        return meaning
