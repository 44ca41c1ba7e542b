"""C functions of a nest with a schedule.

Block loops are outermost, in their order, then one loop for each loop of the nest. The body of the
parallel loop is a function of its own: OpenMP drops `restrict` of captured pointers. A reduction
whose target is constant in the innermost loop is accumulated in a variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from embeddb.core.errors import NestError
from embeddb.kernels import build as cpu_build
from embeddb.kernels.emitter import Lines, signature, step
from embeddb.kernels.nests.expressions import (
    C_TYPES,
    HELPERS,
    Names,
    Site,
    Writer,
    linear,
    names_of,
)
from embeddb.nests.dependence.legality import Legality, packable
from embeddb.nests.nest import Nest, loop_range, values_of
from embeddb.nests.parts import DTYPES, Access, Affine, Index, Statement
from embeddb.nests.schedule import JAMMED, Piece, Schedule

#: Raised if the same schedule gets other code: times of different generations are not mixed.
GENERATION = 1

#: Start of a file, before all functions; that of one without calls of math.h (`math_called`), whose
#: names an array of the file may have (y0, gamma).
PLAIN_PRELUDE = f"#include <stdint.h>\n\n{HELPERS}\n"
PRELUDE = f"#include <math.h>\n{PLAIN_PRELUDE}"
#: Vector functions need -ffast-math.
FLAGS = ("-O3", "-ffast-math")
#: Last line of a function. GCC 12 may address an element without a base pointer (of `A[j][i] =
#: A[i][j]`, twice the array less the other address), takes that for no memory, and drops the calls.
_KEEPS_CALLS = '__asm__ volatile("" : : : "memory");'
_OMP_OPERATORS = {"+=": "+", "*=": "*", "min=": "min", "max=": "max"}


def flags() -> tuple[str, ...]:
    """Compiler flags."""
    return (*FLAGS, cpu_build.flags()[1], "-fopenmp", "-std=gnu11", "-fPIC", "-shared", "-w")


def c_function(nest: Nest, schedule: Schedule, name: str) -> str:
    """`void NAME(...)` with a pointer for each array of the nest, in their order; it needs
    `PRELUDE` before it.

    Raises: NestError for a schedule without code; legality is not checked.
    """
    return _Function(nest, schedule, name).text()


class _Function:
    """A function, and that of its parallel loop's body, if any."""

    def __init__(self, nest: Nest, schedule: Schedule, name: str) -> None:
        self.nest, self.schedule, self.name = nest, schedule, name
        self.pieces = schedule.pieces(nest)
        taken = {f"{kind}{d}" for kind in ("x", "low_", "sum_") for d in range(64)}
        self.names: Names = names_of(nest, frozenset({*taken, "packed", name, f"{name}_turn"}))
        self.writer = Writer(nest, list(self.names.arrays))
        self.bounds: list[Bounds] = [
            bounds_of(self.writer, self.names, self.pieces, at) for at in range(len(self.pieces))
        ]
        planned = packing(nest, schedule, self.pieces, self.names)
        self.pack: Packing | None = planned if isinstance(planned, Packing) else None
        self.notes = [f"pack {schedule.pack}: {planned}"] if isinstance(planned, str) else []
        at = {"outer": 0, "second": 1}.get(schedule.parallel, -1)
        self.parallel = at if at < len(self.pieces) else -1
        self.inner = len(self.pieces) - 1
        self.jam = schedule.inner == "jam4" and self._can_jam()

    def text(self) -> str:
        """C text, the helper function first."""
        head, rest = Lines([]), Lines([])
        self._level(0, head, rest)
        for function in (head, rest):
            if function.text:
                function.add(_KEEPS_CALLS)
        arrays = [
            f"{'' if a in self.nest.written else 'const '}{C_TYPES[array.dtype]} *restrict {name}"
            for a, (array, name) in enumerate(zip(self.nest.arrays, self.names.arrays, strict=True))
        ]
        lines = [f"/* {note} */" for note in self.notes]
        if rest.text:
            # Not inlined: the pointers would be those captured by OpenMP.
            head_of_turn = f"static __attribute__((noinline)) void {self.name}_turn"
            lines += [*signature(head_of_turn, [*arrays, *self._captured()]), "{"]
            lines += [*rest.text, "}", ""]
        lines += [*signature(f"void {self.name}", arrays), "{", *head.text, "}", ""]
        return "\n".join(lines)

    # -- loops -------------------------------------------------------------------------------------

    def _level(self, at: int, out: Lines, rest: Lines) -> None:
        """Write the generated loops from `at` inwards; those inside a parallel one into `rest`."""
        if self.pack is not None and self.pack.after == at - 1:
            out.add(*self.pack.lines(self.nest, self.names))
        if at == self.inner:
            self._innermost(out)
            return
        piece, variable = self.pieces[at], self._variable(at)
        jams = self.jam and at == self.inner - 1
        first, end = self.bounds[at].first, self.bounds[at].end
        if jams:
            out.add(f"const int64_t {self.names.ends[piece.loop]} = {end};")
            end = self.names.ends[piece.loop]
        if at == self.parallel:
            out.add(self._pragma(self._private()))
        by = step(variable, piece.step * (JAMMED if jams else 1))
        out.open(f"for (int64_t {variable} = {first}; {variable} < {end}; {by})")
        within = rest if at == self.parallel else out
        if at == self.parallel:
            passed = [*self.names.arrays, *(name.split()[-1] for name in self._captured())]
            out.add(f"{self.name}_turn({', '.join(p.lstrip('*') for p in passed)});")
        if jams:
            self._jammed(at, within)
        else:
            self._level(at + 1, within, rest)
        out.close()

    def _jammed(self, at: int, out: Lines) -> None:
        """Write four iterations of the loop around the innermost at once, and the remainder."""
        piece, variable = self.pieces[at], self._variable(at)
        end = self.names.ends[piece.loop]
        out.open(f"if ({variable} + {(JAMMED - 1) * piece.step} < {end})")
        turns = [self._site({piece.loop: (variable, n * piece.step)}) for n in range(JAMMED)]
        self._innermost(out, turns)
        out.depth -= 1
        out.open("} else")
        out.open(f"for (; {variable} < {end}; {step(variable, piece.step)})")
        self._innermost(out)
        out.close()
        out.close()

    def _innermost(self, out: Lines, turns: list[Site] | None = None) -> None:
        """Write the innermost loop with the body, once for each of the jammed iterations."""
        at = self.inner
        piece, variable = self.pieces[at], self._variable(at)
        sites = turns or [self._site({})]
        bodies, sums = self._bodies(sites)
        for name, (target, dtype, _) in sums.items():
            out.add(f"{C_TYPES[dtype]} {name} = {target};")
        clauses = [f"{_OMP_OPERATORS[how]} : {name}" for name, (_, _, how) in sums.items()]
        pragma = self._inner_pragma(clauses)
        if pragma:
            out.add(pragma)
        first, end = self.bounds[at].first, self.bounds[at].end
        by = step(variable, piece.step)
        out.open(f"for (int64_t {variable} = {first}; {variable} < {end}; {by})")
        out.add(*bodies)
        out.close()
        for name, (target, _, _) in sums.items():
            out.add(f"{target} = {name};")

    def _inner_pragma(self, clauses: list[str]) -> str:
        simd = self.schedule.inner == "simd"
        if self.parallel == self.inner:
            return self._pragma([*clauses, *self._private(summed=True)], simd=simd)
        reductions = "".join(f" reduction({clause})" for clause in clauses)
        if simd:
            return f"#pragma omp simd{reductions}"
        return "#pragma GCC unroll 4" if self.schedule.inner == "unroll4" else ""

    def _pragma(self, clauses: list[str], *, simd: bool = False) -> str:
        policy = self.schedule.policy
        if policy == "dynamic":
            policy = f"dynamic, {self.schedule.chunk}"
        reductions = "".join(f" reduction({clause})" for clause in clauses)
        return f"#pragma omp parallel for{' simd' * simd} schedule({policy}){reductions}"

    def _variable(self, at: int) -> str:
        piece = self.pieces[at]
        return (self.names.blocks if piece.block else self.names.points)[piece.loop]

    def _captured(self) -> list[str]:
        """Parameters of the parallel loop's body, beside the arrays."""
        parameters = [f"int64_t {self._variable(at)}" for at in range(self.parallel + 1)]
        if self.jam and self.parallel == self.inner - 1:
            parameters.append(f"const int64_t {self.names.ends[self.pieces[self.parallel].loop]}")
        if self.pack is not None and self.pack.after < self.parallel:
            c = C_TYPES[self.nest.arrays[self.pack.array].dtype]
            parameters.append(f"const {c} *restrict packed")
            parameters += [f"const int64_t {low}" for _, low in self.pack.places() if low]
        return parameters

    # -- the body ----------------------------------------------------------------------------------

    def _site(self, instead: dict[int, tuple[str, int]]) -> Site:
        loops = {loop: (name, 0) for loop, name in enumerate(self.names.points)}
        packed = {} if self.pack is None else {self.pack.array: ("packed", self.pack.places())}
        return Site({**loops, **instead}, packed)

    def _bodies(self, sites: list[Site]) -> tuple[list[str], dict[str, tuple[str, str, str]]]:
        """The statements, once for each site, and the accumulators: name, target, type,
        operator."""
        lines: list[str] = []
        sums: dict[str, str] = {}
        accumulators: dict[str, tuple[str, str, str]] = {}
        for site in sites:
            for statement in self.nest.body:
                array = statement.target.array
                target = self.writer.access(statement.target, site, write=True)
                if self._is_summed(statement):
                    name = sums.setdefault(target, f"sum_{len(sums)}")
                    accumulators[name] = target, self.nest.arrays[array].dtype, statement.combine
                    target = name
                lines.append(self.writer.statement(statement, site, target))
        return lines, accumulators

    def _is_summed(self, statement: Statement) -> bool:
        """True if the target is constant in the innermost loop and accessed by this statement
        only."""
        target = statement.target
        if not statement.reduction or self.pieces[self.inner].loop in target.loops:
            return False
        if self.jam and not target.affine:
            return False  # two jammed turns may meet in one element
        touched = [a for _, a, _ in self.nest.accesses() if a.array == target.array]
        return len(touched) == 1

    def _can_jam(self) -> bool:
        if self.inner < 1:
            self.notes.append("jam4: there is one loop only")
            return False
        if self._variable(self.inner - 1) in self.bounds[self.inner].needs:
            self.notes.append("jam4: the innermost loop depends on the one around it")
            return False
        return True

    def _private(self, *, summed: bool = False) -> list[str]:
        """Clauses of privatised arrays; with `summed`, without those accumulated in a variable by
        the innermost loop."""
        if self.parallel < 0:
            return []
        clauses: dict[int, str] = {}
        private = Legality(self.nest).privatised(self.schedule)
        for s in self.nest.body:
            if s.target.array in private and not (summed and self._is_summed(s)):
                array = self.nest.arrays[s.target.array]
                name = self.names.arrays[s.target.array]
                section = f"{name}[:{array.elements}]"
                clauses[s.target.array] = f"{_OMP_OPERATORS[s.combine]} : {section}"
        return list(clauses.values())


@dataclass(frozen=True, slots=True)
class Bounds:
    """First index and end index as C; `needs` are the variables of generated loops in them."""

    first: str
    end: str
    needs: frozenset[str]


def bounds_of(writer: Writer, names: Names, pieces: Sequence[Piece], at: int) -> Bounds:
    """The bounds of piece `at`.

    Raises: NestError for a loop outside of one that its bounds depend on.
    """
    nest, piece = writer.nest, pieces[at]
    loop = nest.loops[piece.loop]
    around = pieces[:at]
    if piece.block:
        if loop.lower.of is not None or loop.upper.of is not None:
            raise NestError(
                f"loop {nest.loop_name(piece.loop)}: bounds out of an array have no blocks"
            )
        least, least_needs = _furthest(nest, names, around, loop.lower, up=False)
        most, most_needs = _furthest(nest, names, around, loop.upper, up=True)
        return Bounds(least, most, least_needs | most_needs)
    points = frozenset(p.loop for p in around if not p.block)
    for bound in (loop.lower, loop.upper):
        if hidden := bound.loops - points:
            inner, outer = nest.loop_name(min(hidden)), nest.loop_name(piece.loop)
            raise NestError(f"loop {outer} cannot stand outside of {inner}, which bounds it")
    site = Site({k: (names.points[k], 0) for k in points})
    lower, upper = (writer.index(bound, site) for bound in (loop.lower, loop.upper))
    needs = frozenset(names.points[k] for k in loop.lower.loops | loop.upper.loops)
    tile = next((p for p in around if p.block and p.loop == piece.loop), None)
    if tile is None:
        return Bounds(lower, upper, needs)
    block = names.blocks[piece.loop]
    first, end = _within(nest, piece.loop, tile.step, (block, lower, upper))
    return Bounds(first, end, needs | {block})


def _within(nest: Nest, at: int, step: int, block_bounds: tuple[str, str, str]) -> tuple[str, str]:
    """Bounds of the point loop in one block."""
    block, lower, upper = block_bounds
    loop, last = nest.loops[at], f"{block_bounds[0]} + {step}"
    span = loop.upper.affine.constant - loop.lower.affine.constant
    whole = not loop.upper.loops and not loop.lower.loops and span % step == 0
    end = last if whole else f"min_i64({last}, {upper})"
    if not loop.lower.loops:
        return block, end
    if loop.step == 1:
        return f"max_i64({block}, {lower})", end
    # The first index of the loop that is not before the block.
    turns = f"(max_i64({block} - ({lower}), 0) + {loop.step - 1}) / {loop.step}"
    return f"{lower} + {loop.step} * ({turns})", end


def _furthest(
    nest: Nest, names: Names, around: Sequence[Piece], index: Index, *, up: bool
) -> tuple[str, frozenset[str]]:
    """The largest (or smallest) value of a bound under the generated loops around it, and the
    variables in it."""
    points = [p.loop for p in around if not p.block]
    blocks = {p.loop: p.step for p in around if p.block}
    constant, coefs = index.affine.constant, list(index.affine.coefs)
    terms: list[tuple[int, str]] = []
    for loop in range(len(coefs) - 1, -1, -1):
        coef = coefs[loop]
        last = (coef > 0) == up
        if not coef:
            continue
        if loop in points:
            terms.append((coef, names.points[loop]))
        elif loop in blocks:
            terms.append((coef, names.blocks[loop]))
            constant += coef * (blocks[loop] - 1) * last
        else:  # the last (or first) index of a loop inside
            bound = nest.loops[loop].upper if last else nest.loops[loop].lower
            constant += coef * (bound.affine.constant - last)
            if bound.of is not None:
                constant += coef * values_of(nest.arrays[bound.of.array])[last]
            for outer, by in enumerate(bound.affine.coefs):
                coefs[outer] += coef * by
    return linear(constant, terms[::-1]), frozenset(name for _, name in terms)


#: Largest buffer: it is on a thread's stack, and useful only within the second-level cache.
MOST_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Packing:
    """A packed copy: the array, the generated loop that it is copied in, and by dimension the first
    index in the buffer, as C, and the extent; `strides` are the buffer's. The dimension of the
    innermost loop is contiguous."""

    array: int
    after: int
    lows: tuple[str, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    def places(self) -> tuple[tuple[int, str], ...]:
        """Per dimension, the buffer's stride and the variable of its first index; empty if that is
        0."""
        dimensions = zip(self.strides, self.lows, strict=True)
        return tuple(
            (stride, f"low_{d}" * (low != "0")) for d, (stride, low) in enumerate(dimensions)
        )

    def lines(self, nest: Nest, names: Names) -> list[str]:
        """C of the copy, which declares `packed` and `low_0`, ..."""
        array = nest.arrays[self.array]
        c, own = C_TYPES[array.dtype], names.arrays[self.array]
        lines = [f"{c} packed[{prod(self.extents)}] __attribute__((aligned(64)));"]
        places = self.places()
        lines += [
            f"const int64_t {name} = max_i64({low}, 0);"
            for (_, name), low in zip(places, self.lows, strict=True)
            if name
        ]
        inside: list[tuple[int, str]] = []
        for d, (stride, low) in enumerate(places):
            extent, size = self.extents[d], array.shape[d]
            end = f"min_i64({low} + {extent}, {size})" if low else str(min(extent, size))
            lines.append(f"{'    ' * d}for (int64_t x{d} = {low or 0}; x{d} < {end}; x{d}++)")
            inside.append((stride, f"(x{d} - {low})" if low else f"x{d}"))
        at = [(stride, f"x{d}") for d, stride in enumerate(array.strides)]
        inmost = f"packed[{linear(0, inside)}] = {own}[{linear(0, at)}];"
        return [*lines, "    " * len(places) + inmost]


def packing(
    nest: Nest, schedule: Schedule, pieces: Sequence[Piece], names: Names
) -> Packing | str | None:
    """The packed copy of a schedule, a reason why there is none, or None if not requested."""
    if schedule.pack == "none":
        return None
    arrays = packable(nest)
    nth = int(schedule.pack.removeprefix("read")) - 1
    if nth >= len(arrays):
        return f"no array {nth + 1} that is read alone"
    array = arrays[nth]
    name = names.arrays[array]
    accesses = [a for _, a, _ in nest.accesses() if a.array == array]
    used = frozenset().union(*(a.loops for a in accesses))
    after = max((q for q, p in enumerate(pieces) if p.block and p.loop in used), default=-1)
    if after < 0:
        return f"no loop over {name} has blocks"
    if len({tuple(i.affine.coefs for i in a.at) for a in accesses}) > 1:
        return f"{name} is read along different loops"
    steps = {p.loop: p.step for p in pieces if p.block}
    shape = nest.arrays[array].shape
    spans = [_span(nest, names, steps, d, accesses) for d in range(len(shape))]
    lows, extents = tuple(low for low, _ in spans), tuple(extent for _, extent in spans)
    if prod(extents) * DTYPES[nest.arrays[array].dtype] > MOST_BYTES:
        return f"a block of {name} has more than {MOST_BYTES} bytes"
    return Packing(array, after, lows, extents, _strides(accesses[0], extents, schedule.innermost))


def _span(
    nest: Nest, names: Names, steps: dict[int, int], dimension: int, accesses: Sequence[Access]
) -> tuple[str, int]:
    """The smallest index along a dimension within one block, and the largest extent."""
    affines: list[Affine] = [a.at[dimension].affine for a in accesses]
    constants = [a.constant for a in affines]
    low, extent, terms = min(constants), max(constants) - min(constants) + 1, []
    for loop, coef in enumerate(affines[0].coefs):
        if not coef:
            continue
        first, last = loop_range(nest.loops, nest.arrays, loop)
        if loop in steps:
            length = steps[loop] - nest.loops[loop].step
            terms.append((coef, names.blocks[loop]))
            low += coef * length if coef < 0 else 0
        else:
            length = last - first
            low += coef * (first if coef > 0 else last)
        extent += abs(coef) * length
    return linear(low, terms), min(extent, nest.arrays[accesses[0].array].shape[dimension])


def _strides(access: Access, extents: tuple[int, ...], innermost: int) -> tuple[int, ...]:
    along = [d for d, index in enumerate(access.at) if innermost in index.loops]
    order = [d for d in range(len(extents)) if d not in along[-1:]] + along[-1:]
    strides = [0] * len(extents)
    size = 1
    for d in reversed(order):
        strides[d] = size
        size *= extents[d]
    return tuple(strides)
