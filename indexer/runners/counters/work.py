"""Loads, stores and operations of one iteration of each loop of a nest, after basic compiler
optimisation.

Only three optimisations of every compiler are modelled: an access that does not change in a loop is
loaded before it (a reduction's element is stored after it), a value in a register is not loaded
again, and both stop where a condition decides whether the code runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from embeddb.nests.nest import Nest
from embeddb.nests.parts import DTYPES, Access, Array, Call, Const, Expr, LoopIndex, Read

#: Operations that count as arithmetic where their operands are floating; comparing and choosing do
#: not (Intel's manual on FP_ARITH_INST_RETIRED).
_ARITHMETIC = frozenset({"+", "-", "*", "/", "min", "max", "sqrt"})
#: Calls of the mathematical library, in operations: a polynomial of about this length each.
_CALLS = dict.fromkeys(("exp", "log", "tanh"), 10)
_COMPARISONS = frozenset({"<", "<=", "==", "!="})


@dataclass(frozen=True, slots=True)
class Operations:
    """Floating operations by type, and all others (integer, comparing, choosing)."""

    f32: int = 0
    f64: int = 0
    other: int = 0

    def __add__(self, more: Operations) -> Operations:
        return Operations(self.f32 + more.f32, self.f64 + more.f64, self.other + more.other)

    @property
    def flops(self) -> int:
        return self.f32 + self.f64


@dataclass(frozen=True, slots=True)
class Step:
    """One statement in the innermost loop. `before`: loads of its condition, `where`, or None;
    `loads` and `stores` run if that holds."""

    before: tuple[Access, ...]
    where: Expr | None
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

    @property
    def flops(self) -> int:
        """Floating operations of an iteration of the innermost loop in which all conditions
        hold."""
        return sum(s.tested.flops + s.computed.flops for s in self.steps)

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
        steps.append(_step(nest, at, register_targets, enter, in_registers))
        if statement.target in register_targets:
            leave[_level(statement.target)][statement.target] = None
    return Work(tuple(map(tuple, enter)), tuple(map(tuple, leave)), tuple(steps))


def deciding(nest: Nest) -> frozenset[int]:
    """The arrays whose values decide the accesses: those in bounds, indices and conditions, and
    those that are written into such an array."""
    arrays = {a.array for access in _all(nest) for a in access.inner()}
    arrays |= {access.array for statement, access, _ in nest.accesses() if statement < 0}
    for statement in nest.body:
        if statement.where is not None:
            arrays |= {a.array for a in _reads(statement.where)}
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
            if op in _COMPARISONS:
                return "i32"
            taken = args[1:] if op == "select" else args
            dtype = _widest([dtype_of(a, arrays) for a in taken])
            return "f64" if op in ("sqrt", *_CALLS) and dtype not in ("f32", "f64") else dtype


def _level(access: Access) -> int:
    """The outermost loop before which an access can run, counted from outside."""
    return 1 + max(access.loops, default=-1)


def _all(nest: Nest) -> Iterator[Access]:
    return (access for _, access, _ in nest.accesses())


def _reads(expression: Expr) -> Iterator[Access]:
    if isinstance(expression, Read):
        yield from expression.access.inner()
        yield expression.access
    elif isinstance(expression, Call):
        for argument in expression.args:
            yield from _reads(argument)


def _keeps(nest: Nest, target: Access) -> bool:
    """True if a target stays in a register for a whole loop: nothing else touches its array."""
    alone = all(a == target for a in _all(nest) if a.array == target.array)
    free = all(s.where is None for s in nest.body if s.target == target)
    return alone and free and _level(target) < nest.depth


def _step(
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
    before = tuple(loads(_reads(where), True)) if where is not None else ()
    outside = set(in_registers)
    read = [*target.inner(), *_reads(statement.value), *([target] if statement.reduction else [])]
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
        computed += _one(statement.combine[:-1], _widest(both))
    tested = Operations() if where is None else _operations(where, nest.arrays)
    return Step(before, where, inside, stores, tested, computed)


def _operations(expression: Expr, arrays: Sequence[Array]) -> Operations:
    if not isinstance(expression, Call):
        return Operations()
    dtype = _widest([dtype_of(a, arrays) for a in expression.args])
    operations = _one(expression.op, dtype)
    for argument in expression.args:
        operations += _operations(argument, arrays)
    return operations


def _one(op: str, dtype: str | None) -> Operations:
    if op in _CALLS:
        return Operations(**{"f32" if dtype == "f32" else "f64": _CALLS[op]})
    if op == "sqrt" and dtype not in ("f32", "f64"):
        dtype = "f64"
    if op in _ARITHMETIC and dtype in ("f32", "f64"):
        return Operations(**{str(dtype): 1})
    return Operations(other=1)


def _widest(dtypes: Sequence[str | None]) -> str | None:
    order = ("i32", "i64", "f32", "f64")
    assert len(order) == len(DTYPES)
    typed = [d for d in dtypes if d is not None]
    return max(typed, key=order.index) if typed else None
