"""A nest as text that people read: its loops and statements, arrays, what its dependences allow."""

from __future__ import annotations

from embeddb.nests.check import packable, parallel_loops, reduction_loops
from embeddb.nests.dependence.legality import Dependence, dependences
from embeddb.nests.lines import loop_lines, statement_line
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule

__all__ = ["array_rows", "dependence_lines", "listing", "loop_words"]


def listing(nest: Nest, schedule: Schedule | None = None) -> str:
    """Its loops, one inside the other, and its statements; with a schedule, the generated loops."""
    lines = [*loop_lines(nest, schedule)]
    body = [statement_line(nest, statement) for statement in nest.body]
    indented = ["  " * at + line for at, line in enumerate(lines)]
    return "\n".join([*indented, *("  " * len(lines) + line for line in body)])


def loop_words(nest: Nest) -> list[str]:
    """By loop, what its turns are to each other: `independent`, `a reduction` or `in order`."""
    parallel, reduction = parallel_loops(nest), reduction_loops(nest)
    return [
        "independent" if at in parallel else "a reduction" if at in reduction else "in order"
        for at in range(nest.depth)
    ]


def dependence_lines(nest: Nest) -> list[str]:
    """One line for each dependence between turns, each once; reductions named as such."""
    moving = [d for d in dependences(nest) if any(part != (0, 0) for part in d.vector)]
    return list(dict.fromkeys(_dependence(nest, d) for d in moving))


def array_rows(nest: Nest) -> list[tuple[str, str, str, str, str]]:
    """Of each array name, type, shape, what it holds before the nest runs, and how it is used."""
    packs, written = packable(nest), nest.written
    read = {access.array for _, access, writes in nest.accesses() if not writes}
    rows = []
    for at, array in enumerate(nest.arrays):
        used = [word for word, which in (("read", read), ("written", written)) if at in which]
        used += [f"pack read{packs.index(at) + 1}"] if at in packs[:2] else []
        shape = " x ".join(map(str, array.shape))
        rows.append((nest.array_name(at), array.dtype, shape, array.fill, ", ".join(used)))
    return rows


def _dependence(nest: Nest, found: Dependence) -> str:
    word = "distance" if found.distance is not None else "direction"
    line = f"{nest.array_name(found.array)}: {word} {found.told}"
    return f"{line}, a reduction" if found.reduction else line
