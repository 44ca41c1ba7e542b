"""A program as front ends read it: a tree of loops over statements, not yet split into nests.

Indices and bounds are those of `embeddb.nests.parts`, where loops are counted along the path from
the root, so that a statement keeps its indices when the loops around it are distributed. Arrays are
numbered for the whole program; a scalar is an array without dimensions.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from embeddb.core.errors import NestError
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
    LoopIndex,
    Read,
    Statement,
)


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


@dataclass
class Registry:
    """The arrays of a whole program while it is read, those that are not results (`local`), and
    notes on omitted parts."""

    arrays: list[Array] = field(default_factory=list)
    array_names: list[str] = field(default_factory=list)
    local: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, array: Array, *, local: bool) -> int:
        """Add an array; its name gets its number behind where another has it."""
        number = len(self.arrays)
        self.array_names.append(f"{name}_{number}" if name in self.array_names else name)
        self.arrays.append(array)
        if local:
            self.local.add(number)
        return number

    def program(self, name: str, body: Sequence[Node], *, strict: bool = True) -> Program:
        arrays, array_names = tuple(self.arrays), tuple(self.array_names)
        return Program(name, arrays, array_names, tuple(body), frozenset(self.local), strict)


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


def with_statements(
    nodes: Sequence[Node], change: Callable[[Statement], Statement]
) -> tuple[Node, ...]:
    """The nodes with every statement changed."""
    return tuple(
        Step(change(node.statement), node.place)
        if isinstance(node, Step)
        else replace(node, inside=with_statements(node.inside, change))
        for node in nodes
    )


def accesses(node: Node) -> Iterator[tuple[Access, bool]]:
    """Accesses of a statement, or of the bounds of a loop; True: it writes. Reads of a statement
    come before its write; a reduction's target is a write."""
    if isinstance(node, Step):
        yield from ((access, False) for access in node.statement.reads())
        yield node.statement.target, True
        return
    yield from ((access, False) for bound in node.loop.bounds for access in bound.reads())


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
    """Names at a place of a program, and their types in C. `arrays` is that of the whole program.
    `overloaded`: a function returns the type of its operand, as in C++; `loops` are
    those around, from the outermost."""

    arrays: list[Array]
    names: ChainMap[str, Index | Expr | StoredArray | Refused] = field(default_factory=ChainMap)
    types: ChainMap[str, str] = field(default_factory=ChainMap)
    overloaded: bool = False
    loops: tuple[Loop, ...] = ()

    def inner(self) -> Scope:
        return replace(self, names=self.names.new_child(), types=self.types.new_child())

    def within(self, name: str, loop: Loop, index: Index) -> Scope:
        """The scope in the body of a loop."""
        inner = replace(self.inner(), loops=(*self.loops, loop))
        inner.names[name] = index
        return inner

    def home(self, name: str) -> Scope:
        """The scope in which a name is declared."""
        depth = next(at for at, one in enumerate(self.names.maps) if name in one)
        names, types = (ChainMap(*one.maps[depth:]) for one in (self.names, self.types))
        return replace(self, names=names, types=types)

    def of(self, name: str) -> Index | Expr | StoredArray:
        """The meaning of a name. Raises: NestError for an unknown or refused one."""
        meaning = self.names.get(name)
        if meaning is None:
            raise NestError(f"{name} is undefined: give a size by #define or with -D {name}=64")
        if isinstance(meaning, Refused):
            raise NestError(f"{name} {meaning.why}")
        return meaning

    def index(self, name: str) -> Index:
        """The index that a name stands for. Raises: NestError for another meaning."""
        meaning = self.of(name)
        if isinstance(meaning, Index):
            return meaning
        if isinstance(meaning, Const) and isinstance(meaning.value, int):
            return whole(meaning.value)
        if isinstance(meaning, StoredArray) and not self.arrays[meaning.array].shape:
            raise NestError(f"{name} is computed: a subscript or bound is not affine")
        raise NestError(f"{name} is no whole number: a subscript or bound is not affine")


#: Exponents and results of powers: a file may write any.
_MOST_TIMES, _LARGEST_POWER = 64, 1 << 62


def whole(value: int) -> Index:
    return Index(Affine(value))


def constant(index: Index) -> int | None:
    """The value of an index; None if it is not constant."""
    return index.affine.constant if index.of is None and not index.affine.coefs else None


def index_pair(op: str, left: Index, right: Index) -> Index:
    """A sum, a difference, a multiple, or a quotient of two numbers.

    Raises: NestError if it is not affine.
    """
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    a, b = constant(left), constant(right)
    if op == "*" and a is not None:
        return right * a
    if op == "*" and b is not None:
        return left * b
    if op == "/" and a is not None and b:
        return whole(divided(a, b))
    what = "a quotient varies" if op == "/" else f"{op} of two that vary"
    raise NestError(f"a subscript or bound is not affine: {what}")


def index_power(base: Index, times: Index) -> Index:
    """A number to the power of another, as in strides and sizes (`N ** 2`).

    Raises: NestError if it is not affine, or too large for a size.
    """
    a, b = constant(base), constant(times)
    if b == 1:
        return base
    if a is None or b is None:
        raise NestError("a subscript or bound is not affine: a power of a variable")
    if not 0 <= b <= _MOST_TIMES or abs(a) > _LARGEST_POWER or abs(a**b) > _LARGEST_POWER:
        raise NestError(f"a size is the power {b} of a number, which is too large")
    return whole(a**b)


def divided(one: int, other: int) -> int:
    """Quotient as in C: rounded towards zero."""
    quotient = abs(one) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


def expression_of(index: Index) -> Expr:
    """The value of an index as an expression."""
    parts: list[Expr] = []
    for loop, coef in enumerate(index.affine.coefs):
        if coef:
            at = LoopIndex(loop)
            parts.append(at if coef == 1 else Call("*", (Const(coef), at)))
    if index.of is not None:
        parts.append(Read(index.of))
    if index.affine.constant or not parts:
        parts.append(Const(index.affine.constant))
    total = parts[0]
    for part in parts[1:]:
        total = Call("+", (total, part))
    return total


def counted(start: Index, within: str, end: Index, step: int, depth: int) -> tuple[Loop, Index]:
    """The loop that counts from `start` by `step` while its index is `within` (`<`, `>=`, ...) the
    end, below `depth` others, and the value of its index. A loop that counts down becomes one that
    counts up from 0, whose index is subtracted from the start.

    Raises: NestError if it would not end.
    """
    own = Index(Affine.of_loop(depth))
    if step > 0 and within in ("<", "<="):
        return Loop(start, end + (within == "<="), step), own
    if step < 0 and within in (">", ">="):
        turns = start - end + (within == ">=")
        return Loop(whole(0), turns, -step), start - own
    raise NestError(f"a loop steps by {step} while its index {within} its end")


def at_turn(node: Node, value: int) -> Node:
    """A node for one value of the outermost loop around it, which is removed."""

    def index(one: Index) -> Index:
        affine = one.affine
        return Index(Affine(affine.constant + affine.coef(0) * value, affine.coefs[1:]), one.of)

    def access(one: Access) -> Access:
        return Access(one.array, tuple(map(index, one.at)))

    def leaf(one: Expr) -> Expr:
        if isinstance(one, LoopIndex):
            return Const(value) if not one.loop else LoopIndex(one.loop - 1)
        return one

    if isinstance(node, Step):
        return Step(node.statement.mapped(access, leaf), node.place)
    lower, upper = (index(bound.mapped(access)) for bound in node.loop.bounds)
    inside = tuple(at_turn(one, value) for one in node.inside)
    return replace(node, loop=Loop(lower, upper, node.loop.step), inside=inside)


#: Unevenness of undescribed rows: that of random ones.
_EVENNESS = 1


def with_fills(program: Program) -> tuple[Program, list[str]]:
    """The program with a fill for every array with indices or bounds, and a line for each that was
    chosen here: `offsets:T` for the bounds of rows, where T elements are needed; `below:N` for
    subscripts of N elements.

    Raises: NestError if a fill is needed and cannot be inferred.
    """
    of_rows = list(_of_rows(program))
    rows = {source for source, _ in of_rows}
    most: dict[int, int] = {}
    for source, size in (*of_rows, *_of_subscripts(program)):
        most[source] = min(size, most.get(source, size))
    arrays, notes = list(program.arrays), list[str]()
    sources = _sources(program)
    for at in sorted(sources):
        array, name = arrays[at], program.array_names[at]
        if array.fill:
            continue
        size = most.get(at, 0)
        if size < 1:
            raise _undescribed(name, sources[at])
        fill = f"offsets:{size}:{_EVENNESS}" if at in rows else f"below:{size}"
        arrays[at] = replace(array, fill=fill)
        notes.append(f"{name} is filled with {fill}, by default")
    return replace(program, arrays=tuple(arrays)), notes


def _undescribed(name: str, place: int | str) -> NestError:
    reason = f"{name} is used as an index, and its values are not described"
    if isinstance(place, str):
        return NestError(reason)
    hint = f"#pragma embeddb fill {name} below:N, permutation or offsets:T"
    return NestError(reason, line=place, hint=hint)


def _sources(program: Program) -> dict[int, int | str]:
    """The arrays with indices and bounds as elements, and the place of the first use as such."""
    arrays: dict[int, int | str] = {}
    for _, node in walk(program.body):
        for access, _ in accesses(node):
            for source in [access] if isinstance(node, Block) else access.inner():
                arrays.setdefault(source.array, node.place)
    return arrays


def _of_rows(program: Program) -> Iterator[tuple[int, int]]:
    """Pairs (offsets, elements between the first and the last offset)."""
    for path, node in walk(program.body):
        if not isinstance(node, Block):
            continue
        low, high = node.loop.lower.of, node.loop.upper.of
        if low is None or high is None or low.array != high.array:
            continue
        for index, extent in _subscripts(program, node.inside):
            if index.of is None and index.affine.loops == (len(path),):
                yield low.array, extent - index.affine.constant


def _of_subscripts(program: Program) -> Iterator[tuple[int, int]]:
    """Pairs (array with an index as element, elements that may be indexed)."""
    for index, extent in _subscripts(program, program.body):
        if index.of is not None and not index.affine.coefs:
            yield index.of.array, extent - index.affine.constant


def _subscripts(program: Program, nodes: Sequence[Node]) -> Iterator[tuple[Index, int]]:
    """Indices of accesses, each with the extent of its dimension."""
    for _, node in walk(nodes):
        for access, _ in accesses(node):
            yield from zip(access.at, program.arrays[access.array].shape, strict=True)
