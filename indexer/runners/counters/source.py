"""The instrumented C of a nest: `model.c.in` with the nest's loops inserted, where each access is a
call of the simulated caches. Only values that decide the accesses are computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from embeddb.kernels.nests.expressions import C_TYPES, Site, Writer
from embeddb.nests.nest import Nest
from embeddb.nests.parts import DTYPES, Access, Call, Const, Expr, Index, LoopIndex, Read
from indexer.runners.counters.caches import Caches
from indexer.runners.counters.work import (
    Operations,
    Step,
    Work,
    deciding,
    dtype_of,
    work_of,
)

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
    outer = nest.loops[0]
    yield f"const int64_t low0 = {_index(outer.lower, nest)};"
    yield "for (int64_t turn0 = first; turn0 < last; turn0++) {"
    yield f"const int64_t i0 = low0 + turn0 * {outer.step};"
    yield "now[BRANCHES]++;\nnow[OTHER] += 2;"
    for at, loop in enumerate(nest.loops[1:], 1):
        yield from _each("load", work.enter[at], nest)
        low, high = _index(loop.lower, nest), _index(loop.upper, nest)
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
    yield from _operations(step.tested)
    if step.where is not None:
        yield f"if (branch({nest.depth + at}, {_value(step.where, nest)} != 0)) {{"
    yield from _each("load", step.loads, nest)
    yield from _operations(step.computed)
    target = nest.body[at].target
    if target.array in deciding(nest):
        yield _assigned(nest, at)
    yield from _each("store", step.stores, nest)
    if step.where is not None:
        yield "}"


def _assigned(nest: Nest, at: int) -> str:
    statement = nest.body[at]
    place, value = _element(statement.target, nest), _value(statement.value, nest)
    match statement.combine:
        case "=":
            new = value
        case "+=" | "*=":
            new = f"{place} {statement.combine[0]} {value}"
        case _:
            new = f"f{statement.combine[:-1]}({place}, {value})"
    return f"{place} = ({C_TYPES[nest.arrays[statement.target.array].dtype]})({new});"


def _operations(done: Operations) -> Iterator[str]:
    for name, count in (("F32", done.f32), ("F64", done.f64), ("OTHER", done.other)):
        if count:
            yield f"now[{name}] += {count};"


def _each(call: str, accesses: Sequence[Access], nest: Nest) -> Iterator[str]:
    begins, (writer, site) = addresses(nest), _writer(nest)
    for access in accesses:
        size = DTYPES[nest.arrays[access.array].dtype]
        yield f"{call}({begins[access.array]} + {size} * ({writer.place(access, site)}));"


def _writer(nest: Nest) -> tuple[Writer, Site]:
    """Writer of places, for arrays `a0`, ... and loop variables `i0`, ..."""
    arrays = [f"a{at}" for at in range(len(nest.arrays))]
    return Writer(nest, arrays), Site({at: (f"i{at}", 0) for at in range(nest.depth)})


def _index(index: Index, nest: Nest) -> str:
    writer, site = _writer(nest)
    return writer.index(index, site)


def _element(access: Access, nest: Nest) -> str:
    writer, site = _writer(nest)
    return writer.access(access, site)


def _value(expression: Expr, nest: Nest) -> str:
    """C text of a value as a double, which is exact for all compared values except very large
    integers."""
    match expression:
        case Const(value):
            return f"(double){value!r}" if value >= 0 else f"(-(double){-value!r})"
        case LoopIndex(loop):
            return f"(double)i{loop}"
        case Read(access):
            return f"(double){_element(access, nest)}"
        case Call("select", args):
            test, yes, no = (_value(a, nest) for a in args)
            return f"(({test}) != 0 ? {yes} : {no})"
        case Call("/", args) if dtype_of(expression, nest.arrays) in ("i32", "i64"):
            return f"trunc({' / '.join(_value(a, nest) for a in args)})"
        case Call(op, args):
            values = [_value(a, nest) for a in args]
            return f"{_CALLS[op]}({', '.join(values)})" if op in _CALLS else f"({op.join(values)})"
