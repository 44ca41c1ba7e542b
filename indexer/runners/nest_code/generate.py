"""From a nest and a schedule to a function of C.

Block loops stand outside, in their order, then one loop a loop of the nest. What is inside the
parallel loop is a function of its own: OpenMP forgets what `restrict` said of captured pointers.
A reduction whose target stays the same in the innermost loop is summed up in a variable.
"""

from __future__ import annotations

from embeddb.kernels.emitter import Lines, signature, step
from embeddb.nests.dependence.legality import Legality
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Statement
from embeddb.nests.schedule import JAMMED, Schedule
from indexer.runners.nest_code.bounds import Bounds, bounds_of
from indexer.runners.nest_code.expressions import C_TYPES, HELPERS, Site, Writer
from indexer.runners.nest_code.names import Names, names_of
from indexer.runners.nest_code.pack import Packing, packing

__all__ = ["GENERATION", "PRELUDE", "c_function"]

#: Raised when the same schedule becomes other code: times of different generations are not mixed.
GENERATION = 1

#: What stands once above all functions of a file.
PRELUDE = f"#include <math.h>\n#include <stdint.h>\n\n{HELPERS}\n"
_OMP_OPERATORS = {"+=": "+", "*=": "*", "min=": "min", "max=": "max"}


def c_function(nest: Nest, schedule: Schedule, name: str, *, writer: type[Writer] = Writer) -> str:
    """`void NAME(...)`, which takes a pointer for each array of the nest, in their order, and needs
    `PRELUDE` above it. `writer` decides how accesses are written.

    Raises: NestError for a schedule of which there is no code; whether it is legal is not asked.
    """
    return _Function(nest, schedule, name, writer).text()


class _Function:
    """One function and the one within its parallel loop, if there is any."""

    def __init__(
        self, nest: Nest, schedule: Schedule, name: str, writer: type[Writer] = Writer
    ) -> None:
        self.nest, self.schedule, self.name = nest, schedule, name
        self.pieces = schedule.pieces(nest)
        taken = {f"{kind}{d}" for kind in ("x", "low_", "sum_") for d in range(64)}
        self.names: Names = names_of(nest, frozenset({*taken, "packed", name, f"{name}_turn"}))
        self.writer = writer(nest, list(self.names.arrays))
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
        """The helper function first."""
        head, rest = Lines([]), Lines([])
        self._level(0, head, rest)
        arrays = [
            f"{'' if a in self.nest.written else 'const '}{C_TYPES[array.dtype]} *restrict {name}"
            for a, (array, name) in enumerate(zip(self.nest.arrays, self.names.arrays, strict=True))
        ]
        found = [f"/* {note} */" for note in self.notes]
        if rest.told:
            # Not inlined: there the pointers would be those that OpenMP has captured.
            head_of_turn = f"static __attribute__((noinline)) void {self.name}_turn"
            found += [*signature(head_of_turn, [*arrays, *self._captured()]), "{"]
            found += [*rest.told, "}", ""]
        found += [*signature(f"void {self.name}", arrays), "{", *head.told, "}", ""]
        return "\n".join(found)

    # -- loops -------------------------------------------------------------------------------------

    def _level(self, at: int, out: Lines, rest: Lines) -> None:
        """The generated loops from `at` inwards; those within a parallel one into `rest`."""
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
        """Four turns of the loop around the innermost at once, and what is left one by one."""
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
        """The innermost loop around the body, once for each of the turns of the loop around it."""
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
        """Parameters of what is inside the parallel loop, beside the arrays."""
        found = [f"int64_t {self._variable(at)}" for at in range(self.parallel + 1)]
        if self.jam and self.parallel == self.inner - 1:
            found.append(f"const int64_t {self.names.ends[self.pieces[self.parallel].loop]}")
        if self.pack is not None and self.pack.after < self.parallel:
            c = C_TYPES[self.nest.arrays[self.pack.array].dtype]
            found.append(f"const {c} *restrict packed")
            found += [f"const int64_t {low}" for _, low in self.pack.places() if low]
        return found

    # -- the body ----------------------------------------------------------------------------------

    def _site(self, instead: dict[int, tuple[str, int]]) -> Site:
        loops = {loop: (name, 0) for loop, name in enumerate(self.names.points)}
        packed = {} if self.pack is None else {self.pack.array: ("packed", self.pack.places())}
        return Site({**loops, **instead}, packed)

    def _bodies(self, sites: list[Site]) -> tuple[list[str], dict[str, tuple[str, str, str]]]:
        """The statements, once for each site, and the variables that are summed up in: their name,
        the target, its type, how it is combined."""
        lines: list[str] = []
        sums: dict[str, str] = {}
        told: dict[str, tuple[str, str, str]] = {}
        for site in sites:
            for statement in self.nest.body:
                array = statement.target.array
                target = self.writer.access(statement.target, site, write=True)
                if self._is_summed(statement):
                    name = sums.setdefault(target, f"sum_{len(sums)}")
                    told[name] = target, self.nest.arrays[array].dtype, statement.combine
                    target = name
                lines.append(self.writer.statement(statement, site, target))
        return lines, told

    def _is_summed(self, statement: Statement) -> bool:
        """Whether its target stays the same in the innermost loop, and is touched by it alone."""
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
        """Clauses for the arrays of which each thread needs a copy of its own; with `summed`
        without those that the innermost loop sums up in a variable."""
        if self.parallel < 0:
            return []
        found: dict[int, str] = {}
        private = Legality(self.nest).privatised(self.schedule)
        for s in self.nest.body:
            if s.target.array in private and not (summed and self._is_summed(s)):
                array = self.nest.arrays[s.target.array]
                name = self.names.arrays[s.target.array]
                section = f"{name}[:{array.elements}]"
                found[s.target.array] = f"{_OMP_OPERATORS[s.combine]} : {section}"
        return list(found.values())
