"""What arrays of whole numbers hold that say where others are read: where nobody says it, what
keeps every access inside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from embeddb.core.errors import NestError
from embeddb.nests.parts import Access, Index
from indexer.frontends.tree import Block, Program, accesses, walk

#: Of rows that nobody described: as uneven as by chance.
_EVENNESS = 1


def with_fills(program: Program) -> tuple[Program, list[str]]:
    """The program with a fill for every array that indices or bounds come out of, and a line for
    each that was chosen here: `offsets:T` for the bounds of rows, where T elements are to be met;
    `below:N` for subscripts of N elements.

    Raises: NestError where a fill is needed and cannot be known.
    """
    most: dict[int, int] = {}
    for source, size in (*_of_rows(program), *_of_subscripts(program)):
        most[source] = min(size, most.get(source, size))
    rows = {source for source, _ in _of_rows(program)}
    arrays, notes = list(program.arrays), list[str]()
    for at in sorted(_sources(program)):
        array, name = arrays[at], program.array_names[at]
        if array.fill:
            continue
        size = most.get(at, 0)
        if size < 1:
            raise NestError(f"{name} is used as an index: say what it holds, by a fill")
        fill = f"offsets:{size}:{_EVENNESS}" if at in rows else f"below:{size}"
        arrays[at] = replace(array, fill=fill)
        notes.append(f"{name} holds {fill}, which nobody said")
    return replace(program, arrays=tuple(arrays)), notes


def _sources(program: Program) -> set[int]:
    """The arrays that indices and bounds come out of."""
    found: set[int] = set()
    for _, node in walk(program.body):
        for access, _ in accesses(node):
            found |= {inner.array for inner in access.inner()}
        if isinstance(node, Block):
            bounds = (node.loop.lower, node.loop.upper)
            found |= {bound.of.array for bound in bounds if bound.of is not None}
    return found


def _of_rows(program: Program) -> Iterator[tuple[int, int]]:
    """(offsets, elements that a loop from one offset to the next meets)."""
    for path, node in walk(program.body):
        if not isinstance(node, Block):
            continue
        low, high = node.loop.lower.of, node.loop.upper.of
        if low is None or high is None or low.array != high.array:
            continue
        for _, inside in walk(node.inside):
            for access, _ in accesses(inside):
                shape = program.arrays[access.array].shape
                for index, extent in zip(access.at, shape, strict=True):
                    if index.of is None and index.affine.loops == (len(path),):
                        yield low.array, extent - index.affine.constant


def _of_subscripts(program: Program) -> Iterator[tuple[int, int]]:
    """(array that an index comes out of, elements that may be indexed)."""
    for _, node in walk(program.body):
        for access, _ in accesses(node):
            for inner, index, extent in _indexed(access, program):
                if not index.affine.coefs:
                    yield inner, extent - index.affine.constant


def _indexed(access: Access, program: Program) -> Iterator[tuple[int, Index, int]]:
    for index, extent in zip(access.at, program.arrays[access.array].shape, strict=True):
        if index.of is not None:
            yield index.of.array, index, extent
