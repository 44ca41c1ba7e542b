"""Scalars of a program: substituted where they are read, unless their value is cut or rounded to
their type, else expanded to an array with an element per iteration of the loops around them, so
that these can be distributed and run in parallel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embeddb.core.errors import NestError
from embeddb.kernels.nests.expressions import joined_type, type_of
from embeddb.nests.nest import loop_range
from embeddb.nests.parts import (
    COMPARISONS,
    Access,
    Affine,
    Array,
    Call,
    Const,
    Expr,
    Index,
    LoopIndex,
    Read,
    Statement,
    mapped,
    reads,
)
from indexer.frontends.tree import (
    Block,
    Node,
    Program,
    Step,
    accesses,
    walk,
    with_statements,
)

#: Most operators and operands of a substituted expression.
_LARGEST = 400


@dataclass(frozen=True, slots=True)
class _Use:
    path: tuple[Block, ...]
    node: Node
    writes: bool

    @property
    def sets(self) -> bool:
        """True if it sets the scalar regardless of its old value."""
        if not isinstance(self.node, Step):
            return False
        statement = self.node.statement
        return self.writes and statement.combine == "=" and statement.where is None


def without_scalars(program: Program) -> Program:
    """A program whose arrays all have dimensions. A scalar that is set and read in one run of
    statements is substituted; one that every iteration of its loops sets anew gets an element per
    iteration; any other is one element.

    Raises: NestError if the range of a loop is unknown.
    """
    program = replace(program, body=_forwarded(program.body, _uses(program), program.arrays))
    uses = _uses(program)
    arrays, homes = list(program.arrays), dict[int, tuple[Index, ...]]()
    for scalar, met in uses.items():
        around = _around(met)
        ranges = [
            loop_range([b.loop for b in around], program.arrays, at) for at in range(len(around))
        ]
        homes[scalar] = tuple(
            Index(Affine.of_loop(at, -low)) for at, (low, _) in enumerate(ranges)
        ) or (Index(),)
        shape = tuple(max(1, high - low + 1) for low, high in ranges) or (1,)
        arrays[scalar] = replace(arrays[scalar], shape=shape)
    unused = Array("f32", (1,), "zero")
    arrays_stored = tuple(a if a.shape else replace(unused, dtype=a.dtype) for a in arrays)

    def place(access: Access) -> Access:
        return access if access.at else Access(access.array, homes[access.array])

    body = with_statements(program.body, lambda statement: statement.mapped(place))
    return replace(program, arrays=arrays_stored, body=body)


def _uses(program: Program) -> dict[int, list[_Use]]:
    """Uses of every scalar, in the order of the text."""
    uses: dict[int, list[_Use]] = {}
    for path, node in walk(program.body):
        for access, writes in accesses(node):
            if not program.arrays[access.array].shape:
                uses.setdefault(access.array, []).append(_Use(path, node, writes))
    return uses


def _around(uses: Sequence[_Use]) -> tuple[Block, ...]:
    """The loops of which every iteration sets a scalar before it is read."""
    shared = list(uses[0].path)
    for use in uses[1:]:
        same = [a is b for a, b in zip(shared, use.path, strict=False)]
        shared = shared[: same.index(False) if False in same else len(same)]
    first = uses[0]
    return tuple(shared) if first.sets and len(first.path) == len(shared) else ()


# -- put in where they are read --------------------------------------------------------------------


def _forwarded(
    nodes: tuple[Node, ...], uses: Mapping[int, Sequence[_Use]], arrays: Sequence[Array]
) -> tuple[Node, ...]:
    forwarded: list[Node] = []
    run: list[Step] = []
    for node in (*nodes, None):
        if isinstance(node, Step):
            run.append(node)
            continue
        forwarded += _run_forwarded(run, uses, arrays)
        run = []
        if node is not None:
            forwarded.append(replace(node, inside=_forwarded(node.inside, uses, arrays)))
    return tuple(forwarded)


def _run_forwarded(
    run: Sequence[Step], uses: Mapping[int, Sequence[_Use]], arrays: Sequence[Array]
) -> list[Step]:
    """A run of statements with the scalars substituted that only it uses."""
    within = {id(step) for step in run}
    own = {
        scalar
        for scalar, met in uses.items()
        if met[0].sets and all(id(use.node) in within for use in met)
    }
    while True:
        try:
            return _put_in(run, frozenset(own), arrays)
        except _MustStay as kept:
            own.remove(kept.scalar)


class _MustStay(Exception):
    """A scalar must stay in memory: an operand of its value is overwritten, it grows too large, or
    its value is cut or rounded to its type."""

    def __init__(self, scalar: int) -> None:
        super().__init__()
        self.scalar = scalar


def _put_in(run: Sequence[Step], own: frozenset[int], arrays: Sequence[Array]) -> list[Step]:
    values: dict[int, Expr] = {}
    stale: set[int] = set()

    def leaf(expression: Expr) -> Expr:
        if not isinstance(expression, Read) or expression.access.array not in own:
            return expression
        scalar = expression.access.array
        if scalar in stale:
            raise _MustStay(scalar)
        return values[scalar]

    remaining: list[Step] = []
    for step in run:
        statement = step.statement
        value = mapped(statement.value, leaf)
        where = statement.where and mapped(statement.where, leaf)
        target = statement.target.array
        if target in own:
            if statement.reduction or where is not None:
                old = leaf(Read(statement.target))
                value = (
                    value
                    if not statement.reduction
                    else Call(statement.combine.rstrip("="), (old, value))
                )
                value = value if where is None else Call("select", (where, value, old))
            dtype = arrays[target].dtype
            same = _keeps_type(value, dtype, run, arrays)
            value = value if same or dtype != "f64" else in_double(value)
            if _size(value) > _LARGEST or not (same or dtype == "f64"):
                raise _MustStay(target)
            values[target] = value
            stale.discard(target)
            continue
        remaining.append(
            Step(Statement(statement.target, statement.combine, value, where), step.place)
        )
        stale |= {s for s, v in values.items() if any(a.array == target for a in reads(v))}
    return remaining


def _keeps_type(value: Expr, dtype: str, run: Sequence[Step], arrays: Sequence[Array]) -> bool:
    """True if a value has a type before it is stored in it. One of numbers and indices of loops
    takes the type of any operand beside it, so there all operands must have the type, or a larger
    one that gives the same number."""

    def plain(leaf: Expr) -> Expr:
        return Const(0) if isinstance(leaf, LoopIndex) else leaf

    if any(True for _ in reads(value)):
        return computed_type(mapped(value, plain), arrays) == dtype
    if dtype in ("i32", "i64") and computed_type(value, arrays) in ("real", "f32", "f64"):
        return False
    beside = {arrays[step.statement.target.array].dtype for step in run}
    # A real one beside the index of a loop would be computed in integers, which may overflow.
    real = dtype in ("f32", "f64") and computed_type(value, arrays) not in ("real", "f32", "f64")

    def met(leaf: Expr) -> Expr:
        if isinstance(leaf, Read):
            beside.add(arrays[leaf.access.array].dtype)
        elif isinstance(leaf, LoopIndex) and real:
            beside.add("i64")
        return leaf

    for step in run:
        mapped(step.statement.value, met)
        mapped(step.statement.where or value, met)
    exact = isinstance(value, Const) and single(value.value) == value.value
    return all(one == dtype or (exact and joined_type([one, dtype]) == one) for one in beside)


def _size(expression: Expr) -> int:
    return 1 + sum(map(_size, expression.args)) if isinstance(expression, Call) else 1


#: The largest power that is written out.
_MOST_TIMES = 4
_FLIPPED = {">": "<", ">=": "<="}
#: Functions by their names in C, in Python and in symbols, without C's letter of the type.
_FUNCTIONS = {
    **{name: name for name in ("sqrt", "exp", "log", "tanh", "min", "max", "abs")},
    **{"fabs": "abs", "Abs": "abs"},
    **dict.fromkeys(("fmin", "MIN", "Min", "minimum"), "min"),
    **dict.fromkeys(("fmax", "MAX", "Max", "maximum"), "max"),
}


def pair(op: str, left: Expr, right: Expr) -> Expr:
    """An arithmetic operator or a comparison; sums and products of two numbers are computed.

    Raises: NestError for others.
    """
    if op in _FLIPPED:
        return Call(_FLIPPED[op], (right, left))
    if op in ("+", "-", "*") and isinstance(left, Const) and isinstance(right, Const):
        one, other = left.value, right.value
        return Const({"+": one + other, "-": one - other, "*": one * other}[op])
    if op in (*COMPARISONS, "+", "-", "*", "/"):
        return Call(op, (left, right))
    raise NestError(f"operator {op} is not supported in a nest")


def negated(value: Expr) -> Expr:
    return Const(-value.value) if isinstance(value, Const) else Call("neg", (value,))


def truth(value: Expr) -> Expr:
    """1 where a value is not 0, else 0."""
    if isinstance(value, Call) and value.op in COMPARISONS:
        return value
    return Call("!=", (value, Const(0)))


def opposite(value: Expr) -> Expr:
    """1 where a value is 0, else 0."""
    return Call("==", (value, Const(0)))


def all_true(one: Expr, other: Expr) -> Expr:
    """1 where both values are not 0, else 0."""
    return Call("*", (truth(one), truth(other)))


def masked(mask: Expr | None, condition: Expr) -> Expr:
    """A condition under the mask around it."""
    return truth(condition) if mask is None else Call("*", (mask, truth(condition)))


def any_true(one: Expr, other: Expr) -> Expr:
    """1 where one of the values is not 0, else 0."""
    return Call("max", (truth(one), truth(other)))


def chosen(condition: Expr, one: Expr, other: Expr) -> Expr:
    """`condition ? one : other`, as a minimum or maximum where it is one."""
    if isinstance(condition, Call) and condition.op in ("<", "<="):
        if condition.args == (one, other):
            return Call("min", (one, other))
        if condition.args == (other, one):
            return Call("max", (one, other))
    return Call("select", (condition, one, other))


def function(name: str, args: Sequence[Expr]) -> Expr:
    """A call. Raises: NestError for an unsupported function."""
    op = _FUNCTIONS.get(name)
    if op in ("min", "max") and len(args) > 1:
        combined = args[0]
        for one in args[1:]:
            combined = Call(op, (combined, one))
        return combined
    if op is not None and op not in ("min", "max") and len(args) == 1:
        return Call(op, tuple(args))
    if name == "pow" and len(args) == 2:
        return power(args[0], args[1])
    raise NestError(
        f"function {name[:40] or '?'} with {len(args)} operands is not supported in a nest"
    )


def power(base: Expr, exponent: Expr) -> Expr:
    """A small power, as a product, or a power of a positive number, by `exp`.

    Raises: NestError for others.
    """
    match exponent:
        case Const(times) if 1 <= abs(2 * times) <= 2 * _MOST_TIMES and 2 * times % 1 == 0:
            parts = [base] * int(abs(times)) + [Call("sqrt", (base,))] * (abs(times) % 1 == 0.5)
            product = parts[0]
            for part in parts[1:]:
                product = pair("*", product, part)
            return product if times > 0 else Call("/", (Const(1.0), product))
    match base:
        case Const(number) if number > 0:
            return Call("exp", (pair("*", exponent, Const(math.log(number))),))
    raise NestError("only powers up to 4, by halves, and those of numbers are supported in a nest")


def computed_type(value: Expr, arrays: Sequence[Array]) -> str:
    """The type in which a nest computes a value, whose file form has 2 for 2.0."""

    def written(leaf: Expr) -> Expr:
        whole = isinstance(leaf, Const) and float(leaf.value).is_integer()
        return Const(int(leaf.value)) if whole else leaf  # type: ignore[union-attr]

    return type_of(mapped(value, written), arrays)


def single(number: float) -> float:
    """A number rounded to float, as infinity beyond its range."""
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def in_double(value: Expr) -> Expr:
    """A value converted to double: 1/1 is real, and of 64 bits, in a nest."""
    return Call("*", (value, Call("/", (Const(1), Const(1)))))


def is_whole(value: Expr, arrays: Sequence[Array]) -> bool:
    """True if C would compute it in integers."""
    match value:
        case Const(number):
            return isinstance(number, int)
        case LoopIndex():
            return True
        case Read(access):
            return arrays[access.array].dtype in ("i32", "i64")
        case Call("<" | "<=" | "==" | "!="):
            return True
        case Call("select", (_, one, other)):
            return is_whole(one, arrays) and is_whole(other, arrays)
        case Call(op, args):
            return op in ("+", "-", "*", "neg", "abs", "min", "max") and all(
                is_whole(a, arrays) for a in args
            )
