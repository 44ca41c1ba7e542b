"""The accesses of a nest one after the other, in Python: for its first iterations, and for tests of
the compiled model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from embeddb.nests.nest import Nest
from embeddb.nests.parts import DTYPES, Access, Call, Const, Expr, Index, LoopIndex, Read, Statement
from indexer.runners.nest_counters.source import addresses
from indexer.runners.nest_counters.values import Values
from indexer.runners.nest_counters.work import Operations, Step, deciding, dtype_of, work_of

__all__ = ["Touch", "Trace", "outer_turns"]

_OPERATORS: dict[str, Callable[..., float]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "min": min,
    "max": max,
    "<": lambda x, y: float(x < y),
    "<=": lambda x, y: float(x <= y),
    "==": lambda x, y: float(x == y),
    "!=": lambda x, y: float(x != y),
    "neg": lambda x: -x,
    "abs": abs,
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "exp": lambda x: math.exp(min(x, 700.0)),
    "log": lambda x: math.log(x) if x > 0 else -math.inf,
    "tanh": math.tanh,
}


class Touch(NamedTuple):
    """One access: where, and whether it is a store."""

    address: int
    store: bool


def outer_turns(nest: Nest, values: Values) -> int:
    """How often the outermost loop runs."""
    loop = nest.loops[0]
    low, high = (_index(bound, (), values) for bound in (loop.lower, loop.upper))
    return max(0, -((low - high) // loop.step))


class Trace:
    """Walks over turns of the outermost loop. `operations`, and `points` (turns of the innermost
    loop), are those walked over so far. Arrays that decide and are written into are brought up to
    date in `values`."""

    def __init__(self, nest: Nest, values: Values) -> None:
        self.operations, self.points = Operations(), 0
        self._nest, self._values = nest, values
        self._work, self._begins = work_of(nest), addresses(nest)
        self._deciding = deciding(nest)

    def touches(self, first: int, last: int) -> Iterator[Touch]:
        loop, work = self._nest.loops[0], self._work
        yield from self._each(work.enter[0], (), False)
        low = _index(loop.lower, (), self._values)
        for turn in range(first, last):
            yield from self._inside((low + turn * loop.step,))
        yield from self._each(work.leave[0], (), True)

    def _inside(self, at: tuple[int, ...]) -> Iterator[Touch]:
        level = len(at)
        if level == self._nest.depth:
            for statement, step in zip(self._nest.body, self._work.steps, strict=True):
                yield from self._step(statement, step, at)
            self.points += 1
            return
        loop = self._nest.loops[level]
        yield from self._each(self._work.enter[level], at, False)
        low, high = (_index(bound, at, self._values) for bound in (loop.lower, loop.upper))
        for index in range(low, high, loop.step):
            yield from self._inside((*at, index))
        yield from self._each(self._work.leave[level], at, True)

    def _step(self, statement: Statement, step: Step, at: tuple[int, ...]) -> Iterator[Touch]:
        yield from self._each(step.before, at, False)
        self.operations += step.tested
        if step.where is not None and not self._value(step.where, at):
            return
        yield from self._each(step.loads, at, False)
        self.operations += step.computed
        if statement.target.array in self._deciding:
            self._assign(statement, at)
        yield from self._each(step.stores, at, True)

    def _each(
        self, accesses: Sequence[Access], at: tuple[int, ...], store: bool
    ) -> Iterator[Touch]:
        for access in accesses:
            array = self._nest.arrays[access.array]
            place = _place(access, array.strides, at, self._values)
            yield Touch(self._begins[access.array] + DTYPES[array.dtype] * place, store)

    def _assign(self, statement: Statement, at: tuple[int, ...]) -> None:
        target = statement.target
        held = self._values[target.array].reshape(-1)
        place = _place(target, self._nest.arrays[target.array].strides, at, self._values)
        value = self._value(statement.value, at)
        if statement.reduction:
            value = _OPERATORS[statement.combine[:-1]](float(held[place]), value)
        held[place] = value

    def _value(self, expression: Expr, at: tuple[int, ...]) -> float:
        arrays = self._nest.arrays
        match expression:
            case Const(value):
                return float(value)
            case LoopIndex(loop):
                return float(at[loop])
            case Read(access):
                place = _place(access, arrays[access.array].strides, at, self._values)
                return float(self._values[access.array].reshape(-1)[place])
            case Call("select", (test, yes, no)):
                return self._value(yes if self._value(test, at) else no, at)
            case Call(op, args):
                values = [self._value(a, at) for a in args]
                if op != "/":
                    return float(_OPERATORS[op](*values))
                quotient = values[0] / values[1] if values[1] else math.nan
                whole = dtype_of(expression, arrays) in ("i32", "i64")
                return math.trunc(quotient) if whole else quotient


def _place(access: Access, strides: Sequence[int], at: tuple[int, ...], values: Values) -> int:
    return sum(s * _index(i, at, values) for i, s in zip(access.at, strides, strict=True))


def _index(index: Index, at: tuple[int, ...], values: Values) -> int:
    plain = index.affine.constant + sum(
        coef * x for coef, x in zip(index.affine.coefs, at, strict=False)
    )
    if index.of is None:
        return plain
    array = values[index.of.array]
    strides = [s // array.itemsize for s in array.strides]
    return plain + int(array.reshape(-1)[_place(index.of, strides, at, values)])
