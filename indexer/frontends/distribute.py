"""Perfect nests from a tree of loops, by distributing loops over their bodies in the order of the
text, wherever no dependence forbids it (Allen and Kennedy, "Automatic translation of Fortran
programs to vector form", 1987, Section 5; statements of one body stay together).

A loop that carries a dependence back from a lower part of its body to a higher one runs its parts
alternately, as a time loop does: it is cut off, and the nests are those of one of its iterations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations

from embeddb.core.errors import NestError
from embeddb.nests.check import in_order
from embeddb.nests.dependence.distances import System
from embeddb.nests.nest import Nest, trips
from embeddb.nests.nest_text import nest_from_text, nest_text
from embeddb.nests.parts import Access, Affine, Array, Call, Expr, Loop, Read, Statement, reads
from indexer.frontends.scalars import computed_type, without_scalars
from indexer.frontends.tree import (
    Block,
    Extraction,
    Node,
    Program,
    Step,
    accesses,
    at_turn,
    constant,
    with_fills,
)

_COMBINES = {"+": "+=", "*": "*=", "min": "min=", "max": "max="}


def combined(
    target: Access, op: str, value: Expr, mask: Expr | None, arrays: Sequence[Array]
) -> Statement:
    """`target op value` where `mask` is not 0. `op`: `=`, `+=`, `-=`, `*=`, `/=`, `min=`, `max=`.

    `x = x + e`, `x = min(x, e)` and `if (e < x) x = e` are reductions, unless e reads x itself, or
    every step cuts a number: x is whole and e is not, or has more bits and must be compared.

    Raises: NestError for other operators.
    """
    whole = arrays[target.array].dtype in ("i32", "i64")
    plain = op.removesuffix("=")
    cut = whole and computed_type(value, arrays) in ("f32", "f64", "real")
    if cut and plain in ("", "+", "-", "*", "/", "min", "max"):
        return Statement(target, "=", Call(plain, (Read(target), value)) if plain else value, mask)
    if op == "-=":
        return Statement(target, "+=", Call("neg", (value,)), mask)
    if op == "/=":
        return Statement(target, "=", Call("/", (Read(target), value)), mask)
    if op in ("+=", "*=", "min=", "max="):
        own = any(access == target for access in reads(value))
        if not own:
            return Statement(target, op, value, mask)
        return Statement(target, "=", Call(plain, (Read(target), value)), mask)
    if op != "=":
        raise NestError(f"operator {op} is not supported in a nest")
    narrow = arrays[target.array].dtype == "i32" and any(
        arrays[access.array].dtype == "i64" for access in reads(value)
    )
    if isinstance(mask, Call) and mask.op in ("<", "<=") and not narrow:
        if mask.args == (value, Read(target)):
            return Statement(target, "min=", value)
        if mask.args == (Read(target), value):
            return Statement(target, "max=", value)
    for operator, combine in _COMBINES.items():
        compared = narrow and operator in ("min", "max")
        rest = None if compared else _without(value, Read(target), operator)
        if rest is not None and all(access != target for access in reads(rest)):
            return Statement(target, combine, rest, mask)
    return Statement(target, "=", value, mask)


def _without(value: Expr, own: Read, op: str) -> Expr | None:
    """The other operands of a sum (product, ...) in which `own` occurs once; None if it is not such
    a sum."""
    if not isinstance(value, Call):
        return None
    if value.op == op:
        one, other = value.args
        if one == own:
            return other
        if other == own:
            return one
        rest = _without(one, own, op)
        return None if rest is None else Call(op, (rest, other))
    if value.op == "-" and op == "+":
        one, other = value.args
        if one == own:
            return Call("neg", (other,))
        rest = _without(one, own, op)
        return None if rest is None else Call("-", (rest, other))
    return None


#: Most inequalities of a test, ten times as many as for a nest: there are few tests, and above it
#: a dependence is assumed.
_MOST_ROWS = 600


@dataclass(frozen=True, slots=True)
class Site:
    """An access, and all loops around it from the outermost."""

    access: Access
    loops: tuple[Loop, ...]


def meet_later(late: Site, early: Site, loop: int) -> bool:
    """True if `early` may touch in a later iteration of a loop an element that `late` touches in an
    earlier one. `loop` counts the loops around both; those further out are at the same iteration.
    Where `late` stands below `early` in the text, it is then illegal to run all of `early`
    first."""
    if late.access.array != early.access.array:
        return False
    unknowns = len(late.loops) + len(early.loops) - loop

    def of_early(affine: Affine) -> Affine:
        # Unknowns are the indices of the shared loops, of the others of `late`, and of `early`.
        shared = (affine.coef(at) for at in range(loop))
        apart = (0,) * (len(late.loops) - loop)
        return Affine(affine.constant, (*shared, *apart, *affine.coefs[loop:]))

    own, step = Affine.of_loop(loop), Affine(late.loops[loop].step)
    least = [*_at_least_0(late.loops), *map(of_early, _at_least_0(early.loops))]
    least.append(of_early(own - step) - own)
    equal = [
        one.affine - of_early(other.affine)
        for one, other in zip(late.access.at, early.access.at, strict=True)
        if one.of is None and other.of is None
    ]
    rows = (
        [(*(affine.coef(at) for at in range(unknowns)), affine.constant) for affine in affines]
        for affines in (equal, least)
    )
    system = System().joined(*rows)
    return system is not None and system.feasible(_MOST_ROWS)


def _at_least_0(loops: Sequence[Loop]) -> Iterator[Affine]:
    """Each index less its lower bound, and its last value less the index, unless the bounds are
    elements of arrays."""
    for at, loop in enumerate(loops):
        if loop.lower.of is None:
            yield Affine.of_loop(at) - loop.lower.affine
        if loop.upper.of is None:
            yield loop.upper.affine - Affine.of_loop(at, 1)


@dataclass(frozen=True, slots=True)
class _Chain:
    """A perfect part: nested loops, and the statements of the innermost."""

    blocks: tuple[Block, ...]
    steps: tuple[Step, ...]

    @property
    def place(self) -> int | str:
        return self.blocks[0].place if self.blocks else self.steps[0].place

    @property
    def lines(self) -> list[tuple[int, int]]:
        """The first and the last line, where places are lines."""
        lines = [node.place for node in self.nodes if isinstance(node.place, int)]
        return [(min(lines), max(lines))] if lines else []

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.blocks, *self.steps)


class _Bound(Exception):
    """A loop cannot be distributed: the part above depends on an earlier iteration of the part
    below."""

    def __init__(self, above: int | str, below: int | str, array: int) -> None:
        super().__init__()
        self.above, self.below, self.array = above, below, array

    def reason(self, names: Sequence[str]) -> str:
        below, above = _place_text(self.below), _place_text(self.above)
        return f"{names[self.array]} is carried from {below} back to {above}"


def nests_of(program: Program, left_out: Sequence[str] = ()) -> Extraction:
    """The perfect nests of a program, named by it, in the order of the text.

    Raises: NestError with the line of an unsupported part, and if there is no nest at all.
    """
    notes = list(left_out)
    program, chosen = with_fills(replace(program, body=_running(program.body, notes)))
    notes += chosen
    program = without_scalars(program)
    chains: list[_Chain] = []
    partial: list[int | str] = []
    for node in program.body:
        before = len(notes)
        with _noted(notes, program.strict):
            chains += _chains_of(node, program, notes)
        if len(notes) > before:
            partial.append(node.place)
    touched: Counter[int] = Counter()
    for chain in chains:
        touched.update({access.array for node in chain.nodes for access, _ in accesses(node)})
    nests: list[Nest] = []
    lines: list[tuple[int, int]] = []
    earlier: set[int] = set()
    for at, chain in enumerate(chains):
        name = program.name if len(chains) == 1 else f"{program.name}_{at + 1}"
        written = {step.statement.target.array for step in chain.steps}
        alone = {a for a in program.local & written if touched[a] == 1}
        with _noted(notes, program.strict):
            nests.append(_nest(chain, program, name, earlier=earlier, alone=alone))
            lines += chain.lines
        earlier |= written
    if not nests:
        raise NestError("has no loop nest" + "".join(f"; {note}" for note in notes[:1]))
    return Extraction(tuple(nests), tuple(notes), tuple(lines), tuple(partial))


def _running(nodes: Sequence[Node], notes: list[str]) -> tuple[Node, ...]:
    """The nodes without loops that never run, each of which gets a note."""
    running = list[Node]()
    for node in nodes:
        if isinstance(node, Block):
            low, high = node.loop.lower, node.loop.upper
            apart = high - low if low.of is None and high.of is None else None
            if apart is not None and not apart.loops and apart.affine.constant < 1:
                notes.append(f"{_place_text(node.place)}: loop {node.name} never runs: left out")
                continue
            node = replace(node, inside=_running(node.inside, notes))
            if not node.inside:
                continue
        running.append(node)
    return tuple(running)


@contextmanager
def _noted(notes: list[str], strict: bool) -> Iterator[None]:
    """Turn a refusal inside into a note, unless `strict`."""
    try:
        yield
    except NestError as error:
        if strict:
            raise
        notes.append(error.reason)


def _chains_of(node: Node, program: Program, notes: list[str]) -> list[_Chain]:
    if isinstance(node, Step):
        notes.append(f"{_place_text(node.place)}: a statement outside of loops is left out")
        return []
    try:
        return _distributed(node, ())
    except _Bound as bound:
        return _cut(node, program, notes, bound.reason(program.array_names))


def _distributed(block: Block, around: tuple[Block, ...]) -> list[_Chain]:
    around = (*around, block)
    parts: list[_Chain] = []
    run: list[Step] = []
    for node in (*block.inside, None):
        if isinstance(node, Step):
            run.append(node)
            continue
        if run:
            parts.append(_Chain((), tuple(run)))
        run = []
        if node is not None:
            parts += _distributed(node, around)
    for early, late in combinations(parts, 2):
        _check_free(early, late, around)
    return [_Chain((block, *part.blocks), part.steps) for part in parts]


def _check_free(early: _Chain, late: _Chain, around: tuple[Block, ...]) -> None:
    """Raises: _Bound if all iterations of `early` may not come before those of `late`."""
    for one, one_writes, one_sum in _sites(early, around):
        for other, other_writes, other_sum in _sites(late, around):
            if not (one_writes or other_writes) or (one_sum and one_sum == other_sum):
                continue
            if meet_later(other, one, len(around) - 1):
                raise _Bound(early.place, late.place, one.access.array)


def _sites(chain: _Chain, around: tuple[Block, ...]) -> list[tuple[Site, bool, str]]:
    """Accesses, whether they write, and for targets of reductions the combining operator."""
    loops = tuple(b.loop for b in (*around, *chain.blocks))
    sites = []
    for depth, node in enumerate(chain.nodes):
        within = loops[: len(around) + min(depth, len(chain.blocks))]
        for access, writes in accesses(node):
            sums = isinstance(node, Step) and writes and node.statement.reduction
            combine = node.statement.combine if isinstance(node, Step) and sums else ""
            sites.append((Site(access, within), writes, combine))
    return sites


# -- loops that are cut off ------------------------------------------------------------------------


def _cut(block: Block, program: Program, notes: list[str], why: str) -> list[_Chain]:
    """The chains of one iteration of a loop: of first, middle and last the one with the most
    work."""
    first, end = constant(block.loop.lower), constant(block.loop.upper)
    if first is None or end is None:
        raise _refusal(f"loop {block.name} cannot be distributed: {why}", block.place)
    turns = range(first, end, block.loop.step)
    if not turns:
        raise _refusal(f"loop {block.name} never runs", block.place)
    tried = []
    for turn in dict.fromkeys((turns[0], turns[len(turns) // 2], turns[-1])):
        own: list[str] = []
        chains = [
            chain
            for node in block.inside
            for chain in _chains_of(at_turn(node, turn), program, own)
        ]
        points = [_points(chain, program) for chain in chains]
        running = [chain for chain, times in zip(chains, points, strict=True) if times]
        never = [chain for chain, times in zip(chains, points, strict=True) if not times]
        own += [f"{_place_text(chain.place)}: never runs in this turn" for chain in never]
        tried.append((len(running), sum(points), turn, running, own))
    _, _, turn, running, own = max(tried, key=lambda one: one[:2])
    name, place = block.name, _place_text(block.place)
    notes.append(f"{place}: loop {name} is cut off at {name} = {turn}: {why}")
    notes += own
    return running


def _points(chain: _Chain, program: Program) -> int:
    return math.prod(trips([b.loop for b in chain.blocks], program.arrays))


# -- nests -----------------------------------------------------------------------------------------


def _nest(
    chain: _Chain, program: Program, name: str, *, earlier: set[int], alone: set[int]
) -> Nest:
    """The nest after those that wrote the arrays `earlier`, which are no longer zero; `alone` are
    read by no other."""
    statements = tuple(step.statement for step in chain.steps)
    arrays = []
    for at, array in enumerate(program.arrays):
        own = "" if at in earlier and array.fill == "zero" else array.fill
        fill = own or _fill(at, statements)
        arrays.append(replace(array, fill=fill, transient=at in alone))
    nest = Nest(
        tuple(b.loop for b in chain.blocks),
        tuple(arrays),
        statements,
        name=name,
        group=program.name,
        loop_names=tuple(b.name for b in chain.blocks),
        array_names=program.array_names,
    )
    try:
        # Read back like a foreign file, so that every limit of the file form applies.
        return nest_from_text(nest_text(in_order(nest)))
    except NestError as error:
        raise _refusal(error.reason, chain.place, error.hint) from error


def _fill(array: int, statements: Sequence[Statement]) -> str:
    """Zero where an array is overwritten before it is read; else uniform."""
    for statement in statements:
        if any(access.array == array for access in statement.reads()):
            return "uniform"
        if statement.target.array == array:
            over = statement.combine == "=" and statement.where is None
            return "zero" if over else "uniform"
    return "uniform"


def _place_text(place: int | str) -> str:
    return f"line {place}" if isinstance(place, int) else place


def _refusal(reason: str, place: int | str, hint: str = "") -> NestError:
    if isinstance(place, int):
        return NestError(reason, line=place, hint=hint)
    return NestError(f"{place}: {reason}", hint=hint)
