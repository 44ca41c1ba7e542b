"""The instrumented C of a nest: `model.c.in` with the nest's loops inserted, where each access is a
call of the simulated caches. Only values that decide the accesses are computed.

Loads, stores and operations are those of one iteration of each loop after basic compiler
optimisation. Only three optimisations of every compiler are modelled: an access that does not
change in a loop is loaded before it (a reduction's element is stored after it), a value in a
register is not loaded again, and both stop where a condition decides whether the code runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from embeddb.dynamics.record import MACHINE, data_caches
from embeddb.kernels.nests.expressions import C_TYPES, Site, Writer
from embeddb.nests.nest import Nest
from embeddb.nests.parts import (
    COMPARISONS,
    DTYPES,
    Access,
    Array,
    Call,
    Const,
    Expr,
    LoopIndex,
    Read,
    reads,
)


class Level(NamedTuple):
    """One cache: how many sets, and how many lines in each."""

    sets: int
    ways: int


@dataclass(frozen=True, slots=True)
class Caches:
    """Three levels of data caches; L1 and L2 belong to one thread, L3 to all of them."""

    l1: Level
    l2: Level
    l3: Level
    line_bytes: int = 64

    def sliced(self, threads: int) -> Caches:
        """With the part of L3 that one of so many threads has."""
        return replace(self, l3=self.l3._replace(sets=max(1, self.l3.sets // threads)))

    @property
    def last_bytes(self) -> int:
        """Bytes of the last level."""
        return self.l3.sets * self.l3.ways * self.line_bytes

    def __str__(self) -> str:
        levels = (self.l1, self.l2, self.l3)
        return "+".join(f"{c.sets * c.ways * self.line_bytes >> 10}K/{c.ways}" for c in levels)


#: Default where the system describes no caches: 32 KiB, 1 MiB and 32 MiB.
PLAIN = Caches(Level(64, 8), Level(1024, 16), Level(32768, 16))


def caches_here(folder: Path = MACHINE) -> Caches:
    """The caches of the first processor as described by the system, else `PLAIN`."""
    levels: dict[str, Level] = {}
    line = PLAIN.line_bytes
    for read in data_caches(folder):
        sets, ways, line_bytes = (
            int(text) if re.fullmatch(r"\d{1,9}", text := read(name)) else 0
            for name in ("number_of_sets", "ways_of_associativity", "coherency_line_size")
        )
        if 0 < sets <= 1 << 24 and 0 < ways <= 64 and 16 <= line_bytes <= 256:
            levels[read("level")] = Level(sets, ways)
            line = line_bytes
    if "1" not in levels or "2" not in levels:
        return PLAIN
    # Without a third level, what misses the second goes to memory: a cache of one line.
    return Caches(levels["1"], levels["2"], levels.get("3", Level(1, 1)), line)


#: Operations that count as arithmetic where their operands are floating; comparing and choosing do
#: not (Intel's manual on FP_ARITH_INST_RETIRED).
_ARITHMETIC = frozenset({"+", "-", "*", "/", "min", "max", "sqrt"})
#: Calls of the mathematical library, in operations: a polynomial of about this length each.
_MATH_CALLS = dict.fromkeys(("exp", "log", "tanh"), 10)


#: Floating operations by type, `f32` and `f64`, and all `other` (integer, comparing, choosing).
Operations = Counter[str]


@dataclass(frozen=True, slots=True)
class Step:
    """One statement in the innermost loop. `before`: loads of its condition; `loads` and `stores`
    run if that holds, or there is none."""

    before: tuple[Access, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    tested: Operations
    computed: Operations


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a nest. `enter[l]`: loads each time before loop l starts; `leave[l]`: stores each
    time it ends; `steps`: each iteration of the innermost loop."""

    enter: tuple[tuple[Access, ...], ...]
    leave: tuple[tuple[Access, ...], ...]
    steps: tuple[Step, ...]

    def accesses(self, trips: Sequence[int]) -> float:
        """Loads and stores of the whole nest by its `trips`, where all conditions hold."""
        total, turns = 0.0, 1.0
        for enter, leave, trip in zip(self.enter, self.leave, trips, strict=True):
            total += turns * (len(enter) + len(leave))
            turns *= trip
        return total + turns * sum(len(s.before) + len(s.loads) + len(s.stores) for s in self.steps)


def work_of(nest: Nest) -> Work:
    """The work of a nest in the order of its text."""
    register_targets = {s.target for s in nest.body if _keeps(nest, s.target)}
    enter: list[dict[Access, None]] = [{} for _ in nest.loops]
    leave: list[dict[Access, None]] = [{} for _ in nest.loops]
    for number, access, _ in nest.accesses():
        if number < 0:
            enter[_level(access)][access] = None
    steps = []
    in_registers: set[Access] = set()
    for at, statement in enumerate(nest.body):
        steps.append(_work_of_step(nest, at, register_targets, enter, in_registers))
        if statement.target in register_targets:
            leave[_level(statement.target)][statement.target] = None
    return Work(tuple(map(tuple, enter)), tuple(map(tuple, leave)), tuple(steps))


def deciding(nest: Nest) -> frozenset[int]:
    """The arrays whose values decide the accesses: those in bounds, indices and conditions, and
    those that are written into such an array."""
    arrays = {a.array for _, access, _ in nest.accesses() for a in access.inner()}
    arrays |= {access.array for statement, access, _ in nest.accesses() if statement < 0}
    for statement in nest.body:
        arrays |= {a.array for a in reads(statement.where)}
    size = -1
    while size != len(arrays):
        size = len(arrays)
        for statement in nest.body:
            if statement.target.array in arrays:
                arrays |= {a.array for a in statement.reads()}
    return frozenset(arrays)


def dtype_of(expression: Expr, arrays: Sequence[Array]) -> str | None:
    """The type of a value; None for a constant, which takes that of the other operand."""
    match expression:
        case Const(value):
            return "f32" if isinstance(value, float) and not value.is_integer() else None
        case LoopIndex():
            return "i64"
        case Read(access):
            return arrays[access.array].dtype
        case Call(op, args):
            if op in COMPARISONS:
                return "i32"
            taken = args[1:] if op == "select" else args
            dtype = _widest([dtype_of(a, arrays) for a in taken])
            real = op in ("/", "sqrt", *_MATH_CALLS)
            return "f64" if real and dtype not in ("f32", "f64") else dtype


def _level(access: Access) -> int:
    """The outermost loop before which an access can run, counted from outside."""
    return 1 + max(access.loops, default=-1)


def _keeps(nest: Nest, target: Access) -> bool:
    """True if a target stays in a register for a whole loop: nothing else touches its array."""
    alone = all(a == target for _, a, _ in nest.accesses() if a.array == target.array)
    free = all(s.where is None for s in nest.body if s.target == target)
    return alone and free and _level(target) < nest.depth


def _work_of_step(
    nest: Nest,
    at: int,
    register_targets: set[Access],
    enter: list[dict[Access, None]],
    in_registers: set[Access],
) -> Step:
    """Work of statement `at`; `in_registers` are the accesses of earlier ones, and is updated."""
    statement = nest.body[at]

    def loads(accesses: Iterator[Access], sure: bool) -> Iterator[Access]:
        for access in accesses:
            fixed = access in register_targets or (access.array not in nest.written and sure)
            if fixed and _level(access) < nest.depth:
                if access not in stored:
                    enter[_level(access)].setdefault(access)
            elif access not in in_registers:
                in_registers.add(access)
                yield access

    where, target = statement.where, statement.target
    # An element stored by an earlier statement of this iteration needs no load before the loop.
    stored = {s.target for s in nest.body[:at]} & register_targets
    before = tuple(loads(reads(where), True))
    outside = set(in_registers)
    read = [*target.inner(), *reads(statement.value), *([target] if statement.reduction else [])]
    inside = tuple(loads(iter(read), where is None))
    stores = () if target in register_targets else (target,)
    if where is not None:
        in_registers.intersection_update(outside)
    if stores:
        in_registers.difference_update([a for a in in_registers if a.array == target.array])
        in_registers.update(stores if where is None else ())
    computed = _operations(statement.value, nest.arrays)
    if statement.reduction:
        both = [dtype_of(statement.value, nest.arrays), nest.arrays[target.array].dtype]
        _count(computed, statement.combine[:-1], _widest(both))
    return Step(before, inside, stores, _operations(where, nest.arrays), computed)


def _operations(expression: Expr | None, arrays: Sequence[Array]) -> Operations:
    operations: Operations = Counter()
    if isinstance(expression, Call):
        dtype = _widest([dtype_of(a, arrays) for a in expression.args])
        _count(operations, expression.op, dtype)
        for argument in expression.args:
            operations += _operations(argument, arrays)
    return operations


def _count(operations: Operations, op: str, dtype: str | None) -> None:
    if dtype not in ("f32", "f64") and op in ("sqrt", *_MATH_CALLS):
        dtype = "f64"
    floating = dtype in ("f32", "f64") and (op in _ARITHMETIC or op in _MATH_CALLS)
    operations[str(dtype) if floating else "other"] += _MATH_CALLS.get(op, 1)


def _widest(dtypes: Sequence[str | None]) -> str | None:
    order = ("i32", "i64", "f32", "f64")
    assert len(order) == len(DTYPES)
    typed = [d for d in dtypes if d is not None]
    return max(typed, key=order.index) if typed else None


#: Values printed per thread, in this order; then iterations counted, and passes cut short.
KINDS = (
    *("loads", "stores", "points", "f32", "f64", "other", "branches", "mispredictions"),
    *("l1_in", "l1_out", "l2_in", "l2_out", "reads", "writes"),
)
_PAGE = 4096
_CALLS = {"neg": "negated", "abs": "fabs", "min": "fmin", "max": "fmax", "sqrt": "sqrt"} | {
    op: op for op in ("exp", "log", "tanh")
}


@dataclass(frozen=True, slots=True)
class Pass:
    """Iterations `first` to `last` of the outermost loop.

    `kind`: `THREAD` (a new thread, empty caches), `WARM` (not counted), `COUNT`, or `INSIDE` (the
    first `quota` steps warm, as many counted). It ends after `quota` steps, which are accesses and
    iterations of the innermost loop. `FILL`: the bytes `first` to `last` are read, not counted.
    """

    kind: str
    first: int = 0
    last: int = 0
    quota: int = 1 << 60


def addresses(nest: Nest) -> tuple[int, ...]:
    """Address of each array: one after the other, each on a page of its own."""
    starts, at = [], _PAGE
    for array in nest.arrays:
        starts.append(at)
        at += -(-array.bytes // _PAGE) * _PAGE
    return tuple(starts)


def source(nest: Nest, caches: Caches, passes: Sequence[Pass]) -> str:
    """A program that prints a line per thread, given the file with the arrays of `deciding`, in
    order."""
    text = files("indexer.runners.counters").joinpath("model.c.in").read_text(encoding="utf-8")
    for name, part in (
        ("sizes", _sizes(nest, caches, passes)),
        ("arrays", _arrays(nest)),
        ("nest", _run(nest, work_of(nest))),
    ):
        text = text.replace(f"@{name}@", "\n".join(part))
    return text


def _sizes(nest: Nest, caches: Caches, passes: Sequence[Pass]) -> Iterator[str]:
    yield f"#define LINE_BYTES {caches.line_bytes}"
    for level, cache in enumerate((caches.l1, caches.l2, caches.l3), 1):
        yield f"#define L{level}_SETS {cache.sets}\n#define L{level}_WAYS {cache.ways}"
    yield f"#define SITES {nest.depth + len(nest.body)}"
    yield "static const int64_t passes[][4] = {"
    yield from (f"    {{{p.kind}, {p.first}, {p.last}, {p.quota}}}," for p in passes)
    yield "};"


def _arrays(nest: Nest) -> Iterator[str]:
    deciding_arrays = sorted(deciding(nest))
    yield from (f"static {C_TYPES[nest.arrays[at].dtype]} *a{at};" for at in deciding_arrays)
    yield "static int read_arrays(FILE *file)\n{"
    for at in deciding_arrays:
        count = nest.arrays[at].elements
        yield f"    if (!(a{at} = malloc({count} * sizeof *a{at}))"
        yield f"        || fread(a{at}, sizeof *a{at}, {count}, file) != {count})"
        yield "        return 0;"
    yield "    return file != NULL;\n}"


def _run(nest: Nest, work: Work) -> Iterator[str]:
    yield "static void run(int64_t first, int64_t last)\n{"
    yield from _each("load", work.enter[0], nest)
    outer, (writer, site) = nest.loops[0], _writer(nest)
    yield f"const int64_t low0 = {writer.index(outer.lower, site)};"
    yield "for (int64_t turn0 = first; turn0 < last; turn0++) {"
    yield f"const int64_t i0 = low0 + turn0 * {outer.step};"
    yield "now[BRANCHES]++;\nnow[OTHER] += 2;"
    for at, loop in enumerate(nest.loops[1:], 1):
        yield from _each("load", work.enter[at], nest)
        low, high = (writer.index(bound, site) for bound in (loop.lower, loop.upper))
        yield f"const int64_t low{at} = {low}, span{at} = {high} - low{at};"
        yield f"const int64_t count{at} = span{at} > 0 ? (span{at} - 1) / {loop.step} + 1 : 0;"
        yield f"for (int64_t turn{at} = 0; turn{at} < count{at}; turn{at}++) {{"
        yield f"const int64_t i{at} = low{at} + turn{at} * {loop.step};\n(void)i{at};"
    for at, step in enumerate(work.steps):
        yield from _step(nest, at, step)
    yield "POINT;"
    for at in range(nest.depth - 1, 0, -1):
        yield "}"
        yield from _each("store", work.leave[at], nest)
        yield f"loop_end({at}, count{at});"
    yield "turns++;\n}"
    yield from _each("store", work.leave[0], nest)
    yield "}"


def _step(nest: Nest, at: int, step: Step) -> Iterator[str]:
    yield from _each("load", step.before, nest)
    yield from _counted(step.tested)
    where, target = nest.body[at].where, nest.body[at].target
    if where is not None:
        yield f"if (branch({nest.depth + at}, {_value(where, nest)} != 0)) {{"
    yield from _each("load", step.loads, nest)
    yield from _counted(step.computed)
    if target.array in deciding(nest):
        yield _assigned(nest, at)
    yield from _each("store", step.stores, nest)
    if where is not None:
        yield "}"


def _assigned(nest: Nest, at: int) -> str:
    statement, (writer, site) = nest.body[at], _writer(nest)
    place, value = writer.access(statement.target, site), _value(statement.value, nest)
    match statement.combine:
        case "=":
            new = value
        case "+=" | "*=":
            new = f"{place} {statement.combine[0]} {value}"
        case _:
            new = f"f{statement.combine[:-1]}({place}, {value})"
    return f"{place} = ({C_TYPES[nest.arrays[statement.target.array].dtype]})({new});"


def _counted(done: Operations) -> Iterator[str]:
    for name in ("f32", "f64", "other"):
        if done[name]:
            yield f"now[{name.upper()}] += {done[name]};"


def _each(call: str, accesses: Sequence[Access], nest: Nest) -> Iterator[str]:
    begins, (writer, site) = addresses(nest), _writer(nest)
    for access in accesses:
        size = DTYPES[nest.arrays[access.array].dtype]
        yield f"{call}({begins[access.array]} + {size} * ({writer.place(access, site)}));"


def _writer(nest: Nest) -> tuple[Writer, Site]:
    """Writer of places, for arrays `a0`, ... and loop variables `i0`, ..."""
    arrays = [f"a{at}" for at in range(len(nest.arrays))]
    return Writer(nest, arrays), Site({at: (f"i{at}", 0) for at in range(nest.depth)})


def _value(expression: Expr, nest: Nest) -> str:
    """C text of a value as a double, which is exact for all compared values except very large
    integers."""
    match expression:
        case Const(value):
            return f"(double){value!r}" if value >= 0 else f"(-(double){-value!r})"
        case LoopIndex(loop):
            return f"(double)i{loop}"
        case Read(access):
            writer, site = _writer(nest)
            return f"(double){writer.access(access, site)}"
        case Call("select", args):
            test, yes, no = (_value(a, nest) for a in args)
            return f"(({test}) != 0 ? {yes} : {no})"
        case Call(op, args):
            values = [_value(a, nest) for a in args]
            return f"{_CALLS[op]}({', '.join(values)})" if op in _CALLS else f"({op.join(values)})"
