"""A nest evaluated by numpy, in double precision and in the order of its text, and bounds of the
rounding errors of its results.

Loops of which no two iterations touch the same element are expanded into flat vectors of indices,
some thousand points at a time; the others run iteration by iteration. Nothing here is shared with
the code generator.

The bounds come from a nest of their own: each statement gets a companion that adds up the rounded
magnitudes of its value, a running error analysis (Higham, "Accuracy and Stability of Numerical
Algorithms", 3.3) in units of the rounding error. An array that is read and never written has no
error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.kernels.accuracy import relative_error
from embeddb.kernels.nests.expressions import type_of
from embeddb.nests.nest import Nest
from embeddb.nests.parts import (
    COMPARISONS,
    Access,
    Array,
    Call,
    Const,
    Expr,
    Index,
    LoopIndex,
    Read,
    Statement,
)

#: Points and turns one by one, beyond which a compiled nest is the reference.
MOST_POINTS = 2e7
MOST_TURNS = 20_000
_CHUNK = 1 << 16

_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "<": np.less,
    "<=": np.less_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
}
_COMBINES = {"+=": np.add, "*=": np.multiply, "min=": np.minimum, "max=": np.maximum}

#: By loop, the index of each point: int64 that broadcast to [p, k], where k is 1 or the turns of
#: the innermost loop.
_Points = dict[int, NDArray[np.int64]]
_Shape = tuple[int, int]


def suits(nest: Nest) -> bool:
    """True if numpy can evaluate it in seconds."""
    turns = 1
    for loop in set(range(nest.depth)) - free_loops(nest):
        turns *= nest.trips[loop]
    return nest.points <= MOST_POINTS and turns <= MOST_TURNS


def free_loops(nest: Nest) -> frozenset[int]:
    """Loops that may run as one vector, the others in their order around them."""
    every = frozenset(range(nest.depth))
    free = every & _fixed_by(nest, overwriting=False)
    # In the order of the text the last of those that overwrite each other is the last.
    return free if free == every else free & _fixed_by(nest, overwriting=True)


def _fixed_by(nest: Nest, *, overwriting: bool) -> frozenset[int]:
    """The loops whose index is equal in any two conflicting iterations; conflicts of an assignment
    with itself count only with `overwriting`."""
    free = frozenset(range(nest.depth))
    touching = [(s, a, w) for s, a, w in nest.accesses() if a.array in nest.written]
    for one, other in combinations_with_replacement(touching, 2):
        if one[1].array != other[1].array or not (one[2] or other[2]):
            continue
        if one[2] and other[2]:
            hows = {nest.body[one[0]].combine, nest.body[other[0]].combine}
            if len(hows) == 1 and "=" not in hows:
                continue  # in any order
            if one[0] == other[0] and not overwriting:
                continue
        free &= fixed_loops(one[1], other[1])
    return free


def evaluate(nest: Nest, arrays: Mapping[int, NDArray[Any]]) -> dict[int, NDArray[Any]]:
    """Final contents of the written arrays, float64[elements] each, from the initial contents of
    all arrays (flat), which are not changed."""
    state = {
        a: array.astype(np.float64) if a in nest.written or array.dtype.kind == "f" else array
        for a, array in arrays.items()
    }
    with np.errstate(all="ignore"):
        Evaluation(nest, state).run(0, {}, 1)
    return {a: state[a] for a in sorted(nest.written)}


class Evaluation:
    """One run; `arrays` are the current contents."""

    def __init__(self, nest: Nest, arrays: dict[int, NDArray[Any]]) -> None:
        self.nest, self.arrays = nest, arrays
        self.free = free_loops(nest)

    def run(self, loop: int, points: _Points, count: int) -> None:
        """Run the loops from `loop` inwards, for `count` points of those around: int64[count,
        1]."""
        if loop == self.nest.depth:
            self._body(points, (count, 1))
            return
        step = self.nest.loops[loop].step
        lower = self.bound(self.nest.loops[loop].lower, points, count)
        upper = self.bound(self.nest.loops[loop].upper, points, count)
        trips = np.maximum(0, -(-(upper - lower) // step))
        if loop not in self.free:
            for turn in range(int(trips.max(initial=0))):
                on = np.flatnonzero(turn < trips)
                around = {k: v[on] for k, v in points.items()}
                self.run(loop + 1, {**around, loop: lower[on, None] + step * turn}, on.size)
            return
        for part in _parts(trips):
            around = {k: v[part] for k, v in points.items()}
            turns = trips[part]
            if loop == self.nest.depth - 1 and turns.min() == turns.max():
                inside = np.arange(turns[0], dtype=np.int64)[None, :]
                around[loop] = lower[part, None] + step * inside
                self._body(around, (turns.size, int(turns[0])))
                continue
            of = np.repeat(np.arange(turns.size), turns)
            inside = np.arange(of.size, dtype=np.int64) - (np.cumsum(turns) - turns)[of]
            around = {k: v[of] for k, v in around.items()}
            around[loop] = (lower[part][of] + step * inside)[:, None]
            self.run(loop + 1, around, of.size)

    def bound(self, index: Index, points: _Points, count: int) -> NDArray[np.int64]:
        """int64[count]: the values of a bound at points of the loops around."""
        bound = np.int64(index.affine.constant) + self._affine(index.affine.coefs, points)
        if index.of is not None:
            bound = bound + self.arrays[index.of.array][self.place(index.of, points)]
        return np.asarray(np.broadcast_to(bound, (count, 1))[:, 0], np.int64)

    def _affine(self, coefs: tuple[int, ...], points: _Points) -> Any:
        total: Any = np.zeros((1, 1), np.int64)
        for loop, coef in enumerate(coefs):
            if coef:
                total = total + coef * points[loop]
        return total

    def place(self, access: Access, points: _Points) -> NDArray[np.int64]:
        """Index of the element in row-major order."""
        array = self.nest.arrays[access.array]
        coefs = [0] * self.nest.depth
        place: Any = np.int64(0)
        for index, stride in zip(access.at, array.strides, strict=True):
            place = place + index.affine.constant * stride
            for loop, coef in enumerate(index.affine.coefs):
                coefs[loop] += coef * stride
            if index.of is not None:
                place = place + stride * self.arrays[index.of.array][self.place(index.of, points)]
        return np.asarray(place + self._affine(tuple(coefs), points))

    def _body(self, points: _Points, shape: _Shape) -> None:
        for statement in self.nest.body:
            here, size = points, shape
            values = _Values(self, here)
            if statement.where is not None:
                on = np.broadcast_to(values.of(statement.where) != 0, shape)
                size = int(np.count_nonzero(on)), 1
                here = {k: np.broadcast_to(v, shape)[on][:, None] for k, v in points.items()}
                values = _Values(self, here)
            self._combine(statement, values.of(statement.value), here, size)

    def _combine(self, s: Statement, value: NDArray[Any], points: _Points, shape: _Shape) -> None:
        target = self.arrays[s.target.array]
        if self.nest.arrays[s.target.array].dtype in ("i32", "i64"):
            value = np.trunc(value)
        value = np.broadcast_to(value, shape)
        place = self.place(s.target, points)
        alike = place.shape[1] < shape[1]
        combine = _COMBINES.get(s.combine)
        if alike:  # the innermost loop stays with one element
            value = value[:, -1:] if combine is None else combine.reduce(value, 1, keepdims=True)
        place = np.broadcast_to(place, value.shape)
        if combine is None:
            target[place] = value  # the last one of several that meet stays
            return
        apart = fixed_loops(s.target, s.target) | ({self.nest.depth - 1} if alike else set())
        if len(apart) == self.nest.depth:
            target[place] = combine(target[place], value)
        else:
            combine.at(target, place.ravel(), value.ravel())


class _Values:
    """Expressions at some points, each computed once."""

    def __init__(self, run: Evaluation, points: _Points) -> None:
        self._run, self._points = run, points
        self._cache: dict[int, NDArray[Any]] = {}

    def of(self, expression: Expr) -> NDArray[Any]:
        """float64 that broadcasts to [p, k]."""
        value = self._cache.get(id(expression))
        if value is None:
            value = np.asarray(self._computed(expression), np.float64)
            self._cache[id(expression)] = value
        return value

    def _computed(self, expression: Expr) -> Any:
        match expression:
            case Const(value):
                return np.full((1, 1), value)
            case LoopIndex(loop):
                return self._points[loop]
            case Read(access):
                return self._run.arrays[access.array][self._run.place(access, self._points)]
            case Call("select", args):
                return np.where(self.of(args[0]) != 0, self.of(args[1]), self.of(args[2]))
            case Call(op, args):
                return _OPERATORS[op](*map(self.of, args))


def _parts(trips: NDArray[np.int64]) -> Iterator[slice]:
    """Slices of points with a bounded number of iterations in all, or of one point with more;
    points without an iteration are left out."""
    ends = np.cumsum(trips)
    low, done = 0, 0
    while low < trips.size:
        high = max(low + 1, int(np.searchsorted(ends, done + _CHUNK, side="right")))
        if ends[high - 1] > done:
            yield slice(low, high)
        low, done = high, int(ends[high - 1])


def fixed_loops(one: Access, other: Access) -> frozenset[int]:
    """Loops whose index must be equal in two iterations of which one touches by `one` the element
    that the other touches by `other`: each dimension with the same affine index in both fixes the
    one loop in it that the others do not. The result may miss fixed loops, but never has others."""
    fixed: set[int] = set()
    alike = [
        set(a.affine.loops)
        for a, b in zip(one.at, other.at, strict=True)
        if a == b and a.of is None
    ]
    grown = True
    while grown:
        left = [loops - fixed for loops in alike]
        single = {min(loops) for loops in left if len(loops) == 1}
        grown = bool(single)
        fixed |= single
    return frozenset(fixed)


@dataclass(frozen=True, slots=True)
class Checked:
    """A nest in double precision that computes the expected results; `errors` maps each written
    array to the array of its magnitudes."""

    nest: Nest
    errors: dict[int, int]


def checked_nest(nest: Nest) -> Checked:
    """The statements of `nest`, each with the statement of its rounding error."""
    errors: dict[int, int] = {}
    arrays = [replace(a, dtype="f64") if a.dtype == "f32" else a for a in nest.arrays]
    for array in sorted(nest.written):
        if any(s.combine != "*=" for s in nest.body if s.target.array == array):
            errors[array] = len(arrays)
            arrays.append(Array("f64", nest.arrays[array].shape, "zero"))
    names = tuple(nest.array_name(a) for a in range(len(nest.arrays)))
    names += tuple(f"error_{a}" for a in errors)
    watch = _Watch(nest, errors)
    body = [one for s in nest.body for one in watch.statements(s)]
    return Checked(replace(nest, arrays=tuple(arrays), body=tuple(body), array_names=names), errors)


def tolerance_of(nest: Nest) -> float:
    """The relative error that rounding explains, for the computing type and the length of
    reductions: it grows as their root while random, linearly beyond. 0: integers."""
    types = {type_of(s.value, nest.arrays) for s in nest.body}
    types |= {nest.arrays[s.target.array].dtype for s in nest.body}
    reals = types & {"f32", "f64", "real"}
    if not reals:
        return 0.0
    length = 1
    for statement in nest.body:
        if statement.reduction:
            around = [
                nest.trips[at] for at in range(nest.depth) if at not in statement.target.loops
            ]
            length = max(length, int(np.prod(around, dtype=np.float64)))
    types |= {nest.arrays[access.array].dtype for _, access, _ in nest.accesses()}
    return relative_error("f32" if "f32" in types else "f64", length)


class _Watch:
    """Writer of the statements."""

    def __init__(self, nest: Nest, errors: dict[int, int]) -> None:
        self.nest, self.errors = nest, errors

    def statements(self, s: Statement) -> list[Statement]:
        """The magnitudes first: the value may read the element that the statement then
        overwrites."""
        value = self.rounded(s.value)
        where = None if s.where is None else self.rounded(s.where)
        own = replace(s, value=value, where=where)
        if s.target.array not in self.errors or s.combine == "*=":
            return [own]
        error = Call("+", (Call("abs", (value,)), self.error(value)))
        combine = "max=" if s.combine in ("min=", "max=") else s.combine
        target = Access(self.errors[s.target.array], s.target.at)
        return [Statement(target, combine, error, where), own]

    def rounded(self, expression: Expr, dtype: str = "") -> Expr:
        """The expression with its numbers rounded to the type of the computation."""
        if isinstance(expression, Const):
            single = dtype == "f32" and isinstance(expression.value, float)
            return Const(float(np.float32(expression.value))) if single else expression
        if not isinstance(expression, Call):
            return expression
        if expression.op in COMPARISONS:
            types = {type_of(a, self.nest.arrays) for a in expression.args}
            dtype = "f32" if "f32" in types and "f64" not in types else ""
        else:
            dtype = type_of(expression, self.nest.arrays)
        return replace(expression, args=tuple(self.rounded(a, dtype) for a in expression.args))

    def error(self, expression: Expr) -> Expr:
        """The rounded magnitudes in the computation of a value."""
        if isinstance(expression, Read) and expression.access.array in self.errors:
            access = expression.access
            return Read(Access(self.errors[access.array], access.at))
        if not isinstance(expression, Call) or expression.op in COMPARISONS:
            return Const(0)
        return _plus(self._passed_on(expression), _size(expression))

    def _passed_on(self, call: Call) -> Expr:
        """Propagated errors of the operands."""
        args = call.args
        errors = [self.error(a) for a in args]
        match call.op:
            case "+" | "-" | "min" | "max":
                return _plus(*errors)
            case "*":
                pairs = zip(errors, (_size(args[1]), _size(args[0])), strict=True)
                return _plus(*(_times(error, size) for error, size in pairs))
            case "/":
                share = _times(errors[1], Call("/", (_size(call), _size(args[1]))))
                return _plus(_times(errors[0], _size(args[1]), "/"), share)
            case "sqrt":
                return _times(errors[0], call, "/")
            case "exp":
                return _times(errors[0], call)
            case "log":
                return _times(errors[0], _size(args[0]), "/")
            case "select":
                return _plus(*errors[1:])
        return errors[0]


def _size(expression: Expr) -> Expr:
    return Call("abs", (expression,))


def _plus(*parts: Expr) -> Expr:
    total: Expr = Const(0)
    for part in parts:
        if part != Const(0):
            total = part if total == Const(0) else Call("+", (total, part))
    return total


def _times(error: Expr, by: Expr, op: str = "*") -> Expr:
    return error if error == Const(0) else Call(op, (error, by))


def may_jump(nest: Nest) -> bool:
    """True if rounding can turn a decision: a comparison of computed reals, or a real number
    truncated to an integer. A few elements may then be arbitrary."""
    for statement in nest.body:
        real = type_of(statement.value, nest.arrays) not in ("int", "i32", "i64")
        whole = nest.arrays[statement.target.array].dtype in ("i32", "i64")
        if whole and real and isinstance(statement.value, Call):
            return True
        if any(_jumps(nest, e) for e in (statement.value, statement.where) if e is not None):
            return True
    return False


def _jumps(nest: Nest, expression: Expr) -> bool:
    if not isinstance(expression, Call):
        return False
    if expression.op in COMPARISONS and any(_is_rounded(nest, a) for a in expression.args):
        return True
    return any(_jumps(nest, a) for a in expression.args)


def _is_rounded(nest: Nest, expression: Expr) -> bool:
    if isinstance(expression, Read):
        array = expression.access.array
        return array in nest.written and nest.arrays[array].dtype in ("f32", "f64")
    real = type_of(expression, nest.arrays) in ("real", "f32", "f64")
    return isinstance(expression, Call) and real
