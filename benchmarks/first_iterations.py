"""Four numbers of the first iterations of a nest in a simple cache: the paper's baseline of reuse
distances ("Performance Embeddings", Section 4), against which embeddings are compared."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.nests.nest import Nest
from embeddb.nests.parts import DTYPES, Access, Call, Const, Expr, LoopIndex, Read, Statement
from indexer.runners.counters.caches import PLAIN, Caches
from indexer.runners.counters.model import (
    Values,
    deciding_values,
    index_of,
    outer_turns,
    place_of,
)
from indexer.runners.counters.source import addresses
from indexer.runners.counters.work import Operations, Step, deciding, dtype_of, work_of

__all__ = ["FIRST", "ITERATIONS", "Touch", "Trace", "first_iterations"]

#: What `first_iterations` tells: misses per access; bytes from and to memory; floating operations
#: per byte moved.
FIRST = ("miss_ratio", "bytes_read", "bytes_written", "intensity")
ITERATIONS = 500
#: Accesses per iteration beyond which the rest is not looked at.
_MOST_EACH = 1000


def first_iterations(
    nest: Nest, *, iterations: int = ITERATIONS, caches: Caches = PLAIN
) -> NDArray[np.float32]:
    """float32[4], in the order of `FIRST`: the first so many turns of the innermost loop, in a
    fully associative cache of the size of L1 that is empty before and written back behind.

    Raises: NothingFound where the arrays that decide are too large to be looked at.
    """
    values = deciding_values(nest)
    trace = Trace(nest, values)
    capacity = caches.l1.sets * caches.l1.ways
    held: OrderedDict[int, bool] = OrderedDict()
    accesses, misses, written = 0, 0, 0
    touches = trace.touches(0, outer_turns(nest, values))
    for touch in islice(touches, iterations * _MOST_EACH):
        if trace.points >= iterations:
            break
        line = touch.address // caches.line_bytes
        accesses += 1
        misses += line not in held
        held[line] = held.pop(line, False) or touch.store
        if len(held) > capacity:
            written += held.popitem(last=False)[1]
    written += sum(held.values())
    moved = (misses + written) * caches.line_bytes
    told = (
        misses / accesses if accesses else 0.0,
        misses * caches.line_bytes,
        written * caches.line_bytes,
        trace.operations.flops / moved if moved else 0.0,
    )
    return np.array(told, dtype=np.float32)


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
        low = index_of(loop.lower, (), self._values)
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
        low, high = (index_of(bound, at, self._values) for bound in (loop.lower, loop.upper))
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
            place = place_of(access, array.strides, at, self._values)
            yield Touch(self._begins[access.array] + DTYPES[array.dtype] * place, store)

    def _assign(self, statement: Statement, at: tuple[int, ...]) -> None:
        target = statement.target
        held = self._values[target.array].reshape(-1)
        place = place_of(target, self._nest.arrays[target.array].strides, at, self._values)
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
                place = place_of(access, arrays[access.array].strides, at, self._values)
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
